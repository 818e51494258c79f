"""`scdro train` and `scdro predict`, as a user runs them, on small files in the real formats."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from html_page import Page
from killing import kill_after_a_checkpoint
from own_data import read_csv, rows, write_csv, write_images
from scdro.application.own.fitting import fit
from scdro.application.own.opening import Wanted, open_own
from scdro.application.own.plan import Plan
from scdro.application.own.saved import load_model
from scdro.cli import main
from scdro.optim import REGISTRY

SHORT = ["--epochs", "4", "--threads", "1"]
LONGER = ["--epochs", "20", "--threads", "1"]


@pytest.fixture
def table(tmp_path):
    return write_csv(tmp_path / "data.csv", rows())


def run(*args):
    return main([str(arg) for arg in args])


def result_of(out, method):
    (path,) = out.glob(f"{method}/*/seed-1/result.json")
    return json.loads(path.read_text())


def outcome(out):
    """Everything a training leaves but times."""
    results = {}
    for path in sorted(out.rglob("result.json")):
        result = json.loads(path.read_text())
        result.pop("seconds")
        results[str(path.relative_to(out))] = result
    weights = torch.load(out / "model.pt", weights_only=True)["state_dict"]
    return results, {key: value.tolist() for key, value in weights.items()}


# -- a table, from the file to predictions ----------------------------------------------------------------------------


def test_a_table_from_file_to_predictions(table, tmp_path, capsys):
    test, out = write_csv(tmp_path / "test.csv", rows(100, seed=1)), tmp_path / "run"
    options = ["--target", "label", "--group", "site", "--protect", "0.1", "--test", test, "--baseline"]
    assert run("train", table, "--out", out, *options, "--threads", 1, "--epochs", 20) == 0
    said = capsys.readouterr().out
    assert "241 to train on, 59 to validate on, 100 to test on" in said
    assert "every group of at least 0.1 of the data" in said
    lines = {line[:24].strip(): line[24:].split() for line in said.splitlines()}
    erm, robust = result_of(out, "ERM"), result_of(out, "SCDRO")
    assert lines["accuracy"] == ["100", *(f"{100 * r['test']['top1']:.1f}%" for r in (erm, robust))]
    assert lines["robust loss at rho 2.303"] == [f"{r['test']['robust_loss']:.3f}" for r in (erm, robust)]
    assert lines["worst class"][0] == f"{100 * min(erm['test']['per_class']):.1f}%"
    assert f"{100 * robust['test']['worst_group']:.1f}% (" in said
    assert robust["settings"]["rho"] == pytest.approx(math.log(10))
    assert robust["test"]["top1"] > 0.8

    assert run("predict", out, test, "--out", tmp_path / "p.csv") == 0
    found, truth = read_csv(tmp_path / "p.csv"), rows(100, seed=1)
    assert list(found[0]) == ["line", "prediction", "p(no)", "p(yes)"]
    right = np.mean([p["prediction"] == t["label"] for p, t in zip(found, truth, strict=True)])
    assert right == pytest.approx(robust["test"]["top1"])
    each = np.array([[float(p["p(no)"]), float(p["p(yes)"])] for p in found])
    np.testing.assert_allclose(each.sum(1), 1, atol=2e-6)
    losses = [-math.log(e[int(t["label"] == "yes")]) for e, t in zip(each, truth, strict=True)]
    assert np.mean(losses) == pytest.approx(robust["test"]["loss"], abs=1e-3)


PLAIN = """
import csv, json, sys
sys.modules["scdro"] = None  # must not be needed
import torch
from torch import nn

saved = torch.load(sys.argv[1] + "/model.pt", weights_only=True)
layers = [nn.Linear(saved["architecture"]["shape"][0], 64), nn.ReLU(), nn.Linear(64, len(saved["classes"]))]
model = nn.Sequential(*layers)
model.load_state_dict(saved["state_dict"])

def features(row):
    numbers, gaps, texts = [], [], []
    for column in saved["preparation"]["numbers"]:
        known = row[column["name"]] != "NA"
        numbers.append((float(row[column["name"]]) - column["mean"]) / column["std"] if known else 0.0)
        if column["gaps"]:
            gaps.append(float(not known))
    for column in saved["preparation"]["texts"]:
        text = row[column["name"]]
        texts += [float(text == value) for value in column["values"]]
        texts.append(float(text not in column["values"]))
    return numbers + gaps + texts

