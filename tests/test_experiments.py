"""Runs, sweeps and tables: resumed to the bit, tuned without the test data, in the paper's form."""

import csv
import dataclasses
import io
import json
import math
import multiprocessing
import random
import re
import time
from functools import partial

import numpy as np
import pytest
import scipy.stats
import torch

from scdro.cli import main, parser
from scdro.cli.board import Board
from scdro.cli.reproduce import _studies
from scdro.data import ImageData, Rows, hold_out
from scdro.errors import CheckpointError, DataError, HyperparameterError, MissingDataError
from scdro.experiments.assess import predicted
from scdro.experiments.columns import COLUMNS, drawn
from scdro.experiments.config import Arm, Run, Study
from scdro.experiments.figures import draw
from scdro.experiments.paired import comparisons, difference
from scdro.experiments.pool import Means, Status
from scdro.experiments.presets import EXPERIMENTS, SCALES, datasets, study
from scdro.experiments.results import cell, markdown
from scdro.experiments.storage import read_json, read_lines
from scdro.experiments.sweep import Outcome, outcomes, sweep
from scdro.experiments.tasks import Sources, Task, make_model, open_task
from scdro.experiments.training import train
from scdro.optim import REGISTRY
from test_tabular import write_adult

KINDS = ["SCDRO", "RASCDRO", "ERM", "FastDRO-MLMC", "SPD", "PGSMD2", "AccMDA", "GroupDRO", "ClassBalanced"]


