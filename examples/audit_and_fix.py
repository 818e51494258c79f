"""Audit an ordinary model, say which finding matters, and fix it: `make demo`.

Real images of digits, and an ordinary model that says odd or even. Its training data have only 8
images each of the digits 2, 3, 8 and 9. Nobody tells the model or the audit which digits are rare.

    python examples/audit_and_fix.py            # sentences, a table, a page and a picture
    python examples/audit_and_fix.py --seed 1   # other training images
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

import scdro
from scdro.auditing import Audit

Array = npt.NDArray[Any]
RARE, KEPT = ("2", "3", "8", "9"), 8
COLOURS = {
    "the model": "#D55E00",
    "its best threshold": "#999999",
    "fixed": "#0072B2",
}


class Images(NamedTuple):
    """Images, "odd" or "even", and a column that describes them, which no model sees."""

    X: Array
    y: Array
    frame: dict[str, Array]

    def rows(self, chosen: Array) -> Images:
        return Images(self.X[chosen], self.y[chosen], {k: v[chosen] for k, v in self.frame.items()})


def load(seed: int) -> tuple[Images, Images, Images]:
    """Images to train on, images to audit on, and images that nothing is decided on."""
    digits = load_digits()
    names = digits.target.astype(str)
    parity = np.where(digits.target % 2 == 1, "odd", "even")
    images = Images(digits.data / 16, parity, {"digit": names})
    train, held_out = train_test_split(
        np.arange(len(names)), test_size=0.4, stratify=names, random_state=0
    )
    rng = np.random.default_rng(seed)
    kept = [
        rng.permutation(train[names[train] == d])[: KEPT if d in RARE else None]
        for d in sorted(set(names))
    ]
    return (
        images.rows(np.concatenate(kept)),
        images.rows(held_out[::2]),
        images.rows(held_out[1::2]),
    )


def accuracy_by_digit(answers: Array, images: Images) -> Array:
    """In percent, for the digits 0 to 9."""
    digit = images.frame["digit"]
    return np.array([100 * np.mean((answers == images.y)[digit == d]) for d in sorted(set(digit))])


def with_best_threshold(model: Any, images: Images) -> Array:
    """The model's answers with the threshold that is best for its worst digit on these very images.

    It is chosen in hindsight, so no rule that people could use would do better.
    """
    odd = model.predict_proba(images.X)[:, 1]
    answers = [np.where(odd > t, "odd", "even") for t in np.linspace(0.02, 0.98, 97)]
    return max(answers, key=lambda one: float(accuracy_by_digit(one, images).min()))


def draw(audit: Audit, accuracy: dict[str, Array]) -> Any:
    """What the model says and what is true, by digit; and the accuracy of the three ways."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    figure, (found, fixed) = plt.subplots(
        1, 2, figsize=(12, 4.2), layout="constrained", width_ratios=[1, 1.5]
    )
    slices = [one for one in audit.findings if one.conditions]
    places = np.arange(len(slices))
    found.errorbar(
        [100 * one.observed for one in slices],
        places,
        xerr=np.array(
            [(100 * (s.observed - s.low), 100 * (s.high - s.observed)) for s in slices]
        ).T,
        fmt="o",
        color="black",
        label="is odd",
    )
    found.plot(
        [100 * one.predicted for one in slices],
        places,
        "D",
        color=COLOURS["the model"],
        label="the model says odd",
    )
    found.set_yticks(places, [one.slice for one in slices])
    found.set(xlim=(-3, 103), ylim=(len(slices) - 0.4, -0.9), xlabel="%")
    found.set_title("1. Find: wrong probabilities", loc="left", fontweight="bold")
    found.legend(loc="upper right", frameon=False, ncols=2)
    for k, (name, values) in enumerate(accuracy.items()):
        fixed.bar(np.arange(10) + 0.28 * (k - 1), values, 0.27, color=COLOURS[name], label=name)
    fixed.set(xticks=range(10), xlabel="digit", ylabel="accuracy on new images, %", ylim=(0, 118))
    fixed.set_title("2. Say that it matters, and fix it", loc="left", fontweight="bold")
    fixed.legend(loc="upper center", frameon=False, ncols=3)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="which images of rare digits are kept")
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo"), help="folder of the page and the picture"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore", scdro.ScdroWarning)  # what it says is in the verdict
    train, audited, fresh = load(args.seed)

    print("An ordinary model: odd or even?", flush=True)
    model = make_pipeline(
        Nystroem(gamma=0.05, n_components=300, random_state=args.seed),
        LogisticRegression(C=10, max_iter=1000),
    ).fit(train.X, train.y)
    print(f"It is right on {model.score(train.X, train.y):.1%} of its training images.\n")

    print(
        "1. Whom does it fail? scdro.audit(model, X, y, frame), on images that it has not seen:\n"
    )
    audit = scdro.audit(model, audited.X, audited.y, audited.frame, out_of_fold=True)
    print(f"{audit}\n")
    audit.save(args.out / "audit.html")
    findings = [one for one in audit.findings if one.conditions]
    if not findings:
        print("No digit stands out, so there is nothing to fix. Try another --seed.")
        return

    named = " and ".join(one.slice for one in findings)
    print(f"2. These matter, says a person: {named}. scdro.SecondLook(model, groups=...):\n")
    matters = np.any([one.rows_of(train.frame) for one in findings], axis=0)
    fixed = scdro.SecondLook(model, groups=matters, random_state=args.seed).fit(train.X, train.y)
    print(f"{fixed.verdict_}\n{fixed.verdict_.ladder()}\n")

    print("3. On images that nothing was decided on, accuracy in %:\n")
    answers = {
        "the model": model.predict(fresh.X),
        "its best threshold": with_best_threshold(model, fresh),
        "fixed": fixed.predict(fresh.X),
    }
    accuracy = {name: accuracy_by_digit(one, fresh) for name, one in answers.items()}
    print(f"{'digit':<20}" + "".join(f"{d:>5}" for d in range(10)) + f"{'all':>7}{'worst':>7}")
    for name, values in accuracy.items():
        row = "".join(f"{value:>5.0f}" for value in values)
        overall = 100 * np.mean(answers[name] == fresh.y)
        print(f"{name:<20}{row}{overall:>7.1f}{values.min():>7.0f}")
    draw(audit, accuracy).savefig(args.out / "audit_and_fix.png", dpi=110)
    print(f"\nThe page of the audit: {args.out / 'audit.html'}")
    print(f"The picture: {args.out / 'audit_and_fix.png'}")


if __name__ == "__main__":
    main()
