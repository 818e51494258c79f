"""The printed algorithms at the smallest temperature in float32, and the identities of a correct one."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import scdro
import twins
from lockstep import LAM1, batches, distance
from logistic import K, N, flat, losses_of, problem
from scdro import ASCDRO, SCDRO
from scdro.printed import PrintedTemperature, Storm
from scdro.temperature import WindowTemperature

# -- exp(20000): float32 models at lam = 1e-3 ---


@pytest.mark.parametrize("lam_lr", [0.0, 1e-8])
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("algorithm", "twin"), [(SCDRO, twins.Scdro), (ASCDRO, twins.Ascdro)])
def test_float32_at_the_smallest_temperature(algorithm, twin, beta, lam_lr):
    """Losses come from a table, so that both see the same float32 numbers; their gradients are fixed vectors."""
    lam, lr, rho, dim, m, steps = 1e-3, 0.02, 0.5, 5, 6, 100
    rng = np.random.default_rng(3)
    w = nn.Parameter(torch.tensor(rng.normal(size=dim), dtype=torch.float32))
    opt = algorithm(
        [w], lr, rho, beta=beta, lam0=5e-4, temperature=PrintedTemperature(initial=lam, lr=lam_lr)
    )
    exact = twin(
        twins.precise(w.detach().numpy()),
        twins.mpmath.mpf(lam),
        rho,
        lr,
        beta,
        lam0=5e-4,
        lam_eta=lam_lr,
    )
    for t in range(1, steps + 1):
        rows = rng.normal(size=(m, dim)).astype(np.float32)
        table = rng.uniform(0, 20, m).astype(np.float32)
        table[0] = 20.0 - 0.002 * rng.random()
        before = (table + 1e-3 * rng.normal(size=m)).astype(np.float32)
        tables = [table] if t == 1 or algorithm is SCDRO else [before, table]
        calls = iter(tables)

        def closure(rows=rows, calls=calls):
            score = torch.tensor(rows) @ w
            return torch.tensor(next(calls)) + (score - score.detach())

        def evaluate(at, now=exact.w, rows=rows, tables=tables):
            return twins.precise(tables[-1] if at is now else tables[0]), twins.precise(rows)

        opt.step(closure)
        exact.step(evaluate)
        assert torch.isfinite(w).all()
        assert opt.resets.item() == exact.resets
        assert distance(w.detach(), exact.w) <= 1e-4, t
        assert distance(opt.lam.item() / lam, exact.lam / lam) <= 1e-4, t
        assert distance(opt.log_s.item(), exact.log_s) <= 1e-4, t
    assert lam_lr == 0.0 or abs(opt.lam.item() / lam - 1) > 1e-3


# -- identities ---


TEMPERATURES = {
    "printed": lambda: PrintedTemperature(initial=LAM1, lr=0.01),
    "default": WindowTemperature,
    "default, initial lam": lambda: WindowTemperature(0.7),
}


def exact_gradients(model, x, y, lam, rho, weight=None):
    """(grad_w F, dF/dlam): by autograd through scdro.functional.objective, and by the formulas of section 1."""
    lam_variable = torch.tensor(lam, dtype=torch.float64, requires_grad=True)
    losses = cross_entropy(model(x), y, reduction="none")
    value = scdro.functional.objective(losses, lam_variable, rho, sample_weight=weight)
    *by_autograd, d_lam = torch.autograd.grad(value, [*model.parameters(), lam_variable])
    by_hand = twins.Logistic(x.numpy(), y.numpy(), K).batch(np.arange(N))
    formula = twins.gradient(*by_hand(flat(model)), lam, rho, weight)
    return (torch.cat([g.flatten() for g in by_autograd]).numpy(), d_lam.item()), formula


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("algorithm", [SCDRO, ASCDRO])
def test_beta_1_and_the_full_batch_is_gradient_descent_on_F(algorithm, temperature, weighted):
    """Identity 8."""
    model, x, y, _ = problem()
    rho, lr = 0.4, 1.0
    weight = torch.linspace(0.0, 1.0, N, dtype=torch.float64) if weighted else None
    opt = algorithm(model.parameters(), lr, rho, beta=1.0, temperature=TEMPERATURES[temperature]())
    for _ in range(6):
        lam = opt.lam.item()
        if math.isnan(lam):
            losses = cross_entropy(model(x), y, reduction="none").detach()
            lam = scdro.worst_case(losses, rho, sample_weight=weight).lam.item()
        expected = exact_gradients(model, x, y, lam, rho, weight)
        before = flat(model)
        opt.step(losses_of(model, x, y, slice(None)), sample_weight=weight)
        for gradient, d_lam in expected:
            np.testing.assert_allclose((before - flat(model)) / lr, gradient, rtol=0, atol=1e-10)
            if temperature == "printed":
                assert (lam - opt.lam.item()) / 0.01 == pytest.approx(d_lam, abs=1e-10)


@pytest.mark.parametrize("beta", [0.01, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("temperature", ["printed", "default"])
@pytest.mark.parametrize("algorithm", [SCDRO, ASCDRO])
def test_estimates_stay_exact_where_nothing_moves(algorithm, temperature, beta):
    """Identity 9: x_t = x_{t-1}, full batch, exact start; then one step with step sizes above zero shows z."""
    model, x, y, _ = problem()
    rho = 0.4
    source = (
        PrintedTemperature(initial=LAM1, lr=0.0)
        if temperature == "printed"
        else WindowTemperature()
    )
    opt = algorithm(model.parameters(), 0.0, rho, beta=beta, temperature=source, window=5 * N)
    closure, before = losses_of(model, x, y, slice(None)), flat(model)
    losses = cross_entropy(model(x), y, reduction="none").detach()
    lam = LAM1 if temperature == "printed" else scdro.worst_case(losses, rho).lam.item()
    expected = exact_gradients(model, x, y, lam, rho)
    for _ in range(20):
        opt.step(closure)
        assert (flat(model) == before).all()
        assert opt.lam.item() == pytest.approx(lam, rel=1e-12)
        assert opt.log_s.item() == pytest.approx(
            math.log(np.exp(losses.numpy() / lam).mean()), abs=1e-10
        )
    opt.param_groups[0]["lr"] = 1.0
    if temperature == "printed":
        opt._method_state.temperature = PrintedTemperature(initial=LAM1, lr=0.01)
    opt.step(closure)
    for gradient, d_lam in expected:
        np.testing.assert_allclose(before - flat(model), gradient, rtol=0, atol=1e-10)
        if temperature == "printed":
            assert (lam - opt.lam.item()) / 0.01 == pytest.approx(d_lam, abs=1e-10)


def frozen(algorithm, temperature, params, lr, beta, lam):
    """lam stays: by lr = 0, or for the default, by lam = lam0 and a radius that the losses cannot spend."""
    if temperature == "printed":
        return algorithm(
            params, lr, 0.4, beta=beta, temperature=PrintedTemperature(initial=lam, lr=0.0)
        )
    tracker = Storm() if algorithm is ASCDRO else None
    window = WindowTemperature(lam, cap=math.inf, ceiling=None, lag=None)
    return algorithm(params, lr, 3.0, beta=beta, lam0=lam, temperature=window, tracker=tracker)


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("temperature", ["printed", "default"])
@pytest.mark.parametrize("algorithm", [SCDRO, ASCDRO])
def test_frozen_lam_is_kl_regularised_dro(algorithm, temperature, beta):
    """Identity 10: RECOVER is ASCDRO's w part with lam frozen; SCDRO's is the moving average of the same problem."""
    model, x, y, by_hand = problem()
    lr, lam = 0.02, 0.8
    opt = frozen(algorithm, temperature, model.parameters(), lr, beta, lam)
    if algorithm is ASCDRO:
        twin = twins.Recover(flat(model), lam, lr, beta)
    else:
        twin = twins.Scdro(flat(model), lam, 0.4, lr, beta, lam_eta=0.0)
    for index in batches():
        opt.step(losses_of(model, x, y, index))
        twin.step(by_hand.batch(index))
        assert opt.lam.item() == lam
        assert distance(flat(model), twin.w) <= 1e-9
        assert distance(opt.log_s.item(), math.log(twin.s)) <= 1e-9
    assert opt.resets.item() == 0
