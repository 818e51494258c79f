"""The numeric checks of `scdro doctor`. Each returns what is wrong, or "".

Each compares with something that shares no code with us: values from 50-digit arithmetic, numbers
written out, or the optimum that scipy finds. They run on any device in a second or two, in the best
precision that it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from scdro import SCDRO, KLRobustLoss, worst_case
from scdro._scalar import scalar_dtype
from scdro.functional import objective

__all__ = ["CHECKS", "devices"]

# (lam*, F*) of the losses 0, 1, 2, 3 with lam0 = 1e-3, from 50-digit arithmetic.
KNOWN = {
    0.1: (2.413506095, 1.994174122),
    1.0: (0.4519516105, 2.876718489),
    2.0: (0.001, 2.998613706),
}


def devices() -> list[str]:
    """The devices that torch can use."""
    names = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
    return [*names, "mps"] if torch.backends.mps.is_available() else names


def _unequal(got: float, expected: float, tolerance: float) -> str:
    """What is wrong with a number that should be another, or ""."""
    close = math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
    return "" if close else f"expected {expected:.10g}, got {got:.10g}"


def known_values(device: torch.device) -> str:
    """Worst cases against `KNOWN`: two where lam is free, and one where it is lam0."""
    losses = torch.arange(4.0, dtype=scalar_dtype(device), device=device)
    tolerance = 1e-8 if losses.dtype == torch.float64 else 1e-4
    for rho, (lam, value) in KNOWN.items():
        worst = worst_case(losses, rho)
        wrong = _unequal(float(worst.lam), lam, tolerance) or _unequal(
            float(worst.value), value, tolerance
        )
        if wrong:
            return f"rho = {rho:g}: {wrong}"
    return ""


def no_overflow(device: torch.device) -> str:
    """lam log mean exp(l/lam) where exp(l/lam) is exp(20000), in float32."""
    losses = torch.tensor([20.0, 19.999, 0.0, 5.0], device=device)
    return _unequal(float(objective(losses, 1e-3, rho=0.0)), 19.998926967, 1e-6)


def gradient(device: torch.device) -> str:
    """The loss's gradient is the worst case's weights."""
    losses = torch.arange(4.0, device=device, requires_grad=True)
    KLRobustLoss(0.1).to(device).eval()(losses).backward()
    assert losses.grad is not None
    weights = torch.tensor([0.12065, 0.18259, 0.27632, 0.42044])  # softmax(l/lam*)
    worst = float((losses.grad.cpu() - weights).abs().max())
    return "" if worst < 2e-3 else f"expected {weights.tolist()}, got {losses.grad.tolist()}"


class _Line:
    """A line fitted to a curve by least squares on the worst case: convex, and the hardest points decide."""

    def __init__(self, device: torch.device) -> None:
        self.x = torch.linspace(-1.0, 1.0, 11, device=device)
        self.y = self.x.exp()
        self.w = torch.zeros(2, device=device, requires_grad=True)
        self.optimizer = SCDRO([self.w], lr=0.2, rho=0.3, beta=0.5)

    def losses(self) -> Tensor:
        return (self.w[0] + self.w[1] * self.x - self.y).square()

    def train(self, steps: int) -> None:
        """Some steps of SCDRO on all points."""
        for _ in range(steps):
            self.optimizer.step(self.losses)


def training(device: torch.device) -> str:
    """SCDRO against the optimum that scipy finds from F alone, without derivatives and without our code."""
    import numpy as np
    from scipy.optimize import minimize

    line = _Line(device)
    line.train(500)
    x = np.linspace(-1.0, 1.0, 11)

    def objective_at(point: np.ndarray) -> float:
        """F at (intercept, slope, log lam), in NumPy, from its definition."""
        lam = math.exp(point[2])
        losses = (point[0] + point[1] * x - np.exp(x)) ** 2
        return float(
            losses.max()
            + lam * np.log(np.mean(np.exp((losses - losses.max()) / lam)))
            + (lam - 1e-3) * 0.3
        )

    # F may be minimised over w and log lam at once, so no worst case has to be solved for.
    least = minimize(
        objective_at,
        [1.0, 1.0, -3.0],
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-12},
    ).fun
    return _unequal(
        float(worst_case(line.losses().detach().cpu().double(), 0.3).value), float(least), 1e-4
    )


def resuming(device: torch.device) -> str:
    """20 steps at once, and 10 steps twice with the optimizer's state saved and loaded between."""
    whole, first, second = _Line(device), _Line(device), _Line(device)
    whole.train(20)
    first.train(10)
    second.w.data.copy_(first.w.data)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.train(10)
    same = torch.equal(whole.w, second.w) and torch.equal(whole.optimizer.lam, second.optimizer.lam)
    return "" if same else "expected a resumed run to equal the uninterrupted one, bit for bit"


CHECKS: dict[str, Callable[[torch.device], str]] = {
    "worst cases of known value": known_values,
    "no overflow at lam = 0.001": no_overflow,
    "gradient of the loss": gradient,
    "training reaches the optimum": training,
    "resuming, bit for bit": resuming,
}
