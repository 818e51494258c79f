"""One arithmetic for the few numbers of a step: floats where the host may look, 0-d tensors where it may not.

On a CPU a float costs a fiftieth of a 0-d tensor. On an accelerator reading one would make the host wait, and in a
compiled graph it would break the graph: there numbers stay tensors. Unlike `math`, nothing here raises: exp overflows
to inf, log 0 is -inf, and NaN passes through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = [
    "Scalar",
    "clamp",
    "exp",
    "host_reads",
    "log",
    "logaddexp",
    "maximum",
    "minimum",
    "pinned",
    "scalar",
    "scalar_dtype",
    "unpacked",
    "vector",
    "where",
]


Scalar = float | Tensor
Flag = bool | Tensor


def host_reads(tensor: Tensor) -> bool:
    """Whether reading a tensor costs nothing: on a CPU, outside of a compiled graph."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def scalar(tensor: Tensor) -> Scalar:
    """A 0-d tensor as a float, where that is free."""
    return tensor.item() if host_reads(tensor) else tensor


def unpacked(tensor: Tensor) -> Sequence[Scalar]:
    """The entries of a vector."""
    if not host_reads(tensor):
        return tensor.unbind()
    entries: list[float] = tensor.tolist()
    return entries


def vector(entries: Sequence[Scalar], like: Tensor) -> Tensor:
    """Entries as a vector, of the dtype and on the device of `like`."""
    if any(isinstance(entry, Tensor) for entry in entries):
        return torch.stack([torch.as_tensor(entry, dtype=like.dtype, device=like.device) for entry in entries])
    return torch.tensor(entries, dtype=like.dtype, device=like.device)


def exp(x: Scalar) -> Scalar:
    if isinstance(x, Tensor):
        return torch.exp(x)
    return math.exp(x) if x < 709.78 or x != x else math.inf


def log(x: Scalar) -> Scalar:
    if isinstance(x, Tensor):
        return torch.log(x)
    return math.log(x) if x > 0.0 else -math.inf if x == 0.0 else math.nan


def logaddexp(a: Scalar, b: Scalar) -> Scalar:
    """log(exp a + exp b)."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        like = a if isinstance(a, Tensor) else b
        return torch.logaddexp(*(torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in (a, b)))  # type: ignore[union-attr]
    high, low = (a, b) if a >= b else (b, a)
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high


def where(condition: Flag, a: Scalar, b: Scalar) -> Scalar:
    if isinstance(condition, Tensor):
        chosen: Tensor = torch.where(condition, a, b)
        return chosen
    return a if condition else b


def maximum(a: Scalar, b: Scalar) -> Scalar:
    if isinstance(a, Tensor):
        return torch.maximum(a, b) if isinstance(b, Tensor) else a.clamp_min(b)
    return maximum(b, a) if isinstance(b, Tensor) else a if a >= b or a != a else b


def minimum(a: Scalar, b: Scalar) -> Scalar:
    return -maximum(-a, -b)


def clamp(x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    return minimum(maximum(x, low), high)


def scalar_dtype(device: torch.device) -> torch.dtype:
    """float64 for everything that is exponentiated, where the device has it (docs/mathematics.md, "Numerics")."""
    return torch.float32 if device.type == "mps" else torch.float64


@torch.library.custom_op("scdro::pinned", mutates_args=())
def pinned(x: Tensor) -> Tensor:
    """A copy that a compiled backward pass cannot make anew: it would read numbers that the forward pass has since
    overwritten, and give wrong gradients in silence (torch 2.13, inductor)."""
    return x.clone()


@pinned.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)
