"""How often the interval of `worst_subgroup` holds the truth, where the truth is known.

Five columns of normal numbers, of which two matter (three for log losses). What the columns tell:

    none     nothing: the worst share is the mean
    weak     mean loss .2 + .05 tanh(z1) + .03 sin(z2): .12 to .28, hardly anything to find
    slice    .15, and .5 where z1 > 1 and z2 > 0 (8% of the rows): an edge
    strong   sigmoid(2 z1 - 1.5 + 1.5 z1 z2 [z1 > 0]): 0 to 1, with an interaction

and the kind of loss, always with a known mean mu for each row:

    zero-one   1 with probability mu
    heavy      mu times the square of Student's t with 5 degrees of freedom, over its mean:
               the variance is finite, the third moment is not
    log        log loss of a model that knows z3 only, where the truth has the signal too
    weighted   zero-one, rows with weights exp(z1/2 + z4/2), which depend on mu
    units      zero-one, units of five rows with the same columns; half of the rows repeat
               the loss of their unit

The truth is the worst share alpha of mu (or the KL ball of radius .1) over four million rows. `run`
saves fits, so that `table` gives the intervals of the code as it is. The table says how often the
95% interval holds the truth, how often each end misses it, how often the usual interval around the
debiased estimate, which trusts the fit, would hold it, and how often that holds the mean mu of the
rows that were picked. The target "curve" is the band over the four shares at once.

Two constants of the upper end were chosen on the draws from seed 0; the table in results/ is made of
those from seed 5000 on (`--first 5000`).

python benchmarks/audit_coverage.py run --cache DIR --minutes 30   (again: goes on)
python benchmarks/audit_coverage.py table --cache DIR --out results/audit_coverage/table.csv
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from scipy.special import expit

from scdro.auditing import worst_subgroup
from scdro.auditing._subgroup import (
    LEAST_WORST_ROWS,
    CrossFit,
    Subject,
    _compute_curve,
    _count_independent,
    estimate_ball,
    estimate_share,
)  # fmt: skip

Array = npt.NDArray[Any]
SIGNALS = ("none", "weak", "slice", "strong")
KINDS = ("zero-one", "log", "heavy", "weighted", "units")
CELLS = [
    ("none", "zero-one"),
    *((signal, kind) for signal in SIGNALS[1:] for kind in KINDS[:3]),
    *((signal, kind) for signal in ("weak", "strong") for kind in KINDS[3:]),
]
ALPHAS = (0.05, 0.1, 0.2, 0.5)
RHO = 0.1
REPEATS = {1_000: 10, 10_000: 4, 100_000: 1}  # repetitions of each size in one round
UNIT = 5  # rows of a unit


def probability(z: Array, signal: str) -> Array:
    """mu of a 0-1 loss."""
    first, second = z[:, 0], z[:, 1]
    mu: Array
    if signal == "none":
        mu = np.full(len(z), 0.2)
    elif signal == "weak":
        mu = 0.2 + 0.05 * np.tanh(first) + 0.03 * np.sin(second)
    elif signal == "slice":
        mu = 0.15 + 0.35 * ((first > 1) & (second > 0))
    else:
        mu = expit(2 * first - 1.5 + 1.5 * first * second * (first > 0))
    return mu


def log_odds(z: Array, signal: str) -> tuple[Array, Array]:
    """For log losses: of the model, and the truth."""
    first, second = z[:, 0], z[:, 1]
    known = -1.5 + 0.8 * z[:, 2]
    missed = {
        "weak": 0.5 * np.tanh(first) + 0.3 * np.sin(second),
        "slice": 2.0 * ((first > 1) & (second > 0)),
        "strong": 2 * first + 1.5 * first * second * (first > 0),
    }[signal]
    return known, known + missed


def mean_loss(z: Array, signal: str, kind: str) -> Array:
    """mu of every row."""
    if kind != "log":
        return probability(z, signal)
    model, truth = (expit(odds) for odds in log_odds(z, signal))
    mu: Array = -(truth * np.log(model) + (1 - truth) * np.log1p(-model))
    return mu


def draw(n: int, signal: str, kind: str, rng: np.random.Generator) -> tuple[Array, ...]:
    """Columns, losses and weights."""
    z = rng.normal(size=(n, 5))
    weight = np.ones(n)
    if kind == "log":
        model, truth = (expit(odds) for odds in log_odds(z, signal))
        return z, np.where(rng.random(n) < truth, -np.log(model), -np.log1p(-model)), weight
    if kind == "heavy":
        return z, probability(z, signal) * rng.standard_t(5, n) ** 2 * 0.6, weight
    chance = rng.random(n)
    if kind == "units":
        first = np.arange(n) // UNIT * UNIT
        z = z[first]
        chance = np.where(rng.random(n) < 0.5, chance, chance[first])
    if kind == "weighted":
        weight = np.exp((z[:, 0] + z[:, 3]) / 2)
    return z, (chance < probability(z, signal)).astype(float), weight


@cache
def truths(signal: str, kind: str) -> dict[str, float]:
    """The worst cases of mu itself."""
    z = np.random.default_rng(0).normal(size=(4_000_000, 3))
    mu = mean_loss(z, signal, kind)
    w = np.exp(z[:, 0] / 2) if kind == "weighted" else np.ones(len(z))
    order = np.argsort(-mu)
    mu, w = mu[order], w[order] / w.sum()
    mass = np.cumsum(w)
    found = {}
    for alpha in ALPHAS:
        part = np.diff(np.minimum(mass, alpha), prepend=0.0)
        found[f"alpha={alpha:g}"] = float(part @ mu / alpha)
    if np.ptp(mu) == 0:
        return {**found, f"rho={RHO:g}": float(mu[0])}

    def dual(log_lam: float) -> float:
        lam = float(np.exp(log_lam))
        return lam * RHO + lam * float(np.log(w @ np.exp((mu - mu[0]) / lam))) + float(mu[0])

    ball = minimize_scalar(dual, bounds=(-9, 9), method="bounded", options={"xatol": 1e-3})
    return {**found, f"rho={RHO:g}": float(ball.fun)}


def run(folder: Path, minutes: float, first: int, part: int, parts: int) -> None:
    """One round after another until the time is over; every file of the folder is one fit."""
    end = time.monotonic() + 60 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    for number, (n, signal, kind, seed) in enumerate(schedule(first)):
        if time.monotonic() > end:
            return
        file = folder / f"{n}_{signal}_{kind}_{seed}.npz"
        if number // len(CELLS) % parts != part or file.exists():
            continue
        rng = np.random.default_rng([2027, n, SIGNALS.index(signal), KINDS.index(kind), seed])
        z, losses, weight = draw(n, signal, kind, rng)
        worst = worst_subgroup(
            losses,
            {f"z{k + 1}": z[:, k] for k in range(5)},
            alpha=0.5,
            sample_weight=weight if kind == "weighted" else None,
            groups=np.arange(n) // UNIT if kind == "units" else None,
            seed=seed,
        )
        saved = {"losses": losses, "mu": worst.fit.mu, "truth": mean_loss(z, signal, kind)}
        saved["weight"] = weight if kind == "weighted" else weight[:1]
        saved = {name: values.astype(np.float32) for name, values in saved.items()}
        new = file.with_name(f"{part}.new.npz")
        np.savez_compressed(new, reliability=np.float64(worst.reliability), **saved)  # type: ignore[arg-type]
        new.rename(file)


def schedule(first: int) -> Iterator[tuple[int, str, str, int]]:
    for number in range(1_000_000):
        for n, repeats in REPEATS.items():
            for seed in range(first + number * repeats, first + (number + 1) * repeats):
                for signal, kind in CELLS:
                    if n == min(REPEATS) or kind in KINDS[:3]:
                        yield n, signal, kind, seed


def intervals(file: Path) -> Iterator[tuple[tuple[int, str, str, str], list[float]]]:
    """Of one saved fit, the cell and the numbers of each target."""
    rows, signal, kind, _ = file.stem.split("_")
    n, saved, known = int(rows), np.load(file), truths(signal, kind)
    losses, mu, truth = (saved[name].astype(float) for name in ("losses", "mu", "truth"))
    units = np.arange(n) // UNIT if kind == "units" else None
    weight = np.broadcast_to(saved["weight"].astype(float), (n,))
    subject = Subject(losses, weight, units, {}, [])
    fit = CrossFit(subject, mu, float(saved["reliability"]))
    alphas = [alpha for alpha in ALPHAS if alpha * _count_independent(subject) >= LEAST_WORST_ROWS]
    for target in [*(f"alpha={alpha:g}" for alpha in alphas), f"rho={RHO:g}"]:
        value = float(target.split("=")[1])
        one = (estimate_ball if target.startswith("rho") else estimate_share)(fit, value, 0.95)
        near = [abs(one.value - other) <= 1.96 * one.error for other in (known[target], np.nan)]
        if not target.startswith("rho"):
            near[1] = (
                abs(one.value - np.average(truth, weights=weight * one.members)) <= 1.96 * one.error
            )
        numbers = [known[target], one.value, one.low, one.high, fit.reliability, *map(float, near)]
        yield (n, signal, kind, target), numbers
    band = _compute_curve(fit, alphas, 0.95)
    true = np.array([known[f"alpha={alpha:g}"] for alpha in alphas])
    # how far the band is above the truth, and below: both are right if they are not positive
    above, below = (band["band_low"] - true).max(), (true - band["band_high"]).max()
    yield (n, signal, kind, "curve"), [0.0, 0.0, above, -below, fit.reliability, np.nan, np.nan]


def table(folder: Path, out: Path) -> None:
    """Coverage for each size, signal, kind and target."""
    cells: dict[tuple[int, str, str, str], list[list[float]]] = {}
    for file in sorted(folder.glob("*_*.npz")):
        for cell, numbers in intervals(file):
            cells.setdefault(cell, []).append(numbers)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(
            ["rows", "signal", "loss", "target", "draws", "covered", "low_above_truth",
             "high_below_truth", "usual", "picked", "truth", "estimate", "low", "high", "reliability"]
        )  # fmt: skip
        for cell in sorted(cells, key=lambda c: (c[0], SIGNALS.index(c[1]), KINDS.index(c[2]))):
            truth, value, low, high, reliability, usual, picked = np.array(cells[cell]).T
            above, below = low > truth, high < truth
            shares = [float(x.mean()) for x in (~above & ~below, above, below, usual, picked)]
            means = [float(x.mean()) for x in (truth, value, low, high, reliability)]
            if cell[3] == "curve":
                means[:4] = [np.nan] * 4
            shown = ["" if np.isnan(x) else f"{x:.3f}" for x in shares + means]
            writer.writerow([*cell, len(truth), *shown])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--part", type=int, default=0, help="of `--parts` runs at once")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/audit_coverage/table.csv"))
    args = parser.parse_args()
    if args.what == "run":
        run(args.cache, args.minutes, args.first, args.part, args.parts)
    else:
        table(args.cache, args.out)


if __name__ == "__main__":
    main()
