"""The cost of a robust step compared with a plain one, each ratio measured in one run, alternating the two sides.

    python benchmarks/overhead.py

ResNet20 on batches of 128 CIFAR-sized images; a linear model of 50 features and 10 classes, eager
and compiled; and time per step as a streamed data set grows from 1e4 to 1e8 samples. The plain side
is SGD with momentum 0.9.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import scdro
from reproduction.engine.networks import CifarResNet

Step = Callable[[], object]


def cross_entropy(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def sgd(model: nn.Module, x: Tensor, y: Tensor, compiled: bool = False) -> Step:
    """The usual loop: zero_grad, mean loss, backward, step."""
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def mean_loss() -> Tensor:
        return cross_entropy(model, x, y).mean()

    return _loop(torch.compile(mean_loss, fullgraph=True) if compiled else mean_loss, opt)


def sgd_twice(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Two passes and one step of SGD: what any method costs that evaluates each batch at two points."""
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        for _ in range(2):
            opt.zero_grad()
            cross_entropy(model, x, y).mean().backward()  # type: ignore[no-untyped-call]
        opt.step()

    return step


def robust_loss(model: nn.Module, x: Tensor, y: Tensor, compiled: bool = False) -> Step:
    """SCDRO as a loss: the same loop with one line changed."""
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, dampening=0.9)
    robust = scdro.KLRobustLoss(rho=0.5, beta=0.1)

    def loss() -> Tensor:
        value: Tensor = robust(cross_entropy(model, x, y))
        return value

    return _loop(torch.compile(loss, fullgraph=True) if compiled else loss, opt)


def _loop(loss: Callable[[], Tensor], opt: torch.optim.Optimizer) -> Step:
    def step() -> None:
        opt.zero_grad()
        loss().backward()  # type: ignore[no-untyped-call]
        opt.step()

    return step


def optimizer(
    cls: type[scdro.SCDRO] | type[scdro.ASCDRO], model: nn.Module, x: Tensor, y: Tensor
) -> Step:
    extra: dict[str, Any] = {"module": model} if cls is scdro.ASCDRO else {}
    opt = cls(model.parameters(), lr=0.01, rho=0.5, beta=0.1, **extra)
    return lambda: opt.step(lambda: cross_entropy(model, x, y))


def seconds(step: Step, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def ratio(plain: Step, robust: Step, rounds: int, repeats: int) -> tuple[float, float, float]:
    """Median times of both sides, and the median over rounds of their ratio."""
    for step in (plain, robust):
        seconds(step, max(3, repeats // 4))
    pairs = [(seconds(plain, repeats), seconds(robust, repeats)) for _ in range(rounds)]
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    return a, b, statistics.median(robust / plain for plain, robust in pairs)


def image_rows(rounds: int) -> Iterator[tuple[str, float, float, float]]:
    x = torch.randn(128, 3, 32, 32).to(memory_format=torch.channels_last)
    y = torch.randint(10, (128,))
    for cls in (scdro.SCDRO, scdro.ASCDRO):
        yield (
            f"ResNet20, {cls.__name__}",
            *ratio(
                sgd(CifarResNet(20, 10), x, y),
                optimizer(cls, CifarResNet(20, 10), x, y),
                2 * rounds,
                1,
            ),
        )
    yield (
        "ResNet20, two passes of SGD",
        *ratio(sgd(CifarResNet(20, 10), x, y), sgd_twice(CifarResNet(20, 10), x, y), 2 * rounds, 1),
    )
    yield (
        "ResNet20, KLRobustLoss",
        *ratio(
            sgd(CifarResNet(20, 10), x, y), robust_loss(CifarResNet(20, 10), x, y), 2 * rounds, 1
        ),
    )


def linear_rows(rounds: int) -> Iterator[tuple[str, float, float, float]]:
    x, y = torch.randn(128, 50), torch.randint(10, (128,))

    def model() -> nn.Module:
        return nn.Linear(50, 10)

    plain = sgd(model(), x, y)
    for cls in (scdro.SCDRO, scdro.ASCDRO):
        yield (
            f"linear, {cls.__name__}",
            *ratio(plain, optimizer(cls, model(), x, y), 4 * rounds, 50),
        )
    yield "linear, KLRobustLoss", *ratio(plain, robust_loss(model(), x, y), 4 * rounds, 50)
    both = sgd(model(), x, y, compiled=True), robust_loss(model(), x, y, compiled=True)
    yield "linear, KLRobustLoss, both compiled", *ratio(*both, 4 * rounds, 50)


def stream(n: int, batch: int = 128) -> Iterator[tuple[Tensor, Tensor]]:
    """n samples that are computed instead of stored."""
    generator = torch.Generator().manual_seed(0)
    while True:
        index = torch.randint(n, (batch,), generator=generator)
        x = torch.sin(index.double().unsqueeze(1) * torch.arange(1, 51)).float()
        yield x, (index % 10)


def size_rows(rounds: int) -> Iterator[tuple[str, float]]:
    """Time per SCDRO step as n grows, alternating the sizes."""
    steps = {}
    for n in (10**4, 10**5, 10**6, 10**7, 10**8):
        model, data = nn.Linear(50, 10), stream(n)
        opt = scdro.SCDRO(model.parameters(), lr=0.01, rho=0.5)

        def step(
            opt: scdro.SCDRO = opt,
            model: nn.Module = model,
            data: Iterator[tuple[Tensor, Tensor]] = data,
        ) -> None:
            x, y = next(data)
            opt.step(lambda: cross_entropy(model, x, y))

        steps[n] = step
    times: dict[int, list[float]] = {n: [] for n in steps}
    for _ in range(rounds + 1):
        for n, step in steps.items():
            times[n].append(seconds(step, 300))
    for n, values in times.items():
        yield f"{n:.0e}", statistics.median(values[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results" / "overhead" / "table.md"
    )
    args = parser.parse_args()
    torch.manual_seed(0)
    lines = ["| step | SGD, ms | robust, ms | ratio |", "|---|---|---|---|"]
    for rows in (linear_rows(args.rounds), image_rows(args.rounds)):
        for name, plain, robust, times in rows:
            lines.append(f"| {name} | {1e3 * plain:.3f} | {1e3 * robust:.3f} | {times:.2f} |")
            print(lines[-1], flush=True)
    lines += ["", "| samples n | SCDRO step, ms |", "|---|---|"]
    for name, value in size_rows(args.rounds):
        lines.append(f"| {name} | {1e3 * value:.3f} |")
        print(lines[-1], flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
