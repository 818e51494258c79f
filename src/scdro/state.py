r"""What every KL-constrained method carries from batch to batch, and how a batch moves it.

A batch passes through in three steps, the first two of which change nothing:

    batch    = state.read(losses)         validated, in float64, with the log of its base weights
    estimate = state.estimate(batch)      lam_t, log s_t, and the weight of each sample: exp(l/lam_t) q / s_t
    state.commit(estimate)                s, the recent losses, and then lam_{t+1}
"""

from __future__ import annotations

import copy
import math
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor, nn

from scdro._kl import attainable, effective_size, solve_lam, trimmed_log_weights, value_at
from scdro.batch import Batch, Point, joined_parts
from scdro.distributed import Group
from scdro.errors import CheckpointError, HyperparameterError
from scdro.estimate import Estimate, mean_of_parts, parts_of
from scdro.estimators import Advance, Tracker
from scdro.plateau import Plateau
from scdro.reading import check_beta, check_radius, check_trim
from scdro.scalar import (
    Scalar,
    clamp,
    host_reads,
    logaddexp,
    maximum,
    minimum,
    pinned,
    scalar,
    scalar_dtype,
    unpacked,
    vector,
    where,
)
from scdro.temperature import LamRange, Moved, Temperature
from scdro.tracked import Tracked
from scdro.window import Window, default_size

__all__ = ["RobustState"]


class Reading(NamedTuple):
    """lam of the next batch and of the last one, lam log s, the loss above which samples are trimmed or clipped, and
    the most that lam log s may be when the next batch comes."""

    lam: Scalar
    lam_past: Scalar
    lam_log_s: Scalar
    ceiling: Scalar
    lam_log_s_max: Scalar


