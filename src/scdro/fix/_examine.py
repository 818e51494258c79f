"""The examination: reference, weights, remedies, evidence, decision. For `SecondLook` and `repair`.

    folds       half of the partitions make weights, the others score; and the other way around
    reference   out of fold, with equal weights of the classes                 predict_first
    weights     of the second look (the half rule), or of confirmed groups     _weigh_hard_rows
    criterion   accuracy under these weights, or of the worst cell             _measure_by
    evidence    plain, plain with thresholds, class weights, the remedy at     _gather
                its best setting, all in the same folds
    decision    `scdro.fix._decide`

Why two ways: rows that a model gets wrong by the chance of its folds are right in other folds. If
the same folds made the weights and scored, any unstable model would seem to gain.

A "way" is thus one assignment of partitions to the two jobs. Predictions are nested as
[way][partition] -> (n, k).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import is_classifier
from sklearn.utils import check_random_state

from scdro.errors import DataError
from scdro.fix._apart import set_apart
from scdro.fix._criteria import Criterion, HardRows, RowScores, WorstCell
from scdro.fix._decide import KEPT, Evidence, decide, kept_share
from scdro.fix._evidence import FoldedRows, Predictions, Remedy
from scdro.fix._folds import partitions
from scdro.fix._free_moves import best_offsets
from scdro.fix._groups import ConfirmedGroups
from scdro.fix._verdict import (
    BALANCED,
    GROUPS,
    PLAIN,
    RECALIBRATION,
    SECOND,
    THRESHOLD,
    Verdict,
)
from scdro.fix._weights import SMALL, LookWeights, balanced, look_weights, tilted_to
from scdro.functional import worst_case

__all__ = ["Examined", "LookSettings", "examine"]

Array = npt.NDArray[Any]
REFERENCE, UNWEIGHTED = "reference", "without weights"  # fits that are no rung by themselves


class LookSettings(NamedTuple):
    """What is examined, as the arguments of `SecondLook`; `candidates` are the settings of the second fit to try."""

    estimator: Any
    candidates: list[dict[str, Any]]
    reference: Any = None
    rho: Any = "half"
    balance_classes: bool = True
    cv: Any = 5
    repeats: int = 3
    budget: float | None = None
    refuse: bool = True
    n_jobs: int | None = None
    random_state: Any = None

    @property
    def classifier(self) -> bool:
        """Whether classes are predicted."""
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


def examine(
    look: LookSettings, X: Any, labels: Array, base: Array, split_groups: Any = None,
    confirmed: ConfirmedGroups | None = None, tell: Callable[[str], None] = lambda what: None,
) -> Examined:  # fmt: skip
    """The weights of the remedy with these settings, and whether it helps. `tell` is called after each fit."""
    # One seed for everything random, drawn once: the same for any number of processes.
    seed = check_random_state(look.random_state).randint(2**31 - 1)
    classes, y = (
        np.unique(labels, return_inverse=True) if look.classifier else (None, labels.astype(float))
    )
    cuts = partitions(look.cv, 2 * look.repeats, X, labels, split_groups, seed, look.classifier)
    half = len(cuts) // 2  # 0 if a splitter makes one partition only: it then does both jobs
    ways = [(cuts[:half], cuts[half:]), (cuts[half:], cuts[:half])] if half else [(cuts, cuts)]
    study = FoldedRows(X, labels, y, classes, base, ways, look.n_jobs, tell)
    return _Examination(look, study, confirmed).run()


class _Examination:
    """One examination: what is known so far, in the order in which `run` finds it.

    Attributes:
        look, study, confirmed: the settings; rows and folds; the groups that a person confirmed.
        balance: whether classes get equal totals.
        even: (n,), the given weights, with equal totals of the classes if they are balanced.
        first: predictions of the reference in the partitions that make weights.
        tested: (n,), whether a row is in a test fold.
        as_is, even_tested: (n,), the given weights and `even`, 0 for rows in no test fold.
        guess: the score of a guess: one of the classes, or the median.
        criterion: what a gain is measured by.
        weights: of the remedy, (n,), for each way.
    """

    def __init__(
        self, look: LookSettings, study: FoldedRows, confirmed: ConfirmedGroups | None
    ) -> None:
        self.look, self.study, self.confirmed = look, study, confirmed
        self.name = SECOND if confirmed is None else GROUPS
        self.balance = look.classifier and look.balance_classes
        base, y = study.base, study.y
        self.even = balanced(base, y) if self.balance else base * len(y) / base.sum()

    def run(self) -> Examined:
        """The examination from top to bottom, in the order of the module's table."""
        look, study = self.look, self.study
        reference = Remedy(REFERENCE, look.first, {}, self._same(self.even), self.balance)
        self.first = study.predict_first(reference)
        # In each way, scores are of the folds that did not make its weights.
        self.by_reference = self.first[::-1]
        of_label = np.mean([_of_label(one, study) for way in self.first for one in way], axis=0)
        self.tested = ~np.isnan(of_label)
        self.as_is = np.where(self.tested, study.base, 0.0)
        self.even_tested = np.where(self.tested, self.even, 0.0)
        self.guess = 1 / len(study.classes) if study.classes is not None else -_error_of_median(
            study.y, self.as_is
        )  # fmt: skip
        hard, left_alone = self._weigh_hard_rows()
        self._measure_by(hard)
        evidence, offsets = self._gather()
        return Examined(
            decide(evidence, look.budget, look.refuse, left_alone),
            np.mean(self.weights, axis=0),
            of_label,
            {
                name: np.where(self.tested, one.each, np.nan)
                for name, one in evidence.models.items()
            },
            offsets,
        )

    def _same(self, weights: Array) -> list[Array]:
        """The same weights in each way."""
        return [weights] * len(self.study.ways)

    # -- the weights ------------------------------------------------------------------------------

    def _weigh_hard_rows(self) -> tuple[list[Array], dict[Any, str]]:
        """The weights of each way, averages over its partitions, and the classes that all of them leave alone."""
        parts = [[self._half_rule(one) for one in way] for way in self.first]
        alone = [left_alone for way in parts for _, left_alone in way]
        common = {k: why for k, why in alone[0].items() if all(k in other for other in alone)}
        if self.study.classes is not None:
            common = {self.study.classes.tolist()[k]: why for k, why in common.items()}
        return [np.mean([weights for weights, _ in way], axis=0) for way in parts], common

    def _half_rule(self, predictions: Array) -> tuple[Array, dict[Any, str]]:
        """The weights of a second look from one partition's predictions, and classes left alone.

        Samples in no test fold, such as the only member of a class, keep the average weight of
        their class.
        """
        look, y, base = self.look, self.study.y, self.study.base
        p = _of_label(predictions, self.study)
        rows = np.flatnonzero(~np.isnan(p) & (base > 0))
        if len(rows) == 0:
            raise DataError(
                "expected cv to test samples with a positive weight, got none; pass another"
                " splitter as cv"
            )
        if look.classifier:
            member = y
            found = look_weights(
                p[rows], y[rows], rho=look.rho, balance_classes=look.balance_classes,
                sample_weight=base[rows],
            )  # fmt: skip
        else:
            member = np.zeros(len(y), int)
            found = _tilted_errors(p[rows], y[rows], base[rows], look.rho)
        # Within each class the tested rows share what they had: (classes,), before and after.
        given = np.bincount(member[rows], base[rows], member.max() + 1)
        tilted = np.bincount(member[rows], found.weights, member.max() + 1)
        weights = base.astype(float)
        weights[rows] = found.weights * (given[member[rows]] / tilted[member[rows]])
        weights = balanced(weights, y) if self.balance else weights * len(y) / weights.sum()
        left_alone = found.left_alone
        if look.classifier:
            never = np.setdiff1d(y[base > 0], y[rows])
            left_alone = left_alone | {int(k): "no sample in a test fold" for k in never}
        return weights, left_alone

    def _measure_by(self, hard: list[Array]) -> None:
        """The criterion and the remedy's weights: of the hard rows, or of the confirmed groups."""
        study = self.study
        self.criterion: Criterion
        if self.confirmed is None:
            looked = np.array([np.where(self.tested, w, 0.0) for w in hard])
            member = study.y if study.classes is not None else np.zeros(len(study.y), int)
            self.criterion, self.weights = HardRows(looked, member), hard
        else:
            cells = self.confirmed.cells(study.y, study.classes, study.base)
            self.criterion = WorstCell.of(cells.numbers, cells.names, self.as_is)
            self.weights = self._same(cells.weights(study.base))

    # -- the evidence -----------------------------------------------------------------------------

    def _gather(self) -> tuple[Evidence, Array | None]:
        """Out-of-fold scores of every rung in the same folds; the thresholds of the final model."""
        look, study, offsets = self.look, self.study, None
        classification = study.classes is not None
        reference = study.scores(self.by_reference)
        # The plain model: the reference itself, unless that is another model or has other weights.
        plain = [way[:1] for way in self.by_reference]
        given = study.base * len(self.even) / study.base.sum()
        if look.reference is not None or not np.allclose(self.even, given):
            remedy = Remedy(PLAIN, look.estimator, {}, self._same(study.base), balance=False)
            plain = study.predict([remedy], times=1)[0]
        class_weights = [way[:1] for way in self.by_reference]
        if not look.same_model:
            remedy = Remedy(BALANCED, look.estimator, {}, self._same(self.even), self.balance)
            class_weights = study.predict([remedy], times=1)[0]

        # The rungs, lowest first, with the free moves of the plain model.
        models = {PLAIN: study.scores(plain)}
        classes = self._classes_as_cells()
        if classification:
            cells = self.criterion if isinstance(self.criterion, WorstCell) else classes
            models[THRESHOLD] = study.scores(study.with_thresholds(plain, cells))
            models[RECALIBRATION] = study.scores(study.with_temperature(plain))
            offsets = self._final_offsets(plain, cells)
        models[BALANCED] = study.scores(class_weights)

        settings, remedy_scores, rivals = self._choose(models[PLAIN], reference)
        if remedy_scores is not None:
            models[self.name] = remedy_scores
        rivals.insert(0, self._free_rival(plain, models))
        if not (look.same_model and self.confirmed is None):
            rivals.insert(1, models[BALANCED])  # else it is the reference
        looked = np.array([np.where(self.tested, w, 0.0) for w in self.weights])
        apart = None
        if classification and self.confirmed is None:
            every = [one for way in self.by_reference for one in way]
            apart = set_apart(every, study.y, np.mean(self.weights, axis=0), self.even_tested)
        fits = {
            PLAIN: study.fits[PLAIN],
            BALANCED: study.fits[REFERENCE]
            + study.fits[BALANCED],  # the reference is class-weighted
            self.name: study.fits[UNWEIGHTED] + study.fits[self.name],
        }
        evidence = Evidence(
            criterion=self.criterion, classes=classes, models=models, name=self.name,
            reference=reference, rivals=rivals, settings=settings, as_is=self.as_is,
            balanced_base=self.even_tested, looked=looked, nothing=self.guess,
            regression=not classification, fits=fits, apart=apart,
        )  # fmt: skip
        return evidence, offsets

    def _free_rival(self, plain: Predictions, models: dict[str, RowScores]) -> RowScores:
        """The plain model after the free move for the criterion, at the price of the remedy where rows are hard."""
        remedy = models.get(self.name)
        if self.study.classes is None or isinstance(self.criterion, WorstCell) or remedy is None:
            return models.get(THRESHOLD, models[PLAIN])
        price = min(
            float(np.average(one.each, weights=self.as_is)) for one in (remedy, models[PLAIN])
        )
        return self.study.scores(self.study.with_thresholds(plain, self.criterion, price))

    def _choose(
        self, plain: RowScores, reference: RowScores
    ) -> tuple[dict[str, Any], RowScores | None, list[RowScores]]:
        """The best setting of the remedy with its scores, and rivals: the model without its weights.

        No scores, if no setting stays within the budget. Without confirmed groups, a setting must
        keep the reference's lead over guessing if one does, and the rivals are the reference and,
        if there is a choice of settings, the best one without the weights: what a better penalty
        alone gains does not count.
        """
        look, study, candidates = self.look, self.study, self.look.candidates
        # With several settings, one partition of each way chooses and all of them score the choice.
        several, second = len(candidates) > 1, self.confirmed is None
        remedies = [
            Remedy(self.name, look.estimator, settings, self.weights, self.balance and second)
            for settings in candidates
        ]
        tried = [study.scores(one) for one in study.predict(remedies, 1 if several else None)]
        rivals = [reference] if second else []
        if look.reference is None and several and second:
            without = [
                Remedy(UNWEIGHTED, look.estimator, settings, self._same(self.even), self.balance)
                for settings in candidates
            ]
            means = [
                float(self.even_tested @ study.scores(one).each)
                for one in study.predict(without, 1)
            ]
            rivals.append(study.scores(study.predict([without[int(np.argmax(means))]])[0]))
        allowed = [
            k
            for k, one in enumerate(tried)
            if look.budget is None
            or np.average(plain.each - one.each, weights=self.as_is) <= look.budget
        ]
        if not allowed:
            return {}, None, rivals
        k = self._best_setting(tried, allowed, reference)
        scores = study.scores(study.predict([remedies[k]])[0]) if several else tried[k]
        return candidates[k], scores, rivals

    def _best_setting(
        self, tried: list[RowScores], allowed: list[int], reference: RowScores
    ) -> int:
        """The position of the setting to use, among those within the budget.

        The best by the criterion; for a second look of those that keep enough of the reference's
        lead, or if none does, the one that keeps most.
        """
        if isinstance(self.criterion, WorstCell):
            return max(allowed, key=lambda k: self.criterion.score(tried[k]))
        kept = {
            k: kept_share(tried[k].each, reference.each, self.even_tested, self.guess)
            for k in allowed
        }
        if max(kept.values()) < KEPT:
            return max(allowed, key=lambda k: kept[k])
        return max(
            (k for k in allowed if kept[k] >= KEPT), key=lambda k: self.criterion.score(tried[k])
        )

    def _classes_as_cells(self) -> WorstCell:
        """The classes with at least SMALL rows, or the largest; for regressors all rows are one cell."""
        study = self.study
        if study.classes is None:
            return WorstCell(self.as_is[None], ("all",))
        names = [str(name) for name in study.classes.tolist()]
        return WorstCell.of(study.y, names, self.as_is, enough=SMALL)

    def _final_offsets(self, predictions: Predictions, cells: WorstCell) -> Array:
        """The thresholds of the final model: of all out-of-fold predictions, averaged over partitions."""
        found = []
        for proba in (one for way in predictions for one in way):
            tested = ~np.isnan(proba[:, 0])
            own = cells.weights[:, tested]
            found.append(best_offsets(proba[tested], self.study.y[tested], own[own.sum(1) > 0]))
        mean: Array = np.mean(found, axis=0)
        return mean


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


def _error_of_median(y: Array, weights: Array) -> float:
    """The mean absolute error of always predicting the weighted median."""
    median = np.quantile(y, 0.5, method="inverted_cdf", weights=weights)
    return float(np.average(np.abs(y - median), weights=weights))


def _of_label(predictions: Array, study: FoldedRows) -> Array:
    """The probability of each sample's label, (n,), or for a regression the absolute error."""
    y = study.y
    found: Array = (
        predictions[np.arange(len(y)), y] if study.classes is not None else np.abs(predictions - y)
    )
    return found
