"""The cost of a robust step compared with a plain one with several processes, and what they exchange.

    python benchmarks/distributed.py                     # two processes, ResNet20, 64 images each
    python benchmarks/distributed.py --processes 2 4 8   # the exchange alone, for more of them

The plain side is DistributedDataParallel and SGD with momentum 0.9. Both sides alternate within one
run, with gloo on the loopback interface. The last table is what each process computes on the joined
batch; it needs no other processes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch import distributed as dist
from torch import multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import scdro
from reproduction.engine.networks import CifarResNet
from scdro.distributed import Ranks, finish

Step = Callable[[], object]
IMAGES, RHO = 64, 0.5


def plain(x: Tensor, y: Tensor) -> Step:
    model = DistributedDataParallel(CifarResNet(20, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        opt.step()

    return step


def robust_loss(x: Tensor, y: Tensor) -> Step:
    model = DistributedDataParallel(CifarResNet(20, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    robust = scdro.KLRobustLoss(RHO)

    def step() -> None:
        opt.zero_grad()
        robust(F.cross_entropy(model(x), y, reduction="none")).backward()
        opt.step()

    return step


def scdro_step(x: Tensor, y: Tensor) -> Step:
    model = DistributedDataParallel(CifarResNet(20, 10))
    opt = scdro.SCDRO(model.parameters(), lr=0.01, rho=RHO)
    return lambda: opt.step(lambda: F.cross_entropy(model(x), y, reduction="none"))


def seconds(step: Step, repeats: int = 1) -> float:
    dist.barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def start_process(rank: int, size: int, folder: str, task: Callable[[Path], None]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", size)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    task(Path(folder))
    finish()


def run(size: int, task: Callable[[Path], None]) -> list[str]:
    """The lines that rank 0 of `size` processes writes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(start_process, (size, folder, task), nprocs=size)  # type: ignore[attr-defined, no-untyped-call]
        return (Path(folder) / "lines").read_text().splitlines()


class StepTable:
    """Median times of a plain and a robust step, and the median over rounds of their ratio."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def __call__(self, folder: Path) -> None:
        torch.manual_seed(dist.get_rank())
        x = torch.randn(IMAGES, 3, 32, 32).to(memory_format=torch.channels_last)
        y = torch.randint(10, (IMAGES,))
        base, found = plain(x, y), []
        for name, make in (("KLRobustLoss", robust_loss), ("SCDRO", scdro_step)):
            step = make(x, y)
            for _ in range(2):
                seconds(base), seconds(step)
            pairs = [(seconds(base), seconds(step)) for _ in range(self.rounds)]
            a, b = (1e3 * statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(robust / plain for plain, robust in pairs)
            found.append(f"| {name} | {a:.1f} | {b:.1f} | {ratio:.3f} |")
        if dist.get_rank() == 0:
            (folder / "lines").write_text("\n".join(found))


def exchange_table(folder: Path) -> None:
    """Median time to join a batch of 64 losses from each process."""
    ranks, losses = Ranks(), torch.rand(IMAGES, dtype=torch.float64)
    times = [seconds(lambda: ranks.join(losses, None, None), 20) for _ in range(11)]
    if dist.get_rank() == 0:
        sent = 8 * (3 + IMAGES)
        line = (
            f"| {ranks.size} | {sent} | {sent * ranks.size} |"
            f" {1e6 * statistics.median(times[1:]):.0f} |"
        )
        (folder / "lines").write_text(line)


def joined_rows(rounds: int) -> list[str]:
    """What each process computes on the joined losses, without the model, by number of processes (64 losses each)."""
    lines = []
    for size in (1, 10, 100, 1000):
        robust = scdro.KLRobustLoss(RHO, process_group=False)
        losses = torch.rand(size * IMAGES, requires_grad=True)
        for _ in range(30):
            robust(losses)
        times = []
        for _ in range(rounds):
            start = (
                time.process_time()
            )  # CPU time, so that other work on the machine does not count
            robust(losses)
            times.append(time.process_time() - start)
        lines.append(f"| {size} | {size * IMAGES} | {1e6 * statistics.median(times):.0f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[2, 4, 8], help="for the exchange"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parents[1] / "results" / "distributed" / "table.md",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    tables: list[tuple[str, Callable[[], list[str]]]] = [
        (
            (
                f"| 2 processes, ResNet20, {IMAGES} images each | DDP and SGD, ms | robust, ms |"
                " ratio |"
            ),
            lambda: run(2, StepTable(args.rounds)),
        ),
        (
            "| processes | bytes sent by each | bytes received | time of the exchange, us |",
            lambda: [line for size in args.processes for line in run(size, exchange_table)],
        ),
        (
            "| processes | joined losses | CPU time of the loss on them, us |",
            lambda: joined_rows(50),
        ),
    ]
    parts = []
    for header, rows in tables:
        lines = [header, "|---" * (header.count("|") - 1) + "|", *rows()]
        print("\n".join(lines), end="\n\n", flush=True)
        parts.append("\n".join(lines))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
