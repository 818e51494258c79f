"""Classes and groups of one's own data: texts in files, numbers in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scdro.application.own.tables import MISSING, Column
from scdro.data import hold_out
from scdro.errors import DataError, HyperparameterError

__all__ = ["Classes", "Groups", "check_present", "set_aside"]

Array = npt.NDArray[Any]
FEWEST_ROWS = 20
NO_LABEL = MISSING - {"none"}  # which may well be a class


@dataclass(frozen=True)
class Classes:
    """Names of the classes, in order. Numbers are written one way: 1.0 is 1."""

    names: tuple[str, ...]

    @classmethod
    def fit(cls, labels: Column, where: str) -> Classes:
        """From the labels of all data that training may use."""
        check_present(labels, where)
        names, counts = _merged(labels)
        if len(labels.codes) < FEWEST_ROWS:
            raise DataError(f"expected at least {FEWEST_ROWS} samples to learn from, got {len(labels.codes)} {where}")
        if len(names) < 2:
            raise DataError(f"expected at least two classes, got one, {names[0]!r}, {where}")
        single = [name for name, count in zip(names, counts, strict=True) if count < 2]
        if 2 * len(single) > len(names) or (_all_numbers(names) and len(names) > max(100, len(labels.codes) // 10)):
            raise DataError(
                f"expected classes, got {len(names):,} different values {where}, too many to be classes; to predict a "
                "number see scdro.linear_model.KLDRORegressor, and for classes put values together"
            )
        if single:
            raise DataError(
                f"expected at least two samples of every class, got one of {', '.join(map(repr, single[:5]))} {where}; "
                "leave it out, put it together with another class, or collect more"
            )
        return cls(tuple(names))

    def encode(self, labels: Column, where: str) -> Array:
        """The number of each sample's class."""
        check_present(labels, where)
        place = {name: k for k, name in enumerate(self.names)}
        here = labels.counts() > 0
        names = [_canonical(value, _all_numbers(self.names)) for value in labels.values]
        unknown = [name for name, present in zip(names, here, strict=True) if present and name not in place]
        if unknown:
            raise DataError(
                f"expected the classes of training, {', '.join(map(repr, self.names[:10]))}, got {unknown[0]!r} {where}"
            )
        return np.array([place.get(name, 0) for name in names], np.int64)[labels.codes]


class Groups:
    """Names of groups, those of training first; parts of the data may bring new ones."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def encode(self, columns: Sequence[Column]) -> Array:
        """The number of each sample's group: of one column its text, of several all combinations that occur."""
        rows = np.stack([c.codes for c in columns], 1)
        kinds, member = np.unique(rows, axis=0, return_inverse=True)
        texts = [", ".join(c.values[j] or "(none)" for c, j in zip(columns, row, strict=True)) for row in kinds]
        self.names += sorted(set(texts) - set(self.names))
        place = {name: k for k, name in enumerate(self.names)}
        return np.array([place[text] for text in texts], np.int64)[member.ravel()]


def set_aside(labels: Array, share: float) -> tuple[Array, Array]:
    """Positions to train on and to validate on: of each class about that share, drawn at random, always the same."""
    import torch

    if not 0.0 < share <= 0.5:
        raise HyperparameterError(f"expected a share of the data in (0, 0.5] to validate on, or a file, got {share}")
    order = np.random.default_rng(0).permutation(len(labels))
    stays, aside = hold_out(torch.from_numpy(labels[order]), round(1 / share))
    if not len(aside):
        raise DataError(f"expected enough samples of a class to validate on a share of {share}, got none; raise it")
    return np.sort(order[stays.numpy()]), np.sort(order[aside.numpy()])


def check_present(labels: Column, where: str, lines: Array | None = None) -> None:
    """Whether every sample has a class; `lines` are those of a file in which the samples begin."""
    gaps = labels.where([value.lower() in NO_LABEL for value in labels.values])
    if len(gaps):
        first = f"sample {gaps[0] + 1}" if lines is None else f"in line {lines[gaps[0]]}"
        raise DataError(
            f"expected a class for every sample, got none for {len(gaps):,} {where}, the first of them {first}; drop "
            "them, or predict them once the model is trained"
        )


def _merged(labels: Column) -> tuple[list[str], list[int]]:
    """Names that occur, sorted, and how often."""
    present = labels.counts()
    numeric = _all_numbers([v for v, c in zip(labels.values, present, strict=True) if c])
    sizes: dict[str, int] = {}
    for value, count in zip(labels.values, present.tolist(), strict=True):
        if count:
            name = _canonical(value, numeric)
            sizes[name] = sizes.get(name, 0) + count
    names = sorted(sizes, key=float) if numeric else sorted(sizes)
    return names, [sizes[name] for name in names]


def _all_numbers(names: Sequence[str]) -> bool:
    try:
        return all(np.isfinite(float(name)) for name in names)
    except ValueError:
        return False


def _canonical(value: str, numeric: bool) -> str:
    try:
        number = float(value) if numeric else np.nan
    except ValueError:
        return value
    return str(int(number)) if number.is_integer() else value
