"""An audit to look at: one HTML file, a fragment for a notebook, and a plot.

    make_charts    findings -> charts: rows on one scale, each with a mark to compare with
    page_of        templates/audit_page.html, which draws the charts as SVG
    fragment_of    the same body for a notebook
    plot           the first chart, by matplotlib

Any text may come from the user's table: the templates escape it.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scdro._html import Axis, axis_for, environment_for, number, percent
from scdro.auditing._findings import Finding

if TYPE_CHECKING:
    from jinja2 import Environment

    from scdro.auditing._audit import Audit

__all__ = ["evidence_in_words", "fragment_of", "page_of", "plot"]

MEANINGS = {
    "wrong probabilities": (
        "What the model says and what happens differ. Another model, a missing column, or "
        "recalibration can mend it."
    ),
    "threshold": (
        "The probabilities are right, the decisions are not. Another threshold costs nothing."
    ),
    "hard": (
        "The probabilities are right, but these columns cannot tell the classes apart. More columns"
        " can; no training can."
    ),
    "errors": (
        "More decisions are wrong than elsewhere. Without probabilities it cannot be told why."
    ),
    "bias": (
        "Predictions are too low or too high on average. Another model, or a missing column, can"
        " mend it."
    ),
    "spread": "Errors are larger than elsewhere, in both directions.",
    "coverage": "Targets are outside of their intervals more often than elsewhere.",
}
SCORES = {
    "accuracy": "accuracy",
    "log_loss": "log loss",
    "mean_absolute_error": "mean absolute error",
    "r2": "R²",
}
MOST_LISTED = 200  # classes, groups and columns


def page_of(audit: Audit) -> str:
    """A whole page, which needs no other file."""
    return _render("audit_page.html", audit, ":root")


def fragment_of(audit: Audit) -> str:
    """The same for a notebook: its style touches nothing else, and follows the notebook's theme."""
    return _render("audit_fragment.html", audit, ".scdro-audit")


def _render(template: str, audit: Audit, root: str) -> str:
    """A template with all that it needs. `root` is what its style is limited to."""
    kinds = list(dict.fromkeys(one.kind for one in audit.findings))
    return _make_page_templates().get_template(template).render(
        audit=audit, root=root, share=audit.unit == "share", charts=make_charts(audit),
        kinds=[(kind, [one for one in audit.findings if one.kind == kind]) for kind in kinds],
        MEANINGS=MEANINGS, SCORES=SCORES, MOST_LISTED=MOST_LISTED,
    )  # fmt: skip


def evidence_in_words(one: Finding) -> str:
    """How sure a finding is, in words.

    A threshold that fails a class in all rows is counted, not estimated.
    """
    if one.kind == "threshold" and not one.conditions:
        return "counted in all rows"
    for bound in (1_000_000, 1_000, 100):
        if one.p_value < 1 / bound:
            return f"less than 1 in {bound:,} by chance"
    return f"about 1 in {max(round(1 / one.p_value), 1):,} by chance"


# -- the picture ----------------------------------------------------------------------------------


class ChartRow(NamedTuple):
    """One slice: a mark to compare with, and what was seen, with its interval; NaN for none."""

    finding: Finding
    usual: float  # the hollow mark: what was predicted, or the number for all other rows
    seen: float  # the full mark: what was observed in the slice
    low: float
    high: float


class Chart(NamedTuple):
    """Slices on one scale. Bars begin at zero; marks come in pairs."""

    title: str
    usual: str  # what the hollow mark is; "" for bars
    seen: str  # what the full mark is
    share: bool  # whether numbers are shares, written in per cent
    axis: Axis
    rows: list[ChartRow]

    @property
    def has_intervals(self) -> bool:
        return any(math.isfinite(row.low) for row in self.rows)


