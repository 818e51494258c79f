"""Pictures of docs/rho.md: python docs/tools/pictures/rho.py"""

from __future__ import annotations

import math

import numpy as np
import torch
from style import BLUE, GREEN, GREY, ORANGE, accuracies, losses_of, network, panels, points, save

from scdro import rho_for_group, worst_case


def meaning() -> None:
    """What rho is: a size of groups, a distribution of weights, a value between the mean and the maximum."""
    figure, axes = panels(3)
    share = np.linspace(0.005, 1.0, 400)
    axes[0].plot(100 * share, [rho_for_group(a) for a in share], color=BLUE, lw=2)
    for percent in (50, 10, 5, 1):
        rho = rho_for_group(percent / 100)
        axes[0].plot(percent, rho, "o", color=ORANGE)
        axes[0].annotate(
            f"{percent}%: {rho:.1f}", (percent, rho), (6, 4), textcoords="offset points", fontsize=8
        )
    axes[0].set(xscale="log", xlabel="smallest group to guard, % of the data", ylabel="rho")
    axes[0].set_title("rho by the size of a group", fontsize=9)

    losses = np.sort(np.random.default_rng(0).exponential(size=1000))
    for rho, colour, style in ((0.1, GREY, ":"), (0.5, BLUE, "-"), (2.0, ORANGE, "--")):
        weights = 1000 * worst_case(losses, rho).weights
        axes[1].plot(losses, weights, style, color=colour, lw=2, label=f"rho = {rho}")
    axes[1].set(
        yscale="log",
        ylim=(1e-2, 1e3),
        xlabel="loss of a sample",
        ylabel="weight against the average's",
    )
    axes[1].legend(fontsize=8)
    axes[1].set_title("Weights: exponential in the loss", fontsize=9)

    radii = np.concatenate([np.linspace(0.0, 0.2, 40), np.linspace(0.22, 8.0, 120)])
    axes[2].plot(
        radii,
        [worst_case(losses, rho).value for rho in radii],
        color=BLUE,
        lw=2,
        label="the worst case",
    )
    near = radii[radii <= 1.0]
    axes[2].plot(
        near,
        losses.mean() + np.sqrt(2 * near * losses.var()),
        "--",
        color=ORANGE,
        label="mean + √(2 rho Var)",
    )
    for level, name in ((losses.mean(), "mean"), (losses.max(), "largest loss")):
        axes[2].axhline(level, color=GREY, lw=1, ls=":")
        axes[2].text(8.0, level + 0.08, name, ha="right", fontsize=8, color="#555555")
    axes[2].axvline(math.log(1000), color=GREY, lw=1, ls=":")
    axes[2].text(math.log(1000) - 0.1, 1.6, "log n", ha="right", fontsize=8, color="#555555")
    axes[2].set(xlabel="rho", ylabel="loss")
    axes[2].legend(fontsize=8, loc="center right")
    axes[2].set_title("The value: from the mean to the maximum", fontsize=9)
    save(figure, "rho_meaning.png")


def choosing() -> None:
    """Models of several rho, on validation data without group labels, and on test data by group."""
    x, y, _ = points(2000, seed=0)
    held_out, test = points(1000, seed=2), points(20_000, seed=1)
    radii = (0.0, 0.1, 0.3, 0.5, 1.0, 2.0, 3.0)
    rows = []
    for rho in radii:
        model = network(x, y, rho)
        losses = losses_of(model, *held_out[:2])
        values = [float(worst_case(losses, float(at)).value) for at in (1.0, 2.0)]
        rows.append([float(losses.mean()), *values, *accuracies(model, *test)])
        print(f"rho = {rho:g}: " + ", ".join(f"{value:.3f}" for value in rows[-1]))
    table = torch.tensor(rows)
    figure, axes = panels(2)
    places = range(len(radii))
    names = ("mean loss", "worst case, rho = 1", "worst case, rho = 2")
    for column, name, colour, style in zip(
        range(3), names, (GREY, BLUE, GREEN), (":o", "-s", "--^"), strict=True
    ):
        axes[0].plot(places, table[:, column], style, color=colour, label=name)
        least = int(table[:, column].argmin())
        axes[0].plot(least, table[least, column], "o", ms=12, mfc="none", mec="black")
    axes[0].set(ylabel="validation loss", yscale="log")
    axes[0].set_title("What you can see (circles: the least)", fontsize=9)
    for column, name, colour, style in ((3, "all", GREY, ":o"), (4, "hidden group", ORANGE, "-s")):
        axes[1].plot(places, 100 * table[:, column], style, color=colour, label=name)
    axes[1].set(ylabel="test accuracy, %", ylim=(0, 102))
    axes[1].set_title("What you cannot", fontsize=9)
    for axis in axes:
        axis.set(
            xlabel="rho of training", xticks=list(places), xticklabels=[f"{rho:g}" for rho in radii]
        )
        axis.legend(fontsize=8)
    save(figure, "rho_choosing.png")


if __name__ == "__main__":
    meaning()
    choosing()
