"""A folder of images: a network is trained on one half of the training images and repaired on the other."""

from __future__ import annotations

import copy
import hashlib
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from scdro._validation import check_whole
from scdro.errors import DataError
from scdro.second_look import repair
from scdro.tables import _folder
from scdro.tables._network import best_device
from scdro.tables._pictures import ImageModel, Pictures, as_floats, images_below, printable, small_network
from scdro.tables._problem import Problem
from scdro.tables._read import polars, shown
from scdro.tables._run import Run
from scdro.tables._study import Found, Options, in_folder, make_summary
from scdro.tables._verdict import Tested, judge

__all__ = ["train_images"]

Array = npt.NDArray[Any]
EPOCHS, PATIENCE, BATCH = 40, 6, 64
METHODS = ("plain", "second-look")


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
    check_whole("size", size, 8, 1024, "the side of the images in pixels")
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
        members = images_below(own)
        if len(members) < 10:
            raise DataError(f"expected at least 10 images in {shown(printable(own), 200)}, got {len(members)}")
        paths += members
        y += [k] * len(members)
    frame = polars().DataFrame({"path": [printable(p.relative_to(root)) for p in paths]})
    split: Any = {"how": "random", "column": None, "value": None, "text": "A fifth of the images is kept for the test."}
    names = [printable(Path(p.name)) for p in classes]
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
    loader = DataLoader(TensorDataset(as_floats(X[second]), torch.from_numpy(y[second])), 256)
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
                images = as_floats(X[rows.numpy()])
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
