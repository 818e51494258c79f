"""The report page: one HTML file made from a run's summary. It needs no network, no server and no script.

Charts are SVG with horizontal positions in percent, so that they fit any width; the templates draw
them.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scdro._html import Axis, axis_for, chance, environment_for, number
from scdro.tables._summary import Interval, Summary

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["render"]

MANY_GROUPS, MANY_COLUMNS = 40, 200  # rows of the page's tables; the rest is in summary.json
TITLES = {  # of the methods
    "plain": "Plain",
    "class-weighted": "Class weights",
    "worst-case": "Worst case",
    "second-look": "Second look",
    "group-weighted": "Equal weights",
}
MEASURES = {  # names of the scores, in the order of the page
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
LEAST_SHARE = 0.05  # the least width of an axis of accuracies


def render(summary: Summary) -> str:
    """The page of a run.

    Any text in the summary may come from the user's data: it is escaped, and control characters and
    marks that change the direction of writing are shown as codes.
    """
    shares = summary["task"]["type"] == "classification"
    names = [method["name"] for method in summary["methods"]]
    page = _make_environment().get_template("report.html")
    return page.render(
        s=summary,
        shares=shares,
        names=names,
        measures=[name for name in MEASURES if name in summary["methods"][0]["scores"]],
        groups=summary["groups"][:MANY_GROUPS],
        columns=summary["data"]["columns"][:MANY_COLUMNS],
        axis=_axis_of_groups(summary),
    )


# -- text


def _write_settings(settings: dict[str, Any]) -> str:
    """Settings of a method, such as "num_leaves 31, rho 0.1"."""
    shown = [f"{name} {number(v) if isinstance(v, float) else v}" for name, v in settings.items()]
    return ", ".join(shown) or "defaults"


def _write_date(text: str) -> str:
    """A time of ISO 8601 to the minute; any other text as it is."""
    try:
        return f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}"
    except ValueError:
        return text


# -- charts


def _axis_of_groups(summary: Summary) -> Axis:
    """The axis of the plot of groups. Small groups do not stretch it, unless there are no others."""
    groups = summary["groups"][:MANY_GROUPS]
    large = [group for group in groups if not group["small"]] or groups
    intervals: list[Interval] = [
        estimate for group in large for estimate in group["scores"].values()
    ]
    least = LEAST_SHARE if summary["task"]["type"] == "classification" else 0.0
    ends = [e[end] for e in intervals for end in ("value", "low", "high")]
    return axis_for(ends, steps=4, least=least)


@cache
def _make_environment() -> Environment:
    """jinja2's environment of this folder's templates, with what they call."""
    environment = environment_for(Path(__file__).parent / "templates")
    environment.filters |= {"settings": _write_settings, "date": _write_date, "chance": chance}
    environment.globals |= {
        "TITLES": TITLES,
        "MEASURES": MEASURES,
        "SHARES": SHARES,
    }
    return environment
