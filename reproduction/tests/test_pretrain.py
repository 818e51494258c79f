"""Pretraining: it learns, and after `kill -9` at any moment it ends as if nothing had been."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from killing import kill_after_a_checkpoint
from reproduction.__main__ import main
from reproduction.data.images import ImageData
from reproduction.engine.networks import CifarResNet
from reproduction.engine.storage import JsonLines, write
from reproduction.pretrain import Pretraining, load_pretrained, one_cycle, pretrain, step_decay
from scdro.errors import CheckpointError, HyperparameterError, NonFiniteLossError

SMALL = Pretraining(
    "toy", model="resnet8", epochs=2, schedule="one-cycle", batch_size=16, evaluate_every=1
)


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
    return (
        lines,
        {k: v.tolist() for k, v in weights.items()},
        json.loads((folder / "scores.json").read_text()),
    )


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
            pretrain(
                SMALL, toy(), toy(seed=1), broken, checkpoint_every=2, progress=stopping_at(stop)
            )
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
    with pytest.raises(CheckpointError, match=r"epochs \d+ is not 90"):
        pretrain(Pretraining("toy", model="resnet8"), toy(), toy(), tmp_path)
    with pytest.raises(CheckpointError, match=r"data \w+ is not"):
        pretrain(SMALL, toy(seed=5), toy(), tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.pt"):
        load_pretrained(tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_other_test_data_do_not_resume(tmp_path):
    scores = pretrain(SMALL, toy(), toy(seed=1), tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = [tmp_path / name for name in ("config.json", "checkpoint.pt", "model.pt", "scores.json")]
    stamps = [path.stat().st_mtime_ns for path in kept]
    with pytest.raises(CheckpointError, match=r"test \w+ is not"):
        pretrain(SMALL, toy(), toy(seed=2), tmp_path)
    assert (
        pretrain(SMALL, toy(), toy(seed=1), tmp_path).as_dict() == scores.as_dict()
    )  # complete: nothing is written
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    assert [path.stat().st_mtime_ns for path in kept] == stamps
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(CheckpointError, match=r"results.*name another folder"):
        pretrain(SMALL, toy(), toy(seed=1), tmp_path)


def test_another_torch_or_number_of_threads_is_told(tmp_path):
    with pytest.raises(Stop):
        pretrain(SMALL, toy(), toy(), tmp_path, checkpoint_every=1, progress=stopping_at(2))
    told = []
    with pytest.raises(Stop):
        pretrain(
            SMALL,
            toy(),
            toy(),
            tmp_path,
            checkpoint_every=1,
            progress=stopping_at(3),
            notice=told.append,
        )
    assert told == []
    config = json.loads((tmp_path / "config.json").read_text())
    config["environment"] |= {"threads": 77, "torch": "1.0"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    pretrain(SMALL, toy(), toy(), tmp_path, notice=told.append)
    assert len(told) == 2
    assert "torch 1.0" in told[0]
    assert "threads 77" in told[1]


@pytest.mark.parametrize("checkpoint_every", [1, 100])
def test_a_run_that_diverges_leaves_no_checkpoint_of_it(tmp_path, checkpoint_every):
    wild = dataclasses.replace(SMALL, lr=1e30, schedule="step")
    with pytest.raises(NonFiniteLossError, match="lower lr"):
        pretrain(wild, toy(), toy(), tmp_path, checkpoint_every=checkpoint_every)
    assert not (tmp_path / "model.pt").exists()
    if (tmp_path / "checkpoint.pt").exists():
        assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["totals"].isfinite().all()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def damaged_files(tmp_path):
    whole = tmp_path / "whole.pt"
    torch.save({"classes": 2, "x": torch.zeros(1000)}, whole)
    return {
        "junk": b"no file of torch",
        "empty": b"",
        "cut": whole.read_bytes()[:900],
        "foreign": whole.read_bytes(),
    }


@pytest.mark.parametrize("kind", ["junk", "empty", "cut", "foreign"])
def test_damaged_or_foreign_files(tmp_path, kind):
    content, run = damaged_files(tmp_path)[kind], tmp_path / "run"
    with pytest.raises(Stop):
        pretrain(SMALL, toy(), toy(), run, checkpoint_every=1, progress=stopping_at(6))
    (run / "checkpoint.pt").write_bytes(content)
    (run / "model.pt").write_bytes(content)
    (run / "checkpoint.previous.pt").unlink()
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(CheckpointError, match="damaged"):
        pretrain(SMALL, toy(), toy(), run)
    with pytest.raises(CheckpointError, match=r"damaged|cut off"):
        load_pretrained(run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert (run / "metrics.jsonl").stat().st_size > 0


class Plain:
    """SGD with momentum and weight decay, as its textbook has it, on images cropped and flipped by a loop."""

    def __init__(self, config, data):
        torch.manual_seed(config.seed)
        self.config, self.data, self.model = config, data, CifarResNet(8, 2)
        self.velocity = [torch.zeros_like(p) for p in self.model.parameters()]

    def run(self):
        steps = -(-len(self.data) // self.config.batch_size)
        schedule = self.config.schedule_of(steps * self.config.epochs)
        for epoch in range(self.config.epochs):
            order = np.random.default_rng((self.config.seed, 0, epoch)).permutation(len(self.data))
            for k, index in enumerate(np.array_split(order, range(16, len(order), 16))):
                rng = np.random.default_rng((self.config.seed, 1, epoch, k))
                places, flips = rng.integers(9, size=(2, len(index))), rng.random(len(index)) < 0.5
                parts = [self.cropped(i, *places[:, j], flips[j]) for j, i in enumerate(index)]
                self.step(torch.stack(parts), self.data.labels[index], schedule(epoch * steps + k))
        return self.model

    def cropped(self, i, top, left, flip):
        padded = torch.zeros(3, 16, 16, dtype=torch.uint8)
        padded[:, 4:12, 4:12] = self.data.images[i]
        part = padded[:, top : top + 8, left : left + 8]
        return ((part.flip(2) if flip else part) / 255 - 0.5) / 0.25

    def step(self, x, y, lr):
        gradients = torch.autograd.grad(
            torch.nn.functional.cross_entropy(self.model(x), y), self.model.parameters()
        )
        with torch.no_grad():
            for p, g, v in zip(self.model.parameters(), gradients, self.velocity, strict=True):
                v.mul_(self.config.momentum).add_(g + self.config.weight_decay * p)
                p.sub_(lr * v)


def test_weights_by_a_plain_loop(tmp_path):
    config = dataclasses.replace(SMALL, weight_decay=0.05, lr=0.02)
    pretrain(config, toy(), toy(), tmp_path)
    expected = Plain(config, toy()).run().state_dict()
    found = load_pretrained(tmp_path)[0].state_dict()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-3, atol=1e-4)


def test_groups_are_reported(tmp_path):
    def grouped(seed, groups):
        data = toy(seed=seed)
        return ImageData(
            data.images,
            data.labels,
            mean=data.mean,
            std=data.std,
            names=data.names,
            groups=groups,
            group_names="abcd",
        )

    rare = torch.where(torch.arange(72) < 66, torch.arange(72) % 3, 3)
    test = grouped(1, torch.arange(72) % 4)
    scores = pretrain(SMALL, grouped(0, rare), test, tmp_path)
    model, _ = load_pretrained(tmp_path)
    right = model(torch.stack([test[i][0] for i in range(72)])).argmax(1) == test.labels
    by_group = [right[test.groups == g].double().mean().item() for g in range(4)]
    assert list(scores.per_group) == pytest.approx(by_group)
    assert scores.worst_group == pytest.approx(min(by_group))
    assert scores.rare_groups == pytest.approx(by_group[3])
    lines, _, saved = outcome(tmp_path)
    assert lines[-1]["test_rare_groups"] == saved["rare_groups"] == scores.rare_groups
    assert "test_minority" not in lines[-1]  # as many of either class


KILLED = dataclasses.replace(SMALL, epochs=10, batch_size=4)


def killed_run(folder):
    """What a process does until it is killed."""
    pretrain(KILLED, toy(), toy(seed=1), Path(folder), checkpoint_every=3)


@pytest.mark.slow
def test_kill_9_at_a_random_moment(tmp_path):
    """Each run in a process of its own: sums depend on the number of threads, which other tests change in this one."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    rng = random.Random(0)
    code = "from reproduction.tests.test_pretrain import killed_run as run, sys; run(sys.argv[1])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(whole)], env=env, check=True)
    command = [sys.executable, "-c", code, str(broken)]
    kill_after_a_checkpoint(command, broken, rng.uniform(0, 0.2), env=env)
    assert not (broken / "model.pt").exists()
    subprocess.run(command, env=env, check=True)
    assert outcome(broken) == outcome(whole)


