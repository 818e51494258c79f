"""Other tools that look for weak slices, called on one data set: what each reports, with a score for each slice.

`benchmarks/audit_planted.py` starts this file with the interpreter of the tool's own environment
(they need other versions of pandas and scikit-learn than scdro does), so it imports nothing of
scdro but for the tool "scdro":

    python benchmarks/audit_rivals.py --tool sliceline --settings '[{"alpha": 0.95}]' --out runs.jsonl set.npz ...

A data set (.npz) has the labels y, the audited probabilities p, the planted rows (none: a null) and
the path of the table with the columns. Each line of the output has, for every reported slice in the
tool's order, its score, its rows and its Jaccard overlap with the planted rows.

All tools but scdro rank by a loss per row. Each gets its best of three, tuned like a setting:

    error      1 if the decision at one half is wrong
    logloss    -log of the probability that the label had
    residual   (1 + y - p)/2 and (1 - y + p)/2, two runs whose slices are pooled by score: what
               scdro's first kind is about, given to tools that were not made for it

sliceline    items are values and quantile ranges, at most two in a slice, at least .5% of the rows
divexplorer  the same items, ranked by its t statistic or its divergence; its own pruning of redundancy
deepchecks   WeakSegmentsPerformance with score_per_sample; scale: what the score is multiplied by, since its trees
             stop at an absolute decrease of impurity
cleanlab     Datalab's underperforming_group; clusters by DBSCAN of scaled columns as by default, by k-means, or one
             call per column with the column's items as cluster_ids
plain        the same items and one-sided cuts, all singles and pairs, standard errors above the mean elsewhere
find_slices  scdro's search of weights, older than the audit: tested on rows not used to find them
scdro        findings of the kind "wrong probabilities", by -log10 of the corrected p-value
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import resource
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

Array = npt.NDArray[Any]
Reported = list[tuple[float, Array]]  # score, rows (n,) as booleans; in the tool's own order
MOST = 15  # slices read of each tool
SMALLEST = 0.005  # share of the rows of the smallest planted slice, told to every tool
DISTINCT = 12  # numbers with at most this many different values are items as they are


def losses_of(y: Array, p: Array, kind: str) -> list[Array]:
    """The vectors of losses that a tool runs on, (n,) each."""
    if kind == "error":
        return [((p > 0.5) != y).astype(float)]
    if kind == "logloss":
        return [-np.log(np.clip(np.where(y == 1, p, 1 - p), 1e-6, 1))]
    return [(1 + y - p) / 2, (1 - y + p) / 2]


def is_number(column: pd.Series) -> bool:
    return bool(pd.api.types.is_numeric_dtype(column)) and column.nunique() > DISTINCT


def items_of(frame: pd.DataFrame, bins: int) -> pd.DataFrame:
    """Every column as the number of its value or quantile range; missing is a value."""
    items = {}
    for name in frame:
        column = frame[name]
        if is_number(column):
            column = pd.qcut(column, bins, labels=False, duplicates="drop")
        codes, _ = pd.factorize(column.astype(object).where(column.notna(), "missing"))
        items[name] = codes
    return pd.DataFrame(items)


def numbers_of(frame: pd.DataFrame) -> Array:
    """Scaled numbers and indicators of the values, (n, features)."""
    parts = []
    for name in frame:
        column = frame[name]
        if is_number(column):
            column = column.fillna(column.median()).astype(float)
            parts.append(((column - column.mean()) / column.std()).to_numpy()[:, None])
        else:
            codes = items_of(frame[[name]], 5)[name]
            parts.append(pd.get_dummies(codes, dtype=float).to_numpy())
    return np.concatenate(parts, axis=1)


def pooled(parts: list[Reported]) -> Reported:
    return sorted((one for part in parts for one in part), key=lambda one: -one[0])[:MOST]


# -- the tools ------------------------------------------------------------------------------------


def sliceline(frame: pd.DataFrame, y: Array, p: Array, setting: dict[str, Any]) -> Reported:
    finder = import_module("sliceline.slicefinder").Slicefinder
    items = items_of(frame, setting["bins"]).to_numpy()
    parts: list[Reported] = []
    for loss in losses_of(y, p, setting["input"]):
        found = finder(
            alpha=setting["alpha"], k=MOST, max_l=2, min_sup=int(SMALLEST * len(y)), verbose=False
        ).fit(items, loss)
        part = []
        for values, numbers in zip(found.top_slices_, found.top_slices_statistics_, strict=True):
            rows = np.ones(len(y), bool)
            for k, value in enumerate(values):
                if value is not None:
                    rows &= items[:, k] == value
            if not rows.all():
                part.append((float(numbers["slice_score"]), rows))
        parts.append(part)
    return pooled(parts)


def divexplorer(frame: pd.DataFrame, y: Array, p: Array, setting: dict[str, Any]) -> Reported:
    package = import_module("divexplorer")
    items = items_of(frame, setting["bins"])
    items.columns = [f"c{k}" for k in range(items.shape[1])]
    parts: list[Reported] = []
    # the sign of a divergence says the direction, so one run has both
    losses = losses_of(y, p, setting["input"])
    table = items.assign(loss=losses[0])
    explorer = package.DivergenceExplorer(table)
    if not setting.get("all_lengths"):
        # it has no option for it: longer patterns are not mined, the others do not change
        mining = import_module("divexplorer.divexplorer")
        whole = import_module("divexplorer.utils_FPgrowth").fpgrowth_cm
        vars(mining)["fpgrowth_cm"] = partial(whole, max_len=2)
    found = explorer.get_pattern_divergence(
        min_support=setting["support"], quantitative_outcomes=["loss"]
    )
    if setting["redundancy"]:
        patterns = package.DivergencePatternProcessor(found, "loss")
        found = patterns.get_patterns(th_redundancy=setting["redundancy"])
    found = found[found.itemset.map(len).between(1, 2)]
    for sign in (1, -1)[: len(losses)]:
        rank = sign * found["loss_div"]
        if setting["rank"] == "t":
            rank = found["loss_t"].abs().where(rank > 0, -1.0)
        part = []
        for k in np.argsort(-rank.to_numpy())[:MOST]:
            rows = np.ones(len(y), bool)
            for item in found.itemset.iloc[k]:
                name, _, value = str(item).partition("=")
                rows &= (items[name].astype(str) == value).to_numpy()
            part.append((float(rank.iloc[k]), rows))
        parts.append(part)
    return pooled(parts)


def deepchecks(frame: pd.DataFrame, y: Array, p: Array, setting: dict[str, Any]) -> Reported:
    scorers = import_module("sklearn.metrics._scorer")._SCORERS
    # deepchecks 0.19.1 asks for a name that newer versions of scikit-learn do not have; they have
    # trees for absolute errors that are not quadratic in the rows
    scorers.setdefault("max_error", scorers.get("neg_max_error"))
    tabular = import_module("deepchecks.tabular")
    check = import_module("deepchecks.tabular.checks").WeakSegmentsPerformance
    texts = [name for name in frame if not is_number(frame[name])]
    typed = frame.copy()
    for name in texts:
        typed[name] = typed[name].astype(object).where(typed[name].notna(), "missing").astype(str)
    data = tabular.Dataset(typed, label=pd.Series(y.astype(int)), cat_features=texts)
    both = np.stack([1 - p, p], axis=1)
    parts: list[Reported] = []
    for loss in losses_of(y, p, setting["input"]):
        score = pd.Series(-setting["scale"] * loss)
        run = check(
            score_per_sample=score,
            segment_minimum_size_ratio=setting["smallest"],
            categorical_aggregation_threshold=setting["rare"],
            n_samples=10**6,
        )
        try:
            value = run.run(
                data, y_pred=(p > 0.5).astype(int), y_proba=both, with_display=False
            ).value
        except Exception as problem:
            if "unable to train" not in str(problem):
                raise
            continue
        table = value["weak_segments_list"]
        part = []
        for k in range(min(len(table), MOST)):
            rows = np.zeros(len(y), bool)
            rows[table["Samples in Segment"].iloc[k]] = True
            worse = float(loss[rows].mean() - loss.mean())
            part.append((worse * (math.sqrt(rows.sum()) if setting["rank"] == "t" else 1), rows))
        parts.append(part)
    return pooled(parts)


def cleanlab(frame: pd.DataFrame, y: Array, p: Array, setting: dict[str, Any]) -> Reported:
    datalab = import_module("cleanlab").Datalab
    if setting["clusters"] == "columns":
        items = items_of(frame, setting["bins"])
        groupings = [{"cluster_ids": items[name].to_numpy()} for name in items]
    elif setting["clusters"] == "kmeans":
        cluster = import_module("sklearn.cluster").MiniBatchKMeans
        ids = cluster(setting["k"], random_state=0, n_init=1).fit_predict(numbers_of(frame))
        groupings = [{"cluster_ids": ids.astype(int)}]
    else:
        groupings = [{"clustering_kwargs": {"eps": setting["eps"]}}]
    parts: list[Reported] = []
    for loss in losses_of(y, p, setting["input"]):
        own = 1 - loss if setting["input"] == "residual" else np.where(y == 1, p, 1 - p)
        proba = np.where(np.arange(2) == y[:, None], own[:, None], 1 - own[:, None])
        for options in groupings:
            lab = datalab({"y": y.astype(int)}, label_name="y", verbosity=0)
            smallest = {"min_cluster_samples": int(SMALLEST * len(y)), "threshold": 1.0}
            given = {} if "cluster_ids" in options else {"features": numbers_of(frame)}
            issue = {"underperforming_group": {**options, **smallest}}
            lab.find_issues(pred_probs=proba, issue_types=issue, **given)
            info = lab.get_info("underperforming_group")
            ids = np.asarray(info["clustering"]["stats"]["cluster_ids"])
            scores = lab.get_issues("underperforming_group")["underperforming_group_score"]
            part = []
            for cluster_id in np.unique(ids):
                rows = ids == cluster_id
                ratio = float(scores.to_numpy()[rows][0])
                if cluster_id >= 0 and ratio < 1:
                    part.append((1 - ratio, rows))
            parts.append(part)
    return pooled(parts)


def plain(frame: pd.DataFrame, y: Array, p: Array, setting: dict[str, Any]) -> Reported:
    """Every condition and pair of conditions, by standard errors of the mean loss above elsewhere."""
    n, items = len(y), items_of(frame, setting["bins"])
    owners, sets = [], []
    for k, name in enumerate(frame):
        codes = items[name].to_numpy()
        own = [codes == code for code in np.unique(codes)]
        if is_number(frame[name]):
            cuts = frame[name].quantile(np.linspace(0, 1, setting["bins"] + 1)[1:-1]).unique()
            own += [(frame[name] <= cut).to_numpy() for cut in cuts]
            own += [(frame[name] > cut).to_numpy() for cut in cuts]
        own = [one for one in own if SMALLEST * n <= one.sum() <= (1 - SMALLEST) * n]
        owners += [k] * len(own)
        sets += own
    members = np.array(sets, dtype=np.float32)
    parts: list[Reported] = []
    for loss in losses_of(y, p, setting["input"]):
        left, spread = loss - loss.mean(), max(float(loss.std()), 1e-12)
        counts = members @ members.T
        sums = (members * left.astype(np.float32)) @ members.T
        same = np.equal.outer(owners, owners) & ~np.eye(len(owners), dtype=bool)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = sums / (spread * np.sqrt(counts * (1 - counts / n)))
        z = np.where(same | (counts < SMALLEST * n), -np.inf, z)
        z[np.tril_indices(len(z), -1)] = -np.inf
        part: dict[bytes, tuple[float, Array]] = {}  # the same rows are told once
        for flat in np.argsort(-z, axis=None)[: 10 * MOST]:
            i, j = np.unravel_index(flat, z.shape)
            rows = sets[i] & sets[j]
            part.setdefault(rows.tobytes(), (float(z[i, j]), rows))
        parts.append(list(part.values())[:MOST])
    return pooled(parts)


def find_slices(frame: pd.DataFrame, y: Array, p: Array, setting: dict[str, Any]) -> Reported:
    search = import_module("scdro").find_slices
    parts: list[Reported] = []
    for loss in losses_of(y, p, setting["input"]):
        options = {"depth": 2, "max_slices": MOST, "alpha": 0.999, "min_size": 25}
        found = search(loss + 1e-9, frame, **options)
        parts.append([
            (-math.log10(max(one.p_value, 1e-300)), np.array(one.members)) for one in found
        ])  # fmt: skip
    return pooled(parts)


def scdro(frame: pd.DataFrame, y: Array, p: Array, setting: dict[str, Any]) -> Reported:
    audit = import_module("scdro").audit(y, p, frame, alpha=setting["alpha"])
    return [
        # all rows: an alarm in a null, never the planted slice
        (-math.log10(max(one.p_value, 1e-300)), one.members & bool(one.conditions))
        for one in audit.findings
        if one.kind == "wrong probabilities"
    ]


TOOLS: dict[str, Callable[[pd.DataFrame, Array, Array, dict[str, Any]], Reported]] = {
    "scdro": scdro,
    "sliceline": sliceline,
    "divexplorer": divexplorer,
    "deepchecks": deepchecks,
    "cleanlab": cleanlab,
    "plain": plain,
    "find_slices": find_slices,
}
INPUTS = ("error", "logloss", "residual")
# what was tried on the tuning seeds; the first of each is the tool's default
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "scdro": [{"alpha": 0.01}],
    "sliceline": [
        {"input": kind, "bins": bins, "alpha": alpha}
        for kind, bins, alpha in (
            ("error", 5, 0.6),
            ("logloss", 10, 0.95),
            ("residual", 10, 0.99),
            ("residual", 10, 0.998),
            ("residual", 10, 0.9995),
            ("residual", 20, 0.998),
            ("residual", 20, 0.9995),
        )
    ],
    "divexplorer": [
        {"input": kind, "bins": bins, "support": support, "rank": rank, "redundancy": redundancy}
        for kind, bins, support, rank, redundancy in (
            ("error", 5, 0.05, "divergence", 0),
            ("logloss", 10, SMALLEST, "t", 0.02),
            ("residual", 10, SMALLEST, "t", 0),
            ("residual", 10, SMALLEST, "t", 0.02),
            ("residual", 20, SMALLEST, "t", 0.02),
        )
    ],
    "deepchecks": [
        {"input": kind, "smallest": smallest, "rare": rare, "scale": scale, "rank": rank}
        for kind, smallest, rare, scale, rank in (
            ("logloss", 0.05, 0.05, 1, "mean"),
            ("logloss", SMALLEST, SMALLEST, 1, "t"),
            ("residual", SMALLEST, SMALLEST, 10, "t"),
        )
    ],
    "cleanlab": [
        {"input": "logloss", "clusters": "dbscan", "eps": 0.5},
        {"input": "logloss", "clusters": "columns", "bins": 10},
        {"input": "residual", "clusters": "columns", "bins": 10},
        {"input": "residual", "clusters": "kmeans", "k": 40},
        {"input": "residual", "clusters": "columns", "bins": 20},
    ],
    "plain": [{"input": kind, "bins": bins} for kind in INPUTS for bins in (5, 10, 20)],
    "find_slices": [{"input": kind} for kind in INPUTS],
}


def run(tool: str, setting: dict[str, Any], path: Path) -> dict[str, Any]:
    """One line of the output: what a tool reports on one data set."""
    with np.load(path) as file:
        y, p, planted, rows = (file[key] for key in ("y", "p", "planted", "rows"))
        name, table = str(file["name"]), Path(str(file["table"]))
    frame = pd.read_parquet(table if table.is_absolute() else path.parent / table)
    frame = frame.iloc[rows].reset_index(drop=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        wall, cpu = time.perf_counter(), time.process_time()
        reported = TOOLS[tool](frame, y, p, setting)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slices = []
    for score, found in reported[:MOST]:
        either = int((found | planted).sum())
        jaccard = float((found & planted).sum() / either) if planted.any() and either else 0.0
        slices.append([float(f"{score:.6g}"), int(found.sum()), round(jaccard, 4)])
    return {
        "set": name, "tool": tool, "setting": setting, "seconds": round(wall, 3), "cpu": round(cpu, 3),
        "memory": round((peak - before) / 1024, 1), "peak": round(peak / 1024, 1), "slices": slices,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tool", choices=list(TOOLS), required=True)
    parser.add_argument("--settings", type=json.loads, required=True, help="a list")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("sets", nargs="+", type=Path)
    args = parser.parse_args()
    known = args.out.read_text().splitlines() if args.out.exists() else []
    done = {(one["set"], json.dumps(one["setting"])) for one in map(json.loads, known)}
    for path, setting in product(args.sets, args.settings):
        if (path.stem, json.dumps(setting)) not in done:
            line = run(args.tool, setting, path)
            with args.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
