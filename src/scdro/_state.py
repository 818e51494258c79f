"""The state of a KL-constrained method, and the life of a batch in it.

The state is five numbers (`Numbers`) and the recent losses (`Window`), all in buffers. A batch
passes through three functions, of which the first two change nothing:

    batch = state.read(losses)            checked, in float64, with the logs of its base weights q
    step  = state.estimate(batch, beta)   lam_t, log s_t, and each sample's weight exp(l/lam_t) q/s_t
    state.commit(step, batch)             writes s_t and the recent losses, then lam_{t+1}

So whoever finds a bad gradient between the second and the third leaves no trace by stopping there,
and the parts of an accumulated batch are estimated one after the other and committed together.

In formulas, for the default temperature (ghat is the mean of exp(l/lam_t) under q):

    log s_{t-1} = (lam log s)_{t-1} / lam_t                          estimate: s at the new lam
    log s_t     = log( (1-r) s_{t-1} + r ghat )                      Algorithm 1, line 6
    p_j         = q_j exp(l_j/lam_t)/s_t                             weights of the gradients
    F           = lam_t log s_t + (lam_t - lam0) rho                 the value
    log lam_{t+1} = log lam_t + Newton step on KL = rho              commit: on the recent losses

How s and lam move is the business of a tracker and a temperature (`scdro.temperature`). The paper's
own update keeps more; it does so in a state of its own, `scdro.printed.PrintedState`.

`MethodState` is the part that methods without lam share (ERM, FastDRO, GroupDRO, ...): reading a
batch on one or several processes, skipping bad ones, and storing. `RobustState` adds lam and s.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from scdro._kl import (
    attainable,
    effective_share,
    mass_and_size,
    solve_lam,
    trimmed_log_weights,
    value_at,
)
from scdro._plateau import CHECK_EVERY, Collapse, Moment
from scdro._scalar import (
    Scalar,
    Vector,
    as_tensor,
    clamp,
    dot,
    exp,
    host_reads,
    log,
    logaddexp,
    masked,
    maximum,
    minimum,
    on_host,
    pinned,
    quietly,
    scalar,
    scalar_dtype,
    unpacked,
    vector,
    where,
)
from scdro._validation import (
    LARGEST_LOSS,
    check_beta,
    check_flag,
    check_losses,
    check_mass,
    check_number,
    check_optional,
    check_radius,
    check_trim,
    check_values,
    check_whole,
    log_weights,
)
from scdro.distributed import ALONE, Group, OwnPart, Ranks
from scdro.errors import CheckpointError, LossError
from scdro.temperature import Change, LamEquation, Step, Temperature, Tracker, Window, default_size

__all__ = [
    "Batch",
    "MethodState",
    "RobustState",
    "TiltedBatch",
    "check_fits",
    "state_for",
]


_UNBOUNDED: Scalar = math.inf
_LOG = logging.getLogger(__name__)


class Batch(NamedTuple):
    """A checked batch of losses, joined over all processes, in float64 and without a gradient.

    In the shapes, b is the number of losses of all processes together.
    """

    losses: Tensor  # (b,)
    log_weight: Tensor | None  # (b,) logs of the base weights; None if all are equal
    log_mass: Scalar  # log of the sum of the weights
    log_squares: Scalar  # log of the sum of their squares: 2 log_mass - log_squares is log(samples)
    finite: Tensor | None  # a flag not read yet; None if the losses are known to be finite
    ids: Tensor | None = None  # (b,) integers: each sample's position in the data, or its group
    own_rows: OwnPart | None = None  # which of the losses are this process's; None for all of them

    def own(self, joined: Tensor) -> Tensor:
        """This process's part of a vector over the whole batch."""
        return joined if self.own_rows is None else self.own_rows.of(joined)

    def own_weights(self, weights: Tensor) -> Tensor:
        """Weights of this process's losses, (own,), from those of all, (b,).

        They are scaled by the number of processes, so that the gradients, averaged over the
        processes as DDP does, are those of the whole batch.
        """
        return weights if self.own_rows is None else self.own_rows.of(weights) * self.own_rows.ranks


