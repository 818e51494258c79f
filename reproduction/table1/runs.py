"""One run: T steps of an algorithm with one seed, and the exact measure at the iterates of its theorem."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reproduction.baselines import SPD
from reproduction.table1.methods import ROWS, MethodRow, Plan
from reproduction.table1.problems import PROBLEMS, Problem
from scdro.errors import ScdroError

__all__ = ["Look", "measure", "one_thread", "strata"]


def measure(row_key: str, horizon: int, seed: int, iterates: int) -> dict[str, Any]:
    """A record: samples seen, the measure averaged over random iterates, and the part of it from the later half.

    The theorems speak of one iterate drawn at random; several, weighted by what each stands for,
    have the same expectation and less noise. A run that diverges has no value.
    """
    row = next(row for row in ROWS if row.key == row_key)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{row_key}/{horizon}/{seed}".encode()))
    problem = PROBLEMS[row.problem]
    w = problem.start().requires_grad_()
    plan = row.plan(problem, w, horizon)
    looks = strata(len(plan.looks), iterates, generator)
    try:
        with one_thread():
            values = _values(
                row, problem, w, plan, {plan.looks[look.position] for look in looks}, generator
            )
    except ScdroError:
        values = [math.nan]
    value, late = values[0], None
    if not plan.average and len(values) == len(looks):
        parts = [look.share * value for look, value in zip(looks, values, strict=True)]
        value = math.fsum(parts)
        late = math.fsum(
            part
            for look, part in zip(looks, parts, strict=True)
            if 2 * look.position >= len(plan.looks)
        )
    finite = math.isfinite(value)
    return {
        "row": row_key,
        "horizon": horizon,
        "seed": seed,
        "samples": plan.steps * plan.batch + plan.passes * problem.n,
        "value": value if finite else None,
        "late": late if finite else None,
    }


def _values(
    row: MethodRow,
    problem: Problem,
    w: Tensor,
    plan: Plan,
    due: set[int],
    generator: torch.Generator,
) -> list[float]:
    """The measure after each number of steps that is due, or at the mean of all iterates."""
    values: list[float] = []
    mean = torch.zeros_like(w, requires_grad=False)
    for t in range(plan.steps):
        if t in due:
            values.append(row.at(problem, w, plan.opt))
        if plan.average:
            mean.lerp_(w.detach(), 1 / (t + 1))
        plan.before(t + 1)
        index = _drawn(plan, problem.n, generator)
        plan.opt.step(lambda index=index: problem.losses(w, index), index)
    return [row.at(problem, mean, plan.opt)] if plan.average else values


def _drawn(plan: Plan, n: int, generator: torch.Generator) -> Tensor:
    """A batch, with replacement: uniform, or from the method's own distribution."""
    if isinstance(plan.opt, SPD):
        return plan.opt.draw(plan.batch, generator)
    return torch.randint(n, (plan.batch,), generator=generator)


class Look(NamedTuple):
    """A position, and the share of all positions that it stands for."""

    position: int
    share: float


def strata(size: int, count: int, generator: torch.Generator) -> list[Look]:
    """One position of range(size) at random from each of its parts: half of about `count` of them of equal length, half
    in geometric progression, since the first iterates are few and far from the rest.

    The weighted mean over them is an unbiased estimate of the mean over all positions.

    Example:
        >>> strata(2, 5, torch.Generator())
        [Look(position=0, share=0.5), Look(position=1, share=0.5)]
    """
    if size == 0:
        return []
    half = max(count // 2, 1)
    edges = sorted(
        {
            0,
            *(size * k // half for k in range(1, half + 1)),
            *(int(size ** (k / half)) for k in range(half)),
        }
    )
    draws = torch.rand(len(edges), generator=generator, dtype=torch.float64).tolist()
    return [
        Look(a + min(int(draw * (b - a)), b - a - 1), (b - a) / size)
        for (a, b), draw in zip(pairwise(edges), draws, strict=False)
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: problems are tiny, and sums do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
