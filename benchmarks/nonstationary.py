"""Do the weights of a batch vanish when losses fall? Jumps and drifts of the losses, and a fit that shrinks them.

And the price: does what prevents it change the weights of losses that keep their distribution?

    python benchmarks/nonstationary.py        # a few minutes on one core

The gradient mass of a batch is the sum of its weights, ghat/s: about one while losses keep their
distribution, and near zero if training has stalled. Three rules for s: "beta alone" is the moving
average with the paper's beta, the default bounds it by the newest losses (`lag`), and "memory=16"
also moves it at the rate B/(B + 16).
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import scdro
from scdro.temperature import WindowTemperature, default_size

BETA, RHO, BATCHES = 0.1, (0.5, 2.0), (16, 128)
SPAN = 10  # number of steps over which a mass is averaged
RULES: dict[str, dict[str, Any]] = {
    "beta alone": {"lag": None},
    "default": {},
    "memory=16": {"memory": 16.0},
}
Stream = list[tuple[float, float]]  # the scale and the offset of the losses at each step
Step = Callable[[Callable[[], Tensor]], object]


def window(rho: float, batch: int) -> int:
    """Number of batches that fill the window of recent losses."""
    return math.ceil(default_size(rho) / batch)


def streams() -> Iterator[tuple[str, Stream, int]]:
    """A name, the stream, and the step at which the losses fall (for a drift, 0)."""
    still = [(1.0, 0.0)]
    yield "none", 200 * still, 0
    for factor in (10.0, 100.0, 1000.0):
        yield (
            f"x{factor:g} for 50 steps, and back",
            [*50 * still, *50 * [(factor, 0.0)], *100 * still],
            100,
        )
        yield f"x1/{factor:g}", [*50 * still, *100 * [(1 / factor, 0.0)]], 50
    yield "+1000 for 50 steps, and back", [*50 * still, *50 * [(1.0, 1000.0)], *100 * still], 100
    for rate in (0.01, 0.03, 0.1):
        yield f"-{rate:.0%} a step", [(math.exp(-rate * t), 0.0) for t in range(200)], 0
    yield (
        "x400 and back every 100 steps",
        [(math.exp(3 * math.sin(t * math.tau / 100)), 0.0) for t in range(200)],
        0,
    )


def method(name: str, params: list[Tensor], lr: float, rho: float, beta: float, rule: str) -> Step:
    temperature = WindowTemperature(**RULES[rule])
    if name == "KLRobustLoss":
        robust = scdro.KLRobustLoss(rho, beta=beta, temperature=temperature)
        sgd = torch.optim.SGD(params, lr, momentum=1 - beta, dampening=1 - beta)

        def step(closure: Callable[[], Tensor]) -> None:
            sgd.zero_grad()
            robust(closure()).backward()
            sgd.step()

        return step
    return getattr(scdro, name)(params, lr, rho, beta=beta, temperature=temperature).step  # type: ignore[no-any-return]


class Masses:
    """The sum of the weights of each batch, computed from the gradient of its losses."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def watch(self, losses: Tensor) -> Tensor:
        losses.register_hook(self._note)  # type: ignore[no-untyped-call]
        return losses

    def _note(self, gradient: Tensor) -> None:
        self._last = gradient.sum().item()

    def end_step(self) -> None:
        """ASCDRO evaluates twice; the last evaluation is at the current point."""
        self.found.append(self._last)


def stream_masses(name: str, stream: Stream, rho: float, batch: int, rule: str) -> list[float]:
    """Losses are squared normal numbers, independent of the model, whose step size is zero."""
    generator, w, masses = (
        torch.Generator().manual_seed(0),
        torch.zeros((), requires_grad=True),
        Masses(),
    )
    step = method(name, [w], 0.0, rho, BETA, rule)
    for scale, level in stream:
        losses = (
            level
            + scale * torch.randn(batch, generator=generator, dtype=torch.float64).square() / 2
        )
        step(lambda losses=losses: masses.watch(losses + w))  # type: ignore[misc]
        masses.end_step()
    return masses.found


def lowest(masses: list[float], first: int) -> float:
    """The lowest mean mass over SPAN consecutive steps, from step `first`."""
    return min(statistics.mean(masses[t : t + SPAN]) for t in range(first, len(masses) - SPAN + 1))


