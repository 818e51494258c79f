"""Where the default ends: at the optimum, and with weights that do not vanish when losses fall."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from torch import nn

import scdro
import twins
from hard_group import ALGORITHMS, D, K, N, batches, flat, losses_of, problem
from scdro import ASCDRO, SCDRO
from scdro.temperature import WindowTemperature


def optimum(x, y, rho, lam0, wd):
    """min over w of the worst case, by L-BFGS on (w, log lam) with the gradients of section 1."""
    by_hand = twins.Logistic(x.numpy(), y.numpy(), K).batch(np.arange(len(y)))

    def value_and_gradient(theta):
        w, lam = theta[:-1], math.exp(theta[-1])
        losses, gradients = by_hand(w)
        d_w, d_lam = twins.gradient(losses, gradients, lam, rho)
        value = twins.objective(losses, lam, rho, lam0) + 0.5 * wd * w @ w
        return value, np.append(d_w + wd * w, lam * d_lam)

    start = np.zeros(K * D + K + 1)
    bounds = [(None, None)] * (K * D + K) + [(math.log(0.05), None)]
    options = {"maxiter": 5000, "maxfun": 10000, "ftol": 1e-15, "gtol": 1e-9}
    result = scipy.optimize.minimize(
        value_and_gradient, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    return result.fun, result.x[:-1]


@pytest.mark.parametrize("rho", [0.05, 0.2])
@pytest.mark.parametrize(
    ("algorithm", "beta", "size", "tolerance"),
    [
        (SCDRO, 1.0, N, 1e-9),
        (ASCDRO, 1.0, N, 1e-9),
        (SCDRO, 0.1, 30, 3e-3),
        (ASCDRO, 0.1, 30, 3e-3),
    ],
)
def test_convergence_to_the_optimum(algorithm, beta, size, tolerance, rho):
    model, x, y, by_hand = problem()
    wd, lam0 = 0.05, 1e-3
    best, w = optimum(x, y, rho, lam0, wd)
    opt = algorithm(
        model.parameters(), 0.3, rho, beta=beta, weight_decay=wd, window=N if size == N else None
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(opt, [300, 450], gamma=0.1 if beta < 1 else 1.0)
    for index in batches(600, size, size):
        opt.step(losses_of(model, x, y, index))
        schedule.step()
    losses = by_hand.batch(np.arange(N))(flat(model))[0]
    gap = scdro.worst_case(losses, rho).value + 0.5 * wd * flat(model) @ flat(model) - best
    assert -1e-9 <= gap <= tolerance
    if beta == 1.0:
        np.testing.assert_allclose(flat(model), w, atol=1e-4)


def test_convergence_to_the_optimum_of_cvxpy():
    """Robust least squares, as a problem of exponential cones."""
    cvxpy = pytest.importorskip("cvxpy")
    g = torch.Generator().manual_seed(3)
    x, rho, lam0 = torch.randn(25, 3, generator=g, dtype=torch.float64), 0.5, 1e-3
    target = x @ torch.tensor([1.0, -2.0, 0.5]).double() + torch.randn(
        25, generator=g, dtype=torch.float64
    )
    w, t, lam, parts = cvxpy.Variable(3), cvxpy.Variable(25), cvxpy.Variable(), cvxpy.Variable(25)
    value = cvxpy.Variable()
    # lam log mean exp(t/lam) <= value  <=>  sum lam exp((t - value)/lam) <= 25 lam
    constraints = [
        t >= cvxpy.square(x.numpy() @ w - target.numpy()),
        lam >= lam0,
        cvxpy.sum(parts) <= 25 * lam,
    ]
    constraints += [cvxpy.constraints.ExpCone(t - value, lam * np.ones(25), parts)]
    best = cvxpy.Problem(cvxpy.Minimize(value + (lam - lam0) * rho), constraints).solve()
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    opt = SCDRO([parameter], 0.05, rho, beta=1.0)
    for _ in range(500):
        opt.step(lambda: (x @ parameter - target).square())
    residuals = (x @ parameter - target).square().detach()
    assert scdro.worst_case(residuals, rho).value.item() == pytest.approx(best, rel=1e-5)
    np.testing.assert_allclose(parameter.detach().numpy(), w.value, atol=1e-3)


def gradient_masses(algorithm, levels, scales, beta, rho=0.5, batch=64, **settings):
    """The sum of the weights of each batch, read from the gradient of a parameter that shifts all losses."""
    w, g = nn.Parameter(torch.zeros((), dtype=torch.float64)), torch.Generator().manual_seed(0)
    opt = (
        None if algorithm is scdro.KLRobustLoss else algorithm([w], 0.0, rho, beta=beta, **settings)
    )
    robust, masses = scdro.KLRobustLoss(rho, beta=beta, **settings), []
    for level, scale in zip(levels, scales, strict=True):
        losses = level + scale * torch.randn(batch, generator=g, dtype=torch.float64).square()
        w.grad = None
        value = robust(losses + w) if opt is None else opt.step(lambda losses=losses: losses + w)
        if opt is None:
            value.backward()
        masses.append(w.grad.item())
    return np.array(masses), value.item()


@pytest.mark.parametrize("beta", [0.01, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("fall", ["x1/10", "x1/1000", "-100"])
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, scdro.KLRobustLoss])
def test_the_weights_of_a_batch_do_not_vanish_when_losses_fall(algorithm, fall, beta):
    """From one window (16 batches) after the fall on, ten batches always have more than half of the usual weight, and
    the value is that of the present losses."""
    before, after = 20, 60
    factor = {"x1/10": 10.0, "x1/1000": 1000.0}.get(fall, 1.0)
    scales = [factor] * before + [1.0] * after
    levels = [100.0 if fall == "-100" else 0.0] * before + [0.0] * after
    masses, value = gradient_masses(algorithm, levels, scales, beta)
    recent = np.convolve(masses[before + 16 :], np.full(10, 0.1), "valid")
    assert recent.min() > 0.5
    assert masses.max() <= 2.0 + 1e-9
    typical = scipy.stats.chi2(1).ppf(np.linspace(0.0, 1.0, 4098)[1:-1])
    assert value == pytest.approx(scdro.worst_case(typical, 0.5).value, rel=0.3)


@pytest.mark.parametrize("beta", [0.01, 0.1])
@pytest.mark.parametrize("rho", [0.5, 2.0])
@pytest.mark.parametrize("drift", ["-3% a step", "-10% a step", "x400 and back"])
@pytest.mark.parametrize("algorithm", [*ALGORITHMS, scdro.KLRobustLoss])
def test_the_weights_of_a_batch_do_not_vanish_while_losses_drift(algorithm, drift, rho, beta):
    """From the first full window (8 batches) on, ten batches always have more than half of the usual weight."""
    t = np.arange(150)
    logs = {"-3% a step": -0.03 * t, "-10% a step": -0.1 * t}.get(
        drift, 3 * np.sin(t * math.tau / 100)
    )
    masses, _ = gradient_masses(algorithm, np.zeros(len(t)), np.exp(logs), beta, rho, batch=128)
    assert np.convolve(masses[8:], np.full(10, 0.1), "valid").min() > 0.5


@pytest.mark.parametrize(("rho", "excess"), [(0.1, 0.01), (0.5, 0.01), (2.0, 0.13)])
def test_batches_larger_than_the_window_count_once(rho, excess):
    """The bound on s is noisy: if it were too tight, the weights would sum to more than one on average."""
    still = np.ones(150)
    free, kept = (
        gradient_masses(
            scdro.KLRobustLoss,
            0 * still,
            still,
            0.1,
            rho,
            batch=2048,
            temperature=WindowTemperature(lag=lag),
        )
        for lag in (None, WindowTemperature().lag)
    )
    assert -1e-9 <= kept[0][50:].mean() - free[0][50:].mean() < excess


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_small_beta_does_not_stop_before_the_model_fits(algorithm):
    """Least squares with targets of size 100: losses fall ten-thousandfold, faster than s by itself."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(500, 5, generator=g, dtype=torch.float64)
    target = 100 * x @ torch.randn(5, generator=g, dtype=torch.float64) + torch.randn(
        500, generator=g, dtype=x.dtype
    )
    w = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    opt = algorithm([w], 0.05, 0.5, beta=0.01)
    for _ in range(1500):
        index = torch.randint(500, (64,), generator=g)
        opt.step(lambda index=index: (x[index] @ w - target[index]).square() / 2)
    assert (x @ w - target).square().mean().item() < 2.0
