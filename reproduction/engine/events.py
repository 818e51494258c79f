"""TensorBoard's view of a run: what metrics.jsonl has as scalars, and histograms beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from scdro.errors import MissingDataError

__all__ = ["Events", "check_tensorboard"]


def check_tensorboard() -> None:
    """Complain before any work is done, not after."""
    _writer_class()


class Events:
    """Event files in the folder of a run.

    Args:
        folder: of the run, which gives it its name in TensorBoard.
        done: the step to go on from; what a killed process wrote after it is hidden by what is written now.
    """

    def __init__(self, folder: Path, done: int) -> None:
        self._writer = _writer_class()(str(folder), purge_step=done + 1 if done else 0)

    def add(self, record: Mapping[str, Any], step: int, histograms: Mapping[str, Tensor] | None = None) -> None:
        """Written through: a checkpoint that follows never knows more than these files."""
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
            f"expected the package tensorboard, to write its files, got {error}; pip install scdro[tensorboard]"
        ) from error
    return SummaryWriter
