"""The one decision: which rung of the ladder is enough, and whether it helps.

The ladder, lowest first: nothing, another threshold, class weights, confirmed groups, a second
look. All rungs are scored out of fold in the same folds. The plain model first has the free move:
thresholds that the other folds choose for the same criterion. What is left then is a gain.

    threshold       the worst class (or cell) and the mean over classes clearly rise, and no class
                    ends up below where the worst was
    class weights   the same, over the plain model with its best thresholds
    groups          the worst cell, class x confirmed group, clearly rises over both; or it is served
                    as well as by thresholds, which clearly cost all rows more
    second look     nobody has confirmed a group: the three questions below

The lowest rung wins that no higher one clearly beats. For a second look nobody knows the group, so
the rows where the reference is no better than a guess take its place:

1. *Apart.* Are they few, beside the rest of their class, and does the reference doubt about them
   (`scdro.fix._apart`)? Rows between classes that overlap are the end of a bell curve, and wrong
   labels are surely wrong.
2. *Kept.* How much of the reference's lead over guessing, on the unweighted data, does the new
   model keep? If the hard samples are an overlooked group, they follow a rule that also holds for
   the others, and most is kept. Wrong labels follow no rule: a model trained on them knows little
   of anything.
3. *Gain.* Under the weights, the new model must not be below a lower rung by more than one standard
   error. The gain itself is mostly noise: a group of 5% that rises by 20 points is a handful of
   rows, among other hard ones that lose. Samples about which a model is unsure count as half right
   (`surely_right`). Only a gain of more than 2.6 standard errors, of which the worst class loses at
   most twice as much, takes the place of 1.

Log odds are needed for 1. A regression, and two given models, have a clear gain instead, by more
than one standard error, of which the worst class may lose twice as much.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scdro.fix._apart import Apart
from scdro.fix._criteria import Criterion, RowScores, WorstCell, paired
from scdro.fix._verdict import (
    BALANCED,
    CLASS_WEIGHTS,
    HELPS,
    NOT_HELPED,
    NOT_SEEN,
    OVER_BUDGET,
    PLAIN,
    REFUSALS,
    THRESHOLD,
    THRESHOLD_SUFFICES,
    TOO_DEAR,
    WRONG_LABELS,
    Rung,
    Verdict,
)
from scdro.fix._weights import effective_size

__all__ = ["Evidence", "decide", "kept_share"]

Array = npt.NDArray[Any]

# In standard errors of a gain:
SURE = 1.0  # by which hard rows may lose; a regression and two models must gain them
VERY_SURE = 2.576  # where nothing sets them apart: 1%; edges between classes gained up to 2.5
SURE_OF_GROUPS = 1.645  # where the group is confirmed: 5%, one-sided
WORTH = 2.0  # how many times the gain the worst class may fall
KEPT = 0.8  # share of the reference's lead over guessing that must be kept
KEPT_WITH_GROUPS = 0.5  # the same for confirmed groups: whoever confirms them accepts a price
# standard errors, to say that a lower rung helps, that labels are wrong, or that a group would show
CLEARLY = 2.0


class Evidence(NamedTuple):
    """Out-of-fold scores of every rung, and what they are measured by."""

    criterion: Criterion
    classes: WorstCell  # the classes as cells, of those with enough rows
    # By rung, lowest first; no remedy if every setting is over the budget.
    models: dict[str, RowScores]
    name: str  # of the remedy: "groups" or "second fit"; of `compare`, "again"
    reference: RowScores  # with equal weights of the classes
    rivals: list[RowScores]  # models that the remedy must beat under the criterion
    settings: dict[str, Any]  # of the remedy
    as_is: Array  # (n,), weights of the rows; 0 for rows in no test fold
    balanced_base: Array  # (n,), the same with equal totals of the classes
    looked: Array  # (ways, n), weights of the second look
    nothing: float  # the score of a guess: one of the classes, or the median
    regression: bool
    fits: dict[str, int]  # by rung
    apart: Apart | None = None  # how the hard rows lie; None for a regression, and for two models

    @property
    def plain(self) -> RowScores:
        """The scores of the plain model, the lowest rung."""
        return self.models[PLAIN]

    @property
    def remedy(self) -> RowScores | None:
        """The scores of the remedy; None if every setting is over the budget."""
        return self.models.get(self.name)

    @property
    def cells(self) -> WorstCell:
        """The confirmed groups within each class, or the classes."""
        return self.criterion if isinstance(self.criterion, WorstCell) else self.classes


def decide(
    evidence: Evidence, budget: float | None, refuse: bool, left_alone: dict[Any, str]
) -> Verdict:
    """The answer, the model in use, and the numbers of the verdict.

    Args:
        evidence: scores of every rung.
        budget: the largest loss of accuracy allowed, or rise of the error; None for no bound.
        refuse: whether the plain model (or a lower rung) is used where the remedy does not help.
        left_alone: classes whose weights stay uniform, and why; for the verdict's text.
    """
    found = evidence
    # Scores are accuracies, or for regressors minus errors, so that more is better; the verdict
    # shows errors as errors.
    sign = -1.0 if found.regression else 1.0
    remedy = found.plain if found.remedy is None else found.remedy
    # The remedy against the best model that it must beat, and what it keeps without the weights.
    rival = max(found.rivals, key=found.criterion.score)
    gain, error = found.criterion.gain(remedy, rival)
    kept = kept_share(remedy.each, found.reference.each, found.balanced_base, found.nothing)
    answer = _answer(found, gain, error, kept)
    if answer in REFUSALS:
        answer = _lower_rung(found, budget) or answer
    used = _in_use(answer, found, refuse)
    after = remedy if used == PLAIN else found.models[used]
    worst = [math.nan, math.nan]
    if not found.regression:
        worst = [found.classes.score(found.plain), found.classes.score(after)]
    hard = [sign * found.criterion.score(one) + 0.0 for one in (rival, remedy)]
    mean_weights = found.looked.mean(0)
    return Verdict(
        answer,
        gain,
        gain_error=error,
        kept=kept,
        before=sign * _mean(found.plain, found.as_is) + 0.0,
        after=sign * _mean(after, found.as_is) + 0.0,
        worst_class_before=worst[0],
        worst_class_after=worst[1],
        hard_before=hard[0],
        hard_after=hard[1],
        effective_size=effective_size(mean_weights),
        smallest_group=smallest_visible(
            mean_weights, error / (hard[0] or 1.0 if found.regression else 1.0)
        ),
        left_alone=left_alone,
        chosen=found.settings,
        note=f"No second fit stays within the budget of {budget:g}."
        if answer == OVER_BUDGET
        else "",
        used=used,
        over_budget=found.remedy is None,
        loss=found.regression,
        confirmed=found.criterion.names if isinstance(found.criterion, WorstCell) else (),
        rungs=_rungs(found),
        fits=sum(found.fits.values()),
        suspects=_most_added(mean_weights, found.as_is) if answer == WRONG_LABELS else (),
    )


def _answer(found: Evidence, gain: float, error: float, kept: float) -> str:
    """The answer about the remedy alone, as the module says; lower rungs come later."""
    if found.remedy is None:
        return OVER_BUDGET
    if isinstance(found.criterion, WorstCell):
        if gain <= SURE_OF_GROUPS * error and not _at_a_lower_price(found, gain):
            return NOT_HELPED
        beats = _beats_one_answer(found, found.remedy)
        return HELPS if kept >= KEPT_WITH_GROUPS and beats else TOO_DEAR
    unit = -found.nothing or 1.0 if found.regression else 1.0  # errors have the target's unit
    worst = [
        found.classes.score(one) if not found.regression else _mean(one, found.as_is)
        for one in (found.plain, found.remedy)
    ]
    return answer_for(gain / unit, error / unit, kept, (worst[0] - worst[1]) / unit, found.apart)


def _beats_one_answer(found: Evidence, scores: RowScores) -> bool:
    """Whether a model is right more often than one answer for everybody.

    If the plain model is not either, it is not asked of a remedy.
    """
    if found.regression:
        return True
    most_common = max(float(cell.sum()) for cell in found.classes.weights)
    most_common /= float(found.as_is.sum())
    floor = min(most_common, _mean(found.plain, found.as_is))
    return _mean(scores, found.as_is) >= float(floor) - 1e-12


def _at_a_lower_price(found: Evidence, gain: float) -> bool:
    """Whether the remedy serves the worst cell as well as the best rival, at half of its price or less.

    Confirmed groups are small, so their own score is noisy. A threshold that serves them moves
    everybody else too, and this price shows on all rows. Half, because a remedy that costs nearly
    as much as a ruinous threshold is ruinous too.
    """
    assert found.remedy is not None
    rival = max(found.rivals, key=found.criterion.score)
    saved, error = paired(found.remedy.each, rival.each, found.as_is)
    price, of_rival = (
        _mean(found.plain, found.as_is) - _mean(one, found.as_is) for one in (found.remedy, rival)
    )
    return gain >= 0 and saved > CLEARLY * error and price <= of_rival / 2


def answer_for(gain: float, error: float, kept: float, fall: float, apart: Apart | None) -> str:
    """The answer about a second look.

    Args:
        gain, error: under the weights, over the best rival; in units of the score.
        kept: the share of the reference's lead over guessing that the new model keeps.
        fall: how far the worst class is below the plain model's.
        apart: how the hard rows lie in their classes; None if that is not known.
    """
    clear = gain > SURE * error
    # Question 3 by itself, at a fair price; or question 1, if nothing is lost.
    gained = gain > (VERY_SURE if apart else SURE) * error and fall <= WORTH * gain
    fair = gained or (apart is not None and apart.seen and gain >= -SURE * error)
    if fair and kept >= KEPT:
        return HELPS
    if kept < KEPT and gain < CLEARLY * error:
        return WRONG_LABELS
    return TOO_DEAR if clear else NOT_SEEN


def _lower_rung(found: Evidence, budget: float | None) -> str | None:
    """The answer of the lowest rung that clearly helps and that class weights do not clearly beat.

    None if no lower rung clearly helps. Only for classifiers.
    """
    if found.regression:
        return None
    cells = found.cells

    def affordable(scores: RowScores) -> bool:
        price = _mean(found.plain, found.as_is) - _mean(scores, found.as_is)
        if isinstance(found.criterion, WorstCell) and not _beats_one_answer(found, scores):
            return False
        return budget is None or price <= budget

    threshold, weighted = found.models[THRESHOLD], found.models.get(BALANCED)
    suffices = affordable(threshold) and clearly_better(threshold, found.plain, cells)
    if weighted is not None and affordable(weighted):
        gain, error = cells.gain(weighted, threshold)
        best = threshold if suffices else found.plain
        if clearly_better(weighted, best, cells) and gain > CLEARLY * error:
            return CLASS_WEIGHTS
    return THRESHOLD_SUFFICES if suffices else None


def clearly_better(after: RowScores, before: RowScores, cells: WorstCell) -> bool:
    """Whether the worst cell clearly gains, and no cell ends up worse than it was.

    The mean over cells must also clearly rise: otherwise one class gains what another loses, as
    with any other threshold.
    """
    first, then = cells.cells(before), cells.cells(after)
    gains = [paired(after.each, before.each, weights) for weights in cells.weights]
    gain, error = gains[int(first.argmin())]
    total, noise = sum(g for g, _ in gains), math.sqrt(sum(e * e for _, e in gains))
    return (
        gain > max(CLEARLY * error, 0.0)
        and total > CLEARLY * noise
        and float(then.min()) > float(first.min())
    )


def _in_use(answer: str, found: Evidence, refuse: bool) -> str:
    """The name of the model in use, for an answer."""
    if answer == HELPS or not (refuse or found.remedy is None):
        return found.name
    return {CLASS_WEIGHTS: BALANCED, THRESHOLD_SUFFICES: THRESHOLD}.get(answer, PLAIN)


def _rungs(found: Evidence) -> tuple[Rung, ...]:
    """The ladder for the verdict, each rung beside the plain model with its best thresholds."""
    cells, before = found.cells, found.models.get(THRESHOLD, found.plain)
    sign = -1.0 if found.regression else 1.0
    rungs = []
    for name, scores in found.models.items():
        if found.regression and name == BALANCED:
            continue
        gain, error = found.criterion.gain(scores, before)
        each = dict(zip(cells.names, cells.cells(scores).tolist(), strict=True))
        changes = [paired(scores.each, found.plain.each, weights) for weights in cells.weights]
        clearer = math.nan
        if scores.losses is not None and found.plain.losses is not None:
            clearer = paired(scores.losses, found.plain.losses, found.as_is)[1]
        rungs.append(
            Rung(
                name,
                found.criterion.score(scores),
                gain,
                error,
                sign * _mean(scores, found.as_is) + 0.0,
                scores.log_loss,
                {} if found.regression else each,
                found.fits.get(name, 0),
                {} if found.regression else dict(zip(cells.names, changes, strict=True)),
                clearer,
            )
        )
    return tuple(rungs)


def _mean(scores: RowScores, weights: Array) -> float:
    """The mean score of the rows by these weights, (n,)."""
    return float(np.average(scores.each, weights=weights))


def _most_added(weights: Array, base: Array) -> tuple[int, ...]:
    """Positions of the samples whose weight is raised most, at most 20, the most first."""
    ratio = np.divide(weights, base, out=np.zeros_like(weights), where=base > 0)
    order = np.argsort(-ratio, kind="stable")[:20]
    return tuple(int(k) for k in order if ratio[k] > ratio.mean())


def smallest_visible(weights: Array, error: float) -> int:
    """The size of the smallest group that would show.

    That is the least m with m w >= CLEARLY sqrt(error^2 + m w^2), for the largest weight w: a group
    that was always wrong and is now always right gains m w, with a standard error of its own.
    """
    w = float(weights.max() / weights.sum())
    for m in range(1, len(weights) + 1):
        if m * w >= CLEARLY * math.sqrt(error**2 + m * w * w):
            return m
    return len(weights) + 1


def kept_share(after: Array, before: Array, weights: Array, nothing: float) -> float:
    """The part of a lead over guessing that is kept, (after - nothing)/(before - nothing) of means.

    Args:
        after, before: scores of each row, (n,).
        weights: of the rows, (n,).
        nothing: the score of a guess.
    """
    w = weights / weights.sum()
    known = float(w @ before) - nothing
    return (float(w @ after) - nothing) / known if known > 0 else 0.0
