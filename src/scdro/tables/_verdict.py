"""Whether robust training helped, at what price, and who is failed: numbers on the same test rows, then in words."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import stats

from scdro._group_metrics import brier, roc_auc
from scdro.functional import worst_case
from scdro.tables._problem import Options, TableProblem
from scdro.tables._summary import (
    Difference,
    GroupSummary,
    Interval,
    Method,
    MethodSummary,
    SliceSummary,
    VerdictSummary,
    WorstGroup,
)

__all__ = ["Offer", "Predictions", "judge", "measure", "row_losses", "row_scores"]

Array = npt.NDArray[Any]
TAIL = 0.05
RESAMPLES, RESAMPLED = 200, 20_000  # bootstrap samples, and the rows they are drawn from at most
FLAT = 0.04  # a model that varies less than this share of a perfect one gives every row the same answer


class Predictions(NamedTuple):
    """Predictions of a method on test rows; of regressors in units of the standardised target."""

    method: str
    seed: int
    rows: Array
    predicted: Array
    y: Array
    scale: tuple[float, float]


def row_losses(predicted: Array, y: Array) -> Array:
    """Log losses, or half of the squared errors."""
    if predicted.ndim == 2:
        found: Array = -np.log(np.maximum(predicted[np.arange(len(y)), y], 1e-15))
        return found
    half: Array = (predicted - y) ** 2 / 2
    return half


def row_scores(predicted: Array, y: Array) -> Array:
    """Values whose mean is the accuracy, or R^2."""
    if predicted.ndim == 2:
        right: Array = (predicted.argmax(1) == y).astype(float)
        return right
    variance = float(np.var(y))  # of the standardised target: 1 in training, and if these rows are all the same
    explained: Array = 1.0 - (predicted - y) ** 2 / (variance if variance > 1e-12 else 1.0)
    return explained


def tail_mean(losses: Array) -> float:
    """Mean of the largest twentieth of the losses."""
    k = max(math.ceil(TAIL * len(losses)), 1)
    return float(np.partition(losses, len(losses) - k)[-k:].mean())


def measure(losses: Array, rho: float) -> dict[str, float]:
    return {
        "loss": float(losses.mean()),
        "robust_value": float(worst_case(losses, rho).value),
        "tail": tail_mean(losses),
    }


# -- intervals --------------------------------------------------------------------------------------------------------


def _estimate(values: Array, share: bool = False, level: float = 0.95) -> Interval:
    """A mean with its interval: Wilson's for a share of right answers, Student's otherwise."""
    n, mean = len(values), float(values.mean())
    if n < 2:
        return {"value": mean, "low": None, "high": None}
    if share:
        found = stats.binomtest(round(values.sum()), n).proportion_ci(level, method="wilson")
        return {"value": mean, "low": float(found.low), "high": float(found.high)}
    if np.ptp(values) == 0:
        return {"value": mean, "low": mean, "high": mean}
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(level)
    return {"value": mean, "low": float(low), "high": float(high)}


def _paired(before: Array, after: Array, level: float = 0.95) -> Difference:
    """Difference of two means over the same rows."""
    change = after - before
    found = _estimate(change, level=level)
    known = bool(np.ptp(change))  # rows that all change by the same amount say nothing about others
    return {
        "before": float(before.mean()), "after": float(after.mean()), "difference": float(change.mean()),
        "low": found["low"] if known else None, "high": found["high"] if known else None,
    }  # fmt: skip


def _resampled(before: Array, after: Array, statistic: Any) -> Difference:
    """Difference of a statistic that is not a mean; its interval is by bootstrap."""
    rng = np.random.default_rng(0)
    rows = np.arange(len(before))
    if len(rows) > RESAMPLED:
        rows = rng.choice(rows, RESAMPLED, replace=False)
    found = stats.bootstrap(
        (before[rows], after[rows]), lambda a, b: statistic(b) - statistic(a), paired=True, vectorized=False,
        n_resamples=RESAMPLES, method="percentile", rng=rng,
    ).confidence_interval  # fmt: skip
    first, then, factor = statistic(before), statistic(after), math.sqrt(len(rows) / len(before))
    middle = then - first
    low, high = (middle + factor * (bound - middle) for bound in (float(found.low), float(found.high)))
    return {"before": first, "after": then, "difference": middle, "low": low, "high": high}


# -- the verdict ------------------------------------------------------------------------------------------------------


def judge(
    problem: TableProblem, predictions: list[Predictions], options: Options, robust: str | None,
    slices: list[SliceSummary], look: str | None, over_budget: bool = False, cheapest: Offer | None = None,
) -> tuple[VerdictSummary, list[GroupSummary], list[MethodSummary]]:  # fmt: skip
    """The verdict, the table of groups, the methods with their scores on the test rows.

    `robust` is None if no robust model is left to compare; `cheapest` is then the cheapest one tried.
    """
    own = {name: [p for p in predictions if p.method == name] for name in options.methods}
    pooled: dict[str, _Pooled] = {name: _Pooled(found) for name, found in own.items()}
    groups = _groups(problem, pooled, options.least_group)
    methods = [_method_row(name, found, pooled[name], options.rho) for name, found in own.items()]
    verdict = _verdict(problem, pooled, groups, options, robust, slices, look, over_budget, cheapest)
    return verdict, groups, methods


class Offer(NamedTuple):
    """A candidate's scores out of fold, next to plain training's, and whether it was rejected for its cost."""

    rho: float
    plain: dict[str, float]
    measures: dict[str, float]
    over_budget: bool


class _Pooled:
    """Losses and scores of each test row, averaged over the seeds that tested it."""

    def __init__(self, predictions: list[Predictions]) -> None:
        rows = np.concatenate([t.rows for t in predictions])
        self.rows, where = np.unique(rows, return_inverse=True)
        times = np.bincount(where)

        def mean(values: list[Array]) -> Array:
            found: Array = np.bincount(where, np.concatenate(values)) / times
            return found

        self.losses = mean([row_losses(t.predicted, t.y) for t in predictions])
        self.scores = mean([row_scores(t.predicted, t.y) for t in predictions])
        self.classifier = predictions[0].predicted.ndim == 2
        self.served = self.scores
        if not self.classifier:
            self.served = mean([np.abs(t.predicted - t.y) * t.scale[1] for t in predictions])
        kept = predictions[0].predicted  # by the model of the first seed, the one that may be kept
        self.flat = _is_flat(kept)
        answers = np.unique(kept.argmax(1)).tolist() if self.classifier else []
        self.one_answer: int | None = answers[0] if len(answers) == 1 else None  # the class that it gives every row


def _is_flat(predicted: Array) -> bool:
    """Whether predictions are nearly the same everywhere. A perfect model of a class of share p has probabilities of
    standard deviation sqrt(p (1 - p)), one of the standardised target 1: a rare class is judged by its own measure."""
    share = predicted.mean(0)
    most = np.sqrt(np.maximum(share * (1 - share), 0.0)) if predicted.ndim == 2 else 1.0
    return bool((predicted.std(0) <= FLAT * most + 1e-9).all())


def _method_row(name: Method, predictions: list[Predictions], pooled: _Pooled, rho: float) -> MethodSummary:
    def mean(function: Any) -> Interval:
        return {"value": float(np.mean([function(t) for t in predictions])), "low": None, "high": None}

    found = measure(pooled.losses, rho)
    scores: dict[str, Interval] = {}
    if pooled.classifier:
        scores["accuracy"] = _estimate(pooled.scores, share=True)
        scores["balanced_accuracy"] = mean(_balanced_accuracy)
        scores["log_loss"] = _estimate(pooled.losses)
        scores["roc_auc"] = mean(_auc)
        scores["brier"] = mean(lambda p: brier(p.y, p.predicted))
    else:
        scores["R2"] = _estimate(pooled.scores)
        scores["mean_absolute_error"] = _estimate(pooled.served)
        scores["root_mean_squared_error"] = mean(lambda t: math.sqrt(np.mean((t.predicted - t.y) ** 2)) * t.scale[1])
    for key in ("robust_value", "tail"):
        scores[key] = {"value": found[key], "low": None, "high": None}
    scores = {key: _finite(value) for key, value in scores.items()}
    return {"name": name, "settings": {}, "scores": scores, "out_of_fold": {}, "seconds": 0.0}


def _finite(estimate: Interval) -> Interval:
    low, value, high = (
        None if v is None or not math.isfinite(v) else v for v in (estimate["low"], estimate["value"], estimate["high"])
    )
    return {"value": value, "low": low, "high": high}


def _balanced_accuracy(t: Predictions) -> float:
    right = t.predicted.argmax(1) == t.y
    return float(np.mean([right[t.y == k].mean() for k in np.unique(t.y)]))


def _auc(p: Predictions) -> float:
    """NaN if a class is absent or there are too many classes."""
    classes = p.predicted.shape[1]
    if len(np.unique(p.y)) < classes or classes > 50:
        return math.nan
    return roc_auc(p.y, p.predicted / p.predicted.sum(1, keepdims=True) if classes > 2 else p.predicted)


def _members(problem: TableProblem, rows: Array) -> list[tuple[str, Literal["class", "group"], Array]]:
    """Name, kind and a mask of every group of these rows."""
    found: list[tuple[str, Literal["class", "group"], Array]] = []
    if 1 < len(problem.classes) <= 50:
        labels = problem.y[rows]
        for k, name in enumerate(problem.classes):
            found.append((f"{problem.target} = {name}", "class", labels == k))
    if problem.groups is not None:
        names = problem.groups[rows]
        found += [(str(name), "group", names == name) for name in np.unique(names)[:200]]
    return [one for one in found if one[2].any()]


def _groups(problem: TableProblem, pooled: dict[str, _Pooled], least: int) -> list[GroupSummary]:
    rows = pooled["plain"].rows
    found: list[GroupSummary] = []
    for name, kind, mask in _members(problem, rows):
        size = int(mask.sum())
        scores = {method: _finite(_estimate(p.served[mask], share=p.classifier)) for method, p in pooled.items()}
        found.append(
            {
                "name": name,
                "kind": kind,
                "size": size,
                "share": size / len(rows),
                "small": size < least,
                "scores": scores,
            }
        )
    sign = 1.0 if problem.classes else -1.0
    return sorted(found, key=lambda g: (g["small"], sign * (g["scores"]["plain"]["value"] or 0.0)))


def _worst_group(problem: TableProblem, before: _Pooled, after: _Pooled, least: int) -> WorstGroup | None:
    """The large enough group that plain training is worst for, with an interval that holds for all of them."""
    large = [one for one in _members(problem, before.rows) if one[2].sum() >= least]
    if len(large) < 2:
        return None
    sign = 1.0 if problem.classes else -1.0
    name, _, mask = min(large, key=lambda one: sign * float(before.served[one[2]].mean()))
    found = _paired(before.served[mask], after.served[mask], 1 - 0.05 / len(large))
    return {"name": name, "size": int(mask.sum()), **found}


def _verdict(
    problem: TableProblem, pooled: dict[str, _Pooled], groups: list[GroupSummary], options: Options, robust: str | None,
    slices: list[SliceSummary], look: str | None, over_budget: bool, cheapest: Offer | None,
) -> VerdictSummary:  # fmt: skip
    plain = pooled["plain"]
    words = _Words(problem, options)
    failed = words.failed(slices, groups, float(plain.served.mean()))
    if robust is None:
        kept = "none" if plain.flat else "plain"
        answer: Any = "not tried"
        headline, sentences = failed, ["Only plain training was asked for."]
        if cheapest is not None:
            answer = "costs too much" if cheapest.over_budget else "no difference"
            headline, said = words.none_chosen(cheapest)
            sentences = [failed, said, *words.looked(look)]
        if plain.flat:
            answer, headline = "nothing learned", words.nothing_learned()
        return {
            "answer": answer, "kept": kept, "saved": _saved(kept, options), "robust": None,
            "headline": headline, "sentences": [*sentences, *words.one_answer(plain, kept)],
            "price": None, "robust_value": None, "tail": None, "worst_group": None, "second_look": look,
        }  # fmt: skip
    after = pooled[robust]
    price = _paired(plain.scores, after.scores)
    value = _resampled(plain.losses, after.losses, lambda losses: float(worst_case(losses, options.rho).value))
    tail = _resampled(plain.losses, after.losses, tail_mean)
    worst = _worst_group(problem, plain, after, options.least_group)
    gain = _is_below(value) or (worst is not None and _is_better(worst, problem))
    answer = "no difference"
    degenerate = after.flat or (after.one_answer is not None and plain.one_answer is None)
    if degenerate:
        answer = "degenerate"
    elif gain and (over_budget or (price["difference"] < -options.budget and _is_below(price))):
        answer = "costs too much"
    elif gain and not (worst is not None and _is_worse(worst, problem) and not _is_below(value)):
        answer = "helps"
    kept, beside = (robust, "plain") if answer == "helps" else ("plain", robust)
    if plain.flat and answer != "helps":
        answer, kept = "nothing learned", "none"
    saved = _saved(kept, options, *(() if degenerate or plain.flat else (beside,)))
    headline, sentences = words.verdict(answer, robust, after, price, value, tail, worst, look)
    if answer == "nothing learned":
        also = ", and so does the robust one" if after.flat else f", and {HOW[robust]} is not clearly better"
        headline = words.nothing_learned(also)
    if len(saved) > 1 and answer == "helps":
        sentences.append("The plain model is saved too.")
    sentences += words.one_answer(pooled.get(kept, plain), kept)
    return {
        "answer": answer, "kept": kept, "saved": saved, "robust": robust, "headline": headline,
        "sentences": [failed, *sentences],
        "price": price, "robust_value": value, "tail": tail, "worst_group": worst, "second_look": look,
    }  # fmt: skip


def _saved(kept: str, options: Options, *beside: str) -> list[str]:
    """Models to save: none that gives every row the same answer."""
    return [] if options.audit or kept == "none" else [name for name in options.methods if name in (kept, *beside)]


def _is_below(d: Difference) -> bool:
    return d["high"] is not None and d["high"] < 0


def _is_better(d: WorstGroup, problem: TableProblem) -> bool:
    bound = d["low"] if problem.classes else d["high"]
    return bound is not None and (bound > 0 if problem.classes else bound < 0)


def _is_worse(d: WorstGroup, problem: TableProblem) -> bool:
    bound = d["high"] if problem.classes else d["low"]
    return bound is not None and (bound < 0 if problem.classes else bound > 0)


HOW = {
    "class-weighted": "class weights",
    "worst-case": "training on the worst case",
    "second-look": "a second look",
}


class _Words:
    """The verdict in words."""

    def __init__(self, problem: TableProblem, options: Options) -> None:
        self.problem, self.options = problem, options
        self.score = "accuracy" if problem.classes else "R2"
        self.rows = "rows" if options.audit else "test rows"

    def served(self, value: float | None) -> str:
        if value is None:
            return "?"
        if self.problem.classes:
            return f"{100 * value:.1f}% right"
        return f"a mean error of {value:,.0f}" if 1e4 <= value < 1e15 else f"a mean error of {value:.4g}"

    def failed(self, slices: list[SliceSummary], groups: list[GroupSummary], overall: float) -> str:
        """Who is failed: the group with the worst score, or a description whose rows have an even worse one."""
        sign = 1.0 if self.problem.classes else -1.0
        group = next((g for g in groups if not g["small"]), None)
        worst = overall if group is None else group["scores"]["plain"]["value"] or 0.0
        in_all = f"{self.served(overall)} overall"
        one = slices[0] if slices else None
        where = "" if one is None else f"{' and '.join(one['conditions'])} ({100 * one['share']:.1f}% of the rows)"
        if one is not None and one["before"] is None:
            return f"The plain model fails most where {where}: {one['lift']:.1f} times their share of the worst case."
        there = None if one is None else one["before"]
        if there is not None and sign * there <= min(sign * worst, sign * overall):
            return f"The plain model fails most where {where}: {self.served(there)} there, {in_all}."
        if group is None:
            return "No description in these columns stands out among the rows that the plain model fails."
        text = f"The plain model is worst for {group['name']} ({group['size']:,} {self.rows}): {self.served(worst)}"
        if there is None:
            return f"No description in these columns stands out. {text}, {in_all}."
        also = "Compared with others of their class, it" if self.problem.classes else "It"
        return f"{text}, {in_all}. {also} also fails rows where {where}: {self.served(there)} there."

    def nothing_learned(self, others: str = "") -> str:
        return (
            f"Nothing was learned: the plain model gives nearly the same answer for every row{others}. "
            f"{'' if self.options.audit else 'No model is kept. '}"
            "There are too few rows, or these columns do not predict the target."
        )

    def one_answer(self, model: _Pooled, kept: str) -> list[str]:
        if model.one_answer is None or kept == "none":
            return []
        answer = self.problem.classes[model.one_answer]
        return [
            f"The {'plain' if kept == 'plain' else 'robust'} model answers {answer} for every one of the {self.rows}."
        ]

    def same_answer(self, model: _Pooled) -> str:
        if model.flat or model.one_answer is None:
            return f"{'would give' if self.options.audit else 'gives'} every row the same answer"
        answer = self.problem.classes[model.one_answer]
        return f"would answer {answer} everywhere" if self.options.audit else f"answers {answer} everywhere"

    def none_chosen(self, cheapest: Offer) -> tuple[str, str]:
        """The headline and the numbers if every robust candidate was rejected out of fold."""
        plain, found = cheapest.plain, cheapest.measures
        points = 100 * (plain["score"] - found["score"])
        would = "would cost too much" if self.options.audit else "costs too much"
        begins = f"Robust training {would}" if cheapest.over_budget else "Robust training does not help here"
        kept = "" if self.options.audit else "; the plain model is kept"
        cost = f"costs {points:.2f} points of {self.score}" if points > 0 else f"costs no {self.score}"
        allowed = ""
        if cheapest.over_budget:
            allowed = f"; at most {50 * self.options.budget:.2g} are allowed there, half of the budget"
        return f"{begins}{kept}.", (
            f"Out of fold, training on the worst case with rho {cheapest.rho:g} takes the worst-case loss from "
            f"{plain['robust_value']:.3f} to {found['robust_value']:.3f} and {cost}{allowed}."
        )

    def looked(self, look: str | None) -> list[str]:
        if look is None:
            return []
        return [f"By its own verdict, on the hard samples and without regard to the budget, a second look: {look}."]

    def verdict(
        self, answer: str, robust: str, after: _Pooled, price: Difference, value: Difference, tail: Difference,
        worst: WorstGroup | None, look: str | None,
    ) -> tuple[str, list[str]]:  # fmt: skip
        how = HOW[robust]
        points = 100 * price["difference"]
        cost = "at no cost" if points >= 0 else f"for {-points:.2f} points of {self.score}"
        tails = f"the worst 5% of losses go from {tail['before']:.3g} to {tail['after']:.3g}"
        audit = self.options.audit
        begins, ends = {
            "helps": ("would help" if audit else "helped", f": by {how}, {tails}, {cost}"),
            "costs too much": ("would cost too much" if audit else "cost too much", f": by {how}, {tails}, but {cost}"),
            "no difference": ("would make no clear difference" if audit else "made no clear difference", f" ({how})"),
            "degenerate": (self.same_answer(after), f" ({how})"),
            "nothing learned": ("", ""),
        }[answer]
        kept = "" if audit or answer == "helps" else "; the plain model is kept"
        headline = f"Robust training {begins}{ends}{kept}."
        said = [
            f"Best robust: {how}. The worst-case loss (rho {self.options.rho:g}) goes from {value['before']:.3f} "
            f"to {value['after']:.3f}{_interval(value, '{:+.3f}')}; {tails}.",
            f"{self.score.capitalize() if self.problem.classes else 'R2'} goes from {_share(price['before'])} to "
            f"{_share(price['after'])}{_interval(price, '{:+.2f} points', 100.0)}.",
        ]
        if worst is not None:
            small = _is_better(worst, self.problem) or _is_worse(worst, self.problem)
            clear = "" if small else ", no clear difference"
            said.append(
                f"Plain training is worst for {worst['name']} ({worst['size']:,} {self.rows}): "
                f"{self.served(worst['before'])} before, {self.served(worst['after'])} after{clear}."
            )
        said += self.looked(look)
        if answer == "helps" and not self.options.audit and self.problem.classes:
            said.append("Its probabilities lean towards the worst case: recalibrate them if you need them.")
        return headline, said


def _share(value: float) -> str:
    return f"{100 * value:.2f}%"


def _interval(d: Difference, form: str, factor: float = 1.0) -> str:
    if d["low"] is None or d["high"] is None:
        return ""
    return f" (change {form.format(factor * d['low'])} to {form.format(factor * d['high'])}, 95%)"
