"""Means and standard deviations over seeds, and how they are formatted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reproduction.engine.outcomes import Outcome
from reproduction.engine.report.sweeps import Sweep

__all__ = ["CHARTS", "Score", "Spread", "curves", "looked_up", "spread"]


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of `n` values; for one value the standard deviation is 0."""

    mean: float
    sd: float
    n: int

    def __str__(self) -> str:
        return self.written(1.0, 4)

    def written(self, factor: float, digits: int) -> str:
        mean = f"{factor * self.mean:.{digits}f}"
        return mean if self.n < 2 else f"{mean} ± {factor * self.sd:.{digits}f}"


@dataclass(frozen=True)
class Score:
    """A number in a result: its key, its label, how it is formatted, and whether it may span decades."""

    key: str
    label: str
    percent: bool = True
    wide: bool = False
    digits: int = 3

    def of(self, outcome: Outcome) -> Spread | None:
        """Mean and standard deviation over the seeds that have it."""
        done = [
            result
            for result in outcome.results
            if result is not None and result.get("status") == "done"
        ]
        return spread(looked_up(result, self.key) for result in done)

    def within(self, sweep: Sweep) -> Score:
        """The same score, with the radius of the sweep's robust loss in its label."""
        return replace(self, label=self.label.replace("robust loss", f"robust loss{sweep.at_rho}"))

    def written(self, found: Spread | None) -> str:
        if found is None:
            return "–"
        return found.written(100, 2) if self.percent else found.written(1, self.digits)


ROBUST = "Robust loss"
# The title of each chart, and the scores it can show.
CHARTS: tuple[tuple[str, tuple[Score, ...]], ...] = (
    (
        "Accuracy",
        (
            Score("test.top1", "test"),
            Score("train.top1", "train"),
            Score("test.minority", "test, rarer classes"),
            Score("test.worst_group", "test, worst group"),
        ),
    ),
    (
        ROBUST,
        (
            Score("train.robust_loss", "train", percent=False, wide=True),
            Score("test.robust_loss", "test", percent=False, wide=True),
        ),
    ),
    ("Temperature lam", (Score("lam", "lam", percent=False, wide=True),)),
    (
        "KL of the worst case",
        (
            Score("kl", "KL spent", percent=False),
            Score("ess", "share of samples it looks at", percent=False),
        ),
    ),
)


def looked_up(record: Mapping[str, Any], key: str) -> float | None:
    """The number at "part.name", or the smallest in a list; None if it is missing or not finite."""
    value: Any = record
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, list):
        value = min((one for one in value if one is not None), default=None)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and standard deviation of the values that are not None.

    Example:
        >>> spread([1.0, None, 3.0])
        Spread(mean=2.0, sd=1.4142135623730951, n=2)
    """
    there = [value for value in values if value is not None]
    if not there:
        return None
    return Spread(
        statistics.fmean(there), statistics.stdev(there) if len(there) > 1 else 0.0, len(there)
    )


def curves(sweep: Sweep, methods: Sequence[str]) -> dict[str, Any]:
    """The data for the script: each arm's means over seeds at every evaluation, and their standard deviations.

    `methods` are those of the whole page, which determine the colours.
    """
    arms = [outcome.arm for outcome in sweep.outcomes]
    radii = sorted({arm.rho for arm in arms if arm.rho is not None})
    shown = [
        (
            title + sweep.at_rho if title == ROBUST else title,
            [score.within(sweep) for score in scores],
        )
        for title, scores in CHARTS
    ]
    keys = [score.key for _, scores in shown for score in scores]
    lines = [
        {
            "name": str(outcome.arm) if len(radii) > 1 else outcome.arm.method,
            "method": methods.index(outcome.arm.method),
            "rho": None if outcome.arm.rho is None else radii.index(outcome.arm.rho),
            "seeds": len(outcome.curves),
            **_line(outcome.curves, keys),
        }
        for outcome in sweep.outcomes
    ]
    present = {key for line in lines for key in line["values"]}
    charts = [
        {"title": title, "choices": [vars(score) for score in scores if score.key in present]}
        for title, scores in shown
    ]
    return {
        "arms": lines,
        "methods": [
            {"name": m, "index": methods.index(m)}
            for m in dict.fromkeys(arm.method for arm in arms)
        ],
        "radii": [f"{rho:g}" for rho in radii] if len(radii) > 1 else [],
        "charts": [chart for chart in charts if chart["choices"]],
    }


def _line(seeds: Sequence[Sequence[Mapping[str, Any]]], keys: Sequence[str]) -> dict[str, Any]:
    """Point i is the mean over the seeds that have an i-th evaluation."""
    length = max(map(len, seeds), default=0)
    points = [[seed[i] for seed in seeds if i < len(seed)] for i in range(length)]
    values = {
        key: [_packed(spread(looked_up(record, key) for record in point)) for point in points]
        for key in keys
    }
    axes = {
        axis: [
            _short(found.mean) if (found := spread(looked_up(r, axis) for r in p)) else None
            for p in points
        ]
        for axis in ("samples", "seconds")
    }
    return {**axes, "values": {key: found for key, found in values.items() if any(found)}}


def _packed(found: Spread | None) -> list[float] | None:
    return None if found is None else [_short(found.mean), _short(found.sd), found.n]


def _short(value: float) -> float:
    return float(f"{value:.6g}")
