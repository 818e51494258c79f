"""The worst describable subgroup: estimates against literal twins, intervals, weights, units, errors."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from scipy.stats import t as student

import scdro
from scdro.auditing import worst_subgroup
from scdro.auditing._subgroup import (  # the estimates of a given fit, against other formulas
    CrossFit,
    Subject,
    _blend,
    _reliability,
    estimate_ball,
    estimate_share,
)
from scdro.errors import DataError, HyperparameterError


def people(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"age": rng.integers(18, 90, n), "city": rng.choice(["Oslo", "Rome", "Lima"], n)}
    )
    mu = np.where((frame.city == "Rome") & (frame.age > 60), 0.6, 0.1)  # 14% of the rows
    return frame, (rng.random(n) < mu).astype(float)


@pytest.fixture(scope="module")
def worst():
    frame, losses = people()
    return worst_subgroup(losses, frame, 0.1)


def given_fit(seed=0, n=400):
    rng = np.random.default_rng(seed)
    mu = rng.normal(size=n).round(1)  # with ties
    weight = rng.uniform(0.5, 2, n)
    return CrossFit(Subject(mu + rng.normal(size=n), weight, None, {}, []), mu, 1.0)


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.5, 0.97])
def test_a_share_is_the_mean_loss_of_its_rows(alpha):
    """With eta the quantile, plug-in and correction add up to the mean over the worst share by mu."""
    fit = given_fit()
    mu, w, losses = fit.mu, fit.subject.weight, fit.subject.losses
    order = np.argsort(-mu, kind="stable")
    for value in np.unique(mu):  # rows with the same mu take equal parts
        losses = np.where(
            mu == value, np.average(losses[mu == value], weights=w[mu == value]), losses
        )
    mass = np.minimum(np.cumsum(w[order]), alpha * w.sum())
    part = np.diff(mass, prepend=0.0)
    expected = part @ losses[order] / (alpha * w.sum())
    found = estimate_share(fit, alpha, 0.95)
    assert found.value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("reliability", [0.3, 1.0])
def test_the_debiased_share_and_its_interval_from_the_papers(reliability):
    """Li et al.: the dual at its minimum, plus what the fit leaves; a row at a time."""
    rng = np.random.default_rng(2)
    n, alpha = 300, 0.25  # 75 rows
    mu = rng.normal(size=n)
    losses = mu + rng.exponential(size=n)
    fit = CrossFit(Subject(losses, np.ones(n), None, {}, []), mu, reliability)
    found = estimate_share(fit, alpha, 0.95)

    def dual(eta):
        return eta + sum(max(one - eta, 0) for one in mu) / n / alpha

    eta = min(mu, key=dual)
    terms = [
        eta + max(m - eta, 0) / alpha + (m >= eta) * (loss - m) / alpha
        for m, loss in zip(mu, losses, strict=True)
    ]
    value = sum(terms) / n
    assert found.value == pytest.approx(value, abs=2 / 75)  # the row at eta counts in full or not
    left = [one - found.value for one in found.influence]
    error = sum(one**2 for one in left) ** 0.5 / n
    skewness = sum(one**3 for one in left) / sum(one**2 for one in left) ** 1.5
    upper = max(error, losses.std() / 75**0.5)
    missed = (1.5 * (found.value - losses.mean()) + upper) * (1 / reliability**0.5 - 1)
    z = 1.959964
    quantile, shift = student.ppf(0.975, 74), skewness * (2 * z**2 + 1) / 6
    assert found.error == pytest.approx(error)
    assert found.low == pytest.approx(found.value - error * (quantile - shift), abs=1e-3)
    assert found.high == pytest.approx(found.value + upper * (quantile + shift) + missed, abs=1e-3)


def test_fits_that_tell_nothing_are_not_chosen_by_luck():
    """Weights of fits that had seen the losses of a fold would make its worst share worse."""
    scores = []
    for seed in range(150):
        rng = np.random.default_rng(seed)
        n, fold = 400, np.arange(400) % 5
        subject = Subject(rng.normal(size=n), np.ones(n), None, {}, [])
        mu, _ = _blend(rng.normal(size=(3, n)), subject, fold)
        found = estimate_share(CrossFit(subject, mu, 1.0), 0.2, 0.95)
        scores.append(found.value / found.error)
    assert abs(np.mean(scores)) < 0.25


def test_the_reliability_is_what_a_perfect_fit_would_explain_more():
    """A stiff fit agrees with itself; a detailed one says how much it misses."""
    rng = np.random.default_rng(3)
    n, w = 40_000, np.ones(40_000)
    line, edge = rng.normal(size=(2, n))
    subject = Subject(line + edge + rng.normal(size=n), w, None, {}, [])

    def detailed():  # knows both, with noise of its own
        return line + edge + 1.5 * rng.normal(size=n)

    half = np.arange(n) % 2 == 0
    first, second = ([line, line, detailed()] for _ in range(2))
    fits = np.array([line, line, detailed()])
    found = _reliability(subject, fits, np.array(first), np.array(second), half)
    assert found == pytest.approx(np.corrcoef(line, line + edge)[0, 1] ** 2, abs=0.03)
    alone = _reliability(subject, fits[:2], np.array(first[:2]), np.array(second[:2]), half)
    assert alone == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_the_truth_in_closed_form(seed, alpha):
    """mu = u/2 with u uniform: the worst share has the mean 1/2 - alpha/4."""
    rng = np.random.default_rng(seed)
    u = rng.random(2000)
    found = worst_subgroup(rng.random(2000) < u / 2, {"u": u, "v": rng.random(2000)}, alpha)
    assert found.low < 0.5 - alpha / 4 < found.high
    assert found.high - found.low < 0.4


@pytest.mark.parametrize("seed", range(4))
def test_shuffled_columns_leave_the_mean(seed):
    frame, losses = people(1000, seed)
    mixed = frame.sample(frac=1, random_state=seed).reset_index(drop=True)
    found = worst_subgroup(losses, mixed, 0.1, seed=seed)
    assert found.low < losses.mean() < found.high
    curve = found.curve([0.1, 0.5])
    assert (curve.band_low < losses.mean()).all()
    assert (curve.band_high > losses.mean()).all()


def test_a_ball_is_the_dual_plus_what_the_fit_leaves():
    fit, rho = given_fit(), 0.3
    mu, w, losses = fit.mu, fit.subject.weight / fit.subject.weight.sum(), fit.subject.losses

    def attack(tilt):  # the primal: q ~ w exp(tilt mu), at KL distance rho
        q = w * np.exp(tilt * (mu - mu.max()))
        return q / q.sum()

    low, high = 0.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        q = attack(middle)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(q > 0, q * np.log(q / w), 0.0).sum()
        low, high = (middle, high) if distance < rho else (low, middle)
    q = attack(low)
    found = estimate_ball(fit, rho, 0.95)
    assert found.value == pytest.approx(q @ mu + q @ (losses - mu), abs=1e-5)
    assert minimize(lambda x: -(attack(x[0]) @ mu), [low], bounds=[(0, low)]).fun == pytest.approx(
        -(q @ mu), abs=1e-6
    )


def test_the_worst_share_is_found_and_described(worst):
    frame, losses = people()
    assert worst.low < 0.6 < worst.high
    assert worst.mean == pytest.approx(losses.mean())
    assert worst.members.sum() == pytest.approx(300, abs=30)
    assert worst.clauses[0].slice == "age > 62 and city = Rome"
    first = worst.clauses[0]
    rows = np.logical_and.reduce([one.rows(frame) for one in first.where])
    assert rows.sum() == first.rows
    assert (rows & worst.members).sum() == pytest.approx(first.covered * worst.members.sum())
    assert "age > 62 and city = Rome" in str(worst)


def test_of_everybody_it_is_the_mean(worst):
    everyone = worst.at(alpha=1.0)
    assert everyone.value == pytest.approx(worst.mean)
    se = people()[1].std() / np.sqrt(3000)
    assert everyone.high - everyone.low == pytest.approx(2 * 1.96 * se, rel=0.01)
    assert everyone.clauses == ()


def test_a_curve_falls_and_its_band_is_wider(worst):
    curve = worst.curve([0.05, 0.1, 0.3, 1.0])
    assert isinstance(curve, pd.DataFrame)
    assert (np.diff(curve.value) < 0.05).all()
    assert curve.value[1] == pytest.approx(worst.value)
    assert (curve.band_low < curve.low).all()
    assert (curve.band_high > curve.high).all()
    assert worst.curve(backend="polars").columns[0] == "alpha"
    ax = worst.plot()
    assert ax.get_xlabel() == "share of the rows"


def test_a_larger_ball_is_worse(worst):
    values = [worst.at(rho=rho).value for rho in (0.01, 0.1, 0.5)]
    assert worst.mean < values[0] < values[1] < values[2]
    assert values[2] < 0.75


def test_where_columns_say_nothing_the_worst_share_is_the_mean():
    rng = np.random.default_rng(1)
    losses = rng.random(3000) < 0.2
    found = worst_subgroup(losses, {"a": rng.normal(size=3000)}, 0.2)
    assert found.low < 0.2 < found.high
    assert found.reliability < 0.7


def test_jobs_do_not_change_the_result():
    frame, losses = people(600)
    one, two = (worst_subgroup(losses, frame, 0.2, n_jobs=k) for k in (None, 2))
    assert (one.value, one.low, one.high) == (two.value, two.low, two.high)


def test_weights_move_the_estimate():
    """Rows of weight 0 might as well not be there."""
    frame, losses = people()
    weight = np.where(frame.city == "Rome", 0.0, 1.0)
    found = worst_subgroup(losses, frame, 0.2, sample_weight=weight)
    assert found.mean == pytest.approx(losses[weight > 0].mean())
    assert found.low < 0.1 < found.high
    assert found.high < 0.4


def test_units_stay_together_and_widen_the_interval():
    frame, losses = people(300)
    times = np.repeat(np.arange(300), 10)  # every person ten times
    frame, losses = frame.iloc[times].reset_index(drop=True), losses[times]
    alone = worst_subgroup(losses, frame, 0.2)
    together = worst_subgroup(losses, frame, 0.2, groups=times)
    assert together.high - together.low > 2 * (alone.high - alone.low)
    assert together.reliability < alone.reliability  # no fit has seen a row's copies


def test_an_audit_has_it():
    frame, losses = people()
    p = np.full(len(losses), 0.3) + 1e-3 * np.arange(len(losses)) / len(losses)
    audit = scdro.audit(losses.astype(int), p, frame)
    found = audit.worst_subgroup(0.1)
    assert found.value == worst_subgroup(losses, frame, 0.1).value  # 1 is never predicted
    assert audit.worst_subgroup(0.1, loss="loss").mean == pytest.approx(audit.scores["log_loss"])
    with pytest.raises(HyperparameterError, match="'error' or 'loss'"):
        audit.worst_subgroup(loss="squared")
    with pytest.raises(DataError, match="probabilities"):
        scdro.audit(losses, 1 - losses, frame).worst_subgroup(loss="loss")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": 0.0}, "alpha in"),
        ({"alpha": 0.01}, "at least 0.067, 20 of 300"),
        ({"alpha": 0.2, "rho": 0.1}, "alpha or rho"),
        ({"rho": -1.0}, "rho > 0"),
        ({"level": 95}, r"level in \(0, 1\), got 95"),
        ({"folds": 1}, "folds >= 2"),
        ({"alpha": "tenth"}, "a number for alpha"),
        ({"rho": "small"}, "a number for rho"),
        ({"n_jobs": 0}, "n_jobs of 1 or more"),
    ],
)
def test_bad_settings(options, words):
    frame, losses = people(300)
    with pytest.raises(HyperparameterError, match=words):
        worst_subgroup(losses, frame, **options)


def test_bad_data():
    frame, losses = people(300)
    with pytest.raises(DataError, match="without missing values"):
        worst_subgroup(np.where(losses > 0, np.nan, 0), frame)
    with pytest.raises(DataError, match=r"300 rows .* got 299"):
        worst_subgroup(losses, frame[1:])
    with pytest.raises(DataError, match="two different values"):
        worst_subgroup(losses, {"a": np.ones(300)})
    with pytest.raises(DataError, match="at least 20 independent rows, got 4"):
        worst_subgroup(losses, frame, 0.5, groups=np.arange(300) % 4)
    with pytest.raises(DataError, match="different groups"):
        worst_subgroup(losses, frame, rho=0.1, groups=np.arange(300) % 4)
