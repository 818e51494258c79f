"""Whether a robust model is kept: what it gains that the plain model cannot have for free, and at what price.

1. Both models are tested on the same rows. What may gain is a group (the slice to fix, otherwise the
   group that the plain model serves worst) or the worst-case loss.
2. The plain model first makes its free moves, chosen out of fold on training rows: thresholds between
   the classes for the group at the robust model's accuracy, a temperature for the worst-case loss at
   the robust model's mean loss. A gain is what is left.
3. The robust model is kept if it gains, if its price is within the budget, and if it does not give
   every row the same answer.

The moves are those of `scdro.fix`. Its verdict asks whether hard rows gain; this one is about the
rows of a test, and may also be about probabilities, which a worst-case loss is.

**Intervals.** The worst case and the worst 5% of losses are no means, but smooth functions of the
data. To first order each moves by the mean of an influence a_i of the rows,

    worst case at rho:  a_i = lam p_i / q_i,        p the worst case, lam its temperature
    worst 5%:           a_i = (l_i - t)_+ / .05,    t the smallest of the worst losses

so an interval of either needs one solution and no bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats
from sklearn.metrics import balanced_accuracy_score

from scdro._group_metrics import brier, roc_auc
from scdro.fix import best_offsets, best_temperature, moved, robust_log_loss
from scdro.functional import worst_case
from scdro.tables._models import row_losses
from scdro.tables._summary import (
    Difference,
    GroupSummary,
    Interval,
    SliceSummary,
    VerdictSummary,
    WorstGroup,
)

if TYPE_CHECKING:
    from scdro.tables._fix import Fix
    from scdro.tables._problem import TableProblem
    from scdro.tables._study import SplitStudy

__all__ = [
    "LEAST_GROUP", "Judge", "Pooled", "VerdictWords", "change_of_mean", "change_of_tail", "change_of_worst_case",
    "estimate", "is_flat", "measure", "one_answer", "row_scores",
]  # fmt: skip

Array = npt.NDArray[Any]
TAIL = 0.05  # `tail` is the mean of this share of the losses, the largest ones
LEAST_SPREAD = 0.04  # a model that varies less than this share of a perfect one is flat
LEAST_GROUP = 30  # test rows; smaller groups are shown and never decide
MOST_GROUPS = 200
MOST_CLASSES = 50  # that are groups, and for which the AUC is computed
METHOD_IN_WORDS = {
    "class-weighted": "class weights",
    "worst-case": "training on the worst case",
    "second-look": "a second look",
    "group-weighted": "equal weights within each class",
}

# -- scores of rows


def row_scores(predicted: Array, y: Array) -> Array:
    """For each row a number, (n,), whose mean over the rows is the accuracy, or R^2.

    Args:
        predicted: probabilities, (n, k), or the standardised target, (n,).
        y: class numbers, or the standardised target, (n,).
    """
    if predicted.ndim == 2:
        right: Array = (predicted.argmax(1) == y).astype(float)
        return right
    variance = float(np.var(y))  # 1 on the training rows; rows that are all the same have none
    explained: Array = 1.0 - (predicted - y) ** 2 / (variance if variance > 1e-12 else 1.0)
    return explained


def measure(losses: Array, rho: float) -> dict[str, float]:
    """The mean loss, the worst case at rho, and the mean of the worst 5%."""
    value = float(worst_case(losses, rho).value)
    return {"loss": float(losses.mean()), "robust_value": value, "tail": _tail(losses)[0]}


def _tail(losses: Array) -> tuple[float, Array]:
    """The mean of the worst 5% of losses, and the influence a_i of each row on it, (n,).

    The formula is at the head of this file; at least one row counts as the worst 5%.
    """
    size = max(math.ceil(TAIL * len(losses)), 1)
    worst = np.partition(losses, len(losses) - size)[-size:]
    return float(worst.mean()), np.maximum(losses - worst[0], 0.0) * len(losses) / size


def is_flat(predicted: Array) -> bool:
    """Whether predictions are nearly the same everywhere, for every class.

    A perfect model of a class of share p has probabilities of deviation sqrt(p (1 - p)), one of the
    standardised target 1: a rare class is judged by its own measure.
    """
    share = predicted.mean(0)
    most = np.sqrt(np.maximum(share * (1 - share), 0.0)) if predicted.ndim == 2 else 1.0
    return bool((predicted.std(0) <= LEAST_SPREAD * most + 1e-9).all())


def one_answer(predicted: Array) -> int | None:
    """The number of the class that every row gets, if there is only one; else None."""
    answers = np.unique(predicted.argmax(1)).tolist() if predicted.ndim == 2 else []
    return answers[0] if len(answers) == 1 else None


# -- intervals


def estimate(values: Array, share: bool = False, level: float = 0.95) -> Interval:
    """A mean with its interval: Wilson's for a share of right answers, Student's otherwise.

    Args:
        values: one number for each row, (n,).
        share: whether they are right answers, 0 or 1; averaged over splits they may lie between.
        level: confidence level.
    """
    n, mean = len(values), float(values.mean())
    if n < 2:
        return _make_interval(mean)
    if share:
        bounds = stats.binomtest(round(values.sum()), n).proportion_ci(level, method="wilson")
        return _make_interval(mean, float(bounds.low), float(bounds.high))
    if np.ptp(values) == 0:
        return _make_interval(mean, mean, mean)
    return _make_interval(
        mean, *map(float, stats.ttest_1samp(values, 0.0).confidence_interval(level))
    )


def _make_interval(*numbers: float) -> Interval:
    """A value and its bounds, if there are any; None for what is not finite, since JSON has no NaN."""
    known = [number if math.isfinite(number) else None for number in numbers]
    value, low, high = (*known, None, None)[:3]
    return {"value": value, "low": low, "high": high}


def _compare(before: float, after: float, influence: Array, level: float = 0.95) -> Difference:
    """after - before, with the interval of a mean of `influence`, shifted to the difference.

    Args:
        before, after: the two numbers.
        influence: of each row on the difference, (n,): its mean need not be the difference, its
            spread is what counts.
        level: confidence level.

    Rows that all change by the same amount say nothing about others: there is no interval then.
    """
    spread, difference = estimate(influence, level=level), after - before
    low, high = spread["low"], spread["high"]
    if low is None or high is None or not np.ptp(influence):
        low = high = None
    else:
        shift = difference - float(influence.mean())
        low, high = low + shift, high + shift
    return {"before": before, "after": after, "difference": difference, "low": low, "high": high}


def change_of_mean(before: Array, after: Array, level: float = 0.95) -> Difference:
    """The change of a mean over the same rows."""
    return _compare(float(before.mean()), float(after.mean()), after - before, level)


def change_of_worst_case(before: Array, after: Array, rho: float) -> Difference:
    """The change of max_{KL(p) <= rho} sum p_i l_i over the same rows."""
    if rho == 0:  # the mean, whose lam is infinite
        return change_of_mean(before, after)
    first, then = worst_case(before, rho), worst_case(after, rho)
    # lam p_i / q_i of either model, with q_i = 1/n.
    influence = len(before) * (
        float(then.lam) * np.asarray(then.weights) - float(first.lam) * np.asarray(first.weights)
    )
    return _compare(float(first.value), float(then.value), influence)


def change_of_tail(before: Array, after: Array) -> Difference:
    """The change of the mean of the worst 5% of losses over the same rows."""
    (first, of_first), (then, of_then) = _tail(before), _tail(after)
    return _compare(first, then, of_then - of_first)


def _clearly_falls(change: Difference) -> bool:
    """Whether the whole interval of a change is below zero."""
    return change["high"] is not None and change["high"] < 0


def _clearly_rises(change: Difference) -> bool:
    """Whether the whole interval of a change is above zero."""
    return change["low"] is not None and change["low"] > 0


# -- the models on all splits


class Pooled:
    """Losses and scores of each test row, averaged over the splits that tested it.

    Attributes:
        rows: numbers of the rows, (n,).
        losses: log losses, or half of the squared errors of the standardised target, (n,).
        scores: their mean is the accuracy, or R^2, (n,).
        group_scores: whose mean over a group says how the model serves it, (n,): right answers, or
            absolute errors in the target's own unit (so less is better there).
        flat, one_answer: of the model of the first split, the one that may be kept.
    """

    def __init__(self, splits: Sequence[SplitStudy], predicted: Sequence[Array]) -> None:
        """Average over the splits.

        Args:
            splits: in their order; a row may be a test row of several.
            predicted: for each split the predictions of its test rows, (rows, k) or (rows,).
        """
        self.splits, self.predicted = splits, predicted
        rows = np.concatenate([split.test for split in splits])
        self.rows, where = np.unique(rows, return_inverse=True)
        times = np.bincount(where)  # how many splits tested each row

        def average(of_rows: Callable[[Array, Array], Array], in_unit: bool = False) -> Array:
            """A function of (predicted, y) for each row, averaged over its splits, (n,)."""
            values = np.concatenate([
                of_rows(own, split.y[split.test]) * (split.scale[1] if in_unit else 1.0)
                for split, own in zip(splits, predicted, strict=True)
            ])  # fmt: skip
            averaged: Array = np.bincount(where, values) / times
            return averaged

        self.losses, self.scores = average(row_losses), average(row_scores)
        self.classifier = predicted[0].ndim == 2
        self.group_scores = self.scores
        if not self.classifier:
            self.group_scores = average(lambda own, y: np.abs(own - y), in_unit=True)
        self.flat, self.one_answer = is_flat(predicted[0]), one_answer(predicted[0])

    @property
    def collapsed(self) -> bool:
        """Whether the model gives every row the same answer, or nearly the same probabilities."""
        return self.flat or self.one_answer is not None

    def all_scores(self, rho: float) -> dict[str, Interval]:
        """Everything that the summary says of a method; those that are no mean over rows have no interval."""

        def mean(score: Callable[[Array, Array], float]) -> Interval:
            """A score of (y, predicted) over all rows of a split, averaged over the splits."""
            pairs = zip(self.splits, self.predicted, strict=True)
            return _make_interval(float(np.mean([score(s.y[s.test], own) for s, own in pairs])))

        if self.classifier:
            # Means over rows have intervals; AUC, Brier score and balanced accuracy have none here.
            scores = {
                "accuracy": estimate(self.scores, share=True),
                "balanced_accuracy": mean(lambda y, p: balanced_accuracy_score(y, p.argmax(1))),
                "log_loss": estimate(self.losses),
                "roc_auc": mean(_auc),
                "brier": mean(brier),
            }
        else:
            errors = [
                math.sqrt(np.mean((own - split.y[split.test]) ** 2)) * split.scale[1]
                for split, own in zip(self.splits, self.predicted, strict=True)
            ]
            scores = {
                "R2": estimate(self.scores),
                "mean_absolute_error": estimate(self.group_scores),
                "root_mean_squared_error": _make_interval(float(np.mean(errors))),
            }
        measures = measure(self.losses, rho)
        return scores | {key: _make_interval(measures[key]) for key in ("robust_value", "tail")}


def _auc(y: Array, predicted: Array) -> float:
    """Area under the ROC curve; NaN if a class is absent or there are too many classes."""
    classes = predicted.shape[1]
    if len(np.unique(y)) < classes or classes > MOST_CLASSES:
        return math.nan
    shares = predicted / predicted.sum(1, keepdims=True) if classes > 2 else predicted
    return roc_auc(y, shares)


# -- the decision


class RowGroup(NamedTuple):
    """A group of some rows."""

    name: str  # such as "sex = Female, income = >50K"
    kind: Literal["class", "group", "group in class"]  # what made it
    mask: Array  # (rows,)


class Comparison(NamedTuple):
    """The robust model against the plain one, on the test rows."""

    price: Difference  # of accuracy or R^2
    value: Difference  # of the worst-case loss
    tail: Difference  # of the worst 5% of losses
    group: WorstGroup | None  # the slice to fix, or the worst group
    better_worst_case: bool  # whether the worst-case loss gains what no temperature gives
    better_group: bool  # whether the group gains what no thresholds give
    notes: list[str]  # what the free moves give, in words


class Judge:
    """The verdict on the models of a run, over all of its splits.

    `decide` compares the robust method with plain training as the head of this file says:

        _compare    what changed, and what is left of it beside the plain model's free moves
        _answer     helps, costs too much, no difference, or degenerate
        words       the same in sentences

    Attributes:
        pooled: each method's losses and scores of all test rows, by name.
        better, worse: whether the change of a group is clearly one to the better, or worse:
            scores rise for classes, errors fall for a quantity.
    """

    def __init__(
        self, problem: TableProblem, splits: Sequence[SplitStudy], fix: Fix | None, rho: float,
        budget: float,
    ) -> None:  # fmt: skip
        self.problem, self.splits, self.fix = problem, splits, fix
        self.rho, self.budget = rho, budget
        self.pooled = {
            name: Pooled(splits, [split.on_test(name) for split in splits])
            for name in splits[0].methods
        }
        self.words = VerdictWords(problem.classes, rho, None if fix is None else fix.text)
        self.better, self.worse = (
            (_clearly_rises, _clearly_falls)
            if problem.classes
            else (_clearly_falls, _clearly_rises)
        )

    def scores(self, method: str) -> dict[str, Interval]:
        """All scores of a method on the test rows."""
        return self.pooled[method].all_scores(self.rho)

    def decide(
        self, robust: str | None, slices: list[SliceSummary]
    ) -> tuple[VerdictSummary, list[GroupSummary]]:
        """The verdict and the table of groups.

        Args:
            robust: the method to compare with plain training; None if only that was asked for.
            slices: descriptions of the rows that the plain model fails.
        """
        plain, words = self.pooled["plain"], self.words
        worst_place = words.write_worst_place(slices, self.groups, float(plain.group_scores.mean()))
        # What holds if there is no robust method; replaced below if there is one.
        verdict: VerdictSummary = {
            "answer": "not tried", "kept": "plain", "saved": ["plain"], "robust": robust, "headline": worst_place,
            "sentences": ["Only plain training was asked for."],
            "price": None, "robust_value": None, "tail": None, "worst_group": None,
        }  # fmt: skip
        if robust is not None:
            after, compared = self.pooled[robust], self._compare(robust)
            answer: Any = self._answer(robust, compared)
            verdict |= {
                "answer": answer, "kept": robust if answer == "helps" else "plain",
                "saved": ["plain"] if after.collapsed else ["plain", robust],
                "headline": words.write_headline(answer, robust, after, compared),
                "sentences": [worst_place, *words.write_numbers(robust, compared), *compared.notes],
                "price": compared.price, "robust_value": compared.value, "tail": compared.tail,
                "worst_group": compared.group,
            }  # fmt: skip
        # A plain model that says the same to everybody is no model to fall back on.
        if plain.flat and verdict["answer"] != "helps":
            verdict |= {"answer": "nothing learned", "kept": "none", "saved": [],
                      "headline": words.write_nothing_learned(robust)}  # fmt: skip
        else:
            verdict["sentences"] += words.write_one_answer(
                self.pooled[verdict["kept"]], verdict["kept"]
            )
        return verdict, self.groups

    def _answer(self, robust: str, compared: Comparison) -> str:
        """The verdict in two words.

        In this order: a model that collapsed is degenerate; one that gained nothing makes no
        difference; one that costs more than the budget, on the test rows or out of fold, costs too
        much; one that took from the worst group what it gave to others makes no difference.
        """
        if self.pooled[robust].collapsed:
            return "degenerate"
        if not (compared.better_worst_case or compared.better_group):
            return "no difference"
        # Out of fold half of the budget counts, since the test rows, which must agree, are noisy too.
        costs = []
        for split in self.splits:
            before, after = (split.methods[name].best.measures for name in ("plain", robust))
            costs.append(before["score"] - after["score"])
        price, budget = compared.price, self.budget
        if np.mean(costs) > budget / 2 or (price["difference"] < -budget and _clearly_falls(price)):
            return "costs too much"
        loses = compared.group is not None and self.worse(compared.group)
        return "no difference" if loses and not compared.better_group else "helps"

    # -- groups

    def find_groups(self, rows: Array) -> dict[str, RowGroup]:
        """By name: the classes, the groups asked for, and those groups within each class, of these rows."""
        classes = self.problem.classes if 1 < len(self.problem.classes) <= MOST_CLASSES else []
        labels = [(f"{self.problem.target} = {name}", k) for k, name in enumerate(classes)]
        y = self.problem.y[rows]
        groups = [RowGroup(name, "class", y == k) for name, k in labels]
        parts: list[tuple[str, str, Array, Array]] = []  # name, name within a class, rows of both
        if self.problem.groups is not None:
            names = self.problem.groups[rows]
            parts = [
                (n, n, names == n, names == n) for n in np.unique(names)[:MOST_GROUPS].tolist()
            ]
        if self.fix is not None:
            part = self.fix.cells[rows] % 2 == 1
            parts.append((self.fix.text, self.fix.condition, self.fix.members[rows], part))
        for name, within, own, part in parts:
            groups.append(RowGroup(name, "group", own))
            for label, k in labels:
                groups.append(RowGroup(f"{within}, {label}", "group in class", part & (y == k)))
        different: dict[str, RowGroup] = {}
        for one in groups:
            if one.mask.any():
                different.setdefault(one.name, one)
        return different

    @cached_property
    def groups(self) -> list[GroupSummary]:
        """Every group with the scores of every method, worst for the plain model first."""
        summaries: list[GroupSummary] = []
        rows = self.pooled["plain"].rows
        for name, kind, mask in self.find_groups(rows).values():
            size = int(mask.sum())
            scores: dict[str, Interval] = {
                method: estimate(own.group_scores[mask], share=own.classifier)
                for method, own in self.pooled.items()
            }
            summaries.append({"name": name, "kind": kind, "size": size, "share": size / len(rows),
                          "small": size < LEAST_GROUP, "scores": scores})  # fmt: skip
        sign = 1.0 if self.problem.classes else -1.0
        return sorted(
            summaries, key=lambda g: (g["small"], sign * (g["scores"]["plain"]["value"] or 0.0))
        )

    def _target_group(self) -> tuple[str, int] | None:
        """The slice to fix, or the worst large group; and among how many it was chosen."""
        if self.fix is not None:
            return self.fix.text, 1
        large = [group for group in self.groups if not group["small"]]
        return (large[0]["name"], len(large)) if len(large) > 1 else None

    def _change_of_group(
        self, target: tuple[str, int] | None, before: Pooled, after: Pooled
    ) -> WorstGroup | None:
        """The change of one group, with an interval that holds for all it was chosen among.

        Args:
            target: the group's name, and the number m of groups that it was chosen among: the
                interval has level 1 - .05/m.
            before, after: the two models.
        """
        group = None if target is None else self.find_groups(before.rows).get(target[0])
        if target is None or group is None:
            return None
        level = 1 - 0.05 / target[1]
        change = change_of_mean(
            before.group_scores[group.mask], after.group_scores[group.mask], level
        )
        return {"name": group.name, "size": int(group.mask.sum()), **change}

    # -- before and after

    def _compare(self, robust: str) -> Comparison:
        """Before and after, and what is left of the gains once the plain model made its free moves."""
        plain, after, notes = self.pooled["plain"], self.pooled[robust], []
        value = change_of_worst_case(plain.losses, after.losses, self.rho)
        target = self._target_group()
        group = self._change_of_group(target, plain, after)
        better_worst_case = self.fix is None and _clearly_falls(value)
        better_group = group is not None and self.better(group)
        # Free moves exist for probabilities only: a regression's gains stand as they are.
        if better_worst_case and self.problem.classes:
            rescaled = self._move_plain(lambda one: {"temperature": self._temperature(one, robust)})
            better_worst_case = _clearly_falls(
                change_of_worst_case(rescaled.losses, after.losses, self.rho)
            )
            if not better_worst_case:
                notes.append(self.words.write_temperature(measure(rescaled.losses, self.rho)))
        if better_group and self.problem.classes and target is not None:
            shifted = self._move_plain(
                lambda one: {"offsets": self._offsets(one, robust, target[0])}
            )
            against = self._change_of_group(target, shifted, after)
            better_group = against is not None and self.better(against)
            if self.fix is not None:  # the slice must not gain what its neighbours lose
                cells = [
                    self.fix.worst_cell(one.group_scores, one.rows) for one in (shifted, after)
                ]
                better_group = better_group and cells[1] >= cells[0]
            if against is not None:
                overall = float(shifted.scores.mean())
                notes.append(self.words.write_thresholds(against["before"], overall, better_group))
        price = change_of_mean(plain.scores, after.scores)
        tail = change_of_tail(plain.losses, after.losses)
        return Comparison(price, value, tail, group, better_worst_case, better_group, notes)

    def _move_plain(self, choose: Callable[[SplitStudy], dict[str, Any]]) -> Pooled:
        """The plain model with a free move, chosen for each split out of fold."""
        return Pooled(
            self.splits,
            [moved(split.on_test("plain"), **choose(split)) for split in self.splits],
        )

    def _temperature(self, split: SplitStudy, robust: str) -> float:
        """The plain model's temperature of the lowest worst-case loss, at no more than the robust model's mean loss.

        Chosen on the sample, out of fold, as the robust model's settings were.
        """
        y, most = split.y[split.sample], split.methods[robust].best.measures["loss"]
        return best_temperature(split.out_of_fold("plain"), y, robust_log_loss(self.rho), most)

    def _offsets(self, split: SplitStudy, robust: str, group: str) -> Array | None:
        """Thresholds that serve a group best at no less than the robust model's accuracy.

        For a slice to fix, the worst cell (class x condition) counts, as it did for the robust model:
        the slice alone would be served best by ruining the same people of other classes.
        """
        if self.fix is not None:
            parts = self.fix.cell_masks(split.sample)
        else:
            chosen = self.find_groups(split.sample).get(group)
            if chosen is None:
                return None
            parts = chosen.mask[None]
        accuracy = [split.methods[name].best.measures["score"] for name in ("plain", robust)]
        y = split.y[split.sample]
        return best_offsets(split.out_of_fold("plain"), y, parts, min(accuracy))


# -- in words


class VerdictWords:
    """The verdict in words: the decisive sentence, then few others.

    Attributes:
        classes: names of the classes; [] for a regression.
        rho: radius of the worst-case loss.
        fix: the slice that training was to serve, in words; None for none.
        score: "accuracy" or "R2", in sentences.
        subject: what is judged, the first words of the headline.
    """

    def __init__(self, classes: list[str], rho: float, fix: str | None) -> None:
        self.classes, self.rho, self.fix = classes, rho, fix
        self.score = "accuracy" if classes else "R2"
        self.subject = "Robust training" if fix is None else f"Training for {fix}"

    def write_score(self, value: float | None) -> str:
        """How a group is served: "81.2% right", or "a mean error of 3.4"."""
        if value is None:
            return "?"
        if self.classes:
            return f"{100 * value:.1f}% right"
        number = f"{value:,.0f}" if 1e4 <= value < 1e15 else f"{value:.4g}"
        return f"a mean error of {number}"

    def write_worst_place(
        self, slices: list[SliceSummary], groups: list[GroupSummary], overall: float
    ) -> str:
        """Where the model fails: in a group, or in a slice that is served even worse.

        Args:
            slices: descriptions of the rows that the plain model fails, the clearest first.
            groups: the plain model's worst first.
            overall: its mean score of all rows.
        """
        sign = 1.0 if self.classes else -1.0
        group = next((g for g in groups if not g["small"]), None)
        worst = overall if group is None else group["scores"]["plain"]["value"] or 0.0
        one = slices[0] if slices else None
        if one is not None and one["before"] is not None and sign * one["before"] <= sign * worst:
            names, there = one["conditions"], one["before"]
            where = f"where {' and '.join(names)} ({100 * one['share']:.1f}% of the rows)"
        elif group is not None:
            names, there = group["name"].split(", "), worst
            where = f"for {group['name']} ({group['size']:,} test rows)"
        else:
            return "No description in these columns stands out among the rows that the plain model fails."
        beside = f"{self.write_score(overall)} overall"
        own = [g for g in groups if g["kind"] == "class" and g["name"] in names and g is not group]
        if own:
            beside += (
                f", {self.write_score(own[0]['scores']['plain']['value'])} for {own[0]['name']}"
            )
        return f"The plain model is worst {where}: {self.write_score(there)} there, {beside}."

    def write_headline(self, answer: str, robust: str, after: Pooled, compared: Comparison) -> str:
        """The one sentence that decides, with what gained and its price."""
        group, value = compared.group, compared.value
        points, how = 100 * compared.price["difference"], METHOD_IN_WORDS[robust]
        cost = "at no cost" if points >= 0 else f"for {-points:.2f} points of {self.score}"
        gain = f"the worst-case loss goes from {value['before']:.3f} to {value['after']:.3f}"
        if group is not None and (compared.better_group or self.fix is not None):
            who = "they go" if self.fix is not None else f"{group['name']} goes"
            gain = f"{who} from {self.write_score(group['before'])} to {self.write_score(group['after'])}"
        if answer == "helps":
            return f"{self.subject} helped: by {how}, {gain}, {cost}."
        if answer == "costs too much":
            what = f"costs too much: by {how}, {gain}, but {cost}"
        elif answer == "degenerate":
            what = f"gives every row the same answer ({how})"
            if not after.flat and after.one_answer is not None:
                what = f"answers {self.classes[after.one_answer]} everywhere ({how})"
        elif compared.notes:
            what = f"gained nothing that the plain model cannot have ({how})"
        else:
            what = f"made no clear difference ({how})"
        return f"{self.subject} {what}; the plain model is kept."

    def write_numbers(self, robust: str, compared: Comparison) -> list[str]:
        """Scores before and after, of everything that could gain or lose, in one or two sentences."""
        price, value, tail, group = compared.price, compared.value, compared.tail, compared.group
        text = (
            f"With {METHOD_IN_WORDS[robust]}, {self.score} goes from {100 * price['before']:.2f}% to"
            f" {100 * price['after']:.2f}%{_in_brackets(price, '{:+.2f} points', 100.0)}"
        )
        if group is not None:
            clear = (
                "" if _clearly_falls(group) or _clearly_rises(group) else ", no clear difference"
            )
            text += (
                f", {group['name']} ({group['size']:,} test rows) from {self.write_score(group['before'])}"
                f" to {self.write_score(group['after'])}{clear}"
            )
        if self.fix is not None:
            return [f"{text}."]
        return [
            f"{text}.",
            f"The worst-case loss (rho {self.rho:g}) goes from {value['before']:.3f} to"
            f" {value['after']:.3f}{_in_brackets(value, '{:+.3f}')}, the worst 5% of losses from"
            f" {tail['before']:.3g} to {tail['after']:.3g}.",
        ]

    def write_temperature(self, measures: Mapping[str, float]) -> str:
        """What the plain model has by a temperature alone; `measures` are those of the rescaled model."""
        return (
            "The plain model's probabilities with a temperature chosen out of fold have a worst-case"
            f" loss of {measures['robust_value']:.3f} at no higher mean loss, and the same answers."
        )

    def write_thresholds(self, there: float, overall: float, left: bool) -> str:
        """What the plain model has by thresholds alone.

        Args:
            there, overall: its scores with them, in the group and over all rows.
            left: whether the robust model still gains more.
        """
        return (
            "The plain model with other thresholds, chosen out of fold for that group at the same"
            f" accuracy, has {'only ' if left else ''}{self.write_score(there)} there,"
            f" {self.write_score(overall)} overall."
        )

    def write_nothing_learned(self, robust: str | None) -> str:
        """The headline where the plain model says nearly the same to everybody."""
        also = "" if robust is None else f", and {METHOD_IN_WORDS[robust]} is not clearly better"
        return (
            "Nothing was learned: the plain model gives nearly the same answer for every"
            f" row{also}. No model is kept. There are too few rows, or these columns do not predict"
            " the target."
        )

    def write_one_answer(self, model: Pooled, kept: str) -> list[str]:
        """A warning if the model that is kept answers one class everywhere; [] otherwise."""
        if model.one_answer is None:
            return []
        answer = self.classes[model.one_answer]
        return [
            f"The {kept} model answers {answer} for every one of the test rows; rank by its probabilities."
        ]


def _in_brackets(change: Difference, form: str, factor: float = 1.0) -> str:
    """The interval of a change, as " (change -1.20 to +0.30 points, 95%)"; "" if there is none."""
    low, high = change["low"], change["high"]
    if low is None or high is None:
        return ""
    return f" (change {form.format(factor * low)} to {form.format(factor * high)}, 95%)"
