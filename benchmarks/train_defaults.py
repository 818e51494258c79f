"""Does `scdro train` work untouched? Its default learning rate, with gradients bounded and as they are.

    python benchmarks/train_defaults.py --data FOLDER

Breast cancer, digits and wine of scikit-learn, and samples of credit_default.csv.gz and covtype.csv.gz where FOLDER has
them; 70% to train on, 30% to test on, one seed, rho = 0.5.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets

from scdro.cli import main as scdro

Rows = list[list[Any]]

ABOUT = """# Does `scdro train` work untouched?

    python benchmarks/train_defaults.py --data FOLDER     # with credit_default.csv.gz and covtype.csv.gz

- **data**: breast cancer, digits and wine of scikit-learn, 8,000 rows of credit_default and 10,000 of Covertype; 70% to
  train on, 30% to test on, one seed, SCDRO at rho = 0.5, all else as `scdro train` has it.
- **lr**: what it takes by itself, 0.5 exp(-rho) = 0.3, and two smaller ones.
- **gradients**: bounded to a norm of 1, the default, or as they are (`--max-grad-norm 0`).
- **robust loss, training**: the worst case of the training losses at rho = 0.5, which is what is minimised. Of two
  classes, log 2 = 0.693 is that of a model that says "one half" to everything.
- **test loss**: mean cross-entropy of the test rows.
"""


def tables(folder: Path | None) -> Iterator[tuple[str, Rows]]:
    """Rows, the label last."""
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


def write(path: Path, rows: Rows) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"x{k}" for k in range(len(rows[0]) - 1)), "label"])
        writer.writerows(rows)


def trained(train: Path, test: Path, out: Path, *options: str) -> str:
    """Cells of the table."""
    command = ["train", str(train), "--target", "label", "--test", str(test), "--threads", "1", "--out", str(out)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        status = scdro([*command, *options])
    if status:
        return "diverged | | "
    result = json.loads(next(out.rglob("seed-1/result.json")).read_text())
    scores = result["train"]["robust_loss"], 100 * result["test"]["top1"], result["test"]["loss"]
    return "{:.4g} | {:.2f} | {:.3g}".format(*scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "train_defaults.md")
    args = parser.parse_args()
    lines = [
        ABOUT,
        "| data | lr | gradients | robust loss, training | test accuracy, % | test loss |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as made:
        for name, rows in tables(args.data):
            order = np.random.default_rng(0).permutation(len(rows))
            cut = int(0.7 * len(rows))
            train, test = Path(made, f"{name}-train.csv"), Path(made, f"{name}-test.csv")
            write(train, [rows[i] for i in order[:cut]])
            write(test, [rows[i] for i in order[cut:]])
            for bound, says in (("1", "norm at most 1"), ("0", "as they are")):
                for lr in ("", "0.09", "0.03"):
                    given = ("--lr", lr) if lr else ()
                    found = trained(train, test, Path(made, f"{name} {bound} {lr}"), "--max-grad-norm", bound, *given)
                    lines.append(f"| {name} | {lr or '0.3, default'} | {says} | {found} |")
                    print(lines[-1], flush=True)
    args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
