"""A summary on the terminal, and a progress line."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from scdro.cli import clean

if TYPE_CHECKING:
    from scdro.tables import Summary

__all__ = ["ProgressLine", "show", "show_text"]

ROWS = 12  # of groups


class ProgressLine:
    """Called with (done, total, text); text may be a function, called only when the line is shown. On a terminal it is
    one line that is overwritten, elsewhere a new line every `every` seconds."""

    def __init__(self, stream: TextIO | None = None, every: float = 30.0) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self.every = 0.2 if self.live else every
        self.began: tuple[float, int] | None = None  # when, and what was done by then
        self.shown = 0.0

    def __call__(self, done: int, total: int, text: str | Callable[[], str]) -> None:
        now = time.monotonic()
        if self.began is None or done < self.began[1]:
            self.began = now, done
        if now - self.shown < self.every and done < total:
            return
        self.shown = now
        line = f"{100 * done / total:3.0f}%  {clean(text() if callable(text) else text)}"
        since, before = self.began
        if before < done < total:
            left = int((now - since) / (done - before) * (total - done + 1))
            line += f"  {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"
        if self.live:
            line = line[: shutil.get_terminal_size().columns - 1]
            self.stream.write(f"\r\x1b[2K{line}" + ("\n" if done == total else ""))
        else:
            self.stream.write(f"{line}\n")
        self.stream.flush()


def show_text(text: str, stream: TextIO | None = None) -> None:
    """Lines of text, wrapped, with their indentation."""
    width = min(shutil.get_terminal_size().columns, 110)
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        filled = textwrap.fill(
            clean(line.strip()), width, initial_indent=indent, subsequent_indent=indent + "  "
        )
        print(filled, file=stream or sys.stdout)


def show(summary: Summary) -> None:
    """The verdict first, then the tables."""
    width = min(shutil.get_terminal_size().columns, 110)
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
    if value is None:
        return "-"
    return (
        f"{100 * value:.2f}%" if what in ("accuracy", "balanced_accuracy", "R2") else _short(value)
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def _wrap(text: str, width: int) -> str:
    return textwrap.fill(
        clean(text), max(width, 20), subsequent_indent="  " if text[:2] == "- " else ""
    )


def _print_table(rows: list[list[str]]) -> None:
    rows = [[clean(cell)[:40] for cell in row] for row in rows]
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        print(
            "  ".join(
                [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
            ).rstrip()
        )
