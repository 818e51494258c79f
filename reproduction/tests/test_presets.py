"""The experiments are the paper's."""

import pytest

from reproduction.engine.study import Arm
from reproduction.presets import EXPERIMENTS, SCALES, datasets, study


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
