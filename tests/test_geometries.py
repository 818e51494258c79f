"""Worst cases in other geometries, against cvxpy and in the corners."""

import cvxpy as cp
import mpmath as mp
import numpy as np
import pytest
import torch

from scdro.errors import HyperparameterError, LossError
from scdro.functional import chi2_constrained, chi2_penalized, cvar

METHODS = {
    "cvar": (cvar, 0.3),
    "penalized": (chi2_penalized, 0.7),
    "constrained": (chi2_constrained, 0.4),
}
N = 23


def chi2(p, q):
    return cp.sum(cp.multiply(1 / q, cp.square(p - q))) / 2


def by_cvxpy(name, l, q, setting):
    p = cp.Variable(len(l), nonneg=True)
    constraints, value = [cp.sum(p) == 1], p @ l
    if name == "cvar":
        constraints.append(p <= q / setting)
    elif name == "constrained":
        constraints.append(chi2(p, q) <= setting)
    else:
        value = value - setting * chi2(p, q)
    return cp.Problem(cp.Maximize(value), constraints).solve(solver=cp.CLARABEL)


def losses(kind, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "normal": rng.standard_normal(N),
        "heavy": rng.standard_t(1.5, N) * 10,
        "ties": rng.integers(0, 4, N).astype(float),
        "offset": 1e6 + rng.standard_normal(N),
        "tiny": 1e-6 * rng.random(N),
    }[kind]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["normal", "heavy", "ties", "offset"])
@pytest.mark.parametrize("factor", [0.05, 1.0, 3.0])
@pytest.mark.parametrize("name", METHODS)
def test_equals_cvxpy(name, factor, kind, weighted):
    method, setting = METHODS[name]
    l, setting = losses(kind), setting * factor
    q = np.random.default_rng(1).random(N) + 0.1 if weighted else np.ones(N)
    found = method(l, setting, sample_weight=q if weighted else None)
    expected = by_cvxpy(name, l - l.mean(), q / q.sum(), setting) + l.mean()
    assert found.value == pytest.approx(expected, abs=1e-5 * (1 + np.ptp(l)))
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)
    assert (found.weights >= 0).all()


