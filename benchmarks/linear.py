"""The linear models compared with other packages, on the same data and, where possible, the same objective.

    python benchmarks/linear.py                                  # without Covertype
    python benchmarks/linear.py --covtype DIR                    # the folder with covtype.csv.gz, or SCDRO_COVTYPE=DIR

Sections: binary (10,000 and 100,000 x 50, against LogisticRegression at the same gradient tolerance), covtype
(the same, 7 classes), lbfgs (Newton against L-BFGS on the same objective), dro (the PyPI package,
if it is installed), stream (10 million rows). The packages alternate. Times are
medians over the rounds; a ratio is the median over the rounds of CPU seconds, which depend less on what else runs.
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import scdro
from reproduction.data import covertype
from scdro.linear_model import KLDROClassifier
from scdro.linear_model._linear_problem import LinearProblem
from scdro.linear_model._score_losses import Logistic, Multinomial

Array = npt.NDArray[Any]
TOL, RHO = 1e-4, 0.1


class Timing(NamedTuple):
    """Medians over rounds."""

    seconds: float
    cpu: float
    ratio: float  # of the CPU seconds to those of the first fit of the same round


def timed(*fits: Callable[[], Any], rounds: int = 5) -> tuple[list[Timing], list[Any]]:
    """The times of each over rounds in which they alternate, and the last result of each."""
    seconds, cpu = np.empty((2, rounds, len(fits)))
    fitted: list[Any] = [None] * len(fits)
    for i in range(rounds):
        for j, fit in enumerate(fits):
            start = time.perf_counter(), time.process_time()
            fitted[j] = fit()
            seconds[i, j] = time.perf_counter() - start[0]
            cpu[i, j] = time.process_time() - start[1]
    medians = (np.median(each, 0).tolist() for each in (seconds, cpu, cpu / cpu[:, :1]))
    return [Timing(*each) for each in zip(*medians, strict=True)], fitted


def problem_of(X: Array, y: Array, rho: float, C: float = 1.0, lam0: float = 1e-3) -> LinearProblem:
    """The objective as the solver sees it; y is 0, 1, ..."""
    k, n = int(y.max()) + 1, len(y)
    loss = Logistic(2.0 * y - 1) if k == 2 else Multinomial(y, k)
    return LinearProblem(X, loss, np.full(n, 1 / n), 1 / (C * n), rho, lam0, True)


def packed(model: Any) -> Array:
    return np.concatenate([model.coef_, model.intercept_[:, None]], 1).astype(float)


def slope(problem: LinearProblem, W: Array) -> float:
    """The largest entry of the gradient."""
    return float(np.abs(problem.gradient(W, problem.evaluate(W, problem.scores(W)))).max())


def against_logistic(name: str, X: Array, y: Array, rounds: int) -> Iterator[str]:
    """LogisticRegression, and the exact solver at rho = 0 (the same objective) and at rho = .1 (the robust one)."""
    (erm, same, robust), (peer, ours, model) = timed(
        lambda: LogisticRegression(tol=TOL, max_iter=100_000).fit(X, y),
        lambda: KLDROClassifier(rho=0.0, tol=TOL).fit(X, y),
        lambda: KLDROClassifier(rho=RHO, tol=TOL).fit(X, y),
        rounds=rounds,
    )
    plain, tilted = problem_of(X, y, 0.0), problem_of(X, y, RHO)
    first = f"| {name} | {len(X):,} x {X.shape[1]}"
    yield (
        f"{first} | LogisticRegression (L-BFGS) | {erm.seconds:.3f} | {erm.cpu:.3f} | 1 |"
        f" {slope(plain, packed(peer)):.1e} | |"
    )
    for label, at, problem, fit in (
        ("KLDROClassifier, rho = 0", same, plain, ours),
        (f"KLDROClassifier, rho = {RHO}", robust, tilted, model),
    ):
        steepness = slope(problem, packed(fit))
        yield (
            f"{first} | {label} | {at.seconds:.3f} | {at.cpu:.3f} | {at.ratio:.2f} | {steepness:.1e} |"
            f" {fit.dual_gap_:.1e} |"
        )


def binary(_: argparse.Namespace) -> list[str]:
    lines = [
        "| data | size | method | seconds | CPU seconds | ratio | largest gradient entry | duality gap |",
        "|---" * 8 + "|",
    ]
    for n, rounds in ((10_000, 25), (100_000, 7)):
        X, y = make_classification(
            n, 50, n_informative=25, n_redundant=15, flip_y=0.1, random_state=0
        )
        lines += against_logistic("make_classification", X, y, rounds)
        rng = np.random.default_rng(0)
        X = rng.standard_normal((n, 50))
        y = (rng.random(n) < 1 / (1 + np.exp(-X @ rng.standard_normal(50) / 3.5))).astype(int)
        lines += against_logistic("independent normal features", X, y, rounds)
    return lines


def read_covtype(folder: str, rows: int | None = None) -> tuple[Array, Array]:
    table = covertype(folder)
    chosen = (
        slice(None) if rows is None else np.random.default_rng(0).permutation(len(table.y))[:rows]
    )
    return StandardScaler().fit_transform(table.X[chosen]), table.y[chosen]


def covtype(args: argparse.Namespace) -> list[str]:
    if args.covtype is None:
        return ["Covertype: skipped, no folder given (--covtype or SCDRO_COVTYPE)."]
    lines = [
        "| data | size | method | seconds | CPU seconds | ratio | largest gradient entry | duality gap |",
        "|---" * 8 + "|",
    ]
    return [
        *lines,
        *against_logistic("Covertype, 7 classes", *read_covtype(args.covtype, args.rows), 1),
    ]


def lbfgs(args: argparse.Namespace) -> list[str]:
    """SciPy's L-BFGS on the same objective, with lam eliminated at each evaluation, warm-started."""
    lines = ["| data | solver | seconds | objective | largest gradient entry |", "|---" * 5 + "|"]
    X, y = make_classification(
        100_000, 50, n_informative=25, n_redundant=15, flip_y=0.1, random_state=0
    )
    data = [("make_classification, 100,000 x 50", X, y, 3)]
    if args.covtype is not None:
        data.append(("Covertype, 50,000 rows, 7 classes", *read_covtype(args.covtype, 50_000), 1))
    for name, X, y, rounds in data:
        problem = problem_of(X, y, RHO)

        def by_lbfgs(problem: LinearProblem = problem) -> Array:
            lam: list[float | None] = [None]

            def both(flat: Array) -> tuple[float, Array]:
                W = flat.reshape(problem.shape)
                e = problem.evaluate(W, problem.scores(W), lam[0])
                lam[0] = e.worst.lam
                return e.value, problem.gradient(W, e).ravel()

            options = {"gtol": TOL, "ftol": 0.0, "maxiter": 20_000, "maxfun": 40_000}
            start = np.zeros(problem.shape).ravel()
            found = minimize(both, start, jac=True, method="L-BFGS-B", options=options)
            answer: Array = found.x.reshape(problem.shape)
            return answer

        def by_newton(X: Array = X, y: Array = y) -> Array:
            return packed(KLDROClassifier(rho=RHO, tol=TOL).fit(X, y))

        times, answers = timed(by_lbfgs, by_newton, rounds=rounds)
        for solver, at, W in zip(("L-BFGS", "Newton"), times, answers, strict=True):
            value = problem.evaluate(W, problem.scores(W)).value
            lines.append(
                f"| {name} | {solver} | {at.seconds:.2f} | {value:.8f} | {slope(problem, W):.1e} |"
            )
    return lines


