"""`scdro train`, `predict`, `audit` and `report`, as a user runs them."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import polars as pl
import pytest

from own_data import read_csv, rows, write_csv
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
        assert (
            main(["predict", str(place / "run"), str(path), "--out", str(out), "--model", model])
            == 0
        )


IDS = ["00042", "9007199254740993", "18446744073709551615", "1e5", "NA", "0.10"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_ids_are_copied_as_they_are_written(place, tmp_path, ending):
    new = [{"who": who, "other": who, **row} for who, row in zip(IDS, rows(6), strict=True)]
    path, out = write_csv(tmp_path / "new.csv", new), tmp_path / f"p.{ending}"
    assert main(["predict", str(place / "run"), str(path), "--out", str(out), "--id", "other"]) == 0
    read = pl.read_parquet if ending == "parquet" else partial(pl.read_csv, infer_schema=False)
    found = read(out)
    assert found["who"].to_list() == found["other"].to_list() == IDS
    frame = load(place / "run").predictions(path, ids=["other"])
    assert frame["other"].to_list() == IDS


def test_files_as_europeans_write_them(tmp_path, capsys):
    content = rows(300)
    for row in content:
        row.update(a=row["a"].replace(".", ","), b=row["b"].replace(".", ","), café="süß")
    content[7]["label"] = ""
    path = write_csv(tmp_path / "data.csv", content, ";")
    path.write_bytes(path.read_text("utf-8").encode("cp1252"))
    told = ["--encoding", "cp1252", "--decimal", ","]
    command = [str(path), "--target", "label", "--drop", "site"]
    run = str(tmp_path / "run")
    assert main(["train", *command, "--out", run, *QUICK]) == 1
    assert "--encoding cp1252" in capsys.readouterr().err
    assert main(["train", *command, "--out", run, *told, *QUICK]) == 1
    assert "none in 1 of 300 rows" in capsys.readouterr().err
    whole = [*told, "--drop-missing"]
    assert main(["train", *command, "--out", run, *whole, *QUICK]) == 0
    assert "1 of 300 rows have no value" in capsys.readouterr().out
    kinds = {c["name"]: c["kind"] for c in load(run).summary["data"]["columns"]}
    assert (kinds["a"], kinds["b"]) == ("number", "number")
    assert main(["audit", *command, *whole, "--model", "linear", "--candidates", "1"]) == 0
    out = str(tmp_path / "p.csv")
    assert main(["predict", run, str(path), "--out", out, *told]) == 0
    assert len(read_csv(out)) == 300
    assert main(["predict", run, str(path), "--out", out, "--encoding", "cp1252"]) == 1
    assert "--decimal ," in capsys.readouterr().err


def test_a_finished_run_is_told_as_the_old_result(place, capsys):
    options = ["--target", "label", "--group", "site", "--id", "who", *QUICK]
    out = str(place / "run")
    assert main(["train", str(place / "data.csv"), "--out", out, *options]) == 0
    told = capsys.readouterr().out
    assert "had finished before" in told.splitlines()[0]
    assert "nothing was trained now" in told


def test_notes_on_the_table_are_in_train_and_audit(tmp_path, capsys):
    content = [{**row, "leak": row["label"].upper()} for row in rows(300)]
    path = str(write_csv(tmp_path / "data.csv", content))
    assert main(["train", path, "--target", "label", "--out", str(tmp_path / "run"), *QUICK]) == 0
    assert "--drop leak" in capsys.readouterr().out
    page = tmp_path / "page.html"
    command = ["audit", path, "--target", "label", "--model", "linear", "--candidates", "1"]
    assert main([*command, "--out", str(page)]) == 0
    assert "--drop leak" in capsys.readouterr().out
    assert "--drop leak" in page.read_text()


@pytest.mark.parametrize("as_link", [False, True])
def test_predictions_never_replace_the_data(place, tmp_path, capsys, as_link):
    path = out = write_csv(tmp_path / "new.csv", rows(20))
    if as_link:
        out = tmp_path / "link.csv"
        out.symlink_to(path)
    before = path.read_bytes()
    assert main(["predict", str(place / "run"), str(path), "--out", str(out)]) == 1
    assert "another file" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_what_train_and_audit_say(place, capsys):
    summary = load(place / "run").summary
    options = ["--target", "label", "--group", "site", "--id", "who", *QUICK]
    assert (
        main(["train", str(place / "data.csv"), "--out", str(place / "run"), *options]) == 0
    )  # again: nothing to do
    said = " ".join(capsys.readouterr().out.split())
    assert summary["verdict"]["headline"] in said
    assert f"{100 * summary['methods'][0]['scores']['accuracy']['value']:.2f}%" in said
    assert "site = north" in said
    assert (
        main(
            [
                "audit",
                str(place / "data.csv"),
                "--target",
                "label",
                "--model",
                "linear",
                "--group",
                "site",
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "slices of" in said
    assert "site = north within 'yes'" in said


def test_rows_are_counted_once(tmp_path, capsys):
    """Three splits test the same row up to three times; groups and scores count it once, and the header says so."""
    path = write_csv(tmp_path / "data.csv", rows(120))
    options = [
        "--target",
        "label",
        "--model",
        "linear",
        "--candidates",
        "2",
        "--seeds",
        "3",
        "--budget",
        "0",
    ]
    assert main(["train", str(path), "--out", str(tmp_path / "run"), *options]) == 0
    said, data = " ".join(capsys.readouterr().out.split()), load(tmp_path / "run").summary["data"]
    assert 24 < data["tested"] <= 72
    assert (
        f"3 times 96 to train on, 24 to test on; the numbers are of the {data['tested']} different"
        in said
    )
    groups = load(tmp_path / "run").summary["groups"]
    assert sum(group["size"] for group in groups) == data["tested"]
    page = load(tmp_path / "run").report()
    assert f"on all {data['tested']} test rows" in page


def test_groups_of_a_regression_are_errors_in_its_own_unit(tmp_path, capsys):
    content = [{**row, "label": 5000.0 + 10.0 * k} for k, row in enumerate(rows(120))]
    path = write_csv(tmp_path / "data.csv", content)
    options = ["--target", "label", "--group", "site", "--model", "linear", "--candidates", "1"]
    assert main(["audit", str(path), *options]) == 0
    groups = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  site = ")]
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
    options = [
        "--target",
        "label",
        "--group",
        "site",
        "--id",
        "who",
        "--candidates",
        "2",
        "--seeds",
        "1",
    ]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(["train", str(place / "data.csv"), "--out", str(whole), *options]) == 0
    command = [
        sys.executable,
        "-m",
        "scdro",
        "train",
        str(place / "data.csv"),
        "--out",
        str(broken),
        *options,
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while len(list((broken / "fits").glob("*.npz")) if (broken / "fits").exists() else []) < 3:
        assert process.poll() is None
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (broken / "manifest.json").exists()
    assert (
        main(["predict", str(broken), str(place / "data.csv"), "--out", str(tmp_path / "p.csv")])
        == 1
    )
    assert "not finished" in capsys.readouterr().err
    kept = {path: path.stat().st_mtime_ns for path in (broken / "fits").glob("*.npz")}
    assert main(["train", str(place / "data.csv"), "--out", str(broken), *options]) == 0
    assert kept
    first, second = (
        json.loads((folder / "summary.json").read_text()) for folder in (whole, broken)
    )
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
    options = [
        "--target",
        "label",
        "--group",
        "site",
        "--id",
        "who",
        "--out",
        run,
        "--log",
        run / "log.jsonl",
    ]
    for _ in range(2):  # the second time there is nothing to do, and nothing is written
        assert (
            main(
                ["train", str(place / "data.csv"), *map(str, options), *QUICK, "--candidates", "2"]
            )
            == 0
        )
        summary, records = load(run).summary, read_json_lines(run / "log.jsonl")
    points = {
        (method["name"], k): one
        for method in summary["methods"]
        for k, one in enumerate(method["candidates"])
    }
    assert len(points) == 8
    for record, ((method, _), point) in zip(records, points.items(), strict=False):
        measures = {
            f"candidates/{method}/{key}": point["out_of_fold"][key]
            for key in ("score", "loss", "robust_value", "tail")
        }
        assert record["scalars"].items() >= measures.items()
    rho = points["worst-case", 1]["settings"]["rho"]
    assert records[5]["scalars"]["candidates/worst-case/rho"] == rho
    final, groups = records[8:10]
    assert (
        final["scalars"]["final/plain/accuracy"]
        == summary["methods"][0]["scores"]["accuracy"]["value"]
    )
    assert [row["group"] for row in groups["rows"]] == [
        group["name"] for group in summary["groups"]
    ]
    assert groups["rows"][0]["plain"] == summary["groups"][0]["scores"]["plain"]["value"]
    status, said = told(
        capsys,
        "train",
        place / "data.csv",
        "--target",
        "label",
        "--out",
        tmp_path / "other",
        "--log",
        tmp_path,
    )
    assert (status, "a file" in said) == (1, True)


def test_a_gate_has_a_status_of_its_own(tmp_path, capsys):
    rng = np.random.default_rng(0)
    p, place = rng.uniform(0.1, 0.6, 3000), rng.choice(["land", "water"], 3000, p=[0.9, 0.1])
    y = rng.random(3000) < p + 0.3 * (place == "water")
    scored = [{"place": a, "y": int(b), "p": float(c)} for a, b, c in zip(place, y, p, strict=True)]
    path = write_csv(tmp_path / "scored.csv", scored)
    command = ["audit", str(path), "--target", "y", "--prediction", "p"]
    assert main([*command, "--fail-if", "gap > 0.9", "--out", str(tmp_path / "page.html")]) == 0
    assert "place = water" in (tmp_path / "page.html").read_text()
    capsys.readouterr()
    assert main([*command, "--fail-if", "gap > 0.05"]) == 3
    assert "place = water" in capsys.readouterr().err
    assert main([*command, "--fail-if", "gapp > 0.05"]) == 1
    assert main([*command, "--out", str(tmp_path / "page.pdf")]) == 1
    capsys.readouterr()
    for option, value in (("--model", "linear"), ("--folds", "4"), ("--seed", "0")):
        assert main([*command, option, value]) == 1
        assert f"{option} only without --prediction" in capsys.readouterr().err


# -- hostile names and files
# ------------------------------------------------------------------------------------------


def test_names_cannot_steer_a_terminal_or_a_spreadsheet(tmp_path, capsys):
    rng = np.random.default_rng(0)
    names = ["=cmd|calc", "\x1b[31mred"]
    table = tmp_path / "data.csv"
    with open(table, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x\x1b[2J", "g", "=y"])
        for _ in range(120):
            k = int(rng.integers(2))
            writer.writerow(
                [
                    f"{k + rng.normal():.3f}",
                    "+group\x1b[0m" if rng.random() < 0.5 else "@b",
                    names[k],
                ]
            )
    out, predicted = tmp_path / "run", tmp_path / "p.csv"
    assert (
        main(["train", str(table), "--target", "=y", "--group", "g", "--out", str(out), *QUICK])
        == 0
    )
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
    wide.write_text(
        ",".join(f"column{k}" for k in range(10_000)) + "\n" + (",".join("1" * 10_000) + "\n") * 50
    )
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
        ([], 2, "--target"),
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
        (["--target", "label", "--model", "network"], 2, "network"),
        (["--target", "label", "--fix", "label = yes"], 1, "target"),
        (["--target", "label", "--fix", "site = north", "--method", "worst-case"], 1, "fix"),
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
    status, said = told(
        capsys, "predict", place / "run", data, "--out", tmp_path / "none" / "p.csv"
    )
    assert (status, "p.csv'" in said) == (1, True)
    status, said = told(capsys, "predict", data, place / "run", "--out", tmp_path / "p.csv")
    assert (status, "RUN DATA" in said) == (1, True)


def test_new_rows_that_do_not_fit(place, tmp_path, capsys):
    content = [{key: value for key, value in row.items() if key != "colour"} for row in rows(10)]
    status, said = told(
        capsys,
        "predict",
        place / "run",
        write_csv(tmp_path / "n.csv", content),
        "--out",
        tmp_path / "p.csv",
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


def test_a_slice_to_fix_is_the_headline(tmp_path, capsys):
    rng = np.random.default_rng(0)
    y, few = rng.integers(0, 2, 5000), rng.random(5000) < 0.06
    shortcut = np.where(few, 1 - y, y) + 0.1 * rng.normal(size=5000)
    rule = y + 0.33 * rng.normal(size=5000)
    content = [
        {"shortcut": float(a), "rule": float(b), "few": int(c), "y": int(d)}
        for a, b, c, d in zip(shortcut, rule, few, y, strict=True)
    ]
    path, out = write_csv(tmp_path / "data.csv", content), tmp_path / "run"
    fix = ["--fix", "few = 1 and y = 1"]
    assert main(["train", str(path), "--target", "y", "--out", str(out), *QUICK, *fix]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("Training for few = 1 and y = 1 helped")
    assert load(out).kept == "group-weighted"
    status, wrong = told(
        capsys, "train", path, "--target", "y", "--out", tmp_path / "b", "--fix", "fow = 1"
    )
    assert (status, "'few'" in wrong) == (1, True)


def test_a_folder_is_no_table(tmp_path, capsys):
    status, said = told(capsys, "train", tmp_path, "--target", "y", "--out", tmp_path / "run")
    assert (status, "not a file" in said) == (1, True)
