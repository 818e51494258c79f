"""Contrastive learning on images: the best of several fixed temperatures, compared with learned temperatures.

A small convolutional network learns from two random views of each image, without labels. Its
features are judged by the accuracy of nearest neighbours and of a linear classifier on them.
Several fixed temperatures for all anchors (SogCLR's loss) are compared with learned ones: the
KL-constrained worst case over each anchor's negatives. The settings are chosen on half of the test
images and compared on the other half.

    python examples/contrastive_images.py --data DIR                # DIR contains cifar-10-batches-py
    python examples/contrastive_images.py --data DIR --tail 0.02    # the last class has 2% of the first one's images
    python examples/contrastive_images.py --quick                   # scikit-learn's digits, a few steps
"""

from __future__ import annotations

import argparse
import math
import pickle
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from tqdm import tqdm

from scdro.contrastive import FixedTemperatures, PrintedTemperatures, RobustContrastiveLoss

TEMPERATURES, RADII = (0.05, 0.1, 0.2, 0.5), (0.2, 0.5, 1.0)


class Images(NamedTuple):
    """Pixels in [0, 1], (n, 3, side, side), and labels, which are used only for evaluation."""

    x: Tensor
    y: Tensor


class Setting(NamedTuple):
    train: Images
    validation: Images
    test: Images
    epochs: int
    batch: int
    width: int
    seeds: int


class Result(NamedTuple):
    """Accuracy of nearest neighbours on validation and test images, and of a linear classifier on test images."""

    validation: float
    neighbours: float
    linear: float
    tau: Tensor


def cifar(root: Path, train: bool) -> Images:
    """CIFAR-10 images at half their size, from the Python version's files."""
    names = [f"data_batch_{k}" for k in range(1, 6)] if train else ["test_batch"]
    folder = root / "cifar-10-batches-py"
    parts = [pickle.loads((folder / name).read_bytes(), encoding="bytes") for name in names]
    pixels = torch.from_numpy(np.concatenate([part[b"data"] for part in parts]))
    labels = torch.tensor([label for part in parts for label in part[b"labels"]])
    return Images(F.avg_pool2d(pixels.view(-1, 3, 32, 32).float() / 255, 2), labels)


def digits() -> tuple[Images, Images]:
    table = load_digits()
    x = torch.tensor(table.images / 16, dtype=torch.float32)[:, None].expand(-1, 3, 8, 8)
    y = torch.tensor(table.target)
    return Images(x[:1000], y[:1000]), Images(x[1000:], y[1000:])


def thinned(images: Images, n: int, tail: float) -> Images:
    """About n images. Each class is rarer than the one before by the same factor, down to `tail` times the first."""
    share = tail ** torch.linspace(0, 1, 10)
    counts = (n * share / share.sum()).round().long()
    first = torch.cat(
        [torch.nonzero(images.y == k).flatten()[:count] for k, count in enumerate(counts.tolist())]
    )
    return Images(images.x[first.sort().values], images.y[first.sort().values])


def halves(images: Images) -> tuple[Images, Images]:
    return Images(images.x[::2], images.y[::2]), Images(images.x[1::2], images.y[1::2])


def view(x: Tensor, rng: torch.Generator) -> Tensor:
    """A random crop of each image, resized, mirrored with probability one half, with changed or removed colours."""
    b = len(x)
    u = torch.rand(8, b, generator=rng)
    scale = torch.sqrt(0.25 + 0.75 * u[0])
    flip = torch.where(u[1] < 0.5, -1.0, 1.0)
    shift = (2 * u[2:4] - 1) * (1 - scale)
    zero = torch.zeros(b)
    affine = torch.stack([scale * flip, zero, shift[0], zero, scale, shift[1]], 1).view(b, 2, 3)
    x = F.grid_sample(
        x, F.affine_grid(affine, list(x.shape), align_corners=False), align_corners=False
    )
    grey = x.mean(1, keepdim=True)
    saturation = torch.where(u[4] < 0.2, 0.0, 0.6 + 0.8 * u[5]).view(b, 1, 1, 1)
    x = grey + saturation * (x - grey)
    mean = x.mean((1, 2, 3), keepdim=True)
    contrast, brightness = (0.6 + 0.8 * u[k].view(b, 1, 1, 1) for k in (6, 7))
    return (brightness * (mean + contrast * (x - mean))).clamp(0.0, 1.0)


