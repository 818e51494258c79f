"""A gate: rules that no slice may break, such as "accuracy < 0.7", judged with intervals.

    slice_scores    every score of every slice, with an interval
    judge           the rules, each against the scores of all slices

A slice breaks a rule surely if its whole interval does; the intervals hold for all judged slices at
once: each of m slices has one of level 1 - .05/m (Bonferroni), and findings, which were chosen among all
slices of the search, one that holds for all of those. If only the estimate breaks a rule, the gate says
so, and passes or fails as it was asked to. It does the same of a group that was asked for and has too few
rows for any rule to be judged on.
"""

from __future__ import annotations

import math
import operator
import re
import warnings
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from scdro._arguments import check_number
from scdro.auditing._codes import value_numbers
from scdro.auditing._findings import Finding, FindingSearch
from scdro.auditing._outcomes import LEAST_ROWS
from scdro.errors import HyperparameterError, ScdroError, ScdroWarning

__all__ = ["Gate", "GateError", "SliceScore", "judge", "slice_scores"]

Array = npt.NDArray[Any]
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
# Rules on numbers of findings: which kind each name counts, None for all kinds.
COUNTED = {
    "findings": None,
    "wrong": "wrong probabilities",
    "hard": "hard",
    "threshold": "threshold",
}
SCORES_OF_RULES = ("accuracy", "error", "gap", "missed", "log_loss", "mean_absolute_error")
SCORES_THAT_ARE_SHARES = ("accuracy", "error", "gap", "missed")  # of a classification
LIMIT = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
RULE = re.compile(rf"\s*([a-z_0-9]+)\s*(<=|>=|<|>)\s*({LIMIT})\s*", re.IGNORECASE)
NAMED_SLICES = 15  # slices that a message names for each rule, the worst ones


class GateError(ScdroError, AssertionError):
    """A slice breaks a rule of `Audit.check`.

    Example:
        >>> import scdro
        >>> audit = scdro.audit([0, 1] * 50, [0.4, 0.6] * 50, {"first": [True] * 50 + [False] * 50})
        >>> audit.check("accuracy > 0.5")
        Traceback (most recent call last):
        scdro.auditing._gate.GateError: the gate failed: ...
    """


class SliceScore(NamedTuple):
    """The scores of one slice, each as (value, low, high).

    Example:
        >>> import scdro
        >>> audit = scdro.audit([0, 1] * 50, [0.4, 0.6] * 50, {"first": [True] * 50 + [False] * 50})
        >>> audit.slices_scored[0].slice, audit.slices_scored[0].scores["accuracy"][0]
        ('all rows', 1.0)
    """

    slice: str  # its conditions, in words
    rows: int
    scores: dict[str, tuple[float, float, float]]
    asked: bool = False  # whether it is a group that was asked for


class Gate(NamedTuple):
    """What a gate found.

    Attributes:
        passed: whether no rule was broken.
        failures: slices that break a rule, in words.
        unsure: slices that break a rule by what was measured, but not surely, and groups that were
            asked for and have too few rows to be judged.

    Example:
        >>> import scdro
        >>> audit = scdro.audit([0, 1] * 50, [0.4, 0.6] * 50, {"first": [True] * 50 + [False] * 50})
        >>> audit.check("accuracy < 0.5").passed
        True
    """

    passed: bool
    failures: tuple[str, ...]
    unsure: tuple[str, ...]

    @staticmethod
    def check_rules(*rules: str) -> None:
        """Raise for what is no rule, before there is an audit: `HyperparameterError`.

        Example:
            >>> Gate.check_rules("accuracy < 0.7", "findings > 3")
        """
        for rule in rules:
            _parse_rule(rule)


