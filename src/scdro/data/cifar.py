"""CIFAR-10 and CIFAR-100 from their own pickle files, the paper's -ST forms of them, and one with hidden groups."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scdro.data.files import PathLike, data_folder, find, open_bytes
from scdro.data.images import ImageData, Triple
from scdro.data.imbalance import keep_last, step_imbalance
from scdro.errors import DataError, MissingDataError

__all__ = ["CIFAR10", "CIFAR10ST", "CIFAR100", "CIFAR100ST", "CIFAR100Hidden"]


class Source(NamedTuple):
    name: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: tuple[str, ...]
    meta: str
    archive: str
    mean: Triple
    std: Triple


TEN = Source(
    "CIFAR10",
    "cifar-10-batches-py",
    tuple(f"data_batch_{i}" for i in range(1, 6)),
    ("test_batch",),
    ("labels",),
    "batches.meta",
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    (0.4914, 0.4822, 0.4465),
    (0.2023, 0.1994, 0.2010),
)
HUNDRED = Source(
    "CIFAR100",
    "cifar-100-python",
    ("train",),
    ("test",),
    ("fine_labels", "coarse_labels"),
    "meta",
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
)


class CIFAR10(ImageData):
    """CIFAR-10 in memory.

    Args:
        root: the folder that holds `cifar-10-batches-py`, or that folder itself; by default $SCDRO_DATA, or ./data.
        train: the 50,000 training images, or the 10,000 test images.
        download: fetch missing files by torchvision, which must be installed.
    """

    def __init__(self, root: PathLike | None = None, train: bool = True, *, download: bool = False) -> None:
        files = _Files(TEN, root, download)
        images, labels = files.read(train)
        super().__init__(
            images, labels["labels"], mean=TEN.mean, std=TEN.std, names=_names(files.meta(), "label_names")
        )


class CIFAR10ST(CIFAR10):
    """The paper's CIFAR10-ST: of classes 0 to 4 only the last 100 training images; the test images as they are.

    Arguments as for `CIFAR10`; `keep` images remain of each of the first five classes.
    """

    def __init__(
        self, root: PathLike | None = None, train: bool = True, *, keep: int = 100, download: bool = False
    ) -> None:
        super().__init__(root, train, download=download)
        if train:
            self._keep(step_imbalance(self.labels, range(self.classes // 2), keep))


class CIFAR100(ImageData):
    """CIFAR-100 in memory, with fine labels, or with its superclasses as labels and fine labels as `groups`.

    Arguments as for `CIFAR10`, with the folder `cifar-100-python`.
    """

    def __init__(
        self, root: PathLike | None = None, train: bool = True, *, coarse: bool = False, download: bool = False
    ) -> None:
        files = _Files(HUNDRED, root, download)
        images, labels = files.read(train)
        meta = files.meta()
        fine, superclass = _names(meta, "fine_label_names"), _names(meta, "coarse_label_names")
        super().__init__(
            images,
            labels["coarse_labels" if coarse else "fine_labels"],
            mean=HUNDRED.mean,
            std=HUNDRED.std,
            names=superclass if coarse else fine,
            groups=labels["fine_labels"] if coarse else None,
            group_names=fine if coarse else (),
        )


class CIFAR100ST(CIFAR100):
    """The paper's CIFAR100-ST: of classes 0 to 49 only the last 100 training images; the test images as they are."""

    def __init__(
        self, root: PathLike | None = None, train: bool = True, *, keep: int = 100, download: bool = False
    ) -> None:
        super().__init__(root, train, download=download)
        if train:
            self._keep(step_imbalance(self.labels, range(self.classes // 2), keep))


class CIFAR100Hidden(CIFAR100):
    """CIFAR-100 by its 20 superclasses, in each of which two of the five fine classes are almost missing.

    The two are those of the least numbers, and keep their last 50 training images. All superclasses have 1,600 training
    images, so no label tells of the imbalance. Fine labels are `groups`, for evaluation alone, `rare` the rare ones.
    """

    def __init__(
        self, root: PathLike | None = None, train: bool = True, *, keep: int = 50, download: bool = False
    ) -> None:
        super().__init__(root, train, coarse=True, download=download)
        assert self.groups is not None
        self.rare = tuple(sorted(g for c in range(self.classes) for g in _members(self.groups, self.labels == c)[:2]))
        if train:
            self._keep(keep_last(self.groups, dict.fromkeys(self.rare, keep)))


def _members(groups: Tensor, own: Tensor) -> list[int]:
    return sorted(set(groups[own].tolist()))


class _Files:
    """The files of one of the two, found or downloaded."""

    def __init__(self, source: Source, root: PathLike | None, download: bool) -> None:
        self.source, base = source, data_folder(root)
        self.folders = (base / source.folder, base)
        if download and not any((folder / source.meta).is_file() for folder in self.folders):
            _download(source, base)

    def read(self, train: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Images (n, 3, 32, 32), and every kind of label."""
        parts = [self._load(name) for name in (self.source.train if train else self.source.test)]
        labels = {kind: torch.tensor([label for part in parts for label in part[kind]]) for kind in self.source.labels}
        return torch.from_numpy(np.concatenate([part["data"] for part in parts])).view(-1, 3, 32, 32), labels

    def meta(self) -> dict[str, Any]:
        return _unpickled(self._path(self.source.meta))

    def _path(self, name: str) -> Path:
        how = f"unpack {self.source.archive} there, name the folder by root= or $SCDRO_DATA, or pass download=True"
        return find(self.folders, name, how)

    def _load(self, name: str) -> dict[str, Any]:
        path = self._path(name)
        content = _unpickled(path)
        data = content.get("data")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
            raise DataError(f"expected uint8 images of shape (n, 3072) under 'data' in {path}; get the file anew")
        for kind in self.source.labels:
            if len(content.get(kind, ())) != len(data):
                raise DataError(f"expected {len(data)} entries under {kind!r} in {path}; get the file anew")
        return content


class _NumpyOnly(pickle.Unpickler):
    """Reads arrays, lists and strings; a pickle that would call anything else is refused."""

    allowed = frozenset({"_reconstruct", "ndarray", "dtype", "scalar", "encode", "_frombuffer"})

    def find_class(self, module: str, name: str) -> Any:
        if name in self.allowed and module.split(".")[0] in ("numpy", "_codecs"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a data file")


def _unpickled(path: Path) -> dict[str, Any]:
    try:
        with open_bytes(path) as file:
            content = _NumpyOnly(file, encoding="bytes").load()
        return {key.decode() if isinstance(key, bytes) else key: value for key, value in content.items()}
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, IndexError) as error:
        raise DataError(f"expected a pickle file of CIFAR, got one that cannot be read, {path}: {error}") from error


def _names(meta: dict[str, Any], key: str) -> list[str]:
    return [name.decode() if isinstance(name, bytes) else str(name) for name in meta[key]]


def _download(source: Source, base: Path) -> None:
    try:
        from torchvision import datasets
    except Exception as error:  # torchvision fails in many ways beside a torch that it was not built for
        raise MissingDataError(
            f"expected torchvision, to download {source.name}, but it cannot be imported ({error}); install it, or "
            f"unpack {source.archive} in {base.absolute()} by hand"
        ) from error
    getattr(datasets, source.name)(str(base), download=True)
