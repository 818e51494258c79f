"""Many runs in a limited number of processes, with the progress of each. Under torchrun, one run at a time, shared by
all processes."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from reproduction.engine.folder import Notice, began_in, silent
from reproduction.engine.identity import OtherRun
from reproduction.engine.memory import keep_freed_memory
from reproduction.engine.processes import agreed
from reproduction.engine.storage import write_json
from reproduction.engine.study import StudyRun
from reproduction.engine.training import Trained, read_run, train
from reproduction.tasks import Sources, open_task
from scdro.distributed import Ranks
from scdro.errors import HyperparameterError, ScdroError

__all__ = ["Means", "Show", "Status", "run_all"]

ATTEMPTS = 3  # if a process dies, for example of lack of memory, its runs continue in a new one


@dataclass
class Status:
    """The progress of a sweep: runs done, total runs, and the share done of each active run."""

    total: int
    done: int = 0
    running: dict[str, float] = field(default_factory=dict)


Show = Callable[[Status], None]


@dataclass(frozen=True)
class Means:
    """How to execute runs: data files, how many at a time, seconds between checkpoints, and whether to write
    TensorBoard files."""

    sources: Sources
    workers: int = 1
    checkpoint_seconds: float = 20.0
    tensorboard: bool = False


@dataclass(frozen=True)
class Job:
    """A run, and everything that a process needs to execute it."""

    run: StudyRun
    out: Path
    means: Means
    keep_model: bool
    identity: dict[str, Any]


def run_all(
    runs: Sequence[StudyRun],
    data: str,
    out: Path,
    means: Means,
    show: Show = lambda status: None,
    notice: Notice = silent,
    *,
    keep_models: bool = False,
) -> dict[Path, Trained]:
    """Return the result of each run, by its path. Runs without a result, or that failed before, are executed.

    `data` is the fingerprint of their data. A run that fails leaves a result with the reason, and
    the others continue. `notice` is called for runs that fail or diverge, and with what is needed
    to continue. If several processes share a run and one fails, all stop.
    """
    ranks = Ranks()
    if ranks.size > 1 and means.workers > 1:
        raise HyperparameterError(
            "expected one run at a time under torchrun, whose processes share it, got"
            f" {means.workers} workers; leave --workers out, or torchrun"
        )
    once = {run.path: run for run in runs}.values()
    every = [Job(run, out / run.path, means, keep_models, run.identity(data)) for run in once]
    there = agreed(
        ranks, lambda: {job.run.path: done for job in every if (done := _done(job)) is not None}
    )
    jobs = [job for job in every if job.run.path not in there]
    status = Status(len(jobs))

    def ended(job: Job, trained: Trained) -> None:
        there[job.run.path] = trained
        if trained.result["status"] != "done" and ranks.first:
            notice(f"{job.run} {trained.result['status']}: {_reason(trained.result['error'])}")
        status.running.pop(str(job.run), None)
        status.done += 1
        show(status)

    if means.workers <= 1:
        _set_threads(jobs)
        for job in jobs:
            ended(job, _perform(job, lambda name, share: _moved(status, name, share, show), notice))
        return there
    for _ in range(ATTEMPTS):
        jobs = _in_processes(jobs, means.workers, ended, status, show, notice)
        if not jobs:
            return there
    for job in jobs:
        ended(
            job,
            _failed(
                job, "the process that made this run died, again and again; is there enough memory?"
            ),
        )
    return there


def _in_processes(
    jobs: list[Job],
    workers: int,
    ended: Callable[[Job, Trained], None],
    status: Status,
    show: Show,
    notice: Notice,
) -> list[Job]:
    """Run the jobs, and return those whose process died."""
    context = get_context("spawn")
    messages = context.SimpleQueue()
    threads = str(max((job.run.study.threads for job in jobs), default=1))
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = threads  # read when a process starts
    waiting: dict[Future[Trained], Job] = {}
    died: list[Job] = []
    try:
        with ProcessPoolExecutor(workers, context, _begin_process, (messages, os.getpid())) as pool:
            waiting = {pool.submit(_perform_there, job): job for job in jobs}
            while waiting:
                done, _ = wait(waiting, timeout=0.2, return_when=FIRST_COMPLETED)
                while not messages.empty():
                    message = messages.get()
                    if isinstance(message, str):
                        notice(message)
                    else:
                        name, share = message
                        _moved(status, name, share, show)
                for future in done:
                    job, error = waiting.pop(future), future.exception()
                    if isinstance(error, BrokenProcessPool):
                        died.append(job)
                        status.running.clear()
                    elif error is not None:
                        pool.shutdown(cancel_futures=True)
                        raise error
                    else:
                        ended(job, future.result())
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    return died


def _perform(job: Job, moved: Callable[[str, float], None], notice: Notice) -> Trained:
    shown = 0.0
    name = str(job.run)

    def progress(done: int, total: int, text: str) -> None:
        nonlocal shown
        if time.monotonic() - shown > 0.5:
            shown = time.monotonic()
            moved(name, done / total)

    try:
        study = job.run.study
        task = open_task(study.inputs, study.dataset, study.pool, job.means.sources)
        return train(
            job.run,
            task,
            job.out,
            keep_model=job.keep_model,
            checkpoint_seconds=job.means.checkpoint_seconds,
            tensorboard=job.means.tensorboard,
            progress=progress,
            notice=notice,
        )
    except Exception as error:
        if isinstance(error, ScdroError) and not (job.out / "config.json").exists():
            raise  # before it began: the request is wrong, for all runs
        if isinstance(error, OtherRun):
            raise  # a folder of another study
        if Ranks().size > 1:
            raise  # the other processes may not know about it
        return _failed(job, "".join(traceback.format_exception(error)))


def _done(job: Job) -> Trained | None:
    """The existing result, if any. The result of a failed run is removed, since the disk may have been full."""
    found = read_run(job.out, job.identity)
    if found is not None and found.result["status"] == "failed":
        (job.out / "result.json").unlink()
        return None
    return found


def _failed(job: Job, why: str) -> Trained:
    result = {**job.identity, "status": "failed", "error": why}
    write_json(job.out / "result.json", result)
    return Trained(result, [], began_in(job.out))


def _moved(status: Status, name: str, share: float, show: Show) -> None:
    status.running[name] = share
    show(status)


def _reason(error: str) -> str:
    """The first line of the last exception; in a traceback, what follows its last location."""
    lines = error.splitlines()
    places = [i for i, line in enumerate(lines) if line.startswith("  File ")]
    after = lines[places[-1] :] if places else lines
    return next((line for line in after if line and not line.startswith(" ")), "").removeprefix(
        "scdro.errors."
    )


# -- in a process
# -----------------------------------------------------------------------------------------------------

_messages: Any = None


def _begin_process(messages: Any, parent: int) -> None:
    global _messages
    _messages = messages
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """Exit when the parent dies, so that a killed sweep leaves no process that continues to write."""
    while os.getppid() == parent:
        time.sleep(0.3)
    os._exit(1)


def _perform_there(job: Job) -> Trained:
    keep_freed_memory()
    _set_threads([job])
    return _perform(job, lambda name, share: _messages.put((name, share)), _messages.put)


def _set_threads(jobs: Iterable[Job]) -> None:
    for job in jobs:
        torch.set_num_threads(job.run.study.threads)
