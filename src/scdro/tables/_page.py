"""The report page: one HTML file made from a run's summary. It needs no network, no server and no script.

Charts are SVG with horizontal positions in percent, so that they fit any width; the templates draw them.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from scdro.tables._summary import Curve, Interval, Summary

__all__ = ["render"]

LONGEST = 300  # characters of a name or value
MANY_GROUPS, MANY_COLUMNS = 40, 200
TITLES = {
    "plain": "Plain",
    "class-weighted": "Class weights",
    "worst-case": "Worst case",
    "second-look": "Second look",
}
MEASURES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
    "roc_auc": "AUC",
    "brier": "Brier score",
    "R2": "R²",
    "mean_absolute_error": "mean absolute error",
    "root_mean_squared_error": "root mean squared error",
    "robust_value": "robust value",
    "tail": "worst 5% of losses",
}
SHARES = ("accuracy", "balanced_accuracy")


def render(summary: Summary) -> str:
    """The page of a run.

    Any text in the summary may come from the user's data: it is escaped, and control characters and marks that change
    the direction of writing are shown as codes.
    """
    shares = summary["task"]["type"] == "classification"
    names = [method["name"] for method in summary["methods"]]
    page = _environment().get_template("report.html")
    return page.render(
        s=summary,
        shares=shares,
        names=names,
        measures=[name for name in MEASURES if any(name in method["scores"] for method in summary["methods"])],
        groups=summary["groups"][:MANY_GROUPS],
        columns=summary["data"]["columns"][:MANY_COLUMNS],
        axis=_axis_of_groups(summary),
        panels=_panels(summary["curves"], summary["task"]["score"]),
    )


# -- text -------------------------------------------------------------------------------------------------------------


def _harmless(value: Any) -> Any:
    """Text without control characters and marks of direction, which are shown as their codes; None as a dash."""
    if value is None:
        return "–"
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    cut = value if len(value) <= LONGEST else value[:LONGEST] + "…"
    return "".join(c if unicodedata.category(c)[0] != "C" or c == "\n" else f"\\u{ord(c):04x}" for c in cut)


def _number(value: Any) -> str:
    """Four digits, with a power of ten only where it is needed."""
    if value is None or not math.isfinite(value):
        return "–"
    if 1e4 <= abs(value) < 1e15:
        value = round(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    return (f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.2e}").replace("-", "−")


def _percent(share: Any) -> str:
    if share is None or not math.isfinite(share):
        return "–"
    return "<0.1%" if 0 < share < 0.0005 else f"{100 * share:.1f}%".replace("-", "−")


def _score(value: Any, share: bool) -> str:
    return _percent(value) if share else _number(value)


def _change(difference: Any, share: bool, digits: int = 1) -> str:
    """A difference with its sign; shares are shown in points."""
    if difference is None:
        return "–"
    text = f"{100 * difference:+.{digits}f}" if share else f"{difference:+.3g}"
    return text.replace("-", "−")


def _between(found: Any, share: bool, change: bool = False) -> str:
    """The interval of an estimate or a difference; empty if there is none."""
    if found is None or found["low"] is None or found["high"] is None:
        return ""
    ends = [_change(found[end], share) if change else _score(found[end], share) for end in ("low", "high")]
    return f"{ends[0]} to {ends[1]}"


def _settings(settings: dict[str, Any]) -> str:
    shown = [f"{name} {_number(v) if isinstance(v, float) else v}" for name, v in settings.items()]
    return ", ".join(shown) or "defaults"


def _date(text: str) -> str:
    """ISO 8601 to the minute."""
    try:
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}"
    except ValueError:
        return text


# -- charts -----------------------------------------------------------------------------------------------------------


class Axis(NamedTuple):
    """A scale from `low` to `high` with round ticks.

    Example:
        >>> axis = axis_for([0.61, 0.88])
        >>> axis.ticks, round(axis.at(0.75))
        ([0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9], 50)
    """

    low: float
    high: float
    ticks: list[float]

    def label(self, tick: float, share: bool) -> str:
        """The text of a tick, with enough digits to tell ticks apart."""
        step = (self.ticks[1] - self.ticks[0]) * (100 if share else 1)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        if digits > 6 or abs(tick) >= 1e15:
            return f"{tick:.3g}".replace("-", "−")
        digits += abs(round(step, digits) - step) > 1e-3 * step  # steps of 2.5
        return f"{tick * (100 if share else 1):,.{digits}f}{'%' if share else ''}".replace("-", "−")

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high

    def at(self, value: float) -> float:
        """In percent of the width."""
        return round(100 * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0), 2)


def axis_for(values: Iterable[float | None], steps: int = 6) -> Axis:
    """An axis that contains all values, with some width if they are all the same."""
    known = [value for value in values if value is not None and math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    raw = (high - low) / steps
    unit: float = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [float(f"{k * step:.12g}") for k in range(first, last + 1)]
    return Axis(ticks[0], ticks[-1], ticks)


def _axis_of_groups(summary: Summary) -> Axis:
    """The axis of the plot of groups. Small groups do not stretch it, unless there are no others."""
    groups = summary["groups"][:MANY_GROUPS]
    large = [group for group in groups if not group["small"]] or groups
    found: list[Interval] = [estimate for group in large for estimate in group["scores"].values()]
    return axis_for([e[end] for e in found for end in ("value", "low", "high")], steps=4)


class Dot(NamedTuple):
    """A candidate in a panel, in percent from the left and the top."""

    x: float
    y: float
    value: float
    rho: float
    settings: str
    within_budget: bool
    chosen: bool


class Panel(NamedTuple):
    """One measure of a method's candidates against rho, whose values are spaced evenly; the line joins the best."""

    method: str
    measure: str
    share: bool
    radii: list[float]
    axis: Axis
    dots: list[Dot]
    line: list[Dot]


def _panels(curves: list[Curve], score: str) -> list[Panel]:
    panels = []
    for curve in curves:
        points = [point for point in curve["points"] if isinstance(point["rho"], float | int)]
        radii = sorted({float(point["rho"]) for point in points if not isinstance(point["rho"], str | None)})
        if len(radii) < 2:
            continue
        for measure in ("robust_value", "score"):
            axis = axis_for([point[measure] for point in points], steps=4)
            dots = []
            for point in points:
                value, rho = float(point[measure]), float(point["rho"])  # type: ignore[arg-type]
                x = round(100 * (radii.index(rho) + 0.5) / len(radii), 2)
                about = _settings(point["settings"])
                dots.append(
                    Dot(x, 100 - axis.at(value), value, rho, about, bool(point["within_budget"]), bool(point["chosen"]))
                )
            best = min if measure == "robust_value" else max
            line = [best((d for d in dots if d.rho == rho), key=lambda d: d.value) for rho in radii]
            share = measure == "score" and score == "accuracy"
            name = measure if measure == "robust_value" else score
            panels.append(Panel(curve["method"], name, share, radii, axis, dots, line))
    return panels


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_harmless,
    )
    environment.filters |= {
        "number": _number,
        "percent": _percent,
        "score": _score,
        "change": _change,
        "between": _between,
        "settings": _settings,
        "date": _date,
    }
    environment.globals |= {"TITLES": TITLES, "MEASURES": MEASURES, "SHARES": SHARES}
    return environment
