r"""How lam and s move.

The worst case determines its temperature: lam* solves KL(p_lam) = rho. `WindowTemperature` follows lam* on the losses
of the last batches and has nothing to tune. `PrintedTemperature` is the paper's gradient step, for reproduction.

At step t every method uses lam_t, which depends only on the batches before t; batch t then determines lam_{t+1}. So
micro-batches are equivalent to one large batch, several processes to one, and a skipped step changes nothing.

A tracker updates s, the running estimate of g = E exp(l/lam): a moving average, or STORM if each batch is evaluated at
two points. Trackers have no state. They read A = log mean exp(l/lam) of the batch at the current point and, for STORM,
at the previous one, and return the new log s and the coefficients of one update for scalars and gradients:

    estimate <- keep * estimate + share * exp(A - log s) * fresh - old * fresh_at_the_previous_point

where `fresh` is the same quantity on this batch alone, under its own weights softmax(l/lam), and share is beta for a
moving average and 1 for STORM. Only differences of logarithms that are bounded by construction are exponentiated.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from scdro._kl import Tilt, attainable, mass_and_size, newton_step, solve_lam, tilt, trimmed_log_weights
from scdro._scalar import Scalar, Vector, as_tensor, clamp, exp, log, logaddexp, masked, maximum, on_host, scalar, where
from scdro._validation import check_is, check_number, check_optional

__all__ = [
    "MovingAverage",
    "NormalizedStorm",
    "PrintedTemperature",
    "Storm",
    "WindowTemperature",
]


class Advance(NamedTuple):
    """One step of a tracker: log s_t, the batch's log mean, the coefficients, and whether the tracker was reset."""

    log_s: Scalar
    log_mean: Scalar
    keep: Scalar = 0.0
    old: Scalar = 0.0
    reset: bool | Tensor | None = None


class Estimate(NamedTuple):
    """A step that is not yet committed, for one batch or for all its parts so far.

    `weights` are those of the last part; summed over all parts they are ghat/s. `lam_log_s` is lam log s. `mean` and
    `mean_old` are the mean losses under softmax(l/lam) at the current and the previous point, if the temperature needs
    them.
    """

    lam: Scalar
    lam_read: Scalar  # the temperature at which the past is read
    step: Advance
    lam_log_s: Scalar
    log_mass: Scalar
    weights: Tensor
    objective: Scalar
    lam_average: Scalar = 0.0  # the tracker's average of the gradient in lam so far (PrintedTemperature)
    mean: Scalar | None = None
    mean_old: Scalar | None = None
    calibrating: bool = False  # lam_1 is set once all of the first batch is there

    def as_floats(self) -> Estimate:
        """Convert scalars to floats where the host can read them; an estimate from a compiled graph has tensors."""

        def number(x: Any) -> Any:
            return scalar(x) if isinstance(x, Tensor) and x.ndim == 0 else x

        return Estimate(*map(number, self))._replace(step=Advance(*map(number, self.step)))


class Tracker(Protocol):
    """The rule that updates log s. The first step takes s, v and u from the batch: Advance(log_mean, log_mean).

    `lam_gradient` returns its new average of the gradient in lam (`estimate.lam_average` is the old one) and the
    gradient itself. `drift` is the part log s + rho (+ mu lam), and `bound` is the upper bound of the losses, or None.
    """

    two_points: bool

    def advance(self, log_s: Scalar, log_mean: Scalar, log_mean_old: Scalar | None, beta: float) -> Advance: ...
    def lam_gradient(self, estimate: Estimate, drift: Scalar, bound: float | None) -> tuple[Scalar, Scalar]: ...


def _averaged(log_s: Scalar, log_mean: Scalar, beta: float) -> Scalar:
    """log((1-beta) s + beta ghat), or log s if that is zero (beta = 1 and the whole batch trimmed away)."""
    if beta == 1.0:
        return where(log_mean > -math.inf, log_mean, log_s)
    return logaddexp(log_s + math.log1p(-beta), log_mean + math.log(beta))


def _fresh(estimate: Estimate) -> Scalar:
    """mean(exp(l/lam) l)/s."""
    assert estimate.mean is not None
    return exp(estimate.step.log_mean - estimate.step.log_s) * estimate.mean


def _subtracted(estimate: Estimate) -> Scalar:
    return 0.0 if estimate.mean_old is None else estimate.step.old * estimate.mean_old


