"""The worst describable subgroup: how large is the mean loss of the worst share of people that columns can tell?

`scdro.worst_case` may reweight single rows, so noise takes all the weight: the worst tenth of 0-1
losses is always 1. Here only columns Z may choose. With mu(Z) = E[loss | Z],

    worst share alpha    theta = inf_eta  eta + E[(mu - eta)_+]/alpha
    KL ball of radius rho    theta = inf_lam  lam rho + lam log E[exp(mu/lam)]

mu is unknown. It is fitted out of fold, mu^, and the plug-in is corrected by what the fit leaves
(Li, Mittal, Namkoong and Xia, 2024):

    share: mean of eta + 1{mu^ >= eta} (loss - eta)/alpha    eta: the 1 - alpha quantile of mu^
    ball:  plug-in + mean of w (loss - mu^)                  w = exp(mu^/lam)/mean of exp(mu^/lam)

The first-order error of mu^ is gone. What is left always points down: the share that mu^ picks is a
real subgroup, and the worst one is at least as bad. So the lower end of the interval needs no
allowance. The upper end has one for what a perfect fit would add. If mu^ has the correlation r with
mu, then the worst share gains about 1/r as much over the mean as the one that mu^ picks (exactly so
if both are normal), so

    high = value + z se + (1.5 gain + se)(1/r - 1)        low = value - z se

where 1.5 and one se are caution (mu may have heavier tails, r and the gain are noisy; chosen by
simulation). Both ends have Johnson's (1978) correction for the skewness of the losses.

r is not seen, but how well two fits to different halves of the data agree is: r^2 is the variance
that mu^ explains, over that of mu; every fit explains a share of that of mu, and halves that agree
little say that it is a small share. Of several fits, stiff and detailed ones, the one that says
that mu varies most counts. No upper end can be right for any mu: a mu that jumps from row to row
looks like noise to every fit. This one is for a mu of which the fits see a part.
(benchmarks/audit_coverage.py: how often the interval holds the truth, and how often it would
without the allowance.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed
from scipy.optimize import minimize_scalar, nnls
from scipy.stats import norm, rankdata
from scipy.stats import t as student
from sklearn.ensemble import HistGradientBoostingRegressor

from scdro._arguments import check_jobs, check_number, check_whole
from scdro._frames import backend_of, frame_of
from scdro.auditing._codes import CodedColumn, SliceCondition, code_columns, read_frame
from scdro.auditing._outcomes import read_units, read_vector, read_weight
from scdro.auditing._scan import SliceIndex
from scdro.errors import DataError, HyperparameterError

__all__ = ["Clause", "Subject", "WorstSubgroup", "find_worst", "worst_subgroup"]

Array = npt.NDArray[Any]
LEAST_WORST_ROWS = 20  # rows of the worst share below which no interval is given
# The shares of a curve, from the smallest that the rows allow.
ALPHAS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
CAUTION = 1.0  # standard errors that a gain is taken to be larger than it seems
HEAVIER = 1.5  # times as much is missed as where all is normal; both set by simulation
FLOOR = 0.05  # smallest reliability; below it nothing was learned
WORDS_FITTED = 30  # of a column of texts that the fit sees
CLAUSES = 3  # slices that describe a subgroup
TREES = (  # beside a linear fit: a coarse one and a detailed one
    {"max_iter": 10, "max_leaf_nodes": 4},
    {"max_iter": 17, "max_leaf_nodes": 12},
)


class Clause(NamedTuple):
    """A slice that describes part of a subgroup.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> city = rng.choice(["Oslo", "Rome"], 2000, p=[0.8, 0.2])
        >>> wrong = rng.random(2000) < np.where(city == "Rome", 0.6, 0.1)
        >>> worst_subgroup(wrong, {"city": city}, alpha=0.2).clauses[0].slice
        'city = Rome'
    """

    slice: str  # its conditions, in words
    rows: int  # how many rows it has
    inside: float  # of the slice's rows, the share in the subgroup
    covered: float  # of the subgroup's rows, the share in the slice
    loss: float  # mean loss of the slice
    where: tuple[SliceCondition, ...]  # its conditions, which can be applied to any table


@dataclass(frozen=True)
class Subject:
    """Losses of people, and columns that describe them.

    Attributes:
        losses: of each row, (n,).
        weight: of each row, (n,), with mean one.
        clusters: number of the unit of each row, (n,); None if rows are independent.
        columns: floats, dates or objects by name; columns that are only known as codes are left out.
        coded: the coded columns.
        backend: library of the tables to return.
    """

    losses: Array
    weight: Array
    clusters: Array | None
    columns: dict[str, Array]
    coded: list[CodedColumn]
    backend: Any = None


@dataclass(frozen=True)
class CrossFit:
    """Losses regressed on columns out of fold.

    Attributes:
        mu: fitted mean loss of each row, by a fit that did not see it or others of its unit, (n,).
        reliability: squared correlation of mu with the true mean loss, as `_reliability` has it.
    """

    subject: Subject
    mu: Array
    reliability: float

    def mean(self, values: Array) -> float:
        """The mean of some values, (n,), by the rows' weights."""
        return float(np.average(values, weights=self.subject.weight))


