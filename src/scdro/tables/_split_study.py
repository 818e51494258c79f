"""One split of a table: the candidates of every method, compared out of fold; the best ones fitted and tested.

plain            the lowest mean loss wins; all others start from its settings
class-weighted   the lowest mean loss with equal classes
worst-case, second-look, group-weighted
                 of the candidates that cost at most half of the budget and do not give every
                 row one answer: the lowest worst-case loss; with a slice to fix, the best
                 worst cell
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scdro.errors import ScdroWarning
from scdro.fix import balanced, second_look_weights
from scdro.functional import worst_case
from scdro.second_look import find_slices
from scdro.tables._fix import WAYS, Fix
from scdro.tables._folder import Fits
from scdro.tables._logs import StudyLog
from scdro.tables._models import Learner, Model, mean_rounds, row_losses
from scdro.tables._options import TrainOptions
from scdro.tables._problem import TableProblem
from scdro.tables._scores import is_flat, measure, one_answer, row_scores
from scdro.tables._summary import CandidateSummary, SliceSummary
from scdro.tables._verdict import LEAST_GROUP

__all__ = ["SplitStudy"]

Array = npt.NDArray[Any]
RADII = (0.1, 0.05, 0.2, 0.5, 0.02, 1.0)  # as many of the first as there are candidates
LOOKS: list[dict[str, Any]] = [  # the same for second looks at classes
    {"look": "half", "balanced": True},
    *({"look": look, "balanced": False} for look in ("half", 0.2, 0.05, 0.1, 0.5)),
]


class Candidate(NamedTuple):
    """Settings of a method, and what they give out of fold."""

    settings: dict[str, Any]
    predicted: Array  # (sample, k) or (sample,)
    rounds: int  # of boosting, averaged over the folds; 0 for linear models
    measures: dict[str, float]  # loss, robust_value, tail, score; with a slice to fix, worst_cell


@dataclass
class TriedMethod:
    """The candidates of a method on one split, and the model with the best settings."""

    candidates: list[Candidate] = field(default_factory=list)
    chosen: int = 0
    model: Model | None = None
    on_test: Array | None = None  # its predictions of the test rows
    seconds: float = 0.0

    @property
    def best(self) -> Candidate:
        return self.candidates[self.chosen]


class SplitStudy:
    """All methods on one split. With `fix`, one of them serves its slice.

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
        self.train, self.test = problem.cut(seed)
        self.learner = Learner(problem, options, self.train, seed)
        self.sample, self.y, self.scale = self.learner.sample, self.learner.y, self.learner.scale
        self.methods: dict[str, TriedMethod] = {}

    def run(self) -> None:
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
        found = self.methods[name].on_test
        assert found is not None
        return found

    # -- choosing settings

    def _settings(self, name: str) -> list[dict[str, Any]]:
        """As many candidates for every method: robust ones vary their robustness, the others the model."""
        most = self.options.candidates
        if name in ("plain", "class-weighted"):
            return self.learner.candidates(most)
        own = self.methods["plain"].best.settings
        if (
            name == "group-weighted"
        ):  # with the classes as they are, and one more with all cells equal
            tried = self.learner.candidates(most)
            return [{**one, "weights": WAYS[0]} for one in tried] + [{**own, "weights": WAYS[1]}]
        if name == "second-look" and self.problem.classes:
            return [{**own, **look} for look in LOOKS[:most]]
        what = "rho" if name == "worst-case" else "look"
        return [{**own, what: radius} for radius in sorted(RADII[:most])]

    def _try(self, name: str, settings: dict[str, Any]) -> Candidate:
        found = self.fits.get(
            {"seed": self.seed, "method": name, "settings": settings},
            lambda: self.learner.cross_fit(settings, self._weights(name, settings, self.sample)),
        )
        predicted, y = found["predicted"], self.y[self.sample]
        measures = measure(row_losses(predicted, y), self.options.rho)
        scores = row_scores(predicted, y)
        measures["score"] = float(scores.mean())
        if self.fix is not None:
            measures["worst_cell"] = self.fix.worst_cell(scores, self.sample)
        return Candidate(settings, predicted, mean_rounds(found["rounds"]), measures)

    def _choose(self, name: str, candidates: list[Candidate]) -> int:
        """The position of the best candidate."""
        measures, everyone = [one.measures for one in candidates], range(len(candidates))
        if name == "plain":
            return min(everyone, key=lambda k: measures[k]["loss"])
        if name == "class-weighted":
            y = self.y[self.sample]
            equal = _equal_classes(y)
            losses = [np.average(row_losses(c.predicted, y), weights=equal) for c in candidates]
            return int(np.argmin(losses))
        # one answer for everybody has the lowest worst losses of all
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
        """Half of the budget counts out of fold, since the test rows, which must agree, are noisy too."""
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
        y = self.y[rows]
        if name == "class-weighted":
            return _equal_classes(y)
        if name == "group-weighted" and self.fix is not None:
            return self.fix.weights(rows, settings["weights"])
        if name == "second-look":
            return self._look_again(self.reference(settings, rows), y, settings)
        return np.ones(len(rows))

    def _look_again(self, reference: Array, y: Array, settings: dict[str, Any]) -> Array:
        """The weights of a second look, from what the reference predicts for the rows."""
        if not self.problem.classes:
            found: Array = worst_case(np.abs(reference - y), settings["look"]).weights * len(y)
            return found
        with warnings.catch_warnings():  # if no class can be looked into, the scores show it
            warnings.simplefilter("ignore", ScdroWarning)
            weights: Array = second_look_weights(
                reference[np.arange(len(y)), y], y, rho=settings["look"],
                balance_classes=settings["balanced"],
            )  # fmt: skip
        return weights

    def reference(self, settings: dict[str, Any], rows: Array) -> Array:
        """Predictions by models that did not see the rows: class-weighted ones for balanced weights, else plain.

        rows: the sample, or all training rows, where the others are predicted by a model of the sample.
        """
        weighted = settings.get("balanced") and "class-weighted" in self.methods
        name = "class-weighted" if weighted else "plain"
        best = self.methods[name].best
        if len(rows) == len(self.sample):
            return best.predicted

        def predict_others() -> dict[str, Any]:
            weights = self._weights(name, best.settings, self.sample)
            model = self.learner.fit_rows(self.sample, weights, best.settings, best.rounds)
            return {"predicted": model.predict(self.learner.X[rows])}

        what = {"seed": self.seed, "reference": name, "settings": best.settings}
        found: Array = self.fits.get(what, predict_others)["predicted"]
        found[np.searchsorted(rows, self.sample)] = best.predicted
        return found

    # -- where the model fails

    def slices(self, robust: str | None) -> list[SliceSummary]:
        """Descriptions of the rows that plain training fails, out of fold; after: by the robust method."""
        plain, y, options = self.out_of_fold("plain"), self.y[self.sample], self.options
        after = None if robust is None else self.out_of_fold(robust)
        columns = self.problem.described(self.sample)
        if not columns:
            return []
        least = LEAST_GROUP // 2
        if self.problem.classes:
            weights = self._look_again(plain, y, {"look": "half", "balanced": False})
            names = np.array(self.problem.classes)
            order = np.argsort(names)
            found = find_slices(
                weights, columns, y=names[y], proba=plain[:, order], min_size=least,
                after=None if after is None else after[:, order], label=self.problem.target,
            )  # fmt: skip
        else:
            errors, unit = np.abs(plain - y), self.scale[1]
            weights = worst_case(errors, options.rho).weights * len(y)
            found = find_slices(
                weights, columns, proba=errors * unit, errors=True, min_size=least,
                after=None if after is None else np.abs(after - y) * unit,
            )  # fmt: skip
        return [_as_summary(one) for one in found]


def _as_summary(one: Any) -> SliceSummary:
    return {
        "conditions": list(one.conditions),
        "size": one.size,
        "share": one.share,
        "lift": one.lift,
        "p_value": one.p_value,
        "before": one.before if np.isfinite(one.before) else None,
        "after": one.after if np.isfinite(one.after) else None,
        "sentence": str(one),
    }


def _equal_classes(y: Array) -> Array:
    """Weights with mean one and equal totals of the classes."""
    return balanced(np.ones(len(y)), y, few=1)