@dataclass(frozen=True)
class MovingAverage:
    r"""s <- (1-beta) s + beta ghat   (Algorithm 1, line 6), and with `cap`, s <- max(that, ghat / cap).

    The weights of a batch sum to ghat/s <= 1/beta. When the losses have just jumped, a batch can therefore push the
    model up to 1/beta times as hard as usual, only because s lags behind. `cap` limits how many batches one batch may
    count for.

    Example:
        >>> from scdro.temperature import WindowTemperature
        >>> WindowTemperature(cap=3.0).one_point_tracker()
        MovingAverage(cap=3.0)
    """

    cap: float | None = None
    two_points = False

    def __post_init__(self) -> None:
        meaning = "how many batches one batch may count for at most, or None for no bound"
        check_optional("cap", self.cap, ">= 1", meaning, infinite=True)

    def log_s(self, log_s: Scalar, log_mean: Scalar, beta: float) -> Scalar:
        moved = _averaged(log_s, log_mean, beta)
        return moved if self.cap is None else maximum(moved, log_mean - math.log(self.cap))

    def advance(self, log_s: Scalar, log_mean: Scalar, log_mean_old: Scalar | None, beta: float) -> Advance:
        keep = 1.0 - beta if beta < 1.0 else where(log_mean > -math.inf, 0.0, 1.0)
        return Advance(self.log_s(log_s, log_mean, beta), log_mean, keep)

    def lam_gradient(self, estimate: Estimate, drift: Scalar, bound: float | None) -> tuple[Scalar, Scalar]:
        """u <- (1-beta) u + beta (log s + rho - mean(exp(l/lam) l)/(s lam))   (eq. 6)."""
        keep = estimate.step.keep
        u = keep * estimate.lam_average + (1.0 - keep) * (drift - _fresh(estimate) / estimate.lam)
        return u, u


@dataclass(frozen=True)
class Storm:
    r"""s <- ghat(x_t) + (1-beta)(s - ghat(x_{t-1}))   (eq. 7), as printed; the same for v and u, unnormalised.

    s can become <= 0, even in exact arithmetic. If it falls below max(beta ghat, 1e-8 of the largest term), all
    estimators restart from the batch, and `reset` is true. With known bounds 0 <= l <= C, log s is projected to
    [0, C/lam] and the tracked mean loss to [0, C]; these projections never increase the error.

    Example:
        >>> import torch
        >>> from scdro import ASCDRO
        >>> from scdro.temperature import PrintedTemperature
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = ASCDRO(model.parameters(), lr=0.1, rho=0.5, temperature=PrintedTemperature(), tracker=Storm())
    """

    two_points = True

    def advance(self, log_s: Scalar, log_mean: Scalar, log_mean_old: Scalar | None, beta: float) -> Advance:
        assert log_mean_old is not None
        top = maximum(maximum(log_mean, log_mean_old), log_s)
        k1, k0, k = (exp(a - top) for a in (log_mean, log_mean_old, log_s))
        s = k1 + (1.0 - beta) * (k - k0)
        reset = s < maximum(beta * k1, 1e-8)
        s = where(reset, 1.0, s)
        moved = where(reset, log_mean, top + log(s))
        keep, old = (where(reset, 0.0, (1.0 - beta) * c / s) for c in (k, k0))
        empty = log_mean == -math.inf  # the whole batch is trimmed away, so nothing moves
        moved, keep, old = (where(empty, a, b) for a, b in ((log_s, moved), (1.0, keep), (0.0, old)))
        return Advance(moved, log_mean, keep, old, reset & (log_mean > -math.inf))

    def lam_gradient(self, estimate: Estimate, drift: Scalar, bound: float | None) -> tuple[Scalar, Scalar]:
        """lam u/s + log s + rho (eq. 8), computed from y = -lam^2 u/s, the tracked mean loss under p."""
        past = estimate.step.keep * estimate.lam_average - _subtracted(estimate)
        y = (estimate.lam / estimate.lam_read) ** 2 * past + _fresh(estimate)
        if bound is not None:
            y = clamp(y, 0.0, bound)
        return y, drift - y / estimate.lam


