"""The examination behind a second look: reference, weights, second fits, the best of them, and the verdict.

`examine` is the whole of it, for `SecondLook` and for `repair`; the functions below it follow in the order in which it
calls them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import clone, is_classifier
from sklearn.model_selection import StratifiedKFold
from sklearn.utils import check_random_state

from scdro.errors import DataError
from scdro.functional import worst_case
from scdro.second_look._cross_mistakes import cross_mistakes, mistake_weights
from scdro.second_look._folds import Split, cross_fit, partitions
from scdro.second_look._verdict import (
    BALANCED,
    CLASS_WEIGHTS,
    FLAT,
    HELPS,
    KEPT,
    NOTHING,
    PLAIN,
    SECOND,
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

__all__ = ["Examined", "LookSettings", "examine"]

Array = npt.NDArray[Any]


class LookSettings(NamedTuple):
    """What is examined, as the arguments of `SecondLook`; `candidates` are the settings of the second fit to try."""

    estimator: Any
    candidates: list[dict[str, Any]]
    reference: Any = None
    rho: Any = "half"
    strategy: str = "half-rule"
    balance_classes: bool = True
    cv: Any = 5
    repeats: int = 3
    budget: float | None = None
    refuse: bool = True
    random_state: Any = None

    @property
    def classifier(self) -> bool:
        return bool(is_classifier(self.estimator))


class _Scores(NamedTuple):
    """The out-of-fold scores of a model for each sample, averaged over partitions into folds."""

    each: Array  # (n,), 1 if right, else 0; for regressors, minus the absolute error
    surely: Array  # (ways, n), how surely right, 0 to 1 (`surely_right`), in each way; for regressors, as `each`
    settings: dict[str, Any] = {}  # noqa: RUF012

    def under(self, looked: Array) -> float:
        """The mean under the weights of each way, averaged over the ways."""
        return float(np.mean(np.sum(looked * self.surely, 1) / looked.sum(1)))


class _TestWeights(NamedTuple):
    """How samples are weighted when a model is scored; samples in no test fold have weight zero."""

    looked: Array  # (ways, n), the weights of the second look
    as_is: Array  # the given weights
    balanced_base: Array  # the given weights, with equal totals of the classes


class Examined(NamedTuple):
    """What `examine` finds."""

    verdict: Verdict
    weights: Array  # (n,), with mean one
    of_label: Array  # the reference's out-of-fold probability of each sample's label; absolute errors for regressors
    scores: dict[str, Array]  # by PLAIN, BALANCED, SECOND: out of fold, of each sample; NaN if it is never tested


def examine(
    look: LookSettings, X: Any, labels: Array, base: Array, split_groups: Any = None, known_groups: Array | None = None,
    tell: Callable[[str], None] = lambda what: None,
) -> Examined:  # fmt: skip
    """The weights of a second look with these settings, and whether it helps. `tell` is called before each fit."""
    classifier, n = look.classifier, len(labels)
    classes, y = np.unique(labels, return_inverse=True) if classifier else (None, labels.astype(float))
    balanced_base = balanced(base, y) if classifier and look.balance_classes else base * n / base.sum()
    reference = look.estimator if look.reference is None else look.reference
    rng = check_random_state(look.random_state)
    cuts = partitions(look.cv, 2 * look.repeats, X, labels, split_groups, rng.randint(2**31 - 1), classifier)
    # The weights single out samples on which the reference was wrong, in part by the chance of its folds: in other
    # folds the same model is right on some of them. So half of the partitions make weights for the other half to score,
    # both ways.
    half = len(cuts) // 2
    ways = [(cuts[:half], cuts[half:]), (cuts[half:], cuts[:half])] if half else [(cuts, cuts)]

    def balancing(weights: Array) -> Any:  # classes stay equal in every training part
        if classifier and look.balance_classes:
            return lambda rows: balanced(weights[rows], y[rows], FEW * len(rows) / n)
        return lambda rows: weights[rows]

    def predicted(model: Any, folds: list[Split], weights: Any, what: str) -> Array:
        tell(what)
        return cross_fit(model, X, labels, folds, weights, classes)

    def scored(settings: dict[str, Any], weights: list[Any], what: str, times: int | None = None) -> _Scores:
        """`weights` are those of each way; `times` bounds the partitions of each."""
        model = clone(look.estimator).set_params(**settings)
        out_of_fold = [
            [predicted(model, folds, own, what) for folds in scoring[:times]]
            for (_, scoring), own in zip(ways, weights, strict=True)
        ]
        return _scores(out_of_fold, y, classifier)._replace(settings=settings)

    in_balance = [balancing(balanced_base)] * len(ways)
    by_reference = [[predicted(reference, folds, in_balance[0], "reference") for folds in first] for first, _ in ways]
    of_label = np.mean([_of_label(one, y, classifier) for part in by_reference for one in part], axis=0)
    found = [_look_weights(look, X, y, base, balanced_base, part, reference, rng) for part in by_reference]
    weights = np.mean([own for own, _ in found], axis=0)
    left_alone = {k: why for k, why in found[0][1].items() if all(k in alone for _, alone in found)}
    if classes is not None:
        left_alone = {classes.tolist()[k]: why for k, why in left_alone.items()}
    tested = ~np.isnan(of_label)
    looked = np.array([np.where(tested, own, 0.0) for own, _ in found])
    on_test = _TestWeights(looked, *(np.where(tested, w, 0.0) for w in (base, balanced_base)))
    looking = [balancing(own) for own, _ in found]

    by_reference.reverse()  # in each way, scores are of the folds that did not make its weights
    by_reference_scores = _scores(by_reference, y, classifier)
    already_balanced = np.allclose(balanced_base, base * n / base.sum())
    if look.reference is None and already_balanced:
        plain = by_reference_scores
    else:
        plain = scored({}, [lambda rows: base[rows]] * len(ways), "plain", times=1)
    reference_is_estimator = look.reference is None or look.reference is look.estimator
    if reference_is_estimator:
        class_weighted = _scores([part[:1] for part in by_reference], y, classifier)  # in the folds of `plain`
    elif classifier and look.balance_classes:
        class_weighted = scored({}, in_balance, "class weights", times=1)
    else:
        class_weighted = plain
    several = len(look.candidates) > 1
    times = 1 if several else None
    tried = [scored(settings, looking, f"second look: {settings}", times) for settings in look.candidates]
    rivals = [by_reference_scores]
    if look.reference is None and several:
        without = [scored(t.settings, in_balance, f"without weights: {t.settings}", times=1) for t in tried]
        k = int(np.argmax([float(on_test.balanced_base @ scores.each) for scores in without]))
        rivals.append(scored(tried[k].settings, in_balance, "without weights, chosen"))
    best = _choose(look, tried, plain, by_reference_scores, on_test, known_groups, y)
    if best is not None and several:
        best = scored(best.settings, looking, "second look, chosen")
    verdict = _verdict(
        look, best, plain, by_reference_scores, class_weighted, rivals, on_test, y, left_alone, known_groups
    )
    kinds = {
        PLAIN: plain,
        BALANCED: by_reference_scores if reference_is_estimator else class_weighted,
        SECOND: plain if best is None else best,
    }
    scores_of = {name: np.where(tested, scores.each, np.nan) for name, scores in kinds.items()}
    return Examined(verdict, weights, of_label, scores_of)


def _look_weights(
    look: LookSettings,
    X: Any,
    y: Array,
    base: Array,
    balanced_base: Array,
    by_reference: list[Array],
    reference: Any,
    rng: Any,
) -> tuple[Array, dict[int, str]]:
    """The weights of the strategy, and the classes left alone; the half rule's are averages over the partitions."""
    if look.strategy == "cross-mistakes":
        return _mistake_weights(look, X, y, balanced_base, rng, reference)
    classifier = look.classifier
    parts = [_half_rule(look, _of_label(predictions, y, classifier), y, base) for predictions in by_reference]
    alone = [left_alone for _, left_alone in parts]
    common = {name: why for name, why in alone[0].items() if all(name in other for other in alone)}
    return np.mean([weights for weights, _ in parts], axis=0), common