class WorstEstimate(NamedTuple):
    """The mean loss of one worst case, with its interval."""

    value: float
    low: float  # ends of the interval; the upper one allows for what the fit may have missed
    high: float
    error: float  # the standard error of the value
    influence: Array  # (n,) the value is its mean by weight, and its spread gives the error
    members: Array  # (n,) booleans: the rows of the worst case


@dataclass(frozen=True, repr=False)
class WorstSubgroup:
    """The worst share of people that columns can describe.

    Attributes:
        alpha: its share; None for a ball.
        rho: radius of the ball; None for a share.
        value: its mean loss, an estimate that is too low rather than too high.
        low, high: interval of the worst case; the upper end allows for what the fit may have missed.
        level: of the interval.
        mean: mean loss of everybody.
        reliability: of what the columns could tell about the losses, the share that the fit tells,
            0 to 1. If it is low, the interval is wide, and more rows may find a worse subgroup.
        members: which rows are in it, (n,); of a ball, those who count more than on average.
        clauses: up to three slices that describe them.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> city = rng.choice(["Oslo", "Rome"], 2000, p=[0.8, 0.2])
        >>> wrong = rng.random(2000) < np.where(city == "Rome", 0.6, 0.1)
        >>> worst = worst_subgroup(wrong, {"city": city}, alpha=0.2)
        >>> worst.low < 0.6 < worst.high
        True
    """

    alpha: float | None
    rho: float | None
    value: float
    low: float
    high: float
    level: float
    mean: float
    reliability: float
    members: Array
    clauses: tuple[Clause, ...]
    fit: CrossFit = field(repr=False)

    def __str__(self) -> str:
        which = (
            f"The worst {100 * self.alpha:.3g}% that these columns can describe"
            if self.alpha is not None
            else f"The worst case over these columns within KL distance {self.rho:g}"
        )
        text = (
            f"{which}: mean loss {self.value:.4g} ({self.low:.4g} to {self.high:.4g}),"
            f" {self.mean:.4g} on average."
        )
        parts = [
            f"{one.slice} ({one.rows:,} rows, {100 * one.inside:.0f}% of them in it,"
            f" {100 * one.covered:.0f}% of it)"
            for one in self.clauses
        ]
        return f"{text} Above all: {'; '.join(parts)}." if parts else text

    def __repr__(self) -> str:
        return str(self)

    def at(self, *, alpha: float | None = None, rho: float | None = None) -> WorstSubgroup:
        """Another share, or a ball, of the same fit."""
        return _describe(self.fit, alpha, rho, self.level)

    def curve(self, alphas: Sequence[float] | None = None, backend: Any = None) -> Any:
        """The worst share for several alphas, as a table.

        Args:
            alphas: shares; None: from the smallest that the rows allow up to 1.
            backend: "pandas", "polars" or "pyarrow"; None: as the columns were.

        Returns:
            A table with alpha, value, low, high (each alone) and band_low, band_high (all at once).
        """
        rows = _compute_curve(self.fit, alphas, self.level)
        return frame_of(rows, backend or self.fit.subject.backend)

    def plot(self, ax: Any = None, alphas: Sequence[float] | None = None) -> Any:
        """Draw the curve with its band. Needs matplotlib.

        Args:
            ax: matplotlib's axes; None: new ones.
            alphas: as for `curve`.

        Returns:
            The axes.
        """
        import matplotlib.pyplot as plt

        rows = _compute_curve(self.fit, alphas, self.level)
        ax = plt.subplots(figsize=(6, 3.6), layout="constrained")[1] if ax is None else ax
        ax.fill_between(rows["alpha"], rows["band_low"], rows["band_high"], alpha=0.2, linewidth=0)
        ax.plot(rows["alpha"], rows["value"], marker="o", markersize=3)
        ax.axhline(self.mean, color="0.45", linewidth=1, linestyle="--")
        ax.set_xlabel("share of the rows")
        ax.set_ylabel("mean loss")
        ax.set_title("The worst share that columns can describe", loc="left")
        ax.grid(alpha=0.3)
        return ax