@dataclass(frozen=True)
class NormalizedStorm(MovingAverage):
    r"""STORM on the gradient of F itself instead of the gradient of g; s is the capped moving average.

    z <- grad(x_t; s_t) + (1-beta)(z - grad(x_{t-1}; s_{t-1})),   grad(x; s) = mean(exp(l/lam)/s grad l).

    The printed form multiplies the past by s_{t-1}/s_t, which exceeds one whenever s falls: rare hard samples then
    amplify old noise without limit. Here the past always shrinks. The correction grad(x_t) - grad(x_{t-1}) is clipped
    to `clip` times the smaller of |grad(x_t)| and |z|: beyond that, the two points are too far apart for their
    difference to reduce variance.

    Example:
        >>> from scdro.temperature import WindowTemperature
        >>> WindowTemperature().two_point_tracker()
        NormalizedStorm(cap=2.0, clip=0.3)
    """

    cap: float | None = 2.0
    clip: float | None = 0.3
    two_points = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optional("clip", self.clip, ">= 0", "or None for no bound", infinite=True)

    def advance(self, log_s: Scalar, log_mean: Scalar, log_mean_old: Scalar | None, beta: float) -> Advance:
        assert log_mean_old is not None
        moved = self.log_s(log_s, log_mean, beta)
        before = log_s if self.cap is None else maximum(log_s, log_mean_old - math.log(self.cap))
        old = (1.0 - beta) * exp(log_mean_old - before)
        return Advance(moved, log_mean, 1.0 - beta, old)

    def lam_gradient(self, estimate: Estimate, drift: Scalar, bound: float | None) -> tuple[Scalar, Scalar]:
        y = estimate.step.keep * estimate.lam_average + _fresh(estimate) - _subtracted(estimate)
        return y, drift - y / estimate.lam


# -- the recent losses ------------------------------------------------------------------------------------------------


def default_size(rho: float) -> int:
    """Enough for 32 samples of the smallest group that rho protects (a fraction exp(-rho)); from 1,024 to 65,536."""
    return int(min(max(1024.0, 32.0 * math.exp(min(rho, 20.0))), 65536.0))


class Window(NamedTuple):
    """Two rows, losses and their log weights, oldest first. Empty slots have weight zero.

    `rows` is a NumPy view where the host can read the memory, else a tensor.
    """

    rows: Vector

    def clear_(self) -> None:
        """Empty every slot, in place."""
        self.rows[0] = 0.0
        self.rows[1] = -math.inf

    @property
    def losses(self) -> Tensor:
        return as_tensor(self.rows[0])

    @property
    def log_weight(self) -> Tensor:
        return as_tensor(self.rows[1])

    def pushed(self, losses: Tensor, log_weight: Tensor | None) -> Window:
        """The window with a batch added and the same number of oldest losses dropped.

        Samples of weight zero take no slot. A batch larger than the window is subsampled evenly.
        """
        size = self.rows.shape[1]
        if log_weight is None:
            losses = _spread(losses, size, len(losses))
            count = len(losses)
            rows: Any = torch.empty_like(self.rows) if isinstance(self.rows, Tensor) else np.empty_like(self.rows)
            rows[:, : size - count] = self.rows[:, count:]
            rows[0, size - count :], rows[1, size - count :] = on_host(losses), 0.0
            return Window(rows)
        batch = _live_last(torch.stack([losses, log_weight]))
        batch = _spread(batch, size, (log_weight > -math.inf).sum())
        return Window(on_host(_live_last(torch.cat([as_tensor(self.rows), batch], 1))[:, -size:]))

    def tilt(self, lam: Scalar, shift: Scalar) -> tuple[Tilt, Scalar, Scalar]:
        """The tilt of the recent losses at temperature lam, their effective number, and the log of the mean of
        exp(l/lam) over the newest quarter of the slots, relative to all of them (inf if the quarter is empty).

        `shift` is any value near their maximum.
        """
        losses, log_weight = self.rows[0], self.rows[1]
        log_total, size = mass_and_size(log_weight)
        at = tilt(losses - shift, log_weight, lam, log_total)
        newest = slice(-math.ceil(len(losses) / 4), None)
        p, q = scalar(at.weights[newest].sum()), scalar(exp(log_weight[newest] - log_total).sum())
        return at, size, where(q > 0.0, log(maximum(p, 1e-300)) - log(q), math.inf)

    def effective_size(self) -> Scalar:
        return mass_and_size(self.rows[1])[1]

    def mean(self) -> Scalar:
        return scalar(torch.dot(torch.softmax(self.log_weight, 0), self.losses))

    def log_mean(self, lam: Scalar) -> Scalar:
        """log of the mean of exp(l/lam)."""
        return scalar(torch.logsumexp(self.losses / lam + self.log_weight, 0) - torch.logsumexp(self.log_weight, 0))

    def solve(self, rho: Scalar, lam0: float, mu: float) -> Scalar:
        """lam* of the recent losses."""
        return solve_lam(self.losses, self.log_weight, rho, lam0, mu=mu)

    def top(self) -> Scalar:
        """The largest recent loss."""
        losses, log_weight = self.rows[0], self.rows[1]
        if isinstance(losses, Tensor) or log_weight[0] == -math.inf:  # the oldest slot is empty, others may be too
            losses = masked(losses, log_weight == -math.inf, -math.inf)
        return scalar(losses.max())

    def quantile(self, trim: float) -> Scalar:
        """The loss that cuts off the hardest `trim` of the recent weight."""
        kept = trimmed_log_weights(self.losses, self.log_weight, trim)
        return scalar(torch.where(kept > -math.inf, self.losses, -math.inf).amax())

    def without(self, cutoff: Scalar) -> Window:
        """The window without the losses above the cutoff."""
        kept = torch.where(self.losses > cutoff, -math.inf, self.log_weight)
        return Window(on_host(torch.stack([self.losses, kept])))


