"""How lam and s move by default: policies without state.

A batch enters the state (`scdro._state`) in three steps, and the policies are asked in two:

    A     = log mean exp(l/lam_t)                    the batch at the present temperature
    s_t   = tracker.advance(s_{t-1}, A)              Algorithm 1, line 6
    lam   = temperature.next_lam(...)                lam_{t+1}, from the recent losses

At step t every method uses lam_t, which depends only on the batches before t; batch t then
determines lam_{t+1}. So micro-batches are equivalent to one large batch, several processes to one,
and a skipped step changes nothing.

**lam.** The worst case determines its temperature: lam* solves KL(p_lam) = rho. The paper takes a
gradient step in lam. `WindowTemperature` instead follows lam* on the losses of the last batches
(`Window`), by one Newton step on log KL per batch; it has nothing to tune. The paper's own gradient
step, and what only it needs, is in `scdro.printed`.

**s.** A tracker updates s, the running estimate of g = E exp(l/lam). With A' the A of the same
batch at the previous point:

    MovingAverage      s <- (1-r) s + r exp(A), at least exp(A)/cap; r is beta, or B/(B + memory)
    NormalizedStorm    the same s; the gradient is STORM's:
                       z <- (1-beta) z + exp(A - log s) g - old g'
                       old = (1-beta) exp(A' - log s_{t-1})

g and g' are mean gradients under the batch's own weights softmax(l/lam). Only differences of
logarithms that are bounded by construction are exponentiated.

**Between batches** the state keeps lam log s, not s. When lam changes, s = E exp(l/lam) means
something else, while lam log s, a soft maximum of the losses, hardly changes. Keeping s is what
pins lam at lam0 in the printed form.

In this file: `Step` and `Change`, what is passed around; trackers; the window; temperatures.

References:
    Qi, Lyu, Chan, Bai, Yang, "Stochastic Constrained DRO with a Complexity Independent of Sample
    Size", TMLR 2023: Algorithms 1 and 2, for s; docs/mathematics.md, for lam.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from scdro._kl import (
    Tilt,
    attainable,
    mass_and_size,
    newton_step,
    solve_lam,
    tilt,
    trimmed_log_weights,
)
from scdro._scalar import (
    Scalar,
    Vector,
    as_tensor,
    clamp,
    exp,
    log,
    logaddexp,
    masked,
    maximum,
    on_host,
    scalar,
    where,
)
from scdro._validation import check_is, check_optional

__all__ = [
    "MovingAverage",
    "NormalizedStorm",
    "WindowTemperature",
]


class Step(NamedTuple):
    """One step on a batch, or on all its parts so far, before it is committed.

    `MethodState.estimate` makes it, the optimizer or loss uses `weights` and `objective`, and
    `RobustState.commit` writes `lam_log_s` and asks the temperature for the next lam. All fields
    are scalars but `weights`.
    """

    lam: Scalar  # lam_t, the temperature of this batch
    log_s: Scalar  # log s_t, at lam_t
    lam_log_s: Scalar  # lam_t log s_t as it is stored; the mean loss where lam is infinite
    objective: Scalar  # lam_t log s_t + (lam_t - lam0) rho
    weights: Tensor  # (b,) exp(l/lam_t) q/s_t of the last part; over all parts they sum to ghat/s_t
    log_mean: Scalar  # A, log ghat of all parts
    log_mass: Scalar  # log of the sum of their base weights
    log_squares: Scalar  # log of the sum of the squares of these, for the number of samples
    mean: Scalar | None = None  # their mean loss under softmax(l/lam), where it is needed
    mean_old: Scalar | None = None  # the same at the previous point
    change: Change | None = None  # what a tracker of two points needs besides log s
    calibrating: bool = False  # lam_1 is found once all parts of the first batch are there

    def as_floats(self) -> Step:
        """The step with floats for scalars, where the host can read them."""

        def number(x: Any) -> Any:
            return scalar(x) if isinstance(x, Tensor) and x.ndim == 0 else x

        change = None if self.change is None else Change(*map(number, self.change))
        return Step(*map(number, self))._replace(change=change)


class Change(NamedTuple):
    """How running estimates of gradients move with s, where the tracker looks at two points.

        estimate <- keep estimate + exp(A - log s) fresh - old fresh'

    `fresh` and `fresh'` are the batch's own values at the present and at the previous point, under
    softmax(l/lam). Both the gradient in w and, in the printed form, that in lam follow it.
    """

    keep: Scalar  # share of the past estimate
    old: Scalar = 0.0  # share of the same quantity on this batch at the previous point
    reset: bool | Tensor | None = None  # whether the past was dropped; None if it never is


class Tracker(Protocol):
    """The rule that updates log s. At the first step s is the batch's own, and no tracker is asked.

    `two_points` says whether each batch is also evaluated at the previous parameters (ASCDRO).
    """

    two_points: bool

    def advance(
        self,
        log_s: Scalar,
        log_mean: Scalar,
        log_mean_old: Scalar | None,
        beta: float,
        rate: Scalar,
    ) -> tuple[Scalar, Change | None]:
        """log s_t, and how running gradients change with it (None: as a plain momentum does).

        Args:
            log_s: log s_{t-1}, converted to the present temperature.
            log_mean: A, log mean exp(l/lam) of the batch; -inf if all of it was trimmed away.
            log_mean_old: A', the same at the previous point; None for one-point methods.
            beta: the weight of the batch in the gradients.
            rate: the weight of the batch in s, at least beta.
        """


def _average_log_s(log_s: Scalar, log_mean: Scalar, rate: Scalar) -> Scalar:
    """log((1-rate) s + rate ghat), the moving average in the log domain.

    With rate = 1 and a batch that was trimmed away entirely this would be log 0, so s stays.
    """
    if isinstance(rate, float) and rate == 1.0:
        return where(log_mean > -math.inf, log_mean, log_s)
    return logaddexp(log_s + log(1.0 - rate), log_mean + log(rate))


@dataclass(frozen=True)
class MovingAverage:
    r"""s <- (1-rate) s + rate ghat   (Algorithm 1, line 6: beta), and with `cap`, s <- max(that, ghat / cap).

    The weights of a batch sum to ghat/s <= 1/rate. When the losses have just jumped, a batch can
    therefore push the model up to 1/rate times as hard as usual, only because s lags behind. `cap`
    limits how many batches one batch may count for.

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

    def log_s(self, log_s: Scalar, log_mean: Scalar, rate: Scalar) -> Scalar:
        """The new log s: the moving average, at least ghat/cap."""
        moved = _average_log_s(log_s, log_mean, rate)
        return moved if self.cap is None else maximum(moved, log_mean - math.log(self.cap))

    def advance(
        self,
        log_s: Scalar,
        log_mean: Scalar,
        log_mean_old: Scalar | None,
        beta: float,
        rate: Scalar,
    ) -> tuple[Scalar, Change | None]:
        return self.log_s(log_s, log_mean, rate), None


