"""Boosted trees on the worst case against the libraries alone, on real tables.

    python benchmarks/boosting.py run --data FOLDER        # resumable: a line of JSON for each fit that was chosen
    python benchmarks/boosting.py stopping --data FOLDER   # by which metric to stop; of the training rows alone
    python benchmarks/boosting.py cost --data FOLDER       # time and memory on Covertype
    python benchmarks/boosting.py report                   # results/boosting/table.md

Six tables to classify (FOLDER holds adult.data.gz and so on), and wages to predict. Each method, with early stopping
on a validation set by its own metric, searches the same learning rates and numbers of leaves, and the setting that is
best by that metric on the validation set is tested. Seeds change the split and the model. Adult has a test set of its
own; crashes, NHANES and wages are split by time; diabetes130 by patient. Of Covertype's 581,012 rows a sample serves:
`--covertype` rows to train on, 20,000 unless told otherwise, a fifth as many to validate, 20,000 to test.

`dro`'s KLDRO_LGBM and KLDRO_XGB, where importable, have neither early stopping, nor missing values, nor categories, nor
more than two classes: they get codes, with -1 for missing values, and their number of rounds from the search.
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
from sklearn.model_selection import GroupShuffleSplit, ShuffleSplit

import scdro

RESULTS = Path(__file__).parents[1] / "results" / "boosting"
RATES, LEAVES = (0.05, 0.15), (15, 63)
ROUNDS, PATIENCE = 2000, 50
COVERTYPE_TEST = 20_000


# -- tables -----------------------------------------------------------------------------------------------------------


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


ADULT = ["age", "workclass", "fnlwgt", "education", "education_num", "marital", "occupation", "relationship"]
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
    frame = read(data / "diabetes130.csv.gz", na_values="?", low_memory=False).drop(columns="encounter_id")
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


# -- methods ----------------------------------------------------------------------------------------------------------

Rows = tuple[pd.DataFrame, np.ndarray]


@dataclass
class Fitted:
    """A model, its own metric on the validation set, and the rounds it keeps."""

    predict: Callable[[pd.DataFrame], np.ndarray]  # probabilities, or means
    score: float
    rounds: int


def lightgbm_fit(train: Rows, valid: Rows, rho: float, rate: float, leaves: int, rounds: int, seed: int) -> Fitted:
    import lightgbm

    from scdro.boosting import KLDROLGBMClassifier, KLDROLGBMRegressor

    classify = train[1].dtype.kind == "i"
    model = (KLDROLGBMClassifier if classify else KLDROLGBMRegressor)(
        rho=rho, learning_rate=rate, num_leaves=leaves, n_estimators=rounds, random_state=seed, n_jobs=1, verbose=-1
    )
    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    model.fit(*train, eval_X=valid[0], eval_y=valid[1], callbacks=[stop])
    (score,) = model.best_score_["valid_0"].values()
    return Fitted(model.predict_proba if classify else model.predict, score, model.best_iteration_)


def xgboost_fit(train: Rows, valid: Rows, rho: float, rate: float, leaves: int, rounds: int, seed: int) -> Fitted:
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
    return Fitted(model.predict_proba if classify else model.predict, float(model.best_score), model.best_iteration + 1)


def dro_fit(library: str) -> Callable[..., Fitted]:
    """`dro`'s class at its default eps, a fixed 1/lam; chosen by the mean log loss on the validation set."""

    def fit(train: Rows, valid: Rows, rho: float, rate: float, leaves: int, rounds: int, seed: int) -> Fitted:
        model = _dro_class(library)()
        limits = {"num_leaves": leaves} if library == "lightgbm" else {"max_leaves": leaves, "grow_policy": "lossguide"}
        threads = {"num_threads": 1} if library == "lightgbm" else {"nthread": 1, "max_depth": 0}
        model.update({"learning_rate": rate, "num_boost_round": rounds, "seed": seed, **limits, **threads})
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
    numbers = X.apply(lambda column: column.cat.codes if isinstance(column.dtype, pd.CategoricalDtype) else column)
    return np.asarray(numbers.fillna(-1).to_numpy(np.float32))