def _live_last(rows: Tensor) -> Tensor:
    """Move columns of weight zero to the front; keep the order otherwise."""
    return rows[:, torch.argsort((rows[1] > -math.inf).to(torch.uint8), stable=True)]


def _spread(columns: Tensor, size: int, live: Tensor | int) -> Tensor:
    """Choose at most `size` of the last `live` columns; all if they fit.

    Keeps the positions i for which the fractional part of i times the golden ratio is smallest. This is as even as a
    stride, but does not lock onto a period in the batch, such as alternating classes or views.
    """
    count = columns.shape[-1]
    if count <= size:
        return columns
    live = live.clamp_min(size) if isinstance(live, Tensor) else max(live, size)
    position = torch.arange(count, device=columns.device) - (count - live)
    fraction = (position * 0x9E3779B1) & 0xFFFFFFFF  # times 2^32, in int64
    chosen = torch.topk(torch.where(position >= 0, fraction, 1 << 32), size, largest=False).indices
    return columns[..., torch.sort(chosen).values]


# -- lam --------------------------------------------------------------------------------------------------------------


class LamEquation(NamedTuple):
    """The equation for lam: KL(p_lam) = rho + mu lam on [lam0, lam_max]."""

    rho: float
    lam0: float
    lam_max: float
    mu: float
    loss_bound: float | None

    def clamp(self, lam: Scalar) -> Scalar:
        return clamp(lam, self.lam0, self.lam_max)


class Temperature:
    """Base class of the rules for lam. They have no state. `initial` is lam_1, or None to find it from the first batch.

    `carries`: if true, lam log s, which hardly depends on lam, is kept when lam changes. If false, log s is kept, as
    printed in the paper, and explodes when lam falls. `ceiling`: losses are clipped at the largest recent loss plus
    `ceiling` times lam; None for no bound.
    """

    carries: ClassVar[bool]
    initial: float | None
    ceiling: float | None = None

    def one_point_tracker(self) -> Tracker:
        """The tracker for methods that evaluate each batch once (SCDRO, KLRobustLoss)."""
        raise NotImplementedError

    def two_point_tracker(self) -> Tracker:
        """The tracker for methods that evaluate each batch twice (ASCDRO)."""
        raise NotImplementedError

    def next_lam(
        self, estimate: Estimate, window: Window, equation: LamEquation, tracker: Tracker, lr: Scalar | None
    ) -> tuple[Scalar, Scalar, Scalar]:
        """Return lam_{t+1}, the upper bound of lam log s at batch t+1, and the new `lam_average`."""
        raise NotImplementedError


