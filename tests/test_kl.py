"""The one root solver behind every KL worst case, where KL is a step in log lam, or tiny, or on a plateau."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

import oracles
import scdro._kl as kl_module
from reproduction.baselines.parts import alone
from scdro import KLRobustLoss, evaluate, worst_case
from scdro.contrastive import Negatives
from scdro.errors import NonFiniteLossError
from scdro.linear_model._worst_case import solve_worst_case
from scdro.temperature import Window

pytestmark = pytest.mark.skipif(
    np.finfo(np.longdouble).eps > 1e-18, reason="needs a long double of 80 bits"
)


def draw(rng, largest=4.0):
    """Losses, base weights or None, rho and lam0: one rare hard sample, tiny shares, heavy tails, ties, any scale."""
    kind = rng.integers(6)
    n = int(10 ** rng.uniform(0.3, largest if kind < 2 else 3.0))
    weight = None
    if kind == 0:
        losses = np.zeros(n)
        losses[0] = 10 ** rng.uniform(-3, 3)
    elif kind == 1:
        losses = np.where(rng.random(n) < 0.1, rng.exponential(size=n), 0.0)
        losses[0] = rng.uniform(1, 30)
    elif kind == 2:
        share = 10 ** rng.uniform(-12, -0.1)
        losses, weight = np.array([rng.uniform(0.01, 10), 0.0]), np.array([share, 1 - share])
    elif kind == 3:
        losses = rng.pareto(10 ** rng.uniform(-0.5, 1), n)
    elif kind == 4:
        losses = rng.normal(size=n) * 10 ** rng.uniform(-3, 3) + rng.normal() * 10 ** rng.uniform(
            -3, 3
        )
        weight = 10 ** rng.uniform(-12, 0, n)
    else:
        losses = rng.integers(0, 4, n) * rng.exponential()
    rarest = 1 / len(losses) if weight is None else weight.min() / weight.sum()
    rho = 10 ** rng.uniform(-12, math.log10(max(-math.log(rarest), 1e-3)))
    return losses, weight, rho, 10 ** rng.uniform(-4, -1)


def error(value, losses, weight, rho, lam0):
    """That of a value in units of max - mean, beyond what rounding the losses themselves makes of it."""
    truth = oracles.long_double(losses, rho, lam0, weight).value
    mean = np.average(losses, weights=weight)
    rounding = 8 * np.finfo(float).eps * np.abs(losses).max()
    return max(abs(value - truth) - rounding, 0.0) / max(losses.max() - mean, 1e-300)


RARE = np.r_[1.0, np.zeros(99_999)]


def solved_by_the_sharded_dual(losses, rho):
    return float(alone(len(losses)).solve_lam(torch.from_numpy(losses), rho, 1e-3))


def solved_by_the_window(losses, rho):
    tensor = torch.from_numpy(losses)
    return float(Window(torch.stack([tensor, torch.zeros_like(tensor)])).solve(rho, 1e-3, 0.0))


def solved_for_anchors(losses, rho):
    tensor = torch.from_numpy(losses).expand(3, -1)
    return float(
        Negatives.of(tensor, torch.ones_like(tensor, dtype=torch.bool)).solve(rho, 1e-3)[1]
    )


SOLVERS = {
    "worst_case": lambda losses, rho: worst_case(losses, rho).lam,
    "linear_model": lambda losses, rho: (
        solve_worst_case(losses, np.full(len(losses), 1 / len(losses)), rho, 1e-3).lam
    ),
    "linear_model, warm": lambda losses, rho: (
        solve_worst_case(losses, np.full(len(losses), 1 / len(losses)), rho, 1e-3, 40.0).lam
    ),
    "sharded": solved_by_the_sharded_dual,
    "window": solved_by_the_window,
    "contrastive": solved_for_anchors,
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("rho", [1e-12, 1e-9, 1e-3, 0.1, 2.0])
def test_one_rare_hard_sample(name, rho):
    """Newton alone runs back and forth across the step of KL: it answered .918 for .000376."""
    lam = SOLVERS[name](RARE, rho)
    assert lam == pytest.approx(oracles.long_double(RARE, rho).lam, rel=1e-7)


def test_one_rare_hard_sample_in_evaluation():
    truth = oracles.long_double(RARE, 1e-3)
    assert (truth.value, truth.kl) == pytest.approx((0.0003756, 1e-3), rel=1e-4)
    losses = torch.from_numpy(RARE)
    assert float(KLRobustLoss(1e-3).eval()(losses)) == pytest.approx(truth.value, rel=1e-9)
    data = [
        (losses[i : i + 25_000, None], losses[i : i + 25_000]) for i in range(0, 100_000, 25_000)
    ]
    found = evaluate(torch.nn.Identity(), data, lambda out, _: out[:, 0], rho=1e-3)
    assert found.value == pytest.approx(truth.value, rel=1e-9)
    two = worst_case([1.0, 0.0], 1e-3, sample_weight=[1e-5, 1 - 1e-5])
    assert (two.value, two.kl) == pytest.approx((truth.value, 1e-3), rel=1e-9)


@pytest.mark.parametrize("share", [0.1, 1e-3])
def test_a_tiny_radius_keeps_its_distance_from_the_mean(share):
    """At rho = 1e-12 and n = 1e6 KL was lost in rounding: the distance was off by 55%."""
    losses = (np.random.default_rng(0).random(1_000_000) < share).astype(float)
    distance = worst_case(losses, 1e-12).value - losses.mean()
    assert distance == pytest.approx(math.sqrt(2e-12) * losses.std(), rel=1e-3)


def check_against_long_double(count, seed, largest=4.0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        losses, weight, rho, lam0 = draw(rng, largest)
        found = worst_case(losses, rho, lam0, sample_weight=weight)
        assert error(found.value, losses, weight, rho, lam0) <= 1e-9, (len(losses), rho, lam0)
        assert found.kl <= rho * (1 + 1e-7) + 1e-15


@pytest.mark.parametrize(
    ("losses", "weight"),
    [
        ([1e20, 1.0], [1e-25, 1.0]),
        ([1e8, 1e-3], [1e-12, 1.0]),
        ([1e12, *np.linspace(0.1, 0.2, 1000)], None),
        ([-3.0, 1e15, 2.0], [1.0, 1e-14, 1.0]),
    ],
)
def test_one_loss_far_above_the_mean_costs_no_digits(losses, weight):
    """The mean of the others must not be rounded to the largest loss."""
    value = float(worst_case(np.array(losses), 0.0, sample_weight=weight).value)
    q = np.ones(len(losses), np.longdouble) if weight is None else np.array(weight, np.longdouble)
    exact = float(q @ np.array(losses, np.longdouble) / q.sum())
    assert value == pytest.approx(exact, rel=1e-13)
    evaluated = KLRobustLoss(0.0).eval()(
        torch.tensor(losses, dtype=torch.float64),
        None if weight is None else torch.tensor(weight, dtype=torch.float64),
    )
    assert float(evaluated) == pytest.approx(exact, rel=1e-13)


def test_against_long_double():
    check_against_long_double(1000, seed=0, largest=3.0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_against_long_double_on_many(seed):
    check_against_long_double(12_500, seed, largest=3.5)


@pytest.mark.slow
def test_against_long_double_on_a_million():
    check_against_long_double(60, seed=9, largest=6.0)
    heavy = np.random.default_rng(10).pareto(1.5, 1_000_000)
    for rho in (1e-12, 1e-6, 1e-2, 1.0, 10.0):
        assert error(worst_case(heavy, rho).value, heavy, None, rho, 1e-3) <= 1e-9


def test_where_the_host_may_not_look(monkeypatch):
    """The same answers with 0-d tensors in place of floats, as on an accelerator."""
    rng = np.random.default_rng(3)
    cases = [draw(rng, 3.0) for _ in range(60)]
    monkeypatch.setattr("scdro._scalar.host_reads", lambda tensor: False)
    monkeypatch.setattr(kl_module, "host_reads", lambda tensor: False)
    for losses, weight, rho, lam0 in cases:
        log_q = (
            torch.zeros(len(losses), dtype=torch.float64)
            if weight is None
            else torch.from_numpy(np.log(weight))
        )
        tensor = torch.from_numpy(losses)
        lam = kl_module.solve_lam(tensor, log_q, rho, lam0)
        assert isinstance(lam, torch.Tensor)
        value, _, _ = kl_module.value_at(tensor, tensor, log_q, lam, lam0)
        assert error(float(value), losses, weight, rho, lam0) <= 1e-9


@pytest.mark.parametrize("share", [0.1, 1e-3])
def test_a_tiny_radius_where_the_host_may_not_look(share, monkeypatch):
    monkeypatch.setattr("scdro._scalar.host_reads", lambda tensor: False)
    monkeypatch.setattr(kl_module, "host_reads", lambda tensor: False)
    losses = (torch.rand(1_000_000, generator=torch.Generator().manual_seed(0)) < share).double()
    lam = kl_module.solve_lam(losses, torch.zeros_like(losses), 1e-12, 1e-3, wait=True)
    assert float(lam) == pytest.approx(float(losses.std()) / math.sqrt(2e-12), rel=1e-3)


def test_many_vectors_at_once_end_as_each_alone():
    """One vector on a plateau, one at its floor, one with a step: lanes do not disturb each other."""
    rng = np.random.default_rng(4)
    rows = np.stack(
        [
            np.r_[1.0, np.zeros(99)],
            np.full(100, 3.0),
            rng.exponential(size=100),
            rng.pareto(0.5, 100),
        ]
    )
    together = Negatives.of(torch.from_numpy(rows), torch.ones(4, 100, dtype=torch.bool)).solve(
        0.05, 1e-3
    )
    for row, lam in zip(rows, together, strict=True):
        assert float(lam) == pytest.approx(worst_case(row, 0.05).lam, rel=1e-9)


def test_few_passes(monkeypatch):
    """Bisection guards Newton; it does not take its place."""
    passes = []
    tilt = kl_module.tilt
    monkeypatch.setattr(kl_module, "tilt", lambda *a, **k: passes.append(1) or tilt(*a, **k))
    rng, counts = np.random.default_rng(5), []
    for _ in range(300):
        losses, weight, rho, lam0 = draw(rng, 3.0)
        passes.clear()
        worst_case(losses, rho, lam0, sample_weight=weight)
        counts.append(len(passes) - 1)  # one more for the value
    assert np.mean(counts) < 9
    assert max(counts) < 30


@pytest.mark.parametrize("mu", [0.01, 1.0])
@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_the_regularised_equation(mu, rho):
    """KL(p_lam) = rho + mu lam, as the restarted methods ask; rho = 0 too."""
    losses = torch.from_numpy(np.random.default_rng(6).exponential(size=50))
    lam = float(kl_module.solve_lam(losses, torch.zeros_like(losses), rho, 1e-3, mu=mu))
    p = oracles.tilted(losses.numpy(), lam)
    assert oracles.kl_divergence(p) == pytest.approx(rho + mu * lam, rel=1e-9)


@pytest.mark.parametrize("size", [1e100, 1e200, 1e308])
def test_losses_whose_squares_overflow_are_an_error(size):
    """They gave NaN."""
    losses = torch.tensor([size, 0.0], dtype=torch.float64, requires_grad=True)
    robust = KLRobustLoss(0.5)
    for attempt in (
        lambda: worst_case(losses, 0.5),
        lambda: robust(losses),
        lambda: robust.eval()(losses),
    ):
        with pytest.raises(NonFiniteLossError, match="1e100"):
            attempt()
    assert math.isnan(robust.lam)


def test_losses_as_large_as_allowed():
    losses = np.array([5e99, 0.0, 1.0, -5e99])
    found = worst_case(losses, 0.1, 1e-50)
    assert error(found.value, losses, None, 0.1, 1e-50) <= 1e-9
    assert float(KLRobustLoss(0.1).eval()(torch.from_numpy(losses))) == pytest.approx(
        found.value, rel=1e-12
    )


def test_steps_that_are_far_too_short_give_way_to_bisection():
    """Inside the bracket all the time, and yet nowhere near the root after sixty of them."""
    slope = 2000.0  # a thousand times that of KL = 1/lam^2
    lam = kl_module.solve_root(lambda lam: (lam**-2, slope * lam**-2), -1e6, 1.0, 1e-6, 1e-3)
    assert lam == pytest.approx(1e3, rel=1e-6)


@pytest.mark.parametrize(
    ("losses", "weight", "short"),
    [
        ([0.57, 0.87, 1.4, 3.29, 3.29], [0.047, 0.16, 2e-8, 7e-6, 7e-9], 5e-9),
        ([3.0, 3.1, 4.3, 8.3, 31.0], [2e-12, 8e-10, 0.5, 9e-12, 5e-11], 3e-9),
        ([3.7, 28.0, 28.0], [0.081, 3.6e-9, 1.4e-7], 2e-9),
    ],
)
def test_just_below_the_plateau(losses, weight, short):
    """rho just below the largest KL there is, where Newton's steps are too long: 1e-9 of max l - mean l, as always."""
    share = math.fsum(
        w for w, l in zip(weight, losses, strict=True) if l == max(losses)
    ) / math.fsum(weight)
    rho = -math.log(share) * (1 - short)
    found = worst_case(losses, rho, 1e-9, sample_weight=weight)
    assert found.kl == pytest.approx(rho, rel=1e-9)


@pytest.mark.parametrize("share", [1e-305, 1e-308, 1e-310, 1e-320])
@pytest.mark.parametrize("rho", [1.0, 100.0, 700.0])
def test_shares_below_the_smallest_normal_number(share, rho):
    """One sample of 1e-308 of the mass and less: p of it such that p log(p/q) + (1-p) log(1-p) = rho."""
    found = worst_case([0.0, 5.0], rho, 1e-9, sample_weight=[1.0, share])
    p = brentq(
        lambda p: p * (math.log(p) - math.log(share)) + (1 - p) * math.log1p(-p) - rho,
        1e-9,
        1 - 1e-9,
    )
    assert found.kl == pytest.approx(rho, rel=1e-9)
    assert found.value == pytest.approx(5.0 * p - 1e-9 * rho, rel=1e-9)
