"""`audit`: labels, predictions and columns in; findings out. It trains nothing unless `cv` asks for it.

    read      labels and predictions (`_outcomes`); columns as small codes (`_codes`)
    search    every slice of one or two conditions (`_scan`), several questions (`_questions`)
    tell      findings, few and each once (`_findings`), notes on what could not be told

An `Audit` prints, draws and saves itself, judges rules (`_gate`) and knows the worst subgroup
(`_subgroup`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score

from scdro._arguments import check_jobs, check_number, check_whole
from scdro._frames import backend_of, columns_of, frame_of
from scdro._terminal import WaitingLine
from scdro.auditing._card import card_of
from scdro.auditing._codes import (
    CodedColumn,
    code_columns,
    code_lazy,
    is_lazy,
    read_frame,
    value_numbers,
)
from scdro.auditing._findings import Finding, FindingSearch, wilson
from scdro.auditing._gate import Gate, SliceScore, judge, slice_scores
from scdro.auditing._outcomes import (
    QUANTITY,
    Outcomes,
    is_model,
    is_network,
    predict_with,
    read_outcomes,
    read_units,
    read_weight,
    run_network,
)
from scdro.auditing._page import fragment_of, page_of, plot
from scdro.auditing._subgroup import Subject, WorstSubgroup, find_worst
from scdro.errors import DataError, HyperparameterError

__all__ = ["Audit", "ClassRow", "GroupErrors", "Passed", "audit"]

Array = npt.NDArray[Any]
UNTOLD = ("members", "where")  # fields of a finding that are neither printed nor saved
BACKWARDS = 0.35  # an AUC below this: the probabilities are probably those of the other class
FEW_ROWS = 500  # rows below which only large gaps can be told from chance


class ClassRow(NamedTuple):
    """One class: its rows, how often it was predicted, and how often its members were missed.

    Example:
        >>> import scdro
        >>> audit = scdro.audit([0, 1] * 50, [0.4, 0.6] * 50, {"first": [True] * 50 + [False] * 50})
        >>> audit.classes[1].missed
        0.0
    """

    label: str  # the class
    rows: int
    observed: float  # share of the class
    predicted: float  # mean probability of the class; NaN if unknown
    decided: float  # share of rows decided as this class
    missed: float  # of its members, the share decided otherwise
    wrongly: float  # of all other rows, the share decided as this class


class GroupErrors(NamedTuple):
    """One value of a column that was asked for, within one class (or all of them).

    Example:
        >>> import scdro
        >>> audit = scdro.audit([0, 1] * 50, [0.4, 0.6] * 50, sensitive_features={"sex": ["f", "m"] * 50})
        >>> audit.groups[0].group, audit.groups[0].rows
        ('sex = f', 50)
    """

    group: str  # such as "sex = f"
    label: str  # "" for all classes together
    rows: int
    error: float  # share of wrong decisions, or mean absolute error
    low: float  # 95% interval of the error; NaN for a regression
    high: float  # its other end
    predicted: float  # mean probability of the last class, or mean prediction
    observed: float  # share of that class, or mean target


class Passed(NamedTuple):
    """A column that was looked at and is in no finding.

    Example:
        >>> import scdro
        >>> audit = scdro.audit([0, 1] * 50, [0.4, 0.6] * 50, {"first": [True] * 50 + [False] * 50})
        >>> audit.passed
        (Passed(column='first', slices=2),)
    """

    column: str
    slices: int  # conditions on it, alone and with others


@dataclass(frozen=True, repr=False)
class Audit:
    """The result of `audit`: prints as sentences, shows itself in a notebook, saves as a page or JSON.

    Attributes:
        findings: whom the model fails, at most fifteen.
        passed: columns that were looked at and are in no finding.
        classes: one row for each class.
        groups: one row for each group that was asked for, within each class.
        notes: what could not be told, and why.
        rows: number of rows.
        slices: number of slices looked at.
        alpha: probability of any false finding.
        scores: accuracy and log loss, or mean absolute error and R2.
        unit: what an error is: "share" of wrong decisions, or "mean" absolute error.
        score_slices: computes `slices_scored`.
        backend: library of the tables that it returns.
        subject: errors, weights and columns of all rows, for `worst_subgroup`.
        losses: log losses or squared errors, (n,); None if only classes are known.

    Example:
        >>> import scdro
        >>> audit = scdro.audit([0, 1] * 50, [0.4, 0.6] * 50, {"first": [True] * 50 + [False] * 50})
        >>> audit.scores["accuracy"], audit.passed[0].column
        (1.0, 'first')
    """

    findings: tuple[Finding, ...]
    passed: tuple[Passed, ...]
    classes: tuple[ClassRow, ...]
    groups: tuple[GroupErrors, ...]
    notes: tuple[str, ...]
    rows: int
    slices: int
    alpha: float
    scores: dict[str, float]
    unit: str
    score_slices: Callable[[], tuple[SliceScore, ...]] = tuple
    backend: Any = None
    subject: Subject | None = None
    losses: Array | None = None

    @cached_property
    def slices_scored(self) -> tuple[SliceScore, ...]:
        """Scores of all rows, of every single condition, of the groups asked for and of the findings.

        `check` judges them. They are computed when they are first asked for.
        """
        return self.score_slices()

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        kinds = [one.kind for one in self.findings]
        looked = f"{self.slices:,} slices of {self.rows:,} rows"
        if not kinds:
            return f"Nobody stands out in {looked}."
        texts = {
            "wrong probabilities": "wrong probabilities for {}",
            "threshold": "a threshold that fails {}",
            "hard": "{} that these columns cannot tell apart",
            "errors": "more errors than usual for {}",
            "bias": "biased predictions for {}",
            "spread": "larger errors than usual for {}",
            "coverage": "intervals that are too short for {}",
        }
        parts = []
        for kind, text in texts.items():
            if number := kinds.count(kind):
                parts.append(text.format(f"{number} slice" + "s" * (number > 1)))
        return f"In {looked}: {', '.join(parts)}."

    def __str__(self) -> str:
        lines = [self.headline]
        last = ""
        for one in self.findings:
            if one.kind != last:
                lines += ["", one.kind[0].upper() + one.kind[1:]]
                last = one.kind
            lines.append(f"  {one}")
        if self.groups:
            lines += ["", "The groups asked for"]
            lines += [f"  {_write_group(row, self.unit)}" for row in self.groups]
        if self.passed:
            lines += ["", f"In no finding: {_list_first([row.column for row in self.passed])}."]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def check(self, *rules: str, if_unsure: str = "pass") -> Gate:
        """Judge rules such as "accuracy < 0.7" or "gap > 0.05": raise if one of them is surely true of a slice.

        Args:
            rules: a score, a comparison and a number: what must not be. Of all rows, every single
                condition, the groups asked for (but not the classes: see missed), and the findings.
                Scores: accuracy, error, gap (between the mean probability and what happens),
                log_loss, missed (the largest share of a class's members that is missed); of a
                regression mean_absolute_error and gap; `findings`, `wrong`, `hard` and `threshold`
                are numbers of findings.
            if_unsure: "pass" or "fail", for slices that break a rule by what was measured, but not
                surely: intervals hold for all slices at once, at 95%.

        Returns:
            The slices that were judged unsure; `GateError`, an AssertionError, names those that
            failed.

        Example:
            >>> import numpy as np, scdro
            >>> y = np.arange(400) % 2
            >>> scdro.audit(y, np.where(y == 1, 0.99, 0.01), {"half": np.arange(400) < 200}).check("accuracy < 0.7")
            Gate(passed=True, failures=(), unsure=())
        """
        return judge(rules, self.slices_scored, self.findings, if_unsure)

    def worst_subgroup(
        self, alpha: float | None = None, *, rho: float | None = None, loss: str = "error",
        folds: int = 5, level: float = 0.95, seed: int = 0, n_jobs: int | None = None,
    ) -> WorstSubgroup:  # fmt: skip
        """The worst share of people that the columns can describe, whatever the kind of failure.

        Args:
            alpha: share of the rows; by default 0.1, unless there is `rho`.
            rho: radius of a KL ball instead of a share.
            loss: "error" (wrong decisions, or absolute errors) or "loss" (log losses, or squared
                errors).
            folds, level, seed, n_jobs: as for `scdro.auditing.worst_subgroup`.

        Example:
            >>> import numpy as np, scdro
            >>> rng = np.random.default_rng(0)
            >>> city, p = rng.choice(["Oslo", "Rome"], 2000, p=[0.8, 0.2]), rng.uniform(0.0, 0.1, 2000)
            >>> y = rng.random(2000) < np.where(city == "Rome", 0.6, p)
            >>> audit = scdro.audit(y, p, {"city": city})
            >>> audit.worst_subgroup(0.2).clauses[0].slice
            'city = Rome'
        """
        if loss not in ("error", "loss"):
            raise HyperparameterError(f"expected loss 'error' or 'loss', got {loss!r}")
        subject = self.subject
        if subject is None:
            raise DataError("expected an audit with its rows, got one without")
        if loss == "loss":
            if self.losses is None:
                raise DataError("expected probabilities for log losses, got predicted classes only")
            subject = replace(subject, losses=self.losses)
        return find_worst(subject, alpha, rho, folds=folds, level=level, seed=seed, n_jobs=n_jobs)

    def to_frame(self, backend: Any = None) -> Any:
        """The findings as a DataFrame of "pandas", "polars" or "pyarrow"; by default as the columns were."""
        names = [
            name for name in Finding.__dataclass_fields__ if name not in ("conditions", *UNTOLD)
        ]
        columns = {name: [getattr(one, name) for one in self.findings] for name in names}
        return frame_of(columns, backend or self.backend)

    def to_json(self) -> str:
        """Everything but the members of the slices; numbers that are not known are null."""
        plain = {
            "headline": self.headline,
            "rows": self.rows,
            "slices": self.slices,
            "alpha": self.alpha,
            "scores": self.scores,
            "findings": [
                {k: v for k, v in vars(one).items() if k not in UNTOLD} | {"sentence": str(one)}
                for one in self.findings
            ],
            "passed": [row._asdict() for row in self.passed],
            "classes": [row._asdict() for row in self.classes],
            "groups": [row._asdict() for row in self.groups],
            "notes": self.notes,
        }
        return json.dumps(_replace_nonfinite(plain), indent=1)

    def to_model_card(
        self, name: str, *, done: str | Sequence[str] = (), about: str = "", data: str = "",
        license: str | None = None,
    ) -> str:  # fmt: skip
        """A model card in Hugging Face's form: who was looked at, what was found, what was done.

        Args:
            name: the name of the model.
            done: what was done about the findings, a text or several; the audit cannot know it.
            about: a paragraph on the model and its use.
            data: what the rows are, such as "applications of 2025".
            license: of the model, as the hub names it.

        Returns:
            Markdown below a header of YAML: the README.md of a repository of models.

        Example:
            >>> import scdro
            >>> audit = scdro.audit([0, 1] * 50, [0.4, 0.6] * 50, {"first": [True] * 50 + [False] * 50})
            >>> card = audit.to_model_card("loans-v2", done="Nothing had to be done.", license="mit")
            >>> card.splitlines()[1]
            'license: "mit"'
        """
        return card_of(self, name=name, done=done, about=about, data=data, license=license)

    def save(self, path: Any) -> None:
        """Write a page (.html) or the numbers (.json)."""
        path = Path(path)
        if path.suffix.lower() not in (".html", ".json"):
            raise HyperparameterError(
                f"expected a file that ends with .html or .json, got {path.name!r}"
            )
        text = self.to_json() if path.suffix.lower() == ".json" else page_of(self)
        path.write_text(text, encoding="utf-8")

    def plot(self, ax: Any = None) -> Any:
        """Draw what the findings are seen by, with intervals: what was predicted, and what was observed.

        Of a regression, the bias of each slice. Needs matplotlib.

        Args:
            ax: matplotlib's axes; None: new ones.

        Returns:
            The axes.
        """
        return plot(self, ax)

    def _repr_html_(self) -> str:
        return fragment_of(self)


def _list_first(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _write_group(row: GroupErrors, unit: str) -> str:
    """A group asked for, in one line."""
    within = f" within {row.label!r}" if row.label else ""
    if unit == "mean":
        return f"{row.group}{within}: {row.rows:,} rows, mean absolute error {row.error:.4g}"
    low, high = 100 * row.low, 100 * row.high
    return (
        f"{row.group}{within}: {row.rows:,} rows, {100 * row.error:.1f}% wrong ({low:.1f} to"
        f" {high:.1f}%)"
    )


def _replace_nonfinite(value: Any) -> Any:
    """Plain data with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _replace_nonfinite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def audit(
    y: Any,
    predictions: Any,
    frame: Any = None,
    extra: Any = None,
    *,
    sample_weight: Any = None,
    groups: Any = None,
    sensitive_features: Any = None,
    classes: Sequence[Any] | None = None,
    threshold: float = 0.5,
    intervals: Any = None,
    task: str | None = None,
    cv: Any = None,
    out_of_fold: bool = False,
    alpha: float = 0.01,
    depth: int = 2,
    min_share: float = 0.005,
    max_findings: int = 15,
    n_jobs: int | None = None,
) -> Audit:
    """Whom a model fails: wrong probabilities, merely hard, or failed by the threshold.

    Three ways to call it:

    - `audit(y, predictions, frame)`: labels; probabilities, (n,) of the second class or (n,
      classes), or predicted classes, or a regressor's numbers; columns that describe the rows.
    - `audit(model, X, y, frame)`: a fitted model with `predict_proba` or `predict` (scikit-learn,
      LightGBM, XGBoost). Without `frame`, the columns of X. The rows must not have trained the
      model; with `cv`, copies of it are fitted, and each row is judged by one that did not see it.
    - `audit(network, loader, frame)`: a torch module and batches, (inputs, labels) or dictionaries
      with "labels", in the order of the rows of `frame`. A DataLoader that shuffles is read in the
      order of its data set. Outputs are logits, or probabilities if all of them could be.

    A LazyFrame of polars as `frame`, `pl.scan_parquet("people.parquet")`, is read one column at a
    time: the file is never in memory.

    Args:
        y, predictions, frame, extra: as above.
        sample_weight: one number for each row.
        groups: the unit that each row belongs to, such as a patient: rows of one unit are not
            independent, and standard errors know it; with `cv` they stay in one fold.
        sensitive_features: a column, or columns, whose every value is reported within each class.
        classes: the model's classes, in the order of its probabilities.
        threshold: probability of the second of two classes above which it is predicted.
        intervals: (low, high) of a regressor's prediction intervals.
        task: "classification" or "regression"; None: by the labels and predictions.
        cv: number of folds, or a splitter of scikit-learn, for a model.
        out_of_fold: say that no row trained the model that predicted it; with `cv` that is known.
        alpha: probability of any false finding.
        depth: conditions in a slice, 1 or 2.
        min_share: smallest share of the rows in a slice.
        max_findings: most findings to tell.
        n_jobs: number of jobs of joblib, threads by default; the result does not depend on it.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> age, city = rng.integers(20, 80, 4000), rng.choice(["Oslo", "Rome"], 4000)
        >>> truth = np.where((city == "Rome") & (age > 60), 0.6, 0.2)
        >>> y = rng.random(4000) < truth
        >>> print(audit(y, np.full(4000, 0.2), {"age": age, "city": city}).findings[0].slice)
        age > 60 and city = Rome
    """
    _check_settings(alpha, depth, min_share, max_findings, n_jobs)
    # Read: labels and predictions, whichever way they came; weights, units and columns.
    given = _read_call(y, predictions, frame, extra, classes, cv, groups)
    data = read_outcomes(
        given.labels, given.predictions, classes=given.classes, threshold=threshold,
        intervals=intervals, task=task,
    )  # fmt: skip
    n = len(data.y)
    weight = read_weight(sample_weight, n)
    clusters = None if groups is None else read_units(groups, n)
    asked = read_frame(sensitive_features, n)
    with WaitingLine("scdro.audit") as tell:
        columns, coded = _read_described_columns(given.frame, asked, n, tell)
        # A copy of the labels is no description: no model is right about its slices.
        copies = [one.name for one in coded if _repeats_labels(one, columns.get(one.name), data)]
        columns = {name: values for name, values in columns.items() if name not in copies}
        coded = [column for column in coded if column.name not in copies]
        # Search: all slices of these columns.
        search = FindingSearch(
            data, coded, weight=weight, clusters=clusters, alpha=alpha, depth=depth,
            min_rows=max(10, math.ceil(min_share * n)), n_jobs=n_jobs, tell=tell,
        )  # fmt: skip
        findings = search.run(max_findings)
        search.index.tell = None  # later searches of this audit are silent
    # Tell: what was found, and which columns are in no finding.
    named = {condition.column for one in findings for condition in one.where}
    counts = _count_slices_by_column(search)
    given_names = given.frame.collect_schema().names() if is_lazy(given.frame) else columns
    idle = [
        name
        for name in {**dict.fromkeys(given_names), **asked}
        if not counts.get(name) and name not in copies
    ]
    backend = backend_of(*(f for f in (given.frame, sensitive_features, y) if not is_lazy(f)))
    return Audit(
        findings=tuple(findings),
        passed=tuple(Passed(name, k) for name, k in counts.items() if k and name not in named),
        classes=_make_class_rows(data, weight),
        groups=_make_group_rows(data, weight, asked, copies),
        notes=tuple(
            _write_notes(
                data,
                search,
                findings,
                [name for name in copies if name not in asked],
                idle,
                out_of_fold or cv is not None,
            )
        ),
        rows=n,
        slices=len(search.index),
        alpha=alpha,
        scores=_compute_scores(data, weight),
        unit="share" if data.classes else "mean",
        score_slices=partial(
            slice_scores,
            search,
            {name: values for name, values in asked.items() if name not in copies},
            findings,
        ),
        backend=backend,
        subject=Subject(search.errors, weight, clusters, columns, coded, backend),
        losses=search.losses,
    )


class Given(NamedTuple):
    """What `audit` was called with, whichever of the three ways, before it is checked."""

    labels: Any
    predictions: Any  # of a model or network, made by now
    frame: Any  # columns that describe the rows; None if there are none
    classes: Sequence[Any] | None  # in the order of the probabilities, if they are known


def _read_call(
    y: Any, predictions: Any, frame: Any, extra: Any, classes: Sequence[Any] | None, cv: Any,
    groups: Any,
) -> Given:  # fmt: skip
    """Tell labels and predictions, a model and a network apart, and let the latter two predict."""
    if is_network(y):
        if cv is not None:
            raise HyperparameterError(
                "expected cv= with a model that has fit, got a network; give a loader of rows that"
                " did not train it"
            )
        labels, made = run_network(y, predictions)
        if classes is None and made.ndim == 2:
            classes = range(made.shape[1])  # labels are the numbers of the outputs
        return Given(labels, made, frame, classes)
    if is_model(y):
        if isinstance(y, type):
            raise DataError(f"expected a fitted model, got the class {y.__name__}")
        if frame is None:
            raise DataError("expected audit(model, X, y, frame), got no labels y")
        made, known = predict_with(y, predictions, frame, cv, groups)
        described = extra if extra is not None else _columns_worth_describing(predictions)
        return Given(frame, made, described, known if classes is None else classes)
    if cv is not None:
        raise HyperparameterError(
            "expected cv= with a model, audit(model, X, y, cv=5), got predictions"
        )
    if extra is not None:
        raise DataError(
            "expected audit(y, predictions, frame), or audit(model, X, y, frame) with a model that"
            f" has predict, got four arguments, the first a {type(y).__name__}"
        )
    return Given(y, predictions, frame, classes)


def _read_described_columns(
    frame: Any, asked: dict[str, Array], n: int, tell: WaitingLine
) -> tuple[dict[str, Array], list[CodedColumn]]:
    """The columns that describe rows: those of the frame, then those asked for.

    Returns:
        Their values by name, (n,) each; those of a LazyFrame are left out, as they are not in
        memory.
        All of them coded.
    """
    columns = {} if is_lazy(frame) else read_frame(frame, n)
    coded = code_lazy(frame, n, tell) if is_lazy(frame) else code_columns(columns, tell)
    known = {column.name for column in coded} | columns.keys()
    others = {name: column for name, column in asked.items() if name not in known}
    return columns | others, coded + code_columns(others)


def _repeats_labels(column: CodedColumn, values: Array | None, data: Outcomes) -> bool:
    """Whether a column says the label of every row: its classes, by any names, or its number.

    A slice of such a column knows what happened, which no model does: it is always "wrong" there.

    Args:
        column: the column as codes.
        values: the same as values, (n,); None for a LazyFrame.
        data: the labels.
    """
    if column.coder.kind == "words":
        return False
    if not data.classes:
        if values is None or values.dtype.kind != "f":
            return False
        return bool(np.allclose(values, data.y, rtol=1e-9, atol=0.0))
    codes, k = column.codes.astype(np.intp), len(data.classes)
    if np.count_nonzero(np.bincount(codes)) != len(np.unique(data.y)):
        return False
    table = np.bincount(codes * k + data.y, minlength=(int(codes.max()) + 1) * k).reshape(-1, k)
    each = np.count_nonzero(table, axis=0), np.count_nonzero(table, axis=1)
    return all(bool((one <= 1).all()) for one in each)


def _columns_worth_describing(X: Any) -> Any:
    """X, if it has columns that people know."""
    return X if columns_of(X) is not None or getattr(X, "ndim", 0) == 2 else None


def _check_settings(
    alpha: float, depth: int, min_share: float, max_findings: int, n_jobs: int | None
) -> None:
    """Check the settings that can be judged without the data."""
    check_number("alpha", alpha, "in (0, 1)", "the chance of a false finding")
    check_whole("depth", depth, 1, 2, "conditions in a slice")
    check_number("min_share", min_share, "in (0, 0.5)", "the smallest share of the rows in a slice")
    check_whole("max_findings", max_findings)
    check_jobs(n_jobs)


def _count_slices_by_column(search: FindingSearch) -> dict[str, int]:
    """How many slices have a condition on each column; a column of texts has one for each word."""
    index = search.index
    names = [column.name for column in index.columns]
    owner = np.array([i for i, _ in index.conditions], dtype=int)
    in_first = np.bincount(owner[index.first], minlength=len(names))
    in_second = np.bincount(owner[index.second[index.second >= 0]], minlength=len(names))
    counts: dict[str, int] = {}
    for name, number in zip(names, (in_first + in_second).tolist(), strict=True):
        counts[name] = counts.get(name, 0) + number
    return counts


def _make_class_rows(data: Outcomes, weight: Array) -> tuple[ClassRow, ...]:
    """A row for each class; none for a regression."""
    rows = []
    for k, name in enumerate(data.classes):
        own, said = data.y == k, data.decided == k
        mean = (
            math.nan if data.proba is None else float(np.average(data.proba[:, k], weights=weight))
        )
        missed, wrongly = _weighted_mean(~said, weight * own), _weighted_mean(said, weight * ~own)
        rows.append(
            ClassRow(
                name,
                int(own.sum()),
                _weighted_mean(own, weight),
                mean,
                _weighted_mean(said, weight),
                missed,
                wrongly,
            )
        )
    return tuple(rows)


def _weighted_mean(values: Array, weight: Array) -> float:
    """NaN if all weights are zero."""
    mass = float(weight.sum())
    return float(weight @ values) / mass if mass > 0 else math.nan


def _make_group_rows(
    data: Outcomes, weight: Array, asked: dict[str, Array], copies: Sequence[str]
) -> tuple[GroupErrors, ...]:
    """A row for every value of the columns asked for: over all classes, then within each class.

    A copy of the labels (`copies`) is not crossed with the classes.
    """
    error = (data.decided != data.y) if data.classes else np.abs(data.y - data.decided)
    last = len(data.classes) - 1
    if data.classes:
        said, seen = None if data.proba is None else data.proba[:, last], data.y == last
    else:
        said, seen = data.decided, data.y
    rows = []
    for name, column in asked.items():
        names, numbers = value_numbers(column)
        within = [None] if name in copies else [None, *range(len(data.classes))]
        for at, value in enumerate(names):
            inside = numbers == at
            for k in within:  # None: all classes together
                here = inside if k is None else inside & (data.y == k)
                if not here.any():
                    continue
                w = weight * here
                wrong = _weighted_mean(error, w)
                # The effective number of rows: fewer with unequal weights.
                size = float(w.sum() ** 2 / (w**2).sum()) if w.any() else 0.0
                low, high = wilson(wrong, size, 1.96) if data.classes else (math.nan, math.nan)
                label = "" if k is None else data.classes[k]
                rows.append(
                    GroupErrors(f"{name} = {value}", label, int(here.sum()), wrong, low, high,
                             math.nan if said is None else _weighted_mean(said, w), _weighted_mean(seen, w))
                )  # fmt: skip
    return tuple(rows)


def _compute_scores(data: Outcomes, weight: Array) -> dict[str, float]:
    """Accuracy and log loss of all rows, or mean absolute error and R2."""
    if not data.classes:
        left = data.y - data.decided
        spread = np.average((data.y - np.average(data.y, weights=weight)) ** 2, weights=weight)
        return {
            "mean_absolute_error": float(np.average(np.abs(left), weights=weight)),
            "r2": float(1 - np.average(left**2, weights=weight) / spread),
        }
    scores = {"accuracy": float(np.average(data.decided == data.y, weights=weight))}
    losses = data.losses()
    if losses is not None:
        scores["log_loss"] = float(np.average(losses, weights=weight))
    return scores


def _find_mix_ups(data: Outcomes) -> list[str]:
    """Notes on predictions that look as if another column was meant."""
    if not data.classes:
        answers = {0.0, 1.0}
        if set(np.unique(data.decided)) == answers and not set(np.unique(data.y)) <= answers:
            return ["All predictions are 0 or 1, the labels are not: are the two swapped?"]
        labels = np.unique(data.y)
        if len(labels) <= QUANTITY and data.decided.min() >= 0 and data.decided.max() <= 1:
            shown = ", ".join(f"{label:g}" for label in labels[:5])
            return [
                f"The predictions, between 0 and 1, were read as numbers predicted for the labels"
                f" {shown}{', ...' if len(labels) > 5 else ''}. If these are classes, give a"
                " probability of each, and task='classification'."
            ]
    elif data.proba is not None and len(data.classes) == 2 and len(np.unique(data.y)) == 2:
        ranked = float(roc_auc_score(data.y, data.proba[:, 1]))
        if ranked < BACKWARDS:
            return [
                f"The probabilities of {data.classes[1]!r} rank the rows backwards (AUC"
                f" {ranked:.2f}): are they those of {data.classes[0]!r}?"
            ]
    return []


def _write_notes(
    data: Outcomes,
    search: FindingSearch,
    findings: list[Finding],
    copies: list[str],
    idle: list[str],
    out_of_fold: bool,
) -> list[str]:
    """What could not be told, and why; what looks like a mistake; what to do first."""
    notes, n = [], len(data.y)
    notes += [
        f"{name!r} repeats the labels: no slices of it were looked at." for name in sorted(copies)
    ]
    if data.classes and data.proba is None:
        notes.append(
            "Only classes were given, no probabilities: it cannot be told whether a slice has wrong"
            " probabilities, is hard, or is failed by the threshold."
        )
    if idle:
        notes.append(
            f"No slice can be made of {_list_first(idle)}: one value has nearly all rows, or every value"
            f" fewer than {search.index.min_rows}."
        )
    elif not search.index.columns:
        notes.append(
            "No columns were given: only the model as a whole, and its classes, were looked at."
        )
    if n < FEW_ROWS:
        notes.append(f"{n:,} rows: only large gaps can be told from chance.")
    mistaken = _find_mix_ups(data)
    notes += mistaken
    if search.recalibrated and not mistaken:
        names = ", ".join(search.recalibrated[:5])
        notes.append(
            f"The probabilities of {names} are off as a whole (see the findings). Slices are"
            " told where they are wrong beyond that; calibrate the model first."
        )
    wrong = [one for one in findings if one.kind == "wrong probabilities"]
    if any(one.low <= one.predicted <= one.high for one in wrong):
        notes.append(
            "An interval holds for all slices at once: it may include what the model gives although"
            " the finding, judged for itself, is sure."
        )
    if not out_of_fold:
        notes.append(
            "It is not known whether these rows trained the model. If they did, it looks right for"
            " everybody: audit other rows, or give a model and cv=5."
        )
    return notes
