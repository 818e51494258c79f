r"""What every KL-constrained method carries from batch to batch, and how a batch moves it.

A batch passes through in three steps, the first two of which change nothing:

    batch    = state.read(losses)         validated, in float64, with the log of its base weights
    estimate = state.estimate(batch)      lam_t, log s_t, and the weight of each sample: exp(l/lam_t) q / s_t
    state.commit(estimate)                s, the recent losses, and then lam_{t+1}
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scdro.errors import CheckpointError, HyperparameterError, LossError, NonFiniteLossError
from scdro.estimators import Advance, Tracker
from scdro.functional import (
    check_radius,
    check_shape,
    check_trim,
    check_weights,
    scalar_dtype,
    solve_lam,
    trimmed_log_weights,
    value_at,
)
from scdro.temperature import LamRange, Moved, Temperature
from scdro.window import Window, default_size

__all__ = ["Batch", "Estimate", "Point", "RobustState"]


class Batch(NamedTuple):
    """Losses of a batch in the scalar dtype, detached; `log_weight` is None where all weigh the same."""

    losses: Tensor
    log_weight: Tensor | None
    log_mass: Tensor | float
    finite: Tensor | None


class Point(NamedTuple):
    """A batch at one temperature: log q + l/lam for each sample, and the log of their sum."""

    joint: Tensor
    log_mean: Tensor

    @property
    def weights(self) -> Tensor:
        """softmax(l/lam) over the batch: sums to one, or is all zero where everything was trimmed away."""
        return torch.exp(self.joint - self.log_mean.clamp_min(-1e300))


class Estimate(NamedTuple):
    """A step not yet committed. `weights` sum to ghat/s; `soft_max` is lam log s."""

    batch: Batch
    window: Window
    log_mass: Tensor | float
    lam: Tensor
    step: Advance
    soft_max: Tensor
    weights: Tensor
    objective: Tensor
    mean: Tensor | None
    mean_old: Tensor | None
    calibrating: bool = False


class RobustState(nn.Module):
    """lam, lam log s, the recent losses, and the counters: all of it buffers, all of it in `state_dict`.

    Numbers are kept together in vectors: torch.compile (2.13) loses writes to buffers that are 0-d float64 tensors.
    """

    scalars: Tensor  # lam, lam of the last batch, lam log s, and the loss above which samples are trimmed
    counts: Tensor  # resets, batches skipped
    recent: Tensor  # the window: losses and log weights of the last batches

    def __init__(
        self,
        rho: float,
        lam0: float,
        temperature: Temperature,
        tracker: Tracker,
        *,
        loss_bound: float | None = None,
        trim: float = 0.0,
        window: int | None = None,
        skip_nonfinite: bool = False,
        mu: float = 0.0,
    ) -> None:
        super().__init__()
        check_radius(rho, lam0)
        check_trim(trim)
        if loss_bound is not None and not 0.0 < loss_bound < math.inf:
            raise HyperparameterError(f"expected loss_bound > 0, an upper bound of every loss, got {loss_bound}")
        if window is not None and window < 1:
            raise HyperparameterError(f"expected a window of at least one loss, got {window}")
        if not 0.0 <= mu < math.inf:
            raise HyperparameterError(f"expected mu >= 0, got {mu}")
        self.trim, self.skip_nonfinite = trim, skip_nonfinite
        self.temperature, self.tracker = temperature, tracker
        lam_max = math.inf if loss_bound is None or rho == 0 else lam0 + loss_bound / rho
        self.limits = LamRange(rho, lam0, lam_max, mu, loss_bound)
        # rho = 0 asks for the plain average: lam = inf. The printed update knows no such case.
        self.plain = rho == 0.0 and temperature.carries
        # Python's view of whether there is a past: the first batch takes another path, without asking the device.
        self.started = False
        dtype = scalar_dtype(torch.get_default_device())
        start = math.inf if self.plain else math.nan if temperature.initial is None else temperature.initial
        self.register_buffer("scalars", torch.tensor([start, start, math.nan, math.inf], dtype=dtype))
        self.register_buffer("counts", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("recent", Window.empty(window or default_size(rho), dtype).rows)
        self.register_load_state_dict_pre_hook(_check_shapes)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_note_started)  # type: ignore[no-untyped-call]

    @property
    def _numbers(self) -> Tensor:
        return _pinned(self.scalars) if torch.compiler.is_compiling() else self.scalars

    @property
    def lam(self) -> Tensor:
        """The temperature that the next batch will use."""
        return self._numbers[0]

    @property
    def lam_past(self) -> Tensor:
        """The temperature that the last batch used."""
        return self._numbers[1]

    @property
    def soft_max(self) -> Tensor:
        """lam log s."""
        return self._numbers[2]

    @property
    def ceiling(self) -> Tensor:
        """Losses above it are trimmed."""
        return self._numbers[3]

    @property
    def window(self) -> Window:
        return Window(self.recent)

    @property
    def objective(self) -> Tensor:
        """The running robust objective as of the last batch."""
        return self._objective(self.soft_max, self.lam_past)

    @property
    def needs_whole_batch(self) -> bool:
        """Whether the next batch is the first, and lam_1 or the ceiling must be found from all of it."""
        return not self.started and (bool(self.trim) or (self.temperature.initial is None and not self.plain))

    # -- reading a batch ------------------------------------------------------------------------------------------

    def read(self, losses: Tensor, sample_weight: Tensor | None = None, mask: Tensor | None = None) -> Batch:
        """Check a batch of losses and put it into the log domain. Raises before anything changes."""
        if not isinstance(losses, Tensor):
            raise LossError(f"expected a tensor with one loss per sample, got {type(losses).__name__}")
        check_shape(losses)
        if not losses.is_floating_point():
            raise LossError(f"expected floating-point losses, got {losses.dtype}")
        if self.scalars.device != losses.device:
            self.to(losses.device)
        values = losses.detach().to(self.scalars.dtype)
        log_weight = self._log_weight(values, sample_weight, mask)
        if log_weight is None:
            return Batch(values, None, math.log(len(values)), self._check_values(values))
        values = torch.where(log_weight > -math.inf, values, 0.0)
        log_mass = torch.logsumexp(log_weight, 0)
        _require(log_mass > -math.inf, LossError, "expected sample weights with a positive sum, got none above zero")
        return Batch(values, log_weight, log_mass, self._check_values(values))

    def _log_weight(self, values: Tensor, sample_weight: Tensor | None, mask: Tensor | None) -> Tensor | None:
        log_weight = None
        if sample_weight is not None:
            weight = torch.as_tensor(sample_weight, device=values.device).detach().to(values.dtype)
            check_weights(weight, values)
            _require(
                ((weight >= 0) & (weight < math.inf)).all(),
                LossError,
                "expected sample weights >= 0, got negative or non-finite ones",
            )
            log_weight = torch.log(weight)
        if mask is not None:
            keep = torch.as_tensor(mask, device=values.device).to(torch.bool)
            check_weights(keep, values)
            log_weight = torch.where(keep, 0.0 if log_weight is None else log_weight, -math.inf).to(values.dtype)
        return log_weight

    def _check_values(self, values: Tensor) -> Tensor | None:
        """None where the batch may be used for certain; a flag, not yet read, where a bad one is to be skipped."""
        total = values.sum()
        bound = self.limits.loss_bound
        if not self.skip_nonfinite and bound is None and _host_reads(total) and math.isfinite(total.item()):
            return None
        finite = torch.isfinite(total)
        if not self.skip_nonfinite:
            _require(
                finite,
                NonFiniteLossError,
                "expected finite losses, got NaN or infinity; lower the learning rate, look for overflow in the model, "
                "or pass skip_nonfinite=True to leave such batches out",
            )
        if bound is not None:
            low, high = torch.aminmax(values)
            _require(
                ((low >= 0) & (high <= bound)) | ~finite,
                LossError,
                f"expected losses in [0, loss_bound] = [0, {bound}], got one outside; raise loss_bound or omit it",
            )
        return finite if self.skip_nonfinite else None

    # -- estimating -----------------------------------------------------------------------------------------------

    def first_temperature(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """lam_1 and the ceiling for trimming, from the first batch; lam_1 is the user's where one was given."""
        log_weight = torch.zeros_like(batch.losses) if batch.log_weight is None else batch.log_weight
        ceiling = self.ceiling
        if self.trim:
            kept = trimmed_log_weights(batch.losses, log_weight, self.trim)
            ceiling = torch.where(kept > -math.inf, batch.losses, -math.inf).amax()
            log_weight = torch.where(batch.losses > ceiling, -math.inf, log_weight)
        if self.temperature.initial is not None or self.plain:
            return self.lam, ceiling
        rho, lam0, _, mu, _ = self.limits
        lam = solve_lam(batch.losses, log_weight, rho, lam0, mu=mu, iterations=24, exact=False)
        return self.limits.clamp(lam), ceiling

    def point(self, batch: Batch, lam: Tensor, ceiling: Tensor) -> Point:
        """The batch at temperature lam, trimmed: q is uniform over the batch, or by its weights, over 1 - trim."""
        joint = batch.losses / lam
        joint = joint - batch.log_mass if batch.log_weight is None else joint + (batch.log_weight - batch.log_mass)
        if self.trim:
            joint = torch.where(batch.losses > ceiling, -math.inf, joint - math.log1p(-self.trim))
        return Point(joint, torch.logsumexp(joint, 0))

    def past_temperature(self, lam: Tensor) -> Tensor:
        """The temperature at which s and the estimates of the past are read."""
        return lam if self.temperature.carries else self.lam_past

    def estimate(
        self, batch: Batch, beta: float, *, old: tuple[Batch, Point] | None = None, staged: Estimate | None = None
    ) -> Estimate:
        """s_t and the weights of a batch, or of one more part of it where `staged` holds the parts before.

        `old` is the same batch at the previous point, for trackers of two points.
        """
        check_beta(beta)
        lam, ceiling = self.lam, self.ceiling
        if not self.started and staged is None:
            lam, ceiling = self.first_temperature(batch)
        point = self.point(batch, lam, ceiling)
        log_mean, log_mass = point.log_mean, batch.log_mass
        if staged is not None:
            log_sum = torch.logaddexp(staged.step.log_mean + staged.log_mass, log_mean + log_mass)
            log_mass = torch.logaddexp(_tensor(staged.log_mass, log_sum), _tensor(log_mass, log_sum))
            log_mean = log_sum - log_mass
        if self.started:
            past = self.soft_max / self.past_temperature(lam)
            step = self.tracker.advance(past, log_mean, None if old is None else old[1].log_mean, beta)
        else:
            step = Advance(log_mean, log_mean)
        needs_means = self.plain or not self.temperature.carries
        mean = _mean_of_parts(batch, point, staged, log_mean + log_mass) if needs_means else None
        new_soft_max, objective = self._values(mean, lam, step, beta)
        return Estimate(
            batch=batch,
            window=(self.window if staged is None else staged.window).pushed(batch.losses, batch.log_weight),
            log_mass=log_mass,
            lam=lam,
            step=step,
            soft_max=new_soft_max,
            weights=torch.exp(point.joint - step.log_s),
            objective=objective,
            mean=mean,
            mean_old=_mean(*old) if needs_means and old is not None else None,
        )

    def observe(self, batch: Batch, *, staged: Estimate | None = None) -> Estimate:
        """A part of the very first batch, while lam_1 waits for the rest of it: samples weigh the same."""
        window = (self.window if staged is None else staged.window).pushed(batch.losses, batch.log_weight)
        log_weight = torch.zeros_like(batch.losses) if batch.log_weight is None else batch.log_weight
        log_q = log_weight - batch.log_mass
        rho, lam0, _, mu, _ = self.limits
        lam = solve_lam(batch.losses, log_q, rho, lam0, mu=mu, iterations=24, exact=False)
        value, _, _ = value_at(batch.losses, batch.losses, log_q, lam, lam0)
        step, q = Advance(torch.zeros_like(lam), torch.zeros_like(lam)), torch.exp(log_q)
        return Estimate(batch, window, batch.log_mass, lam, step, lam, q, value, None, None, calibrating=True)

    def _values(self, mean: Tensor | None, lam: Tensor, step: Advance, beta: float) -> tuple[Tensor, Tensor]:
        """lam log s and the running objective lam log s + (lam - lam0) rho."""
        if self.plain:
            assert mean is not None
            soft_max = torch.lerp(self.soft_max, mean, beta) if self.started else mean
            return soft_max, self._objective(soft_max, lam)
        soft_max = lam * step.log_s
        if self.limits.loss_bound is not None and self.tracker.two_points:
            soft_max = soft_max.clamp(0.0, self.limits.loss_bound)  # STORM's s may leave the range of the truth.
        return soft_max, self._objective(soft_max, lam)

    def _objective(self, soft_max: Tensor, lam: Tensor) -> Tensor:
        rho, lam0, *_ = self.limits
        return soft_max.clone() if self.plain else torch.add(soft_max, lam, alpha=rho) - lam0 * rho

    # -- committing -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def commit(self, estimate: Estimate, lr: Tensor | float | None = None, only_if: Tensor | None = None) -> None:
        """Move s and the recent losses, then lam; where `only_if` or the batch's own flag is false, nothing moves."""
        window, ceiling = estimate.window, self.ceiling
        if self.trim:
            ceiling = window.quantile(self.trim)
            window = window.without(ceiling)
        if estimate.calibrating:
            rho, lam0, _, mu, _ = self.limits
            solved = self.temperature.initial is None
            lam = lam_next = self.limits.clamp(window.solve(rho, lam0, mu)) if solved else self.lam
            soft_max = lam * window.log_mean(lam)
            extra: list[tuple[Tensor, Tensor]] = []
        else:
            lam, soft_max = estimate.lam, estimate.soft_max
            lam_next, extra = self.temperature.advance(self._moved(estimate, window, lr), self.limits)
        reset, finite = estimate.step.reset, estimate.batch.finite
        go = _both(only_if, finite)
        self._start(go)
        new = [
            (self.scalars, torch.stack([lam_next, lam, soft_max, ceiling])),
            (self.recent, estimate.window.rows),
            *extra,
        ]
        if reset is not None:
            new.append((self.counts, self.counts + torch.stack([reset, torch.zeros_like(reset)])))
        if go is not None:
            new = [(buffer, torch.where(go, value, buffer)) for buffer, value in new]
        for buffer, value in new:
            buffer.copy_(value)
        if finite is not None:
            self.count_skipped(~finite)

    def count_skipped(self, bad: Tensor | bool) -> None:
        self.counts[1] += bad

    def _moved(self, estimate: Estimate, window: Window, lr: Tensor | float | None) -> Moved:
        past = self.past_temperature(estimate.lam) if self.started else estimate.lam
        return Moved(
            estimate.lam,
            past,
            estimate.step,
            estimate.soft_max,
            estimate.mean,
            estimate.mean_old,
            window,
            self.tracker,
            lr,
        )

    def _start(self, go: Tensor | None) -> None:
        """Note that there is a past from now on, unless this very first step is skipped."""
        if self.started:
            return
        if go is None:
            self.started = True
        elif torch.compiler.is_compiling():
            torch._assert_async(go, "the first batch of a compiled loss must be finite")
            self.started = True
        else:
            self.started = bool(go)  # Waits for the device, until the first good batch and never again.

    # -- monitoring -----------------------------------------------------------------------------------------------

    def monitor(self) -> tuple[Tensor, Tensor]:
        """KL and effective sample size (as a share of the samples) of the worst case on the recent losses."""
        window = self.window.without(self.ceiling) if self.trim else self.window
        at = window.tilt(self.lam, self.soft_max)
        q = torch.softmax(window.log_weight, 0)
        return at.kl.clamp_min(0.0), (q * q).sum() / (at.weights * at.weights).sum()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RobustState:
        """Follow the model to its device, never to its dtype: lam and log s are float64 for a reason."""

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            if not tensor.is_floating_point() or moved.dtype == tensor.dtype:
                return moved
            return tensor.to(moved.device, scalar_dtype(moved.device))

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self


