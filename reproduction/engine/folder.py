"""The folder of a run, from which it continues after an interruption."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

import scdro
from reproduction.engine.checkpoints import Checkpoints, usable
from reproduction.engine.identity import check_identity
from reproduction.engine.storage import JsonLines, make_folder, read_json, read_lines, write_json
from scdro.distributed import ALONE, Ranks

__all__ = ["Notice", "RunFolder", "Stopwatch", "began_in", "environment", "locked", "silent"]

Notice = Callable[[str], object]  # called with messages for the user


def silent(text: str) -> None:
    """Ignore the message."""


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


class RunFolder:
    """config.json, metrics.jsonl and checkpoint.pt of one run.

    Args:
        path: the folder.
        identity: what distinguishes this run from others; a checkpoint with another identity raises
            an error.
        parts: the objects with state: model, optimizer, sampler.
        notice: called if a run continues with another torch, or number of threads or processes,
            which may change its numbers.
        ranks: the processes that share the run: all read the checkpoint, only the first one writes.

    Attributes:
        counters: the counters of the checkpoint; empty in a new run.
        records: everything appended to metrics.jsonl, also before the interruption.
        began_in: the environment in which the run began.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any],
        parts: Mapping[str, Stateful],
        device: torch.device | str = "cpu",
        *,
        notice: Notice = silent,
        ranks: Ranks = ALONE,
    ) -> None:
        self.path, self.identity, self.parts, self.first = path, dict(identity), parts, ranks.first
        self.began_in = now = environment(ranks)
        self.counters: dict[str, Any] = {}
        self.checkpoints = Checkpoints(path)
        state = self.checkpoints.load(device)
        for file in self.checkpoints.damaged:
            notice(f"{file} is damaged: the one before it is used")
        if state is not None:
            with usable(path / "checkpoint.pt"):
                remedy = f"name another folder (--out), or remove {path}"
                check_identity(state, self.identity, path / "checkpoint.pt", remedy)
                for name, part in parts.items():
                    part.load_state_dict(state.pop(name))
                size = int(state.pop("log_size"))
            self.counters = {key: value for key, value in state.items() if key not in self.identity}
            self.began_in = began_in(path)
            self._compare(now, notice)
        self.log = (
            JsonLines(path / "metrics.jsonl", 0 if state is None else size) if self.first else None
        )
        self.records = read_lines(path / "metrics.jsonl") if self.first else []
        if state is None and self.first:
            write_json(path / "config.json", {**self.identity, "environment": now})

    def append(self, record: dict[str, Any]) -> None:
        """Append a record to metrics.jsonl."""
        if self.log is not None:
            self.log.append(record)
            self.records.append(record)

    def checkpoint(self, **counters: Any) -> None:
        """Save all state; all processes call it."""
        states = {name: part.state_dict() for name, part in self.parts.items()}
        if self.log is not None:
            self.checkpoints.save(
                {**self.identity, **states, **counters, "log_size": self.log.size}
            )

    def _compare(self, now: Mapping[str, Any], notice: Notice) -> None:
        for key in ("torch", "threads", "processes") if self.began_in else ():
            was = self.began_in.get(key)
            if was != now[key]:
                notice(
                    f"the run in {self.path} began with {key} {was} and goes on with {now[key]}: it"
                    " may not end with the same bits"
                )


def began_in(folder: Path) -> dict[str, Any]:
    """The environment in which a run began; empty if its folder does not say."""
    try:
        return dict(read_json(folder / "config.json")["environment"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


class Stopwatch:
    """Seconds of work, including those before an interruption."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before, self._since = seconds, time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._before + time.perf_counter() - self._since

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside does not count."""
        self._before = self.seconds
        try:
            yield
        finally:
            self._since = time.perf_counter()


@contextmanager
def locked(folder: Path, notice: Notice = silent) -> Iterator[None]:
    """Allow one process at a time; a second one says so and waits. The system releases the lock of a killed process."""
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
    """What the numbers may depend on, besides the configuration."""
    return {
        "scdro": scdro.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "processes": ranks.size,
    }
