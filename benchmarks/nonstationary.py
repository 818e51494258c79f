"""Do the weights of a batch vanish when losses fall? Jumps and drifts of the losses, and a fit that shrinks them.

And the price: does the bound that prevents it (`lag`) change the weights of losses that keep their distribution?

    python benchmarks/nonstationary.py        # a few minutes on one core

The gradient mass of a batch is the sum of its weights, ghat/s: about one while losses keep their distribution, and
near zero if training has stalled. With `lag=None`, s is only the moving average.
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
from scdro.temperature import default_size

BATCH, BETA, RHO = 128, (0.01, 0.1, 0.5, 0.9), (0.1, 0.5, 2.0)
SPAN = 10  # number of steps over which a mass is averaged
LAGS = {"lag=None": None, "default": scdro.temperature.WindowTemperature().lag}
Stream = list[tuple[float, float]]  # the scale and the offset of the losses at each step
Step = Callable[[Callable[[], Tensor]], object]


def window(rho: float) -> int:
    """Number of batches that fill the window of recent losses."""
    return math.ceil(default_size(rho) / BATCH)


def streams() -> Iterator[tuple[str, Stream, int]]:
    """A name, the stream, and the step at which the losses fall (for a drift, 0)."""
    still = [(1.0, 0.0)]
    yield "none", 200 * still, 0
    for factor in (10.0, 100.0, 1000.0):
        yield f"x{factor:g} for 50 steps, and back", [*50 * still, *50 * [(factor, 0.0)], *100 * still], 100
        yield f"x1/{factor:g} for 50 steps, and back", [*50 * still, *50 * [(1 / factor, 0.0)]], 50
    yield "+1000 for 50 steps, and back", [*50 * still, *50 * [(1.0, 1000.0)], *100 * still], 100
    for rate in (0.01, 0.03, 0.1):
        yield f"-{rate:.0%} a step", [(math.exp(-rate * t), 0.0) for t in range(200)], 0
    yield "x400 and back every 100 steps", [(math.exp(3 * math.sin(t * math.tau / 100)), 0.0) for t in range(200)], 0


def method(name: str, params: list[Tensor], lr: float, rho: float, beta: float, lag: float | None) -> Step:
    temperature = scdro.temperature.WindowTemperature(lag=lag)
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


def stream_masses(name: str, stream: Stream, rho: float, beta: float, lag: float | None) -> list[float]:
    """Losses are squared normal numbers, independent of the model, whose step size is zero."""
    generator, w, masses = torch.Generator().manual_seed(0), torch.zeros((), requires_grad=True), Masses()
    step = method(name, [w], 0.0, rho, beta, lag)
    for scale, level in stream:
        losses = level + scale * torch.randn(BATCH, generator=generator, dtype=torch.float64).square() / 2
        step(lambda losses=losses: masses.watch(losses + w))  # type: ignore[misc]
        masses.end_step()
    return masses.found


def lowest(masses: list[float], first: int) -> float:
    """The lowest mean mass over SPAN consecutive steps, from step `first`."""
    return min(statistics.mean(masses[t : t + SPAN]) for t in range(first, len(masses) - SPAN + 1))


def stream_table(rho: float) -> str:
    cells = [f"beta {beta:g}, {label}" for beta in BETA for label in LAGS]
    lines = [f"| change of the losses | {' | '.join(cells)} |", "|---" * (len(cells) + 1) + "|"]
    for change, stream, fall in streams():
        found = []
        for beta, lag in itertools.product(BETA, LAGS.values()):
            runs = (stream_masses(name, stream, rho, beta, lag) for name in ("KLRobustLoss", "ASCDRO"))
            found.append(min(lowest(masses, fall + window(rho)) for masses in runs))
        lines.append(f"| {change} | {' | '.join(f'{mass:.2f}' for mass in found)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def still_means(rho: float, beta: float, batch: int, lag: float | None, steps: int = 600) -> tuple[float, float]:
    """Mean mass and mean value over the second half of a stream that keeps its distribution."""
    generator, found = torch.Generator().manual_seed(0), []
    robust = scdro.KLRobustLoss(rho, beta=beta, temperature=scdro.temperature.WindowTemperature(lag=lag))
    for _ in range(steps):
        losses = torch.randn(batch, generator=generator, dtype=torch.float64).square() / 2
        value = robust(losses.requires_grad_())
        value.backward()
        assert losses.grad is not None
        found.append((losses.grad.sum().item(), value.item()))
    masses, values = zip(*found[steps // 2 :], strict=True)
    return statistics.mean(masses), statistics.mean(values)


def still_table() -> str:
    lines = [
        "| rho | beta | batch | mass, lag=None | mass, default | value, lag=None | value, default |",
        "|---" * 7 + "|",
    ]
    for rho, beta, batch in itertools.product(RHO, BETA[:3], (16, 128, 2048)):
        masses, values = zip(*(still_means(rho, beta, batch, lag) for lag in LAGS.values()), strict=True)
        cells = [f"{rho:g}", f"{beta:g}", f"{batch:,}", *(f"{mean:.2f}" for mean in (*masses, *values))]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def least_squares(step_of: Callable[[list[Tensor]], Step], steps: int = 3000) -> tuple[list[float], float]:
    """Masses, and the mean squared error at the end; targets of size 100, noise of size 1."""
    generator, masses = torch.Generator().manual_seed(0), Masses()
    made: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    x, slopes = torch.randn(2000, 10, **made), torch.randn(10, **made)
    y = 100 * x @ slopes / slopes.norm() + torch.randn(2000, **made)
    w = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    step = step_of([w])
    for _ in range(steps):
        index = torch.randint(len(x), (BATCH,), generator=generator)
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
    lines = ["| method | beta | lag | steps with a mass below 1% | mean squared error |", "|---|---|---|---|---|"]
    for name, beta, (label, lag) in itertools.product(("SCDRO", "ASCDRO"), BETA, LAGS.items()):
        masses, error = least_squares(lambda params: method(name, params, lr, 0.5, beta, lag))  # noqa: B023
        lines.append(f"| {name} | {beta:g} | {label} | {sum(m < 0.01 for m in masses):,} | {error:.2f} |")
        print(lines[-1], flush=True)
    _, error = least_squares(lambda params: _sgd(params, lr))
    return "\n".join([*lines, f"| SGD |  |  |  | {error:.2f} |"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results" / "nonstationary" / "table.md"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    parts = [
        f"## Losses that jump and drift, rho = {rho:g}\n\nThe lowest gradient mass of any {SPAN} steps in a row, from "
        f"one window ({window(rho)} batches of {BATCH}) after the fall on; of KLRobustLoss and ASCDRO the lower."
        f"\n\n{stream_table(rho)}"
        for rho in RHO
    ]
    parts.append(f"## Least squares with targets of size 100, 3,000 steps, rho = 0.5\n\n{fit_table()}")
    parts.append(
        "## Losses that keep their distribution\n\nMean gradient mass and mean value of KLRobustLoss, steps 301 to 600."
        f"\n\n{still_table()}"
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