@dataclass(frozen=True)
class NormalizedStorm(MovingAverage):
    r"""STORM on the gradient of F itself instead of the gradient of g; s is the capped moving average.

        z <- grad(x_t; s_t) + (1-beta)(z - grad(x_{t-1}; s_{t-1}))
        grad(x; s) = mean(exp(l/lam)/s grad l)

    The printed form multiplies the past by s_{t-1}/s_t, which exceeds one whenever s falls: rare
    hard samples then amplify old noise without limit. Here the past always shrinks. The correction
    grad(x_t) - grad(x_{t-1}) is clipped to `clip` times the smaller of |grad(x_t)| and |z|: beyond
    that, the two points are too far apart for their difference to reduce variance.

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

    def advance(
        self,
        log_s: Scalar,
        log_mean: Scalar,
        log_mean_old: Scalar | None,
        beta: float,
        rate: Scalar,
    ) -> tuple[Scalar, Change | None]:
        assert log_mean_old is not None
        # The old point's s, capped by the old point's batch as the new one is by the new point's:
        # exp(A' - log s) <= cap, so the subtracted gradient is bounded too.
        before = log_s if self.cap is None else maximum(log_s, log_mean_old - math.log(self.cap))
        old = (1.0 - beta) * exp(log_mean_old - before)
        return self.log_s(log_s, log_mean, rate), Change(1.0 - beta, old)


# -- the recent losses -----------------------------------------------------------------------------


def default_size(rho: float) -> int:
    """Enough for 32 samples of the smallest group that rho protects (a fraction exp(-rho)).

    At least 1,024, at most 65,536.
    """
    return int(min(max(1024.0, 32.0 * math.exp(min(rho, 20.0))), 65536.0))


class Window(NamedTuple):
    """The losses of the last batches, from which lam is determined.

    A row of losses and a row of their log weights, oldest first. Empty slots have weight zero (log
    weight -inf). Full windows move: each batch pushes out as many of the oldest losses. A window is
    never changed in place, except by `clear_`; `push` returns a new one, which `commit` writes.
    """

    rows: Vector  # (2, size); a NumPy view where the host can read the memory, else a tensor

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

    def push(self, losses: Tensor, log_weight: Tensor | None) -> Window:
        """The window with a batch added and the same number of oldest losses dropped.

        Samples of weight zero take no slot. A batch larger than the window is subsampled evenly.
        """
        size = self.rows.shape[1]
        if log_weight is None:
            # The usual case, on the path of every step: a shift by `count` places.
            losses = _spread(losses, size, len(losses))
            count = len(losses)
            rows: Any = (
                torch.empty_like(self.rows)
                if isinstance(self.rows, Tensor)
                else np.empty_like(self.rows)
            )
            rows[:, : size - count] = self.rows[:, count:]
            rows[0, size - count :], rows[1, size - count :] = on_host(losses), 0.0
            return Window(rows)
        # With weights, samples of weight zero are moved to the front, where they are pushed out
        # first. A compiled graph needs fixed shapes, so they cannot be dropped.
        batch = _live_last(torch.stack([losses, log_weight]))
        batch = _spread(batch, size, (log_weight > -math.inf).sum())
        return Window(on_host(_live_last(torch.cat([as_tensor(self.rows), batch], 1))[:, -size:]))

    def tilt(self, lam: Scalar, shift: Scalar) -> tuple[Tilt, Scalar, Scalar]:
        """The recent losses at temperature lam: what determines the next lam.

        Args:
            lam: the temperature.
            shift: any value near the largest loss, which is subtracted so that exp cannot overflow.

        Returns:
            The tilt; its mean is that of (l - shift)/lam.
            The effective number of losses in the window.
            The log of mean exp(l/lam) over the newest quarter of the slots, divided by the same
            mean over all slots; inf if the quarter is empty. Below 0 if losses are falling.
        """
        losses, log_weight = self.rows[0], self.rows[1]
        log_total, size = mass_and_size(log_weight)
        at = tilt(losses - shift, log_weight, lam, log_total)
        newest = slice(-math.ceil(len(losses) / 4), None)
        # p/q summed over the quarter is that ratio, because p_i = q_i exp(l_i/lam)/mean exp(l/lam).
        p, q = scalar(at.weights[newest].sum()), scalar(exp(log_weight[newest] - log_total).sum())
        return at, size, where(q > 0.0, log(maximum(p, 1e-300)) - log(q), math.inf)

    def effective_size(self) -> Scalar:
        """The number of equally weighted losses that the weights are worth, (sum w)^2 / sum w^2."""
        return mass_and_size(self.rows[1])[1]

    def mean(self) -> Scalar:
        """The mean of the recent losses by their weights."""
        return scalar(torch.dot(torch.softmax(self.log_weight, 0), self.losses))

    def log_mean(self, lam: Scalar) -> Scalar:
        """log of the mean of exp(l/lam), a log s from the window alone."""
        return scalar(
            torch.logsumexp(self.losses / lam + self.log_weight, 0)
            - torch.logsumexp(self.log_weight, 0)
        )

    def solve(self, rho: Scalar, lam0: float, mu: float) -> Scalar:
        """lam* of the recent losses: the exact root, used once for lam_1."""
        return solve_lam(self.losses, self.log_weight, rho, lam0, mu=mu)

    def top(self) -> Scalar:
        """The largest recent loss."""
        losses, log_weight = self.rows[0], self.rows[1]
        # The oldest slot is empty, others may be too.
        if isinstance(losses, Tensor) or log_weight[0] == -math.inf:
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

    Keeps the positions i for which the fractional part of i times the golden ratio is smallest.
    This is as even as a stride, but does not lock onto a period in the batch, such as alternating
    classes or views. 0x9E3779B1 is 2^32 divided by the golden ratio.
    """
    count = columns.shape[-1]
    if count <= size:
        return columns
    live = live.clamp_min(size) if isinstance(live, Tensor) else max(live, size)
    position = torch.arange(count, device=columns.device) - (count - live)
    fraction = (position * 0x9E3779B1) & 0xFFFFFFFF  # of i times the ratio; times 2^32, in int64
    chosen = torch.topk(torch.where(position >= 0, fraction, 1 << 32), size, largest=False).indices
    return columns[..., torch.sort(chosen).values]