class Encoder(nn.Module):
    """Three convolutions; `project` is dropped after training, as is usual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (3, width, 2 * width, 4 * width)
        layers = [
            nn.Sequential(
                nn.Conv2d(a, b, 3, 1 + (a > 3), 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()
            )
            for a, b in pairwise(sizes)
        ]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.project = nn.Sequential(
            nn.Linear(16 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 64)
        )
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.project(self.features(x - 0.5))
        return z


def fit(loss: RobustContrastiveLoss, setting: Setting, seed: int) -> Encoder:
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    model, n = Encoder(setting.width), len(setting.train.x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    steps = setting.epochs * (n // setting.batch)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: 0.5 * (1 + math.cos(math.pi * t / steps))
    )
    for _ in range(setting.epochs):
        for index in torch.split(torch.randperm(n, generator=rng), setting.batch)[
            : n // setting.batch
        ]:
            x = setting.train.x[index]
            both = torch.cat([view(x, rng), view(x, rng)]).contiguous(
                memory_format=torch.channels_last
            )
            first, second = model(both).chunk(2)
            optimizer.zero_grad()
            loss(first, second, index).backward()
            optimizer.step()
            schedule.step()
    return model


@torch.no_grad()
def embedded(model: Encoder, images: Images) -> Tensor:
    model.eval()
    return torch.cat(
        [F.normalize(model.features(part - 0.5), dim=1) for part in torch.split(images.x, 500)]
    )


def scores(model: Encoder, setting: Setting) -> tuple[float, float, float]:
    """Accuracy of the 20 nearest neighbours, weighted by similarity, and of logistic regression."""
    train, validation, test = (
        embedded(model, part) for part in (setting.train, setting.validation, setting.test)
    )

    def neighbours(x: Tensor, y: Tensor) -> float:
        near = (x @ train.T).topk(20)
        votes = torch.zeros(len(x), 10).scatter_add_(
            1, setting.train.y[near.indices], torch.exp(near.values / 0.1)
        )
        return float((votes.argmax(1) == y).float().mean())

    probe = LogisticRegression(C=10.0, max_iter=300).fit(train.numpy(), setting.train.y.numpy())
    linear = float(probe.score(test.numpy(), setting.test.y.numpy()))
    return neighbours(validation, setting.validation.y), neighbours(test, setting.test.y), linear


def run(name: str, value: float, setting: Setting, seed: int) -> Result:
    n = len(setting.train.x)
    loss = {
        "fixed": lambda: RobustContrastiveLoss(n, 0.0, temperature=FixedTemperatures(value)),
        "learned": lambda: RobustContrastiveLoss(n, value),
        "iSogCLR's steps": lambda: RobustContrastiveLoss(
            n, value, temperature=PrintedTemperatures(initial=0.1, lr=0.01)
        ),
    }[name]()
    model = fit(loss, setting, seed)
    return Result(*scores(model, setting), loss.tau[~loss.tau.isnan()])


def cell(results: list[Result], column: str) -> str:
    seeds = 100 * np.array([getattr(result, column) for result in results])
    return f"{seeds.mean():.1f}" + (f" ± {seeds.std(ddof=1):.1f}" if len(seeds) > 1 else "")


def row(what: str, results: list[Result]) -> str:
    cells = [cell(results, column) for column in ("validation", "neighbours", "linear")]
    low, middle, high = np.quantile(
        torch.cat([result.tau for result in results]).numpy(), [0.05, 0.5, 0.95]
    )
    return f"| {what} | {' | '.join(cells)} | {low:.3f}, {middle:.3f}, {high:.3f} |"


def setting_of(args: argparse.Namespace) -> Setting:
    epochs, seeds = (1, 1) if args.quick else (args.epochs, args.seeds)
    if args.data is None:
        train, test = digits()
        return Setting(train, *halves(test), epochs, batch=200, width=8, seeds=seeds)
    train = thinned(cifar(args.data, True), args.images, args.tail)
    return Setting(
        train, *halves(cifar(args.data, False)), epochs, batch=256, width=16, seeds=seeds
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder that contains cifar-10-batches-py")
    parser.add_argument("--images", type=int, default=5_000, help="number of training images")
    parser.add_argument(
        "--tail", type=float, default=1.0, help="the rarest class's share of the first one's images"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="one epoch, one seed, one setting each"
    )
    args = parser.parse_args()
    setting = setting_of(args)
    trials = (
        [("fixed", tau) for tau in TEMPERATURES]
        + [("learned", rho) for rho in RADII]
        + [("iSogCLR's steps", 0.5)]
    )
    if args.quick:
        trials = [("fixed", 0.1), ("learned", 0.5)]
    print(
        "| temperatures | neighbours, validation, % | neighbours, % | linear, % | tau: 5%, median,"
        " 95% |"
    )
    print("|---|---|---|---|---|")
    start = time.process_time()
    found: dict[str, list[tuple[str, list[Result]]]] = {}
    for name, value in tqdm(trials, desc="training", unit="run", mininterval=1, disable=args.quick):
        results = [run(name, value, setting, seed) for seed in range(setting.seeds)]
        what = f"{name}, {'tau' if name == 'fixed' else 'rho'} = {value:g}"
        found.setdefault(name, []).append((what, results))
        tqdm.write(row(what, results))
    spent = time.process_time() - start
    print(
        f"\n{len(setting.train.x)} images, {setting.epochs} epochs, {setting.seeds} seeds;"
        f" {spent:.0f} s of CPU time."
    )
    for tried in found.values():
        what, results = max(
            tried, key=lambda one: np.mean([result.validation for result in one[1]])
        )
        print(
            f"Chosen of {len(tried)}: {what}: {cell(results, 'neighbours')} and"
            f" {cell(results, 'linear')}."
        )


if __name__ == "__main__":
    main()
