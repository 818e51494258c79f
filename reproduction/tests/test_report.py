"""The report: its numbers are those of the runs, it needs no network, and it works for whatever a folder holds."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
import statistics
import time
from pathlib import Path

import numpy as np
import pytest

import chromium
from html_page import Page
from reproduction.__main__ import main
from reproduction.data import DigitsST
from reproduction.engine.study import Study
from reproduction.pool import Means
from reproduction.sweep import sweep
from reproduction.tasks import Sources
from reproduction.tests.test_tabular import write_adult

STUDY = Study(
    experiment="table4",
    dataset="digits-st",
    scale="smoke",
    methods=("SCDRO", "ERM"),
    epochs=2,
    decay_epoch=1,
    batch_size=64,
    rho=(0.1, 0.5),
    trials=2,
    seeds=3,
    points=3,
)
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits-st"
    sweep(STUDY, folder, Means(Sources(), 1))
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "digits-st"))


def report(folder, *options):
    assert (
        main(["report", str(folder), "--out", str(folder / "page.html"), *map(str, options)]) == 0
    )
    return Page(folder / "page.html")


def seeds(folder, method, rho=None):
    """The results of an arm's seeds, read without the code under test."""
    paths = [
        p
        for p in folder.glob(f"{method}/*/seed-[123]/result.json")
        if rho is None or f"rho-{rho}/" in str(p)
    ]
    return sorted(paths)


def read(paths):
    return [json.loads(path.read_text()) for path in paths]


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_results_are_those_of_the_runs_beside_the_papers(folder):
    page = report(folder)
    head, *rows = page.tables["Mean ± standard deviation over seeds"]
    assert [row[0] for row in rows] == ["SCDRO, rho 0.1", "SCDRO, rho 0.5", "ERM"]
    for row, (method, rho) in zip(
        rows, (("SCDRO", 0.1), ("SCDRO", 0.5), ("ERM", None)), strict=True
    ):
        found = read(seeds(folder, method, rho))
        assert len(found) == 3
        for label, values, digits in (
            ("test accuracy, %", [100 * r["test"]["top1"] for r in found], 2),
            ("rarer classes, %", [100 * r["test"]["minority"] for r in found], 2),
            ("robust loss, train", [r["train"]["robust_loss"] for r in found], 3),
        ):
            expected = (
                f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"
            )
            assert row[head.index(label)] == expected
    assert not any(title.startswith("paper") for title in head)  # the digits only stand in
    change(
        folder / "study.json",
        study={**json.loads((folder / "study.json").read_text())["study"], "dataset": "cifar10-st"},
    )
    page = report(folder)
    head, *rows = page.tables["Mean ± standard deviation over seeds"]
    paper = head.index("paper, cifar10-st, %")
    assert [row[paper] for row in rows] == ["67.71", "67.57", "–"]
    assert page.tables["Test accuracy by radius, %"][2] == [
        "SCDRO, paper, cifar10-st",
        "67.71",
        "67.57",
    ]