class Stub(types.ModuleType):
    """A stub for a missing module: any name in it is an empty class."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def peer_package() -> Any:
    """`dro.linear_model.KLDRO`, with stubs for what its other models import; None if it is not installed."""
    for _ in range(20):
        try:
            return importlib.import_module("dro.linear_model.kl_dro").KLDRO
        except ModuleNotFoundError as error:  # noqa: PERF203
            if error.name is None or error.name.split(".")[0] == "dro":
                break
            sys.modules[error.name] = Stub(error.name)
    print("dro: skipped; pip install --no-deps dro==0.4.3", flush=True)
    return None


def dro(_: argparse.Namespace) -> list[str]:
    """The same objective: no penalty, and lam0 close to zero."""
    KLDRO = peer_package()
    if KLDRO is None:
        return ["dro: skipped, the package is not installed."]
    lines = ["| size | method | seconds | robust value | |", "|---" * 5 + "|"]
    for n, d in ((1_000, 20), (10_000, 50)):
        X, y = make_classification(n, d, n_informative=d // 2, flip_y=0.1, random_state=0)
        X = StandardScaler().fit_transform(X)
        (ours,), (model,) = timed(
            lambda X=X, y=y: KLDROClassifier(rho=RHO, C=np.inf, lam0=1e-6, tol=1e-6).fit(X, y),  # type: ignore[misc]
            rounds=3,
        )
        peer = KLDRO(input_dim=d, model_type="logistic", eps=RHO)
        start, failure = time.perf_counter(), ""
        try:
            peer.fit(X, 2 * y - 1)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}".split("\n")[0]
        seconds = time.perf_counter() - start

        def value(coef: Array, intercept: float, X: Array = X, y: Array = y) -> float:
            margin = (2 * y - 1) * (X @ coef + intercept)
            return float(scdro.worst_case(np.logaddexp(0, -margin), RHO, 1e-6).value)

        lines.append(
            f"| {n:,} x {d} | scdro | {ours.seconds:.3f} |"
            f" {value(model.coef_[0], model.intercept_[0]):.8f} | |"
        )
        result = "" if failure else f"{value(peer.theta, float(peer.b)):.8f}"
        lines.append(
            f"| {n:,} x {d} | dro | {seconds:.1f} | {result} |"
            f" {failure or f'{seconds / ours.seconds:.0f} times'} |"
        )
    return lines


def chunks(rows: int, size: int = 100_000, d: int = 20) -> Iterator[tuple[Array, Array]]:
    """A stream that can be repeated: correlated features of very different scales, 8% of the labels rare."""
    mix = np.random.default_rng(0)
    M = mix.standard_normal((d, d)).astype(np.float32) / np.float32(d**0.5)
    scales, w = np.logspace(-1, 2, d, dtype=np.float32), mix.standard_normal(d).astype(np.float32)
    for j in range(rows // size):
        rng = np.random.default_rng([1, j])
        x = rng.standard_normal((size, d), dtype=np.float32) @ M
        y = (rng.random(size) < 1 / (1 + np.exp(3.5 - 2 * (x @ w)))).astype(int)
        yield x * scales, y


def stream(args: argparse.Namespace) -> list[str]:
    def megabytes() -> float:
        """Memory that this process uses now."""
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

    lines = [
        "| rows | solver | seconds | MB after 5% and at the end | objective | above exact |",
        "|---" * 6 + "|",
    ]
    model = KLDROClassifier(rho=RHO, batch_size=1024)
    stream_seconds, early = 0.0, 0.0
    for j, (x, y) in enumerate(chunks(args.stream)):
        start = time.perf_counter()
        model.partial_fit(x, y, classes=[0, 1])
        stream_seconds += time.perf_counter() - start
        if j == max(args.stream // 100_000 // 20, 1) - 1:
            early = megabytes()
    late = megabytes()
    print(f"stream: {stream_seconds:.0f} s, {early:.0f} MB, then {late:.0f} MB", flush=True)
    X, y = (np.concatenate(parts) for parts in zip(*chunks(args.stream), strict=True))
    start = time.perf_counter()
    exact = KLDROClassifier(rho=RHO).fit(X, y)
    seconds = time.perf_counter() - start
    problem = problem_of(X, y, RHO)

    def value(model: Any) -> float:
        return problem.evaluate(packed(model), problem.scores(packed(model))).value

    best = value(exact)
    above = value(model) / best - 1
    cells = f"{stream_seconds:.0f} | {early:.0f}, {late:.0f} | {value(model):.6f} | {above:.3%}"
    lines.append(f"| {args.stream:,} | partial_fit (RSCDRO) | {cells} |")
    lines.append(
        f"| {args.stream:,} | exact, in memory | {seconds:.0f} | {megabytes():.0f} | {best:.6f} | |"
    )
    return lines


SECTIONS = {"binary": binary, "dro": dro, "stream": stream, "covtype": covtype, "lbfgs": lbfgs}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--covtype", default=os.environ.get("SCDRO_COVTYPE"), help="folder with covtype.csv.gz"
    )
    parser.add_argument("--rows", type=int, help="use only this many rows of it")
    parser.add_argument("--stream", type=int, default=10_000_000, help="rows of the stream")
    parser.add_argument("--only", choices=SECTIONS, nargs="*", default=list(SECTIONS))
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results" / "linear" / "table.md"
    )
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        lines = SECTIONS[name](args)
        print("\n".join([f"## {name}", "", *lines, ""]), flush=True)
        sections = _sections(args.out) | {name: "\n".join(lines)}
        args.out.write_text(
            "\n\n".join(
                f"## {n}\n\n{sections[n]}" for n in {**SECTIONS, **sections} if n in sections
            )
            + "\n"
        )


def _sections(path: Path) -> dict[str, str]:
    """The sections already in the file, which a run of some sections keeps, also those of other commits."""
    parts = path.read_text().split("## ")[1:] if path.exists() else []
    return {
        name.strip(): body.strip() for name, _, body in (part.partition("\n") for part in parts)
    }


if __name__ == "__main__":
    main()
