"""A folder of images: a network is trained on one half of the training images and repaired on the other."""

from __future__ import annotations

import copy
import hashlib
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from scdro.errors import CheckpointError, DataError, HyperparameterError, MissingDataError
from scdro.second_look import repair
from scdro.tables import _folder
from scdro.tables._network import best_device
from scdro.tables._problem import Problem
from scdro.tables._read import polars, shown
from scdro.tables._run import Run
from scdro.tables._study import Found, Options, in_folder, make_summary
from scdro.tables._verdict import Tested, judge

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Images", "Pictures", "train_images"]

Array = npt.NDArray[Any]
ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
LARGEST = 50_000_000  # pixels of an image
EPOCHS, PATIENCE, BATCH = 40, 6, 64
METHODS = ("plain", "second-look")
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
            paths, root = _images_below(path), path
        else:
            raise MissingDataError(f"expected an image or a folder of images, found none, {shown(path)}")
        if not paths:
            raise DataError(f"expected images ({', '.join(sorted(ENDINGS))}) in {shown(path)}, got none")
        names = [_name(p.relative_to(root)) for p in paths]
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


def _name(path: Path) -> str:
    """A path that can be printed: bytes that are not UTF-8 are escaped."""
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def _images_below(folder: Path) -> list[Path]:
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
        raise DataError(f"expected an image, got {shown(_name(path), 200)}: {error}; remove or replace it") from error


def small_network(classes: int, width: int = 32) -> nn.Sequential:
    """Three blocks of convolutions, the average over places, a linear layer."""

    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]

    blocks = [*block(3, width), *block(width, 2 * width), *block(2 * width, 4 * width)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes))


def _floats(X: Array) -> Tensor:
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

    @torch.no_grad()
    def predict(self, X: Array) -> Array:
        self.network.eval()
        device = next(self.network.parameters()).device
        parts = [
            self.network(_floats(X[k : k + 256]).to(device)).double().softmax(1).cpu() for k in range(0, len(X), 256)
        ]
        found: Array = torch.cat(parts).numpy()
        return found

    def save(self, folder: Path) -> None:
        state = {name: value.cpu() for name, value in self.network.state_dict().items()}
        torch.save(state, folder / "network.pt")
        last = list(state.values())[-1]
        (folder / "model.json").write_text(json.dumps({"classes": len(last)}), "utf-8")


