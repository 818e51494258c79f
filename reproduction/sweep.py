"""An experiment: search settings on validation data, then run the best of them with several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction.engine.folder import environment
from reproduction.engine.identity import check_identity
from reproduction.engine.outcomes import Outcome, Result, searched
from reproduction.engine.processes import agreed
from reproduction.engine.storage import read_json, write_json
from reproduction.engine.study import Arm, Study, StudyRun
from reproduction.engine.training import Trained, read_run
from reproduction.engine.wording import plural
from reproduction.pool import Means, Show, run_all
from reproduction.tasks import open_task
from scdro.distributed import Ranks

__all__ = ["Found", "Swept", "sweep"]

Found = Sequence[tuple[Study, Sequence[Outcome]]]  # an experiment's data sets


@dataclass(frozen=True)
class Swept:
    """The results of a study: the outcome of each arm, the fingerprint of the data, and the distinct environments."""

    study: Study
    outcomes: list[Outcome]
    data: str
    environments: list[dict[str, Any]]


def sweep(
    study: Study,
    out: Path,
    means: Means,
    show: Show = lambda status: None,
    say: Callable[[str], None] = lambda text: None,
) -> Swept:
    """Execute all runs of a study. Runs with a result are not repeated, unless they failed. Several processes share
    each run."""
    data = open_task(study.inputs, study.dataset, study.pool, means.sources).fingerprint()
    agreed(Ranks(), lambda: _begin(study, data, out))
    arms = study.arms()
    if study.searches:
        say(
            f"{study.experiment} on {study.dataset}: searching settings of"
            f" {plural(len(study.methods), 'method')}"
        )
    made: dict[Path, Trained] = {}
    for _ in ("the grid", "around the best of it"):
        tried = {arm: _searched(study, arm, made)[0] for arm in arms}
        due = [
            run for runs in tried.values() if len(runs) > 1 for run in runs if run.path not in made
        ]
        made |= run_all(due, data, out, means, show, say)
    best = {arm: _searched(study, arm, made)[1] for arm in arms}
    finals = {arm: [] if found is None else study.finals(arm, found) for arm, found in best.items()}
    say(f"{study.experiment} on {study.dataset}: {plural(study.seeds, 'seed')} of the best")
    made |= run_all(
        [run for runs in finals.values() for run in runs],
        data,
        out,
        means,
        show,
        say,
        keep_models=True,
    )
    found = [
        Outcome(
            arm,
            best[arm],
            [result for result in _results(tried[arm], made) if result is not None],
            _results(finals[arm], made),
            [made[run.path].curve for run in finals[arm]],
        )
        for arm in arms
    ]
    for run in (run for runs in finals.values() for run in runs):
        _tell_of_a_lost_curve(run, made[run.path], out, say)
    ordered = [
        made[run.path] for arm in arms for run in (*tried[arm], *finals[arm]) if run.path in made
    ]
    return Swept(
        study, found, data, _each_once(one.environment for one in ordered if one.environment)
    )


def _searched(
    study: Study, arm: Arm, made: Mapping[Path, Trained]
) -> tuple[list[StudyRun], dict[str, Any] | None]:
    return searched(study, arm, lambda run: made[run.path].result if run.path in made else None)


def _results(runs: Iterable[StudyRun], made: Mapping[Path, Trained]) -> list[Result | None]:
    return [made[run.path].result if run.path in made else None for run in runs]


def _each_once(values: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for value in values:
        found += [] if value in found else [value]
    return found


def _begin(study: Study, data: str, out: Path) -> None:
    """Save the configuration and the data's fingerprint. Raise if the folder has others, or results with others."""
    path = out / "study.json"
    if path.exists():
        before = read_json(path)
        there = {**before, "study": Study.shared(before.get("study") or {})}
        own = {"study": Study.shared(study.as_dict()), "data": data}
        check_identity(there, own, path, "name another folder by --out")
    for arm in study.arms():
        best = searched(study, arm, lambda run: _there(run, data, out))[1]
        for run in () if best is None else study.finals(arm, best):
            _there(run, data, out)
    write_json(path, {"study": study.as_dict(), "data": data, "environment": environment(Ranks())})


def _there(run: StudyRun, data: str, out: Path) -> Result | None:
    found = read_run(out / run.path, run.identity(data))
    return None if found is None else found.result


def _tell_of_a_lost_curve(
    run: StudyRun, trained: Trained, out: Path, say: Callable[[str], None]
) -> None:
    """Warn if a finished run has no evaluations, since every run has at least one."""
    if trained.result["status"] != "failed" and not trained.curve:
        say(
            f"{run} is missing from the curves: expected its evaluations in"
            f" {out / run.path / 'metrics.jsonl'}, got none; restore the file, or remove its folder"
            " and run the command again"
        )
