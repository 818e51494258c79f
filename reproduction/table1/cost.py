"""The time of a step as the number n of training samples grows: O(d) against O(n + d).

The model is linear with 50 features. The batch is the same at every n; only the state of the
methods grows. PG-SMD2 is timed within a stage; the start of a stage also needs a forward pass over
all n. "SPD, inside" is SPD while p is inside the KL ball, where no operation of size n is needed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from reproduction.baselines import PGSMD2, SPD, AccMDA, DualSGM
from reproduction.table1.runs import one_thread
from scdro.functional import worst_case
from scdro.optim import (
    ASCDRO,
    RASCDRO,
    RSCDRO,
    SCDRO,
    FastDRO,
    KLBall,
    decay_stages,
)

__all__ = ["STEPPERS", "step_seconds", "steps"]

BATCH, FEATURES, RHO = 64, 50, 0.5
Maker = Callable[[Any, int], Any]


def _spd(params: Any, n: int) -> SPD:
    """At the edge of the ball, where p is most of the time."""
    opt = SPD(params, 0.1, RHO, n=n, dual_lr=2 / n)
    opt._dual.respond(torch.rand(n, dtype=torch.float64), 1e-3)
    return opt


def _pgsmd2(params: Any, n: int) -> PGSMD2:
    """Within a stage, which starts at the edge."""
    return PGSMD2(
        params, 0.1, RHO, n=n, dual_lr=2 / n, stage_steps=10**9, all_losses=lambda: torch.rand(n)
    )


def _accmda(params: Any, n: int) -> AccMDA:
    opt = AccMDA(params, 0.1, RHO, n=n, dual_lr=20 / n**2)
    opt._y = worst_case(torch.rand(n, dtype=torch.float64), RHO).weights
    return opt


# Each takes steps of a few per cent.
STEPPERS: Mapping[str, Maker] = {
    "PG-SMD2": _pgsmd2,
    "AccMDA": _accmda,
    "Dual SGM": lambda params, n: DualSGM(params, 0.1, RHO),
    "SCDRO": lambda params, n: SCDRO(params, 0.1, RHO),
    "ASCDRO": lambda params, n: ASCDRO(params, 0.1, RHO),
    "FastDRO": lambda params, n: FastDRO(params, 0.1, KLBall(RHO)),
    "SPD": _spd,
    "SPD, inside": lambda params, n: SPD(params, 0.1, RHO, n=n, dual_lr=2 / n),
    "RSCDRO": lambda params, n: RSCDRO(params, decay_stages(0.1, 0.1, [10]), RHO),
    "RASCDRO": lambda params, n: RASCDRO(params, decay_stages(0.1, 0.1, [10]), RHO),
}


def steps(name: str, n: int) -> Iterator[float]:
    """CPU seconds of one step after another, without end; the first one also constructs the optimizer."""
    generator = torch.Generator().manual_seed(0)
    model, x = nn.Linear(FEATURES, 2), torch.randn(BATCH, FEATURES, generator=generator)
    y = torch.randint(2, (BATCH,), generator=generator)

    def losses() -> Tensor:
        return cross_entropy(model(x), y, reduction="none")

    opt = STEPPERS[name](model.parameters(), n)
    draws = isinstance(opt, SPD)
    if draws:
        opt.draw(BATCH, generator)
    # The heaviest rise: p leaves the ball wherever it was at the edge.
    index = opt.weights.topk(BATCH).indices if hasattr(opt, "weights") else torch.arange(BATCH)
    while True:
        begin = time.process_time()
        if draws:
            opt.draw(BATCH, generator)
        opt.step(losses, index)
        yield time.process_time() - begin


def step_seconds(name: str, n: int, seconds: float, most: int = 2000) -> float:
    """The median CPU time of a step, over this many seconds and at least four steps, after the first."""
    times: list[float] = []
    with one_thread():
        begin = time.perf_counter()
        for taken in steps(name, n):
            times.append(taken)
            if len(times) >= 5 and (time.perf_counter() - begin > seconds or len(times) > most):
                break
    return statistics.median(times[1:])
