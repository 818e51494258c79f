"""Runs that are not at their end are told as such: how many epochs, what they are worth, beside the paper's."""

import csv
import dataclasses
import json

import pytest

from reproduction.__main__ import main
from reproduction.engine.outcomes import read_outcomes
from reproduction.engine.training import train
from reproduction.presets import study
from reproduction.so_far import reached
from reproduction.sweep import _begin
from reproduction.tasks import Sources, open_task


class Stop(Exception):
    pass


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory):
    """Of three methods one is done, one was stopped three quarters through, one has not begun."""
    folder = tmp_path_factory.mktemp("runs") / "digits-st"
    plain = study("table4", "digits-st", "smoke", ("SCDRO", "ERM", "FastDRO"))
    length = {"inputs": "features", "model": "linear", "epochs": 8, "decay_epoch": 6, "points": 8}
    own = dataclasses.replace(plain, **length, rho=(0.5,), tune_rho=0.0, trials=1, seeds=1)
    task = open_task(own.inputs, own.dataset, own.pool, Sources())
    _begin(own, task.fingerprint(), folder)
    scdro, erm, _ = own.arms()

    def run(arm, stop_at=2.0):
        def progress(done, total, text):
            if done / total > stop_at:
                raise Stop

        [one] = own.finals(arm, own.search(arm)[0].settings)
        return train(one, task, folder / one.path, checkpoint_seconds=0.0, progress=progress)

    done = run(erm)
    with pytest.raises(Stop):
        run(scdro, stop_at=0.8)
    return own, folder, done


def test_how_far_each_run_is(unfinished):
    own, folder, _ = unfinished
    scdro, erm, fastdro = reached(own, read_outcomes(own, folder), folder)
    assert (erm.status, erm.epochs) == ("done", 8.0)
    assert (fastdro.status, fastdro.epochs, fastdro.curve) == ("not begun", 0.0, [])
    assert scdro.status == "not finished"
    # Evaluated after each epoch, stopped within the seventh: the checkpoint knows more than the
    # last evaluation.
    assert scdro.curve[-1]["epoch"] == pytest.approx(6.0, abs=0.1)
    assert 6.2 < scdro.epochs < 6.5


def test_the_tables_are_of_the_last_evaluations(unfinished, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    own, folder, done = unfinished
    assert main(["so-far", str(folder), "--results", str(tmp_path)]) == 0
    text = (tmp_path / "table.md").read_text()
    assert capsys.readouterr().out == text
    rows = {
        cells[1]: cells
        for line in text.splitlines()
        if len(cells := [c.strip() for c in line.split("|")]) > 8
    }
    scdro = read_outcomes(own, folder)[0].curves[0][-1]["test"]["top1"]
    assert rows["ERM"][2:6] == ["8.0", "done", "8", f"{100 * done.result['test']['top1']:.2f}"]
    assert rows["SCDRO, rho 0.5"][3:6:2] == ["not finished", f"{100 * scdro:.2f}"]
    assert rows["FastDRO, rho 0.5"][2:6] == ["0.0", "not begun", "", "none"]
    assert "The paper's numbers are of 8 epochs" in text
    by_method = {row["method"]: row for row in csv.DictReader((tmp_path / "curves.csv").open())}
    assert float(by_method["ERM"]["epoch"]) == 8.0
    assert (
        json.loads((tmp_path / "studies.json").read_text())["digits-st"]["study"] == own.as_dict()
    )
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_the_papers_numbers_stand_beside(unfinished, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(
        "reproduction.so_far.numbers_for", lambda *of: {"digits-st": 67.57} if of[2].rho else {}
    )
    assert main(["so-far", str(unfinished[1]), "--results", str(tmp_path)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "67.57" in line]
    assert [line.split("|")[1].strip() for line in lines] == ["SCDRO, rho 0.5", "FastDRO, rho 0.5"]


def test_a_folder_without_a_study_is_refused(tmp_path, capsys):
    assert main(["so-far", str(tmp_path)]) == 1
    assert "expected the study.json of a sweep" in capsys.readouterr().err