class TiltedBatch(NamedTuple):
    """A batch at one temperature, ready to be weighted once s is known.

    The weight of sample j is terms_j exp(top - log s). The largest term is one, so nothing
    overflows before s, which may be as large, is divided out.

    Not `_kl.tilt`, which divides by the batch's own sum: here the running estimate s is divided out
    instead, and it is known only after the tracker has seen log_mean.
    """

    terms: Vector  # (b,) q exp(l/lam)/exp(top), q normalised; 0 for samples left out
    top: Scalar  # log of the largest q exp(l/lam)
    log_mean: Scalar  # A = log ghat, the log of the mean of exp(l/lam) under q

    @classmethod
    def of(cls, joint: Vector, log_mass: Scalar) -> TiltedBatch:
        """From l/lam plus the log weights, (b,), -inf for samples left out.

        `log_mass` is the log of the sum of the weights. A batch that was trimmed away
        entirely has log_mean -inf.
        """
        if isinstance(joint, Tensor):
            top = maximum(scalar(joint.max()), -1e300)
            terms: Vector = torch.exp(joint - top)
            total = scalar(terms.sum())
        else:
            top = maximum(np.maximum.reduce(joint).item(), -1e300)
            terms = np.exp(joint - top)
            total = np.add.reduce(terms).item()
        return cls(terms, top - log_mass, top - log_mass + log(total))

    def weights(self, log_s: Scalar) -> Tensor:
        """q exp(l/lam)/s, (b,): they sum to ghat/s, which is near one in the long run."""
        return as_tensor(self.terms * exp(self.top - log_s))

    @property
    def softmax(self) -> Tensor:
        """softmax(l/lam) over the batch. Sums to one, or is all zero if everything was trimmed away."""
        return self.weights(maximum(self.log_mean, -1e300))

    def mean(self, losses: Tensor) -> Scalar:
        """The mean loss under softmax(l/lam)."""
        return dot(on_host(self.softmax), on_host(losses))


class Numbers(NamedTuple):
    """The scalars of a `RobustState`, in the order of its buffer `scalars`.

    lam log s is kept and not s: as lam changes from batch to batch it hardly moves.
    """

    lam: Scalar  # for the next batch
    lam_past: Scalar  # of the last batch
    lam_log_s: Scalar  # lam_past log s; NaN before the first batch
    cutoff: Scalar = math.inf  # losses above it are clipped to it, or with `trim` left out
    lam_log_s_max: Scalar = math.inf  # lam log s is cut off here at the next batch


def _join_parts(parts: tuple[Batch, ...]) -> tuple[Tensor, Tensor | None]:
    """Losses and log weights of all parts of a batch, (b,) each; None for equal weights."""
    if len(parts) == 1:
        return parts[0].losses, parts[0].log_weight
    losses = torch.cat([part.losses for part in parts])
    if all(part.log_weight is None for part in parts):
        return losses, None
    weights = [
        torch.zeros_like(part.losses) if part.log_weight is None else part.log_weight
        for part in parts
    ]
    return losses, torch.cat(weights)


def _log_count(losses: Tensor) -> Scalar:
    """The log of the number of losses, which in a compiled graph may vary."""
    if not torch.compiler.is_compiling():
        return math.log(len(losses))
    # One graph for all sizes.
    return torch.log(torch.full((), len(losses), dtype=losses.dtype, device=losses.device))


# -- the state of any method -----------------------------------------------------------------------


