"""Train plainly and robustly, choose settings by cross-validation, compare on test rows, keep what is worth keeping."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import os
import time
import warnings as python_warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import train_test_split

from scdro import __version__
from scdro._validation import check_choice, check_number, check_whole
from scdro.errors import DataError, HyperparameterError
from scdro.functional import worst_case
from scdro.integrations.loggers import Logger
from scdro.second_look import SecondLook, find_slices, second_look_weights
from scdro.tables import _folder
from scdro.tables._columns import Columns
from scdro.tables._families import FAMILIES
from scdro.tables._logs import Logs
from scdro.tables._models import Family, Model, Part
from scdro.tables._problem import TableProblem, TrainTest, make_problem
from scdro.tables._read import shown
from scdro.tables._run import Run
from scdro.tables._summary import (
    FORMAT,
    CandidateSummary,
    Curve,
    GroupSummary,
    MethodSummary,
    SliceSummary,
    Summary,
    VerdictSummary,
)
from scdro.tables._verdict import Offer, Tested, judge, measure, row_losses, row_scores

__all__ = ["METHODS", "audit", "train"]

Array = npt.NDArray[Any]
METHODS = ("plain", "class-weighted", "worst-case", "second-look")
RADII = (0.0, 0.1, 0.05, 0.2, 0.5, 0.02, 1.0, 0.01)  # the first as many as the budget
MANY_ROWS, SAMPLE = 100_000, 50_000  # with more rows, settings are chosen on this many
LOOKED_AT = 20_000  # rows for the verdict of `SecondLook`

OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Options:
    """Checked options of a study."""

    model: str
    methods: tuple[str, ...]
    rho: float
    price: float
    folds: int
    budget: int
    seed: int
    seeds: int
    least_group: int
    threads: int
    audit: bool


class Candidate(NamedTuple):
    """Settings of a method with what they give out of fold."""

    settings: dict[str, Any]
    predicted: Array
    rounds: int
    measures: dict[str, float]
    seconds: float


@dataclass
class MethodStudy:
    """A method on one seed: its candidates, the one chosen, and what the final model says on the test rows."""

    name: str
    candidates: list[Candidate] = field(default_factory=list)
    chosen: int = 0
    tested: Array | None = None
    model: Model | None = None
    seconds: float = 0.0

    @property
    def best(self) -> Candidate:
        return self.candidates[self.chosen]


def train(
    data: Any,
    target: str,
    *,
    model: str = "trees",
    methods: Sequence[str] | None = None,
    task: str | None = None,
    rho: float = 0.5,
    price: float = 0.002,
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
    budget: int = 4,
    least_group: int = 30,
    threads: int | None = None,
    out: Any = None,
    title: str = "",
    progress: OnProgress | None = None,
    loggers: Sequence[Logger] = (),
) -> Run:
    r"""Train a plain and a robust model on a table, and say who is failed, whether robustness helps, and its price.

    Every method gets the same number of candidate settings, judged out of fold. Of the robust ones, those count whose
    score is at most `price` below plain training's; the lowest robust value, max_{KL(p) <= rho} sum p_i l_i, wins. It
    is kept if the test rows confirm it, otherwise the plain model is.

    Args:
        data: a DataFrame of pandas, polars or Arrow, a dictionary of columns, or the path of a CSV or Parquet file.
        target: the column to predict.
        model: "trees" (LightGBM), "linear" (exact) or "network".
        methods: some of "plain", "class-weighted" (not for regression), "worst-case" and "second-look"; plain is always
            among them. None: all of them.
        task: "classification" or "regression"; None decides: more than 20 different numbers are a quantity.
        rho: radius at which models are compared.
        price: the most accuracy (or R^2), as a share, that robust training may cost.
        group: columns whose combinations are evaluated apart; no model sees them.
        drop, categorical, ids: columns to leave out, to take as categories though they are numbers, to pass through.
        split_by: rows with the same value in this column are either all for training or all for the test.
        split_after: a column of times: its last fifth is the test; ("year", 2000): rows after 2000 are.
        test: other data for the test.
        seed: of the splits, the folds and the models.
        seeds: splits to repeat everything on; None: 3 up to 5,000 rows, 1 beyond.
        folds: of the cross-validation.
        budget: candidates of every method.
        least_group: groups with fewer test rows are shown, but never decide.
        threads: of the models; None: 1 below 20,000 rows, all free cores beyond.
        out: folder of the run; one that was killed goes on there.
        title: for the report.
        progress: called with (done, total, text).
        loggers: get the numbers of every candidate when it has been judged, at the end the scores, groups and slices;
            see `scdro.integrations.loggers`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> age, place = rng.integers(20, 60, 400), rng.choice(["land", "water"], 400)
        >>> bird = np.where((age > 40) ^ (rng.random(400) < 0.1), "yes", "no")
        >>> run = train({"age": age, "place": place, "bird": bird}, "bird", model="linear", budget=2, seeds=1)
        >>> run.summary["verdict"]["kept"], run.predict({"age": [25, 58], "place": ["land", "land"]}).tolist()
        ('plain', ['no', 'yes'])
    """
    problem = make_problem(
        data, target, task=task, group=group, drop=drop, categorical=categorical, ids=ids,
        split_by=split_by, split_after=split_after, test=test, folds=folds,
    )  # fmt: skip
    options = _options(
        problem, model, methods, rho, price, folds, budget, seed, seeds, least_group, threads, audit=False
    )
    return _in_folder(problem, options, out, title or _title(data), progress, Logs(loggers))


def audit(
    data: Any,
    target: str,
    *,
    model: str = "trees",
    methods: Sequence[str] | None = None,
    task: str | None = None,
    rho: float = 0.5,
    price: float = 0.002,
    group: Sequence[str] = (),
    drop: Sequence[str] = (),
    categorical: Sequence[str] = (),
    ids: Sequence[str] = (),
    split_by: str | None = None,
    seed: int = 0,
    folds: int = 3,
    budget: int = 4,
    least_group: int = 30,
    threads: int | None = None,
    out: Any = None,
    title: str = "",
    progress: OnProgress | None = None,
    loggers: Sequence[Logger] = (),
) -> Run:
    """Whom a plain model fails, and what a second look would gain at what price, for a range of rho; no model is kept.

    All rows are judged out of fold. Arguments as for `train`; without `methods`, all but "worst-case".

    Example:
        >>> rng = np.random.default_rng(0)
        >>> age = rng.integers(20, 60, 300)
        >>> run = audit({"age": age, "old": np.where(age > 40, "yes", "no")}, "old", model="linear", budget=2)
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
    options = _options(problem, model, methods, rho, price, folds, budget, seed, 1, least_group, threads, audit=True)
    return _in_folder(problem, options, out, title or _title(data), progress, Logs(loggers))


