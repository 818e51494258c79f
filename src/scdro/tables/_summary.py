"""The summary of a run: plain data, saved as `summary.json`, from which the report page is made.

Everything is JSON: numbers are finite or null, names are the user's own text (escape it where it is shown).
Scores are shares (accuracy, R^2), higher is better; losses are lower-is-better. `Interval` is a value with a 95%
interval, null if there is none. A change of meaning raises FORMAT.
"""

from __future__ import annotations

import importlib.metadata
import types
import typing
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from scdro import __version__

if TYPE_CHECKING:
    from scdro.tables._problem import Options, TableProblem, TrainTest

__all__ = [
    "FORMAT",
    "METHODS",
    "CandidateSummary",
    "ColumnSummary",
    "Curve",
    "Found",
    "GroupSummary",
    "Interval",
    "Method",
    "MethodSummary",
    "SliceSummary",
    "Summary",
    "VerdictSummary",
    "make_summary",
    "mismatch",
]

FORMAT = 2
Method = Literal["plain", "class-weighted", "worst-case", "second-look"]
METHODS: tuple[Method, ...] = typing.get_args(Method)


class Interval(TypedDict):
    """A number with its 95% interval."""

    value: float | None
    low: float | None
    high: float | None


class ColumnSummary(TypedDict):
    """A column of the data."""

    name: str
    kind: Literal["number", "category", "left out", "target", "group", "split", "id"]
    missing: int  # rows without a value
    values: int  # distinct values
    note: str  # why it was left out, or what looks like a mistake; "" for nothing


class TaskSummary(TypedDict):
    """What is learned."""

    type: Literal["classification", "regression"]
    target: str
    classes: list[str]  # [] for regression
    counts: list[int]  # rows of each class, in the whole data
    score: Literal["accuracy", "R2"]
    loss: str  # what `robust_value` and `tail` measure: "log loss", or "squared error" of the standardised target


class SplitSummary(TypedDict):
    """How the test rows were chosen."""

    how: Literal["random", "by", "after", "file", "out of fold"]
    column: str | None  # of "by" and "after"
    value: str | None  # of "after": test rows have larger values than this
    text: str  # one sentence


class DataSummary(TypedDict):
    """Sizes and columns."""

    rows: int
    train: int
    test: int  # of one split
    tested: int  # different rows that were tested, over all seeds: scores and groups are computed on these
    chosen_on: int  # rows that settings were chosen on: fewer than `train` in large tables
    columns: list[ColumnSummary]
    split: SplitSummary


class MethodSummary(TypedDict):
    """One way of training, at the settings that cross-validation chose."""

    name: Method
    settings: dict[str, Any]
    scores: dict[str, Interval]
    """On the test rows. Classification: accuracy, balanced_accuracy, log_loss, roc_auc, brier, robust_value, tail.
    Regression: R2, mean_absolute_error, root_mean_squared_error, robust_value, tail (mean of the worst 5% losses)."""
    out_of_fold: dict[str, float]  # score, loss, robust_value, tail: by models that did not see the row
    seconds: float


class CandidateSummary(TypedDict):
    """A candidate setting, out of fold."""

    rho: float | Literal["half"] | None  # null for a method without a radius
    settings: dict[str, Any]
    score: float
    loss: float
    robust_value: float
    tail: float
    within_budget: bool
    chosen: bool


class Curve(TypedDict):
    """All candidates of a method, in the order in which they were tried."""

    method: str
    points: list[CandidateSummary]


class GroupSummary(TypedDict):
    """A group of test rows: a class, a value of a `group` column, or a combination of values."""

    name: str  # such as "sex = Female, race = Black", or "income = >50K" for a class
    kind: Literal["class", "group"]
    size: int  # test rows
    share: float
    small: bool  # fewer rows than `least_group`: shown, never in a headline
    scores: dict[str, Interval]  # by method: accuracy, or mean absolute error for regression


