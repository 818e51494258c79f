r"""Losses of linear models as functions of the scores: value, slope, curvature, conjugate.

Scores z are class-major, (k, n), so that reductions over the few classes run along memory. k is 1
except for `Multinomial`. The duality gap needs the conjugate phi*(u) = max_z u z - phi(z). Every
`conjugate` is exact on its domain, and 0 is in each domain, so shrinking a slope keeps it inside.

    loss          phi(z), r = z - y                     u = phi'(z)             phi*(u)
    Logistic      log(1 + exp(-y z)), y = -1 or 1       -y s, s in (0, 1)       s log s + (1-s) log(1-s)
    Multinomial   log sum_j exp(z_j) - z_y              pi - e_y                sum_j pi_j log pi_j
    Squared       r^2/2                                 r                       u^2/2 + u y
    Huber         r^2/2, linear beyond epsilon          clip(r)                 u^2/2 + u y, |u| <= epsilon
    Pinball       max(-tau r, (1 - tau) r)              in [-tau, 1 - tau]      u y

The losses of boosting (`scdro.boosting._losses`) are a set of their own: they are functions of the
library's predictions, have no conjugates, and follow the two libraries in each detail.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from scdro._scalar import one_thread_dot
from scdro.linear_model._worst_case import Array

__all__ = [
    "Huber",
    "LinearLoss",
    "Logistic",
    "LossAt",
    "Multinomial",
    "Pinball",
    "Squared",
    "centre_of",
    "spread_of",
]


class LossAt(NamedTuple):
    """The losses of all samples at their scores, with two derivatives."""

    value: Array  # phi_i(z_i), (n,)
    slope: Array  # u_i = phi_i'(z_i), (k, n)
    # phi_i''(z_i), (k, n), or what determines it: for Logistic the slope, for Multinomial the
    # probabilities.
    curvature: Array


class LinearLoss(ABC):
    """Per-sample losses phi_i(z_i) of one data set.

    It knows the targets, so it is a function of the scores alone. Besides value and derivatives,
    the solver needs products with the second derivative, the certificate the conjugate and a way to
    balance slopes, and both the same loss on part of the samples (`take_rows`).
    """

    k = 1  # scores per sample
    unit = 1.0  # the natural size of a slope, to which the tolerance of the solver is relative
    y: Array  # encoded targets, (n,)

    @abstractmethod
    def __call__(self, z: Array) -> LossAt:
        """Losses and derivatives at scores z, (k, n)."""

    @abstractmethod
    def conjugate(self, u: Array) -> Array:
        """phi_i*(u_i), (n,), for slopes u, (k, n), in its domain."""

    @abstractmethod
    def take_rows(self, index: Any) -> LinearLoss:
        """The same loss on some of the samples, given by their positions or a slice."""

    def exact(self, z: Array) -> Array:
        """Per-sample losses without smoothing."""
        return self(z).value

    def has_all_classes(self, q: Array) -> bool:
        """Whether all classes are among the samples of positive weight.

        Otherwise the intercept would go to infinity. Always true for losses of regression.
        """
        return True

    def curvature_product(self, at: LossAt, a: Array) -> Array:
        """phi''(z) a, (k, n): how much the slopes change when the scores change by a, (k, n)."""
        curved: Array = at.curvature * a
        return curved

    def second_derivative(self, at: LossAt, j: int, l: int) -> Array:
        """d2 phi / dz_j dz_l, (n,)."""
        block: Array = at.curvature[0]
        return block

    def balance(self, u: Array, p: Array) -> Array:
        """Make sum_i p_i u_i = 0, as the intercept demands of a dual point.

        Positive slopes are shrunk by a common factor if they outweigh the negative ones, and the
        other way around, so that every slope stays inside the domain of the conjugate.
        """
        up = one_thread_dot(p, np.maximum(u[0], 0.0))
        down = one_thread_dot(p, np.maximum(-u[0], 0.0))
        if max(up, down) == 0.0:
            return u
        keep = min(up, down) / max(up, down)
        return np.where((u > 0) == (up > down), keep * u, u)


class Logistic(LinearLoss):
    """log(1 + exp(-y z)), y in {-1, 1}."""

    def __init__(self, y: Array) -> None:
        self.y = y

    def __call__(self, z: Array) -> LossAt:
        """With margin m = y z: value log(1 + e^-|m|) - min(m, 0), which no large margin overflows."""
        # In few vectors: fresh memory takes longer to get than these sums to compute.
        margin = self.y * z
        e = np.abs(margin)
        np.exp(np.negative(e, out=e), out=e)
        total = 1.0 + e
        value = np.log(total)[0]
        slope = e
        np.copyto(slope, 1.0, where=margin <= 0.0)
        slope /= total
        value -= np.minimum(margin, 0.0, out=margin)[0]
        slope *= -self.y
        return LossAt(value, slope, slope)

    def curvature_product(self, at: LossAt, a: Array) -> Array:
        """s (1 - s) a, where the slope is -y s."""
        s = np.abs(at.slope)
        curved: Array = s * (1.0 - s) * a
        return curved

    def second_derivative(self, at: LossAt, j: int, l: int) -> Array:
        """s (1 - s), (n,)."""
        s = np.abs(at.slope[0])
        curvature: Array = s * (1.0 - s)
        return curvature

    def conjugate(self, u: Array) -> Array:
        """s log s + (1-s) log(1-s) with s = -y u, minus the entropy of the error's probability."""
        s = np.clip(-self.y * u[0], 0.0, 1.0)
        entropy: Array = _times_own_log(s) + _times_own_log(1.0 - s)
        return entropy

    def has_all_classes(self, q: Array) -> bool:
        y = self.y[q > 0]
        return bool((y > 0).any() and (y < 0).any())

    def take_rows(self, index: Any) -> Logistic:
        return Logistic(self.y[index])


