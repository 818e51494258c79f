"""Tables with groups: Adult, Census-Income and Covertype of UCI.

Groups serve evaluation; no feature tells of them but by what goes with them.
"""

from __future__ import annotations

import csv
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scdro.data.files import PathLike, data_folder, find, open_text
from scdro.errors import DataError

__all__ = ["Table", "adult", "census_income", "covertype"]

Array = npt.NDArray[Any]
UCI = "https://archive.ics.uci.edu/dataset"


class Table(NamedTuple):
    """Features (n, d), dense or sparse; labels 0, 1, ...; a column of group names for each kind of group; where known,
    names of the features."""

    X: Any
    y: Array
    groups: Array
    names: tuple[str, ...] = ()


class Census(NamedTuple):
    """Where the columns are. The sampling weight and the groups are left out of the features."""

    file: str
    width: int
    numeric: tuple[int, ...]
    sex: int
    race: int
    weight: int
    positive: str
    page: str
    columns: tuple[str, ...] = ()


ADULT_COLUMNS = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain "
    "capital-loss hours-per-week native-country income"
)
ADULT = Census("adult", 15, (0, 4, 10, 11, 12), 9, 8, 2, ">50K", f"{UCI}/2/adult", columns=tuple(ADULT_COLUMNS.split()))
CENSUS_INCOME = Census(
    "census-income-kdd", 42, (0, 5, 16, 17, 18, 30, 39), 12, 10, 24, "50000+.", f"{UCI}/117/census+income+kdd"
)


def adult(root: PathLike | None = None) -> tuple[Table, Table]:
    """Adult's training and test rows: is an income above 50,000 dollars? Groups: sex and race.

    Features, sparse: numbers standardised, other columns one-hot (values of fewer than 20 training rows are one), all
    but sex, race and the sampling weight.

    Args:
        root: the folder with adult.data and adult.test, plain or gzip; by default $SCDRO_DATA, or ./data.
    """
    return _census(ADULT, root)


def census_income(root: PathLike | None = None) -> tuple[Table, Table]:
    """Census-Income (KDD), 199,523 and 99,762 rows of which 6.2% positive; else as `adult`.

    Args:
        root: the folder with census-income-kdd.data and census-income-kdd.test, plain or gzip.
    """
    return _census(CENSUS_INCOME, root)


def covertype(root: PathLike | None = None) -> Table:
    """Covertype, 581,012 rows of 7 classes, 283,301 down to 2,747. Groups: the wilderness area.

    The 10 numbers are standardised over all rows, the 40 soil types and 4 areas 0 or 1. UCI's training rows are the
    first 11,340, its validation rows the next 3,780.

    Args:
        root: the folder with covtype.csv, plain or gzip, with a header.
    """
    path = find((data_folder(root),), "covtype.csv", f"get it from {UCI}/31/covertype, with a line of column names")
    with open_text(path) as file:
        table = np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.int32)
    if table.shape[1] != 55:
        raise DataError(f"expected 55 columns in {path}, got {table.shape[1]}")
    X = table[:, :54].astype(np.float64)
    X[:, :10] = (X[:, :10] - X[:, :10].mean(0)) / X[:, :10].std(0)
    names = np.array(["Rawah", "Neota", "Comanche Peak", "Cache la Poudre"])
    return Table(X, table[:, 54].astype(np.int64) - 1, names[table[:, 10:14].argmax(1)][:, None])


def _census(source: Census, root: PathLike | None) -> tuple[Table, Table]:
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    train, test = (_cells(source, part, root) for part in ("data", "test"))
    others = {*source.numeric, source.sex, source.race, source.weight, source.width - 1}
    encode = make_column_transformer(
        (StandardScaler(), list(source.numeric)),
        (
            OneHotEncoder(min_frequency=20, handle_unknown="infrequent_if_exist", feature_name_combiner=_value_name),
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

    y = np.char.startswith(cells[:, -1], source.positive).astype(np.int64)
    return Table(csr_matrix(X), y, np.stack([cells[:, source.sex], cells[:, source.race]], 1), names)


def _cells(source: Census, part: str, root: PathLike | None) -> Array:
    """All cells as strings; adult.test opens with one line that is not data, and files may end with an empty one."""
    path = find((data_folder(root),), f"{source.file}.{part}", f"get it from {source.page}")
    with open_text(path) as file:
        rows = [[cell.strip() for cell in row] for row in csv.reader(file)]
    kept = [row for row in rows if len(row) == source.width]
    if len(kept) < len(rows) - 2 or not kept:
        raise DataError(f"expected rows of {source.width} cells in {path}, {len(rows) - len(kept)} have another number")
    return np.array(kept)