class MethodState(nn.Module):
    """The state of a method, stored in buffers that move to the model's device but keep their dtype.

    `reset_parameters` initialises them. It also runs when torch leaves buffers uninitialised, that
    is when they leave the meta device by `to_empty` or with the first losses.
    """

    skipped: Tensor  # number of batches skipped because of NaN or infinite losses

    def __init__(
        self,
        *,
        loss_bound: float | None = None,
        skip_nonfinite: bool = False,
        process_group: Group = None,
    ) -> None:
        super().__init__()
        self.ranks = Ranks(process_group)
        check_optional("loss_bound", loss_bound, "> 0", "an upper bound on every loss")
        check_flag("skip_nonfinite", skip_nonfinite)
        self.loss_bound, self.skip_nonfinite = loss_bound, bool(skip_nonfinite)
        # Whether a batch has been committed. A Python flag, so that choosing the first batch's code
        # path does not wait for the device.
        self.started = False
        self.register_buffer("skipped", torch.zeros(1, dtype=torch.int64))
        self.register_load_state_dict_pre_hook(_before_loading)  # type: ignore[no-untyped-call]

    def reset_parameters(self) -> None:
        """Reset the state to that of a new object."""
        self.started = False
        self.skipped.zero_()

    @property
    def dtype(self) -> torch.dtype:
        """float64 if the device supports it, else float32."""
        return scalar_dtype(self.skipped.device)

    def made_with(self) -> str:
        """The settings that determine the shapes of the state, for the error about a checkpoint that does not fit."""
        return "this object"

    def check_meaning(self, came: dict[str, Tensor]) -> None:
        """Raise if a state of the right shapes was made with settings that give its numbers another meaning."""

    def read(
        self,
        losses: Tensor,
        sample_weight: Tensor | None = None,
        mask: Tensor | None = None,
        *,
        read_ids: Callable[[], Tensor] | None = None,
        alone: bool = False,
        if_detached: str = "",
    ) -> Batch:
        """Check a batch of losses, convert it to the log domain and join it over the processes.

        Errors are raised before anything changes, and on all processes: one that finds an error
        tells the others, which wait for its losses (`Ranks.joining`).

        Args:
            losses: (own,), this process's losses in any floating dtype.
            sample_weight: (own,) base weights >= 0.
            mask: (own,) True for losses that count.
            read_ids: checks and returns one integer per sample. A function, so that its errors
                reach the other processes too.
            alone: do not join; for evaluation, where processes may have different numbers of
                batches.
            if_detached: the error message for losses that do not require grad; without it they
                need not.
        """
        if sample_weight is None and mask is None and read_ids is None:
            batch = self._read_usual(losses, alone, bool(if_detached))
            if batch is not None:
                return batch
        ranks = ALONE if alone else self.ranks
        several, here = ranks.size > 1, self.skipped.device
        # 1. This process's losses: what is wrong with them is wrong here only.
        with ranks.joining(getattr(losses, "device", here)):
            check_losses(losses, several, sample_weight)
            if if_detached and not losses.requires_grad:
                raise LossError(if_detached)
            if here != losses.device:
                move = self.to_empty if self.skipped.is_meta else self.to
                move(device=losses.device)
            values = losses.detach().to(scalar_dtype(losses.device))
            # Of one process's part all weights may be zero; of the whole batch not (3.).
            log_weight = log_weights(values, sample_weight, mask, may_be_zero=True)
            if log_weight is not None:  # a loss of weight zero may have any value
                values = torch.where(log_weight > -math.inf, values, 0.0)
            own = None if read_ids is None else read_ids().to(losses.device)
        # 2. All processes' losses; a hash of the state goes with them, to notice different states.
        mark = self._hash_state() if several else None
        values, log_weight, joined_ids, own_rows = ranks.join(values, log_weight, own, mark)
        # 3. From here on all processes check and compute the same.
        log_mass = log_squares = _log_count(values)
        if log_weight is not None:
            log_mass, log_squares = (
                scalar(torch.logsumexp(power * log_weight, 0)) for power in (1.0, 2.0)
            )
            check_mass(log_mass)
        finite = check_values(values, self.loss_bound, self.skip_nonfinite)
        return Batch(values, log_weight, log_mass, log_squares, finite, joined_ids, own_rows)

    def _read_usual(self, losses: Tensor, alone: bool, needs_grad: bool) -> Batch | None:
        """The usual batch, on the path of every step: a vector of finite losses on the host, for one process.

        None for anything else, which `read` checks thing by thing. One sum of squares tells whether
        any loss is NaN, infinite or too large.
        """
        if (
            type(losses) is not Tensor
            or losses.ndim != 1
            or not host_reads(losses)
            or not losses.is_floating_point()
            or losses.layout is not torch.strided
            or (needs_grad and not losses.requires_grad)
            or not self.skipped.is_cpu
            or is_functorch_wrapped_tensor(losses)  # inside torch.func it has no memory to read
            or self.loss_bound is not None
            or self.skip_nonfinite
            or not (alone or not self.ranks.may_have_others())
        ):
            return None
        values = losses.detach().to(torch.float64)
        on_the_host = on_host(values)
        with np.errstate(over="ignore"):  # squares that overflow are too large as well
            small = dot(on_the_host, on_the_host) < LARGEST_LOSS**2
        if not len(values) > 0.0 or not small:
            return None  # empty, or NaN, infinite or too large
        log_count = math.log(len(values))
        return Batch(values, None, log_count, log_count, None)

    def _hash_state(self) -> Tensor | None:
        """A hash of the state. If it differs between processes, their states differ.

        It has 53 bits, so that it can travel in a float64 beside the losses.
        """
        numbers = [b.detach().reshape(-1) for b in self.buffers() if b.dtype == torch.float64]
        if not numbers:
            return None
        bits = torch.cat(numbers).view(torch.int64)
        # Overflow wraps around.
        odd = torch.arange(1, 2 * len(bits), 2, device=bits.device) * 0x9E3779B97F4A7C1
        return ((bits ^ (bits >> 29)) * odd).sum() >> 11  # 53 bits, exact in float64

    def count_skipped(self, bad: Tensor | bool) -> None:
        """Add one to `skipped` if the flag is true; on an accelerator without reading it."""
        self.skipped += bad
        if bad is True:
            _LOG.info("skipped a batch with NaN or infinite losses, number %d", int(self.skipped))

    def store(
        self, new: list[tuple[Tensor, Tensor]], batch: Batch, only_if: Tensor | None = None
    ) -> None:
        """Write new values into buffers, unless `only_if` or the batch's `finite` flag is false."""
        # None: write, without a condition to be computed.
        go = _join_conditions(only_if, batch.finite)
        self._start(go)
        for buffer, value in (
            new if go is None else [(b, torch.where(go, value, b)) for b, value in new]
        ):
            buffer.copy_(value)
        if batch.finite is not None:
            self.count_skipped(~batch.finite)

    def _start(self, go: Tensor | None) -> None:
        """Set `started`, unless this first step is skipped."""
        if self.started:
            return
        if go is None:
            self.started = True
        elif torch.compiler.is_compiling():
            torch._assert_async(go, "the first batch of a compiled loss must be finite")
            self.started = True
        else:
            self.started = bool(go)  # Waits for the device, but only until the first good batch.

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move the buffers as `module.to()` does, but keep float64 for what is exponentiated.

        Called by torch for `to`, `cuda`, `half`, `to_empty`, ... A model in half precision must not
        take log s along.
        """

        def move(tensor: Tensor) -> Tensor:
            """What torch does to a buffer, without its change of the dtype."""
            moved = fn(tensor)
            if moved is tensor or moved.is_meta or tensor.is_meta:
                return moved
            dtype = scalar_dtype(moved.device) if tensor.is_floating_point() else tensor.dtype
            # Not `moved`, which to_empty() leaves uninitialised.
            return tensor.to(moved.device, dtype)

        was_meta = self.skipped.is_meta
        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        if was_meta and not self.skipped.is_meta:
            self.reset_parameters()
        return self


def _before_loading(
    module: MethodState, state_dict: dict[str, Any], prefix: str, *_: object
) -> None:
    """Check that a state fits before torch loads any of it: a hook."""
    came = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
    if came:
        check_fits(module, came)


def check_fits(module: MethodState, came: dict[str, Any]) -> None:
    """Raise if a state does not fit, before any of it is loaded."""
    shapes = {k: getattr(v, "shape", None) for k, v in came.items()}
    if shapes != {k: v.shape for k, v in module.state_dict().items()}:
        raise CheckpointError(
            f"expected a state made with {module.made_with()}, got one made with other settings; "
            "construct the object with the same arguments"
        )
    module.check_meaning(came)


def _join_conditions(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Both conditions, where None is one that always holds."""
    return b if a is None else a if b is None else a & b