@dataclass(frozen=True)
class WindowTemperature(Temperature):
    r"""One safeguarded Newton step per batch towards KL(p_lam) = rho on the recent losses. The default.

    log lam += clip(KL log(KL/rho) / Var_p(l/lam), -1, 1). There is no step size and no starting value to choose, and
    the scale of the losses does not matter. While there are too few recent losses to reach a KL of rho, a smaller rho
    is used (`attainable`).

    Args:
        initial: lam_1; None finds it from the first batch.
        cap: how many batches one batch may count for at most (`MovingAverage`); None for no bound.
        ceiling: losses are clipped at the largest recent loss plus `ceiling` times lam; None for no bound. After too
            large a step, the next losses can be far above the range that lam fits, and one sample would get all the
            weight.
        lag: s is at most this many times the mean of exp(l/lam) over the last batch or over the newest quarter of the
            window, whichever is larger; None for no bound. When losses fall, lam falls with them, but s alone would
            follow so slowly that the weights of all samples vanish.
        clip: the bound on STORM's correction (`NormalizedStorm`), used by ASCDRO; None for no bound.

    Example:
        >>> from scdro import KLRobustLoss
        >>> robust = KLRobustLoss(rho=0.5, temperature=WindowTemperature(initial=2.0, ceiling=None))
        >>> float(robust.lam)
        2.0
    """

    initial: float | None = None
    _: KW_ONLY
    cap: float | None = 2.0
    clip: float | None = 0.3
    ceiling: float | None = 0.0
    lag: float | None = 1.5
    carries: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_optional("initial", self.initial, "> 0", "the first temperature lam, or None to find it")
        NormalizedStorm(self.cap, self.clip)  # validates both
        check_optional("ceiling", self.ceiling, ">= 0", "in units of lam, or None for no bound")
        object.__setattr__(self, "ceiling", None if self.ceiling is None else float(self.ceiling))
        check_optional("lag", self.lag, ">= 1", "or None for no bound", infinite=True)

    def one_point_tracker(self) -> Tracker:
        return MovingAverage(self.cap)

    def two_point_tracker(self) -> Tracker:
        return NormalizedStorm(self.cap, self.clip)

    def next_lam(
        self, estimate: Estimate, window: Window, equation: LamEquation, tracker: Tracker, lr: Scalar | None
    ) -> tuple[Scalar, Scalar, Scalar]:
        if equation.rho == 0.0:
            return estimate.lam, math.inf, estimate.lam_average
        at, size, newest = window.tilt(estimate.lam, estimate.lam_log_s)
        rho = attainable(equation.rho, size)
        change = clamp(newton_step(at.kl, at.var, estimate.lam, rho, equation.mu), -1.0, 1.0)
        lam = equation.clamp(estimate.lam * exp(change))
        if self.lag is None:
            return lam, math.inf, estimate.lam_average
        # lam log mean exp(l/lam) of the newest losses; like lam log s, it hardly depends on lam.
        soft_max = estimate.lam_log_s + estimate.lam * (at.mean - at.kl + newest)
        soft_max = maximum(soft_max, estimate.lam * estimate.step.log_mean)
        return lam, soft_max + lam * math.log(self.lag), estimate.lam_average


@dataclass(frozen=True)
class PrintedTemperature(Temperature):
    """The paper's update, lam <- clip(lam - eta u, lam0, lam_max), with u as in Algorithm 1 or 2.

    It falls into the small-lam trap in most settings (docs, "Stability"). Use it to reproduce the paper only.

    Args:
        initial: lam_1. The paper tunes it in {.1, 1, 10}.
        lr: the step size for lam; None uses the optimizer's, as the paper does.

    Example:
        >>> from scdro import SCDRO
        >>> opt = SCDRO(torch.nn.Linear(3, 2).parameters(), lr=0.1, rho=0.5, temperature=PrintedTemperature(1.0))
        >>> float(opt.lam)
        1.0
    """

    initial: float = 1.0
    _: KW_ONLY
    lr: float | None = None
    carries: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_number("initial", self.initial, "> 0", "the first temperature lam")
        check_optional("lr", self.lr, ">= 0", "the step size for lam, or None for the optimizer's")
        object.__setattr__(self, "lr", None if self.lr is None else float(self.lr))

    def one_point_tracker(self) -> Tracker:
        return MovingAverage()

    def two_point_tracker(self) -> Tracker:
        return Storm()

    def next_lam(
        self, estimate: Estimate, window: Window, equation: LamEquation, tracker: Tracker, lr: Scalar | None
    ) -> tuple[Scalar, Scalar, Scalar]:
        lr = lr if self.lr is None else self.lr
        assert lr is not None
        lam = estimate.lam
        drift = estimate.lam_log_s / lam + equation.rho + equation.mu * lam
        lam_average, gradient = tracker.lam_gradient(estimate, drift, equation.loss_bound)
        return equation.clamp(lam - lr * gradient), math.inf, lam_average


def given_or_default(temperature: Temperature | None) -> Temperature:
    if temperature is None:
        return WindowTemperature()
    check_is(temperature, Temperature, "a temperature such as WindowTemperature() or PrintedTemperature()")
    return temperature