def test_command_line_errors(tmp_path, capsys):
    assert (
        main(["pretrain", "cifar10-st", "--data", str(tmp_path), "--out", str(tmp_path / "run")])
        == 1
    )
    assert "data_batch_1" in capsys.readouterr().err
    assert main(["pretrain", "mnist", "--out", str(tmp_path / "run")]) == 1
    assert "cifar10-st, cifar100-st, cifar100-hidden" in capsys.readouterr().err
    assert main(["pretrain", "cifar10-st", "--epochs", "0", "--out", str(tmp_path / "run")]) == 1
    assert "epochs > 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["pretrain"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--checkpoint-every", "0"], "checkpoint_every >= 1"),
        (["--device", "foo"], "a device that torch can use"),
        (["--momentum", "-1"], "momentum in [0, 1)"),
        (["--weight-decay", "-1"], "weight_decay >= 0"),
        (["--seed", "1" + 23 * "0"], "seed in [0, 2^63)"),
        (["--lr", "inf"], "lr > 0 and finite"),
        (["--lr", "1e30", "--epochs", "1", "--model", "resnet8"], "finite losses"),
        (["--out", "FILE"], "got the file"),
        (["--out", "FILE/under"], "got the file"),
    ],
)
def test_wrong_input_is_told_in_a_line(tmp_path, capsys, flags, said):
    (tmp_path / "file").write_text("")
    flags = [flag.replace("FILE", str(tmp_path / "file")) for flag in flags]
    assert main(["pretrain", "digits-st", "--out", str(tmp_path / "run"), *flags]) == 1
    error = capsys.readouterr().err
    assert said in error.splitlines()[-1]
    assert "Traceback" not in error


