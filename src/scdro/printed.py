r"""The paper's own update of lam, and what only it needs. For reproducing the paper.

Algorithm 1 (SCDRO), with A = log mean exp(l/lam) of the batch and ghat = exp(A):

    s <- (1-beta) s + beta ghat                                                     (line 6)
    u <- (1-beta) u + beta [ log s + rho - mean(exp(l/lam) l)/(s lam) ]             (eq. 6)
    lam <- clip(lam - eta u, lam0, lam_max)                                         (line 4)

Algorithm 2 (ASCDRO), where ' means the previous point, at its own lam:

    s <- ghat(x_t)       + (1-beta) (s - ghat(x_{t-1}))                             (eq. 7)
    u <- d_lam ghat(x_t) + (1-beta) (u - d_lam ghat(x_{t-1}))
    lam <- clip(lam - eta [ lam u/s + log s + rho ], lam0, lam_max)                 (eq. 8)

Three things set it apart from the default (`scdro.temperature`), and all of them are here:

1. s is kept as it is when lam changes. It then means something else: after lam falls, log s is
   huge, every weight is near zero, and lam stays at lam0 (docs, "Stability"). The default keeps
   lam log s, which hardly depends on lam.
2. lam moves by a gradient step, so a running estimate u of that gradient is kept.
3. At rho = 0 it is an algorithm like any other; the default is the plain mean there.

u is stored as y = -lam^2 u/s for Algorithm 2, the tracked mean loss under p: it has the units of a
loss, and does not overflow. Only ratios of s are used.

Reference: Qi, Lyu, Chan, Bai, Yang, "Stochastic Constrained DRO with a Complexity Independent of
Sample Size", TMLR 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from scdro._scalar import Scalar, clamp, exp, log, maximum, pinned, unpacked, vector, where
from scdro._state import Batch, RobustState, TiltedBatch
from scdro._validation import check_number, check_optional
from scdro.temperature import Change, MovingAverage, Step, Temperature, Tracker, Window

__all__ = ["PrintedTemperature", "Storm"]


@dataclass(frozen=True)
class Storm:
    r"""s <- ghat(x_t) + (1-beta)(s - ghat(x_{t-1}))   (eq. 7), as printed; the same for v and u, unnormalised.

    s can become <= 0, even in exact arithmetic. If it falls below max(beta ghat, 1e-8 of the
    largest term), all estimators restart from the batch, and `reset` is true. With known bounds 0
    <= l <= C, log s is projected to [0, C/lam] and the tracked mean loss to [0, C]; these
    projections never increase the error.

    Example:
        >>> import torch
        >>> from scdro import ASCDRO
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = ASCDRO(model.parameters(), lr=0.1, rho=0.5, temperature=PrintedTemperature(), tracker=Storm())
    """

    two_points = True

    def advance(
        self,
        log_s: Scalar,
        log_mean: Scalar,
        log_mean_old: Scalar | None,
        beta: float,
        rate: Scalar,
    ) -> tuple[Scalar, Change | None]:
        """log s by eq. 7, and what STORM does to the normalised estimates v/s and u/s.

            s <- ghat + (1-beta) (s - ghat'),    v/s <- keep v/s + ghat/s grad - old grad'

        with keep = (1-beta) s_{t-1}/s_t and old = (1-beta) ghat'/s_t.
        """
        assert log_mean_old is not None
        # All three terms divided by the largest, so that none overflows.
        top = maximum(maximum(log_mean, log_mean_old), log_s)
        # ghat(x_t), ghat(x_{t-1}) and s_{t-1}, each divided by exp(top).
        k1, k0, k = (exp(a - top) for a in (log_mean, log_mean_old, log_s))
        s = k1 + (1.0 - beta) * (k - k0)
        reset = s < maximum(beta * k1, 1e-8)
        s = where(reset, 1.0, s)  # any positive number, so that the logarithm below is safe
        moved = where(reset, log_mean, top + log(s))
        keep, old = (where(reset, 0.0, (1.0 - beta) * c / s) for c in (k, k0))
        empty = log_mean == -math.inf  # the whole batch is trimmed away, so nothing moves
        moved, keep, old = (
            where(empty, a, b) for a, b in ((log_s, moved), (1.0, keep), (0.0, old))
        )
        return moved, Change(keep, old, reset & (log_mean > -math.inf))


class PrintedState(RobustState):
    """The state with the running estimate of F's gradient in lam, and s kept when lam changes.

    It replaces four steps of `RobustState`: at which temperature the past is read (`lam_of_past`),
    how estimates of gradients move (`_advance`), what u averages (`_tilted_means`), and lam (`_find_next_lam`).
    """

    has_plain_case: ClassVar[bool] = False
    temperature: PrintedTemperature
    lam_average: Tensor  # (1,) u of Algorithm 1; y = -lam^2 u/s of Algorithm 2

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.register_buffer("lam_average", torch.zeros(1, dtype=self.scalars.dtype))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "lam_average"):  # the constructor calls this before there is one
            self.lam_average.zero_()

    def lam_of_past(self, lam: Scalar) -> Scalar:
        """s and the estimates of the gradient stay at the temperature that they were made with."""
        return self.numbers().lam_past if self.started else lam

    def ratio_to_past(self, lam: Scalar) -> Scalar:
        """lam_t/lam_{t-1}: eq. 8, z_w = lam v/s, has v/s of the past and lam of the present."""
        return lam / self.lam_of_past(lam)

    def _advance(
        self, log_s: Scalar, log_mean: Scalar, log_mean_old: Scalar | None, beta: float, rate: Any
    ) -> tuple[Scalar, Change | None]:
        """As the tracker says; for one point, which has no `Change`, u moves by the moving average.

        If the whole batch was trimmed away there is nothing new, so even beta = 1 keeps the old u.
        """
        moved, change = super()._advance(log_s, log_mean, log_mean_old, beta, rate)
        if change is None:  # u of Algorithm 1 moves as v does, with 1 - beta of the past
            keep = 1.0 - beta if beta < 1.0 else where(log_mean > -math.inf, 0.0, 1.0)
            change = Change(keep)
        return moved, change

    def _tilted_means(
        self, batch: Batch, point: TiltedBatch, old: tuple[Batch, TiltedBatch] | None
    ) -> tuple[Scalar | None, Scalar | None]:
        """mean(exp(l/lam) l)/ghat at both points: what u averages."""
        return point.mean(batch.losses), None if old is None else old[1].mean(old[0].losses)

    def _find_next_lam(
        self, step: Step, window: Window, lr: Scalar | None
    ) -> tuple[Scalar, Scalar, Sequence[tuple[Tensor, Tensor]]]:
        """lam_{t+1} by a projected gradient step (Algorithm 1, line 4), and the new u.

        lam log s has no upper bound here, so the second number is infinite.
        """
        lr = lr if self.temperature.lr is None else self.temperature.lr
        assert lr is not None
        lam, equation = step.lam, self.equation
        # The part of dF/dlam that needs no running estimate: log s + rho (+ mu lam).
        drift = step.lam_log_s / lam + equation.rho + equation.mu * lam
        average, gradient = self._lam_gradient(step, drift)
        written = [(self.lam_average, vector([average], self.lam_average))]
        return equation.clamp(lam - lr * gradient), math.inf, written

    def _lam_gradient(self, step: Step, drift: Scalar) -> tuple[Scalar, Scalar]:
        """The new u (or y, for two points), and the estimate of dF/dlam.

            one point (eq. 6)     u <- keep u + (1 - keep) (drift - m/lam);   gradient u
            two points, Storm     y <- (lam/lam')^2 (keep y - old m') + m;    gradient drift - y/lam
            two points, others    y <- keep y - old m' + m;                   gradient drift - y/lam

        with m = mean(exp(l/lam) l)/s of the batch, m' the mean loss under softmax(l/lam) at the
        previous point, and lam' the temperature of the past.
        """
        assert step.mean is not None
        compiled = torch.compiler.is_compiling()
        (average,) = unpacked(pinned(self.lam_average) if compiled else self.lam_average)
        change = Change(0.0) if step.change is None else step.change
        fresh = exp(step.log_mean - step.log_s) * step.mean  # mean(exp(l/lam) l)/s
        if not self.tracker.two_points:
            u = change.keep * average + (1.0 - change.keep) * (drift - fresh / step.lam)  # eq. 6
            return u, u
        subtracted = 0.0 if step.mean_old is None else change.old * step.mean_old
        if not isinstance(self.tracker, Storm):
            y = change.keep * average + fresh - subtracted
            return y, drift - y / step.lam
        # lam u/s + log s + rho (eq. 8). u is a derivative in lam, -y s/lam^2, of the past's lam.
        past = change.keep * average - subtracted
        y = (step.lam / self.lam_of_past(step.lam)) ** 2 * past + fresh
        if self.equation.loss_bound is not None:
            y = clamp(y, 0.0, self.equation.loss_bound)
        return y, drift - y / step.lam


@dataclass(frozen=True)
class PrintedTemperature(Temperature):
    """The paper's update, lam <- clip(lam - eta u, lam0, lam_max), with u as in Algorithm 1 or 2.

    It falls into the small-lam trap in most settings (docs, "Stability"). Use it to reproduce the
    paper only.

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
    state_class: ClassVar[Any] = PrintedState

    def __post_init__(self) -> None:
        check_number("initial", self.initial, "> 0", "the first temperature lam")
        check_optional("lr", self.lr, ">= 0", "the step size for lam, or None for the optimizer's")
        object.__setattr__(self, "lr", None if self.lr is None else float(self.lr))

    @property
    def needs_step_size(self) -> bool:
        return self.lr is None

    def one_point_tracker(self) -> Tracker:
        """Algorithm 1, line 6, without a cap."""
        return MovingAverage()

    def two_point_tracker(self) -> Tracker:
        """Algorithm 2, eq. 7."""
        return Storm()
