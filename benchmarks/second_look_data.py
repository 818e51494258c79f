"""The data of `benchmarks/second_look.py`: features or rows, labels, and groups that only the evaluation sees.

Every task is made from files on disk and a seed. What takes long (images, embeddings) is kept in a
cache folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import GroupShuffleSplit, train_test_split
from sklearn.preprocessing import StandardScaler

Array = npt.NDArray[Any]
ROOT = Path(__file__).parents[1]
HIDDEN, KEPT = (
    (2, 3, 8, 9),
    8,
)  # the digits that are almost missing from training, and what is left of each
ROWS = (
    3_000  # of a large training part, so that five seeds of everything fit into an hour of one core
)
UNEQUAL = (1500, 1500, 30, 500)  # landbirds on land and on water, waterbirds on land and on water
TUNING = (
    "digits",
    "digits-splits",
    "waterbirds",
    "waterbirds-bootstrap",
    "waterbirds-unequal",
    "flipped",
)
FINAL = (
    *(
        "cifar10-st",
        "cifar100-hidden",
        "adult",
        "adult trees",
        "tweets",
        "diabetes130",
        "crashes",
        "crashes trees",
    ),
    "redrawn",
)


class GroupedPart(NamedTuple):
    X: Array
    y: Array
    groups: Array
    frame: pd.DataFrame  # columns that a user has beside the features, for `find_slices`

    def rows(self, index: Any) -> GroupedPart:
        return GroupedPart(self.X[index], self.y[index], self.groups[index], self.frame.iloc[index])


class Task(NamedTuple):
    name: str
    train: GroupedPart
    test: GroupedPart


def digits(data: Path, cache: Path, seed: int) -> Task:
    """Odd or even; digits 2, 3, 8 and 9 have 8 training samples each. Groups: the digit.

    The split is that of examples/hidden_digits.py: one test set, the seed decides which rare
    samples are kept.
    """
    return _digits("digits", 0, seed)


def digits_splits(data: Path, cache: Path, seed: int) -> Task:
    """The same, where the seed decides the test set too."""
    return _digits("digits-splits", seed, seed)


def _digits(name: str, split: int, seed: int) -> Task:
    source = load_digits()
    every = _part(source.data / 16.0, source.target % 2, source.target, digit=source.target)
    train, test = train_test_split(
        np.arange(len(every.y)), test_size=0.4, stratify=source.target, random_state=split
    )
    rng = np.random.default_rng(seed)
    kept = [
        rng.permutation(train[source.target[train] == d])[: KEPT if d in HIDDEN else None]
        for d in range(10)
    ]
    return Task(name, every.rows(np.concatenate(kept)), every.rows(test))


def waterbirds(data: Path, cache: Path, seed: int) -> Task:
    """The standard split, frozen EfficientNet-Lite0 features. Groups: class x place."""
    with np.load(data / "waterbirds" / "features_efficientnet_lite0_224.npz") as file:
        X, y, place, split = (file[key] for key in ("features", "y", "place", "split"))
    every = _part(
        X.astype(np.float64), y, 2 * y + place, place=np.where(place == 1, "water", "land")
    )
    return Task("waterbirds", every.rows(split == 0), every.rows(split == 2))


def waterbirds_bootstrap(data: Path, cache: Path, seed: int) -> Task:
    task = waterbirds(data, cache, seed)
    n = len(task.train.y)
    # Copies of one row must not lie on both sides of a fold: a bootstrap without them, of the
    # distinct rows it draws.
    drawn = np.unique(np.random.default_rng(1000 + seed).integers(0, n, n))
    return Task("waterbirds-bootstrap", task.train.rows(drawn), task.test)


def waterbirds_unequal(data: Path, cache: Path, seed: int) -> Task:
    """Landbirds are everywhere, waterbirds are rare and almost never on land: as blond men among faces.

    From the training and test splits; up to 600 of each group are for testing.
    """
    first = waterbirds(data, cache, seed)
    every = GroupedPart(*(_joined(*pair) for pair in zip(first.train, first.test, strict=True)))
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(np.flatnonzero(every.groups == g)) for g in range(len(UNEQUAL))]
    train = rng.permutation(
        np.concatenate([rows[:n] for rows, n in zip(drawn, UNEQUAL, strict=True)])
    )
    test = np.concatenate([rows[n : n + 600] for rows, n in zip(drawn, UNEQUAL, strict=True)])
    return Task("waterbirds-unequal", every.rows(train), every.rows(test))


def cifar10_st(data: Path, cache: Path, seed: int) -> Task:
    return _features("cifar10-st", seed)


def cifar100_hidden(data: Path, cache: Path, seed: int) -> Task:
    return _features("cifar100-hidden", seed)


def _features(name: str, seed: int) -> Task:
    folder = ROOT / "results" / "features" / name
    parts = []
    for half in ("train", "test"):
        X, y = (np.load(folder / f"{half}_{what}.npy") for what in ("features", "labels"))
        groups = folder / f"{half}_groups.npy"
        parts.append(_part(X.astype(np.float64), y, np.load(groups) if groups.exists() else y))
    train, test = parts
    drawn = np.random.default_rng(seed).permutation(len(train.y))[:ROWS]  # the seed draws the rows
    return Task(name, train.rows(drawn), test)


def adult(data: Path, cache: Path, seed: int) -> Task:
    """Groups: sex x race x income; sex and race are no features."""
    names = [
        *(
            "age",
            "workclass",
            "fnlwgt",
            "education",
            "education-num",
            "marital-status",
            "occupation",
            "relationship",
        ),
        *(
            "race",
            "sex",
            "capital-gain",
            "capital-loss",
            "hours-per-week",
            "native-country",
            "income",
        ),
    ]
    tables = [
        pd.read_csv(
            data / "tabular" / f"adult.{half}.gz",
            names=names,
            skiprows=int(half == "test"),
            skipinitialspace=True,
        )
        for half in ("data", "test")
    ]
    table = pd.concat(tables, ignore_index=True)
    y = table.income.str.startswith(">50K").to_numpy().astype(int)
    frame = table[["sex", "race", "age", "education", "marital-status"]]
    groups = (table.sex + ", " + table.race + ", " + np.where(y == 1, ">50K", "<=50K")).to_numpy()
    X = _columns(table.drop(columns=["sex", "race", "fnlwgt", "income"]))
    return _split("adult", GroupedPart(X, y, groups, frame), seed, None)


def diabetes130(data: Path, cache: Path, seed: int) -> Task:
    """Readmitted at all? Split by patient. Groups: race x sex x answer; race and sex are no features."""
    table = pd.read_csv(data / "tabular" / "diabetes130.csv.gz", low_memory=False)
    y = (table.readmitted != "NO").to_numpy().astype(int)
    frame = table[["race", "gender", "age", "payer_code", "medical_specialty"]]
    groups = (
        table.race.astype(str) + ", " + table.gender + ", " + pd.Series(y).astype(str)
    ).to_numpy()
    for column in ("diag_1", "diag_2", "diag_3"):
        table[column] = table[column].astype(str).str.split(".").str[0]
    for column in ("admission_type_id", "discharge_disposition_id", "admission_source_id"):
        table[column] = table[column].astype(str)
    left_out = ["encounter_id", "patient_nbr", "race", "gender", "weight", "readmitted"]
    X = _columns(table.drop(columns=left_out), rare=400)
    return _split(
        "diabetes130", GroupedPart(X, y, groups, frame), seed, table.patient_nbr.to_numpy()
    )


def crashes(data: Path, cache: Path, seed: int) -> Task:
    """Dead or alive. Groups: sex x age x outcome; sex is no feature, nor is what the outcome decides."""
    table = pd.read_csv(data / "tabular" / "nass_crashes.csv.gz")
    y = (table.dead == "dead").to_numpy().astype(int)
    age = pd.cut(table.ageOFocc, [0, 25, 60, 200], labels=["16-25", "26-60", "61+"]).astype(str)
    groups = (table.sex + ", " + age + ", " + table.dead).to_numpy()
    frame = table[["sex", "ageOFocc", "seatbelt", "dvcat", "occRole"]]
    X = _columns(table.drop(columns=["dead", "sex", "weight", "injSeverity", "caseid"]))
    return _split("crashes", GroupedPart(X, y, groups, frame), seed, None)


def tweets(data: Path, cache: Path, seed: int) -> Task:
    """Offensive or not (hate counts as offensive), sentence embeddings. Groups: dialect x class."""
    table = pd.read_csv(data / "text" / "tweets_dialect.csv.gz")
    y = (table["class"] != 2).to_numpy().astype(int)
    dialect = np.where(
        table.dialect_argmax == "p_aae",
        "aae",
        table.dialect_argmax.astype(str).str.removeprefix("p_"),
    )
    groups = np.array(
        [f"{d}, {'offensive' if label else 'not'}" for d, label in zip(dialect, y, strict=True)]
    )
    frame = pd.DataFrame({"dialect": dialect, "text": table.text})
    return _split(
        "tweets",
        GroupedPart(np.load(cache / "tweets_minilm.npy").astype(np.float64), y, groups, frame),
        seed,
        None,
    )


FLIPPED = {
    "breast_cancer": load_breast_cancer,
    "wine": load_wine,
    "iris": load_iris,
    "ten digits": load_digits,
}
RATES = (0.05, 0.1, 0.2)


def flipped(source: str, rate: float, seed: int) -> Task:
    """Data where nothing stands out, with a share of the training labels wrong. Groups: the classes."""
    loaded = FLIPPED[source]()
    X, y = StandardScaler().fit_transform(loaded.data), loaded.target
    train, test = train_test_split(np.arange(len(y)), test_size=0.4, stratify=y, random_state=seed)
    rng = np.random.default_rng(seed)
    given = y.copy()
    wrong = rng.permutation(train)[: round(rate * len(train))]
    given[wrong] = (given[wrong] + rng.integers(1, len(np.unique(y)), len(wrong))) % len(
        np.unique(y)
    )
    name = f"flipped {source} {rate:g}" if rate else f"clean {source}"
    return Task(name, _part(X, given, y).rows(train), _part(X, y, y).rows(test))


def redrawn(task: Task, proba: Array, classes: Array, seed: int) -> Task:
    """Training labels drawn from a reference's out-of-fold probabilities: whatever stands out now is chance."""
    rng = np.random.default_rng(seed)
    drawn = classes[
        (rng.random(len(proba))[:, None] > proba.cumsum(1)).sum(1).clip(max=len(classes) - 1)
    ]
    return Task(f"redrawn {task.name}", task.train._replace(y=drawn), task.test)


