"""The examination: reference, weights, remedies, evidence, decision. For `SecondLook` and for `repair`.

folds       half of the partitions make weights, the others score, both ways
reference   out of fold, with equal weights of the classes
weights     of the second look (half rule, or cross-mistakes), or of confirmed groups
evidence    plain, plain with thresholds, class weights, the remedy at each setting
decision    `scdro.fix._decide`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.model_selection import StratifiedKFold
from sklearn.utils import check_random_state

from scdro.errors import DataError
from scdro.fix._apart import set_apart
from scdro.fix._criteria import Criterion, HardRows, RowScores, WorstCell
from scdro.fix._cross_mistakes import cross_mistakes, mistake_weights
from scdro.fix._decide import KEPT, Evidence, decide, kept_share
from scdro.fix._evidence import FoldedRows, Predictions, Remedy
from scdro.fix._folds import partitions
from scdro.fix._free_moves import best_offsets
from scdro.fix._groups import ConfirmedGroups
from scdro.fix._verdict import BALANCED, GROUPS, PLAIN, SECOND, THRESHOLD, Verdict
from scdro.fix._weights import SMALL, LookWeights, balanced, look_weights, tilted_to
from scdro.functional import worst_case

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
    n_jobs: int | None = None
    random_state: Any = None

    @property
    def classifier(self) -> bool:
        return bool(is_classifier(self.estimator))

    @property
    def first(self) -> Any:
        """The model of the first fit."""
        return self.estimator if self.reference is None else self.reference

    @property
    def same_model(self) -> bool:
        """Whether the reference, with equal weights of the classes, is also the class-weighted model."""
        return self.reference is None or self.reference is self.estimator

    def count_fits(self, confirmed: bool = False) -> int:
        """About how many fits the verdict takes, for the time left."""
        folds = self.cv if isinstance(self.cv, int) else 5
        c = len(self.candidates)
        chosen = 2 * self.repeats if c > 1 else 0
        without = 2 * c + chosen if c > 1 and self.reference is None and not confirmed else 0
        tried = 2 * c if c > 1 else 2 * self.repeats
        balanced_too = 0 if self.same_model else 2
        return folds * (2 * self.repeats + 2 + balanced_too + tried + without + chosen)


class Examined(NamedTuple):
    """What `examine` finds."""

    verdict: Verdict
    weights: Array  # (n,), of the remedy, with mean one
    # the reference's out-of-fold probability of each sample's label; absolute errors for regressors
    of_label: Array
    # by the names of the rungs: out of fold, of each sample; NaN if it is never tested
    scores: dict[str, Array]
    offsets: Array | None  # (classes,), the thresholds of the rung of that name


class _Look(NamedTuple):
    """What the reference found."""

    predictions: Predictions  # in the partitions that made the weights
    ways: list[Array]  # weights of the second look, (n,), for each way
    left_alone: dict[Any, str]  # classes with uniform weights, and why
    of_label: Array  # (n,)


def examine(
    look: LookSettings, X: Any, labels: Array, base: Array, split_groups: Any = None,
    confirmed: ConfirmedGroups | None = None, tell: Callable[[str], None] = lambda what: None,
) -> Examined:  # fmt: skip
    """The weights of the remedy with these settings, and whether it helps. `tell` is called after each fit."""
    rng = check_random_state(look.random_state)
    study = _study(look, X, labels, base, split_groups, rng, tell)
    found = _first_look(look, study, rng)
    tested = ~np.isnan(found.of_label)
    cells = confirmed.cells(study.y, study.classes, base) if confirmed is not None else None
    criterion: Criterion
    if cells is None:
        criterion = HardRows(
            np.array([np.where(tested, w, 0.0) for w in found.ways]),
            study.y if study.classes is not None else np.zeros(len(base), int),
        )
        remedy_weights = found.ways
    else:
        criterion = WorstCell.of(cells.numbers, cells.names, np.where(tested, base, 0.0))
        remedy_weights = [cells.weights(base)] * len(study.ways)
    gathered = _gather(look, study, found, criterion, remedy_weights)
    verdict = decide(gathered.evidence, look.budget, look.refuse, found.left_alone)
    kinds = {
        PLAIN: gathered.evidence.plain,
        THRESHOLD: gathered.evidence.threshold,
        BALANCED: gathered.evidence.class_weights,
        gathered.evidence.name: gathered.evidence.remedy or gathered.evidence.plain,
    }
    return Examined(
        verdict,
        np.mean(remedy_weights, axis=0),
        found.of_label,
        {name: np.where(tested, one.each, np.nan) for name, one in kinds.items()},
        gathered.offsets,
    )


# -- the first look ---------------------------------------------------------------------------


def _study(
    look: LookSettings, X: Any, labels: Array, base: Array, split_groups: Any, rng: Any, tell: Any
) -> FoldedRows:
    """Class numbers and folds."""
    classes, y = (
        np.unique(labels, return_inverse=True) if look.classifier else (None, labels.astype(float))
    )
    cuts = partitions(
        look.cv, 2 * look.repeats, X, labels, split_groups, rng.randint(2**31 - 1), look.classifier
    )
    half = len(cuts) // 2
    ways = [(cuts[:half], cuts[half:]), (cuts[half:], cuts[:half])] if half else [(cuts, cuts)]
    return FoldedRows(X, labels, y, classes, base, ways, look.n_jobs, tell)


def _first_look(look: LookSettings, study: FoldedRows, rng: Any) -> _Look:
    """The reference, out of fold, and the weights of the rows where it is no better than a guess."""
    even = _even_weights(look, study)
    reference = Remedy("reference", look.first, {}, [even] * len(study.ways), _balances(look))
    predictions = study.predict_first(reference)
    of_label = np.mean([_of_label(one, study) for way in predictions for one in way], axis=0)
    parts = [_look_weights(look, study, way, even, rng) for way in predictions]
    alone = [left_alone for _, left_alone in parts]
    common = {k: why for k, why in alone[0].items() if all(k in other for other in alone)}
    if study.classes is not None:
        common = {study.classes.tolist()[k]: why for k, why in common.items()}
    return _Look(predictions, [weights for weights, _ in parts], common, of_label)


def _balances(look: LookSettings) -> bool:
    return look.classifier and look.balance_classes


def _even_weights(look: LookSettings, study: FoldedRows) -> Array:
    """The given weights, with equal totals of the classes where that is wanted, and mean one."""
    if _balances(look):
        return balanced(study.base, study.y)
    even: Array = study.base * len(study.y) / study.base.sum()
    return even


def _look_weights(
    look: LookSettings, study: FoldedRows, by_reference: list[Array], even: Array, rng: Any
) -> tuple[Array, dict[int, str]]:
    """The weights of the strategy, and the classes left alone; the half rule's are averages over the partitions."""
    if look.strategy == "cross-mistakes":
        return _mistake_weights(look, study, even, rng)
    parts = [_half_rule(look, _of_label(one, study), study) for one in by_reference]
    alone = [left_alone for _, left_alone in parts]
    common = {name: why for name, why in alone[0].items() if all(name in other for other in alone)}
    return np.mean([weights for weights, _ in parts], axis=0), common


