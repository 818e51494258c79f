"""A step read from a batch, or from the parts of one, and not yet taken."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from scdro.batch import Batch
from scdro.estimators import Advance
from scdro.scalar import Scalar, exp, where

__all__ = ["Estimate", "mean_of_parts", "parts_of"]


class Estimate(NamedTuple):
    """A step not yet committed. `weights` sum to ghat/s; `lam_log_s` is lam log s."""

    batch: Batch
    before: tuple[Batch, ...]  # the other parts of the batch, where it comes in parts
    log_mass: Scalar
    lam: Scalar
    lam_past: Scalar
    step: Advance
    lam_log_s: Scalar
    weights: Tensor
    objective: Scalar
    mean: Scalar | None = None
    mean_old: Scalar | None = None
    calibrating: bool = False


def parts_of(estimate: Estimate | None) -> tuple[Batch, ...]:
    return () if estimate is None else (*estimate.before, estimate.batch)


def mean_of_parts(mean: Scalar, staged: Estimate | None, log_sum: Scalar) -> Scalar:
    """The mean loss of all parts of a batch so far, each part by its share of the sum of exp(l/lam)."""
    if staged is None or staged.mean is None:
        return mean
    share = where(log_sum > -math.inf, exp(staged.step.log_mean + staged.log_mass - log_sum), 0.0)
    return mean + share * (staged.mean - mean)
