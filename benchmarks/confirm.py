"""From a finding to a fixed model: the first slice that a second look finds, confirmed.

    OMP_NUM_THREADS=1 python benchmarks/confirm.py --data DIR > results/confirm/table.md

Waterbirds, frozen EfficientNet-Lite0 features, the standard split. A plain head is fitted to the
training rows (logistic regression, the penalty by cross-validation), then:

- `repair` gives the weights of a second look; nobody has said anything yet,
- `find_slices` describes them in the column "place"; `would_gain` says what the first one would gain,
- `repair(groups=slice)` serves it, with thresholds as the rival,
- "groups known" is `repair(groups=place)`, and the best oracle of results/second_look (DFR).

The rival is the given head with the thresholds that the test split itself would choose for its worst
group: more than anybody can have.

Accuracy and that of the worst of the four groups on the test split, in %, for each seed of the
folds. The penalty is the best under cross-validated worst groups, so no number is chosen here.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegressionCV
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from scdro.fix import best_offsets, moved
from scdro.second_look import repair


def network_of(X: np.ndarray, y: np.ndarray) -> nn.Module:
    """A plain head on the features."""
    scaler = StandardScaler().fit(X)
    search = LogisticRegressionCV(
        Cs=[1e-4, 1e-3, 1e-2, 1e-1], cv=5, scoring="neg_log_loss", max_iter=1000,
        l1_ratios=(0.0,), use_legacy_attributes=False,
    ).fit(scaler.transform(X), y)  # fmt: skip
    W = search.coef_ / scaler.scale_
    b = search.intercept_ - W @ scaler.mean_
    layer = nn.Linear(X.shape[1], 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(np.concatenate([-W, W]) / 2))
        layer.bias.copy_(torch.tensor(np.concatenate([-b, b]) / 2))
    return nn.Sequential(nn.Identity(), layer)


@torch.no_grad()
def scored(network: nn.Module, X: np.ndarray, y: np.ndarray, group: np.ndarray) -> str:
    """Accuracy, and that of the worst group."""
    right = network(torch.tensor(X)).argmax(1).numpy() == y
    worst = min(right[group == g].mean() for g in np.unique(group))
    return f"{100 * right.mean():.1f} | {100 * worst:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    with np.load(options.data / "waterbirds" / "features_efficientnet_lite0_224.npz") as file:
        X, y, place, split = (file[key] for key in ("features", "y", "place", "split"))
    X, y = X.astype(np.float32), y.astype(int)
    seen, unseen = split == 0, split == 2
    given = network_of(X[seen], y[seen])
    loader = DataLoader(TensorDataset(torch.tensor(X[seen]), torch.tensor(y[seen])), batch_size=512)
    test = (X[unseen], y[unseen], (2 * y + place)[unseen])
    column = np.where(place[seen] == 1, "water", "land")
    print(__doc__ and "# The first found slice, confirmed\n")
    print(
        "    OMP_NUM_THREADS=1 python benchmarks/confirm.py --data DIR > results/confirm/table.md\n"
    )
    print("| seed | head | what it says | accuracy | worst group | CPU seconds |")
    print("|---|---|---|---|---|---|")
    print(f"| | given | | {scored(given, *test)} | |", flush=True)
    with torch.no_grad():
        proba = given(torch.tensor(test[0])).double().softmax(1).numpy()
    groups = np.stack([test[2] == g for g in np.unique(test[2])])
    right = moved(proba, offsets=best_offsets(proba, test[1], groups)).argmax(1) == test[1]
    worst = min(right[rows].mean() for rows in groups)
    print(
        f"| | given, thresholds chosen on the test split | | {100 * right.mean():.1f} |"
        f" {100 * worst:.1f} | |", flush=True,
    )  # fmt: skip
    for seed in options.seeds:
        start = time.process_time()
        look = repair(given, loader, progress=False, seed=seed)
        row(seed, "second look, no word", look.verdict.answer, look.model, test, start)
        first = look.find_slices({"place": column})[0]
        start = time.process_time()
        fixed = repair(given, loader, groups=first, progress=False, seed=seed)
        said = f"{first.members.text}: {fixed.verdict.answer}"
        row(seed, "first slice confirmed", said, fixed.model, test, start)
        if not np.array_equal(np.asarray(first.members), column == "water"):
            known = repair(given, loader, groups=column, progress=False, seed=seed)
            row(seed, "groups known", known.verdict.answer, known.model, test, start)
        if seed == options.seeds[0]:
            verdict = fixed.verdict
    print(f"\nThe verdict of the first seed:\n\n```\n{verdict}\n{verdict.ladder()}\n```")


def row(seed: int, name: str, said: str, model: nn.Module, test: Any, start: float) -> None:
    spent = time.process_time() - start
    print(f"| {seed} | {name} | {said} | {scored(model, *test)} | {spent:.0f} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
