"""A trained model with all that predictions need, in a file of plain values."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scdro.application.checkpoints import save
from scdro.application.networks import image_model, row_model
from scdro.application.own.opening import Preparation
from scdro.application.own.pictures import PicturePreparation
from scdro.application.own.preparation import MatrixPreparation, TablePreparation
from scdro.application.storage import write
from scdro.data.images import normalised
from scdro.errors import CheckpointError

__all__ = ["SavedModel", "load_model"]

FORMAT = 1
PREPARATIONS: Mapping[str, type[Preparation]] = {
    "table": TablePreparation,
    "matrix": MatrixPreparation,
    "images": PicturePreparation,
}


@dataclass(frozen=True)
class SavedModel:
    """A model.pt file.

    Attributes:
        architecture: name, shape of an input, classes and width.
        classes: their names, in the order of the model's outputs.
        columns: of the table that it was trained on.
        training: method, settings and the like, to read.
    """

    architecture: dict[str, Any]
    state_dict: dict[str, Tensor]
    classes: list[str]
    preparation: Preparation
    columns: list[str]
    training: dict[str, Any]

    def save(self, path: Path) -> None:
        save(
            path,
            {
                "format": FORMAT,
                "architecture": self.architecture,
                "state_dict": self.state_dict,
                "classes": self.classes,
                "preparation": self.preparation.as_dict(),
                "columns": self.columns,
                "training": self.training,
            },
        )

    def model(self) -> nn.Module:
        """In evaluation mode."""
        about = self.architecture
        name, features, classes, width = about["name"], prod(about["shape"]), about["classes"], about["width"]
        if isinstance(self.preparation, PicturePreparation):
            model = image_model(name, features, classes, width, pretrained=False)
        else:
            model = row_model(name, features, classes, width)
        model.load_state_dict(self.state_dict)
        return model.eval()

    def export(self, path: Path) -> None:
        """The model as a program that needs torch alone; of images it takes uint8 (n, 3, h, w)."""
        model, example = self.model(), torch.zeros(2, *self.architecture["shape"])
        if isinstance(self.preparation, PicturePreparation):
            saved = self.preparation.as_dict()
            model, example = _FromPixels(model, saved["mean"], saved["std"]), example.to(torch.uint8)
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(model.eval(), (example,), dynamic_shapes=({0: torch.export.Dim("n")},))
            torch.export.save(program, buffer)
        write(path, buffer.getvalue())


class _FromPixels(nn.Module):
    def __init__(self, model: nn.Module, mean: Any, std: Any) -> None:
        super().__init__()
        self.model, self.mean, self.std = model, mean, std

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.model(normalised(images, self.mean, self.std))
        return scores


def load_model(folder: Path) -> SavedModel:
    """What `scdro train` left in a folder, or in a file."""
    path = folder / "model.pt" if folder.is_dir() else folder
    if not path.is_file():
        raise CheckpointError(f"expected {path.absolute()}, which `scdro train` writes at its end; run it first")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"expected a model of `scdro train`, got another file or a damaged one, {path}; the order is: scdro "
            "predict RUN DATA"
        ) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CheckpointError(f"expected a model of `scdro train`, format {FORMAT}, got another file, {path}")
    preparation = PREPARATIONS[found["preparation"]["kind"]].from_dict(found["preparation"])
    return SavedModel(
        found["architecture"],
        found["state_dict"],
        found["classes"],
        preparation,
        found["columns"],
        found["training"],
    )
