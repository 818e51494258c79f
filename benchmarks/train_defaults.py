"""Is `scdro train` with no options as good as scikit-learn's HistGradientBoosting with none?

    python benchmarks/train_defaults.py --data FOLDER

Adult (adult.data.gz and adult.test.gz together) and credit_default.csv.gz of FOLDER; both models
see the same training rows and are compared on the same test rows, those that `scdro train` holds
out. Writes results/train_defaults/table.md.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss

from scdro import load
from scdro.cli import main as scdro
from scdro.tables._models import Columns
from scdro.tables._problem import make_problem

ADULT = (
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,capital-gain,"
    "capital-loss,hours-per-week,native-country,income"
)
CREDIT = "default payment next month"

ABOUT = """# `scdro train` with no options

    python benchmarks/train_defaults.py --data FOLDER     # with adult.data.gz, adult.test.gz, credit_default.csv.gz

The command is `scdro train data.csv --target ... --out run`, nothing else. Beside it: scikit-learn's
HistGradientBoostingClassifier with its defaults (categorical columns declared), on the same training and test rows.
Accuracy in per cent; the tail is the mean of the worst 5% of the log losses.

| data | model | accuracy | log loss | tail |
|---|---|---|---|---|
"""


def tables(folder: Path, made: Path) -> Iterator[tuple[str, Path, str]]:
    """Name, CSV file, target."""
    path = made / "adult.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        names = ADULT.split(",")
        writer.writerow(names)
        for name in ("adult.data.gz", "adult.test.gz"):
            with gzip.open(folder / name, "rt") as lines:
                cells = ([cell.strip().rstrip(".") for cell in line.split(",")] for line in lines)
                writer.writerows(row for row in cells if len(row) == len(names))
    yield "Adult", path, "income"
    path = made / "credit.csv"
    path.write_bytes(gzip.decompress((folder / "credit_default.csv.gz").read_bytes()))
    yield "credit default", path, CREDIT


def scores(proba: Any, y: Any) -> str:
    losses = np.sort(-np.log(np.maximum(proba[np.arange(len(y)), y], 1e-15)))
    tail = losses[-int(np.ceil(0.05 * len(y))) :].mean()
    return f"{100 * (proba.argmax(1) == y).mean():.2f} | {log_loss(y, proba):.4f} | {tail:.3f}"


def compared(name: str, path: Path, target: str, out: Path) -> list[str]:
    began, said = time.monotonic(), io.StringIO()
    with contextlib.redirect_stdout(said):
        status = scdro(["train", str(path), "--target", target, "--out", str(out)])
    assert status == 0
    seconds = time.monotonic() - began
    run, problem = load(out), make_problem(path, target)
    cut = problem.split_rows(0)
    test, y = problem.frame[cut.test], problem.y[cut.test]
    columns = Columns.fit(problem.frame[cut.train], problem.features(), [])
    X = columns.encode(problem.frame)
    rival = HistGradientBoostingClassifier(categorical_features=columns.categorical, random_state=0)
    rival.fit(X[cut.train], problem.y[cut.train])
    lines = [f"| {name} | HistGradientBoosting | {scores(rival.predict_proba(X[cut.test]), y)} |"]
    for model in run.models:
        kept = " (kept)" if model == run.kept else ""
        lines.append(
            f"| {name} | scdro, {model}{kept} | {scores(run.predict_proba(test, model), y)} |"
        )
    verdict = run.summary["verdict"]
    text = " ".join([verdict["headline"], *verdict["sentences"]])
    return [*lines, f"\n**{name}**, {seconds:.0f} s on two busy cores. It says: {text}\n"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    folder = Path(__file__).parents[1] / "results" / "train_defaults"
    parser.add_argument("--out", type=Path, default=folder / "table.md")
    args = parser.parse_args()
    rows: list[str] = []
    texts: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        for name, path, target in tables(args.data, Path(made)):
            *lines, text = compared(name, path, target, Path(made, f"run {name}"))
            rows, texts = [*rows, *lines], [*texts, text]
            print(*lines, text, sep="\n", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(ABOUT + "\n".join([*rows, *texts]))


if __name__ == "__main__":
    main()
