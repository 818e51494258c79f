"""Train plain and robust models, choose settings by cross-validation, compare on test rows, keep the better model.

    for each split of the table (seed, seed + 1, ...):
        for each method: its candidates out of fold, the best of them chosen
        the best ones fitted to all training rows, and tested
    robust method = the one with the lowest worst-case loss out of fold, within half of the budget
    verdict = robust against plain on the test rows of all splits, after the plain one's free moves
    the models of the first split are those of the run

What "the best" is, for each method:

    plain            the lowest mean loss; all others start from its settings
    class-weighted   the lowest mean loss with equal classes
    worst-case, second-look, group-weighted
                     of the candidates that cost at most half of the budget and do not give every
                     row one answer: the lowest worst-case loss; with a slice to fix, the best
                     worst cell
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scdro import __version__
from scdro._validation import check_budget
from scdro.errors import HyperparameterError, ScdroWarning
from scdro.fix import balanced, second_look_weights
from scdro.functional import worst_case
from scdro.integrations.loggers import Logger
from scdro.second_look import find_slices
from scdro.tables import _models
from scdro.tables._fix import WAYS, Fix, make_fix
from scdro.tables._folder import Fits
from scdro.tables._models import Columns, Learner, Model, mean_rounds, row_losses
from scdro.tables._options import TrainOptions, takes
from scdro.tables._problem import TableProblem, make_problem
from scdro.tables._run import Run, label_values
from scdro.tables._summary import (
    FORMAT,
    METHODS,
    CandidateSummary,
    MethodSummary,
    SliceSummary,
    Summary,
)
from scdro.tables._verdict import LEAST_GROUP, Judge, is_flat, measure, one_answer, row_scores

__all__ = ["OnProgress", "SplitStudy", "StudyLog", "train"]

Array = npt.NDArray[Any]
OnProgress = Callable[[int, int, str], None]
# Radii of the candidates of robust methods: as many of the first as there are candidates.
RADII = (0.1, 0.05, 0.2, 0.5, 0.02, 1.0)


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
        """Called if the folder has no finished run; `fits` has what an interrupted one computed."""
        of_each = filled.candidates + 1  # the last is the final fit
        total = filled.seeds * (len(filled.methods) * of_each + (fix is not None))
        return _study_splits(problem, filled, fix, fits, StudyLog(progress, loggers, total), title)

    # what identifies the run: the options that its results depend on, and the table
    names = ("model", "methods", "rho", "budget", "folds", "candidates", "seed", "seeds", "fix")
    about = {name: getattr(filled, name) for name in names}
    return Run.in_folder(out, {**about, "data": _digest(problem)}, study)


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
            raise HyperparameterError(
                f"expected methods for {problem.task} among {', '.join(possible)}, got {name!r}"
            )
    if fix and asked.methods is not None:
        raise HyperparameterError("expected methods or fix, which is one of its own, got both")
    wanted = possible if asked.methods is None else ["plain", *asked.methods]
    methods = ["plain", "group-weighted"] if fix else [m for m in possible if m in wanted]
    budget = (0.1 if fix else 0.002) if asked.budget is None else float(asked.budget)
    return replace(asked, methods=methods, seeds=seeds, budget=budget, rho=float(asked.rho))


def _digest(problem: TableProblem) -> str:
    """Hash of everything in the table that the results depend on.

    A run goes on in its folder only with the same table. What was read is hashed, and not the
    file: its name and place do not matter.
    """
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


def _study_splits(
    problem: TableProblem, options: TrainOptions, fix: Fix | None, fits: Fits, log: StudyLog, title: str
) -> Run:  # fmt: skip
    """Study every split, and compare the best robust method with plain training.

    Args:
        problem: the table.
        options: all filled in.
        fix: the rows that a person wants served, if any.
        fits: fits of an interrupted run.
        log: told of each candidate, and of the results.
        title: of the report page.

    Returns:
        The run, with the models of the first split; scores and the verdict are over all splits.
    """
    began = time.monotonic()
    seeds = range(options.seed, options.seed + options.seeds)
    splits = [SplitStudy(problem, options, fix, fits, log, seed) for seed in seeds]
    for split in splits:
        split.run()
    # The first split has the models that are kept; the verdict is over the test rows of all.
    first, robust = splits[0], _best_robust(splits, options)
    slices = first.slices(robust)
    judge = Judge(problem, splits, fix, options.rho, options.budget)
    verdict, groups = judge.decide(robust, slices)
    packages = ["scikit-learn", "polars", *(["lightgbm"] if options.model == "trees" else [])]
    asked: Any = {
        name: getattr(options, name)
        for name in ("model", "methods", "rho", "budget", "folds", "candidates", "seeds", "fix")
    }
    summary: Summary = {
        "format": FORMAT,
        "title": title,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "versions": {"scdro": __version__}
        | {name: importlib.metadata.version(name) for name in packages},
        "task": {
            "type": problem.task,
            "target": problem.target,
            "classes": problem.classes,
            "counts": problem.count_classes() if problem.classes else [],
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
        "settings": asked | {"least_group": LEAST_GROUP, "group": problem.group},
        "methods": [_describe_method(name, splits, judge) for name in first.methods],
        "groups": groups,
        "slices": slices,
        "verdict": verdict,
        "warnings": [*problem.warnings, *_notes_on_tests(problem, first)],
    }
    log.end(summary)
    models = {
        name: model for name in verdict["saved"] if (model := first.methods[name].model) is not None
    }
    values = problem.values
    labels = None if values is None else label_values(values, problem.given)
    return Run(summary, models, first.learner.columns, labels, first.scale)


def _describe_method(name: Any, splits: list[SplitStudy], judge: Judge) -> MethodSummary:
    """A method in the summary: settings and candidates of the first split, scores of all."""
    first = splits[0]
    best = first.methods[name].best
    return {
        "name": name,
        "settings": best.settings | ({"rounds": best.rounds} if best.rounds else {}),
        "scores": judge.scores(name),
        "candidates": first.candidates(name),
        "seconds": round(sum(split.methods[name].seconds for split in splits), 2),
    }


def _best_robust(splits: list[SplitStudy], options: TrainOptions) -> str | None:
    """The robust method to compare with plain training; None if only that was asked for.

    With a slice to fix it is the one that serves it. Otherwise the one with the lowest robust value
    out of fold, averaged over the splits, among those within half of the budget; if none is, among
    all, and the verdict will say that it costs too much.
    """
    others = [name for name in options.methods if name != "plain"]
    if not others or options.fix is not None:
        return others[0] if others else None

    def mean(name: str, what: str) -> float:
        """A measure of a method's chosen candidate, over the splits."""
        return float(np.mean([split.methods[name].best.measures[what] for split in splits]))

    least = mean("plain", "score") - options.budget / 2
    within = [name for name in others if mean(name, "score") >= least]
    return min(within or others, key=lambda name: mean(name, "robust_value"))