class RobustState(Tracked):
    """lam, lam log s, the recent losses, and the counters: all of it buffers, all of it in `state_dict`.

    Numbers are kept together in a vector: torch.compile (2.13) loses writes to buffers that are 0-d float64 tensors.
    """

    scalars: Tensor  # Reading
    resets: Tensor  # how often STORM had to start anew
    recent: Tensor  # the window: losses and log weights of the last batches
    kind: Tensor  # what decides what the other numbers mean; see `check_meaning`

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
        process_group: Group = None,
    ) -> None:
        super().__init__(loss_bound=loss_bound, skip_nonfinite=skip_nonfinite, process_group=process_group)
        check_radius(rho, lam0)
        check_trim(trim)
        if temperature.initial is not None and temperature.initial < lam0:
            raise HyperparameterError(f"expected an initial temperature >= lam0 = {lam0}, got {temperature.initial}")
        if window is not None and (not isinstance(window, int) or window < 1):
            raise HyperparameterError(f"expected a window of at least one loss, got {window}")
        if not 0.0 <= mu < math.inf:
            raise HyperparameterError(f"expected mu >= 0, got {mu}")
        self.trim, self.mu, self.plateau = trim, mu, Plateau()
        self.temperature, self.tracker = copy.deepcopy(temperature), tracker  # It may have a state of its own.
        lam_max = math.inf if loss_bound is None or rho == 0 else lam0 + loss_bound / rho
        self.limits = LamRange(rho, lam0, lam_max, mu, loss_bound)
        # rho = 0 asks for the plain average: lam = inf. The printed update knows no such case.
        self.plain = rho == 0.0 and temperature.carries
        dtype = scalar_dtype(torch.get_default_device())
        self.register_buffer("scalars", torch.empty(len(Reading._fields), dtype=dtype))
        self.register_buffer("resets", torch.empty(1, dtype=torch.int64))
        self.register_buffer("recent", torch.empty(2, window or default_size(rho), dtype=dtype))
        self.register_buffer("kind", torch.empty(4, dtype=torch.int64))
        self.reset_parameters()
        self.register_load_state_dict_post_hook(_settle)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        start = self._lam_at_start()
        first = [start, start, math.nan, math.inf, math.inf]
        self.scalars.copy_(torch.tensor(first, dtype=self.scalars.dtype, device="cpu"))
        self.resets.zero_()
        Window(self.recent).clear_()
        self.kind.copy_(torch.tensor(self._kind(), device="cpu"))
        self.temperature.reset_parameters()

    def _lam_at_start(self) -> float:
        initial = self.temperature.initial
        return math.inf if self.plain else math.nan if initial is None else initial

    def _kind(self) -> list[int]:
        names = (type(part).__name__ for part in (self.temperature, self.tracker))
        return [int(self.plain), int(self.trim > 0.0), *(crc32(name.encode()) for name in names)]

    def check_meaning(self, came: dict[str, Tensor]) -> None:
        """lam = inf, and the mean loss for lam log s, are of rho = 0 alone; s is of the losses that `trim` leaves, and
        lam's own estimates are the temperature's and the tracker's. All else moves on from any state."""
        expected = [
            "rho = 0" if self.plain else "rho > 0",
            "trim > 0" if self.trim else "trim = 0",
            type(self.temperature).__name__,
            type(self.tracker).__name__,
        ]
        others = ["rho > 0" if self.plain else "rho = 0", "trim = 0" if self.trim else "trim > 0"]
        others += ["another temperature", "another tracker"]
        for own, theirs, name, other in zip(self._kind(), came["kind"].tolist(), expected, others, strict=True):
            if own != theirs:
                raise CheckpointError(
                    f"expected a state made with {name}, got one of {other}; construct the object with the same "
                    "arguments, or start without this state"
                )

    def made_with(self) -> str:
        return f"a window of {self.recent.shape[1]} losses and of {type(self.temperature).__name__}"

    def reading(self) -> Reading:
        """What the state holds, to compute with."""
        return Reading(*unpacked(pinned(self.scalars) if torch.compiler.is_compiling() else self.scalars))

    @property
    def window(self) -> Window:
        return Window(self.recent)

    @property
    def lam(self) -> Tensor:
        """The temperature that the next batch will use."""
        return self.scalars[0].clone()

    @property
    def log_s(self) -> Tensor:
        """log s, at the temperature of the last batch."""
        return self.scalars[2] / self.scalars[1]

    @property
    def objective(self) -> Tensor:
        """The running robust objective as of the last batch."""
        at = self.reading()
        return torch.as_tensor(self._objective(at.lam_log_s, at.lam_past), dtype=self.scalars.dtype).clone()

    @property
    def needs_whole_batch(self) -> bool:
        """Whether the next batch is the first, and lam_1 or the ceiling must be found from all of it."""
        return not self.started and (bool(self.trim) or (self.temperature.initial is None and not self.plain))

    # -- estimating -----------------------------------------------------------------------------------------------

    def _first(self, at: Reading, batch: Batch) -> Reading:
        """lam_1 and the ceiling for trimming, from the first batch; lam_1 is the user's where one was given."""
        log_weight = torch.zeros_like(batch.losses) if batch.log_weight is None else batch.log_weight
        if self.trim:
            kept = trimmed_log_weights(batch.losses, log_weight, self.trim)
            ceiling = torch.where(kept > -math.inf, batch.losses, -math.inf).amax()
            log_weight = torch.where(batch.losses > ceiling, -math.inf, log_weight)
            at = at._replace(ceiling=scalar(ceiling))
        if self.temperature.initial is not None or self.plain:
            return at
        _, lam0, _, mu, _ = self.limits
        rho = attainable(self.limits.rho, effective_size(log_weight))
        lam = solve_lam(batch.losses, log_weight, rho, lam0, mu=mu)
        return at._replace(lam=self.limits.clamp(lam))

    def _point(self, batch: Batch, lam: Scalar, ceiling: Scalar) -> Point:
        """The batch at temperature lam. Losses above the ceiling count as much as the ceiling, or with `trim` nothing:
        q is then uniform over the batch, or by its weights, over 1 - trim."""
        clips = self.temperature.ceiling is not None and not self.trim
        joint = (batch.losses.clamp_max(ceiling) if clips else batch.losses) / lam
        if batch.log_weight is not None:
            joint = joint + batch.log_weight
        if not self.trim:
            return Point.of(joint, batch.log_mass)
        joint = torch.where(batch.losses > ceiling, -math.inf, joint)
        return Point.of(joint, batch.log_mass + math.log1p(-self.trim))

    def previous_point(self, batch: Batch) -> Point:
        """The batch, evaluated at the previous parameters, at the temperature that the past is read at."""
        at = self.reading()
        return self._point(batch, self._past_temperature(at), at.ceiling)

    def _past_temperature(self, at: Reading) -> Scalar:
        """The temperature at which s and the estimates of the past are read."""
        return at.lam if self.temperature.carries else at.lam_past

    def estimate(
        self, batch: Batch, beta: float, *, old: tuple[Batch, Point] | None = None, staged: Estimate | None = None
    ) -> Estimate:
        """s_t and the weights of a batch, or of one more part of it where `staged` holds the parts before.

        `old` is the same batch at the previous point, for trackers of two points.
        """
        check_beta(beta)
        at = self.reading()
        if not self.started and staged is None:
            at = self._first(at, batch)
        lam, lam_past = at.lam, self._past_temperature(at) if self.started else at.lam
        point = self._point(batch, lam, at.ceiling)
        log_mean, log_mass = point.log_mean, batch.log_mass
        if staged is not None:
            log_sum = logaddexp(staged.step.log_mean + staged.log_mass, log_mean + log_mass)
            log_mass = logaddexp(staged.log_mass, log_mass)
            log_mean = log_sum - log_mass
        if self.started:
            past_log_mean = None if old is None else old[1].log_mean
            log_s = minimum(at.lam_log_s, at.lam_log_s_max) / lam_past
            step = self.tracker.advance(log_s, log_mean, past_log_mean, beta)
        else:
            step = Advance(log_mean, log_mean)
        mean = mean_old = None
        if self.plain or not self.temperature.carries:
            mean = mean_of_parts(point.mean(batch.losses), staged, log_mean + log_mass)
            mean_old = None if old is None else old[1].mean(old[0].losses)
        lam_log_s = self._soft_max(at, step, mean, beta)
        return Estimate(
            batch=batch,
            before=parts_of(staged),
            log_mass=log_mass,
            lam=lam,
            lam_past=lam_past,
            step=step,
            lam_log_s=lam_log_s,
            weights=point.weights(step.log_s),
            objective=self._objective(lam_log_s, lam),
            mean=mean,
            mean_old=mean_old,
        )

    def observe(self, batch: Batch, *, staged: Estimate | None = None) -> Estimate:
        """A part of the very first batch, while lam_1 waits for the rest of it: samples weigh the same."""
        log_weight = torch.zeros_like(batch.losses) if batch.log_weight is None else batch.log_weight
        log_q = log_weight - batch.log_mass
        rho, lam0, _, mu, _ = self.limits
        lam = solve_lam(batch.losses, log_q, rho, lam0, mu=mu)
        value, _, _ = value_at(batch.losses, batch.losses, log_q, lam, lam0)
        return Estimate(
            batch=batch,
            before=parts_of(staged),
            log_mass=batch.log_mass,
            lam=lam,
            lam_past=lam,
            step=Advance(0.0, 0.0),
            lam_log_s=lam,
            weights=torch.exp(log_q),
            objective=scalar(value),
            calibrating=True,
        )

    def _soft_max(self, at: Reading, step: Advance, mean: Scalar | None, beta: float) -> Scalar:
        """lam log s; the mean loss where lam is infinite."""
        if self.plain:
            assert mean is not None
            if not self.started:
                return mean
            return where(step.log_mean > -math.inf, at.lam_log_s + beta * (mean - at.lam_log_s), at.lam_log_s)
        lam_log_s = at.lam * step.log_s
        if self.limits.loss_bound is not None and self.tracker.two_points:
            lam_log_s = clamp(lam_log_s, 0.0, self.limits.loss_bound)  # STORM's s may leave the range of the truth.
        return lam_log_s

    def _objective(self, lam_log_s: Scalar, lam: Scalar) -> Scalar:
        """lam log s + (lam - lam0) rho."""
        return lam_log_s if self.plain else lam_log_s + (lam - self.limits.lam0) * self.limits.rho

    # -- committing -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def commit(self, estimate: Estimate, lr: Scalar | None = None, only_if: Tensor | None = None) -> None:
        """Move s and the recent losses, then lam; where `only_if` or the batch's own flag is false, nothing moves."""
        at = self.reading()
        pushed = window = self.window.pushed(*joined_parts(parts_of(estimate)))
        ceiling = at.ceiling
        if self.trim:
            ceiling = window.quantile(self.trim)
            window = window.without(ceiling)
        extra: list[tuple[Tensor, list[Scalar]]] = []
        lam_log_s_max: Scalar = math.inf
        if estimate.calibrating:
            _, lam0, _, mu, _ = self.limits
            rho = attainable(self.limits.rho, window.effective_size())
            solved = self.temperature.initial is None and not self.plain
            lam = lam_next = self.limits.clamp(window.solve(rho, lam0, mu)) if solved else at.lam
            lam_log_s = window.mean() if self.plain else lam * window.log_mean(lam)
        else:
            lam, lam_log_s = estimate.lam, estimate.lam_log_s
            lam_next, lam_log_s_max, extra = self.temperature.advance(self._moved(estimate, window, lr), self.limits)
        if self.temperature.ceiling is not None and not self.trim and not self.plain:
            ceiling = window.top() + self.temperature.ceiling * lam_next
        extra.append((self.scalars, [lam_next, lam, lam_log_s, ceiling, lam_log_s_max]))
        new = [(self.recent, pushed.rows), *((buffer, vector(value, buffer)) for buffer, value in extra)]
        if estimate.step.reset is not None:
            new.append((self.resets, self.resets + estimate.step.reset))
        self.store(new, estimate.batch, only_if)
        if host_reads(self.recent):
            self.plateau.step(self.window)

    def _moved(self, estimate: Estimate, window: Window, lr: Scalar | None) -> Moved:
        return Moved(
            estimate.lam,
            estimate.lam_past,
            estimate.step,
            estimate.lam_log_s,
            estimate.mean,
            estimate.mean_old,
            window,
            self.tracker,
            lr,
        )

    # -- monitoring -----------------------------------------------------------------------------------------------

    def monitor(self) -> tuple[Tensor, Tensor]:
        """KL and effective sample size (as a share of the samples) of the worst case on the recent losses, NaN before
        the first."""
        if not self.started:
            return torch.full((2,), math.nan, dtype=self.dtype).unbind()  # type: ignore[return-value]
        now = self.reading()
        window = self.window.without(now.ceiling) if self.trim else self.window
        at, _ = window.tilt(now.lam, now.lam_log_s)
        q = torch.softmax(window.log_weight, 0)
        return vector([maximum(at.kl, 0.0)], q)[0], (q * q).sum() / (at.weights * at.weights).sum()


def _settle(module: nn.Module, _: object) -> None:
    """After loading: see whether there is a past, and bring its lam into the range of this object's settings."""
    assert isinstance(module, RobustState)
    if module.scalars.is_meta:
        return  # torch has warned that nothing was loaded
    module.started = not math.isnan(module.scalars[2])
    if not module.started:
        module.scalars[:2] = module._lam_at_start()
    module.scalars[0].clamp_(module.limits.lam0, module.limits.lam_max)
