"""Fits with weights, out of fold: many of them at once, the same bits for any number of processes.

A `FoldPlan` is one model in one partition of the rows into folds. `predict_out_of_fold` cuts all
plans into single fits and runs them with joblib. Everything random is decided before the first fit
starts: folds, weights, and a seed for each fit whose estimator has none. Inside a fit, BLAS and
OpenMP use one thread, because sums in another order differ in the last bit; `n_jobs` is what uses
more cores.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed
from sklearn import get_config
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils._indexing import _safe_indexing
from threadpoolctl import ThreadpoolController

from scdro._frames import as_array, is_missing
from scdro._terminal import ProgressLine
from scdro._validation import check_whole
from scdro.errors import HyperparameterError

__all__ = [
    "FitProgress",
    "FoldPlan",
    "Resampled",
    "fit_weighted",
    "partitions",
    "predict_out_of_fold",
    "stratified",
    "takes_weights",
]

Array = npt.NDArray[Any]
Split = tuple[Array, Array]  # the rows of a training part, and of the test fold
LARGE = 20  # samples per group, on average: more than most patients or users have
DRAWS = 10  # weighted resamples whose models are averaged, where fit takes no weights


# -- partitions -------------------------------------------------------------------------------


def partitions(
    cv: Any, repeats: int, X: Any, y: Array, groups: Any, seed: int, classifier: bool
) -> list[list[Split]]:
    """Partitions of the samples into folds: `repeats` of them if cv is a number, as many as a splitter makes.

    A class with fewer members than folds is tested in as many folds as it has members; a single
    member is in every training part and is never tested. If a splitter makes no partitions, all its
    splits are returned as one.
    """
    n = len(y)
    if groups is not None and (cv is None or isinstance(cv, int | np.integer)):
        number = "5" if cv is None or isinstance(cv, bool) else f"{cv}"
        raise HyperparameterError(
            f"expected a splitter that uses groups, got cv={cv!r}; pass cv=GroupKFold({number})"
            + ("; known groups go to SecondLook(groups=...)" if _look_known(groups) else "")
        )
    if isinstance(cv, int | np.integer):
        check_whole("cv", cv, 2, n, f"the number of folds (at most n_samples = {n}), or a splitter")
        check_whole("repeats", repeats)
        seeds = [int(s) for s in np.random.RandomState(seed).randint(2**31 - 1, size=repeats)]
        if classifier:
            return [stratified(y, int(cv), s) for s in seeds]
        return [list(KFold(cv, shuffle=True, random_state=s).split(y)) for s in seeds]
    splitter = check_cv(cv, y, classifier=classifier)
    splits = [
        (np.asarray(seen), np.asarray(unseen)) for seen, unseen in splitter.split(X, y, groups)
    ]
    # A splitter's splits, cut into partitions: one ends where every row has been tested once.
    complete: list[list[Split]] = [[]]
    covered = np.zeros(n, bool)
    for seen, unseen in splits:
        if covered[unseen].any():
            return [splits]
        covered[unseen] = True
        complete[-1].append((seen, unseen))
        if covered.all():
            complete.append([])
            covered[:] = False
    return [splits] if complete[-1] else complete[:-1]


def _look_known(groups: Any) -> bool:
    """Whether groups are few, or some are missing: those that a model may fail, rather than a patient's samples."""
    names = as_array(groups).ravel().tolist()
    return any(map(is_missing, names)) or LARGE * len(set(map(str, names))) <= len(names)


def stratified(y: Array, folds: int, seed: int) -> list[Split]:
    """Like StratifiedKFold, for classes of any size."""
    counts = np.unique(y, return_counts=True)[1]
    if counts.min() >= folds:
        return list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(y, y))
    rng = np.random.RandomState(seed)
    member = np.full(len(y), -1)  # the test fold of each row; -1 for a class of one, never tested
    start = 0  # each class begins where the last one ended, so that folds are about equal
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        if len(rows) > 1:
            member[rows] = (start + np.arange(len(rows))) % folds
            start += len(rows)
    numbers = np.arange(len(y))
    return [
        (numbers[member != k], numbers[member == k]) for k in range(folds) if (member == k).any()
    ]


