"""A batch of per-sample losses: checked, in float64, detached, with the log of its base weights."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from scdro.distributed.ranks import Joined, Share
from scdro.errors import LossError, NonFiniteLossError
from scdro.reading import LARGEST, as_weights, check_shape, check_weights
from scdro.scalar import Scalar, exp, host_reads, log, maximum, scalar

__all__ = ["Batch", "Point", "checked", "joined_parts", "read_local"]


class Batch(NamedTuple):
    """`log_weight` is None where all weigh the same; `finite` is None where the batch may be used for certain, and
    else a flag, not yet read, that says whether it may. It is the batch of all processes, and `share` the part that is
    this one's. `labels` are integers of the samples: positions or groups."""

    losses: Tensor
    log_weight: Tensor | None
    log_mass: Scalar
    finite: Tensor | None
    labels: Tensor | None = None
    share: Share | None = None

    def own(self, joined: Tensor) -> Tensor:
        """The part of a vector over the batch that is this process's."""
        return joined if self.share is None else self.share.of(joined)

    def own_weights(self, weights: Tensor) -> Tensor:
        """Weights of this process's losses: averaged over the processes, their gradients are the batch's."""
        return weights if self.share is None else self.share.of(weights) * self.share.ranks


class Point(NamedTuple):
    """A batch at one temperature: terms q exp(l/lam) over exp(top), and the log of their sum, mean exp(l/lam)."""

    terms: Tensor
    top: Scalar
    log_mean: Scalar

    @classmethod
    def of(cls, joint: Tensor, log_mass: Scalar) -> Point:
        """`joint` is l/lam, with log weights that sum to exp(log_mass), and -inf where a sample is left out."""
        top = maximum(scalar(joint.max()), -1e300)
        terms = torch.exp(joint - top)
        return cls(terms, top - log_mass, top - log_mass + log(scalar(terms.sum())))

    def weights(self, log_s: Scalar) -> Tensor:
        """q exp(l/lam)/s."""
        return self.terms * exp(self.top - log_s)

    @property
    def own_weights(self) -> Tensor:
        """softmax(l/lam) over the batch: sums to one, or is all zero where everything was trimmed away."""
        return self.weights(maximum(self.log_mean, -1e300))

    def mean(self, losses: Tensor) -> Scalar:
        """The mean loss under the batch's own weights."""
        return scalar(torch.dot(self.own_weights, losses))


def read_local(
    losses: Tensor, sample_weight: Tensor | None, mask: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Losses in `dtype`, and the log of their base weights."""
    values = losses.detach().to(dtype)
    log_weight = _log_weight(values, sample_weight, mask)
    if log_weight is not None:
        values = torch.where(log_weight > -math.inf, values, 0.0)
    return values, log_weight


def joined_parts(parts: tuple[Batch, ...]) -> tuple[Tensor, Tensor | None]:
    """Losses and log weights of all parts of a batch."""
    if len(parts) == 1:
        return parts[0].losses, parts[0].log_weight
    losses = torch.cat([part.losses for part in parts])
    if all(part.log_weight is None for part in parts):
        return losses, None
    weights = [torch.zeros_like(part.losses) if part.log_weight is None else part.log_weight for part in parts]
    return losses, torch.cat(weights)


def checked(joined: Joined, *, loss_bound: float | None, skip_nonfinite: bool) -> Batch:
    """A batch that is fit for use."""
    losses, log_weight, labels, share = joined
    log_mass = _log_count(losses)
    if log_weight is not None:
        log_mass = scalar(torch.logsumexp(log_weight, 0))
        _require(log_mass > -math.inf, LossError, "expected sample weights with a positive sum, got none above zero")
    return Batch(losses, log_weight, log_mass, _check_values(losses, loss_bound, skip_nonfinite), labels, share)


def _log_count(losses: Tensor) -> Scalar:
    if not torch.compiler.is_compiling():
        return math.log(len(losses))
    return torch.log(torch.full((), len(losses), dtype=losses.dtype, device=losses.device))  # one graph for all sizes


def check_losses(losses: Tensor, may_be_empty: bool = False, second: object = None) -> None:
    if not isinstance(losses, Tensor):
        raise LossError(f"expected a tensor with one loss per sample, got {type(losses).__name__}")
    check_shape(losses, may_be_empty, second)
    if not losses.is_floating_point():
        raise LossError(f"expected floating-point losses, got {losses.dtype}")
    if losses.layout != torch.strided:
        raise LossError("expected a dense vector of losses, got a sparse one; call to_dense()")


def _log_weight(values: Tensor, sample_weight: Tensor | None, mask: Tensor | None) -> Tensor | None:
    log_weight = None
    if sample_weight is not None:
        weight = as_weights(sample_weight, values.device, values.dtype)
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


def _check_values(values: Tensor, bound: float | None, skip_nonfinite: bool) -> Tensor | None:
    size = torch.dot(values, values)
    if not skip_nonfinite and bound is None and host_reads(size) and size.item() < LARGEST**2:
        return None
    finite = size < LARGEST**2
    if not skip_nonfinite:
        _require(
            finite,
            NonFiniteLossError,
            "expected finite losses, got NaN or infinity (or a size beyond 1e100); lower the learning rate, look for "
            "overflow in the model, or pass skip_nonfinite=True to leave such batches out",
        )
    if bound is not None:
        low, high = torch.aminmax(values)
        _require(
            ((low >= 0) & (high <= bound)) | ~finite,
            LossError,
            f"expected losses in [0, loss_bound] = [0, {bound}], got one outside; raise loss_bound or omit it",
        )
    return finite if skip_nonfinite else None


def _require(condition: Tensor | bool, error: type[LossError], message: str) -> None:
    """Raise on the host where reading a flag is free; on an accelerator, or in a compiled graph, assert there."""
    if isinstance(condition, Tensor) and not host_reads(condition):
        torch._assert_async(condition, message)
    elif not bool(condition):
        raise error(message)
