"""A sweep's progress: one bar for the whole sweep and one for each active run."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from reproduction.pool import Status

__all__ = ["Board"]

WIDTH = 24


class Board:
    """Call it with a `Status`. On a terminal it redraws in place; elsewhere it prints a line every `every` seconds."""

    def __init__(self, stream: TextIO | None = None, every: float = 30.0) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live = self.stream.isatty()
        self.every = 0.2 if self.live else every
        self.lines = 0
        self.shown = self.began = time.monotonic()
        self.last = (0, 0)  # done and total of the last call; if they fall, a new sweep has begun

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        if (status.done, -status.total) < self.last:
            self.began, self.lines = now, 0
        self.last = (status.done, -status.total)
        ends = status.done == status.total
        if now - self.shown < self.every and not ends:
            return
        self.shown = now
        share = status.done / max(status.total, 1)
        lines = [f"{_bar(share)} {status.done}/{status.total} runs{self._left(now, status)}"]
        if self.live:
            lines += [f"  {_bar(share)} {name}" for name, share in sorted(status.running.items())]
            up = f"\x1b[{self.lines}A" if self.lines else ""
            self.stream.write(up + "\x1b[J" + "\n".join(line[:160] for line in lines) + "\n")
            self.lines = 0 if ends else len(lines)
        else:
            lines += [f"{name} {share:.0%}" for name, share in sorted(status.running.items())]
            self.stream.write("; ".join(lines) + "\n")
        self.stream.flush()

    def say(self, text: str) -> None:
        """Print a permanent line above the bars."""
        cleared = f"\x1b[{self.lines}A\x1b[J" if self.lines else ""
        self.stream.write(f"{cleared}{text}\n")
        self.stream.flush()
        self.lines = 0

    def _left(self, now: float, status: Status) -> str:
        done = status.done + sum(status.running.values())
        if not 0 < done < status.total or now - self.began < 1:
            return ""
        left = int((now - self.began) / done * (status.total - done))
        return f", {left // 3600}:{left // 60 % 60:02d}:{left % 60:02d} left"


def _bar(share: float) -> str:
    full = round(share * WIDTH)
    return f"[{'#' * full}{'.' * (WIDTH - full)}] {share:4.0%}"
