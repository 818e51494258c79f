"""The outcomes of a study's runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction.engine.storage import read_json, read_lines
from reproduction.engine.study import Arm, Study, StudyRun

__all__ = ["Outcome", "Result", "best_settings", "read_outcomes", "read_result", "searched"]

Result = dict[str, Any]
Settings = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """The outcome of an arm.

    Attributes:
        settings: the best settings on validation data; None if every trial failed or diverged.
        trials: results of the search, in the order of the grid.
        results, curves: results and evaluations of the seeds; None and empty for seeds that have
            not run.
    """

    arm: Arm
    settings: dict[str, Any] | None
    trials: list[Result]
    results: list[Result | None]
    curves: list[list[dict[str, Any]]]

    def values(self, part: str, name: str) -> list[float]:
        """A score of every seed; NaN if the run diverged or failed, or the data have no such score."""
        found = [
            None if r is None or r["status"] != "done" else r[part][name] for r in self.results
        ]
        return [math.nan if value is None else float(value) for value in found]


def best_settings(
    runs: Sequence[StudyRun], results: Sequence[Result | None]
) -> dict[str, Any] | None:
    """The best settings on validation data over all seeds of the search, by the study's criterion; the other score
    breaks ties. Settings with a failed or diverged seed are left out. A single setting needs no
    result."""
    if len(runs) == 1:
        return dict(runs[0].settings)
    tried: dict[tuple[tuple[str, Any], ...], list[Result | None]] = {}
    for run, result in zip(runs, results, strict=True):
        tried.setdefault(tuple(run.settings.items()), []).append(result)
    scores = {own: _score(found, runs[0].study.choose_by) for own, found in tried.items()}
    done = {own: score for own, score in scores.items() if score is not None}
    if not done:
        return None
    best = max(done, key=lambda own: done[own])
    return dict(best)


def _score(results: Sequence[Result | None], choose_by: str) -> tuple[float, ...] | None:
    found = [r["validation"] for r in results if r and r["status"] == "done"]
    if len(found) < len(results):
        return None
    accuracy, value = (
        statistics.fmean(v[name] for v in found) for name in ("balanced", "robust_loss")
    )
    return (accuracy, -value) if choose_by == "accuracy" else (-value, accuracy)


def searched(
    study: Study, arm: Arm, results: Callable[[StudyRun], Result | None]
) -> tuple[list[StudyRun], Settings | None]:
    """The search runs of an arm, including those around the best of the grid if it is known yet, and the best settings
    of all."""
    tried = study.search(arm)
    best = best_settings(tried, [results(run) for run in tried])
    around = [] if best is None or len(tried) == 1 else study.finer(arm, best)
    return tried + around, best_settings(tried + around, [results(run) for run in tried + around])


def read_outcomes(study: Study, out: Path) -> list[Outcome]:
    """The outcomes in the folder of a sweep, which may not have finished."""
    found = []
    for arm in study.arms():
        tried, settings = searched(study, arm, lambda run: read_result(out / run.path))
        trials = [read_result(out / run.path) for run in tried]
        folders = (
            [] if settings is None else [out / run.path for run in study.finals(arm, settings)]
        )
        curves = [read_lines(folder / "metrics.jsonl") for folder in folders]
        results = [read_result(folder) for folder in folders]
        found.append(Outcome(arm, settings, [t for t in trials if t is not None], results, curves))
    return found


def read_result(folder: Path) -> Result | None:
    """The result of the run in a folder; None if it has not finished."""
    path = folder / "result.json"
    return read_json(path) if path.exists() else None