def test_what_the_system_refuses_is_told_in_a_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    assert main(["pretrain", "digits-st", "--out", str(tmp_path / "run")]) == 1
    assert (
        "python -m reproduction pretrain: [Errno 28] No space left on device"
        in capsys.readouterr().err
    )


def test_the_loss_is_read_only_when_it_is_shown(tmp_path):
    said = []
    pretrain(SMALL, toy(), toy(), tmp_path, progress=lambda done, total, text: said.append(text))
    assert all(callable(text) for text in said[:5])
    assert said[0]().startswith("epoch 1/2  loss 0.")


@pytest.mark.parametrize(
    "bad", [{"model": "vgg"}, {"schedule": "cosine"}, {"lr": 0.0}, {"batch_size": -1}]
)
def test_bad_settings(bad):
    with pytest.raises(HyperparameterError):
        Pretraining("toy", **bad)


@pytest.mark.parametrize("steps", [10, 57, 400])
def test_one_cycle_is_torchs(steps):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.3, total_steps=steps, cycle_momentum=False
    )
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


@pytest.mark.parametrize("how", ["flipped", 0.5])
def test_a_run_with_a_damaged_checkpoint_ends_the_same(tmp_path, how):
    config = dataclasses.replace(SMALL, epochs=1)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    pretrain(config, toy(), toy(seed=1), whole)
    with pytest.raises(Stop):
        pretrain(config, toy(), toy(seed=1), broken, checkpoint_every=1, progress=stopping_at(4))
    path = broken / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content if how == "flipped" else content[: len(content) // 2])
    pretrain(config, toy(), toy(seed=1), broken, checkpoint_every=1)
    assert outcome(broken) == outcome(whole)
