"""compare: the same verdict for any two models on held-out data.

Both models first have the free moves, thresholds and a temperature, chosen out of fold on the
held-out rows. The criterion is the worst of the groups within each class, if they are given, or if
an audit finds one in the columns: on each half of the rows, to be judged on the other. If not, it
is the hard rows, as the two models see them together: weights from one model's mistakes alone would
be unfair to that model, which is right on some of these rows by chance elsewhere.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import is_regressor

from scdro._frames import as_array, as_vector, columns_of
from scdro._validation import check_class_sizes, check_no_missing
from scdro.auditing import audit
from scdro.errors import DataError
from scdro.fix._criteria import Criterion, HardRows, WorstCell, paired
from scdro.fix._decide import CLEARLY, Evidence, decide
from scdro.fix._evidence import FoldedRows
from scdro.fix._folds import partitions
from scdro.fix._groups import ConfirmedGroups
from scdro.fix._networks import is_network, predict_loader
from scdro.fix._verdict import NOT_HELPED, NOT_SEEN, PLAIN, RECALIBRATION, THRESHOLD, Verdict
from scdro.fix._weights import balanced, look_weights

__all__ = ["compare"]

Array = npt.NDArray[Any]
AGAIN = "again"
FOLDS = 5  # of the held-out rows, for the free moves
MOST_VALUES = 10  # of a column whose values are told one by one; numbers with more, by quarters


def compare(
    plain: Any, again: Any, held_out: Any, columns: Any = None, *, groups: Any = None, seed: int = 0
) -> Verdict:
    """Whether a second model is better for the people whom the first one fails, on held-out data.

    Both models have their best thresholds and temperature first, so that a gain is not one that
    the first model could have had for nothing.

    Args:
        plain: the first model: a fitted estimator of scikit-learn, a torch network, or its
            predictions for the held-out rows: probabilities of the classes, (n, k), in the order of
            the sorted labels.
        again: the second model, of any of these kinds.
        held_out: data that neither model was trained on: (X, y) for estimators; a loader for
            networks; the labels for predictions.
        columns: columns of the rows, such as a DataFrame. If no groups are given, the clearest
            slice that an audit of the first model finds on one half of the rows is the group of the
            other half, and both ways. The accuracy of each value before and after is in
            `verdict.rungs`.
        groups: groups that matter: one value a row, a mask, a finding of `audit` or a slice of
            `find_slices`. The worst of them, within each class, then decides.
        seed: seed of the folds of the free moves.

    Returns:
        A `Verdict`; `used` is "again" if the second model helps, else "plain". Where it does not,
        `answer` says why: "no group seen"; "a group is seen, but not helped"; "helped at too high a
        price"; or "another threshold suffices", of the first model.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> y, rare = rng.integers(0, 2, 2000), rng.random(2000) < 0.1
        >>> first = np.where(rare, 1 - y, y) + 0.3 * rng.normal(size=2000)  # fails the rare rows
        >>> second = y + 0.4 * rng.normal(size=2000)
        >>> models = [1 / (1 + np.exp(6 - 12 * score)) for score in (first, second)]
        >>> verdict = compare(*(np.c_[1 - p, p] for p in models), y, groups=rare)
        >>> verdict.answer, verdict.used
        ('helps', 'again')
    """
    rows = _read(plain, again, held_out)
    classes = None if rows.regression else np.unique(rows.labels)
    y = rows.labels.astype(float) if classes is None else np.searchsorted(classes, rows.labels)
    if classes is not None:
        check_class_sizes(rows.labels)
    base = np.ones(len(y))
    cuts = partitions(FOLDS, 1, None, rows.labels, None, seed, classifier=classes is not None)
    study = FoldedRows(None, rows.labels, y, classes, base, [(cuts, cuts)])
    predictions = [rows.first, rows.second]
    if classes is not None:
        predictions = [study.with_temperature([[one]])[0][0] for one in predictions]
    confirmed = None
    if groups is not None:
        confirmed = ConfirmedGroups.of(groups, None, rows.labels, not rows.regression)
    found: tuple[str, ...] = ()
    named = None if columns is None else _read_columns(columns, len(y))
    if confirmed is None and named is not None:
        confirmed, found = _found_by_an_audit(rows, named, seed)
    criterion, looked = _criterion(predictions, study, confirmed)
    everyone = (
        WorstCell(base[None], ("all",))
        if classes is None
        else WorstCell.of(y, [str(name) for name in classes.tolist()], base)
    )
    scores, recalibrated = (study.scores([[one]]) for one in (rows.first, predictions[0]))
    after = [
        study.scores(
            [[one]] if classes is None else study.with_thresholds([[one]], criterion)
        )
        for one in predictions
    ]  # fmt: skip
    even = base if classes is None else balanced(base, y)
    guess = -float(np.abs(y - np.median(y)).mean()) if classes is None else 1 / len(classes)
    models = {PLAIN: scores}
    if classes is not None:
        models |= {THRESHOLD: after[0], RECALIBRATION: recalibrated}
    models[AGAIN] = after[1]
    evidence = Evidence(
        criterion=criterion, classes=everyone, models=models, name=AGAIN, reference=after[0],
        rivals=[after[0]], settings={}, as_is=base, balanced_base=even, looked=looked,
        nothing=guess, regression=classes is None, fits={},
    )  # fmt: skip
    verdict = _say_of_two_models(decide(evidence, None, True, {}), found)
    if named is None:
        return verdict
    return _with_cells(verdict, {name: one.each for name, one in models.items()}, named)


def _with_cells(verdict: Verdict, each: dict[str, Array], columns: dict[str, Array]) -> Verdict:
    """The rungs with the accuracy of each value of the columns; `each` is that of the rows."""
    told = _cells_of(columns)
    rungs = []
    for rung in verdict.rungs:
        own = each[rung.name]
        changes = {
            name: paired(own[rows], each[PLAIN][rows], np.ones(int(rows.sum())))
            for name, rows in told
        }
        cells = {name: float(own[rows].mean()) for name, rows in told}
        rungs.append(replace(rung, cells=rung.cells | cells, changes=rung.changes | changes))
    return replace(verdict, rungs=tuple(rungs))


def _found_by_an_audit(
    rows: _HeldOut, columns: dict[str, Array], seed: int
) -> tuple[ConfirmedGroups | None, tuple[str, ...]]:
    """Groups of the rows, each half by the clearest slice of the other, and what these are called."""
    inside, known = np.zeros(len(rows.labels), bool), np.zeros(len(rows.labels), bool)
    names: list[str] = []
    for seen, unseen in partitions(2, 1, None, rows.labels, None, seed, not rows.regression)[0]:
        here, there = (
            {name: values[half] for name, values in columns.items()} for half in (seen, unseen)
        )
        classes = None if rows.regression else np.unique(rows.labels).tolist()
        task = "regression" if rows.regression else "classification"
        findings = audit(
            rows.labels[seen], rows.first[seen], here, classes=classes, task=task
        ).findings
        clear = [one for one in findings if one.conditions and one.kind != "threshold"]
        if clear:
            inside[unseen], known[unseen] = clear[0].rows_of(there), True
            names.append(clear[0].slice)
    if not inside.any():
        return None, ()
    values = np.where(inside, "found", "the rest").astype(object)
    values[~known] = None
    return ConfirmedGroups(values), tuple(dict.fromkeys(names))


def _say_of_two_models(verdict: Verdict, found: tuple[str, ...]) -> Verdict:
    """The verdict in the words of two given models; `found` are the slices of an audit."""
    if found:
        where = f"An audit of one half of the rows found, for the other: {' / '.join(found)}."
        verdict = replace(verdict, note=f"{verdict.note} {where}".strip())
    if (
        verdict.used == THRESHOLD
    ):  # the first model gains by thresholds; the second does not beat it
        enough = "The first model with other thresholds is enough."
        return replace(verdict, note=f"{enough} {verdict.note}".strip())
    if verdict.helps and not verdict.confirmed and verdict.gain < CLEARLY * verdict.gain_error:
        note = "The hard rows do not gain clearly; with groups=... the verdict would be surer."
        return replace(verdict, answer=NOT_SEEN, used=PLAIN, note=note)
    if verdict.gain < -CLEARLY * verdict.gain_error:
        note = f"The second model is clearly worse here. {verdict.note}".strip()
        answer = NOT_HELPED if verdict.confirmed else NOT_SEEN
        return replace(verdict, answer=answer, used=PLAIN, note=note)
    return verdict


class _HeldOut(NamedTuple):
    labels: Array  # (n,)
    first: Array  # probabilities (n, k) of the first model, or its predictions (n,)
    second: Array
    regression: bool


def _read(plain: Any, again: Any, held_out: Any) -> _HeldOut:
    """Labels and predictions of both models, of any kind, for the same rows."""
    if is_network(plain) or is_network(again):
        (first, labels), (second, _) = (predict_loader(one, held_out) for one in (plain, again))
        return _HeldOut(*_check_predictions(labels, first, second), regression=False)
    if hasattr(plain, "predict"):
        if not (isinstance(held_out, tuple | list) and len(held_out) == 2):
            raise DataError(
                "expected held-out data as (X, y) for estimators of scikit-learn, got"
                f" {type(held_out).__name__}"
            )
        X, y = held_out
        labels = as_array(y)
        regression = bool(is_regressor(plain))
        answers = [
            one.predict(X) if regression else _in_order(one, X, labels) for one in (plain, again)
        ]
        return _HeldOut(*_check_predictions(labels, *answers), regression=regression)
    first, second = as_array(plain), as_array(again)
    return _HeldOut(
        *_check_predictions(as_array(held_out), first, second), regression=first.ndim == 1
    )


def _in_order(model: Any, X: Any, labels: Array) -> Array:
    """Probabilities of the classes that the held-out labels have, in sorted order."""
    classes = np.unique(labels)
    unknown = np.setdiff1d(classes, model.classes_)
    if len(unknown):
        raise DataError(
            f"expected labels that both models know, got {unknown.tolist()[:5]} besides; leave"
            " these rows out"
        )
    proba = model.predict_proba(X)[:, np.searchsorted(model.classes_, classes)]
    shares: Array = proba / np.maximum(proba.sum(1, keepdims=True), 1e-300)
    return shares


def _check_predictions(labels: Array, first: Array, second: Array) -> tuple[Array, Array, Array]:
    check_no_missing(labels, "labels")
    if first.shape != second.shape or len(first) != len(labels):
        raise DataError(
            f"expected predictions of both models for the same {len(labels)} rows, got shapes"
            f" {first.shape} and {second.shape}"
        )
    if first.ndim == 2 and first.shape[1] != len(np.unique(labels)):
        raise DataError(
            f"expected probabilities of the {len(np.unique(labels))} classes that the labels have,"
            f" got {first.shape[1]} columns"
        )
    return labels, first, second


def _criterion(
    predictions: list[Array], study: FoldedRows, confirmed: ConfirmedGroups | None
) -> tuple[Criterion, Array]:  # fmt: skip
    """What a gain is measured by, and the weights of the rows, (1, n).

    The worst group, or the rows that are hard for the two models together.
    """
    n, y = len(study.y), study.y
    if confirmed is not None:
        cells = confirmed.cells(y, study.classes, study.base)
        return WorstCell.of(cells.numbers, cells.names, study.base), study.base[None]
    if study.classes is None:
        hard = np.mean([np.abs(one - y) for one in predictions], axis=0)
        looked = (hard * (n / max(hard.sum(), 1e-300)))[None] if hard.any() else study.base[None]
    else:
        of_label = np.mean([one[np.arange(n), y] for one in predictions], axis=0)
        looked = look_weights(of_label, y).weights[None]
    return HardRows(looked, np.zeros(n, int) if study.classes is None else y), looked


def _read_columns(columns: Any, n: int) -> dict[str, Array]:
    """The columns by name, (n,) each, checked."""
    named = columns_of(columns, as_vector)
    if named is None:
        raise DataError(
            "expected a DataFrame (pandas, polars, Arrow) or a dictionary of columns, got"
            f" {type(columns).__name__}"
        )
    for name, column in named.items():
        if len(column) != n:
            raise DataError(f"expected {n} values of column {name!r}, got {len(column)}")
    return named


def _cells_of(columns: dict[str, Array]) -> list[tuple[str, Array]]:
    """Each value of each column, or quarters of its numbers, with the mask of its rows."""
    cells: list[tuple[str, Array]] = []
    for name, column in columns.items():
        distinct = np.unique(column.astype(str))
        if len(distinct) <= MOST_VALUES:
            cells += [(f"{name} = {value}", column.astype(str) == value) for value in distinct]
        elif np.issubdtype(column.dtype, np.number):
            edges = np.nanquantile(column, [0.0, 0.25, 0.5, 0.75, 1.0])
            for low, high in pairwise(edges):
                inside = (column >= low) & (column <= high)
                if inside.any():
                    cells.append((f"{low:.4g} <= {name} <= {high:.4g}", inside))
    return cells
