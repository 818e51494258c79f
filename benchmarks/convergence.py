"""Every method on the same two problems, searched over the same step sizes: robust objective by samples and by time.

    python benchmarks/convergence.py run       # search, refine, five seeds, tables and figure; resumes where it stopped
    python benchmarks/convergence.py report    # tables and figure of the runs that are there
    python benchmarks/convergence.py ceiling   # SCDRO on the network with and without its ceiling, over lr

The measure is the exact KL-constrained worst case at rho = .5 over all training samples, for every
method, even those that minimise something else. The floor of the convex problem is its exact
optimum.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from problems import L2, Problem, blobs, worst_case
from problems import optimum as exact_optimum
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import scdro
from reproduction.baselines import REGISTRY
from reproduction.paired import PairedDifference, difference_of, verdicts

ROOT = Path(__file__).parents[1]
RHO, BATCH, EPOCHS, TUNING_SEED, SEEDS, POINTS = 0.5, 128, 3, 0, (1, 2, 3, 4, 5), 24
DECAY_AFTER = (
    2 / 3
)  # of the samples: the paper's convex setting divides lr by ten after two of three epochs
PROBLEMS = ("convex", "network")

# -- the search
# -------------------------------------------------------------------------------------------------------

Settings = dict[str, Any]

# A method's effective step is how far a constant gradient moves it: lr / (1 - momentum), or lr if
# momentum is damped.
STEPS = tuple(10 ** (-2 + k / 2) for k in range(7))
FINER_STEPS = tuple(
    10 ** (k / 6) for k in (-2, -1, 1, 2)
)  # times the best; its neighbours are at 10^(+-1/2)
# Bounds on the norm of a gradient, the same for every method: none and 2 are tried with every step
# and value, two others near the better one afterwards.
BOUNDS: Mapping[float | None, tuple[float, float]] = {None: (8.0, 4.0), 2.0: (4.0, 1.0)}
Point = tuple[float, float, float | None]  # an effective step, a value, a bound


@dataclass(frozen=True)
class Search:
    """What is searched of a method besides its step and the bound on its gradients.

    Attributes:
        setting: its name.
        values: seven; the second, fourth and sixth are tried with every step, the neighbours of the
            best afterwards.
        fixed: the rest.
        damped: whether a step is lr itself; else it is lr / (1 - momentum).
    """

    setting: str
    values: tuple[float, ...]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    damped: bool = True

    def settings(self, step: float, value: float, bound: float | None = None) -> Settings:
        own = {self.setting: value, **self.fixed}
        if bound is not None:
            own["max_grad_norm"] = bound
        return {"lr": float(f"{step * (1.0 if self.damped else 1.0 - own['momentum']):.4g}"), **own}

    def coarse(self) -> list[Point]:
        return list(itertools.product(STEPS, self.values[1::2], BOUNDS))

    def finer(self, step: float, value: float, bound: float | None) -> list[Point]:
        at = self.values.index(value)
        steps: list[Point] = [(step * factor, value, bound) for factor in FINER_STEPS]
        values: list[Point] = [(step, self.values[near], bound) for near in (at - 1, at + 1)]
        return steps + values + [(step, value, near) for near in BOUNDS[bound]]


_BETA = (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
_MOMENTUM = (0.95, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0)
_LAM = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_DUAL_LR = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_HALF = {"momentum": 0.5}
SEARCHES: Mapping[str, Search] = {
    "SCDRO": Search("beta", _BETA),
    "FastDRO": Search("momentum", _MOMENTUM, damped=False),
    "ASCDRO": Search("beta", _BETA),
    "ERM": Search("momentum", _MOMENTUM, damped=False),
    "TERM": Search("lam", _LAM, {"gamma": 1.0, **_HALF}, damped=False),
    "FastDRO-chi2-penalty": Search("reg", _LAM, _HALF, damped=False),
    "SCDRO-printed": Search("lam", _LAM, {"beta": 0.5}),
    "ABSGD": Search("lam", _LAM, {"gamma": 0.5, **_HALF}, damped=False),
    "RECOVER": Search("lam", _LAM, {"beta": 0.5}),
    "DualSGM": Search("lam", _LAM, {"dual_lr": 0.03, **_HALF}, damped=False),
    "PGSMD2": Search("dual_lr", _DUAL_LR, {"stage_steps": 100}),
    "FastDRO-chi2": Search("momentum", _MOMENTUM, damped=False),
    "FastDRO-CVaR": Search("alpha", (0.07, 0.1, 0.14, 0.2, 0.3, 0.5, 0.7), _HALF, damped=False),
    "Focal": Search("gamma", (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0), _HALF, damped=False),
    "ClassBalanced": Search(
        "balance", (0.97, 0.99, 0.997, 0.999, 0.9997, 0.9999, 0.99997), _HALF, damped=False
    ),
    "GroupDRO": Search("dual_lr", (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1), _HALF, damped=False),
    "FastDRO-MLMC": Search(
        "smallest", (8, 16, 32, 64, 128, 256, 512), {"largest": 1024, **_HALF}, damped=False
    ),
    "SPD": Search("dual_lr", _DUAL_LR),
    "AccMDA": Search("dual_lr", _DUAL_LR),
}


# -- the problems
# -----------------------------------------------------------------------------------------------------


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
    keep = torch.cat(
        [torch.nonzero(double.y == c)[: (5000 if c >= 10 else 100) // 2, 0] for c in range(20)]
    )
    return Task(name, double.x[keep].float(), order[double.y[keep]])


@cache
def _linear() -> Problem:
    return blobs("", 5000, 100, 10, 7)


@cache
def floor() -> float:
    return exact_optimum(_linear(), RHO, 1.0)


def robust_objective(where: Task, model: nn.Module) -> float:
    model.eval()  # BatchNorm's running statistics, if there are any
    with torch.no_grad():
        losses = cross_entropy(model(where.x), where.y, reduction="none").double().numpy()
        size = sum(float((p.double() ** 2).sum()) for p in model.parameters())
    model.train()
    return worst_case(losses, RHO)[0] + 0.5 * L2 * size if math.isfinite(losses.sum()) else math.inf


# -- one run
# ----------------------------------------------------------------------------------------------------------


@dataclass
class Budget:
    """Number of samples processed, including forward passes over all of them."""

    spent: int = 0


def run(
    where: Task,
    name: str,
    settings: dict[str, Any],
    seed: int,
    points: int = 1,
    batch: int = BATCH,
    total: int | None = None,
) -> list[tuple[int, float, float]]:
    """(samples, seconds, robust objective) at `points` evenly spaced numbers of samples; the last is the end.

    `total` is the number of samples, three epochs by default. "max_grad_norm" among the settings
    bounds the norm of each gradient, for any method.
    """
    torch.set_num_threads(1)
    n, method, model, budget = len(where.x), REGISTRY[name], where.model(seed), Budget()
    total = EPOCHS * n if total is None else total
    settings = dict(settings)
    bound = settings.pop("max_grad_norm", None)
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
        "milestones": [int(DECAY_AFTER * total / batch)],
    }
    opt = method.build(model.parameters(), facts, weight_decay=L2, **settings)
    curve: list[tuple[int, float, float]] = []
    seconds, decayed = 0.0, method.own_schedule
    start = time.process_time()
    sampler = method.batches(opt, n, batch, seed)
    for index in (torch.tensor(rows) for _ in itertools.count() for rows in sampler):
        try:
            opt.step(
                lambda i=index: per_sample(model(where.x[i]), where.y[i]),  # type: ignore[misc]
                index,
                max_grad_norm=bound,
            )
        except scdro.errors.NonFiniteLossError:
            return [(budget.spent, seconds, math.inf)] * points
        budget.spent += len(index)
        if not decayed and budget.spent >= DECAY_AFTER * total:
            decayed = True
            for group in opt.param_groups:
                group["lr"] *= 0.1
        if budget.spent >= total * (len(curve) + 1) / points:
            seconds += time.process_time() - start
            curve.append((budget.spent, seconds, robust_objective(where, model)))
            if len(curve) >= points:
                return curve
            start = time.process_time()
    raise AssertionError("batches do not end")


# -- sweeps
# -----------------------------------------------------------------------------------------------------------

Row = dict[str, Any]


class Record:
    """Runs in a file, a line each; those that are there are not repeated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[Row] = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )

    def get(self, problem: str, name: str, settings: Settings, seed: int, points: int) -> Row:
        identity = {"problem": problem, "method": name, "settings": settings, "seed": seed}
        for row in self.rows:
            if all(row[key] == value for key, value in identity.items()):
                return row
        curve = [
            [samples, round(seconds, 4), round(value, 6) if math.isfinite(value) else None]
            for samples, seconds, value in run(task(problem), name, settings, seed, points)
        ]
        self.rows.append({**identity, "curve": curve})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")
        return self.rows[-1]

    def of(self, problem: str, name: str) -> list[Row]:
        return [row for row in self.rows if (row["problem"], row["method"]) == (problem, name)]


