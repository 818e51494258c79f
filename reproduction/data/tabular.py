"""Tables with groups: Adult, Census-Income and Covertype of UCI.

Groups serve evaluation; no feature tells of them but by what goes with them.
"""

from __future__ import annotations

import csv
import itertools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reproduction.data.files import PathLike, data_folder, find, open_text
from scdro.errors import DataError

__all__ = ["Table", "adult", "census_income", "covertype"]

Array = npt.NDArray[Any]
UCI = "https://archive.ics.uci.edu/dataset"


class Table(NamedTuple):
    """Features (n, d), dense or sparse; labels 0, 1, ...; a column of group names for each kind of group; where known,
    names of the features.

    Example:
        >>> table = Table(np.zeros((2, 1)), np.array([0, 1]), groups=np.array([["F"], ["M"]]), names=("age",))
        >>> table.groups[table.y == 1].tolist()
        [['M']]
    """

    X: Any
    y: Array
    groups: Array
    names: tuple[str, ...] = ()


class Census(NamedTuple):
    """Where the columns are. The sampling weight and the groups are left out of the features."""

    files: tuple[str, ...]
    width: int
    numeric: tuple[int, ...]
    sex: int
    race: int
    weight: int
    labels: tuple[str, str]
    page: str
    columns: tuple[str, ...] = ()


ADULT_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex"
    " capital-gain capital-loss hours-per-week native-country income"
)
ADULT = Census(
    ("adult",),
    15,
    (0, 4, 10, 11, 12),
    9,
    8,
    2,
    ("<=50K", ">50K"),
    f"{UCI}/2/adult",
    columns=tuple(ADULT_COLUMNS.split()),
)
CENSUS_INCOME = Census(
    ("census-income-kdd", "census-income"),
    42,
    (0, 5, 16, 17, 18, 30, 39),
    12,
    10,
    24,
    ("- 50000", "50000+"),
    f"{UCI}/117/census+income+kdd",
)


def adult(root: PathLike | None = None) -> tuple[Table, Table]:
    """Adult's training and test rows: is an income above 50,000 dollars? Groups: sex and race.

    Features, sparse: numbers standardised, other columns one-hot (values of fewer than 20 training
    rows are one), all but sex, race and the sampling weight.

    Args:
        root: the folder with adult.data and adult.test, plain or gzip; by default $SCDRO_DATA, or
            ./data.

    Example:
        >>> train, test = adult("data")  # doctest: +SKIP
        >>> adult("no/such/folder")  # where to get it
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the file ...
    """
    return _census(ADULT, root)


def census_income(root: PathLike | None = None) -> tuple[Table, Table]:
    """Census-Income (KDD), 199,523 and 99,762 rows, 6.2% of them positive; otherwise like `adult`.

    Args:
        root: the folder with census-income-kdd.data and census-income-kdd.test, or
            census-income.data and census-income.test, as UCI has them, plain or gzip.

    Example:
        >>> train, test = census_income("data")  # doctest: +SKIP
        >>> census_income("no/such/folder")  # where to get it
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the file ...
    """
    return _census(CENSUS_INCOME, root)


def covertype(root: PathLike | None = None) -> Table:
    """Covertype, 581,012 rows of 7 classes, 283,301 down to 2,747. Groups: the wilderness area.

    The 10 numbers are standardised over all rows, the 40 soil types and 4 areas 0 or 1. UCI's
    training rows are the first 11,340, its validation rows the next 3,780.

    Args:
        root: the folder with covtype.csv or UCI's covtype.data, plain or gzip, with or without a
            line of column names.

    Example:
        >>> X, y, groups, names = covertype("data")  # doctest: +SKIP
        >>> covertype("no/such/folder")  # where to get it
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the file ...
    """
    path = find(
        (data_folder(root),), ("covtype.csv", "covtype.data"), f"get it from {UCI}/31/covertype"
    )
    table = _integers(path)
    if table.shape[1] != 55:
        raise DataError(f"expected 55 columns in {path}, got {table.shape[1]}")
    if table[:, 54].min() < 1 or table[:, 54].max() > 7 or (table[:, 10:14].sum(1) != 1).any():
        raise DataError(
            f"expected rows of one wilderness area and a class from 1 to 7 in {path}, got others"
        )
    X = table[:, :54].astype(np.float64)
    spread = X[:, :10].std(0)
    X[:, :10] = (X[:, :10] - X[:, :10].mean(0)) / np.where(spread > 0, spread, 1.0)
    names = np.array(["Rawah", "Neota", "Comanche Peak", "Cache la Poudre"])
    return Table(X, table[:, 54].astype(np.int64) - 1, names[table[:, 10:14].argmax(1)][:, None])


