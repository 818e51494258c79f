"""Trainings and states for the suites of torch's contracts."""

import torch
from torch import nn

from checkpoint_worker import sizes_for
from ranks import N, Training, World, batches
from scdro import KLRobustLoss
from scdro.printed import PrintedTemperature
from scdro.temperature import WindowTemperature


def training(name, steps=0, dtype=torch.float32, **settings):
    t = Training(World(), name, dtype=dtype, **settings)
    train(t, range(steps))
    return t


def train(t, numbers):
    drawn = batches(sizes_for(t.name))
    for number in numbers:
        t.step(drawn[number], number)
    return t


class Embedded(nn.Module):
    """A layer with sparse gradients, and one without."""

    def __init__(self, sparse):
        super().__init__()
        self.dense, self.embedding = nn.Linear(1, 1), nn.Embedding(N, 1, sparse=sparse)

    def forward(self, index):
        return self.dense(self.embedding(index)).reshape(-1) ** 2


MEANINGS = {
    "rho = 0": ({"rho": 0.5}, {"rho": 0.0}, "rho > 0.*rho = 0"),
    "rho > 0": ({"rho": 0.0}, {"rho": 0.5}, "rho = 0.*rho > 0"),
    "trim": ({"rho": 0.5, "trim": 0.1}, {"rho": 0.5}, "trim > 0.*trim = 0"),
    "temperature": (
        {"rho": 0.5},
        {"rho": 0.5, "temperature": PrintedTemperature(1.0, lr=0.1)},
        "WindowTemperature",
    ),
}


def losses_at(step, count=20):
    return 3 * torch.rand(count, generator=torch.Generator().manual_seed(step)).requires_grad_()


LOSSES = {
    "default": lambda **where: KLRobustLoss(0.5, **where),
    "initial": lambda **where: KLRobustLoss(0.5, temperature=WindowTemperature(0.7), **where),
    "printed": lambda **where: KLRobustLoss(
        0.5, temperature=PrintedTemperature(0.7, lr=0.1), **where
    ),
    "trim": lambda **where: KLRobustLoss(0.5, trim=0.1, **where),
    "rho = 0": lambda **where: KLRobustLoss(0.0, **where),
}
