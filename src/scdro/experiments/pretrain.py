"""Pretraining by cross-entropy, from which the features of the convex setting come."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import scdro
from scdro.data import CropFlip, ImageData, MemoryBatches
from scdro.errors import CheckpointError, HyperparameterError
from scdro.experiments.catalog import MODELS, chosen, in_order
from scdro.experiments.schedules import Schedule, one_cycle, step_decay
from scdro.experiments.storage import Checkpoints, JsonLines, load, save, write_json
from scdro.models import Network
from scdro.scores import Scores, score

__all__ = ["Pretraining", "load_pretrained", "predict", "pretrain"]

Progress = Callable[[int, int, str], None]  # steps done, of how many, and what to say


@dataclass(frozen=True)
class Pretraining:
    """The paper's: 90 epochs of SGD with momentum .9 in batches of 128. Where lr falls by 10, and weight decay, it does
    not say: 2/3 of the way, and as in its authors' code. `schedule` "one-cycle" is for shorter runs."""

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
        chosen(dict.fromkeys(("step", "one-cycle")), self.schedule, "a schedule")
        for name in ("epochs", "batch_size", "evaluate_every", "lr"):
            if not getattr(self, name) > 0:
                raise HyperparameterError(f"expected {name} > 0, got {getattr(self, name)}")

    def schedule_of(self, steps: int) -> Schedule:
        return one_cycle(self.lr, steps) if self.schedule == "one-cycle" else step_decay(self.lr, steps * 2 // 3)


def pretrain(
    config: Pretraining,
    train: ImageData,
    test: ImageData,
    out: Path,
    *,
    device: torch.device | str = "cpu",
    checkpoint_every: int = 100,
    progress: Progress = lambda done, total, text: None,
) -> Scores:
    """Train, or go on where a run in this folder was stopped; the result is the same, bit for bit.

    Writes config.json, metrics.jsonl (a line an epoch), checkpoint.pt (every `checkpoint_every` steps; the one before
    is kept, and used where the newest is damaged), and at the end model.pt and scores.json.
    """
    run = _Run(config, train.to(device), test.to(device), out)
    total = config.epochs * len(run.batches)
    schedule = config.schedule_of(total)
    while run.epoch < config.epochs:
        for x, y, _ in run.batches.epoch(run.epoch, run.batch):
            loss = run.step(x, y, schedule(run.steps))
            progress(run.steps, total, f"epoch {run.epoch + 1}/{config.epochs}  loss {loss:.3f}")
            if run.steps % checkpoint_every == 0:
                run.checkpoint()
        text = run.end_epoch()
        run.checkpoint()
        progress(run.steps, total, text)
    return run.finish()


class _Run:
    """All state of a run; `checkpoint` saves what a fresh process cannot compute again."""

    def __init__(self, config: Pretraining, train: ImageData, test: ImageData, out: Path) -> None:
        self.config, self.train, self.test, self.out = config, train, test, out
        self.batches = MemoryBatches(train, config.batch_size, augment=CropFlip(), seed=config.seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(config.seed)
            self.model = chosen(MODELS, config.model, "a model")(train.classes).to(train.images.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), config.lr, config.momentum, weight_decay=config.weight_decay
        )
        self.epoch = self.batch = 0
        self.totals = torch.zeros(3, dtype=torch.float64, device=train.images.device)  # loss, right, seen
        self.seconds, self.since = 0.0, time.perf_counter()
        self.checkpoints = Checkpoints(out)
        self.identity = {"config": asdict(config), "data": train.fingerprint()}
        self.log = self._resume()

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
            self.totals += torch.stack([loss.double() * len(y), right.double(), torch.full_like(right, len(y))])
        return loss.detach()

    def end_epoch(self) -> str:
        """Log the epoch, and what to say about it."""
        loss, right, seen = self.totals.tolist()
        record = {"epoch": self.epoch + 1, "lr": self.optimizer.param_groups[0]["lr"]}
        record |= {"train_loss": loss / seen, "train_accuracy": right / seen}
        self.epoch, self.batch = self.epoch + 1, 0
        self.totals.zero_()
        record["samples"] = self.epoch * len(self.train)
        text = f"epoch {self.epoch}/{self.config.epochs}  loss {loss / seen:.3f}  train {right / seen:.1%}"
        if self.epoch % self.config.evaluate_every == 0 or self.epoch == self.config.epochs:
            found = self.scores()
            record |= {"test_accuracy": found.top1, "test_minority": found.minority, "test_majority": found.majority}
            text += f"  test {found.top1:.1%} (minority {found.minority:.1%}, majority {found.majority:.1%})"
        self.log.append(record | {"seconds": round(self._elapsed(), 2)})
        return text

    def scores(self) -> Scores:
        return score(predict(self.model, self.test), self.test.labels, self.train.counts)

    def checkpoint(self) -> None:
        state = {"epoch": self.epoch, "batch": self.batch, "totals": self.totals, "seconds": self._elapsed()}
        state |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        self.checkpoints.save(self.identity | state | {"log_size": self.log.size})

    def finish(self) -> Scores:
        found = self.scores()
        weights = {"model": self.config.model, "classes": self.train.classes, "dataset": self.config.dataset}
        save(self.out / "model.pt", weights | {"state_dict": self.model.state_dict()})
        write_json(self.out / "scores.json", found.as_dict())
        return found

    def _resume(self) -> JsonLines:
        state = self.checkpoints.load(self.train.images.device)
        if state is None:
            write_json(self.out / "config.json", self.identity | {"environment": _environment()})
            return JsonLines(self.out / "metrics.jsonl")
        for key, own in self.identity.items():
            if state[key] != own:
                raise CheckpointError(
                    f"expected the run in {self.out} to have the {key} {own}, got {state[key]}; "
                    "name another folder, or the same settings and data"
                )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.batch, self.seconds = state["epoch"], state["batch"], state["seconds"]
        self.totals.copy_(state["totals"])
        return JsonLines(self.out / "metrics.jsonl", state["log_size"])

    def _elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self.since


@torch.no_grad()
def predict(model: nn.Module, data: ImageData, batch_size: int = 500) -> Tensor:
    """Scores (n, classes) of all images, in evaluation mode."""
    model.eval()
    return torch.cat([model(x) for x, _, _ in in_order(data, batch_size)])


def load_pretrained(folder: Path) -> tuple[Network, dict[str, Any]]:
    """The network that `pretrain` left in a folder, in evaluation mode, and the names of its data set and model."""
    path = folder / "model.pt"
    if not path.exists():
        raise CheckpointError(f"expected {path.absolute()}, which `scdro pretrain` writes at its end; run it first")
    state = load(path)
    model = chosen(MODELS, state["model"], "a model")(state["classes"])
    model.load_state_dict(state.pop("state_dict"))
    return model.eval(), state


def _environment() -> dict[str, Any]:
    """What bit-exactness depends on, beside the configuration."""
    versions = {"scdro": scdro.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return versions | {"threads": torch.get_num_threads(), "machine": platform.machine()}
