"""One run: train a model by a method of the registry, evaluate it on the way, and resume bit for bit after a kill.

If torch.distributed is initialised, its processes share the run: each takes its part of every
batch, only the first one writes files, and all read the checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reproduction.baselines import REGISTRY
from reproduction.engine.assess import Predicted, assess, hardest, predicted
from reproduction.engine.checkpoints import Checkpoints, save
from reproduction.engine.folder import Notice, RunFolder, Stopwatch, began_in, locked, silent
from reproduction.engine.identity import check_identity
from reproduction.engine.processes import agreed, averaged, check_same, share_buffers
from reproduction.engine.storage import read_json, read_lines, write_json
from reproduction.engine.study import BOUND, StudyRun
from reproduction.engine.task import Task, make_model
from reproduction.engine.tensorboard import Events
from scdro.distributed import Ranks
from scdro.errors import HyperparameterError, NonFiniteLossError

__all__ = ["Progress", "Trained", "read_run", "train"]

Progress = Callable[[int, int, str], None]  # samples processed, of how many, and what to say


class Trained(NamedTuple):
    """A finished run: its result, its evaluations, and the environment it began in."""

    result: dict[str, Any]
    curve: list[dict[str, Any]]
    environment: dict[str, Any]


def read_run(folder: Path, identity: Mapping[str, Any]) -> Trained | None:
    """The finished run in a folder, which must have this identity; None if it has not finished."""
    path = folder / "result.json"
    if not path.exists():
        return None
    result = read_json(path)
    if result.get("status") != "failed":  # a failed run may have another identity
        check_identity(result, identity, path, f"name another folder by --out, or remove {folder}")
    return Trained(result, read_lines(folder / "metrics.jsonl"), began_in(folder))


def train(
    run: StudyRun,
    task: Task,
    out: Path,
    *,
    keep_model: bool = False,
    checkpoint_seconds: float = 20.0,
    device: torch.device | str = "cpu",
    tensorboard: bool = False,
    progress: Progress = lambda done, total, text: None,
    notice: Notice = silent,
) -> Trained:
    """Train, or continue an interrupted run in this folder, or return its result. All processes call it.

    Writes config.json, metrics.jsonl (one line per evaluation), checkpoint.pt while it runs,
    TensorBoard files if asked to, and at the end result.json and, with `keep_model`, model.pt. The
    result of a run that diverges says so.
    """
    ranks = Ranks()
    identity = run.identity(task.fingerprint())
    check_same(ranks, identity, "data and settings")
    with locked(out, notice) if ranks.first else nullcontext():
        there = agreed(ranks, lambda: read_run(out, identity))
        if there is not None:
            return there
        training = _Training(run, task, out, identity, device, ranks, tensorboard, notice)
        found = training.go(progress, checkpoint_seconds, keep_model)
        if ranks.first:
            write_json(out / "result.json", found)
            Checkpoints(out).remove()
        return agreed(
            ranks, lambda: Trained(found, training.folder.records, training.folder.began_in)
        )


class _Training:
    """All state of a run."""

    def __init__(
        self,
        run: StudyRun,
        task: Task,
        out: Path,
        identity: dict[str, Any],
        device: torch.device | str,
        ranks: Ranks,
        tensorboard: bool,
        notice: Notice,
    ) -> None:
        self.run, self.task, self.out, self.device, self.ranks = run, task, out, device, ranks
        study = self.study = run.length
        self.method = REGISTRY[run.method]
        self.model = make_model(study, task, run.seed).to(device)
        self.counts = task.train.counts
        self.per_sample = self.method.per_sample(self.counts, **run.settings)
        _check_batch(min(study.batch_size, len(task.train)), ranks)
        plain = max(len(task.train) // study.batch_size, 1)  # steps of an epoch
        self.total = study.epochs * plain * min(study.batch_size, len(task.train))
        self.decay_step = study.decay_epoch * plain
        self.spent = 0
        settings = {key: value for key, value in run.settings.items() if key not in ("rho", BOUND)}
        self.optimizer = self.method.build(
            [p for p in self.model.parameters() if p.requires_grad],
            self._facts(),
            weight_decay=study.weight_decay,
            **settings,
        )
        drawn = self.optimizer.draws(len(task.train), study.batch_size, run.seed, joint=True)
        self.batches = task.batches(study.batch_size, run.seed, drawn, ranks)
        parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        parts |= {} if drawn is None else {"sampler": drawn}
        self.folder = RunFolder(out, identity, parts, device, notice=notice, ranks=ranks)
        self.in_training = averaged(ranks, self.model)
        at = self.folder.counters
        self.epoch, self.batch, self.step_number = (
            at.get("epoch", 0),
            at.get("batch", 0),
            at.get("step", 0),
        )
        self.spent, self.evaluated = at.get("spent", 0), at.get("evaluated", 0)
        self.watch = Stopwatch(at.get("seconds", 0.0))
        self.saved = time.monotonic()
        self.final: tuple[dict[str, Predicted], dict[str, Any]] | None = None
        shown = tensorboard and ranks.first and not run.searches
        self.events = Events(out, self.step_number) if shown else None

    def go(self, progress: Progress, checkpoint_seconds: float, keep_model: bool) -> dict[str, Any]:
        try:
            if not self.evaluated:
                self._evaluate()
            while self.spent < self.total:
                self._epoch(progress, checkpoint_seconds)
        except NonFiniteLossError as error:
            return self._outcome("diverged", error=str(error))
        with self.watch.paused():
            found, scores = self.final or self._assessed()
        if scores["train"]["robust_loss"] is None:
            return self._outcome("diverged", error="the losses of the training data are not finite")
        if keep_model and self.ranks.first:
            save(self.out / "model.pt", {"state_dict": self.model.state_dict()})
        extra = (
            {} if self.run.searches else {"hardest": hardest(found["train"], self.run.scored_at)}
        )
        return self._outcome("done", **scores, **extra)

    # -- steps
    # --------------------------------------------------------------------------------------------------------

    def _epoch(self, progress: Progress, checkpoint_seconds: float) -> None:
        for x, y, index in self.batches.epoch(self.epoch, self.batch):
            self._step(x.to(self.device), y.to(self.device), index)
            due = self._count(len(y), time.monotonic() - self.saved >= checkpoint_seconds)
            progress(min(self.spent, self.total), self.total, str(self.run))
            if self.spent >= self.total * self.evaluated / self.study.points:
                self._evaluate()
            if self.spent >= self.total:
                return
            if due:
                self._checkpoint()
        self.epoch, self.batch = self.epoch + 1, 0

    def _step(self, x: Tensor, y: Tensor, index: Tensor) -> None:
        self.in_training.train()
        if not self.method.own_schedule:
            falls = 0.1 if self.step_number >= self.decay_step else 1.0
            for group in self.optimizer.param_groups:
                group["lr"] = self.run.settings["lr"] * falls
        bound = self.run.max_grad_norm
        self.optimizer.step(lambda: self._losses(x, y), index, max_grad_norm=bound)
        self.batch, self.step_number = self.batch + 1, self.step_number + 1

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(
            x.device.type, torch.bfloat16, enabled=self.study.precision == "bfloat16"
        ):
            scores = self.in_training(x)
        return self.per_sample(scores.float(), y)

    def _count(self, samples: int, due: bool) -> bool:
        """Count the samples of all processes, and return whether something is due on the first one."""
        counts = self.ranks.gather(torch.tensor([samples, due]))
        self.spent += int(counts[:, 0].sum())
        return bool(counts[0, 1])

    @property
    def _epochs_done(self) -> float:
        """Epochs by samples processed, including a method's own passes over all data."""
        return round(self.study.epochs * min(self.spent / self.total, 1.0), 3)

    def _facts(self) -> dict[str, Any]:
        """What methods may need to know about the task, if it has it."""
        facts = {
            "rho": self.run.rho,
            "n": len(self.task.train),
            "module": self.model,
            "groups": getattr(self.task.train, "groups", None),
            "all_losses": self._all_losses,
            "milestones": [self.decay_step],
        }
        return {name: fact for name, fact in facts.items() if fact is not None}

    @torch.no_grad()
    def _all_losses(self) -> Tensor:
        """The losses of all training data in evaluation mode; they count as samples processed."""
        self.spent += len(self.task.train)
        share_buffers(self.ranks, self.model)
        self.model.eval()
        losses = torch.zeros(len(self.task.train), dtype=next(self.model.parameters()).dtype)
        for x, y, index in self.task.in_order(self.task.train, ranks=self.ranks):
            losses[index] = self.per_sample(self.model(x.to(self.device)), y.to(self.device)).cpu()
        self.model.train()
        return self.ranks.merged(losses)

    # -- files and scores
    # ---------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        self.folder.checkpoint(
            epoch=self.epoch,
            batch=self.batch,
            step=self.step_number,
            spent=self.spent,
            evaluated=self.evaluated,
            epochs_done=self._epochs_done,
            seconds=self.watch.seconds,
        )
        self.saved = time.monotonic()

    def _predicted(self) -> dict[str, Predicted]:
        """Predictions for the training and validation data and, except in search runs, the test data."""
        parts = {"train": self.task.train, "validation": self.task.validation}
        if not self.run.searches:
            parts["test"] = self.task.test
        return {
            name: predicted(self.model, self.task, part, self.ranks) for name, part in parts.items()
        }

    def _assessed(self) -> tuple[dict[str, Predicted], dict[str, Any]]:
        """The predictions and their scores."""
        found = self._predicted()
        return found, {
            name: assess(part, self.task, self.run.scored_at) for name, part in found.items()
        }

    def _evaluate(self) -> None:
        self.evaluated = self.spent * self.study.points // self.total + 1
        if self.run.searches:
            return
        seconds = self.watch.seconds
        with self.watch.paused():
            self._record(round(seconds, 3))

    def _record(self, seconds: float) -> None:
        found, whole = self._assessed()
        if self.spent >= self.total:
            self.final = found, whole
        scores = {name: _brief(scores) for name, scores in whole.items()}
        state = {
            name: _number(getattr(self.optimizer, name, None)) for name in ("lam", "kl", "ess")
        }
        record: dict[str, Any] = {
            "samples": self.spent,
            "epoch": self._epochs_done,
            "step": self.step_number,
        }
        record["seconds"] = seconds
        record |= scores | {k: v for k, v in state.items() if v is not None}
        self.folder.append(record)
        if self.events is not None:
            train = found["train"]
            shapes = (
                {"losses": train.losses(), "weights": train.weights(self.run.scored_at)}
                if train.finite
                else {}
            )
            self.events.add(record, self.step_number, shapes)

    def _outcome(self, status: str, **found: Any) -> dict[str, Any]:
        if self.events is not None:
            self.events.close()
        identity = {**self.folder.identity, "status": status}
        return {**identity, "samples": self.spent, "seconds": round(self.watch.seconds, 3), **found}


def _check_batch(size: int, ranks: Ranks) -> None:
    if size < ranks.size:
        raise HyperparameterError(
            f"expected batches of at least {ranks.size} samples, one for each process, got {size};"
            " start fewer"
        )


def _brief(scores: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in scores.items() if not isinstance(value, list)}


def _number(value: Any) -> float | None:
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None
