"""Models of images: a small network, or a linear layer on the features of a frozen one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import nn

from scdro.errors import CheckpointError, MissingDataError
from scdro.tables import _pretrained
from scdro.tables._pictures import Pictures, as_floats
from scdro.tables._read import shown

__all__ = ["FeatureModel", "ImageModel", "Images", "small_network"]

Array = npt.NDArray[Any]
WIDEST = 1_000_000  # features


def small_network(classes: int, width: int = 32) -> nn.Sequential:
    """Three blocks of convolutions, the average over places, a linear layer."""

    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    blocks = [*block(3, width), *block(width, 2 * width), *block(2 * width, 4 * width)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


class ImageModel:
    """A small network that takes uint8 images."""

    rounds = 0

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.classes = len(list(network.state_dict().values())[-1])

    def stop_at(self, rounds: int) -> None:
        pass

    @torch.no_grad()
    def predict(self, X: Array) -> Array:
        self.network.eval()
        device = next(self.network.parameters()).device
        parts = [
            self.network(as_floats(X[k : k + 256]).to(device)).double().softmax(1).cpu() for k in range(0, len(X), 256)
        ]
        found: Array = torch.cat(parts).numpy()
        return found

    def save(self, folder: Path) -> None:
        _save(self.network, folder, {"classes": self.classes, "features": None})


class FeatureModel:
    """A linear layer on the features of a frozen network, which is not saved with it."""

    rounds = 0

    def __init__(self, frozen: _pretrained.Frozen, head: nn.Linear) -> None:
        self.frozen, self.head, self.classes = frozen, head, head.out_features

    def stop_at(self, rounds: int) -> None:
        pass

    def predict(self, X: Array) -> Array:
        return self.predict_features(self.frozen.features(X))

    @torch.no_grad()
    def predict_features(self, features: Array) -> Array:
        if features.shape[1] != self.head.in_features:
            raise CheckpointError(
                f"expected {self.head.in_features} features of an image, as in training, got {features.shape[1]}"
            )
        found: Array = self.head.double()(torch.from_numpy(features).double()).softmax(1).numpy()
        return found

    def save(self, folder: Path) -> None:
        about = {
            "classes": self.classes,
            "features": self.frozen.name,
            "width": self.head.in_features,
            "digest": self.frozen.digest,
        }
        _save(self.head, folder, about)


def _save(network: nn.Module, folder: Path, about: dict[str, Any]) -> None:
    torch.save({name: value.cpu() for name, value in network.state_dict().items()}, folder / "network.pt")
    (folder / "model.json").write_text(json.dumps(about), "utf-8")


class Images:
    """Image models, as `Run` loads them."""

    inputs = Pictures

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.features: Any = None  # a network that was given as an object must be given again

    def load(self, folder: Path) -> ImageModel | FeatureModel:
        about = json.loads((folder / "model.json").read_text("utf-8"))
        classes, name = about["classes"], about["features"]
        if not isinstance(classes, int) or not 2 <= classes <= 100_000:
            raise CheckpointError(f"expected a number of classes, got {shown(classes)}")
        if name is None:
            network = small_network(classes)
            _fill(network, folder)
            return ImageModel(network)
        width = about["width"]
        if not isinstance(width, int) or not 1 <= width <= WIDEST // classes:
            raise CheckpointError(f"expected a number of features, got {shown(width)}")
        head = nn.Linear(width, classes, dtype=torch.float64)
        _fill(head, folder)
        return FeatureModel(self._frozen(str(name), str(about["digest"])), head)

    def _frozen(self, name: str, digest: str) -> _pretrained.Frozen:
        if name == _pretrained.GIVEN and self.features is None:
            raise MissingDataError(
                "expected the network whose features were used in training; from Python: scdro.load(run, "
                "features=network)"
            )
        found = _pretrained.find(name if self.features is None else self.features)
        if found is None or found.digest != digest:
            raise CheckpointError(f"expected the weights of {shown(name)} as in training, got others")
        return found._replace(name=name)


def _fill(network: nn.Module, folder: Path) -> None:
    try:
        network.load_state_dict(torch.load(folder / "network.pt", map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file can raise anything
        raise CheckpointError(f"expected weights in {folder / 'network.pt'}, got: {str(error)[:200]}") from error
