"""CIFAR-10 and CIFAR-100 from their own pickle files, the paper's -ST forms of them, and one with hidden groups."""

from __future__ import annotations

import pickle
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reproduction.data.files import PathLike, data_folder, find, open_bytes
from reproduction.data.images import ImageData, Triple
from scdro._validation import as_labels
from scdro.data import keep_last, step_imbalance
from scdro.errors import DataError

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
        root: the folder that holds `cifar-10-batches-py`, or that folder itself; by default
            $SCDRO_DATA, or ./data.
        train: the 50,000 training images, or the 10,000 test images.

    Example:
        >>> test = CIFAR10("data", train=False)  # doctest: +SKIP
        >>> CIFAR10("no/such/folder")  # where to get it
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the file ...
    """

    def __init__(self, root: PathLike | None = None, train: bool = True) -> None:
        files = _Files(TEN, root, train)
        images, labels = files.read()
        super().__init__(
            images, labels["labels"], mean=TEN.mean, std=TEN.std, names=files.names("label_names")
        )


class CIFAR100(ImageData):
    """CIFAR-100 in memory, with fine labels, or with its superclasses as labels and fine labels as `groups`.

    Arguments as for `CIFAR10`, with the folder `cifar-100-python`.

    Example:
        >>> train = CIFAR100("data")  # doctest: +SKIP
        >>> CIFAR100("no/such/folder")  # where to get it
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the file ...
    """

    def __init__(
        self, root: PathLike | None = None, train: bool = True, *, coarse: bool = False
    ) -> None:
        files = _Files(HUNDRED, root, train)
        images, labels = files.read()
        fine, superclass = files.names("fine_label_names"), files.names("coarse_label_names")
        super().__init__(
            images,
            labels["coarse_labels" if coarse else "fine_labels"],
            mean=HUNDRED.mean,
            std=HUNDRED.std,
            names=superclass if coarse else fine,
            groups=labels["fine_labels"] if coarse else None,
            group_names=fine if coarse else (),
        )


class _FewOfHalf:
    """Of the first half of the classes only the last `keep` training images."""

    def __init__(
        self, root: PathLike | None = None, train: bool = True, *, keep: int = 100
    ) -> None:
        super().__init__(root, train)  # type: ignore[call-arg]  # of the data set beside it
        if train:
            assert isinstance(self, ImageData)
            self._keep(step_imbalance(self.labels, range(self.classes // 2), keep))


class CIFAR10ST(_FewOfHalf, CIFAR10):
    """The paper's CIFAR10-ST: of classes 0 to 4 only the last 100 training images; the test images as they are.

    Arguments as for `CIFAR10`; `keep` images remain of each of the first five classes.

    Example:
        >>> CIFAR10ST("data", keep=50).counts  # doctest: +SKIP
        >>> CIFAR10ST("no/such/folder")  # where to get it
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the file ...
    """


class CIFAR100ST(_FewOfHalf, CIFAR100):
    """The paper's CIFAR100-ST: of classes 0 to 49 only the last 100 training images; the test images as they are.

    Example:
        >>> CIFAR100ST("data").counts  # doctest: +SKIP
        >>> CIFAR100ST("no/such/folder")  # where to get it
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the file ...
    """


class CIFAR100Hidden(CIFAR100):
    """CIFAR-100 by its 20 superclasses; in each, two of the five fine classes are almost missing.

    The two are those of the least numbers, and keep their last 50 training images. All superclasses
    have 1,600 training images, so no label tells of the imbalance. Fine labels are `groups`, for
    evaluation alone, `rare` the rare ones.

    Example:
        >>> CIFAR100Hidden("data").rare  # doctest: +SKIP
        >>> CIFAR100Hidden("no/such/folder")  # where to get it
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the file ...
    """

    def __init__(self, root: PathLike | None = None, train: bool = True, *, keep: int = 50) -> None:
        super().__init__(root, train, coarse=True)
        assert self.groups is not None
        self.rare = tuple(
            sorted(
                g for c in range(self.classes) for g in _members(self.groups, self.labels == c)[:2]
            )
        )
        if train:
            self._keep(keep_last(self.groups, dict.fromkeys(self.rare, keep)))


def _members(groups: Tensor, own: Tensor) -> list[int]:
    return sorted(set(groups[own].tolist()))


class _Files:
    """The files of one of the two."""

    def __init__(self, source: Source, root: PathLike | None, train: bool) -> None:
        self.source, base = source, data_folder(root)
        self.parts = source.train if train else source.test
        self.folders = (base / source.folder, base)

    def read(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Images (n, 3, 32, 32), and all kinds of labels."""
        parts = [self._load(name) for name in self.parts]
        labels = {kind: torch.cat([part[kind] for _, part in parts]) for kind in self.source.labels}
        return (
            torch.from_numpy(np.concatenate([data for data, _ in parts])).view(-1, 3, 32, 32),
            labels,
        )

    def names(self, key: str) -> list[str]:
        path = self._path(self.source.meta)
        names = _unpickled(path).get(key)
        if not isinstance(names, list):
            raise DataError(
                f"expected a list of names under {key!r} in {path}; download the file again"
            )
        return [name.decode() if isinstance(name, bytes) else str(name) for name in names]

    def _path(self, name: str) -> Path:
        return find(
            self.folders,
            name,
            f"unpack {self.source.archive} there, or name the folder by --data or $SCDRO_DATA",
        )

    def _load(self, name: str) -> tuple[npt.NDArray[np.uint8], dict[str, Tensor]]:
        path = self._path(name)
        content = _unpickled(path)
        data = content.get("data")
        if (
            not isinstance(data, np.ndarray)
            or data.dtype != np.uint8
            or data.ndim != 2
            or data.shape[1] != 3072
        ):
            raise DataError(
                f"expected uint8 images of shape (n, 3072) under 'data' in {path}; download the"
                " file again"
            )
        labels = {
            kind: as_labels(content.get(kind), len(data), what=f"entries under {kind!r} in {path}")
            for kind in self.source.labels
        }
        return data, labels


class _NumpyOnly(pickle.Unpickler):
    """Reads arrays, lists and strings; a pickle that calls anything else raises an error."""

    allowed = frozenset(
        {
            ("_codecs", "encode"),
            ("numpy", "dtype"),
            ("numpy", "ndarray"),
            *(
                (f"numpy.{core}.multiarray", name)
                for core in ("core", "_core")
                for name in ("_reconstruct", "scalar")
            ),
            *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.allowed:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a data file")


def _unpickled(path: Path) -> dict[str, Any]:
    with open_bytes(path) as file:
        try:
            content = _NumpyOnly(file, encoding="bytes").load()
            return {
                key.decode() if isinstance(key, bytes) else key: value
                for key, value in content.items()
            }
        except (OSError, EOFError, zlib.error):
            raise
        except Exception as error:  # bytes that are not a pickle fail in any way
            raise DataError(
                f"expected a pickle file of CIFAR, got one that cannot be read, {path}: {error};"
                " download it again"
            ) from error