def _integers(path: Path) -> Array:
    """A file of whole numbers, maybe after a line of column names."""
    with open_text(path) as file:
        first = file.readline()
        own = [] if first[:1].isalpha() or first[:1] == '"' else [first]
        try:
            return np.loadtxt(itertools.chain(own, file), delimiter=",", dtype=np.int32, ndmin=2)
        except UnicodeDecodeError:
            raise
        except ValueError as error:
            raise DataError(
                f"expected rows of whole numbers in {path}, got others: {error}"
            ) from error


def _census(source: Census, root: PathLike | None) -> tuple[Table, Table]:
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    train, test = (_cells(source, part, root) for part in ("data", "test"))
    others = {*source.numeric, source.sex, source.race, source.weight, source.width - 1}
    encode = make_column_transformer(
        (StandardScaler(), list(source.numeric)),
        (
            OneHotEncoder(
                min_frequency=20,
                handle_unknown="infrequent_if_exist",
                feature_name_combiner=_value_name,
            ),
            [j for j in range(source.width) if j not in others],
        ),
        sparse_threshold=1.0,
        verbose_feature_names_out=False,
    )
    matrices = encode.fit_transform(train), encode.transform(test)
    names = tuple(encode.get_feature_names_out(source.columns)) if source.columns else ()
    return _table(source, train, matrices[0], names), _table(source, test, matrices[1], names)


def _value_name(column: str, value: str) -> str:
    return f"{column}: {'a rare value' if value == 'infrequent_sklearn' else value}"


def _table(source: Census, cells: Array, X: Any, names: tuple[str, ...]) -> Table:
    from scipy.sparse import csr_matrix

    y = (np.char.rstrip(cells[:, -1], ".") == source.labels[1]).astype(np.int64)
    return Table(
        csr_matrix(X), y, np.stack([cells[:, source.sex], cells[:, source.race]], 1), names
    )


def _cells(source: Census, part: str, root: PathLike | None) -> Array:
    """All cells as strings. Empty lines, and those that begin with |, as adult.test's first one, are no data."""
    names = tuple(f"{name}.{part}" for name in source.files)
    path = find((data_folder(root),), names, f"get it from {source.page}")
    kept = []
    with open_text(path) as file:
        for number, row in enumerate(csv.reader(file), 1):
            cells = [cell.strip() for cell in row]
            if not any(cells) or cells[0].startswith("|"):
                continue
            _check_row(source, cells, f"line {number} of {path}")
            kept.append(cells)
    if not kept:
        raise DataError(f"expected rows of {source.width} cells in {path}, got none")
    return np.array(kept)


def _check_row(source: Census, cells: list[str], where: str) -> None:
    if len(cells) != source.width:
        raise DataError(
            f"expected rows of {source.width} cells, got {len(cells)} in {where}; download the file"
            " again"
        )
    if cells[-1].rstrip(".") not in source.labels:
        raise DataError(
            f"expected a label of {' or '.join(source.labels)}, got {cells[-1]!r} in {where}"
        )
    try:
        numbers = [float(cells[j]) for j in source.numeric]
    except ValueError as error:
        raise DataError(
            f"expected numbers in columns {source.numeric}, got others in {where}: {error}"
        ) from error
    if not all(map(math.isfinite, numbers)):
        raise DataError(
            f"expected finite numbers in columns {source.numeric}, got others in {where}"
        )
