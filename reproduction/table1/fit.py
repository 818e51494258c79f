"""The power of a power law, with a confidence interval, from independent runs at each horizon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from scdro.errors import HyperparameterError

__all__ = ["PowerLaw", "power_law"]


class PowerLaw(NamedTuple):
    """mean = exp(intercept) samples^slope, and the interval of the slope."""

    slope: float
    low: float
    high: float
    intercept: float


def power_law(
    samples: Sequence[float], values: Sequence[Sequence[float]], level: float = 0.95
) -> PowerLaw:
    """Least squares of log(mean over seeds) on log(samples); `values` holds the seeds of each horizon.

    The theorems bound expectations, so the mean is taken before the logarithm. Runs of different
    horizons are
    independent: the variance of the slope is the sum over horizons of c^2 var/(seeds mean^2), c the
    weight of a horizon in the slope, with Student's t by Welch's and Satterthwaite's degrees of
    freedom.

    Example:
        >>> round(power_law([1, 10, 100], [[2.0, 2.0], [0.2, 0.2], [0.02, 0.02]]).slope, 9)
        -1.0
    """
    if len(samples) != len(values) or len(set(samples)) < 2 or any(len(v) < 2 for v in values):
        raise HyperparameterError(
            f"expected two or more horizons, each with two or more seeds, got {len(samples)}"
            f" horizons with {[len(v) for v in values]} seeds"
        )
    if any(not 0.0 < value < math.inf for v in values for value in v):
        raise HyperparameterError("expected values > 0, got others; their logarithm has no slope")
    x = np.log(np.asarray(samples, dtype=np.float64))
    means = np.array([np.mean(v) for v in values])
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    slope = float(weights @ np.log(means))
    variances = weights**2 * np.array([np.var(v, ddof=1) / len(v) for v in values]) / means**2
    half = 0.0
    if variances.sum() > 0.0:
        freedom = variances.sum() ** 2 / sum(
            v**2 / (len(s) - 1) for v, s in zip(variances, values, strict=True)
        )
        half = float(student.ppf(0.5 + level / 2, freedom) * math.sqrt(variances.sum()))
    return PowerLaw(
        slope, slope - half, slope + half, float(np.log(means).mean() - slope * x.mean())
    )