@pytest.mark.parametrize("kind", ["normal", "heavy", "ties", "offset", "tiny"])
@pytest.mark.parametrize("rho", [1e-6, 0.01, 0.4, 3.0, 10.0, 11.0, 50.0])
def test_the_radius_is_spent(rho, kind):
    """D(p) = rho, or all weight is on the hardest samples."""
    l = losses(kind)
    p = chi2_constrained(l, rho).weights
    spent = 0.5 * (N * p - 1) @ (N * p - 1) / N
    if not np.isclose(p[l == l.max()].sum(), 1.0):
        assert spent == pytest.approx(rho, rel=1e-5)
    else:
        assert spent <= rho * (1 + 1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_the_gradient_is_p(name):
    method, setting = METHODS[name]
    l = torch.tensor(losses("normal"), requires_grad=True)
    found = method(l, setting)
    found.value.backward()
    torch.testing.assert_close(l.grad, found.weights)
    step = 1e-6 * torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    up, down = method(l.detach() + step, setting).value, method(l.detach() - step, setting).value
    assert (up - down).item() / 2 == pytest.approx((found.weights @ step).item(), rel=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_equal_losses_and_a_single_one(name):
    method, setting = METHODS[name]
    assert method(np.full(5, 3.0), setting).value == pytest.approx(3.0)
    assert method([2.0], setting).weights.tolist() == [1.0]


@pytest.mark.parametrize("name", METHODS)
def test_a_weight_of_zero_leaves_a_sample_out(name):
    method, setting = METHODS[name]
    whole, part = losses("normal"), losses("normal")[5:]
    whole[:5] = np.nan
    weight = np.r_[np.zeros(5), np.ones(N - 5)]
    assert method(whole, setting, sample_weight=weight).value == pytest.approx(
        method(part, setting).value
    )


def test_the_ends():
    l = losses("normal")
    assert cvar(l, 1.0).value == pytest.approx(l.mean())
    assert cvar(l, 1e-9).value == pytest.approx(l.max())
    assert chi2_constrained(l, 0.0).value == pytest.approx(l.mean())
    assert chi2_penalized(l, 1e9).value == pytest.approx(l.mean())
    assert chi2_penalized(l, 1e-9).value == pytest.approx(l.max(), abs=1e-6)
    for method in (chi2_constrained, cvar):
        with pytest.raises(HyperparameterError):
            method(l, -1.0)
    with pytest.raises(HyperparameterError):
        chi2_penalized(l, 0.0)
    with pytest.raises(LossError):
        cvar(np.ones((2, 2)), 0.5)


@pytest.mark.parametrize("rho", [1e-4, 1e-8, 1e-10])
def test_a_tiny_radius_is_spent_on_many_samples(rho):
    l = np.random.default_rng(0).exponential(size=100_000)
    p = chi2_constrained(l, rho).weights
    assert ((len(l) * p - 1.0) ** 2).mean() / 2 == pytest.approx(rho, rel=1e-4)


def by_mpmath(name, l, q, setting):
    """The value and p, by bisection on eta with 60 digits; p ~ q (l - eta)_+ in both geometries."""
    with mp.workdps(60):
        l, q, setting = [mp.mpf(x) for x in l], [mp.mpf(x) for x in q], mp.mpf(setting)
        q = [x / mp.fsum(q) for x in q]

        def raised(eta):
            return [a * max(b - eta, 0) for a, b in zip(q, l, strict=True)]

        def above(eta):
            """Whether the true eta is above."""
            w = raised(eta)
            if name == "penalized":
                return mp.fsum(w) > setting
            return (
                mp.fsum(x * x / a for x, a in zip(w, q, strict=True))
                < (1 + 2 * setting) * mp.fsum(w) ** 2
            )

        high = max(l)
        low = high - (high - min(l)) / 2
        while not above(low):
            low = high - 4 * (high - low)
        for _ in range(300):
            middle = (low + high) / 2
            low, high = (middle, high) if above(middle) else (low, middle)
        w = raised(low)
        p = [x / mp.fsum(w) for x in w]
        value = mp.fdot(p, l)
        if name == "penalized":
            value -= setting * mp.fsum((x - a) ** 2 / a for x, a in zip(p, q, strict=True)) / 2
        return float(value), np.array([float(x) for x in p])


SHARES = {
    "one tiny": ([1e12, 0.0, 1.0, 3.0], [1e-20, 0.5, 0.3, 0.2]),
    "tiny and hard": ([1e9, 1e3, 0.0, 1.0], [1e-18, 1e-17, 0.5, 0.5]),
    "tiny and harmless": ([2.0, 0.0, 1.0, -1.0, 5.0], [1e-17, 0.4, 0.3, 0.3, 1e-30]),
    "all sizes": (np.linspace(0, 20, 21), 10.0 ** -np.arange(0, 63, 3)),
    "tiny below": ([3.0, 2.0, -1e12, 1.0], [0.5, 0.3, 1e-20, 0.2]),
    "huge losses": ([1e99, 3e99, -5e99, 2e99], [0.1, 0.2, 0.3, 0.4]),
    "huge weights": ([1.0, 3.0, -5.0, 2.0], [1e307, 2e307, 3e307, 4e307]),
    "small weights": ([1.0, 3.0, -5.0, 2.0], [1e-300, 2e-300, 3e-300, 4e-300]),
}


@pytest.mark.parametrize("setting", [1e-6, 0.01, 0.4, 3.0, 50.0])
@pytest.mark.parametrize("kind", SHARES)
@pytest.mark.parametrize("name", ["constrained", "penalized"])
def test_shares_and_losses_of_any_size(name, kind, setting):
    l, q = (np.array(x, dtype=float) for x in SHARES[kind])
    found = METHODS[name][0](l, setting, sample_weight=q)
    value, p = by_mpmath(name, l, q, setting)
    assert found.value == pytest.approx(value, rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(found.weights, p, rtol=1e-7, atol=1e-15)