def train_images(
    folder: Any,
    *,
    size: int = 64,
    rho: float = 0.5,
    price: float = 0.02,
    least_group: int = 30,
    seed: int = 0,
    threads: int | None = None,
    out: Any = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Run:
    """Train a small network on a folder of images, and `repair` it for whom it fails.

    The folder has a subfolder for each class. A fifth of the images is for the test; of the others, one half trains the
    network, with early stopping, and the other half, which it has not seen, fits its last layer again by
    `scdro.repair`. The repaired network is kept if the test images confirm it.

    Args:
        folder: of subfolders of images.
        size: pixels of a side.
        rho, price, least_group, seed, threads, out, progress: as for `train`.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> for name, value in (("dark", 30), ("light", 220)):
        ...     (root / name).mkdir()
        ...     for k in range(40):
        ...         Image.new("RGB", (16, 16), (value + k % 5,) * 3).save(root / name / f"{k}.png")
        >>> run = train_images(root, size=16)
        >>> run.predict(root / "light").tolist()[:2]
        ['light', 'light']
    """
    if isinstance(size, bool) or not isinstance(size, int) or not 8 <= size <= 1024:
        raise HyperparameterError(f"expected images of 8 to 1,024 pixels, got size = {size!r}")
    root = Path(folder)
    paths, problem = _labelled(root)
    X = Pictures(size).read(paths)
    options = Options("images", METHODS, float(rho), float(price), 5, 1, seed, 1, least_group, threads or 1, False)
    digest = hashlib.sha256(X.tobytes() + problem.y.tobytes()).hexdigest()
    about = {**options.__dict__, "methods": list(METHODS), "size": size, "data": digest}
    return in_folder(out, about, lambda fits: _study(problem, X, options, size, fits, root.name, progress))


def _labelled(root: Path) -> tuple[list[Path], Problem]:
    classes = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(classes) < 2:
        raise DataError(f"expected a subfolder of images for each class in {shown(root)}, got {len(classes)}")
    paths: list[Path] = []
    y: list[int] = []
    for k, own in enumerate(classes):
        members = _images_below(own)
        if len(members) < 10:
            raise DataError(f"expected at least 10 images in {shown(_name(own), 200)}, got {len(members)}; remove it")
        paths += members
        y += [k] * len(members)
    frame = polars().DataFrame({"path": [_name(p.relative_to(root)) for p in paths]})
    split: Any = {"how": "random", "column": None, "value": None, "text": "A fifth of the images is kept for the test."}
    names = [_name(Path(p.name)) for p in classes]
    return paths, Problem(frame, "class", names, np.array(y), [], None, [], [], None, split, None, [])


def _study(
    problem: Problem, X: Array, options: Options, size: int, fits: _folder.Fits, title: str,
    progress: Callable[[int, int, str], None] | None,
) -> Run:  # fmt: skip
    began, tell = time.monotonic(), progress or (lambda done, total, text: None)
    cut, y = problem.cut(options.seed), problem.y
    first, second = train_test_split(cut.train, test_size=0.5, random_state=options.seed, stratify=y[cut.train])
    tell(1, 3, "network")
    state = fits.get(
        {"network": options.seed}, lambda: _trained(X[first], y[first], len(problem.classes), options.seed)
    )
    network = small_network(len(problem.classes))
    network.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()})
    tell(2, 3, "repair")
    loader = DataLoader(TensorDataset(_floats(X[second]), torch.from_numpy(y[second])), 256)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict says it
        fixed = repair(copy.deepcopy(network), loader, progress=False, budget=options.price, seed=options.seed)
    models = {"plain": ImageModel(network), "second-look": ImageModel(fixed.model)}
    tests = [
        Tested(name, options.seed, cut.test, model.predict(X[cut.test]), y[cut.test], (0.0, 1.0))
        for name, model in models.items()
    ]
    verdict, groups, methods = judge(problem, tests, options, "second-look", [], fixed.verdict.answer, False)
    for row in methods:
        row["seconds"] = round(time.monotonic() - began, 1)
    tell(3, 3, "done")
    note = f"The network was trained on {len(first):,} images, its last layer repaired on {len(second):,} others."
    found = Found(methods, [], groups, [], verdict, [note])
    summary = make_summary(problem, options, found, cut, len(first), title, time.monotonic() - began)
    if verdict["answer"] == "degenerate":
        del models["second-look"]
    return Run(summary, dict(models), Pictures(size))


def _trained(X: Array, y: Array, classes: int, seed: int) -> dict[str, Any]:
    """Weights of a small network, those of the epoch with the least loss on a sixth held out."""
    device = best_device()
    seen, held = train_test_split(np.arange(len(y)), test_size=1 / 6, random_state=seed, stratify=y)
    labels = torch.from_numpy(y)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = small_network(classes).to(device)
        optimizer = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=1e-3)
        best, state, since = np.inf, copy.deepcopy(network.state_dict()), 0
        mixed = torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda")
        for _ in range(EPOCHS):
            network.train()
            for rows in torch.split(torch.from_numpy(seen)[torch.randperm(len(seen))], BATCH):
                if len(rows) < 2:
                    continue
                images = _floats(X[rows.numpy()])
                flip = torch.rand(len(rows)) < 0.5
                images[flip] = images[flip].flip(3)
                with mixed:
                    out = network(images.to(device))
                loss = cross_entropy(out.float(), labels[rows].to(device))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            p = ImageModel(network).predict(X[held])
            value = float(-np.log(np.maximum(p[np.arange(len(held)), y[held]], 1e-12)).mean())
            since += 1
            if value < best:
                best, state, since = value, copy.deepcopy(network.state_dict()), 0
            elif since >= PATIENCE:
                break
    return {name: value.cpu().numpy() for name, value in state.items()}