def _half_rule(look: LookSettings, p: Array, study: FoldedRows) -> tuple[Array, dict[Any, str]]:
    """Samples in no test fold, such as the only member of a class, keep the average weight of their class."""
    y, base = study.y, study.base
    rows = np.flatnonzero(~np.isnan(p) & (base > 0))
    if len(rows) == 0:
        raise DataError(
            "expected cv to test samples with a positive weight, got none; pass another splitter"
            " as cv"
        )
    if look.classifier:
        found = look_weights(
            p[rows],
            y[rows],
            rho=look.rho,
            balance_classes=look.balance_classes,
            sample_weight=base[rows],
        )
    else:
        found = _tilted_errors(p[rows], y[rows], base[rows], look.rho)
    member = y if look.classifier else np.zeros(len(y), int)
    given = np.bincount(member[rows], base[rows], member.max() + 1)
    tilted = np.bincount(member[rows], found.weights, member.max() + 1)
    weights = base.astype(float)
    weights[rows] = found.weights * (given[member[rows]] / tilted[member[rows]])
    if not look.classifier:
        return weights * len(y) / weights.sum(), found.left_alone
    weights = balanced(weights, y) if look.balance_classes else weights * len(y) / weights.sum()
    untested = {int(k): "no sample in a test fold" for k in np.setdiff1d(y[base > 0], y[rows])}
    return weights, found.left_alone | untested


def _mistake_weights(
    look: LookSettings, study: FoldedRows, even: Array, rng: Any
) -> tuple[Array, dict[int, str]]:
    y = study.y
    if np.bincount(y).min() < 2:
        raise DataError(
            "expected at least two samples of every class for cross-mistakes: one for each twin"
        )
    halves = next(
        iter(StratifiedKFold(2, shuffle=True, random_state=rng.randint(2**31 - 1)).split(y, y))
    )
    mistakes = cross_mistakes(look.first, study.X, y, even, halves, rng)
    return mistake_weights(mistakes, y, even, look.balance_classes, SMALL)


