"""Audits of ordinary models on Adult and credit default: who is wronged, who is hard, whom the threshold fails.

python benchmarks/audit_tables.py --data FOLDER --out results/audit_tables, with adult.data.gz and
credit_default.csv.gz of the UCI repository.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import lightgbm as lgb
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import scdro

ADULT = [
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
]  # fmt: skip
SENSITIVE = ["sex", "race", "relationship", "marital-status"]


def read(folder: Path, name: str) -> tuple[pd.DataFrame, Any]:
    """The columns, and the labels."""
    if name == "adult":
        frame = pd.read_csv(folder / "adult.data.gz", names=ADULT, skipinitialspace=True)
        return frame.drop(columns="income"), (frame.income == ">50K").astype(int).to_numpy()
    frame = pd.read_csv(folder / "credit_default.csv.gz")
    target = frame.columns[-1]
    ids = [column for column in frame if column.lower() == "id"]
    return frame.drop(columns=[*ids, target]), frame[target].to_numpy()


def models_of(name: str, frame: pd.DataFrame) -> dict[str, tuple[Any, pd.DataFrame]]:
    """Ordinary models, and the columns that each of them sees."""
    texts = [column for column in frame if not pd.api.types.is_numeric_dtype(frame[column])]
    typed = frame.astype(dict.fromkeys(texts, "category"))
    trees = lgb.LGBMClassifier(n_estimators=150, learning_rate=0.05, verbose=-1, n_jobs=1)
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), texts), remainder=StandardScaler()
    )
    models = {
        "LightGBM": (trees, typed),
        "logistic regression": (make_pipeline(encode, LogisticRegression(max_iter=500)), frame),
    }
    if name == "adult":
        models["LightGBM without sensitive columns"] = (trees, typed.drop(columns=SENSITIVE))
    return models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    rows = []
    for name in ("adult", "credit"):
        frame, y = read(args.data, name)
        for what, (model, X) in models_of(name, frame).items():
            audit = scdro.audit(model, X, y, frame, cv=folds)
            print(f"\n## {name}, {what}\n\n{audit}", flush=True)
            kinds = [one.kind for one in audit.findings]
            numbers = [kinds.count(k) for k in ("wrong probabilities", "hard", "threshold")]
            first = audit.findings[0] if audit.findings else None
            told = "" if first is None else str(first)
            rows.append([name, what, audit.rows, audit.slices, *numbers, told])
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        with (args.out / "table.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ["table", "model", "rows", "slices", "wrong", "hard", "threshold", "first finding"]
            )
            writer.writerows(rows)


if __name__ == "__main__":
    main()
