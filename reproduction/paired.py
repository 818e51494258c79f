"""Differences between methods, paired by seed, and which of them are significant."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from reproduction.columns import Column, columns
from reproduction.engine.outcomes import Outcome
from reproduction.engine.study import Study

__all__ = ["PairedDifference", "comparisons", "difference", "difference_of", "falls", "verdicts"]

FEWEST = 3  # pairs for a verdict
ERROR = 0.05  # probability that any of the differences called significant is chance
OURS = ("SCDRO", "ASCDRO", "RSCDRO", "RASCDRO")


class PairedDifference(NamedTuple):
    """Our score minus the other's, seed by seed, with a 95% confidence interval of its mean over seeds (Student's t)
    and the p-value: the probability of a mean this far from zero if there were no difference."""

    ours: str
    other: str
    score: str
    mean: float
    low: float
    high: float
    pairs: int
    p_value: float = 1.0

    @property
    def direction(self) -> str:
        """The sign by its own interval, without correction for other comparisons; empty if that contains zero."""
        return "higher" if self.low > 0 else "lower" if self.high < 0 else ""


def verdicts(found: Sequence[PairedDifference]) -> list[str]:
    """The verdicts in a table of comparisons. "higher" and "lower" hold for all comparisons at once."""
    judged = [d.p_value if d.pairs >= FEWEST else 1.0 for d in found]
    return [_verdict(d, sure) for d, sure in zip(found, _significant(judged), strict=True)]


def _significant(p_values: Sequence[float]) -> list[bool]:
    """Which findings are significant together (Holm, 1979): Bonferroni's bound for those still in question.

    Example:
        >>> _significant([0.02, 0.001, 0.3])
        [True, True, False]
    """
    found = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    for left, k in zip(range(len(order), 0, -1), order, strict=True):
        if p_values[k] > ERROR / left:
            break
        found[k] = True
    return found


def _verdict(d: PairedDifference, sure: bool) -> str:
    if d.pairs < FEWEST:
        return "too few pairs"
    if not d.direction:
        return "no difference shown"
    return d.direction if sure else f"{d.direction} by its own interval alone"


def comparisons(study: Study, outcomes: Sequence[Outcome]) -> list[PairedDifference]:
    """Each of our methods against each baseline, at the same rho if both have one; without ours, the printed ones."""
    methods = set(OURS) & set(study.methods) or {f"{name}-printed" for name in OURS}
    ours = [outcome for outcome in outcomes if outcome.arm.method in methods]
    others = [outcome for outcome in outcomes if outcome.arm.method not in methods]
    score = [c for c in columns(study) if c.part == "test"]
    return [
        difference(a, b, c)
        for c in (score if study.experiment == "hidden" else score[:1])
        for a in ours
        for b in others
        if a.arm.rho == b.arm.rho or None in (a.arm.rho, b.arm.rho)
    ]


def falls(study: Study, outcomes: Sequence[Outcome]) -> list[PairedDifference]:
    """How much less test accuracy ours loses from the smallest radius to the largest, each with a result of its own."""
    least, most = min(study.rho), max(study.rho)
    if study.choose_rho or least == most:
        return []
    at = {
        (o.arm.method, o.arm.rho): o.values("test", "top1")
        for o in outcomes
        if o.arm.rho in (least, most)
    }
    fall = {
        m: [x - y for x, y in zip(at[m, least], at[m, most], strict=True)]
        for m, rho in at
        if rho == least
    }
    name = f"fall from rho {least:g} to {most:g}"
    ours = [method for method in fall if method in OURS]
    return [
        difference_of((a, b, name), fall[a], fall[b]) for a in ours for b in fall if b not in OURS
    ]


def difference(a: Outcome, b: Outcome, score: Column) -> PairedDifference:
    """Seeds are paired: same initial weights, and the same data order unless a method draws its own samples."""
    name = (str(a.arm), str(b.arm), score.title)
    return difference_of(name, a.values(score.part, score.name), b.values(score.part, score.name))


def difference_of(
    name: tuple[str, str, str], ours: Sequence[float], others: Sequence[float]
) -> PairedDifference:
    """Of the scores of the same seeds, named (ours, other, score); pairs in which one is not finite are left out."""
    from scipy.stats import t

    gaps = [
        x - y for x, y in zip(ours, others, strict=False) if math.isfinite(x) and math.isfinite(y)
    ]
    if len(gaps) < 2:
        return PairedDifference(
            *name, gaps[0] if gaps else math.nan, -math.inf, math.inf, len(gaps)
        )
    mean, error = statistics.mean(gaps), statistics.stdev(gaps) / math.sqrt(len(gaps))
    half = float(t.ppf(1 - ERROR / 2, len(gaps) - 1)) * error
    p_value = 2 * float(t.sf(abs(mean) / error, len(gaps) - 1)) if error else float(not mean)
    return PairedDifference(*name, mean, mean - half, mean + half, len(gaps), p_value)
