"""What the scikit-learn estimators share.

`unchanged_if_refused` surrounds each fit: it may set attributes in any order, and one that raises
leaves the estimator as it was. The other two check that what was given is an estimator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scdro.errors import HyperparameterError

__all__ = ["check_is_estimator", "check_reference", "unchanged_if_refused"]


@contextmanager
def unchanged_if_refused(estimator: Any) -> Iterator[None]:
    """Give an estimator its attributes back if fitting it raises an error."""
    before = dict(vars(estimator))  # shallow: fits replace arrays, and never write into them
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def check_is_estimator(estimator: Any, name: str = "estimator") -> None:
    """scikit-learn's own questions, such as `is_classifier`, fail for anything else."""
    if isinstance(estimator, type):
        raise HyperparameterError(
            f"expected an instance as {name}, got the class {estimator.__name__}; pass"
            f" {estimator.__name__}()"
        )
    if not hasattr(estimator, "fit"):
        raise HyperparameterError(
            f"expected a classifier or regressor of scikit-learn as {name}, got {estimator!r}; pass"
            " one, such as LogisticRegression()"
        )


def check_reference(reference: Any) -> None:
    """Raise unless a classifier has probabilities."""
    if not hasattr(reference, "predict_proba"):
        raise HyperparameterError(
            f"expected a reference with predict_proba, got {type(reference).__name__}; pass another one,"
            " such as reference=LogisticRegression(), or wrap it in CalibratedClassifierCV"
        )
