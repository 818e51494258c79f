"""Sweeps: the best on validation data gets the seeds, what was killed goes on, what failed is told."""

import dataclasses
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from reproduction.__main__ import main
from reproduction.baselines import REGISTRY
from reproduction.engine.outcomes import read_outcomes
from reproduction.engine.storage import read_json, read_lines
from reproduction.engine.training import train
from reproduction.figures import draw
from reproduction.pool import Means
from reproduction.presets import study
from reproduction.results import cell, markdown
from reproduction.sweep import sweep
from reproduction.tasks import Sources, open_task
from scdro.errors import CheckpointError, MissingDataError


class Stop(Exception):
    pass


def tiny(tmp_path, **own):
    whole = study("figure1", "digits-st", "smoke")
    return dataclasses.replace(
        whole, **{"methods": ("RSCDRO", "ERM"), "epochs": 1, "decay_epoch": 1, **own}
    )


def test_the_best_on_validation_is_what_gets_seeds(tmp_path):
    found = sweep(tiny(tmp_path, trials=3), tmp_path, Means(Sources())).outcomes
    for outcome in found:
        best = max(outcome.trials, key=lambda t: t["validation"]["balanced"])
        assert outcome.settings == best["settings"]
        assert len(outcome.trials) == 3
        assert [r["seed"] for r in outcome.results] == [1, 2]
        assert all(r["settings"] == best["settings"] for r in outcome.results)
    assert read_outcomes(tiny(tmp_path, trials=3), tmp_path) == found


def test_one_setting_needs_no_search(tmp_path):
    own = tiny(tmp_path, trials=1)
    found = sweep(own, tmp_path, Means(Sources())).outcomes
    assert [outcome.trials for outcome in found] == [[], []]
    assert not list(tmp_path.rglob("seed-0"))
    assert all(r["status"] == "done" for outcome in found for r in outcome.results)
    assert markdown([(own, found)]).count("one setting, no search") == 2


def test_a_sweep_can_be_extended_but_not_changed(tmp_path):
    first = sweep(tiny(tmp_path, trials=1), tmp_path, Means(Sources())).outcomes
    more = sweep(tiny(tmp_path, trials=1, seeds=3), tmp_path, Means(Sources())).outcomes
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
    ours, other = sweep(
        tiny(tmp_path, trials=1), tmp_path, Means(Sources()), say=said.append
    ).outcomes
    told = [text for text in said if "failed" in text]
    assert told == [
        f"ERM lr {other.settings['lr']:g} seed {n} failed: ZeroDivisionError: made to fail"
        for n in (1, 2)
    ]
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
        train(
            run,
            open_task("features", "digits-st", 1, Sources()),
            folder,
            checkpoint_seconds=0,
            progress=stop,
        )
    kept = (folder / "checkpoint.previous.pt").read_bytes()
    (folder / "checkpoint.pt").write_bytes(b"damaged")
    (folder / "checkpoint.previous.pt").write_bytes(b"too")
    said = []
    sweep(own, tmp_path, Means(Sources()), say=said.append)
    (told,) = [text for text in said if "failed" in text]
    assert "remove them to start again" in told
    (folder / "checkpoint.previous.pt").write_bytes(kept)
    (outcome,) = sweep(own, tmp_path, Means(Sources()), say=said.append).outcomes
    assert f"{folder / 'checkpoint.pt'} is damaged: the one before it is used" in said
    assert outcome.results[0]["status"] == "done"


def test_figures_of_a_sweep_in_which_all_failed(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(REGISTRY["ERM"].make, "step", lambda *args: 1 / 0)
    study = tiny(tmp_path, methods=("ERM",), trials=2)
    found = sweep(study, tmp_path, Means(Sources())).outcomes
    assert [trial["status"] for trial in found[0].trials] == ["failed", "failed"]
    assert all(path.stat().st_size > 0 for path in draw([(study, found)], tmp_path))


def test_a_method_that_needs_groups_is_refused_without_them(tmp_path, capsys):
    argv = [
        "figure1",
        "--scale",
        "smoke",
        "--dataset",
        "digits-st",
        "--out",
        str(tmp_path / "runs"),
    ]
    assert main([*argv, "--methods", "ERM", "GroupDRO"]) == 1
    assert "groups for GroupDRO, got digits-st" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "name", ["study.json", "ERM/lr-0.1/seed-0/result.json", "ERM/lr-0.1/seed-0/metrics.jsonl"]
)
def test_a_damaged_file_is_named(name, tmp_path):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"status": "do\n\n')
    study = tiny(tmp_path, methods=("ERM",), grid=(("lr", (0.1, 0.5)),), trials=0)
    reading = (
        partial(read_lines, file)
        if name.endswith("jsonl")
        else partial(sweep, study, tmp_path, Means(Sources()))
    )
    with pytest.raises(CheckpointError, match=f"{re.escape(str(file))}.*remove"):
        reading()
    file.write_text("[]")
    with pytest.raises(CheckpointError, match="JSON"):
        read_json(file)


# -- the kill test
# ----------------------------------------------------------------------------------------------------

FILES = ("table.md", "trials.csv")


def _command(out, *more):
    own = [
        "--methods",
        "RSCDRO",
        "SPD",
        "--seeds",
        "2",
        "--checkpoint-seconds",
        "0",
        "--points",
        "4",
    ]
    return ["figure1", "--scale", "smoke", "--dataset", "digits-st", "--out", str(out), *own, *more]


def _tables(out):
    folder = out / "figure1-smoke"
    seeds = [
        line.rsplit(",", 1)[0] for line in (folder / "seeds.csv").read_text().splitlines()
    ]  # without seconds
    return {name: (folder / name).read_text() for name in FILES} | {"seeds": seeds}


@pytest.mark.slow
def test_a_sweep_killed_at_random_moments_gives_the_same_tables(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["reproduction.engine.training", "reproduction.sweep", "matplotlib.pyplot"]
    )

    def start(out):
        process = context.Process(target=main, args=(_command(out),))
        process.start()
        return process

    undisturbed = start(tmp_path / "whole")
    undisturbed.join()
    rng = random.Random(0)
    for done in (0, 2, 5):  # of eight runs in all
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
    whole = subprocess.run(
        [sys.executable, "-m", "reproduction", *_command(tmp_path / "whole")], check=False
    )
    assert whole.returncode == 0
    command = [
        sys.executable,
        "-m",
        "reproduction",
        *_command(tmp_path / "killed", "--workers", "2"),
    ]
    for delay in (8, 12):
        parent = subprocess.Popen(command)
        time.sleep(delay)
        children = _children(parent.pid)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        end = time.monotonic() + 20
        while (
            any(os.path.exists(f"/proc/{child}") for child in children) and time.monotonic() < end
        ):
            time.sleep(0.2)
        assert not any(os.path.exists(f"/proc/{child}") for child in children)
    assert subprocess.run(command, check=False).returncode == 0
    assert _tables(tmp_path / "killed") == _tables(tmp_path / "whole")


@pytest.mark.slow
def test_what_is_wrong_for_all_runs_stops_a_sweep_of_several_processes(tmp_path):
    with pytest.raises(MissingDataError, match="expected features in"):
        sweep(
            study("figure1", "cifar10-st", "smoke"),
            tmp_path / "out",
            Means(Sources(tmp_path), workers=2),
        )


def _children(pid):
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    return found.stdout.split()
