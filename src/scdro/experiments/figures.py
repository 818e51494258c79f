"""Figures in the form of the paper's: accuracy and robust objective against samples, and against seconds."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from scdro.errors import MissingDataError
from scdro.experiments.columns import Score, drawn
from scdro.experiments.sweep import Found, Outcome

__all__ = ["draw"]

# Okabe and Ito's colours, told apart by the colour-blind, each with a line of its own.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2, 1, 2)))


def draw(found: Found, folder: Path, name: str) -> list[Path]:
    """{name}-samples and {name}-seconds, as PNG and SVG."""
    pyplot = _pyplot()
    from matplotlib.ticker import EngFormatter

    written, rows = [], drawn(found[0][0])
    for axis, label in (("samples", "samples processed"), ("seconds", "seconds")):
        size = (4.2 * len(found) + 1.6, 2.5 * len(rows))
        figure, axes = pyplot.subplots(len(rows), len(found), figsize=size, squeeze=False, sharex="col")
        for column, (study, outcomes) in enumerate(found):
            for row, score in enumerate(rows):
                ax = axes[row][column]
                for k, outcome in enumerate(_shown(outcomes, study.score_rho)):
                    _line(ax, outcome, axis, score, COLOURS[k % 8], LINES[k % 8])
                ax.grid(alpha=0.25)
                ax.spines[["top", "right"]].set_visible(False)
                if column == 0:
                    ax.set_ylabel(score.title if score.name in ("top1", "robust_loss") else f"test, {score.title}")
                if not score.percent and any(len(line.get_ydata()) for line in ax.get_lines()):
                    _log_scale(ax)
                    _leave_out_what_diverged(ax)
            axes[0][column].set_title(study.dataset)
            axes[-1][column].set_xlabel(label)
            axes[-1][column].xaxis.set_major_formatter(EngFormatter(sep=""))
        handles, labels = axes[0][0].get_legend_handles_labels()
        across = 3 * len(found)
        figure.legend(handles, labels, loc="upper center", ncols=min(len(labels), across), frameon=False)
        lines = -(-len(labels) // across)
        figure.tight_layout(rect=(0, 0, 1, 1 - (0.22 * lines + 0.1) / size[1]))
        for kind in ("png", "svg"):
            path = folder / f"{name}-{axis}.{kind}"
            figure.savefig(path, dpi=110, metadata={"Date": None} if kind == "svg" else None)
            written.append(path)
        pyplot.close(figure)
    return written


def _shown(outcomes: Any, rho: float) -> list[Outcome]:
    """One line a method: where there are several radii, the middle one."""
    return [outcome for outcome in outcomes if outcome.arm.rho in (None, rho)]


def _line(ax: Any, outcome: Outcome, axis: str, score: Score, colour: str, line: Any) -> None:
    """Mean over the seeds that came to the end, and the range of one standard deviation."""
    longest = max(map(len, outcome.curves), default=0)
    curves = [curve for curve in outcome.curves if len(curve) == longest]
    lost = len(outcome.curves) - len(curves)
    points = list(zip(*curves, strict=True))
    scores = [[p[score.part].get(score.name) for p in point] for point in points]
    values = [[value for value in own if value is not None] for own in scores]
    factor = 100.0 if score.percent else 1.0
    kept = [(point, own) for point, own in zip(points, values, strict=True) if own]
    x = [statistics.mean(p[axis] for p in point) for point, _ in kept]
    mean = [factor * statistics.mean(own) for _, own in kept]
    spread = [factor * statistics.stdev(own) if len(own) > 1 else 0.0 for _, own in kept]
    ax.plot(
        x,
        mean,
        color=colour,
        linestyle=line,
        linewidth=1.8,
        label=outcome.arm.method + (f" ({lost} lost)" if lost else ""),
    )
    low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
    ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _log_scale(ax: Any) -> None:
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """0.6 instead of 6e-01, where it would write at all."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(Plain())
    ax.yaxis.set_minor_formatter(Plain())


def _leave_out_what_diverged(ax: Any) -> None:
    """A line that ends far above where it began goes out at the top, and the others stay legible."""
    lines = [line.get_ydata() for line in ax.get_lines()]
    start = max((float(y[0]) for y in lines if len(y)), default=1.0)
    if any(max(y) > 30 * start for y in lines if len(y)):
        ax.set_ylim(top=10 * start, bottom=0.7 * min(min(y) for y in lines if len(y)))


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDataError("expected matplotlib, for figures; install it by `pip install scdro[plot]`") from error
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "scdro"
    from matplotlib import pyplot

    return pyplot
