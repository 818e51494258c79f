"""What is written to a terminal: text that cannot control it, wrapped lines, and progress on one line.

Progress is a line that is overwritten: back to its start (\\r), erased (\\x1b[2K), written again. Where
the output is a file, nothing can be overwritten, and a new line now and then takes its place.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from typing import TextIO

__all__ = ["ProgressLine", "WaitingLine", "clean", "show_text", "terminal_width"]

OVERWRITE = "\r\x1b[2K"
EVERY = 0.2  # seconds between two texts on one line
SILENT_FOR = 2.0  # seconds before somebody who waits is told what for


def clean(text: str) -> str:
    """One line without control characters: text from a user's file must not control the terminal."""
    return "".join(
        c if c.isprintable() else f"\\x{ord(c):02x}" if ord(c) < 256 else "?" for c in text
    )


def terminal_width() -> int:
    """At most 110 columns: longer lines are hard to read."""
    return min(shutil.get_terminal_size().columns, 110)


def show_text(text: str, stream: TextIO | None = None) -> None:
    """Print lines of text, wrapped, with their indentation."""
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        filled = textwrap.fill(
            clean(line.strip()), terminal_width(), initial_indent=indent,
            subsequent_indent=indent + "  ",
        )  # fmt: skip
        print(filled, file=stream or sys.stdout)


class ProgressLine:
    """Work in steps: called with (done, total, text), it shows the share that is done and the time left.

    On a terminal it is one line that is overwritten, elsewhere a new line every `every` seconds. A
    text may be a function, which is called only when the line is shown.
    """

    def __init__(self, stream: TextIO | None = None, every: float = 30.0) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self.every = EVERY if self.live else every
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
            self.stream.write(f"{OVERWRITE}{line}" + ("\n" if done == total else ""))
        else:
            self.stream.write(f"{line}\n")
        self.stream.flush()


class WaitingLine:
    """Work of unknown length: called with a text, it shows it on a terminal, if it takes long at all.

    Use it in a `with`: at its end the line is erased.
    """

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self.name, self.stream = name, sys.stderr if stream is None else stream
        self.live = bool(getattr(self.stream, "isatty", lambda: False)())
        self.began = time.monotonic()
        self.shown = 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if not self.live or now - self.began < SILENT_FOR or now - self.shown < EVERY:
            return
        self.shown = now
        self.stream.write(f"{OVERWRITE}{self.name}, {now - self.began:.0f} s: {text}")
        self.stream.flush()

    def __enter__(self) -> WaitingLine:
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.stream.write(OVERWRITE)
            self.stream.flush()