def _half_rule(look: LookSettings, p: Array, y: Array, base: Array) -> tuple[Array, dict[Any, str]]:
    """Samples in no test fold, such as the only member of a class, keep the average weight of their class."""
    rows = np.flatnonzero(~np.isnan(p) & (base > 0))
    if len(rows) == 0:
        raise DataError("expected cv to test samples with a positive weight, got none; pass another splitter as cv")
    classifier = look.classifier
    if classifier:
        found = look_weights(
            p[rows], y[rows], rho=look.rho, balance_classes=look.balance_classes, sample_weight=base[rows]
        )
    else:
        found = _tilted_errors(p[rows], y[rows], base[rows], look.rho)
    member = y if classifier else np.zeros(len(y), int)
    given = np.bincount(member[rows], base[rows], member.max() + 1)
    tilted = np.bincount(member[rows], found.weights, member.max() + 1)
    weights = base.astype(float)
    weights[rows] = found.weights * (given[member[rows]] / tilted[member[rows]])
    if not classifier:
        return weights * len(y) / weights.sum(), found.left_alone
    weights = balanced(weights, y) if look.balance_classes else weights * len(y) / weights.sum()
    untested = {int(k): "no sample in a test fold" for k in np.setdiff1d(y[base > 0], y[rows])}
    return weights, found.left_alone | untested


