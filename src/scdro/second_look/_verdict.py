"""Whether a second look helps, from out-of-fold predictions of both models. No group labels are needed.

If the weights are nearly uniform, nothing stands out. Otherwise three questions decide, all on samples that the model
in question has not seen:

1. *Gain.* Under the weights, where the reference is no better than a guess, is the new model better than the best model
   without them, by more than .7 standard errors, or one if there is a fall? Samples about which a model is unsure count
   as half right (`surely_right`).
2. *Kept.* How much of the reference's lead over guessing, on the unweighted data, does the new model, trained on the
   hard samples, keep? If the hard samples are an overlooked group, they follow a rule that also holds for the others,
   and most is kept. Wrong labels follow no rule: a model trained on them knows little of anything.
3. *Fall.* How much does the worst class lose? Where nobody is overlooked, the hard samples lie between the classes,
   and a model that gets more of them right gets more of the others wrong. So the gain must be at least as large as the
   fall, or three fifths of it if that is below three points. With unequal classes the plain model's worst class is low
   anyway: the new model's may not be further below the class-weighted model's than seven points, or than the gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Verdict", "answer_for"]

Array = npt.NDArray[Any]

HELPS, CLASS_WEIGHTS = "helps", "class weights suffice"
NOTHING, WRONG_LABELS = "nothing stands out", "looks like wrong labels"
REFIT = "a plain refit suffices"  # of `repair` alone
PLAIN, BALANCED, SECOND = "plain", "class weights", "second fit"  # the model in use

SURE, SURE_OF_A_FALL = 0.7, 1.0  # standard errors that the gain must exceed, and where the worst class falls
MAY_FALL, WORTH = 0.03, 0.6  # a fall up to MAY_FALL is accepted if the gain is at least WORTH times it
BELOW_CLASS_WEIGHTS = 0.07  # how far the worst class may be below the class-weighted model's, if the gain is smaller
UNSURE = 0.2  # of a model's median log odds: below, a sample counts as partly right
KEPT = 0.8  # share of the reference's lead over guessing that must be kept
FLAT = 0.9  # of the effective size without the weights: above, the weights are nearly uniform
CLEARLY = 2.0  # standard errors, to say that class weights help, that labels are wrong, or that a group would show


@dataclass(frozen=True)
class Verdict:
    """What a second look does, in numbers; prints as a short paragraph. All scores are out of fold.

    Attributes:
        answer: "helps", "class weights suffice", "nothing stands out" or "looks like wrong labels"; of `repair`, also
            "a plain refit suffices".
        gain: how much better the second fit is than the best one without the weights, under the weights.
        gain_error: standard error of the gain.
        kept: the share of the reference's lead over a guess that the second fit keeps without the weights, with all
            classes counted equally.
        before: score of the plain model without the weights: accuracy, or mean absolute error for regressors.
        after: the same for the second fit, or for the class-weighted model if that is the one in use.
        worst_class_before: accuracy of the plain model on its worst class, of those with at least 20 samples.
        worst_class_after: the same for the model of `after`.
        hard_before: score under the weights of the best model trained without them: accuracy, where samples that a
            model is unsure of count as half right (`surely_right`), or mean absolute error.
        hard_after: the same for the second fit.
        effective_size: effective number of samples under the weights.
        smallest_group: a smaller group than this would not show clearly (two standard errors), even if it was always
            wrong before and always right after.
        left_alone: classes whose weights stay uniform, and why.
        chosen: the settings chosen for the second fit.
        note: a further remark, or "".
        used: the model in use: "plain", "class weights" or "second fit".
        over_budget: whether every second fit costs more than the budget; then its numbers are the plain model's.

    Example:
        >>> verdict = Verdict("nothing stands out", -0.02, 0.03, 0.97, 0.95, 0.93, 0.94, 0.9, 0.5, 0.48, 60.0, 12)
        >>> print(verdict)
        Nothing stands out. ...
    """

    answer: str
    gain: float
    gain_error: float
    kept: float
    before: float
    after: float
    worst_class_before: float
    worst_class_after: float
    hard_before: float
    hard_after: float
    effective_size: float
    smallest_group: int
    left_alone: dict[Any, str] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    used: str = PLAIN
    over_budget: bool = False
    loss: bool = False  # scores are losses: less is better

    @property
    def helps(self) -> bool:
        return self.answer == HELPS

    def __str__(self) -> str:
        if self.over_budget and self.used == PLAIN:
            return f"{self.note} The plain model is kept."
        text = [_ANSWERS[self.answer], "" if self.over_budget else self._on_the_hard(), self._on_the_rest()]
        if self.answer == WRONG_LABELS:
            text.append(f"It would keep {max(100 * self.kept, 0):.0f}% of the first model's lead over guessing.")
        if self.smallest_group:
            text.append(
                "Even a group that is always wrong now and always right afterwards would need about "
                f"{self.smallest_group} samples to show clearly."
            )
        if self.left_alone:
            named = "; ".join(f"{name} ({why})" for name, why in list(self.left_alone.items())[:5])
            more = f"; and {len(self.left_alone) - 5} more" if len(self.left_alone) > 5 else ""
            text.append(f"Not looked into: {named}{more}." if self.loss else f"Classes not looked into: {named}{more}.")
        if self.note:
            text.append(self.note)
        return " ".join(filter(None, text))

    def _on_the_hard(self) -> str:
        say = _as_loss if self.loss else _as_share
        goes = "goes" if self.used == SECOND else "would go"
        return (
            f"{'On' if self.used == SECOND else 'With a second fit, on'} the hard samples (weighted; effectively "
            f"{self.effective_size:.0f}), {'the error' if self.loss else 'accuracy'} {goes} from "
            f"{say(self.hard_before)} to {say(self.hard_after)} "
            f"(gain {say(self.gain)}, standard error {say(self.gain_error)}"
            f"{'' if self.loss else '; unsure predictions count half'})."
        )

    def _on_the_rest(self) -> str:
        say = _as_loss if self.loss else _as_share
        data = "With class weights" if self.used == BALANCED else "On the unweighted data"
        goes = "would go" if self.used == PLAIN else "goes"
        worst = ""
        if not math.isnan(self.worst_class_before):
            worst = f", that of the worst class from {say(self.worst_class_before)} to {say(self.worst_class_after)}"
        what = "the error" if self.loss else "accuracy"
        return f"{data}, {what} {goes} from {say(self.before)} to {say(self.after)}{worst}."


_ANSWERS = {
    HELPS: "A second look helps.",
    CLASS_WEIGHTS: "Class weights suffice: beyond equal weights of the classes, nothing stands out.",
    NOTHING: "Nothing stands out.",
    WRONG_LABELS: "The hard samples look like wrong labels, or like data that overlap: a model trained on them loses "
    "the rule that holds for the others.",
    REFIT: "A plain refit suffices: fitted to these samples, the head is clearly better than the given one, and beyond "
    "that nothing stands out.",
}


UNDECIDED = (
    "The hard samples would gain, but at too high a price: these data cannot tell whether they are an overlooked group "
    "or lie between the classes. If you know of a shortcut, take the second fit with refuse=False."
)


def _as_share(value: float) -> str:
    return f"{100 * value:.1f}%"


def _as_loss(value: float) -> str:
    return f"{value:.3g}"


def answer_for(gain: float, error: float, kept: float, fall: float, below: float, size: float) -> str:
    """The answer, apart from class weights.

    `fall` is how far the worst class is below the plain model's, `below` how far below the class-weighted model's;
    `size` is the effective size as a share of that without the weights.
    """
    if size > FLAT:
        return NOTHING
    sure = SURE if fall <= 0 else SURE_OF_A_FALL
    worth = fall <= max(gain, min(MAY_FALL, gain / WORTH)) and below <= max(gain, BELOW_CLASS_WEIGHTS)
    if gain > sure * error and worth and kept >= KEPT:
        return HELPS
    return WRONG_LABELS if kept < KEPT and gain < CLEARLY * error else NOTHING


def surely_right(proba: Array, y: Array) -> Array:
    """How surely a model is right about each sample, clip(1/2 + m/(2 UNSURE median |m|), 0, 1); NaN where p is.

    m is the log odds of the label against the most likely other class. If a model has hardly a preference, being right
    is a coin toss, and the noise of many tosses would hide the gain. Dividing by the median makes models with different
    penalties comparable.
    """
    p = np.clip(proba, 1e-12, 1.0)
    rows = np.arange(len(y))
    others = p.copy()
    others[rows, y] = 0.0
    odds: Array = np.log(p[rows, y]) - np.log(others.max(1).clip(1e-12))
    unit = UNSURE * float(np.nanmedian(np.abs(odds)))
    surely: Array = np.clip(0.5 + odds / (2 * unit), 0.0, 1.0) if unit > 0 else (1 + np.sign(odds)) / 2
    return surely


def paired(after: Array, before: Array, weights: Array) -> tuple[float, float]:
    """The weighted mean of the differences, and its standard error."""
    w = weights / weights.sum()
    difference = after - before
    mean = float(w @ difference)
    return mean, math.sqrt(float((w * w) @ (difference - mean) ** 2))


def smallest_visible(weights: Array, error: float) -> int:
    """The size m of the smallest group that shows: m w >= CLEARLY sqrt(error^2 + m w^2), with the largest weight w."""
    w = float(weights.max() / weights.sum())
    for m in range(1, len(weights) + 1):
        if m * w >= CLEARLY * math.sqrt(error**2 + m * w * w):
            return m
    return len(weights) + 1


def kept_share(after: Array, before: Array, weights: Array, nothing: float) -> float:
    """(mean after - nothing)/(mean before - nothing)."""
    w = weights / weights.sum()
    known = float(w @ before) - nothing
    return (float(w @ after) - nothing) / known if known > 0 else 0.0


def class_weights_help(plain: Array, balanced: Array, y: Array, base: Array) -> bool:
    """Whether balanced classes clearly improve the plain model's worst class, and no class ends up worse than it was.

    The mean over classes must also clearly rise: otherwise one class gains what another loses, as with any other
    threshold.
    """
    present = [int(k) for k in np.unique(y) if base[y == k].sum() > 0]

    def rates(scores: Array) -> dict[int, float]:
        return {k: float(np.average(scores[y == k], weights=base[y == k])) for k in present}

    before, after = rates(plain), rates(balanced)
    worst = min(before, key=lambda k: before[k])
    gains = {k: paired(balanced[y == k], plain[y == k], base[y == k]) for k in present}
    gain, error = gains[worst]
    total, noise = sum(g for g, _ in gains.values()), math.sqrt(sum(e * e for _, e in gains.values()))
    return gain > CLEARLY * error and gain > 0 and total > CLEARLY * noise and min(after.values()) > before[worst]
