"""A small classification problem, and loops over it with KLRobustLoss."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from scdro.printed import PrintedTemperature
from scdro.temperature import WindowTemperature

D, K = 5, 3
TEMPERATURES = {
    "default": WindowTemperature,
    "default, initial": lambda: WindowTemperature(0.4),
    "printed": lambda: PrintedTemperature(initial=0.8, lr=0.02),
}


def data(steps, size=12, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    teacher = torch.randn(D, K, generator=g, dtype=torch.float64)
    batches = []
    for _ in range(steps):
        x = torch.randn(size, D, generator=g, dtype=torch.float64)
        y = (x @ teacher + torch.randn(size, K, generator=g, dtype=torch.float64)).argmax(1)
        batches.append((x.to(dtype), y))
    return batches


def linear(dtype=torch.float64, seed=1):
    g = torch.Generator().manual_seed(seed)
    model = nn.Linear(D, K, dtype=dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    return model


def losses_of(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def assert_same_state(a, b):
    """Bit for bit."""
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key].nan_to_num(-1.0), b[key].nan_to_num(-1.0)), key


def assert_close_state(a, b, tolerance):
    a, b = a.state_dict(), b.state_dict()
    for key in a:
        torch.testing.assert_close(
            a[key], b[key], rtol=tolerance, atol=tolerance, equal_nan=True, msg=key
        )


def train_step(model, robust, optimizer, x, y, **how):
    optimizer.zero_grad()
    value = robust(losses_of(model, x, y), **how)
    value.backward()
    optimizer.step()
    return value.detach()