def _times_own_log(s: Array) -> Array:
    """s log s for s >= 0, zero at zero; a quarter of the time of `scipy.special.xlogy`."""
    log_s = np.log(np.maximum(s, np.finfo(float).tiny))
    log_s *= s
    return log_s


class Multinomial(LinearLoss):
    """log sum_j exp(z_j) - z_y. Its curvature is stored as the probabilities pi."""

    def __init__(self, y: Array, k: int) -> None:
        self.y, self.k = y, k

    def __call__(self, z: Array) -> LossAt:
        """Scores are centred by the largest of each sample, so that exp cannot overflow."""
        top = z.max(0)
        pi = np.exp(z - top)
        total = pi.sum(0)
        pi /= total
        value = np.log(total)
        value += top
        at_y = (self.y, np.arange(z.shape[1]))
        value -= z[at_y]
        slope = pi.copy()
        slope[at_y] -= 1.0
        return LossAt(value, slope, pi)

    def curvature_product(self, at: LossAt, a: Array) -> Array:
        """(diag(pi) - pi pi') a for each sample."""
        pi = at.curvature
        curved: Array = pi * (a - np.einsum("kn,kn->n", pi, a))
        return curved

    def second_derivative(self, at: LossAt, j: int, l: int) -> Array:
        """pi_j (1[j = l] - pi_l), an entry of diag(pi) - pi pi' for each sample."""
        pi = at.curvature
        block: Array = pi[j] * ((1.0 if j == l else 0.0) - pi[l])
        return block

    def conjugate(self, u: Array) -> Array:
        """sum_j pi_j log pi_j with pi = u + e_y."""
        pi = u.copy()
        pi[self.y, np.arange(u.shape[1])] += 1.0
        np.clip(pi, 0.0, 1.0, out=pi)
        entropy: Array = _times_own_log(pi).sum(0)
        return entropy

    def balance(self, u: Array, p: Array) -> Array:
        """Make the mean slope zero by moving probability, pi = u + e_y, between classes.

        The mean of pi under p must equal the class shares under p. Each sample gives the same part
        of its probability of a class that has too much, and the classes with too little share what
        is given: every pi stays a distribution.
        """
        over = u @ p  # how much each class has too much, (k,)
        pi = u.copy()
        at_y = (self.y, np.arange(u.shape[1]))
        pi[at_y] += 1.0
        lacking = np.maximum(-over, 0.0)
        if lacking.sum() == 0.0:
            return u
        give = np.maximum(over, 0.0) / np.maximum(pi @ p, np.finfo(float).tiny)
        given = pi * give[:, None]
        pi += lacking[:, None] / lacking.sum() * given.sum(0) - given
        pi[at_y] -= 1.0
        return pi

    def has_all_classes(self, q: Array) -> bool:
        return len(np.unique(self.y[q > 0])) == self.k

    def take_rows(self, index: Any) -> Multinomial:
        return Multinomial(self.y[index], self.k)


