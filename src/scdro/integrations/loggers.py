"""Loggers for training: W&B, MLflow, TensorBoard, a JSON-lines file, Python's logging, or your own.

A logger is any object with the methods of `Logger`. None of the packages is a dependency: each is imported when its
logger is made. `RobustMonitor` (Lightning), `RobustTrainerLoss` (transformers), the TRL trainers and `scdro.tables`
take `loggers=`.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from scdro.errors import DataError, HyperparameterError
from scdro.loss import KLRobustLoss
from scdro.optim._base import RobustOptimizer

__all__ = [
    "JSONLinesLogger",
    "Logger",
    "MLflowLogger",
    "StandardLogger",
    "TensorBoardLogger",
    "WandbLogger",
    "read_json_lines",
    "recent_losses",
]

BINS = 32
Row = Mapping[str, Any]


class Logger(Protocol):
    """Anything with these four methods. Names may have slashes; a table is a list of rows with the same columns.

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
        >>> robust = KLRobustLoss(rho=0.5)
        >>> _ = robust(torch.tensor([0.5, 1.5], requires_grad=True))
        >>> recent_losses(robust)
        array([0.5, 1.5])
    """
    state = robust.state if isinstance(robust, KLRobustLoss) else robust._method_state
    losses, log_weight = state.recent.detach().cpu().double().numpy()
    found: npt.NDArray[np.float64] = losses[log_weight > -math.inf]
    return found


def _histogram(values: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Counts and edges of a histogram of the finite values."""
    array = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(values, np.float64)
    counts, edges = np.histogram(array[np.isfinite(array)], BINS)
    return counts, edges


