"""What an audit is doing, on one line of the terminal, if it takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from typing import TextIO

__all__ = ["Progress"]

AFTER, EVERY = 2.0, 0.2  # seconds


class Progress:
    """Called with a text; shows it on standard error if that is a terminal. Use it in a `with`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.live = bool(getattr(self.stream, "isatty", lambda: False)())
        self.began = time.monotonic()
        self.shown = 0.0

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if not self.live or now - self.began < AFTER or now - self.shown < EVERY:
            return
        self.shown = now
        self.stream.write(f"\r\x1b[2Kscdro.audit, {now - self.began:.0f} s: {text}")
        self.stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown:
            self.stream.write("\r\x1b[2K")
            self.stream.flush()