def _notes_on_tests(problem: TableProblem, split: SplitStudy) -> list[str]:
    """Notes on a plain model that is worse on the test rows than one answer, and on settings chosen on a sample."""
    predicted, (mean, unit) = split.on_test("plain"), split.scale
    notes = worse_than_constant(
        problem.y[split.train], problem.y[split.test],
        predicted.argmax(1) if problem.classes else mean + unit * predicted,
        problem.task, problem.split["how"],
    )  # fmt: skip
    if len(split.sample) < len(split.train):
        notes.append(
            f"Settings were chosen on {len(split.sample):,} of {len(split.train):,} training rows,"
            " with one seed; the final models were trained on all of them."
        )
    return notes


def worse_than_constant(
    train: Array, test: Array, predicted: Array, task: str, split: str
) -> list[str]:
    """A note if the plain model is clearly worse on the test rows than one answer for everybody.

    Args:
        train, test: the target of the training and the test rows: class numbers, or numbers.
        predicted: the model's predictions for the test rows, of the same kind.
        task: "classification" or "regression".
        split: how the test rows were chosen.
    """
    if task == "classification":
        constant = np.bincount(train).argmax()
        model, simple = float((predicted == test).mean()), float((constant == test).mean())
        worse = (predicted != test) * 1.0 - (constant != test)  # of each row
        text = f"{100 * model:.1f}% right, {100 * simple:.1f}% by the most frequent class"
    else:
        errors = [float(np.abs(test - other).mean()) for other in (predicted, np.median(train))]
        worse = (test - predicted) ** 2 - (test - train.mean()) ** 2
        text = f"a mean error of {errors[0]:.4g}, {errors[1]:.4g} by the median"
    if worse.mean() <= 2 * worse.std() / np.sqrt(len(worse)):
        return []
    later = ": what held before does not hold later" if split == "after" else ""
    return [
        f"On the test rows the plain model is worse than one answer for everybody ({text} of the"
        f" training rows){later}. Do not use it there."
    ]


