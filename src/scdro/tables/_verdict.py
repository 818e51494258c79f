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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from scdro.fix import best_offsets, best_temperature, moved, robust_log_loss
from scdro.tables._models import row_losses
from scdro.tables._scores import (
    Pooled,
    change_of_mean,
    change_of_tail,
    change_of_worst_case,
    estimate,
    measure,
    row_scores,
)
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
    from scdro.tables._split_study import SplitStudy

__all__ = ["LEAST_GROUP", "Judge", "VerdictWords"]

Array = npt.NDArray[Any]
LEAST_GROUP = 30  # test rows; smaller groups are shown and never decide
MOST_GROUPS = 200
METHOD_IN_WORDS = {
    "class-weighted": "class weights",
    "worst-case": "training on the worst case",
    "second-look": "a second look",
    "group-weighted": "equal weights within each class",
}


class RowGroup(NamedTuple):
    """A group of some rows."""

    name: str
    kind: Literal["class", "group", "group in class"]
    mask: Array  # (rows,)


class Comparison(NamedTuple):
    """The robust model against the plain one, on the test rows."""

    price: Difference  # of accuracy or R^2
    value: Difference  # of the worst-case loss
    tail: Difference  # of the worst 5% of losses
    group: WorstGroup | None  # the slice to fix, or the worst group
    lower: bool  # whether the worst-case loss gains what no temperature gives
    fairer: bool  # whether the group gains what no thresholds give
    notes: list[str]  # what the free moves give, in words