def _title(data: Any) -> str:
    return Path(data).name if isinstance(data, str | Path) else ""


def _options(
    problem: TableProblem, model: str, methods: Sequence[str] | None, rho: float, price: float, folds: int, budget: int,
    seed: int, seeds: int | None, least_group: int, threads: int | None, audit: bool,
) -> Options:  # fmt: skip
    n = len(problem.y)
    check_choice("model", model, ("trees", "linear", "network"))
    possible = [name for name in METHODS if problem.classes or name != "class-weighted"]
    for name in methods or ():
        if name not in possible:
            task = "classification" if problem.classes else "regression"
            raise HyperparameterError(f"expected methods for {task} among {', '.join(possible)}, got {name!r}")
    check_number("rho", rho, ">= 0", "the radius at which models are compared")
    check_number("price", price, "in [0, 1]", "the share of accuracy that robust training may cost")
    seeds = (3 if n <= 5000 else 1) if seeds is None else seeds
    cores = os.cpu_count() or 1
    threads = (1 if n < 20_000 else _free(cores)) if threads is None else threads
    for what, value, most in (
        ("budget", budget, 6), ("seed", seed, 2**31 - 1), ("seeds", seeds, 100),
        ("least_group", least_group, n), ("threads", threads, 4 * cores),
    ):  # fmt: skip
        check_whole(what, value, 0 if what == "seed" else 1, most)
    if n > MANY_ROWS and seeds > 1:
        problem.warnings.append(f"{n:,} rows: one seed in place of {seeds}.")
        seeds = 1
    if methods is None:
        methods = [name for name in possible if not audit or name != "worst-case"]
    wanted = [name for name in possible if name in methods or name == "plain"]
    return Options(
        model, tuple(wanted), float(rho), float(price), folds, budget, seed, seeds, least_group, threads, audit
    )


