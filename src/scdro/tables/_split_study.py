"""One split of a table: every method's candidates are compared by cross-validation, and the best fitted and tested."""

from __future__ import annotations

import math
import time
import warnings as python_warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from scdro.errors import DataError
from scdro.functional import worst_case
from scdro.second_look import SecondLook, find_slices, second_look_weights
from scdro.tables import _folder
from scdro.tables._columns import Columns
from scdro.tables._families import FAMILIES
from scdro.tables._logs import Logs
from scdro.tables._models import Family, Model, Part
from scdro.tables._problem import Options, TableProblem, TrainTest
from scdro.tables._read import shown
from scdro.tables._summary import CandidateSummary, Curve, SliceSummary
from scdro.tables._verdict import Predictions, measure, row_losses, row_scores

__all__ = ["MANY_ROWS", "Candidate", "MethodStudy", "SplitStudy"]

Array = npt.NDArray[Any]
RADII = (0.0, 0.1, 0.05, 0.2, 0.5, 0.02, 1.0)  # as many of the first as there are candidates
MANY_ROWS, SAMPLE = 100_000, 50_000  # with more rows, settings are chosen on this many
LOOKED_AT = 20_000  # rows for the verdict of `SecondLook`


class Candidate(NamedTuple):
    """Settings of a method, with predictions and scores out of fold."""

    settings: dict[str, Any]
    predicted: Array
    rounds: int
    measures: dict[str, float]
    seconds: float


@dataclass
class MethodStudy:
    """A method on one seed: its candidates, the one chosen, and the final model's predictions on the test rows."""

    name: str
    candidates: list[Candidate] = field(default_factory=list)
    chosen: int = 0
    on_test: Array | None = None  # predictions
    model: Model | None = None
    seconds: float = 0.0

    @property
    def best(self) -> Candidate:
        return self.candidates[self.chosen]


class SplitStudy:
    """All methods on one split."""

    def __init__(
        self,
        problem: TableProblem,
        options: Options,
        fits: _folder.Fits,
        seed: int,
        tell: Callable[[str], None],
        logs: Logs,
    ) -> None:
        self.problem, self.options, self.fits, self.seed = problem, options, fits, seed
        self.tell, self.logs = tell, logs
        everyone = np.arange(len(problem.y))
        self.cut = TrainTest(everyone, everyone) if options.audit else problem.cut(seed)
        rows = self.cut.train
        if len(rows) > MANY_ROWS:
            rows = problem.sample(rows, SAMPLE, seed)
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
        """Candidates of a method, as many for every method: robust ones vary their robustness, the others the model."""
        most = self.options.candidates
        if name in ("plain", "class-weighted"):
            return self.family.candidates(len(self.sample))[:most]
        own = self.methods["plain"].best.settings
        if name == "worst-case":
            return [{**own, "rho": rho} for rho in sorted(RADII[:most])]
        if not self.problem.classes:
            return [{**own, "look": rho} for rho in sorted([r for r in RADII if r][:most])]
        ways: list[dict[str, Any]] = [{"look": "half", "balanced": True}, {"look": "half", "balanced": False}]
        ways += [{"look": rho, "balanced": False} for rho in (0.2, 0.05, 0.1, 0.5)]
        return [{**own, **way} for way in ways[:most]]

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
            if rounds.any():  # chosen by the other folds: a fold that chose its own would look too good
                model.stop_at(max(_mean_up(np.delete(rounds, fold)), 1))
            predicted[unseen] = model.predict(whole.X[unseen])
        return {"predicted": predicted, "rounds": rounds}

    def _fitted(self, part: Part, held_out: Part | None, settings: dict[str, Any]) -> Model:
        own = {key: value for key, value in settings.items() if key not in ("look", "balanced")}
        with python_warnings.catch_warnings():
            python_warnings.simplefilter("ignore")  # the libraries warn about things that are fine here
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
        good = [k for k, m in enumerate(measures) if self._within_budget(m)]
        if not good:
            return int(np.argmax([m["score"] for m in measures]))
        return min(good, key=lambda k: measures[k]["robust_value"])

    def _within_budget(self, measures: dict[str, float]) -> bool:
        """Half of the budget counts out of fold, since the test rows, which must agree, are noisy too."""
        return measures["score"] >= self.methods["plain"].best.measures["score"] - self.options.budget / 2

    def over_budget(self, name: str | None) -> bool:
        return name is not None and not self._within_budget(self.methods[name].best.measures)

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
                "within_budget": self._within_budget(candidate.measures),
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
        """Predictions by models that did not see the rows: class-weighted ones for balanced weights, else plain."""
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
        method.on_test = method.model.predict(self.X[self.cut.test])
        method.seconds += time.monotonic() - began

    def predictions(self, name: str) -> Predictions:
        """Of a method on the test rows; of an audit, out of fold."""
        method = self.methods[name]
        predicted = method.best.predicted if self.options.audit else method.on_test
        assert predicted is not None
        return Predictions(name, self.seed, self.cut.test, predicted, self.y[self.cut.test], self.scale)

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
                min_size=max(self.options.least_group // 2, 2),
                after=None if after is None else np.abs(after - y) * self.scale[1],
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
            rows = self.problem.sample(rows, LOOKED_AT, self.seed)
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
    """A family of models as an estimator for `SecondLook`."""

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
