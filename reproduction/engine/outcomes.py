"""What came of the runs of a study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction.engine.storage import read_json, read_lines
from reproduction.engine.study import Arm, Run, Study

__all__ = ["Outcome", "Result", "best_settings", "read_outcomes"]

Result = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What came of an arm.

    Attributes:
        settings: the best on validation data, None where every trial failed or diverged.
        trials: results of the search, in the order of the grid.
        results, curves: of the seeds, with None and no points for those that are not there.
    """

    arm: Arm
    settings: dict[str, Any] | None
    trials: list[Result]
    results: list[Result | None]
    curves: list[list[dict[str, Any]]]

    def values(self, part: str, name: str) -> list[float]:
        """A score of every seed; NaN where a run diverged or failed, or the data have no such thing as rare groups."""
        found = [None if r is None or r["status"] != "done" else r[part][name] for r in self.results]
        return [math.nan if value is None else float(value) for value in found]


def best_settings(runs: Sequence[Run], results: Sequence[Result | None]) -> dict[str, Any] | None:
    """Settings of the highest mean accuracy over the validation data's classes; of equals the lowest robust loss. One
    setting alone needs no result."""
    if len(runs) == 1:
        return dict(runs[0].settings)
    done = [(run, r["validation"]) for run, r in zip(runs, results, strict=True) if r and r["status"] == "done"]
    if not done:
        return None
    run, _ = max(done, key=lambda pair: (pair[1]["balanced"], -pair[1]["robust_loss"]))
    return dict(run.settings)


def read_outcomes(study: Study, out: Path, seeds: Iterable[int] | None = None) -> list[Outcome]:
    """What a folder holds, also of a sweep that is not done; of these seeds, or of the study's own."""
    found = []
    for arm in study.arms():
        tried = study.search(arm)
        trials = [_result(out / run.path) for run in tried]
        settings = best_settings(tried, trials)
        folders = [] if settings is None else [out / run.path for run in study.finals(arm, settings, seeds)]
        curves = [read_lines(folder / "metrics.jsonl") for folder in folders]
        found.append(Outcome(arm, settings, [t for t in trials if t is not None], list(map(_result, folders)), curves))
    return found


def _result(folder: Path) -> Result | None:
    path = folder / "result.json"
    return read_json(path) if path.exists() else None