def worst_subgroup(
    losses: Any,
    frame: Any,
    alpha: float | None = None,
    *,
    rho: float | None = None,
    sample_weight: Any = None,
    groups: Any = None,
    folds: int = 5,
    level: float = 0.95,
    seed: int = 0,
    n_jobs: int | None = None,
) -> WorstSubgroup:
    """The mean loss of the worst share of people that columns can describe, with an interval.

    Args:
        losses: of a model on rows that did not train it, (n,): errors, log losses, ...
        frame: columns to describe people by: pandas, polars, Arrow, or a dictionary.
        alpha: share of the rows; by default 0.1, unless there is `rho`.
        rho: radius of a KL ball instead of a share.
        sample_weight: one number for each row.
        groups: the unit that each row belongs to, such as a patient; a unit is in one fold.
        folds: number of folds.
        level: of the interval.
        seed: of the folds.
        n_jobs: number of jobs of joblib; the result does not depend on it.

    Example:
        >>> rng = np.random.default_rng(1)
        >>> age = rng.integers(20, 80, 4000)
        >>> wrong = rng.random(4000) < np.where(age > 70, 0.5, 0.1)
        >>> worst = worst_subgroup(wrong, {"age": age}, alpha=0.1)
        >>> round(worst.mean, 2), worst.low < 0.5 < worst.high
        (0.17, True)

    References:
        Li, Mittal, Namkoong and Xia, Evaluating model performance under worst-case subpopulations,
        2024 (arXiv 2407.01316).
    """
    values = read_vector(losses, "losses")
    if values.dtype.kind not in "fiub" or not np.isfinite(values.astype(float)).all():
        raise DataError("expected finite numbers as losses, got other values")
    n = len(values)
    columns = read_frame(frame, n)
    clusters = None if groups is None else read_units(groups, n)
    subject = Subject(
        values.astype(float), read_weight(sample_weight, n), clusters, columns,
        code_columns(columns), backend_of(frame, losses),
    )  # fmt: skip
    return find_worst(subject, alpha, rho, folds=folds, level=level, seed=seed, n_jobs=n_jobs)


def find_worst(
    subject: Subject, alpha: float | None, rho: float | None, *, folds: int = 5,
    level: float = 0.95, seed: int = 0, n_jobs: int | None = None,
) -> WorstSubgroup:  # fmt: skip
    """As `worst_subgroup`, of losses and columns that were read before."""
    check_number("level", level, "in (0, 1)")
    check_whole("folds", folds, 2)
    check_jobs(n_jobs)
    if not subject.coded:
        raise DataError("expected columns with at least two different values, got none")
    alpha = 0.1 if alpha is None and rho is None else alpha
    _check_target(subject, alpha, rho)
    return _describe(cross_fit(subject, folds, seed, n_jobs), alpha, rho, level)


def _check_target(subject: Subject, alpha: float | None, rho: float | None) -> None:
    """Raise unless there is either a share with enough rows, or a radius."""
    if (alpha is None) == (rho is None):
        raise HyperparameterError(f"expected alpha or rho, got alpha={alpha} and rho={rho}")
    if rho is not None:
        check_number("rho", rho, "> 0", "the radius of a KL ball")
        return
    size = _count_independent(subject)
    check_number("alpha", alpha, "in (0, 1]", "a share of the rows")
    assert alpha is not None
    if size < LEAST_WORST_ROWS:
        raise DataError(f"expected at least {LEAST_WORST_ROWS} independent rows, got {size:,.0f}")
    if alpha * size < LEAST_WORST_ROWS:
        raise HyperparameterError(
            f"expected alpha of at least {LEAST_WORST_ROWS / size:.2g}, {LEAST_WORST_ROWS} of {size:,.0f} independent"
            f" rows, got {alpha:g}: of fewer, no interval can be trusted"
        )