def test_curves_are_means_over_seeds(folder):
    page = report(folder)
    curves = json.loads(page.scripts["curves-0"])
    arm = curves["arms"][1]
    assert arm["name"] == "SCDRO, rho 0.5"
    lines = [
        [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
        for path in seeds(folder, "SCDRO", 0.5)
    ]
    assert arm["samples"] == [record["samples"] for record in lines[0]]
    for key, of in (("test.top1", lambda r: r["test"]["top1"]), ("lam", lambda r: r.get("lam"))):
        for i, point in enumerate(arm["values"][key]):
            values = [of(seed[i]) for seed in lines]
            if None in values:
                assert point is None
            else:
                expected = [statistics.mean(values), statistics.stdev(values), 3]
                assert point == pytest.approx(expected, rel=1e-5)
    assert [chart["title"] for chart in curves["charts"]] == [
        "Accuracy",
        "Robust loss",
        "Temperature lam",
        "KL of the worst case",
    ]
    table = page.tables["Test accuracy as training goes on, %"]
    assert len(table) == 1 + len(lines[0])


def test_classes_and_configuration(folder):
    page = report(folder)
    rows = page.tables["Test accuracy of each class, %, mean over seeds"]
    column = rows[0].index("ERM")
    for row in rows[1:]:
        own = [r["test"]["per_class"][int(row[0])] for r in read(seeds(folder, "ERM"))]
        assert row[1] == str(int(DigitsST().counts[int(row[0])]))
        assert row[column] == f"{100 * statistics.mean(own):.1f}"
    assert len(rows) == 11
    assert dict(page.tables["Configuration"])["rho"] == "0.1, 0.5"
    assert len(page.tables["Trials of ERM, on validation data"]) == 3


def test_pictures_are_the_hardest_training_images(folder):
    from PIL import Image

    page = report(folder)
    pictures = [attributes for name, attributes in page.elements if name == "img"]
    hardest = [read(seeds(folder, "SCDRO", rho))[0]["hardest"] for rho in (0.1, 0.5)]
    hardest.append(read(seeds(folder, "ERM"))[0]["hardest"])
    samples = [sample for arm in hardest for sample in arm]
    assert len(pictures) == len(samples)
    data = DigitsST()
    for picture, sample in zip(pictures, samples, strict=True):
        content = base64.b64decode(picture["src"].removeprefix("data:image/png;base64,"))
        pixels = np.asarray(Image.open(io.BytesIO(content)))
        np.testing.assert_array_equal(
            pixels, data.images[sample["position"]].permute(1, 2, 0).numpy()
        )
        assert picture["alt"] == f"training image {sample['position']}, {sample['label']}"
        assert f"weight {sample['weight']:.1f}, loss {sample['loss']:.2f}" in page.text


def test_nothing_is_fetched_and_only_the_own_script_may_run(folder):
    page = report(folder)
    links = [
        value
        for _, attributes in page.elements
        for key, value in attributes.items()
        if key in ("src", "href", "srcset", "action", "data", "poster")
    ]
    assert links
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in links)
    assert not re.search(r"https?:|url\(|@import|import\(|fetch\(|XMLHttp", page.source)
    assert {name for name, _ in page.elements} & {"link", "iframe", "object", "embed"} == set()
    (policy,) = [
        a["content"] for n, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"
    ]
    digest = base64.b64encode(hashlib.sha256(page.scripts[None].encode()).digest()).decode()
    assert policy.split("; ")[0] == "default-src 'none'"
    assert f"script-src 'sha256-{digest}'" in policy


def test_text_from_data_stays_text(folder):
    plain = report(folder)
    first, second, *_ = seeds(folder, "ERM")
    change(first, status="failed", error=f"Traceback\n{EVIL}")
    change(second, status="diverged", error=EVIL)
    run = folder.parent / "lone"
    shutil.copytree(first.parent, run)
    change(
        run / "config.json",
        study={"dataset": EVIL, "model": EVIL},
        method=EVIL,
        settings={EVIL: EVIL},
    )
    for there, count in ((folder, 2), (run, 1)):
        page = report(there)
        assert page.text.count(EVIL) > count
        assert [n for n, _ in page.elements].count("script") == 2
        assert not any(
            key.startswith("on") for _, attributes in page.elements for key in attributes
        )
        assert page.scripts[None] == plain.scripts[None]
    assert json.loads(page.scripts["curves-0"])["arms"][0]["name"] == EVIL


def test_runs_that_failed_diverged_or_have_not_ended(folder):
    failed, diverged, waiting = seeds(folder, "ERM")
    change(failed, status="failed", error="Traceback\nMemoryError: none left")
    change(diverged, status="diverged", error="a loss is not finite")
    waiting.unlink()
    with open(waiting.parent / "metrics.jsonl", "a") as file:
        file.write('{"samples": 99, "te')  # killed while it wrote
    page = report(folder)
    assert "not finished: 8 of 9 seeds" in page.text
    assert "ERM, seed 1: failedMemoryError: none left" in page.text
    assert "ERM, seed 2: diverged" in page.text
    assert re.search(r"ERM, seed 3: no result yet, [1-9][\d,]* samples so far", page.text)
    row = page.tables["Mean ± standard deviation over seeds"][3]
    assert row[:3] == ["ERM", "0 of 3", "–"]


def test_a_sweep_that_has_just_begun(folder):
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    page = report(folder)
    assert "not finished: 0 of 9 seeds, 0 of 6 trials" in page.text
    assert "ERM: no trial has ended well yet" in page.text
    assert "curves-0" not in page.scripts


def test_every_trial_failed(folder):
    for path in folder.glob("ERM/*/seed-0/result.json"):
        change(path, status="diverged", error="a loss is not finite")
    page = report(folder)
    assert "ERM: every trial failed or diverged" in page.text
    assert "finished" in page.text
    assert "not finished" not in page.text