def slice_scores(
    search: FindingSearch, asked: dict[str, Array], findings: Sequence[Finding]
) -> tuple[SliceScore, ...]:
    """Scores of all rows, every single condition, the groups asked for (conditions too) and the findings.

    Args:
        search: with the outcomes, the weights and the index of slices.
        asked: columns of the groups asked for, by name, (n,) each.
        findings: what the audit found.
    """
    people = People(search, asked, findings)
    z = np.full(len(people.texts), -ndtri(0.025 / len(set(people.texts))))
    if findings:  # they were chosen among all slices
        z[-len(findings) :] = np.maximum(z[-len(findings) :], search.half_width())
    # Of each slice, (slices,): the weight, and the number of independent rows that it is worth:
    # fewer with unequal weights, and fewer again where rows of one unit resemble each other.
    mass, squares = people.sums(search.weight), people.sums(search.weight**2)
    size = mass**2 / np.maximum(squares, 1e-300) / people.design_effects()
    scores = (
        _class_scores(search, people, mass, size, z)
        if search.data.classes
        else _number_scores(search, people, mass, size, z)
    )
    counts = people.sums(np.ones(people.n))
    asked_for = {f"{name} = {value}" for name, names, _ in people.values for value in names}
    by_text = {}
    for k, text in enumerate(people.texts):
        each = {name: (float(v[k]), float(a[k]), float(b[k])) for name, (v, a, b) in scores.items()}
        by_text[text] = SliceScore(text, int(counts[k]), each, text in asked_for)
    return tuple(by_text.values())


class People:
    """All slices that a gate judges, and sums over each of them.

    Attributes:
        texts: of each slice what it is called, in the order of `sums`: all rows, single conditions,
            values of the groups asked for, findings. Two slices may have the same text.
        values: of each column asked for its name, the names of its values, and the number of each
            row's value, (n,).
    """

    def __init__(
        self, search: FindingSearch, asked: dict[str, Array], findings: Sequence[Finding]
    ) -> None:
        self.search, self.index, self.n = search, search.index, search.index.n
        self.values = [(name, *value_numbers(column)) for name, column in asked.items()]
        self.findings = [one.members for one in findings]
        self.texts = ["all rows", *(self.index.text(k) for k in range(len(self.index.conditions)))]
        self.texts += [f"{name} = {value}" for name, names, _ in self.values for value in names]
        self.texts += [one.slice for one in findings]

    def sums(self, quantity: Array) -> Array:
        """The sum of a quantity over each slice, (slices,)."""
        parts = [np.array([quantity.sum()]), self.index.single_sums(quantity[None])[0]]
        for _, names, numbers in self.values:
            parts.append(np.bincount(numbers, weights=quantity, minlength=len(names)))
        parts.append(np.array([quantity[members].sum() for members in self.findings]))
        return np.concatenate(parts)

    def design_effects(self) -> Array:
        """By what factor the variance of each slice's scores is larger because rows of one unit are similar, (slices,).

        The variance of sums over units, divided by that of independent rows; the largest over the
        errors and the probabilities of every class, and at least 1.
        """
        clusters, effects = self.search.clusters, np.ones(len(self.texts))
        if clusters is None:
            return effects
        data, w = self.search.data, self.search.weight
        left = [self.search.errors]
        if data.proba is not None:
            left += [(data.y == k) - data.proba[:, k] for k in range(len(data.classes))[1:]]
        for k, rows in enumerate(self._members()):
            for values in left:
                own = w[rows] * (values[rows] - _weighted_average(values[rows], w[rows]))
                alone = float((own**2).sum())
                together = float((np.bincount(clusters[rows], weights=own) ** 2).sum())
                effects[k] = max(effects[k], together / alone if alone > 0 else 1.0)
        return effects

    def _members(self) -> Iterator[Array]:
        """The rows of each slice, in the order of `texts`."""
        yield np.ones(self.n, bool)
        yield from (self.index.rows(k) for k in range(len(self.index.conditions)))
        for _, names, numbers in self.values:
            yield from (numbers == k for k in range(len(names)))
        yield from self.findings


Scores = dict[str, tuple[Array, Array, Array]]  # value, low and high of every slice


