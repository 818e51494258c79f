"""An experiment: settings searched on validation data, then the best of them with several seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scdro.distributed.ranks import Ranks
from scdro.experiments.config import Arm, Run, Study
from scdro.experiments.folder import environment
from scdro.experiments.identity import check_identity, read_result
from scdro.experiments.pool import Means, Show, run_all
from scdro.experiments.storage import read_json, read_lines, write_json
from scdro.experiments.tasks import open_task
from scdro.experiments.wording import plural

__all__ = ["Found", "Outcome", "best_settings", "environments", "outcomes", "sweep"]

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


Found = Sequence[tuple[Study, Sequence[Outcome]]]  # an experiment's data sets


def sweep(
    study: Study,
    out: Path,
    means: Means,
    show: Show = lambda status: None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    """All runs of a study; those that have a result are not made again, unless they failed. Several processes share
    each run."""
    task = open_task(study.inputs, study.dataset, study.pool, means.sources)
    data = task.fingerprint()
    Ranks().agreed(lambda: _begin(study, data, out))
    arms = study.arms()
    if study.searches:
        say(f"{study.experiment} on {study.dataset}: searching settings of {plural(len(study.methods), 'method')}")
    tried = [study.search(arm) for arm in arms]
    run_all([run for runs in tried if len(runs) > 1 for run in runs], data, out, means, show, say)
    best = [(arm, best_settings(out, study.search(arm))) for arm in arms]
    say(f"{study.experiment} on {study.dataset}: {plural(study.seeds, 'seed')} of the best")
    runs = [run for arm, settings in best if settings is not None for run in study.finals(arm, settings)]
    run_all(runs, data, out, means, show, say, keep_models=True)
    found = outcomes(study, out, data=data)
    for outcome in found:
        _tell_of_lost_curves(study, out, outcome, say)
    return found


def outcomes(study: Study, out: Path, seeds: Iterable[int] | None = None, data: str | None = None) -> list[Outcome]:
    """What a folder holds, also of a sweep that is not done; of these seeds, or of the study's own. With the data's
    fingerprint, results of other settings or data are refused."""
    found = []
    for arm in study.arms():
        trials = [result for run in study.search(arm) if (result := _result(out, run, data)) is not None]
        settings = best_settings(out, study.search(arm))
        runs = [] if settings is None else study.finals(arm, settings, seeds)
        found.append(
            Outcome(
                arm,
                settings,
                trials,
                [_result(out, run, data) for run in runs],
                [read_lines(out / run.path / "metrics.jsonl") for run in runs],
            )
        )
    return found


def _tell_of_lost_curves(study: Study, out: Path, outcome: Outcome, say: Callable[[str], None]) -> None:
    """Every run that ended was evaluated at least once."""
    runs = study.finals(outcome.arm, outcome.settings or {})
    for run, result, curve in zip(runs, outcome.results, outcome.curves, strict=False):
        if result is not None and result["status"] != "failed" and not curve:
            file = out / run.path / "metrics.jsonl"
            say(
                f"{run} is missing from the curves: expected its evaluations in {file}, got none; restore the file, or "
                "remove its folder and run the command again"
            )


def environments(study: Study, out: Path) -> list[dict[str, Any]]:
    """Those that the runs of a study began in, each once: versions, threads and processes."""
    runs = []
    for arm in study.arms():
        tried = study.search(arm)
        settings = best_settings(out, tried)
        runs += tried if settings is None else [*tried, *study.finals(arm, settings)]
    files = [path for run in runs if (path := out / run.path / "config.json").exists()]
    found = [read_json(path).get("environment", {}) for path in files]
    return [one for i, one in enumerate(found) if one not in found[:i]]


def _begin(study: Study, data: str, out: Path) -> None:
    """Save the configuration and the data's fingerprint; a folder with others, or with such results, is refused."""
    path = out / "study.json"
    if path.exists():
        before = read_json(path)
        there = {**before, "study": Study.shared(before.get("study") or {})}
        own = {"study": Study.shared(study.as_dict()), "data": data}
        check_identity(there, own, path, "name another folder by --out", newer=("data",))
    outcomes(study, out, data=data)
    write_json(path, {"study": study.as_dict(), "data": data, "environment": environment(Ranks())})


def best_settings(out: Path, runs: Sequence[Run]) -> dict[str, Any] | None:
    """Settings of the highest mean accuracy over the validation data's classes; of equals the lowest robust loss. One
    setting alone needs no run."""
    if len(runs) == 1:
        return dict(runs[0].settings)
    found = [(run, result) for run in runs if (result := _result(out, run)) and result["status"] == "done"]
    if not found:
        return None
    run, _ = max(found, key=lambda pair: (pair[1]["validation"]["balanced"], -pair[1]["validation"]["robust_loss"]))
    return dict(run.settings)


def _result(out: Path, run: Run, data: str | None = None) -> Result | None:
    if data is not None:
        return read_result(out / run.path, run.identity(data))
    path = out / run.path / "result.json"
    found: Result | None = read_json(path) if path.exists() else None
    return found
