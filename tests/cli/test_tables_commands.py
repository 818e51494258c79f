"""`scdro train`, `predict`, `audit` and `report`, as a user runs them."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from own_data import read_csv, rows, write_csv, write_images
from scdro.cli import main
from scdro.cli.show import show
from scdro.integrations.loggers import read_json_lines
from scdro.tables import load

QUICK = ["--model", "linear", "--candidates", "1", "--seeds", "1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A table and a run on it."""
    folder = tmp_path_factory.mktemp("place")
    content = [{"who": f"id-{k}", **row} for k, row in enumerate(rows(300))]
    write_csv(folder / "data.csv", content)
    options = ["--target", "label", "--group", "site", "--id", "who", *QUICK]
    assert main(["train", str(folder / "data.csv"), "--out", str(folder / "run"), *options]) == 0
    return folder


def test_from_a_file_to_predictions(place, tmp_path, capsys):
    new = [{"who": f"new-{k}", **row} for k, row in enumerate(rows(60, seed=3))]
    path, out = write_csv(tmp_path / "new.csv", new), tmp_path / "p.csv"
    assert main(["predict", str(place / "run"), str(path), "--out", str(out)]) == 0
    found = read_csv(out)
    assert list(found[0]) == ["row", "who", "prediction", "p(no)", "p(yes)"]
    assert [row["who"] for row in found] == [row["who"] for row in new]  # ids pass through
    assert [row["row"] for row in found] == [str(k) for k in range(1, 61)]
    right = np.mean([p["prediction"] == t["label"] for p, t in zip(found, new, strict=True)])
    assert right > 0.75
    each = np.array([[float(p["p(no)"]), float(p["p(yes)"])] for p in found])
    np.testing.assert_allclose(each, load(place / "run").predict_proba(path), atol=1e-6)
    for model in ("plain", "robust"):
        assert main(["predict", str(place / "run"), str(path), "--out", str(out), "--model", model]) == 0


def test_what_train_and_audit_say(place, capsys):
    summary = load(place / "run").summary
    options = ["--target", "label", "--group", "site", "--id", "who", *QUICK]
    assert main(["train", str(place / "data.csv"), "--out", str(place / "run"), *options]) == 0  # again: nothing to do
    said = " ".join(capsys.readouterr().out.split())
    assert summary["verdict"]["headline"] in said
    assert f"{100 * summary['methods'][0]['scores']['accuracy']['value']:.2f}%" in said
    assert "site = north" in said
    assert main(["audit", str(place / "data.csv"), "--target", "label", "--model", "linear", "--candidates", "2"]) == 0
    said = capsys.readouterr().out
    assert "second-look, out of fold" in said
    assert "half" in said


def test_rows_are_counted_once_and_what_is_too_dear_says_so(tmp_path, capsys):
    """Three splits test the same row up to three times; groups and scores count it once, and the header says so."""
    path = write_csv(tmp_path / "data.csv", rows(120))
    options = ["--target", "label", "--model", "linear", "--candidates", "2", "--seeds", "3", "--budget", "0"]
    assert main(["train", str(path), "--out", str(tmp_path / "run"), *options]) == 0
    said, data = " ".join(capsys.readouterr().out.split()), load(tmp_path / "run").summary["data"]
    assert 24 < data["tested"] <= 72
    assert f"3 times 96 to train on, 24 to test on; the numbers are of the {data['tested']} different" in said
    groups = load(tmp_path / "run").summary["groups"]
    assert sum(group["size"] for group in groups) == data["tested"]
    page = load(tmp_path / "run").report()
    assert f"on all {data['tested']} test rows" in page
    summary = load(tmp_path / "run").summary
    point = next(c for c in summary["curves"] if c["method"] == "worst-case")["points"][0]
    point["within_budget"], point["chosen"] = False, True
    show(summary)
    assert "chosen, costs too much" in capsys.readouterr().out


