"""Linear classifiers on features: the paper's convex setting."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["linear_head"]


def linear_head(features: int, classes: int, seed: int | None = None) -> nn.Linear:
    """A linear classifier, randomly initialised as torch does, from a seed of its own or torch's generator.

    Example:
        >>> torch.equal(linear_head(64, 10, seed=0).weight, linear_head(64, 10, seed=0).weight)
        True
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        return nn.Linear(features, classes)
