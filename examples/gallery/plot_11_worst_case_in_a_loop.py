"""
How do I train on the worst case in my own loop?
================================================

Three lines change. ``KLRobustLoss`` turns the losses of a batch into one number for ``backward``, for
any torch optimizer; ``SCDRO`` is the paper's algorithm as an optimizer.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import cross_entropy

import scdro

# %%
# Two classes in the plane. A group that nobody labelled, 4% of the second class, lies apart.


def points(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Points, classes, and who is in the hidden group."""
    rng = np.random.default_rng(seed)
    y = rng.integers(2, size=n)
    hidden = (y == 1) & (rng.random(n) < 0.04)
    centres = np.where(hidden[:, None], (-3.2, 3.0), np.where(y[:, None] == 1, (1.6, 0), (-1.6, 0)))
    x = centres + rng.normal(size=(n, 2)) * np.where(hidden[:, None], 0.4, 0.8)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y), torch.tensor(hidden)


x, y, _ = points(2000, seed=0)
x_test, y_test, hidden = points(20_000, seed=1)

# %%
# The loop, with its new lines.


def new_network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))


def train_with_loss(rho: float, steps: int = 800) -> torch.nn.Module:
    network = new_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=0.03)
    robust = scdro.KLRobustLoss(rho=rho)  # new; rho = 0 is the plain mean
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        losses = cross_entropy(network(x[rows]), y[rows], reduction="none")  # one loss per sample
        optimizer.zero_grad()
        robust(losses).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)  # new
        optimizer.step()
    return network


def train_with_scdro(rho: float, steps: int = 800) -> torch.nn.Module:
    network = new_network()
    optimizer = scdro.SCDRO(network.parameters(), lr=0.5, rho=rho, beta=0.1, weight_decay=0.03)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,))
        optimizer.step(
            lambda rows=rows: cross_entropy(network(x[rows]), y[rows], reduction="none"),
            max_grad_norm=1.0,
        )
    return network


networks = {
    "plain": train_with_loss(0.0),
    "KLRobustLoss, rho = 1": train_with_loss(1.0),
    "SCDRO, rho = 1": train_with_scdro(1.0),
}

# %%
# The fair rival: the plain network with the threshold that serves the hidden group best among those
# that cost no more accuracy than the robust network does. The threshold may know the group here, and
# is chosen on the test points themselves, which flatters it.


def accuracies(score: np.ndarray, threshold: float) -> tuple[float, float]:
    """Of all, and of the hidden group."""
    right = (score > threshold) == (y_test.numpy() == 1)
    return right.mean(), right[hidden.numpy()].mean()


scores = {}
for name, network in networks.items():
    with torch.no_grad():
        logits = network(x_test)
    scores[name] = (logits[:, 1] - logits[:, 0]).numpy()
rows = {name: accuracies(score, 0.0) for name, score in scores.items()}
price = min(everyone for everyone, _ in rows.values())
tried = [
    accuracies(scores["plain"], t) for t in np.quantile(scores["plain"], np.linspace(0, 1, 400))
]
rows["plain, best threshold"] = max((t for t in tried if t[0] >= price), key=lambda t: t[1])
for name, (everyone, group) in rows.items():
    print(f"{name:<24} all {everyone:.3f}   hidden group {group:.3f}")

# %%
# The boundary moves to the group.

grid = torch.cartesian_prod(torch.linspace(-5, 5, 200), torch.linspace(-3.5, 5, 200))
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), sharey=True, layout="constrained")
for ax, (name, network) in zip(axes, networks.items(), strict=True):
    with torch.no_grad():
        area = network(grid).softmax(1)[:, 1].reshape(200, 200).T
    ax.contourf(
        np.linspace(-5, 5, 200), np.linspace(-3.5, 5, 200), area, 20, cmap="RdBu", alpha=0.6
    )
    ax.contour(np.linspace(-5, 5, 200), np.linspace(-3.5, 5, 200), area, [0.5], colors="black")
    shown = slice(0, 1500)
    ax.scatter(*x_test[shown].T, s=3, c=y_test[shown], cmap="RdBu", edgecolors="none")
    ax.set(title=f"{name}\nhidden group: {100 * rows[name][1]:.0f}%", xticks=[], yticks=[])
plt.show()
