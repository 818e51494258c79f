"""The default in corners: equal, huge and negative losses, rho = 0, trim, shifts, units and orders."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from hard_group import ALGORITHMS, batches, flat, losses_of, problem
from scdro import ASCDRO, SCDRO
from scdro.temperature import WindowTemperature


@pytest.mark.parametrize("initial", [None, 5.0])
@pytest.mark.parametrize("level", [0.0, 5.0, -3.0, 1e6])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equal_losses(algorithm, level, initial):
    """KL is 0 at every lam: lam falls to lam0, weights stay uniform, and the step is that of the plain mean."""
    w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    lr, beta, rows = (
        0.1,
        0.3,
        torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [1.0, -1.0]], dtype=torch.float64),
    )
    opt = algorithm([w], lr, 0.5, beta=beta, temperature=WindowTemperature(initial))
    expected = w.detach() - lr * rows.mean(0)
    for t in range(30):

        def closure():
            score = rows @ w
            return level + score - score.detach()

        opt.step(closure)
        torch.testing.assert_close(w.detach(), expected, rtol=1e-8, atol=1e-8)
        expected = expected - lr * rows.mean(0)
        assert torch.isfinite(opt.log_s)
        assert t < 15 or opt.lam.item() == 1e-3
    assert opt.kl.item() == pytest.approx(0.0, abs=1e-6)
    assert opt.ess.item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_rho_0_is_sgd_with_momentum(weighted, weight_decay):
    beta, lr = 0.3, 0.2
    model, x, y, _ = problem()
    other, *_ = problem()
    opt = SCDRO(model.parameters(), lr, 0.0, beta=beta, weight_decay=weight_decay)
    sgd = torch.optim.SGD(
        other.parameters(), lr, momentum=1 - beta, dampening=1 - beta, weight_decay=weight_decay
    )
    running = None
    for index in batches(low=1, high=20):
        weight = torch.linspace(0.1, 1.5 if weighted else 0.1, len(index), dtype=torch.float64)
        value = opt.step(losses_of(model, x, y, index), sample_weight=weight if weighted else None)
        sgd.zero_grad()
        mean = (losses_of(other, x, y, index)() * weight).sum() / weight.sum()
        mean.backward()
        sgd.step()
        np.testing.assert_allclose(flat(model), flat(other), rtol=0, atol=1e-12)
        rate = 1.0 if running is None else beta
        running = rate * mean.item() + (1 - rate) * (running or 0.0)
        assert value.item() == pytest.approx(running, abs=1e-12)
        assert opt.lam.item() == math.inf
    assert opt.kl.item() == pytest.approx(0.0, abs=1e-20)
    assert opt.ess.item() == pytest.approx(1.0)


def test_rho_0_is_storm_on_the_mean():
    beta, lr = 0.3, 0.2
    model, x, y, by_hand = problem()
    opt = ASCDRO(model.parameters(), lr, 0.0, beta=beta, temperature=WindowTemperature(clip=1e9))
    w = before = flat(model)
    z = 0.0
    for t, index in enumerate(batches()):
        opt.step(losses_of(model, x, y, index))
        keep = 1 - beta if t else 0.0
        now, then = (by_hand.batch(index)(at)[1].mean(0) for at in (w, before))
        z = now + keep * (z - then)
        before, w = w, w - lr * z
        np.testing.assert_allclose(flat(model), w, rtol=0, atol=1e-12)


def test_rho_0_with_trim_is_the_trimmed_mean():
    """A first batch of seven loses its hardest two: the ceiling cuts whole samples."""
    w = nn.Parameter(torch.zeros(7, dtype=torch.float64))
    losses = torch.tensor([3.0, 1.0, 2.0, 9.0, 8.0, 0.0, 4.0], dtype=torch.float64)
    SCDRO([w], 1.0, 0.0, trim=0.3).step(lambda: losses + w - w.detach())
    expected = np.array([1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]) / 5
    np.testing.assert_allclose(-w.detach().numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("rho", [1e-12, 1e-6])
def test_small_rho_is_nearly_sgd(rho):
    model, x, y, _ = problem()
    other, *_ = problem()
    opt, plain = SCDRO(model.parameters(), 0.2, rho), SCDRO(other.parameters(), 0.2, 0.0)
    for index in batches():
        opt.step(losses_of(model, x, y, index))
        plain.step(losses_of(other, x, y, index))
    np.testing.assert_allclose(flat(model), flat(other), atol=50 * math.sqrt(rho))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("scale", "shift"), [(1e6, 0.0), (1e6, -5e6), (1.0, -7.0), (1e-6, 0.0), (-1.0, 0.0)]
)
def test_huge_tiny_and_negative_losses(algorithm, scale, shift):
    model, x, y, _ = problem()
    opt = algorithm(model.parameters(), 0.05 / abs(scale), 0.5, radius=2.0)
    for index in batches():
        value = opt.step(losses_of(model, x, y, index, scale, shift))
        assert torch.isfinite(value)
        assert torch.isfinite(opt.log_s)
    assert np.isfinite(flat(model)).all()
    assert opt.kl.item() <= 1.0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_batch_counts_for_at_most_two(algorithm):
    """Gradients are unit vectors, losses jump by orders of magnitude: the step stays below 2 lr and STORM's clip."""
    rng, lr, beta = np.random.default_rng(0), 0.1, 0.5
    w = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    opt = algorithm([w], lr, 0.5, beta=beta)
    limit = 2.0 if algorithm is SCDRO else 2.0 + 0.3 * 2.0 * (1 - beta) / beta
    longest = 0.0
    for t in range(200):
        rows = torch.tensor(rng.normal(size=(6, 4)))
        rows = rows / rows.norm(dim=1, keepdim=True)
        losses = torch.tensor(rng.exponential(1e4 if t % 11 == 7 else 1.0, 6) - 3.0)
        before = w.detach().clone()
        opt.step(lambda rows=rows, losses=losses: losses + (rows @ w) - (rows @ w).detach())
        longest = max(longest, (w.detach() - before).norm().item() / lr)
        assert torch.isfinite(opt.log_s)
    assert 0.5 < longest <= limit


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trim_never_looks_at_the_hardest(algorithm):
    """Five of 120 samples have absurd losses and gradients; the model must not hear of them after the first batch."""
    model, x, y, _ = problem()
    clean, *_ = problem()
    bad = np.arange(5)
    opt = algorithm(model.parameters(), 0.1, 0.5, trim=0.1)
    reference = algorithm(clean.parameters(), 0.1, 0.5, trim=0.1)
    for t, index in enumerate(batches(200, 20, 20)):
        scale = torch.ones(len(index), dtype=torch.float64)
        scale[np.isin(index, bad)] = 1e3
        opt.step(lambda index=index, scale=scale: scale * losses_of(model, x, y, index)())
        keep = np.isin(index, bad, invert=True)
        reference.step(losses_of(clean, x, y, index[keep]))
        assert np.abs(flat(model)).max() < 10, t
    assert opt.lam.item() < 5
    assert np.linalg.norm(flat(model) - flat(clean)) < 0.5 * np.linalg.norm(flat(clean))


