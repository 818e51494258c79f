"""Checks of arguments that any part of the library takes: numbers, choices, names.

Like all checks they raise before anything changes. They stand apart from `_validation`, which
checks tensors, so that an audit of predictions needs no torch.

A range is given as the text that an error shows, "in (0, 1]" or ">= 0", and is read from it: the
message cannot differ from the check.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from typing import Any

import numpy as np

from scdro.errors import HyperparameterError

__all__ = [
    "check_choice",
    "check_flag",
    "check_is",
    "check_jobs",
    "check_names",
    "check_number",
    "check_optional",
    "check_whole",
]


def check_number(
    name: str, value: Any, within: str, meaning: str = "", *, infinite: bool = False
) -> None:
    """Raise unless `value` is a number in a range: "> 0", ">= lam0 = 1e-3", "in (0, 1]". NaN is in
    no range.

    Infinity is refused unless `infinite`. `meaning` says what the number is, and may end with what
    to do.

    Example:
        >>> check_number("trim", 1.5, "in [0, 1)", "the fraction of hardest samples to leave out")
        Traceback (most recent call last):
        scdro.errors.HyperparameterError: expected trim in [0, 1), the fraction of hardest samples to leave out, got 1.5
    """
    explained = f", {meaning}" if meaning else ""
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise HyperparameterError(
            f"expected a number for {name}, {within}{explained}, got {value!r}"
        ) from None
    if not _is_within(number, within):
        raise HyperparameterError(f"expected {name} {within}{explained}, got {value}")
    if math.isinf(number) and not infinite:
        raise HyperparameterError(f"expected {name} {within} and finite{explained}, got {value}")


def _is_within(number: float, within: str) -> bool:
    """Whether a number is in a range "in [0, 1)", "> 0" or ">= lam0 = 1e-3" (the last word is the
    bound).
    """
    kind, _, bounds = within.partition(" ")
    if kind == "in":
        low, high = (float(end) for end in bounds[1:-1].split(","))
        return (low <= number if bounds[0] == "[" else low < number) and (
            number <= high if bounds[-1] == "]" else number < high
        )
    bound = float(bounds.rpartition(" ")[2])
    return number >= bound if kind == ">=" else number > bound


def check_optional(
    name: str, value: Any, within: str, meaning: str = "", *, infinite: bool = False
) -> None:
    """As `check_number`, for an argument that may be None."""
    if value is not None:
        check_number(name, value, within, meaning, infinite=infinite)


def check_whole(
    name: str, value: Any, least: int = 1, most: int | None = None, meaning: str = ""
) -> None:
    """Raise unless `value` is a whole number from `least` to `most`. A bool does not count as one."""
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        within = f">= {least}" if most is None else f"from {least} to {most}"
        explained = f", {meaning}" if meaning else ""
        raise HyperparameterError(
            f"expected {name} {within}, a whole number{explained}, got {value!r}"
        )


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise unless `value` is one of the choices."""
    if not isinstance(value, (str, int)) or value not in choices:
        raise HyperparameterError(f"expected {name} to be one of {tuple(choices)}, got {value!r}")


def check_is(value: Any, kind: type, such_as: str) -> None:
    """Raise unless `value` is of a type; `such_as` describes it by example."""
    if not isinstance(value, kind):
        raise HyperparameterError(f"expected {such_as}, got {value!r}")


def check_jobs(n_jobs: Any) -> None:
    """Raise unless `n_jobs` is a number of jobs as joblib takes it: 1 or more, -1 (all cores) or less, or None."""
    if n_jobs is not None and (
        isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or not n_jobs
    ):
        raise HyperparameterError(
            f"expected n_jobs of 1 or more, -1 for all cores, or None, got {n_jobs!r}"
        )


def check_names(name: str, value: Any) -> None:
    """Raise for a single string, whose letters would be read as names, and for what is no list of
    strings.
    """
    if (
        isinstance(value, str)
        or not isinstance(value, Collection)
        or not all(isinstance(one, str) for one in value)
    ):
        advice = f"; pass [{value!r}]" if isinstance(value, str) else ""
        raise HyperparameterError(f"expected {name} as a list of names, got {value!r}{advice}")


def check_flag(name: str, value: Any) -> None:
    """Raise for anything but True and False: the text "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise HyperparameterError(f"expected {name} to be True or False, got {value!r}")