# -- lam, s and the recent losses ------------------------------------------------------------------


class RobustState(MethodState):
    """lam, lam log s, the recent losses and the counters. All are buffers, so all are in `state_dict`.

    The scalars share one vector because torch.compile (2.13) loses writes to buffers that are 0-d
    float64 tensors.
    """

    scalars: Tensor  # (5,) the fields of `Numbers`
    resets: Tensor  # (1,) number of times STORM was reset
    recent: Tensor  # (2, window) losses and log weights of the last batches, see `Window`
    kind: Tensor  # (4,) the settings that give the other numbers their meaning; see `_encode_kind`
    # With rho = 0 the worst case is the plain mean: lam = inf, all weights are equal, and the mean
    # loss is stored in place of lam log s.
    has_plain_case: ClassVar[bool] = True

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
        super().__init__(
            loss_bound=loss_bound, skip_nonfinite=skip_nonfinite, process_group=process_group
        )
        check_radius(rho, lam0)
        check_trim(trim)
        check_optional("initial", temperature.initial, f">= lam0 = {lam0}", "the first temperature")
        if window is not None:
            check_whole("window", window, meaning="the number of recent losses")
        check_number("mu", mu, ">= 0")
        # NumPy's numbers are slower, and float32 stays float32.
        rho, lam0, mu = float(rho), float(lam0), float(mu)
        loss_bound = None if loss_bound is None else float(loss_bound)
        self.trim = float(trim)
        self.temperature, self.tracker = temperature, tracker
        lam_max = math.inf if loss_bound is None or rho == 0 else lam0 + loss_bound / rho
        self.equation = LamEquation(rho, lam0, lam_max, mu, loss_bound)
        self.plain = rho == 0.0 and self.has_plain_case
        dtype = scalar_dtype(torch.get_default_device())
        self.register_buffer("scalars", torch.empty(len(Numbers._fields), dtype=dtype))
        self.register_buffer("resets", torch.empty(1, dtype=torch.int64))
        self.register_buffer("recent", torch.empty(2, window or default_size(rho), dtype=dtype))
        self.register_buffer("kind", torch.empty(4, dtype=torch.int64))
        self.reset_parameters()
        self.register_load_state_dict_post_hook(_after_loading)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """lam, s, the window and the counters of a new object."""
        super().reset_parameters()
        start = self._lam_at_start()
        first = Numbers(start, start, math.nan)
        self.scalars.copy_(torch.tensor(first, dtype=self.scalars.dtype, device="cpu"))
        self.resets.zero_()
        # Not in the state_dict: a resumed run looks for a collapse from its own start.
        self._collapse, self._commits = Collapse(), 0
        self.window.clear_()
        self.kind.copy_(torch.tensor(self._encode_kind(), device="cpu"))

    def _lam_at_start(self) -> float:
        """lam before the first batch: given, or NaN for "to be found", or infinite at rho = 0."""
        initial = self.temperature.initial
        return math.inf if self.plain else math.nan if initial is None else initial

    def _encode_kind(self) -> list[int]:
        """Plain or not, trimmed or not, and hashes of the names of temperature and tracker."""
        names = (type(part).__name__ for part in (self.temperature, self.tracker))
        return [int(self.plain), int(self.trim > 0.0), *(crc32(name.encode()) for name in names)]

    def check_meaning(self, came: dict[str, Tensor]) -> None:
        """Compare the settings that give the state its meaning; all others may change on resume.

        Only with rho = 0 is lam = inf and the mean loss stored as lam log s. s depends on the
        losses that `trim` keeps, and the buffers for lam depend on the temperature and the tracker.
        """
        expected = [
            "rho = 0" if self.plain else "rho > 0",
            "trim > 0" if self.trim else "trim = 0",
            type(self.temperature).__name__,
            type(self.tracker).__name__,
        ]
        others = ["rho > 0" if self.plain else "rho = 0", "trim = 0" if self.trim else "trim > 0"]
        others += ["another temperature", "another tracker"]
        for own, theirs, name, other in zip(
            self._encode_kind(), came["kind"].tolist(), expected, others, strict=True
        ):
            if own != theirs:
                raise CheckpointError(
                    f"expected a state made with {name}, got one made with {other}; construct the"
                    " object with the same arguments, or start without this state"
                )

    def made_with(self) -> str:
        return f"a window of {self.recent.shape[1]} losses and {type(self.temperature).__name__}"

    def numbers(self) -> Numbers:
        """The five scalars, as floats where that is free."""
        return Numbers(
            *unpacked(pinned(self.scalars) if torch.compiler.is_compiling() else self.scalars)
        )

    @property
    def window(self) -> Window:
        """The recent losses, as a view of the buffer."""
        return Window(on_host(self.recent))

    @property
    def lam(self) -> Tensor:
        """The temperature for the next batch."""
        return self.scalars[0].clone()

    @property
    def log_s(self) -> Tensor:
        """log s, at the temperature of the last batch."""
        _, lam_past, lam_log_s, *_ = self.scalars.unbind()
        return lam_log_s / lam_past

    @property
    def objective(self) -> Tensor:
        """The running robust objective as of the last batch."""
        past = self.numbers()
        return vector([self._objective(past.lam_log_s, past.lam_past)], self.scalars)[0]

    @property
    def needs_whole_batch(self) -> bool:
        """Whether the next batch is the first and lam_1 or the cutoff depends on all of it."""
        return not self.started and (
            bool(self.trim) or (self.temperature.initial is None and not self.plain)
        )

    # -- estimating --------------------------------------------------------------------------------

    def _find_start(self, batch: Batch, lam: Scalar, cutoff: Scalar) -> tuple[Scalar, Scalar]:
        """lam_1 and the cutoff for trimming, from the first batch.

        An initial temperature is used if given. Else lam_1 is the root of KL(p_lam) = rho on this
        batch, with a rho that so few samples can reach.
        """
        log_weight = (
            torch.zeros_like(batch.losses) if batch.log_weight is None else batch.log_weight
        )
        if self.trim:
            kept = trimmed_log_weights(batch.losses, log_weight, self.trim)
            top = torch.where(kept > -math.inf, batch.losses, -math.inf).amax()
            log_weight = torch.where(batch.losses > top, -math.inf, log_weight)
            cutoff = scalar(top)
        if self.temperature.initial is not None or self.plain:
            return lam, cutoff
        rho = attainable(self.equation.rho, mass_and_size(log_weight)[1])
        solved = solve_lam(batch.losses, log_weight, rho, self.equation.lam0, mu=self.equation.mu)
        return self.equation.clamp(solved), cutoff

    def _tilt_batch(self, batch: Batch, lam: Scalar, cutoff: Scalar) -> TiltedBatch:
        """The batch at temperature lam.

        Losses above the cutoff are clipped to it (`ceiling`), or with `trim` left out; q is then
        the batch's weights divided by 1 - trim, so that ghat is the mean over what trimming keeps
        on average.
        """
        losses = on_host(batch.losses)
        clips = self.temperature.ceiling is not None and not self.trim
        joint = (minimum(losses, cutoff) if clips else losses) / lam
        if batch.log_weight is not None:
            joint = joint + on_host(batch.log_weight)
        if not self.trim:
            return TiltedBatch.of(joint, batch.log_mass)
        return TiltedBatch.of(
            masked(joint, losses > cutoff, -math.inf), batch.log_mass + math.log1p(-self.trim)
        )

    @quietly
    def tilt_previous(self, batch: Batch) -> TiltedBatch:
        """The batch, evaluated at the previous parameters, at the temperature used for past estimates."""
        now = self.numbers()
        return self._tilt_batch(batch, self.lam_of_past(now.lam), now.cutoff)

    @quietly
    def estimate(
        self,
        batch: Batch,
        beta: float,
        *,
        old: tuple[Batch, TiltedBatch] | None = None,
        staged: Step | None = None,
    ) -> Step:
        """s_t and the weights of a batch, or of its next part; changes nothing.

        Args:
            batch: the losses, from `read`.
            beta: the weight of the batch in the running estimates, in (0, 1].
            old: for two-point trackers, the same batch at the previous point and its tilt there.
            staged: for gradient accumulation, the step of the parts before. The result is then the
                step of all parts, as if they were one batch, except for `weights`, which are the
                last part's.
        """
        if type(beta) is not float or not 0.0 < beta <= 1.0:  # on the path of every step
            check_beta(beta)
            beta = float(beta)
        # 1. The batch at lam_t: exp(l/lam_t), and A = log ghat.
        lam, _, lam_log_s, cutoff, lam_log_s_max = self.numbers()
        if not self.started and staged is None:
            lam, cutoff = self._find_start(batch, lam, cutoff)
        point = self._tilt_batch(batch, lam, cutoff)
        log_mean, log_mass, log_squares = point.log_mean, batch.log_mass, batch.log_squares
        if staged is not None:  # the sums of exp(l/lam) q, q and q^2 over all parts so far
            log_sum = logaddexp(staged.log_mean + staged.log_mass, log_mean + log_mass)
            log_mass = logaddexp(staged.log_mass, log_mass)
            log_squares = logaddexp(staged.log_squares, log_squares)
            log_mean = log_sum - log_mass
        # 2. s_t, from s_{t-1} read at lam_t. `rate` knows the effective number of samples.
        rate = self.temperature.rate(beta, 2.0 * log_mass - log_squares)
        log_s, change = log_mean, None  # Algorithm 1, line 2: the first s is the batch's own
        if self.started:
            past = minimum(lam_log_s, lam_log_s_max) / self.lam_of_past(lam)
            log_mean_old = None if old is None else old[1].log_mean
            log_s, change = self._advance(past, log_mean, log_mean_old, beta, rate)
        # 3. What is stored and reported: lam log s and the objective.
        mean, mean_old = self._tilted_means(batch, point, old)
        if mean is not None and staged is not None:
            mean = _mean_of_parts(mean, staged, log_mean + log_mass)
        lam_log_s = self._next_lam_log_s(lam, lam_log_s, log_s, log_mean, mean, rate)
        return Step(
            lam,
            log_s,
            lam_log_s,
            self._objective(lam_log_s, lam),
            point.weights(log_s),
            log_mean,
            log_mass,
            log_squares,
            mean,
            mean_old,
            change,
        )

    # What the paper's own update does differently; see `scdro.printed`.

    def lam_of_past(self, lam: Scalar) -> Scalar:
        """The temperature at which the estimates so far are read: the present one, as lam log s is kept."""
        return lam

    def ratio_to_past(self, lam: Scalar) -> Scalar:
        """lam divided by that temperature: gradients estimated then are multiplied by it."""
        return 1.0

    def _advance(
        self, log_s: Scalar, log_mean: Scalar, log_mean_old: Scalar | None, beta: float, rate: Any
    ) -> tuple[Scalar, Change | None]:
        """log s_t and how gradients move with it: the tracker's answer (`Tracker.advance`)."""
        return self.tracker.advance(log_s, log_mean, log_mean_old, beta, rate)

    def _tilted_means(
        self, batch: Batch, point: TiltedBatch, old: tuple[Batch, TiltedBatch] | None
    ) -> tuple[Scalar | None, Scalar | None]:
        """The mean loss under softmax(l/lam), at the current and the previous point, if needed.

        The plain case needs it, whose softmax at lam = inf is uniform, and the printed update.
        """
        return (point.mean(batch.losses) if self.plain else None), None

    def _find_next_lam(
        self, step: Step, window: Window, lr: Scalar | None
    ) -> tuple[Scalar, Scalar, Sequence[tuple[Tensor, Tensor]]]:
        """What the temperature makes of a committed step.

        Args:
            step: of the whole batch.
            window: the recent losses with this batch, without the trimmed ones.
            lr: the optimizer's step size, for the printed update.

        Returns:
            lam_{t+1}; the upper bound of lam log s there; other buffers with their new values.
        """
        return *self.temperature.next_lam(step, window, self.equation), ()

    def observe(self, batch: Batch) -> Step:
        """A part of the first batch, before lam_1 is known: all samples get the same weight.

        lam_1 depends on all parts, and `commit` finds it. The value is this part's own worst case.
        """
        log_weight = (
            torch.zeros_like(batch.losses) if batch.log_weight is None else batch.log_weight
        )
        log_q = log_weight - batch.log_mass
        lam = solve_lam(
            batch.losses, log_q, self.equation.rho, self.equation.lam0, mu=self.equation.mu
        )
        value, _, _ = value_at(batch.losses, batch.losses, log_q, lam, self.equation.lam0)
        return Step(
            lam=lam,
            log_s=0.0,  # s = 1: the weights are q
            lam_log_s=math.nan,  # not known yet
            objective=scalar(value),
            weights=torch.exp(log_q),
            log_mean=0.0,
            log_mass=batch.log_mass,
            log_squares=batch.log_squares,
            calibrating=True,
        )

    def _next_lam_log_s(
        self,
        lam: Scalar,
        lam_log_s: Scalar,
        log_s: Scalar,
        log_mean: Scalar,
        mean: Scalar | None,
        rate: Scalar,
    ) -> Scalar:
        """lam log s as it is stored, or the running mean loss if lam is infinite.

        As lam grows, lam log s tends to the mean loss, so both are the same quantity.
        """
        if self.plain:
            assert mean is not None
            if not self.started:
                return mean
            return where(log_mean > -math.inf, lam_log_s + rate * (mean - lam_log_s), lam_log_s)
        if self.equation.loss_bound is not None and self.tracker.two_points:
            # STORM's s may leave the range that the losses allow
            return clamp(lam * log_s, 0.0, self.equation.loss_bound)
        return lam * log_s

    def _objective(self, lam_log_s: Scalar, lam: Scalar) -> Scalar:
        """lam log s + (lam - lam0) rho."""
        return (
            lam_log_s if self.plain else lam_log_s + (lam - self.equation.lam0) * self.equation.rho
        )

    # -- committing --------------------------------------------------------------------------------

    @quietly
    def commit(
        self,
        step: Step,
        *parts: Batch,
        lr: Scalar | None = None,
        only_if: Tensor | None = None,
    ) -> None:
        """Update s and the recent losses from all `parts` of the batch, then lam.

        `lr` is the optimizer's step size, for temperatures that use it. Nothing changes if
        `only_if` or the last part's `finite` flag is false.
        """
        if isinstance(step.lam, Tensor):
            step = step.as_floats()
        # 1. The recent losses, with this batch. `pushed` is stored; `window` is what lam is found
        # on, without the trimmed losses.
        recent = self.recent  # Attributes of a module that are buffers are slow to look up.
        pushed = window = Window(on_host(recent)).push(*_join_parts(parts))
        cutoff, lam_log_s_max = _UNBOUNDED, _UNBOUNDED
        if self.trim:
            cutoff = window.quantile(self.trim)
            window = window.without(cutoff)
        # 2. lam_{t+1}. In the first of several parts lam_t itself was not known yet.
        lam, lam_log_s = step.lam, step.lam_log_s
        more: Sequence[tuple[Tensor, Tensor]] = ()  # other buffers and their new values
        if step.calibrating:
            lam = lam_next = self._find_lam_of_parts(window)
            lam_log_s = window.mean() if self.plain else lam * window.log_mean(lam)
        else:
            lam_next, lam_log_s_max, more = self._find_next_lam(step, window, lr)
        if self.temperature.ceiling is not None and not self.trim and not self.plain:
            cutoff = window.top() + self.temperature.ceiling * lam_next
        # 3. Write everything at once, or nothing.
        after = Numbers(lam_next, lam, lam_log_s, cutoff, lam_log_s_max)
        new = [(recent, as_tensor(pushed.rows)), (self.scalars, vector(after, self.scalars)), *more]
        if step.change is not None and step.change.reset is not None:
            new.append((self.resets, self.resets + step.change.reset))
        self.store(new, parts[-1], only_if)
        # On an accelerator looking would wait for the device; loggers look there.
        if not isinstance(pushed.rows, Tensor):
            self._commits += 1
            if self._commits % CHECK_EVERY == 1:
                self.look_for_collapse(self._commits, sum(len(part.losses) for part in parts))

    def _find_lam_of_parts(self, window: Window) -> Scalar:
        """lam_1, from all parts of the first batch."""
        if self.temperature.initial is not None or self.plain:
            return self.numbers().lam
        rho = attainable(self.equation.rho, window.effective_size())
        return self.equation.clamp(window.solve(rho, self.equation.lam0, self.equation.mu))

    # -- monitoring --------------------------------------------------------------------------------

    @quietly
    def monitor(self) -> tuple[Tensor, Tensor]:
        """KL and effective sample size (as a share) of the worst case on the recent losses.

        NaN before the first batch.
        """
        if not self.started:
            return self.scalars.new_full((2,), math.nan).unbind()  # type: ignore[return-value]
        now = self.numbers()
        window = self.window.without(now.cutoff) if self.trim else self.window
        at, _, _ = window.tilt(now.lam, now.lam_log_s)
        q = torch.softmax(window.log_weight, 0)
        return vector([maximum(at.kl, 0.0)], q)[0], effective_share(as_tensor(at.weights), q)

    def look_for_collapse(self, step: int, batch_size: int | None = None) -> None:
        """Warn if the recent losses show that training has collapsed (`_plateau`). This waits for their device."""
        kl, ess = (float(number) for number in self.monitor())
        rho, lam0, *_ = self.equation
        self._collapse.check(
            Moment(self.window, step, rho, float(self.scalars[0]), lam0, kl, ess, batch_size)
        )


