"""The experiments are the paper's."""

from dataclasses import replace

import pytest
import torch

from reproduction.baselines import REGISTRY
from reproduction.engine.study import BOUND, UNDAMPED, Arm
from reproduction.grids import GRIDS
from reproduction.presets import EXPERIMENTS, SCALES, changed, datasets, study
from reproduction.protocol import command


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
    assert {s["dual_lr"] for s in (r.settings for r in own.search(Arm("SPD", 0.5)))} == {
        1e-5,
        5e-5,
        1e-4,
        5e-4,
    }
    rho = [
        run.settings["rho"]
        for run in study("table3", "imagenet-lt", "paper").search(Arm("SCDRO", None))
    ]
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
        own = [
            study(experiment, datasets(experiment, scale)[0], scale) for scale in ("small", "smoke")
        ]
        assert len({(each.inputs, each.model, each.part) for each in own}) == 1


def test_a_preset_with_fewer_methods_has_the_grids_of_these():
    assert {key for key, _ in study("figure2", "cifar10-st", "small").grid} == {
        *("beta", "lam", "dual_lr", "DualSGM.dual_lr", "FastDRO.momentum", "max_grad_norm")
    }
    assert {key for key, _ in study("figure2", "cifar10-st", "small", ("SCDRO",)).grid} == {
        *("beta", "max_grad_norm")
    }


@pytest.mark.parametrize("experiment", ["figure2", "table4"])
def test_every_method_may_clip_or_not(experiment):
    """The same bounds for all, none among them; a bound that is given is not searched."""
    own = study(experiment, "cifar10-st", "small")
    for arm in own.arms():
        bounds = [run.max_grad_norm for run in own.search(arm)]
        assert set(bounds) == {None, 1.0}
        assert bounds.count(None) == bounds.count(1.0)
    given = changed(own, {"max_grad_norm": 2.0})
    assert {run.max_grad_norm for arm in given.arms() for run in given.search(arm)} == {2.0}
    assert "--max-grad-norm 2" in command([given])
    assert "--grid" not in command([given])
    assert changed(study(experiment, "cifar10-st", "small"), {}) == own


@pytest.mark.parametrize("experiment", ["figure2", "table3", "table4", "hidden"])
def test_every_method_tries_as_many_settings_at_the_same_effective_steps(experiment):
    for dataset in datasets(experiment, "small"):
        own = study(experiment, dataset, "small")
        searches = {arm: [run.settings for run in own.search(arm)] for arm in own.arms()}
        assert len({len(tried) for tried in searches.values()}) == 1
        for arm, tried in searches.items():
            each = [_effective(arm.method, settings) for settings in tried]
            rounded = sorted(round(step, 6) for step in each)
            assert rounded == pytest.approx(
                sorted(own.steps * (len(each) // len(own.steps))), rel=1e-5
            )
            assert len(own.finer(arm, tried[0])) == 4 * own.tune_seeds


def _effective(method, settings):
    """By what the optimizer itself says of its momentum."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    facts = {
        "rho": 0.5,
        "n": 8,
        "groups": torch.zeros(8, dtype=torch.long),
        "module": torch.nn.Linear(1, 1),
    }
    facts |= {"all_losses": lambda: torch.zeros(8), "milestones": [1]}
    plain = {key: value for key, value in settings.items() if key not in ("rho", BOUND)}
    group = REGISTRY[method].build([parameter], facts, **plain).param_groups[0]
    return settings["lr"] / (1 - group.get("momentum", 0.0))


def test_the_methods_whose_momentum_is_not_damped():
    found = [
        name
        for name, grid in GRIDS.items()
        if _effective(name, {key: values[0] for key, values in grid.items()}) != grid["lr"][0]
    ]
    assert sorted(found) == sorted(UNDAMPED)


def test_a_grid_of_lr_takes_the_place_of_the_steps():
    plain = study("figure2", "cifar10-st", "small", ("SCDRO",))
    own = changed(plain, {"grid": (("lr", (0.1,)), ("beta", (0.1,))), "max_grad_norm": 0.0})
    assert [run.settings for run in own.search(own.arms()[0])] == [
        {"lr": 0.1, "beta": 0.1, "rho": 0.5}
    ]
    assert not own.refine
    assert "--steps" not in command([own])
    assert "--no-refine" not in command([own])
    assert changed(plain, {"grid": (("beta", (0.1,)),)}).steps == plain.steps


def test_table4_is_searched_at_each_radius():
    table = study("table4", "cifar10-st", "small")
    for arm in table.arms():
        assert {run.settings["rho"] for run in table.search(arm)} == {arm.rho}


def test_settings_of_one_radius_serve_all_where_the_study_says_so():
    table = replace(study("table4", "cifar10-st", "small"), tune_rho=0.5)
    arms = table.arms()
    assert len(arms) == 15
    assert {run.path for arm in arms for run in table.search(arm)} == {
        run.path for arm in arms if arm.rho == 0.5 for run in table.search(arm)
    }
    final = table.finals(Arm("SCDRO", 0.01), {"lr": 0.1, "beta": 0.1, "rho": 0.5})
    assert {run.settings["rho"] for run in final} == {0.01}
    assert [run.seed for run in final] == [1, 2, 3, 4, 5]


def test_hidden_is_chosen_by_several_seeds_and_where_accuracy_is_luck_by_the_robust_value():
    images, table = (study("hidden", name, "small") for name in ("cifar100-hidden", "adult"))
    assert (images.choose_by, table.choose_by) == ("accuracy", "robust_value")
    for own in (images, table):
        seeds = {run.seed for arm in own.arms() for run in own.search(arm)}
        assert len(seeds) == 3
        assert seeds.isdisjoint(run.seed for run in own.finals(own.arms()[0], {"lr": 0.1}))