def rows(n=90, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    x = rng.normal(size=(n, 4)) + np.eye(4)[y] * 2
    groups = torch.from_numpy((x[:, 3] > 0).astype(np.int64))
    return Rows(
        torch.from_numpy(x.astype(np.float32)),
        torch.from_numpy(y),
        names="abc",
        groups=groups,
        group_names=("low", "high"),
    )


def task():
    return Task(rows(), rows(60, 1), rows(60, 2))


def small(method, **own):
    return Study("figure1", "made", "smoke", (method,), **{"epochs": 3, "batch_size": 8, "points": 4, **own})


def a_run(method, seed=1, **own):
    grid = {key: values[len(values) // 2] for key, values in REGISTRY[method].grid.items()}
    if method == "FastDRO-MLMC":
        grid |= {"smallest": 4, "largest": 16}
    return Run(small(method, **own), method, {**grid, "rho": 0.5} if "rho" in REGISTRY[method].needs else grid, seed)


def timeless(result):
    return {key: value for key, value in result.items() if key != "seconds"}


def curve(folder):
    return [timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


class Stop(Exception):
    pass


@pytest.mark.parametrize("method", KINDS)
def test_a_run_stopped_anywhere_ends_as_one_never_stopped(method, tmp_path):
    run = a_run(method)
    whole = train(run, task(), tmp_path / "whole", keep_model=True)
    assert whole["status"] == "done", whole
    rng, stops = random.Random(method), 0

    def progress(done, total, text):
        if rng.random() < 0.15:
            raise Stop

    while True:
        try:
            parts = train(run, task(), tmp_path / "parts", keep_model=True, checkpoint_seconds=0, progress=progress)
            break
        except Stop:
            stops += 1
    assert stops >= 2
    assert timeless(parts) == timeless(whole)
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    weights = [torch.load(tmp_path / kind / "model.pt", weights_only=True)["state_dict"] for kind in ("parts", "whole")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()


def test_a_run_reports_what_its_model_is_worth(tmp_path):
    data = task()
    run = a_run("SCDRO")
    result = train(run, data, tmp_path, keep_model=True)
    model = make_model(run.study, data, seed=9)
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True)["state_dict"])
    right = (model(data.test.inputs).argmax(1) == data.test.labels).double()
    assert result["test"]["top1"] == pytest.approx(float(right.mean()))
    by_class = [float(right[data.test.labels == c].mean()) for c in range(3)]
    assert result["test"]["balanced"] == pytest.approx(np.mean(by_class))
    by_group = [float(right[data.test.groups == g].mean()) for g in range(2)]
    assert result["test"]["per_group"] == pytest.approx(by_group)
    assert result["test"]["worst_group"] == pytest.approx(min(by_group))
    points = curve(tmp_path)
    assert [p["samples"] for p in points] == [0, 72, 136, 200, 264]
    assert points[-1]["test"]["top1"] == result["test"]["top1"]
    hard = result["hardest"]
    losses = torch.nn.functional.cross_entropy(model(data.train.inputs), data.train.labels, reduction="none")
    assert [h["position"] for h in hard] == torch.argsort(losses, descending=True, stable=True)[: len(hard)].tolist()
    assert sum(h["weight"] for h in hard) <= len(data.train)


@pytest.mark.parametrize(("seed", "evaluations"), [(0, 1), (1, 5)])
def test_each_model_is_evaluated_once(seed, evaluations, tmp_path, monkeypatch):
    asked = []

    def counted(model, task, part, ranks):
        asked.append(part is task.train)
        return predicted(model, task, part, ranks)

    monkeypatch.setattr("scdro.experiments.training.predicted", counted)
    assert train(a_run("ERM", seed), task(), tmp_path)["status"] == "done"
    assert sum(asked) == evaluations


def test_lr_falls_by_ten_after_the_epoch_that_says_so(tmp_path, monkeypatch):
    seen = []
    from scdro.optim import ERM

    step = ERM.step
    monkeypatch.setattr(
        ERM, "step", lambda self, *a, **k: (seen.append(self.param_groups[0]["lr"]), step(self, *a, **k))
    )
    train(a_run("ERM", decay_epoch=2), task(), tmp_path)
    assert seen == [0.1] * 22 + [pytest.approx(0.01)] * 11


def test_the_search_never_sees_the_test_data(tmp_path):
    class Forbidden:
        def fingerprint(self):
            return "0" * 64

        def __getattr__(self, name):
            raise AssertionError(f"the search asked for {name} of the test data")

    data = dataclasses.replace(task(), test=Forbidden())
    result = train(a_run("SCDRO", seed=0), data, tmp_path)
    assert result["status"] == "done"
    assert "test" not in result
    with pytest.raises(AssertionError, match="asked for"):
        train(a_run("SCDRO", seed=1), data, tmp_path / "final")


def test_a_diverged_run_is_recorded(tmp_path):
    run = Run(small("ERM"), "ERM", {"lr": 1e30}, 1)
    assert train(run, task(), tmp_path)["status"] == "diverged"


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    def progress(done, total, text):
        raise Stop

    with pytest.raises(Stop):
        train(a_run("ERM"), task(), tmp_path, checkpoint_seconds=0, progress=progress)
    # The first step's progress comes before its checkpoint: go one further.
    calls = iter(range(10))
    with pytest.raises(Stop):
        train(a_run("ERM"), task(), tmp_path, checkpoint_seconds=0, progress=lambda *a: next(calls) < 2 or progress(*a))
    with pytest.raises(CheckpointError, match=r"weight_decay 0\.0002 is not 0\.1"):
        train(a_run("ERM", weight_decay=0.1), task(), tmp_path)


# -- sweeps -----------------------------------------------------------------------------------------------------------


def tiny(tmp_path, **own):
    whole = study("figure1", "digits-st", "smoke")
    return dataclasses.replace(whole, **{"methods": ("RSCDRO", "ERM"), "epochs": 1, "decay_epoch": 1, **own})


def test_the_best_on_validation_is_what_gets_seeds(tmp_path):
    found = sweep(tiny(tmp_path, trials=3), tmp_path, Means(Sources()))
    for outcome in found:
        best = max(outcome.trials, key=lambda t: t["validation"]["balanced"])
        assert outcome.settings == best["settings"]
        assert len(outcome.trials) == 3
        assert [r["seed"] for r in outcome.results] == [1, 2]
        assert all(r["settings"] == best["settings"] for r in outcome.results)
    assert outcomes(tiny(tmp_path, trials=3), tmp_path) == found


def test_one_setting_needs_no_search(tmp_path):
    own = tiny(tmp_path, trials=1)
    found = sweep(own, tmp_path, Means(Sources()))
    assert [outcome.trials for outcome in found] == [[], []]
    assert not list(tmp_path.rglob("seed-0"))
    assert all(r["status"] == "done" for outcome in found for r in outcome.results)
    assert markdown([(own, found)]).count("one setting, no search") == 2


def test_a_sweep_can_be_extended_but_not_changed(tmp_path):
    first = sweep(tiny(tmp_path, trials=1), tmp_path, Means(Sources()))
    more = sweep(tiny(tmp_path, trials=1, seeds=3), tmp_path, Means(Sources()))
    assert [outcome.results[:2] for outcome in more] == [outcome.results for outcome in first]
    assert all(len(outcome.results) == 3 for outcome in more)
    with pytest.raises(CheckpointError, match="epochs 1 is not 2"):
        sweep(tiny(tmp_path, epochs=2), tmp_path, Means(Sources()))


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, monkeypatch):
    from scdro.optim import ERM

    def broken(self, *args, **kwargs):
        raise ZeroDivisionError("made to fail")

    monkeypatch.setattr(ERM, "step", broken)
    said = []
    ours, other = sweep(tiny(tmp_path, trials=1), tmp_path, Means(Sources()), say=said.append)
    told = [text for text in said if "failed" in text]
    assert told == [f"ERM lr {other.settings['lr']:g} seed {n} failed: ZeroDivisionError: made to fail" for n in (1, 2)]
    assert all(r["status"] == "done" for r in ours.results)
    assert [r["status"] for r in other.results] == ["failed", "failed"]
    assert "made to fail" in other.results[0]["error"]
    assert cell(other.values("test", "top1")) == "none"


def test_a_run_that_diverges_is_told_once(tmp_path):
    own, said = tiny(tmp_path, methods=("ERM",), trials=1, seeds=1, grid=(("lr", (1e30,)),)), []
    sweep(own, tmp_path, Means(Sources()), say=said.append)
    (told,) = [text for text in said if "diverged" in text]
    assert told.startswith("ERM lr 1e+30 seed 1 diverged: ")
    assert "\n" not in told
    sweep(own, tmp_path, Means(Sources()), say=said.append)
    assert sum("diverged" in text for text in said) == 1


def test_damaged_checkpoints_are_told_with_what_to_do(tmp_path):
    """Of one the one before is used; where both are damaged, the run fails, and says so on the terminal."""
    own = tiny(tmp_path, methods=("ERM",), trials=1, seeds=1)
    (run,) = own.finals(own.arms()[0], own.search(own.arms()[0])[0].settings)
    folder, calls = tmp_path / run.path, iter(range(100))

    def stop(done, total, text):
        if next(calls) == 5:
            raise Stop

    with pytest.raises(Stop):
        train(run, open_task("features", "digits-st", 1, Sources()), folder, checkpoint_seconds=0, progress=stop)
    kept = (folder / "checkpoint.previous.pt").read_bytes()
    (folder / "checkpoint.pt").write_bytes(b"damaged")
    (folder / "checkpoint.previous.pt").write_bytes(b"too")
    said = []
    sweep(own, tmp_path, Means(Sources()), say=said.append)
    (told,) = [text for text in said if "failed" in text]
    assert "remove them to start anew" in told
    (folder / "checkpoint.previous.pt").write_bytes(kept)
    (outcome,) = sweep(own, tmp_path, Means(Sources()), say=said.append)
    assert f"{folder / 'checkpoint.pt'} is damaged: the one before it is used" in said
    assert outcome.results[0]["status"] == "done"


def test_a_line_does_not_break_the_board():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    board = Board(Terminal())
    board.every = 0.0
    board(Status(2, 0, {"one": 0.5}))
    board.say("one failed")
    board(Status(2, 1))
    drawn = board.stream.getvalue()
    assert re.sub(r"\[[#.]+\]", "[]", drawn) == (
        "\x1b[J[]   0% 0/2 runs\n  []  50% one\n\x1b[2A\x1b[Jone failed\n\x1b[J[]  50% 1/2 runs\n"
    )


def test_figures_of_a_sweep_in_which_all_failed(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(REGISTRY["ERM"].make, "step", lambda *args: 1 / 0)
    study = tiny(tmp_path, methods=("ERM",), trials=2)
    found = sweep(study, tmp_path, Means(Sources()))
    assert [trial["status"] for trial in found[0].trials] == ["failed", "failed"]
    assert all(path.stat().st_size > 0 for path in draw([(study, found)], tmp_path, "figure1"))


def test_a_method_that_needs_groups_is_refused_without_them(tmp_path, capsys):
    data = Task(*(Rows(part.inputs, part.labels, names=part.names) for part in (rows(), rows(60, 1), rows(60, 2))))
    with pytest.raises(HyperparameterError, match="expected a task with groups for GroupDRO"):
        train(a_run("GroupDRO"), data, tmp_path / "one")
    argv = ["reproduce", "figure1", "--scale", "smoke", "--dataset", "digits-st", "--out", str(tmp_path / "runs")]
    assert main([*argv, "--methods", "ERM", "GroupDRO"]) == 1
    assert "expected data with groups for GroupDRO, got digits-st" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["study.json", "ERM/lr-0.1/seed-0/result.json", "ERM/lr-0.1/seed-0/metrics.jsonl"])
def test_a_damaged_file_is_named(name, tmp_path):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"status": "do\n\n')
    study = tiny(tmp_path, methods=("ERM",), grid=(("lr", (0.1, 0.5)),), trials=0)
    reading = partial(read_lines, file) if name.endswith("jsonl") else partial(sweep, study, tmp_path, Means(Sources()))
    with pytest.raises(CheckpointError, match=f"{re.escape(str(file))}.*remove"):
        reading()
    file.write_text("[]")
    with pytest.raises(CheckpointError, match="expected a JSON object"):
        read_json(file)


def test_settings_of_one_radius_serve_all_where_the_study_says_so():
    table = study("table4", "cifar10-st", "small")
    arms = table.arms()
    assert len(arms) == 15
    assert {run.path for arm in arms for run in table.search(arm)} == {
        run.path for arm in arms if arm.rho == 0.5 for run in table.search(arm)
    }
    final = table.finals(Arm("SCDRO", 0.01), {"lr": 0.1, "beta": 0.1, "rho": 0.5})
    assert {run.settings["rho"] for run in final} == {0.01}
    assert [run.seed for run in final] == [1, 2, 3, 4, 5]


# -- the kill test ----------------------------------------------------------------------------------------------------

FILES = ("results.md", "trials.csv")


def _command(out, *more):
    own = ["--methods", "RSCDRO", "SPD", "--seeds", "2", "--checkpoint-seconds", "0", "--points", "4"]
    return ["reproduce", "figure1", "--scale", "smoke", "--dataset", "digits-st", "--out", str(out), *own, *more]


def _tables(out):
    folder = out / "figure1-smoke"
    seeds = [line.rsplit(",", 1)[0] for line in (folder / "seeds.csv").read_text().splitlines()]  # without seconds
    return {name: (folder / name).read_text() for name in FILES} | {"seeds": seeds}


def test_a_sweep_killed_at_random_moments_gives_the_same_tables(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scdro.experiments.training", "scdro.experiments.sweep", "matplotlib.pyplot"])

    def start(out):
        process = context.Process(target=main, args=(_command(out),))
        process.start()
        return process

    undisturbed = start(tmp_path / "whole")
    undisturbed.join()
    rng = random.Random(0)
    for done in range(6):  # of eight runs in all
        process = start(tmp_path / "killed")
        while len([*(tmp_path / "killed").rglob("result.json")]) < done:
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.4))
        assert process.exitcode is None
        process.kill()
        process.join()
    last = start(tmp_path / "killed")
    last.join()
    assert last.exitcode == undisturbed.exitcode == 0
    assert _tables(tmp_path / "killed") == _tables(tmp_path / "whole")
    shown = json.loads((tmp_path / "whole/figure1-smoke/digits-st/study.json").read_text())
    assert shown["study"]["methods"] == ["RSCDRO", "SPD"]
    assert "torch" in shown["environment"]


@pytest.mark.slow
def test_a_killed_sweep_of_several_processes_leaves_none_behind(tmp_path):
    import os
    import signal
    import subprocess
    import sys

    whole = subprocess.run([sys.executable, "-m", "scdro", *_command(tmp_path / "whole")], check=False)
    assert whole.returncode == 0
    command = [sys.executable, "-m", "scdro", *_command(tmp_path / "killed", "--workers", "2")]
    for delay in (8, 12):
        parent = subprocess.Popen(command)
        time.sleep(delay)
        children = _children(parent.pid)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        end = time.monotonic() + 20
        while any(os.path.exists(f"/proc/{child}") for child in children) and time.monotonic() < end:
            time.sleep(0.2)
        assert not any(os.path.exists(f"/proc/{child}") for child in children)
    assert subprocess.run(command, check=False).returncode == 0
    assert _tables(tmp_path / "killed") == _tables(tmp_path / "whole")


@pytest.mark.slow
def test_what_is_wrong_for_all_runs_stops_a_sweep_of_several_processes(tmp_path):
    with pytest.raises(MissingDataError, match="expected features in"):
        sweep(study("figure1", "cifar10-st", "smoke"), tmp_path / "out", Means(Sources(tmp_path), workers=2))


def _children(pid):
    import subprocess

    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.split()


# -- tables -----------------------------------------------------------------------------------------------------------


def an_outcome(method, values, rho=0.5):
    results = [
        {"status": "diverged"} if math.isnan(v) else {"status": "done", "test": {"top1": v}, "train": {}}
        for v in values
    ]
    return Outcome(Arm(method, rho), {"lr": 0.1}, [], results, [[] for _ in values])


def test_differences_are_the_paired_t_interval():
    a, b = [0.71, 0.74, 0.69, 0.73, 0.72], [0.70, 0.71, 0.69, 0.70, 0.71]
    found = difference(an_outcome("SCDRO", a), an_outcome("ERM", b), COLUMNS[0])
    expected = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(np.mean(np.subtract(a, b)))
    assert found.p_value == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue)
    assert found.direction == ("higher" if expected.low > 0 else "")