rows = list(csv.DictReader(open(sys.argv[2])))
with torch.no_grad():
    print(json.dumps(model(torch.tensor([features(row) for row in rows])).softmax(1).tolist()))
"""


def test_the_model_is_the_same_in_plain_torch(table, tmp_path):
    new, out = write_csv(tmp_path / "new.csv", rows(40, seed=2)), tmp_path / "run"
    assert run("train", table, "--out", out, "--target", "label", "--drop", "site", *SHORT) == 0
    assert run("predict", out, new, "--out", tmp_path / "p.csv") == 0
    command = [sys.executable, "-c", PLAIN, str(out), str(new)]
    plain = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout)
    ours = [[float(p["p(no)"]), float(p["p(yes)"])] for p in read_csv(tmp_path / "p.csv")]
    np.testing.assert_allclose(ours, plain, atol=2e-6)
    assert np.std(plain, 0).min() > 0.05


def test_groups_never_reach_the_model(table, tmp_path):
    """The same rows with other groups give the same weights; GroupDRO, which is told, other ones."""
    content = rows()
    random.Random(0).shuffle(sites := [row["site"] for row in content])
    other = write_csv(tmp_path / "other.csv", [row | {"site": site} for row, site in zip(content, sites, strict=True)])
    weights, groups = {}, {}
    for method in ("SCDRO", "GroupDRO"):
        for path in (table, other):
            data = open_own(Wanted(path, target="label", groups=("site",)))
            plan = Plan(method=method, epochs=3)
            (found,) = fit(plan, data, tmp_path / f"{method}-{path.stem}", "x")
            weights[method, path] = load_model(tmp_path / f"{method}-{path.stem}").state_dict["0.weight"]
            groups[method, path] = found.result["validation"]["per_group"]
            assert "site" not in data.preparation.names
    assert torch.equal(weights["SCDRO", table], weights["SCDRO", other])
    assert groups["SCDRO", table] != groups["SCDRO", other]
    assert not torch.equal(weights["GroupDRO", table], weights["GroupDRO", other])


def test_combinations_of_groups_and_groups_unseen_in_training(tmp_path):
    train, test = write_csv(tmp_path / "a.csv", rows()), rows(60, seed=3)
    test = write_csv(tmp_path / "b.csv", [row | {"site": "west"} for row in test])
    data = open_own(Wanted(train, target="label", groups=("site", "colour"), test=test))
    assert "north, red" in data.groups
    assert "west, blue" in data.groups
    (found,) = fit(Plan(epochs=2), data, tmp_path / "run", "x")
    of = dict(zip(data.groups, found.result["test"]["per_group"], strict=True))
    assert of["north, red"] is None
    assert of["west, red"] is not None
    assert data.preparation.names == ("a", "b")


# -- stopped and gone on ----------------------------------------------------------------------------------------------

KILLED = ["--target", "label", "--search", "2", "--baseline", "--epochs", "8", "--batch-size", "8", "--threads", "1"]


def test_kill_9_at_random_moments(table, tmp_path, capsys):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run("train", table, "--out", whole, *KILLED) == 0
    rng = random.Random(1)
    command = [sys.executable, "-m", "scdro", "train", table, "--out", broken, *KILLED, "--checkpoint-seconds", "0"]
    command, quiet = [str(part) for part in command], subprocess.DEVNULL
    for _ in range(2):
        kill_after_a_checkpoint(command, broken, rng.uniform(0, 1.0), stdout=quiet, stderr=quiet)
        assert not (broken / "model.pt").exists()
    capsys.readouterr()
    assert run("train", table, "--out", broken, *KILLED) == 0
    first = capsys.readouterr().out
    assert outcome(broken) == outcome(whole)
    assert run("train", table, "--out", broken, *KILLED) == 0  # complete: nothing to do
    assert capsys.readouterr().out == first


def test_a_folder_is_of_one_run(table, tmp_path, capsys):
    out = tmp_path / "run"
    first = ["train", table, "--out", out, "--target", "label", *SHORT]
    assert run(*first) == 0
    before = outcome(out)
    for other, what in (
        (["--rho", "1"], "--rho was 0.5, is now 1.0"),
        (["--method", "ERM"], "--method was SCDRO, is now ERM"),
        (["--drop", "a"], "--drop was not given before"),
        (["--test", table], "--test was not given before"),
        (["--drop", "a", "--seed", "2"], "--drop was not given before, --seed was 1, is now 2"),
        (["--epochs", "9"], f"--epochs was {SHORT[1]}, is now 9"),
        (["--weight-decay", "0.1"], "--weight-decay was 0.0002, is now 0.1"),
        (["--lr", "1"], "--lr was not given before"),
        (["--set", "beta=0.7"], "--set beta was not given before"),
        (["--search", "2"], "--search was not given before"),
    ):
        capsys.readouterr()
        assert run(*first, *other) == 1
        assert what in capsys.readouterr().err
    table.write_text(table.read_text().replace("yes", "maybe"))
    assert run(*first) == 1
    assert f"the data in {table}" in capsys.readouterr().err
    assert outcome(out) == before
    table.write_text(table.read_text().replace("maybe", "yes"))
    stamp = next(out.glob("SCDRO/*/*/result.json")).stat().st_mtime_ns
    assert run(*first, "--baseline") == 0  # a baseline may be added
    assert next(out.glob("SCDRO/*/*/result.json")).stat().st_mtime_ns == stamp
    assert result_of(out, "ERM")["status"] == "done"


def test_threads_are_those_of_the_run(table, tmp_path):
    out = tmp_path / "run"
    assert run("train", table, "--out", out, "--target", "label", "--epochs", 2, "--threads", 1) == 0
    torch.set_num_threads(2)
    try:
        assert run("train", table, "--out", out, "--target", "label", "--epochs", 2) == 0
    finally:
        torch.set_num_threads(1)


def test_search_keeps_the_best_on_validation_data(table, tmp_path, capsys):
    out = tmp_path / "run"
    assert run("train", table, "--out", out, "--target", "label", "--search", 3, "--epochs", 2, "--threads", 1) == 0
    said = capsys.readouterr().out
    assert "flatter" in said
    trials = [json.loads(path.read_text()) for path in out.glob("SCDRO/*/seed-0/result.json")]
    best = max(trials, key=lambda r: (r["validation"]["balanced"], -r["validation"]["robust_loss"]))
    assert len(trials) == 3
    assert result_of(out, "SCDRO")["settings"] == best["settings"]
    assert load_model(out).training["settings"] == best["settings"]


@pytest.mark.parametrize("method", REGISTRY)
def test_every_method_trains(method, tmp_path):
    path = write_csv(tmp_path / "data.csv", rows(120))
    data = open_own(Wanted(path, target="label", groups=("site",)))
    (found,) = fit(Plan(method=method, epochs=2, model="linear"), data, tmp_path / "run", "x")
    assert found.result["status"] == "done"
    assert set(found.run.settings) == set(REGISTRY[method].grid) | {n for n in REGISTRY[method].needs if n == "rho"}
    model = load_model(tmp_path / "run").model()
    assert isinstance(model, torch.nn.Linear)
    x, y = data.task.validation.inputs, data.task.validation.labels
    assert (model(x).argmax(1) == y).double().mean().item() == pytest.approx(found.result["validation"]["top1"])


def test_a_model_that_learnt_nothing_is_called_so(tmp_path, capsys):
    rng = np.random.default_rng(0)
    content = [{"x": f"{rng.normal():.3f}", "y": str(int(rng.integers(2)))} for _ in range(200)]
    path, out = write_csv(tmp_path / "noise.csv", content), tmp_path / "run"
    assert run("train", path, "--target", "y", "--out", out, "--rho", "1", "--model", "linear", *LONGER) == 0
    said = capsys.readouterr().out
    assert "hardly better" in said
    assert "smaller --rho" in said


def test_a_model_worse_than_knowing_nothing_is_called_so(tmp_path, capsys):
    """Not the radius is to blame then, but the optimisation."""
    rng = np.random.default_rng(0)
    content = [{"x": f"{rng.normal():.3f}", "y": str(int(rng.integers(2)))} for _ in range(200)]
    path, out = write_csv(tmp_path / "noise.csv", content), tmp_path / "run"
    assert run("train", path, "--target", "y", "--out", out, "--model", "linear", "--lr", "50", *SHORT) == 0
    assert result_of(out, "SCDRO")["train"]["robust_loss"] > 1.1 * math.log(2)
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("beware")]
    assert "worse than" in warning
    assert "--lr" in warning
    assert "--search" in warning
    assert "--rho" not in warning


def test_rho_is_explained_only_where_a_method_has_it(tmp_path, capsys):
    rng = np.random.default_rng(0)
    content = [{"x": f"{rng.normal():.3f}", "g": "ab"[k % 2], "y": str(k // 2 % 2)} for k in range(100)]
    path = write_csv(tmp_path / "noise.csv", content)
    for method in ("SCDRO", "GroupDRO", "ERM"):
        options = ["--target", "y", "--group", "g", "--method", method, "--model", "linear"]
        assert run("train", path, "--out", tmp_path / method, *options, "--epochs", "100", "--threads", "1") == 0
        said = capsys.readouterr().out
        assert ("every group of at least" in said) == (method == "SCDRO")
        assert ("has no rho; robust losses are at rho 0.5" in said) == (method != "SCDRO")
        assert ("smaller --rho" in said) == (method == "SCDRO")


def test_values_that_are_no_numbers_are_refused(table, tmp_path, capsys):
    assert run("train", table, "--out", tmp_path / "run", "--target", "label", "--lr", "nan", *SHORT) == 1
    assert "SCDRO.lr, got nan" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "study.json").write_text('{"study": {"thr')
    assert run("train", table, "--out", tmp_path / "run", "--target", "label", *SHORT) == 1
    assert "study.json" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["SCDRO", "RASCDRO", "ERM", "PGSMD2"])
def test_a_learning_rate_that_no_parameter_can_hold(table, tmp_path, capsys, method):
    options = ["--target", "label", "--method", method, "--lr", "1e300", *SHORT]
    assert run("train", table, "--out", tmp_path / "run", *options) == 1
    assert "lr <= 3.4e+38" in capsys.readouterr().err


def test_a_training_that_diverges(table, tmp_path, capsys):
    out = tmp_path / "run"
    assert run("train", table, "--out", out, "--target", "label", "--lr", "1e30", *SHORT) == 1
    said = capsys.readouterr().err
    assert "lower --lr" in said
    assert "skip_nonfinite" not in said  # no option of the command
    assert not (out / "model.pt").exists()
    assert run("train", table, "--out", out, "--target", "label", "--lr", "0.1", *SHORT) == 0


# -- the report -------------------------------------------------------------------------------------------------------


def report(folder):
    assert run("report", folder, "--out", folder / "page.html") == 0
    return Page(folder / "page.html")


def test_a_report_of_a_training(table, tmp_path):
    out, options = tmp_path / "runs" / "one", ["--target", "label", "--group", "site", "--seed", "7", "--baseline"]
    assert run("train", table, "--out", out, *options, *SHORT) == 0
    (result,) = (json.loads(path.read_text()) for path in out.glob("SCDRO/*/seed-7/result.json"))
    page = report(out)
    assert "data.csv – scdro report" in page.source
    assert "model mlp · inputs rows · 4 epochs · 32 to a batch · your own data" in page.text
    assert not {"scale", "experiment"} & {row[0] for row in page.tables["Configuration"]}
    assert "not finished" not in page.text
    assert "over seeds" not in page.text
    head, erm, robust = page.tables["Scores, of one seed"]
    assert (erm[0], robust[0]) == ("ERM", "SCDRO, rho 0.5")
    assert robust[head.index("validation accuracy, %")] == f"{100 * result['validation']['top1']:.2f}"
    accuracies = [100 * share for share in result["validation"]["per_class"]]
    assert robust[head.index("worst class, %")] == f"{min(accuracies):.2f}"
    assert robust[head.index("robust loss at rho 0.5, train")] == f"{result['train']['robust_loss']:.3f}"
    assert not any("rarer" in text for text in head)
    classes = page.tables["Validation accuracy of each class, %"]
    named = [(row[0], row[3]) for row in classes[1:]]
    assert named == [("yes", f"{accuracies[1]:.1f}"), ("no", f"{accuracies[0]:.1f}")]  # the rarer one first
    groups = page.tables["Validation accuracy of each group, %"]
    assert [row[0] for row in groups] == ["group", "south", "north"]
    for table_of in (classes, groups):
        assert sum(int(row[1]) for row in table_of[1:]) == 241
    curves = json.loads(page.scripts["curves-0"])
    assert "validation.top1" in curves["arms"][1]["values"]
    assert curves["charts"][1]["title"] == "Robust loss at rho 0.5"
    assert not any("rarer" in choice["label"] for chart in curves["charts"] for choice in chart["choices"])

    test = write_csv(tmp_path / "test.csv", rows(50, seed=1))
    searched = ["--target", "label", "--test", test, "--search", "2", "--epochs", "1", "--threads", "1"]
    assert run("train", table, "--out", tmp_path / "runs" / "two", *searched) == 0
    page = report(tmp_path / "runs")
    assert "2 sweeps" in page.source
    assert "not finished" not in page.text
    assert "test accuracy, %" in page.source
    assert "2 of 2 runs ended" in page.text


# -- images -----------------------------------------------------------------------------------------------------------

EXPORTED = """
import json, sys
sys.modules["scdro"] = None
import numpy as np, torch
program = torch.export.load(sys.argv[1]).module()
images = torch.from_numpy(np.load(sys.argv[2])["X"]).permute(0, 3, 1, 2)
with torch.no_grad():
    print(json.dumps(program(images).softmax(1).tolist()))
