"""One run: resumed to the bit, tuned without the test data, evaluated as it goes."""

import dataclasses
import json
import math
import random

import numpy as np
import pytest
import torch

from reproduction.baselines import REGISTRY
from reproduction.data.memory import Rows
from reproduction.engine.assess import predicted
from reproduction.engine.study import Study, StudyRun
from reproduction.engine.task import Task, make_model
from reproduction.engine.training import train
from reproduction.grids import GRIDS
from scdro.errors import CheckpointError, HyperparameterError

KINDS = [
    "SCDRO",
    "RASCDRO",
    "ERM",
    "FastDRO-MLMC",
    "SPD",
    "PGSMD2",
    "AccMDA",
    "GroupDRO",
    "ClassBalanced",
]


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
    return Study(
        "figure1", "made", "smoke", (method,), **{"epochs": 3, "batch_size": 8, "points": 4, **own}
    )


def a_run(method, seed=1, **own):
    grid = {key: values[len(values) // 2] for key, values in GRIDS[method].items()}
    if method == "FastDRO-MLMC":
        grid |= {"smallest": 4, "largest": 16}
    return StudyRun(
        small(method, **own),
        method,
        {**grid, "rho": 0.5} if "rho" in REGISTRY[method].needs else grid,
        seed,
    )


def timeless(result):
    return {key: value for key, value in result.items() if key != "seconds"}


def curve(folder):
    return [
        timeless(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


class Stop(Exception):
    pass


@pytest.mark.parametrize("method", KINDS)
def test_a_run_stopped_anywhere_ends_as_one_never_stopped(method, tmp_path):
    run = a_run(method)
    whole, points, _ = train(run, task(), tmp_path / "whole", keep_model=True)
    assert whole["status"] == "done", whole
    rng, stops = random.Random(method), 0

    def progress(done, total, text):
        if rng.random() < 0.15:
            raise Stop

    while True:
        try:
            parts, again, _ = train(
                run,
                task(),
                tmp_path / "parts",
                keep_model=True,
                checkpoint_seconds=0,
                progress=progress,
            )
            break
        except Stop:
            stops += 1
    assert stops >= 2
    assert timeless(parts) == timeless(whole)
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    assert curve(tmp_path / "whole") == list(map(timeless, points)) == list(map(timeless, again))
    weights = [
        torch.load(tmp_path / kind / "model.pt", weights_only=True)["state_dict"]
        for kind in ("parts", "whole")
    ]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()


def test_a_run_reports_what_its_model_is_worth(tmp_path):
    data = task()
    run = a_run("SCDRO")
    result = train(run, data, tmp_path, keep_model=True).result
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
    assert [p["epoch"] for p in points] == pytest.approx(
        [run.study.epochs * s / 264 for s in (0, 72, 136, 200, 264)], abs=1e-3
    )
    assert points[-1]["test"]["top1"] == result["test"]["top1"]
    hard = result["hardest"]
    losses = torch.nn.functional.cross_entropy(
        model(data.train.inputs), data.train.labels, reduction="none"
    )
    assert [h["position"] for h in hard] == torch.argsort(losses, descending=True, stable=True)[
        : len(hard)
    ].tolist()
    assert sum(h["weight"] for h in hard) <= len(data.train)


@pytest.mark.parametrize(("seed", "evaluations"), [(0, 1), (1, 5)])
def test_each_model_is_evaluated_once(seed, evaluations, tmp_path, monkeypatch):
    asked = []

    def counted(model, task, part, ranks):
        asked.append(part is task.train)
        return predicted(model, task, part, ranks)

    monkeypatch.setattr("reproduction.engine.training.predicted", counted)
    assert train(a_run("ERM", seed), task(), tmp_path).result["status"] == "done"
    assert sum(asked) == evaluations


def test_lr_falls_by_ten_after_the_epoch_that_says_so(tmp_path, monkeypatch):
    seen = []
    from scdro.optim import ERM

    step = ERM.step
    monkeypatch.setattr(
        ERM,
        "step",
        lambda self, *a, **k: (seen.append(self.param_groups[0]["lr"]), step(self, *a, **k)),
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
    result = train(a_run("SCDRO", seed=0), data, tmp_path).result
    assert result["status"] == "done"
    assert "test" not in result
    with pytest.raises(AssertionError, match="asked for"):
        train(a_run("SCDRO", seed=1), data, tmp_path / "final")


def test_a_diverged_run_is_recorded(tmp_path):
    run = StudyRun(small("ERM"), "ERM", {"lr": 1e30}, 1)
    assert train(run, task(), tmp_path).result["status"] == "diverged"


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    def progress(done, total, text):
        raise Stop

    with pytest.raises(Stop):
        train(a_run("ERM"), task(), tmp_path, checkpoint_seconds=0, progress=progress)
    # The first step's progress comes before its checkpoint: go one further.
    calls = iter(range(10))
    with pytest.raises(Stop):
        train(
            a_run("ERM"),
            task(),
            tmp_path,
            checkpoint_seconds=0,
            progress=lambda *a: next(calls) < 2 or progress(*a),
        )
    with pytest.raises(CheckpointError, match=r"weight_decay 0\.0002 is not 0\.1"):
        train(a_run("ERM", weight_decay=0.1), task(), tmp_path)


def test_a_method_that_needs_groups_is_refused_without_them(tmp_path):
    data = Task(
        *(
            Rows(part.inputs, part.labels, names=part.names)
            for part in (rows(), rows(60, 1), rows(60, 2))
        )
    )
    with pytest.raises(HyperparameterError, match=r"groups.*GroupDRO"):
        train(a_run("GroupDRO"), data, tmp_path)


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


def test_steps_in_bfloat16_keep_weights_and_losses_in_float32_and_end_nearby(tmp_path):
    """The same run in both: passes of half the digits, and nothing else of it."""
    ends = {}
    for precision in ("float32", "bfloat16"):
        run = a_run("SCDRO", precision=precision, model="mlp")
        result, _, _ = train(run, task(), tmp_path / precision, keep_model=True)
        weights = torch.load(tmp_path / precision / "model.pt")["state_dict"]
        assert {w.dtype for w in weights.values()} == {torch.float32}
        ends[precision] = (
            result["train"]["robust_loss"],
            torch.cat([w.flatten() for w in weights.values()]),
        )
    first, second = ends["float32"], ends["bfloat16"]
    assert first[0] == pytest.approx(second[0], rel=0.05)
    assert 0 < float((first[1] - second[1]).norm()) < 0.05 * float(first[1].norm())
    with pytest.raises(HyperparameterError, match="float16"):
        small("SCDRO", precision="float16")
