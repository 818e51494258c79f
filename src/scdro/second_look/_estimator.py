"""SecondLook: fit, weight the samples where the fit is no better than a guess, fit again, and say whether it helped."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier, is_regressor
from sklearn.model_selection import ParameterGrid
from sklearn.utils import get_tags, indexable
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _num_samples,
    check_is_fitted,
    column_or_1d,
)
from torch import nn

from scdro._estimators import check_is_estimator, check_reference, unchanged_if_refused
from scdro._validation import (
    array_weights,
    check_budget,
    check_flag,
    check_half_or_rho,
    check_no_missing,
    check_whole,
)
from scdro.errors import DataError, HyperparameterError, ScdroWarning
from scdro.fix import (
    BALANCED,
    GROUPS,
    PLAIN,
    SECOND,
    THRESHOLD,
    ConfirmedGroups,
    Examined,
    FitProgress,
    Gains,
    LookSettings,
    MovedClassifier,
    Verdict,
    balanced,
    examine,
    fit_weighted,
    gains_of,
)
from scdro.second_look._slices import Slices, SliceSearch, WeightedRows, describe_slices

__all__ = ["SecondLook"]

Array = npt.NDArray[Any]
PENALTIES = tuple(10.0**k for k in range(-4, 2))  # factors of the estimator's C


def _estimator_has(name: str) -> Any:
    def check(self: SecondLook) -> bool:
        getattr(self.estimator_ if hasattr(self, "estimator_") else self.estimator, name)
        return True

    return check


def _is_search(estimator: Any) -> bool:
    """Whether it searches for settings itself, as GridSearchCV does."""
    return (
        hasattr(estimator, "get_params")
        and {"estimator", "refit"} <= estimator.get_params(deep=False).keys()
    )


class SecondLook(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    r"""Fit twice: the second time with weights under which the first fit is no better than a guess, if that helps.

    A reference model, fitted out of fold, gives each sample's label a probability p_i. The weights
    w_i ~ exp(-p_i/lam) in each class are such that the weighted mean of p is 1/2, and all classes
    get the same total (`second_look_weights`). The estimator is fitted again with these weights and
    with the penalty that is best under them out of fold. Whether this helps is also decided out of
    fold, without group labels: see `verdict_`. For regressors, absolute errors take the place of 1
    - p, and their weighted mean is that of always predicting the median.

    Args:
        estimator: a classifier or regressor; a Pipeline. If its `fit` takes no `sample_weight`, as
            that of k nearest neighbours, ten weighted resamples are fitted and averaged.
        reference: the model of the first fit, a classifier with `predict_proba`; by default the
            estimator. The second fit must beat it. Without a reference, it must also beat the
            estimator at the best penalty of `grid`.
        rho: "half", or the radius of a KL ball around each class.
        balance_classes: whether classes get equal totals, in the reference and in the second fit.
        cv: number of folds, or a splitter. A sample that is tested several times counts by its
            mean; one that is never tested keeps the average weight of its class.
        repeats: number of partitions into `cv` folds, if `cv` is a number. Weights are averages
            over them, and scores over as many others. If a splitter makes several partitions, half
            of them are for the weights.
        grid: settings of the second fit to choose from, as for `GridSearchCV`; None for the
            estimator as it is; "auto" for its C times 1e-4 to 10, if it has one that no search
            inside of it sets.
        budget: the largest loss of out-of-fold accuracy allowed, as a share (0.01 is one point);
            for regressors, the largest rise of the mean absolute error; None for no bound.
        groups: confirmed groups of the rows of X: a finding of `scdro.audit`, a slice of
            `find_slices`, a mask, or one value a row, None or NaN where unknown; a Series is looked
            up by X's index. The groups within each class then get equal weights, and settings and
            verdict depend on the accuracy of the worst of them.
        refuse: whether to keep the plain model, with a warning, if the verdict is no; if other
            thresholds or class weights suffice, they are used, with a warning that says what they
            cost. A second fit that costs accuracy says so too.
        n_jobs: number of processes, as in scikit-learn; the result is the same for any number.
        progress: whether to show the fits and the time left on stderr; by default if that is a
            terminal.
        random_state: seed of the folds.

    Attributes:
        verdict_: a `Verdict`; `print(look.verdict_)`.
        weights_: the weights of the samples, (n,), with mean one.
        reference_proba_: the out-of-fold probability of each sample's label, (n,); absolute errors
            for regressors.
        estimator_: the final model.
        plain_: the model fitted once.
        classes_: as in scikit-learn.
        n_features_in_: as in scikit-learn.
        feature_names_in_: as in scikit-learn.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> rng = np.random.default_rng(0)
        >>> y = np.repeat([0, 1], 300)
        >>> shortcut = np.where(rng.random(600) < 0.95, y, 1 - y)  # the class, but for a few samples
        >>> X = np.c_[shortcut + 0.1 * rng.normal(size=600), y + 0.25 * rng.normal(size=600)]
        >>> look = SecondLook(LogisticRegression(), random_state=0).fit(X, y)
        >>> look.verdict_.answer
        'helps'
        >>> few = shortcut != y
        >>> round(look.plain_.score(X[few], y[few]), 2), round(look.score(X[few], y[few]), 2)
        (0.74, 1.0)
    """

    def __init__(
        self,
        estimator: Any,
        *,
        reference: Any = None,
        rho: Any = "half",
        balance_classes: bool = True,
        cv: Any = 5,
        repeats: int = 3,
        grid: Any = "auto",
        budget: float | None = None,
        groups: Any = None,
        refuse: bool = True,
        n_jobs: int | None = None,
        progress: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.reference = reference
        self.rho = rho
        self.balance_classes = balance_classes
        self.cv = cv
        self.repeats = repeats
        self.grid = grid
        self.budget = budget
        self.groups = groups
        self.refuse = refuse
        self.n_jobs = n_jobs
        self.progress = progress
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags = inner.classifier_tags
        tags.regressor_tags = inner.regressor_tags
        tags.target_tags = inner.target_tags
        tags.target_tags.multi_output = tags.target_tags.two_d_labels = False
        if (
            tags.classifier_tags is not None
        ):  # one label per sample, also where the estimator takes several
            tags.classifier_tags.multi_label = False
        tags.input_tags = inner.input_tags
        return tags

    # -- fitting
    # ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> SecondLook:
        """Fit the model. `groups` go to the splitter `cv`, as in scikit-learn: samples that must stay together.

        `cv` must then be a splitter that uses them, such as GroupKFold(5). Groups that the model
        may fail are those of `SecondLook(groups=...)`.
        """
        self._check_settings()
        with unchanged_if_refused(self):
            self._fit(X, y, sample_weight, groups)
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any, groups: Any) -> None:
        X, y, groups = indexable(X, y, groups)
        y = column_or_1d(y, warn=True)
        check_no_missing(y, "y")
        self.__dict__.pop("classes_", None)
        if is_classifier(self.estimator):
            check_classification_targets(y)
            self.classes_ = np.unique(y)
            if len(self.classes_) == 1:  # the estimator itself complains about an empty data set
                raise DataError(
                    "expected at least two classes, got one class:"
                    f" {self.classes_[:1].tolist()[0]!r}"
                )
        base = array_weights(sample_weight, _num_samples(X))
        confirmed = None
        if self.groups is not None:
            confirmed = ConfirmedGroups.of(self.groups, X, y, is_classifier(self.estimator))
        self.plain_ = fit_weighted(self.estimator, X, y, base)
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(self.plain_, name):
                setattr(self, name, getattr(self.plain_, name))

        found = self._run_examination(X, y, base, groups, confirmed)
        self.verdict_, self.weights_ = found.verdict, found.weights
        self.reference_proba_, self._scores_of = found.of_label, found.scores
        self._labels = y
        self.estimator_ = self._fit_final(X, y, base, found.offsets)

    def _run_examination(
        self, X: Any, y: Array, base: Array, groups: Any, confirmed: ConfirmedGroups | None
    ) -> Examined:
        """The examination with the settings of this estimator and a line of progress."""
        given = {name: getattr(self, name) for name in LookSettings._fields if name != "candidates"}
        look = LookSettings(candidates=self._candidates(), **given)
        show = sys.stderr.isatty() if self.progress is None else self.progress
        tell = FitProgress("SecondLook", look.count_fits(confirmed is not None), show)
        try:
            return examine(look, X, y, base, groups, confirmed, tell)
        finally:
            tell.close()

    def _check_settings(self) -> None:
        """Raise unless every setting is valid; at the start of a fit, as scikit-learn does."""
        if isinstance(self.estimator, nn.Module):
            raise HyperparameterError(
                "expected a classifier or regressor of scikit-learn, got a torch network,"
                f" {type(self.estimator).__name__}; use repair, or out_of_fold and"
                " second_look_weights in your own loop"
            )
        check_is_estimator(self.estimator)
        if not (is_classifier(self.estimator) or is_regressor(self.estimator)):
            raise HyperparameterError(
                f"expected a classifier or regressor, got {type(self.estimator).__name__}"
            )
        if self.reference is not None:
            check_is_estimator(self.reference, "reference")
            if is_classifier(self.reference) != is_classifier(self.estimator):
                kinds = [
                    "classifier" if is_classifier(m) else "regressor"
                    for m in (self.estimator, self.reference)
                ]
                raise HyperparameterError(
                    f"expected a {kinds[0]} as the reference of a {kinds[0]}, got a {kinds[1]}"
                )
        if is_classifier(self.estimator):
            check_reference(self.estimator if self.reference is None else self.reference)
        check_half_or_rho(self.rho)
        check_flag("balance_classes", self.balance_classes)
        check_flag("refuse", self.refuse)
        check_whole("repeats", self.repeats, meaning="the number of partitions into folds")
        if self.budget is not None:
            check_budget(self.budget, is_classifier(self.estimator))

    def _candidates(self) -> list[dict[str, Any]]:
        """The settings of the second fit to try."""
        if self.grid is None:
            return [{}]
        if not isinstance(self.grid, str):
            settings = list(ParameterGrid(self.grid))
            if not settings:
                raise HyperparameterError(
                    f"expected a grid with settings, or None, got {self.grid!r}"
                )
            return settings
        if self.grid != "auto":
            raise HyperparameterError(
                f'expected grid to be "auto", None or a grid of settings, got {self.grid!r}'
            )
        settings = self.estimator.get_params()
        names = [
            n
            for n, v in settings.items()
            if (n == "C" or n.endswith("__C")) and isinstance(v, int | float)
        ]
        parts = {"": self.estimator} | {f"{name}__": part for name, part in settings.items()}
        searches = [prefix for prefix, part in parts.items() if _is_search(part)]
        names = [
            n for n in names if not any(n.startswith(prefix) for prefix in searches)
        ]  # a search sets C itself
        if len(names) != 1 or not np.isfinite(settings[names[0]]):
            return [{}]
        return [{names[0]: float(settings[names[0]]) * factor} for factor in PENALTIES]

    def _fit_final(self, X: Any, y: Array, base: Array, offsets: Array | None) -> Any:
        """The model in use, fitted to all rows, as the verdict says."""
        self._announce()
        used = self.verdict_.used
        if used in (SECOND, GROUPS):
            return fit_weighted(
                clone(self.estimator).set_params(**self.verdict_.chosen), X, y, self.weights_
            )
        if used == BALANCED:
            return fit_weighted(self.estimator, X, y, balanced(base, y))
        if used == THRESHOLD and offsets is not None:
            return MovedClassifier(self.plain_, offsets)
        return self.plain_

    def _announce(self) -> None:
        """Say which model is in use, and what it costs, unless it is what was asked for and costs nothing."""
        verdict = self.verdict_
        if verdict.used == PLAIN:
            said = (
                f"the plain model is kept: {verdict.answer} (see verdict_); refuse=False takes the"
                " second fit anyway"
            )
        elif verdict.used in (BALANCED, THRESHOLD):
            what = "class weights" if verdict.used == BALANCED else "other thresholds"
            said = (
                f"{what} are used instead of the plain model: {verdict.price()} (see"
                " verdict_); the plain model is plain_, and budget=... bounds what may be lost"
            )
        elif self.refuse and verdict.costs > 0:
            said = (
                f"the second fit is used, at a price: {verdict.price()} (see verdict_); the plain"
                " model is plain_, and budget=... bounds what may be lost"
            )
        else:
            return
        warnings.warn(said, ScdroWarning, stacklevel=5)

    # -- explaining
    # ---------------------------------------------------------------------------------------------------

    def find_slices(
        self, frame: Any, *, depth: int = 2, max_slices: int = 5, min_size: int = 3, alpha: float = 0.01,
        seed: int = 0, label: str = "label",
    ) -> Slices:  # fmt: skip
        """Describe the samples with more weight: `scdro.find_slices` with weights, labels and scores filled in.

        `before` is the out-of-fold accuracy of the plain model, `after` that of the model in use,
        if it is another one. `frame` has the rows of the X passed to `fit`, in the same order.
        """
        check_is_fitted(self, "estimator_")
        classifier, verdict = is_classifier(self.estimator), self.verdict_
        scores = {name: each if classifier else -each for name, each in self._scores_of.items()}
        after = None if verdict.used == PLAIN else scores[verdict.used]
        rows = WeightedRows(self.weights_, self._labels, scores[PLAIN], after, not classifier)
        return describe_slices(
            rows, frame, SliceSearch(depth, max_slices, min_size, alpha, seed, label)
        )

    def would_gain(
        self, slices: Any, X: Any, y: Any, sample_weight: Any = None, groups: Any = None
    ) -> Gains:
        """What `SecondLook(groups=slice)` would gain for each slice, before anybody confirms it.

        Args:
            slices: of `find_slices`, findings of `scdro.audit`, or a list of these; each takes as
                many fits as a verdict.
            X: as in `fit`.
            y: as in `fit`.
            sample_weight: as in `fit`.
            groups: as in `fit`.
        """
        check_is_fitted(self, "estimator_")
        X, y, groups = indexable(X, y, groups)
        labels, base = column_or_1d(y), array_weights(sample_weight, _num_samples(X))

        def read(one: Any) -> ConfirmedGroups:
            return ConfirmedGroups.of(one, X, labels, is_classifier(self.estimator))

        def verdict_of(confirmed: ConfirmedGroups) -> Verdict:
            return self._run_examination(X, labels, base, groups, confirmed).verdict

        return gains_of(slices, read, verdict_of)

    # -- predicting
    # ---------------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """The answers of the model in use."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict(X)

    @available_if(_estimator_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        """The probabilities of the model in use."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict_proba(X)

    @available_if(_estimator_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        """The log probabilities of the model in use."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict_log_proba(X)

    @available_if(_estimator_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """The scores of the model in use."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.decision_function(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy, or R^2 for regressors: the estimator's own `score`."""
        check_is_fitted(self, "estimator_")
        if sample_weight is None:
            return float(self.estimator_.score(X, y))
        return float(self.estimator_.score(X, y, sample_weight=sample_weight))
