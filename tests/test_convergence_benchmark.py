"""The search of benchmarks/convergence.py is the same for every method."""

from __future__ import annotations

import json

import convergence
import pytest
import torch
from convergence import FINER_STEPS, POINTS, SEARCHES, STEPS, Record, compared, searched
from torch import nn

from reproduction.baselines import REGISTRY


def effective(name, settings):
    own = SEARCHES[name]
    return settings["lr"] if own.damped else settings["lr"] / (1 - settings["momentum"])


def optimizer(name, model, settings):
    facts = {
        "rho": 0.5,
        "n": 16,
        "groups": torch.zeros(16, dtype=torch.long),
        "module": model,
        "milestones": [10**6],
    }
    facts["all_losses"] = lambda: model(torch.ones(16, 1))[:, 0]
    return REGISTRY[name].build(model.parameters(), facts, **settings)


@pytest.mark.parametrize("name", SEARCHES)
def test_every_method_has_as_many_trials_at_the_same_effective_steps(name):
    own = SEARCHES[name]
    points = own.coarse()
    assert len(points) == 6 * len(STEPS)
    assert sorted(effective(name, own.settings(*point)) for point in points) == pytest.approx(
        sorted(6 * STEPS), rel=1e-3
    )
    assert {bound for _, _, bound in points} == {None, 2.0}
    for point in points:
        finer = own.finer(*point)
        # eight that were not tried yet: steps, values and bounds
        assert len({*finer, *points}) == len(points) + len(FINER_STEPS) + 4
        assert len(own.values) == 7


@pytest.mark.parametrize("name", SEARCHES)
def test_the_step_is_divided_where_the_optimizer_does_not_damp_its_momentum(name):
    own = SEARCHES[name]
    made = optimizer(name, nn.Linear(1, 1), own.settings(STEPS[0], own.values[3]))
    assert own.damped == ("momentum" not in made.param_groups[0])


@pytest.mark.parametrize(
    "name", ["SCDRO", "ASCDRO", "FastDRO", "FastDRO-chi2", "ERM", "TERM", "Focal", "RECOVER"]
)
def test_a_constant_gradient_moves_by_the_effective_step(name):
    """Of one sample's loss, a linear function of one weight, the slope is one whatever its weight in the batch."""
    own, model = SEARCHES[name], nn.Linear(1, 1, bias=False)
    made = optimizer(name, model, own.settings(0.1, own.values[3]))
    places = []
    for _ in range(200):
        made.step(lambda: model(torch.ones(1, 1))[:, 0], torch.tensor([0]))
        places.append(model.weight.item())
    assert places[-2] - places[-1] == pytest.approx(
        0.1, rel=0.1
    )  # lam and s of ours are a little late


def test_the_search_refines_around_the_best_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    calls = []

    def bowl(where, name, settings, seed, points):
        calls.append(settings)
        return [(1, 0.1, abs(settings["lr"] - 0.2) + abs(settings["beta"] - 0.7))] * points

    monkeypatch.setattr(convergence, "run", bowl)
    monkeypatch.setattr(convergence, "task", lambda problem: None)
    best = searched(Record(tmp_path / "trials.jsonl"), "network", "SCDRO")
    assert len(calls) == 50
    assert best["settings"] in calls[42:]
    assert searched(Record(tmp_path / "trials.jsonl"), "network", "SCDRO") == best
    assert len(calls) == 50


def test_scdro_is_called_better_only_where_the_seeds_show_it(tmp_path):
    def row(name, seed, value):
        settings = {"lr": 0.1}
        curve = [[1, 0.1, value]] * POINTS
        return {
            "problem": "network",
            "method": name,
            "settings": settings,
            "seed": seed,
            "curve": curve,
        }

    noise = (0.001, -0.002, 0.0, 0.002, -0.001)
    rows = [row("SCDRO", s + 1, 0.5 + e) for s, e in enumerate(noise)]
    rows += [row("ERM", s + 1, 0.7 - e) for s, e in enumerate(noise)]
    rows += [row("FastDRO", s + 1, 0.5 - e) for s, e in enumerate(noise)]
    rows += [row("TERM", s + 1, None if s else 0.5) for s in range(5)]
    rows += [row("Focal", 1, 0.1)]  # not all seeds
    path = tmp_path / "seeds.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    words = {name: word for name, (_, word) in compared(Record(path), "network").items()}
    assert words == {"ERM": "lower", "FastDRO": "no difference shown", "TERM": "too few pairs"}
