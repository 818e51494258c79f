"""Features of a frozen network, computed once and stored on disk, for the paper's convex setting in minutes."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from reproduction.data.files import PathLike
from reproduction.engine.devices import as_device
from reproduction.engine.folder import Notice, locked
from reproduction.engine.networks import Network
from reproduction.engine.storage import read_json, write_json
from reproduction.engine.task import Samples, in_order
from scdro.errors import DataError, MissingDataError

__all__ = ["StoredFeatures", "extract", "load_features", "weights_fingerprint"]

Array = npt.NDArray[Any]


class StoredFeatures(NamedTuple):
    """Memory-mapped features (n, d), labels (n,), and groups (n,) if the data have them."""

    x: Array
    y: Array
    groups: Array | None


def extract(
    model: Network,
    data: Samples,
    folder: Path,
    split: str,
    *,
    dtype: str = "float16",
    batch_size: int = 500,
    workers: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
    notice: Notice = warnings.warn,
) -> bool:
    """Write the features of one split, unless they exist for the same data and weights; return whether it did.

    Writes {split}_features.npy, {split}_labels.npy, {split}_groups.npy if there are groups, and
    last {split}.json with the fingerprint of data and weights and the SHA-256 of these files;
    without it they are ignored. Only one process at a time writes to a folder.
    """
    if dtype not in ("float16", "float32"):
        raise DataError(f"expected features of dtype float16 or float32, got {dtype!r}")
    model = model.to(as_device(device)).eval()
    about = {"data": data.fingerprint(), "weights": weights_fingerprint(model), "dtype": dtype}
    about["fingerprint"] = hashlib.sha256(json.dumps([*about.values()]).encode()).hexdigest()
    if _is_current(folder, split, about):
        return False
    with locked(folder, notice):
        if _is_current(folder, split, about):
            return False
        with _unfinished(folder, split) as part:
            shape = (len(data), model.classifier.in_features)
            x = np.lib.format.open_memmap(part, "w+", dtype=dtype, shape=shape)
            _fill(
                x, model, data, batch_size, workers, lambda done: progress(done, len(data), split)
            )
            x.flush()
            _publish(part, data, folder, split, about | {"shape": shape})
    return True


def load_features(folder: PathLike, split: str) -> StoredFeatures:
    """Load and check what `extract` wrote. The features are memory-mapped."""
    folder = Path(folder)
    manifest = _manifest(folder, split)
    if not manifest.exists():
        raise MissingDataError(
            f"expected {manifest.absolute()}; make features with `python -m reproduction features`"
        )
    try:
        digests = read_json(manifest)["sha256"]
        names = ["features", "labels", *(["groups"] if "groups" in digests else [])]
        files = [_file(folder, split, name) for name in names]
        if [_sha256(file) for file in files] != [digests[name] for name in names]:
            raise ValueError("its files have another SHA-256")
        rest = [np.load(file) for file in files[1:]]
        return StoredFeatures(
            np.load(files[0], mmap_mode="r"), rest[0], rest[1] if len(rest) > 1 else None
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"expected features as {manifest.absolute()} says, got others ({type(error).__name__}:"
            f" {error}); make them again by `python -m reproduction features`"
        ) from error


def weights_fingerprint(model: Network) -> str:
    """SHA-256 of the network's type and of every weight and statistic that the features depend on."""
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
    data: Samples,
    batch_size: int,
    workers: int,
    progress: Callable[[int], None],
) -> None:
    done, device = 0, next(model.parameters()).device
    for images, _, _ in in_order(data, batch_size, workers):
        found = model.features(images.to(device)).float().cpu().numpy()
        largest = np.abs(found).max()
        if not largest <= np.finfo(x.dtype).max:
            raise DataError(f"expected features that {x.dtype} can hold, got up to {largest:.3g}")
        x[done : done + len(found)] = found
        done += len(found)
        progress(done)


def _publish(part: Path, data: Samples, folder: Path, split: str, about: dict[str, Any]) -> None:
    """Replace the old files, which are valid until then, by the new ones."""
    _manifest(folder, split).unlink(missing_ok=True)
    os.replace(part, _file(folder, split, "features"))
    arrays = {name: getattr(data, name, None) for name in ("labels", "groups")}
    known = {name: values.cpu().numpy() for name, values in arrays.items() if values is not None}
    for name, values in known.items():
        np.save(_file(folder, split, name), values)
    digests = {name: _sha256(_file(folder, split, name)) for name in ("features", *known)}
    write_json(_manifest(folder, split), about | {"sha256": digests})


def _is_current(folder: Path, split: str, about: dict[str, str]) -> bool:
    try:
        load_features(folder, split)
        return bool(read_json(_manifest(folder, split))["fingerprint"] == about["fingerprint"])
    except (OSError, ValueError, KeyError):
        return False


@contextmanager
def _unfinished(folder: Path, split: str) -> Iterator[Path]:
    """A temporary file for this process, removed at the end together with those of killed processes."""
    part = folder / f".{split}_features.{os.getpid()}.part"
    try:
        yield part
    finally:
        for left in folder.glob(f".{split}_features.*.part"):
            with suppress(OSError):
                left.unlink()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _manifest(folder: Path, split: str) -> Path:
    return folder / f"{split}.json"


def _file(folder: Path, split: str, name: str) -> Path:
    return folder / f"{split}_{name}.npy"