class Judge:
    """The verdict on the models of a run, over all of its splits."""

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

    # -- groups

    def find_groups(self, rows: Array) -> dict[str, RowGroup]:
        """By name: the classes, the groups asked for, and those groups within each class, of these rows."""
        classes = self.problem.classes if 1 < len(self.problem.classes) <= 50 else []
        labels = [(f"{self.problem.target} = {name}", k) for k, name in enumerate(classes)]
        y = self.problem.y[rows]
        found = [RowGroup(name, "class", y == k) for name, k in labels]
        if self.problem.groups is not None:
            names = self.problem.groups[rows]
            for name in np.unique(names)[:MOST_GROUPS]:
                own = names == name
                found.append(RowGroup(str(name), "group", own))
                found += [
                    RowGroup(f"{name}, {label}", "group in class", own & (y == k))
                    for label, k in labels
                ]
        if self.fix is not None:
            found.append(RowGroup(self.fix.text, "group", self.fix.members[rows]))
            cells = self.fix.cells[rows]
            found += [
                RowGroup(f"{self.fix.condition}, {label}", "group in class", cells == 2 * k + 1)
                for label, k in labels
            ]
        different = {one.name: one for one in reversed(found) if one.mask.any()}
        return dict(reversed(different.items()))

    def group_rows(self) -> list[GroupSummary]:
        """Every group with the scores of every method, worst for the plain model first."""
        found: list[GroupSummary] = []
        rows = self.pooled["plain"].rows
        for name, kind, mask in self.find_groups(rows).values():
            size = int(mask.sum())
            scores: dict[str, Interval] = {
                method: estimate(own.served[mask], share=own.classifier)
                for method, own in self.pooled.items()
            }
            found.append({"name": name, "kind": kind, "size": size, "share": size / len(rows),
                          "small": size < LEAST_GROUP, "scores": scores})  # fmt: skip
        return sorted(
            found, key=lambda g: (g["small"], self._better(g["scores"]["plain"]["value"] or 0.0))
        )

    def _better(self, served: float) -> float:
        """Higher is better: right answers, or minus an error."""
        return served if self.problem.classes else -served

    def _target_group(self) -> tuple[str, int] | None:
        """The slice to fix, or the worst large group; and among how many it was chosen."""
        if self.fix is not None:
            return self.fix.text, 1
        plain = self.pooled["plain"]
        large = {
            name: float(plain.served[group.mask].mean())
            for name, group in self.find_groups(plain.rows).items()
            if group.mask.sum() >= LEAST_GROUP
        }
        if len(large) < 2:
            return None
        return min(large, key=lambda name: self._better(large[name])), len(large)

    def _change_of_group(
        self, target: tuple[str, int] | None, before: Pooled, after: Pooled
    ) -> WorstGroup | None:
        """Of one group, with an interval that holds for all it was chosen among."""
        group = None if target is None else self.find_groups(before.rows).get(target[0])
        if target is None or group is None:
            return None
        level = 1 - 0.05 / target[1]
        change = change_of_mean(before.served[group.mask], after.served[group.mask], level)
        return {"name": group.name, "size": int(group.mask.sum()), **change}

    def _gains(self, change: WorstGroup | None) -> bool:
        return change is not None and (_rises if self.problem.classes else _falls)(change)

    def _loses(self, change: WorstGroup | None) -> bool:
        return change is not None and (_falls if self.problem.classes else _rises)(change)

    # -- the decision

    def decide(
        self, robust: str | None, slices: list[SliceSummary]
    ) -> tuple[VerdictSummary, list[GroupSummary]]:
        """The verdict and the table of groups.

        robust: the method to compare with plain training; None if only that was asked for.
        slices: descriptions of the rows that the plain model fails.
        """
        plain, words, groups = self.pooled["plain"], self.words, self.group_rows()
        failed = words.failed(slices, groups, float(plain.served.mean()))
        found: VerdictSummary = {
            "answer": "not tried", "kept": "plain", "saved": ["plain"], "robust": robust, "headline": failed,
            "sentences": ["Only plain training was asked for."],
            "price": None, "robust_value": None, "tail": None, "worst_group": None,
        }  # fmt: skip
        if robust is not None:
            after, compared = self.pooled[robust], self._compare(robust)
            answer: Any = self._answer(robust, compared)
            found |= {
                "answer": answer, "kept": robust if answer == "helps" else "plain",
                "saved": ["plain"] if _is_collapsed(after) else ["plain", robust],
                "headline": words.headline(answer, robust, after, compared),
                "sentences": [failed, *words.numbers(robust, compared), *compared.notes],
                "price": compared.price, "robust_value": compared.value, "tail": compared.tail,
                "worst_group": compared.group,
            }  # fmt: skip
        if plain.flat and found["answer"] != "helps":
            found |= {"answer": "nothing learned", "kept": "none", "saved": [],
                      "headline": words.nothing_learned(robust)}  # fmt: skip
        else:
            found["sentences"] += words.one_answer(self.pooled[found["kept"]], found["kept"])
        return found, groups

    def _compare(self, robust: str) -> Comparison:
        """Before and after, and what is left of the gains once the plain model made its free moves."""
        plain, after, notes = self.pooled["plain"], self.pooled[robust], []
        value = change_of_worst_case(plain.losses, after.losses, self.rho)
        target = self._target_group()
        group = self._change_of_group(target, plain, after)
        lower, fairer = self.fix is None and _falls(value), self._gains(group)
        if lower and self.problem.classes:
            rescaled = self._move_plain(lambda one: {"temperature": self._temperature(one, robust)})
            lower = _falls(change_of_worst_case(rescaled.losses, after.losses, self.rho))
            notes += [] if lower else [self.words.temperature(measure(rescaled.losses, self.rho))]
        if fairer and self.problem.classes and target is not None:
            shifted = self._move_plain(
                lambda one: {"offsets": self._offsets(one, robust, target[0])}
            )
            against = self._change_of_group(target, shifted, after)
            fairer = self._gains(against)
            if self.fix is not None:  # the slice must not gain what its neighbours lose
                cells = [self.fix.worst_cell(one.served, one.rows) for one in (shifted, after)]
                fairer = fairer and cells[1] >= cells[0]
            if against is not None:
                overall = float(shifted.scores.mean())
                notes.append(self.words.thresholds(against["before"], overall, fairer))
        price = change_of_mean(plain.scores, after.scores)
        tail = change_of_tail(plain.losses, after.losses)
        return Comparison(price, value, tail, group, lower, fairer, notes)

    def _move_plain(self, choose: Callable[[SplitStudy], dict[str, Any]]) -> Pooled:
        """The plain model with a free move, chosen for each split out of fold."""
        return Pooled(
            self.splits,
            [moved(split.on_test("plain"), **choose(split)) for split in self.splits],
        )

    def _temperature(self, split: SplitStudy, robust: str) -> float:
        """That of the lowest worst-case loss at no more than the robust model's mean loss."""
        y = split.y[split.sample]
        most = float(row_losses(split.out_of_fold(robust), y).mean())
        return best_temperature(split.out_of_fold("plain"), y, robust_log_loss(self.rho), most)

    def _offsets(self, split: SplitStudy, robust: str, group: str) -> Array | None:
        """Thresholds that serve a group best at no less than the robust model's accuracy.

        For a slice to fix, the worst cell (class x condition) counts, as it did for the robust model:
        the slice alone would be served best by ruining the same people of other classes.
        """
        if self.fix is not None:
            parts = self.fix.cell_masks(split.sample)
        else:
            found = self.find_groups(split.sample).get(group)
            if found is None:
                return None
            parts = found.mask[None]
        y, plain = split.y[split.sample], split.out_of_fold("plain")
        accuracy = [row_scores(proba, y).mean() for proba in (plain, split.out_of_fold(robust))]
        return best_offsets(plain, y, parts, float(min(accuracy)))

    def _answer(self, robust: str, compared: Comparison) -> str:
        if _is_collapsed(self.pooled[robust]):
            return "degenerate"
        if not (compared.lower or compared.fairer):
            return "no difference"
        # out of fold, half of the budget counts, since the test rows, which must agree, are noisy too
        costs = []
        for split in self.splits:
            y = split.y[split.sample]
            before, after = (row_scores(split.out_of_fold(n), y) for n in ("plain", robust))
            costs.append(float((before - after).mean()))
        price, budget = compared.price, self.budget
        if np.mean(costs) > budget / 2 or (price["difference"] < -budget and _falls(price)):
            return "costs too much"
        return "helps" if compared.fairer or not self._loses(compared.group) else "no difference"