def _tilted_errors(errors: Array, y: Array, base: Array, rho: Any) -> LookWeights:
    """For regressors: weights ~ exp(error/lam) whose mean error is that of always predicting the median."""
    q = base / base.sum()
    if rho != "half":
        return LookWeights(worst_case(errors, rho, sample_weight=q).weights * len(y), {}, {})
    of_median = _error_of_median(y, q)
    if len(y) < SMALL or not float(q @ errors) < of_median < float(errors.max()):
        return LookWeights(
            q * len(y), {}, {"all": "no weights make the first model as bad as the median"}
        )
    weights, lam = tilted_to(-errors, q, -of_median, SMALL)
    return LookWeights(weights * len(y), {"all": lam}, {})


# -- the evidence -----------------------------------------------------------------------------


class _Gathered(NamedTuple):
    evidence: Evidence
    offsets: Array | None  # of the plain model, chosen on all of its out-of-fold predictions


def _gather(
    look: LookSettings,
    study: FoldedRows,
    found: _Look,
    criterion: Criterion,
    remedy_weights: list[Array],
) -> _Gathered:
    """Out-of-fold scores of every rung in the same folds."""
    tested = ~np.isnan(found.of_label)
    ways, even = len(study.ways), _even_weights(look, study)
    as_is, even_tested = (np.where(tested, w, 0.0) for w in (study.base, even))
    # In each way, scores are of the folds that did not make its weights.
    by_reference = found.predictions[::-1]
    reference = study.scores(by_reference)
    fits = {PLAIN: 0, THRESHOLD: 0, BALANCED: study.fits}  # the reference is class-weighted

    plain_predictions = [way[:1] for way in by_reference]
    if look.reference is not None or not np.allclose(
        even, study.base * len(even) / study.base.sum()
    ):
        plain = Remedy(PLAIN, look.estimator, {}, [study.base] * ways, balance=False)
        plain_predictions = study.predict([plain], times=1)[0]
        fits[PLAIN] = study.fits - fits[BALANCED]
    class_weights = study.scores([way[:1] for way in by_reference])
    if not look.same_model:
        even_remedy = Remedy(BALANCED, look.estimator, {}, [even] * ways, _balances(look))
        class_weights = study.scores(study.predict([even_remedy], times=1)[0])
    fits[BALANCED] = study.fits - fits[PLAIN]

    plain_scores = study.scores(plain_predictions)
    classes = _classes_as_cells(study, as_is)
    threshold, offsets, recalibrated = plain_scores, None, None
    if study.classes is not None:
        recalibrated = study.scores(study.with_temperature(plain_predictions))
        cells = criterion if isinstance(criterion, WorstCell) else classes
        threshold = study.scores(study.with_thresholds(plain_predictions, cells))
        offsets = _final_offsets(plain_predictions, study, cells)

    guess = _score_of_a_guess(study, as_is)
    name = GROUPS if isinstance(criterion, WorstCell) else SECOND
    before = study.fits
    chosen, rivals = _choose(
        look, study, criterion, _Fixed(name, remedy_weights, plain_scores, reference, guess, even_tested, as_is)
    )  # fmt: skip
    fits[name] = study.fits - before
    free = threshold
    if study.classes is not None and isinstance(criterion, HardRows) and chosen is not None:
        accuracies = [np.average(one.each, weights=as_is) for one in (chosen[1], plain_scores)]
        moved = study.with_thresholds(plain_predictions, criterion, float(min(accuracies)))
        free = study.scores(moved)
    if not (look.same_model and isinstance(criterion, HardRows)):
        rivals = [class_weights, *rivals]  # else it is the reference
    evidence = Evidence(
        criterion, classes, plain_scores, threshold, class_weights, reference,
        [free, *rivals], None if chosen is None else chosen[1], name,
        {} if chosen is None else chosen[0], as_is, even_tested,
        np.array([np.where(tested, w, 0.0) for w in remedy_weights]), guess,
        study.classes is None, fits, recalibrated,
    )  # fmt: skip
    if study.classes is not None and isinstance(criterion, HardRows):
        every = [one for way in by_reference for one in way]
        apart = set_apart(every, study.y, np.mean(remedy_weights, axis=0), even_tested)
        evidence = evidence._replace(apart=apart)
    return _Gathered(evidence, offsets)


