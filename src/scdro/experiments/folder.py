"""The folder of a run, from which it goes on where it was stopped."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

import scdro
from scdro.distributed.ranks import ALONE, Ranks
from scdro.experiments.checkpoints import Checkpoints, usable
from scdro.experiments.identity import check_identity
from scdro.experiments.storage import JsonLines, make_folder, read_json, write_json

__all__ = ["Notice", "RunFolder", "Stopwatch", "environment", "locked", "silent"]

Notice = Callable[[str], object]  # told what the user should know


def silent(text: str) -> None:
    """Tells nobody."""


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


class RunFolder:
    """config.json, metrics.jsonl and checkpoint.pt of one run.

    Args:
        path: the folder.
        identity: what makes this run another than others; a checkpoint of another identity is refused.
        parts: whatever has state: model, optimizer, sampler.
        newer: entries of the identity that checkpoints of older versions do not have.
        notice: told where a run goes on with another torch, or number of threads or processes, on which its numbers
            may depend.
        ranks: the processes that share the run: all read the checkpoint, the first alone writes.

    Attributes:
        counters: those of the checkpoint; empty in a new run.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any],
        parts: Mapping[str, Stateful],
        device: torch.device | str = "cpu",
        *,
        newer: Collection[str] = (),
        notice: Notice = silent,
        ranks: Ranks = ALONE,
    ) -> None:
        self.path, self.identity, self.parts, self.first = path, dict(identity), parts, ranks.first
        self.environment = environment(ranks)
        self.counters: dict[str, Any] = {}
        self.checkpoints = Checkpoints(path)
        state = self.checkpoints.load(device)
        for file in self.checkpoints.damaged:
            notice(f"{file} is damaged: the one before it is used")
        if state is not None:
            with usable(path / "checkpoint.pt"):
                remedy = f"name another folder (--out), or remove {path}"
                check_identity(state, self.identity, path / "checkpoint.pt", remedy, newer=newer)
                for name, part in parts.items():
                    part.load_state_dict(state.pop(name))
                size = int(state.pop("log_size"))
            self.counters = {key: value for key, value in state.items() if key not in self.identity}
            self._compare(notice)
        self.log = JsonLines(path / "metrics.jsonl", 0 if state is None else size) if self.first else None
        if state is None and self.first:
            write_json(path / "config.json", {**self.identity, "environment": self.environment})

    def append(self, record: dict[str, Any]) -> None:
        """To the log of metrics."""
        if self.log is not None:
            self.log.append(record)

    def checkpoint(self, **counters: Any) -> None:
        """Save all state; all processes call it."""
        states = {name: part.state_dict() for name, part in self.parts.items()}
        if self.log is not None:
            self.checkpoints.save({**self.identity, **states, **counters, "log_size": self.log.size})

    def _compare(self, notice: Notice) -> None:
        try:
            before = {"processes": 1, **read_json(self.path / "config.json")["environment"]}
        except (OSError, ValueError, KeyError, TypeError):
            return
        for key in ("torch", "threads", "processes"):
            was, now = before.get(key), self.environment[key]
            if was != now:
                notice(
                    f"the run in {self.path} began with {key} {was} and goes on with {now}: it may not end with the "
                    "same bits"
                )


class Stopwatch:
    """Seconds of work, also of the processes before this one."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before, self._since = seconds, time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._before + time.perf_counter() - self._since

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside does not count."""
        self._before = self.seconds
        try:
            yield
        finally:
            self._since = time.perf_counter()


@contextmanager
def locked(folder: Path, notice: Notice = silent) -> Iterator[None]:
    """One process at a time: a second one says so and waits. The system lets go of the lock of a process that was
    killed."""
    make_folder(folder)
    with open(folder / "lock", "w") as file:
        if os.name == "posix":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                notice(f"waiting for another process in {folder}")
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def environment(ranks: Ranks = ALONE) -> dict[str, Any]:
    """What numbers may depend on, beside the configuration."""
    return {
        "scdro": scdro.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "processes": ranks.size,
    }
