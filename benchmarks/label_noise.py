"""The effect of wrong labels on the worst case, and how much `trim` helps, with labels flipped on purpose.

    python benchmarks/label_noise.py

Ten Gaussian classes, the first half rare. A share of the training labels is replaced by random
other labels. Accuracy on clean test data, overall and in the rare classes, mean over seeds.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from problems import blobs

import scdro


def accuracy(flip: float, rho: float, trim: float, seed: int) -> tuple[float, float]:
    """Clean accuracy over all test samples and over those of the rare classes."""
    problem = blobs("noise", 400, 80, 10, seed)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(problem.x), generator=generator)
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    labels = problem.y.clone()
    wrong = train[torch.rand(len(train), generator=generator) < flip]
    labels[wrong] = (labels[wrong] + torch.randint(1, 10, (len(wrong),), generator=generator)) % 10
    w = torch.zeros(problem.x.shape[1], 10, dtype=torch.float64, requires_grad=True)

    def losses(i: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(problem.x[i] @ w, labels[i], reduction="none")

    opt = scdro.SCDRO([w], lr=0.05, rho=rho, weight_decay=1e-3, trim=trim)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 1000)
    for _ in range(1000):
        i = train[torch.randint(len(train), (64,), generator=generator)]
        opt.step(functools.partial(losses, i))
        schedule.step()
    right = ((problem.x[test] @ w).argmax(1) == problem.y[test]).double()
    return float(right.mean()), float(right[problem.y[test] < 5].mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parents[1] / "results" / "label_noise" / "table.md",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| labels flipped | method | accuracy, % | rare classes, % |", "|---|---|---|---|"]
    for flip in (0.0, 0.1):
        for name, rho, trim in (
            ("ERM", 0.0, 0.0),
            ("SCDRO, rho = 1", 1.0, 0.0),
            ("SCDRO, rho = 1, trim = .1", 1.0, 0.1),
        ):
            runs = 100 * np.array([accuracy(flip, rho, trim, seed) for seed in range(args.seeds)])
            cells = (
                f"{m:.1f} ± {s:.1f}" for m, s in zip(runs.mean(0), runs.std(0, ddof=1), strict=True)
            )
            lines.append(f"| {flip:.0%} | {name} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
