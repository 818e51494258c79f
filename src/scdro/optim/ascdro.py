"""ASCDRO (Algorithm 2) and RASCDRO, its restarted form: each batch is evaluated at two points.

SCDRO averages noisy gradients; the average lags behind when w moves. STORM corrects the lag: it
evaluates the same batch at the previous point too, and adds the difference,

    z_t = g(x_t) + (1-beta) (z_{t-1} - g(x_{t-1}))          both gradients on batch t

The difference of two gradients on one batch has little noise, so the variance of z falls as the
iterates settle, and 1/eps^3 samples suffice where SCDRO needs 1/eps^4.

Both evaluations must see the same function: the same samples, dropout masks (`_Replay`) and
BatchNorm statistics that move once (`Buffers`). `TwoPoints` takes care of that, for any method;
`ASCDRO` has the estimates. In the order of `ASCDRO._step`:

    at w_{t-1}   losses l', weights softmax(l'/lam), gradient g'           _read_previous_point
    at w_t       losses l, s_t, weights exp(l/lam)/s_t, gradient g
    z <- keep z + g - old g',  the change clipped                          _move_estimates
    w <- Proj_W(w - lr (z + wd w))                                         _descend, _project
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from scdro._scalar import Scalar
from scdro._state import Batch, TiltedBatch
from scdro.distributed import is_sharded, reshard
from scdro.errors import ClosureError
from scdro.optim._base import Closure, ClosureOptimizer, RobustOptimizer, descend, global_norm
from scdro.optim.scdro import Restarted
from scdro.temperature import Change

__all__ = [
    "ASCDRO",
    "RASCDRO",
    "TwoPoints",
    "match_batches",
]


class _Replay:
    """Makes the second evaluation draw the same random numbers from a device's default generator as the first.

    The whole process shares that generator. It is set back only if it has changed, and ends in a
    state that never repeats a number, whatever another thread drew in the meantime.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = self._state()  # of the generator before the first evaluation
        self._first = self._before  # and after it

    def rewind(self) -> None:
        """Call after the first evaluation."""
        self._first = self._state()
        self._set(self._before)

    def finish(self) -> None:
        """Call after the second evaluation.

        Without other threads the generator is already in the right state: both evaluations have
        drawn the same numbers. With them, the state after the second evaluation may be behind the
        one after the first, and the numbers in between would be drawn twice.
        """
        if threading.active_count() == 1 or torch.equal(self._first, self._before):
            return
        second = self._state()
        if torch.equal(second, self._before):  # The closure draws nothing; another thread did.
            self._set(self._first)
        elif not torch.equal(second, self._first):  # We cannot know which state is further on.
            both = self._first.numpy().tobytes() + second.numpy().tobytes()
            seed = int.from_bytes(hashlib.blake2b(both, digest_size=8).digest(), "little")
            self._set(torch.Generator(self._device).manual_seed(seed).get_state())

    def _state(self) -> Tensor:
        if self._device.type == "cpu":
            return torch.get_rng_state()
        state: Tensor = torch.get_device_module(self._device).get_rng_state(self._device)
        return state

    def _set(self, state: Tensor) -> None:
        if torch.equal(state, self._state()):
            return
        if self._device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(self._device).set_rng_state(state, self._device)


class TwoPoints(ClosureOptimizer):
    """An optimizer that keeps the `previous` value of each parameter, and evaluates batches there too.

    A step calls `_at_previous_point` as a context around the first evaluation, then
    `_replay_losses` for the second, and ends with `_remember_point`.
    """

    _two_points = True
    _replays: tuple[_Replay, ...] = ()

    @contextmanager
    def _at_previous_point(self) -> Iterator[None]:
        """A context in which the parameters are at w_{t-1}; then, even after an error, at w_t again."""
        params = [p for p in self._parameters() if self._has_past(p)]
        present = [p.clone() for p in params]
        devices = {torch.device("cpu"), self._first_parameter().device}
        self._replays = tuple(_Replay(device) for device in devices)
        try:
            self._move(params, [self.state[p]["previous"] for p in params])
            yield
            self._move(params, present)
        except BaseException:
            # Also after Ctrl-C in the middle of a move: never leave parameters at two points.
            self._move(params, present)
            raise
        finally:
            for replay in self._replays:
                replay.rewind()
            self._buffers.restore()

    def _replay_losses(self, closure: Closure) -> Tensor:
        """The losses at the current point, with the same random numbers as at the previous one."""
        try:
            return self._losses(closure)
        finally:
            for replay in self._replays:
                replay.finish()
            self._replays = ()

    def _move(self, params: list[Tensor], values: list[Tensor]) -> None:
        """Set the parameters. FSDP2 must gather them again, or it would use the old ones."""
        reshard(self._buffers.modules, params)
        _copy_all(params, values)

    def _keep_gradients(self) -> dict[Tensor, Tensor]:
        """Copies of the gradients at the previous point, because DDP may write the next ones into the same memory."""
        shared = self.ranks.size > 1
        return {
            p: p.grad.clone() if shared else p.grad
            for p in self._parameters()
            if p.grad is not None
        }

    def _remember_point(self) -> None:
        """Store the current point as the previous one, for the parameters that have one."""
        params = [p for p in self._parameters() if self._has_past(p)]
        _copy_all([self.state[p]["previous"] for p in params], params)


