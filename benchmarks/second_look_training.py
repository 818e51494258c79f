"""What it costs to train a network again with the weights of a second look: in the loss, and through a sampler.

    OMP_NUM_THREADS=1 python benchmarks/second_look_training.py >
    results/second_look_training/table.md

The same weights (`out_of_fold` with two folds, `second_look_weights`) are used in both ways: as
`(weight * losses).mean()`, and as the probabilities with which samples are drawn
(`WeightedSampler`) for an unweighted loss. Data:

- overlap: two Gaussian classes of which the best rule gets about nine tenths right. The group, a
  tenth of the samples, has its classes closer together: it is harder, and nobody is overlooked.
  Trained for 10 epochs, about as long as is best for plain training, and for 60: a network that
  fits most of its training data gets flatter weights.
- digits, nothing hidden: scikit-learn's digits, below five or not; the groups are the ten digits.
- coloured digits: the same images in a colour that agrees with the class for 95%; the groups are
  class and colour. In the test set colours are even.

"Groups known" has equal weights of the groups within each class instead, which nobody knows here.

A network of one hidden layer, Adam, 60 epochs where nothing is said. Test accuracy and that of the
worst group, in %, mean over five seeds (least to most).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from scdro import out_of_fold, second_look_weights
from scdro.data import Weighted, WeightedSampler
from scdro.fix import ConfirmedGroups

SEEDS = range(5)


class Labelled(NamedTuple):
    """Inputs, labels, and the groups that only the evaluation sees."""

    x: Tensor
    y: Tensor
    group: Tensor

    def at(self, rows: slice) -> Labelled:
        return Labelled(self.x[rows], self.y[rows], self.group[rows])


def overlap(seed: int) -> tuple[Labelled, Labelled]:
    rng = np.random.default_rng(seed)
    n = 8_000
    y, group = rng.integers(0, 2, n), (rng.random(n) < 0.1).astype(int)
    distance = np.where(group == 1, 1.3, 2.6)  # between the centres, in standard deviations
    x = rng.normal(size=(n, 20))
    x[:, 0] += (y - 0.5) * distance
    x[:, 1] += 2 * group
    both = _as_labelled(x, y, group)
    return both.at(slice(2_000)), both.at(slice(2_000, None))


def digits(seed: int) -> tuple[Labelled, Labelled]:
    source = load_digits()
    order = np.random.default_rng(seed).permutation(len(source.target))
    both = _as_labelled(source.data[order] / 16, source.target[order] >= 5, source.target[order])
    return both.at(slice(1_000)), both.at(slice(1_000, None))


def coloured(seed: int) -> tuple[Labelled, Labelled]:
    source, rng = load_digits(), np.random.default_rng(seed)
    order = rng.permutation(len(source.target))
    images, y = source.data[order] / 16, (source.target[order] >= 5).astype(int)
    agrees = rng.random(len(y)) < np.where(np.arange(len(y)) < 1_000, 0.95, 0.5)
    colour = np.where(agrees, y, 1 - y)
    x = np.zeros((len(y), 2, images.shape[1]))
    x[np.arange(len(y)), colour] = images
    both = _as_labelled(x.reshape(len(y), -1), y, 2 * y + colour)
    return both.at(slice(1_000)), both.at(slice(1_000, None))


def _as_labelled(x: np.ndarray, y: np.ndarray, group: np.ndarray) -> Labelled:
    return Labelled(
        torch.tensor(x, dtype=torch.float32), torch.tensor(y).long(), torch.tensor(group).long()
    )


def train(
    data: Dataset[Any], seed: int, epochs: int, sampler: WeightedSampler | None = None
) -> nn.Module:
    """Items (x, y), or (x, y, weight) for a weighted loss."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(data[0][0].numel(), 100), nn.ReLU(), nn.Linear(100, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=64, sampler=sampler, shuffle=sampler is None)
    for _ in range(epochs):
        for x, y, *weight in loader:
            losses = F.cross_entropy(net(x), y, reduction="none")
            optimizer.zero_grad()
            (weight[0] * losses if weight else losses).mean().backward()
            optimizer.step()
    return net.eval()


def scored(net: nn.Module, test: Labelled) -> tuple[float, float]:
    """Accuracy, and that of the worst group."""
    with torch.no_grad():
        right = (net(test.x).argmax(1) == test.y).double()
    return float(right.mean()), min(
        float(right[test.group == g].mean()) for g in range(int(test.group.max()) + 1)
    )


def ways(
    parts: tuple[Labelled, Labelled], seed: int, epochs: int
) -> dict[str, tuple[float, float]]:
    first, test = parts
    data = TensorDataset(first.x, first.y)
    proba = out_of_fold(lambda subset: train(subset, seed, epochs), data, seed=seed)
    weights = second_look_weights(proba, first.y)
    known = torch.tensor(ConfirmedGroups.of(first.group, None, first.y.numpy())
                         .cells(first.y.numpy(), np.arange(2), np.ones(len(first.y)))
                         .weights(np.ones(len(first.y))))  # fmt: skip
    nets = {"plain": train(data, seed, epochs)}
    for name, each in {"weights": weights, "groups known,": known}.items():
        nets |= {
            f"{name} in the loss": train(Weighted(data, each), seed, epochs),
            f"{name} in the sampler": train(data, seed, epochs, WeightedSampler(each, seed=seed)),
        }
    return {name: scored(net, test) for name, net in nets.items()}


def main() -> None:
    command = (
        "OMP_NUM_THREADS=1 python benchmarks/second_look_training.py >"
        " results/second_look_training/table.md"
    )
    print(f"# Training again with the weights of a second look\n\n    {command}\n")
    print(
        "Test accuracy and that of the worst group, in %, mean over five seeds (least to most).\n"
    )
    print("| data | training | accuracy | worst group |\n|---|---|---|---|")
    kinds: dict[str, tuple[Callable[[int], tuple[Labelled, Labelled]], int]] = {
        "overlapping classes, 10 epochs": (overlap, 10),
        "overlapping classes, 60 epochs": (overlap, 60),
        "digits, nothing hidden": (digits, 60),
        "coloured digits, a shortcut": (coloured, 60),
    }
    for kind, (made, epochs) in kinds.items():
        found = [ways(made(seed), seed, epochs) for seed in SEEDS]
        for way in found[0]:
            values = 100 * np.array([one[way] for one in found])
            cells = [f"{v.mean():.1f} ({v.min():.1f} to {v.max():.1f})" for v in values.T]
            print(f"| {kind} | {way} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