def test_data_that_are_not_there(folder, tmp_path):
    study = json.loads((folder / "study.json").read_text())
    change(folder / "study.json", study={**study["study"], "dataset": "cifar10-st"})
    page = report(folder, "--data", tmp_path / "empty")
    assert "The data are not at hand" in page.text
    assert "cifar" in page.text.split("The data are not at hand")[1]
    assert not any(name == "img" for name, _ in page.elements)
    (first, *_), rows = (
        read(seeds(folder, "ERM")),
        page.tables["Training samples of the largest weight, ERM"],
    )
    expected = first["hardest"][0]
    assert rows[1][:2] == [str(expected["position"]), str(expected["label"])]


def test_other_data_than_those_of_the_runs(folder):
    path = seeds(folder, "ERM")[0]
    samples = json.loads(path.read_text())["hardest"]
    change(path, hardest=[{**samples[0], "label": (samples[0]["label"] + 1) % 10}, *samples[1:]])
    page = report(folder)
    assert "expected the data that the runs were made with" in page.text
    assert not any(name == "img" for name, _ in page.elements)


def test_a_run_alone(folder, tmp_path):
    path = seeds(folder, "SCDRO", 0.5)[0]
    run = tmp_path / "alone"
    shutil.copytree(path.parent, run)
    page = report(run)
    (found,) = read([path])
    head, row = page.tables["Scores, of one seed"]
    assert row[:3] == ["SCDRO", "1", f"{100 * found['test']['top1']:.2f}"]
    assert "robust loss at rho 0.5, train" in head
    assert "finished" in page.text
    assert any(name == "img" for name, _ in page.elements)


def test_runs_of_no_sweep_are_rows_by_settings(folder):
    (folder / "study.json").unlink()
    (folder / "pretraining").mkdir()
    (folder / "pretraining" / "config.json").write_text('{"config": {}, "data": "x"}')
    rows = report(folder).tables["Mean ± standard deviation over seeds"]
    assert sum(row[0].startswith("SCDRO, lr") for row in rows) >= 2
    assert all(row[2] == "–" or " ± " in row[2] for row in rows[1:])


