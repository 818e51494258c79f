"""How images are read, and the small network that sees them."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from scdro.errors import CheckpointError, DataError, MissingDataError
from scdro.tables._read import polars, shown

if TYPE_CHECKING:
    import polars as pl

__all__ = ["ImageModel", "Images", "Pictures", "as_floats", "images_below", "printable", "small_network"]

Array = npt.NDArray[Any]
ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
LARGEST = 50_000_000  # pixels of an image
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, of each channel


@dataclass(frozen=True)
class Pictures:
    """How images are read: RGB, the shorter side to `size`, the middle of the longer."""

    size: int

    def open(self, data: Any) -> tuple[pl.DataFrame, Array]:
        """All images below a folder, or one image."""
        path = Path(data)
        if path.is_file():
            paths, root = [path], path.parent
        elif path.is_dir():
            paths, root = images_below(path), path
        else:
            raise MissingDataError(f"expected an image or a folder of images, found none, {shown(path)}")
        if not paths:
            raise DataError(f"expected images ({', '.join(sorted(ENDINGS))}) in {shown(path)}, got none")
        names = [printable(p.relative_to(root)) for p in paths]
        return polars().DataFrame({"path": names}), self.read(paths)

    def read(self, paths: list[Path]) -> Array:
        """(n, 3, size, size), uint8."""
        found = np.empty((len(paths), 3, self.size, self.size), np.uint8)
        for k, path in enumerate(paths):
            found[k] = _decoded(path, self.size)
        return found

    def as_json(self) -> dict[str, Any]:
        return {"size": self.size}

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Pictures:
        size = about["size"]
        if not isinstance(size, int) or not 8 <= size <= 1024:
            raise CheckpointError(f"expected images of 8 to 1,024 pixels, got {shown(size)}")
        return cls(size)


def printable(path: Path) -> str:
    """A path that can be printed: bytes that are not UTF-8 are escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def images_below(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENDINGS and p.is_file())


def _decoded(path: Path, size: int) -> Array:
    try:
        from PIL import Image, ImageOps
    except ModuleNotFoundError as error:
        raise MissingDataError("expected Pillow, to decode images; pip install 'scdro[images]'") from error
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            if image.width * image.height > LARGEST:
                raise DataError(f"expected at most {LARGEST:,} pixels, got {image.width} x {image.height}")
            image.draft("RGB", (2 * size, 2 * size))
            fitted = ImageOps.fit(image.convert("RGB"), (size, size))
            return np.array(fitted, np.uint8).transpose(2, 0, 1)
    except (OSError, ValueError, SyntaxError, MemoryError, EOFError, Image.DecompressionBombError) as error:
        # Pillow's own errors, DataError above among them: what a damaged or hostile file can do
        raise DataError(
            f"expected an image, got {shown(printable(path), 200)}: {error}; remove or replace it"
        ) from error


def small_network(classes: int, width: int = 32) -> nn.Sequential:
    """Three blocks of convolutions, the average over places, a linear layer."""

    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    blocks = [*block(3, width), *block(width, 2 * width), *block(2 * width, 4 * width)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def as_floats(X: Array) -> Tensor:
    shift, scale = (torch.tensor(v).mul(255).view(3, 1, 1) for v in (MEAN, STD))
    return torch.from_numpy(X).float().sub_(shift).div_(scale)


class Images:
    """The family of small networks for images, as `Run` opens it."""

    inputs = Pictures

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def load(self, folder: Path) -> ImageModel:
        about = json.loads((folder / "model.json").read_text("utf-8"))
        classes = about["classes"]
        if not isinstance(classes, int) or not 2 <= classes <= 100_000:
            raise CheckpointError(f"expected a number of classes, got {shown(classes)}")
        try:
            state = torch.load(folder / "network.pt", map_location="cpu", weights_only=True)
            network = small_network(classes)
            network.load_state_dict(state)
        except Exception as error:  # whatever a damaged file makes of it
            raise CheckpointError(f"expected weights in {folder / 'network.pt'}, got: {str(error)[:200]}") from error
        return ImageModel(network)


class ImageModel:
    """A network that takes uint8 images."""

    rounds = 0

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.classes = len(list(network.state_dict().values())[-1])

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
        state = {name: value.cpu() for name, value in self.network.state_dict().items()}
        torch.save(state, folder / "network.pt")
        (folder / "model.json").write_text(json.dumps({"classes": self.classes}), "utf-8")