def _free(cores: int) -> int:
    """Cores that nobody uses: LightGBM's threads wait for each other, and two on one core are slower than one."""
    busy = int(os.getloadavg()[0]) if hasattr(os, "getloadavg") else 0
    return max(1, cores - busy)


def _in_folder(
    problem: TableProblem, options: Options, out: Any, title: str, progress: OnProgress | None, logs: Logs
) -> Run:
    def study(fits: _folder.Fits) -> Run:
        return _study(problem, options, fits, title, progress, logs)

    return in_folder(out, {**options.__dict__, "methods": list(options.methods), "data": _digest(problem)}, study)


def in_folder(out: Any, about: dict[str, Any], study: Callable[[_folder.Fits], Run], features: Any = None) -> Run:
    """The run of a folder, if it is there; otherwise a study, which goes on where it was, saved at its end."""
    if out is None:
        return study(_folder.Fits(None))
    folder = Path(out)
    about.pop("threads")  # the same trees, whatever their number
    with _folder.locked(folder):
        _folder.same_run(folder, about)
        fits = _folder.Fits(folder)
        if (folder / _folder.MANIFEST).exists():
            run = Run.load(folder, features)
        else:
            run = study(fits)
            run.save(folder, lock=False)
        fits.clear()
        return run


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


# -- one study --------------------------------------------------------------------------------------------------------


def _study(
    problem: TableProblem, options: Options, fits: _folder.Fits, title: str, progress: OnProgress | None, logs: Logs
) -> Run:
    began = time.monotonic()
    rounds = options.seeds * (sum(1 for _ in options.methods) * (options.budget + (0 if options.audit else 1)) + 1)
    step = [0]

    def tell(text: str) -> None:
        step[0] += 1
        if progress is not None:
            progress(min(step[0], rounds), rounds, text)

    seeds = range(options.seed, options.seed + options.seeds)
    studies = [_Seed(problem, options, fits, seed, tell, logs) for seed in seeds]
    for study in studies:
        study.run()
    robust = _best_robust(studies, options)
    cheapest = _cheapest(studies[0]) if robust == "worst-case" and all(s.is_plain(robust) for s in studies) else None
    robust = robust if cheapest is None else None
    look = studies[0].second_look()
    slices = studies[0].slices(robust)
    tests = [study.tested(name) for study in studies for name in options.methods]
    verdict, groups, methods = judge(
        problem, tests, options, robust, slices, look, studies[0].too_dear(robust), cheapest
    )
    for row in methods:
        own = [study.methods[row["name"]] for study in studies]
        row["settings"] = {**own[0].best.settings, **({"rounds": own[0].best.rounds} if own[0].best.rounds else {})}
        names = own[0].best.measures
        row["out_of_fold"] = {k: float(np.mean([m.best.measures[k] for m in own])) for k in names}
        row["seconds"] = round(sum(m.seconds for m in own), 2)
    first = studies[0]
    chosen_on = len(first.sample)
    notes = list(problem.warnings)
    if options.audit and chosen_on < len(problem.y):
        notes.append(f"{chosen_on:,} of the {len(problem.y):,} rows, drawn at random, were looked at.")
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


class Found(NamedTuple):
    """The results of a study, as the summary has them."""

    methods: list[MethodSummary]
    curves: list[Curve]
    groups: list[GroupSummary]
    slices: list[SliceSummary]
    verdict: VerdictSummary
    warnings: list[str]