def test_several_sweeps(folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    page = report(tmp_path)
    ids = [a["id"] for n, a in page.elements if n == "article"]
    assert ids == ["sweep-0", "sweep-1"]
    assert [a["href"] for n, a in page.elements if n == "a"] == ["#sweep-0", "#sweep-1"]
    assert page.scripts["curves-0"] == page.scripts["curves-1"]


def test_rows_are_told_by_their_largest_features(folder, tmp_path):
    files = write_adult(tmp_path, packed=False)
    for path in seeds(folder, "ERM"):
        cells = [line.strip().split(", ") for line in files["adult.data"]]
        labels = [int(row[-1].startswith(">50K")) for row in cells]
        place = [[i for i, y in enumerate(labels) if y == label] for label in (0, 1)]
        stays = sorted(
            i for own in place for k, i in enumerate(own) if k % 5 != 4
        )  # the others are for validation
        sample = {
            "position": 7,
            "label": labels[stays[7]],
            "predicted": 0,
            "loss": 1.5,
            "weight": 9.0,
        }
        change(path, hardest=[sample])
    for path in folder.glob("SCDRO/*/seed-*/result.json"):
        change(path, hardest=[])
    study = json.loads((folder / "study.json").read_text())["study"]
    change(folder / "study.json", study={**study, "dataset": "adult", "inputs": "rows"})
    head, row = report(folder, "--data", tmp_path).tables[
        "Training samples of the largest weight, ERM"
    ]
    raw = cells[stays[7]]
    assert row[:5] == ["7", "high" if labels[stays[7]] else "low", "low", "9.0", "1.500"]
    assert row[5].startswith("women" if raw[9] == "Female" else "men")
    assert head[6] == "largest features"
    told = row[6].split(", ")
    assert f"workclass: {raw[1]}" in told
    assert f"education: {raw[3]}" in told


def test_a_folder_without_runs(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "expected a study.json" in error
    assert not list(tmp_path.iterdir())


def test_a_study_of_another_version(folder, capsys):
    study = json.loads((folder / "study.json").read_text())["study"]
    change(folder / "study.json", study={**study, "flavour": 1})
    assert main(["report", str(folder)]) == 1
    assert "flavour" in capsys.readouterr().err


def test_the_page_is_where_the_runs_are_by_default(folder, capsys):
    assert main(["report", str(folder)]) == 0
    assert str(folder / "report.html") in capsys.readouterr().out
    assert "table4 on digits-st" in Page(folder / "report.html").text


# -- in a browser
# -----------------------------------------------------------------------------------------------------

browser = pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium")
BOX = """(() => {{
  const drawing = document.querySelectorAll('.chart > svg')[{0}];
  drawing.scrollIntoView({{block: 'center'}});
  const box = drawing.getBoundingClientRect();
  return [box.left, box.top, box.width, box.height];
}})()"""
TIP = (
    "(() => { const tip = document.querySelectorAll('.tip')[%d]; return tip.hidden ? '' :"
    " tip.innerText; })()"
)


def pointed(tab):
    """What the first chart says of its last evaluation. If the page moves after it was measured, the mouse misses."""
    for attempt in range(100):
        left, top, width, height = tab.run(BOX.format(0))
        tab.point(left + width - 15 - attempt % 2, top + height / 2)
        shown = tab.run(TIP % 0)
        if shown:
            return shown
        time.sleep(0.1)
    raise AssertionError("the chart never showed its values")


@pytest.mark.browser
@browser
def test_in_a_browser(folder, tmp_path):
    report(folder)
    arm = json.loads(Page(folder / "page.html").scripts["curves-0"])["arms"]
    with chromium.Browser(tmp_path / "profile") as tab:
        tab.open(folder / "page.html")
        assert tab.run("document.querySelectorAll('.chart').length") == 4
        assert tab.run(TIP % 0) == ""
        shown = pointed(tab)
        assert f"{arm[0]['samples'][-1]:,.0f} samples" in shown
        for one in arm:
            mean, sd, _ = one["values"]["test.top1"][-1]
            assert one["name"] in shown
            assert f"{100 * mean:.2f}% ± {100 * sd:.2f}%" in shown

        tab.run("document.querySelectorAll('.chart > svg')[1].focus()")
        tab.press("ArrowRight")
        tab.press("ArrowRight")
        x = arm[0]["samples"][1]
        assert f"{x:,.0f} samples" in tab.run(TIP % 1)
        assert f"{x:,.0f} samples" in tab.run("document.querySelectorAll('.spoken')[1].textContent")
        tab.press("Escape")
        assert tab.run(TIP % 1) == ""

        press = (
            "[...document.querySelectorAll('button')].find((b) => b.textContent === '{}').click()"
        )
        lines = "document.querySelectorAll('.chart')[0].querySelectorAll('path.line').length"
        assert tab.run(lines) == 3
        tab.run(press.format("ERM"))
        assert tab.run(lines) == 2
        tab.run(press.format("0.1"))
        assert tab.run(lines) == 1
        tab.run(press.format("seconds"))
        assert "seconds of training" in tab.run("document.querySelector('.chart').textContent")
        tab.run(press.format("train"))

        for width, dark in ((1280, False), (390, True)):
            tab.open(folder / "page.html", width=width, dark=dark)
            assert tab.run("document.documentElement.scrollWidth") <= width
            assert len(tab.screenshot(tmp_path / f"{width}.png")) > 20_000
        assert tab.complaints == []
        assert {url.partition(":")[0] for url in tab.requests} == {"file", "data"}
        assert {url for url in tab.requests if url.startswith("file")} == {
            (folder / "page.html").as_uri()
        }


@pytest.mark.browser
@browser
def test_the_browser_hears_complaints(tmp_path):
    """That none is heard above means something."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<img src='http://127.0.0.1:9/x.png'><script>console.error('oh'); nothing.there</script>"
    )
    with chromium.Browser(tmp_path / "profile") as tab:
        tab.open(page)
        assert any("oh" in text for text in tab.complaints)
        assert any("ReferenceError" in text for text in tab.complaints)
        assert "http://127.0.0.1:9/x.png" in tab.requests


@pytest.mark.parametrize(
    ("own", "claim", "short"),
    [
        ({"methods": ["PGSMD2", "FastDRO", "SCDRO"]}, True, "without"),
        ({"methods": ["PGSMD2", "FastDRO"]}, False, "without SCDRO"),
        ({"dataset": "cifar10-st", "scale": "paper"}, False, "epochs 2 instead of 120"),
    ],
)
def test_the_head_says_what_was_shortened_whatever_the_scale_is_called(folder, own, claim, short):
    saved = json.loads((folder / "study.json").read_text())["study"]
    change(folder / "study.json", study={**saved, **own})
    text = report(folder).text
    assert ("SCDRO is best at every rho" in text) is claim
    assert (short in text) is not claim
    assert "do not compare with the paper's one by one" in text
