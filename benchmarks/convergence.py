"""Every method on the same two problems, tuned with equally many trials: robust objective by samples and by time.

    python benchmarks/convergence.py tune      # 45 trials per method and problem; resumes where it stopped
    python benchmarks/convergence.py curves    # the best of each again, three seeds, one run at a time for timing
    python benchmarks/convergence.py report    # figure and tables
    python benchmarks/convergence.py ceiling   # SCDRO on the network with and without its ceiling, over lr

The measure is the exact KL-constrained worst case at rho = .5 over all training samples, for every method, even those
that minimise something else. The floor of the convex problem is its exact optimum.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from problems import L2, Problem, blobs, worst_case
from problems import optimum as exact_optimum
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import scdro
from scdro.optim import REGISTRY

ROOT = Path(__file__).parents[1]
RHO, BATCH, EPOCHS, TRIALS, SEEDS, POINTS = 0.5, 128, 3, 45, (1, 2, 3), 24
DECAY_AFTER = 2 / 3  # of the samples: the paper's convex setting divides lr by ten after two of three epochs

_LR = (0.01, 0.05, 0.1, 0.5, 1.0)
_FINE_LR = tuple(round(10 ** (-2.5 + 3 * k / 14), 4) for k in range(15))
_DUAL_LR = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1)
_MOMENTUM = (0.0, 0.5, 0.9)
_BETA = tuple(k / 10 for k in range(1, 10))
# If the paper's grid has fewer than 45 points, it is made finer or longer; if it has more, beta gets fewer values.
GRIDS: dict[str, Mapping[str, Sequence[Any]]] = {
    **{name: {"lr": _LR, "beta": _BETA} for name in ("SCDRO", "ASCDRO", "RSCDRO", "RASCDRO")},
    **{key: {"lr": _FINE_LR, "momentum": _MOMENTUM} for key in ("ERM", "FastDRO", "FastDRO-chi2")},
    **{
        name: {"lr": _LR, "beta": (0.1, 0.5, 0.9), "lam": (0.1, 1.0, 10.0)}
        for name in ("SCDRO-printed", "ASCDRO-printed", "RSCDRO-printed", "RASCDRO-printed")
    },
    **{key: {"lr": _LR, "dual_lr": _DUAL_LR} for key in ("SPD", "AccMDA", "GroupDRO")},
    "PGSMD2": {"lr": _LR, "dual_lr": _DUAL_LR, "stage_steps": (100,)},
    "FastDRO-MLMC": {"lr": _FINE_LR, "smallest": (16, 32, 64), "largest": (1024,)},
    "FastDRO-CVaR": {"lr": _LR, "alpha": (0.1, 0.2, 0.5), "momentum": _MOMENTUM},
    "FastDRO-chi2-penalty": {"lr": _LR, "reg": (0.1, 1.0, 10.0), "momentum": _MOMENTUM},
    "DualSGM": {"lr": _LR, "lam": (0.1, 1.0, 10.0), "dual_lr": (0.01, 0.1, 1.0)},
    "ABSGD": {"lr": _LR, "lam": (0.1, 1.0, 10.0), "gamma": (0.1, 0.5, 0.9)},
    "RECOVER": {"lr": _LR, "beta": (0.1, 0.5, 0.9), "lam": (1.0, 50.0, 100.0)},
    "TERM": {"lr": _LR, "lam": (0.1, 1.0, 10.0), "gamma": (1.0,), "momentum": _MOMENTUM},
    "Focal": {"lr": _LR, "gamma": (0.5, 2.0, 5.0), "momentum": _MOMENTUM},
    "ClassBalanced": {"lr": _LR, "balance": (0.99, 0.999, 0.9999), "momentum": _MOMENTUM},
}


def trials(name: str) -> list[dict[str, Any]]:
    grid = GRIDS[name]
    every = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    assert len(every) == TRIALS, (name, len(every))
    return every


# -- the problems -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Data and an initial model, the same for every method."""

    name: str
    x: Tensor
    y: Tensor

    def model(self, seed: int) -> nn.Module:
        d, k = self.x.shape[1], int(self.y.max()) + 1
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if self.name == "convex":
                model: nn.Module = nn.Linear(d, k, bias=False, dtype=self.x.dtype)
                nn.init.zeros_(model.weight)  # type: ignore[arg-type]
            else:
                model = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, k))
        return model


