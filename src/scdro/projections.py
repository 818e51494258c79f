"""Projections onto the feasible set of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from scdro.errors import HyperparameterError
from scdro.scalar import scalar_dtype

__all__ = ["Ball", "global_norm"]


def global_norm(tensors: list[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together, in a dtype in which it does not overflow."""
    dtype = scalar_dtype(tensors[0].device)
    norms = torch._foreach_norm(tensors, dtype=dtype)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    return norm


class Ball:
    """The Euclidean ball of radius R around zero, over all parameters together (the paper's W)."""

    def __init__(self, radius: float) -> None:
        if not 0.0 < radius < math.inf:
            raise HyperparameterError(f"expected a radius R > 0 for the ball of the model, got {radius}")
        self.radius = radius

    @torch.no_grad()
    def project_(self, params: Sequence[Tensor]) -> None:
        """Scale the parameters into the ball, in place, without asking the device whether they were outside."""
        if not params:
            return
        scale = (self.radius / global_norm(list(params))).clamp_max(1.0)
        for p in params:
            p.mul_(scale.to(p.device, p.dtype))
