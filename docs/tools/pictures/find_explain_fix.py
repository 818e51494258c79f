"""The picture of docs/second_look.md: python docs/tools/pictures/find_explain_fix.py"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from style import BLUE, GREEN, GREY, ORANGE, panels, save

import scdro

HIDDEN, KEPT = (2, 3, 8, 9), 8


def main() -> None:
    """Odd or even; digits 2, 3, 8 and 9 have 8 training samples each."""
    digits = load_digits()
    X, y = digits.data / 16.0, digits.target % 2
    train, test = train_test_split(np.arange(len(y)), test_size=0.4, stratify=digits.target, random_state=0)
    rng = np.random.default_rng(0)
    kept = [rng.permutation(train[digits.target[train] == d])[: KEPT if d in HIDDEN else None] for d in range(10)]
    rows = np.concatenate(kept)
    digit = digits.target[rows]
    model = make_pipeline(
        Nystroem(gamma=0.05, n_components=300, random_state=0), LogisticRegression(C=10, max_iter=1000)
    )
    look = scdro.SecondLook(model, random_state=0).fit(X[rows], y[rows])
    print(look.verdict_)
    slices = scdro.find_slices(look.weights_, {"digit": digit}, y=y[rows], proba=look.reference_proba_)
    print(slices)

    figure, axes = panels(3)
    hidden = np.isin(digit, HIDDEN)
    bins = np.linspace(0, 1, 21)
    for who, name, colour in ((~hidden, "usual digits", GREY), (hidden, "rare digits", ORANGE)):
        p = look.reference_proba_[who]
        axes[0].hist(p, bins, weights=look.weights_[who], color=colour, alpha=0.8, label=name)
    axes[0].set(xlabel="reference's probability of the label, out of fold", ylabel="weight of the second look")
    axes[0].set_title("Find: where the reference is unsure or wrong", fontsize=9)
    axes[0].legend(fontsize=8)

    lift = [look.weights_[digit == d].mean() for d in range(10)]
    axes[1].bar(range(10), lift, color=[ORANGE if d in HIDDEN else GREY for d in range(10)])
    axes[1].axhline(1, color="black", lw=0.8)
    axes[1].set(xlabel="digit, which no model sees", ylabel="weight over share", xticks=range(10))
    axes[1].set_title("Explain: who holds the weight", fontsize=9)

    right = [found.predict(X[test]) == y[test] for found in (look.plain_, look)]
    for k, (name, colour) in enumerate((("plain", BLUE), ("second look", GREEN))):
        rates = [100 * right[k][digits.target[test] == d].mean() for d in range(10)]
        print(name, [round(rate) for rate in rates], round(100 * right[k].mean(), 1))
        axes[2].bar(np.arange(10) + 0.4 * k - 0.2, rates, 0.4, color=colour, label=name)
    axes[2].set(xlabel="digit", ylabel="test accuracy, %", xticks=range(10), ylim=(0, 119))
    axes[2].set_title("Fix: the same model, fitted again", fontsize=9)
    axes[2].legend(fontsize=8, ncol=2, loc="upper center")
    save(figure, "second_look.png")


if __name__ == "__main__":
    main()