# -- one split


class Candidate(NamedTuple):
    """Settings of a method, and what they give out of fold, on the sample of one split."""

    settings: dict[str, Any]  # of the model, and of the weights it is trained with
    predicted: Array  # out of fold, (sample, k) or (sample,)
    rounds: int  # of boosting, averaged over the folds; 0 for linear models
    measures: dict[str, float]  # loss, robust_value, tail, score; with a slice to fix, worst_cell


@dataclass
class TriedMethod:
    """The candidates of a method on one split, and the model with the best settings."""

    candidates: list[Candidate] = field(default_factory=list)
    chosen: int = 0  # position of the best candidate
    model: Model | None = None  # fitted to all training rows with its settings
    on_test: Array | None = None  # its predictions of the test rows
    seconds: float = 0.0  # for all of this

    @property
    def best(self) -> Candidate:
        """The candidate that was chosen."""
        return self.candidates[self.chosen]


class SplitStudy:
    """All methods on one split. With `fix`, one of them serves its slice.

    `run` tries every candidate of every method out of fold, chooses, fits the chosen ones to all
    training rows and predicts the test rows. Plain training comes first: the others start from its
    settings, and a second look needs its predictions.

    Attributes:
        train, test: numbers of the rows.
        sample: numbers of the rows that settings are chosen on: `train`, or some of it.
        y: the target of all rows: class numbers, or standardised.
        methods: by name, in the order in which they were tried.
    """

    def __init__(
        self, problem: TableProblem, options: TrainOptions, fix: Fix | None, fits: Fits, log: StudyLog,
        seed: int,
    ) -> None:  # fmt: skip
        self.problem, self.options, self.fix = problem, options, fix
        self.fits, self.log, self.seed = fits, log, seed
        self.train, self.test = problem.split_rows(seed)
        self.learner = Learner(problem, options, self.train, seed)
        self.sample, self.y, self.scale = self.learner.sample, self.learner.y, self.learner.scale
        self.methods: dict[str, TriedMethod] = {}

    def run(self) -> None:
        """Try every candidate out of fold; then fit the best of each method, and test it."""
        for name in self.options.methods:
            began, method = time.monotonic(), TriedMethod()
            self.methods[name] = method
            for settings in self._settings(name):
                self.log.tell(f"{name}: {', '.join(f'{k} {v}' for k, v in settings.items())}")
                one = self._try(name, settings)
                method.candidates.append(one)
                self.log.candidate(name, {**settings, **one.measures})
            method.chosen = self._choose(name, method.candidates)
            method.seconds = time.monotonic() - began
        for name, method in self.methods.items():
            self.log.tell(f"{name}: final fit")
            began, best = time.monotonic(), method.best
            weights = self._weights(name, best.settings, self.train)
            method.model = self.learner.fit_rows(self.train, weights, best.settings, best.rounds)
            method.on_test = method.model.predict(self.learner.X[self.test])
            method.seconds += time.monotonic() - began

    def out_of_fold(self, name: str) -> Array:
        """What a method predicts for the sample."""
        return self.methods[name].best.predicted

    def on_test(self, name: str) -> Array:
        """What a method predicts for the test rows."""
        predicted = self.methods[name].on_test
        assert predicted is not None
        return predicted

    # -- choosing settings

    def _settings(self, name: str) -> list[dict[str, Any]]:
        """The candidates of a method, as many for each: robust ones vary their robustness, the others the model."""
        most = self.options.candidates
        if name in ("plain", "class-weighted"):
            return self.learner.candidates(most)
        own = self.methods["plain"].best.settings
        if name == "group-weighted":  # the classes as they are, and one more with all cells equal
            tried = self.learner.candidates(most)
            return [{**one, "weights": WAYS[0]} for one in tried] + [{**own, "weights": WAYS[1]}]
        if name == "worst-case":
            return [{**own, "rho": radius} for radius in sorted(RADII[:most])]
        looks = ["half", *RADII] if self.problem.classes else sorted(RADII[:most])
        return [{**own, "look": look} for look in looks[:most]]

    def _try(self, name: str, settings: dict[str, Any]) -> Candidate:
        """A candidate: its predictions out of fold, and their measures.

        The predictions come from the folder of the run, if an interrupted run has left them there.
        """
        arrays = self.fits.get(
            {"seed": self.seed, "method": name, "settings": settings},
            lambda: self.learner.cross_fit(settings, self._weights(name, settings, self.sample)),
        )
        predicted, y = arrays["predicted"], self.y[self.sample]
        measures = measure(row_losses(predicted, y), self.options.rho)
        scores = row_scores(predicted, y)
        measures["score"] = float(scores.mean())
        if self.fix is not None:
            measures["worst_cell"] = self.fix.worst_cell(scores, self.sample)
        return Candidate(settings, predicted, mean_rounds(arrays["rounds"]), measures)

    def _choose(self, name: str, candidates: list[Candidate]) -> int:
        """The position of the best candidate, as the head of this file says."""
        measures, everyone = [one.measures for one in candidates], range(len(candidates))
        if name == "plain":
            return min(everyone, key=lambda k: measures[k]["loss"])
        if name == "class-weighted":
            y = self.y[self.sample]
            equal = _equal_classes(y)
            losses = [np.average(row_losses(c.predicted, y), weights=equal) for c in candidates]
            return int(np.argmin(losses))
        # Among robust candidates a model that says the same to everybody would win: it has the
        # lowest worst-case loss of all. So only those that tell rows apart, if there are any.
        differ = [
            k
            for k, one in enumerate(candidates)
            if not is_flat(one.predicted) and one_answer(one.predicted) is None
        ] or everyone
        good = [k for k in differ if self._is_within_budget(measures[k])]
        if not good:
            return max(differ, key=lambda k: measures[k]["score"])
        if name == "group-weighted":
            return max(good, key=lambda k: measures[k]["worst_cell"])
        return min(good, key=lambda k: measures[k]["robust_value"])

    def _is_within_budget(self, measures: dict[str, float]) -> bool:
        """Whether a candidate costs at most half of the budget, out of fold.

        Half, since the verdict asks the test rows too, and both are noisy.
        """
        plain = self.methods["plain"].best.measures
        return measures["score"] >= plain["score"] - self.options.budget / 2

    def candidates(self, name: str) -> list[CandidateSummary]:
        """All candidates of a method, in the order in which they were tried."""
        method = self.methods[name]
        return [
            {
                "settings": one.settings,
                "out_of_fold": one.measures,
                "within_budget": self._is_within_budget(one.measures),
                "chosen": k == method.chosen,
            }
            for k, one in enumerate(method.candidates)
        ]

    # -- weights

    def _weights(self, name: str, settings: dict[str, Any], rows: Array) -> Array:
        """The weights of some rows for training, (rows,), with mean one."""
        if name == "class-weighted":
            return _equal_classes(self.y[rows])
        if name == "group-weighted" and self.fix is not None:
            return self.fix.weights(rows, settings["weights"])
        if name == "second-look":
            return self._weigh_second_look(self.reference(rows), self.y[rows], settings["look"])
        return np.ones(len(rows))

    def _weigh_second_look(self, reference: Array, y: Array, look: Any) -> Array:
        """The weights of a second look ("half", or a radius) at what the reference predicts for the rows."""
        if not self.problem.classes:
            tilted: Array = worst_case(np.abs(reference - y), look).weights * len(y)
            return tilted
        with warnings.catch_warnings():  # if no class can be looked into, the scores show it
            warnings.simplefilter("ignore", ScdroWarning)
            given = reference[np.arange(len(y)), y]
            weights: Array = second_look_weights(given, y, rho=look, balance_classes=False)
        return weights

    def reference(self, rows: Array) -> Array:
        """Plain predictions by models that did not see the rows, for the weights of a second look.

        Args:
            rows: the sample, predicted out of fold; or all training rows of a large table, where
                those outside of the sample are predicted by a model of the sample.
        """
        best = self.methods["plain"].best
        if len(rows) == len(self.sample):
            return best.predicted

        def predict_others() -> dict[str, Any]:
            even = np.ones(len(self.sample))
            model = self.learner.fit_rows(self.sample, even, best.settings, best.rounds)
            return {"predicted": model.predict(self.learner.X[rows])}

        what = {"seed": self.seed, "reference": best.settings}
        predicted: Array = self.fits.get(what, predict_others)["predicted"]
        predicted[np.searchsorted(rows, self.sample)] = best.predicted
        return predicted

    # -- where the model fails

    def slices(self, robust: str | None) -> list[SliceSummary]:
        """Descriptions of the rows that plain training fails, out of fold.

        Rows are weighted as a second look would weight them (classes), or by the worst case of
        their errors (a quantity), and `find_slices` describes those with the most weight.

        Args:
            robust: the method whose scores in each slice are given beside the plain ones; None for
                none.
        """
        columns, y = self.problem.columns_to_describe(self.sample), self.y[self.sample]
        seen = [self.out_of_fold(name) for name in ("plain", robust) if name is not None]
        if not columns:
            return []
        if self.problem.classes:
            weights, names = (
                self._weigh_second_look(seen[0], y, "half"),
                np.array(self.problem.classes),
            )
            order = np.argsort(names)
            scored = [proba[:, order] for proba in seen]
            about: Any = {"y": names[y], "label": self.problem.target}
        else:
            scored = [np.abs(predicted - y) * self.scale[1] for predicted in seen]
            weights = worst_case(scored[0] / self.scale[1], self.options.rho).weights * len(y)
            about = {"errors": True}
        before, after = (*scored, None)[:2]  # plain, and robust if there is one
        least = LEAST_GROUP // 2
        described = find_slices(
            weights, columns, proba=before, after=after, min_size=least, **about
        )
        return [
            {
                "conditions": list(one.conditions),
                "size": one.size,
                "share": one.share,
                "lift": one.lift,
                "p_value": one.p_value,
                "before": one.before if np.isfinite(one.before) else None,
                "after": one.after if np.isfinite(one.after) else None,
                "sentence": str(one),
            }
            for one in described
        ]


def _equal_classes(y: Array) -> Array:
    """Weights with mean one and equal totals of the classes."""
    return balanced(np.ones(len(y)), y, few=1)


# -- what a run tells while it works


class StudyLog:
    """Tells a callback and loggers how far a study has come.

    Attributes:
        total: number of candidates and final fits over all splits.
        done: how many of these have begun.
        candidates: how many were evaluated: the step of the loggers' numbers.
    """

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
        """The final scores, the groups, and where the plain model fails."""
        # One number for each score of each method, under "final/plain/accuracy"; then two tables.
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
        left_out = ("conditions", "sentence")
        slices = [
            {"who": " and ".join(one["conditions"])}
            | {key: value for key, value in one.items() if key not in left_out}
            for one in summary["slices"]
        ]
        for logger in self.loggers:
            logger.scalars(scores, self.candidates)
            for name, rows in (("groups", groups), ("slices", slices)):
                if rows:
                    logger.table(name, rows, self.candidates)
            logger.flush()
