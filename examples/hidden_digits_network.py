"""Unlabelled groups: odd or even digits, where four of the ten digits are almost missing from the training data.

Digits 2, 3, 8 and 9 are reduced to 8 training samples each. Both classes stay balanced, so class
weights cannot help, and no method ever sees which digit an image shows. Three ways to train one
small network: the average loss (ERM), the class-balanced average, and the worst case (SCDRO).

    python examples/hidden_digits_network.py            # seeds 0 to 4: a table, and a picture
    python examples/hidden_digits_network.py --quick    # one seed, few trials
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

import scdro

HIDDEN, KEPT, BATCH, EPOCHS = (2, 3, 8, 9), 8, 64, 60
DECAYS = (3e-2, 1e-2, 3e-3, 1e-3)
METHODS = ("ERM", "class-balanced", "SCDRO")
COLOURS = {"ERM": "#D55E00", "class-balanced": "#999999", "SCDRO": "#0072B2"}  # Okabe-Ito

CLOSING = """
Class weights change nothing: the classes are balanced, only the digits inside them are not. The worst case finds the
hidden digits without labels for them. How much this helps depends on the model: the less it is regularised, the better
the average also fits 32 rare samples; at the largest weight decay neither method fits them."""


class Data(NamedTuple):
    """Images, odd or even, and the digit, which is used only for evaluation."""

    x: Tensor
    y: Tensor
    digit: Tensor

    def at(self, index: Any) -> Data:
        return Data(self.x[index], self.y[index], self.digit[index])


class Trial(NamedTuple):
    """The tuned settings: weight decay with two learning rates (ERM) or with two radii (SCDRO)."""

    decay: float
    lr: float
    rho: float


class Run(NamedTuple):
    model: nn.Module
    curve: list[
        tuple[float, float]
    ]  # test accuracy on hidden and on frequent digits, after each epoch
    lam: list[float]
    kl: list[float]


def grid(method: str, quick: bool) -> list[Trial]:
    """Eight trials each. SCDRO dampens its momentum and SGD does not, so SGD's .03 is the same step as SCDRO's .3."""
    pairs = [(0.3, 1.0), (0.3, 2.0)] if method == "SCDRO" else [(0.03, 0.0), (0.1, 0.0)]
    trials = [Trial(decay, *pair) for decay, pair in itertools.product(DECAYS, pairs)]
    return trials[3:5] if quick else trials


def split(seed: int) -> tuple[Data, Data]:
    """One test set for all seeds and for tuning; the seed determines which rare samples the training set keeps."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    every = Data(images, torch.tensor(digits.target % 2), torch.tensor(digits.target))
    train, test = train_test_split(
        np.arange(len(images)), test_size=0.4, stratify=digits.target, random_state=0
    )
    rng = np.random.default_rng(seed)
    kept = [
        rng.permutation(train[digits.target[train] == d])[: KEPT if d in HIDDEN else None]
        for d in range(10)
    ]
    return every.at(np.concatenate(kept)), every.at(test)


def stepper(
    method: str, model: nn.Module, trial: Trial, train: Data
) -> tuple[Callable[[Tensor], object], Optimizer]:
    """One training step on the samples at the given positions. For SCDRO, only the line of the optimizer changes."""

    def losses(index: Tensor, weight: Tensor | None = None) -> Tensor:
        return F.cross_entropy(model(train.x[index]), train.y[index], weight, reduction="none")

    if method == "SCDRO":
        robust = scdro.SCDRO(
            model.parameters(), lr=trial.lr, rho=trial.rho, weight_decay=trial.decay
        )
        return lambda index: robust.step(lambda: losses(index)), robust
    plain = torch.optim.SGD(model.parameters(), lr=trial.lr, momentum=0.9, weight_decay=trial.decay)
    share = torch.bincount(train.y).float() / len(train.y)
    weight = 0.5 / share if method == "class-balanced" else None

    def step(index: Tensor) -> None:
        plain.zero_grad()
        losses(index, weight).mean().backward()  # type: ignore[no-untyped-call]
        plain.step()

    return step, plain


def fit(method: str, trial: Trial, train: Data, seed: int, test: Data | None = None) -> Run:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    step, opt = stepper(method, model, trial, train)
    run = Run(model, [], [], [])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS)
    for _ in range(EPOCHS):
        for index in torch.split(torch.randperm(len(train.x)), BATCH):
            step(index)
        schedule.step()
        if isinstance(opt, scdro.SCDRO):
            run.lam.append(float(opt.lam))
            run.kl.append(float(opt.kl))
        if test is not None:
            right = correct(model, test)
            hidden = is_hidden(test.digit)
            run.curve.append((float(right[hidden].mean()), float(right[~hidden].mean())))
    return run


