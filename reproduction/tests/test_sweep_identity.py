"""A folder holds one study: other data are refused, robust objectives are of one radius, what failed is tried again."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from reproduction.__main__ import main
from reproduction.baselines import REGISTRY
from reproduction.engine.study import Study, StudyRun
from reproduction.grids import GRIDS, trials
from reproduction.presets import study

QUICK = [
    "--scale",
    "smoke",
    "--dataset",
    "digits-st",
    "--epochs",
    "1",
    "--decay-epoch",
    "1",
    "--points",
    "1",
]


def reproduce(out, *more):
    return main(["figure1", *QUICK, "--trials", "1", "--seeds", "1", "--out", str(out), *more])


@pytest.fixture(scope="module")
def erm(tmp_path_factory):
    out = tmp_path_factory.mktemp("erm")
    assert reproduce(out, "--methods", "ERM") == 0
    return out


@pytest.fixture
def folder(erm, tmp_path):
    shutil.copytree(erm, tmp_path / "out")
    return tmp_path / "out"


def test_other_data_are_refused(folder, capsys):
    path = folder / "figure1-smoke/digits-st/study.json"
    there = json.loads(path.read_text())
    path.write_text(json.dumps({**there, "data": "other"}))
    assert reproduce(folder, "--methods", "ERM", "--seeds", "2") == 1
    assert "data other is not" in capsys.readouterr().err


def test_another_bound_on_gradients_is_refused(folder, capsys):
    assert reproduce(folder, "--methods", "ERM", "--max-grad-norm", "1") == 1
    assert "max_grad_norm 0.0 is not 1.0" in capsys.readouterr().err


def test_objectives_of_two_radii_do_not_stand_in_one_table(folder, capsys):
    assert reproduce(folder, "--methods", "ERM", "--rho", "2") == 1
    assert "score_rho 0.5 is not 2.0" in capsys.readouterr().err


@pytest.mark.parametrize("kept", ["study.json", "none"])
def test_results_of_other_settings_are_refused_whatever_else_is_there(kept, folder, capsys):
    """And nothing is written: the sweep that made them is as it was."""
    path = folder / "figure1-smoke/digits-st/study.json"
    if kept != "study.json":
        path.unlink()
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert reproduce(folder, "--methods", "ERM", "--epochs", "2") == 1
    said = capsys.readouterr().err
    assert "epochs 1 is not 2" in said
    assert "--out" in said
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert reproduce(folder, "--methods", "ERM") == 0


def test_a_result_of_other_data_is_refused(folder, capsys):
    (folder / "figure1-smoke/digits-st/study.json").unlink()
    path = next(folder.rglob("seed-1/result.json"))
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "data": "other"}))
    assert reproduce(folder, "--methods", "ERM") == 1
    assert f"data other is not {whole['data']}" in capsys.readouterr().err


def test_runs_of_another_experiment_may_be_taken_over(folder):
    """Where all else is the same: table 4's runs at one radius are those of figure 2."""
    path = next(folder.rglob("seed-1/result.json"))
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "study": {**whole["study"], "experiment": "table2"}}))
    assert reproduce(folder, "--methods", "ERM") == 0


def test_a_checkpoint_of_other_settings_ends_the_sweep(folder, capsys):
    """A run that was stopped, in a folder whose study.json is gone."""
    from reproduction.engine.checkpoints import save

    (folder / "figure1-smoke/digits-st/study.json").unlink()
    path = next(folder.rglob("seed-1/result.json"))
    whole = json.loads(path.read_text())
    path.unlink()
    save(
        path.parent / "checkpoint.pt",
        {key: whole[key] for key in ("study", "method", "settings", "seed", "data")},
    )
    assert reproduce(folder, "--methods", "ERM", "--epochs", "2") == 1
    said = capsys.readouterr().err
    assert "epochs 1 is not 2" in said
    assert f"remove {path.parent}" in said
    assert not path.exists()


