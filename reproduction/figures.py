"""Figures like the paper's: accuracy and robust objective against samples and against seconds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproduction.columns import Column, drawn
from reproduction.engine.outcomes import Outcome
from reproduction.engine.study import Study
from reproduction.sweep import Found
from scdro.errors import MissingDataError

__all__ = ["COLOURS", "LINES", "draw", "panels", "pyplot"]

AXES = {"samples": "samples processed", "seconds": "seconds"}

# Okabe and Ito's colours, which are safe for colour-blind readers, each with its own line style.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2, 1, 2)))


def draw(found: Found, folder: Path) -> list[Path]:
    """figure-samples and figure-seconds, as PNG and SVG."""
    plots = pyplot()
    written = []
    for axis in AXES:
        figure = panels(found, axis)
        for kind in ("png", "svg"):
            path = folder / f"figure-{axis}.{kind}"
            figure.savefig(path, dpi=110, metadata={"Date": None} if kind == "svg" else None)
            written.append(path)
        plots.close(figure)
    return written


def panels(found: Found, axis: str) -> Any:
    """One column per data set and one row per score, against samples or seconds."""
    rows, styles = drawn(found[0][0]), _styles(found)
    size = (4.2 * len(found) + 1.6, 2.5 * len(rows))
    figure, axes = pyplot().subplots(
        len(rows), len(found), figsize=size, squeeze=False, sharex="col"
    )
    for column, (study, outcomes) in enumerate(found):
        shown, at_rho = _shown(study, outcomes)
        for row, score in enumerate(rows):
            ax = axes[row][column]
            for outcome in shown:
                _line(ax, outcome, axis, score, *styles[outcome.arm.method])
            ax.grid(alpha=0.25)
            ax.spines[["top", "right"]].set_visible(False)
            if column == 0:
                ax.set_ylabel(
                    score.title if score.name in ("top1", "robust_loss") else f"test, {score.title}"
                )
            if not score.percent and any(len(line.get_ydata()) for line in ax.get_lines()):
                _log_scale(ax)
                _leave_out_what_diverged(ax)
        axes[0][column].set_title(study.dataset + at_rho)
        axes[-1][column].set_xlabel(AXES[axis])
        axes[-1][column].xaxis.set_major_formatter(_numbers(axis))
    _legend(figure, found, styles)
    return figure


def _styles(found: Found) -> dict[str, tuple[str, Any]]:
    """The same colour and line for a method on all data."""
    methods = dict.fromkeys(outcome.arm.method for _, outcomes in found for outcome in outcomes)
    return {method: (COLOURS[k % 8], LINES[k % 8]) for k, method in enumerate(methods)}


def _legend(figure: Any, found: Found, styles: dict[str, tuple[str, Any]]) -> None:
    """A legend above the panels: the methods of all data sets, and how many of their seeds are not drawn."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, linestyle=line, linewidth=1.8)
        for colour, line in styles.values()
    ]
    labels = [method + _lost(found, method) for method in styles]
    fit = int(12 * figure.get_figwidth() / (max(map(len, labels)) + 6))  # twelve letters to an inch
    across = max(min(3 * len(found), fit), 1)
    figure.legend(
        handles, labels, loc="upper center", ncols=min(len(labels), across), frameon=False
    )
    lines = -(-len(labels) // across)
    figure.tight_layout(rect=(0, 0, 1, 1 - (0.22 * lines + 0.1) / figure.get_figheight()))


def _lost(found: Found, method: str) -> str:
    """How many seeds did not finish, by data set; empty if all did."""
    texts = []
    for study, outcomes in found:
        own = [o for o in _shown(study, outcomes)[0] if o.arm.method == method]
        seeds = sum(len(o.results) for o in own)
        lost = seeds - sum(len(_ended(o)) for o in own)
        number = "all" if lost == seeds else str(lost)
        texts += [f"{number} lost" + (f" on {study.dataset}" if len(found) > 1 else "")] * bool(
            lost
        )
    return f" ({', '.join(texts)})" if texts else ""


def _shown(study: Study, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], str]:
    """One line per method: of several radii, the one nearest to the study's rho for scores, and its name."""
    radii = sorted({outcome.arm.rho for outcome in outcomes if outcome.arm.rho is not None})
    if not radii:
        return list(outcomes), ""
    nearest = min(radii, key=lambda rho: abs(rho - study.score_rho))
    shown = [outcome for outcome in outcomes if outcome.arm.rho in (None, nearest)]
    return shown, f", rho {nearest:g}" if len(radii) > 1 else ""


def _ended(outcome: Outcome) -> list[list[dict[str, Any]]]:
    """The curves of the seeds that finished."""
    pairs = zip(outcome.results, outcome.curves, strict=True)
    return [curve for result, curve in pairs if result is not None and result["status"] == "done"]


def _line(ax: Any, outcome: Outcome, axis: str, score: Column, colour: str, line: Any) -> None:
    """The mean over the seeds that finished, with a band of one standard deviation."""
    points = list(zip(*_ended(outcome), strict=True))
    scores = [[p[score.part].get(score.name) for p in point] for point in points]
    values = [[value for value in own if value is not None] for own in scores]
    factor = 100.0 if score.percent else 1.0
    kept = [(point, own) for point, own in zip(points, values, strict=True) if own]
    x = [statistics.mean(p[axis] for p in point) for point, _ in kept]
    mean = [factor * statistics.mean(own) for _, own in kept]
    spread = [factor * statistics.stdev(own) if len(own) > 1 else 0.0 for _, own in kept]
    ax.plot(x, mean, color=colour, linestyle=line, linewidth=1.8)
    low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
    ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _numbers(axis: str) -> Any:
    """50k samples, but 0.5 seconds."""
    from matplotlib.ticker import EngFormatter, FuncFormatter

    return EngFormatter(sep="") if axis == "samples" else FuncFormatter(lambda x, _: f"{x:g}")


def _log_scale(ax: Any) -> None:
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """Writes 0.6 instead of 6e-01, where there is a label at all."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(Plain())
    ax.yaxis.set_minor_formatter(Plain())


def _leave_out_what_diverged(ax: Any) -> None:
    """Limit the axis so that a line that ends far above its start leaves at the top and the others stay readable."""
    lines = [line.get_ydata() for line in ax.get_lines()]
    start = max((float(y[0]) for y in lines if len(y)), default=1.0)
    if any(max(y) > 30 * start for y in lines if len(y)):
        ax.set_ylim(top=10 * start, bottom=0.7 * min(min(y) for y in lines if len(y)))


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDataError(
            "expected matplotlib for figures; install it with `pip install scdro[plot]`"
        ) from error
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "scdro"
    from matplotlib import pyplot as plots

    return plots
