"""The figure: measures against samples for each problem, and the time of a step against n."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.engine.storage import write
from reproduction.table1.cost import STEPPERS
from reproduction.table1.results import Points, Record
from scdro.errors import MissingDataError

__all__ = ["draw"]

# Okabe and Ito's colours, and a marker each: told apart by any eye, and in print.
STYLES = {
    "SCDRO": ("#0072B2", "o"),
    "ASCDRO": ("#D55E00", "s"),
    "RSCDRO": ("#0072B2", "o"),
    "RASCDRO": ("#D55E00", "s"),
    "PG-SMD2": ("#009E73", "^"),
    "AccMDA": ("#CC79A7", "v"),
    "Dual SGM": ("#E69F00", "D"),
    "FastDRO": ("#56B4E9", "P"),
    "SPD": ("#000000", "X"),
    "SPD, inside": ("#999999", "x"),
}
TITLES = {
    "bounded": "non-convex (bounded): dist(0, subgradient)²",
    "curved": "convex (curved): objective gap",
    "flat": "convex (flat): objective gap",
}


def draw(out: Path, series: Sequence[Points], timings: Sequence[Record]) -> None:
    """figure.png and figure.svg."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDataError(
            "expected matplotlib for the figure, got none; pip install matplotlib, and run again:"
            " measurements are kept"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "scdro", "font.size": 9}):
        fig, axes = pyplot.subplots(2, 2, figsize=(12, 9), layout="constrained")
        for ax, (problem, title) in zip(axes.flat, TITLES.items(), strict=False):
            _measures(ax, [one for one in series if one.row.problem == problem])
            ax.set(title=title, xlabel="samples")
        _costs(axes[1, 1], timings)
        for ax in axes.flat:
            ax.set(xscale="log", yscale="log")
            ax.grid(alpha=0.25, which="both")
            ax.legend(fontsize=8)
        fig.supxlabel(
            "solid: fitted; dotted: the paper's power, from the first point; bars: two standard"
            " errors",
            fontsize=8,
        )
        for kind in ("png", "svg"):
            buffer = io.BytesIO()
            fig.savefig(
                buffer, format=kind, dpi=110, metadata={"Date": None} if kind == "svg" else None
            )
            write(out / f"figure.{kind}", buffer.getvalue())
        pyplot.close(fig)


def _measures(ax: Any, series: Sequence[Points]) -> None:
    """Means with two standard errors, the fitted law, the theorem's power as dots, and the bias of mu as crosses."""
    for one in series:
        colour, marker = STYLES[one.row.algorithm]
        errors = [2 * np.std(v, ddof=1) / len(v) ** 0.5 if len(v) > 1 else 0.0 for v in one.values]
        label, law, x = one.row.algorithm, one.fit(), np.array(one.samples, dtype=float)
        if law is not None:
            label += f": {law.slope:.2f} ({law.low:.2f} to {law.high:.2f})"
            ax.plot(x, np.exp(law.intercept) * x**law.slope, color=colour, linewidth=1)
        label += f", paper {one.row.exponent:.2f}"
        ax.plot(
            x,
            one.means[0] * (x / x[0]) ** one.row.exponent,
            color=colour,
            linestyle=":",
            linewidth=1,
        )
        ax.errorbar(
            x, one.means, errors, color=colour, marker=marker, linestyle="", capsize=2, label=label
        )
        if one.biases is not None and one.row.problem == "flat":
            ax.plot(
                x,
                one.biases,
                color=colour,
                marker="x",
                linestyle="--",
                linewidth=0.8,
                label=f"{one.row.algorithm}: bias of mu",
            )


SAME_STEP = {"SCDRO": "SCDRO, RSCDRO (the same step)", "ASCDRO": "ASCDRO, RASCDRO (the same step)"}


def _costs(ax: Any, timings: Sequence[Record]) -> None:
    for name in STEPPERS:
        if name in ("RSCDRO", "RASCDRO"):
            continue  # SAME_STEP
        own = sorted((t["n"], 1e3 * t["seconds"]) for t in timings if t["method"] == name)
        colour, marker = STYLES[name]
        ax.plot(
            [n for n, _ in own],
            [ms for _, ms in own],
            color=colour,
            marker=marker,
            label=SAME_STEP.get(name, name),
        )
    ax.set(title="cost of a step", xlabel="training samples n", ylabel="CPU milliseconds")