# -- lam -------------------------------------------------------------------------------------------


class LamEquation(NamedTuple):
    """The equation for lam: KL(p_lam) = rho + mu lam on [lam0, lam_max]."""

    rho: float  # the radius of the KL ball
    lam0: float  # the smallest lam, and the paper's regulariser
    lam_max: float  # lam0 + C/rho for losses in [0, C]; infinite if C is not known
    mu: float  # strong convexity that the restarted methods add; 0 for all others
    loss_bound: float | None  # C, if the user gave it

    def clamp(self, lam: Scalar) -> Scalar:
        """lam in [lam0, lam_max]."""
        return clamp(lam, self.lam0, self.lam_max)


class Temperature:
    """Base class of the rules for lam. They have no state.

    Attributes:
        initial: lam_1, or None to find it from the first batch.
        ceiling: losses are clipped at the largest recent loss plus `ceiling` times lam; None for no
            bound.
        state_class: the state that follows the rule, None for `RobustState`, which asks `next_lam`.
    """

    initial: float | None
    ceiling: float | None = None
    state_class: ClassVar[Any] = None

    @property
    def needs_step_size(self) -> bool:
        """Whether the rule takes its step size from an optimizer."""
        return False

    def rate(self, beta: float, log_size: Scalar) -> Scalar:
        """The weight of a batch of exp(log_size) samples in s: beta, as in the paper."""
        return beta

    def one_point_tracker(self) -> Tracker:
        """The tracker for methods that evaluate each batch once (SCDRO, KLRobustLoss)."""
        raise NotImplementedError

    def two_point_tracker(self) -> Tracker:
        """The tracker for methods that evaluate each batch twice (ASCDRO)."""
        raise NotImplementedError

    def next_lam(self, step: Step, window: Window, equation: LamEquation) -> tuple[Scalar, Scalar]:
        """lam_{t+1}, and the upper bound of lam log s at batch t+1.

        Args:
            step: the step of batch t, at lam_t.
            window: the recent losses, batch t included; trimmed, if the state trims.
            equation: rho, lam0 and the range of lam.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class WindowTemperature(Temperature):
    r"""One safeguarded Newton step per batch towards KL(p_lam) = rho on the recent losses. The default.

    log lam += clip(KL log(KL/rho) / Var_p(l/lam), -1, 1). There is no step size and no starting
    value to choose, and the scale of the losses does not matter. While there are too few recent
    losses to reach a KL of rho, a smaller rho is used (`attainable`).

    Args:
        initial: lam_1; None finds it from the first batch.
        cap: how many batches one batch may count for at most (`MovingAverage`); None for no bound.
        ceiling: losses are clipped at the largest recent loss plus `ceiling` times lam; None for no
            bound. After too large a step, the next losses can be far above the range that lam fits,
            and one sample would get all the weight.
        lag: s is at most this many times the mean of exp(l/lam) over the last batch or over the
            newest quarter of the window, whichever is larger; None for no bound. When losses fall,
            lam falls with them, but s alone would follow so slowly that the weights of all samples
            vanish.
        clip: the bound on STORM's correction (`NormalizedStorm`), used by ASCDRO; None for no
            bound.
        memory: the number of past samples that s counts for beside a batch: a batch of B samples
            enters s with the weight B/(B + memory), or with beta if that is larger. B is the whole
            batch, over all parts and processes; samples with different weights count by their
            effective number, (sum w)^2 / sum w^2. None uses beta, as the paper does. A large batch
            knows its own mean of exp(l/lam) better than the past does: if hard samples raise that
            mean, the same batch's weights fall by as much, and gradients vary less.

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
    memory: float | None = None

    def __post_init__(self) -> None:
        check_optional(
            "initial", self.initial, "> 0", "the first temperature lam, or None to find it"
        )
        NormalizedStorm(self.cap, self.clip)  # validates both
        check_optional("ceiling", self.ceiling, ">= 0", "in units of lam, or None for no bound")
        object.__setattr__(self, "ceiling", None if self.ceiling is None else float(self.ceiling))
        check_optional("lag", self.lag, ">= 1", "or None for no bound", infinite=True)
        check_optional(
            "memory", self.memory, ">= 0", "a number of samples, or None for the paper's beta"
        )

    def rate(self, beta: float, log_size: Scalar) -> Scalar:
        """beta, or B/(B + memory) if that is larger; at beta = 1 s is the batch's own."""
        if self.memory is None or beta == 1.0:
            return beta
        if self.memory == 0.0:
            return 1.0
        return maximum(1.0 / (1.0 + self.memory * exp(-log_size)), beta)

    def one_point_tracker(self) -> Tracker:
        return MovingAverage(self.cap)

    def two_point_tracker(self) -> Tracker:
        return NormalizedStorm(self.cap, self.clip)

    def next_lam(self, step: Step, window: Window, equation: LamEquation) -> tuple[Scalar, Scalar]:
        """A safeguarded Newton step from lam_t towards KL(p_lam) = rho, and the bound by `lag`.

        A step of log lam is limited to 1, a factor of e: on a plateau of KL(lam) the slope is
        nearly zero and Newton would jump anywhere.
        """
        if equation.rho == 0.0:  # the plain mean: lam stays infinite
            return step.lam, math.inf
        at, size, newest = window.tilt(step.lam, step.lam_log_s)
        rho = attainable(equation.rho, size)
        change = clamp(newton_step(at.kl, at.var, step.lam, rho, equation.mu), -1.0, 1.0)
        lam = equation.clamp(step.lam * exp(change))
        if self.lag is None:
            return lam, math.inf
        # lam log mean exp(l/lam) of the newest losses; like lam log s, it hardly depends on lam.
        # The window was shifted by lam_log_s, and mean - KL = log mean exp((l - shift)/lam).
        soft_max = step.lam_log_s + step.lam * (at.mean - at.kl + newest)
        # The same of the last batch alone, which may be larger.
        soft_max = maximum(soft_max, step.lam * step.log_mean)
        return lam, soft_max + lam * math.log(self.lag)


def given_or_default(temperature: Temperature | None) -> Temperature:
    """The temperature, checked; `WindowTemperature()` if none was given."""
    if temperature is None:
        return WindowTemperature()
    check_is(
        temperature,
        Temperature,
        "a temperature such as WindowTemperature() or scdro.printed.PrintedTemperature()",
    )
    return temperature