# -- one fit ----------------------------------------------------------------------------------


def takes_weights(estimator: Any) -> bool:
    """Whether `fit` takes sample weights: its own, or those of a Pipeline's last step, or of what it wraps."""
    last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    parameters = inspect.signature(last.fit).parameters
    if "sample_weight" in parameters:
        return True
    inner = getattr(last, "estimator", None)
    if hasattr(inner, "fit"):  # a grid search and others that pass keywords on
        return takes_weights(inner)
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def fit_weighted(estimator: Any, X: Any, y: Array, weights: Array) -> Any:
    """A clone, fitted with sample weights; those of a Pipeline go to its last step.

    An estimator whose `fit` takes none, such as k nearest neighbours, is fitted to weighted
    resamples (`Resampled`); with equal weights, to the rows as they are.
    """
    if not takes_weights(estimator):
        if np.ptp(weights) <= 1e-9 * weights.max():
            return clone(estimator).fit(X, y)
        return Resampled(estimator).fit(X, y, weights)
    model = clone(estimator)
    if isinstance(model, Pipeline) and not get_config()["enable_metadata_routing"]:
        name, _ = model.steps[-1]
        return model.fit(X, y, **{f"{name}__sample_weight": weights})
    return model.fit(X, y, sample_weight=weights)


class Resampled(BaseEstimator):  # type: ignore[misc]
    """A model whose `fit` takes no weights, with weights: the average of `DRAWS` weighted resamples.

    Each resample draws as many rows as there are, with replacement and probabilities in
    proportion to the weights; every class keeps at least one row. Probabilities (or a regressor's
    predictions) are averaged.
    """

    def __init__(self, estimator: Any, draws: int = DRAWS, random_state: int = 0) -> None:
        self.estimator = estimator
        self.draws = draws
        self.random_state = random_state

    def fit(self, X: Any, y: Array, sample_weight: Array) -> Resampled:
        """Fit a model to each resample. Rows keep their order, as some estimators depend on it."""
        rng = np.random.RandomState(self.random_state)
        n, share = len(y), sample_weight / sample_weight.sum()
        self.models_ = []
        if is_classifier(self.estimator):
            self.classes_ = np.unique(y)
        for _ in range(self.draws):
            rows = rng.choice(n, n, p=share)
            if is_classifier(self.estimator):
                missing = np.setdiff1d(self.classes_, y[rows])
                rows = np.append(rows, [rng.choice(np.flatnonzero(y == k)) for k in missing])
            rows = np.sort(rows).astype(int)
            self.models_.append(clone(self.estimator).fit(_safe_indexing(X, rows), y[rows]))
        return self

    def predict_proba(self, X: Any) -> Array:
        """The mean of the models' probabilities, (n, classes)."""
        mean: Array = np.mean([_probabilities(model, X) for model in self.models_], axis=0)
        return mean

    def predict(self, X: Any) -> Array:
        """The likeliest class, or the mean of the models' predictions, (n,)."""
        if is_classifier(self.estimator):
            answers: Array = self.classes_[self.predict_proba(X).argmax(1)]
            return answers
        mean: Array = np.mean([model.predict(X) for model in self.models_], axis=0)
        return mean

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy, or R^2 of a regressor."""
        score = accuracy_score if is_classifier(self.estimator) else r2_score
        return float(score(y, self.predict(X), sample_weight=sample_weight))


def _probabilities(model: Any, X: Any) -> Array:
    """The model's probabilities; without `predict_proba`, 1 for the predicted class, enough to see if it is right."""
    if hasattr(model, "predict_proba"):
        proba: Array = model.predict_proba(X)
        return proba
    certain: Array = (model.predict(X)[:, None] == model.classes_).astype(float)
    return certain


# -- many fits --------------------------------------------------------------------------------


