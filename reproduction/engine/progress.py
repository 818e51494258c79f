"""A line that says how far things are."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

__all__ = ["ProgressLine", "say"]


def say(text: str) -> None:
    """A line for the user that is no result."""
    print(text, file=sys.stderr, flush=True)


class ProgressLine:
    """Called with what is done, of how much, and a text, or a function that gives one when it is shown. On a terminal
    one line is written over; elsewhere a line every `every` seconds."""

    def __init__(self, stream: TextIO | None = None, every: float = 30.0) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self.every = 0.2 if self.live else every
        self.began: tuple[float, int] | None = None
        self.shown = 0.0

    def __call__(self, done: int, total: int, text: str | Callable[[], str]) -> None:
        now = time.monotonic()
        if self.began is None or done < self.began[1]:
            self.began = (now, done)
        if now - self.shown < self.every and done < total:
            return
        self.shown = now
        line = f"{100 * done / total:3.0f}%  {text() if callable(text) else text}{self._left(now, done, total)}"
        self.stream.write(f"\r\x1b[2K{line}" + ("\n" if done == total else "") if self.live else f"{line}\n")
        self.stream.flush()

    def _left(self, now: float, done: int, total: int) -> str:
        assert self.began is not None
        pace = done - self.began[1]
        if pace <= 0 or done == total:
            return ""
        left = int((now - self.began[0]) / pace * (total - done))
        return f"  {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"
