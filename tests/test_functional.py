"""The stateless functions against independent oracles: sections 1 and 8 of the mathematics."""

from __future__ import annotations

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

import oracles
from scdro import rho_for_group, worst_case
from scdro.functional import WorstCase, objective, rho_for_confidence

L = [0.0, 1.0, 2.0, 3.0]
HARD = [20.0, 19.999, 0.0, 5.0]
EXACT = 1e-8  # the relative tolerance of section 8


def double(values, **kwargs):
    return torch.tensor(values, dtype=torch.float64, **kwargs)


def close(expected, rel=EXACT, abs=1e-12):
    return pytest.approx(expected, rel=rel, abs=abs)


def random_losses(seed, n, scale=1.0):
    return scale * np.random.default_rng(seed).exponential(size=n)


# -- section 8
# --------------------------------------------------------------------------------------------------------


def test_identity_1_log_g():
    assert objective(L, 1.0, rho=0.0) == close(2.05389533744)
    assert oracles.high_precision(L, 1.0, 0.0).log_g == close(2.05389533744)


def test_identity_1_gradient_in_lam():
    lam = double(1.0, requires_grad=True)
    objective(double(L), lam, rho=0.1).backward()
    assert lam.grad.item() == close(-0.338757397144)
    assert oracles.high_precision(L, 1.0, 0.1).d_lam == close(-0.338757397144)


@pytest.mark.parametrize(
    ("rho", "lam", "value"),
    [(0.1, 2.413506095, 1.994174122), (1.0, 0.4519516105, 2.876718489), (2.0, 0.001, 2.998613706)],
)
def test_identity_2_solutions(rho, lam, value):
    found = worst_case(L, rho)
    assert found.lam == close(lam)
    assert found.value == close(value)
    assert objective(L, found.lam, rho) == close(value)


@pytest.mark.parametrize("rho", [1e-4, 0.01, 0.1, 1.0, 1.38, 1.39, 2.0])
def test_identity_3_duality_and_active_constraint(rho):
    found = worst_case(L, rho)
    kl = oracles.kl_divergence(found.weights)
    assert found.value == close(found.weights @ np.array(L) - 1e-3 * kl)
    assert found.value == close(objective(L, found.lam, rho))
    assert found.kl == close(kl)
    if found.lam > 1e-3:
        assert kl == close(rho)
    else:
        assert kl <= rho * (1 + 1e-9)


@pytest.mark.parametrize("losses", [[5.0] * 7, [5.0]])
@pytest.mark.parametrize("rho", [1e-8, 0.1, 3.0])
def test_identity_4_equal_losses_and_one_sample(losses, rho):
    found = worst_case(losses, rho)
    assert found.value == close(5.0)
    assert found.lam == 1e-3
    np.testing.assert_allclose(found.weights, np.full(len(losses), 1 / len(losses)), rtol=1e-14)
    assert found.kl == close(0.0, abs=1e-15)


@pytest.mark.parametrize("c", [1.0, -7.25, 1e3])
@pytest.mark.parametrize("rho", [0.1, 1.0, 2.0])
def test_identity_5_shift(c, rho):
    plain, shifted = worst_case(L, rho), worst_case([x + c for x in L], rho)
    assert shifted.value == close(plain.value + c)
    assert shifted.lam == close(plain.lam)
    np.testing.assert_allclose(shifted.weights, plain.weights, rtol=EXACT)
    lams = [double(0.7, requires_grad=True) for _ in range(2)]
    losses = [double(L, requires_grad=True) for _ in range(2)]
    objective(losses[0], lams[0], rho).backward()
    objective(losses[1] + c, lams[1], rho).backward()
    assert lams[1].grad.item() == close(lams[0].grad.item(), abs=1e-11)
    torch.testing.assert_close(losses[1].grad, losses[0].grad, rtol=EXACT, atol=0)


