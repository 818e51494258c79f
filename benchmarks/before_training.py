"""Does the worst case find the weak groups? Measured on the ordinary model, before any robust training.

    python benchmarks/before_training.py --data DIR

For each data set: the share of samples in rare groups (or classes, if the data have no groups), the
weight that the worst case of ERM's training losses gives them at rho = 0.5, and what the exact
robust minimiser then gains on them. DIR contains Adult.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from minimisers import ROOT, accuracies, parts, rare_groups, rare_weight

from scdro.linear_model import KLDROClassifier

DATASETS = ("digits-hidden", "cifar10-st", "cifar100-st", "cifar100-hidden", "adult")


def row(dataset: str, folder: Path | None, rho: float) -> str:
    train, test = parts(dataset, folder)
    rare = rare_groups(train)
    erm, robust = (
        KLDROClassifier(rho=radius, C=1.0).fit(train.x, train.y) for radius in (0.0, rho)
    )
    share, weight = 100 * np.mean(rare[train.groups]), rare_weight(erm, train, rho)
    before, after = (accuracies(model, test, len(rare)) for model in (erm, robust))
    shown = [before[rare].mean(), after[rare].mean(), before.mean(), after.mean()]
    found = f"{share:.1f} | {weight:.1f} | {weight / share:.1f}"
    return f"| {dataset} | {found} | {' | '.join(f'{a:.1f}' for a in shown)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", nargs="+", default=DATASETS)
    parser.add_argument(
        "--data",
        type=Path,
        default=None,
        help="folder with Adult; by default $SCDRO_DATA, or ./data",
    )
    parser.add_argument("--rho", type=float, default=0.5)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "results" / "before_training" / "table.md"
    )
    args = parser.parse_args()
    accuracy = "rare: ERM, % | robust, % | all groups: ERM, % | robust, %"
    lines = [
        f"| data | rare samples, % | their weight, % | times | {accuracy} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for dataset in args.datasets:
        lines.append(row(dataset, args.data, args.rho))
        print(lines[-1], flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
