"""The pictures of docs/second_look.md: python docs/tools/pictures/find_explain_fix.py"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from style import GREY, ORANGE, panels, save

import scdro
from scdro.second_look import gallery

HIDDEN, KEPT = (2, 3, 8, 9), 8


def main() -> None:
    """Odd or even; digits 2, 3, 8 and 9 have 8 training samples each."""
    digits = load_digits()
    X, y = digits.data / 16.0, digits.target % 2
    train, _ = train_test_split(
        np.arange(len(y)), test_size=0.4, stratify=digits.target, random_state=0
    )
    rng = np.random.default_rng(0)
    kept = [
        rng.permutation(train[digits.target[train] == d])[: KEPT if d in HIDDEN else None]
        for d in range(10)
    ]
    rows = np.concatenate(kept)
    digit = digits.target[rows]
    model = make_pipeline(
        Nystroem(gamma=0.05, n_components=300, random_state=0),
        LogisticRegression(C=10, max_iter=1000),
    )
    look = scdro.SecondLook(model, random_state=0).fit(X[rows], y[rows])
    print(look.verdict_)
    print(look.find_slices({"digit": digit}))
    hidden = np.isin(digit, HIDDEN)

    figure, axes = panels(2)
    bins = np.linspace(0, 1, 21)
    for axis, weights in zip(axes, (np.ones(len(rows)), look.weights_), strict=True):
        for who, name, colour in ((~hidden, "usual digits", GREY), (hidden, "rare digits", ORANGE)):
            axis.hist(
                look.reference_proba_[who],
                bins,
                weights=weights[who],
                color=colour,
                alpha=0.8,
                label=name,
            )
        mean = float(np.average(look.reference_proba_, weights=weights))
        axis.axvline(mean, color="black", lw=1, ls="--", label=f"mean, {mean:.2f}")
        axis.set(xlabel="reference's probability of the label, out of fold")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("images")
    axes[1].set_ylabel("weight of the second look")
    axes[0].set_title("The data as they are: the reference is nearly always sure", fontsize=8)
    axes[1].set_title("The weights move to where it is unsure or wrong", fontsize=8)
    save(figure, "second_look_find.png")

    images = X[rows].reshape(-1, 8, 8)
    found = gallery(
        look.weights_,
        1 - images,
        images.reshape(-1, 64),
        y=y[rows],
        names=["even", "odd"],
        across=10,
    )
    print("\n".join(found.sentences))
    save(found.figure(), "second_look_gallery.png")


if __name__ == "__main__":
    main()
