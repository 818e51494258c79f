"""Pretraining: it learns, and after `kill -9` at any moment it ends as if nothing had been."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from scdro import CheckpointError, HyperparameterError
from scdro.cli import main
from scdro.data import ImageData
from scdro.experiments.pretrain import Pretraining, load_pretrained, pretrain
from scdro.experiments.schedules import one_cycle, step_decay
from scdro.experiments.storage import JsonLines, write

SMALL = Pretraining("toy", model="resnet8", epochs=2, schedule="one-cycle", batch_size=16, evaluate_every=1)


def toy(n=72, seed=0):
    """Two classes of tiny images, dark and bright."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    pixels = rng.integers(0, 128, size=(n, 3, 8, 8)) + 120 * labels[:, None, None, None]
    return ImageData(
        torch.from_numpy(pixels.astype(np.uint8)),
        torch.from_numpy(labels),
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        names=("dark", "bright"),
    )


def outcome(folder):
    """Everything a run leaves but times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
    weights = torch.load(folder / "model.pt", weights_only=True)["state_dict"]
    return lines, {k: v.tolist() for k, v in weights.items()}, json.loads((folder / "scores.json").read_text())


class Stop(Exception):
    pass


def stopping_at(step):
    def progress(done, total, text):
        if done == step:
            raise Stop

    return progress


def test_it_learns_and_its_weights_load(tmp_path):
    longer = dataclasses.replace(SMALL, epochs=8)
    scores = pretrain(longer, toy(), toy(seed=1), tmp_path)
    lines, _, saved = outcome(tmp_path)
    assert scores.top1 > 0.9
    assert saved["top1"] == scores.top1 == lines[-1]["test_accuracy"]
    assert [line["epoch"] for line in lines] == list(range(1, 9))
    assert [line["samples"] for line in lines] == list(range(72, 577, 72))
    assert [line["lr"] for line in lines] == [longer.schedule_of(40)(t) for t in range(4, 40, 5)]
    model, about = load_pretrained(tmp_path)
    x = torch.stack([toy(seed=1)[i][0] for i in range(72)])
    assert (model(x).argmax(1) == toy().labels).double().mean().item() == pytest.approx(scores.top1)
    assert (about["dataset"], about["classes"]) == ("toy", 2)


@pytest.mark.parametrize("stops", [(1, 4), (3, 3, 5, 9), (10,)])
def test_stopped_anywhere_it_ends_the_same(tmp_path, stops):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    pretrain(SMALL, toy(), toy(seed=1), whole)
    for stop in stops:
        torch.manual_seed(stop)  # whatever the process has done before
        with pytest.raises(Stop):
            pretrain(SMALL, toy(), toy(seed=1), broken, checkpoint_every=2, progress=stopping_at(stop))
    pretrain(SMALL, toy(), toy(seed=1), broken, checkpoint_every=2)
    assert outcome(broken) == outcome(whole)
    pretrain(SMALL, toy(), toy(seed=1), broken)  # complete: nothing to do
    assert outcome(broken) == outcome(whole)


def test_the_seed_decides(tmp_path):
    config = Pretraining("toy", model="resnet8", epochs=1, batch_size=16)
    other = Pretraining("toy", model="resnet8", epochs=1, batch_size=16, seed=1)
    for name, settings in (("a", config), ("b", config), ("c", other)):
        torch.manual_seed(len(name) + ord(name))
        pretrain(settings, toy(), toy(), tmp_path / name)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    assert outcome(tmp_path / "a")[1] != outcome(tmp_path / "c")[1]


def test_other_settings_or_data_do_not_resume(tmp_path):
    with pytest.raises(Stop):
        pretrain(SMALL, toy(), toy(), tmp_path, checkpoint_every=1, progress=stopping_at(3))
    before = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(CheckpointError, match="config"):
        pretrain(Pretraining("toy", model="resnet8"), toy(), toy(), tmp_path)
    with pytest.raises(CheckpointError, match="data"):
        pretrain(SMALL, toy(seed=5), toy(), tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.pt"):
        load_pretrained(tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


KILLED = dataclasses.replace(SMALL, epochs=3, batch_size=4)


def killed_run(folder):
    """What a process does until it is killed."""
    pretrain(KILLED, toy(), toy(seed=1), folder, checkpoint_every=3)


def test_kill_9_at_random_moments(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    killed_run(whole)
    rng, checkpoint = random.Random(0), broken / "checkpoint.pt"
    code = "import sys; from pathlib import Path; from test_pretrain import killed_run; killed_run(Path(sys.argv[1]))"
    for _ in range(2):
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", code, str(broken)], cwd=Path(__file__).parent)
        while not (checkpoint.exists() and checkpoint.stat().st_mtime_ns > before):
            assert process.poll() is None
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.2))
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not (broken / "model.pt").exists()
    killed_run(broken)
    assert outcome(broken) == outcome(whole)


def test_command_line_errors(tmp_path, capsys):
    assert main(["pretrain", "cifar10-st", "--data", str(tmp_path), "--out", str(tmp_path / "run")]) == 1
    assert "data_batch_1" in capsys.readouterr().err
    assert main(["pretrain", "mnist", "--out", str(tmp_path / "run")]) == 1
    assert "cifar10-st, cifar100-st, cifar100-hidden" in capsys.readouterr().err
    assert main(["pretrain", "cifar10-st", "--epochs", "0", "--out", str(tmp_path / "run")]) == 1
    assert "epochs > 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["pretrain"])


@pytest.mark.parametrize("bad", [{"model": "vgg"}, {"schedule": "cosine"}, {"lr": 0.0}, {"batch_size": -1}])
def test_bad_settings(bad):
    with pytest.raises(HyperparameterError):
        Pretraining("toy", **bad)


@pytest.mark.parametrize("steps", [10, 57, 400])
def test_one_cycle_is_torchs(steps):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=steps, cycle_momentum=False)
    at = one_cycle(0.3, steps)
    for t in range(steps):
        assert at(t) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        if t < steps - 1:
            scheduler.step()


def test_step_decay():
    assert Pretraining("toy", lr=0.2).schedule_of(90)(59) == 0.2
    assert Pretraining("toy", lr=0.2).schedule_of(90)(60) == pytest.approx(0.02)
    assert step_decay(1.0, 3, 0.5)(7) == 0.5


def test_files_are_whole_or_as_before(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write(path, b"old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(Stop))
    with pytest.raises(Stop):
        write(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_log_forgets_what_came_after_the_checkpoint(tmp_path):
    log = JsonLines(tmp_path / "log")
    log.append({"a": 1})
    size = log.size
    log.append({"a": 2})
    again = JsonLines(tmp_path / "log", size)
    again.append({"a": 3})
    assert (tmp_path / "log").read_text() == '{"a": 1}\n{"a": 3}\n'
    with pytest.raises(CheckpointError, match="bytes"):
        JsonLines(tmp_path / "log", 10_000)
