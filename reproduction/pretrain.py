"""Pretraining with cross-entropy, for the features of the convex setting."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reproduction.catalog import MODELS
from reproduction.data.augment import CropFlip
from reproduction.data.images import ImageData
from reproduction.data.loading import MemoryBatches
from reproduction.engine.checkpoints import load, save, usable
from reproduction.engine.devices import as_device
from reproduction.engine.folder import Notice, RunFolder, Stopwatch, locked
from reproduction.engine.networks import Network
from reproduction.engine.storage import read_json, write_json
from reproduction.engine.study import chosen
from reproduction.engine.task import in_order
from reproduction.engine.tensorboard import Events
from reproduction.scores import Scores, score
from scdro.errors import CheckpointError, HyperparameterError, NonFiniteLossError

__all__ = ["Pretraining", "load_pretrained", "predict", "pretrain"]

Text = str | Callable[[], str]  # text, or a function that is called only when the text is shown
Schedule = Callable[
    [int], float
]  # depends only on the step, so a resumed run needs no scheduler state
Progress = Callable[[int, int, Text], None]  # steps done, total steps, and the text
SCHEDULES = ("step", "one-cycle")


@dataclass(frozen=True)
class Pretraining:
    """The paper's setting: 90 epochs of SGD with momentum .9 and batches of 128.

    The paper does not give the lr decay and the weight decay. Here lr falls by 10 after 2/3 of the
    epochs, and weight decay is as in the authors' code. `schedule` "one-cycle" is for shorter runs.
    """

    dataset: str
    model: str = "resnet20"
    epochs: int = 90
    schedule: str = "step"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 2e-4
    batch_size: int = 128
    seed: int = 0
    evaluate_every: int = 5

    def __post_init__(self) -> None:
        chosen(MODELS, self.model, "a model")
        chosen(dict.fromkeys(SCHEDULES), self.schedule, "a schedule")
        for name in ("epochs", "batch_size", "evaluate_every", "lr"):
            _require(
                name, getattr(self, name), "> 0 and finite", 0 < getattr(self, name) < math.inf
            )
        _require("momentum", self.momentum, "in [0, 1)", 0 <= self.momentum < 1)
        _require(
            "weight_decay", self.weight_decay, ">= 0 and finite", 0 <= self.weight_decay < math.inf
        )
        _require("seed", self.seed, "in [0, 2^63)", 0 <= self.seed < 2**63)

    def schedule_of(self, steps: int) -> Schedule:
        return (
            one_cycle(self.lr, steps)
            if self.schedule == "one-cycle"
            else step_decay(self.lr, steps * 2 // 3)
        )


def pretrain(
    config: Pretraining,
    train: ImageData,
    test: ImageData,
    out: Path,
    *,
    device: torch.device | str = "cpu",
    checkpoint_every: int = 100,
    tensorboard: bool = False,
    progress: Progress = lambda done, total, text: None,
    notice: Notice = warnings.warn,
) -> Scores:
    """Train, or continue an interrupted run in this folder, with the same result bit for bit. A complete run is not
    repeated.

    Writes config.json, metrics.jsonl (one line per epoch), checkpoint.pt (every `checkpoint_every`
    steps; the previous one is kept and used if the newest is damaged), and at the end model.pt and
    scores.json; with `tensorboard` also its files. A non-finite loss stops the run before it is
    written to any file.
    """
    _require("checkpoint_every", checkpoint_every, ">= 1", checkpoint_every >= 1)
    device = as_device(device)
    with locked(out, notice):
        run = _Run(config, train.to(device), test.to(device), out, notice, tensorboard)
        return _pretrain(run, checkpoint_every, progress)


def _pretrain(run: _Run, checkpoint_every: int, progress: Progress) -> Scores:
    config = run.config
    total = config.epochs * len(run.batches)
    schedule = config.schedule_of(total)
    while run.epoch < config.epochs:
        for x, y, _ in run.batches.epoch(run.epoch, run.batch):
            loss = run.step(x, y, schedule(run.steps))
            progress(run.steps, total, partial(_said, run.epoch + 1, config.epochs, loss))
            if run.steps % checkpoint_every == 0:
                run.checkpoint()
        text = run.end_epoch()
        run.checkpoint()
        progress(run.steps, total, text)
    return run.finish()


def _said(epoch: int, epochs: int, loss: Tensor) -> str:
    return f"epoch {epoch}/{epochs}  loss {float(loss):.3f}"


def _require(name: str, value: float, expected: str, holds: bool) -> None:
    if not holds:
        raise HyperparameterError(f"expected {name} {expected}, got {value}")


class _Run:
    """All state of a run; `checkpoint` saves what a new process cannot recompute."""

    def __init__(
        self,
        config: Pretraining,
        train: ImageData,
        test: ImageData,
        out: Path,
        notice: Notice,
        tensorboard: bool,
    ) -> None:
        self.config, self.train, self.test, self.out = config, train, test, out
        if self._complete() and not (out / "checkpoint.pt").exists():
            raise CheckpointError(
                "expected a folder for a new run, or one to continue, got results in"
                f" {out.absolute()} but no checkpoint.pt; name another folder"
            )
        self.batches = MemoryBatches(train, config.batch_size, augment=CropFlip(), seed=config.seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(config.seed)
            self.model = chosen(MODELS, config.model, "a model")(train.classes).to(train.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay
        )
        identity = {
            "config": asdict(config),
            "data": train.fingerprint(),
            "test": test.fingerprint(),
        }
        parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        self.folder = RunFolder(out, identity, parts, train.device, notice=notice)
        at = self.folder.counters
        self.epoch: int = at.get("epoch", 0)
        self.batch: int = at.get("batch", 0)
        self.totals = at.get(
            "totals", torch.zeros(3, dtype=torch.float64, device=train.device)
        )  # loss, right, seen
        self.watch = Stopwatch(at.get("seconds", 0.0))
        self.events = Events(out, self.steps) if tensorboard and not self._complete() else None

    @property
    def steps(self) -> int:
        return self.epoch * len(self.batches) + self.batch

    def step(self, x: Tensor, y: Tensor, lr: float) -> Tensor:
        self.model.train()
        self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.zero_grad()
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.batch += 1
        with torch.no_grad():
            right = (logits.argmax(1) == y).sum()
            self.totals += torch.stack(
                [loss.double() * len(y), right.double(), torch.full_like(right, len(y))]
            )
        return loss.detach()

    def end_epoch(self) -> str:
        """Log the epoch and return a text about it."""
        self._check_loss()
        loss, right, seen = self.totals.tolist()
        record = {"epoch": self.epoch + 1, "lr": self.optimizer.param_groups[0]["lr"]}
        record |= {"train_loss": loss / seen, "train_accuracy": right / seen}
        self.epoch, self.batch = self.epoch + 1, 0
        self.totals.zero_()
        record["samples"] = self.epoch * len(self.train)
        text = (
            f"epoch {self.epoch}/{self.config.epochs}  loss {loss / seen:.3f}  train"
            f" {right / seen:.1%}"
        )
        if self.epoch % self.config.evaluate_every == 0 or self.epoch == self.config.epochs:
            found = self.scores()
            record |= {"test_accuracy": found.top1} | {
                f"test_{name}": v for name, v in _parts(found).items()
            }
            parts = ", ".join(
                f"{name.replace('_', ' ')} {value:.1%}" for name, value in _parts(found).items()
            )
            text += f"  test {found.top1:.1%}" + (f" ({parts})" if parts else "")
        record |= {"seconds": round(self.watch.seconds, 2)}
        self.folder.append(record)
        if self.events is not None:
            self.events.add(record, self.steps)
        return text

    def scores(self) -> Scores:
        groups: dict[str, Any] = {}
        if self.train.groups is not None and self.test.groups is not None:
            counts = torch.bincount(self.train.groups, minlength=len(self.train.group_names))
            groups = {"groups": self.test.groups, "group_counts": counts}
        return score(predict(self.model, self.test), self.test.labels, self.train.counts, **groups)

    def checkpoint(self) -> None:
        self._check_loss()
        self.folder.checkpoint(
            epoch=self.epoch, batch=self.batch, totals=self.totals, seconds=self.watch.seconds
        )

    def finish(self) -> Scores:
        if self._complete():
            with usable(self.out / "scores.json"):
                return Scores.from_dict(read_json(self.out / "scores.json"))
        if self.events is not None:
            self.events.close()
        found = self.scores()
        weights = {
            "model": self.config.model,
            "classes": self.train.classes,
            "dataset": self.config.dataset,
        }
        save(self.out / "model.pt", weights | {"state_dict": self.model.state_dict()})
        write_json(self.out / "scores.json", found.as_dict())
        return found

    def _complete(self) -> bool:
        return all((self.out / name).exists() for name in ("model.pt", "scores.json"))

    def _check_loss(self) -> None:
        if not math.isfinite(float(self.totals[0])):
            raise NonFiniteLossError(
                f"expected finite losses, got NaN or infinity in epoch {self.epoch + 1}; lower lr,"
                " in a new folder"
            )


def _parts(found: Scores) -> dict[str, float]:
    """Accuracies on parts of the classes or groups, if there are any."""
    parts = {name: getattr(found, name) for name in ("minority", "majority", "rare_groups")}
    return {name: value for name, value in parts.items() if not math.isnan(value)}


@torch.no_grad()
def predict(model: nn.Module, data: ImageData, batch_size: int = 500) -> Tensor:
    """Scores (n, classes) of all images, in evaluation mode."""
    model.eval()
    return torch.cat([model(x) for x, _, _ in in_order(data, batch_size)])


def load_pretrained(folder: Path) -> tuple[Network, dict[str, Any]]:
    """The network that `pretrain` saved in a folder, in eval mode, and the names of its data set and model."""
    path = folder / "model.pt"
    if not path.exists():
        raise CheckpointError(
            f"expected {path.absolute()}, which `python -m reproduction pretrain` writes at its"
            " end; run it first"
        )
    state = load(path)
    with usable(path):
        model = chosen(MODELS, state["model"], "a model")(state["classes"])
        model.load_state_dict(state.pop("state_dict"))
    return model.eval(), state


def step_decay(lr: float, after: int, factor: float = 0.1) -> Schedule:
    """lr, and `factor` times it from step `after` on.

    Example:
        >>> [step_decay(1.0, after=2)(t) for t in range(4)]
        [1.0, 1.0, 0.1, 0.1]
    """
    return lambda t: lr if t < after else factor * lr


def one_cycle(
    lr: float, steps: int, warm: float = 0.3, start: float = 1 / 25, end: float = 4e-6
) -> Schedule:
    """Half cosines from `start * lr` up to lr over a share `warm` of the steps, then down to `end * lr` at the last
    step, like `torch.optim.lr_scheduler.OneCycleLR` with its defaults."""
    peak = max(warm * steps - 1, 1e-9)

    def at(t: int) -> float:
        if t <= peak:
            return _between(lr * start, lr, t / peak)
        return _between(lr, lr * end, (t - peak) / (steps - 1 - peak))

    return at


def _between(a: float, b: float, share: float) -> float:
    return b + (a - b) / 2 * (1 + math.cos(math.pi * share))
