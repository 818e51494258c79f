"""Arithmetic for the scalars of a step: floats on the CPU, 0-d tensors on accelerators.

The formulas of a step (log s, lam, the Newton step) are written once, with the functions of this
module. What they compute with depends on where the losses are:

    where             a scalar is       a vector is      because
    CPU               a Python float    a NumPy array    an operation on a float costs a fiftieth of
                                                         one on a 0-d tensor; on 1,000 numbers NumPy
                                                         takes a third of torch's time
    accelerator       a 0-d tensor      a tensor         reading a number makes the host wait
    compiled graph    a 0-d tensor      a tensor         reading a number breaks the graph

Unlike `math`, nothing here raises: exp overflows to inf, log 0 is -inf, and NaN propagates. A bad
batch gives bad numbers, which are checked in one place and never committed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = [
    "Scalar",
    "Vector",
    "as_tensor",
    "clamp",
    "dot",
    "exp",
    "expm1",
    "host_reads",
    "log",
    "logaddexp",
    "masked",
    "maximum",
    "minimum",
    "on_host",
    "one_thread_dot",
    "pinned",
    "quietly",
    "scalar",
    "scalar_dtype",
    "unpacked",
    "vector",
    "where",
]


Array = npt.NDArray[np.float64]
Scalar = float | Tensor  # a 0-d tensor; in `solve_root` also a vector, one entry per problem
Vector = Array | Tensor  # (n,)
Flag = bool | Tensor
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def host_reads(tensor: Tensor) -> bool:
    """Whether the host can read the tensor for free: it is on the CPU, outside a compiled graph."""
    return tensor.is_cpu and not torch.compiler.is_compiling()


def on_host(tensor: Tensor) -> Vector:
    """The tensor as a NumPy array of the same memory if the host can read it, else as it is.

    Writing to the array writes to the tensor.
    """
    return tensor.resolve_neg().numpy() if host_reads(tensor) else tensor


def quietly(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Ignore NumPy's floating-point errors: underflow is expected, and the numbers of a bad batch are never used."""

    # A compiled graph has no NumPy, and cannot contain its context manager.
    @wraps(function)
    def quiet(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        with np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return quiet


def as_tensor(vector: Vector) -> Tensor:
    """The inverse of `on_host`, without a copy."""
    return vector if isinstance(vector, Tensor) else torch.from_numpy(vector)


def scalar(x: Any) -> Scalar:
    """A 0-d tensor or NumPy scalar as a float, where that is free; else the tensor itself."""
    if isinstance(x, Tensor) and not host_reads(x):
        return x
    number: float = x.item()
    return number


def unpacked(tensor: Tensor) -> Sequence[Scalar]:
    """The entries of a vector, as floats where that is free."""
    if not host_reads(tensor):
        return tensor.unbind()
    entries: list[float] = tensor.tolist()
    return entries


def vector(entries: Sequence[Scalar], like: Tensor) -> Tensor:
    """The entries as a vector with the dtype and device of `like`, the inverse of `unpacked`."""
    if host_reads(like):
        if like.dtype == torch.float64 and not any(isinstance(entry, Tensor) for entry in entries):
            # A third of the time of torch.tensor.
            return torch.from_numpy(np.array(entries, dtype=np.float64))
        return torch.tensor(entries, dtype=like.dtype, device=like.device)
    return torch.stack(
        [torch.as_tensor(entry, dtype=like.dtype, device=like.device) for entry in entries]
    )


# -- for vectors and scalars -----------------------------------------------------------------------


@overload
def exp(x: float) -> float: ...
@overload
def exp(x: Tensor) -> Tensor: ...
@overload
def exp(x: Array) -> Array: ...
def exp(x: Scalar | Vector) -> Scalar | Vector:
    """exp x, infinite where it overflows. The condition x != x lets NaN through."""
    if isinstance(x, float):
        return math.exp(x) if x < 709.78 or x != x else math.inf
    return torch.exp(x) if isinstance(x, Tensor) else np.exp(x)


@overload
def maximum(a: float, b: float) -> float: ...
@overload
def maximum(a: Tensor, b: Scalar) -> Tensor: ...
@overload
def maximum(a: float, b: Tensor) -> Tensor: ...
@overload
def maximum(a: Array, b: Scalar) -> Array: ...
def maximum(a: Scalar | Vector, b: Scalar) -> Scalar | Vector:
    """The larger of each pair, as max(a, b); NaN where `a` is NaN."""
    if isinstance(a, float) and isinstance(b, float):
        return a if a >= b or a != a else b
    if isinstance(a, Tensor):
        return torch.maximum(a, b) if isinstance(b, Tensor) else a.clamp_min(b)
    if isinstance(b, Tensor):
        assert isinstance(a, float)
        return b.clamp_min(a)
    return np.maximum(a, b)


@overload
def minimum(a: float, b: float) -> float: ...
@overload
def minimum(a: Tensor, b: Scalar) -> Tensor: ...
@overload
def minimum(a: float, b: Tensor) -> Tensor: ...
@overload
def minimum(a: Array, b: Scalar) -> Array: ...
def minimum(a: Scalar | Vector, b: Scalar) -> Scalar | Vector:
    """The smaller of each pair, as min(a, b); NaN where `a` is NaN."""
    if isinstance(a, float) and isinstance(b, float):
        return a if a <= b or a != a else b
    return np.minimum(a, b) if isinstance(a, np.ndarray) else -maximum(-a, -b)


def clamp(x: Scalar, low: Scalar, high: Scalar) -> Scalar:
    """The number in [low, high] that is nearest to x; `high` if the interval is empty."""
    return minimum(maximum(x, low), high)


def where(condition: Flag, a: Scalar, b: Scalar) -> Scalar:
    """`a` where the condition holds, else `b`. Both are computed, so both must be safe."""
    if isinstance(condition, Tensor):
        chosen: Tensor = torch.where(condition, a, b)
        return chosen
    return a if condition else b


def masked(x: Vector, condition: Any, fill: float) -> Vector:
    """The vector with `fill` where the condition holds."""
    return x.masked_fill(condition, fill) if isinstance(x, Tensor) else np.where(condition, fill, x)


def expm1(x: Vector) -> Vector:
    """exp x - 1, without cancellation for small x."""
    return torch.expm1(x) if isinstance(x, Tensor) else np.expm1(x)


def dot(a: Vector, b: Vector) -> Scalar:
    """On the host, NumPy's pairwise sum: accurate, and the same on every CPU and with any number of threads."""
    if isinstance(a, Tensor):
        assert isinstance(b, Tensor)
        return scalar(torch.dot(a, b))
    return scalar((a * b).sum())


def one_thread_dot(a: Array, b: Array) -> float:
    """sum a b of NumPy vectors, for solvers. BLAS would wake all threads for a vector and wait for the last."""
    return float(np.einsum("n,n->", a, b))


# -- for scalars only ------------------------------------------------------------------------------


def log(x: Scalar) -> Scalar:
    """log x; -inf at 0, NaN below."""
    if isinstance(x, Tensor):
        return torch.log(x)
    return math.log(x) if x > 0.0 else -math.inf if x == 0.0 else math.nan


def logaddexp(a: Scalar, b: Scalar) -> Scalar:
    """log(exp a + exp b), without overflow."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        like: Any = a if isinstance(a, Tensor) else b
        return torch.logaddexp(
            *(torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in (a, b))
        )
    if a != a or b != b:
        return math.nan
    high, low = (a, b) if a >= b else (b, a)
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high


def scalar_dtype(device: torch.device) -> torch.dtype:
    """float64 for everything that is exponentiated, if the device supports it (docs/mathematics.md, "Numerics")."""
    return torch.float32 if device.type == "mps" else torch.float64


@torch.library.custom_op("scdro::pinned", mutates_args=())
def pinned(x: Tensor) -> Tensor:
    """A copy that a compiled backward pass cannot recompute.

    Inductor (torch 2.13) may recompute in the backward pass what it computed in the forward pass.
    If that starts from a buffer that the forward pass has overwritten by then, the gradients are
    silently wrong. An opaque custom operator in between makes it keep the values.
    """
    return x.clone()


@pinned.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)
