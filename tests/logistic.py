"""One small problem for the lockstep tests: a linear model in torch, and the same by hand."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import twins

N, D, K = 60, 4, 3


def problem(seed=0, dtype=torch.float64):
    """A linear model in torch, and the same problem with gradients by hand."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, D, generator=g, dtype=torch.float64)
    y = (
        x @ torch.randn(D, K, generator=g, dtype=x.dtype)
        + torch.randn(N, K, generator=g, dtype=x.dtype)
    ).argmax(1)
    model = nn.Linear(D, K, dtype=dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    return model, x.to(dtype), y, twins.Logistic(x.numpy(), y.numpy(), K)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double().numpy().copy()


def losses_of(model, x, y, index):
    return lambda: cross_entropy(model(x[index]), y[index], reduction="none")