def test_seeds_that_diverged_are_left_out_and_counted():
    a, b = an_outcome("SCDRO", [0.7, math.nan, 0.8]), an_outcome("FastDRO", [0.5, 0.9, 0.7])
    assert cell(a.values("test", "top1")) == "75.00 ± 7.07 (1 lost)"
    assert difference(a, b, COLUMNS[0]).pairs == 2
    assert [d.other for d in comparisons(small("SCDRO"), [a, b, an_outcome("DualSGM", [0.1], 0.1)])] == [
        "FastDRO, rho 0.5"
    ]


# -- presets: what EXPERIMENTS.md says --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("experiment", "dataset", "epochs", "decay", "rho", "batch"),
    [
        ("figure1", "cifar10-st", 3, 2, 0.5, 128),
        ("figure1", "cifar100-st", 3, 2, 0.5, 128),
        ("figure1", "imagenet-lt", 60, 30, 0.1, 512),
        ("figure1", "inaturalist18", 30, 20, 0.1, 512),
        ("figure2", "cifar10-st", 120, 90, 0.5, 128),
        ("figure2", "cifar100-st", 120, 90, 0.5, 128),
        ("figure2", "imagenet-lt", 30, 20, 0.5, 512),
        ("figure2", "inaturalist18", 30, 20, 0.5, 512),
    ],
)
def test_the_papers_protocol(experiment, dataset, epochs, decay, rho, batch):
    own = study(experiment, dataset, "paper")
    assert (own.epochs, own.decay_epoch, own.rho, own.batch_size) == (epochs, decay, (rho,), batch)
    assert (own.seeds, own.weight_decay, own.trials, own.tune_epochs) == (5, 2e-4, 0, 0)
    convex = experiment == "figure1"
    large = dataset in ("imagenet-lt", "inaturalist18")
    assert own.inputs == ("features" if convex else "images")
    assert own.model == ("linear" if convex else "resnet50" if large else "resnet20")
    assert own.part == ("last_block" if large and not convex else "all")


