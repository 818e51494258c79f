"""Table 1 as Markdown and CSV, with the paper's claims next to the measurements."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, NamedTuple

from reproduction.engine import storage
from reproduction.table1.cost import STEPPERS
from reproduction.table1.figure import draw
from reproduction.table1.methods import ROWS
from reproduction.table1.results import Line, Points, Record, lines, points

__all__ = ["Table1", "write"]

NOTES = """\
dist2 is E dist(0, subgradient of F)^2 over all samples, exact, at iterates drawn at random; gap is E F - min F, exact,
at iterates of the last stage drawn at random (RSCDRO, RASCDRO) or at the mean of all iterates (the other convex ones).
The paper's methods are measured at (w, lam), their own; the others at w and its best lam. PG-SMD2's samples include the
passes over all n that start its stages. Slopes are of log measure in log samples, with 95% intervals over seeds;
"upper" is the slope over the upper half of the horizons. "later half" is the part of the measure, at the longest
horizon, that comes from the later half of the iterates: near one half, it is noise; near zero, it is the way from the
start, and the slope says how soon that is past. A step's power of n is that between the two largest n.
"""


class Table1(NamedTuple):
    """Table 1: its lines, and the whole text."""

    lines: list[Line]
    text: str


def write(out: Path, scale: str, records: Sequence[Record], timings: Sequence[Record]) -> Table1:
    """table.md, table.csv, cost.csv, figure.png and figure.svg."""
    found = lines(records, timings)
    series = [points(row, records) for row in ROWS]
    parts = "\n\n".join((_claims(found), _means(series), _costs(timings)))
    text = f"# Table 1, measured ({scale})\n\n{NOTES}\n{parts}\n"
    files = {
        "table.md": text,
        "table.csv": _csv([f.name for f in fields(Line)], map(astuple, found)),
        "cost.csv": _csv(
            ["method", "n", "ms"], ((t["method"], t["n"], 1e3 * t["seconds"]) for t in timings)
        ),
    }
    for name, content in files.items():
        storage.write(out / name, content.encode())
    draw(out, series, timings)
    return Table1(found, text)


def _claims(found: Sequence[Line]) -> str:
    heads = [
        *(
            "setting",
            "problem",
            "algorithm",
            "samples for eps, paper",
            "slope, paper",
            "slope, measured",
            "upper",
        ),
        *(
            "samples for eps, measured",
            "later half",
            "diverged",
            "step, paper",
            "step ~ n^p, measured",
        ),
    ]
    rows = [
        [
            *(line.setting, line.problem, line.algorithm, line.claim, _number(line.claimed_slope)),
            _interval(line.slope, line.low, line.high),
            _interval(line.upper_slope, line.upper_low, line.upper_high),
            "-" if line.measured_power is None else f"eps^-{line.measured_power:.1f}",
            *(
                _number(line.late_share),
                str(line.diverged),
                line.step_claim,
                _number(line.step_slope),
            ),
        ]
        for line in found
    ]
    return _table(heads, rows)


def _means(series: Sequence[Points]) -> str:
    """Means at each horizon; for a restarted method, the bias of its mu below."""
    count = max(len(one.horizons) for one in series)
    rows = []
    for one in series:
        cells = [f"{m:.2e} at {s:,}" for m, s in zip(one.means, one.samples, strict=True)]
        rows.append([one.row.key, *cells, *[""] * (count - len(cells))])
        if one.biases is not None:
            rows.append(
                [
                    f"{one.row.key}: bias of mu",
                    *(f"{b:.2e}" for b in one.biases),
                    *[""] * (count - len(cells)),
                ]
            )
    return "Mean of the measure, at the number of samples:\n\n" + _table(
        ["", *[f"T{k + 1}" for k in range(count)]], rows
    )


def _costs(timings: Sequence[Record]) -> str:
    sizes = sorted({t["n"] for t in timings})
    ms = {(t["method"], t["n"]): 1e3 * t["seconds"] for t in timings}
    rows = [[name, *(f"{ms[name, n]:.3g}" for n in sizes)] for name in STEPPERS]
    heads = ["method", *(f"n = 1e{len(str(n)) - 1}" for n in sizes)]
    return "CPU milliseconds of a step, batches of 64, 50 features:\n\n" + _table(heads, rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _interval(value: float | None, low: float | None, high: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ({low:.2f} to {high:.2f})"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _csv(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows(rows)
    return file.getvalue()
