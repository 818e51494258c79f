"""Loggers for training: a JSON-lines file, or any object with the four methods of `Logger`.

A logger gets three kinds of records, each with a step: numbers by name, a histogram of values, and
a table. `RobustMonitor` (Lightning), `RobustTrainerLoss` (transformers) and `scdro.tables` take
`loggers=`. `examples/training_loggers.py` has loggers to copy for W&B, MLflow, TensorBoard and
Python's logging.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from scdro.errors import DataError, HyperparameterError
from scdro.functional import worst_case
from scdro.loss import KLRobustLoss
from scdro.optim._base import RobustOptimizer

__all__ = [
    "JSONLinesLogger",
    "Logger",
    "read_json_lines",
    "recent_losses",
    "recent_value",
]

HISTOGRAM_BINS = 32
Row = Mapping[str, Any]


class Logger(Protocol):
    """Anything with these four methods. Names may have slashes; a table is a list of rows with the
    same columns.

    Example:
        >>> class Printed:
        ...     def scalars(self, values, step):
        ...         print(step, values)
        ...     def histogram(self, name, values, step): ...
        ...     def table(self, name, rows, step): ...
        ...     def flush(self): ...
        >>> logger: Logger = Printed()
        >>> logger.scalars({"robust/lam": 0.5}, step=3)
        3 {'robust/lam': 0.5}
    """

    def scalars(self, values: Mapping[str, float], step: int) -> None: ...
    def histogram(self, name: str, values: Any, step: int) -> None: ...
    def table(self, name: str, rows: Sequence[Row], step: int) -> None: ...
    def flush(self) -> None: ...


def recent_losses(robust: KLRobustLoss | RobustOptimizer) -> npt.NDArray[np.float64]:
    """The losses in the window of a loss or an optimizer, oldest first. Waits for the device.

    Example:
        >>> import torch
        >>> robust = KLRobustLoss(rho=0.5)
        >>> _ = robust(torch.tensor([0.5, 1.5], requires_grad=True))
        >>> recent_losses(robust)
        array([0.5, 1.5])
    """
    state = robust.state if isinstance(robust, KLRobustLoss) else robust._method_state
    losses, log_weight = state.recent.detach().cpu().double().numpy()
    found: npt.NDArray[np.float64] = losses[log_weight > -math.inf]
    return found


def recent_value(robust: KLRobustLoss | RobustOptimizer) -> float:
    """The robust value: the worst case of the recent losses at the radius rho. NaN before the first
    batch.

    Example:
        >>> import torch
        >>> robust = KLRobustLoss(rho=0.5)
        >>> _ = robust(torch.tensor([0.5, 1.5], requires_grad=True))
        >>> round(recent_value(robust), 3)
        1.451
    """
    state = robust.state if isinstance(robust, KLRobustLoss) else robust._method_state
    losses, log_weight = state.recent.detach().cpu().double()
    known = log_weight > -math.inf
    if not known.any():
        return math.nan
    weights = (log_weight[known] - log_weight[known].max()).exp()
    return float(worst_case(losses[known], robust.rho, sample_weight=weights).value)


def _histogram(values: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Counts and edges of a histogram of the finite values."""
    array = (
        values.detach().cpu().double().numpy()
        if isinstance(values, Tensor)
        else np.asarray(values, np.float64)
    )
    counts, edges = np.histogram(array[np.isfinite(array)], HISTOGRAM_BINS)
    return counts, edges


def _as_json(value: Any) -> Any:
    """Plain values for JSON: tensors and arrays become numbers and lists, NaN and infinity None."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(entry) for entry in value]
    return value if isinstance(value, str | int | bool | None) else str(value)


class JSONLinesLogger:
    """One JSON object per line, each flushed at once, so that a killed run loses at most its last
    line.

    A resumed run appends; if it goes back to an older step, `read_json_lines` takes the later line.

    Args:
        path: path of the file; its folder is made.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> JSONLinesLogger(path).scalars({"lam": 0.5}, step=3)
        >>> read_json_lines(path)
        [{'step': 3, 'scalars': {'lam': 0.5}}]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise HyperparameterError(
                f"expected the path of a file for JSON lines, got the folder {self.path}"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def _write(self, record: Mapping[str, Any]) -> None:
        with self.path.open("a+b") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")  # a killed run left half a line
            file.write(json.dumps(_as_json(record), allow_nan=False).encode() + b"\n")

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._write({"step": step, "scalars": {key: float(value) for key, value in values.items()}})

    def histogram(self, name: str, values: Any, step: int) -> None:
        counts, edges = _histogram(values)
        self._write({"step": step, "histogram": name, "counts": counts, "edges": edges})

    def table(self, name: str, rows: Sequence[Row], step: int) -> None:
        self._write({"step": step, "table": name, "rows": list(rows)})

    def flush(self) -> None:
        """Does nothing: everything is written at once."""


def read_json_lines(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a `JSONLinesLogger`, in the order of their steps; incomplete lines of killed
    runs are left out.

    Where a resumed run has written a record of the same step and kind again, the later one counts.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
        >>> for lam in (0.5, 0.4):
        ...     JSONLinesLogger(path).scalars({"lam": lam}, step=3)
        >>> read_json_lines(path)
        [{'step': 3, 'scalars': {'lam': 0.4}}]
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in Path(path).read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or "step" not in record:
            raise DataError(
                f"expected lines of a JSONLinesLogger, each with a step, got {line[:60]!r} in"
                f" {path}"
            )
        kind = (
            record["step"],
            record.get("histogram"),
            record.get("table"),
            *sorted(record.get("scalars", ())),
        )
        found[kind] = record
    return sorted(found.values(), key=lambda record: record["step"])