def _count_independent(subject: Subject) -> float:
    """Number of independent rows: fewer with unequal weights, and at most the number of units."""
    w = subject.weight
    size = float(w.sum() ** 2 / (w**2).sum())
    return size if subject.clusters is None else min(size, float(subject.clusters.max() + 1))


# -- the fit --------------------------------------------------------------------------------------


def cross_fit(subject: Subject, folds: int, seed: int, n_jobs: int | None) -> CrossFit:
    """Fit every fold by the others; and, for the reliability, everything by either half.

    Each part of the data gets three fits: a line on ranks, coarse trees and detailed ones. `_blend`
    makes one mu^ of them. Rows of one unit are in the same fold and the same half.
    """
    n = len(subject.losses)
    rng = np.random.default_rng(seed)
    units = np.arange(n) if subject.clusters is None else subject.clusters
    number = int(units.max()) + 1
    if number < 2 * folds:
        raise DataError(f"expected at least {2 * folds} different groups, got {number}")
    # Of each row the fold and the half, (n,).
    fold = (rng.permutation(number) % folds)[units]
    half = (rng.permutation(number) % 2)[units]
    X, categorical = _make_features(subject)
    ranks = _rank_columns(X, categorical)
    everyone = np.ones(n, dtype=bool)
    # Pairs of masks: rows to fit on, rows to predict.
    parts = [(fold != k, fold == k) for k in range(folds)]
    parts += [(half == side, everyone) for side in (0, 1)]
    run = delayed(_fit_trees)
    made = Parallel(n_jobs=n_jobs, prefer="threads")(
        run(X, subject.losses, subject.weight, rows, predicted, categorical, settings)
        for rows, predicted in parts
        for settings in TREES
    )
    fits = []  # of each part, its fits as rows: a line, and the trees
    for rows, predicted in parts:
        line = _fit_line(ranks, subject.losses, subject.weight, rows, predicted)
        fits.append(np.array([line, *(made.pop(0) for _ in TREES)]))
    first, second = fits[folds:]
    whole = np.zeros((1 + len(TREES), n))
    for k, (rows, _) in enumerate(parts[:folds]):
        # The mean loss of the other folds is high where that of this one is low: a fit's level would
        # rank the folds the wrong way around, so only what it tells about the columns counts.
        level = np.average(subject.losses[rows], weights=subject.weight[rows])
        whole[:, fold == k] = fits[k] - level
    mu, blend = _blend(whole, subject, fold)
    return CrossFit(
        subject, mu,
        _reliability(
            subject, np.array([mu, *whole]), np.array([blend @ first, *first]),
            np.array([blend @ second, *second]), half == 0,
        ),
    )  # fmt: skip


def _reliability(subject: Subject, fits: Array, first: Array, second: Array, half: Array) -> float:
    """Squared correlation of the first of the fits with mu, if its variance is the largest of what
    the fits tell.

    Args:
        subject: with the losses.
        fits: mu^ and each single fit, out of fold, (fits, n).
        first, second: the same fits made on one half and on the other, predicted for all rows.
        half: the rows of the first half, (n,), booleans.

    Of the losses a fit m explains the variance cov(m, loss)^2 / var(m), which is a share of that of
    mu; how well two halves agree says which share. A stiff fit agrees with itself, and misses what
    a detailed one finds: so each tells, and the largest counts.
    """
    w, losses = subject.weight, subject.losses
    explained, told = [], []
    for fit, a, b in zip(fits, first, second, strict=True):
        variance = _covariance(fit, fit, w)
        slope = max(_covariance(fit, losses, w), 0.0) / variance if variance > 0 else 0.0
        explained.append(slope**2 * variance)
        told.append(explained[-1] / min(max(_agreement(a, b, half, w), FLOOR), 1.0))
    most = min(max(told), _covariance(losses, losses, w))
    return min(max(explained[0] / most, FLOOR), 1.0) if most > 0 else FLOOR