def test_what_failed_is_tried_again(folder):
    path = next(folder.rglob("seed-1/result.json"))
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "status": "failed", "error": "disk full"}))
    assert reproduce(folder, "--methods", "ERM") == 0
    again = json.loads(path.read_text())
    assert again["status"] == "done"
    assert again["test"] == whole["test"]


def test_a_lost_curve_is_told(folder, capsys):
    path = next(folder.rglob("seed-1/metrics.jsonl"))
    assert reproduce(folder, "--methods", "ERM") == 0
    assert "missing from the curves" not in capsys.readouterr().err
    path.unlink()
    assert reproduce(folder, "--methods", "ERM") == 0
    said = capsys.readouterr().err
    assert (
        f"seed 1 is missing from the curves: expected its evaluations in {path}, got none" in said
    )


def test_other_settings_have_other_folders():
    own = Study("made", "digits-st", "smoke", ("SCDRO",), rho=(0.1, 0.5))
    values = (0.1, 0.1000001, 0.1 + 2**-50, 1e-5, 100000.0, 1000000.0, 1000001.0, 5)
    assert len({StudyRun(own, "SCDRO", {"lr": value}, 1).path for value in values}) == len(values)


def test_folders_that_are_there_keep_their_names():
    """Six digits of each setting, for all values of every grid, and for a radius that stands for a share."""
    for name, method in REGISTRY.items():
        own = Study("made", "digits-st", "smoke", (name,), rho=(0.5,))
        for settings in trials(name, values={"rho": (0.01, 0.5)} if "rho" in method.needs else {}):
            short = "_".join(f"{key}-{value:g}" for key, value in sorted(settings.items()))
            assert str(StudyRun(own, name, settings, 1).path) == f"{name}/{short}/seed-1"
    rho = -math.log(0.61)
    share = Study("own", "rows.csv", "own", ("SCDRO",), rho=(rho,))
    assert (
        str(StudyRun(share, "SCDRO", {"lr": 0.5, "rho": rho}, 0).path)
        == "SCDRO/lr-0.5_rho-0.494296/seed-0"
    )


def test_the_radius_of_the_robust_objective():
    """An arm's own where each radius has a result; one for all where radii are chosen, whatever a method calls rho."""
    settings = {"lr": 0.1, "rho": 1.0}
    every = study("table2", "cifar10-st", "paper")
    assert {StudyRun(every, method, settings, 1).scored_at for method in every.methods} == {0.5}
    each = study("table4", "cifar10-st", "paper")
    assert {StudyRun(each, method, settings, 1).scored_at for method in each.methods} == {1.0}
    assert StudyRun(each, "ERM", {"lr": 0.1}, 1).scored_at == each.score_rho


def test_the_bound_on_gradients_binds(tmp_path):
    """With a tiny one the weights hardly move, whether it is the study's or searched."""
    import torch

    from reproduction.engine.task import make_model
    from reproduction.engine.training import train
    from reproduction.tasks import Sources, open_task

    task = open_task("features", "digits-st", 1, Sources(None, None))
    moved = {}
    for bound, searched in ((0.0, {}), (1e-6, {}), (0.0, {"max_grad_norm": 1e-6})):
        own = Study(
            "made",
            "digits-st",
            "smoke",
            ("ERM",),
            epochs=1,
            decay_epoch=1,
            points=1,
            max_grad_norm=bound,
        )
        settings = {key: values[0] for key, values in GRIDS["ERM"].items()} | searched
        run = StudyRun(own, "ERM", settings, 1)
        folder = tmp_path / f"{bound}-{len(searched)}"
        assert train(run, task, folder, keep_model=True).result["status"] == "done"
        weights = torch.load(folder / "model.pt", weights_only=True)["state_dict"]
        start = make_model(own, task, 1).state_dict()
        moved[bound, len(searched)] = max(
            float((weights[name] - start[name]).abs().max()) for name in start
        )
    assert moved[1e-6, 0] < 1e-3 * moved[0.0, 0]
    assert moved[0.0, 1] == moved[1e-6, 0]  # searched, or the study's: the same