METHODS: dict[str, Callable[..., Fitted]] = {
    "lightgbm": lightgbm_fit,
    "xgboost": xgboost_fit,
    "dro-lightgbm": dro_fit("lightgbm"),
    "dro-xgboost": dro_fit("xgboost"),
}


# -- runs -------------------------------------------------------------------------------------------------------------


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


def run(name: str, table: Table, method: str, rho: float, seed: int, sample: int) -> dict[str, Any]:
    """Search, then test what the validation set chose."""
    train, valid, test = table.split(seed)
    if name == "covertype":
        rng = np.random.default_rng(seed)
        parts = zip((train, valid, test), (sample, sample // 5, COVERTYPE_TEST), strict=True)
        train, valid, test = (rng.choice(part, size, replace=False) for part, size in parts)

    def rows(index: np.ndarray) -> Rows:
        return table.X.iloc[index], table.y[index]

    fixed = method.startswith("dro-")
    rounds = (100, 300) if fixed else (ROUNDS,)
    began = time.perf_counter()
    settings = list(product(RATES, LEAVES, rounds))
    found = [METHODS[method](rows(train), rows(valid), rho, *setting, seed) for setting in settings]
    k = min(range(len(found)), key=lambda k: found[k].score)
    chosen = found[k]
    X, y = rows(test)
    p = chosen.predict(X)
    scores = classification_scores(p, y) if table.year is None else regression_scores(p, y, table.year[test])
    return {
        "table": name,
        "method": method,
        "rho": rho,
        "seed": seed,
        "rows": len(train),
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


# -- when to stop -----------------------------------------------------------------------------------------------------

STOPS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1)  # radii of the metric; 0 is log loss
STRIDE, LONGEST = 10, 300


def stopping(name: str, table: Table, seed: int, sample: int) -> Iterator[dict[str, Any]]:
    """LightGBM at rho = 0.1, its rounds and settings chosen by each metric, against the library chosen by log loss.

    A fifth of the training rows judges; the test rows of `run` stay out of it where the table has its own.
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
            own = {"learning_rate": rate, "num_leaves": leaves, "n_estimators": LONGEST, "random_state": seed}
            model = KLDROLGBMClassifier(rho=rho, n_jobs=1, verbose=-1, **own)
            model.fit(table.X.iloc[train], table.y[train])
            for rounds in range(STRIDE, LONGEST + 1, STRIDE):
                held_out, judged = (model.predict_proba(table.X.iloc[k], num_iteration=rounds) for k in (valid, judge))
                yield log_losses(held_out, table.y[valid]), classification_scores(judged, table.y[judge])

    plain = min(after_rounds(0.0), key=lambda pair: pair[0].mean())[1]
    found = list(after_rounds(0.1))
    for radius in STOPS:
        values = [scdro.worst_case(losses, radius, lam0=1e-9).value for losses, _ in found]
        scores = found[int(np.argmin(values))][1]
        yield {"table": name, "seed": seed, "stop": radius} | {key: scores[key] - plain[key] for key in scores}


def stop_all(args: argparse.Namespace) -> None:
    done = {(r["table"], r["seed"]) for r in records(args.out)}
    for name, seed in product([name for name in args.tables if name != "wages"], range(args.seeds)):
        if (name, seed) not in done:
            rows = list(stopping(name, TABLES[name](args.data), seed, args.covertype))
            with open(args.out, "a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
            print(name, seed, flush=True)


def _stops(frame: pd.DataFrame) -> Iterator[str]:
    yield "| stopped by | " + " | ".join(name for name in CLASSIFICATION if name in set(frame["table"])) + " |"
    yield "|---" * (1 + frame["table"].nunique()) + "|"
    for radius in STOPS:
        own = frame[frame["stop"] == radius].groupby("table")[["accuracy", "robust value"]].mean()
        cells = [
            f"{own.loc[t, 'accuracy']:+.2f}, {own.loc[t, 'robust value']:+.2f}"
            for t in CLASSIFICATION
            if t in own.index
        ]
        yield f"| {f'robust@{radius:g}' if radius else 'log loss'} | {' | '.join(cells)} |".replace("-", "−")


# -- cost -------------------------------------------------------------------------------------------------------------

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

        params: dict[str, Any] = {"objective": "multiclass", "num_class": 7, "num_threads": 1, "verbose": -1}
        dataset = lightgbm.Dataset(X, y, params=params).construct()
        if kind == "custom objective":
            params["objective"] = losses
        callbacks = [LightGBMWorstCase(0.1)] if kind == "worst case" else []
        began = time.process_time()  # of one thread, without the binning: what else runs on the machine hardly counts
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
        command = [sys.executable, __file__, "cost", "--data", str(args.data), "--rounds", str(args.rounds)]
        line = subprocess.run([*command, "--only", library, kind], check=True, capture_output=True, text=True).stdout
        record = json.loads(line.splitlines()[-1]) | {"repeat": repeat}
        with open(args.out, "a") as file:
            file.write(json.dumps(record) + "\n")
        print(record, flush=True)


# -- report -----------------------------------------------------------------------------------------------------------

COLUMNS = {"accuracy": "{:.2f}", "log loss": "{:.4f}", "robust value": "{:.3f}", "worst 5%": "{:.3f}"}
WAGES = {"mean error": "{:.4f}", "worst year": "{:.4f}", "robust value": "{:.3f}", "worst 5%": "{:.3f}"}


def report(path: Path, stops: Path, costs: Path) -> str:
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
    lines += ["## Mean absolute error of log income by year", "", *_by_year(frame[frame["table"] == "wages"]), ""]
    if stops.exists():
        seeds = pd.DataFrame(records(stops)).groupby("table")["seed"].nunique()
        counts = ", ".join(f"{name} {count}" for name, count in seeds.items())
        lines += [f"## By which metric to stop: changes of accuracy and robust value, means over seeds ({counts})", ""]
        lines += [*_stops(pd.DataFrame(records(stops))), ""]
    if costs.exists():
        lines += ["## Cost on Covertype, all 581,012 rows, one thread", "", *_costs(pd.DataFrame(records(costs)))]
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
                cell += f" ({change} ± {form.format(difference.std())})" if len(difference) > 1 else f" ({change})"
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
    yield "| library | objective | seconds a round | to built-in | to custom | peak MB | to custom | repeats |"
    yield "|---" * 8 + "|"
    frame = frame.assign(each=frame["seconds"] / frame["rounds"])
    for library, own in frame.groupby("library"):
        each, memory = (own.pivot(index="repeat", columns="kind", values=value) for value in ("each", "MB"))
        for kind in COSTS:
            ratios = [each[kind] / each["built-in"], each[kind] / each["custom objective"]]
            of_memory = (memory[kind] / memory["custom objective"]).median()
            times = " | ".join(f"{ratio.median():.2f}" for ratio in ratios)
            yield (
                f"| {library} | {kind} | {each[kind].median():.3f} | {times} | {memory[kind].median():.0f} "
                f"| {of_memory:.3f} | {len(each)} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "stopping", "cost", "report"])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SCDRO_DATA", "data")))
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--methods", nargs="+", default=["lightgbm", "xgboost"], choices=list(METHODS))
    parser.add_argument("--rho", nargs="+", type=float, default=[0.0, 0.1])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--covertype", type=int, default=20_000, help="rows of Covertype to train on")
    parser.add_argument("--rounds", type=int, default=5, help="of `cost`")
    parser.add_argument("--repeats", type=int, default=5, help="of `cost`")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    runs, stops, costs = (RESULTS / f"{part}.jsonl" for part in ("runs", "stopping", "cost"))
    if args.what == "run":
        args.out = args.out or runs
        run_all(args)
    elif args.what == "stopping":
        args.out = args.out or stops
        stop_all(args)
    elif args.what == "cost" and args.only:
        library, kind = args.only
        print(json.dumps(cost_of(library, kind, args.data, args.rounds)))
    elif args.what == "cost":
        args.out = args.out or costs
        cost_all(args)
    else:
        out = args.out or RESULTS / "table.md"
        out.write_text(f"# Boosted trees on the worst case\n\n{report(runs, stops, costs)}")


if __name__ == "__main__":
    main()
