"""How long `repair` takes: 1,280 features and 5,000 samples, beside one plain refit of the head.

    OMP_NUM_THREADS=1 python benchmarks/repair.py > results/repair/table.md OMP_NUM_THREADS=1 python
    benchmarks/repair.py --features FILE.npz  # features (n, d) and labels y of your own

Made data, with a shortcut that holds for 95% and a weaker rule that holds for all, in 2 and in 10
classes. Features of a network are correlated, so these are too. "Plain refit" is one
`LogisticRegression` on the features with the classes weighted equally, at the best of five
penalties by five-fold cross-validation. Times are seconds of one run; "CPU" counts all threads.
Each is run twice, and the two new heads are compared bit by bit.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from scdro.second_look import repair

N, D = 5_000, 1_280


def made(classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, N)
    shortcut = np.where(rng.random(N) < 0.95, y, (y + 1) % classes)
    hidden = np.concatenate(
        [3 * np.eye(classes)[shortcut], 1.5 * np.eye(classes)[y], rng.normal(size=(N, 200))], 1
    ) + 0.5 * rng.normal(size=(N, 2 * classes + 200))
    X = np.maximum(hidden @ rng.normal(size=(hidden.shape[1], D)) / 15, 0) + 0.05 * rng.normal(
        size=(N, D)
    )
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y)


def read(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """The first N rows in a random order, of the arrays `features` and `y`."""
    with np.load(path) as arrays:
        rows = np.random.default_rng(0).permutation(len(arrays["y"]))[:N]
        return (
            torch.tensor(arrays["features"][rows].astype(np.float32)),
            torch.tensor(arrays["y"][rows]).long(),
        )


def timed(run: Callable[[], Any]) -> tuple[Any, float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    found = run()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--features",
        type=Path,
        help="an .npz file with features (n, d) and y, instead of made data",
    )
    own = parser.parse_args().features
    print(
        "# How long `repair` takes\n\n    OMP_NUM_THREADS=1 python benchmarks/repair.py >"
        " results/repair/table.md\n"
    )
    print(f"{N:,} samples, {D:,} features, {torch.get_num_threads()} thread(s), load {os.getloadavg()[0]:.0f} on "
          f"{os.cpu_count()} cores.\n")  # fmt: skip
    print(
        "| classes | what | seconds | CPU seconds | CPU, over plain refit | bit for bit again |"
        " verdict |"
    )
    print("|---|---|---|---|---|---|---|")
    for X, y in [read(own)] if own else map(made, (2, 10)):
        classes = int(y.max()) + 1
        network = nn.Sequential(nn.Identity(), nn.Linear(X.shape[1], classes))
        loader = DataLoader(TensorDataset(X, y), batch_size=256)
        Z = StandardScaler().fit_transform(X.double().numpy())
        search = GridSearchCV(LogisticRegression(class_weight="balanced", max_iter=1000),
                              {"C": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]}, cv=5)  # fmt: skip
        _, wall, plain = timed(partial(search.fit, Z, y.numpy()))
        print(f"| {classes} | plain refit | {wall:.1f} | {plain:.1f} | 1 | | |", flush=True)
        run = partial(repair, network, loader, refuse=False)
        (first, wall, cpu), (again, _, _) = timed(run), timed(run)
        same = torch.equal(first.model[1].weight, again.model[1].weight)
        print(f"| {classes} | repair | {wall:.1f} | {cpu:.1f} | {cpu / plain:.1f} | {'yes' if same else 'no'} | "
              f"{first.verdict.answer} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