@pytest.mark.parametrize("c", [0.0, 1.0, 1e3])
def test_identity_5_gradient_of_a_model_ignores_shifts(c):
    x, y = (
        double(np.random.default_rng(0).normal(size=(9, 3))),
        double(np.random.default_rng(1).normal(size=9)),
    )
    gradients = []
    for shift in (0.0, c):
        w = double([0.3, -0.2, 0.5], requires_grad=True)
        worst_case((x @ w - y).square() + shift, 0.3).value.backward()
        gradients.append(w.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=EXACT, atol=1e-11)


@pytest.mark.parametrize("seed", range(3))
def test_identity_5_permutation(seed):
    order = np.random.default_rng(seed).permutation(4)
    plain, permuted = worst_case(L, 0.1), worst_case(np.array(L)[order], 0.1)
    assert permuted.value == close(plain.value)
    assert permuted.lam == close(plain.lam)
    np.testing.assert_allclose(permuted.weights, plain.weights[order], rtol=EXACT)


def test_identity_6_small_rho():
    mean_under_p = worst_case(L, 1e-4).weights @ np.array(L)
    assert mean_under_p == close(1.515811209, rel=1e-9)
    assert mean_under_p == pytest.approx(np.mean(L) + math.sqrt(2 * 1e-4 * np.var(L)), abs=1e-6)


def test_identity_7_no_overflow():
    assert objective(HARD, 1e-3, rho=0.0) / 1e-3 == close(19998.926967326)
    assert oracles.high_precision(HARD, 1e-3, 0.0).log_g == close(19998.926967326)


