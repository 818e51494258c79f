"""Audit a table: its own column of predictions, or those of an ordinary model, made out of fold.

prediction given      read the columns with a role; code the others one by one   (_audit_column)
none                  read the table as `train` does                      (_audit_ordinary_model)
                      try a few settings of one model, each out of fold
                      keep the predictions with the lowest mean loss
both                  scdro.audit(labels, predictions, columns)
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from scdro.auditing import Audit
from scdro.auditing import audit as audit_predictions
from scdro.errors import HyperparameterError
from scdro.tables._options import AuditOptions, TableOptions, TrainOptions, takes
from scdro.tables._read import FileOptions, as_table, column_of, use_plain_types

if TYPE_CHECKING:
    from scdro.tables._study import OnProgress

__all__ = ["audit"]


@takes(AuditOptions)
def audit(data: Any, target: str, *, progress: OnProgress | None = None, **options: Any) -> Audit:
    """Where a model of a table fails: the model that made a column of predictions, or an ordinary one.

    With `prediction`, nothing is trained. Without, every row is predicted by a model that did not
    see it, and that model is audited: what it says of people holds for a model like it.

    Args:
        data: a DataFrame, a dictionary of columns, or the path of a file, as for `train`.
        target: the column with the labels.
        progress: called with (done, total, text).
        **options: as below.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> age = rng.integers(20, 60, 3000)
        >>> p = rng.uniform(0.1, 0.5, 3000)
        >>> y = rng.random(3000) < np.where(age > 50, 0.9, p)
        >>> audit({"age": age, "y": y.astype(int), "p": p}, "y", prediction=["p"]).findings[0].kind
        'wrong probabilities'
    """
    asked = AuditOptions(**options)
    if target in asked.prediction:
        raise HyperparameterError(
            f"expected predictions in another column than the target {target!r}"
        )
    if asked.prediction:
        return _audit_column(data, target, asked)
    if asked.weight is not None:
        raise HyperparameterError(
            "expected weight with prediction, got a table without predictions"
        )
    return _audit_ordinary_model(data, target, asked, progress)


# -- an ordinary model


def _audit_ordinary_model(
    data: Any, target: str, asked: AuditOptions, progress: OnProgress | None
) -> Audit:
    """Choose the settings of a model by its mean loss out of fold, and audit those predictions."""
    from scdro.tables._models import Learner
    from scdro.tables._problem import make_problem

    shared = {one.name: getattr(asked, one.name) for one in fields(TableOptions)}
    shared["group"] = [name for name in asked.group if name != target]
    problem = make_problem(data, target, TrainOptions(**shared))
    # There are no test rows: all rows are for the folds (in a large table, a sample of them).
    learner = Learner(problem, asked, np.arange(len(problem.y)), asked.seed)
    candidates, even = learner.candidates(asked.candidates), np.ones(len(learner.sample))
    tried = []  # predictions out of fold of each candidate, (sample, k) or (sample,)
    for k, settings in enumerate(candidates, 1):
        if progress is not None:
            words = ", ".join(f"{name} {value}" for name, value in settings.items())
            progress(k, len(candidates) + 1, words)
        tried.append(learner.cross_fit(settings, even)["predicted"])
    if progress is not None:
        progress(len(candidates) + 1, len(candidates) + 1, "looking for slices")
    predicted = min(tried, key=learner.mean_loss)
    # The model knows numbers of classes, or a standardised target; the audit speaks of the user's
    # own labels and unit.
    rows, (mean, unit) = learner.sample, learner.scale
    labels: Any = mean + unit * learner.y[rows]
    if problem.classes:
        labels = np.array(problem.classes, dtype=object)[learner.y[rows]]
        predicted = predicted / predicted.sum(1, keepdims=True)
    audited = audit_predictions(
        labels,
        mean + unit * predicted if not problem.classes
        else predicted[:, 1] if len(problem.classes) == 2 else predicted,
        problem.columns_to_describe(rows), classes=problem.classes or None, out_of_fold=True,
        task="classification" if problem.classes else "regression", threshold=asked.threshold,
        groups=None if problem.split_by is None else problem.split_by[rows],
        sensitive_features={name: problem.frame[rows][name] for name in asked.group} or None,
    )  # fmt: skip
    return replace(audited, notes=(*problem.warnings, *audited.notes))


# -- a column of predictions


def _audit_column(data: Any, target: str, asked: AuditOptions) -> Audit:
    """Audit the model that made a column.

    A Parquet file may be larger than memory. The columns with a role (labels, predictions, weights)
    are read at once; all others describe rows and stay a LazyFrame, which the audit reads one by
    one.
    """
    roles = {target, *asked.prediction, *asked.drop, asked.weight, asked.split_by}
    whole = _scan(data)
    from_file = whole is not None
    if whole is None:
        options = FileOptions(asked.encoding, asked.decimal, asked.sheet)
        whole = as_table(data, (), options).lazy()
    known = pl.DataFrame(schema=whole.collect_schema())  # no rows: to look up names in
    for names, what in (
        ([target], "the labels"),
        (asked.prediction, "predictions"),
        (asked.group, "groups to report"),
        (asked.drop, "to leave out"),
        (asked.categorical, "to take as categories"),
        ([asked.weight] if asked.weight else [], "sample weights"),
        ([asked.split_by] if asked.split_by else [], "rows that belong together"),
    ):
        for name in names:
            column_of(known, name, what)
    whole = whole.with_columns(pl.col(name).cast(pl.String) for name in asked.categorical)
    if asked.drop_missing:
        whole = whole.filter(pl.col(target).is_not_null())
    own = [name for name in known.columns if name in roles or name in asked.group]
    frame = as_table(whole.select(own).collect(engine="streaming"))
    described: Any = whole.drop(*roles - {None}, strict=False)
    if not from_file:  # in memory already: nothing is saved by reading it in parts
        described = described.collect()
    columns = [frame[name] for name in asked.prediction]
    return audit_predictions(
        frame[target], np.column_stack(columns) if len(columns) > 1 else columns[0], described,
        task=asked.task, threshold=asked.threshold,
        sensitive_features={name: frame[name] for name in asked.group} or None,
        sample_weight=None if asked.weight is None else frame[asked.weight],
        groups=None if asked.split_by is None else frame[asked.split_by],
    )  # fmt: skip


def _scan(data: Any) -> pl.LazyFrame | None:
    """A Parquet file, which need not be in memory; None for other data."""
    if not isinstance(data, str | Path) or Path(data).suffix.lower() not in (".parquet", ".pq"):
        return None
    try:
        return use_plain_types(pl.scan_parquet(data, glob=False))
    except (OSError, pl.exceptions.PolarsError):
        return None  # `as_table` says what is wrong with the file