class SliceSummary(TypedDict):
    """Who is failed, in the user's columns: from `scdro.find_slices`, out of fold."""

    conditions: list[str]
    size: int
    share: float
    lift: float
    p_value: float
    before: float | None  # score of the plain model: accuracy, or mean absolute error
    after: float | None  # that of the robust one
    sentence: str


class Difference(TypedDict):
    """Before (plain) and after (robust), on the same test rows, with the 95% interval of after - before."""

    before: float
    after: float
    difference: float
    low: float | None
    high: float | None


class WorstGroup(Difference):
    """The large enough group that plain training is worst for; the interval holds for all groups at once."""

    name: str
    size: int


class VerdictSummary(TypedDict):
    """Whether robust training helped, and at what price."""

    answer: Literal["helps", "costs too much", "no difference", "degenerate", "nothing learned", "not tried"]
    kept: str  # the method of the model that `predict` uses; "none" if no model learned anything
    saved: list[str]  # methods whose models are in the run's folder
    robust: str | None  # the best robust method by cross-validation, which is compared with plain training
    headline: str  # one sentence
    sentences: list[str]  # a short paragraph: who is failed, whether it helped, the price, what is kept
    price: Difference | None  # of the score
    robust_value: Difference | None
    tail: Difference | None
    worst_group: WorstGroup | None
    second_look: str | None  # the answer of `SecondLook`: helps, class weights suffice, nothing stands out, ...


class SettingsSummary(TypedDict):
    """What was asked for, or chosen by default."""

    model: Literal["trees", "linear", "network", "images"]
    methods: list[str]
    rho: float  # radius of robust_value
    budget: float  # the most score that robust training may cost
    folds: int
    candidates: int  # of each method
    seeds: int
    least_group: int
    group: list[str]


class Summary(TypedDict):
    """All of `summary.json`, and `Run.summary`: plain data. The types of its fields are in the source of this one.

    Example:
        >>> sorted(Summary.__annotations__)[:6]
        ['created', 'curves', 'data', 'format', 'groups', 'kind']
    """

    format: int
    kind: Literal["train", "audit"]
    title: str  # the name of the file, or ""
    created: str  # ISO 8601, UTC
    seconds: float
    versions: dict[str, str]
    task: TaskSummary
    data: DataSummary
    settings: SettingsSummary
    methods: list[MethodSummary]  # the first is "plain"
    curves: list[Curve]
    groups: list[GroupSummary]  # worst first by plain training
    slices: list[SliceSummary]  # the one that stands out most first
    verdict: VerdictSummary
    warnings: list[str]


class Found(NamedTuple):
    """The results of a run, as the summary has them."""

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
    """The summary of a run."""
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
            "counts": problem.counts(),
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
            "budget": options.budget,
            "folds": options.folds,
            "candidates": options.candidates,
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


def mismatch(value: Any, kind: Any, where: str = "summary") -> str | None:
    """Where plain data differ from a type made of TypedDicts, lists, dictionaries, literals and unions, if anywhere."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is typing.Any:
        return None
    if typing.is_typeddict(kind):
        fields = typing.get_type_hints(kind)
        if not isinstance(value, dict) or set(value) != set(fields):
            return f"{where}: {sorted(set(value) ^ set(fields)) if isinstance(value, dict) else value!r}"
        return next((m for name, t in fields.items() if (m := mismatch(value[name], t, f"{where}.{name}"))), None)
    if origin is list:
        if not isinstance(value, list):
            return f"{where}: {value!r}"
        return next((m for k, v in enumerate(value) if (m := mismatch(v, inner[0], f"{where}[{k}]"))), None)
    if origin is dict:
        if not isinstance(value, dict):
            return f"{where}: {value!r}"
        return next((m for k, v in value.items() if (m := mismatch(v, inner[1], f"{where}[{k!r}]"))), None)
    if origin is typing.Literal:
        return None if value in inner else f"{where}: {value!r}"
    if origin in (typing.Union, types.UnionType):
        return None if any(mismatch(value, t, where) is None for t in inner) else f"{where}: {value!r}"
    good = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    return None if good else f"{where}: {value!r} is not {kind}"