def test_identity_7_in_single_precision():
    losses = torch.tensor(HARD, requires_grad=True)
    value = objective(losses, 1e-3, rho=0.0)
    value.backward()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(19.998926967326, rel=1e-6)
    assert torch.isfinite(losses.grad).all()
    expected = oracles.high_precision(losses.detach().tolist(), 1e-3, 0.0)
    np.testing.assert_allclose(losses.grad, expected.d_losses, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("seed", range(5))
def test_identity_13_joint_convexity(seed):
    """The midpoint inequality of F in x = (w, lam), for the logistic and the squared loss."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(12, 3)), rng.choice([-1.0, 1.0], size=12)
    for convex in (lambda w: np.logaddexp(0, -y * (x @ w)), lambda w: (x @ w - y) ** 2):
        for _ in range(20):
            w1, w2 = rng.normal(size=(2, 3)) * rng.choice([0.1, 1, 10])
            lam1, lam2 = 10 ** rng.uniform(-3, 1, size=2)
            ends = [objective(convex(w), lam, 0.5) for w, lam in ((w1, lam1), (w2, lam2))]
            middle = objective(convex((w1 + w2) / 2), (lam1 + lam2) / 2, 0.5)
            assert middle <= np.mean(ends) + 1e-12 * np.abs(ends).max()


# -- against the oracles
# ----------------------------------------------------------------------------------------------

CASES = {
    "negative": (-np.array([3.0, 1.0, 0.5, 0.0, 8.0]), 0.3, 1e-3),
    "mixed signs": (np.array([-50.0, 3.0, 0.1, 20.0]), 0.7, 1e-2),
    "ties at the top": (np.array([3.0, 3.0, 3.0, 0.0, 1.0]), 0.4, 1e-3),
    "ties below": (np.array([0.0, 0.0, 0.0, 5.0]), 0.2, 1e-3),
    "1e6": (1e6 * random_losses(0, 20), 0.5, 1e-3),
    "1e6 with a spread of 1": (1e6 + random_losses(1, 20), 0.5, 1e-3),
    "1e-6": (1e-6 * random_losses(2, 20), 0.5, 1e-12),
    "tiny rho": (random_losses(3, 30), 1e-8, 1e-3),
    "one outlier": (np.array([0.01] * 40 + [30.0]), 1.0, 1e-3),
    "large lam0": (random_losses(4, 15), 0.5, 3.0),
    "two samples": (np.array([0.0, 1.0]), 0.5, 1e-3),
    "rho = log n": (random_losses(5, 10), math.log(10), 1e-3),
    "rho just below log n": (random_losses(5, 10), math.log(10) - 1e-3, 1e-3),
    "rho above log n": (random_losses(5, 10), 7.0, 1e-3),
}


@pytest.mark.parametrize("name", CASES)
def test_worst_case_equals_50_digits(name):
    losses, rho, lam0 = CASES[name]
    found, expected = (
        worst_case(losses, rho, lam0),
        oracles.high_precision_solution(losses, rho, lam0),
    )
    rel = 1e-6 if rho < 1e-6 else 1e-9  # KL of 1e-8 is a difference of numbers near 1
    assert found.value == close(expected.value, rel=1e-12, abs=1e-12 * np.abs(losses).max())
    assert found.lam == close(expected.lam, rel=rel)
    assert found.kl == close(expected.kl, rel=rel)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-7, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_worst_case_equals_root_and_minimum(name):
    losses, rho, lam0 = CASES[name]
    found, scale = worst_case(losses, rho, lam0), np.abs(losses).max()
    assert found.value == close(
        oracles.by_root(losses, rho, lam0).value, rel=1e-10, abs=1e-10 * scale
    )
    assert found.value == close(
        oracles.by_minimising(losses, rho, lam0), rel=1e-9, abs=1e-9 * scale
    )


@pytest.mark.parametrize(
    ("losses", "rho", "lam0", "q"),
    [
        (L, 0.1, 1e-3, None),
        (L, 1.0, 1e-3, None),
        (L, 2.0, 1e-3, None),
        (L, 0.5, 2.0, None),
        ([-1.0, -1.0, 4.0, 2.5, 0.0, 0.3], 0.25, 0.05, None),
        ([0.5, 1.5, 2.5, 0.1], 0.3, 1e-3, [1.0, 2.0, 0.5, 4.0]),
    ],
)
def test_worst_case_equals_cone_program(losses, rho, lam0, q):
    found, expected = (
        worst_case(losses, rho, lam0, sample_weight=q),
        oracles.by_cone_program(losses, rho, lam0, q),
    )
    assert found.value == pytest.approx(expected.value, abs=1e-6)
    np.testing.assert_allclose(found.weights, expected.weights, atol=2e-4)


@pytest.mark.parametrize("lam", [1e-3, 0.05, 1.0, 30.0])
@pytest.mark.parametrize("losses", [L, HARD, [-4.0, 2.0, 2.0], [1e6, 1e6 + 0.5]])
@pytest.mark.parametrize("q", [None, (1.0, 2.0, 3.0, 0.5)])
def test_objective_and_gradients_equal_50_digits(losses, lam, q):
    q = None if q is None else q[: len(losses)]
    vector, temperature = double(losses, requires_grad=True), double(lam, requires_grad=True)
    value = objective(vector, temperature, 0.3, sample_weight=q)
    value.backward()
    expected = oracles.high_precision(losses, lam, 0.3, q=q)
    assert value.item() == close(expected.value, rel=1e-12)
    np.testing.assert_allclose(vector.grad, expected.d_losses, rtol=1e-9, atol=1e-30)
    assert temperature.grad.item() == close(expected.d_lam, rel=1e-9, abs=1e-9)


def test_small_rho_spends_exactly_rho():
    for rho in (1e-8, 1e-6, 1e-4):
        assert oracles.kl_of_weights(worst_case(L, rho).weights) == pytest.approx(
            rho, rel=1e-15 / rho + 1e-9
        )


@pytest.mark.parametrize("rho", [1e-12, 1e-16, 1e-30, 1e-300, 5e-324])
def test_vanishing_rho_tends_to_the_mean(rho):
    found = worst_case(L, rho)
    assert found.value == pytest.approx(1.5, abs=1e-5)
    assert found.value >= 1.5 - 1e-12
    assert 0 <= found.kl < 1e-11


@pytest.mark.parametrize("losses", [L, HARD, [2.0], [1e6, -1e6]])
def test_rho_zero_is_the_plain_mean(losses):
    found = worst_case(losses, 0.0)
    assert found.value == close(np.mean(losses))
    assert found.lam == math.inf
    assert found.kl == 0.0
    np.testing.assert_allclose(found.weights, np.full(len(losses), 1 / len(losses)), rtol=1e-14)
    assert found.ess == close(1.0)
    assert objective(losses, math.inf, 0.0) == close(np.mean(losses))
    assert objective(losses, math.inf, 0.1) == math.inf


@pytest.mark.parametrize("extra", [0.0, 1e-9, 1.0, 50.0])
def test_rho_of_log_n_and_more_reaches_lam0(extra):
    found = worst_case(L, math.log(4) + extra)
    assert found.lam == 1e-3
    assert found.value == close(3.0 - 1e-3 * math.log(4))
    np.testing.assert_allclose(found.weights, [0, 0, 0, 1], atol=1e-15)
    assert found.ess == close(1.0 / len(found.weights))


def test_tied_maxima_share_the_weight():
    found = worst_case([0.0, 7.0, 7.0, 1.0], 5.0)
    np.testing.assert_allclose(found.weights, [0, 0.5, 0.5, 0], atol=1e-15)
    assert found.kl == close(math.log(2))
    assert found.ess == close(2.0 / len(found.weights))


def test_effective_sample_size():
    found = worst_case(L, 0.1)
    assert found.ess == close(1 / (len(found.weights) * np.sum(found.weights**2)))


def test_effective_sample_size_of_weighted_samples_is_that_of_copies():
    counts = [1, 5, 0, 2]
    weighted, copies = (
        worst_case(L, 0.3, sample_weight=counts),
        worst_case(np.repeat(L, counts), 0.3),
    )
    assert weighted.ess == close(copies.ess)
    assert 0 < weighted.ess < 1


def test_many_samples():
    losses = random_losses(7, 20_000)
    found, expected = worst_case(losses, 0.5), oracles.by_root(losses, 0.5)
    assert found.lam == close(expected.lam)
    assert found.value == close(expected.value, rel=1e-11)


# -- kinds of input and output
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_dtypes(dtype, scale):
    losses = (
        scale * torch.rand(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    leaf = losses.clone().requires_grad_()
    found = worst_case(leaf, 0.5)
    assert {field.dtype for field in found} == {wide}
    expected = oracles.by_root(losses.double().numpy(), 0.5)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-6
    assert found.value.item() == pytest.approx(expected.value, rel=tolerance)
    assert found.lam.item() == pytest.approx(expected.lam, rel=tolerance)
    assert found.kl.item() == pytest.approx(0.5, rel=tolerance)
    np.testing.assert_allclose(found.weights.detach(), expected.weights, rtol=10 * tolerance)
    found.value.backward()
    assert leaf.grad.dtype == dtype
    torch.testing.assert_close(leaf.grad, found.weights.to(dtype), rtol=1e-6, atol=0)
    value = objective(losses, 0.1, 0.5)
    assert value.dtype == wide
    assert value.item() == pytest.approx(
        oracles.objective(losses.double().numpy(), 0.1, 0.5, 1e-3), rel=tolerance
    )


@pytest.mark.parametrize("make", [list, tuple, np.array, lambda l: np.array(l, dtype=np.float32)])
def test_arrays_in_arrays_out(make):
    found = worst_case(make(L), 0.1)
    assert isinstance(found, WorstCase)
    assert isinstance(found.weights, np.ndarray)
    assert found.weights.dtype == np.float64
    assert all(type(field) is float for field in (found.value, found.lam, found.kl))
    assert type(objective(make(L), 1.0, 0.1)) is float
    assert found.value == close(1.994174122)


def test_integer_list_and_read_only_or_strided_arrays():
    assert worst_case([0, 1, 2, 3], 0.1).value == close(1.994174122)
    array = np.repeat(L, 2)
    array.flags.writeable = False
    assert worst_case(array[::2], 0.1).value == close(1.994174122)
    assert worst_case(array[::-2], 0.1).value == close(1.994174122)


def test_arguments_are_left_alone():
    losses, weight = np.array(L), np.array([1.0, 2.0, 3.0, 4.0])
    worst_case(losses, 0.1, sample_weight=weight, trim=0.3)
    np.testing.assert_array_equal(losses, L)
    np.testing.assert_array_equal(weight, [1, 2, 3, 4])


def test_only_the_value_is_differentiable():
    found = worst_case(double(L, requires_grad=True), 0.1)
    assert found.value.requires_grad
    assert not any(field.requires_grad for field in (found.lam, found.weights, found.kl))


def test_works_without_grad():
    with torch.no_grad():
        assert worst_case(double(L, requires_grad=True), 0.1).value.item() == close(1.994174122)


# -- sample weights
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.0, 1e-3, 0.3, 1.0, 4.0])
@pytest.mark.parametrize(
    "repeats", [[1, 1, 1, 1], [2, 1, 3, 1], [1, 5, 1, 2], [0, 2, 3, 1], [3, 1, 2, 0]]
)
def test_weights_equal_repeated_samples(repeats, rho):
    weighted, repeated = (
        worst_case(L, rho, sample_weight=repeats),
        worst_case(np.repeat(L, repeats), rho),
    )
    assert weighted.value == close(repeated.value)
    assert weighted.lam == close(repeated.lam)
    assert weighted.kl == close(repeated.kl, rel=1e-7, abs=1e-13)
    sums = [repeated.weights[np.repeat(np.arange(4), repeats) == i].sum() for i in range(4)]
    np.testing.assert_allclose(weighted.weights, sums, rtol=EXACT, atol=1e-15)
    assert objective(L, 0.4, rho, sample_weight=repeats) == close(
        objective(np.repeat(L, repeats), 0.4, rho)
    )


@pytest.mark.parametrize("factor", [1e-12, 0.1, 7.0, 1e12])
def test_weights_up_to_a_factor(factor):
    weight = np.array([0.1, 0.2, 0.3, 0.4])
    plain, scaled = (
        worst_case(L, 0.2, sample_weight=weight),
        worst_case(L, 0.2, sample_weight=factor * weight),
    )
    assert scaled.value == close(plain.value)
    assert scaled.lam == close(plain.lam)
    assert scaled.kl == close(0.2)
    assert objective(L, 1.0, 0.2, sample_weight=factor * weight) == close(
        objective(L, 1.0, 0.2, sample_weight=weight)
    )


def test_weight_zero_leaves_out_even_the_hardest():
    losses, weight = [0.0, 1e4, 1.0, 2.0], [1.0, 0.0, 1.0, 1.0]
    found = worst_case(losses, 5.0, sample_weight=weight)
    assert found.weights[1] == 0.0
    assert found.value == close(2.0 - 1e-3 * math.log(3))
    assert objective(losses, 0.5, 0.1, sample_weight=weight) == close(
        objective([0.0, 1.0, 2.0], 0.5, 0.1)
    )


def test_a_single_positive_weight():
    found = worst_case(L, 0.7, sample_weight=[0, 3, 0, 0])
    assert (found.value, found.lam, found.kl) == (close(1.0), 1e-3, close(0.0))
    np.testing.assert_array_equal(found.weights, [0, 1, 0, 0])


def test_weights_of_any_kind():
    weight = [1.0, 2.0, 3.0, 4.0]
    expected = oracles.by_root(L, 0.3, q=weight).value
    for kind in (
        weight,
        np.array(weight),
        torch.tensor(weight),
        torch.tensor(weight, dtype=torch.int64),
    ):
        assert worst_case(L, 0.3, sample_weight=kind).value == close(expected)
        assert worst_case(double(L), 0.3, sample_weight=kind).value.item() == close(expected)


# -- trim
# -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", range(2, 16))
def test_trim_drops_whole_samples(n):
    losses = 3.0 * np.random.default_rng(n).normal(size=n)
    for dropped in range(1, n):
        for rho in (0.0, 0.5, 2.0):
            found = worst_case(losses, rho, trim=dropped / n)
            kept = np.argsort(losses)[: n - dropped]
            expected = worst_case(losses[kept], rho)
            assert found.value == close(expected.value), (dropped, rho)
            assert found.lam == close(expected.lam), (dropped, rho)
            weights = np.zeros(n)
            weights[kept] = expected.weights
            np.testing.assert_allclose(found.weights, weights, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(
    ("n", "trim"),
    [(4, Fraction(3, 8)), (4, Fraction(1, 10)), (7, Fraction(1, 2)), (10, Fraction(17, 40))],
)
@pytest.mark.parametrize("rho", [0.0, 0.2, 1.0, 5.0])
def test_trim_keeps_the_edge_sample_in_part(n, trim, rho):
    losses = 2.0 * np.random.default_rng(n).normal(size=n)
    q = oracles.trimmed(losses, trim)
    expected = oracles.by_root(losses, rho, q=q)
    found = worst_case(losses, rho, trim=float(trim))
    assert found.value == close(expected.value)
    assert found.lam == close(expected.lam)
    np.testing.assert_allclose(found.weights[q > 0], expected.weights, rtol=EXACT)
    assert (found.weights[q == 0] == 0).all()


@pytest.mark.parametrize("trim", [Fraction(1, 8), Fraction(5, 16), Fraction(3, 4)])
@pytest.mark.parametrize("rho", [0.0, 0.3, 2.0])
def test_trim_with_weights(trim, rho):
    losses, weight = [4.0, 1.0, 3.0, 2.0, 9.0], [1, 4, 2, 3, 0]
    expected = oracles.by_root(losses, rho, q=oracles.trimmed(losses, trim, weight))
    found = worst_case(losses, rho, sample_weight=weight, trim=float(trim))
    assert found.value == close(expected.value)
    assert found.lam == close(expected.lam)


def test_trim_of_almost_everything_leaves_the_easiest():
    assert worst_case([3.0, 1.0, 2.0, 5.0], 2.0, trim=0.99).value == close(1.0)


def test_trim_among_ties():
    found = worst_case([1.0, 2.0, 2.0, 2.0], 1.0, trim=0.5)
    assert found.value == close(worst_case([1.0, 2.0], 1.0).value)


def test_trim_is_differentiable():
    losses = double([4.0, 1.0, 3.0, 2.0], requires_grad=True)
    found = worst_case(losses, 0.2, trim=0.3)
    found.value.backward()
    torch.testing.assert_close(losses.grad, found.weights)
    assert losses.grad[0] == 0.0


# -- differentiability
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [0.0, 1e-3, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("losses", [L, [0.5, 0.5, 0.5], [-1.0, 4.0, 4.0, 2.0], [2.0]])
def test_gradient_of_the_worst_case_is_its_weights(losses, rho):
    vector = double(losses, requires_grad=True)
    found = worst_case(vector, rho, lam0=0.1)
    found.value.backward()
    torch.testing.assert_close(vector.grad, found.weights, rtol=0, atol=0)
    step = 1e-5
    for i in range(len(losses)):
        ends = []
        for sign in (1, -1):
            moved = list(losses)
            moved[i] += sign * step
            ends.append(oracles.by_root(moved, rho, 0.1).value)
        assert vector.grad[i].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6)


def test_gradcheck_of_the_worst_case():
    losses = double([0.3, 1.7, -0.4, 0.9, 2.2], requires_grad=True)
    weight = double([1.0, 2.0, 0.5, 1.0, 0.7])
    for rho in (0.0, 0.05, 0.6, 4.0):
        assert torch.autograd.gradcheck(
            lambda l, r=rho: worst_case(l, r, 0.1, sample_weight=weight).value, losses
        )


@pytest.mark.parametrize("lam", [0.2, 1.0, 20.0])
@pytest.mark.parametrize("weight", [None, (1.0, 2.0, 0.0, 1.0, 0.7)])
def test_gradcheck_of_the_objective(lam, weight):
    losses = double([0.3, 1.7, -0.4, 0.9, 2.2], requires_grad=True)
    temperature = double(lam, requires_grad=True)

    def f(l, t):
        return objective(l, t, 0.4, sample_weight=weight)

    assert torch.autograd.gradcheck(f, (losses, temperature))
    assert torch.autograd.gradgradcheck(f, (losses, temperature))


def test_a_learnable_lam_warns_of_nothing():
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            objective(
                double(L, requires_grad=True), double(1.0, requires_grad=True), 0.1
            ).backward()
    finally:
        torch.set_warn_always(False)


def test_gradient_in_lam_is_rho_less_kl():
    for lam in (0.01, 0.3, 2.0):
        temperature = double(lam, requires_grad=True)
        objective(double(L), temperature, 0.25).backward()
        assert temperature.grad.item() == close(
            0.25 - oracles.kl_divergence(oracles.tilted(L, lam)), abs=1e-12
        )


# -- properties
# -------------------------------------------------------------------------------------------------------

some = settings(max_examples=50, deadline=None, derandomize=True)
number = st.floats(-50, 50, allow_subnormal=False)
vectors = st.lists(number, min_size=1, max_size=12).map(np.array)
radii = st.floats(-4, 1).map(lambda e: 10.0**e)
floors = st.sampled_from([1e-3, 1e-2, 0.1, 1.0])


def tolerance(losses):
    return 1e-9 * (1 + np.abs(losses).max())


@some
@given(vectors, radii, floors)
def test_value_lies_between_mean_and_max(losses, rho, lam0):
    found = worst_case(losses, rho, lam0)
    assert losses.mean() - tolerance(losses) <= found.value <= losses.max() + tolerance(losses)
    assert lam0 <= found.lam <= lam0 + (losses.max() - losses.mean()) / rho * (1 + 1e-9) + 1e-12
    assert found.weights.min() >= 0
    assert found.weights.sum() == pytest.approx(1, abs=1e-12)
    assert (1 - 1e-9) / len(losses) <= found.ess <= 1.0
    assert (np.diff(found.weights[np.argsort(losses)]) >= -1e-15).all()


@some
@given(vectors, radii, floors)
def test_constraint_holds(losses, rho, lam0):
    found = worst_case(losses, rho, lam0)
    for kl in (found.kl, oracles.kl_divergence(found.weights)):
        assert kl <= rho * (1 + 1e-9) + 1e-15
    if found.lam > lam0:
        assert found.kl == pytest.approx(rho, rel=1e-8, abs=1e-14)


@some
@given(vectors, radii, floors)
def test_duality(losses, rho, lam0):
    found = worst_case(losses, rho, lam0)
    primal = found.weights @ losses - lam0 * oracles.kl_divergence(found.weights)
    assert found.value == pytest.approx(primal, abs=tolerance(losses))
    assert found.value == pytest.approx(
        oracles.objective(losses, found.lam, rho, lam0), abs=tolerance(losses)
    )
    for factor in (0.5, 0.9, 1.1, 2.0):
        lam = max(lam0, factor * found.lam)
        assert objective(losses, lam, rho, lam0) >= found.value - tolerance(losses)


@some
@given(vectors, radii, floors, st.integers(0, 1000))
def test_no_feasible_weights_do_better(losses, rho, lam0, seed):
    found, rng = worst_case(losses, rho, lam0), np.random.default_rng(seed)
    for concentration in (0.1, 1.0, 10.0, 100.0):
        p = rng.dirichlet(np.full(len(losses), concentration))
        kl = oracles.kl_divergence(p)
        if kl <= rho:
            assert p @ losses - lam0 * kl <= found.value + tolerance(losses)


@some
@given(vectors, radii, st.floats(1, 30), floors)
def test_value_grows_with_rho(losses, rho, factor, lam0):
    small, large = worst_case(losses, rho, lam0), worst_case(losses, factor * rho, lam0)
    assert small.value <= large.value + tolerance(losses)
    assert small.lam >= large.lam * (1 - 1e-8)
    assert worst_case(losses, 0.0, lam0).value <= small.value + tolerance(losses)


@some
@given(
    vectors, radii, st.floats(-1e3, 1e3, allow_subnormal=False), st.randoms(use_true_random=False)
)
def test_permutation_and_shift(losses, rho, shift, random):
    order = list(range(len(losses)))
    random.shuffle(order)
    plain, moved = worst_case(losses, rho, 0.1), worst_case(losses[order] + shift, rho, 0.1)
    assert moved.value == pytest.approx(
        plain.value + shift, abs=1e-9 * (1100 + np.abs(losses).max())
    )
    np.testing.assert_allclose(moved.weights, plain.weights[order], atol=1e-8)


@some
@given(vectors, radii, floors, st.sampled_from([1e-6, 1e-2, 0.5, 3.0, 1e4]))
def test_scale(losses, rho, lam0, scale):
    plain, scaled = worst_case(losses, rho, lam0), worst_case(scale * losses, rho, scale * lam0)
    assert scaled.value == pytest.approx(scale * plain.value, abs=scale * tolerance(losses))
    assert scaled.lam == pytest.approx(scale * plain.lam, rel=1e-6)
    np.testing.assert_allclose(scaled.weights, plain.weights, atol=1e-7)


@some
@given(vectors, radii, floors, st.data())
def test_random_weights_equal_the_root(losses, rho, lam0, data):
    weight = np.array(
        data.draw(st.lists(st.floats(0, 5), min_size=len(losses), max_size=len(losses)))
    )
    weight[weight < 1e-3] = 0.0
    assume(weight.sum() > 0)
    found = worst_case(losses, rho, lam0, sample_weight=weight)
    assert found.value == pytest.approx(
        oracles.by_root(losses, rho, lam0, weight).value, abs=tolerance(losses)
    )


# -- what rho means
# ---------------------------------------------------------------------------------------------------


def test_rho_for_group():
    assert rho_for_group(1.0) == 0.0
    assert rho_for_group(0.1) == close(math.log(10))
    assert rho_for_group(1e-6) == close(6 * math.log(10))


@pytest.mark.parametrize(("n", "size"), [(20, 2), (20, 10), (30, 30), (50, 1)])
def test_rho_for_group_guards_every_group_of_that_size(n, size):
    rng = np.random.default_rng(n + size)
    losses, rho = rng.exponential(size=n), rho_for_group(size / n)
    value = worst_case(losses, rho, 1e-6).value
    for _ in range(50):
        group = rng.choice(n, size=rng.integers(size, n + 1), replace=False)
        assert losses[group].mean() <= value + 1e-6 * rho + 1e-12
    assert np.sort(losses)[-size:].mean() <= value + 1e-6 * rho + 1e-12


@pytest.mark.parametrize("n", [1, 100, 10_000])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_rho_for_confidence(n, level):
    assert rho_for_confidence(n, level) == close(norm.ppf(level) ** 2 / (2 * n))


def test_rho_for_confidence_is_95_percent_by_default():
    assert rho_for_confidence(1000) == rho_for_confidence(1000, 0.95) == close(0.0013528, rel=1e-4)


def test_rho_for_confidence_gives_the_normal_bound():
    losses = random_losses(11, 10_000)
    bound = losses.mean() + norm.ppf(0.95) * losses.std() / 100
    assert worst_case(losses, rho_for_confidence(10_000), 1e-6).value == pytest.approx(
        bound, rel=1e-3
    )


def test_rho_for_confidence_covers_the_mean():
    rng, rho = np.random.default_rng(0), rho_for_confidence(400, 0.9)
    covered = [worst_case(rng.exponential(size=400), rho).value >= 1.0 for _ in range(400)]
    assert 0.86 <= np.mean(covered) <= 0.94


@pytest.mark.parametrize("scale", [1e-307, 1e-300, 1e-160, 1e155, 1e200, 4e307])
def test_only_ratios_of_weights_matter(scale):
    weight = double([1.0, 2.0, 1.0, 0.5])
    found, expected = (worst_case(L, 0.3, sample_weight=w) for w in (weight * scale, weight))
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-11)
    assert objective(L, 0.4, 0.3, sample_weight=weight * scale) == close(
        objective(L, 0.4, 0.3, sample_weight=weight)
    )
