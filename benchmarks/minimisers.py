"""How good the exact minimiser of the robust objective is, on features or rows, without step sizes or grids.

    python benchmarks/minimisers.py python benchmarks/minimisers.py --datasets cifar100-hidden adult
    --data DIR --out results/minimisers_hidden/table.md

For each data set and rho: test accuracy, averaged over all groups (the classes, if the data have no
groups), over the rare and the other groups, and of the worst group; and the share of the worst
case's weight on training samples of rare groups. Last, for comparison, ERM with known groups, all
of the same weight. Training and test data are those of `python -m reproduction`. DIR contains
Adult.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from reproduction.tasks import Sources, open_task
from scdro import functional
from scdro.linear_model import KLDROClassifier

ROOT = Path(__file__).parents[1]
Array = npt.NDArray[Any]


class GroupedPart(NamedTuple):
    x: Array
    y: Array
    groups: Array


def parts(dataset: str, folder: Path | None) -> tuple[GroupedPart, GroupedPart]:
    """Training and test data as in `python -m reproduction`; validation data are in neither."""
    inputs = "rows" if dataset == "adult" else "features"
    task: Any = open_task(inputs, dataset, 1, Sources(folder, ROOT / "results" / "features"))
    train, test = (
        [p.inputs, p.labels, p.labels if p.groups is None else p.groups]
        for p in (task.train, task.test)
    )
    first, second = (
        GroupedPart(np.asarray(p[0], np.float64), np.asarray(p[1]), np.asarray(p[2]))
        for p in (train, test)
    )
    return first, second


def rare_groups(train: GroupedPart) -> Array:
    counts = np.bincount(train.groups)
    rare: Array = counts < counts.mean()
    return rare


def accuracies(model: KLDROClassifier, test: GroupedPart, groups: int) -> Array:
    """Accuracy of each group, in per cent."""
    right = model.predict(test.x) == test.y
    return 100 * np.array([right[test.groups == group].mean() for group in range(groups)])


def rare_weight(model: KLDROClassifier, train: GroupedPart, rho: float) -> float:
    """The weight of rare groups in the worst case of a model's training losses, in per cent."""
    weights = functional.worst_case(torch.from_numpy(losses_of(model, train)), rho).weights.numpy()
    return 100 * float(weights[rare_groups(train)[train.groups]].sum() / weights.sum())


def losses_of(model: KLDROClassifier, part: GroupedPart) -> Array:
    losses: Array = -model.predict_log_proba(part.x)[np.arange(len(part.y)), part.y]
    return losses


def equal_groups(train: GroupedPart) -> Array:
    """A weight for each sample, such that all groups have the same weight."""
    sizes = np.bincount(train.groups)
    weights: Array = len(train.groups) / (len(sizes) * sizes[train.groups])
    return weights


def row(dataset: str, train: GroupedPart, test: GroupedPart, rho: float | None, c: float) -> str:
    """A row of the table for one radius; None for known groups with equal weights."""
    weights = equal_groups(train) if rho is None else None
    model = KLDROClassifier(rho=rho or 0.0, C=c).fit(train.x, train.y, sample_weight=weights)
    rare = rare_groups(train)
    accuracy = accuracies(model, test, len(rare))
    overall = 100 * float((model.predict(test.x) == test.y).mean())
    shown = " | ".join(
        f"{a:.2f}" for a in (overall, accuracy[rare].mean(), accuracy[~rare].mean(), accuracy.min())
    )
    mean = f"{losses_of(model, train).mean():.3f}"
    if rho is None:
        return f"| {dataset} | groups equal | {shown} | {mean} | | {100 * rare.mean():.1f} |"
    return (
        f"| {dataset} | {rho:g} | {shown} | {mean} | {model.robust_value_:.3f} |"
        f" {rare_weight(model, train, rho):.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", nargs="+", default=["cifar10-st", "cifar100-st"])
    parser.add_argument(
        "--data",
        type=Path,
        default=None,
        help="folder with Adult; by default $SCDRO_DATA, or ./data",
    )
    parser.add_argument("--rho", nargs="+", type=float, default=[0.0, 0.01, 0.1, 0.5, 1.0])
    parser.add_argument(
        "--C", type=float, default=1.0, help="inverse strength of the penalty, as in scikit-learn"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "minimisers" / "table.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        (
            "| data | rho | test accuracy, % | rare | other | worst | mean loss | robust value |"
            " weight on rare, % |"
        ),
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for dataset in args.datasets:
        train, test = parts(dataset, args.data)
        for rho in [*args.rho, None]:
            lines.append(row(dataset, train, test, rho, args.C))
            print(lines[-1], flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