def test_grids_are_the_papers():
    own = study("figure1", "cifar10-st", "paper")
    tried = [run.settings for run in own.search(Arm("RSCDRO", 0.5))]
    assert len(tried) == 45
    assert {s["lr"] for s in tried} == {0.01, 0.05, 0.1, 0.5, 1.0}
    assert sorted({s["beta"] for s in tried}) == pytest.approx([k / 10 for k in range(1, 10)])
    assert {s["dual_lr"] for s in (r.settings for r in own.search(Arm("SPD", 0.5)))} == {1e-5, 5e-5, 1e-4, 5e-4}
    rho = [run.settings["rho"] for run in study("table3", "imagenet-lt", "paper").search(Arm("SCDRO", None))]
    assert set(rho) == {0.1, 0.5, 1.0}
    assert study("table4", "cifar10-st", "paper").rho == (0.01, 0.05, 0.1, 0.5, 1.0)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_preset_is_a_study(experiment, scale):
    for dataset in datasets(experiment, scale):
        own = study(experiment, dataset, scale)
        assert all(own.search(arm) for arm in own.arms())


def test_smoke_trains_what_small_does():
    for experiment in EXPERIMENTS:
        own = [study(experiment, datasets(experiment, scale)[0], scale) for scale in ("small", "smoke")]
        assert len({(each.inputs, each.model, each.part) for each in own}) == 1


