"""Hidden groups: digits 2, 3, 8 and 9 are rare inside the classes "even" and "odd", and nobody tells the model.

Trains a small network with ERM, class-balanced ERM and SCDRO; prints a table and draws one picture. `--help` for more.

The protocol. Every sample of the test part is left alone until the end. Settings are chosen once per method, among
18 each, by cross-validation inside the imbalanced training part on seeds of their own, with odd/even labels alone; then
every seed draws its own rare samples, initial weights and batches. Digits are used to report, never to train or choose.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold, train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

import scdro

mpl.use("Agg")
from matplotlib import pyplot as plt

Array = npt.NDArray[Any]
HIDDEN, KEPT = (2, 3, 8, 9), 8
TUNING_SEEDS, FOLDS = (100, 101), 3
METHODS = ("ERM", "class-balanced", "SCDRO")
COLOURS = {"ERM": "#D55E00", "class-balanced": "#E69F00", "SCDRO": "#0072B2"}  # Okabe and Ito
MARKERS = {"ERM": "o", "class-balanced": "s", "SCDRO": "D"}
NEUTRAL = "#777777"


@dataclass(frozen=True)
class Trial:
    """One setting. SCDRO keeps its default step size and tries radii; the others try step sizes."""

    method: str
    weight_decay: float
    epochs: int
    lr: float = 0.1
    rho: float = 0.0

    def __str__(self) -> str:
        knob = f"rho {self.rho:.2f}" if self.method == "SCDRO" else f"lr {self.lr:g}"
        return f"weight decay {self.weight_decay:g}, {self.epochs} epochs, {knob}"


@dataclass(frozen=True)
class Job:
    """Train one setting on one seed: on a fold and judged on the rest of it, or (no fold) on all and on the test."""

    trial: Trial
    seed: int
    fold: int | None = None


@dataclass
class Outcome:
    """What a job reports about the part it is judged on, and, for the picture, about its training."""

    correct: Array
    losses: Array
    train_losses: Array
    curves: list[tuple[float, float]] = field(default_factory=list)  # test accuracy of (hidden, other) digits
    lam: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)


# -- the data --------------------------------------------------------------------------------------------------------


@cache
def digits() -> tuple[Tensor, Array, Array, Array]:
    """Images, digits, and the positions of the training pool and of the test part (40%, all digits)."""
    images, digit = load_digits(return_X_y=True)
    pool, test = train_test_split(np.arange(len(digit)), test_size=0.4, stratify=digit, random_state=0)
    return torch.tensor(images / 16 - 0.3, dtype=torch.float32), digit, pool, test


def training_part(seed: int) -> Array:
    """Positions of the training samples: the whole pool, but only a few of each hidden digit."""
    _, digit, pool, _ = digits()
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(pool[digit[pool] == d])[: KEPT if d in HIDDEN else None] for d in range(10)]
    return np.concatenate(parts)


def parts_of(job: Job) -> tuple[Array, Array]:
    """Positions to train on and to judge on."""
    _, digit, _, test = digits()
    everything = training_part(job.seed)
    if job.fold is None:
        return everything, test
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=job.seed).split(everything, digit[everything] % 2)
    train, held_out = list(folds)[job.fold]
    return everything[train], everything[held_out]


# -- training --------------------------------------------------------------------------------------------------------


def run(job: Job) -> Outcome:
    images, digit, _, _ = digits()
    parity = torch.as_tensor(digit % 2)
    train, judged = (torch.as_tensor(part) for part in parts_of(job))
    trial, watched = job.trial, job.fold is None
    torch.manual_seed(job.seed)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 2))
    class_weight = len(train) / (2 * torch.bincount(parity[train])) if trial.method == "class-balanced" else None

    def losses(rows: Tensor) -> Tensor:
        return cross_entropy(model(images[rows]), parity[rows], weight=class_weight, reduction="none")

    robust = scdro.SCDRO(model.parameters(), rho=trial.rho, weight_decay=trial.weight_decay)
    plain = torch.optim.SGD(model.parameters(), lr=trial.lr, momentum=0.9, weight_decay=trial.weight_decay)
    optimizer = robust if trial.method == "SCDRO" else plain
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, trial.epochs)
    outcome = Outcome(np.empty(0), np.empty(0), np.empty(0))
    for _ in range(trial.epochs):
        for batch in train[torch.randperm(len(train))].split(64):
            if trial.method == "SCDRO":
                robust.step(lambda batch=batch: losses(batch))  # type: ignore[misc]
                if watched:
                    outcome.lam.append(robust.lam.item())
                    outcome.kl.append(robust.kl.item())
            else:
                plain.zero_grad()
                losses(batch).mean().backward()  # type: ignore[no-untyped-call]
                plain.step()
        schedule.step()
        if watched:
            right = right_answers(model, images[judged], parity[judged])
            rare = np.isin(digit[judged], HIDDEN)
            outcome.curves.append((right[rare].mean(), right[~rare].mean()))
    class_weight = None
    with torch.no_grad():
        outcome.correct = right_answers(model, images[judged], parity[judged])
        outcome.losses, outcome.train_losses = losses(judged).numpy(), losses(train).numpy()
    return outcome


@torch.no_grad()
def right_answers(model: nn.Module, images: Tensor, labels: Tensor) -> Array:
    right: Array = (model(images).argmax(1) == labels).numpy()
    return right


def grid(quick: bool) -> list[Trial]:
    """18 settings for every method."""
    decays, epochs = ((1e-4, 1e-2), (15,)) if quick else ((1e-4, 1e-3, 1e-2), (30, 90))
    rates = (0.3,) if quick else (0.1, 0.3, 1.0)
    radii = [scdro.rho_for_group(share) for share in ((0.15,) if quick else (0.4, 0.15, 0.05))]
    plain = [Trial(m, *rest) for m in METHODS[:2] for rest in itertools.product(decays, epochs, rates)]
    return plain + [Trial("SCDRO", wd, e, rho=rho) for wd, e, rho in itertools.product(decays, epochs, radii)]


def score(outcomes: Iterable[Outcome]) -> tuple[float, float]:
    """Cross-validated accuracy, ties by log loss.

    The worst case of the 0-1 loss over a KL ball grows with its mean, so robust accuracy would choose the same.
    """
    outcomes = list(outcomes)
    accuracy, loss = (np.concatenate([getattr(o, name) for o in outcomes]).mean() for name in ("correct", "losses"))
    return float(accuracy), -float(loss)


# -- the report ------------------------------------------------------------------------------------------------------

Results = dict[Trial, list[Outcome]]


def digit_accuracy(outcome: Outcome) -> Array:
    _, digit, _, test = digits()
    return np.array([outcome.correct[digit[test] == d].mean() for d in range(10)])


def figures(outcome: Outcome) -> Array:
    """Percent right: all of the test part, frequent digits, hidden digits, worst digit."""
    _, digit, _, test = digits()
    rare, right = np.isin(digit[test], HIDDEN), outcome.correct
    return 100 * np.array([right.mean(), right[~rare].mean(), right[rare].mean(), digit_accuracy(outcome).min()])


def table(best: dict[str, Trial], results: Results, seeds: Sequence[int]) -> str:
    lines = [f"{'test accuracy, %':<16}{'seed':>10}{'all':>12}{'frequent':>12}{'hidden':>12}{'worst digit':>14}"]
    for method, trial in best.items():
        rows = np.array([figures(o) for o in results[trial]])
        lines += [
            f"{method:<16}{seed:>10}" + "".join(f"{v:>{w}.1f}" for v, w in zip(row, (12, 12, 12, 14), strict=True))
            for seed, row in zip(seeds, rows, strict=True)
        ]
        spread = rows.std(0, ddof=1) if len(rows) > 1 else 0 * rows[0]
        cells = [f"{m:.1f} ± {s:.1f}" for m, s in zip(rows.mean(0), spread, strict=True)]
        lines += [f"{method:<16}{'mean ± std':>10}" + "".join(f"{c:>12}" for c in cells[:3]) + f"{cells[3]:>14}", ""]
    return "\n".join(lines)


def verdict(best: dict[str, Trial], by_decay: dict[str, list[Trial]], results: Results) -> str:
    erm, robust = (np.array([figures(o) for o in results[best[m]]]) for m in ("ERM", "SCDRO"))
    most = {m: np.mean([figures(o) for o in results[by_decay[m][-1]]], 0)[3] for m in ("ERM", "SCDRO")}
    (_, f0, h0, w0), (_, f1, h1, w1) = erm.mean(0), robust.mean(0)
    return (
        f"Seen: with both tuned, SCDRO changes the worst digit by {w1 - w0:+.1f} points ({w0:.1f} to {w1:.1f}; better "
        f"on {(robust[:, 3] > erm[:, 3]).sum()} of {len(erm)} seeds), the hidden digits by {h1 - h0:+.1f} "
        f"(better on {(robust[:, 2] > erm[:, 2]).sum()}), the frequent digits by {f1 - f0:+.1f}. At weight decay "
        f"{by_decay['ERM'][-1].weight_decay:g} the worst digit is at {most['ERM']:.1f} with ERM and {most['SCDRO']:.1f} "
        "with SCDRO:\nERM serves the hidden digits only where the network is left to fit every single sample."
    )


# -- the picture -----------------------------------------------------------------------------------------------------


def draw(best: dict[str, Trial], by_decay: dict[str, list[Trial]], results: Results, seeds: list[int], out: Path) -> None:
    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 12})
    figure = plt.figure(figsize=(15, 9), dpi=100, layout="constrained")
    rows = figure.add_gridspec(2, 1, height_ratios=[1, 1])
    top, bottom = rows[0].subgridspec(1, 3), rows[1].subgridspec(2, 3)
    draw_decay(figure.add_subplot(top[0]), best, by_decay, results)
    draw_curves(figure.add_subplot(top[1]), best, results)
    draw_weights(figure.add_subplot(top[2]), best, results, seeds)
    draw_digits(figure.add_subplot(bottom[:, :2]), best, results)
    draw_lam(figure.add_subplot(bottom[0, 2]), figure.add_subplot(bottom[1, 2]), best["SCDRO"], results)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


def draw_decay(ax: Any, best: dict[str, Trial], by_decay: dict[str, list[Trial]], results: Results) -> None:
    for method, trials in by_decay.items():
        worst = np.array([[figures(o)[3] for o in results[t]] for t in trials])
        x = [t.weight_decay for t in trials]
        ax.plot(x, worst, ".", color=COLOURS[method], alpha=0.3)
        ax.plot(x, worst.mean(1), marker=MARKERS[method], color=COLOURS[method], lw=2.5, label=method)
    ax.set(xscale="log", xticks=x, ylim=(0, 100), xlabel="weight decay", ylabel="test accuracy of the worst digit, %")
    ax.set_title("However regularised, SCDRO serves the worst digit", loc="left")
    ax.legend(frameon=False)


def draw_curves(ax: Any, best: dict[str, Trial], results: Results) -> None:
    for method in ("ERM", "SCDRO"):
        curves = 100 * np.array([o.curves for o in results[best[method]]])
        epochs = np.arange(1, curves.shape[1] + 1)
        for group, style in ((0, "-"), (1, ":")):
            ax.plot(epochs, curves[:, :, group].T, style, color=COLOURS[method], alpha=0.2, lw=1)
            ax.plot(epochs, curves[:, :, group].mean(0), style, color=COLOURS[method], lw=2.5)
    ax.set(xlabel="epoch", ylabel="test accuracy, %", ylim=(40, 101))
    ax.set_title("Tuned, seed by seed: hidden and frequent digits", loc="left")


def draw_weights(ax: Any, best: dict[str, Trial], results: Results, seeds: list[int]) -> None:
    _, digit, _, _ = digits()
    ratio = []
    for seed, outcome in zip(seeds, results[best["ERM"]], strict=True):
        label = digit[training_part(seed)]
        weights = scdro.worst_case(outcome.train_losses, best["SCDRO"].rho).weights
        ratio.append([weights[label == d].sum() / np.mean(label == d) for d in range(10)])
    colours = ["#009E73" if d in HIDDEN else "#BBBBBB" for d in range(10)]
    ax.bar(range(10), np.mean(ratio, 0), color=colours)
    ax.plot(range(10), np.transpose(ratio), ".", color="black", alpha=0.4)
    ax.axhline(1, color=NEUTRAL, lw=1)
    ax.set(xticks=range(10), xlabel="digit (hidden ones green)", ylabel="worst-case weight / share of the data")
    ax.set_title("Where the worst case of the ERM network looks", loc="left")


def draw_digits(ax: Any, best: dict[str, Trial], results: Results) -> None:
    order = [*HIDDEN, *(d for d in range(10) if d not in HIDDEN)]
    for shift, (method, trial) in zip((-0.22, 0, 0.22), best.items(), strict=True):
        accuracy = 100 * np.array([digit_accuracy(o)[order] for o in results[trial]])
        x = np.arange(10) + shift
        ax.plot(x, accuracy.T, ".", color=COLOURS[method], alpha=0.35)
        ax.plot(x, accuracy.mean(0), MARKERS[method], color=COLOURS[method], ms=9, label=method)
    ax.axvspan(-0.5, 3.5, color="#009E73", alpha=0.1, lw=0)
    ax.set(xticks=range(10), xticklabels=order, ylim=(0, 103), xlim=(-0.5, 9.5), ylabel="test accuracy, %")
    ax.set_title("Every digit, every seed (small dots)", loc="left")
    ax.legend(frameon=False, loc="lower right")


def draw_lam(upper: Any, lower: Any, trial: Trial, results: Results) -> None:
    for ax, name in ((upper, "lam"), (lower, "kl")):
        values = np.array([getattr(o, name) for o in results[trial]])
        ax.plot(values.T, color=COLOURS["SCDRO"], alpha=0.35, lw=1)
    upper.set(yscale="log", ylabel="lam", xticklabels=[])
    lower.axhline(trial.rho, color="black", ls="--", lw=1)
    lower.set(ylabel="KL", xlabel="step", ylim=(0, 1.3 * trial.rho))
    upper.set_title("lam moves so that KL stays at rho", loc="left")


# -- the program -----------------------------------------------------------------------------------------------------


def run_all(jobs: list[Job], bar: Any, pool: ProcessPoolExecutor | None) -> dict[Job, Outcome]:
    done = {}
    if pool is None:
        for job in jobs:
            done[job] = run(job)
            bar.update()
        return done
    futures = {pool.submit(run, job): job for job in jobs}
    for future in as_completed(futures):
        done[futures[future]] = future.result()
        bar.update()
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("docs/img/hidden_digits.png"))
    parser.add_argument("--quick", action="store_true", help="one seed and two settings: does it run?")
    args = parser.parse_args()
    seeds, trials = args.seeds[:1] if args.quick else args.seeds, grid(args.quick)
    tuning = [Job(t, s, f) for t in trials for s in TUNING_SEEDS[: 1 if args.quick else None] for f in range(FOLDS)]
    decays = sorted({t.weight_decay for t in trials})
    print(__doc__)
    workers = 1 if args.quick else min(os.cpu_count() or 1, 8)
    pool = None
    if workers > 1:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(1,))
    with tqdm(total=len(tuning) + len(METHODS) * len(decays) * len(seeds), unit="fit", mininterval=1) as bar:
        tuned = run_all(tuning, bar, pool)
        scores = {t: score(o for job, o in tuned.items() if job.trial == t) for t in trials}
        by_decay = {
            m: [max((t for t in trials if (t.method, t.weight_decay) == (m, wd)), key=scores.__getitem__) for wd in decays]
            for m in METHODS
        }
        best = {m: max(by_decay[m], key=scores.__getitem__) for m in METHODS}
        final = run_all([Job(t, s) for m in METHODS for t in by_decay[m] for s in seeds], bar, pool)
    results = {t: [final[Job(t, s)] for s in seeds] for m in METHODS for t in by_decay[m]}
    if pool is not None:
        pool.shutdown()
    for method, trial in best.items():
        print(f"{method}: validation accuracy {100 * scores[trial][0]:.2f}% with {trial}")
    print("\n" + table(best, results, seeds) + verdict(best, by_decay, results))
    draw(best, by_decay, results, seeds, args.out)
    print(f"Picture: {args.out}")


if __name__ == "__main__":
    main()
