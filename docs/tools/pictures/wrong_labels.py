"""The picture of docs/guide.md, "Wrong labels": python docs/tools/pictures/wrong_labels.py"""

from __future__ import annotations

import torch
from style import BLUE, GREEN, GREY, ORANGE, accuracies, losses_of, network, panels, points, save

from scdro import worst_case

WRONG = 0.05


def main() -> None:
    x, y, hidden = points(2000, seed=0)
    test = points(20_000, seed=1)
    flipped = torch.rand(len(y), generator=torch.Generator().manual_seed(0)) < WRONG
    noisy = torch.where(flipped, 1 - y, y)
    figure, axes = panels(2)

    losses = losses_of(network(x, noisy, 0.0), x, noisy)
    radii = [0.1 * k for k in range(41)]
    for who, name, colour, style in (
        (flipped, "wrong labels", ORANGE, "-"),
        (hidden & ~flipped, "the hidden group", BLUE, "--"),
    ):
        shares = [100 * float(worst_case(losses, rho).weights[who].sum()) for rho in radii]
        axes[0].plot(radii, shares, style, color=colour, lw=2, label=name)
    axes[0].set(xlabel="rho", ylabel="weight, %", ylim=(0, 100))
    axes[0].set_title("Whom the worst case of plain training looks at", fontsize=9)
    axes[0].legend(fontsize=8)

    trims = (0.0, 0.02, 0.05, 0.08, 0.12)
    for labels, name, colour, style in (
        (noisy, f"{WRONG:.0%} wrong", ORANGE, "-s"),
        (y, "none wrong", GREEN, "--^"),
    ):
        found = [accuracies(network(x, labels, 1.0, trim=trim), *test) for trim in trims]
        rare = [100 * accuracy for _, accuracy in found]
        axes[1].plot(
            [100 * trim for trim in trims], rare, style, color=colour, label=f"rho = 1, {name}"
        )
        for trim, (every, hidden_ones) in zip(trims, found, strict=True):
            print(
                f"{name}, trim {trim:g}: accuracy {every:.3f}, of the hidden group"
                f" {hidden_ones:.3f}"
            )
    plain = accuracies(network(x, noisy, 0.0), *test)
    print(f"plain training, wrong labels: {plain}")
    axes[1].axhline(100 * plain[1], color=GREY, lw=1, ls=":")
    axes[1].text(
        12,
        100 * plain[1] + 2,
        "plain training, wrong labels",
        ha="right",
        fontsize=8,
        color="#555555",
    )
    axes[1].set(xlabel="trim, %", ylabel="accuracy of the hidden group, %", ylim=(0, 102))
    axes[1].set_title("What trim does", fontsize=9)
    axes[1].legend(fontsize=8, loc="center right")
    save(figure, "wrong_labels.png")


if __name__ == "__main__":
    main()