@cache
def task(name: str) -> Task:
    """Ten classes, five of them rare: 5 x 100 + 5 x 5,000 samples, the sizes of CIFAR10-ST."""
    linear = _linear()
    if name == "convex":
        return Task(name, linear.x, linear.y)
    # Each class has two clusters, so that no linear model separates them.
    double = blobs("", 5000, 100, 20, 11, sep=2.2)
    order = torch.arange(20) // 2
    keep = torch.cat([torch.nonzero(double.y == c)[: (5000 if c >= 10 else 100) // 2, 0] for c in range(20)])
    return Task(name, double.x[keep].float(), order[double.y[keep]])


@cache
def _linear() -> Problem:
    return blobs("", 5000, 100, 10, 7)


@cache
def floor() -> float:
    return exact_optimum(_linear(), RHO, 1.0)


def robust_objective(where: Task, model: nn.Module) -> float:
    with torch.no_grad():
        losses = cross_entropy(model(where.x), where.y, reduction="none").double().numpy()
        size = sum(float((p.double() ** 2).sum()) for p in model.parameters())
    return worst_case(losses, RHO)[0] + 0.5 * L2 * size if math.isfinite(losses.sum()) else math.inf


# -- one run ----------------------------------------------------------------------------------------------------------


@dataclass
class Budget:
    """Number of samples processed, including forward passes over all of them."""

    spent: int = 0


def run(where: Task, name: str, settings: dict[str, Any], seed: int, points: int = 1) -> list[tuple[int, float, float]]:
    """(samples, seconds, robust objective) at `points` evenly spaced numbers of samples; the last is the end."""
    torch.set_num_threads(1)
    n, method, model, budget = len(where.x), REGISTRY[name], where.model(seed), Budget()
    total = EPOCHS * n
    per_sample = method.per_sample(torch.bincount(where.y), **settings)

    def all_losses() -> Tensor:
        budget.spent += n
        return per_sample(model(where.x), where.y)

    facts = {
        "rho": RHO,
        "n": n,
        "groups": where.y,
        "module": model,
        "all_losses": all_losses,
        "milestones": [int(DECAY_AFTER * total / BATCH)],
    }
    opt = method.build(model.parameters(), facts, weight_decay=L2, **settings)
    curve: list[tuple[int, float, float]] = []
    seconds, decayed = 0.0, method.own_schedule
    start = time.perf_counter()
    sampler = method.batches(opt, n, BATCH, seed)
    for index in (torch.tensor(rows) for _ in itertools.count() for rows in sampler):
        try:
            opt.step(lambda i=index: per_sample(model(where.x[i]), where.y[i]), index)  # type: ignore[misc]
        except scdro.errors.NonFiniteLossError:
            return [(budget.spent, seconds, math.inf)] * points
        budget.spent += len(index)
        if not decayed and budget.spent >= DECAY_AFTER * total:
            decayed = True
            for group in opt.param_groups:
                group["lr"] *= 0.1
        if budget.spent >= total * (len(curve) + 1) / points:
            seconds += time.perf_counter() - start
            curve.append((budget.spent, seconds, robust_objective(where, model)))
            if len(curve) >= points:
                return curve
            start = time.perf_counter()
    raise AssertionError("batches do not end")


# -- sweeps -----------------------------------------------------------------------------------------------------------

Row = dict[str, Any]


def _tuned(job: tuple[str, str, dict[str, Any]]) -> Row:
    problem, name, settings = job
    ((_, seconds, value),) = run(task(problem), name, settings, seed=0)
    return {"problem": problem, "method": name, "settings": settings, "value": value, "seconds": round(seconds, 2)}


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tune(problems: Iterable[str], names: Iterable[str], path: Path, workers: int) -> None:
    done = {(r["problem"], r["method"], json.dumps(r["settings"])) for r in read(path)}
    jobs = [(p, m, s) for p in problems for m in names for s in trials(m) if (p, m, json.dumps(s)) not in done]
    print(f"{len(jobs)} trials to go", flush=True)
    with ProcessPoolExecutor(workers) as pool, path.open("a") as file:
        for k, row in enumerate(pool.map(_tuned, jobs)):
            file.write(json.dumps(row) + "\n")
            file.flush()
            if k % TRIALS == TRIALS - 1:
                print(f"{k + 1}/{len(jobs)} {row['problem']} {row['method']}", flush=True)


def best(rows: list[Row], problem: str, name: str) -> Row:
    own = [r for r in rows if (r["problem"], r["method"]) == (problem, name)]
    return min(own, key=lambda r: math.inf if math.isnan(r["value"]) else r["value"])


def curves(problems: Iterable[str], names: Iterable[str], tuned: Path, path: Path) -> None:
    rows = read(tuned)
    done = {(r["problem"], r["method"], r["seed"], json.dumps(r["settings"])) for r in read(path)}
    with path.open("a") as file:
        for problem, name, seed in itertools.product(problems, names, SEEDS):
            settings = best(rows, problem, name)["settings"]
            if (problem, name, seed, json.dumps(settings)) in done:
                continue
            found = [
                [samples, round(seconds, 4), round(value, 6)]
                for samples, seconds, value in run(task(problem), name, settings, seed, POINTS)
            ]
            row = {"problem": problem, "method": name, "seed": seed, "settings": settings, "curve": found}
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(problem, name, seed, f"{found[-1][2]:.4f} in {found[-1][1]:.1f} s", flush=True)


# -- report -----------------------------------------------------------------------------------------------------------


def ends(rows: list[Row], problem: str, name: str) -> list[list[float]]:
    """The last point of each seed's curve."""
    return [r["curve"][-1] for r in rows if (r["problem"], r["method"]) == (problem, name)]


def table(problem: str, tuned: list[Row], rows: list[Row]) -> str:
    shown = "gap to the optimum" if problem == "convex" else "robust objective"
    below, near = (floor(), 2.0) if problem == "convex" else (0.0, 1.1)
    lines = [
        f"| method | {shown} (median of 3) | range | seconds | trials within {near:g} x the best | settings |",
        "|---|---|---|---|---|---|",
    ]
    scored = []
    for name in REGISTRY:
        last = ends(rows, problem, name)
        if not last:
            continue
        values = [v - below for _, _, v in last]
        own = [r["value"] - below for r in tuned if (r["problem"], r["method"]) == (problem, name)]
        easy = sum(v <= near * min(own) for v in own) / len(own)
        seconds = statistics.median(s for _, s, _ in last)
        settings = ", ".join(f"{k} {v:g}" for k, v in best(tuned, problem, name)["settings"].items())
        cells = [name, f"{statistics.median(values):.4f}", f"{min(values):.4f} to {max(values):.4f}", f"{seconds:.1f}"]
        scored.append((statistics.median(values), [*cells, f"{easy:.0%}", settings]))
    lines += [f"| {' | '.join(cells)} |" for _, cells in sorted(scored, key=lambda pair: pair[0])]
    return "\n".join(lines)


SHOWN = ("SCDRO", "ASCDRO", "FastDRO", "FastDRO-MLMC", "DualSGM", "SPD", "PGSMD2", "AccMDA", "ERM")


def figure(rows: list[Row], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fig, axes = pyplot.subplots(2, 2, figsize=(11, 7.5), sharey="row")
    styles = [*itertools.product(("-",), ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"))]
    styles += [("--", "#0072B2"), (":", "#777777")]
    for row, problem in enumerate(("convex", "network")):
        below = floor() if problem == "convex" else 0.0
        for name, (line, colour) in zip(SHOWN, styles, strict=True):
            found = [r["curve"] for r in rows if (r["problem"], r["method"]) == (problem, name)]
            if not found:
                continue
            middle = [[statistics.median(c[k][i] for c in found) for k in range(POINTS)] for i in range(3)]
            value = [v - below for v in middle[2]]
            for column, x in enumerate((middle[0], middle[1])):
                axes[row][column].plot(x, value, line, color=colour, label=name, linewidth=1.8)
        axes[row][0].set_ylabel("gap to the exact optimum" if problem == "convex" else "robust objective")
        axes[row][0].set_title(f"{problem}: against samples", loc="left", fontsize=10)
        axes[row][1].set_title(f"{problem}: against seconds", loc="left", fontsize=10)
        axes[row][1].set_xscale("log")
        for ax in axes[row]:
            ax.set_yscale("log")
            ax.grid(alpha=0.25, which="both")
    axes[1][0].set_xlabel("samples processed")
    axes[1][1].set_xlabel("seconds, one core")
    axes[0][1].legend(fontsize=8, ncol=2)
    fig.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)


def ceiling_table() -> str:
    """Robust objective of SCDRO on the network, median over seeds, by default and without its ceiling."""
    steps, where = (0.05, 0.1, 0.2, 0.3), task("network")
    lines = [f"| lr | {' | '.join(map(str, steps))} |", "|---" * (len(steps) + 1) + "|"]
    for label, temperature in (
        ("default", {}),
        ("ceiling=None", {"temperature": scdro.temperature.WindowTemperature(ceiling=None)}),
    ):
        cells = []
        for lr in steps:
            ends = [run(where, "SCDRO", {"lr": lr, "beta": 0.1, **temperature}, seed)[-1][2] for seed in SEEDS]
            middle = statistics.median(math.inf if math.isnan(v) else v for v in ends)
            cells.append(f"{middle:.3f}" if middle < 1e3 else "diverged")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tune", "curves", "report", "ceiling"])
    parser.add_argument("--problem", nargs="*", default=["convex", "network"], choices=["convex", "network"])
    parser.add_argument("--method", nargs="*", default=list(REGISTRY), choices=list(REGISTRY))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "convergence")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    tuned, found = args.out / "trials.jsonl", args.out / "curves.jsonl"
    if args.what == "tune":
        tune(args.problem, args.method, tuned, args.workers)
    elif args.what == "curves":
        curves(args.problem, args.method, tuned, found)
    elif args.what == "ceiling":
        text = ceiling_table()
        (args.out / "ceiling.md").write_text(text + "\n")
        print(text)
    else:
        text = "\n\n".join(f"### {p}\n\n{table(p, read(tuned), read(found))}" for p in args.problem)
        (args.out / "tables.md").write_text(text + "\n")
        figure(read(found), ROOT / "docs" / "img" / "convergence.png")
        print(text)


if __name__ == "__main__":
    main()
