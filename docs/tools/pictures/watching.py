"""The picture of docs/tuning.md: python docs/tools/pictures/watching.py"""

from __future__ import annotations

import torch
from style import BLUE, GREEN, GREY, ORANGE, panels, points, save
from torch.nn.functional import cross_entropy

import scdro

# What is to be seen, and how it is made: rho, batch size, a factor of the losses.
CASES = {
    "as it should be": (1.0, 128, 1.0),
    "rho too large for the batch": (4.0, 16, 1.0),
    "losses of size 1e-4: lam at its floor": (1.0, 128, 1e-4),
}


def run(rho: float, batch_size: int, scale: float, steps: int = 400) -> torch.Tensor:
    """lam, KL and effective sample size after each step."""
    x, y, _ = points(2000, seed=0)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    robust = scdro.KLRobustLoss(rho)
    seen = []
    for _ in range(steps):
        index = torch.randint(len(x), (batch_size,))
        loss = robust(scale * cross_entropy(model(x[index]), y[index], reduction="none"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append([float(robust.lam), float(robust.kl), float(robust.ess)])
    return torch.tensor(seen)


def main() -> None:
    figure, axes = panels(3)
    for (name, settings), colour, style in zip(
        CASES.items(), (BLUE, ORANGE, GREEN), ("-", "--", ":"), strict=True
    ):
        found = run(*settings)
        for axis, values in zip(axes, found.T, strict=True):
            axis.plot(values, style, color=colour, lw=1.6, label=name)
        print(f"{name}: lam, KL, ess at the end {[round(v, 4) for v in found[-1].tolist()]}")
    axes[0].axhline(1e-3, color=GREY, lw=1, ls=":")
    axes[0].text(400, 1.15e-3, "lam0", ha="right", fontsize=8, color="#555555")
    for rho in (1.0, 4.0):
        axes[1].axhline(rho, color=GREY, lw=1, ls=":")
        axes[1].text(400, rho + 0.05, f"rho = {rho:g}", ha="right", fontsize=8, color="#555555")
    axes[0].set(title="lam", yscale="log", xlabel="step")
    axes[1].set(title="KL", xlabel="step", ylim=(0, 4.4))
    axes[2].set(title="effective sample size, share", xlabel="step", yscale="log", ylim=(1e-3, 1.5))
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8
    )
    save(figure, "watching.png")


if __name__ == "__main__":
    main()