def _class_scores(
    search: FindingSearch, people: People, mass: Array, size: Array, z: Array
) -> Scores:
    """Accuracy, error, missed, and of probabilities the gap and the log loss, of each slice."""
    data, w = search.data, search.weight
    right = people.sums(w * (1 - search.errors)) / mass
    low, high = _wilson_intervals(right, size, z)
    scores = {"accuracy": (right, low, high), "error": (1 - right, 1 - high, 1 - low)}
    missed, gaps = [], []
    for k in range(len(data.classes)):
        own = w * (data.y == k)
        members = people.sums(own)
        share = people.sums(own * (data.decided != k)) / np.maximum(members, 1e-300)
        missed.append((share, *_wilson_intervals(share, size * members / mass, z)))
        if data.proba is not None and (k == 1 or len(data.classes) > 2):
            happens, said = members / mass, people.sums(w * data.proba[:, k]) / mass
            low, high = _wilson_intervals(happens, size, z)
            gaps.append(_take_size((happens - said, low - said, high - said)))
    scores["missed"] = _take_worst_class(missed)
    if search.losses is not None and gaps:
        scores["gap"] = _take_worst_class(gaps)
        scores["log_loss"] = _means(people, search.losses, w, mass, size, z)
    return scores


def _number_scores(
    search: FindingSearch, people: People, mass: Array, size: Array, z: Array
) -> Scores:
    """The mean absolute error and the bias of each slice, of a regression."""
    left, w = search.data.y - search.data.decided, search.weight
    return {
        "mean_absolute_error": _means(people, np.abs(left), w, mass, size, z),
        "gap": _take_size(_means(people, left, w, mass, size, z)),
    }


def _means(
    people: People, values: Array, w: Array, mass: Array, size: Array, z: Array
) -> tuple[Array, Array, Array]:
    """The mean of some values in each slice, with normal intervals of z standard errors.

    mass: sum of the weights w in each slice. size: its effective number of rows.
    """
    middle = people.sums(w * values) / mass
    centre = float(_weighted_average(values, w))
    spread = people.sums(w * (values - centre) ** 2) / mass - (middle - centre) ** 2
    half = z * np.sqrt(np.maximum(spread, 0.0) / np.maximum(size - 1, 1.0))
    half = np.where(size > 1, half, np.inf)
    return middle, middle - half, middle + half


def _weighted_average(values: Array, w: Array) -> float:
    """The mean by weight; NaN if all weights are zero."""
    return float(w @ values / w.sum()) if w.any() else math.nan


def _wilson_intervals(share: Array, size: Array, z: Array) -> tuple[Array, Array]:
    """Wilson's intervals; nothing is known of a slice without rows."""
    square = z * z / np.maximum(size, 1e-12)
    middle = (share + square / 2) / (1 + square)
    inner = share * (1 - share) / np.maximum(size, 1e-12) + square**2 / (4 * z * z)
    half = z * np.sqrt(np.maximum(inner, 0.0)) / (1 + square)
    return np.maximum(middle - half, 0.0), np.minimum(middle + half, 1.0)


