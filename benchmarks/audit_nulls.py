"""How often does an audit accuse a model that has done nothing?

    python benchmarks/audit_nulls.py run --data FOLDER      # resumable: results/audit_nulls/runs.jsonl
    python benchmarks/audit_nulls.py report                 # results/audit_nulls/table.md

Five tables, three kinds of model, 5,000 rows, probabilities out of fold (five folds; patients of
diabetes130 stay together, and are the audit's `groups`). 100 audits of each, of two kinds, with the
default alpha = .01. Which findings are false was decided before the first run:

redrawn   Labels are drawn from the model's own probabilities, which are then right about everybody.
          Every finding of the kind "wrong probabilities" is false, one about all rows too. Findings
          of the kinds "hard" and "threshold" are not: that people with p near one half get many
          wrong decisions, or that members of a rare class are missed, is a fact about these
          probabilities, and is true whatever the labels. They are counted, not judged.
shuffled  Real labels and probabilities; the rows of the columns are permuted together against them.
          Columns say nothing then, so every finding of any kind that names a column is false.
          Findings about all rows, or about high or low probabilities, name no column: a model
          that is wrong as a whole stays wrong when columns are shuffled.

Success: at most 1 audit of 100 with a false finding, in all and for every pair of table and model as
far as 100 audits can tell (exact binomial intervals at 95%).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import numpy.typing as npt
import pandas as pd
from audit_planted import read_table, typed
from scipy.stats import beta
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

import scdro

Array = npt.NDArray[Any]
RESULTS = Path(__file__).parents[1] / "results" / "audit_nulls"
TABLES = ("adult", "credit", "crashes", "diabetes130", "cces")
MODELS = ("logistic", "LightGBM", "random forest")
NULLS = ("redrawn", "shuffled")
ROWS, AUDITS = 5_000, 100


def make_model(name: str, frame: pd.DataFrame) -> Any:
    texts = [column for column in frame if not pd.api.types.is_numeric_dtype(frame[column])]
    numbers = [column for column in frame if column not in texts]
    if name == "LightGBM":
        return lgb.LGBMClassifier(n_estimators=100, learning_rate=0.05, verbose=-1, n_jobs=1)
    fill = SimpleImputer(strategy="median")
    if name == "logistic":
        scaled = make_pipeline(fill, StandardScaler())
        encode = make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), texts), (scaled, numbers)
        )
        return make_pipeline(encode, LogisticRegression(max_iter=500))
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    encode = make_column_transformer((ordinal, texts), (fill, numbers))
    trees = RandomForestClassifier(100, min_samples_leaf=5, random_state=0, n_jobs=1)
    return make_pipeline(encode, trees)


def out_of_fold(name: str, frame: pd.DataFrame, y: Array, units: Array) -> Array:
    X = typed(frame) if name == "LightGBM" else frame
    p = np.zeros(len(y))
    for seen, unseen in GroupKFold(5).split(X, y, units):
        model = make_model(name, frame).fit(X.iloc[seen], y[seen])
        p[unseen] = model.predict_proba(X.iloc[unseen])[:, 1]
    return p


def audit_once(
    null: str, frame: pd.DataFrame, y: Array, p: Array, groups: Any, seed: int
) -> dict[str, Any]:
    """What one audit says: all findings by kind, and the number of false ones."""
    rng = np.random.default_rng(seed)
    if null == "redrawn":
        y = (rng.random(len(y)) < p).astype(int)
    else:
        frame = frame.iloc[rng.permutation(len(frame))].reset_index(drop=True)
    found = scdro.audit(y, p, frame, groups=groups, classes=[0, 1]).findings
    if null == "redrawn":
        false = [one for one in found if one.kind == "wrong probabilities"]
    else:
        false = [one for one in found if one.conditions]
    return {
        "kinds": Counter(one.kind for one in found),
        "false": len(false),
        "slices": [f"{one.kind}: {one.slice} ({one.p_value:.2g})" for one in false],
    }


def run(data: Path, audits: int) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "runs.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(one["table"], one["model"], one["null"], one["seed"]) for one in lines}
    for t, table in enumerate(TABLES):
        frame, y, units = read_table(data, table)
        rows = np.random.default_rng(t).choice(len(y), ROWS, replace=False)
        frame, y, units = frame.iloc[rows].reset_index(drop=True), y[rows], units[rows]
        groups = units if table == "diabetes130" else None
        for model in MODELS:
            cells = [(null, seed) for seed in range(audits) for null in NULLS]
            cells = [cell for cell in cells if (table, model, *cell) not in done]
            p = out_of_fold(model, frame, y, units) if cells else np.zeros(0)
            for null, seed in cells:
                told = audit_once(null, frame, y, p, groups, seed)
                line = {"table": table, "model": model, "null": null, "seed": seed, **told}
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def interval(hits: int, n: int) -> str:
    """Clopper and Pearson's, at 95%."""
    low = beta.ppf(0.025, hits, n - hits + 1) if hits else 0.0
    high = beta.ppf(0.975, hits + 1, n - hits) if hits < n else 1.0
    return f"{100 * low:.2g} to {100 * high:.2g}%"


def report() -> None:
    lines = [json.loads(line) for line in (RESULTS / "runs.jsonl").read_text().splitlines()]
    text = [
        "# Audits of models that have done nothing\n",
        "    python benchmarks/audit_nulls.py run --data FOLDER",
    ]
    text += [
        "    python benchmarks/audit_nulls.py report\n",
        "What counts as false is written there.\n",
    ]
    text += ["| null | table | model | audits | with a false finding | 95% interval | audits with a hard / a threshold"
             " finding |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for null in NULLS:
        own = [one for one in lines if one["null"] == null]
        cells = [(table, model) for table in TABLES for model in MODELS]
        for table, model in [*cells, ("all", "all")]:
            here = [
                one
                for one in own
                if table == "all" or (one["table"], one["model"]) == (table, model)
            ]
            if here:
                false = sum(one["false"] > 0 for one in here)
                others = " / ".join(
                    str(sum(kind in one["kinds"] for one in here)) for kind in ("hard", "threshold")
                )
                text.append(f"| {null} | {table} | {model} | {len(here):,} | {false} |"
                            f" {interval(false, len(here))} | {others} |")  # fmt: skip
    (RESULTS / "table.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))
    for one in lines:
        if one["false"]:
            print(one["null"], one["table"], one["model"], one["seed"], one["slices"][:3])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "report"])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--audits", type=int, default=AUDITS)
    args = parser.parse_args()
    if args.command == "run":
        run(args.data, args.audits)
    else:
        report()


if __name__ == "__main__":
    main()
