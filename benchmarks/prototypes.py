"""Diverse prototypes beside `repair`: an ensemble of prototype heads on the features of Waterbirds.

    OMP_NUM_THREADS=1 python benchmarks/prototypes.py --data DIR > results/prototypes/table.md

Diverse Prototypical Ensembles (To et al., ICML 2025; package `dpe` 0.2.0, whose settings these are):
15 heads, each with one prototype a class, probabilities softmax(-s ||x/|x| - p/|p|||), trained with
an entropic scale of 30 on a random subset with equal classes, and kept apart from the earlier ones
by a penalty on their inner products. Nobody names a group: the epoch of each head is the one of the
best worst class of held-out rows.

Two sets of rows train the heads: four fifths of the training split, which is what `repair` gets, and
the validation split, which the paper uses. The latter has half of each class on water: there the
shortcut is gone before anything is done about it. So a plain logistic regression with equal classes
(penalty by cross-validated log loss) stands beside each.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

HEADS, EPOCHS, BATCH, ENTROPIC, APART, DECAY = 15, 20, 256, 30.0, 5e4, 10.0


class Prototypes(nn.Module):
    """Minus the scaled distances of normalised features to one prototype a class, (n, classes)."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(1e-2 * torch.randn(classes, features))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, X: Tensor) -> Tensor:
        return -self.scale.abs() * torch.cdist(F.normalize(X), F.normalize(self.prototypes))


def worst(right: Tensor, member: Tensor) -> float:
    return min(float(right[member == k].float().mean()) for k in range(int(member.max()) + 1))


def one_head(
    parts: tuple[Tensor, Tensor, Tensor, Tensor], earlier: list[Tensor], apart: float
) -> Prototypes:
    """A head trained on a random subset with equal classes, far from the earlier prototypes."""
    X, y, X_held, y_held = parts
    least = int(torch.bincount(y).min())
    rows = torch.cat(
        [
            own[torch.randperm(len(own))[:least]]
            for own in (torch.nonzero(y == k)[:, 0] for k in range(int(y.max()) + 1))
        ]
    )
    head = Prototypes(X.shape[1], 2)
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-3, momentum=0.9)
    best, state = -1.0, head.state_dict()
    for _ in range(EPOCHS):
        order = rows[torch.randperm(len(rows))]
        for at in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[at : at + BATCH]
            own = head.prototypes
            loss = F.cross_entropy(ENTROPIC * head(X[batch]), y[batch])
            loss = loss + DECAY * own.square().sum(1).mean()
            if earlier:
                inner = torch.einsum("kd,hkd->kh", own, torch.stack(earlier)) / (own.shape[1] - 1)
                loss = loss + apart * inner.sum(1).div(len(earlier) + 1).mean().abs()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            score = worst(head(X_held).argmax(1) == y_held, y_held)
        if score >= best:
            best, state = score, {name: value.clone() for name, value in head.state_dict().items()}
    head.load_state_dict(state)
    return head


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    with np.load(options.data / "waterbirds" / "features_efficientnet_lite0_224.npz") as file:
        X, labels, place, split = (file[key] for key in ("features", "y", "place", "split"))
    X = X.astype(np.float32)
    Z = torch.tensor((X - X.mean(1, keepdims=True)) / X.std(1, keepdims=True))
    y, group = torch.tensor(labels.astype(int)), torch.tensor((2 * labels + place).astype(int))
    unseen = torch.tensor(split == 2)
    print("# Diverse prototypes on the features of Waterbirds\n")
    print("    OMP_NUM_THREADS=1 python benchmarks/prototypes.py --data DIR"
          " > results/prototypes/table.md\n")  # fmt: skip
    print("| trained on | heads | accuracy | worst group |\n|---|---|---|---|")

    def scored(answers: Tensor) -> str:
        right = answers == y[unseen]
        return f"{100 * float(right.float().mean()):.1f} | {100 * worst(right, group[unseen]):.1f}"

    for number, name in ((0, "training split"), (1, "validation split")):
        rows = split == number
        plain = make_pipeline(StandardScaler(), LogisticRegressionCV(
            Cs=[1e-5, 1e-4, 1e-3, 1e-2, 1e-1], cv=5, scoring="neg_log_loss", max_iter=1000,
            l1_ratios=(0.0,), use_legacy_attributes=False, class_weight="balanced",
        )).fit(X[rows], labels[rows])  # fmt: skip
        answers = torch.tensor(plain.predict(X[split == 2]).astype(int))
        print(f"| {name} | logistic regression | {scored(answers)} |", flush=True)
        for seed in options.seeds:
            torch.manual_seed(seed)
            own, held = train_test_split(
                np.flatnonzero(rows), test_size=0.2, stratify=labels[rows], random_state=seed
            )
            parts = (Z[own], y[own], Z[held], y[held])
            heads: list[Prototypes] = []
            for k in range(HEADS):
                earlier = [head.prototypes.detach() for head in heads]
                heads.append(one_head(parts, earlier, APART / (1 + 0.05 * max(k - 1, 0))))
            with torch.no_grad():
                proba = sum(head(Z[unseen]).softmax(1) for head in heads)
            assert isinstance(proba, Tensor)
            print(f"| {name} | prototypes, seed {seed} | {scored(proba.argmax(1))} |", flush=True)


if __name__ == "__main__":
    main()
