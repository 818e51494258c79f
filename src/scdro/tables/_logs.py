"""What a run logs: every candidate as it is evaluated, and the results at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scdro.integrations.loggers import Logger
from scdro.tables._summary import Summary

__all__ = ["Logs"]


class Logs:
    """The loggers, and the number of candidates so far."""

    def __init__(self, loggers: Sequence[Logger]) -> None:
        self.loggers, self.step = tuple(loggers), 0

    def candidate(self, method: str, settings: Mapping[str, Any], measures: Mapping[str, float]) -> None:
        """Its numeric settings, and its scores out of fold."""
        self.step += 1
        numbers = {key: float(value) for key, value in {**settings, **measures}.items() if not isinstance(value, str)}
        for logger in self.loggers:
            logger.scalars({f"candidates/{method}/{key}": value for key, value in numbers.items()}, self.step)

    def end(self, summary: Summary) -> None:
        """The final scores, and who is failed."""
        scores = {(m["name"], what): one["value"] for m in summary["methods"] for what, one in m["scores"].items()}
        groups = [
            {"group": group["name"], "size": group["size"], **{k: one["value"] for k, one in group["scores"].items()}}
            for group in summary["groups"]
        ]
        slices = [{"who": " and ".join(one["conditions"]), **_numbers(one)} for one in summary["slices"]]
        for logger in self.loggers:
            known = {f"final/{name}/{what}": value for (name, what), value in scores.items() if value is not None}
            logger.scalars(known, self.step)
            for name, rows in (("groups", groups), ("slices", slices)):
                if rows:
                    logger.table(name, rows, self.step)
            logger.flush()


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("size", "share", "lift", "p_value", "before", "after")}