@torch.no_grad()
def correct(model: nn.Module, data: Data) -> Tensor:
    outputs: Tensor = model(data.x)
    return (outputs.argmax(1) == data.y).float()


def is_hidden(digit: Tensor) -> Tensor:
    return torch.isin(digit, torch.tensor(HIDDEN))


def tuned(method: str, quick: bool, bar: tqdm[Any]) -> Trial:
    """The most accurate trial on held-out quarters of the training data of other splits, without digit labels or test
    data."""

    def score(trial: Trial) -> float:
        scores = []
        for seed in (100,) if quick else (100, 101, 102):
            train, _ = split(seed)
            parts = train_test_split(
                np.arange(len(train.x)), test_size=0.25, stratify=train.y, random_state=seed
            )
            scores.append(
                float(
                    correct(
                        fit(method, trial, train.at(parts[0]), seed).model, train.at(parts[1])
                    ).mean()
                )
            )
            bar.update()
        return float(np.mean(scores))

    return max(grid(method, quick), key=score)


def by_digit(model: nn.Module, test: Data) -> list[float]:
    right = correct(model, test)
    return [float(right[test.digit == d].mean()) for d in range(10)]


def worst_case_by_digit(model: nn.Module, train: Data, rho: float) -> list[float]:
    """The weight of each digit in the worst case, divided by its share of the training data."""
    with torch.no_grad():
        weights = scdro.worst_case(
            F.cross_entropy(model(train.x), train.y, reduction="none"), rho
        ).weights
    return [
        float(weights[train.digit == d].sum() / (train.digit == d).float().mean())
        for d in range(10)
    ]