def check_beta(beta: float) -> None:
    if not 0.0 < beta <= 1.0:
        raise HyperparameterError(f"expected beta in (0, 1], the share of the new batch in the averages, got {beta}")


def _check_shapes(module: RobustState, state_dict: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Refuse another window or temperature before any of it is loaded."""
    came = {k: v.shape for k, v in state_dict.items() if k.startswith(prefix)}
    if came and came != {prefix + k: v.shape for k, v in module.state_dict().items()}:
        raise CheckpointError(
            f"expected the state of a window of {module.recent.shape[1]} losses and of "
            f"{type(module.temperature).__name__}, got one made with another window or temperature; "
            "construct the object with the same arguments"
        )


def _note_started(module: nn.Module, _: object) -> None:
    assert isinstance(module, RobustState)
    module.started = not bool(module.soft_max.isnan())


def _mean(batch: Batch, point: Point) -> Tensor:
    """The batch's mean loss under its own weights."""
    return torch.dot(point.weights, batch.losses)


def _mean_of_parts(batch: Batch, point: Point, staged: Estimate | None, log_sum: Tensor) -> Tensor:
    """The mean loss of all parts of a batch so far, each part by its share of the sum of exp(l/lam)."""
    mean = _mean(batch, point)
    if staged is None or staged.mean is None:
        return mean
    return torch.lerp(mean, staged.mean, torch.exp(staged.step.log_mean + staged.log_mass - log_sum))


@torch.library.custom_op("scdro::pinned", mutates_args=())
def _pinned(x: Tensor) -> Tensor:
    """A copy that a compiled backward pass cannot make anew: it would read numbers that the forward pass has since
    overwritten, and give wrong gradients in silence (torch 2.13, inductor)."""
    return x.clone()


@_pinned.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _tensor(value: Tensor | float, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full_like(like, value)


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a & b


def _require(condition: Tensor, error: type[LossError], message: str) -> None:
    """Raise on the host where reading a flag is free; on an accelerator, or in a compiled graph, assert there."""
    if not _host_reads(condition):
        torch._assert_async(condition, message)
    elif not bool(condition):
        raise error(message)


def _host_reads(tensor: Tensor) -> bool:
    """Whether reading a tensor costs nothing: on a CPU, outside of a compiled graph."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
