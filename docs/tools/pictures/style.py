"""What the pictures of the guide have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import scdro

mpl.use("agg")

import matplotlib.pyplot as plt

# Okabe and Ito: told apart by all kinds of eyes, and by lightness in print.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#888888"
FOLDER = Path(__file__).parents[2] / "img"
Array = npt.NDArray[Any]


def panels(count: int, height: float = 3.2) -> tuple[Any, Any]:
    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
        }
    )
    return plt.subplots(
        1, count, figsize=(3.4 * count if count > 1 else 5.0, height), layout="constrained"
    )


def save(figure: Any, name: str) -> None:
    figure.savefig(FOLDER / name, dpi=130)
    plt.close(figure)
    print(f"docs/img/{name}")


def points(n: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points in the plane, their classes, and who is in the hidden group: 4% of the second class, apart from it."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    hidden = (y == 1) & (rng.random(n) < 0.04)
    centres = np.where(
        hidden[:, None], (-3.2, 3.0), np.where(y[:, None] == 1, (1.6, 0.0), (-1.6, 0.0))
    )
    x = centres + rng.normal(size=(n, 2)) * np.where(hidden[:, None], 0.4, 0.8)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y), torch.tensor(hidden)


def network(
    x: Tensor, y: Tensor, rho: float, *, weight_decay: float = 0.03, **settings: Any
) -> torch.nn.Module:
    """32 hidden units, 1,000 steps; rho = 0 is plain training."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, weight_decay=weight_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    robust = scdro.KLRobustLoss(rho, **settings)
    for _ in range(1000):
        index = torch.randint(len(x), (128,))
        loss = robust(cross_entropy(model(x[index]), y[index], reduction="none"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def losses_of(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none")


@torch.no_grad()
def accuracies(model: torch.nn.Module, x: Tensor, y: Tensor, hidden: Tensor) -> tuple[float, float]:
    """Of all, and of the hidden group."""
    right = (model(x).argmax(1) == y).float()
    return float(right.mean()), float(right[hidden].mean())