"""


def test_a_folder_of_images(tmp_path, capsys):
    folder, out = write_images(tmp_path / "pictures"), tmp_path / "run"
    options = ["--size", "16", "--width", "4", "--epochs", "6", "--threads", "1", "--rho", "0.1"]
    assert run("train", folder, "--out", out, *options) == 0
    said = capsys.readouterr().out
    assert "images of 16 x 16; 2 classes: a 13, b 13" in said
    assert run("predict", out, folder, "--out", tmp_path / "p.csv") == 0
    found = read_csv(tmp_path / "p.csv")
    assert [row["path"] for row in found] == sorted(str(p.relative_to(folder)) for p in folder.glob("*/*"))
    assert np.mean([row["path"][0] == row["prediction"] for row in found]) > 0.9
    assert run("predict", out, folder / "a" / "00.jpg") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("00.jpg,")

    pixels = np.random.default_rng(0).integers(256, size=(5, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "new.npz", X=pixels)
    assert run("predict", out, tmp_path / "new.npz", "--out", tmp_path / "q.csv") == 0
    command = [sys.executable, "-c", EXPORTED, str(out / "model.pt2"), str(tmp_path / "new.npz")]
    plain = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, cwd="/").stdout)
    ours = [[float(row["p(a)"]), float(row["p(b)"])] for row in read_csv(tmp_path / "q.csv")]
    np.testing.assert_allclose(ours, plain, atol=1e-5)


def test_images_go_on_as_they_were_changed_before(tmp_path, capsys):
    first = ["train", write_images(tmp_path / "pictures"), "--out", tmp_path / "run", "--size", "16", *SHORT]
    assert run(*first) == 0
    assert run(*first, "--no-augment") == 1
    assert "--no-augment" in capsys.readouterr().err


def test_images_with_parts_of_their_own_and_a_simple_model(tmp_path, capsys):
    for seed, part in enumerate(("train", "val", "test")):
        write_images(tmp_path / "data" / part, each=12, seed=seed)
    out = tmp_path / "run"
    assert run("train", tmp_path / "data", "--out", out, "--size", 8, "--model", "linear", *SHORT) == 0
    assert "24 to train on, 24 to validate on, 24 to test on" in capsys.readouterr().out
    layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    layers.load_state_dict(torch.load(out / "model.pt", weights_only=True)["state_dict"])
    assert not (out / "model.pt2").exists()


def test_images_that_do_not_fit_into_memory_are_the_same(tmp_path, monkeypatch):
    folder = write_images(tmp_path / "pictures")
    inside = open_own(Wanted(folder, size=16)).task
    monkeypatch.setattr("scdro.application.own.pictures.MEMORY", 1)
    outside = open_own(Wanted(folder, size=16, workers=1)).task
    for part in ("train", "validation"):
        a, b = (list(task.in_order(getattr(task, part), 100)) for task in (inside, outside))
        assert torch.equal(a[0][0], b[0][0])
        assert torch.equal(a[0][1], b[0][1])
    x, y, index = next(iter(outside.batches(16, seed=1).epoch(0)))
    assert x.shape == (16, 3, 16, 16)
    assert torch.equal(y, outside.train.labels[index])
    plain = next(iter(outside.in_order(outside.train, 100)))[0]
    assert not torch.equal(x, plain[index])  # cropped and mirrored
    (found,) = fit(Plan(width=4, epochs=1, threads=1), open_own(Wanted(folder, size=16)), tmp_path / "run", "x")
    assert found.result["status"] == "done"


def test_a_list_of_images(tmp_path, capsys):
    folder = write_images(tmp_path / "pictures", sizes=((20, 20),))
    lines = [f"{p.relative_to(folder)} {7 if p.parent.name == 'a' else 12}" for p in sorted(folder.glob("*/*"))]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    data = open_own(Wanted(tmp_path / "list.txt", root=folder, size=20))
    assert data.classes == ("7", "12")
    assert run("train", tmp_path / "list.txt", "--out", tmp_path / "run", *SHORT) == 1
    assert "--root" in capsys.readouterr().err
    options = ["--root", folder, "--size", "8", "--model", "mlp", "--width", "8"]
    assert run("train", tmp_path / "list.txt", "--out", tmp_path / "run", *options, *SHORT) == 0


# -- arrays -----------------------------------------------------------------------------------------------------------


def test_arrays_with_parts_groups_and_gaps(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5))
    y = (x[:, 0] + x[:, 1] > 0).astype(int) + 3
    x[::7, 2] = np.nan
    x[:, 3] = 5.0
    arrays = {"X": x[:150], "y": y[:150], "groups": x[:150, 4] > 0}
    np.savez(tmp_path / "d.npz", **arrays, X_test=x[150:], y_test=y[150:], groups_test=x[150:, 4] > 0)
    out = tmp_path / "run"
    assert run("train", tmp_path / "d.npz", "--out", out, "--epochs", 20, "--threads", 1) == 0
    said = capsys.readouterr().out
    assert "121 to train on, 29 to validate on, 50 to test on; 5 features; 2 classes: 3 " in said
    assert "False" in said
    assert run("predict", out, tmp_path / "d.npz", "--out", tmp_path / "p.csv") == 0
    right = np.mean([int(row["prediction"]) == k for row, k in zip(read_csv(tmp_path / "p.csv"), y[:150], strict=True)])
    assert right > 0.85
    write_images(tmp_path / "pictures", each=2)
    for other in (write_csv(tmp_path / "other.csv", rows(5)), tmp_path / "pictures"):
        assert run("predict", out, other) == 1
        assert ".npz" in capsys.readouterr().err
    np.savez(tmp_path / "e.npz", X=x[:, :4])
    assert run("predict", out, tmp_path / "e.npz") == 1
    assert "rows of 5 numbers" in capsys.readouterr().err


def test_images_in_arrays_in_any_order_of_axes(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(40, 6, 8, 3), dtype=np.uint8), np.arange(40) % 2
    found = set()
    for name, images in (("a", x), ("b", x.transpose(0, 3, 1, 2))):
        np.savez(tmp_path / f"{name}.npz", X=images, y=y)
        found.add(open_own(Wanted(tmp_path / f"{name}.npz")).task.fingerprint())
    assert len(found) == 1
    np.savez(tmp_path / "grey.npz", X=x[..., 0], y=y.astype(float))
    grey = open_own(Wanted(tmp_path / "grey.npz")).task.train
    assert grey.images.shape == (32, 3, 6, 8)
    assert torch.equal(grey.images[:, 0], grey.images[:, 2])


def test_tensorboard_is_missed_before_any_work(table, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert run("train", table, "--out", tmp_path / "run", "--target", "label", "--tensorboard") == 1
    assert "pip install scdro[tensorboard]" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