def test_a_preset_with_fewer_methods_has_the_grids_of_these():
    assert {key for key, _ in study("figure2", "cifar10-st", "small").grid} == {
        *("beta", "lam", "dual_lr", "DualSGM.dual_lr")
    }
    assert {key for key, _ in study("figure2", "cifar10-st", "small", ("SCDRO",)).grid} == {"beta"}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"methods": ("SGD",)}, "expected a method of"),
        ({"epochs": 0}, "expected epochs >= 1"),
        ({"inputs": "text"}, "expected inputs of"),
        ({"rho": ()}, "expected methods and radii"),
        ({"trials": -1}, "expected trials >= 1, or 0 for the whole grid, got -1"),
        ({"tune_epochs": -2}, "expected tune_epochs >= 1, or 0 for the length of all runs, got -2"),
        ({"rho": (0.5, -1.0)}, "expected a radius rho >= 0, got -1.0"),
        ({"rho": (math.nan,)}, "expected a radius"),
        ({"tune_rho": math.inf}, "expected a radius"),
        ({"grid": (("lr", (0.1, math.nan)),)}, "expected finite values of lr, got 0.1, nan"),
        ({"grid": (("beta", (0.1,)), ("lam", (1.0,)))}, "expected a grid of values"),
    ],
)
def test_a_wrong_study_says_so(wrong, says):
    with pytest.raises(HyperparameterError, match=says):
        Study("figure1", "made", "smoke", **{"methods": ("SCDRO",), **wrong})


