"""Does training end near the optimum for all settings? Every rho, scale of the losses and beta, three seeds.

    python benchmarks/stability.py                     # every problem, default and printed temperature (ten minutes)
    python benchmarks/stability.py --problem ten-class --algorithm SCDRO

gap = (robust value at the last iterate - minimum of the robust value) / scale of the losses, both
exact.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from problems import L2, Problem, optimum, problems, robust_value

import scdro
from scdro.optim import FastDRO, KLBall
from scdro.optim._base import ClosureOptimizer
from scdro.printed import PrintedTemperature

STEPS, BATCH = 1000, 64
RHO, SCALE, BETA, SEEDS, LAM1 = (
    (0.1, 0.5, 1.0),
    (0.05, 1.0, 20.0),
    (0.1, 0.5, 0.9),
    (0, 1, 2),
    (0.1, 1.0, 10.0),
)


class Setting(NamedTuple):
    problem: str
    algorithm: str
    lam1: float | None  # None: the default temperature
    rho: float
    scale: float
    beta: float
    seed: int


Maker = Callable[[Setting, torch.Tensor, float], ClosureOptimizer]


def settings(names: Iterable[str], algorithms: Iterable[str], printed: bool) -> list[Setting]:
    first = [None, *LAM1] if printed else [None]
    return [
        Setting(*s) for s in itertools.product(names, algorithms, first, RHO, SCALE, BETA, SEEDS)
    ]


@cache
def _problem(name: str) -> Problem:
    return problems()[name]


def least(key: tuple[str, float, float]) -> tuple[tuple[str, float, float], float]:
    torch.set_num_threads(1)
    name, rho, scale = key
    return key, optimum(_problem(name), rho, scale)


def final_value(s: Setting, make: Maker | None = None) -> float:
    """Robust value after 1,000 steps; lr as for the unscaled problem, times .1 after half and three quarters.

    `make` creates the optimizer from the setting, the parameter and lr; by default the setting's own.
    """
    torch.set_num_threads(1)
    problem = _problem(s.problem)
    generator = torch.Generator().manual_seed(s.seed)
    w = torch.zeros(problem.x.shape[1], problem.outputs, dtype=torch.float64, requires_grad=True)
    opt = (make or _optimizer)(s, w, problem.lr / s.scale)
    schedule = torch.optim.lr_scheduler.MultiStepLR(opt, [STEPS // 2, STEPS * 3 // 4])
    for _ in range(STEPS):
        index = torch.randint(len(problem.x), (BATCH,), generator=generator)
        try:
            opt.step(lambda i=index: s.scale * problem.losses(w, i))  # type: ignore[misc]
        except scdro.errors.NonFiniteLossError:
            return math.inf
        schedule.step()
    return robust_value(problem, w, s.rho, s.scale)


def _optimizer(s: Setting, w: torch.Tensor, lr: float) -> ClosureOptimizer:
    if s.algorithm == "FastDRO":  # for comparison: biased, with the same momentum
        geometry = KLBall(s.rho)
        return FastDRO([w], lr * s.beta, geometry, momentum=1.0 - s.beta, weight_decay=s.scale * L2)
    temperature = None if s.lam1 is None else PrintedTemperature(s.lam1)
    make = scdro.SCDRO if s.algorithm == "SCDRO" else scdro.ASCDRO
    return make([w], lr, s.rho, beta=s.beta, weight_decay=s.scale * L2, temperature=temperature)


def run(todo: list[Setting], workers: int) -> list[tuple[Setting, float]]:
    """The gap of every setting."""
    with ProcessPoolExecutor(workers) as pool:
        keys = sorted({(s.problem, s.rho, s.scale) for s in todo})
        floor = dict(pool.map(least, keys))
        rows = []
        for i, (s, value) in enumerate(
            zip(todo, pool.map(final_value, todo, chunksize=4), strict=True)
        ):
            rows.append((s, (value - floor[s.problem, s.rho, s.scale]) / s.scale))
            if sys.stderr.isatty() or i % 50 == 49:
                print(f"\r{i + 1}/{len(todo)} runs", end="", file=sys.stderr)
        print(file=sys.stderr)
    return rows


def table(rows: list[tuple[Setting, float]]) -> str:
    """Markdown: one line per problem, algorithm and temperature."""
    lines = [
        "| problem | algorithm | lam | runs | median gap | 90th pct | worst | gap > .4 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for key, group in itertools.groupby(
        rows, lambda row: (row[0].problem, row[0].algorithm, row[0].lam1 is None)
    ):
        gaps = sorted(math.inf if math.isnan(gap) else gap for _, gap in group)
        p90 = gaps[math.ceil(0.9 * len(gaps)) - 1]
        failed = sum(g > 0.4 for g in gaps) / len(gaps)
        cells = [*key[:2], "default" if key[2] else "printed", len(gaps)]
        if key[1] == "FastDRO":
            cells[2] = "exact on the batch"
        cells += [*(_shown(g) for g in (statistics.median(gaps), p90, gaps[-1])), f"{failed:.0%}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _shown(gap: float) -> str:
    return f"{gap:.3f}" if gap < 100 else "> 100"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problem", nargs="*", default=list(problems()), choices=list(problems()))
    parser.add_argument(
        "--algorithm", nargs="*", default=["SCDRO", "ASCDRO"], choices=["SCDRO", "ASCDRO"]
    )
    parser.add_argument("--no-printed", action="store_true", help="leave out the paper's update")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results" / "stability"
    )
    args = parser.parse_args()
    todo = settings(args.problem, args.algorithm, not args.no_printed)
    todo += settings(args.problem, ["FastDRO"], False)
    rows = run(
        sorted(todo, key=lambda s: (s.problem, s.algorithm, s.lam1 is not None)), args.workers
    )
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "seeds.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [[*Setting._fields, "gap"], *([*s, f"{gap:.6g}"] for s, gap in rows)]
        )
    text = table(rows)
    (args.out / "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