@pytest.mark.parametrize(
    ("n", "trim", "kept"),
    [(10, 0.1, 9), (10, 0.2, 8), (30, 0.1, 27), (88, 0.25, 66), (20, 0.1, 18)],
)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trim_of_a_whole_number_of_samples(algorithm, n, trim, kept):
    """Rounding must not bring back the easiest of the samples that are to be left out."""
    w = nn.Parameter(torch.zeros(n, dtype=torch.float64))
    losses = torch.arange(n, dtype=torch.float64)
    losses[kept:] *= 1e4
    opt = algorithm([w], 1.0, 0.5, trim=trim)
    for _ in range(3):
        opt.step(lambda: losses + w - w.detach())
        assert (w.detach() != 0).nonzero().amax() == kept - 1
        assert opt.lam.item() < n


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_shift_of_the_losses_changes_nothing(algorithm):
    model, x, y, _ = problem()
    other, *_ = problem()
    opt, shifted = algorithm(model.parameters(), 0.1, 0.5), algorithm(other.parameters(), 0.1, 0.5)
    for index in batches():
        value = opt.step(losses_of(model, x, y, index))
        shifted_value = shifted.step(losses_of(other, x, y, index, shift=1000.0))
        np.testing.assert_allclose(flat(other), flat(model), rtol=0, atol=1e-8)
        assert shifted.lam.item() == pytest.approx(opt.lam.item(), rel=1e-8)
        assert (shifted_value - 1000.0).item() == pytest.approx(value.item(), abs=1e-8)


@pytest.mark.parametrize("c", [1e-4, 0.1, 7.0, 1e5])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_unit_of_the_losses_does_not_matter(algorithm, c):
    model, x, y, _ = problem()
    other, *_ = problem()
    opt = algorithm(model.parameters(), 0.1, 0.5, lam0=1e-3)
    scaled = algorithm(other.parameters(), 0.1 / c, 0.5, lam0=1e-3 * c)
    for index in batches():
        opt.step(losses_of(model, x, y, index))
        scaled.step(losses_of(other, x, y, index, scale=c))
        np.testing.assert_allclose(flat(other), flat(model), rtol=0, atol=1e-9)
        assert scaled.lam.item() / c == pytest.approx(opt.lam.item(), rel=1e-9)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_order_of_the_samples_in_a_batch_does_not_matter(algorithm):
    model, x, y, _ = problem()
    other, *_ = problem()
    opt, permuted = algorithm(model.parameters(), 0.1, 0.5), algorithm(other.parameters(), 0.1, 0.5)
    rng = np.random.default_rng(0)
    for index in batches():
        opt.step(losses_of(model, x, y, index))
        permuted.step(losses_of(other, x, y, rng.permutation(index)))
        np.testing.assert_allclose(flat(other), flat(model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("beta", [0.1, 1.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rho_0_with_a_batch_that_is_trimmed_away_keeps_its_value(algorithm, beta):
    w = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    opt = algorithm([w], 0.1, 0.0, trim=0.25, beta=beta)
    losses = torch.tensor([1.0, 2.0, 3.0, 50.0], dtype=torch.float64)
    value = opt.step(lambda: losses + w - w.detach())
    assert value.item() == pytest.approx(2.0)
    again = opt.step(lambda: losses + 1000.0 + w - w.detach())
    assert again.item() == pytest.approx(2.0)
    assert torch.isfinite(w).all()
