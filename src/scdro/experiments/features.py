"""Features of a frozen network, computed once and kept on disk: the paper's convex setting in minutes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from scdro.data.files import PathLike
from scdro.errors import DataError, MissingDataError
from scdro.experiments.catalog import Data, in_order
from scdro.experiments.storage import read_json, write_json
from scdro.models import Network

__all__ = ["Features", "extract", "load_features", "weights_fingerprint"]

Array = npt.NDArray[Any]


class Features(NamedTuple):
    """Memory-mapped features (n, d), labels (n,), and groups (n,) where the data have them."""

    x: Array
    y: Array
    groups: Array | None


def extract(
    model: Network,
    data: Data,
    folder: Path,
    split: str,
    *,
    dtype: str = "float16",
    batch_size: int = 500,
    workers: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> bool:
    """Write the features of one split, unless those of the same data and weights are there; says whether it did.

    Writes {split}_features.npy, {split}_labels.npy, {split}_groups.npy where there are groups, and last {split}.json
    with the fingerprint of data and weights, without which the others do not count.
    """
    if dtype not in ("float16", "float32"):
        raise DataError(f"expected features of dtype float16 or float32, got {dtype!r}")
    parts = [data.fingerprint(), weights_fingerprint(model), dtype]
    fingerprint = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    if _is_current(folder, split, fingerprint):
        return False
    manifest = _manifest(folder, split)
    manifest.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    width = model.classifier.in_features
    part = folder / f".{split}_features.part"
    x = np.lib.format.open_memmap(part, "w+", dtype=dtype, shape=(len(data), width))
    _fill(x, model.to(device).eval(), data, batch_size, workers, device, lambda done: progress(done, len(data), split))
    x.flush()
    os.replace(part, folder / f"{split}_features.npy")
    np.save(folder / f"{split}_labels.npy", data.labels.cpu().numpy())
    groups = getattr(data, "groups", None)
    if groups is not None:
        np.save(folder / f"{split}_groups.npy", groups.cpu().numpy())
    about = {"fingerprint": fingerprint, "data": parts[0], "weights": parts[1], "dtype": dtype}
    write_json(manifest, about | {"shape": [len(data), width], "groups": groups is not None})
    return True


def load_features(folder: PathLike, split: str) -> Features:
    """What `extract` wrote, the features mapped and not read."""
    folder = Path(folder)
    manifest = _manifest(folder, split)
    if not manifest.exists():
        raise MissingDataError(f"expected {manifest.absolute()}; make features by `scdro features`")
    about = read_json(manifest)
    x = np.load(folder / f"{split}_features.npy", mmap_mode="r")
    y = np.load(folder / f"{split}_labels.npy")
    if list(x.shape) != about["shape"] or len(y) != len(x) or x.dtype != about["dtype"]:
        raise DataError(f"expected features as {manifest} says, {about['shape']}, got {list(x.shape)}; make them anew")
    return Features(x, y, np.load(folder / f"{split}_groups.npy") if about["groups"] else None)


def weights_fingerprint(model: Network) -> str:
    """SHA-256 of the network's kind and of every weight and statistic that features depend on."""
    digest = hashlib.sha256(type(model).__name__.encode())
    for name, value in sorted(model.state_dict().items()):
        if not name.startswith("classifier."):
            digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def _fill(
    x: Array,
    model: Network,
    data: Data,
    batch_size: int,
    workers: int,
    device: torch.device | str,
    progress: Callable[[int], None],
) -> None:
    done = 0
    for images, _, _ in in_order(data, batch_size, workers):
        found = model.features(images.to(device)).float().cpu().numpy()
        largest = np.abs(found).max()
        if not largest <= np.finfo(x.dtype).max:
            raise DataError(f"expected features that {x.dtype} can hold, got up to {largest:.3g}")
        x[done : done + len(found)] = found
        done += len(found)
        progress(done)


def _is_current(folder: Path, split: str, fingerprint: str) -> bool:
    try:
        load_features(folder, split)
        return bool(read_json(_manifest(folder, split))["fingerprint"] == fingerprint)
    except (OSError, ValueError, KeyError):
        return False


def _manifest(folder: Path, split: str) -> Path:
    return folder / f"{split}.json"
