"""The summary of a run: plain data, saved as `summary.json`, from which the report page is made.

Everything is JSON: numbers are finite or null, names are the user's own text (escape it where it is
shown). Scores are shares (accuracy, R^2), higher is better; losses are lower-is-better. `Interval`
is a value with a 95% interval, null if there is none. A change of meaning raises FORMAT.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from typing import Any, Literal, TypedDict

__all__ = [
    "FORMAT", "METHODS", "CandidateSummary", "ColumnSummary", "Difference", "GroupSummary", "Interval", "Method",
    "MethodSummary", "SettingsSummary", "SliceSummary", "SplitSummary",
    "Summary", "VerdictSummary", "WorstGroup", "mismatch",
]  # fmt: skip

FORMAT = 3
Method = Literal["plain", "class-weighted", "worst-case", "second-look", "group-weighted"]
METHODS: tuple[Method, ...] = typing.get_args(Method)


class Interval(TypedDict):
    """A number with its 95% interval."""

    value: float | None  # None if the score is not defined, such as AUC with one class
    low: float | None  # None for both if there is no interval
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
    target: str  # the column to predict
    classes: list[str]  # [] for regression
    counts: list[int]  # rows of each class, in the whole data
    score: Literal["accuracy", "R2"]
    # what `robust_value` and `tail` measure: "log loss", or "squared error" of the standardised
    # target
    loss: str


class SplitSummary(TypedDict):
    """How the test rows were chosen."""

    how: Literal["random", "by", "after", "file"]
    column: str | None  # of "by" and "after"
    value: str | None  # of "after": test rows have larger values than this
    text: str  # one sentence


class DataSummary(TypedDict):
    """Sizes and columns."""

    rows: int  # of the table, those without a target left out
    train: int  # of one split
    test: int  # of one split
    # different rows that were tested, over all seeds: scores and groups are computed on these
    tested: int
    chosen_on: int  # rows that settings were chosen on: fewer than `train` in large tables
    columns: list[ColumnSummary]
    split: SplitSummary


class CandidateSummary(TypedDict):
    """A candidate setting of a method, out of fold."""

    settings: dict[str, Any]  # such as {"num_leaves": 31, "min_child_samples": 20, "rho": 0.1}
    # loss, robust_value, tail, score; with a slice to fix, worst_cell
    out_of_fold: dict[str, float]
    within_budget: bool  # whether it costs at most half of the budget out of fold
    chosen: bool  # whether it is the one whose model was fitted


class MethodSummary(TypedDict):
    """One way of training, at the settings that cross-validation chose."""

    name: Method
    settings: dict[str, Any]  # of the first split, with the rounds of boosting
    scores: dict[str, Interval]
    """On the test rows. Classification: accuracy, balanced_accuracy, log_loss, roc_auc, brier, robust_value, tail.
    Regression: R2, mean_absolute_error, root_mean_squared_error, robust_value, tail (mean of the worst 5% losses)."""
    candidates: list[CandidateSummary]  # in the order in which they were tried
    seconds: float  # over all splits


class GroupSummary(TypedDict):
    """A group of test rows: a class, a combination of values of `group` columns, or one within a class."""

    name: str  # such as "sex = Female", "income = >50K", or "sex = Female, income = >50K"
    kind: Literal["class", "group", "group in class"]
    size: int  # test rows
    share: float  # of the test rows
    small: bool  # fewer rows than `least_group`: shown, never in a headline
    scores: dict[str, Interval]  # by method: accuracy, or mean absolute error for regression


class SliceSummary(TypedDict):
    """Where the plain model fails, in the user's columns: from `scdro.find_slices`, out of fold."""

    conditions: list[str]  # such as ["age > 60", "city = Rome"]
    size: int  # rows of the sample that settings were chosen on
    share: float  # of these rows
    lift: float  # mean weight of the rows, divided by that of their classes
    p_value: float  # corrected for the number of slices looked at
    before: float | None  # score of the plain model: accuracy, or mean absolute error
    after: float | None  # that of the robust one
    sentence: str  # all of this in words


