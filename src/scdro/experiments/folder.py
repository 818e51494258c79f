"""The folder of a run, from which it goes on where it was stopped."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

import scdro
from scdro.errors import CheckpointError
from scdro.experiments.storage import JsonLines, save, write_json

__all__ = ["RunFolder", "Stopwatch", "environment", "locked"]


class Stateful(Protocol):
    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


class RunFolder:
    """config.json, metrics.jsonl and checkpoint.pt of one run.

    Args:
        path: the folder.
        identity: what makes this run another than others; a checkpoint of another identity is refused.
        parts: whatever has state: model, optimizer, sampler.

    Attributes:
        log: of metrics, a line each.
        counters: those of the checkpoint; empty in a new run.
    """

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any],
        parts: Mapping[str, Stateful],
        device: torch.device | str = "cpu",
    ) -> None:
        self.path, self.identity, self.parts = path, dict(identity), parts
        self.counters: dict[str, Any] = {}
        state = self._load(device)
        self.log = JsonLines(path / "metrics.jsonl", state.pop("log_size", 0))
        if not state:
            write_json(path / "config.json", {**self.identity, "environment": environment()})
        else:
            for name, part in parts.items():
                part.load_state_dict(state.pop(name))
            self.counters = {key: value for key, value in state.items() if key not in self.identity}

    def checkpoint(self, **counters: Any) -> None:
        states = {name: part.state_dict() for name, part in self.parts.items()}
        save(self.path / "checkpoint.pt", {**self.identity, **states, **counters, "log_size": self.log.size})

    def _load(self, device: torch.device | str) -> dict[str, Any]:
        path = self.path / "checkpoint.pt"
        if not path.exists():
            return {}
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        for key, own in self.identity.items():
            if state[key] != own:
                raise CheckpointError(
                    f"expected the run in {self.path} to have the {key} {own}, got {state[key]}; "
                    "name another folder, or the same settings and data"
                )
        return state


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
def locked(folder: Path) -> Iterator[None]:
    """One process at a time: a second one waits. The system lets go of the lock of a process that was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as file:
        if os.name == "posix":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def environment() -> dict[str, Any]:
    """What numbers may depend on, beside the configuration."""
    return {
        "scdro": scdro.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }
