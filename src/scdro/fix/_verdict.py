"""Verdict and Rung: what was decided, in numbers and in words.

The decision itself is in `_decide`; nothing is decided here. A printed verdict has, in this order:

    the answer                 a sentence of `_ANSWERS`, or for confirmed groups of `_CONFIRMED`
    on the hard samples        the gain by the criterion, with its standard error     _on_the_hard
    on the rest                the price: accuracy over all rows, worst class         _on_the_rest
    reservations               not clear by itself, wrong labels, how small a group could be seen
    classes left alone, note   what else is to be known                               _left_alone

`Verdict.ladder` prints the rungs and what to do next. Wherever numbers are shown, "would go" is
said of a model that is not in use, "goes" of the one that is.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import Any

from scdro._html import card

__all__ = ["Rung", "Verdict"]

HELPS, THRESHOLD_SUFFICES = "helps", "another threshold suffices"
CLASS_WEIGHTS, WRONG_LABELS = "class weights suffice", "looks like wrong labels"
NOT_SEEN, NOT_HELPED = "no group seen", "a group is seen, but not helped"
TOO_DEAR, OVER_BUDGET = "helped at too high a price", "over budget"
REFIT, NO_HARD_GAIN = (
    "a plain refit suffices",
    "no clear gain on the hard samples",
)  # of `repair` alone
REFUSALS = (NOT_SEEN, NOT_HELPED, TOO_DEAR, WRONG_LABELS, OVER_BUDGET)

# The model in use, which is also the name of its rung.
PLAIN, THRESHOLD, BALANCED = "plain", "threshold", "class weights"
GROUPS, SECOND = "groups", "second fit"
RECALIBRATION = "recalibration"  # a rung for probabilities: it changes no answer
CLEAR = 2.0  # standard errors of a change that is told
SHOWN = 4  # cells of confirmed groups that are told one by one, the worst first


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder, out of fold, beside the plain model with its best thresholds.

    Attributes:
        name: "plain", "threshold", "recalibration" (a temperature), "class weights", "groups" or
            "second fit"; of `compare`, "again" is the last.
        score: accuracy by the verdict's criterion: the hard samples, or the worst of the confirmed
            groups; minus the error for regressors.
        gain: how much higher that is than for the plain model with its best thresholds.
        gain_error: standard error of the gain.
        accuracy: over all rows; mean absolute error for regressors.
        log_loss: mean over all rows; NaN for regressors.
        cells: accuracy of each class, or of each class and group.
        fits: how many fits it took.
        changes: for each cell, the change from the plain model as it is, and its standard error.
        log_loss_error: standard error of the change of the log loss from the plain model.

    Example:
        >>> print(Rung("groups", 0.82, 0.21, 0.05, 0.94, 0.2, {"1, water": 0.82}, 40))
        groups: 82.0% (gain 21.0, standard error 5.0), accuracy 94.0%, log loss 0.2, 40 fits
    """

    name: str
    score: float
    gain: float
    gain_error: float
    accuracy: float
    log_loss: float
    cells: dict[str, float] = field(default_factory=dict)
    fits: int = 0
    changes: dict[str, tuple[float, float]] = field(default_factory=dict)
    log_loss_error: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.log_loss):  # a regression
            return (
                f"{self.name}: error {-self.score:.3g} (gain {self.gain:.3g}, standard error"
                f" {self.gain_error:.3g}), mean error {self.accuracy:.3g}{_as_fits(self.fits)}"
            )
        return (
            f"{self.name}: {_as_share(self.score)} (gain {100 * self.gain:.1f}, standard error"
            f" {100 * self.gain_error:.1f}), accuracy {_as_share(self.accuracy)}, log loss"
            f" {self.log_loss:.3g}{_as_fits(self.fits)}{self._who()}"
        )

    def _who(self) -> str:
        """Who clearly gains most and who clearly loses most, from the plain model as it is."""
        clear = {name: one for name, one in self.changes.items() if abs(one[0]) > CLEAR * one[1]}
        if not clear:
            return ""
        told = []
        for verb, pick, sign in (("gains", max, 1), ("loses", min, -1)):
            name = pick(clear, key=lambda cell: clear[cell][0])
            change, error = clear[name]
            if sign * change > 0:
                told.append(f"{name} {verb} {100 * abs(change):.1f} +- {100 * error:.1f}")
        return "".join(f"; {one}" for one in told)


