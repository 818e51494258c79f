"""Find the group that a model fails, say who it is, fix it: without group labels.

The task: is a handwritten digit odd or even? There are only 8 training images each of the digits 2,
3, 8 and 9. Both classes are balanced, and no method is told which digit an image shows, except the
last.

    python examples/hidden_digits.py            # seeds 0 to 4: a table, and a picture
    python examples/hidden_digits.py --seeds 1  # faster
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from tqdm import tqdm

import scdro
from scdro.linear_model import KLDROClassifier

Array = npt.NDArray[Any]
RARE, KEPT = (2, 3, 8, 9), 8
METHODS = {
    "plain": "average loss",
    "worst case": "KL worst case, rho = 0.5",
    "second look": "scdro.SecondLook",
    "digits known": "an oracle: all ten digits weigh the same",
}
COLOURS = {
    "plain": "#D55E00",
    "worst case": "#999999",
    "second look": "#0072B2",
    "digits known": "#009E73",
}


class Data(NamedTuple):
    """Images, odd or even, and the digit, which only the evaluation and the oracle see."""

    X: Array
    y: Array
    digit: Array


def split(seed: int) -> tuple[Data, Data]:
    """One test set for all seeds; the seed determines which rare images the training set keeps."""
    digits = load_digits()
    train, test = train_test_split(
        np.arange(len(digits.data)), test_size=0.4, stratify=digits.target, random_state=0
    )
    rng = np.random.default_rng(seed)
    kept = [
        rng.permutation(train[digits.target[train] == d])[: KEPT if d in RARE else None]
        for d in range(10)
    ]
    return tuple(  # type: ignore[return-value]
        Data(digits.data[rows] / 16, digits.target[rows] % 2, digits.target[rows])
        for rows in (np.concatenate(kept), test)
    )


def fit(method: str, train: Data, seed: int) -> Any:
    """All are linear in the same 300 features, with the same settings."""

    def on_features(last: Any) -> Any:
        return make_pipeline(Nystroem(gamma=0.05, n_components=300, random_state=seed), last)

    logistic = on_features(LogisticRegression(C=10, max_iter=1000))
    if method == "plain":
        return logistic.fit(train.X, train.y)
    if method == "worst case":
        return on_features(KLDROClassifier(rho=0.5, C=10)).fit(train.X, train.y)
    if method == "second look":
        return scdro.SecondLook(logistic, random_state=seed).fit(train.X, train.y)
    equal = len(train.y) / 10 / np.bincount(train.digit)[train.digit]
    return logistic.fit(train.X, train.y, logisticregression__sample_weight=equal)


def by_digit(model: Any, test: Data) -> list[float]:
    right = model.predict(test.X) == test.y
    return [float(100 * right[test.digit == d].mean()) for d in range(10)]


def table(accuracy: dict[str, list[list[float]]]) -> str:
    """Mean over the seeds, and the range of the worst digit."""
    lines = [
        f"{'test accuracy, %':<14} {'usual digits':>13} {'rare digits':>12} {'worst digit':>12}"
    ]
    usual = [d for d in range(10) if d not in RARE]
    for method, seeds in accuracy.items():
        rates = np.array(seeds)
        worst = rates.min(1)
        spread = f"({worst.min():.0f} to {worst.max():.0f})" if len(worst) > 1 else ""
        means = (rates[:, usual].mean(), rates[:, RARE].mean(), worst.mean())
        lines.append(
            f"{method:<16} {means[0]:>13.1f} {means[1]:>12.1f} {means[2]:>12.1f}  {spread:<11}"
            f" {METHODS[method]}"
        )
    return "\n".join(lines)


def picture(train: Data, look: Any, accuracy: dict[str, list[list[float]]]) -> Any:
    """Find, explain, fix."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure: Any = plt.figure(figsize=(14, 5), layout="constrained")
    figure.suptitle(
        "Odd or even? There are only 8 training images each of the digits 2, 3, 8 and 9",
        fontweight="bold",
    )
    find, explain, fix = figure.subfigures(1, 3, width_ratios=[1, 1, 1.15])

    heaviest = np.argsort(-look.weights_)[:20]
    find.suptitle("1. Find: the images with most weight\n(rare digits in blue; nobody told)")
    for axes, row in zip(find.subplots(4, 5).flat, heaviest, strict=True):
        axes.imshow(-train.X[row].reshape(8, 8), cmap="gray")
        rare = train.digit[row] in RARE
        axes.set(xticks=[], yticks=[])
        for side in axes.spines.values():
            side.set(
                visible=True,
                color=COLOURS["second look"] if rare else "#CCCCCC",
                linewidth=3 if rare else 1,
            )

    explain.suptitle("2. Explain: whose weight went up\n(find_slices, given the digit)")
    axes = explain.subplots()
    lift = [look.weights_[train.digit == d].mean() for d in range(10)]
    axes.bar(
        range(10),
        lift,
        color=[COLOURS["second look"] if d in RARE else "#BBBBBB" for d in range(10)],
    )
    axes.axhline(1, color="black", lw=1)
    axes.set(xlabel="digit", ylabel="weight, relative to the average image", xticks=range(10))

    fix.suptitle("3. Fix: accuracy on the worst digit\n(dots: seeds)")
    axes = fix.subplots()
    for k, (method, seeds) in enumerate(accuracy.items()):
        worst = np.array(seeds).min(1)
        axes.bar(k, worst.mean(), 0.7, color=COLOURS[method])
        axes.plot(np.full(len(worst), k), worst, ".", color="black", ms=4)
        axes.text(k, 3, f"{worst.mean():.0f}%", ha="center", color="white", fontweight="bold")
    axes.set(ylabel="%", ylim=(0, 100))
    axes.set_xticks(range(len(accuracy)), ["plain", "worst\ncase", "second\nlook", "digits\nknown"])
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, starting at 0")
    parser.add_argument(
        "--out", type=Path, default=Path("hidden_digits.png"), help="where to save the picture"
    )
    args = parser.parse_args()
    print((__doc__ or "").split("\n\n")[1] + "\n")
    warnings.simplefilter("ignore", scdro.ScdroWarning)  # a refusal is in the verdict
    accuracy: dict[str, list[list[float]]] = {method: [] for method in METHODS}
    looks = []
    for seed in tqdm(range(args.seeds), desc="fitting", unit="seed"):
        train, test = split(seed)
        for method, found in accuracy.items():
            model = fit(method, train, seed)
            found.append(by_digit(model, test))
            looks += [model] if method == "second look" else []
    train, _ = split(0)
    print(f"\nFind. The verdict, from the training data alone (seed 0):\n{looks[0].verdict_}\n")
    print(
        "Explain. Who it is, in a column that no model has"
        f" seen:\n{looks[0].find_slices({'digit': train.digit})}\n"
    )
    print(f"Fix. Mean over {args.seeds} seeds:\n{table(accuracy)}")
    picture(train, looks[0], accuracy).savefig(args.out, dpi=110)
    print(f"\nPicture: {args.out}")


if __name__ == "__main__":
    main()
