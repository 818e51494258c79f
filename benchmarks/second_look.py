"""Who a model fails, and what a second look gains: real data with groups that no method sees.

    python benchmarks/second_look.py embed --data DIR --cache CACHE        # the tweets' sentence embeddings, once
    python benchmarks/second_look.py run --half tuning --data DIR --cache CACHE
    python benchmarks/second_look.py run --half kept --data DIR --cache CACHE
    python benchmarks/second_look.py table > results/second_look.md

Each line of results/second_look.jsonl is one run (data, seed, method); runs that are there are not repeated.

Written down before any number of this benchmark was looked at:

* The tuning half, on which every default is chosen: digits with rare hidden digits, Dominoes, Waterbirds features
  (seeds decide the folds; a bootstrap of the training set besides), and labels flipped at 5, 10 and 20% on data where
  nothing stands out (breast cancer, wine, iris, all ten digits).
* The kept half, run once, after the defaults are fixed: CIFAR10-ST features, CIFAR100-hidden features, Adult, tweets
  with dialects, diabetes130, crashes, and labels drawn again from the reference's own out-of-fold probabilities.
* Five seeds each. No method sees a group label in training or choosing, except the oracles, which are named so.
* Success with defaults, mean worst group over five seeds: Dominoes >= 70 (whole network trained again), digits >= 68
  (`SecondLook`), Waterbirds >= 78 (`repair` of the plainly trained head, mean accuracy >= 92; stretch 84).
* Where the verdict says "helps": on no data set is the mean worst group more than 2 points below plain training's,
  and in no run significantly (5%, one-sided, of that group's test samples).
* Flipped and redrawn labels: "helps" in at most 3 of at least 60 runs.
* (Added after the first look at the tuning half: digits with the test set of examples/hidden_digits.py are "digits",
  those whose test set changes with the seed are "digits-splits". Success is asked of the former, both are shown.
  Redrawn labels of digits and Waterbirds were seen while the verdict was designed, those of the other data were not.
  Large training sets were cut to 6,000 rows to save time.)
* The yardstick is regret: the best of the candidate settings as chosen with group labels, less the choice made
  without.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from second_look_data import FINAL, FLIPPED, LOADERS, RATES, TUNING, Part, Task, flipped, redrawn
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from scdro.linear_model import KLDROClassifier
from scdro.second_look import SecondLook, repair
from scdro.second_look._verdict import CLASS_WEIGHTS
from scdro.second_look._weights import balanced, look_weights

Array = npt.NDArray[Any]
SEEDS = range(5)
LEAST = 15  # test samples of a group that counts
FEATURES = ("waterbirds", "waterbirds-bootstrap", "cifar10-st", "cifar100-hidden", "tweets")  # a frozen network's
REDRAWN = ("digits", "adult", "crashes", "diabetes130")


def estimator(task: Task, seed: int) -> Any:
    """The plain model: what one would fit without knowing of groups."""
    if "digits" in task.name and "ten" not in task.name:
        return make_pipeline(
            Nystroem(gamma=0.05, n_components=300, random_state=seed), LogisticRegression(C=10, max_iter=1000)
        )
    if not any(name in task.name for name in FEATURES):
        return LogisticRegression(C=1.0, max_iter=1000)
    grid = [10.0**k for k in range(-4, 1)]
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    Z = StandardScaler().fit_transform(task.train.X)
    scores = [cross_val_score(_logistic(C), Z, task.train.y, cv=folds).mean() for C in grid]
    return make_pipeline(StandardScaler(), _logistic(grid[int(np.argmax(scores))]))


def _logistic(C: float) -> LogisticRegression:
    return LogisticRegression(C=C, max_iter=1000)


def scores(right: Array, test: Part, train: Part) -> dict[str, Any]:
    """Worst group, its size, mean accuracy over the test set, and with the groups' shares of the training data."""
    groups = [g for g in np.unique(test.groups) if (test.groups == g).sum() >= LEAST]
    rates = {g: float(right[test.groups == g].mean()) for g in groups}
    shares = np.array([(train.groups == g).sum() for g in groups], float)
    worst = min(groups, key=lambda g: rates[g])
    return {
        "worst": rates[worst],
        "group": str(worst),
        "size": int((test.groups == worst).sum()),
        "mean": float(right.mean()),
        "usual": float(np.dot(list(rates.values()), shares / shares.sum())) if shares.sum() else None,
        "groups": {str(g): round(rate, 4) for g, rate in rates.items()},
    }


