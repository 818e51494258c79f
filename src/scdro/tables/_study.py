"""Train plain and robust models, choose settings by cross-validation, compare on test rows, keep the better model.

for each split of the table (seed, seed + 1, ...):
    every method: its candidates out of fold, the best one fitted to all training rows, tested
robust method = the one with the lowest worst-case loss out of fold, within half of the budget
verdict = robust against plain on the test rows of all splits, after the plain one's free moves
the models of the first split are those of the run
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from scdro import __version__
from scdro._validation import check_budget
from scdro.errors import HyperparameterError
from scdro.integrations.loggers import Logger
from scdro.tables import _models
from scdro.tables._columns import Columns
from scdro.tables._fix import Fix, make_fix
from scdro.tables._folder import Fits
from scdro.tables._labels import Labels
from scdro.tables._logs import OnProgress, StudyLog
from scdro.tables._oddities import worse_than_constant
from scdro.tables._options import TrainOptions, takes
from scdro.tables._problem import TableProblem, make_problem
from scdro.tables._run import Run
from scdro.tables._scores import scores_of
from scdro.tables._split_study import SplitStudy
from scdro.tables._summary import FORMAT, METHODS, MethodSummary, SettingsSummary, Summary
from scdro.tables._verdict import LEAST_GROUP, Judge

__all__ = ["train"]


@takes(TrainOptions)
def train(
    data: Any, target: str, *, out: Any = None, progress: OnProgress | None = None,
    loggers: Sequence[Logger] = (), **options: Any,
) -> Run:  # fmt: skip
    r"""Train a plain and a robust model on a table: where the model fails, whether robustness helps, and its price.

    Every method gets the same number of candidate settings, evaluated out of fold. A robust
    candidate counts if its score is at most `budget` / 2 below plain training's; the lowest robust
    value, max_{KL(p) <= rho} sum p_i l_i, wins. It is kept if on the test rows it gains what the
    plain model cannot have by other thresholds or a temperature, at no more than `budget`;
    otherwise the plain model is.

    With `fix` the question is another one: these rows matter, serve them. The conditions divide
    every class; both parts get equal weights within it, settings are chosen by the worst cell (class
    x condition) out of fold, and what counts is the slice's own score before and after.

    Args:
        data: a DataFrame of pandas, polars or Arrow, a dictionary of columns, or the path of a
            file that `read_table` reads.
        target: the column to predict.
        out: folder of the run; an interrupted run resumes where it stopped.
        progress: called with (done, total, text).
        loggers: get the numbers of every candidate as it is evaluated, at the end the scores,
            groups and slices; see `scdro.integrations.loggers`.
        **options: as below.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> age, place = rng.integers(20, 60, 400), rng.choice(["land", "water"], 400)
        >>> bird = np.where((age > 40) ^ (rng.random(400) < 0.1), "yes", "no")
        >>> run = train({"age": age, "place": place, "bird": bird}, "bird", model="linear", candidates=2, seeds=1)
        >>> run.summary["verdict"]["kept"], run.predict({"age": [25, 58], "place": ["land", "land"]}).tolist()
        ('plain', ['no', 'yes'])
    """
    asked = TrainOptions(**options)
    check_budget(0.0 if asked.budget is None else asked.budget)
    problem = make_problem(data, target, asked)
    filled = _fill_defaults(problem, asked)
    fix = None if asked.fix is None else make_fix(problem, asked.fix)
    title = Path(data).name if isinstance(data, str | Path) else ""

    def study(fits: Fits) -> Run:
        of_each = filled.candidates + 1  # the last is the final fit
        total = filled.seeds * (len(filled.methods) * of_each + (fix is not None))
        return _study(problem, filled, fix, fits, StudyLog(progress, loggers, total), title)

    return Run.in_folder(out, {**_identify(filled), "data": _digest(problem)}, study)


def _fill_defaults(problem: TableProblem, asked: TrainOptions) -> TrainOptions:
    """The options with their defaults for this table; a note if they differ from what was asked for."""
    n, fix = len(problem.y), asked.fix is not None
    few = 50_000 if fix else 5000  # a slice has few test rows
    seeds = asked.seeds or (3 if n <= few else 1)
    if n > _models.MANY_ROWS and seeds > 1:
        problem.warnings.append(f"{n:,} rows: one seed instead of {seeds}.")
        seeds = 1
    possible = [m for m in METHODS[:4] if problem.classes or m != "class-weighted"]
    for name in asked.methods or ():
        if name not in possible:
            task = "classification" if problem.classes else "regression"
            raise HyperparameterError(
                f"expected methods for {task} among {', '.join(possible)}, got {name!r}"
            )
    if fix and asked.methods is not None:
        raise HyperparameterError("expected methods or fix, which is one of its own, got both")
    wanted = possible if asked.methods is None else ["plain", *asked.methods]
    methods = ["plain", "group-weighted"] if fix else [m for m in possible if m in wanted]
    budget = (0.1 if fix else 0.002) if asked.budget is None else float(asked.budget)
    return replace(asked, methods=methods, seeds=seeds, budget=budget, rho=float(asked.rho))


def _identify(options: TrainOptions) -> dict[str, Any]:
    """The options that the results depend on besides the table."""
    names = (
        "model", "methods", "rho", "budget", "folds", "candidates", "seed", "seeds", "fix",
    )  # fmt: skip
    return {name: getattr(options, name) for name in names}


def _digest(problem: TableProblem) -> str:
    """Hash of everything in the table that the results depend on."""
    digest = hashlib.sha256()
    everything = Columns.fit(problem.frame, problem.features(), [])
    for part in (
        problem.target, problem.split, problem.columns, problem.classes, problem.given, everything,
    ):  # fmt: skip
        digest.update(repr(part).encode())
    test = None if problem.fixed is None else problem.fixed.test
    for array in (everything.encode(problem.frame), problem.y, problem.split_by, test):
        if array is not None:
            digest.update(np.ascontiguousarray(array).tobytes())
    if problem.groups is not None:
        digest.update("\0".join(problem.groups.tolist()).encode())
    return digest.hexdigest()


def _study(
    problem: TableProblem, options: TrainOptions, fix: Fix | None, fits: Fits, log: StudyLog, title: str
) -> Run:  # fmt: skip
    """Study every split, and compare the best robust method with plain training."""
    began = time.monotonic()
    seeds = range(options.seed, options.seed + options.seeds)
    splits = [SplitStudy(problem, options, fix, fits, log, seed) for seed in seeds]
    for split in splits:
        split.run()
    first, robust = splits[0], _best_robust(splits, options)
    slices = first.slices(robust)
    verdict, groups = Judge(problem, splits, fix, options.rho, options.budget).decide(
        robust, slices
    )
    summary: Summary = {
        "format": FORMAT,
        "title": title,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "versions": _versions(options.model),
        "task": {
            "type": "classification" if problem.classes else "regression",
            "target": problem.target,
            "classes": problem.classes,
            "counts": problem.counts() if problem.classes else [],
            "score": "accuracy" if problem.classes else "R2",
            "loss": "log loss" if problem.classes else "squared error",
        },
        "data": {
            "rows": len(problem.y),
            "train": len(first.train),
            "test": len(first.test),
            "tested": len(np.unique(np.concatenate([split.test for split in splits]))),
            "chosen_on": len(first.sample),
            "columns": problem.columns,
            "split": problem.split,
        },
        "settings": _as_settings(problem, options),
        "methods": [_method_row(name, splits, options.rho) for name in options.methods],
        "groups": groups,
        "slices": slices,
        "verdict": verdict,
        "warnings": [*problem.warnings, *_notes_on_tests(problem, first)],
    }
    log.end(summary)
    fitted = {name: first.methods[name].model for name in verdict["saved"]}
    models = {name: model for name, model in fitted.items() if model is not None}
    labels = None
    if problem.values is not None:
        labels = Labels.of_target(problem.values, problem.given)
    return Run(summary, models, first.learner.columns, labels, first.scale)


def _as_settings(problem: TableProblem, options: TrainOptions) -> SettingsSummary:
    return {
        "model": options.model,  # type: ignore[typeddict-item]
        "methods": list(options.methods),
        "rho": options.rho,
        "budget": options.budget,
        "folds": options.folds,
        "candidates": options.candidates,
        "seeds": options.seeds,
        "least_group": LEAST_GROUP,
        "group": problem.group,
        "fix": options.fix,
    }


def _versions(model: str) -> dict[str, str]:
    names = ["scikit-learn", "polars", *(["lightgbm"] if model == "trees" else [])]
    return {"scdro": __version__} | {name: importlib.metadata.version(name) for name in names}


def _method_row(name: Any, splits: list[SplitStudy], rho: float) -> MethodSummary:
    first = splits[0]
    best = first.methods[name].best
    return {
        "name": name,
        "settings": best.settings | ({"rounds": best.rounds} if best.rounds else {}),
        "scores": scores_of(name, splits, rho),
        "candidates": first.candidates(name),
        "seconds": round(sum(split.methods[name].seconds for split in splits), 2),
    }


def _notes_on_tests(problem: TableProblem, split: SplitStudy) -> list[str]:
    """Notes on a plain model that is worse on the test rows than one answer, and on settings chosen on a sample."""
    predicted, (mean, unit) = split.on_test("plain"), split.scale
    task = "classification" if problem.classes else "regression"
    notes = worse_than_constant(
        problem.y[split.train], problem.y[split.test],
        predicted.argmax(1) if problem.classes else mean + unit * predicted, task, problem.split["how"],
    )  # fmt: skip
    if len(split.sample) < len(split.train):
        notes.append(
            f"Settings were chosen on {len(split.sample):,} of {len(split.train):,} training rows,"
            " with one seed; the final models were trained on all of them."
        )
    return notes


def _best_robust(splits: list[SplitStudy], options: TrainOptions) -> str | None:
    """The method that serves a slice to fix; else that of the lowest robust value out of fold, of those
    within the budget, over all splits."""
    others = [name for name in options.methods or () if name != "plain"]
    if not others or options.fix is not None:
        return others[0] if others else None

    def mean(name: str, what: str) -> float:
        return float(np.mean([split.methods[name].best.measures[what] for split in splits]))

    least = mean("plain", "score") - options.budget / 2
    within = [name for name in others if mean(name, "score") >= least]
    return min(within or others, key=lambda name: mean(name, "robust_value"))