def state_for(
    rho: float, lam0: float, temperature: Temperature, tracker: Tracker, **settings: Any
) -> RobustState:
    """The state that follows a temperature; arguments as for `RobustState`, which is the usual one."""
    made: RobustState = (temperature.state_class or RobustState)(
        rho, lam0, temperature, tracker, **settings
    )
    return made


def _mean_of_parts(mean: Scalar, staged: Step, log_sum: Scalar) -> Scalar:
    """The mean loss over all parts of a batch so far, each weighted by its share of the sum of exp(l/lam)."""
    if staged.mean is None:
        return mean
    share = where(log_sum > -math.inf, exp(staged.log_mean + staged.log_mass - log_sum), 0.0)
    return mean + share * (staged.mean - mean)


def _after_loading(module: nn.Module, _: object) -> None:
    """After loading, set `started` and clamp lam to the range of this object's settings."""
    assert isinstance(module, RobustState)
    if module.scalars.is_meta:
        return  # torch has warned that nothing was loaded
    # With assign=True buffers are the loaded state_dict's own tensors, in its dtype.
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            dtype = scalar_dtype(buffer.device) if buffer.is_floating_point() else buffer.dtype
            setattr(part, name, buffer.to(dtype, copy=True))
    module.started = not math.isnan(Numbers(*module.scalars).lam_log_s)
    if not module.started:
        module.scalars[:2] = module._lam_at_start()
    module.scalars[0].clamp_(module.equation.lam0, module.equation.lam_max)
