"""What a user has: labels, and what some model predicted for them, or the model itself.

A model of scikit-learn (`predict_with`), or a network with a loader (`run_network`), makes
predictions first. These are then read as one of three (`read_outcomes`):

    labels                                predictions                 read as
    many different numbers, or numbers
      predicted by other numbers          numbers, (n,)               a regression
    anything else                         (n, k)                      probabilities of k classes
                                          numbers in [0, 1], not      probabilities of the second
                                          labels, of two classes      of two classes
                                          anything else, (n,)         predicted classes

What they cannot be is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scdro._arguments import check_number
from scdro._frames import as_array, columns_of, is_missing
from scdro.errors import DataError, HyperparameterError

__all__ = [
    "QUANTITY", "Outcomes", "is_model", "is_network", "predict_with", "read_outcomes", "read_units",
    "read_vector", "read_weight", "run_network",
]  # fmt: skip

Array = npt.NDArray[Any]
LEAST_ROWS = 30  # rows below which nothing can be told
QUANTITY = 20  # more different numbers than this are a quantity, not classes
SUM = 1e-3  # probabilities of a row may miss one by this much


@dataclass(frozen=True)
class Outcomes:
    """Labels and predictions, checked.

    Attributes:
        classes: names of the classes; () for regression.
        y: numbers of the classes, or the target itself, (n,).
        proba: probabilities, (n, classes); None if only classes, or numbers, are known.
        decided: numbers of the predicted classes, or predicted numbers, (n,).
        low, high: ends of the prediction intervals of a regression, (n,); None if not given.
    """

    classes: tuple[str, ...]
    y: Array
    proba: Array | None
    decided: Array
    low: Array | None = None
    high: Array | None = None

    def losses(self) -> Array | None:
        """Log losses, or squared errors; None if only classes are known."""
        if not self.classes:
            squared: Array = (self.y - self.decided) ** 2
            return squared
        if self.proba is None:
            return None
        given = self.proba[np.arange(len(self.y)), self.y]
        logs: Array = -np.log(np.maximum(given, 1e-15))
        return logs


def read_outcomes(
    y: Any,
    predictions: Any,
    *,
    classes: Sequence[Any] | None = None,
    threshold: float = 0.5,
    intervals: Any = None,
    task: str | None = None,
) -> Outcomes:
    """Find out what the predictions are, and refuse what they cannot be.

    Numbers for labels that are many different numbers are a regression. Otherwise two-dimensional
    predictions are probabilities of the classes; of one column, numbers between 0 and 1 that are no
    labels are probabilities of the second class, and everything else is predicted classes.

    Args:
        y: labels.
        predictions: what a model said of them, (n,) or (n, classes).
        classes: the model's classes, in the order of its probabilities.
        threshold: probability of the second of two classes above which it is decided.
        intervals: (low, high) of a regression's prediction intervals.
        task: "classification" or "regression"; None: by what labels and predictions look like.
    """
    labels = read_vector(y, "labels")
    n = len(labels)
    given = _read_given(predictions, n)
    if n < LEAST_ROWS:
        raise DataError(
            f"expected at least {LEAST_ROWS} rows, to tell anything from chance, got {n}"
        )
    if task not in (None, "classification", "regression"):
        raise HyperparameterError(f"expected task 'classification' or 'regression', got {task!r}")
    check_number("threshold", threshold, "in (0, 1)", "the probability above which it is predicted")
    known = None if classes is None else _check_classes(classes)
    if task == "regression" or (task is None and classes is None and _is_quantity(labels, given)):
        return _read_regression(labels, given, intervals)
    if intervals is not None:
        raise DataError("expected intervals for a regression only, got classes as labels")
    if given.ndim == 2:
        return _read_probabilities(labels, given, known)
    return _read_one_column(labels, given, known, threshold)


def _check_classes(classes: Any) -> list[Any]:
    """The classes of a model, each once."""
    if isinstance(classes, str) or not hasattr(classes, "__iter__"):
        raise HyperparameterError(f"expected classes as a list, got {classes!r}")
    known = [_as_plain_value(value) for value in classes]
    if len(_distinct_values(np.array(known, dtype=object))) < len(known):
        raise HyperparameterError(f"expected different classes, got {_list_values(known)}")
    return known


def read_vector(values: Any, what: str) -> Array:
    """One value for each row; none may be missing."""
    array = as_array(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"expected {what} as one column, got shape {array.shape}")
    if array.dtype == object:
        array = np.array([_as_plain_value(value) for value in array.tolist()], dtype=object)
        gone = sum(map(is_missing, array))
    else:
        gone = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
    if gone:
        raise DataError(
            f"expected {what} without missing values, got {gone:,} of {len(array):,} missing; leave"
            " these rows out"
        )
    return array


def read_weight(sample_weight: Any, n: int) -> Array:
    """Sample weights, scaled to one on average; all 1 if there are none."""
    if sample_weight is None:
        return np.ones(n)
    given = read_vector(sample_weight, "sample weights")
    try:
        weight = given.astype(float)
    except (TypeError, ValueError):
        raise DataError(
            f"expected numbers as sample weights, got values such as {given.tolist()[0]!r}"
        ) from None
    if len(weight) != n:
        raise DataError(f"expected {n:,} sample weights, one for each row, got {len(weight):,}")
    if not np.isfinite(weight).all() or (weight < 0).any() or weight.sum() == 0:
        raise DataError("expected finite sample weights >= 0, not all 0")
    scaled: Array = weight * (n / weight.sum())
    return scaled


def read_units(groups: Any, n: int) -> Array:
    """The unit of each row, such as a patient, as a number, (n,).

    groups: a name or number for each row.
    """
    units = read_vector(groups, "groups")
    if len(units) != n:
        raise DataError(f"expected {n:,} groups, one for each row, got {len(units):,}")
    known = units.astype(str) if units.dtype == object else units
    numbers: Array = np.unique(known, return_inverse=True)[1]
    return numbers


def _as_plain_value(value: Any) -> Any:
    """A NumPy scalar as a value of Python, so that equal labels of different types are equal."""
    return value.item() if isinstance(value, np.generic) else value


def _read_given(predictions: Any, n: int) -> Array:
    """Predictions of any kind as an array, (n,) or (n, k), one row for each label and none missing."""
    columns = columns_of(predictions)
    array = as_array(predictions) if columns is None else np.column_stack(list(columns.values()))
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2):
        raise DataError(f"expected predictions (n,) or (n, classes), got shape {array.shape}")
    if len(array) != n:
        raise DataError(f"expected {n:,} predictions, one for each label, got {len(array):,}")
    if array.dtype == object:
        if array.ndim == 1:
            return read_vector(array, "predictions")
        try:
            array = array.astype(float)
        except (TypeError, ValueError) as error:
            raise DataError("expected numbers as probabilities, got other values") from error
    if array.dtype.kind == "f" and np.isnan(array).any():
        gone = int(np.isnan(array).any(axis=-1).sum() if array.ndim == 2 else np.isnan(array).sum())
        raise DataError(
            f"expected predictions without NaN, got {gone:,} of {n:,} rows with NaN; leave these"
            " rows out"
        )
    return array


def _is_quantity(labels: Array, given: Array) -> bool:
    """Whether labels are numbers to predict: many different ones, or predicted by other numbers."""
    if given.ndim == 2 or labels.dtype.kind not in "fiu" or given.dtype.kind not in "fiu":
        return False
    distinct = np.unique(labels)
    if len(distinct) > QUANTITY:
        return True
    return len(distinct) > 2 and not np.isin(given, distinct).all()


def _read_regression(labels: Array, given: Array, intervals: Any) -> Outcomes:
    """Numbers predicted for numbers, perhaps with intervals."""
    if given.ndim != 1 or given.dtype.kind not in "fiub" or labels.dtype.kind not in "fiub":
        raise DataError("expected one number for each row, for regression, got other predictions")
    y, predicted = labels.astype(float), given.astype(float)
    if not (np.isfinite(y).all() and np.isfinite(predicted).all()):
        raise DataError("expected finite numbers, got infinite ones")
    if np.ptp(y) == 0:
        raise DataError(f"expected different targets, got {y[0]:g} in every row")
    low = high = None
    if intervals is not None:
        low, high = _read_intervals(intervals, len(y))
    return Outcomes((), y, None, predicted, low, high)


def _read_intervals(intervals: Any, n: int) -> Array:
    """The ends of prediction intervals, (2, n), low first."""
    expected = (
        "expected intervals as (low, high), each with one number for each row and low <= high"
    )
    try:
        ends = np.asarray(intervals, dtype=float)
    except (TypeError, ValueError):
        raise DataError(f"{expected}, got texts, or two different lengths") from None
    ends = ends.T if ends.shape == (n, 2) else ends
    if ends.shape != (2, n):
        raise DataError(f"{expected}, got shape {ends.shape}")
    odd = ~(ends[0] <= ends[1])  # also of NaN
    if odd.any():
        row = int(odd.argmax())
        raise DataError(
            f"{expected}, got {ends[0, row]:g} and {ends[1, row]:g} in row {row + 1} and"
            f" {int(odd.sum()):,} such rows"
        )
    return ends


def _read_probabilities(labels: Array, given: Array, known: list[Any] | None) -> Outcomes:
    """Probabilities of all classes, (n, k).

    Without `known`, the columns are the labels that occur, sorted; but if some of k classes do not
    occur, labels that are whole numbers below k are the numbers of the columns.

    Args:
        labels: (n,).
        given: probabilities, (n, k).
        known: the classes in the order of the columns, if the user said so.
    """
    present = _distinct_values(labels)
    k = given.shape[1]
    if known is None:
        whole = all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v < k for v in present)
        known = list(range(k)) if whole and len(present) != k else present
    if len(known) != k:
        raise DataError(
            f"expected probabilities of {_count_classes(known)} ({_list_values(known)}), got {k} columns; if"
            " the model knows other classes, give them in order as classes="
        )
    _check_range(given.min(), given.max())
    sums = given.sum(1)
    off = np.abs(sums - 1) > SUM
    if off.any():
        row = int(off.argmax())
        raise DataError(
            f"expected probabilities that add up to 1 in every row, got {sums[row]:.4g} in row"
            f" {row + 1} and {int(off.sum()):,} such rows; of logits, take the softmax first"
        )
    y = _label_numbers(labels, known)
    proba = np.asarray(given, dtype=float)
    return Outcomes(tuple(map(str, known)), y, proba, proba.argmax(1))


def _read_one_column(
    labels: Array, given: Array, known: list[Any] | None, threshold: float
) -> Outcomes:
    """One column of predictions, (n,): probabilities of the second of two classes, or classes.

    Args:
        labels: (n,).
        given: predictions, (n,).
        known: the classes in order, if the user said so.
        threshold: probability of the second class above which it is decided.
    """
    present = _distinct_values(labels)
    names = known if known is not None else present
    if given.dtype.kind == "f" and len(names) <= 2 and not np.isin(given, labels).all():
        _check_range(given.min(), given.max())
        _require_two(names)
        positive = np.asarray(given, dtype=float)
        proba = np.column_stack([1 - positive, positive])
        decided = (positive > threshold).astype(int)
        return Outcomes(tuple(map(str, names)), _label_numbers(labels, names), proba, decided)
    predicted = _distinct_values(given)
    if not set(predicted) & set(names):
        if given.dtype.kind == "f" and given.min() >= 0 and given.max() <= 1:
            raise DataError(
                f"expected probabilities of {_count_classes(names)} ({_list_values(names)}), a column for each,"
                " got one column"
            )
        advice = "; convert texts to numbers first" if given.dtype.kind in "OUT" else ""
        if any(isinstance(value, str) and "," in value for value in predicted):
            advice += " (of a file with decimal commas: --decimal ,)"
        raise DataError(
            f"expected predictions among the labels ({_list_values(names)}), or probabilities, got"
            f" {_list_values(predicted)}{advice}"
        )
    if known is None:
        names = _sort_values(set(present) | set(predicted))
    _require_two(names)
    decided = _label_numbers(given, names)
    return Outcomes(tuple(map(str, names)), _label_numbers(labels, names), None, decided)


def _check_range(low: float, high: float) -> None:
    """Raise if the smallest or the largest number is no probability."""
    if low < -1e-6 or high > 1 + 1e-6:
        out = low if low < 0 else high
        raise DataError(
            f"expected probabilities between 0 and 1, got {out:.4g}; of logits, take the sigmoid or"
            " softmax first; divide percentages by 100; for the predictions of a regressor, set"
            " task='regression'"
        )


def _require_two(names: list[Any]) -> None:
    """Raise if there are fewer than two classes: nothing could be confused."""
    if len(names) < 2:
        raise DataError(
            f"expected labels of at least two classes, got only {_list_values(names)}; add rows of"
            " another class, or, if the model knows one, give both in Python, in order, as classes="
        )


def _distinct_values(array: Array) -> list[Any]:
    """The different values, sorted, as values of Python."""
    return _sort_values(set((array if array.dtype == object else np.unique(array)).tolist()))


def _sort_values(values: set[Any]) -> list[Any]:
    """Values in order; those of several types by the name of the type first."""
    try:
        return sorted(values)
    except TypeError:  # values of several types
        return sorted(values, key=lambda value: (type(value).__name__, str(value)))


def _label_numbers(labels: Array, names: list[Any]) -> Array:
    """The position of each label among the classes, (n,); a label that is none of them is an error."""
    lookup = {name: k for k, name in enumerate(names)}
    if labels.dtype == object:
        numbers = np.array([lookup.get(value, -1) for value in labels.tolist()], dtype=int)
    else:  # one look-up for each value, not for each row
        distinct, inverse = np.unique(labels, return_inverse=True)
        numbers = np.array([lookup.get(value, -1) for value in distinct.tolist()], dtype=int)[
            inverse
        ]
    if (numbers < 0).any():
        odd = labels.tolist()[int((numbers < 0).argmax())]
        raise DataError(
            f"expected labels that the model knows ({_list_values(names)}), got {odd!r} in"
            f" {int((numbers < 0).sum()):,} rows"
        )
    return numbers


def _count_classes(names: Sequence[Any]) -> str:
    return f"{len(names)} class" + "es" * (len(names) != 1)


def _list_values(names: Sequence[Any]) -> str:
    """The first five, and how many more there are, for a message."""
    shown = ", ".join(repr(name) for name in names[:5])
    return shown + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


# -- a model that exists: scikit-learn's and its like, or a torch network with a loader


def is_network(thing: Any) -> bool:
    """Whether it is a torch module; torch is not imported to find out."""
    return any(
        f"{t.__module__}.{t.__name__}" == "torch.nn.modules.module.Module"
        for t in type(thing).__mro__
    )


def is_model(thing: Any) -> bool:
    """Whether it predicts: an estimator of scikit-learn and its like, or a network."""
    return hasattr(thing, "predict") or is_network(thing)


def predict_with(model: Any, X: Any, y: Any, cv: Any = None, groups: Any = None) -> tuple[Any, Any]:
    """What a fitted model predicts, and its classes (None for a regressor).

    Args:
        model: with `predict_proba` or `predict`.
        X, y: rows and labels.
        cv: number of folds, or a splitter: copies of the model are fitted, and every row is
            predicted by one that did not see it. None: the model predicts as it is.
        groups: units of the rows, which stay in one fold.
    """
    from sklearn.base import is_classifier
    from sklearn.exceptions import NotFittedError
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, cross_val_predict

    method = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    if cv is not None:
        if isinstance(cv, int) and groups is not None:  # KFold would take units apart
            cv = StratifiedGroupKFold(cv) if is_classifier(model) else GroupKFold(cv)
        predicted = cross_val_predict(model, X, y, cv=cv, method=method, groups=groups)
        classes = np.unique(np.asarray(y)) if is_classifier(model) else None
        return predicted, classes
    try:
        predicted = getattr(model, method)(X)
    except NotFittedError as error:
        raise DataError(
            f"expected a fitted model, got {type(model).__name__} before fit; fit it on other rows,"
            " or set cv=5 to have every row predicted by a copy that did not see it"
        ) from error
    classes = getattr(model, "classes_", None) if method == "predict_proba" else None
    return predicted, classes


def run_network(network: Any, loader: Any) -> tuple[Array, Array]:
    """Labels and probabilities (or numbers) of a network, over batches as in `scdro._batches`.

    One output per row is of the second class if the labels are 0 and 1, else a predicted number;
    several are of the classes. They are logits, or probabilities if all of them could be.
    """
    import torch

    from scdro._batches import as_probabilities, in_order, logits_of, read_batch

    if not hasattr(loader, "__iter__"):
        raise DataError(f"expected batches of (inputs, labels), got a {type(loader).__name__}")
    # Batches go to where the network is; its mode is restored, whatever happens.
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    training, outputs, labels = network.training, [], []
    network.eval()
    try:
        with torch.no_grad():
            for item in in_order(loader):
                batch = read_batch(item)
                made = batch.call(network, device)
                scores = logits_of(made)
                if scores is None:
                    raise DataError(
                        "expected a network that returns a tensor, or an object with logits, got a"
                        f" {type(made).__name__}"
                    )
                outputs.append(scores.double().cpu())
                labels.append(as_array(batch.labels))
    finally:
        network.train(training)
    if not outputs:
        raise DataError("expected batches of (inputs, labels), got an empty loader")
    if any(len(one) != len(two) for one, two in zip(outputs, labels, strict=True)):
        raise DataError(
            f"expected one output for each label, got {len(outputs[0])} outputs for"
            f" {len(labels[0])} labels"
        )
    y, out = np.concatenate(labels), torch.cat(outputs)
    out = out.reshape(len(out), -1)
    if out.shape[1] == 1 and not np.isin(y, (0, 1)).all():
        return y, out[:, 0].numpy()
    return y, as_probabilities(out).numpy()
