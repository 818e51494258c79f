r"""Table 1, measured: how fast stationarity and objective gap fall with the number of samples, and the cost of a step.

Each algorithm of the paper's table 1 (`methods.ROWS`) has one run for each horizon T and seed, on
problems whose exact solution is known (`problems`). Step sizes follow the theorem's powers of T,
with fixed constants (`schedules`). The slope of the measure in log-log, with its confidence
interval (`fit`), is shown next to the theorem's.

`run` appends one line per run to runs.jsonl and to cost.jsonl, and skips runs that are there, so it
can be resumed.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import scdro
from reproduction.engine.folder import Notice, locked, silent
from reproduction.engine.storage import JsonLines, write_json
from reproduction.engine.study import chosen
from reproduction.table1 import cost, report
from reproduction.table1.methods import BATCH, ROWS
from reproduction.table1.runs import measure
from scdro.errors import CheckpointError, HyperparameterError

__all__ = ["SCALES", "Progress", "Scale", "run"]

Progress = Callable[[int, int, str], None]  # steps done, of how many, and what to say


@dataclass(frozen=True)
class Scale:
    """How much to run: horizons, seeds, iterates measured in a run, and the sizes n at which steps are timed, for
    `seconds` each."""

    horizons: tuple[int, ...]
    seeds: int
    iterates: int
    sizes: tuple[int, ...]
    seconds: float


SCALES: Mapping[str, Scale] = {
    "smoke": Scale((16, 32, 64), 2, 16, (10**3, 10**4), 0.02),
    "small": Scale((100, 316, 1000, 3162, 10000), 10, 64, (10**3, 10**4, 10**5, 10**6), 1.0),
    "paper": Scale(
        (1000, 3162, 10000, 31623, 100000), 20, 64, (10**3, 10**4, 10**5, 10**6, 10**7), 3.0
    ),
}


def run(
    out: Path,
    scale: str = "small",
    workers: int = 1,
    progress: Progress = lambda done, total, text: None,
    notice: Notice = silent,
) -> report.Table1:
    """Execute the missing runs in the folder `out`, and write table.md, table.csv, cost.csv, figure.png and figure.svg.
    Only one process at a time works in a folder."""
    size = chosen(SCALES, scale, "a scale")
    if workers < 1:
        raise HyperparameterError(f"expected at least one worker, got {workers}")
    settings = _settings(scale, size)
    with locked(out, notice):
        records = _kept(out / "runs.jsonl", settings, _jobs(size), _job_of, workers, progress)
        timings = _kept(out / "cost.jsonl", settings, _timings(size), _timing_of, 1, progress)
        write_json(out / "environment.json", _environment())
        return report.write(out, scale, records, timings)


# -- what there is to do
# ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """A task: the key of its record, the function that makes it, and its length in steps."""

    key: tuple[Any, ...]
    do: Callable[..., dict[str, Any]]
    arguments: tuple[Any, ...]
    length: int


def _jobs(size: Scale) -> list[_Task]:
    """The paper's own methods first."""
    return [
        _Task((row.key, horizon, seed), measure, (row.key, horizon, seed, size.iterates), horizon)
        for row_is_ours in (True, False)
        for seed in range(size.seeds)
        for row in ROWS
        if row.ours is row_is_ours
        for horizon in size.horizons
    ]


def _job_of(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["row"], record["horizon"], record["seed"]


def _timings(size: Scale) -> list[_Task]:
    return [
        _Task((name, n), _timing, (name, n, size.seconds), 1)
        for name in cost.STEPPERS
        for n in size.sizes
    ]


def _timing(name: str, n: int, seconds: float) -> dict[str, Any]:
    return {"method": name, "n": n, "seconds": cost.step_seconds(name, n, seconds)}


def _timing_of(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["method"], record["n"]


def _settings(scale: str, size: Scale) -> dict[str, Any]:
    """The settings that all records of a file share, as read back from JSON."""
    constants = {
        row.key: {name: repr(value) for name, value in row.settings.items()} for row in ROWS
    }
    settings = {"scale": scale, **asdict(size), "batch": BATCH, "constants": constants}
    return dict(json.loads(json.dumps(settings)))


def _environment() -> dict[str, str]:
    return {
        "scdro": scdro.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


# -- running
# ----------------------------------------------------------------------------------------------------------


def _kept(
    path: Path,
    settings: dict[str, Any],
    tasks: Sequence[_Task],
    key_of: Callable[[dict[str, Any]], tuple[Any, ...]],
    workers: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """The records of all tasks: those in the file, and the missing ones, appended as they finish."""
    log, lines = JsonLines.reopen(path)
    if not lines:
        log.append(settings)
        lines = [settings]
    if lines[0] != settings:
        raise CheckpointError(
            f"expected {path} to hold runs of these settings, got others:"
            f" {_first_difference(lines[0], settings)}; name another folder"
        )
    done = {
        key_of(record): record for record in reversed(lines) if record != settings
    }  # the first of each counts
    records = [*reversed(done.values())]
    missing = [task for task in tasks if task.key not in done]
    total, finished = (
        sum(task.length for task in tasks),
        sum(task.length for task in tasks if task.key in done),
    )
    for task, record in _results(missing, workers):
        log.append(record)
        records.append(record)
        finished += task.length
        progress(finished, total, " ".join(str(part) for part in task.key))
    return records


def _first_difference(came: dict[str, Any], settings: dict[str, Any]) -> str:
    differing = (
        f"{k} = {came.get(k)} instead of {v}" for k, v in settings.items() if came.get(k) != v
    )
    return next(differing, "more of them")


def _results(tasks: Sequence[_Task], workers: int) -> Iterator[tuple[_Task, dict[str, Any]]]:
    """Tasks with their records, as they finish."""
    if workers == 1:
        for task in tasks:
            yield task, task.do(*task.arguments)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(task.do, *task.arguments): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()
