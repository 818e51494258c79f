"""What the literal twins of methods that weight a batch share, and the gradient that one step follows."""

import numpy as np
import torch
from torch import nn

STEPS = 100
L4 = [0.0, 1.0, 2.0, 3.0]


class Twin:
    """w - lr v with v = momentum v + gradient, as printed in any textbook."""

    def __init__(self, w, lr, momentum=0.9, wd=0.0):
        self.w, self.lr, self.momentum, self.wd, self.v = w, lr, momentum, wd, None

    def step(self, evaluate, weight=None):
        losses, gradients = evaluate(self.w)
        q = np.full(len(losses), 1 / len(losses)) if weight is None else weight / weight.sum()
        g = self.weights(losses, q) @ gradients + self.wd * self.w
        self.v = g if self.v is None else self.momentum * self.v + g
        self.w = self.w - self.lr * self.v


def gradient_of(make, losses):
    """What one step with lr = 1 and no momentum moves the losses' own parameters by."""
    w = nn.Parameter(torch.tensor(losses, dtype=torch.float64))
    opt = make([w])
    value = opt.step(lambda: w * 1.0)
    return value.item(), (torch.tensor(losses, dtype=torch.float64) - w.detach()).numpy()