def value_of(row: Row) -> float:
    """The robust objective at the end of a run, infinite where it diverged."""
    end = row["curve"][-1][2]
    return math.inf if end is None else float(end)


def searched(tried: Record, problem: str, name: str) -> Row:
    """The best trial: of every step with every value and bound, then of those around the best of them."""
    search = SEARCHES[name]

    def trial(point: Point) -> Row:
        return tried.get(problem, name, search.settings(*point), TUNING_SEED, 1)

    best = min(search.coarse(), key=lambda point: value_of(trial(point)))
    return min((trial(point) for point in [best, *search.finer(*best)]), key=value_of)


def sweep(problems: Iterable[str], names: Iterable[str], tried: Record, found: Record) -> None:
    for name, problem in itertools.product(names, problems):
        best = searched(tried, problem, name)["settings"]
        ends = [value_of(found.get(problem, name, best, seed, POINTS)) for seed in SEEDS]
        print(problem, name, best, " ".join(f"{end:.4f}" for end in ends), flush=True)


# -- report
# -----------------------------------------------------------------------------------------------------------


def complete(found: Record, problem: str) -> dict[str, list[Row]]:
    """The methods with all seeds."""
    runs = {name: sorted(found.of(problem, name), key=lambda row: row["seed"]) for name in SEARCHES}
    return {name: rows for name, rows in runs.items() if len(rows) == len(SEEDS)}


