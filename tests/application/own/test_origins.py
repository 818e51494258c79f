"""The hardest samples of one's own data, and predictions, can be found in the files that they came from."""

from __future__ import annotations

import base64
import io
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from html_page import Page
from own_data import read_csv, rows, write_csv, write_images
from scdro.cli import main

SHORT = ["--epochs", "2", "--threads", "1"]


def run(*args):
    assert main([str(arg) for arg in args]) == 0


def results(out, method="SCDRO"):
    (path,) = out.glob(f"{method}/*/seed-1/result.json")
    return path, json.loads(path.read_text())


def page(out):
    run("report", out)
    return Page(out / "report.html")


@pytest.fixture
def table(tmp_path):
    """A CSV with blank lines and a text of two lines: rows and lines differ."""
    content = [row | {"remark": "fine"} for row in rows()]
    content[3]["remark"] = "two\nlines"
    path = write_csv(tmp_path / "data.csv", content)
    lines = path.read_text().splitlines()
    lines[11:11] = ["", ""]
    path.write_text("\n".join(lines) + "\n")
    return path


def at_line(path, number):
    """The cells that begin in a line, without the code under test."""
    lines = path.read_text().splitlines()
    return dict(zip(lines[0].split(","), lines[number - 1].split(","), strict=True))


def test_rows_are_known_by_their_lines(table, tmp_path):
    out = tmp_path / "run"
    run("train", table, "--target", "label", "--group", "site", "--drop", "remark", "--out", out, "--baseline", *SHORT)
    seen = set()
    for method, arm in (("ERM", "ERM"), ("SCDRO", "SCDRO, rho 0.5")):
        hardest = results(out, method)[1]["hardest"]
        head, *shown = page(out).tables[f"Training samples of the largest weight, {arm}"]
        assert head == ["line", "label", "predicted", "weight", "loss", "group", "values"]
        for sample, row in zip(hardest, shown, strict=True):
            truth = at_line(table, sample["origin"]["line"])
            assert sample["values"] == {name: truth[name] for name in ("a", "b", "colour")}
            assert row[:2] == [str(sample["origin"]["line"]), truth["label"]]
            assert row[5:] == [truth["site"], f"a {truth['a']}, b {truth['b']}, colour {truth['colour']}"]
            seen.add(sample["origin"]["line"] - sample["position"])
    assert len(seen) > 3  # lines are no mere shift of positions
    assert "not at hand" not in page(out).text


def test_rows_of_arrays(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(100, 40))
    x[5, 3] = np.nan
    np.savez(tmp_path / "d.npz", X=x, y=(x[:, 0] > 0).astype(int))
    run("train", tmp_path / "d.npz", "--out", tmp_path / "run", *SHORT)
    for sample in results(tmp_path / "run")[1]["hardest"]:
        row = x[sample["origin"]["row"]]
        assert list(sample["values"]) == [str(j) for j in range(30)]  # not more than a page can show
        np.testing.assert_allclose([float(v) for v in sample["values"].values()], row[:30], rtol=1e-5)
        assert sample["label"] == int(row[0] > 0)


def decoded(picture):
    content = base64.b64decode(picture["src"].removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(content)))


def test_images_are_shown_with_their_paths(tmp_path):
    folder, out = write_images(tmp_path / "pictures", sizes=((24, 24), (30, 20), (128, 96))), tmp_path / "run"
    run("train", folder, "--out", out, "--size", 8, "--model", "linear", *SHORT)
    hardest = results(out)[1]["hardest"]
    found = page(out)
    pictures = [attributes for name, attributes in found.elements if name == "img"]
    assert len(pictures) == len(hardest) == 24
    for sample, picture in zip(hardest, pictures, strict=True):
        path = sample["origin"]["path"]
        pixels, shown = np.asarray(Image.open(folder / path).convert("RGB")), decoded(picture)
        assert path[0] == "ab"[sample["label"]]
        assert picture["alt"] == f"training image {path}, {path[0]}"
        assert f"path {path}" in found.text
        if pixels.shape[1] > 64:
            pixels = pixels.reshape(48, 2, 64, 2, 3).mean((1, 3))
        np.testing.assert_allclose(shown, pixels, atol=0.51)
    shutil.rmtree(folder)  # the page does not need them
    assert len([name for name, _ in page(out).elements if name == "img"]) == 24


def test_images_of_lists_and_of_arrays(tmp_path):
    folder = write_images(tmp_path / "pictures", sizes=((8, 8),))
    paths = sorted(folder.glob("*/*"))
    lines = [f"{p.relative_to(folder)} {int(p.parent.name == 'b')}" for p in paths]
    lines.insert(4, "")
    (tmp_path / "list.txt").write_text("\n".join(lines))
    options = ["--size", 8, "--model", "linear", *SHORT]
    run("train", tmp_path / "list.txt", "--root", folder, "--out", tmp_path / "one", *options)
    for sample in results(tmp_path / "one")[1]["hardest"]:
        origin = sample["origin"]
        assert lines[origin["line"] - 1] == f"{origin['path']} {sample['label']}"

    x = np.stack([np.asarray(Image.open(p).convert("RGB")) for p in paths])
    np.savez(tmp_path / "d.npz", X=x, y=np.arange(32) // 16)
    run("train", tmp_path / "d.npz", "--out", tmp_path / "two", "--model", "linear", *SHORT)
    hardest = results(tmp_path / "two")[1]["hardest"]
    pictures = [attributes for name, attributes in page(tmp_path / "two").elements if name == "img"]
    for sample, picture in zip(hardest, pictures, strict=True):
        np.testing.assert_array_equal(decoded(picture), x[sample["origin"]["row"]])


def test_predictions_say_of_what_they_are(table, tmp_path):
    out = tmp_path / "run"
    run("train", table, "--target", "label", "--drop", "remark", "--out", out, "--model", "linear", *SHORT)
    run("predict", out, table, "--out", tmp_path / "p.csv")
    found = read_csv(tmp_path / "p.csv")
    assert list(found[0])[:2] == ["line", "prediction"]
    starts = [int(row["line"]) for row in found]
    labels = [at_line(table, line)["label"] if line != 5 else "" for line in starts]  # a row of two lines
    assert [label for label in labels if label] == [row["label"] for k, row in enumerate(rows()) if k != 3]
    x = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(tmp_path / "d.npz", X=x, y=(x[:, 0] > 0).astype(int))
    run("train", tmp_path / "d.npz", "--out", tmp_path / "two", "--model", "linear", *SHORT)
    run("predict", tmp_path / "two", tmp_path / "d.npz", "--out", tmp_path / "q.csv")
    assert [row["row"] for row in read_csv(tmp_path / "q.csv")] == [str(i) for i in range(60)]
