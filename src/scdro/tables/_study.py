"""Train plain and robust models, choose settings by cross-validation, compare on test rows, keep the better model."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scdro._validation import check_budget, check_choice, check_names, check_number, check_whole
from scdro.errors import HyperparameterError
from scdro.integrations.loggers import Logger
from scdro.tables import _folder, _split_study
from scdro.tables._columns import Columns
from scdro.tables._logs import Logs
from scdro.tables._models import Model
from scdro.tables._problem import Options, TableProblem, make_problem
from scdro.tables._run import Run
from scdro.tables._split_study import SplitStudy
from scdro.tables._summary import METHODS, Found, make_summary
from scdro.tables._verdict import Offer, judge

__all__ = ["audit", "train"]

OnProgress = Callable[[int, int, str], None]


def train(
    data: Any,
    target: str,
    *,
    model: str = "trees",
    methods: Sequence[str] | None = None,
    task: str | None = None,
    rho: float = 0.5,
    budget: float = 0.002,
    group: Sequence[str] = (),
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    ids: Sequence[str] = (),
    split_by: str | None = None,
    split_after: str | tuple[str, Any] | None = None,
    test: Any = None,
    seed: int = 0,
    seeds: int | None = None,
    folds: int = 3,
    candidates: int = 4,
    least_group: int = 30,
    threads: int | None = None,
    out: Any = None,
    title: str = "",
    progress: OnProgress | None = None,
    loggers: Sequence[Logger] = (),
) -> Run:
    r"""Train a plain and a robust model on a table, and say who is failed, whether robustness helps, and its price.

    Every method gets the same number of candidate settings, evaluated out of fold. A robust candidate counts if its
    score is at most `budget` / 2 below plain training's; the lowest robust value, max_{KL(p) <= rho} sum p_i l_i, wins.
    It is kept if the test rows confirm it at no more than `budget`, otherwise the plain model is.

    Args:
        data: a DataFrame of pandas, polars or Arrow, a dictionary of columns, or the path of a CSV or Parquet file.
        target: the column to predict.
        model: "trees" (LightGBM), "linear" (exact) or "network".
        methods: some of "plain", "class-weighted" (not for regression), "worst-case" and "second-look"; plain is always
            among them. None: all of them.
        task: "classification" or "regression"; None decides: more than 20 different numbers are a quantity.
        rho: radius at which models are compared.
        budget: the most accuracy (or R^2), as a share, that robust training may cost.
        group: columns whose combinations are evaluated separately; no model sees them.
        drop, categorical, ids: columns to leave out, to treat as categories although they are numbers, to copy to
            the predictions.
        split_by: rows with the same value in this column are either all for training or all for the test.
        split_after: a column of times: its last fifth is the test; ("year", 2000): rows after 2000 are.
        test: other data for the test.
        seed: seed of the splits, the folds and the models.
        seeds: splits to repeat everything on; None: 3 up to 5,000 rows, 1 beyond.
        folds: number of folds of the cross-validation.
        candidates: settings to try for every method, 1 to 6.
        least_group: groups with fewer test rows are shown, but do not affect the decision.
        threads: number of threads of the models; None: 1 below 20,000 rows, all idle cores beyond.
        out: folder of the run; an interrupted run resumes where it stopped.
        title: title of the report.
        progress: called with (done, total, text).
        loggers: get the numbers of every candidate as it is evaluated, at the end the scores, groups and slices;
            see `scdro.integrations.loggers`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> age, place = rng.integers(20, 60, 400), rng.choice(["land", "water"], 400)
        >>> bird = np.where((age > 40) ^ (rng.random(400) < 0.1), "yes", "no")
        >>> run = train({"age": age, "place": place, "bird": bird}, "bird", model="linear", candidates=2, seeds=1)
        >>> run.summary["verdict"]["kept"], run.predict({"age": [25, 58], "place": ["land", "land"]}).tolist()
        ('plain', ['no', 'yes'])
    """
    problem = make_problem(
        data, target, task=task, group=group, drop=drop, categorical=categorical, ids=ids,
        split_by=split_by, split_after=split_after, test=test, folds=folds,
    )  # fmt: skip
    options, notes = _options(
        problem, model, methods, rho, budget, folds, candidates, seed, seeds, least_group, threads, audit=False
    )
    return _start(problem, options, notes, out, title or _title(data), progress, Logs(loggers))


def audit(
    data: Any,
    target: str,
    *,
    model: str = "trees",
    methods: Sequence[str] | None = None,
    task: str | None = None,
    rho: float = 0.5,
    budget: float = 0.002,
    group: Sequence[str] = (),
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    ids: Sequence[str] = (),
    split_by: str | None = None,
    seed: int = 0,
    folds: int = 3,
    candidates: int = 4,
    least_group: int = 30,
    threads: int | None = None,
    out: Any = None,
    title: str = "",
    progress: OnProgress | None = None,
    loggers: Sequence[Logger] = (),
) -> Run:
    """Whom a plain model fails, and what a second look would gain at what price, for a range of rho; no model is kept.

    All rows are evaluated out of fold. Arguments as for `train`; without `methods`, all but "worst-case".

    Example:
        >>> rng = np.random.default_rng(0)
        >>> age = rng.integers(20, 60, 300)
        >>> run = audit({"age": age, "old": np.where(age > 40, "yes", "no")}, "old", model="linear", candidates=2)
        >>> run.summary["kind"], run.summary["methods"][0]["name"]
        ('audit', 'plain')
    """
    problem = make_problem(
        data,
        target,
        task=task,
        group=group,
        drop=drop,
        categorical=categorical,
        ids=ids,
        split_by=split_by,
        folds=folds,
    )
    problem.split = {
        **problem.split,
        "how": "out of fold",
        "text": "Every row is judged by a model that did not see it.",
    }
    options, notes = _options(
        problem, model, methods, rho, budget, folds, candidates, seed, 1, least_group, threads, audit=True
    )
    return _start(problem, options, notes, out, title or _title(data), progress, Logs(loggers))


def _title(data: Any) -> str:
    return Path(data).name if isinstance(data, str | Path) else ""


def _options(
    problem: TableProblem, model: str, methods: Sequence[str] | None, rho: float, budget: float, folds: int,
    candidates: int, seed: int, seeds: int | None, least_group: int, threads: int | None, audit: bool,
) -> tuple[Options, list[str]]:  # fmt: skip
    """Checked, with the defaults filled in, and notes on what differs from what was asked for."""
    n = len(problem.y)
    check_choice("model", model, ("trees", "linear", "network"))
    possible = [name for name in METHODS if problem.classes or name != "class-weighted"]
    if methods is not None:
        check_names("methods", methods)
    for name in methods or ():
        if name not in possible:
            task = "classification" if problem.classes else "regression"
            raise HyperparameterError(f"expected methods for {task} among {', '.join(possible)}, got {name!r}")
    check_number("rho", rho, ">= 0", "the radius at which models are compared")
    check_budget(budget)
    seeds = (3 if n <= 5000 else 1) if seeds is None else seeds
    cores = os.cpu_count() or 1
    threads = (1 if n < 20_000 else _free(cores)) if threads is None else threads
    for what, value, most in (
        ("candidates", candidates, 6), ("seed", seed, 2**31 - 1), ("seeds", seeds, 100),
        ("least_group", least_group, n), ("threads", threads, 4 * cores),
    ):  # fmt: skip
        check_whole(what, value, 0 if what == "seed" else 1, most)
    notes = []
    if n > _split_study.MANY_ROWS and seeds > 1:
        notes.append(f"{n:,} rows: one seed instead of {seeds}.")
        seeds = 1
    if methods is None:
        methods = [name for name in possible if not audit or name != "worst-case"]
    wanted = [name for name in possible if name in methods or name == "plain"]
    options = Options(
        model, tuple(wanted), float(rho), float(budget), folds, candidates, seed, seeds, least_group, threads, audit
    )
    return options, notes


def _free(cores: int) -> int:
    """Idle cores: LightGBM's threads wait for each other, and two on one core are slower than one."""
    busy = int(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
    return max(1, cores - busy)


def _start(
    problem: TableProblem, options: Options, notes: list[str], out: Any, title: str, progress: OnProgress | None,
    logs: Logs,
) -> Run:  # fmt: skip
    about = {**options.as_json(), "data": _digest(problem)}
    return Run.in_folder(out, about, lambda fits: _make_run(problem, options, notes, fits, title, progress, logs))


def _digest(problem: TableProblem) -> str:
    """Hash of everything that the results depend on."""
    digest = hashlib.sha256()
    parts = [problem.target, problem.split, problem.columns, problem.classes, problem.group]
    digest.update(repr(parts).encode())
    everything = Columns.fit(problem.frame, problem.features(), [])
    digest.update(repr(everything).encode())
    for array in (everything.encode(problem.frame), problem.y, problem.split_by):
        if array is not None:
            digest.update(np.ascontiguousarray(array).tobytes())
    if problem.groups is not None:
        digest.update("\0".join(problem.groups.tolist()).encode())
    if problem.fixed is not None:
        digest.update(problem.fixed.test.tobytes())
    return digest.hexdigest()


def _make_run(
    problem: TableProblem, options: Options, notes: list[str], fits: _folder.Fits, title: str,
    progress: OnProgress | None, logs: Logs,
) -> Run:  # fmt: skip
    """Study every split, and compare the best robust method with plain training."""
    began = time.monotonic()
    rounds = options.seeds * (len(options.methods) * (options.candidates + (0 if options.audit else 1)) + 1)
    step = [0]

    def tell(text: str) -> None:
        step[0] += 1
        if progress is not None:
            progress(min(step[0], rounds), rounds, text)

    seeds = range(options.seed, options.seed + options.seeds)
    studies = [SplitStudy(problem, options, fits, seed, tell, logs) for seed in seeds]
    for study in studies:
        study.run()
    robust = _best_robust(studies, options)
    cheapest = _cheapest(studies[0]) if robust == "worst-case" and all(s.is_plain(robust) for s in studies) else None
    robust = robust if cheapest is None else None
    look = studies[0].second_look()
    slices = studies[0].slices(robust)
    predictions = [study.predictions(name) for study in studies for name in options.methods]
    verdict, groups, methods = judge(
        problem, predictions, options, robust, slices, look, studies[0].over_budget(robust), cheapest
    )
    for row in methods:
        own = [study.methods[row["name"]] for study in studies]
        row["settings"] = {**own[0].best.settings, **({"rounds": own[0].best.rounds} if own[0].best.rounds else {})}
        names = own[0].best.measures
        row["out_of_fold"] = {k: float(np.mean([m.best.measures[k] for m in own])) for k in names}
        row["seconds"] = round(sum(m.seconds for m in own), 2)
    first = studies[0]
    chosen_on = len(first.sample)
    notes = [*problem.warnings, *notes]
    if options.audit and chosen_on < len(problem.y):
        notes.append(f"{chosen_on:,} of the {len(problem.y):,} rows, drawn at random, were used.")
    if chosen_on < len(first.cut.train):
        notes.append(
            f"Settings were chosen on {chosen_on:,} of {len(first.cut.train):,} training rows, with one seed; the "
            "final models were trained on all of them."
        )
    curves = [first.curve(name) for name in options.methods]
    found = Found(methods, curves, groups, slices, verdict, notes)
    tested = len(np.unique(np.concatenate([study.cut.test for study in studies])))
    summary = make_summary(problem, options, found, first.cut, tested, chosen_on, title, time.monotonic() - began)
    logs.end(summary)
    models: dict[str, Model] = {}
    if not options.audit:
        models = {name: m.model for name in verdict["saved"] if (m := first.methods[name]).model is not None}
    return Run(summary, models, first.columns, first.scale)


def _best_robust(studies: list[SplitStudy], options: Options) -> str | None:
    """The method with the lowest robust value out of fold, of those within the budget; over all seeds."""
    others = [name for name in options.methods if name != "plain"]
    if not others:
        return None

    def mean(name: str, what: str) -> float:
        return float(np.mean([study.methods[name].best.measures[what] for study in studies]))

    within = [name for name in others if mean(name, "score") >= mean("plain", "score") - options.budget / 2]
    return min(within or others, key=lambda name: mean(name, "robust_value"))


def _cheapest(study: SplitStudy) -> Offer | None:
    """The cheapest of the rejected radii; None if only 0 was tried."""
    tried = [c for c in study.methods["worst-case"].candidates if c.settings["rho"] > 0]
    if not tried:
        return None
    plain = study.methods["plain"].best.measures
    better = [c for c in tried if c.measures["robust_value"] < plain["robust_value"]]
    best = max(better or tried, key=lambda c: c.measures["score"])
    return Offer(best.settings["rho"], plain, best.measures, bool(better))