def make_summary(
    problem: TableProblem,
    options: Options,
    found: Found,
    cut: TrainTest,
    tested: int,
    chosen_on: int,
    title: str,
    seconds: float,
) -> Summary:
    """The summary of a study."""
    counts = np.bincount(problem.y, minlength=len(problem.classes)).tolist() if problem.classes else []
    return {
        "format": FORMAT,
        "kind": "audit" if options.audit else "train",
        "title": title,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "versions": _versions(options.model),
        "task": {
            "type": "classification" if problem.classes else "regression",
            "target": problem.target,
            "classes": problem.classes,
            "counts": counts,
            "score": "accuracy" if problem.classes else "R2",
            "loss": "log loss" if problem.classes else "squared error",
        },
        "data": {
            "rows": len(problem.y),
            "train": len(cut.train),
            "test": len(cut.test),
            "tested": tested,
            "chosen_on": chosen_on,
            "columns": problem.columns,
            "split": problem.split,
        },
        "settings": {
            "model": options.model,  # type: ignore[typeddict-item]
            "methods": list(options.methods),
            "rho": options.rho,
            "price": options.price,
            "folds": options.folds,
            "budget": options.budget,
            "seeds": options.seeds,
            "least_group": options.least_group,
            "group": problem.group,
        },
        "methods": found.methods,
        "curves": found.curves,
        "groups": found.groups,
        "slices": found.slices,
        "verdict": found.verdict,
        "warnings": found.warnings,
    }


def _versions(model: str) -> dict[str, str]:
    packages = {"trees": ["lightgbm"], "network": ["torch"], "images": ["torch", "pillow"]}.get(model, [])
    names = ["scikit-learn", "polars", *packages]
    return {"scdro": __version__} | {name: importlib.metadata.version(name) for name in names}


def _best_robust(studies: list[_Seed], options: Options) -> str | None:
    """The method with the lowest robust value out of fold, of those within the price; over all seeds."""
    others = [name for name in options.methods if name != "plain"]
    if not others:
        return None

    def mean(name: str, what: str) -> float:
        return float(np.mean([study.methods[name].best.measures[what] for study in studies]))

    within = [name for name in others if mean(name, "score") >= mean("plain", "score") - options.price / 2]
    return min(within or others, key=lambda name: mean(name, "robust_value"))


def _cheapest(study: _Seed) -> Offer | None:
    """Of the radii that were given up, the one that costs least; None if 0 was the only one."""
    tried = [c for c in study.methods["worst-case"].candidates if c.settings["rho"] > 0]
    if not tried:
        return None
    plain = study.methods["plain"].best.measures
    better = [c for c in tried if c.measures["robust_value"] < plain["robust_value"]]
    best = max(better or tried, key=lambda c: c.measures["score"])
    return Offer(best.settings["rho"], plain, best.measures, bool(better))


