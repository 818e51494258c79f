"""Classes and probabilities of new samples."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from scdro.application.own.arrays import as_inputs, read_arrays
from scdro.application.own.pictures import ENDINGS, Pictures, read_folder, read_images
from scdro.application.own.preparation import Matrix
from scdro.application.own.reading import Inputs, kind_of
from scdro.application.own.saved import SavedModel
from scdro.application.own.tables import Table, read_table
from scdro.application.task import in_order
from scdro.errors import DataError

__all__ = ["Predictions", "predict"]

Array = npt.NDArray[Any]
KINDS: Mapping[str, tuple[type[Inputs], str]] = {
    "table": (Table, "a CSV file"),
    "matrix": (Matrix, "an .npz file with rows of numbers, X"),
    "images": (Pictures, "images"),
}


@dataclass(frozen=True)
class Predictions:
    """Probabilities (n, classes) of samples in their order, and where each is from: its line, row or path.

    `unknown` are columns that the training data did not have.
    """

    classes: Sequence[str]
    probabilities: Array
    origins: Sequence[Mapping[str, Any]]
    unknown: Sequence[str]

    @property
    def predicted(self) -> list[str]:
        return [self.classes[k] for k in self.probabilities.argmax(1)]

    def as_csv(self) -> str:
        """A line for each sample: where it is from, the class, and a probability for each class."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.origins[0], "prediction", *(f"p({name})" for name in self.classes)])
        for origin, name, each in zip(self.origins, self.predicted, self.probabilities, strict=True):
            writer.writerow([*origin.values(), name, *(f"{p:.6f}" for p in each)])
        return text.getvalue()


def predict(saved: SavedModel, path: Path, *, batch_size: int = 500, workers: int = 0) -> Predictions:
    """Of a CSV file, the array X of an .npz file, an image or all images below a folder."""
    inputs: Any = _inputs(path)
    expected, what = KINDS[saved.preparation.as_dict()["kind"]]
    if not isinstance(inputs, expected):
        raise DataError(f"expected data of the kind that the model was trained on, {what}, got {path}")
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    preparation: Any = saved.preparation
    samples = preparation.samples(inputs, labels, names=saved.classes)
    model = saved.model()
    with torch.no_grad():
        parts = [model(x).double().softmax(1) for x, _, _ in in_order(samples, batch_size, workers)]
    columns = tuple(inputs.columns) if isinstance(inputs, Table) else ()
    unknown = [name for name in columns if name not in saved.columns]
    origins = [inputs.origin(i) for i in range(len(inputs))]
    return Predictions(saved.classes, np.asarray(torch.cat(parts)), origins, unknown)


def _inputs(path: Path) -> Inputs:
    if path.suffix.lower() in ENDINGS and path.is_file():
        return read_images(path.parent, [path.name])
    kind = kind_of(path)
    if kind == "table":
        return read_table(path)
    if kind == "arrays":
        arrays = read_arrays(path)
        if "X" not in arrays:
            raise DataError(f"expected an array X in {path}, got {', '.join(arrays) or 'none'}")
        return as_inputs(arrays["X"], "X", path)
    if kind == "list":
        raise DataError(f"expected a folder of images, or one image, to predict, got the list {path}")
    return read_folder(path, labelled=False)[0]