def test_groups_of_a_regression_are_errors_in_its_own_unit(tmp_path, capsys):
    content = [{**row, "label": 5000.0 + 10.0 * k} for k, row in enumerate(rows(120))]
    path = write_csv(tmp_path / "data.csv", content)
    options = ["--target", "label", "--group", "site", "--model", "linear", "--candidates", "1"]
    assert main(["audit", str(path), *options]) == 0
    groups = [line for line in capsys.readouterr().out.splitlines() if line.startswith("site = ")]
    assert groups
    assert not any("%" in line for line in groups)


def test_groups_that_are_not_shown_are_counted(place, capsys):
    summary = load(place / "run").summary
    show({**summary, "groups": summary["groups"][:1] * 40})
    assert "28 more groups" in capsys.readouterr().out


def test_the_page_is_written_and_written_again(place, tmp_path, capsys):
    page = (place / "run" / "report.html").read_text()
    assert "label" in page
    assert main(["report", str(place / "run"), "--out", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text() == page
    victim = tmp_path / "victim"
    victim.write_text("mine")
    shutil.copytree(place / "run", tmp_path / "run")
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "report.html").symlink_to(victim)
    status, said = told(capsys, "report", tmp_path / "run")
    assert (status, "report.html" in said, victim.read_text()) == (1, True, "mine")


def test_kill_9_and_go_on(place, tmp_path, capsys):
    options = ["--target", "label", "--group", "site", "--id", "who", "--candidates", "2", "--seeds", "1"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(["train", str(place / "data.csv"), "--out", str(whole), *options]) == 0
    command = [sys.executable, "-m", "scdro", "train", str(place / "data.csv"), "--out", str(broken), *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while len(list((broken / "fits").glob("*.npz")) if (broken / "fits").exists() else []) < 3:
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (broken / "manifest.json").exists()
    assert main(["predict", str(broken), str(place / "data.csv"), "--out", str(tmp_path / "p.csv")]) == 1
    assert "not finished" in capsys.readouterr().err
    kept = {path: path.stat().st_mtime_ns for path in (broken / "fits").glob("*.npz")}
    assert main(["train", str(place / "data.csv"), "--out", str(broken), *options]) == 0
    assert kept
    first, second = (json.loads((folder / "summary.json").read_text()) for folder in (whole, broken))
    for summary in (first, second):
        summary["created"] = summary["seconds"] = None
        for method in summary["methods"]:
            method["seconds"] = None
    assert first == second
    trees = [sorted((f / "models").rglob("trees.txt")) for f in (whole, broken)]
    assert [p.read_bytes() for p in trees[0]] == [p.read_bytes() for p in trees[1]]


def test_the_log_has_every_candidate_and_the_results(place, tmp_path, capsys):
    """Also in the folder of the run, whose files are sealed at its end."""
    run = tmp_path / "run"
    options = ["--target", "label", "--group", "site", "--id", "who", "--out", run, "--log", run / "log.jsonl"]
    for _ in range(2):  # the second time there is nothing to do, and nothing is written
        assert main(["train", str(place / "data.csv"), *map(str, options), *QUICK, "--candidates", "2"]) == 0
        summary, records = load(run).summary, read_json_lines(run / "log.jsonl")
    points = {(curve["method"], k): p for curve in summary["curves"] for k, p in enumerate(curve["points"])}
    assert len(points) == 8
    for record, ((method, _), point) in zip(records, points.items(), strict=False):
        measures = {f"candidates/{method}/{key}": point[key] for key in ("score", "loss", "robust_value", "tail")}
        assert record["scalars"].items() >= measures.items()
    assert records[5]["scalars"]["candidates/worst-case/rho"] == points["worst-case", 1]["rho"]
    final, groups = records[8:10]
    assert final["scalars"]["final/plain/accuracy"] == summary["methods"][0]["scores"]["accuracy"]["value"]
    assert [row["group"] for row in groups["rows"]] == [group["name"] for group in summary["groups"]]
    assert groups["rows"][0]["plain"] == summary["groups"][0]["scores"]["plain"]["value"]
    status, said = told(capsys, "audit", place / "data.csv", "--target", "label", "--log", tmp_path)
    assert (status, "a file" in said) == (1, True)


# -- hostile names and files ------------------------------------------------------------------------------------------


def test_names_cannot_steer_a_terminal_or_a_spreadsheet(tmp_path, capsys):
    rng = np.random.default_rng(0)
    names = ["=cmd|calc", "\x1b[31mred"]
    table = tmp_path / "data.csv"
    with open(table, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x\x1b[2J", "g", "=y"])
        for _ in range(120):
            k = int(rng.integers(2))
            writer.writerow([f"{k + rng.normal():.3f}", "+group\x1b[0m" if rng.random() < 0.5 else "@b", names[k]])
    out, predicted = tmp_path / "run", tmp_path / "p.csv"
    assert main(["train", str(table), "--target", "=y", "--group", "g", "--out", str(out), *QUICK]) == 0
    assert main(["predict", str(out), str(table), "--out", str(predicted)]) == 0
    said = capsys.readouterr()
    text = predicted.read_text()
    for shown in (said.out, said.err, text):
        assert "\x1b" not in shown
    assert "\x1b" not in (out / "report.html").read_text()
    for row in csv.reader(text.splitlines()):
        assert not any(cell[:1] in ("=", "+", "@") for cell in row)


def test_an_error_is_one_short_line(tmp_path, capsys):
    wide = tmp_path / "wide.csv"
    wide.write_text(",".join(f"column{k}" for k in range(10_000)) + "\n" + (",".join("1" * 10_000) + "\n") * 50)
    assert main(["train", str(wide), "--target", "absent", "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert len(said[0]) < 500
    assert not (tmp_path / "run").exists()


def told(capsys, *line):
    try:
        status = main([str(word) for word in line])
    except SystemExit as stop:
        status = stop.code
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return status, said.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "status", "fact"),
    [
        (["--target", "lable"], 1, "'label'"),
        ([], 1, "--target"),
        (["--target", "label", "--rho", "nan"], 2, "--rho"),
        (["--target", "label", "--budget", "inf"], 2, "--budget"),
        (["--target", "label", "--rho", "-1"], 1, "rho"),
        (["--target", "label", "--seed", "9" * 40], 1, "seed"),
        (["--target", "label", "--threads", "1000000000"], 1, "threads"),
        (["--target", "label", "--threads", "0"], 1, "threads"),
        (["--target", "label", "--seeds", "1" + "0" * 5000], 2, "--seeds"),
        (["--target", "label", "--candidates", "0"], 1, "candidates"),
        (["--target", "label", "--traget", "x"], 2, "did you mean --target"),
        (["--target", "label", "--method", "magic"], 2, "magic"),
        (["--target", "label", "--split-after", "colour"], 1, "'colour'"),
        (["--target", "label", "--group", "sight"], 1, "'site'"),
        (["--target", "label", "--size", "32"], 1, "--size"),
        (["--target", "label", "--features", "resnet18"], 1, "--features"),
        (["--target", "label", "--drop", "label"], 1, "'label'"),
        (["--target", "label", "--folds", "100000"], 1, "folds"),
    ],
)
def test_wrong_options_get_a_line(place, tmp_path, capsys, options, status, fact):
    found, said = told(capsys, "train", place / "data.csv", "--out", tmp_path / "run", *options)
    assert (found, fact in said) == (status, True), said
    assert not (tmp_path / "run").exists()


def test_places_that_cannot_be_written(place, tmp_path, capsys):
    data = place / "data.csv"
    for out in (data, data / "x"):
        status, said = told(capsys, "train", data, "--target", "label", "--out", out)
        assert status == 1
        assert "data.csv" in said
    status, said = told(capsys, "predict", place / "run", data, "--out", tmp_path)
    assert (status, str(tmp_path) in said) == (1, True)
    status, said = told(capsys, "predict", place / "run", data, "--out", tmp_path / "none" / "p.csv")
    assert (status, "p.csv'" in said) == (1, True)
    status, said = told(capsys, "predict", data, place / "run", "--out", tmp_path / "p.csv")
    assert (status, "RUN DATA" in said) == (1, True)


def test_new_rows_that_do_not_fit(place, tmp_path, capsys):
    content = [{key: value for key, value in row.items() if key != "colour"} for row in rows(10)]
    status, said = told(
        capsys, "predict", place / "run", write_csv(tmp_path / "n.csv", content), "--out", tmp_path / "p.csv"
    )
    assert (status, "'colour'" in said) == (1, True)
    status, said = told(
        capsys,
        "predict",
        place / "run",
        write_csv(tmp_path / "m.csv", rows(10)),
        "--out",
        tmp_path / "p.csv",
        "--id",
        "x",
    )
    assert status == 1
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.skipif(sys.platform == "darwin", reason="names there are UTF-8")
def test_names_of_files_that_are_not_utf_8(place, tmp_path, capsys):
    name = os.fsdecode(os.fsencode(str(tmp_path)) + b"/caf\xe9.csv")
    status, _ = told(capsys, "train", name, "--target", "label", "--out", tmp_path / "run")
    assert status == 1
    os.rename(write_csv(tmp_path / "data.csv", rows(60)), name)
    assert main(["train", name, "--target", "label", "--out", str(tmp_path / "run"), *QUICK]) == 0


# -- images -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path):
    pytest.importorskip("PIL")
    return write_images(tmp_path / "images", each=24)


def test_a_folder_of_images(images, tmp_path, capsys):
    out, predicted = tmp_path / "run", tmp_path / "p.csv"
    log = tmp_path / "log.jsonl"
    assert main(["train", str(images), "--size", "16", "--out", str(out), "--log", str(log)]) == 0
    run = load(out)
    accuracy = run.summary["methods"][0]["scores"]["accuracy"]["value"]
    assert read_json_lines(log)[0]["scalars"]["final/plain/accuracy"] == accuracy
    assert run.summary["settings"]["model"] == "images"
    assert accuracy >= 0.9
    assert main(["predict", str(out), str(images / "a"), "--out", str(predicted)]) == 0
    found = read_csv(predicted)
    assert len(found) == 24
    assert np.mean([row["prediction"] == "a" for row in found]) > 0.9
    np.testing.assert_array_equal(load(out).predict_proba(images), run.predict_proba(images))


def png(width, height, *chunks):
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunk(*c) for c in chunks)


def hostile_images():
    import zlib

    bomb = zlib.compress(b"\0" * (70 << 20))
    yield "too large", png(30_000, 30_000, (b"IDAT", zlib.compress(b"\0" * 1000)))
    yield "memory", png(20_000, 20_000, (b"IDAT", zlib.compress(b"\0" * 1000)))
    yield "text bomb", png(16, 16, (b"zTXt", b"key\0\0" + bomb), (b"IDAT", zlib.compress(b"\0" * 49 * 16)))
    yield "empty", b""
    yield "no image", b"hello"
    yield "header alone", png(16, 16)


@pytest.mark.parametrize(
    ("what", "content"), list(hostile_images()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_hostile_images_get_a_line(images, tmp_path, capsys, what, content):
    (images / "a" / "evil.png").write_bytes(content)
    status, said = told(capsys, "train", images, "--size", "16", "--out", tmp_path / "run")
    assert status == 1
    assert "evil.png" in said
    assert not (tmp_path / "run").exists()


def test_image_options_and_folders(images, tmp_path, capsys):
    assert told(capsys, "train", images, "--size", "100000", "--out", tmp_path / "run")[0] == 1
    for option, value in (("--seed", "9" * 40), ("--rho", "-1"), ("--budget", "2"), ("--least-group", "0")):
        status, said = told(capsys, "train", images, option, value, "--out", tmp_path / "run")
        assert (status, option[2:].replace("-", "_") in said) == (1, True)
    for option, value in (("--target", "x"), ("--split-by", "x"), ("--model", "trees"), ("--threads", "1")):
        status, said = told(capsys, "train", images, option, value, "--out", tmp_path / "run")
        assert (status, option in said) == (1, True)  # it would be ignored
    (tmp_path / "empty").mkdir()
    assert told(capsys, "train", tmp_path / "empty", "--out", tmp_path / "run")[0] == 1
    (images / "c").mkdir()
    status, said = told(capsys, "train", images, "--out", tmp_path / "run")
    assert (status, bool(re.search("'.*c'", said))) == (1, True)