def make_charts(audit: Audit) -> list[Chart]:
    """What findings of each kind are seen by, each kind of number on a scale of its own."""
    paired, other, bias, spread, coverage = [], [], [], [], []
    for one in audit.findings:
        if one.kind == "bias":
            gap = [value - one.predicted for value in (one.observed, one.low, one.high)]
            bias.append(ChartRow(one, math.nan, *gap))
        elif one.kind == "spread":
            spread.append(ChartRow(one, one.error_elsewhere, one.error, math.nan, math.nan))
        elif one.kind == "coverage":
            coverage.append(ChartRow(one, one.missed_elsewhere, one.missed, math.nan, math.nan))
        elif math.isnan(one.predicted) or math.isnan(one.observed):
            other.append(ChartRow(one, one.error_elsewhere, one.error, math.nan, math.nan))
        else:
            paired.append(ChartRow(one, one.predicted, one.observed, one.low, one.high))
    usual_error = audit.scores.get("mean_absolute_error", 0.0)
    made = [
        Chart(
            "Predicted and observed", "predicted", "observed", True, _axis_of_shares(paired), paired
        ),
        Chart("Wrong decisions", "elsewhere", "here", True, _axis_of_shares(other), other),
        Chart(
            "Observed less predicted, on average",
            "",
            "gap",
            False,
            _axis_about_zero(bias, usual_error),
            bias,
        ),
        Chart("Mean absolute error", "elsewhere", "here", False, _axis_from_zero(spread), spread),
        Chart(
            "Outside of their intervals",
            "elsewhere",
            "here",
            True,
            _axis_of_shares(coverage),
            coverage,
        ),
    ]
    return [chart for chart in made if chart.rows]


def _list_finite_values(rows: list[ChartRow]) -> list[float]:
    """All numbers of some rows, to fit an axis to."""
    return [value for row in rows for value in row[1:] if math.isfinite(value)]


def _axis_of_shares(rows: list[ChartRow]) -> Axis:
    """From zero to 10, 20, 50 or 100%: never so short that one percentage point looks large."""
    top = max(_list_finite_values(rows), default=1.0)
    return axis_for(
        [0.0, next(end for end in (0.1, 0.2, 0.5, 1.0) if top <= end or end == 1.0)], steps=5
    )


def _axis_from_zero(rows: list[ChartRow]) -> Axis:
    """An axis of errors, which begin at zero."""
    return axis_for([0.0, *_list_finite_values(rows)], steps=5)


def _axis_about_zero(rows: list[ChartRow], usual: float) -> Axis:
    """As wide on both sides, and at least as the usual error: a small bias looks small."""
    reach = max([abs(value) for value in _list_finite_values(rows)] + [usual])
    return axis_for([-reach, reach], steps=4)


def plot(audit: Audit, ax: Any = None) -> Any:
    """Draw the first chart with matplotlib."""
    import matplotlib.pyplot as plt

    drawn = make_charts(audit)
    rows = drawn[0].rows if drawn else []
    if ax is None:
        _, ax = plt.subplots(figsize=(7.5, 1.3 + 0.42 * max(len(rows), 1)), layout="constrained")
    if not drawn:
        ax.set_axis_off()
        ax.text(0.5, 0.5, audit.headline, ha="center", va="center", wrap=True)
        return ax
    chart, heights = drawn[0], range(len(rows))
    seen = [row.seen for row in rows]
    reach = [
        [
            0.0 if math.isnan(end) else abs(end - row.seen)
            for row, end in zip(rows, ends, strict=True)
        ]
        for ends in ([row.low for row in rows], [row.high for row in rows])
    ]
    if chart.usual:
        ax.plot(
            [row.usual for row in rows], heights, "D", mfc="none", color="0.45", label=chart.usual
        )
    else:
        ax.barh(heights, seen, height=0.5, color="C0", alpha=0.3)
        ax.axvline(0, color="0.45", linewidth=1)
    ax.errorbar(seen, heights, xerr=reach, fmt="o", color="C0", capsize=3, label=chart.seen)
    names = [_shorten(_write_slice(row.finding)) for row in rows]
    ax.set_yticks(heights, names, parse_math=False)  # a column may be named "$x"
    ax.invert_yaxis()
    ax.set_xlim(chart.axis.low, chart.axis.high)
    ax.set_xticks(
        chart.axis.ticks, [chart.axis.label(tick, chart.share) for tick in chart.axis.ticks]
    )
    ax.set_title(chart.title, loc="left")
    ax.grid(axis="x", alpha=0.3)
    if chart.usual:
        ax.legend(loc="best")
    return ax


def _write_slice(one: Finding) -> str:
    """A slice, and the class that the finding is about, if any."""
    return f"{one.slice}: {one.label}" if one.label else one.slice


def _shorten(text: str, most: int = 60) -> str:
    """A text of at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _write_value(value: float, share: bool) -> str:
    return percent(value) if share else number(value)


@cache
def _make_page_templates() -> Environment:
    """jinja2's environment of this folder's templates, with what they call."""
    environment = environment_for(Path(__file__).parent / "templates")
    environment.filters |= {"chance": evidence_in_words, "value": _write_value}
    environment.tests["known"] = math.isfinite
    return environment