def compared(found: Record, problem: str) -> dict[str, tuple[PairedDifference, str]]:
    """SCDRO against every other method, paired by seed, and what holds for all of them at once."""
    runs = {
        name: [value_of(row) for row in rows] for name, rows in complete(found, problem).items()
    }
    others = [name for name in runs if name != "SCDRO"]
    gaps = [
        difference_of(("SCDRO", other, "robust objective"), runs["SCDRO"], runs[other])
        for other in others
    ]
    return {
        other: (gap, word) for other, gap, word in zip(others, gaps, verdicts(gaps), strict=True)
    }


def cells(problem: str, tried: Record, found: Record) -> Iterator[list[str]]:
    below, near = (floor(), 2.0) if problem == "convex" else (0.0, 1.1)
    against = compared(found, problem)
    for name, rows in sorted(complete(found, problem).items(), key=lambda item: _mean(item[1])):
        ends = [value_of(row) - below for row in rows]
        own = [value_of(row) - below for row in tried.of(problem, name)]
        easy = sum(value <= near * min(own) for value in own) / len(own)
        seconds = statistics.median(row["curve"][-1][1] for row in rows)
        gap, word = against.get(name, (None, ""))
        settings = ", ".join(f"{key} {value:g}" for key, value in rows[0]["settings"].items())
        yield [
            name,
            _number(statistics.fmean(ends)),
            f"{_number(min(ends))} to {_number(max(ends))}",
            "" if gap is None else f"{gap.mean:+.4f} ({gap.low:+.4f} to {gap.high:+.4f})",
            word,
            f"{seconds:.1f}",
            f"{easy:.0%}",
            settings,
        ]


def table(problem: str, tried: Record, found: Record) -> str:
    shown, near = ("gap to the optimum", 2.0) if problem == "convex" else ("robust objective", 1.1)
    head = [
        "method",
        f"{shown}, mean of {len(SEEDS)}",
        "range",
        "SCDRO minus it, 95% interval",
        "SCDRO is",
    ]
    head += ["seconds", f"trials within {near:g} x the best", "settings"]
    return "\n".join(
        f"| {' | '.join(row)} |"
        for row in [head, ["---"] * len(head), *cells(problem, tried, found)]
    )


