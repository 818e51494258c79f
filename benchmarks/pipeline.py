"""The cost of the input pipeline compared with the training step, alternating the two.

    python benchmarks/pipeline.py --data DIR     # the folder with CIFAR-10; without it, random images of the same size

A batch of 128 CIFAR images, drawn, cropped, flipped and normalised, against forward, backward and
step of a ResNet20. The step is timed with and without `keep_freed_memory`, which the command line
sets.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from reproduction.data import CIFAR10ST
from reproduction.data.augment import CropFlip
from reproduction.data.images import ImageData
from reproduction.data.loading import LoadedBatch, MemoryBatches
from reproduction.engine.memory import keep_freed_memory
from reproduction.engine.networks import CifarResNet

ABOUT = """# What the input pipeline costs

    python benchmarks/pipeline.py --data DIR     # the folder with CIFAR-10

- **batch**: 128 images drawn, cropped, flipped and normalised; the median, in milliseconds.
- **step**: forward, backward and step of a ResNet20 on that batch; the median, taking turns with the batches.
- **memory**: "kept" is `keep_freed_memory`, which the `scdro` command sets: what is freed stays for the next step.
"""


def made_up(n: int = 25_500) -> ImageData:
    images = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8)
    names = [str(c) for c in range(10)]
    return ImageData(
        images, torch.arange(n) % 10, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), names=names
    )


def forever(batches: MemoryBatches) -> Iterator[LoadedBatch]:
    while True:
        yield from batches


class Trainer:
    def __init__(self) -> None:
        self.model = CifarResNet(20, 10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def measure(source: Iterator[LoadedBatch], trainer: Trainer, rounds: int) -> tuple[float, float]:
    """Median seconds of a batch and of a step."""
    pairs = []
    for _ in range(rounds + 3):
        start = time.perf_counter()
        x, y, _ = next(source)
        middle = time.perf_counter()
        trainer.step(x, y)
        pairs.append((middle - start, time.perf_counter() - middle))
    batch, step = (statistics.median(side) for side in zip(*pairs[3:], strict=True))
    return batch, step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results" / "pipeline" / "table.md"
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    data = made_up() if args.data is None else CIFAR10ST(args.data)
    source = forever(MemoryBatches(data, 128, augment=CropFlip()))
    lines = [
        ABOUT,
        (
            f"{'Made-up images' if args.data is None else 'CIFAR10-ST'}, threads:"
            f" {torch.get_num_threads()}."
        ),
        "",
        "| memory | batch, ms | step, ms | pipeline's share of both |",
        "|---|---|---|---|",
    ]
    for name in ("as glibc has it", "kept"):
        if name == "kept":
            keep_freed_memory()
        batch, step = measure(source, Trainer(), args.rounds)
        lines.append(
            f"| {name} | {1e3 * batch:.2f} | {1e3 * step:.1f} | {batch / (batch + step):.1%} |"
        )
        print(lines[-1], flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