def _take_worst_class(scores: Sequence[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    """The largest of several classes in each slice, and the largest low and high ends.

    The class with the largest value may have few members; another one may be surely as bad as `low`.
    """
    value, low, high = (np.max(part, axis=0) for part in zip(*scores, strict=True))
    return value, low, high


def _take_size(interval: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """The size of a difference, without its sign, with its interval; 0 is in it if 0 was."""
    value, low, high = interval
    nearest = np.minimum(np.abs(low), np.abs(high))
    least = np.where((low <= 0) & (high >= 0), 0.0, nearest)
    return np.abs(value), least, np.maximum(np.abs(low), np.abs(high))


def judge(
    rules: Sequence[str], slices: Sequence[SliceScore], findings: Sequence[Finding], if_unsure: str
) -> Gate:
    """Judge every rule; raise `GateError` if one is broken.

    Args:
        rules: such as "accuracy < 0.7": what must not be.
        slices: scores of every slice, from `slice_scores`.
        findings: for rules on their numbers.
        if_unsure: "pass" or "fail".
    """
    if if_unsure not in ("pass", "fail"):
        raise HyperparameterError(f"expected if_unsure 'pass' or 'fail', got {if_unsure!r}")
    if not rules:
        raise HyperparameterError("expected at least one rule, such as 'accuracy < 0.7', got none")
    known = tuple(slices[0].scores)  # names of the scores
    failures: list[list[str]] = []  # of each rule
    unsure = [  # of the groups asked for, then of each rule
        [
            f"{one.slice}, {one.rows:,} rows: too few to judge"
            for one in slices
            if one.asked and one.rows < LEAST_ROWS
        ]
    ]
    for rule in rules:
        name, sign, limit = _parse_rule(rule, known)
        if name in COUNTED:
            told = [one.slice for one in findings if COUNTED[name] in (None, one.kind)]
            if COMPARE[sign](len(told), limit):
                number = f"{len(told)} finding{'s' * (len(told) != 1)}"
                failures.append([f"{rule.strip()}: {': '.join([number, '; '.join(told)])}"])
            continue
        sure, likely = _find_broken(slices, name, sign, limit)
        failures.append([f"{rule.strip()}: {text}" for text in sure])
        unsure.append([f"{rule.strip()}: {text}" for text in likely])
    found = tuple(tuple(text for texts in part for text in texts) for part in (failures, unsure))
    passed = not found[0] and not (found[1] and if_unsure == "fail")
    if not passed:
        shown = failures if found[0] else [[f"not sure: {text}" for text in one] for one in unsure]
        raise GateError("the gate failed:\n  " + "\n  ".join(_list_slices(shown)))
    if found[1]:
        warnings.warn(
            "the gate passed, but is not sure of (too few rows):\n  "
            + "\n  ".join(_list_slices(unsure)),
            ScdroWarning,
            stacklevel=3,
        )
    return Gate(passed, *found)


def _find_broken(
    slices: Sequence[SliceScore], name: str, sign: str, limit: float
) -> tuple[list[str], list[str]]:
    """The slices that break a rule surely, and those that may, in words, the worst first."""
    sure: list[tuple[float, str]] = []
    likely: list[tuple[float, str]] = []
    for one in slices:
        value, low, high = one.scores[name]
        if not COMPARE[sign](value, limit):
            continue
        text = f"{one.slice}, {one.rows:,} rows, {name} {value:.3g} ({low:.3g} to {high:.3g})"
        surest = high if "<" in sign else low  # the end that is least like a broken rule
        worse = surest if "<" in sign else -surest
        (sure if COMPARE[sign](surest, limit) else likely).append((worse, text))
    by_evidence = [[text for _, text in sorted(part, key=itemgetter(0))] for part in (sure, likely)]
    return by_evidence[0], by_evidence[1]


def _list_slices(by_rule: Sequence[Sequence[str]]) -> list[str]:
    """The first slices of each rule, and how many more there are."""
    lines: list[str] = []
    for texts in by_rule:
        lines += texts[:NAMED_SLICES]
        if len(texts) > NAMED_SLICES:
            lines.append(f"and {len(texts) - NAMED_SLICES:,} more slices")
    return lines


def _parse_rule(rule: str, known: Sequence[str] = SCORES_OF_RULES) -> tuple[str, str, float]:
    """The score, the comparison and the number of a rule; `known`: scores that there are."""
    match = RULE.fullmatch(rule) if isinstance(rule, str) else None
    if match is None:
        raise HyperparameterError(f"expected a rule such as 'accuracy < 0.7', got {rule!r}")
    name, sign, number = match.groups()
    limit = float(number)
    if name not in (*known, *COUNTED):
        names = ", ".join((*known, *COUNTED))
        raise HyperparameterError(f"expected a rule on one of {names}, got {name!r}")
    if (
        name in SCORES_THAT_ARE_SHARES
        and "accuracy" in known
        and "mean_absolute_error" not in known
    ):
        check_number(f"the limit of {name}", limit, "in [0, 1]", "a share")
    return name, sign, limit
