"""Floats and 0-d tensors: one arithmetic, the same answers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from scdro import ASCDRO, SCDRO, KLRobustLoss, worst_case
from scdro import _scalar as scalar
from scdro.printed import PrintedTemperature
from scdro.temperature import WindowTemperature

values = st.floats(allow_subnormal=False)
ordered = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
ONE = {"exp": (scalar.exp, torch.exp), "log": (scalar.log, torch.log)}
TWO = {
    "maximum": (scalar.maximum, torch.maximum),
    "minimum": (scalar.minimum, torch.minimum),
    "logaddexp": (scalar.logaddexp, torch.logaddexp),
}


def tensor(x):
    return torch.tensor(x, dtype=torch.float64)


def same(a, b):
    b = float(b)
    return a == pytest.approx(b, rel=1e-14, abs=1e-300, nan_ok=True) or abs(b) > 1e308


@pytest.mark.parametrize("name", ONE)
@given(x=values)
def test_of_one(name, x):
    ours, theirs = ONE[name]
    assert same(ours(x), theirs(tensor(x)))
    assert torch.equal(ours(tensor(x)), theirs(tensor(x))) or x != x or x < 0


@pytest.mark.parametrize("name", TWO)
@given(a=ordered, b=ordered)
def test_of_two(name, a, b):
    ours, theirs = TWO[name]
    expected = theirs(tensor(a), tensor(b))
    for left in (a, tensor(a)):
        for right in (b, tensor(b)):
            assert same(float(ours(left, right)), expected)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
@pytest.mark.parametrize(
    ("a", "b"), [(math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0), (-math.inf, 1.0)]
)
def test_what_is_not_finite_passes_through(name, a, b):
    ours, theirs = TWO[name]
    assert same(ours(a, b), theirs(tensor(a), tensor(b)))


@pytest.mark.parametrize("a", [-math.inf, 0.0])
def test_logaddexp_of_nothing(a):
    assert scalar.logaddexp(a, -math.inf) == scalar.logaddexp(-math.inf, a) == a


@given(x=values, low=ordered, high=ordered)
def test_clamp(x, low, high):
    low, high = min(low, high), max(low, high)
    expected = tensor(x).clamp(low, high)
    assert same(scalar.clamp(x, low, high), expected)
    assert same(float(scalar.clamp(tensor(x), low, tensor(high))), expected)


def test_vector_keeps_dtype_and_precision():
    like = torch.zeros(3, dtype=torch.float64)
    for entries in ([0.1, 0.2, math.inf], [0.1, tensor(0.2), math.inf]):
        assert scalar.vector(entries, like).tolist() == [0.1, 0.2, math.inf]
        assert scalar.vector(entries, like).dtype == torch.float64


def run(make, steps=40):
    """Losses and gradients of a small model under an algorithm."""
    g = torch.Generator().manual_seed(0)
    w = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    step, read = make(w)
    seen = []
    for _ in range(steps):
        x, y = (
            torch.randn(16, 4, generator=g, dtype=torch.float64),
            torch.randint(3, (16,), generator=g),
        )
        weight = torch.rand(16, generator=g, dtype=torch.float64)
        value = step(lambda x=x, y=y: cross_entropy(x @ w, y, reduction="none"), weight)
        seen.append(torch.cat([w.detach().flatten(), value.detach().reshape(1), read().reshape(1)]))
    return torch.stack(seen)


def by_optimizer(cls, temperature, **settings):
    def make(w):
        opt = cls([w], 0.3, 0.5, temperature=temperature(), beta=0.3, **settings)
        return lambda closure, weight: opt.step(closure, sample_weight=weight), lambda: opt.lam

    return make


def by_loss(temperature, **settings):
    def make(w):
        robust, sgd = (
            KLRobustLoss(0.5, temperature=temperature(), **settings),
            torch.optim.SGD([w], 0.3),
        )

        def step(closure, weight):
            sgd.zero_grad()
            value = robust(closure(), sample_weight=weight)
            value.backward()
            sgd.step()
            return value

        return step, lambda: robust.lam

    return make


METHODS = {
    "SCDRO": by_optimizer(SCDRO, WindowTemperature),
    "ASCDRO": by_optimizer(ASCDRO, WindowTemperature),
    "SCDRO, trimmed": by_optimizer(SCDRO, WindowTemperature, trim=0.1),
    "SCDRO, mu": by_optimizer(SCDRO, WindowTemperature, mu=0.05),
    "SCDRO, printed": by_optimizer(SCDRO, PrintedTemperature),
    "ASCDRO, printed": by_optimizer(
        ASCDRO, lambda: PrintedTemperature(2.0, lr=0.01), loss_bound=50.0
    ),
    "ASCDRO, resets": by_optimizer(ASCDRO, lambda: PrintedTemperature(0.1, lr=0.01)),
    "KLRobustLoss": by_loss(WindowTemperature),
    "KLRobustLoss, printed": by_loss(lambda: PrintedTemperature(lr=0.1)),
}


@pytest.mark.parametrize("name", METHODS)
def test_tensors_on_the_device_give_the_same_run(name, monkeypatch):
    """On an accelerator numbers are never read; the same arithmetic on tensors must agree with the one on floats."""
    floats = run(METHODS[name])
    monkeypatch.setattr(scalar, "host_reads", lambda tensor: False)
    torch.testing.assert_close(run(METHODS[name]), floats, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rho", [0.0, 0.1, 2.0, 20.0])
def test_worst_case_by_tensors(rho, monkeypatch):
    losses = torch.randn(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    floats = worst_case(losses, rho)
    monkeypatch.setattr(scalar, "host_reads", lambda tensor: False)
    for ours, theirs in zip(worst_case(losses, rho), floats, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
