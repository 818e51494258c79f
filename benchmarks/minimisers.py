"""What the robust objective's own minimiser is worth: solved exactly on features, without steps, batches or grids.

    python benchmarks/minimisers.py

For each data set and rho: test accuracy, over all classes and over the rare and the other half, and the part of the
worst case's weight that falls on training images of rare classes. The test images are all 10,000 of CIFAR.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from scdro import functional
from scdro.experiments.features import load_features
from scdro.linear_model import KLDROClassifier

ROOT = Path(__file__).parents[1]


def row(dataset: str, rho: float, c: float) -> str:
    train, test = (load_features(ROOT / "results" / "features" / dataset, split) for split in ("train", "test"))
    x, y = np.asarray(train.x, dtype=np.float64), np.asarray(train.y)
    model = KLDROClassifier(rho=rho, C=c).fit(x, y)
    right = model.predict(np.asarray(test.x, dtype=np.float64)) == test.y
    counts = np.bincount(y)
    rare = counts < counts.mean()
    accuracy = 100 * np.array([right[test.y == label].mean() for label in range(len(counts))])
    losses = -model.predict_log_proba(x)[np.arange(len(y)), y]
    weights = functional.worst_case(torch.from_numpy(losses), rho).weights.numpy()
    share = weights[rare[y]].sum() / weights.sum()
    return (
        f"| {dataset} | {rho:g} | {accuracy.mean():.2f} | {accuracy[rare].mean():.2f} | {accuracy[~rare].mean():.2f} | "
        f"{losses.mean():.3f} | {model.robust_value_:.3f} | {100 * share:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["cifar10-st", "cifar100-st"])
    parser.add_argument("--rho", nargs="+", type=float, default=[0.0, 0.1, 0.5, 1.0])
    parser.add_argument("--C", type=float, default=1.0, help="inverse strength of the penalty, as in scikit-learn")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "minimisers.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| data | rho | test accuracy, % | rarer half | other half | mean loss | robust value | weight on rare, % |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for dataset in args.datasets:
        for rho in args.rho:
            lines.append(row(dataset, rho, args.C))
            print(lines[-1], flush=True)
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