# -- data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [2, 3, 5])
def test_hold_out_takes_the_same_share_of_each_class(every):
    labels = torch.from_numpy(np.random.default_rng(every).integers(4, size=101))
    stays, aside = hold_out(labels, every)
    assert sorted([*stays.tolist(), *aside.tolist()]) == list(range(101))
    for c in range(4):
        own = torch.nonzero(labels == c)[:, 0].tolist()
        assert [i for i in own if i in set(aside.tolist())] == own[every - 1 :: every]


def test_the_parts_of_a_task_do_not_overlap():
    hidden = open_task("features", "digits-hidden", 1, Sources())
    assert not set(hidden.train.positions.tolist()) & set(hidden.validation.positions.tolist())
    assert hidden.validation.counts.tolist() == [75, 76]  # as imbalanced as training
    plain = open_task("images", "digits-st", 1, Sources())
    assert not set(plain.test.positions.tolist()) & set(plain.validation.positions.tolist())
    assert len(plain.test) + len(plain.validation) == 596


def test_pooled_images_are_means_of_squares():
    images = torch.from_numpy(np.random.default_rng(0).integers(256, size=(3, 3, 4, 6), dtype=np.uint8))
    data = ImageData(images, torch.zeros(3, dtype=torch.int64), mean=(0.5,) * 3, std=(0.5,) * 3, names="a")
    expected = images.double().reshape(3, 3, 2, 2, 3, 2).mean((3, 5))
    assert (data.pooled(2).images.double() - expected).abs().max() <= 0.5
    with pytest.raises(DataError, match="expected a factor that divides"):
        data.pooled(4)


