"""Boosted trees on the worst case against the libraries alone, on real tables.

    python benchmarks/boosting.py run --data FOLDER        # resumable: a line of JSON for each fit that was chosen
    python benchmarks/boosting.py stopping --data FOLDER   # by which metric to stop; of the training rows alone
    python benchmarks/boosting.py temperature --data FOLDER --seeds 3  # what the library has by a temperature alone
    python benchmarks/boosting.py search --data FOLDER     # where it gains what no free move gives: nine cells
    python benchmarks/boosting.py cost --data FOLDER       # time and memory on Covertype
    python benchmarks/boosting.py report                   # results/boosting/table.md

Six tables to classify (FOLDER holds adult.data.gz and so on), and wages to predict. Each method,
with early stopping on a validation set by its own metric, searches the same learning rates and
numbers of leaves, and the setting that is best by that metric on the validation set is tested.
Seeds change the split and the model. Adult has a test set of its own; crashes, NHANES and wages are
split by time; diabetes130 by patient. Of Covertype's 581,012 rows a sample serves: `--covertype`
rows to train on, 20,000 unless told otherwise, a fifth as many to validate, 20,000 to test.

`dro`'s KLDRO_LGBM and KLDRO_XGB, where importable, have neither early stopping, nor missing values,
nor categories, nor
more than two classes: they get codes, with -1 for missing values, and their number of rounds from
the search.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit

import scdro
from scdro.fix._free_moves import best_temperature, moved

RESULTS = Path(__file__).parents[1] / "results" / "boosting"
RATES, LEAVES = (0.05, 0.15), (15, 63)
ROUNDS, PATIENCE = 2000, 50
COVERTYPE_TEST = 20_000


# -- tables
# -----------------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """Rows to learn from and rows to test on; `group` keeps rows together that belong together."""

    X: pd.DataFrame
    y: np.ndarray
    test: np.ndarray | None = None  # which rows are the test set, where the data say so
    group: np.ndarray | None = None
    year: np.ndarray | None = None

    def split(self, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows to train on, to validate on (a fifth of the rest) and to test on (a fifth, unless given)."""
        rows = np.arange(len(self.y))
        if self.test is None:
            rest, test = self._cut(rows, seed)
        else:
            rest, test = rows[~self.test], rows[self.test]
        train, valid = self._cut(rest, seed + 1000)
        return train, valid, test

    def _cut(self, rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
        if self.group is None:
            large, small = next(ShuffleSplit(1, test_size=0.2, random_state=seed).split(rows))
        else:
            shuffle = GroupShuffleSplit(1, test_size=0.2, random_state=seed)
            large, small = next(shuffle.split(rows, groups=self.group[rows]))
        return rows[large], rows[small]


def read(path: Path, **kwargs: Any) -> pd.DataFrame:
    """A table whose columns of text are categories."""
    frame = pd.read_csv(path, **kwargs)
    for name in frame.columns:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            frame[name] = frame[name].astype("category")
    return frame


ADULT = [
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital",
    "occupation",
    "relationship",
]
ADULT += ["race", "sex", "gain", "loss", "hours", "country", "y"]


def adult(data: Path) -> Table:
    settings: dict[str, Any] = {"names": ADULT, "skipinitialspace": True, "na_values": "?"}
    train = pd.read_csv(data / "adult.data.gz", **settings)
    test = pd.read_csv(data / "adult.test.gz", skiprows=1, **settings)
    frame = pd.concat([train, test], ignore_index=True)
    y = frame.pop("y").str.startswith(">50K").to_numpy(int)
    for name in frame.select_dtypes(exclude="number"):
        frame[name] = frame[name].astype("category")
    return Table(frame, y, test=np.arange(len(frame)) >= len(train))


def credit(data: Path) -> Table:
    frame = read(data / "credit_default.csv.gz").drop(columns="ID")
    y = frame.pop("default payment next month").to_numpy(int)
    return Table(frame, y)


def diabetes130(data: Path) -> Table:
    frame = read(data / "diabetes130.csv.gz", na_values="?", low_memory=False).drop(
        columns="encounter_id"
    )
    y = (frame.pop("readmitted") == "<30").to_numpy(int)
    return Table(frame, y, group=frame.pop("patient_nbr").to_numpy())


def crashes(data: Path) -> Table:
    frame = read(data / "nass_crashes.csv.gz").drop(columns=["injSeverity", "caseid", "weight"])
    y = (frame.pop("dead") == "dead").to_numpy(int)
    year = frame.pop("yearacc").to_numpy()
    return Table(frame, y, test=year > 2000)


def nhanes(data: Path) -> Table:
    frame = read(data / "nhanes.csv.gz", low_memory=False)
    frame = frame[frame["Diabetes"].notna()].reset_index(drop=True)
    y = (frame.pop("Diabetes") == "Yes").to_numpy(int)
    later = (frame.pop("SurveyYr") == "2011_12").to_numpy()
    design = [name for name in frame.columns if name.startswith(("WT", "SDMV"))]
    return Table(frame.drop(columns=["ID", "DiabetesAge", *design]), y, test=later)


def covertype(data: Path) -> Table:
    frame = pd.read_csv(data / "covtype.csv.gz", dtype=np.int16)
    y = frame.pop(frame.columns[-1]).to_numpy(int) - 1
    return Table(frame, y)


def wages(data: Path) -> Table:
    frame = read(data / "gss_wages.csv.gz")
    frame = frame[frame["realrinc"].notna() & frame["year"].notna()].reset_index(drop=True)
    y = np.log(frame.pop("realrinc").to_numpy(float))
    year = frame.pop("year").to_numpy(int)
    return Table(frame, y, test=year > 2000, year=year)


CLASSIFICATION = {
    "adult": adult,
    "credit": credit,
    "diabetes130": diabetes130,
    "crashes": crashes,
    "nhanes": nhanes,
    "covertype": covertype,
}
TABLES: dict[str, Callable[[Path], Table]] = {**CLASSIFICATION, "wages": wages}


# -- methods
# ----------------------------------------------------------------------------------------------------------

Rows = tuple[pd.DataFrame, np.ndarray]


@dataclass
class Fitted:
    """A model, its own metric on the validation set, and the rounds it keeps."""

    predict: Callable[[pd.DataFrame], np.ndarray]  # probabilities, or means
    score: float
    rounds: int


def lightgbm_fit(
    train: Rows, valid: Rows, rho: float, rate: float, leaves: int, rounds: int, seed: int
) -> Fitted:
    import lightgbm

    from scdro.boosting import KLDROLGBMClassifier, KLDROLGBMRegressor

    classify = train[1].dtype.kind == "i"
    model = (KLDROLGBMClassifier if classify else KLDROLGBMRegressor)(
        rho=rho,
        learning_rate=rate,
        num_leaves=leaves,
        n_estimators=rounds,
        random_state=seed,
        n_jobs=1,
        verbose=-1,
    )
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    model.fit(*train, eval_X=valid[0], eval_y=valid[1], callbacks=[stop])
    (score,) = model.best_score_["valid_0"].values()
    return Fitted(model.predict_proba if classify else model.predict, score, model.best_iteration_)


def xgboost_fit(
    train: Rows, valid: Rows, rho: float, rate: float, leaves: int, rounds: int, seed: int
) -> Fitted:
    from scdro.boosting import KLDROXGBClassifier, KLDROXGBRegressor

    classify = train[1].dtype.kind == "i"
    model = (KLDROXGBClassifier if classify else KLDROXGBRegressor)(
        rho=rho,
        learning_rate=rate,
        max_leaves=leaves,
        grow_policy="lossguide",
        max_depth=0,
        n_estimators=rounds,
        random_state=seed,
        n_jobs=1,
        enable_categorical=True,
        early_stopping_rounds=PATIENCE,
    )
    model.fit(*train, eval_set=[valid], verbose=False)
    return Fitted(
        model.predict_proba if classify else model.predict,
        float(model.best_score),
        model.best_iteration + 1,
    )


def dro_fit(library: str) -> Callable[..., Fitted]:
    """`dro`'s class at its default eps, a fixed 1/lam; chosen by the mean log loss on the validation set."""

    def fit(
        train: Rows, valid: Rows, rho: float, rate: float, leaves: int, rounds: int, seed: int
    ) -> Fitted:
        model = _dro_class(library)()
        limits = (
            {"num_leaves": leaves}
            if library == "lightgbm"
            else {"max_leaves": leaves, "grow_policy": "lossguide"}
        )
        threads = {"num_threads": 1} if library == "lightgbm" else {"nthread": 1, "max_depth": 0}
        model.update(
            {"learning_rate": rate, "num_boost_round": rounds, "seed": seed, **limits, **threads}
        )
        model.fit(codes(train[0]), train[1])

        def predict(X: pd.DataFrame) -> np.ndarray:
            if library == "lightgbm":
                scores = model.model.predict(codes(X), raw_score=True)
            else:
                import xgboost

                scores = model.model.predict(xgboost.DMatrix(codes(X)), output_margin=True)
            p = 1 / (1 + np.exp(-np.asarray(scores, dtype=float)))
            return np.stack([1 - p, p], 1)

        return Fitted(predict, float(log_losses(predict(valid[0]), valid[1]).mean()), rounds)

    return fit


def _dro_class(library: str) -> Any:
    """From its file: the package itself imports a neural network library that its trees do not need."""
    package = importlib.util.find_spec("dro")
    assert package is not None, "pip install --no-deps dro==0.4.3"
    name = {"lightgbm": "lgbm", "xgboost": "xgb"}[library]
    path = Path(str(package.origin)).parent / "tree_model" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"dro_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, {"lightgbm": "KLDRO_LGBM", "xgboost": "KLDRO_XGB"}[library])


def codes(X: pd.DataFrame) -> np.ndarray:
    """Numbers only: categories by their code, missing values as -1."""
    numbers = X.apply(
        lambda column: column.cat.codes if isinstance(column.dtype, pd.CategoricalDtype) else column
    )
    return np.asarray(numbers.fillna(-1).to_numpy(np.float32))


METHODS: dict[str, Callable[..., Fitted]] = {
    "lightgbm": lightgbm_fit,
    "xgboost": xgboost_fit,
    "dro-lightgbm": dro_fit("lightgbm"),
    "dro-xgboost": dro_fit("xgboost"),
}


# -- runs
# -------------------------------------------------------------------------------------------------------------


def log_losses(p: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(-np.log(np.maximum(p[np.arange(len(y)), y].astype(float), 1e-15)))


def worst(losses: np.ndarray, share: float = 0.05) -> float:
    return float(np.sort(losses)[-max(int(share * len(losses)), 1) :].mean())


def classification_scores(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    losses = log_losses(p, y)
    return {
        "accuracy": 100 * float((p.argmax(1) == y).mean()),
        "log loss": float(losses.mean()),
        "robust value": float(scdro.worst_case(losses, 0.5).value),
        "worst 5%": worst(losses),
    }


def regression_scores(p: np.ndarray, y: np.ndarray, year: np.ndarray) -> dict[str, Any]:
    errors = np.abs(p - y)
    by_year = {str(k): float(errors[year == k].mean()) for k in np.unique(year)}
    return {
        "mean error": float(errors.mean()),
        "robust value": float(scdro.worst_case((p - y) ** 2 / 2, 0.5).value),
        "worst 5%": worst(errors),
        "worst year": max(by_year.values()),
        "by year": by_year,
    }


def _parts(name: str, table: Table, seed: int, sample: int) -> tuple[Rows, Rows, Rows]:
    """Rows to train on, to validate on and to test on."""
    train, valid, test = table.split(seed)
    if name == "covertype":
        rng = np.random.default_rng(seed)
        parts = zip((train, valid, test), (sample, sample // 5, COVERTYPE_TEST), strict=True)
        train, valid, test = (rng.choice(part, size, replace=False) for part, size in parts)
    first, second, third = ((table.X.iloc[rows], table.y[rows]) for rows in (train, valid, test))
    return first, second, third


def run(name: str, table: Table, method: str, rho: float, seed: int, sample: int) -> dict[str, Any]:
    """Search, then test what the validation set chose."""
    train, valid, (X, y) = _parts(name, table, seed, sample)
    fixed = method.startswith("dro-")
    rounds = (100, 300) if fixed else (ROUNDS,)
    began = time.perf_counter()
    settings = list(product(RATES, LEAVES, rounds))
    found = [METHODS[method](train, valid, rho, *setting, seed) for setting in settings]
    k = min(range(len(found)), key=lambda k: found[k].score)
    chosen = found[k]
    p = chosen.predict(X)
    scores = (
        classification_scores(p, y)
        if table.year is None
        else regression_scores(p, y, table.year[table.split(seed)[2]])
    )
    return {
        "table": name,
        "method": method,
        "rho": rho,
        "seed": seed,
        "rows": len(train[1]),
        "rate": settings[k][0],
        "leaves": settings[k][1],
        "rounds": chosen.rounds,
        "seconds": round(time.perf_counter() - began, 1),
        **scores,
    }


def run_all(args: argparse.Namespace) -> None:
    done = {(r["table"], r["method"], r["rho"], r["seed"]) for r in records(args.out)}
    for name in args.tables:
        table = None
        for method, seed, rho in product(args.methods, range(args.seeds), args.rho):
            key = (name, method, 0.0 if method.startswith("dro-") else rho, seed)
            if key in done or (method.startswith("dro-") and name in ("covertype", "wages")):
                continue
            table = table or TABLES[name](args.data)
            record = run(name, table, *key[1:], args.covertype)
            with open(args.out, "a") as file:
                file.write(json.dumps(record) + "\n")
            done.add(key)
            print({k: v for k, v in record.items() if k != "by year"}, flush=True)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# -- when to stop
# -----------------------------------------------------------------------------------------------------

STOPS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)  # radii of the metric; 0 is log loss
STRIDE, LONGEST = 10, 300


def stopping(name: str, table: Table, seed: int, sample: int) -> Iterator[dict[str, Any]]:
    """LightGBM at rho = 0.1, its rounds and settings chosen by each metric, against the library chosen by log loss.

    A fifth of the training rows judges; the test rows of `run` stay out of it where the table has
    its own.
    """
    from scdro.boosting import KLDROLGBMClassifier

    train, valid, _ = table.split(seed)
    rest, judge = table._cut(np.concatenate([train, valid]), seed + 2000)
    train, valid = table._cut(rest, seed + 3000)
    if name == "covertype":
        rng = np.random.default_rng(seed)
        parts = zip((train, valid, judge), (sample, sample // 5, COVERTYPE_TEST), strict=True)
        train, valid, judge = (rng.choice(part, size, replace=False) for part, size in parts)

    def after_rounds(rho: float) -> Iterator[tuple[np.ndarray, dict[str, float]]]:
        """The losses on the validation set and the scores, of every setting after every tenth round."""
        for rate, leaves in product(RATES, LEAVES):
            own = {
                "learning_rate": rate,
                "num_leaves": leaves,
                "n_estimators": LONGEST,
                "random_state": seed,
            }
            model = KLDROLGBMClassifier(rho=rho, n_jobs=1, verbose=-1, **own)
            model.fit(table.X.iloc[train], table.y[train])
            for rounds in range(STRIDE, LONGEST + 1, STRIDE):
                held_out, judged = (
                    model.predict_proba(table.X.iloc[k], num_iteration=rounds)
                    for k in (valid, judge)
                )
                yield (
                    log_losses(held_out, table.y[valid]),
                    classification_scores(judged, table.y[judge]),
                )

    plain = min(after_rounds(0.0), key=lambda pair: pair[0].mean())[1]
    found = list(after_rounds(0.1))
    for radius in STOPS:
        values = [scdro.worst_case(losses, radius, lam0=1e-9).value for losses, _ in found]
        scores = found[int(np.argmin(values))][1]
        yield {"table": name, "seed": seed, "stop": radius} | {
            key: scores[key] - plain[key] for key in scores
        }


def stop_all(args: argparse.Namespace) -> None:
    done = {(r["table"], r["seed"]) for r in records(args.out)}
    for name, seed in product([name for name in args.tables if name != "wages"], range(args.seeds)):
        if (name, seed) not in done:
            rows = list(stopping(name, TABLES[name](args.data), seed, args.covertype))
            with open(args.out, "a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            print(name, seed, flush=True)


def _stops(frame: pd.DataFrame) -> Iterator[str]:
    yield (
        "| stopped by | "
        + " | ".join(name for name in CLASSIFICATION if name in set(frame["table"]))
        + " |"
    )
    yield "|---" * (1 + frame["table"].nunique()) + "|"
    for radius in STOPS:
        own = frame[frame["stop"] == radius].groupby("table")[["accuracy", "robust value"]].mean()
        cells = [
            f"{own.loc[t, 'accuracy']:+.2f}, {own.loc[t, 'robust value']:+.2f}"
            for t in CLASSIFICATION
            if t in own.index
        ]
        yield f"| {f'robust@{radius:g}' if radius else 'log loss'} | {' | '.join(cells)} |".replace(
            "-", "−"
        )


# -- the library with a temperature
# -----------------------------------------------------------------------------------

AS = ("plain", "plain, temperature", "worst case", "worst case, recalibrated")
LEAST = 30  # rows of a class, and of the others, that a group must have for an AUC
GROUPS: dict[str, Callable[[pd.DataFrame], np.ndarray]] = {  # whose AUCs are compared, stated before any run
    "adult": lambda X: (X["sex"].astype(str) + ", " + X["race"].astype(str)).to_numpy(),
    "credit": lambda X: (X["SEX"].astype(str) + ", " + pd.cut(X["AGE"], [0, 30, 45, 99]).astype(str)).to_numpy(),
    "diabetes130": lambda X: X["race"].astype(object).fillna("missing").to_numpy(),
    "crashes": lambda X: (X["sex"].astype(str) + ", " + X["occRole"].astype(str)).to_numpy(),
    "nhanes": lambda X: X["Race1"].astype(str).to_numpy(),
    "covertype": lambda X: X.iloc[:, 10:14].to_numpy().argmax(1),  # the four wilderness areas
}  # fmt: skip


def auc(p: np.ndarray, y: np.ndarray) -> float:
    """Mean over the classes of one class against the others, of those with enough rows; NaN without any."""
    classes = [1] if p.shape[1] == 2 else range(p.shape[1])
    own = [k for k in classes if LEAST <= (y == k).sum() <= len(y) - LEAST]
    return float(np.mean([roc_auc_score(y == k, p[:, k]) for k in own])) if own else float("nan")


def ranking_scores(p: np.ndarray, y: np.ndarray, groups: np.ndarray) -> dict[str, float]:
    """Which no temperature changes (with two classes; with more it hardly does)."""
    by_group = [auc(p[groups == g], y[groups == g]) for g in np.unique(groups)]
    return {"AUC": 100 * auc(p, y), "worst-group AUC": 100 * float(np.nanmin(by_group))}


def with_temperature(
    name: str, table: Table, method: str, seed: int, sample: int, out: Path
) -> dict[str, Any]:
    """The library and the worst case, at the settings that `run` chose, and what a temperature makes of each.

    On the validation set the library's gets the mean log loss of the worst case, by being less
    sure; the worst case's gets the lowest. Both are tested as they are.
    """
    own = [r for r in records(out) if (r["table"], r["method"], r["seed"]) == (name, method, seed)]
    chosen = {r["rho"]: r for r in own}
    (train_X, train_y), valid, (test_X, test_y) = _parts(name, table, seed, sample)
    fitted = {
        rho: METHODS[method](
            (train_X, train_y), valid, rho, chosen[rho]["rate"], chosen[rho]["leaves"], ROUNDS, seed
        )
        for rho in (0.0, 0.1)
    }
    held_out, tested = (
        {rho: f.predict(X) for rho, f in fitted.items()} for X in (valid[0], test_X)
    )
    loss = float(log_losses(held_out[0.1], valid[1]).mean())
    flatter = temperature_of_loss(held_out[0.0], valid[1], loss)
    sharper = best_temperature(held_out[0.1], valid[1], np.mean)
    predicted = [tested[0.0], moved(tested[0.0], flatter), tested[0.1], moved(tested[0.1], sharper)]
    groups = GROUPS[name](test_X)
    scores = {
        kind: classification_scores(p, test_y) | ranking_scores(p, test_y, groups)
        for kind, p in zip(AS, predicted, strict=True)
    }
    found = {
        "table": name,
        "method": method,
        "seed": seed,
        "temperature": flatter,
        "recalibrated by": sharper,
    }
    return found | {"scores": scores}


def temperature_of_loss(proba: np.ndarray, y: np.ndarray, loss: float) -> float:
    """The temperature above the best one at which the mean log loss is `loss`; it is convex in 1 / T."""

    def above(inverse: float) -> float:
        return float(log_losses(moved(proba, 1 / inverse), y).mean()) - loss

    best = 1 / best_temperature(proba, y, np.mean)
    return 1 / float(brentq(above, 1e-6, best)) if above(best) < 0 < above(1e-6) else 1 / best


def temperature_all(args: argparse.Namespace, runs: Path) -> None:
    done = {(r["table"], r["method"], r["seed"]) for r in records(args.out)}
    for name in [name for name in args.tables if name in CLASSIFICATION]:
        table = None
        for key in product([name], args.methods, range(args.seeds)):
            if key in done:
                continue
            table = table or TABLES[name](args.data)
            record = with_temperature(name, table, *key[1:], args.covertype, runs)
            with open(args.out, "a") as file:
                file.write(json.dumps(record) + "\n")
            print(record, flush=True)


def _temperatures(found: list[dict[str, Any]]) -> Iterator[str]:
    """Means over seeds."""
    columns = {**COLUMNS, "AUC": "{:.2f}", "worst-group AUC": "{:.2f}"}
    yield f"| table | library | | {' | '.join(columns)} | temperature | seeds |"
    yield "|---" * (len(columns) + 5) + "|"
    for name, method in product(CLASSIFICATION, METHODS):
        own = [r for r in found if (r["table"], r["method"]) == (name, method)]
        for kind in AS if own else ():
            cells = [
                form.format(np.mean([r["scores"][kind][column] for r in own]))
                for column, form in columns.items()
            ]
            by = {
                "plain, temperature": "temperature",
                "worst case, recalibrated": "recalibrated by",
            }.get(kind)
            cells.append("" if by is None else f"{np.mean([r[by] for r in own]):.2f}")
            yield f"| {name} | {method} | {kind} | {' | '.join(cells)} | {len(own)} |"


# -- where it gains fairly: regression, few leaves, strong penalties, a hidden group with little capacity
#
# Stated before the first run. Each cell has three seeds, at most 300 rounds and early stopping on a
# validation set. The rival is plain training with the free moves for the same criterion, chosen on the
# validation set at no more than the mean loss of the worst case: an affine map of the predictions
# (regression), a temperature (classification). rho = .1 gains in a cell if in all three seeds its worst-case
# loss at .5 on the test rows is below the rival's, and a group that nobody named (the worst year of the
# wages, the hidden group of the made data) is served no worse than by plain training.

CAPACITY: dict[str, dict[str, Any]] = {
    "4 leaves": {"num_leaves": 4},
    "31 leaves": {"num_leaves": 31},
    "31 leaves, L2 1000": {"num_leaves": 31, "reg_lambda": 1000.0},
}


def hidden_group(seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A column that tells the class for all but one row in twenty, and four that tell it for everybody, together."""
    rng = np.random.default_rng(seed)
    y, hidden = rng.integers(0, 2, 12_000), rng.random(12_000) < 0.05
    shortcut = np.where(hidden, 1 - y, y) + 0.3 * rng.normal(size=len(y))
    rule = y[:, None] + 0.9 * rng.normal(size=(len(y), 4))
    return pd.DataFrame(np.column_stack([shortcut, rule])), y, hidden


def affine_moves(p: np.ndarray, y: np.ndarray, loss: Any, most: float) -> tuple[float, float]:
    """a and b of a p + b with the lowest worst-case loss at .5 and a mean loss of at most `most`."""
    tried = [
        (float(scdro.worst_case(losses, 0.5).value), a, b)
        for a in np.linspace(0.8, 1.2, 9)
        for b in np.linspace(-0.4, 0.4, 17) * np.std(y)
        if (losses := loss(a * (p - p.mean()) + p.mean() + b, y)).mean() <= most
    ]
    _, a, b = min(tried, default=(0.0, 1.0, 0.0))
    return float(a), float(b)


def search_all(args: argparse.Namespace) -> None:
    import lightgbm

    from scdro.boosting import KLDROLGBMClassifier, KLDROLGBMRegressor

    stop = lightgbm.early_stopping(PATIENCE, verbose=False)

    def fit(kind: Any, parts: tuple[Rows, Rows], rho: float, seed: int, **settings: Any) -> Any:
        model = kind(rho=rho, n_estimators=300, random_state=seed, n_jobs=1, verbose=-1, **settings)
        (X, y), (valid_X, valid_y) = parts
        return model.fit(X, y, eval_X=valid_X, eval_y=valid_y, callbacks=[stop])

    losses: dict[str, Callable[[Any, Any], Any]] = {
        "regression": lambda p, y: (p - y) ** 2 / 2,
        "regression_l1": lambda p, y: np.abs(p - y),
    }
    table = wages(args.data)
    years = table.year
    assert years is not None
    with open(args.out, "w") as file:
        for (name, capacity), seed in product(CAPACITY.items(), range(3)):
            train, valid, test = table.split(seed)
            parts = [(table.X.iloc[rows], table.y[rows]) for rows in (train, valid, test)]
            for objective, loss in losses.items():
                plain, robust = (
                    fit(
                        KLDROLGBMRegressor,
                        (parts[0], parts[1]),
                        rho,
                        seed,
                        objective=objective,
                        **capacity,
                    )
                    for rho in (0.0, 0.1)
                )
                held_out = [m.predict(parts[1][0]) for m in (plain, robust)]
                a, b = affine_moves(
                    held_out[0], parts[1][1], loss, float(loss(held_out[1], parts[1][1]).mean())
                )
                first, then = (m.predict(parts[2][0]) for m in (plain, robust))
                middle = held_out[0].mean()
                found = {
                    "plain": first,
                    "plain, affine": a * (first - middle) + middle + b,
                    "worst case": then,
                }
                y, year = parts[2][1], years[test]
                scores = {
                    kind: {
                        "mean loss": float(loss(p, y).mean()),
                        "robust value": float(scdro.worst_case(loss(p, y), 0.5).value),
                        "group": max(
                            float(np.abs(p - y)[year == k].mean()) for k in np.unique(year)
                        ),
                    }
                    for kind, p in found.items()
                }
                what = "wages, " + {"regression": "squared", "regression_l1": "absolute"}[objective]
                row = {"data": what, "capacity": name, "seed": seed, "scores": scores}
                file.write(json.dumps(row) + "\n")
            X, labels, hidden = hidden_group(seed)
            cuts = np.split(np.arange(len(labels)), [6000, 8000])
            made = [(X.iloc[rows], labels[rows]) for rows in cuts]
            plain, robust = (
                fit(KLDROLGBMClassifier, (made[0], made[1]), rho, seed, **capacity)
                for rho in (0.0, 0.1)
            )
            held_out = [m.predict_proba(made[1][0]) for m in (plain, robust)]
            flatter = temperature_of_loss(
                held_out[0], made[1][1], float(log_losses(held_out[1], made[1][1]).mean())
            )
            first, then = (m.predict_proba(made[2][0]) for m in (plain, robust))
            found = {
                "plain": first,
                "plain, temperature": moved(first, flatter),
                "worst case": then,
            }
            y, own = made[2][1], hidden[cuts[2]]
            scores = {
                kind: {
                    "mean loss": float(log_losses(p, y).mean()),
                    "robust value": float(scdro.worst_case(log_losses(p, y), 0.5).value),
                    "group": 100 * float((p.argmax(1) == y)[own].mean()),
                    "accuracy": 100 * float((p.argmax(1) == y).mean()),
                }
                for kind, p in found.items()
            }
            row = {
                "data": "hidden group, log loss",
                "capacity": name,
                "seed": seed,
                "scores": scores,
            }
            file.write(json.dumps(row) + "\n")
            file.flush()


def _search(found: list[dict[str, Any]]) -> Iterator[str]:
    yield "| data | capacity | | mean loss | robust value | worst year's error, or hidden group's accuracy | gains |"
    yield "|---" * 7 + "|"
    for data, capacity in dict.fromkeys((r["data"], r["capacity"]) for r in found):
        own = [r["scores"] for r in found if (r["data"], r["capacity"]) == (data, capacity)]
        rival = next(kind for kind in own[0] if kind.startswith("plain, "))
        sign = 1 if data.startswith("hidden") else -1
        gains = all(
            s["worst case"]["robust value"] < s[rival]["robust value"]
            and sign * s["worst case"]["group"] >= sign * s["plain"]["group"]
            for s in own
        )
        for kind in own[0]:
            cells = [
                np.mean([s[kind][key] for s in own])
                for key in ("mean loss", "robust value", "group")
            ]
            verdict = ("yes" if gains else "no") if kind == "worst case" else ""
            shown = " | ".join(f"{cell:.4g}" for cell in cells)
            yield f"| {data} | {capacity} | {kind} | {shown} | {verdict} |"


# -- cost
# -------------------------------------------------------------------------------------------------------------

COSTS = ("built-in", "custom objective", "worst case")


def cost_of(library: str, kind: str, data: Path, rounds: int) -> dict[str, Any]:
    """Seconds of CPU, and peak memory above that of the data, of a fit to all of Covertype, on one thread."""
    table = covertype(data)
    X, y = np.ascontiguousarray(table.X.to_numpy(np.float32)), table.y.astype(np.float32)
    del table
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    losses = _trivial(y)
    if library == "lightgbm":
        import lightgbm

        from scdro.boosting import LightGBMWorstCase

        params: dict[str, Any] = {
            "objective": "multiclass",
            "num_class": 7,
            "num_threads": 1,
            "verbose": -1,
        }
        dataset = lightgbm.Dataset(X, y, params=params).construct()
        if kind == "custom objective":
            params["objective"] = losses
        callbacks = [LightGBMWorstCase(0.1)] if kind == "worst case" else []
        began = (
            time.process_time()
        )  # of one thread, without the binning: what else runs on the machine hardly counts
        lightgbm.train(params, dataset, rounds, callbacks=callbacks)
    else:
        import xgboost

        from scdro.boosting import XGBoostWorstCase

        params = {"objective": "multi:softprob", "num_class": 7, "nthread": 1, "max_depth": 6}
        matrix = xgboost.QuantileDMatrix(X, y, nthread=1)
        obj = losses if kind == "custom objective" else None
        robust = [XGBoostWorstCase(0.1)] if kind == "worst case" else []
        began = time.process_time()
        xgboost.train(params, matrix, rounds, obj=obj, callbacks=robust)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "library": library,
        "kind": kind,
        "rounds": rounds,
        "seconds": seconds,
        "MB": peak / 1024,
        "MB before": before / 1024,
    }


def _trivial(y: np.ndarray) -> Callable[[np.ndarray, Any], tuple[np.ndarray, np.ndarray]]:
    """Log loss of seven classes in NumPy: what any objective in Python must at least do."""
    one_hot = np.eye(7, dtype=np.float32)[y.astype(int)]

    def objective(scores: np.ndarray, data: Any) -> tuple[np.ndarray, np.ndarray]:
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        return p - one_hot, 2 * p * (1 - p)

    return objective


def cost_all(args: argparse.Namespace) -> None:
    """Each fit in a process of its own, so that its peak of memory is its own."""
    libraries = [method for method in args.methods if not method.startswith("dro-")]
    for repeat, library, kind in product(range(args.repeats), libraries, COSTS):
        command = [
            sys.executable,
            __file__,
            "cost",
            "--data",
            str(args.data),
            "--rounds",
            str(args.rounds),
        ]
        line = subprocess.run(
            [*command, "--only", library, kind], check=True, capture_output=True, text=True
        ).stdout
        record = json.loads(line.splitlines()[-1]) | {"repeat": repeat}
        with open(args.out, "a") as file:
            file.write(json.dumps(record) + "\n")
        print(record, flush=True)


# -- report
# -----------------------------------------------------------------------------------------------------------

COLUMNS = {
    "accuracy": "{:.2f}",
    "log loss": "{:.4f}",
    "robust value": "{:.3f}",
    "worst 5%": "{:.3f}",
}
WAGES = {
    "mean error": "{:.4f}",
    "worst year": "{:.4f}",
    "robust value": "{:.3f}",
    "worst 5%": "{:.3f}",
}


def report(path: Path, temperatures: Path, stops: Path, costs: Path) -> str:
    """Means over seeds, and the standard deviation of the difference to the library alone, seed by seed."""
    frame = pd.DataFrame(records(path))
    lines: list[str] = []
    for title, tables, columns in (
        ("Classification", CLASSIFICATION, COLUMNS),
        ("Wages: log income, years up to 2000 against later ones", {"wages": wages}, WAGES),
    ):
        lines += [f"## {title}", "", f"| table | method | rho | {' | '.join(columns)} | seeds |"]
        lines.append("|---" * (len(columns) + 4) + "|")
        for name in tables:
            lines += _rows(frame[frame["table"] == name], name, columns)
        lines.append("")
    lines += [
        "## Mean absolute error of log income by year",
        "",
        *_by_year(frame[frame["table"] == "wages"]),
        "",
    ]
    if temperatures.exists():
        lines += ["## The library with a temperature, at the mean log loss of the worst case", ""]
        lines += [*_temperatures(records(temperatures)), ""]
    if stops.exists():
        seeds = pd.DataFrame(records(stops)).groupby("table")["seed"].nunique()
        counts = ", ".join(f"{name} {count}" for name, count in seeds.items())
        lines += [
            (
                "## By which metric to stop: changes of accuracy and robust value, means over"
                f" seeds ({counts})"
            ),
            "",
        ]
        lines += [*_stops(pd.DataFrame(records(stops))), ""]
    if costs.exists():
        lines += [
            "## Cost on Covertype, all 581,012 rows, one thread",
            "",
            *_costs(pd.DataFrame(records(costs))),
        ]
    return "\n".join(lines) + "\n"


def _rows(own: pd.DataFrame, name: str, columns: dict[str, str]) -> Iterator[str]:
    for (method, rho), runs in own.groupby(["method", "rho"], sort=True):
        runs = runs.set_index("seed")
        plain = own[(own["method"] == method) & (own["rho"] == 0)].set_index("seed")
        cells = []
        for column, form in columns.items():
            cell = form.format(runs[column].mean())
            if rho > 0 and len(plain):
                difference = (runs[column] - plain[column]).dropna()
                change = form.format(difference.mean()).replace("-", "−")
                cell += (
                    f" ({change} ± {form.format(difference.std())})"
                    if len(difference) > 1
                    else f" ({change})"
                )
            cells.append(cell)
        kind = "at its default" if method.startswith("dro-") else f"{rho:g}"
        yield f"| {name} | {method} | {kind} | {' | '.join(cells)} | {len(runs)} |"


def _by_year(own: pd.DataFrame) -> Iterator[str]:
    if not len(own):
        return
    years = sorted(own["by year"].iloc[0])
    yield f"| method | rho | {' | '.join(years)} |"
    yield "|---" * (len(years) + 2) + "|"
    for (method, rho), runs in own.groupby(["method", "rho"], sort=True):
        means = [np.mean([run[year] for run in runs["by year"]]) for year in years]
        yield f"| {method} | {rho:g} | {' | '.join(f'{mean:.3f}' for mean in means)} |"


def _costs(frame: pd.DataFrame) -> Iterator[str]:
    """Medians over the repeats, of ratios to the fits of the same repeat."""
    yield (
        "| library | objective | seconds a round | to built-in | to custom | peak MB | to custom |"
        " repeats |"
    )
    yield "|---" * 8 + "|"
    frame = frame.assign(each=frame["seconds"] / frame["rounds"])
    for library, own in frame.groupby("library"):
        each, memory = (
            own.pivot(index="repeat", columns="kind", values=value) for value in ("each", "MB")
        )
        for kind in COSTS:
            ratios = [each[kind] / each["built-in"], each[kind] / each["custom objective"]]
            of_memory = (memory[kind] / memory["custom objective"]).median()
            times = " | ".join(f"{ratio.median():.2f}" for ratio in ratios)
            yield (
                f"| {library} | {kind} | {each[kind].median():.3f} | {times} |"
                f" {memory[kind].median():.0f} | {of_memory:.3f} | {len(each)} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", choices=["run", "stopping", "temperature", "search", "cost", "report"]
    )
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SCDRO_DATA", "data")))
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument(
        "--methods", nargs="+", default=["lightgbm", "xgboost"], choices=list(METHODS)
    )
    parser.add_argument("--rho", nargs="+", type=float, default=[0.0, 0.1])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--covertype", type=int, default=20_000, help="rows of Covertype to train on"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of `cost`")
    parser.add_argument("--repeats", type=int, default=5, help="of `cost`")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    runs, temperatures, stops, costs, searched = (
        RESULTS / f"{part}.jsonl" for part in ("runs", "temperature", "stopping", "cost", "search")
    )
    if args.what == "run":
        args.out = args.out or runs
        run_all(args)
    elif args.what == "stopping":
        args.out = args.out or stops
        stop_all(args)
    elif args.what == "temperature":
        args.out = args.out or temperatures
        temperature_all(args, runs)
    elif args.what == "search":
        args.out = args.out or searched
        search_all(args)
    elif args.what == "cost" and args.only:
        library, kind = args.only
        print(json.dumps(cost_of(library, kind, args.data, args.rounds)))
    elif args.what == "cost":
        args.out = args.out or costs
        cost_all(args)
    else:
        out = args.out or RESULTS / "table.md"
        text = f"# Boosted trees on the worst case\n\n{report(runs, temperatures, stops, costs)}"
        if searched.exists():
            rows = "\n".join(_search(records(searched)))
            text += f"\n## Where it gains beyond free moves: a search, stated before the first run\n\n{rows}\n"
        out.write_text(text)


if __name__ == "__main__":
    main()
