"""A gate: rules that no slice may break, such as "accuracy < 0.7", judged with intervals.

    slice_scores    every score of every slice, with an interval
    judge           the rules, each against the scores of all slices

A slice breaks a rule surely if its whole interval does; the intervals hold for all judged slices at
once: each of m slices has one of level 1 - .05/m (Bonferroni), and findings, which were chosen among all
slices of the search, one that holds for all of those. If only the estimate breaks a rule, the gate says
so, and passes or fails as it was asked to.
"""

from __future__ import annotations

import math
import operator
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from scdro.auditing._codes import value_numbers
from scdro.auditing._findings import Finding, FindingSearch
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
RULE = re.compile(r"\s*([a-z_0-9]+)\s*(<=|>=|<|>)\s*([-+]?[0-9.]+(?:e[-+]?\d+)?)\s*", re.IGNORECASE)


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


class Gate(NamedTuple):
    """What a gate found.

    Attributes:
        passed: whether no rule was broken.
        failures: slices that break a rule, in words.
        unsure: slices that break a rule by what was measured, but not surely.

    Example:
        >>> import scdro
        >>> audit = scdro.audit([0, 1] * 50, [0.4, 0.6] * 50, {"first": [True] * 50 + [False] * 50})
        >>> audit.check("accuracy < 0.5").passed
        True
    """

    passed: bool
    failures: tuple[str, ...]
    unsure: tuple[str, ...]


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
    # fewer with unequal weights, and fewer again where rows of one unit are alike.
    mass, squares = people.sums(search.weight), people.sums(search.weight**2)
    size = mass**2 / np.maximum(squares, 1e-300) / people.design_effects()
    scores = (
        _class_scores(search, people, mass, size, z)
        if search.data.classes
        else _number_scores(search, people, mass, size, z)
    )
    counts = people.sums(np.ones(people.n))
    by_text = {}
    for k, text in enumerate(people.texts):
        each = {name: (float(v[k]), float(a[k]), float(b[k])) for name, (v, a, b) in scores.items()}
        by_text[text] = SliceScore(text, int(counts[k]), each)
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
    scores["missed"] = _choose_clearest(missed)
    if search.losses is not None and gaps:
        scores["gap"] = _choose_clearest(gaps)
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


def _choose_clearest(scores: Sequence[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    """Of several classes, in each slice the one whose lower bound is the highest: surely the worst."""
    worst = np.argmax([low for _, low, _ in scores], axis=0)
    every = np.arange(len(worst))
    value, low, high = (np.array(part)[worst, every] for part in zip(*scores, strict=True))
    return value, low, high


def _take_size(interval: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """The size of a difference, without its sign, with its interval; 0 is in it if 0 was."""
    value, low, high = interval
    nearest = np.minimum(np.abs(low), np.abs(high))
    least = np.where((low <= 0) & (high >= 0), 0.0, nearest)
    return np.abs(value), least, np.maximum(np.abs(low), np.abs(high))


def judge(
    rules: Sequence[str], slices: Sequence[SliceScore], kinds: Sequence[str], if_unsure: str
) -> Gate:
    """Judge every rule; raise `GateError` if one is broken.

    Args:
        rules: such as "accuracy < 0.7": what must not be.
        slices: scores of every slice, from `slice_scores`.
        kinds: of the findings, for rules on their numbers.
        if_unsure: "pass" or "fail".
    """
    if if_unsure not in ("pass", "fail"):
        raise HyperparameterError(f"expected if_unsure 'pass' or 'fail', got {if_unsure!r}")
    failures: list[str] = []
    unsure: list[str] = []
    known = sorted(slices[0].scores) if slices else []  # names of the scores
    for rule in rules:
        name, sign, limit = _parse_rule(rule, [*known, *COUNTED])
        if name in COUNTED:
            number = sum(COUNTED[name] in (None, kind) for kind in kinds)
            if COMPARE[sign](number, limit):
                failures.append(f"{rule.strip()}: {number} finding{'s' * (number != 1)}")
            continue
        for one in slices:
            value, low, high = one.scores[name]
            if not COMPARE[sign](value, limit):
                continue
            text = (
                f"{rule.strip()}: {one.slice}, {one.rows:,} rows, {name} {value:.3g} ({low:.3g} to"
                f" {high:.3g})"
            )
            # The end of the interval that is least like a broken rule.
            sure = COMPARE[sign](high if "<" in sign else low, limit)
            (failures if sure else unsure).append(text)
    passed = not failures and not (unsure and if_unsure == "fail")
    if not passed:
        lines = failures or [f"not sure, with so few rows: {text}" for text in unsure]
        raise GateError("the gate failed:\n  " + "\n  ".join(lines))
    if unsure:
        warnings.warn(
            "the gate passed, but is not sure of (too few rows):\n  " + "\n  ".join(unsure),
            ScdroWarning,
            stacklevel=3,
        )
    return Gate(passed, tuple(failures), tuple(unsure))


def _parse_rule(rule: str, known: Sequence[str]) -> tuple[str, str, float]:
    """A rule as (name of a score, comparison, number)."""
    match = RULE.fullmatch(rule)
    if match is None:
        raise HyperparameterError(f"expected a rule such as 'accuracy < 0.7', got {rule!r}")
    name, sign, number = match.groups()
    if name not in known:
        raise HyperparameterError(f"expected a rule on one of {', '.join(known)}, got {name!r}")
    return name, sign, float(number)