def _plain(value: Any) -> Any:
    """Plain values for JSON: tensors and arrays become numbers and lists, NaN and infinity None."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value if isinstance(value, str | int | bool | None) else str(value)


# -- a file -----------------------------------------------------------------------------------------------------------


class JSONLinesLogger:
    """One JSON object per line, each flushed at once, so that a killed run loses at most its last line.

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
            raise HyperparameterError(f"expected the path of a file for JSON lines, got the folder {self.path}")
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def _write(self, record: Mapping[str, Any]) -> None:
        with self.path.open("a+b") as file:
            if file.tell() and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
                file.write(b"\n")  # a killed run left half a line
            file.write(json.dumps(_plain(record), allow_nan=False).encode() + b"\n")

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
    """The records of a `JSONLinesLogger`, in the order of their steps; incomplete lines of killed runs are left out.

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
            raise DataError(f"expected lines of a JSONLinesLogger, each with a step, got {line[:60]!r} in {path}")
        kind = (record["step"], record.get("histogram"), record.get("table"), *sorted(record.get("scalars", ())))
        found[kind] = record
    return sorted(found.values(), key=lambda record: record["step"])


# -- the packages -----------------------------------------------------------------------------------------------------


class TensorBoardLogger:
    """TensorBoard's event files. Needs the extra `tensorboard`.

    Args:
        writer: a `SummaryWriter`, or the folder for a new one.

    Example:
        >>> import tempfile
        >>> logger = TensorBoardLogger(tempfile.mkdtemp())
        >>> logger.scalars({"robust/lam": 0.5}, step=3)
        >>> logger.flush()
    """

    def __init__(self, writer: Any) -> None:
        if isinstance(writer, str | os.PathLike):
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(os.fspath(writer))
        self.writer = writer

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, float(value), step)

    def histogram(self, name: str, values: Any, step: int) -> None:
        array = torch.as_tensor(values).detach().cpu().double()
        if len(array := array[array.isfinite()]):
            self.writer.add_histogram(name, array.numpy(), step)

    def table(self, name: str, rows: Sequence[Row], step: int) -> None:
        if rows:
            lines = [
                "|".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row.values()) for row in rows
            ]
            head = ["|".join(map(str, rows[0])), "|".join("---" for _ in rows[0])]
            self.writer.add_text(name, "\n".join(f"|{line}|" for line in head + lines), step)

    def flush(self) -> None:
        self.writer.flush()


class WandbLogger:
    """Weights & Biases. Needs the extra `wandb`; `wandb.init(mode="offline")` needs no account and no network.

    Names get the prefix "scdro/" and a step of their own, "scdro/step", because W&B drops what comes with a step
    smaller than its own counter, which other callbacks of the same run advance.

    Args:
        run: a run of `wandb.init`; None takes the current one.

    Example:
        >>> import tempfile, wandb
        >>> run = wandb.init(mode="disabled", dir=tempfile.mkdtemp())
        >>> WandbLogger(run).scalars({"lam": 0.5}, step=3)
    """

    def __init__(self, run: Any = None) -> None:
        import wandb

        self.run: Any = wandb.run if run is None else run
        if self.run is None:
            raise HyperparameterError("expected a W&B run, got none; call wandb.init() first, or pass run=...")
        self.run.define_metric("scdro/step", hidden=True)
        self.run.define_metric("scdro/*", step_metric="scdro/step")

    def _log(self, values: Mapping[str, Any], step: int) -> None:
        self.run.log({"scdro/step": step, **{f"scdro/{key}": value for key, value in values.items()}})

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._log({key: float(value) for key, value in values.items()}, step)

    def histogram(self, name: str, values: Any, step: int) -> None:
        import wandb

        self._log({name: wandb.Histogram(np_histogram=_histogram(values))}, step)

    def table(self, name: str, rows: Sequence[Row], step: int) -> None:
        import wandb

        columns = [str(key) for key in rows[0]] if rows else []
        self._log({name: wandb.Table(columns=columns, data=[list(row.values()) for row in rows])}, step)

    def flush(self) -> None:
        """Does nothing: W&B sends in the background, until `run.finish()`."""


class MLflowLogger:
    """MLflow. Needs the extra `mlflow` (mlflow-skinny is enough). Histograms and tables are JSON artifacts of the run.

    Args:
        run_id: id of an MLflow run; None takes the active one.
        client: an `MlflowClient`; None makes one for the tracking URI that is set.

    Example:
        >>> import tempfile, mlflow
        >>> os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # a folder; a database needs SQLAlchemy
        >>> mlflow.set_tracking_uri(os.path.join(tempfile.mkdtemp(), "runs"))
        >>> with mlflow.start_run() as run:
        ...     MLflowLogger().scalars({"lam": 0.5}, step=3)
        >>> mlflow.get_run(run.info.run_id).data.metrics
        {'lam': 0.5}
    """

    def __init__(self, run_id: str | None = None, client: Any = None) -> None:
        import mlflow

        active = mlflow.active_run()
        if run_id is None and active is None:
            raise HyperparameterError("expected an MLflow run, got none; call mlflow.start_run() first, or pass run_id")
        self.run_id = active.info.run_id if run_id is None else run_id
        self.client = mlflow.MlflowClient() if client is None else client

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            self.client.log_metric(self.run_id, key, float(value), step=step)

    def histogram(self, name: str, values: Any, step: int) -> None:
        counts, edges = _histogram(values)
        self._artifact(name, {"step": step, "counts": counts, "edges": edges}, step)

    def table(self, name: str, rows: Sequence[Row], step: int) -> None:
        self._artifact(name, {"step": step, "rows": list(rows)}, step)

    def _artifact(self, name: str, content: Mapping[str, Any], step: int) -> None:
        self.client.log_dict(self.run_id, _plain(content), f"{name}/{step:08d}.json")

    def flush(self) -> None:
        """Does nothing: everything is written at once."""


class StandardLogger:
    """Python's `logging`: one line per record, under the name "scdro.training".

    Args:
        logger: another `logging.Logger`.
        level: level of the lines.

    Example:
        >>> logging.basicConfig(level=logging.INFO)
        >>> StandardLogger().scalars({"lam": 0.5}, step=3)  # INFO:scdro.training:step 3: lam=0.5
    """

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self.logger, self.level = logger or logging.getLogger("scdro.training"), level

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.logger.log(self.level, "step %d: %s", step, " ".join(f"{k}={float(v):.4g}" for k, v in values.items()))

    def histogram(self, name: str, values: Any, step: int) -> None:
        array = np.asarray(torch.as_tensor(values).detach().cpu().double())
        if len(array):
            low, middle, high = np.percentile(array, [5, 50, 95])
            numbers = (step, name, low, middle, high, len(array))
            self.logger.log(self.level, "step %d: %s 5%%=%.4g median=%.4g 95%%=%.4g of %d", *numbers)

    def table(self, name: str, rows: Sequence[Row], step: int) -> None:
        for row in rows:
            self.logger.log(self.level, "step %d: %s %s", step, name, " ".join(f"{k}={v}" for k, v in row.items()))

    def flush(self) -> None:
        for handler in self.logger.handlers:
            handler.flush()