@dataclass(frozen=True)
class Verdict:
    """What a remedy does, in numbers; prints as a short paragraph. All scores are out of fold.

    Attributes:
        answer: "helps", "another threshold suffices", "class weights suffice", "no group seen",
            "a group is seen, but not helped" (a confirmed one), "helped at too high a price",
            "looks like wrong labels" or "over budget" (no second fit is within the budget); of
            `repair`, also "a plain refit suffices" or "no clear gain on the hard samples", where
            the given head is kept.
        gain: how much better the new model is than the best lower rung, under the weights of the
            second look, or in the worst confirmed group.
        gain_error: standard error of the gain.
        kept: the share of the reference's lead over a guess that the new model keeps without the
            weights, with all classes counted equally.
        before: score of the plain model without the weights: accuracy, or mean absolute error for
            regressors.
        after: the same for the new model, or for the model of a lower rung if that is in use.
        worst_class_before: accuracy of the plain model on its worst class, of those with at least
            20 samples.
        worst_class_after: the same for the model of `after`.
        hard_before: score under the weights of the best model trained without them: accuracy, where
            samples that a model is unsure of count as half right (`surely_right`), or mean absolute
            error. With confirmed groups, accuracy of the worst group with the best lower rung.
        hard_after: the same for the new model.
        effective_size: effective number of samples under the weights.
        smallest_group: a smaller group than this would not show clearly (two standard errors), even
            if it was always wrong before and always right after.
        left_alone: classes whose weights stay uniform, and why.
        chosen: the settings chosen for the new model.
        note: a further remark, or "".
        used: the model in use: "plain", "threshold", "class weights", "groups" or "second fit".
        over_budget: whether every new model costs more than the budget; then its numbers are the
            plain model's.
        loss: whether scores are errors.
        confirmed: the names of the confirmed groups, by class; () if nobody has confirmed any.
        rungs: the ladder, lowest first.
        fits: the number of fits that the verdict took.
        suspects: if the labels look wrong, positions of at most 20 samples to check, the most
            suspicious first.

    Example:
        >>> verdict = Verdict("no group seen", -0.02, 0.03, 0.97, 0.95, 0.93, 0.94, 0.9, 0.5, 0.48, 60.0, 12)
        >>> print(verdict)
        No group is seen. ...
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
    loss: bool = False
    confirmed: tuple[str, ...] = ()
    rungs: tuple[Rung, ...] = ()
    fits: int = 0
    suspects: tuple[int, ...] = ()

    @property
    def helps(self) -> bool:
        """Whether the remedy helps, as it was asked for."""
        return self.answer == HELPS

    @property
    def costs(self) -> float:
        """What the model of `after` loses on the unweighted data: accuracy, or a larger error; below 0 if it gains."""
        return self.after - self.before if self.loss else self.before - self.after

    def price(self) -> str:
        """The scores of the plain model and of that of `after` on the unweighted data, in words."""
        say = _as_loss if self.loss else _as_share
        worst = ""
        if not math.isnan(self.worst_class_before):
            worst = (
                f", that of the worst class from {say(self.worst_class_before)} to"
                f" {say(self.worst_class_after)}"
            )
        what = "the error" if self.loss else "accuracy"
        return f"out of fold, {what} goes from {say(self.before)} to {say(self.after)}{worst}"

    def ladder(self, audit: Any = None) -> str:
        """The rungs, one line each, the model in use marked with an arrow; then what to do.

        Args:
            audit: an audit of the plain model, for `recommend`.

        Example:
            >>> rung = Rung("plain", 0.5, 0.0, 0.0, 0.9, 0.3, {}, 10)
            >>> print(Verdict("no group seen", 0, 1, 1, 0.9, 0.9, 0.9, 0.9, 0.5, 0.5, 60.0, 12, rungs=(rung,)).ladder())
            -> plain: 50.0% (gain 0.0, standard error 0.0), accuracy 90.0%, log loss 0.3, 10 fits
            Recommended: the plain model.
        """
        marks = [("-> " if rung.name == self.used else "   ") + str(rung) for rung in self.rungs]
        return "\n".join([*marks, self.recommend(audit)])

    def recommend(self, audit: Any = None) -> str:
        """The lowest rung that no higher one clearly beats, and what is left to try above it.

        Args:
            audit: what `scdro.audit` found about the plain model. Where all that it found is hard,
                and no rung helps, only more data or columns do.

        Example:
            >>> print(Verdict("class weights suffice", 0, 1, 1, 0.9, 0.9, 0.9, 0.9, 0.5, 0.5, 60.0, 12).recommend())
            Recommended: class weights.
        """
        best = _RECOMMENDED.get(self.answer, "the plain model")
        if self.answer == HELPS:
            best = _RECOMMENDED.get(self.used, "the second model")
        text = [f"Recommended: {best}.", self._recalibrate()]
        if not self.helps:
            after = "" if self.confirmed and self.answer == TOO_DEAR else _NEXT.get(self.answer, "")
            text += [after, _after_audit(audit)]
        return " ".join(filter(None, text))

    def _recalibrate(self) -> str:
        """About probabilities: whether a temperature clearly lowers the log loss."""
        rungs = {rung.name: rung for rung in self.rungs}
        if RECALIBRATION not in rungs or self.used not in (PLAIN, THRESHOLD):
            return ""
        before, after = rungs[PLAIN].log_loss, rungs[RECALIBRATION].log_loss
        if before - after <= CLEAR * rungs[RECALIBRATION].log_loss_error:
            return ""
        return (
            f"If you use its probabilities, recalibrate them: a temperature lowers the log loss"
            f" from {before:.3g} to {after:.3g}."
        )

    def __str__(self) -> str:
        if self.answer == OVER_BUDGET and self.used == PLAIN:
            return f"{self.note} The plain model is kept."
        if self.answer == NO_HARD_GAIN:
            return f"{_ANSWERS[NO_HARD_GAIN]} {self.note}"
        text = [
            (_CONFIRMED if self.confirmed else {}).get(self.answer, _ANSWERS[self.answer]),
            "" if self.over_budget else self._on_the_hard(),
            self._on_the_rest(),
        ]
        if self.helps and not (self.confirmed or self.loss) and self.gain < CLEAR * self.gain_error:
            text.append(_MAYBE)
        if self.answer == WRONG_LABELS:
            text.append(
                f"It would keep {max(100 * self.kept, 0):.0f}% of the first model's lead over"
                " guessing."
            )
            if self.suspects:
                first = ", ".join(map(str, self.suspects[:10]))
                text.append(f"To check first: samples {first} (`suspects` has more).")
        if self.smallest_group and not self.confirmed:
            text.append(
                "Even a group that is always wrong now and always right afterwards would need"
                f" about {self.smallest_group} samples to show clearly."
            )
        text += [self._left_alone(), self.note]
        return " ".join(filter(None, text))

    def _repr_html_(self) -> str:
        lines = "".join(f"<li>{html.escape(str(rung))}</li>" for rung in self.rungs)
        return card(self.answer, str(self)) + (f"<ol>{lines}</ol>" if lines else "")

    def _on_the_hard(self) -> str:
        """The gain by the criterion: on the hard samples, or in the worst of the groups."""
        say = _as_loss if self.loss else _as_share
        new = self.used in (SECOND, GROUPS)
        goes = "goes" if new else "would go"
        what = "the error" if self.loss else "accuracy"
        change = (
            f"{what} {goes} from {say(self.hard_before)} to {say(self.hard_after)}"
            f" ({'gain' if self.gain >= 0 else 'loss'} {say(abs(self.gain))}, standard error"
            f" {say(self.gain_error)}"
        )
        if self.confirmed:
            return f"{self._by_group()}In the worst of the groups, {change})."
        start = "On" if new else "With a second fit, on"
        half = "" if self.loss else "; unsure predictions count half"
        return (
            f"{start} the hard samples (weighted; effectively {self.effective_size:.0f}),"
            f" {change}{half})."
        )

    def _by_group(self) -> str:
        """Each confirmed group within its class, from the plain model as it is to the remedy: the worst first."""
        cells = {rung.name: rung for rung in self.rungs}
        if PLAIN not in cells or not self.rungs[-1].changes:
            return ""
        before, last = cells[PLAIN].cells, self.rungs[-1]
        names = sorted((name for name in before if name in last.changes), key=before.__getitem__)
        told = [
            f"{name}: {_as_share(before[name])} to {_as_share(last.cells[name])}"
            f" ({100 * last.changes[name][0]:+.1f} +- {100 * last.changes[name][1]:.1f})"
            for name in names[:SHOWN]
        ]
        return f"{'; '.join(told)}. " if told else ""

    def _on_the_rest(self) -> str:
        """The price on the unweighted data, of the model in use or of the one that would be."""
        data = {
            BALANCED: "With class weights",
            THRESHOLD: "With other thresholds",
        }.get(self.used, "On the unweighted data")
        price = self.price().removeprefix("out of fold, ")
        return f"{data}, {price.replace(' goes ', ' would go ') if self.used == PLAIN else price}."

    def _left_alone(self) -> str:
        """The classes whose weights stay uniform, and why; at most five."""
        if not self.left_alone or self.confirmed:
            return ""
        named = "; ".join(f"{name} ({why})" for name, why in list(self.left_alone.items())[:5])
        more = f"; and {len(self.left_alone) - 5} more" if len(self.left_alone) > 5 else ""
        what = "Not looked into" if self.loss else "Classes not looked into"
        return f"{what}: {named}{more}."


_CONFIRMED = {  # in place of the texts below, where groups are confirmed
    HELPS: "The groups are helped.",
    TOO_DEAR: (
        "The groups would gain, but at too high a price: the model would lose more than"
        " half of its lead over guessing, or be right less often than one answer for everybody."
    ),
}
_MAYBE = (
    "This gain is not clear by itself: a group may be hidden here, because the hard samples are few and"
    " lie apart from the rest of their class, where the first model doubts. One word decides: look"
    " at them (find_slices, gallery), then confirm the group with groups=..., or keep the plain"
    " model."
)
_ANSWERS = {
    HELPS: "A second look helps.",
    THRESHOLD_SUFFICES: (
        "Another threshold suffices: beyond moved thresholds of the classes, nothing gains."
    ),
    CLASS_WEIGHTS: "Class weights suffice: beyond equal weights of the classes, nothing gains.",
    NOT_SEEN: "No group is seen.",
    NOT_HELPED: "A group is seen, but this does not help it.",
    TOO_DEAR: (
        "The hard samples would gain, but at too high a price: these data cannot tell whether they"
        " are an overlooked group or lie between the classes. If you know the group, confirm it"
        " with groups=...; if you know of a shortcut, take the second fit with refuse=False."
    ),
    WRONG_LABELS: (
        "The hard samples look like wrong labels, or like data that overlap: a model trained on"
        " them loses the rule that holds for the others."
    ),
    OVER_BUDGET: "Over budget.",
    NO_HARD_GAIN: "No clear gain on the hard samples: the given head is kept.",
    REFIT: (
        "A plain refit suffices: fitted to these samples, the head is clearly better than the given"
        " one, and beyond that nothing gains."
    ),
}


_RECOMMENDED = {  # by answers, and by the model in use where the answer is "helps"
    THRESHOLD_SUFFICES: "the plain model with another threshold",
    CLASS_WEIGHTS: "class weights",
    REFIT: "a plain refit",
    GROUPS: "equal weights of the confirmed groups",
    SECOND: "the second fit",
}
_NEXT = {
    NOT_HELPED: (
        "Above it are training the whole model again, which scdro.fix.compare judges on held-out"
        " data, and more data or columns for the group."
    ),
    TOO_DEAR: "If you know the group, confirm it: groups=...",
    WRONG_LABELS: "Check the labels of `suspects` first.",
}


def _after_audit(audit: Any) -> str:
    """What the findings of an audit add, where no rung helps."""
    findings = () if audit is None else audit.findings
    if not findings:
        return ""
    if all(one.kind in ("hard", "errors", "spread") for one in findings):
        return (
            f"The audit found only people who are hard, first of all {findings[0].slice}: more data"
            " or more columns about them can help, another fit on these cannot."
        )
    named = [one for one in findings if one.conditions and one.kind not in ("hard", "threshold")]
    if named:
        return f"The audit found {named[0].slice}: confirm it with groups=... if it matters."
    return ""


def _as_fits(number: int) -> str:
    """The number of fits, or nothing."""
    return f", {number} fits" if number else ""


def _as_share(value: float) -> str:
    """A share in percent, with one digit."""
    return f"{100 * value:.1f}%"


def _as_loss(value: float) -> str:
    return f"{value:.3g}"