class _Fixed(NamedTuple):
    """What the choice of a setting needs besides its own fits."""

    name: str  # of the remedy
    weights: list[Array]  # of the remedy, for each way
    plain: RowScores
    reference: RowScores
    guess: float  # score of a guess
    even: Array  # (n,), weights with equal classes, 0 for rows in no test fold
    as_is: Array  # (n,), the given weights, 0 for rows in no test fold


def _choose(
    look: LookSettings, study: FoldedRows, criterion: Criterion, fixed: _Fixed
) -> tuple[tuple[dict[str, Any], RowScores] | None, list[RowScores]]:
    """The best setting of the remedy with its scores, and rivals: the model without its weights.

    Without confirmed groups, a setting must keep the reference's lead over guessing if one does,
    and the rivals are the reference and, if there is a choice of settings, the best one without the
    weights: what a better penalty alone gains does not count.
    """
    several = len(look.candidates) > 1
    times = 1 if several else None
    balance, ways = _balances(look), len(study.ways)
    remedies = [
        Remedy(fixed.name, look.estimator, settings, fixed.weights, balance and fixed.name == SECOND)
        for settings in look.candidates
    ]  # fmt: skip
    tried = [study.scores(one) for one in study.predict(remedies, times)]
    rivals = [] if fixed.name == GROUPS else [fixed.reference]
    if look.reference is None and several and fixed.name == SECOND:
        even = _even_weights(look, study)
        without = [
            Remedy("without weights", look.estimator, settings, [even] * ways, balance)
            for settings in look.candidates
        ]
        means = [
            float(fixed.even @ study.scores(one).each) for one in study.predict(without, times=1)
        ]
        best = study.predict([without[int(np.argmax(means))]])[0]
        rivals.append(study.scores(best))
    allowed = [
        k
        for k, one in enumerate(tried)
        if look.budget is None
        or np.average(fixed.plain.each - one.each, weights=fixed.as_is) <= look.budget
    ]
    if not allowed:
        return None, rivals or [fixed.plain]
    k = _best_setting(tried, allowed, criterion, fixed)
    scores = study.scores(study.predict([remedies[k]])[0]) if several else tried[k]
    return (look.candidates[k], scores), rivals


def _best_setting(
    tried: list[RowScores], allowed: list[int], criterion: Criterion, fixed: _Fixed
) -> int:
    if isinstance(criterion, WorstCell):
        return max(allowed, key=lambda k: criterion.score(tried[k]))
    kept = {
        k: kept_share(tried[k].each, fixed.reference.each, fixed.even, fixed.guess) for k in allowed
    }
    if max(kept.values()) < KEPT:
        return max(allowed, key=lambda k: kept[k])
    return max(
        (k for k in allowed if kept[k] >= KEPT), key=lambda k: criterion.score(tried[k])
    )  # fmt: skip


def _final_offsets(predictions: Predictions, study: FoldedRows, cells: WorstCell) -> Array:
    """The thresholds of the final model: of all out-of-fold predictions, averaged over partitions."""
    found = []
    for proba in (one for way in predictions for one in way):
        tested = ~np.isnan(proba[:, 0])
        own = cells.weights[:, tested]
        found.append(best_offsets(proba[tested], study.y[tested], own[own.sum(1) > 0]))
    mean: Array = np.mean(found, axis=0)
    return mean


def _classes_as_cells(study: FoldedRows, as_is: Array) -> WorstCell:
    """The classes with at least SMALL rows, or the largest; for regressors all rows are one cell."""
    if study.classes is None:
        return WorstCell(as_is[None], ("all",))
    counts = np.bincount(study.y[as_is > 0], minlength=len(study.classes))
    scored = [k for k in range(len(counts)) if counts[k] >= min(SMALL, counts.max())]
    weights = np.array([np.where(study.y == k, as_is, 0.0) for k in scored])
    return WorstCell(weights, tuple(str(study.classes.tolist()[k]) for k in scored))


def _score_of_a_guess(study: FoldedRows, as_is: Array) -> float:
    """The score of a guess: one of the classes, or the median."""
    if study.classes is not None:
        return 1 / len(study.classes)
    return -_error_of_median(study.y, as_is)


def _error_of_median(y: Array, weights: Array) -> float:
    """The mean absolute error of always predicting the weighted median."""
    median = np.quantile(y, 0.5, method="inverted_cdf", weights=weights)
    return float(np.average(np.abs(y - median), weights=weights))


def _of_label(predictions: Array, study: FoldedRows) -> Array:
    """The probability of each sample's label, or the absolute error."""
    y = study.y
    found: Array = (
        predictions[np.arange(len(y)), y] if study.classes is not None else np.abs(predictions - y)
    )
    return found
