"""Dominoes: a car or a truck (CIFAR-10) above a zero or a one (MNIST) that agrees with it in 95% of the training data.

The class is the vehicle. The digit is easier to see, so a network learns it; groups are class x
digit, equally many in the test set. Images are halved, to 32 x 16, and the network is small: a
training run takes half a minute on one core.

    python benchmarks/second_look_dominoes.py --cifar DIR --mnist DIR

DIR hold the files of CIFAR-10 (cifar-10-batches-py) and of MNIST (the four idx files). Three
trainings of the whole
network: plain; with the weights of a second look, for which two more networks, each trained on one
half, are the reference; and, for comparison, with groups known and weighing the same.
"""

from __future__ import annotations

import argparse
import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import scdro

Array = npt.NDArray[Any]
AUTOMOBILE, TRUCK = 1, 9
AGREEMENT, EPOCHS, BATCH, LR = 0.95, 10, 128, 0.1


class Dominoes(NamedTuple):
    x: Tensor  # (n, 3, 32, 16)
    y: Tensor
    groups: Tensor  # 2 class + digit

    def rows(self, index: Any) -> Dominoes:
        return Dominoes(self.x[index], self.y[index], self.groups[index])


def load(cifar: Path, mnist: Path, seed: int) -> tuple[Dominoes, Dominoes]:
    """Training and test data; the seed pairs vehicles with digits."""
    rng = np.random.default_rng(seed)
    return (
        _pairs(
            *_vehicles(cifar, [f"data_batch_{k}" for k in range(1, 6)]),
            mnist,
            "train",
            AGREEMENT,
            rng,
        ),
        _pairs(*_vehicles(cifar, ["test_batch"]), mnist, "t10k", 0.5, rng),
    )


def _vehicles(folder: Path, files: list[str]) -> tuple[Array, Array]:
    batches = [pickle.loads((folder / name).read_bytes(), encoding="bytes") for name in files]
    labels = np.concatenate([np.asarray(batch[b"labels"]) for batch in batches])
    images = np.concatenate([np.asarray(batch[b"data"]) for batch in batches]).reshape(
        -1, 3, 32, 32
    )
    chosen = np.isin(labels, (AUTOMOBILE, TRUCK))
    return images[chosen] / 255.0, (labels[chosen] == TRUCK).astype(int)


def _pairs(
    images: Array, y: Array, mnist: Path, half: str, agreement: float, rng: np.random.Generator
) -> Dominoes:
    digits = np.frombuffer(
        (mnist / f"{half}-images-idx3-ubyte").read_bytes(), np.uint8, offset=16
    ).reshape(-1, 28, 28)
    names = np.frombuffer((mnist / f"{half}-labels-idx1-ubyte").read_bytes(), np.uint8, offset=8)
    agrees = np.zeros(len(y), bool)
    for label in (0, 1):
        members = rng.permutation(np.flatnonzero(y == label))
        agrees[members[: round(agreement * len(members))]] = True
    digit = np.where(agrees, y, 1 - y)
    below = np.zeros((len(y), 3, 32, 32))
    for d in (0, 1):
        rows = np.flatnonzero(digit == d)
        chosen = rng.choice(np.flatnonzero(names == d), len(rows))
        below[rows, :, 2:30, 2:30] = digits[chosen, None] / 255.0
    whole = torch.tensor(np.concatenate([images, below], 2), dtype=torch.float32)
    return Dominoes(F.avg_pool2d(whole, 2) - 0.4, torch.tensor(y), torch.tensor(2 * y + digit))


def train(data: Dominoes, seed: int, weights: Array | None = None) -> nn.Module:
    """Three conv blocks, SGD with one cycle of the learning rate; weights enter the loss, with mean one."""
    torch.manual_seed(seed)
    blocks: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        blocks += [
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 2))
    w = (
        torch.ones(len(data.y))
        if weights is None
        else torch.tensor(weights / weights.mean(), dtype=torch.float32)
    )
    steps = -(-len(data.y) // BATCH)
    opt = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9, weight_decay=5e-4, nesterov=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(opt, LR, total_steps=EPOCHS * steps)
    for _ in range(EPOCHS):
        for index in torch.split(torch.randperm(len(data.y)), BATCH):
            losses = F.cross_entropy(net(data.x[index]), data.y[index], reduction="none")
            opt.zero_grad()
            (w[index] * losses).mean().backward()  # type: ignore[no-untyped-call]
            opt.step()
            cycle.step()
    return net.eval()


@torch.no_grad()
def probabilities(net: nn.Module, data: Dominoes) -> Array:
    found: Array = (
        torch.cat([net(x).softmax(1) for x in torch.split(data.x, 1000)]).double().numpy()
    )
    return found


def weights_of(method: str, data: Dominoes, seed: int) -> Array | None:
    """Sample weights, with mean one; None for plain training."""
    if method == "plain":
        return None
    if method == "oracle":
        weights: Array = 1.0 / np.bincount(data.groups)[data.groups]
        weights /= weights.mean()
        return weights
    seeds = iter(range(100 * seed, 100 * seed + 2))
    pairs = torch.utils.data.TensorDataset(data.x, data.y)
    proba = scdro.out_of_fold(
        lambda half: train(data.rows(half.indices), next(seeds)), pairs, folds=2, seed=seed
    )
    found: Array = scdro.second_look_weights(proba.double().numpy(), data.y.numpy())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cifar", type=Path, required=True)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/second_look/dominoes.jsonl"))
    args = parser.parse_args()
    done = (
        [json.loads(line) for line in args.out.read_text().splitlines()]
        if args.out.exists()
        else []
    )
    known = {(row["seed"], row["method"]) for row in done}
    for seed in range(5):
        data, test = load(args.cifar, args.mnist, seed)
        for method in ("second look", "plain", "oracle"):
            if (seed, method) in known:
                continue
            net = train(data, 1000 + seed, weights_of(method, data, seed))
            right = probabilities(net, test).argmax(1) == test.y.numpy()
            groups = [float(right[test.groups.numpy() == g].mean()) for g in range(4)]
            with args.out.open("a") as file:
                file.write(json.dumps({"seed": seed, "method": method, "groups": groups}) + "\n")
            print(seed, method, min(groups), flush=True)


if __name__ == "__main__":
    main()
