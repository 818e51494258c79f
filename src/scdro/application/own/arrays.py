"""Arrays from .npz files: X and y, maybe groups; the same of validation and test data as X_test and so on."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scdro.application.own.pictures import Pictures
from scdro.application.own.preparation import Matrix
from scdro.application.own.tables import Column
from scdro.errors import DataError

__all__ = ["as_column", "as_inputs", "read_arrays"]

Array = npt.NDArray[Any]


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file; one that holds Python objects is refused, since reading them could run code."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"expected an .npz file of numbers and texts, as np.savez writes it, got {path}: {error}"
        ) from error


def as_inputs(values: Array, name: str, path: Path) -> Matrix | Pictures:
    """Rows of numbers (n, d), or images: uint8 of shape (n, h, w, 3), (n, 3, h, w) or (n, h, w)."""
    if values.dtype == np.uint8 and values.ndim in (3, 4):
        return Pictures(path, pixels=np.ascontiguousarray(_channels_first(values, name, path)))
    if values.ndim == 2 and values.dtype.kind in "fiub":
        return Matrix(path, values.astype(np.float64))
    raise DataError(
        f"expected {name} of {path} to be numbers (n, d) or uint8 images (n, h, w, 3), (n, 3, h, w) or (n, h, w), got "
        f"{values.dtype} of shape {values.shape}"
    )


def _channels_first(values: Array, name: str, path: Path) -> Array:
    if values.ndim == 3:
        return np.repeat(values[:, None], 3, 1)
    if values.shape[3] == 3:
        return values.transpose(0, 3, 1, 2)
    if values.shape[1] == 3:
        return values
    raise DataError(f"expected images of three colours in {name} of {path}, got shape {values.shape}")


def as_column(values: Array, name: str, n: int, path: Path) -> Column:
    """Labels or groups as texts; whole numbers are written without a point."""
    if values.shape != (n,):
        raise DataError(f"expected {name} of {path} to have a value for each of {n} samples, got shape {values.shape}")
    if values.dtype.kind == "f":
        broken = values[np.isfinite(values) & (values != np.round(values))]
        if len(broken):
            raise DataError(f"expected whole numbers or texts in {name} of {path}, got {broken[0]}")
        return Column.of([str(int(v)) if np.isfinite(v) else "nan" for v in values.tolist()])
    if values.dtype.kind not in "iubU":
        raise DataError(f"expected whole numbers or texts in {name} of {path}, got {values.dtype}")
    return Column.of([str(v) for v in values.tolist()])
