"""Models of a table: boosted trees and exact linear models, and how they are fitted on its rows.

`Learner` encodes a table once and fits one kind of model: on folds, so that every row is predicted
by a model that did not see it, and at last on all rows. A model predicts probabilities of class
numbers, (n, k), or the standardised target, (n,), and is saved in files that hold no code.

    `Columns`      a table as an array: numbers as they are, categories as codes, NaN for missing
    `Trees`        see these codes; categories with many values become means of the target
    `Linear`       see scaled numbers, marks of gaps, and a column for each category

**Out of fold.** Each fold is predicted by a model of the others. When boosting stops is decided by
the other folds too: with R_k the best number of rounds on fold k, fold j is predicted after the mean
of the R_k with k other than j. A fold that chose its own number would look too good.

`Trees` and `Linear` share no base class, only these functions, which `Learner` and `Run` call:
`candidates`, `fit`, `predict`, `stop_at`, `save`, `load`.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import sklearn
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler, TargetEncoder

from scdro.errors import CheckpointError, DataError
from scdro.tables._read import (
    NUMBER_AS_WRITTEN,
    column_of,
    has_decimal_commas,
    name_first_row,
    quote,
    read_written_numbers,
)

if TYPE_CHECKING:
    from scdro.tables._options import TableOptions
    from scdro.tables._problem import TableProblem

__all__ = [
    "MODELS", "MOST_SPLIT_VALUES", "Columns", "Learner", "Linear", "Model", "Part", "Trees", "is_category",
    "mean_rounds", "row_losses",
]  # fmt: skip

Array = npt.NDArray[Any]
ROUNDS, PATIENCE = 500, 20  # of boosting: the most, and how many without a gain end it
MANY_ROWS, ROWS_FOR_SETTINGS = 100_000, 50_000  # with more rows, settings are chosen on this many
PARALLEL = 20_000  # rows from which on threads make trees faster
# Categories of a column that trees split and linear models get a feature for; a column with more
# is replaced by the means of the target (scikit-learn's TargetEncoder).
MOST_SPLIT_VALUES = 254
OWN_FEATURE = 20  # rows of a category that gets a feature of its own in linear models


# -- columns as models see them


@dataclass(frozen=True)
class Columns:
    """The columns that a model sees, and the values of those that are categories: plain data, saved as JSON.

    Attributes:
        numbers: names of columns.
        categories: for each column its known values, most frequent first; all others share one
            more code.
    """

    numbers: list[str]
    categories: dict[str, list[str]]

    @classmethod
    def fit(cls, frame: pl.DataFrame, names: Sequence[str], categorical: Sequence[str]) -> Columns:
        """Read from training rows which columns are numbers, and the values of the others."""
        numbers, categories, chosen = [], {}, set(categorical)
        for name in names:
            if not is_category(frame[name], chosen):
                numbers.append(name)
                continue
            counts = _as_texts(frame[name]).drop_nulls().value_counts(sort=True)
            counts = counts.sort(["count", name], descending=[True, False])
            categories[name] = counts[name].to_list()
        return cls(numbers, categories)

    @property
    def names(self) -> list[str]:
        """In the order of what `encode` returns."""
        return [*self.numbers, *self.categories]

    @property
    def categorical(self) -> list[int]:
        """Positions, in what `encode` returns, of categories with few enough values."""
        return self._positions(many=False)

    @property
    def many_valued(self) -> list[int]:
        """Positions of categories with more than MOST_SPLIT_VALUES values, for a TargetEncoder."""
        return self._positions(many=True)

    def _positions(self, many: bool) -> list[int]:
        """Positions of the categories with many values, or of those with few."""
        sizes = enumerate(self.categories.values(), len(self.numbers))
        return [k for k, values in sizes if (len(values) > MOST_SPLIT_VALUES) == many]

    def as_json(self) -> dict[str, Any]:
        """Plain data, for `model.json`."""
        return {"numbers": self.numbers, "categories": self.categories}

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Columns:
        """What `as_json` gave, from a file of a run."""
        categories = {
            str(name): [str(value) for value in values]
            for name, values in about["categories"].items()
        }
        return cls([str(name) for name in about["numbers"]], categories)

    def encode(self, frame: pl.DataFrame) -> Array:
        """The columns as one array, (rows, columns), numbers first; NaN where a value is missing.

        A category is the position of its value among the known ones; all unknown values have the
        same code, one above them.
        """
        encoded = np.empty((frame.height, len(self.names)), order="F")
        for k, name in enumerate(self.numbers):
            column = column_of(frame, name, "which the model was trained on")
            if not (column.dtype.is_numeric() or column.dtype.is_temporal()):
                column = _read_as_numbers(column)
            if column.dtype.is_temporal():
                column = _to_microseconds(column)
            encoded[:, k] = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        for k, (name, values) in enumerate(self.categories.items(), len(self.numbers)):
            texts = _as_texts(column_of(frame, name, "which the model was trained on"))
            distinct = texts.drop_nulls().unique()
            codes = texts.replace_strict(
                distinct, _number_texts(distinct, values), default=None, return_dtype=pl.Float64
            )
            encoded[:, k] = codes.fill_null(float("nan")).to_numpy()
        return encoded

    def features(self, classes: int) -> ColumnTransformer:
        """For linear models and networks: numbers scaled, gaps marked, categories one-hot.

        A category with many values becomes the mean target of its value, of each class (`classes`
        is 0 for regression): fit it with `fit_transform`, which means over other rows.
        """
        scaled = make_pipeline(
            SimpleImputer(add_indicator=True, keep_empty_features=True), StandardScaler()
        )
        one_hot = OneHotEncoder(
            min_frequency=OWN_FEATURE, handle_unknown="infrequent_if_exist", sparse_output=False
        )
        parts = [
            ("numbers", scaled, list(range(len(self.numbers)))),
            ("categories", one_hot, self.categorical),
            ("means", make_pipeline(_encode_means(classes), StandardScaler()), self.many_valued),
        ]
        return ColumnTransformer([part for part in parts if part[2]])

    def without_many_values(self, classes: int) -> tuple[ColumnTransformer | None, list[int]]:
        """For trees: what replaces categories with many values by mean targets, if there are any.

        Returns:
            A transformer that moves these columns to the end; None if there are none.
            The positions of the other categories after it.
        """
        if not self.many_valued:
            return None, self.categorical
        many = self.many_valued
        rest = [k for k in range(len(self.names)) if k not in many]
        parts = [("rest", "passthrough", rest), ("means", _encode_means(classes), many)]
        return ColumnTransformer(parts), [rest.index(k) for k in self.categorical]


def _encode_means(classes: int) -> TargetEncoder:
    """Replace categories by the mean target of their rows (scikit-learn's TargetEncoder).

    Values that were not seen, and missing ones that were not, get the overall mean. In
    `fit_transform` each row gets the mean over other folds, so that it does not see its own target.
    """
    kind = "auto" if classes else "continuous"
    if tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9):
        return TargetEncoder(target_type=kind, random_state=0)
    splits = (StratifiedKFold if classes else KFold)(5, shuffle=True, random_state=0)
    return TargetEncoder(target_type=kind, cv=splits)


def _read_as_numbers(column: Any) -> Any:
    """Texts where training had numbers, as such; an error names the first row that is none."""
    written = read_written_numbers(column)
    if written is not None:
        return written
    bad = column.is_not_null() & column.cast(pl.Float64, strict=False).is_null()
    if not bad.any():
        return column
    no_number = bad & ~column.str.contains(NUMBER_AS_WRITTEN)
    bad = no_number if no_number.any() else bad
    comma = has_decimal_commas(column)
    more = "; for a decimal comma, say --decimal , (decimal=',' in Python)" if comma else ""
    raise DataError(
        f"expected numbers in column {quote(column.name)}, as in training, got "
        f"{quote(column.filter(bad)[0])} in {name_first_row(bad)}{more}"
    )


def _as_texts(column: Any) -> Any:
    """Values of a category as texts, of whatever type they came."""
    return column.cast(pl.String)


def _number_texts(texts: Sequence[str], values: Sequence[str]) -> list[int]:
    """The code of each text among `values`, or their number for one that is not among them.

    01 that is now read as 1, or True as true, still gets its category.
    """
    known = {value: code for code, value in enumerate(values)}
    by_meaning: dict[float | str, int] = {}
    for value, code in known.items():
        by_meaning.setdefault(_read_spelling(value), code)
    return [known.get(text, by_meaning.get(_read_spelling(text), len(values))) for text in texts]


def _read_spelling(text: str) -> float | str:
    """What a spelling stands for: 01 and 1.0 for one number, True and true for one word."""
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text.lower() if text.lower() in ("true", "false") else text


def _to_microseconds(column: Any) -> Any:
    """Microseconds, whatever the unit of the reader: days of a CSV file, nanoseconds of pandas."""
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    elif column.dtype != pl.Time:
        column = column.dt.cast_time_unit("us")
    return column.to_physical()


def is_category(column: pl.Series, categorical: Collection[str]) -> bool:
    """Whether a column is one of categories: texts, and those that somebody says are."""
    return column.name in categorical or not (
        column.dtype.is_numeric() or column.dtype.is_temporal()
    )


# -- fitting


class Part(NamedTuple):
    """Some rows, as a model sees them."""

    X: Array  # (n, columns), encoded
    y: Array  # (n,), class numbers, or the standardised target
    weight: Array  # (n,)

    def take(self, rows: Array) -> Part:
        """Some of its rows, by position or mask."""
        return Part(self.X[rows], self.y[rows], self.weight[rows])


class Learner:
    """Fits models of one kind on a table: its rows encoded once, and folds of them.

    Attributes:
        columns: how columns are encoded, from the training rows alone.
        X, y: all rows of the table; a quantity is standardised by the training rows.
        scale: mean and deviation of the target, (0, 1) for classes.
        sample: numbers of the rows that settings are chosen on: the training rows, or some of them
            if there are many.
        folds: pairs of positions in `sample`: to fit on, to predict.
    """

    def __init__(
        self, problem: TableProblem, options: TableOptions, rows: Array, seed: int
    ) -> None:
        self.kind, self.seed, self.classes = MODELS[options.model], seed, len(problem.classes)
        few = len(problem.y) < PARALLEL
        self.threads = options.threads or (1 if few else _count_idle_cores())
        self.columns = Columns.fit(problem.frame[rows], problem.features(), problem.categories())
        self.X = self.columns.encode(problem.frame)
        self.y, self.scale = problem.y, (0.0, 1.0)
        if not self.classes:
            seen = self.y[rows]
            self.scale = float(seen.mean()), float(seen.std()) or 1.0
            self.y = (self.y - self.scale[0]) / self.scale[1]
        self.sample = (
            rows if len(rows) <= MANY_ROWS else problem.draw_sample(rows, ROWS_FOR_SETTINGS, seed)
        )
        self.folds = problem.make_folds(self.sample, options.folds, seed)
        self._check(problem)

    def _check(self, problem: TableProblem) -> None:
        """Raise for what only the folds and the encoded columns show."""
        for seen, _ in self.folds if self.classes else ():
            present = np.unique(self.y[self.sample[seen]])
            if len(present) < 2:
                only, column = problem.classes[present[0]], problem.split["column"]
                raise DataError(
                    f"expected two classes to learn from in every fold, got only {quote(only)} in"
                    f" one: the others are in too few values of {quote(column)}"
                )
        for name, column in zip(self.columns.names, self.X.T, strict=True):
            largest = np.nanmax(np.abs(column), initial=0.0) if self.kind.scales else 0.0
            if largest > 1e100:
                raise DataError(
                    f"expected numbers that can be scaled in column {quote(name)}, got one of"
                    f" size {largest:g}; leave the column out, or use trees"
                )

    def candidates(self, most: int) -> list[dict[str, Any]]:
        """Settings to choose among, the most common first."""
        return self.kind.candidates(len(self.sample))[:most]

    def fit(self, part: Part, settings: dict[str, Any], held_out: Part | None = None) -> Model:
        """Fit a model.

        Args:
            part: the rows to fit on.
            settings: of the model, one of `candidates`, with "rho" for the worst case and "rounds"
                to stop after.
            held_out: rows by whose loss boosting stops; None: after the "rounds".
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the libraries warn about things that are fine here
            return self.kind.fit(self, part, settings, held_out)

    def fit_rows(self, rows: Array, weights: Array, settings: dict[str, Any], rounds: int) -> Model:
        """The final fit: a model of all of these rows, boosted for as many rounds as the folds say."""
        part = Part(self.X[rows], self.y[rows], weights)
        return self.fit(part, {**settings, "rounds": max(rounds, 1)})

    def cross_fit(self, settings: dict[str, Any], weights: Array) -> dict[str, Any]:
        """Predict the sample out of fold.

        Args:
            settings: of the model.
            weights: of the sample's rows in training, (sample,).

        Returns:
            "predicted": probabilities, (sample, k), or the standardised target, (sample,).
            "rounds": the best number of rounds on each fold, (folds,); 0 for linear models.
        """
        whole = Part(self.X[self.sample], self.y[self.sample], weights)
        models = [
            self.fit(whole.take(seen), settings, whole.take(unseen)) for seen, unseen in self.folds
        ]
        rounds = np.array([model.rounds for model in models])
        predicted = np.zeros((len(whole.y), self.classes) if self.classes else len(whole.y))
        for fold, (model, (_, unseen)) in enumerate(zip(models, self.folds, strict=True)):
            if rounds.any():
                model.stop_at(max(mean_rounds(np.delete(rounds, fold)), 1))
            predicted[unseen] = model.predict(whole.X[unseen])
        return {"predicted": predicted, "rounds": rounds}

    def mean_loss(self, predicted: Array) -> float:
        """The mean loss of predictions for the sample."""
        return float(row_losses(predicted, self.y[self.sample]).mean())


def row_losses(predicted: Array, y: Array) -> Array:
    """Log losses of (n, k) probabilities, or half of the squared errors, (n,)."""
    if predicted.ndim == 2:
        losses: Array = -np.log(np.maximum(predicted[np.arange(len(y)), y], 1e-15))
        return losses
    half: Array = (predicted - y) ** 2 / 2
    return half


def mean_rounds(rounds: Array) -> int:
    """One number of boosting rounds from those of the folds: their mean, rounded up."""
    return int(np.ceil(np.mean(rounds)))


def _count_idle_cores() -> int:
    """LightGBM's threads wait for each other, and two on one core are slower than one."""
    busy = int(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
    return max(1, (os.cpu_count() or 1) - busy)


class Trees:
    """LightGBM on the mean or, with rho, on the worst case.

    Attributes:
        rounds: number of boosting rounds that predictions use.
        present: numbers of the classes that it has seen.
        classes: how many there are; 0 for regression.
        scales: whether columns are scaled, which huge numbers cannot be.
        prepare: replaces categories with many values by means of the target; None if there are none.
    """

    scales = False

    def __init__(
        self, booster: Any, rounds: int, present: list[int], classes: int, threads: int = 1,
        prepare: Any = None,
    ) -> None:  # fmt: skip
        self.booster, self.rounds, self.present = booster, rounds, present
        self.classes, self.threads, self.prepare = classes, threads, prepare

    @staticmethod
    def candidates(rows: int) -> list[dict[str, Any]]:
        """Settings to choose among for a table of that many rows, the most common first."""
        # Least rows of a leaf: LightGBM's own 20, and 100 for noisy targets; less in small tables,
        # which could not be split otherwise.
        small, large = min(20, max(rows // 10, 2)), min(100, max(rows // 4, 5))
        sizes = [(k, least) for least in (small, large) for k in (31, 15, 63)]
        return [{"num_leaves": leaves, "min_child_samples": least} for leaves, least in sizes]

    @classmethod
    def fit(
        cls, learner: Learner, part: Part, settings: dict[str, Any], held_out: Part | None
    ) -> Trees:
        """A model of a part, boosted until held-out rows are predicted best, or as its settings say."""
        import lightgbm

        # The estimator: LightGBM's own, or with rho ours, which has the same arguments and one more.
        rho, classes = settings.get("rho", 0.0), learner.classes
        own = {name: settings[name] for name in ("num_leaves", "min_child_samples")}
        package: Any = lightgbm
        if rho:
            import scdro.boosting as package

            own["rho"] = rho
        name = f"{'KLDRO' if rho else ''}LGBM{'Classifier' if classes else 'Regressor'}"
        model = getattr(package, name)(
            n_estimators=settings.get("rounds", ROUNDS), learning_rate=0.1, deterministic=True,
            force_row_wise=True, n_jobs=learner.threads, random_state=learner.seed, verbose=-1, **own,
        )  # fmt: skip
        # The columns, and held-out rows to stop by.
        prepare, categorical = learner.columns.without_many_values(classes)
        X = part.X if prepare is None else prepare.fit_transform(part.X, part.y)
        stopping: dict[str, Any] = {}
        if held_out is not None and classes:  # LightGBM refuses classes that it does not train on
            held_out = held_out.take(np.isin(held_out.y, np.unique(part.y)))
        if held_out is not None and len(held_out.y):
            unseen = held_out.X if prepare is None else prepare.transform(held_out.X)
            stopping = {
                "eval_set": [(unseen, held_out.y)],
                "eval_sample_weight": [held_out.weight],
                "callbacks": [lightgbm.early_stopping(PATIENCE, verbose=False)],
            }
        model.fit(X, part.y, sample_weight=part.weight, categorical_feature=categorical, **stopping)
        present = [int(k) for k in model.classes_] if classes else []
        rounds = int(model.best_iteration_ or model.n_estimators)
        return cls(model.booster_, rounds, present, classes, learner.threads, prepare)

    def stop_at(self, rounds: int) -> None:
        """Predict as after this many rounds, or after the last one that was trained."""
        trained = self.booster.num_trees() // self.booster.num_model_per_iteration()
        self.rounds = min(rounds, trained)

    def predict(self, X: Array) -> Array:
        """Probabilities, (n, k), or the standardised target, (n,)."""
        X = X if self.prepare is None else self.prepare.transform(X)
        predicted: Array = self.booster.predict(
            X, num_iteration=self.rounds, num_threads=self.threads
        )
        if not self.classes:
            return predicted
        each = np.stack([1.0 - predicted, predicted], 1) if predicted.ndim == 1 else predicted
        return _with_all_classes(each, self.present, self.classes)

    def save(self, folder: Path) -> None:
        """Write LightGBM's own text, and what it does not know about itself."""
        text = self.booster.model_to_string(num_iteration=self.rounds)
        (folder / "trees.txt").write_text(text, "utf-8")
        about = {
            "rounds": self.rounds, "present": self.present, "classes": self.classes,
            "prepared": self.prepare is not None,
        }  # fmt: skip
        if self.prepare is not None:
            _save_skops(self.prepare, folder / "columns.skops")
        (folder / "model.json").write_text(json.dumps(about), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Trees:
        """What `save` wrote; LightGBM's parser reads the trees, no code is run."""
        import lightgbm

        about = json.loads((folder / "model.json").read_text("utf-8"))
        try:
            booster = lightgbm.Booster(model_str=(folder / "trees.txt").read_text("utf-8"))
        except lightgbm.basic.LightGBMError as error:
            raise CheckpointError(
                f"expected LightGBM's trees in {folder / 'trees.txt'}: {error}"
            ) from error
        prepare = _load_skops(folder / "columns.skops") if about.get("prepared") else None
        return cls(booster, about["rounds"], about["present"], about["classes"], prepare=prepare)


class Linear:
    """Logistic or least-squares regression on scaled columns, solved exactly, with rho on the worst case."""

    scales, rounds = True, 0

    def __init__(self, pipeline: Any, classes: int) -> None:
        self.pipeline, self.classes = pipeline, classes

    @staticmethod
    def candidates(rows: int) -> list[dict[str, Any]]:
        """Settings to choose among, the most common first: the inverse strength of the penalty."""
        return [{"C": C} for C in (1.0, 0.1, 0.01, 10.0, 0.001, 100.0)]

    @classmethod
    def fit(
        cls, learner: Learner, part: Part, settings: dict[str, Any], held_out: Part | None
    ) -> Linear:
        """A model of a part; solved to the end, so that held-out rows are not needed."""
        from scdro.linear_model import KLDROClassifier, KLDRORegressor

        kind = KLDROClassifier if learner.classes else KLDRORegressor
        model = kind(rho=settings.get("rho", 0.0), C=settings["C"])
        columns = learner.columns.features(learner.classes)
        pipeline = Pipeline([("columns", columns), ("model", model)])
        pipeline.fit(part.X, part.y, model__sample_weight=part.weight)
        return cls(pipeline, learner.classes)

    def predict(self, X: Array) -> Array:
        """Probabilities, (n, k), or the standardised target, (n,)."""
        if not self.classes:
            values: Array = self.pipeline.predict(X)
            return values
        present = [int(k) for k in self.pipeline.classes_]
        return _with_all_classes(self.pipeline.predict_proba(X), present, self.classes)

    def stop_at(self, rounds: int) -> None:
        """Nothing to do: it is not boosted."""

    def save(self, folder: Path) -> None:
        """Write the pipeline without pickle."""
        _save_skops(self.pipeline, folder / "linear.skops")
        (folder / "model.json").write_text(json.dumps({"classes": self.classes}), "utf-8")

    @classmethod
    def load(cls, folder: Path) -> Linear:
        """What `save` wrote."""
        about = json.loads((folder / "model.json").read_text("utf-8"))
        return cls(_load_skops(folder / "linear.skops"), about["classes"])


Model = Trees | Linear
MODELS: dict[str, type[Model]] = {"trees": Trees, "linear": Linear}


def _with_all_classes(found: Array, present: Sequence[int], classes: int) -> Array:
    """Probabilities of all classes, zero for those that a model has not seen."""
    whole = np.zeros((len(found), classes))
    whole[:, present] = found
    return whole


TRUSTED = [  # types that a file may hold besides those of NumPy and scikit-learn that skops knows
    "numpy.dtype",
    "scdro.linear_model._classifier.KLDROClassifier",
    "scdro.linear_model._regressor.KLDRORegressor",
    "sklearn.model_selection._split.KFold",
    "sklearn.model_selection._split.StratifiedKFold",
]


def _save_skops(value: Any, path: Path) -> None:
    """Write an estimator of scikit-learn without pickle, which could run code when it is read."""
    import skops.io

    skops.io.dump(value, path)


def _load_skops(path: Path) -> Any:
    """What `_save_skops` wrote. Only trusted types are created."""
    import skops.io

    from scdro.tables._folder import check_zip

    check_zip(path)
    try:
        return skops.io.load(path, trusted=TRUSTED)
    except Exception as error:  # skops has no error type: a damaged file can raise anything
        raise CheckpointError(
            f"expected parts of scikit-learn in {path}, got: {str(error)[:200]}"
        ) from error