def report(accuracy: dict[str, list[list[float]]], shares: list[float]) -> str:
    """Every seed, and mean and standard deviation: mean, hidden-group and worst-group accuracy."""
    lines = [
        f"{'':>16} {'seed':>5} {'all digits':>12} {'frequent':>12} {'hidden':>12}"
        f" {'worst digit':>12}"
    ]
    for method, seeds in accuracy.items():
        table = np.array(seeds)
        hidden = list(HIDDEN)
        rest = [d for d in range(10) if d not in HIDDEN]
        columns = np.stack(
            [table @ shares, table[:, rest].mean(1), table[:, hidden].mean(1), table.min(1)], 1
        )
        for seed, row in enumerate(columns):
            lines.append(f"{method:>16} {seed:>5} " + " ".join(f"{100 * v:>11.1f}%" for v in row))
        if len(columns) == 1:
            continue
        spread = columns.std(0, ddof=1)
        cells = (
            f"{100 * m:.1f} ± {100 * s:.1f}%" for m, s in zip(columns.mean(0), spread, strict=True)
        )
        lines.append(f"{method:>16} {'mean':>5} " + " ".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def over_decay(axes: Any, swept: dict[str, dict[float, list[Run]]]) -> None:
    for method, runs in swept.items():
        for part, style in ((0, "o-"), (1, "s:")):
            values = 100 * np.array(
                [[run.curve[-1][part] for run in runs[decay]] for decay in DECAYS]
            )
            axes.plot(DECAYS, values, style[0], color=COLOURS[method], alpha=0.3, ms=3)
            label = f"{method}, {('hidden', 'frequent')[part]} digits"
            width = (
                5 if method == "class-balanced" else 2.5
            )  # drawn behind ERM, which is nearly equal
            order = 1 if method == "class-balanced" else 2
            axes.semilogx(
                DECAYS,
                values.mean(1),
                style,
                color=COLOURS[method],
                lw=width,
                ms=6,
                label=label,
                zorder=order,
            )
    axes.set(
        title="Test accuracy by weight decay", xlabel="weight decay", ylabel="%", ylim=(40, 101)
    )
    axes.legend(loc="lower left", frameon=False, fontsize=9)


def over_time(axes: Any, runs: dict[str, list[Run]]) -> None:
    for method in ("ERM", "SCDRO"):
        curves = 100 * np.array([[c[0] for c in run.curve] for run in runs[method]])
        epochs = np.arange(1, EPOCHS + 1)
        axes.plot(epochs, curves.T, color=COLOURS[method], alpha=0.25, lw=1)
        axes.plot(epochs, curves.mean(0), color=COLOURS[method], lw=2.5, label=method)
    axes.set(
        title="Hidden digits while training (tuned)",
        xlabel="epoch",
        ylabel="test accuracy, %",
        ylim=(40, 101),
    )
    axes.legend(loc="lower right", frameon=False)


def per_digit(axes: Any, accuracy: dict[str, list[list[float]]]) -> None:
    for k, (method, seeds) in enumerate(accuracy.items()):
        places, table = np.arange(10) + (k - 1) * 0.27, 100 * np.array(seeds)
        axes.bar(places, table.mean(0), 0.27, color=COLOURS[method], label=method)
        axes.plot(places, table.T, ".", color="black", ms=2.5)
    axes.set(title="Test accuracy by digit (tuned; dots: seeds)", ylabel="%", ylim=(0, 118))
    axes.legend(ncol=3, loc="upper center", frameon=False, fontsize=9)
    label_digits(axes)


def label_digits(axes: Any) -> None:
    axes.set_xticks(range(10), [str(d) for d in range(10)])
    for d in HIDDEN:
        axes.get_xticklabels()[d].set(color="#D55E00", fontweight="bold")
    axes.set_xlabel("digit (bold: hidden; no model sees it)")


def picture(
    swept: dict[str, dict[float, list[Run]]],
    runs: dict[str, list[Run]],
    accuracy: Any,
    found: Any,
    rho: float,
) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, ((decay, time, digits), (weights, lam, kl)) = plt.subplots(
        2, 3, figsize=(15.5, 8.4), layout="constrained"
    )
    over_decay(decay, swept)
    over_time(time, runs)
    per_digit(digits, accuracy)
    weights.bar(
        range(10),
        np.mean(found, 0),
        color=["#009E73" if d in HIDDEN else "#BBBBBB" for d in range(10)],
    )
    weights.axhline(1, color="black", lw=1, ls="--")
    weights.set(title="The worst case of the ERM model", ylabel="weight / share of the data")
    label_digits(weights)
    for run in runs["SCDRO"]:
        lam.semilogy(range(1, EPOCHS + 1), run.lam, color="#0072B2", lw=1.5)
        kl.plot(range(1, EPOCHS + 1), run.kl, color="#0072B2", lw=1.5)
    lam.set(title="SCDRO finds its temperature λ", xlabel="epoch", ylabel="λ")
    kl.axhline(rho, color="black", lw=1, ls="--", label=f"ρ = {rho:g}")
    kl.legend(frameon=False)
    kl.set(title="KL of the worst case", xlabel="epoch", ylabel="KL", ylim=(0, 1.5 * rho))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, starting at 0")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("hidden_digits_network.png"),
        help="where to save the picture",
    )
    parser.add_argument("--quick", action="store_true", help="one seed and few trials")
    args = parser.parse_args()
    seeds = range(1 if args.quick else args.seeds)
    print((__doc__ or "").split("\n\n")[1])
    trials = sum(len(grid(m, args.quick)) * (1 if args.quick else 3) for m in METHODS)
    with tqdm(
        total=trials + len(METHODS) * len(DECAYS) * len(seeds),
        desc="training",
        unit="run",
        mininterval=1,
    ) as bar:
        best = {method: tuned(method, args.quick, bar) for method in METHODS}
        swept: dict[str, dict[float, list[Run]]] = {
            method: {decay: [] for decay in DECAYS} for method in METHODS
        }
        for method, decay, seed in itertools.product(METHODS, DECAYS, seeds):
            swept[method][decay].append(
                fit(
                    method, best[method]._replace(decay=decay), split(seed)[0], seed, split(seed)[1]
                )
            )
            bar.update()
    runs = {method: swept[method][best[method].decay] for method in METHODS}
    accuracy = {
        m: [by_digit(run.model, split(seed)[1]) for run, seed in zip(runs[m], seeds, strict=True)]
        for m in METHODS
    }
    rho = best["SCDRO"].rho
    found = [
        worst_case_by_digit(run.model, split(seed)[0], rho)
        for run, seed in zip(runs["ERM"], seeds, strict=True)
    ]
    print("\nChosen without digit labels: " + "; ".join(f"{m} {best[m]}" for m in METHODS) + "\n")
    digits = load_digits().target
    print(report(accuracy, [float((digits == d).mean()) for d in range(10)]))
    print("\nHidden digits (and worst digit) at each weight decay, mean over seeds:")
    for method in METHODS:
        cells = []
        for decay in DECAYS:
            table = [
                by_digit(run.model, split(seed)[1])
                for run, seed in zip(swept[method][decay], seeds, strict=True)
            ]
            hidden, worst = np.mean(np.array(table)[:, HIDDEN]), np.mean(np.min(table, 1))
            cells.append(f"{decay:g}: {100 * hidden:.0f}% ({100 * worst:.0f}%)")
        print(f"{method:>16} " + "  ".join(f"{cell:>18}" for cell in cells))
    print(CLOSING)
    figure = picture(swept, runs, accuracy, found, rho)
    figure.savefig(args.out, dpi=110)
    print(f"\nPicture: {args.out}")


if __name__ == "__main__":
    main()
