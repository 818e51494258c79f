"""TensorBoard files of a run: the numbers of metrics.jsonl as scalars, and histograms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from scdro.errors import MissingDataError

__all__ = ["TENSORBOARD", "Events", "check_tensorboard"]

# help of the option
TENSORBOARD = "write TensorBoard's files beside metrics.jsonl (pip install tensorboard)"


def check_tensorboard() -> None:
    """Raise if TensorBoard is not installed, before any work is done."""
    _writer_class()


class Events:
    """Event files in the folder of a run.

    Args:
        folder: the run's folder, whose name is the run's name in TensorBoard.
        done: the step to continue from. TensorBoard drops what a killed process wrote after it.
    """

    def __init__(self, folder: Path, done: int) -> None:
        self._writer = _writer_class()(str(folder), purge_step=done + 1 if done else 0)

    def add(
        self, record: Mapping[str, Any], step: int, histograms: Mapping[str, Tensor] | None = None
    ) -> None:
        """Write and flush, so that these files are never behind a later checkpoint."""
        for name, value in _scalars(record):
            self._writer.add_scalar(name, value, step)
        for name, values in (histograms or {}).items():
            self._writer.add_histogram(name, values, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _scalars(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Numbers of nested dictionaries, with names such as train/loss."""
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)):
            yield prefix + key, float(value)


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingDataError(
            f"expected the package tensorboard, to write its files, got {error}; pip install"
            " tensorboard"
        ) from error
    return SummaryWriter