class FoldPlan(NamedTuple):
    """One model in the folds of one partition."""

    estimator: Any  # not fitted
    splits: Sequence[Split]
    weights: Callable[[Array], Array]  # rows of a training part -> their weights
    what: str = ""  # for the progress line


def predict_out_of_fold(
    plans: Sequence[FoldPlan], X: Any, y: Array, classes: Array | None, n_jobs: int | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> list[Array]:  # fmt: skip
    """Out-of-fold predictions of each plan: probabilities (n, k) if `classes` are given, else (n,).

    Samples in several test folds get the mean, samples in none NaN.
    """
    jobs = [(plan, seen, unseen) for plan in plans for seen, unseen in plan.splits]
    tasks = (
        delayed(_fit_and_predict)(
            _set_open_seeds(plan.estimator, k), X, y, seen, unseen, plan.weights(seen), classes
        )
        for k, (plan, seen, unseen) in enumerate(jobs)
    )
    parts: Iterable[Array] = Parallel(n_jobs=n_jobs, return_as="generator")(tasks)
    # Sums of predictions and numbers of test folds of each row, by plan. Results come in the order
    # of the jobs, whatever the processes do, so the sums are the same to the last bit.
    columns = 1 if classes is None else len(classes)
    totals = {id(plan): np.zeros((len(y), columns)) for plan in plans}
    times = {id(plan): np.zeros((len(y), 1)) for plan in plans}
    for part, (plan, _, unseen) in zip(parts, jobs, strict=True):
        totals[id(plan)][unseen] += part
        times[id(plan)][unseen] += 1
        tell(plan.what)
    means = [
        np.where(times[id(plan)] > 0, totals[id(plan)] / np.maximum(times[id(plan)], 1), np.nan)
        for plan in plans
    ]
    return [one[:, 0] if classes is None else one for one in means]


def _fit_and_predict(
    estimator: Any, X: Any, y: Array, seen: Array, unseen: Array, weights: Array, classes: Any
) -> Array:
    """Predictions of the unseen rows, (rows, classes) or (rows, 1)."""
    with _threads().limit(limits=1):
        model = fit_weighted(estimator, _safe_indexing(X, seen), y[seen], weights)
        part = _safe_indexing(X, unseen)
        if classes is None:
            answers: Array = model.predict(part)[:, None]
            return answers
        proba = np.zeros((len(unseen), len(classes)))  # 0 for a class that the training part lacks
        proba[:, np.searchsorted(classes, model.classes_)] = _probabilities(model, part)
    return proba


@cache
def _threads() -> ThreadpoolController:
    """Once a process: it takes longer to find the libraries than to fit a small model."""
    return ThreadpoolController()


def _set_open_seeds(estimator: Any, number: int) -> Any:
    """A clone with a seed of its own wherever it has none, so that the order of the fits does not matter."""
    settings = estimator.get_params()
    open_seeds = {
        name: number
        for name, value in settings.items()
        if (name == "random_state" or name.endswith("__random_state")) and value is None
    }
    return clone(estimator).set_params(**open_seeds) if open_seeds else estimator


class FitProgress:
    """Counts fits; shows which one is done, of about how many, and the time left, if `show` is true."""

    def __init__(self, name: str, total: int, show: bool) -> None:
        self.name, self.total, self.done, self.start = name, total, 0, time.monotonic()
        self.line = ProgressLine() if show else None

    def __call__(self, what: str) -> None:
        """One fit more is done."""
        self.done += 1
        self.total = max(self.total, self.done + 1)  # a guess; `close` is the end
        if self.line is not None:
            said = f"{self.name}: fit {self.done} of about {self.total}, {what}"
            self.line(self.done, self.total, said)

    def close(self) -> None:
        """End the line with the number of fits and the time they took."""
        if self.line is not None and self.done:
            spent = time.monotonic() - self.start
            self.line(self.done, self.done, f"{self.name}: {self.done} fits, {spent:.1f} s")
