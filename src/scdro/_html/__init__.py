"""Pages and fragments of HTML: how numbers and texts are written, scales of charts, and one
stylesheet for all.

Nothing that is shown needs a network, a server or a script. A number is written in one way
everywhere: `number`, `percent`, `change` and `between` are also the filters of the templates.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["LONGEST", "Axis", "axis_for", "card", "chance", "environment_for", "number", "percent"]

LONGEST = 300  # characters of a name or value


def environment_for(*folders: Path) -> Environment:
    """Templates of these folders, and the stylesheet.

    Any text may come from the user's data: it is escaped, and control characters and marks that
    change the direction of writing are shown as codes.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "expected jinja2, which writes pages; pip install jinja2", name="jinja2"
        ) from error
    environment = Environment(
        loader=FileSystemLoader([*folders, Path(__file__).parent / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=harmless,
    )
    environment.filters |= {
        "number": number,
        "percent": percent,
        "score": score,
        "change": change,
        "between": between,
    }
    return environment


def card(answer: str, text: str) -> str:
    """A verdict for a notebook: its answer, and the text that is printed elsewhere."""
    return (
        _library_templates()
        .get_template("card.html")
        .render(answer=answer, text=text, root=".scdro-verdict")
    )


@cache
def _library_templates() -> Environment:
    """The library's own templates, read once."""
    return environment_for()


def harmless(value: Any) -> Any:
    """Text without control characters and marks of direction, which are shown as their codes; None
    as a dash.
    """
    if value is None:
        return "–"
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    cut = value if len(value) <= LONGEST else value[:LONGEST] + "…"
    return "".join(
        c if unicodedata.category(c)[0] != "C" or c == "\n" else f"\\u{ord(c):04x}" for c in cut
    )


def number(value: Any) -> str:
    """Four digits, with a power of ten only where it is needed."""
    if value is None or not math.isfinite(value):
        return "–"
    if 1e4 <= abs(value) < 1e15:
        value = round(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    return (f"{value:.4g}" if abs(value) >= 1e-4 else f"{value:.2e}").replace("-", "−")


def percent(share: Any) -> str:
    """A share with one digit; a tiny one is not rounded to zero."""
    if share is None or not math.isfinite(share):
        return "–"
    return "<0.1%" if 0 < share < 0.0005 else f"{100 * share:.1f}%".replace("-", "−")


def score(value: Any, share: bool) -> str:
    """A score: a share in percent, anything else as a number."""
    return percent(value) if share else number(value)


def change(difference: Any, share: bool, digits: int = 1) -> str:
    """A difference with its sign; shares are shown in points."""
    if difference is None:
        return "–"
    text = f"{100 * difference:+.{digits}f}" if share else f"{difference:+.3g}"
    return text.replace("-", "−")


def chance(p_value: float) -> str:
    """A p-value to one digit; those below a thousandth are not told apart.

    Example:
        >>> chance(1e-238), chance(0.0312)
        ('< 0.001', '0.03')
    """
    return "< 0.001" if p_value < 1e-3 else f"{p_value:.1g}"


def between(found: Any, share: bool, is_change: bool = False) -> str:
    """The interval of an estimate or a difference; empty if there is none."""
    if found is None or found["low"] is None or found["high"] is None:
        return ""
    ends = [
        change(found[end], share) if is_change else score(found[end], share)
        for end in ("low", "high")
    ]
    return f"{ends[0]} to {ends[1]}"


class Axis(NamedTuple):
    """A scale from `low` to `high` with round ticks.

    Example:
        >>> axis = axis_for([0.61, 0.88])
        >>> axis.ticks, round(axis.at(0.75))
        ([0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9], 50)
    """

    low: float  # value at the left end
    high: float  # value at the right end
    ticks: list[float]  # from low to high, in equal steps

    def label(self, tick: float, share: bool) -> str:
        """The text of a tick, with enough digits to tell ticks apart."""
        step = (self.ticks[1] - self.ticks[0]) * (100 if share else 1)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        if digits > 6 or abs(tick) >= 1e15:
            return f"{tick:.3g}".replace("-", "−")
        digits += abs(round(step, digits) - step) > 1e-3 * step  # steps of 2.5
        return f"{tick * (100 if share else 1):,.{digits}f}{'%' if share else ''}".replace("-", "−")

    def holds(self, value: float) -> bool:
        """Whether a value is on the axis."""
        return self.low <= value <= self.high

    def at(self, value: float) -> float:
        """Where a value is, in percent of the width; one beyond an end is at that end."""
        return round(100 * min(max((value - self.low) / (self.high - self.low), 0.0), 1.0), 2)


def axis_for(values: Iterable[float | None], steps: int = 6, least: float = 0.0) -> Axis:
    """An axis that contains all values, with some width if they are all the same.

    It is at least `least` wide: a plot of accuracies from 88.965 to 88.985% makes noise look large.
    """
    known = [value for value in values if value is not None and math.isfinite(value)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if high - low <= 1e-9 * max(abs(high), abs(low)):
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    missing = max(least - (high - low), 0.0) / 2
    low, high = low - missing, high + missing
    # The smallest round step (1, 2, 2.5 or 5 times a power of ten) with at most `steps` of them.
    raw = (high - low) / steps
    unit: float = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 2.5, 5, 10) if factor * unit >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [float(f"{k * step:.12g}") for k in range(first, last + 1)]
    return Axis(ticks[0], ticks[-1], ticks)
