"""Loggers for W&B, MLflow, TensorBoard and Python's logging: copy the one you need.

`RobustMonitor` (Lightning), `RobustTrainerLoss` (transformers) and `scdro.tables` take `loggers=`,
any objects with the four methods of `scdro.integrations.loggers.Logger`. Each class here is one, in
twenty lines.

    python examples/training_loggers.py          # a short training, logged by Python's logging
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import scdro
from scdro.integrations.loggers import Logger, recent_losses

BINS = 32


def histogram_of(values: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Counts and edges of a histogram of the finite values."""
    array = torch.as_tensor(values).detach().cpu().double().numpy()
    counts, edges = np.histogram(array[np.isfinite(array)], BINS)
    return counts, edges


class TensorBoardLogger:
    """TensorBoard's event files. Needs `tensorboard`.

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

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        if rows:
            lines = [
                "|".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row.values())
                for row in rows
            ]
            head = ["|".join(map(str, rows[0])), "|".join("---" for _ in rows[0])]
            self.writer.add_text(name, "\n".join(f"|{line}|" for line in head + lines), step)

    def flush(self) -> None:
        self.writer.flush()


class WandbLogger:
    """Weights & Biases. Needs `wandb`; `wandb.init(mode="offline")` needs no account and no network.

    Names get the prefix "scdro/" and a step of their own, "scdro/step", because W&B drops what
    comes with a step smaller than its own counter, which other callbacks of the same run advance.

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
            raise ValueError(
                "expected a W&B run, got none; call wandb.init() first, or pass run=..."
            )
        self.run.define_metric("scdro/step", hidden=True)
        self.run.define_metric("scdro/*", step_metric="scdro/step")

    def _log(self, values: Mapping[str, Any], step: int) -> None:
        self.run.log(
            {"scdro/step": step, **{f"scdro/{key}": value for key, value in values.items()}}
        )

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._log({key: float(value) for key, value in values.items()}, step)

    def histogram(self, name: str, values: Any, step: int) -> None:
        import wandb

        self._log({name: wandb.Histogram(np_histogram=histogram_of(values))}, step)

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        import wandb

        columns = [str(key) for key in rows[0]] if rows else []
        self._log(
            {name: wandb.Table(columns=columns, data=[list(row.values()) for row in rows])}, step
        )

    def flush(self) -> None:
        """Does nothing: W&B sends in the background, until `run.finish()`."""


class MLflowLogger:
    """MLflow. Needs `mlflow` (mlflow-skinny is enough). Histograms and tables are JSON artifacts of the run.

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
            raise ValueError(
                "expected an MLflow run, got none; call mlflow.start_run() first, or pass run_id"
            )
        self.run_id = active.info.run_id if run_id is None else run_id
        self.client = mlflow.MlflowClient() if client is None else client

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            self.client.log_metric(self.run_id, key, float(value), step=step)

    def histogram(self, name: str, values: Any, step: int) -> None:
        counts, edges = histogram_of(values)
        self._artifact(
            name, {"step": step, "counts": counts.tolist(), "edges": edges.tolist()}, step
        )

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        self._artifact(name, {"step": step, "rows": list(rows)}, step)

    def _artifact(self, name: str, content: Mapping[str, Any], step: int) -> None:
        self.client.log_dict(self.run_id, content, f"{name}/{step:08d}.json")

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
        self.logger.log(
            self.level,
            "step %d: %s",
            step,
            " ".join(f"{k}={float(v):.4g}" for k, v in values.items()),
        )

    def histogram(self, name: str, values: Any, step: int) -> None:
        array = np.asarray(torch.as_tensor(values).detach().cpu().double())
        if len(array):
            low, middle, high = np.percentile(array, [5, 50, 95])
            numbers = (step, name, low, middle, high, len(array))
            self.logger.log(
                self.level, "step %d: %s 5%%=%.4g median=%.4g 95%%=%.4g of %d", *numbers
            )

    def table(self, name: str, rows: Sequence[Mapping[str, Any]], step: int) -> None:
        for row in rows:
            self.logger.log(
                self.level,
                "step %d: %s %s",
                step,
                name,
                " ".join(f"{k}={v}" for k, v in row.items()),
            )

    def flush(self) -> None:
        for handler in self.logger.handlers:
            handler.flush()


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    logger: Logger = StandardLogger()
    torch.manual_seed(0)
    x = torch.randn(400, 5)
    y = (x[:, 0] + 0.5 * torch.randn(400) > 0).long()
    model, robust = torch.nn.Linear(5, 2), scdro.KLRobustLoss(rho=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 61):
        index = torch.randperm(400)[:50]
        losses = torch.nn.functional.cross_entropy(model(x[index]), y[index], reduction="none")
        value = robust(losses)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if step % 20 == 0:
            logger.scalars({"robust/loss": float(value), "robust/lam": float(robust.lam)}, step)
            logger.histogram("robust/losses", recent_losses(robust), step)
    logger.flush()


if __name__ == "__main__":
    main()