def fitted(model: Any, X: Array, y: Array, weights: Array | None) -> Any:
    if weights is None:
        return model.fit(X, y)
    name = model.steps[-1][0] + "__" if hasattr(model, "steps") else ""
    return model.fit(X, y, **{f"{name}sample_weight": weights * len(y) / weights.sum()})


class Methods:
    """Each returns predictions for the test part, and what is worth recording."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self.X, self.y, self.test = task.train.X, task.train.y, task.test.X
        self.model = estimator(task, seed)
        self.one = np.ones(len(self.y))
        self._proba: Array | None = None

    @property
    def proba(self) -> Array:
        """Of each label, out of fold, by the class-balanced model."""
        if self._proba is None:
            found = np.zeros(len(self.y))
            for seen, unseen in StratifiedKFold(5, shuffle=True, random_state=self.seed).split(self.X, self.y):
                weights = balanced(self.one[seen], self.y[seen])
                model = fitted(estimator_copy(self.model), self.X[seen], self.y[seen], weights)
                of_class = model.predict_proba(self.X[unseen])
                found[unseen] = of_class[np.arange(len(unseen)), np.searchsorted(model.classes_, self.y[unseen])]
            self._proba = found
        return self._proba

    def weighted(self, weights: Array | None) -> tuple[Array, dict[str, Any]]:
        return fitted(estimator_copy(self.model), self.X, self.y, weights).predict(self.test), {}

    def plain(self) -> Any:
        return self.weighted(None)

    def class_balanced(self) -> Any:
        return self.weighted(balanced(self.one, self.y))

    def score_scaling(self) -> Any:
        """Probabilities of the plain model over the classes' shares."""
        model = fitted(estimator_copy(self.model), self.X, self.y, None)
        shares = np.array([(self.y == c).mean() for c in model.classes_])
        return model.classes_[(model.predict_proba(self.test) / shares).argmax(1)], {}

    def minimax(self) -> Any:
        steps = [step for _, step in self.model.steps[:-1]] if hasattr(self.model, "steps") else []
        last = self.model.steps[-1][1] if steps else self.model
        model = make_pipeline(*(estimator_copy(step) for step in steps), KLDROClassifier(rho=0.5, C=last.C))
        return model.fit(self.X, self.y).predict(self.test), {}

    def jtt(self) -> Any:
        """Twenty times the weight for samples that are wrong out of fold."""
        return self.weighted(np.where(self.proba > 0.5, 1.0, 20.0))

    def afr(self) -> Any:
        """exp(-4 p) inside balanced classes: one temperature for all data."""
        return self.weighted(balanced(np.exp(-4 * self.proba), self.y))

    def half_rule(self) -> Any:
        """The weights alone, with the plain model's settings."""
        return self.weighted(look_weights(self.proba, self.y).weights)

    def oracle(self) -> Any:
        """Groups known, and weighing the same; the penalty by their worst out of fold."""
        counts = {g: (self.task.train.groups == g).sum() for g in np.unique(self.task.train.groups)}
        weights = np.array([1 / counts[g] for g in self.task.train.groups])
        weights *= len(weights) / weights.sum()
        name = f"{self.model.steps[-1][0]}__C" if hasattr(self.model, "steps") else "C"
        C = self.model.get_params()[name]
        tried = []
        for factor in (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0):
            model = estimator_copy(self.model).set_params(**{name: C * factor})
            right = np.zeros(len(self.y))
            for seen, unseen in StratifiedKFold(5, shuffle=True, random_state=self.seed).split(self.X, self.y):
                found = fitted(estimator_copy(model), self.X[seen], self.y[seen], weights[seen])
                right[unseen] = found.predict(self.X[unseen]) == self.y[unseen]
            groups = [g for g, count in counts.items() if count >= 5]
            tried.append((min(right[self.task.train.groups == g].mean() for g in groups), factor))
        best = estimator_copy(self.model).set_params(**{name: C * max(tried)[1]})
        return fitted(best, self.X, self.y, weights).predict(self.test), {"C": C * max(tried)[1]}

    def second_look(self) -> Any:
        return self._repaired() if self.task.name.removeprefix("redrawn ") in FEATURES else self._looked("half-rule")

    def cross_mistakes(self) -> Any:
        return self._looked("cross-mistakes")

    def _looked(self, strategy: str) -> Any:
        look = SecondLook(self.model, strategy=strategy, random_state=self.seed).fit(self.X, self.y)
        forced = look.set_params(refuse=False)._final(self.X, self.y, self.one)
        return look.predict(self.test), {**_told(look.verdict_), "always": forced.predict(self.test)}

    def _repaired(self) -> Any:
        """The plainly trained head of a frozen network, repaired."""
        plain = fitted(estimator_copy(self.model), self.X, self.y, None)
        scaler, head = plain.steps[0][1], plain.steps[1][1]
        classes, d = len(head.classes_), self.X.shape[1]
        layer = nn.Linear(d, classes, dtype=torch.float64)
        W = head.coef_ / scaler.scale_
        b = head.intercept_ - W @ scaler.mean_
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(W if classes > 2 else np.concatenate([-W, W]) / 2))
            layer.bias.copy_(torch.tensor(b if classes > 2 else np.concatenate([-b, b]) / 2))
        network = nn.Sequential(nn.Identity(), layer)
        data = torch.utils.data.TensorDataset(torch.tensor(self.X), torch.tensor(self.y))
        loader = torch.utils.data.DataLoader(data, batch_size=512)
        fixed = repair(network, loader, seed=self.seed, progress=False, refuse=False)
        with torch.no_grad():
            always = fixed.model(torch.tensor(self.test)).argmax(1).numpy()
        refused = self.class_balanced()[0] if fixed.verdict.answer == CLASS_WEIGHTS else plain.predict(self.test)
        return always if fixed.verdict.helps else refused, {**_told(fixed.verdict), "always": always}


