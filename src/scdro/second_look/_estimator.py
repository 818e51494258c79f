"""SecondLook: fit, weight the samples where the fit is no better than a guess, fit again, and say whether it helped."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier, is_regressor
from sklearn.model_selection import ParameterGrid, StratifiedKFold
from sklearn.utils import check_random_state, get_tags, indexable
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _num_samples,
    check_is_fitted,
    column_or_1d,
)
from torch import nn

from scdro._frames import is_missing
from scdro._validation import (
    array_weights,
    check_budget,
    check_choice,
    check_flag,
    check_half_or_rho,
    check_is_estimator,
    check_no_missing,
    check_reference,
    check_takes_weights,
)
from scdro.errors import DataError, HyperparameterError, ScdroWarning
from scdro.functional import worst_case
from scdro.second_look._cross_mistakes import cross_mistakes, mistake_weights
from scdro.second_look._folds import Split, cross_fit, fit_weighted, partitions
from scdro.second_look._slices import Slices, described
from scdro.second_look._verdict import (
    CLASS_WEIGHTS,
    HELPS,
    KEPT,
    NOTHING,
    SURE,
    UNDECIDED,
    WRONG_LABELS,
    Verdict,
    answer_for,
    class_weights_help,
    kept_share,
    paired,
    smallest_visible,
    surely_right,
)
from scdro.second_look._weights import (
    FEW,
    SMALL,
    LookWeights,
    balanced,
    effective_size,
    look_weights,
    tilted_to,
)

__all__ = ["SecondLook"]

Array = npt.NDArray[Any]
STRATEGIES = ("half-rule", "cross-mistakes")
PENALTIES = tuple(10.0**k for k in range(-4, 2))  # factors of the estimator's C


class _Scores(NamedTuple):
    """The out-of-fold scores of a model for each sample, averaged over the partitions into folds."""

    each: Array  # 1 if right, else 0; for regressors, minus the absolute error
    surely: Array  # how surely right, from 0 to 1 (`surely_right`); for regressors, the same as `each`
    settings: dict[str, Any] = {}  # noqa: RUF012


class _TestWeights(NamedTuple):
    """Three ways to weight the samples when scoring a model; samples in no test fold have weight zero."""

    looked: Array  # the weights of the second look
    as_is: Array  # the given weights
    balanced_base: Array  # the given weights, with equal totals of the classes


class Examined(NamedTuple):
    """What `examine` finds."""

    verdict: Verdict
    weights: Array  # (n,), with mean one
    of_label: Array  # the reference's out-of-fold probability of each sample's label; absolute errors for regressors
    scores: dict[str, Array]  # "plain", "balanced", "second": out of fold, of each sample; NaN if it is never tested


def _estimator_has(name: str) -> Any:
    def check(self: SecondLook) -> bool:
        getattr(self.estimator_ if hasattr(self, "estimator_") else self.estimator, name)
        return True

    return check


class SecondLook(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    r"""Fit twice: the second time with weights under which the first fit is no better than a guess, if that helps.

    A reference model, fitted out of fold, gives each sample's label a probability p_i. The weights w_i ~ exp(-p_i/lam)
    in each class are such that the weighted mean of p is 1/2, and all classes get the same total
    (`second_look_weights`). The estimator is fitted again with these weights and with the penalty that is best under
    them out of fold. Whether this helps is also decided out of fold, without group labels: see `verdict_`. For
    regressors, absolute errors take the place of 1 - p, and their weighted mean is that of always predicting the
    median.

    Args:
        estimator: a classifier or regressor whose `fit` takes `sample_weight`; a Pipeline whose last step does.
        reference: the model of the first fit, a classifier with `predict_proba`; by default the estimator. The second
            fit must beat it. Without a reference, it must also beat the estimator at the best penalty of `grid`.
        rho: "half", or the radius of a KL ball around each class.
        strategy: "half-rule" as above, or "cross-mistakes" (XRM): two models, each fitted to one half of the data,
            predict the other half, and mistakes get the same total weight as the rest of their class.
        balance_classes: whether classes get equal totals, in the reference and in the second fit.
        cv: number of folds, or a splitter. A sample that is tested several times counts by its mean; one that is never
            tested keeps the average weight of its class.
        repeats: number of partitions into `cv` folds, if `cv` is a number. Weights and scores are averages over them.
        grid: settings of the second fit to choose from, as for `GridSearchCV`; None for the estimator as it is;
            "auto" for its C times 1e-4 to 10, if it has one.
        budget: the largest loss of out-of-fold accuracy allowed, as a share (0.01 is one point); for regressors, the
            largest rise of the mean absolute error; None for no bound.
        groups: known group labels of the rows of X, None or NaN where unknown; a Series is looked up by X's index. If
            given, settings and verdict depend on the accuracy of the worst known group.
        refuse: whether to keep the plain model, with a warning, if the verdict is no; if class weights suffice, they
            are used.
        random_state: seed of the folds.

    Attributes:
        verdict_: a `Verdict`; `print(look.verdict_)`.
        weights_: the weights of the samples, (n,), with mean one.
        reference_proba_: the out-of-fold probability of each sample's label, (n,); absolute errors for regressors.
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
        strategy: str = "half-rule",
        balance_classes: bool = True,
        cv: Any = 5,
        repeats: int = 3,
        grid: Any = "auto",
        budget: float | None = None,
        groups: Any = None,
        refuse: bool = True,
        random_state: Any = None,
    ) -> None:
        self.estimator = estimator
        self.reference = reference
        self.rho = rho
        self.strategy = strategy
        self.balance_classes = balance_classes
        self.cv = cv
        self.repeats = repeats
        self.grid = grid
        self.budget = budget
        self.groups = groups
        self.refuse = refuse
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags = inner.classifier_tags
        tags.regressor_tags = inner.regressor_tags
        tags.target_tags = inner.target_tags
        tags.target_tags.multi_output = tags.target_tags.two_d_labels = False
        tags.input_tags = inner.input_tags
        return tags

    # -- fitting ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> SecondLook:
        """Fit the model. `groups` go to the splitter `cv`, as in scikit-learn: samples that must stay together.

        `cv` must then be a splitter that uses them, such as GroupKFold(5). Groups that the model may fail are those of
        `SecondLook(groups=...)`.
        """
        self._check_settings()
        X, y, groups = indexable(X, y, groups)
        y = column_or_1d(y, warn=True)
        check_no_missing(y, "y")
        classifier = is_classifier(self.estimator)
        if classifier:
            check_classification_targets(y)
            self.classes_ = np.unique(y)
            if len(self.classes_) == 1:  # the estimator itself complains about an empty data set
                raise DataError(f"expected at least two classes, got one class: {self.classes_[0]!r}")
        base = array_weights(sample_weight, _num_samples(X))
        known_groups = self._known_groups(X)
        self.plain_ = fit_weighted(self.estimator, X, y, base)
        for name in ("n_features_in_", "feature_names_in_"):
            self.__dict__.pop(name, None)
            if hasattr(self.plain_, name):
                setattr(self, name, getattr(self.plain_, name))

        found = examine(self, X, y, base, groups, known_groups)
        self.verdict_, self.weights_, self.reference_proba_, self._scores_of = found
        self._labels = y
        self.estimator_ = self._fit_final(X, y, base)
        return self

    def _check_settings(self) -> None:
        if isinstance(self.estimator, nn.Module):
            raise HyperparameterError(
                f"expected a classifier or regressor of scikit-learn, got a torch network, "
                f"{type(self.estimator).__name__}; use repair, or out_of_fold and second_look_weights in your own loop"
            )
        check_is_estimator(self.estimator)
        if not (is_classifier(self.estimator) or is_regressor(self.estimator)):
            raise HyperparameterError(f"expected a classifier or regressor, got {type(self.estimator).__name__}")
        check_takes_weights(self.estimator)
        if self.reference is not None:
            check_is_estimator(self.reference, "reference")
            check_takes_weights(self.reference)
            if is_classifier(self.reference) != is_classifier(self.estimator):
                kinds = ["classifier" if is_classifier(m) else "regressor" for m in (self.estimator, self.reference)]
                raise HyperparameterError(f"expected a {kinds[0]} as the reference of a {kinds[0]}, got a {kinds[1]}")
        if is_classifier(self.estimator):
            check_reference(self.estimator if self.reference is None else self.reference)
        check_half_or_rho(self.rho)
        check_flag("balance_classes", self.balance_classes)
        check_flag("refuse", self.refuse)
        check_choice("strategy", self.strategy, STRATEGIES)
        if self.strategy == "cross-mistakes" and not is_classifier(self.estimator):
            raise HyperparameterError('expected strategy="half-rule" for a regressor, which has no classes')
        if self.budget is not None:
            check_budget(self.budget, is_classifier(self.estimator))

    def _known_groups(self, X: Any) -> Array | None:
        """Group names, None where unknown."""
        if self.groups is None:
            return None
        groups = self.groups
        if hasattr(groups, "reindex") and hasattr(X, "index"):
            groups = groups.reindex(X.index)
        names = np.asarray(groups, dtype=object)
        if names.shape != (_num_samples(X),):
            raise DataError(
                f"expected one group for each of the {_num_samples(X)} rows, got shape {names.shape}; a Series "
                "with X's index is looked up by it"
            )
        names = np.array([None if is_missing(name) else name for name in names], dtype=object)
        if all(name is None for name in names):
            raise DataError("expected some known groups, got none; leave groups out")
        return names

    def _candidates(self) -> list[dict[str, Any]]:
        """The settings of the second fit to try."""
        if self.grid is None:
            return [{}]
        if not isinstance(self.grid, str):
            settings = list(ParameterGrid(self.grid))
            if not settings:
                raise HyperparameterError(f"expected a grid with settings, or None, got {self.grid!r}")
            return settings
        if self.grid != "auto":
            raise HyperparameterError(f'expected grid to be "auto", None or a grid of settings, got {self.grid!r}')
        settings = self.estimator.get_params()
        names = [n for n, v in settings.items() if (n == "C" or n.endswith("__C")) and isinstance(v, int | float)]
        if len(names) != 1 or not np.isfinite(settings[names[0]]):
            return [{}]
        return [{names[0]: float(settings[names[0]]) * factor} for factor in PENALTIES]

    def _look_weights(
        self, X: Any, y: Array, base: Array, balanced_base: Array, by_reference: list[Array], reference: Any, rng: Any
    ) -> tuple[Array, dict[int, str]]:
        """The weights of the strategy, and the classes left alone; the half rule's are averages over the partitions."""
        if self.strategy == "cross-mistakes":
            return self._mistake_weights(X, y, balanced_base, rng, reference)
        classifier = is_classifier(self.estimator)
        parts = [self._half_rule(_of_label(predictions, y, classifier), y, base) for predictions in by_reference]
        alone = [left_alone for _, left_alone in parts]
        common = {name: why for name, why in alone[0].items() if all(name in other for other in alone)}
        return np.mean([weights for weights, _ in parts], axis=0), common

    def _half_rule(self, p: Array, y: Array, base: Array) -> tuple[Array, dict[Any, str]]:
        """Samples in no test fold, such as the only member of a class, keep the average weight of their class."""
        rows = np.flatnonzero(~np.isnan(p) & (base > 0))
        if len(rows) == 0:
            raise DataError("expected cv to test samples with a positive weight, got none; pass another splitter as cv")
        classifier = is_classifier(self.estimator)
        if classifier:
            found = look_weights(
                p[rows], y[rows], rho=self.rho, balance_classes=self.balance_classes, sample_weight=base[rows]
            )
        else:
            found = _tilted_errors(p[rows], y[rows], base[rows], self.rho)
        member = y if classifier else np.zeros(len(y), int)
        given = np.bincount(member[rows], base[rows], member.max() + 1)
        tilted = np.bincount(member[rows], found.weights, member.max() + 1)
        weights = base.astype(float)
        weights[rows] = found.weights * (given[member[rows]] / tilted[member[rows]])
        if not classifier:
            return weights * len(y) / weights.sum(), found.left_alone
        weights = balanced(weights, y) if self.balance_classes else weights * len(y) / weights.sum()
        untested = {int(k): "no sample in a test fold" for k in np.setdiff1d(y[base > 0], y[rows])}
        return weights, found.left_alone | untested

    def _mistake_weights(
        self, X: Any, y: Array, balanced_base: Array, rng: Any, reference: Any
    ) -> tuple[Array, dict[int, str]]:
        if np.bincount(y).min() < 2:
            raise DataError("expected at least two samples of every class for cross-mistakes: one for each twin")
        halves = next(iter(StratifiedKFold(2, shuffle=True, random_state=rng.randint(2**31 - 1)).split(y, y)))
        mistakes = cross_mistakes(reference, X, y, balanced_base, halves, rng)
        return mistake_weights(mistakes, y, balanced_base, self.balance_classes, SMALL)

    def _choose(
        self, tried: list[_Scores], plain: _Scores, by_reference_scores: _Scores, on_test: _TestWeights,
        known_groups: Array | None, y: Array,
    ) -> _Scores | None:  # fmt: skip
        """The best second fit under the weights that keeps the reference's lead over guessing, within the budget."""
        as_is = on_test.as_is
        if self.budget is not None:
            now = float(np.average(plain.each, weights=as_is))
            tried = [t for t in tried if now - float(np.average(t.each, weights=as_is)) <= self.budget]
        if not tried:
            return None
        if known_groups is not None:
            return max(tried, key=lambda t: _worst_group(t.each, known_groups, as_is))
        nothing = self._knowing_nothing(y, as_is)
        kept = [kept_share(t.each, by_reference_scores.each, on_test.balanced_base, nothing) for t in tried]
        if max(kept) < KEPT:
            return tried[int(np.argmax(kept))]
        return max((t for t, share_kept in zip(tried, kept, strict=True) if share_kept >= KEPT),
                   key=lambda t: float(on_test.looked @ t.surely))  # fmt: skip

    def _knowing_nothing(self, y: Array, as_is: Array) -> float:
        """The score of a guess: one of the classes, or the median."""
        if is_classifier(self.estimator):
            return 1 / (int(y.max()) + 1)
        return -float(np.average(np.abs(y - np.median(y)), weights=as_is))

    def _verdict(
        self, best: _Scores | None, plain: _Scores, by_reference_scores: _Scores, class_weighted: _Scores,
        rivals: list[_Scores], on_test: _TestWeights, y: Array, left_alone: dict[Any, str], known_groups: Array | None,
    ) -> Verdict:  # fmt: skip
        """`rivals` are models without the weights: what a better penalty alone gains does not count."""
        looked, as_is, balanced_base = on_test
        classifier = is_classifier(self.estimator)
        sign = 1.0 if classifier else -1.0
        second = after = plain if best is None else best
        rival = max(rivals, key=lambda scores: float(looked @ scores.surely))
        gain, error = paired(second.surely, rival.surely, looked)
        nothing = self._knowing_nothing(y, as_is)
        kept = kept_share(second.each, by_reference_scores.each, balanced_base, nothing)
        note = ""

        def worst(scores: _Scores) -> float:
            """The score of the worst class that is large enough to judge; of all samples for a regressor."""
            return _worst_group(scores.each, _large_classes(y, as_is) if classifier else np.zeros(len(y)), as_is)

        if best is None:
            answer = NOTHING
            note = f"No second fit stays within the budget of {self.budget:g}; the plain model is kept."
        elif known_groups is not None:
            now, then = (_worst_group(scores.each, known_groups, as_is) for scores in (plain, second))
            answer = HELPS if then > now else NOTHING
            said = [f"{100 * v:.1f}%" if classifier else f"error {-v:.3g}" for v in (now, then)]
            note = f"Worst known group: {said[0]} before, {said[1]} after."
        else:
            unit = 1.0 if classifier else -nothing or 1.0  # errors have the target's unit
            fall, below = ((worst(other) - worst(second)) / unit for other in (plain, class_weighted))
            size = effective_size(looked) / effective_size(balanced_base)
            answer = answer_for(gain / unit, error / unit, kept, fall, below, size)
        unequal = not np.allclose(balanced_base / balanced_base.sum(), as_is / as_is.sum())
        refused = answer in (NOTHING, WRONG_LABELS) and known_groups is None
        if refused and classifier and unequal and class_weights_help(plain.each, class_weighted.each, y, as_is):
            answer, after = CLASS_WEIGHTS, class_weighted
        elif refused and answer == NOTHING and best is not None and gain > SURE * error:
            note = UNDECIDED

        def mean(scores: Array, w: Array) -> float:
            return sign * float(np.average(scores, weights=w)) + 0.0

        hard_before = mean(rival.surely, looked)
        return Verdict(
            answer,
            gain,
            gain_error=error,
            kept=kept,
            before=mean(plain.each, as_is),
            after=mean(after.each, as_is),
            worst_class_before=worst(plain) if classifier else math.nan,
            worst_class_after=worst(after) if classifier else math.nan,
            hard_before=hard_before,
            hard_after=mean(second.surely, looked),
            effective_size=effective_size(looked),
            smallest_group=smallest_visible(looked, error / (1.0 if classifier else hard_before or 1.0)),
            left_alone=left_alone,
            chosen={} if best is None else best.settings,
            note=note,
            over_budget=best is None,
            loss=not classifier,
        )

    def _fit_final(self, X: Any, y: Array, base: Array) -> Any:
        if self.verdict_.helps or not (self.refuse or self.verdict_.over_budget):
            return fit_weighted(clone(self.estimator).set_params(**self.verdict_.chosen), X, y, self.weights_)
        if self.verdict_.answer == CLASS_WEIGHTS:
            return fit_weighted(self.estimator, X, y, balanced(base, y))
        warnings.warn(
            f"the plain model is kept: {self.verdict_.answer} (see verdict_); refuse=False takes the second fit anyway",
            ScdroWarning,
            stacklevel=3,
        )
        return self.plain_

    # -- explaining ---------------------------------------------------------------------------------------------------

    def find_slices(
        self, frame: Any, *, depth: int = 2, max_slices: int = 5, min_size: int = 3, alpha: float = 0.01,
        seed: int = 0, label: str = "label",
    ) -> Slices:  # fmt: skip
        """Describe the samples with more weight: `scdro.find_slices` with weights, labels and scores filled in.

        `before` is the out-of-fold accuracy of the plain model, `after` that of the model in use, if it is another one.
        `frame` has the rows of the X passed to `fit`, in the same order.
        """
        check_is_fitted(self, "estimator_")
        classifier, verdict = is_classifier(self.estimator), self.verdict_
        scores = {name: each if classifier else -each for name, each in self._scores_of.items()}
        before, after = scores["plain"], None
        if verdict.helps or not (self.refuse or verdict.over_budget):
            after = scores["second"]
        elif verdict.answer == CLASS_WEIGHTS:
            after = scores["balanced"]
        return described(
            self.weights_, frame, self._labels, before, after, loss=not classifier, depth=depth, max_slices=max_slices,
            min_size=min_size, alpha=alpha, seed=seed, label=label,
        )  # fmt: skip

    # -- predicting ---------------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict(X)

    @available_if(_estimator_has("predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict_proba(X)

    @available_if(_estimator_has("predict_log_proba"))  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> Any:
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict_log_proba(X)

    @available_if(_estimator_has("decision_function"))  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        check_is_fitted(self, "estimator_")
        return self.estimator_.decision_function(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy, or R^2 for regressors: the estimator's own `score`."""
        check_is_fitted(self, "estimator_")
        if sample_weight is None:
            return float(self.estimator_.score(X, y))
        return float(self.estimator_.score(X, y, sample_weight=sample_weight))


def examine(
    look: SecondLook, X: Any, labels: Array, base: Array, split_groups: Any = None, known_groups: Array | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> Examined:  # fmt: skip
    """The weights of a second look with these settings, and whether it helps. `tell` is called before each fit."""
    classifier, n = is_classifier(look.estimator), len(labels)
    classes, y = np.unique(labels, return_inverse=True) if classifier else (None, labels.astype(float))
    balanced_base = balanced(base, y) if classifier and look.balance_classes else base * n / base.sum()
    reference = look.estimator if look.reference is None else look.reference
    rng = check_random_state(look.random_state)
    cuts = partitions(look.cv, look.repeats, X, labels, split_groups, rng.randint(2**31 - 1), classifier)

    def balancing(weights: Array) -> Any:  # classes stay equal in every training part
        if classifier and look.balance_classes:
            return lambda rows: balanced(weights[rows], y[rows], FEW * len(rows) / n)
        return lambda rows: weights[rows]

    def predicted(model: Any, folds: list[Split], weights: Any, what: str) -> Array:
        tell(what)
        return cross_fit(model, X, labels, folds, weights, classes)

    def scored(settings: dict[str, Any], weights: Any, what: str, times: int | None = None) -> _Scores:
        model = clone(look.estimator).set_params(**settings)
        out_of_fold = [predicted(model, folds, weights, what) for folds in cuts[:times]]
        return _scores(out_of_fold, y, classifier)._replace(settings=settings)

    by_reference = [predicted(reference, folds, balancing(balanced_base), "reference") for folds in cuts]
    of_label = np.mean([_of_label(predictions, y, classifier) for predictions in by_reference], axis=0)
    weights, left_alone = look._look_weights(X, y, base, balanced_base, by_reference, reference, rng)
    if classes is not None:
        left_alone = {classes.tolist()[k]: why for k, why in left_alone.items()}
    tested = ~np.isnan(of_label)
    on_test = _TestWeights(*(np.where(tested, w, 0.0) for w in (weights, base, balanced_base)))

    by_reference_scores = _scores(by_reference, y, classifier)
    already_balanced = np.allclose(balanced_base, base * n / base.sum())
    if look.reference is None and already_balanced:
        plain = by_reference_scores
    else:
        plain = scored({}, lambda rows: base[rows], "plain", times=1)
    reference_is_estimator = look.reference is None or look.reference is look.estimator
    if reference_is_estimator:
        class_weighted = _scores(by_reference[:1], y, classifier)  # in the folds of `plain`
    elif classifier and look.balance_classes:
        class_weighted = scored({}, balancing(balanced_base), "class weights", times=1)
    else:
        class_weighted = plain
    tried = [
        scored(settings, balancing(weights), f"second look: {settings}", times=1) for settings in look._candidates()
    ]
    rivals = [by_reference_scores]
    if look.reference is None and len(tried) > 1:
        without = [
            scored(t.settings, balancing(balanced_base), f"without weights: {t.settings}", times=1) for t in tried
        ]
        k = int(np.argmax([float(on_test.balanced_base @ scores.each) for scores in without]))
        rivals.append(scored(tried[k].settings, balancing(balanced_base), "without weights, chosen"))
    best = look._choose(tried, plain, by_reference_scores, on_test, known_groups, y)
    if best is not None:
        best = scored(best.settings, balancing(weights), "second look, chosen")
    verdict = look._verdict(
        best, plain, by_reference_scores, class_weighted, rivals, on_test, y, left_alone, known_groups
    )
    kinds = {
        "plain": plain,
        "balanced": by_reference_scores if reference_is_estimator else class_weighted,
        "second": plain if best is None else best,
    }
    scores_of = {name: np.where(tested, scores.each, np.nan) for name, scores in kinds.items()}
    return Examined(verdict, weights, of_label, scores_of)


def _of_label(predictions: Array, y: Array, classifier: bool) -> Array:
    """The probability of each sample's label, or the absolute error."""
    found: Array = predictions[np.arange(len(y)), y] if classifier else np.abs(predictions - y)
    return found


def _scores(predictions: list[Array], y: Array, classifier: bool) -> _Scores:
    """Scores averaged over several predictions of all samples; zero for samples in no test fold."""
    each = [_right(one, y, classifier) for one in predictions]
    surely = [surely_right(one, y) for one in predictions] if classifier else each
    return _Scores(*(np.nan_to_num(np.mean(found, axis=0)) for found in (each, surely)))


def _right(predictions: Array, y: Array, classifier: bool) -> Array:
    """1 or 0, or minus the absolute error; NaN for samples in no test fold."""
    if not classifier:
        errors: Array = -np.abs(predictions - y)
        return errors
    right: Array = (predictions.argmax(1) == y).astype(float)
    right[np.isnan(predictions[:, 0])] = np.nan
    return right


def _tilted_errors(errors: Array, y: Array, base: Array, rho: Any) -> LookWeights:
    """For regressors: weights ~ exp(error/lam) whose mean error is that of always predicting the median."""
    q = base / base.sum()
    if rho != "half":
        return LookWeights(worst_case(errors, rho, sample_weight=q).weights * len(y), {}, {})
    of_median = float(q @ np.abs(y - np.median(y)))
    if len(y) < SMALL or not float(q @ errors) < of_median < float(errors.max()):
        return LookWeights(q * len(y), {}, {"all": "no weights make the first model as bad as the median"})
    weights, lam = tilted_to(-errors, q, -of_median, SMALL)
    return LookWeights(weights * len(y), {"all": lam}, {})


def _large_classes(y: Array, weights: Array) -> Array:
    """The classes of the samples as groups; None for classes of fewer than SMALL samples, if there are others."""
    counts = np.bincount(y[weights > 0], minlength=int(y.max()) + 1)
    few = counts < min(SMALL, counts.max())
    return np.array([None if few[k] else k for k in y], dtype=object)


def _worst_group(scores: Array, groups: Array, weights: Array) -> float:
    names = {name for name, w in zip(groups, weights, strict=True) if name is not None and w > 0}
    return min(float(np.average(scores[groups == name], weights=weights[groups == name])) for name in names)
