"""The summary of a run on the terminal: the verdict in words, then the scores of methods and groups."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from scdro._terminal import clean, terminal_width

if TYPE_CHECKING:
    from scdro.tables import Summary

__all__ = ["show"]

ROWS = 12  # groups that are shown; the others are counted


def show(summary: Summary) -> None:
    """The verdict first, then the tables."""
    width = terminal_width()
    task, data, verdict = summary["task"], summary["data"], summary["verdict"]
    for warning in summary["warnings"]:
        print(_wrap(f"note: {warning}", width))
    print(_wrap(verdict["headline"], width), end="\n\n")
    print(_wrap(" ".join(verdict["sentences"]), width), end="\n\n")
    parts = f"{data['train']:,} to train on, {data['test']:,} to test on"
    if summary["settings"]["seeds"] > 1:
        times = summary["settings"]["seeds"]
        parts = (
            f"{times} times {parts}; the numbers are of the {data['tested']:,} different test rows"
        )
    print(_wrap(f"{data['rows']:,} rows, {parts}; target {task['target']}", width))
    names = [method["name"] for method in summary["methods"]]
    _print_table([["", *names]] + [
        [what, *(_write_score(method["scores"][what]["value"], what) for method in summary["methods"])]
        for what in summary["methods"][0]["scores"]
    ])  # fmt: skip
    if summary["groups"]:
        served = "accuracy" if task["score"] == "accuracy" else "mean_absolute_error"
        print()
        _print_table([["group", "rows", *names]] + [
            [group["name"], f"{group['size']:,}", *(_write_score(group["scores"][n]["value"], served) for n in names)]
            for group in summary["groups"][:ROWS]
        ])  # fmt: skip
        if len(summary["groups"]) > ROWS:
            print(f"and {len(summary['groups']) - ROWS:,} more groups, in summary.json")
    if summary["slices"]:
        print("\nWhere the model fails")
        for one in summary["slices"]:
            print(_wrap(f"- {one['sentence']}", width))


def _write_score(value: float | None, what: str) -> str:
    """A score in the unit of its name: a percentage, or a number; "-" if it is not known."""
    if value is None:
        return "-"
    return (
        f"{100 * value:.2f}%" if what in ("accuracy", "balanced_accuracy", "R2") else _short(value)
    )


def _short(value: float) -> str:
    """Four digits, or a whole number with separators."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def _wrap(text: str, width: int) -> str:
    """One paragraph of at most `width` columns; the lines of an item of a list are indented."""
    return textwrap.fill(
        clean(text), max(width, 20), subsequent_indent="  " if text[:2] == "- " else ""
    )


def _print_table(rows: list[list[str]]) -> None:
    """Print cells in columns, the first one to the left. No cell is longer than 40 characters."""
    rows = [[clean(cell)[:40] for cell in row] for row in rows]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        print(
            "  ".join(
                [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
            ).rstrip()
        )
