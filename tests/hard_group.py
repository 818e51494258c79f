"""Logistic regression with a small hard group, in torch and by hand."""

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import twins
from scdro import ASCDRO, SCDRO

STEPS, N, D, K = 100, 120, 4, 3
ALGORITHMS = [SCDRO, ASCDRO]


def problem(seed=0, rare=12):
    """Logistic regression with a small hard group; the same in NumPy with gradients by hand."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, D, generator=g, dtype=torch.float64)
    y = (
        x @ torch.randn(D, K, generator=g, dtype=x.dtype)
        + torch.randn(N, K, generator=g, dtype=x.dtype)
    ).argmax(1)
    y[:rare] = (y[:rare] + 1) % K
    model = nn.Linear(D, K, dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    return model, x, y, twins.Logistic(x.numpy(), y.numpy(), K)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().copy()


def batches(steps=STEPS, low=10, high=10, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.choice(N, rng.integers(low, high + 1), replace=False) for _ in range(steps)]


def losses_of(model, x, y, index, scale=1.0, shift=0.0):
    return lambda: scale * cross_entropy(model(x[index]), y[index], reduction="none") + shift


def scaled(evaluate, scale):
    return lambda w: tuple(scale * part for part in evaluate(w))