def test_missing_features_say_how_to_get_them(tmp_path):
    with pytest.raises(MissingDataError, match="scdro pretrain cifar10-st"):
        open_task("features", "cifar10-st", 1, Sources(tmp_path))


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", ["figure2", "hidden"])
def test_reproduce_falls_back_to_digits_and_says_so(experiment, tmp_path, capsys):
    quick = ["--epochs", "1", "--decay-epoch", "1", "--trials", "1", "--seeds", "1", "--points", "1"]
    argv = [
        "reproduce",
        experiment,
        "--scale",
        "smoke",
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path / "runs"),
        *quick,
    ]
    assert main(argv) == 0
    written = capsys.readouterr()
    assert "embedded digits" in written.err
    assert "smoke scale: that it runs, nothing more" in written.err
    folder = tmp_path / "runs" / f"{experiment}-smoke"
    for name in ("results.md", "seeds.csv", "curves.csv", f"{experiment}-samples.png"):
        assert (folder / name).stat().st_size > 0
    with (folder / "curves.csv").open() as file:
        curves = list(csv.DictReader(file))
    for score in drawn(study(experiment, curves[0]["dataset"], "smoke")):  # no empty panels
        assert all(row[f"{score.part} {score.name}"] for row in curves)
    assert (folder / "trials.csv").read_text() == ""  # one setting each
    head = (folder / "results.md").read_text()
    assert all(method in head for method in EXPERIMENTS[experiment][2])


def resolved(*options):
    args = parser().parse_args(["reproduce", *map(str, options)])
    return _studies(args, Means(Sources(args.data, args.features)))


def test_options_that_would_be_ignored_are_refused(tmp_path, capsys):
    argv = ["reproduce", "table1", "--scale", "smoke", "--out", str(tmp_path / "runs")]
    ignored = (
        ["--seeds", "99"],
        ["--epochs", "0"],
        ["--methods", "nonsense"],
        ["--dataset", "adult"],
        ["--tensorboard"],
    )
    for options in ignored:
        assert main([*argv, *options]) == 1
        assert f"got {options[0]} too" in capsys.readouterr().err
    for experiment in ("table1", "figure1"):  # figure1: also where the digits stand in
        assert main(["reproduce", experiment, *argv[2:], "--workers", "0"]) == 1
        assert "expected at least one worker, got 0" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_lr_falls_at_the_same_share_of_other_epochs():
    on = ("figure1", "--scale", "smoke", "--dataset", "digits-st")
    for options, expected in (((), 4), (("--epochs", 12), 8), (("--epochs", 1), 1), (("--decay-epoch", 2), 2)):
        (study,) = resolved(*on, *options)
        assert study.decay_epoch == expected
    (study,) = resolved(*on, "--epochs", 12, "--decay-epoch", 5)
    assert (study.epochs, study.decay_epoch) == (12, 5)


def test_digits_stand_in_only_where_there_are_no_data_at_all(tmp_path, capsys):
    write_adult(tmp_path, packed=False)
    (study,) = resolved("hidden", "--scale", "smoke", "--data", tmp_path)
    assert study.dataset == "adult"
    assert "until then without cifar100-hidden" in capsys.readouterr().err
    (study,) = resolved("hidden", "--scale", "smoke", "--data", tmp_path / "empty")
    assert study.dataset == "digits-hidden"
    said = capsys.readouterr().err
    assert "in place of cifar100-hidden, adult" in said
    assert "pretrain cifar100-hidden" in said
    for options in (("--scale", "small"), ("--scale", "smoke", "--dataset", "adult", "cifar100-hidden")):
        with pytest.raises(MissingDataError):
            resolved("hidden", *options, "--data", tmp_path)


def test_reproduce_refuses_what_it_cannot_do(tmp_path, capsys):
    assert main(["reproduce", "figure1", "--data", str(tmp_path), "--out", str(tmp_path / "runs")]) == 1
    assert "expected features in" in capsys.readouterr().err
    assert main(["reproduce", "figure1", "--scale", "smoke", "--dataset", "digits-st", "--methods", "SGD"]) == 1
    assert "expected a method of" in capsys.readouterr().err
