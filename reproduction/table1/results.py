"""From records of runs to the lines of the table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reproduction.table1.fit import PowerLaw, power_law
from reproduction.table1.methods import ROWS, MethodRow
from reproduction.table1.problems import PROBLEMS
from reproduction.table1.schedules import Restarts

__all__ = ["Line", "Points", "lines", "points", "step_slope"]

SETTINGS = {"dist2": "non-convex", "gap": "convex"}
Record = dict[str, Any]


@dataclass(frozen=True)
class Points:
    """The runs of a row: the samples of each horizon, and the measure for each seed that did not diverge."""

    row: MethodRow
    horizons: list[int]
    samples: list[int]
    values: list[list[float]]
    late: list[list[float]]
    diverged: int

    @property
    def means(self) -> list[float]:
        return [statistics.fmean(v) if v else float("nan") for v in self.values]

    @property
    def biases(self) -> list[float] | None:
        """What the restarted forms' mu |x|^2/2 adds to the gap: F(x_mu) - F(x_*), x_mu the minimiser with it."""
        schedule = self.row.settings.get("schedule")
        if not isinstance(schedule, Restarts):
            return None
        problem = PROBLEMS[self.row.problem]
        return [
            problem.optimum(schedule.target(T)[1]).value - problem.optimum().value
            for T in self.horizons
        ]

    def fit(self, last: int | None = None) -> PowerLaw | None:
        """The fit over all horizons, or the last few; None if too many runs diverged."""
        values = self.values if last is None else self.values[-last:]
        if len(values) < 2 or not all(len(v) > 1 and min(v) > 0 for v in values):
            return None
        return power_law(self.samples[-len(values) :], values)

    def late_share(self) -> float | None:
        """The part of the measure at the longest horizon that comes from the later half of the iterates."""
        if not self.late or not self.late[-1] or not self.values[-1]:
            return None
        return sum(self.late[-1]) / sum(self.values[-1])


@dataclass(frozen=True)
class Line:
    """One row of the table; slopes are of log measure in log samples, with 95% intervals."""

    setting: str
    problem: str
    algorithm: str
    claim: str
    claimed_slope: float
    slope: float | None
    low: float | None
    high: float | None
    upper_slope: float | None  # over the upper half of the horizons in log: where it is heading
    upper_low: float | None
    upper_high: float | None
    measured_power: float | None  # p of samples ~ eps^-p, by the slope
    late_share: float | None
    diverged: int
    step_claim: str
    step_slope: float | None  # of the time of a step in n, from the last n but one to the last
    step_ms: float | None  # at the largest n


def points(row: MethodRow, records: Sequence[Record]) -> Points:
    own = sorted(
        (r for r in records if r["row"] == row.key), key=lambda r: (r["horizon"], r["seed"])
    )
    horizons = sorted({r["horizon"] for r in own})
    by_horizon = [[r for r in own if r["horizon"] == horizon] for horizon in horizons]
    return Points(
        row,
        horizons,
        [group[0]["samples"] for group in by_horizon],
        [[r["value"] for r in group if r["value"] is not None] for group in by_horizon],
        [[r["late"] for r in group if r["late"] is not None] for group in by_horizon],
        sum(r["value"] is None for r in own),
    )


def step_slope(name: str, timings: Sequence[Record]) -> tuple[float, float]:
    """The power of n in the time of a step between the two largest n, and milliseconds at the largest."""
    own = sorted((t["n"], [t["seconds"]]) for t in timings if t["method"] == name)[-2:]
    law = power_law([n for n, _ in own], [s * 2 for _, s in own])
    return law.slope, 1e3 * own[-1][1][0]


def lines(records: Sequence[Record], timings: Sequence[Record]) -> list[Line]:
    return [_line(points(row, records), *step_slope(row.algorithm, timings)) for row in ROWS]


def _line(found: Points, slope_in_n: float, ms: float) -> Line:
    row, whole = found.row, found.fit()
    upper = found.fit(last=(len(found.horizons) + 1) // 2) if len(found.horizons) > 3 else None
    power = (
        None
        if whole is None or whole.slope >= 0
        else -(2.0 if row.measure == "dist2" else 1.0) / whole.slope
    )
    return Line(
        setting=SETTINGS[row.measure],
        problem=row.problem,
        algorithm=row.algorithm,
        claim=f"eps^-{row.claim}",
        claimed_slope=row.exponent,
        slope=whole.slope if whole else None,
        low=whole.low if whole else None,
        high=whole.high if whole else None,
        upper_slope=upper.slope if upper else None,
        upper_low=upper.low if upper else None,
        upper_high=upper.high if upper else None,
        measured_power=power,
        late_share=found.late_share(),
        diverged=found.diverged,
        step_claim=row.cost,
        step_slope=slope_in_n,
        step_ms=ms,
    )