def _part(X: Array, y: Array, groups: Array, **columns: Any) -> GroupedPart:
    return GroupedPart(
        X, np.asarray(y), np.asarray(groups), pd.DataFrame(columns, index=range(len(y)))
    )


def _joined(first: Any, second: Any) -> Any:
    return (
        pd.concat([first, second])
        if isinstance(first, pd.DataFrame)
        else np.concatenate([first, second])
    )


def _columns(table: pd.DataFrame, rare: int = 50) -> Array:
    """Numbers as they are (missing: 0, and a column that says so), categories as indicators, rare ones together."""
    parts = []
    for name in table:
        column = table[name]
        if pd.api.types.is_numeric_dtype(column):
            parts.append(column.fillna(column.median()).rename(str(name)))
            continue
        column = column.astype(str)
        counts = column.value_counts()
        column = column.where(column.map(counts) >= rare, "rare")
        parts.append(pd.get_dummies(column, prefix=str(name), dtype=float))
    numbers = pd.concat(parts, axis=1).astype(float)
    numbers = numbers.loc[:, numbers.std() > 0]
    numeric = [c for c in table if c in numbers]
    numbers[numeric] = (numbers[numeric] - numbers[numeric].mean()) / numbers[numeric].std()
    array: Array = numbers.to_numpy()
    return array


def _split(name: str, part: GroupedPart, seed: int, together: Array | None) -> Task:
    """70% to train, at most ROWS of them; rows of one patient stay together."""
    n = np.arange(len(part.y))
    if together is None:
        train, test = train_test_split(n, test_size=0.3, stratify=part.y, random_state=seed)
    else:
        train, test = next(
            GroupShuffleSplit(1, test_size=0.3, random_state=seed).split(n, groups=together)
        )
        train = np.random.default_rng(seed).permutation(train)
    return Task(name, part.rows(train[:ROWS]), part.rows(test))


LOADERS: dict[str, Callable[[Path, Path, int], Task]] = {
    "digits": digits,
    "digits-splits": digits_splits,
    "waterbirds": waterbirds,
    "waterbirds-bootstrap": waterbirds_bootstrap,
    "waterbirds-unequal": waterbirds_unequal,
    "cifar10-st": cifar10_st,
    "cifar100-hidden": cifar100_hidden,
    "adult": adult,
    "adult trees": lambda *where: adult(*where)._replace(name="adult trees"),
    "tweets": tweets,
    "diabetes130": diabetes130,
    "crashes": crashes,
    "crashes trees": lambda *where: crashes(*where)._replace(name="crashes trees"),
}