class Squared(LinearLoss):
    """r^2/2, r = z - y."""

    def __init__(self, y: Array, unit: float = 1.0) -> None:
        self.y, self.unit = y, unit

    def __call__(self, z: Array) -> LossAt:
        r = z - self.y
        return LossAt(r[0] * r[0] / 2, r, np.ones_like(r))

    def conjugate(self, u: Array) -> Array:
        """u^2/2 + u y."""
        conjugate: Array = u[0] * (u[0] / 2 + self.y)
        return conjugate

    def take_rows(self, index: Any) -> Squared:
        return Squared(self.y[index], self.unit)


class Huber(LinearLoss):
    """r^2/2 where |r| <= epsilon, epsilon |r| - epsilon^2/2 beyond."""

    def __init__(self, y: Array, epsilon: float, unit: float = 1.0) -> None:
        self.y, self.epsilon, self.unit = y, epsilon, min(unit, epsilon)

    def __call__(self, z: Array) -> LossAt:
        r = z - self.y
        slope = np.clip(r, -self.epsilon, self.epsilon)
        return LossAt((slope * (r - slope / 2))[0], slope, (slope == r).astype(float))

    def conjugate(self, u: Array) -> Array:
        """u^2/2 + u y, finite for |u| <= epsilon, which every slope is."""
        conjugate: Array = u[0] * (u[0] / 2 + self.y)
        return conjugate

    def take_rows(self, index: Any) -> Huber:
        return Huber(self.y[index], self.epsilon, self.unit)


class Pinball(LinearLoss):
    r"""Quantile loss max(-tau r, (1 - tau) r), r = z - y, times `scale`; tau = .5 and scale = 2 is |r|.

    With `smoothing` m it is max_u { u r - m u^2/2 : -tau <= u <= 1 - tau }, at most m/2 below. A
    slope of the smoothed loss is in the domain of the conjugate of the original loss, so the
    certificate holds for the original loss.
    """

    def __init__(
        self, y: Array, tau: float, scale: float, unit: float = 1.0, smoothing: float = 0.0
    ) -> None:
        self.y, self.tau, self.scale, self.smoothing = y, tau, scale, smoothing
        self.low, self.high = -tau * scale, (1 - tau) * scale
        self.spread = unit

    def __call__(self, z: Array) -> LossAt:
        """The smoothed loss: slope clip(r/m), and a parabola in place of the kink."""
        r = z - self.y
        slope = np.clip(r / self.smoothing, self.low, self.high)
        value = (slope * (r - self.smoothing / 2 * slope))[0]
        # There is no curvature away from the kink; a little of Weiszfeld's weights, slope/r, bounds
        # the steps.
        inside = (slope > self.low) & (slope < self.high)
        curvature = (
            np.where(inside, 1.0, 0.01 * slope * self.smoothing / np.where(inside, 1.0, r))
            / self.smoothing
        )
        return LossAt(value, slope, curvature)

    def exact(self, z: Array) -> Array:
        """The loss without smoothing, with its kink."""
        r = (z - self.y)[0]
        exact: Array = self.scale * np.maximum(-self.tau * r, (1 - self.tau) * r)
        return exact

    def conjugate(self, u: Array) -> Array:
        """u y on [low, high]: the conjugate of the loss without smoothing."""
        conjugate: Array = u[0] * self.y
        return conjugate

    def with_smoothing(self, smoothing: float) -> Pinball:
        """The same loss, smoothed by another m."""
        return Pinball(self.y, self.tau, self.scale, self.spread, smoothing)

    def take_rows(self, index: Any) -> Pinball:
        return Pinball(self.y[index], self.tau, self.scale, self.spread, self.smoothing)


def centre_of(y: Array, q: Array) -> float:
    """The mean of y under q; zero if y is constant."""
    mean = one_thread_dot(q, y)
    return mean if _deviation(y, q) > 1e-12 * abs(mean) else 0.0


def spread_of(y: Array, q: Array) -> float:
    """The standard deviation of y under q, or the size of y if it is constant; never zero."""
    mean, deviation = one_thread_dot(q, y), _deviation(y, q)
    return deviation if deviation > 1e-12 * abs(mean) else abs(mean) or 1.0


def _deviation(y: Array, q: Array) -> float:
    """The standard deviation of y under q."""
    return math.sqrt(max(one_thread_dot(q, (y - one_thread_dot(q, y)) ** 2), 0.0))