def _is_collapsed(model: Pooled) -> bool:
    """Whether a model gives every row the same answer, or nearly the same probabilities."""
    return model.flat or model.one_answer is not None


def _falls(change: Difference) -> bool:
    return change["high"] is not None and change["high"] < 0


def _rises(change: Difference) -> bool:
    return change["low"] is not None and change["low"] > 0


class VerdictWords:
    """The verdict in words: the decisive sentence, then few others.

    classes: [] for a regression. fix: the slice that training was to serve, in words.
    """

    def __init__(self, classes: list[str], rho: float, fix: str | None) -> None:
        self.classes, self.rho, self.fix = classes, rho, fix
        self.score = "accuracy" if classes else "R2"
        self.subject = "Robust training" if fix is None else f"Training for {fix}"

    def served(self, value: float | None) -> str:
        if value is None:
            return "?"
        if self.classes:
            return f"{100 * value:.1f}% right"
        number = f"{value:,.0f}" if 1e4 <= value < 1e15 else f"{value:.4g}"
        return f"a mean error of {number}"

    def failed(self, slices: list[SliceSummary], groups: list[GroupSummary], overall: float) -> str:
        """Where the model fails: in a group, or in a description whose rows are served even worse."""
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
        beside = f"{self.served(overall)} overall"
        own = [g for g in groups if g["kind"] == "class" and g["name"] in names and g is not group]
        if own:
            beside += f", {self.served(own[0]['scores']['plain']['value'])} for {own[0]['name']}"
        return f"The plain model is worst {where}: {self.served(there)} there, {beside}."

    def headline(self, answer: str, robust: str, after: Pooled, compared: Comparison) -> str:
        """The one sentence that decides, with what gained and its price."""
        group, value = compared.group, compared.value
        points, how = 100 * compared.price["difference"], METHOD_IN_WORDS[robust]
        cost = "at no cost" if points >= 0 else f"for {-points:.2f} points of {self.score}"
        gain = f"the worst-case loss goes from {value['before']:.3f} to {value['after']:.3f}"
        if group is not None and (compared.fairer or self.fix is not None):
            who = "they go" if self.fix is not None else f"{group['name']} goes"
            gain = f"{who} from {self.served(group['before'])} to {self.served(group['after'])}"
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

    def numbers(self, robust: str, compared: Comparison) -> list[str]:
        """Before and after, of everything that could gain or lose."""
        price, value, tail, group = compared.price, compared.value, compared.tail, compared.group
        text = (
            f"With {METHOD_IN_WORDS[robust]}, {self.score} goes from {100 * price['before']:.2f}% to"
            f" {100 * price['after']:.2f}%{_interval(price, '{:+.2f} points', 100.0)}"
        )
        if group is not None:
            clear = "" if _falls(group) or _rises(group) else ", no clear difference"
            text += (
                f", {group['name']} ({group['size']:,} test rows) from {self.served(group['before'])}"
                f" to {self.served(group['after'])}{clear}"
            )
        if self.fix is not None:
            return [f"{text}."]
        return [
            f"{text}.",
            f"The worst-case loss (rho {self.rho:g}) goes from {value['before']:.3f} to"
            f" {value['after']:.3f}{_interval(value, '{:+.3f}')}, the worst 5% of losses from"
            f" {tail['before']:.3g} to {tail['after']:.3g}.",
        ]

    def temperature(self, measures: Mapping[str, float]) -> str:
        return (
            "The plain model's probabilities with a temperature chosen out of fold have a worst-case"
            f" loss of {measures['robust_value']:.3f} at no higher mean loss, and the same answers."
        )

    def thresholds(self, there: float, overall: float, left: bool) -> str:
        return (
            "The plain model with other thresholds, chosen out of fold for that group at the same"
            f" accuracy, has {'only ' if left else ''}{self.served(there)} there,"
            f" {self.served(overall)} overall."
        )

    def nothing_learned(self, robust: str | None) -> str:
        also = "" if robust is None else f", and {METHOD_IN_WORDS[robust]} is not clearly better"
        return (
            "Nothing was learned: the plain model gives nearly the same answer for every"
            f" row{also}. No model is kept. There are too few rows, or these columns do not predict"
            " the target."
        )

    def one_answer(self, model: Pooled, kept: str) -> list[str]:
        if model.one_answer is None:
            return []
        answer = self.classes[model.one_answer]
        return [
            f"The {kept} model answers {answer} for every one of the test rows; rank by its probabilities."
        ]


def _interval(change: Difference, form: str, factor: float = 1.0) -> str:
    low, high = change["low"], change["high"]
    if low is None or high is None:
        return ""
    return f" (change {form.format(factor * low)} to {form.format(factor * high)}, 95%)"