def stream_table(rho: float) -> str:
    cells = [f"batches of {batch}, {rule}" for batch in BATCHES for rule in RULES]
    lines = [f"| change of the losses | {' | '.join(cells)} |", "|---" * (len(cells) + 1) + "|"]
    for change, stream, fall in streams():
        found = []
        for batch, rule in itertools.product(BATCHES, RULES):
            runs = (
                stream_masses(name, stream, rho, batch, rule) for name in ("KLRobustLoss", "ASCDRO")
            )
            found.append(min(lowest(masses, fall + window(rho, batch)) for masses in runs))
        lines.append(f"| {change} | {' | '.join(f'{mass:.2f}' for mass in found)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def drift_mass(rho: float, batch: int, fall: float, rule: str) -> float:
    """The lowest mean mass of SPAN steps in a row while losses of 2.3 +- .3 fall by a share per step."""
    found = []
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        robust = scdro.KLRobustLoss(rho, temperature=WindowTemperature(**RULES[rule]))
        masses = []
        for t in range(300):
            losses = 2.3 + 0.3 * torch.randn(batch, generator=generator, dtype=torch.float64)
            losses = (math.exp(-fall * t) * losses).requires_grad_()
            robust(losses).backward()
            assert losses.grad is not None
            masses.append(losses.grad.sum().item())
        found.append(lowest(masses, 20))
    return min(found)


def small_batch_table(rule: str) -> str:
    falls = (0.0, 0.01, 0.02, 0.05)
    cells = [
        f"rho {rho:g}, batches of {batch}" for rho in (0.5, 2.0, 4.0) for batch in (16, 32, 64)
    ]
    lines = [
        f"| losses fall by | {' | '.join(cells)} |",
        "|---" * (len(cells) + 1) + "|",
    ]
    for fall in falls:
        masses = [
            drift_mass(rho, batch, fall, rule) for rho in (0.5, 2.0, 4.0) for batch in (16, 32, 64)
        ]
        lines.append(f"| {fall:.0%} a step | {' | '.join(f'{mass:.2f}' for mass in masses)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def still_means(rho: float, batch: int, rule: str, steps: int = 600) -> tuple[float, float]:
    """Mean mass and mean value over the second half of a stream that keeps its distribution."""
    generator, found = torch.Generator().manual_seed(0), []
    robust = scdro.KLRobustLoss(rho, temperature=WindowTemperature(**RULES[rule]))
    for _ in range(steps):
        losses = torch.randn(batch, generator=generator, dtype=torch.float64).square() / 2
        value = robust(losses.requires_grad_())
        value.backward()
        assert losses.grad is not None
        found.append((losses.grad.sum().item(), value.item()))
    masses, values = zip(*found[steps // 2 :], strict=True)
    return statistics.mean(masses), statistics.mean(values)


def still_table() -> str:
    head = ["rho", "batch", *(f"{what}, {rule}" for what in ("mass", "value") for rule in RULES)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for rho, batch in itertools.product(RHO, (16, 128, 2048)):
        masses, values = zip(*(still_means(rho, batch, rule) for rule in RULES), strict=True)
        means = (f"{mean:.2f}" for mean in (*masses, *values))
        lines.append(f"| {rho:g} | {batch:,} | {' | '.join(means)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def least_squares(
    step_of: Callable[[list[Tensor]], Step], steps: int = 3000
) -> tuple[list[float], float]:
    """Masses, and the mean squared error at the end; targets of size 100, noise of size 1."""
    generator, masses = torch.Generator().manual_seed(0), Masses()
    made: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    x, slopes = torch.randn(2000, 10, **made), torch.randn(10, **made)
    y = 100 * x @ slopes / slopes.norm() + torch.randn(2000, **made)
    w = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    step = step_of([w])
    for _ in range(steps):
        index = torch.randint(len(x), (128,), generator=generator)
        step(lambda i=index: masses.watch((x[i] @ w - y[i]).square() / 2))  # type: ignore[misc]
        masses.end_step()
    return masses.found, (x @ w - y).square().mean().item()


def _sgd(params: list[Tensor], lr: float) -> Step:
    sgd = torch.optim.SGD(params, lr)

    def step(closure: Callable[[], Tensor]) -> None:
        sgd.zero_grad()
        closure().mean().backward()  # type: ignore[no-untyped-call]
        sgd.step()

    return step


def fit_table(lr: float = 0.02) -> str:
    lines = [
        "| method | beta | rule for s | steps with a mass below 1% | mean squared error |",
        "|---|---|---|---|---|",
    ]
    for name, beta, rule in itertools.product(("SCDRO", "ASCDRO"), (0.01, 0.1), RULES):
        masses, error = least_squares(lambda params: method(name, params, lr, 0.5, beta, rule))  # noqa: B023
        stalled = sum(mass < 0.01 for mass in masses)
        lines.append(f"| {name} | {beta:g} | {rule} | {stalled:,} | {error:.2f} |")
        print(lines[-1], flush=True)
    _, error = least_squares(lambda params: _sgd(params, lr))
    return "\n".join([*lines, f"| SGD |  |  |  | {error:.2f} |"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parents[1] / "results" / "nonstationary" / "table.md",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    parts = [
        f"## Losses that jump and drift, rho = {rho:g}\n\nThe lowest gradient mass of any {SPAN}"
        f" steps in a row, from one window after the fall on (64 batches of 16, 8 of 128); of"
        f" KLRobustLoss and ASCDRO the lower; beta = {BETA:g}.\n\n{stream_table(rho)}"
        for rho in RHO
    ]
    parts += [
        f"## Small batches, {rule}\n\nThe lowest gradient mass of any {SPAN} steps in a row from"
        " step 20 on while losses of 2.3 +- .3 fall, of three seeds the lowest.\n\n"
        f"{small_batch_table(rule)}"
        for rule in ("default", "memory=16")
    ]
    parts.append(
        f"## Least squares with targets of size 100, 3,000 steps, rho = 0.5\n\n{fit_table()}"
    )
    parts.append(
        "## Losses that keep their distribution\n\nMean gradient mass and mean value of"
        f" KLRobustLoss, steps 301 to 600.\n\n{still_table()}"
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
