"""What the robust objective's own minimiser is worth: solved exactly on features or rows, without steps or grids.

    python benchmarks/minimisers.py
    python benchmarks/minimisers.py --datasets cifar100-hidden adult --data DIR --out results/minimisers_hidden.md

For each data set and rho: test accuracy, over all groups (the classes, where data have none), over the rare and the
other ones, and of the worst; and the part of the worst case's weight that falls on training samples of rare groups. The
test images are all 10,000 of CIFAR. DIR holds Adult.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from scdro import functional
from scdro.experiments.features import load_features
from scdro.experiments.tasks import Sources, open_task
from scdro.linear_model import KLDROClassifier

ROOT = Path(__file__).parents[1]
Array = npt.NDArray[Any]


class Part(NamedTuple):
    x: Array
    y: Array
    groups: Array


def parts(dataset: str, folder: Path | None) -> tuple[Part, Part]:
    """Training and test data."""
    if dataset == "adult":
        task: Any = open_task("rows", dataset, 1, Sources(folder))
        train, test = ([p.inputs.numpy(), p.labels.numpy(), p.groups.numpy()] for p in (task.train, task.test))
    else:
        features = (load_features(ROOT / "results" / "features" / dataset, split) for split in ("train", "test"))
        train, test = ([f.x, f.y, f.y if f.groups is None else f.groups] for f in features)
    return Part(np.asarray(train[0], np.float64), *train[1:]), Part(np.asarray(test[0], np.float64), *test[1:])


def row(dataset: str, train: Part, test: Part, rho: float, c: float) -> str:
    model = KLDROClassifier(rho=rho, C=c).fit(train.x, train.y)
    right = model.predict(test.x) == test.y
    counts = np.bincount(train.groups)
    rare = counts < counts.mean()
    accuracy = 100 * np.array([right[test.groups == group].mean() for group in range(len(counts))])
    losses = -model.predict_log_proba(train.x)[np.arange(len(train.y)), train.y]
    weights = functional.worst_case(torch.from_numpy(losses), rho).weights.numpy()
    share = weights[rare[train.groups]].sum() / weights.sum()
    shown = [100 * right.mean(), accuracy[rare].mean(), accuracy[~rare].mean(), accuracy.min()]
    accuracies = " | ".join(f"{value:.2f}" for value in shown)
    values = f"{losses.mean():.3f} | {model.robust_value_:.3f} | {100 * share:.1f}"
    return f"| {dataset} | {rho:g} | {accuracies} | {values} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["cifar10-st", "cifar100-st"])
    parser.add_argument("--data", type=Path, default=None, help="folder that holds Adult; else $SCDRO_DATA, or ./data")
    parser.add_argument("--rho", nargs="+", type=float, default=[0.0, 0.01, 0.1, 0.5, 1.0])
    parser.add_argument("--C", type=float, default=1.0, help="inverse strength of the penalty, as in scikit-learn")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "minimisers.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| data | rho | test accuracy, % | rare | other | worst | mean loss | robust value | weight on rare, % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for dataset in args.datasets:
        train, test = parts(dataset, args.data)
        for rho in args.rho:
            lines.append(row(dataset, train, test, rho, args.C))
            print(lines[-1], flush=True)
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
