"""Do the defaults of `scdro train` work? Its default learning rate, with and without gradient clipping.

    python benchmarks/train_defaults.py --data FOLDER

Breast cancer, digits and wine from scikit-learn, and samples of credit_default.csv.gz and covtype.csv.gz if they are in
FOLDER; 70% for training, 30% for testing, one seed, rho = 0.5. Last, a folder of images: the digits, with only fifteen
images left of three classes, at 16 x 16 and 30 epochs.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets

from scdro.cli import main as scdro

Rows = list[list[Any]]
SETTINGS = [("", "1"), ("0.15", "1"), ("0.05", "1"), ("", "0"), ("0.09", "0"), ("0.03", "0")]  # lr, and the bound

ABOUT = """# Does `scdro train` work untouched?

    python benchmarks/train_defaults.py --data FOLDER     # with credit_default.csv.gz and covtype.csv.gz

- **data**: breast cancer, digits and wine of scikit-learn, 8,000 rows of credit_default and 10,000 of Covertype; 70% to
  train on, 30% to test on; and a folder of images: the digits, of three of whose classes fifteen are left, at 16 x 16
  and 30 epochs. One seed, rho = 0.5, all else as `scdro train` has it.
- **lr**: what it takes by itself, 0.5, or 0.5 exp(-rho) = 0.3 where gradients are not bounded, and two smaller ones.
- **gradients**: bounded to a norm of 1, the default, or as they are (`--max-grad-norm 0`).
- **robust loss, training**: the worst case of the training losses at rho = 0.5, which is what is minimised. Of two
  classes, log 2 = 0.693 is that of a model that says "one half" to everything.
- **test loss**: mean cross-entropy of the test rows.
"""


def tables(folder: Path | None) -> Iterator[tuple[str, Rows]]:
    """Names and rows, with the label last."""
    for name in ("breast_cancer", "digits", "wine"):
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        yield name, [[*row, f"class {label}"] for row, label in zip(x.tolist(), y.tolist(), strict=True)]
    for name, size in (("credit_default", 8000), ("covtype", 10000)):
        path = folder and folder / f"{name}.csv.gz"
        if path and path.exists():
            with gzip.open(path, "rt") as file:
                rows = [line for line in csv.reader(file) if line[0].replace(".", "").lstrip("-").isdigit()]
            chosen = np.random.default_rng(1).choice(len(rows), size, replace=False)
            yield name, [[*rows[i][:-1], f"class {rows[i][-1]}"] for i in chosen]


def pictures(folder: Path) -> tuple[Path, Path]:
    """Digits as PNG files, one folder per class: training data with three rare classes, and test data."""
    from PIL import Image

    x, y = datasets.load_digits(return_X_y=True)
    seen: Counter[tuple[bool, int]] = Counter()
    for k, (pixels, label) in enumerate(zip(x, y, strict=True)):
        train = k % 3 > 0
        seen[train, label] += 1
        if train and label in (3, 8, 9) and seen[train, label] > 15:
            continue
        path = folder / ("train" if train else "test") / f"digit {label}" / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels.reshape(8, 8) * 15).astype(np.uint8)).save(path)
    return folder / "train", folder / "test"


def write(path: Path, rows: Rows) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{k}" for k in range(len(rows[0]) - 1)), "label"])
        writer.writerows(rows)


def trained(train: Path, test: Path, out: Path, *options: str) -> str:
    """Cells of the table."""
    kind = ["--size", "16", "--epochs", "30"] if train.is_dir() else ["--target", "label"]
    command = ["train", str(train), *kind, "--test", str(test), "--threads", "1", "--out", str(out)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = scdro([*command, *options])
    if status:
        return "diverged | | | "
    result = json.loads(next(out.rglob("seed-1/result.json")).read_text())
    test_scores = result["test"]
    worst = min(value for value in test_scores["per_class"] if value is not None)
    scores = result["train"]["robust_loss"], 100 * test_scores["top1"], 100 * worst, test_scores["loss"]
    return "{:.4g} | {:.2f} | {:.1f} | {:.3g}".format(*scores)


def prepared(folder: Path | None, made: Path) -> Iterator[tuple[str, Path, Path]]:
    """The name, training data and test data."""
    for name, rows in tables(folder):
        order = np.random.default_rng(0).permutation(len(rows))
        cut = int(0.7 * len(rows))
        train, test = made / f"{name}-train.csv", made / f"{name}-test.csv"
        write(train, [rows[i] for i in order[:cut]])
        write(test, [rows[i] for i in order[cut:]])
        yield name, train, test
    yield "digits, images", *pictures(made / "images")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results" / "train_defaults" / "table.md"
    )
    args = parser.parse_args()
    lines = [
        ABOUT,
        "| data | method | lr | gradients | robust loss, training | test accuracy, % | worst class, % | test loss |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as made:
        for name, train, test in prepared(args.data, Path(made)):
            for lr, bound in SETTINGS:
                options = ["--max-grad-norm", bound, *(["--lr", lr] if lr else [])]
                found = trained(train, test, Path(made, f"{name} {bound} {lr}"), *options)
                usual = "0.5, default" if bound == "1" else "0.3, default"
                says = "norm at most 1" if bound == "1" else "as they are"
                lines.append(f"| {name} | SCDRO | {lr or usual} | {says} | {found} |")
                print(lines[-1], flush=True)
            found = trained(train, test, Path(made, f"{name} ERM"), "--method", "ERM")
            lines.append(f"| {name} | ERM | 0.05, default | norm at most 1 | {found} |")
            print(lines[-1], flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
