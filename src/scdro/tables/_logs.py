"""What a run tells while it works: `progress` counts the fits, loggers get every candidate and the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scdro.integrations.loggers import Logger
from scdro.tables._summary import Summary

__all__ = ["OnProgress", "StudyLog"]

OnProgress = Callable[[int, int, str], None]
OF_SLICES = ("size", "share", "lift", "p_value", "before", "after")


class StudyLog:
    """The callback, the loggers, and what was done so far, of `total` steps."""

    def __init__(self, progress: OnProgress | None, loggers: Sequence[Logger], total: int) -> None:
        self.progress, self.loggers, self.total = progress, tuple(loggers), total
        self.done = self.candidates = 0

    def tell(self, text: str) -> None:
        """Before each candidate and each final fit."""
        self.done += 1
        if self.progress is not None:
            self.progress(min(self.done, self.total), self.total, text)

    def candidate(self, method: str, numbers: Mapping[str, Any]) -> None:
        """The numeric settings of a candidate, and its scores out of fold."""
        self.candidates += 1
        told = {
            f"candidates/{method}/{key}": float(value)
            for key, value in numbers.items()
            if not isinstance(value, str)
        }
        for logger in self.loggers:
            logger.scalars(told, self.candidates)

    def end(self, summary: Summary) -> None:
        """The final scores, and where the plain model fails."""
        scores = {
            f"final/{method['name']}/{what}": one["value"]
            for method in summary["methods"]
            for what, one in method["scores"].items()
            if one["value"] is not None
        }
        groups = [
            {"group": group["name"], "size": group["size"]}
            | {name: one["value"] for name, one in group["scores"].items()}
            for group in summary["groups"]
        ]
        slices = [
            {"who": " and ".join(one["conditions"]), **{key: one[key] for key in OF_SLICES}}  # type: ignore[literal-required]
            for one in summary["slices"]
        ]
        for logger in self.loggers:
            logger.scalars(scores, self.candidates)
            for name, rows in (("groups", groups), ("slices", slices)):
                if rows:
                    logger.table(name, rows, self.candidates)
            logger.flush()