def report(problems: Sequence[str], tried: Record, found: Record, out: Path) -> str:
    """table.md, seeds.csv, trials.csv, config.json and the figure of what is there."""
    parts = [
        f"### {problem}\n\n{table(problem, tried, found)}"
        for problem in problems
        if complete(found, problem)
    ]
    text = "\n\n".join(parts) + "\n"
    (out / "table.md").write_text(text)
    for record, path in ((tried, out / "trials.csv"), (found, out / "seeds.csv")):
        with path.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(
                ["problem", "method", "settings", "seed", "samples", "seconds", "robust objective"]
            )
            for row in record.rows:
                words = " ".join(f"{key}={value:g}" for key, value in row["settings"].items())
                writer.writerow(
                    [row["problem"], row["method"], words, row["seed"], *row["curve"][-1]]
                )
    config = {
        "rho": RHO,
        "batch": BATCH,
        "epochs": EPOCHS,
        "weight_decay": L2,
        "tuning_seed": TUNING_SEED,
        "seeds": SEEDS,
        "steps": [float(f"{step:.4g}") for step in STEPS],
        "bounds": [[first, *near] for first, near in BOUNDS.items()],
        "torch": torch.__version__,
        "searches": {
            name: {
                "setting": own.setting,
                "values": own.values,
                "fixed": dict(own.fixed),
                "damped": own.damped,
            }
            for name, own in SEARCHES.items()
        },
    }
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    figure(found, out / "figure.png")
    return text


def _mean(rows: Sequence[Row]) -> float:
    return statistics.fmean(map(value_of, rows))


def _number(value: float) -> str:
    return f"{value:.4f}" if value < 1e3 else "diverged" if math.isinf(value) else f"{value:.3g}"


SHOWN = ("SCDRO", "ASCDRO", "FastDRO", "FastDRO-MLMC", "DualSGM", "SPD", "PGSMD2", "AccMDA", "ERM")


def figure(found: Record, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fig, axes = pyplot.subplots(2, 2, figsize=(11, 7.5), sharey="row")
    styles = [
        *itertools.product(
            ("-",), ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
        )
    ]
    styles += [("--", "#0072B2"), (":", "#777777")]
    for row, problem in enumerate(PROBLEMS):
        below = floor() if problem == "convex" else 0.0
        for name, (line, colour) in zip(SHOWN, styles, strict=True):
            curves = [
                [[math.inf if v is None else v for v in p] for p in r["curve"]]
                for r in found.of(problem, name)
            ]
            if not curves:
                continue
            middle = [
                [statistics.median(c[k][i] for c in curves) for k in range(POINTS)]
                for i in range(3)
            ]
            value = [v - below for v in middle[2]]
            for column, x in enumerate((middle[0], middle[1])):
                axes[row][column].plot(x, value, line, color=colour, label=name, linewidth=1.8)
        axes[row][0].set_ylabel(
            "gap to the exact optimum" if problem == "convex" else "robust objective"
        )
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
            ends = [
                run(where, "SCDRO", {"lr": lr, "beta": 0.1, **temperature}, seed)[-1][2]
                for seed in SEEDS
            ]
            middle = statistics.median(math.inf if math.isnan(v) else v for v in ends)
            cells.append(f"{middle:.3f}" if middle < 1e3 else "diverged")
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "report", "ceiling"])
    parser.add_argument("--problem", nargs="*", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--method", nargs="*", default=list(SEARCHES), choices=list(SEARCHES))
    parser.add_argument(
        "--runs",
        type=Path,
        default=ROOT / "runs" / "convergence",
        help="where every run is recorded",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "convergence")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.what == "ceiling":
        text = ceiling_table()
        (args.out / "ceiling.md").write_text(text + "\n")
        print(text)
        return
    tried, found = Record(args.runs / "trials.jsonl"), Record(args.runs / "seeds.jsonl")
    if args.what == "run":
        sweep(args.problem, args.method, tried, found)
    print(report(args.problem, tried, found, args.out))


if __name__ == "__main__":
    main()
