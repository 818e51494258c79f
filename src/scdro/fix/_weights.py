"""Weights under which a reference model is no better than a guess.

With p_i the reference's out-of-fold probability of sample i's label, the worst case of the losses 1
- p_i is

    w_i ~ q_i exp(-p_i / lam),

where q are the base weights. The half rule chooses lam so that sum_i w_i p_i = 1/2: on average the
reference then gives the label no more than an even chance. The mean falls in 1/lam (its derivative
is -Var_w(p)), so the root is unique. In the order of the code:

    second_look_weights    for users; look_weights with the temperatures
    _in_class              one class: the half rule, or the worst case at a radius, or why neither
    tilted_to              the lam for a mean; _at_size the lam for an effective size
    balanced               equal totals of the classes

This is the tilt of `scdro._kl` for losses 1 - p, and with rho given it is `worst_case`. The root is
another one, of the mean and not of the KL, in 1/lam because lam may be infinite: so it is written
here, in three lines (`_tilted`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import brentq

from scdro._frames import as_array
from scdro._validation import (
    array_weights,
    check_flag,
    check_half_or_rho,
    check_no_missing,
    check_number,
    read_probabilities,
)
from scdro.errors import DataError, LossError, ScdroWarning
from scdro.functional import worst_case

__all__ = ["LookWeights", "look_weights", "second_look_weights"]

Array = npt.NDArray[Any]
# The root is as exact as brentq can make it, at any scale.
EPS, SMALLEST = np.finfo(float).eps, np.finfo(float).tiny
HALF = 0.5  # the weighted mean probability of the label
SMALL = 20  # the smallest (effective) size of a class
FEW = 10  # samples below which a class weighs less than the others


class LookWeights(NamedTuple):
    """Weights of a second look, and what they were made with.

    Example:
        >>> found = look_weights(np.r_[np.full(30, 0.9), np.full(30, 0.1)], np.zeros(60))
        >>> found.lam, found.left_alone
        ({0.0: inf}, {0.0: 'the reference is right no more than half of the time'})
    """

    weights: Array  # (n,), mean one
    lam: dict[Any, float]  # by class; infinite where weights are uniform
    left_alone: dict[Any, str]  # the classes with uniform weights, and why


def second_look_weights(
    proba: Any,
    y: Any,
    *,
    rho: Any = "half",
    balance_classes: bool = True,
    min_effective_size: int = SMALL,
    sample_weight: Any = None,
) -> Any:
    r"""Sample weights for a second training, with mean one: w_i ~ exp(-p_i/lam) inside each class.

    lam is such that the weighted mean of p is 1/2 in each class (the half rule), and all classes
    get the same total. A class keeps uniform weights if there is no such lam (mean p at most 1/2,
    or no p below 1/2), or if it has fewer than `min_effective_size` samples. A class of n < 10
    samples gets n/10 of the total of the others, so that three typing errors do not count as much
    as a class. lam is raised if the effective size (sum w)^2/sum w^2 would fall below
    `min_effective_size`, so that a few hard samples cannot dominate their class.

    Args:
        proba: the probability of each sample's label, (n,), by a reference model that was not
            trained on the sample; or the probabilities of all classes, (n, k), with labels 0 to k -
            1. See `out_of_fold`.
        y: the classes of the samples, (n,). For numbers to predict see `SecondLook`.
        rho: "half", or the radius of a KL ball: the worst case of 1 - p at this radius, in each
            class.
        balance_classes: whether classes get equal totals; otherwise they keep their totals.
        min_effective_size: the smallest effective size of a class.
        sample_weight: base weights q >= 0.

    Returns:
        An array, or a tensor if `proba` is one. With a warning if all classes keep uniform weights.

    Example:
        >>> proba = np.r_[np.full(80, 0.9), np.full(20, 0.1)]  # one class; the reference is wrong on a fifth of it
        >>> second_look_weights(proba, np.zeros(100))[[0, -1]].round(3)
        array([0.625, 2.5  ])

    Reference: the exponential weights within classes are those of AFR (Qiu et al., ICML 2023),
    whose temperature is tuned with group labels.
    """
    found = look_weights(
        proba,
        y,
        rho=rho,
        balance_classes=balance_classes,
        min_effective_size=min_effective_size,
        sample_weight=sample_weight,
    )
    if len(found.left_alone) == len(found.lam):
        named = "; ".join(f"{name}: {why}" for name, why in list(found.left_alone.items())[:3])
        more = (
            f"; and {len(found.left_alone) - 3} more classes" if len(found.left_alone) > 3 else ""
        )
        warnings.warn(
            "no class was looked into, so samples of a class all have the same weight"
            f" ({named}{more})",
            ScdroWarning,
            stacklevel=2,
        )
    if isinstance(proba, torch.Tensor):
        return torch.as_tensor(found.weights, dtype=proba.dtype, device=proba.device)
    return found.weights


def look_weights(
    proba: Any,
    y: Any,
    *,
    rho: Any = "half",
    balance_classes: bool = True,
    min_effective_size: int = SMALL,
    sample_weight: Any = None,
) -> LookWeights:
    """`second_look_weights`, with the temperatures and the classes left alone."""
    check_flag("balance_classes", balance_classes)
    labels = as_array(y)
    check_no_missing(labels, "y")
    p = read_probabilities(proba, labels)
    if labels.dtype.kind == "f" and bool((labels != np.round(labels)).any()):
        raise DataError(
            "expected classes as y, got numbers with fractions; for a regression use SecondLook,"
            " which weighs by errors"
        )
    q = array_weights(sample_weight, len(p))
    check_half_or_rho(rho)
    check_number(
        "min_effective_size", min_effective_size, ">= 1", "the smallest effective size of a class"
    )
    weights = np.zeros(len(p))
    lam: dict[Any, float] = {}
    left_alone: dict[Any, str] = {}
    for label in np.unique(labels):
        rows = np.flatnonzero((labels == label) & (q > 0))
        if len(rows) == 0:
            continue
        name = label.item() if hasattr(label, "item") else label
        inside, temperature, reason = _in_class(p[rows], q[rows], rho, min_effective_size)
        weights[rows] = inside * (min(len(rows) / FEW, 1.0) if balance_classes else q[rows].sum())
        lam[name] = temperature
        if reason:
            left_alone[name] = reason
    return LookWeights(weights * len(p) / weights.sum(), lam, left_alone)


def _in_class(p: Array, q: Array, rho: Any, min_effective_size: float) -> tuple[Array, float, str]:
    """Weights of one class, with sum one; their temperature; and why they are uniform, if they are."""
    q = q / q.sum()
    mean = float(q @ p)
    if len(p) < min_effective_size or effective_size(q) < min_effective_size:
        return q, math.inf, f"fewer than {min_effective_size} samples"
    if rho == "half":
        if mean <= HALF:
            return q, math.inf, "the reference is right no more than half of the time"
        if p.min() >= HALF:
            return q, math.inf, "no sample that the reference fails"
        weights, lam = tilted_to(p, q, HALF, min_effective_size)
        return weights, lam, ""
    found = worst_case(1.0 - p, rho, sample_weight=q)
    if effective_size(found.weights) >= min_effective_size:
        return found.weights, float(found.lam), ""
    weights, lam = _at_size(p, q, min_effective_size, 1.0 / float(found.lam))
    return weights, lam, ""


def tilted_to(
    p: Array, q: Array, target: float, min_effective_size: float = 1.0
) -> tuple[Array, float]:
    """Weights ~ q exp(-p/lam) with mean p of `target`, (n,), and lam.

    Flatter ones, if the effective size would be below `min_effective_size`.

    Args:
        p: numbers to be low where weights are high, (n,).
        q: base weights that sum to one, (n,).
        target: between the smallest p and the mean of p under q.
    """

    def miss(sharpness: float) -> float:
        return float(_tilted(p, q, sharpness) @ p) - target

    # A bracket in 1/lam: at 0 the mean is above the target; double until it is below.
    low, high = 0.0, 1.0 / max(float(q @ p) - float(p.min()), 1e-300)
    while miss(high) > 0:
        low, high = high, 2 * high
        if not math.isfinite(high):
            raise LossError(
                f"expected a target between the smallest p and the mean of p, got {target}"
            )
    sharpness = _root(miss, low, high)
    if effective_size(_tilted(p, q, sharpness)) < min_effective_size:
        return _at_size(p, q, min_effective_size, sharpness)
    return _tilted(p, q, sharpness), 1.0 / sharpness if sharpness > 0 else math.inf


def _at_size(p: Array, q: Array, min_effective_size: float, sharpest: float) -> tuple[Array, float]:
    """The sharpest weights of effective size `min_effective_size`. The size falls in 1/lam."""

    def miss(sharpness: float) -> float:
        return effective_size(_tilted(p, q, sharpness)) - min_effective_size

    sharpness = _root(miss, 0.0, sharpest)
    return _tilted(p, q, sharpness), 1.0 / sharpness if sharpness > 0 else math.inf


def _root(miss: Callable[[float], float], low: float, high: float) -> float:
    """The root, in 1/lam, of a function that falls from `low` to `high`.

    An end of the interval if there is no change of sign.
    """
    if miss(high) >= 0:
        return high
    if miss(low) <= 0:
        return low
    root, _ = brentq(
        miss, low, high, xtol=SMALLEST, rtol=4 * EPS, maxiter=1000, full_output=True, disp=False
    )
    return float(root)


def _tilted(p: Array, q: Array, sharpness: float) -> Array:
    """q exp(-sharpness p), normalised; the smallest p is subtracted, so that nothing underflows."""
    w: Array = q * np.exp(-sharpness * (p - p.min()))
    w /= w.sum()
    return w


def effective_size(weights: Array) -> float:
    """The effective number of samples, (sum w)^2/sum w^2."""
    return float(weights.sum() ** 2 / (weights @ weights))


def balanced(weights: Array, y: Array, few: float = FEW) -> Array:
    """The weights, rescaled to mean one and equal totals of all classes.

    A class of n < `few` samples gets n/few of that: a handful of samples, often typing errors,
    would otherwise count as much as any class.
    """
    _, member = np.unique(y, return_inverse=True)
    totals, counts = np.bincount(member, weights), np.bincount(member, weights > 0)
    share = np.minimum(counts / few, 1.0) / np.where(totals > 0, totals, 1.0)
    shared: Array = weights * share[member]
    shared *= len(y) / shared.sum()
    return shared