def _mistake_weights(
    look: LookSettings, X: Any, y: Array, balanced_base: Array, rng: Any, reference: Any
) -> tuple[Array, dict[int, str]]:
    if np.bincount(y).min() < 2:
        raise DataError("expected at least two samples of every class for cross-mistakes: one for each twin")
    halves = next(iter(StratifiedKFold(2, shuffle=True, random_state=rng.randint(2**31 - 1)).split(y, y)))
    mistakes = cross_mistakes(reference, X, y, balanced_base, halves, rng)
    return mistake_weights(mistakes, y, balanced_base, look.balance_classes, SMALL)


def _choose(
    look: LookSettings, tried: list[_Scores], plain: _Scores, by_reference_scores: _Scores, on_test: _TestWeights,
    known_groups: Array | None, y: Array,
) -> _Scores | None:  # fmt: skip
    """The best second fit under the weights that keeps the reference's lead over guessing, within the budget."""
    as_is = on_test.as_is
    if look.budget is not None:
        tried = [t for t in tried if _price(t, plain, as_is) <= look.budget]
    if not tried:
        return None
    if known_groups is not None:
        return max(tried, key=lambda t: _worst_group(t.each, known_groups, as_is))
    nothing = _knowing_nothing(look, y, as_is)
    kept = [kept_share(t.each, by_reference_scores.each, on_test.balanced_base, nothing) for t in tried]
    if max(kept) < KEPT:
        return tried[int(np.argmax(kept))]
    return max((t for t, share_kept in zip(tried, kept, strict=True) if share_kept >= KEPT),
               key=lambda t: t.under(on_test.looked))  # fmt: skip


def _price(scores: _Scores, plain: _Scores, as_is: Array) -> float:
    """The accuracy that a model costs, or by how much its mean absolute error is larger."""
    return float(np.average(plain.each - scores.each, weights=as_is))


def _knowing_nothing(look: LookSettings, y: Array, as_is: Array) -> float:
    """The score of a guess: one of the classes, or the median."""
    if look.classifier:
        return 1 / (int(y.max()) + 1)
    return -_error_of_median(y, as_is)


def _error_of_median(y: Array, weights: Array) -> float:
    """The mean absolute error of always predicting the weighted median."""
    median = np.quantile(y, 0.5, method="inverted_cdf", weights=weights)
    return float(np.average(np.abs(y - median), weights=weights))


