"""Three kinds of models behind one interface: boosted trees, exact linear models, a small network.

A model is fitted on an encoded table (`Columns.encode`) with weights and a radius rho, stops early on rows held out,
predicts probabilities of class numbers (n, k) or numbers (n,), and is saved in files that hold no code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from scdro.errors import CheckpointError, MissingDataError
from scdro.tables._columns import Columns

__all__ = ["Family", "Linear", "Model", "Part", "Trees", "load_skops", "save_skops"]

Array = npt.NDArray[Any]
ROUNDS, PATIENCE = 500, 20  # of boosting


class Part(NamedTuple):
    """Rows: encoded columns, labels (class numbers, or the standardised target), weights."""

    X: Array
    y: Array
    weight: Array

    def take(self, rows: Array) -> Part:
        return Part(self.X[rows], self.y[rows], self.weight[rows])


class Model(Protocol):
    """A fitted model."""

    rounds: int  # best number of rounds or epochs; 0 if the model has none
    classes: int  # 0 for regression

    def predict(self, X: Array) -> Array:
        """(n, k) or (n,)."""

    def stop_at(self, rounds: int) -> None:
        """Predict as after this many rounds, or after the last one that was trained."""

    def save(self, folder: Path) -> None:
        """Write its files into a folder that exists."""


class Family(Protocol):
    """How models of one kind are made."""

    inputs: Any  # how their data are read: `Columns`, or pictures

    def candidates(self, rows: int) -> list[dict[str, Any]]:
        """Settings to choose among for a table of that many rows, the most common first."""

    def fit(
        self, columns: Columns, part: Part, held_out: Part | None, settings: dict[str, Any], classes: int, seed: int
    ) -> Model:
        """`settings` may have a "rho"; without `held_out` its "rounds" say how long. `classes` is 0 for regression."""

    def load(self, folder: Path) -> Model:
        """What `save` wrote."""


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in names}


def _all_classes(found: Array, present: Sequence[int], classes: int) -> Array:
    """Probabilities of all classes, zero for those that the model has not seen."""
    if len(present) == classes:
        return found
    whole = np.zeros((len(found), classes))
    whole[:, present] = found
    return whole


# -- trees ------------------------------------------------------------------------------------------------------------


class Trees:
    """LightGBM on the mean or, with rho, on the worst case."""

    inputs = Columns

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def candidates(self, rows: int) -> list[dict[str, Any]]:
        small, large = min(20, max(rows // 10, 2)), min(100, max(rows // 4, 5))  # so that small tables can be split too
        return [
            {"num_leaves": leaves, "min_child_samples": least}
            for leaves, least in (
                (31, small), (15, small), (63, small), (31, large), (15, large), (63, large)
            )
        ]  # fmt: skip

    def fit(
        self, columns: Columns, part: Part, held_out: Part | None, settings: dict[str, Any], classes: int, seed: int
    ) -> TreesModel:
        try:
            import lightgbm

            from scdro.boosting import KLDROLGBMClassifier, KLDROLGBMRegressor
        except ModuleNotFoundError as error:
            raise MissingDataError("expected lightgbm, which grows the trees; pip install 'scdro[tables]'") from error
        model = (KLDROLGBMClassifier if classes else KLDROLGBMRegressor)(
            rho=settings.get("rho", 0.0),
            n_estimators=settings.get("rounds", ROUNDS),
            learning_rate=0.1,
            deterministic=True,
            force_row_wise=True,
            n_jobs=self.threads,
            random_state=seed,
            verbose=-1,
            **without(settings, "rho", "rounds"),
        )
        stopping: dict[str, Any] = {}
        if held_out is not None and classes:  # LightGBM rejects classes that are not in the training rows
            held_out = held_out.take(np.isin(held_out.y, np.unique(part.y)))
        if held_out is not None and len(held_out.y):
            stopping = {
                "eval_set": [(held_out.X, held_out.y)],
                "eval_sample_weight": [held_out.weight],
                "callbacks": [lightgbm.early_stopping(PATIENCE, verbose=False)],
            }
        model.fit(part.X, part.y, sample_weight=part.weight, categorical_feature=columns.categorical, **stopping)
        present = [int(k) for k in model.classes_] if classes else []
        rounds = int(model.best_iteration_ or model.n_estimators)
        return TreesModel(model.booster_, rounds, present, classes, self.threads)

    def load(self, folder: Path) -> TreesModel:
        import lightgbm

        about = json.loads((folder / "model.json").read_text("utf-8"))
        try:
            booster = lightgbm.Booster(model_str=(folder / "trees.txt").read_text("utf-8"))
        except lightgbm.basic.LightGBMError as error:
            raise CheckpointError(f"expected LightGBM's trees in {folder / 'trees.txt'}: {error}") from error
        return TreesModel(booster, about["rounds"], about["present"], about["classes"], self.threads)


class TreesModel:
    """LightGBM's booster."""

    def __init__(self, booster: Any, rounds: int, present: list[int], classes: int, threads: int) -> None:
        self.booster, self.rounds, self.present, self.classes, self.threads = booster, rounds, present, classes, threads

    def stop_at(self, rounds: int) -> None:
        self.rounds = min(rounds, self.booster.num_trees() // self.booster.num_model_per_iteration())

    def predict(self, X: Array) -> Array:
        found: Array = self.booster.predict(X, num_iteration=self.rounds, num_threads=self.threads)
        if not self.classes:
            return found
        if found.ndim == 1:
            found = np.stack([1.0 - found, found], 1)
        return _all_classes(found, self.present, self.classes)

    def save(self, folder: Path) -> None:
        (folder / "trees.txt").write_text(self.booster.model_to_string(num_iteration=self.rounds), "utf-8")
        about = {"rounds": self.rounds, "present": self.present, "classes": self.classes}
        (folder / "model.json").write_text(json.dumps(about), "utf-8")


# -- linear -----------------------------------------------------------------------------------------------------------

TRUSTED = [
    "numpy.dtype",
    "scdro.linear_model._classifier.KLDROClassifier",
    "scdro.linear_model._regressor.KLDRORegressor",
]


class Linear:
    """Logistic or least-squares regression on scaled columns, solved exactly, with rho on the worst case."""

    inputs = Columns

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def candidates(self, rows: int) -> list[dict[str, Any]]:
        return [{"C": C} for C in (1.0, 0.1, 0.01, 10.0, 0.001, 100.0)]

    def fit(
        self, columns: Columns, part: Part, held_out: Part | None, settings: dict[str, Any], classes: int, seed: int
    ) -> LinearModel:
        from sklearn.pipeline import Pipeline

        from scdro.linear_model import KLDROClassifier, KLDRORegressor

        chosen = {"rho": 0.0, **without(settings, "rounds")}
        model = (KLDROClassifier if classes else KLDRORegressor)(**chosen)
        whole = Pipeline([("columns", columns.features()), ("model", model)])
        whole.fit(part.X, part.y, model__sample_weight=part.weight)
        return LinearModel(whole, classes)

    def load(self, folder: Path) -> LinearModel:
        about = json.loads((folder / "model.json").read_text("utf-8"))
        return LinearModel(load_skops(folder / "linear.skops"), about["classes"])


class LinearModel:
    """A Pipeline of scikit-learn."""

    rounds = 0

    def __init__(self, pipeline: Any, classes: int) -> None:
        self.pipeline, self.classes = pipeline, classes

    def stop_at(self, rounds: int) -> None:
        pass

    def predict(self, X: Array) -> Array:
        if not self.classes:
            values: Array = self.pipeline.predict(X)
            return values
        present = [int(k) for k in self.pipeline.classes_]
        return _all_classes(self.pipeline.predict_proba(X), present, self.classes)

    def save(self, folder: Path) -> None:
        save_skops(self.pipeline, folder / "linear.skops")
        (folder / "model.json").write_text(json.dumps({"classes": self.classes}), "utf-8")


def save_skops(value: Any, path: Path) -> None:
    """A part of scikit-learn, without pickle."""
    _skops().dump(value, path)


def load_skops(path: Path) -> Any:
    """What `save_skops` wrote. Only types of NumPy, scikit-learn and our estimators are created."""
    skops = _skops()
    try:
        return skops.load(path, trusted=TRUSTED)
    except Exception as error:  # skops has no error type of its own: a damaged file can raise anything
        raise CheckpointError(f"expected parts of scikit-learn in {path}, got: {str(error)[:200]}") from error


def _skops() -> Any:
    try:
        import skops.io
    except ModuleNotFoundError as error:
        raise MissingDataError("expected skops, which saves models; pip install 'scdro[tables]'") from error
    return skops.io
