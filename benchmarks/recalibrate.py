"""Recalibration by slice (`mcgrad`) beside a temperature, and beside a refit with the columns.

    pip install mcgrad
    OMP_NUM_THREADS=1 python benchmarks/recalibrate.py --data DIR > results/recalibrate/table.md

A model is trained on half of the rows without the columns about people: sex, race, age and others. A
quarter of the rows recalibrates it, and the last quarter scores:

- a temperature, which sees no column,
- `mcgrad`, which sees the columns and the model's probability,
- a refit of the same model with the columns, on the rows of both (three quarters), which is what
  somebody who has the columns can always do,
- the same refit without the columns.

Mean log loss, accuracy, and the largest difference between predicted and observed share over the
groups (values of two of the columns, together), of groups with 100 rows or more: mean over three
seeds.
"""

from __future__ import annotations

import argparse
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from lightgbm import LGBMClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scdro.fix import best_temperature, moved

ABOUT = {
    "adult": (["sex", "race", "age", "marital", "relationship", "country"], ["sex", "race"]),
    "credit": (["SEX", "EDUCATION", "MARRIAGE", "AGE"], ["SEX", "EDUCATION"]),
}
ADULT = ["age", "work", "weight", "education", "years", "marital", "job", "relationship", "race",
         "sex", "gain", "loss", "hours", "country", "income"]  # fmt: skip
SEEDS = range(3)
LEAST = 100


def table(name: str, data: Path) -> tuple[pd.DataFrame, np.ndarray]:
    """Numbers; names as codes. The labels are 0 and 1."""
    if name == "adult":
        frame = pd.read_csv(data / "tabular" / "adult.data.gz", names=ADULT, skipinitialspace=True)
        y = (frame.pop("income") == ">50K").to_numpy().astype(int)
        for column in frame.select_dtypes(exclude="number"):
            frame[column] = frame[column].astype("category").cat.codes
        return frame, y
    frame = pd.read_csv(data / "tabular" / "credit_default.csv.gz")
    y = frame.pop("default payment next month").to_numpy()
    return frame.drop(columns="ID"), y


def models() -> dict[str, Any]:
    return {
        "LightGBM": LGBMClassifier(verbose=-1, n_jobs=1, n_estimators=60),
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
    }


def ways(model: Any, X: pd.DataFrame, y: np.ndarray, about: list[str], seed: int) -> Any:
    """The test rows, and for each way the probabilities of class 1."""
    MCGrad = import_module("mcgrad.methods").MCGrad  # not among the packages of the tests

    order = np.random.default_rng(seed).permutation(len(y))
    first, second, test = np.split(order, [len(y) // 2, 3 * len(y) // 4])
    both = np.concatenate([first, second])
    few = X.drop(columns=about)
    base = model.fit(few.iloc[first], y[first])
    held, p = (base.predict_proba(few.iloc[rows]) for rows in (second, test))
    T = best_temperature(held, y[second], lambda losses: float(losses.mean()))
    columns = {"categorical_feature_column_names": [c for c in about if X[c].nunique() < 20],
               "numerical_feature_column_names": [c for c in about if X[c].nunique() >= 20]}  # fmt: skip
    slices = MCGrad().fit(
        X.iloc[second].assign(p=held[:, 1], y=y[second]), "p", "y", **columns
    )  # fmt: skip
    found = {
        "as it is": p[:, 1],
        "temperature": moved(p, T)[:, 1],
        "mcgrad": slices.predict(X.iloc[test].assign(p=p[:, 1]), "p", **columns),
    }
    found["refit without the columns"] = model.fit(few.iloc[both], y[both]).predict_proba(
        few.iloc[test]
    )[:, 1]
    found["refit with the columns"] = model.fit(X.iloc[both], y[both]).predict_proba(X.iloc[test])[
        :, 1
    ]
    return test, found


def scores(p: np.ndarray, y: np.ndarray, groups: pd.Series) -> list[float]:
    p = np.clip(p, 1e-6, 1 - 1e-6)
    losses = -np.log(np.where(y == 1, p, 1 - p))
    frame = pd.DataFrame({"gap": p - y, "group": groups.to_numpy()})
    gaps = frame.groupby("group")["gap"].agg(["mean", "size"])
    return [
        losses.mean(),
        100 * ((p > 0.5) == y).mean(),
        100 * gaps["mean"][gaps["size"] >= LEAST].abs().max(),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    print("# Recalibration by slice, beside a refit with the columns\n")
    print(
        "    OMP_NUM_THREADS=1 python benchmarks/recalibrate.py --data DIR > results/recalibrate/table.md\n"
    )
    print("| data | model | way | log loss | accuracy | largest gap of a group, points |")
    print("|---|---|---|---|---|---|")
    for name, (about, by) in ABOUT.items():
        X, y = table(name, data)
        groups = X[by].astype(str).agg(" ".join, axis=1)
        for kind, model in models().items():
            found: dict[str, list[list[float]]] = {}
            for seed in SEEDS:
                test, each = ways(model, X, y, about, seed)
                for way, p in each.items():
                    found.setdefault(way, []).append(scores(p, y[test], groups.iloc[test]))
            for way, rows in found.items():
                loss, right, gap = np.mean(rows, axis=0)
                print(f"| {name} | {kind} | {way} | {loss:.4f} | {right:.1f} | {gap:.1f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
