"""The guide's first picture: python docs/tools/pictures/hero.py"""

from __future__ import annotations

from typing import Any

import torch
from style import BLUE, GREY, ORANGE, accuracies, network, panels, points, save
from torch import Tensor


def main() -> None:
    x, y, hidden = points(2000, seed=0)
    test = points(20_000, seed=1)
    figure, axes = panels(2, height=3.6)
    models = {rho: network(x, y, rho) for rho in (0.0, 1.0)}
    for axis, (rho, model), title in zip(
        axes, models.items(), ("Plain training", "scdro, rho = 1"), strict=True
    ):
        every, rare = accuracies(model, *test)
        scatter(axis, x, y, hidden)
        boundary(axis, model)
        axis.set_title(f"{title}\naccuracy {every:.0%}, of the hidden group {rare:.0%}", fontsize=9)
        print(f"rho = {rho:g}: accuracy {every:.4f}, of the hidden group {rare:.4f}")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=3, markerscale=2, handletextpad=0.1
    )
    save(figure, "hero.png")
    for weight_decay in (
        0.01,
        0.003,
    ):  # where the network can fit everything, there is less to gain
        found = [
            accuracies(network(x, y, rho, weight_decay=weight_decay), *test) for rho in (0.0, 1.0)
        ]
        told = "; ".join(
            f"rho = {rho:g}: {a:.4f}, {b:.4f}" for rho, (a, b) in zip((0, 1), found, strict=True)
        )
        print(f"weight decay {weight_decay:g}: {told}")


def scatter(axis: Any, x: Tensor, y: Tensor, hidden: Tensor) -> None:
    parts = {
        "one class": (y == 0, GREY, "o"),
        "the other": ((y == 1) & ~hidden, BLUE, "^"),
        f"{hidden.double().mean():.1%} of the data, which nobody labelled": (hidden, ORANGE, "s"),
    }
    for label, (who, colour, marker) in parts.items():
        axis.scatter(*x[who].T, s=9, c=colour, marker=marker, label=label, alpha=0.7, linewidths=0)
    axis.set(xlim=(-5, 4.5), ylim=(-4.6, 4.6), xticks=[], yticks=[])


@torch.no_grad()
def boundary(axis: Any, model: torch.nn.Module) -> None:
    across, up = torch.meshgrid(
        torch.linspace(-5, 4.5, 200), torch.linspace(-4.6, 4.6, 200), indexing="xy"
    )
    logits = model(torch.stack([across, up], -1))
    score = logits[..., 1] - logits[..., 0]
    axis.contour(across, up, score, levels=[0.0], colors="black", linewidths=2)
    axis.contourf(across, up, score, levels=[0.0, 1e9], colors=[BLUE], alpha=0.1)


if __name__ == "__main__":
    main()