class _Seed:
    """All methods on one split."""

    def __init__(
        self, problem: TableProblem, options: Options, fits: _folder.Fits, seed: int, tell: Any, logs: Logs
    ) -> None:
        self.problem, self.options, self.fits, self.seed = problem, options, fits, seed
        self.tell, self.logs = tell, logs
        everyone = np.arange(len(problem.y))
        self.cut = TrainTest(everyone, everyone) if options.audit else problem.cut(seed)
        rows = self.cut.train
        if len(rows) > MANY_ROWS:
            stratify = problem.y[rows] if problem.classes else None
            rows = np.sort(train_test_split(rows, train_size=SAMPLE, random_state=seed, stratify=stratify)[0])
        self.sample = rows
        if options.audit:
            self.cut = TrainTest(rows, rows)
        self.family: Family = FAMILIES[options.model](options.threads)
        self.methods: dict[str, MethodStudy] = {}
        named = [c["name"] for c in problem.columns if c["kind"] == "category"]
        self.columns = Columns.fit(problem.frame[self.cut.train], problem.features(), named)
        self.X = self.columns.encode(problem.frame)
        self.y, self.scale = problem.y, (0.0, 1.0)
        if not problem.classes:
            mean, std = float(self.y[self.cut.train].mean()), float(self.y[self.cut.train].std()) or 1.0
            self.y, self.scale = (self.y - mean) / std, (mean, std)
        self.folds = problem.folds(rows, options.folds, seed)
        self._check()

    def _check(self) -> None:
        """Check what only the folds and the encoded columns show."""
        for seen, _ in self.folds if self.problem.classes else ():
            present = np.unique(self.y[self.sample[seen]])
            if len(present) < 2:
                only, column = self.problem.classes[present[0]], self.problem.split["column"]
                raise DataError(
                    f"expected two classes to learn from in every fold, got only {shown(only)} in one: the others are "
                    f"in too few values of {shown(column)}"
                )
        if self.options.model != "trees":
            for name, column in zip(self.columns.names, self.X.T, strict=True):
                largest = np.nanmax(np.abs(column), initial=0.0)
                if largest > 1e100:
                    raise DataError(
                        f"expected numbers that can be scaled in column {shown(name)}, got one of size {largest:g}; "
                        "leave the column out, or use trees"
                    )

    # -- choosing ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        for name in self.options.methods:
            method = self.methods[name] = MethodStudy(name)
            for settings in self._settings(name):
                self.tell(f"{name}: {_as_text(settings)}")
                method.candidates.append(self._candidate(name, settings))
                self.logs.candidate(name, settings, method.candidates[-1].measures)
            method.chosen = self._choose(method)
            method.seconds = sum(c.seconds for c in method.candidates)
        for name in () if self.options.audit else self.options.methods:
            self.tell(f"{name}: final fit")
            self._final(self.methods[name])

    def _settings(self, name: str) -> list[dict[str, Any]]:
        """Candidates of a method, as many for each: robust methods vary their robustness, the others the model."""
        budget = self.options.budget
        if name in ("plain", "class-weighted"):
            return self.family.candidates(len(self.sample))[:budget]
        own = self.methods["plain"].best.settings
        if name == "worst-case":
            return [{**own, "rho": rho} for rho in sorted(RADII[:budget])]
        if not self.problem.classes:
            return [{**own, "look": rho} for rho in sorted([r for r in RADII if r][:budget])]
        ways: list[dict[str, Any]] = [{"look": "half", "balanced": True}, {"look": "half", "balanced": False}]
        ways += [{"look": rho, "balanced": False} for rho in (0.2, 0.05, 0.1, 0.5, 1.0, 0.02)]
        return [{**own, **way} for way in ways[:budget]]

    def _candidate(self, name: str, settings: dict[str, Any]) -> Candidate:
        began = time.monotonic()
        what = {"seed": self.seed, "method": name, "settings": settings}
        found = self.fits.get(what, lambda: self._cross_fit(settings, self._weights(name, settings, self.sample)))
        predicted, rounds = found["predicted"], _mean_up(found["rounds"])
        measures = measure(row_losses(predicted, self.y[self.sample]), self.options.rho)
        measures["score"] = float(row_scores(predicted, self.y[self.sample]).mean())
        return Candidate(settings, predicted, rounds, measures, time.monotonic() - began)

    def _cross_fit(self, settings: dict[str, Any], weights: Array) -> dict[str, Any]:
        whole = Part(self.X[self.sample], self.y[self.sample], weights)
        k = len(self.problem.classes)
        predicted = np.zeros((len(self.sample), k) if k else len(self.sample))
        models = [self._fitted(whole.take(seen), whole.take(unseen), settings) for seen, unseen in self.folds]
        rounds = np.array([model.rounds for model in models])
        for fold, (model, (_, unseen)) in enumerate(zip(models, self.folds, strict=True)):
            if rounds.any():  # the other folds say when to stop: a fold that did would be judged too well
                model.stop_at(max(_mean_up(np.delete(rounds, fold)), 1))
            predicted[unseen] = model.predict(whole.X[unseen])
        return {"predicted": predicted, "rounds": rounds}

    def _fitted(self, part: Part, held_out: Part | None, settings: dict[str, Any]) -> Model:
        own = {key: value for key, value in settings.items() if key not in ("look", "balanced")}
        with python_warnings.catch_warnings():
            python_warnings.simplefilter("ignore")  # of the libraries, about things that are as they should be
            return self.family.fit(self.columns, part, held_out, own, len(self.problem.classes), self.seed)

    def _choose(self, method: MethodStudy) -> int:
        measures = [c.measures for c in method.candidates]
        if method.name == "plain":
            return int(np.argmin([m["loss"] for m in measures]))
        if method.name == "class-weighted":
            y = self.y[self.sample]
            share = _balanced(y)
            losses = [float(np.average(row_losses(c.predicted, y), weights=share)) for c in method.candidates]
            return int(np.argmin(losses))
        good = [k for k, m in enumerate(measures) if self._within_price(m)]
        if not good:
            return int(np.argmax([m["score"] for m in measures]))
        return min(good, key=lambda k: measures[k]["robust_value"])

    def _within_price(self, measures: dict[str, float]) -> bool:
        """Half of the price is spent out of fold: the test rows, which must agree, are noisy too."""
        return measures["score"] >= self.methods["plain"].best.measures["score"] - self.options.price / 2

    def too_dear(self, name: str | None) -> bool:
        return name is not None and not self._within_price(self.methods[name].best.measures)

    def is_plain(self, name: str) -> bool:
        """Whether rho 0 was chosen: the model is plain training's."""
        return self.methods[name].best.settings.get("rho") == 0

    def curve(self, name: str) -> Curve:
        """All candidates of a method."""
        method, points = self.methods[name], []
        for k, candidate in enumerate(method.candidates):
            point: CandidateSummary = {
                "rho": candidate.settings.get("rho", candidate.settings.get("look")),
                "settings": candidate.settings,
                "score": candidate.measures["score"],
                "loss": candidate.measures["loss"],
                "robust_value": candidate.measures["robust_value"],
                "tail": candidate.measures["tail"],
                "within_price": self._within_price(candidate.measures),
                "chosen": k == method.chosen,
            }
            points.append(point)
        return {"method": name, "points": points}

    # -- weights -----------------------------------------------------------------------------------------------------

    def _weights(self, name: str, settings: dict[str, Any], rows: Array) -> Array:
        y = self.y[rows]
        if name == "class-weighted":
            return _balanced(y)
        if name != "second-look":
            return np.ones(len(rows))
        return self._second_look_weights(self._reference(settings, rows), y, settings)

    def _second_look_weights(self, reference: Array, y: Array, settings: dict[str, Any]) -> Array:
        if not self.problem.classes:
            found: Array = worst_case(np.abs(reference - y), settings["look"]).weights * len(y)
            return found
        of_label = reference[np.arange(len(y)), y]
        weights: Array = second_look_weights(of_label, y, rho=settings["look"], balance_classes=settings["balanced"])
        return weights

    def _reference(self, settings: dict[str, Any], rows: Array) -> Array:
        """What a model that has not seen a row says about it. Balanced weights look at a balanced model."""
        name = "class-weighted" if settings.get("balanced") and "class-weighted" in self.methods else "plain"
        best = self.methods[name].best
        if rows is self.sample:
            return best.predicted
        found: Array = self.fits.get(
            {"seed": self.seed, "reference": name, "settings": best.settings}, lambda: self._elsewhere(name, rows)
        )["predicted"]
        found[np.searchsorted(rows, self.sample)] = best.predicted
        return found

    def _elsewhere(self, name: str, rows: Array) -> dict[str, Any]:
        """Rows outside the sample, by a model fitted on it."""
        best = self.methods[name].best
        part = Part(self.X[self.sample], self.y[self.sample], self._weights(name, best.settings, self.sample))
        model = self._fitted(part, None, {**best.settings, "rounds": max(best.rounds, 1)})
        return {"predicted": model.predict(self.X[rows])}

    # -- the final models --------------------------------------------------------------------------------------------

    def _final(self, method: MethodStudy) -> None:
        began = time.monotonic()
        rows, best = self.cut.train, method.best
        rows = self.sample if len(rows) == len(self.sample) else rows
        part = Part(self.X[rows], self.y[rows], self._weights(method.name, best.settings, rows))
        settings = {**best.settings, "rounds": max(best.rounds, 1)}
        method.model = self._fitted(part, None, settings)
        method.tested = method.model.predict(self.X[self.cut.test])
        method.seconds += time.monotonic() - began

    def tested(self, name: str) -> Tested:
        method = self.methods[name]
        predicted = method.best.predicted if self.options.audit else method.tested
        assert predicted is not None
        return Tested(name, self.seed, self.cut.test, predicted, self.y[self.cut.test], self.scale)

    # -- who is failed -----------------------------------------------------------------------------------------------

    def slices(self, robust: str | None) -> list[SliceSummary]:
        """Descriptions of the rows that plain training fails, out of fold."""
        plain, y = self.methods["plain"].best.predicted, self.y[self.sample]
        after = None if robust is None else self.methods[robust].best.predicted
        frame = self._described()
        if not frame:
            return []
        if not self.problem.classes:
            errors = np.abs(plain - y)
            weights = worst_case(errors, self.options.rho).weights * len(y)
            found = find_slices(
                weights, frame, proba=errors * self.scale[1], errors=True,
                after=None if after is None else np.abs(after - y) * self.scale[1],
                min_size=max(self.options.least_group // 2, 2),
            )  # fmt: skip
        else:
            weights = self._second_look_weights(plain, y, {"look": "half", "balanced": False})
            names = np.array(self.problem.classes)
            order = np.argsort(names)
            found = find_slices(
                weights, frame, y=names[y], proba=plain[:, order], after=None if after is None else after[:, order],
                min_size=max(self.options.least_group // 2, 2), label=self.problem.target,
            )  # fmt: skip
        return [self._slice_row(one) for one in found]

    def _described(self) -> dict[str, Array]:
        frame, found = self.problem.frame[self.sample], {}
        for column in self.problem.columns:
            series = frame[column["name"]]
            if column["kind"] in ("number", "category", "group") and not series.dtype.is_temporal():
                found[column["name"]] = series.to_numpy()
        return found

    def _slice_row(self, one: Any) -> SliceSummary:
        return {
            "conditions": list(one.conditions),
            "size": one.size,
            "share": one.share,
            "lift": one.lift,
            "p_value": one.p_value,
            "before": None if math.isnan(one.before) else one.before,
            "after": None if math.isnan(one.after) else one.after,
            "sentence": str(one),
        }

    def second_look(self) -> str | None:
        """The verdict of `SecondLook` on (some of) the rows that settings were chosen on."""
        if "second-look" not in self.options.methods:
            return None
        self.tell("second look: verdict")
        found = self.fits.get({"seed": self.seed, "verdict": "second look"}, self._looked)
        return str(found["answer"])

    def _looked(self) -> dict[str, Any]:
        rows = self.sample
        if len(rows) > LOOKED_AT:
            stratify = self.problem.y[rows] if self.problem.classes else None
            rows = np.sort(train_test_split(rows, train_size=LOOKED_AT, random_state=self.seed, stratify=stratify)[0])
        best = self.methods["plain"].best
        settings = {**best.settings, "rounds": max(best.rounds, 1)}
        kind = _Classifier if self.problem.classes else _Regressor
        look = SecondLook(
            kind(self, settings), cv=self.options.folds, repeats=1, grid=None, refuse=False, random_state=self.seed
        )
        groups = None if self.problem.split_by is None else self.problem.split_by[rows]
        if groups is not None:
            look.set_params(cv=self.problem.folds(rows, self.options.folds, self.seed))
        look.fit(self.X[rows], self.y[rows])
        return {"answer": np.array(look.verdict_.answer)}


def _balanced(y: Array) -> Array:
    counts = np.bincount(y)
    weights: Array = len(y) / (np.count_nonzero(counts) * counts[y])
    return weights


def _mean_up(rounds: Array) -> int:
    return int(np.ceil(np.mean(rounds)))


def _as_text(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())


class _Adapter(BaseEstimator):  # type: ignore[misc]
    """A family of models as `SecondLook` takes it."""

    def __init__(self, study: Any = None, settings: Any = None) -> None:
        self.study, self.settings = study, settings

    def __sklearn_clone__(self) -> Any:
        return type(self)(self.study, self.settings)

    def fit(self, X: Array, y: Array, sample_weight: Array | None = None) -> Any:
        weight = np.ones(len(y)) if sample_weight is None else sample_weight
        self.model_ = self.study._fitted(Part(X, y, weight), None, self.settings)
        self.classes_ = np.arange(len(self.study.problem.classes))
        return self


class _Classifier(ClassifierMixin, _Adapter):  # type: ignore[misc]
    def predict_proba(self, X: Array) -> Array:
        found: Array = self.model_.predict(X)
        return found

    def predict(self, X: Array) -> Array:
        found: Array = self.predict_proba(X).argmax(1)
        return found


class _Regressor(RegressorMixin, _Adapter):  # type: ignore[misc]
    def predict(self, X: Array) -> Array:
        found: Array = self.model_.predict(X)
        return found