def _agreement(first: Array, second: Array, half: Array, w: Array) -> float:
    """Correlation of two fits, the first one made on the rows of `half`, the second on the others.

    On its own rows a fit varies more, since it has learned their noise: its variance comes from
    the rows of the other. The other knows nothing of this noise, so the covariance is of all rows.
    """

    product = _covariance(first, first, w * ~half) * _covariance(second, second, w * half)
    return _covariance(first, second, w) / product**0.5 if product > 0 else 0.0


def _covariance(a: Array, b: Array, w: Array) -> float:
    """The covariance of two quantities by weight."""
    return float(w @ ((a - w @ a / w.sum()) * (b - w @ b / w.sum())) / w.sum())


def _fit_trees(
    X: Array, losses: Array, weight: Array, rows: Array, predicted: Array, categorical: list[bool],
    settings: dict[str, int],
) -> Array:  # fmt: skip
    """Boosted trees of the losses on the columns, fitted on `rows`; the mean losses of `predicted`.

    Few steps, large leaves and a strong penalty: the losses are mostly noise.
    """
    leaf = max(20, int(rows.sum()) // 200)
    model = HistGradientBoostingRegressor(
        learning_rate=0.3, l2_regularization=5.0, min_samples_leaf=leaf, early_stopping=False,
        max_bins=127, categorical_features=categorical if any(categorical) else None,
        random_state=0, **settings,
    )  # fmt: skip
    uneven = bool((weight != weight[0]).any())  # equal weights cost much time, and change nothing
    model.fit(X[rows], losses[rows], sample_weight=weight[rows] if uneven else None)
    fitted: Array = model.predict(X[predicted])
    return fitted


def _fit_line(ranks: Array, losses: Array, weight: Array, rows: Array, predicted: Array) -> Array:
    """Ridge regression of the losses on ranks, (n, columns), fitted on `rows`; without columns, their mean."""
    mass = weight[rows] / weight[rows].mean()
    middle = np.average(ranks[rows], axis=0, weights=mass)
    mean = float(np.average(losses[rows], weights=mass))
    left = ranks[rows] - middle
    gram = (left * mass[:, None]).T @ left + 5.0 * np.eye(ranks.shape[1])
    slope = np.linalg.solve(gram, left.T @ (mass * (losses[rows] - mean)))
    fitted: Array = mean + (ranks[predicted] - middle) @ slope
    return fitted


def _rank_columns(X: Array, categorical: list[bool]) -> Array:
    """Columns with an order, each as ranks from -1 to 1; missing values in the middle."""
    ranks = [
        np.where(
            np.isnan(x), 0.0, 2 * rankdata(x, nan_policy="omit") / max(1, (~np.isnan(x)).sum()) - 1
        )
        for x, named in zip(X.T, categorical, strict=True)
        if not named
    ]
    return np.column_stack(ranks) if ranks else np.zeros((len(X), 0))


def _make_features(subject: Subject) -> tuple[Array, list[bool]]:
    """One column of floats for each column; which of them are numbers of categories."""
    parts, categorical, words = [], [], 0
    for column in subject.coded:
        kind, raw = column.coder.kind, subject.columns.get(column.name)
        words += kind == "words"
        if kind == "words" and words > WORDS_FITTED:
            continue
        if kind == "numbers" and raw is not None:
            parts.append(np.where(np.isfinite(raw), raw, np.nan))
        elif kind == "dates" and raw is not None:
            days = raw.astype("datetime64[us]").astype(float)
            parts.append(np.where(np.isnat(raw), np.nan, days))
        else:
            parts.append(column.codes.astype(float))
        categorical.append(kind == "values")
    return np.column_stack(parts), categorical


def _blend(fits: Array, subject: Subject, fold: Array) -> tuple[Array, Array]:
    """mu^, the sum of the fits with weights >= 0, and the mean weight of each fit.

    The weights of a fold make the squared error of the other folds least, which also stretches or
    shrinks the fits until they are right on average. Weights that had seen the losses of the fold
    would choose the fits that are right by luck: where columns tell nothing, its worst share would
    be worse than the mean.
    """
    w, losses = subject.weight, subject.losses
    mean = float(w @ losses / w.sum())
    mu, weights = np.full(len(w), mean), []
    for k in range(int(fold.max()) + 1):
        others = fold != k
        root, mass = np.sqrt(w[others]), w[others] / w[others].sum()
        known, wanted = fits[:, others], losses[others]
        centred = (known - (known @ mass)[:, None]) * root
        weights.append(nnls(centred.T, (wanted - mass @ wanted) * root)[0])
        mu[fold == k] += weights[-1] @ fits[:, fold == k]
    return mu, np.mean(weights, axis=0)


# -- the worst case of a fit ----------------------------------------------------------------------


def estimate_share(fit: CrossFit, alpha: float, level: float) -> WorstEstimate:
    """The worst share alpha, corrected by what the fit leaves: the mean of the influence

    eta + part_i (loss_i - eta)/alpha,    part_i: the share of row i that is in the worst share
    """
    losses, mu, w = fit.subject.losses, fit.mu, fit.subject.weight
    eta = _upper_quantile(mu, w, alpha)
    above, tied = mu > eta, mu == eta
    # rows at the quantile count in part, so that the share is exactly alpha
    left = alpha * w.sum() - w[above].sum()
    part = above + tied * (left / w[tied].sum() if tied.any() else 0.0)
    influence = eta + part * (losses - eta) / alpha
    return _interval(fit, influence, alpha, level, part > 0)


def estimate_ball(fit: CrossFit, rho: float, level: float) -> WorstEstimate:
    """The worst case within a KL ball, corrected by what the fit leaves."""
    losses, mu = fit.subject.losses, fit.mu
    top, spread = float(mu.max()), float(np.ptp(mu))
    if spread <= 0:
        return _interval(fit, losses, 1.0, level, np.ones(len(mu), bool))

    # Not `_kl.solve_lam`: an audit of predictions does without torch, and a minimum in one variable
    # is all that is needed.
    def dual(log_lam: float) -> float:
        """lam rho + lam log E exp(mu^/lam), whose minimum over lam is the plug-in."""
        lam = float(np.exp(log_lam))
        return top + lam * rho + lam * float(np.log(fit.mean(np.exp((mu - top) / lam))))

    ends = np.log(spread) + np.log([1e-4, 1e4])
    log_lam = float(minimize_scalar(dual, bounds=tuple(ends), method="bounded").x)
    lam = float(np.exp(log_lam))
    # w of the head of this file, (n,): by how much the worst case multiplies each row's weight.
    tilt = np.exp((mu - top) / lam)
    tilt = tilt / fit.mean(tilt)
    influence = dual(log_lam) + lam * (tilt - 1) + tilt * (losses - mu)
    share = 1.0 / fit.mean(tilt**2)  # rows that the tilt rests on
    return _interval(fit, influence, share, level, tilt > 1)


def _interval(
    fit: CrossFit, influence: Array, share: float, level: float, members: Array
) -> WorstEstimate:
    """The estimate with its interval, from the influence of each row.

    Args:
        fit: with the losses, the weights and the reliability.
        influence: whose mean is the estimate, (n,).
        share: of the rows that the estimate rests on; 1 for all, where a fit can miss nothing.
        level: confidence level.
        members: rows of the worst case, (n,), booleans.
    """
    subject, w = fit.subject, fit.subject.weight
    value = fit.mean(influence)
    left = w * (influence - value) / w.sum()  # of rows, or units, whose sum is the error made
    if subject.clusters is not None:
        left = np.bincount(subject.clusters, weights=left)
    error = float(np.sqrt((left**2).sum()))
    rows = share * _count_independent(subject)  # independent rows that the estimate rests on
    upper, missed = error, 0.0
    if share < 1:
        # A share with few losses by chance also has a small standard error: that of everybody's
        # losses is the least for the upper end.
        mean = fit.mean(subject.losses)
        upper = max(error, float(np.sqrt(fit.mean((subject.losses - mean) ** 2) / rows)))
        gain = HEAVIER * max(value - mean, 0.0) + CAUTION * upper
        missed = gain * (fit.reliability**-0.5 - 1)
    # Johnson's correction moves both ends towards the long tail of the losses.
    z = float(norm.ppf((1 + level) / 2))
    quantile = float(student.ppf((1 + level) / 2, max(rows - 1, 1.0)))
    skewness = float((left**3).sum()) / error**3 if error > 0 else 0.0
    shift = float(np.clip(skewness * (2 * z**2 + 1) / 6, -quantile, quantile))
    low, high = value - error * (quantile - shift), value + upper * (quantile + shift) + missed
    return WorstEstimate(value, low, high, error, influence, members)


def _upper_quantile(mu: Array, w: Array, alpha: float) -> float:
    """The largest value that at least a share alpha of the weight reaches."""
    order = np.argsort(-mu, kind="stable")
    mass = np.cumsum(w[order])
    at = int(np.searchsorted(mass, alpha * mass[-1] * (1 - 1e-12)))
    return float(mu[order[min(at, len(mu) - 1)]])


def _describe(fit: CrossFit, alpha: float | None, rho: float | None, level: float) -> WorstSubgroup:
    """The worst share, or the worst case within a ball, of a fit, with slices that describe it."""
    _check_target(fit.subject, alpha, rho)
    if alpha is not None:
        one = estimate_share(fit, alpha, level)
    else:
        assert rho is not None
        one = estimate_ball(fit, rho, level)
    return WorstSubgroup(
        alpha, rho, one.value, one.low, one.high, level, fit.mean(fit.subject.losses),
        fit.reliability, one.members, _find_clauses(fit.subject, one.members), fit,
    )  # fmt: skip


def _find_clauses(subject: Subject, members: Array) -> tuple[Clause, ...]:
    """At most `CLAUSES` slices, each with the best F score for the members that no earlier one has.

    The F score of a slice S for members M is 2 |S and M| / (|S| + |M|): high if most of the slice
    are members and most members are in it.
    """
    n = len(members)
    if members.all():
        return ()
    least = max(10, int(0.1 * members.sum()))
    index = SliceIndex(subject.coded, n, min_rows=least)
    left: Array = members.copy()
    clauses: list[Clause] = []
    while len(clauses) < CLAUSES and left.sum() > 0.2 * members.sum() and len(index):
        inside = index.sums(left[None].astype(float))[0]
        score = 2 * inside / (index.counts + left.sum())
        k = int(np.argmax(score))
        if score[k] < 0.2:
            break
        rows = index.rows(k)
        loss = float(np.average(subject.losses[rows], weights=subject.weight[rows]))
        hit = float((rows & members).sum())
        clauses.append(
            Clause(index.text(k), int(rows.sum()), hit / rows.sum(), hit / members.sum(), loss,
                   index.conditions_of(k))
        )  # fmt: skip
        left &= ~rows
    return tuple(clauses)


def _compute_curve(fit: CrossFit, alphas: Sequence[float] | None, level: float) -> dict[str, Array]:
    """Estimates over alpha, and a band that holds for all of them at once.

    Estimates at neighbouring alphas share most of their rows. The largest of their errors, in
    standard errors, is drawn from a normal distribution with the correlations of their influences;
    its quantile replaces the 1.96 of a single interval.

    Returns:
        Columns alpha, value, low, high, band_low and band_high, (alphas,) each.
    """
    if alphas is None:
        alphas = [
            one for one in ALPHAS if one * _count_independent(fit.subject) >= LEAST_WORST_ROWS
        ]
    for alpha in alphas:
        _check_target(fit.subject, alpha, None)
    made = [estimate_share(fit, alpha, level) for alpha in alphas]
    w, clusters = fit.subject.weight, fit.subject.clusters
    left = np.array([w * (one.influence - one.value) for one in made])
    if clusters is not None:
        left = np.array([np.bincount(clusters, weights=row) for row in left])
    scale = np.sqrt((left**2).sum(1))
    z = left / np.maximum(scale, 1e-300)[:, None]
    draws = np.random.default_rng(0).multivariate_normal(np.zeros(len(made)), z @ z.T, 20_000)
    wide = float(np.quantile(np.abs(draws).max(1), level))
    band = [estimate_share(fit, alpha, 2 * float(norm.cdf(wide)) - 1) for alpha in alphas]
    return {
        "alpha": np.array(alphas, dtype=float),
        "value": np.array([one.value for one in made]),
        "low": np.array([one.low for one in made]),
        "high": np.array([one.high for one in made]),
        "band_low": np.array([one.low for one in band]),
        "band_high": np.array([one.high for one in band]),
    }