def _copy_all(to: list[Tensor], values: list[Tensor]) -> None:
    """Copy each of the values, in one call; sharded ones, which need not be copied so, one by one."""
    if to and not any(map(is_sharded, to)):
        torch._foreach_copy_(to, values)
        return
    for tensor, value in zip(to, values, strict=True):
        tensor.copy_(value)


def match_batches(batch: Batch, old: Batch) -> Batch:
    """The batch at the current point, marked bad if either evaluation was bad."""
    if len(old.losses) != len(batch.losses):
        raise ClosureError(
            f"expected the same batch from both calls of the closure, got {len(old.losses)} losses"
            f" and then {len(batch.losses)}; draw the batch outside the closure"
        )
    if batch.finite is None or old.finite is None:
        return batch
    return batch._replace(finite=batch.finite & old.finite)


# -- the algorithm ---------------------------------------------------------------------------------


class ASCDRO(TwoPoints, RobustOptimizer):
    r"""Accelerated stochastic constrained DRO (Algorithm 2): less variance, with each batch evaluated at two points.

    Each `step(closure)`, where l and l' are the per-sample losses of the same batch at w_t and
    w_{t-1}:

    1. l', then its gradient, at w_{t-1}; then l at w_t, under the same random masks.
    2. s_t by the tracker (line 6, eq. 7).
    3. z_t = keep z_{t-1} + new mean_p(grad l) - old mean_p'(grad l'),   the STORM estimate of grad F (line 6).
    4. w_{t+1} = Proj_W(w_t - lr (z_t + wd w_t))                            (line 4, eq. 8)
    5. lam_{t+1} by the `temperature`.

    With `PrintedTemperature` everything is as printed in the paper: z_t is its lam_t v_t/s_t (eq.
    8). By default lam comes from the recent losses, both points are evaluated at lam_t, and the
    tracker is `NormalizedStorm`, which is stable where the printed one diverges.

    The closure runs twice, so it must compute the losses of a batch that is chosen outside of it.
    Random numbers that it draws from torch are replayed. Buffers of `module` (BatchNorm's running
    statistics) are updated once; a normalisation layer with running statistics outside of `module`
    raises an error.

    Args:
        module: the model (or models) whose buffers the closure changes. Needed with BatchNorm and
            similar layers.
        params, lr, rho, beta, ...: as for `SCDRO`.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
        >>> opt = ASCDRO(model.parameters(), lr=0.1, rho=0.5, module=model)
        >>> value = opt.step(lambda: torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
    """

    _vectors = ("z", "previous")

    def _step(
        self, closure: Closure, index: Tensor | None, sample_weight: Tensor | None
    ) -> Scalar | None:
        robust, beta = self._method_state, self._beta
        # The batch at w_{t-1}, with its tilt; None at the first step, which has no previous point.
        old = self._read_previous_point(closure, sample_weight) if robust.started else None
        # Before the first step, .grad may be anything.
        old_gradients = {} if old is None else self._keep_gradients()
        losses = self._replay_losses(closure)
        batch = robust.read(losses, sample_weight)
        if old is not None:
            batch = match_batches(batch, old[0])
        if self._skips(batch.finite):
            return None
        step = robust.estimate(batch, beta, old=old)
        self._backward(losses, batch, step.weights)
        if not self._gradients.unscale_and_clip(old_gradients):
            return None
        ratio = robust.ratio_to_past(step.lam)  # 1, except for the printed form
        with self._undo_unless(batch.finite):
            self._move_estimates(step.change or Change(0.0), ratio, old_gradients, beta)
            for group in self.param_groups:
                self._descend(group)
            self._project()
        robust.commit(step, batch, lr=self.param_groups[0]["lr"])
        return step.objective

    def _read_previous_point(
        self, closure: Closure, sample_weight: Tensor | None
    ) -> tuple[Batch, TiltedBatch]:
        """The batch at w_{t-1}. Stores its gradient, under softmax(l'/lam), in `p.grad`."""
        with self._at_previous_point():
            losses = self._losses(closure)
            batch = self._method_state.read(losses, sample_weight)
            point = self._method_state.tilt_previous(batch)
            self._backward(losses, batch, point.softmax)
        return batch, point

    def _move_estimates(
        self, change: Change, ratio: Scalar, old_gradients: dict[Tensor, Tensor], beta: float
    ) -> None:
        """z <- keep z + new g - old g' for all parameters, and w_t becomes the previous point.

        `ratio` is lam_t divided by the temperature of the past estimates.
        """
        active = [p for p in self._parameters() if p.grad is not None]
        moving = [p for p in active if self._has_past(p)]
        if moving:
            z, g = (
                [self.state[p]["z"] for p in moving],
                [p.grad for p in moving if p.grad is not None],
            )
            g_old = [_or_zeros(old_gradients.get(p), p) for p in moving]
            # STORM, written as a moving average plus a correction:
            #   z <- keep z + beta g + [ (1-beta) g - old g' ]
            # The correction is the change of the gradient since the previous point. It is what is
            # clipped, to `clip` (1-beta) times the smaller of |g| and |z|.
            old = self._gradients.clip_coefficient(change.old * ratio, g_old, 1.0 - beta)
            correction = list(torch._foreach_mul(g_old, -old))
            torch._foreach_add_(correction, g, alpha=1.0 - beta)
            clip = getattr(self._method_state.tracker, "clip", None)
            if clip is not None:
                torch._foreach_mul_(correction, _shrinkage(correction, g, z, clip * (1.0 - beta)))
            torch._foreach_mul_(z, change.keep * ratio)
            torch._foreach_add_(z, g, alpha=beta)
            torch._foreach_add_(z, correction)
        self._remember_point()
        for p in active if len(moving) < len(active) else ():
            if not self._has_past(p):
                assert p.grad is not None
                self._begin_at(p, z=p.grad.clone(), previous=p.detach().clone())

    def _descend(self, group: dict[str, Any]) -> None:
        """w <- w - lr (z + wd w)."""
        params = [p for p in group["params"] if p.grad is not None]
        decay = group["weight_decay"] + self._method_state.equation.mu
        descend(
            params,
            self._add_decay([self.state[p]["z"] for p in params], params, decay),
            group["lr"],
        )


def _or_zeros(gradient: Tensor | None, p: Tensor) -> Tensor:
    """The gradient, or zeros for a parameter that had none at the previous point."""
    return torch.zeros_like(p) if gradient is None else gradient


def _shrinkage(correction: list[Tensor], g: list[Tensor], z: list[Tensor], clip: float) -> Tensor:
    """The factor <= 1 that bounds |correction| by clip * min(|g|, |z|).

    Norms are over all parameters together.
    """
    size, *limits = (global_norm(tensors) for tensors in (correction, g, z))
    return (clip * torch.minimum(*limits) / size.clamp_min(torch.finfo(size.dtype).tiny)).clamp_max(
        1.0
    )


# -- in stages -------------------------------------------------------------------------------------


class RASCDRO(Restarted, ASCDRO):
    r"""Restarted ASCDRO (Algorithm 3), for convex losses: ASCDRO on F + mu |x|^2/2 in stages with decreasing step size.

    mu x_t is added to the direction z_t (section 5). Arguments as for `RSCDRO`, plus `module` as
    for `ASCDRO`.

    Example:
        >>> from scdro.optim import factor_stages
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = RASCDRO(model.parameters(), factor_stages(0.1, 0.5, 100, 5, lr_factor=0.7), rho=0.5)
    """