def _verdict(
    look: LookSettings, best: _Scores | None, plain: _Scores, by_reference_scores: _Scores, class_weighted: _Scores,
    rivals: list[_Scores], on_test: _TestWeights, y: Array, left_alone: dict[Any, str], known_groups: Array | None,
) -> Verdict:  # fmt: skip
    """`rivals` are models without the weights: what a better penalty alone gains does not count."""
    looked, as_is, balanced_base = on_test
    classifier = look.classifier
    sign = 1.0 if classifier else -1.0
    second = plain if best is None else best
    rival = max(rivals, key=lambda scores: scores.under(looked))
    gain, error = np.mean([paired(*way) for way in zip(second.surely, rival.surely, looked, strict=True)], 0).tolist()
    nothing = _knowing_nothing(look, y, as_is)
    kept = kept_share(second.each, by_reference_scores.each, balanced_base, nothing)
    note = ""

    def worst(scores: _Scores) -> float:
        """The score of the worst class that is large enough to judge; of all samples for a regressor."""
        return _worst_group(scores.each, _large_classes(y, as_is) if classifier else np.zeros(len(y)), as_is)

    if best is None:
        answer = NOTHING
        note = f"No second fit stays within the budget of {look.budget:g}."
    elif known_groups is not None:
        now, then = (_worst_group(scores.each, known_groups, as_is) for scores in (plain, second))
        answer = HELPS if then > now else NOTHING
        said = [f"{100 * v:.1f}%" if classifier else f"error {-v:.3g}" for v in (now, then)]
        note = f"Worst known group: {said[0]} before, {said[1]} after."
    else:
        unit = 1.0 if classifier else -nothing or 1.0  # errors have the target's unit
        fall, below = ((worst(other) - worst(second)) / unit for other in (plain, class_weighted))
        size = effective_size(looked.mean(0)) / effective_size(balanced_base)
        answer = answer_for(gain / unit, error / unit, kept, fall, below, size)
        if answer == NOTHING and size <= FLAT and gain > SURE * error:
            note = UNDECIDED
    unequal = not np.allclose(balanced_base / balanced_base.sum(), as_is / as_is.sum())
    refused = answer in (NOTHING, WRONG_LABELS) and known_groups is None
    affordable = _price(class_weighted, plain, as_is) <= (math.inf if look.budget is None else look.budget)
    if refused and classifier and unequal and affordable and class_weights_help(
        plain.each, class_weighted.each, y, as_is
    ):  # fmt: skip
        answer, note = CLASS_WEIGHTS, ""
    used = PLAIN
    if answer == HELPS or not (look.refuse or best is None):
        used = SECOND
    elif answer == CLASS_WEIGHTS:
        used = BALANCED
    after = class_weighted if used == BALANCED else second

    def mean(scores: Array, w: Array) -> float:
        return sign * float(np.average(scores, weights=w)) + 0.0

    hard_before = sign * rival.under(looked) + 0.0
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
        hard_after=sign * second.under(looked) + 0.0,
        effective_size=effective_size(looked.mean(0)),
        smallest_group=smallest_visible(looked.mean(0), error / (1.0 if classifier else hard_before or 1.0)),
        left_alone=left_alone,
        chosen={} if best is None else best.settings,
        note=note,
        used=used,
        over_budget=best is None,
        loss=not classifier,
    )


def _of_label(predictions: Array, y: Array, classifier: bool) -> Array:
    """The probability of each sample's label, or the absolute error."""
    found: Array = predictions[np.arange(len(y)), y] if classifier else np.abs(predictions - y)
    return found


def _scores(predictions: list[list[Array]], y: Array, classifier: bool) -> _Scores:
    """Scores averaged over the partitions of each way; zero for samples in no test fold."""
    each = [np.mean([_right(one, y, classifier) for one in way], axis=0) for way in predictions]
    surely = [np.mean([surely_right(one, y) for one in way], axis=0) for way in predictions] if classifier else each
    return _Scores(np.nan_to_num(np.mean(each, axis=0)), np.nan_to_num(np.array(surely)))


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
    of_median = _error_of_median(y, q)
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