class Difference(TypedDict):
    """Before (plain) and after (robust), on the same test rows, with the 95% interval of after - before."""

    before: float
    after: float
    difference: float  # after - before
    low: float | None  # None for both if all rows change by the same amount
    high: float | None


class WorstGroup(Difference):
    """The large enough group that plain training is worst for; the interval holds for all groups at once."""

    name: str  # of the group
    size: int  # its test rows


class VerdictSummary(TypedDict):
    """Whether robust training helped, and at what price."""

    answer: Literal[
        "helps", "costs too much", "no difference", "degenerate", "nothing learned", "not tried"
    ]
    kept: str  # the method of the model that `predict` uses; "none" if no model learned anything
    saved: list[str]  # methods whose models are in the run's folder
    robust: str | None  # the robust method that is compared with plain training
    headline: str  # the decisive sentence
    # where the plain model fails, the numbers, what the plain model has for free
    sentences: list[str]
    price: Difference | None  # of the score
    robust_value: Difference | None  # of the worst-case loss
    tail: Difference | None  # of the mean of the worst 5% of losses
    worst_group: WorstGroup | None  # or the slice to fix


class SettingsSummary(TypedDict):
    """What was asked for, or chosen by default."""

    model: Literal["trees", "linear"]
    methods: list[str]
    rho: float  # radius of robust_value
    budget: float  # the most score that robust training may cost
    folds: int
    candidates: int  # of each method
    seeds: int
    least_group: int  # fewer test rows than this never decide
    group: list[str]
    fix: str | None  # conditions of the slice that training was to serve


class Summary(TypedDict):
    """All of `summary.json`, and `Run.summary`: plain data. The types of its fields are in the source of this one.

    Example:
        >>> sorted(Summary.__annotations__)[:6]
        ['created', 'data', 'format', 'groups', 'methods', 'seconds']
    """

    format: int
    title: str  # the name of the file, or ""
    created: str  # ISO 8601, UTC
    seconds: float  # that the run took; of a resumed one, since it was resumed
    versions: dict[str, str]  # of scdro and what it used, by name
    task: TaskSummary
    data: DataSummary
    settings: SettingsSummary
    methods: list[MethodSummary]  # the first is "plain"
    groups: list[GroupSummary]  # worst first by plain training
    slices: list[SliceSummary]  # the one that stands out most first
    verdict: VerdictSummary
    warnings: list[str]  # what is odd about the data, in sentences


def mismatch(value: Any, kind: Any, where: str = "summary") -> str | None:
    """Where plain data differ from a type, if anywhere: a check of a file that anybody could have changed.

    Args:
        value: what was read from JSON.
        kind: a type made of TypedDicts, lists, dictionaries, literals and unions.
        where: the path to the value, for the message.

    Returns:
        The first difference, in words; None if there is none.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    parts: Iterable[tuple[Any, Any, str]] = ()  # values inside, their types, and where they are
    if kind is Any:
        return None
    if typing.is_typeddict(kind):
        fields = typing.get_type_hints(kind)
        good = isinstance(value, dict) and set(value) == set(fields)
        parts = ((value[name], own, f"{where}.{name}") for name, own in fields.items())
        if isinstance(value, dict) and not good:
            value = sorted(set(value) ^ set(fields))
    elif origin is list:
        good = isinstance(value, list)
        parts = ((one, inner[0], f"{where}[{k}]") for k, one in enumerate(value if good else ()))
    elif origin is dict:
        good = isinstance(value, dict)
        parts = ((value[k], inner[1], f"{where}[{k!r}]") for k in (value if good else ()))
    elif origin is Literal:
        good = value in inner
    elif origin in (typing.Union, types.UnionType):
        good = any(mismatch(value, one, where) is None for one in inner)
    else:
        good = isinstance(value, (int, float) if kind is float else kind)
        good = good and (kind is bool or not isinstance(value, bool))
    if not good:
        return f"{where}: {value!r}, expected {kind}"
    return next((found for part in parts if (found := mismatch(*part)) is not None), None)