def estimator_copy(model: Any) -> Any:
    from sklearn.base import clone

    return clone(model)


def _told(verdict: Any) -> dict[str, Any]:
    return {
        "answer": verdict.answer,
        "gain": verdict.gain,
        "error": verdict.gain_error,
        "kept": verdict.kept,
        "chosen": verdict.chosen,
        "size": verdict.effective_size,
        "alone": len(verdict.left_alone),
    }


METHODS = [
    *("second_look", "plain", "class_balanced", "cross_mistakes", "half_rule", "oracle"),
    *("minimax", "jtt", "afr", "score_scaling"),
]


def tasks(half: str, data: Path, cache: Path, seed: int) -> Iterator[tuple[Task, list[str]]]:
    """The tasks of a half, and the methods to run on each."""
    for name in TUNING if half == "tuning" else FINAL:
        if name in LOADERS:
            yield LOADERS[name](data, cache, seed), METHODS
        elif name == "flipped":
            for source in FLIPPED:
                for rate in (0.0, *RATES):
                    yield flipped(source, rate, seed), METHODS[:3]
        elif name == "redrawn":
            for source in REDRAWN:
                yield LOADERS[source](data, cache, seed)._replace(name=f"redrawn {source}"), METHODS[:2]


def run(
    half: str, data: Path, cache: Path, out: Path, only: list[str], methods: list[str], seeds: Iterable[int] = SEEDS
) -> None:
    done = {(r["data"], r["seed"], r["method"]) for r in records(out)}
    for seed in seeds:
        for task, wanted in tasks(half, data, cache, seed):
            names = [m for m in wanted if (task.name, seed, m) not in done and (not methods or m in methods)]
            if not names or (only and not any(o in task.name for o in only)):
                continue
            if task.name.startswith("redrawn"):
                first = task._replace(name=task.name.removeprefix("redrawn "))
                model = estimator(first, seed)
                folds = StratifiedKFold(5, shuffle=True, random_state=seed)
                proba = cross_val_predict(model, task.train.X, task.train.y, cv=folds, method="predict_proba")
                task = redrawn(first, proba, np.unique(task.train.y), seed)
            bench = Methods(task, seed)
            for name in names:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    predicted, told = getattr(bench, name)()
                row: dict[str, Any] = {
                    "data": task.name,
                    "seed": seed,
                    "method": name,
                    "C": str(bench.model.get_params().get("C", "")),
                }
                row |= scores(predicted == task.test.y, task.test, task.train)
                if "always" in told:
                    told["always"] = scores(told["always"] == task.test.y, task.test, task.train)
                with out.open("a") as file:
                    file.write(json.dumps(row | {"told": told}) + "\n")
                print(
                    task.name,
                    seed,
                    name,
                    round(row["worst"], 3),
                    round(row["mean"], 3),
                    told.get("answer", ""),
                    flush=True,
                )


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def embed(data: Path, cache: Path) -> None:
    """Mean-pooled, normalised sentence embeddings by all-MiniLM-L6-v2, from CACHE/minilm/model."""
    import pandas as pd
    from transformers import AutoModel, AutoTokenizer

    os.environ["HF_HUB_OFFLINE"] = "1"
    read = AutoTokenizer.from_pretrained(str(cache / "minilm" / "model"))
    net = AutoModel.from_pretrained(str(cache / "minilm" / "model")).eval()
    texts = pd.read_csv(data / "text" / "tweets_dialect.csv.gz").text.astype(str).tolist()
    order = np.argsort([len(text) for text in texts])
    found = np.zeros((len(texts), 384), np.float32)
    with torch.no_grad():
        for start in range(0, len(order), 128):
            rows = order[start : start + 128]
            batch = read([texts[i] for i in rows], padding=True, truncation=True, max_length=128, return_tensors="pt")
            mask = batch["attention_mask"][..., None].float()
            mean = (net(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            found[rows] = nn.functional.normalize(mean, dim=1).numpy()
    np.save(cache / "tweets_minilm.npy", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["embed", "run", "table"])
    parser.add_argument("--half", choices=["tuning", "kept"], default="tuning")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder with waterbirds, tabular and text")
    parser.add_argument("--cache", type=Path, default=Path.home() / "scdro-data" / "second_look")
    parser.add_argument("--out", type=Path, default=Path("results/second_look.jsonl"))
    parser.add_argument("--only", nargs="*", default=[], help="parts of data sets' names")
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    args = parser.parse_args()
    if args.what == "embed":
        embed(args.data, args.cache)
    elif args.what == "run":
        run(args.half, args.data, args.cache, args.out, args.only, args.methods, args.seeds)
    else:
        print(table(records(args.out)))


def table(rows: list[dict[str, Any]]) -> str:
    """Mean worst group (and mean accuracy, groups as in training) over the seeds, in per cent; verdicts."""
    methods = [m for m in METHODS if any(row["method"] == m for row in rows)]
    lines = ["| data | seeds | " + " | ".join(methods) + " | second look, never refused | verdicts |"]
    lines.append("|" + "---|" * (len(methods) + 4))
    for name in dict.fromkeys(row["data"] for row in rows):
        cells = [_cell([row for row in rows if row["data"] == name and row["method"] == method]) for method in methods]
        looked = [row for row in rows if row["data"] == name and row["method"] == "second_look"]
        answers = [row["told"]["answer"] for row in looked]
        told = ", ".join(f"{answer} {answers.count(answer)}" for answer in dict.fromkeys(answers))
        always = _cell([row["told"]["always"] for row in looked])
        lines.append(f"| {name} | {len(looked)} | " + " | ".join(cells) + f" | {always} | {told} |")
    return "\n".join(lines)


def _cell(found: list[dict[str, Any]]) -> str:
    if not found:
        return ""
    worst, usual = (100 * float(np.mean([row[key] for row in found])) for key in ("worst", "usual"))
    return f"{worst:.1f} ({usual:.1f})"


if __name__ == "__main__":
    main()
