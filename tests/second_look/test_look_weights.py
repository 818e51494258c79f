"""The half rule against scipy's brentq, and its limits."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

import scdro
from scdro.errors import DataError, HyperparameterError, LossError, ScdroWarning
from scdro.fix._weights import _tilted, effective_size, look_weights, tilted_to
from scdro.second_look import second_look_weights


def brentq_weights(p, target=0.5):
    """w ~ exp(-b p) with mean p of `target`, the root by scipy."""

    def mean_less_target(b):
        w = np.exp(-b * (p - p.min()))
        return (w @ p) / w.sum() - target

    b = brentq(mean_less_target, 0.0, 1e6, xtol=1e-14, rtol=1e-14)
    w = np.exp(-b * (p - p.min()))
    return w / w.sum(), 1 / b


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(60, 400), st.floats(0.02, 0.4), st.floats(0.5, 8.0))
def test_the_half_rule_is_brentqs(seed, n, share, sharpness):
    rng = np.random.default_rng(seed)
    hard = rng.random(n) < share
    p = np.where(hard, rng.beta(1, sharpness, n), rng.beta(sharpness + 1, 1, n))
    if not p.mean() > 0.5 > p.min():
        return
    expected, lam = brentq_weights(p)
    found = look_weights(p, np.zeros(n), min_effective_size=1)
    assert found.weights / n == pytest.approx(expected, rel=1e-8, abs=1e-15)
    assert found.lam[0.0] == pytest.approx(lam, rel=1e-8)
    assert found.weights @ p / n == pytest.approx(0.5, abs=1e-12)


def test_classes_are_solved_apart_and_have_equal_totals():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [100, 300, 600])
    p = np.clip(rng.beta(4, 1, 1000), 0, 1)
    w = second_look_weights(p, y, min_effective_size=1)
    assert w.mean() == pytest.approx(1)
    for k in range(3):
        rows = y == k
        assert w[rows].sum() == pytest.approx(1000 / 3)
        assert w[rows] / w[rows].sum() == pytest.approx(brentq_weights(p[rows])[0], rel=1e-8)
    unequal = second_look_weights(p, y, balance_classes=False)
    assert [unequal[y == k].sum() for k in range(3)] == pytest.approx([100, 300, 600])


def test_sample_weights_are_repetitions():
    rng = np.random.default_rng(1)
    p, q = rng.beta(4, 1, 200), rng.integers(1, 4, 200)
    weighted = look_weights(p, np.zeros(200), sample_weight=q, min_effective_size=1)
    repeated = look_weights(np.repeat(p, q), np.zeros(q.sum()), min_effective_size=1)
    assert weighted.lam[0.0] == pytest.approx(repeated.lam[0.0], rel=1e-9)
    first = np.concatenate([[0], np.cumsum(q)[:-1]])
    assert weighted.weights / 200 == pytest.approx(repeated.weights[first] * q / q.sum(), rel=1e-8)


@pytest.mark.parametrize(
    ("p", "reason"),
    [
        (np.full(100, 0.4), "no more than half"),
        (np.linspace(0.6, 0.9, 100), "no sample"),
        (np.r_[np.full(18, 0.9), 0.1], "fewer than 20"),
    ],
)
def test_classes_left_alone_keep_uniform_weights(p, reason):
    other = np.r_[np.full(90, 0.95), np.full(10, 0.05)]
    found = look_weights(np.r_[p, other], np.r_[np.zeros(len(p)), np.ones(100)])
    assert list(found.left_alone) == [0.0]
    assert reason in found.left_alone[0.0]
    assert found.lam[0.0] == math.inf
    assert np.ptp(found.weights[: len(p)]) == 0
    assert np.ptp(found.weights[len(p) :]) > 0


def test_a_lone_hard_sample_does_not_take_its_class_over():
    p = np.r_[np.full(999, 0.99), 0.0]
    found = look_weights(p, np.zeros(1000))
    assert effective_size(found.weights) == pytest.approx(20, rel=1e-6)
    assert (
        found.weights @ p / 1000 > 0.5
    )  # the rule itself would give half of the weight to one sample
    assert look_weights(p, np.zeros(1000), min_effective_size=1).weights.max() == pytest.approx(
        500, rel=0.05
    )


def test_a_radius_is_the_worst_case_of_one_less_p():
    rng = np.random.default_rng(2)
    p, y = rng.random(200), np.repeat([0, 1], 100)
    w = second_look_weights(p, y, rho=0.3)
    for k in (0, 1):
        expected = scdro.worst_case(1 - p[y == k], 0.3).weights
        assert w[y == k] / w[y == k].sum() == pytest.approx(expected, rel=1e-9)
    assert second_look_weights(p, y, rho=0.0) == pytest.approx(np.ones(200))


def test_of_all_classes_and_of_tensors():
    rng = np.random.default_rng(3)
    proba = rng.dirichlet([5, 1, 1], 300)
    y = np.zeros(300, int)
    one = second_look_weights(proba[:, 0], y)
    assert second_look_weights(proba, y) == pytest.approx(one)
    tensor = second_look_weights(torch.tensor(proba, dtype=torch.float32), torch.tensor(y))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.dtype == torch.float32
    assert tensor.numpy() == pytest.approx(one, rel=1e-4)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000))
def test_harder_samples_never_weigh_less(seed):
    rng = np.random.default_rng(seed)
    p, y = rng.beta(3, 1, 150), rng.integers(0, 2, 150)
    w = second_look_weights(p, y)
    for k in (0, 1):
        order = np.argsort(p[y == k])
        assert (np.diff(w[y == k][order]) <= 1e-12).all()
    assert w[::-1] == pytest.approx(second_look_weights(p[::-1], y[::-1]))


@pytest.mark.parametrize(
    ("proba", "y", "options", "error"),
    [
        ([0.5, np.nan], [0, 1], {}, LossError),
        ([0.5, 1.5], [0, 1], {}, LossError),
        ([0.5], [0, 1], {}, LossError),
        ([], [], {}, LossError),
        ([[0.5, 0.5]], ["a"], {}, LossError),
        ([0.5, 0.5], [0, 1], {"rho": "third"}, HyperparameterError),
        ([0.5, 0.5], [0, 1], {"rho": -1.0}, HyperparameterError),
        ([0.5, 0.5], [0, 1], {"min_effective_size": 0}, HyperparameterError),
        ([0.5, 0.5], [0, 1], {"sample_weight": [1.0, np.nan]}, LossError),
        ([0.5, 0.5], [0, 1], {"sample_weight": [0.0, 0.0]}, LossError),
        ([0.5, 0.5], [0, 1], {"sample_weight": [1.0, -1.0]}, LossError),
    ],
)
def test_bad_input(proba, y, options, error):
    with pytest.raises(error, match="expected"):
        second_look_weights(np.array(proba), np.array(y), **options)


def test_labels_as_floats_are_class_numbers():
    proba = torch.rand(60, 2).softmax(1)
    y = torch.arange(60) % 2
    assert torch.equal(second_look_weights(proba, y.float()), second_look_weights(proba, y))
    with pytest.raises(LossError, match="labels 0 to 1"):
        second_look_weights(proba, y + 0.5)


def test_numbers_to_predict_are_no_classes():
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match=r"fractions.*SecondLook"):
        second_look_weights(rng.random(100), rng.normal(size=100))
    with pytest.warns(ScdroWarning, match=r"no class was looked into.*fewer than 20.*more classes"):
        weights = second_look_weights(rng.random(100), rng.permutation(100))
    assert weights == pytest.approx(np.ones(100))


def test_nan_is_not_taken_for_a_logit():
    with pytest.raises(LossError, match="diverge"):
        second_look_weights(np.array([0.5, np.nan]), np.array([0, 1]))


@pytest.mark.parametrize(
    "y",
    [
        np.array([0.0, np.nan] * 20),
        np.array(["a", None] * 20, object),
        np.array([1, math.nan] * 20, object),
    ],
)
def test_missing_labels(y):
    """A sample without a label is in no class: it would get no weight."""
    with pytest.raises(DataError, match=r"missing.*leave"):
        second_look_weights(np.full(40, 0.5), y)


@pytest.mark.parametrize("bad", [np.array([0.1, 0.2]), None, [0.1], "quarter"])
def test_bad_radii(bad):
    with pytest.raises(HyperparameterError, match="rho"):
        second_look_weights(np.full(40, 0.5), np.zeros(40), rho=bad)


@pytest.mark.parametrize("bad", [["a"] * 40, {"p": 1}, [[0.5], [0.5, 0.5]]])
def test_probabilities_that_are_no_numbers(bad):
    with pytest.raises(LossError, match="probabilities as real numbers"):
        second_look_weights(bad, np.zeros(40))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.floats(-9, 9), st.integers(1, 30))
def test_the_root_has_all_digits_at_any_scale(seed, exponent, least):
    """The errors of a regressor may be as small as 1e-9 or as large as 1e9: 1/lam is the inverse."""
    rng = np.random.default_rng(seed)
    p, q = rng.beta(3, 1, 100), rng.dirichlet(np.ones(100))
    target = 0.5 * (q @ p + p.min())
    scale = 10.0**exponent
    weights, lam = tilted_to(p, q, target, least)
    scaled, scaled_lam = tilted_to(p * scale, q, target * scale, least)
    assert scaled == pytest.approx(weights, rel=1e-9)
    assert scaled_lam == pytest.approx(lam * scale, rel=1e-9)
    if effective_size(weights) > least * (1 + 1e-9):
        assert scaled @ p == pytest.approx(target, rel=1e-14)
    else:
        assert effective_size(weights) == pytest.approx(min(least, effective_size(q)), rel=1e-12)


def test_where_no_tilt_is_needed_or_possible():
    p = np.linspace(0.0, 1.0, 101)
    q = np.full(101, 1 / 101)
    weights, lam = tilted_to(p, q, float(_tilted(p, q, 0.0) @ p))  # the mean itself
    assert weights == pytest.approx(q)
    assert lam > 1e9
    weights, lam = tilted_to(p, q, 0.2, min_effective_size=200)  # more than there are
    assert weights == pytest.approx(q)
    assert lam == math.inf
    with pytest.raises(LossError, match="target"):
        tilted_to(p, q, -0.1)
