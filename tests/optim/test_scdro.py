"""The printed algorithms against their linear-domain twins, step by step, and the identities of a correct one."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import scdro
import twins
from logistic import D, K, N, flat, losses_of, problem
from scdro import ASCDRO, RASCDRO, RSCDRO, SCDRO, PrintedTemperature, Stage, Storm, WindowTemperature

STEPS = 100
LAM1 = 1.5


def batches(steps=STEPS, size=8, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.choice(N, size, replace=False) for _ in range(steps)]


def distance(a, b):
    """The largest difference relative to max(1, |b|)."""
    a, b = np.atleast_1d(np.asarray(a, dtype=float)), np.atleast_1d(np.asarray(b, dtype=float))
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b))))


def assert_close(opt, model, twin, tolerance, t):
    for name, ours, theirs in (
        ("w", flat(model), twin.w),
        ("lam", opt.lam.item(), twin.lam),
        ("log s", opt.log_s.item(), twin.log_s),
    ):
        assert distance(ours, theirs) <= tolerance, f"{name} differs by {distance(ours, theirs):.1e} after step {t}"


def run_in_lockstep(make, make_twin, *, weighted=False, indices=None, tolerance=1e-9, seed=0):
    """Both for 100 steps; returns the optimizer, the twin and the history of (lam, |w|)."""
    model, x, y, by_hand = problem(seed)
    opt, twin = make(model), make_twin(flat(model))
    history, rng = [], np.random.default_rng(2)
    for t, index in enumerate(batches() if indices is None else indices, 1):
        weight = rng.uniform(0.0, 2.0, len(index)) * (rng.random(len(index)) < 0.8) + 1e-3 if weighted else None
        opt.step(losses_of(model, x, y, index), sample_weight=None if weight is None else torch.tensor(weight))
        twin.step(by_hand.batch(index), weight)
        assert_close(opt, model, twin, tolerance, t)
        assert opt.resets.item() == twin.resets
        history.append((opt.lam.item(), float(np.linalg.norm(flat(model)))))
    return opt, twin, np.array(history)


SETTINGS = {
    "plain": ({}, {}, False),
    "weight_decay": ({"weight_decay": 0.05}, {"wd": 0.05}, False),
    "mu": ({"mu": 0.05}, {"mu": 0.05}, False),
    "radius": ({"radius": 0.5}, {"radius": 0.5}, False),
    "sample_weight": ({}, {}, True),
    "everything": ({"weight_decay": 0.02, "mu": 0.03, "radius": 0.6}, {"wd": 0.02, "mu": 0.03, "radius": 0.6}, True),
}


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("setting", SETTINGS)
def test_scdro_is_algorithm_1(setting, beta):
    ours, theirs, weighted = SETTINGS[setting]
    lr, rho = 0.05, 0.3
    _, _, history = run_in_lockstep(
        lambda model: SCDRO(
            model.parameters(), lr, rho, beta=beta, temperature=PrintedTemperature(initial=LAM1), **ours
        ),
        lambda w: twins.Scdro(w, LAM1, rho, lr, beta, **theirs),
        weighted=weighted,
    )
    assert np.ptp(history[:, 0]) > 0.05
    if "radius" in ours:
        assert np.isclose(history[:, 1], ours["radius"], rtol=1e-12).sum() >= 10


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_scdro_projects_lam_onto_both_ends(beta):
    """loss_bound gives lam_max = lam0 + C/rho, and changes nothing else in Algorithm 1."""
    lr, lam_lr, rho, lam0, bound = 0.05, 10.0, 1.0, 0.1, 4.0
    temperature = PrintedTemperature(initial=0.5, lr=lam_lr)
    settings = {"lam0": lam0, "radius": 0.9}
    _, _, history = run_in_lockstep(
        lambda model: SCDRO(
            model.parameters(), lr, rho, beta=beta, temperature=temperature, loss_bound=bound, **settings
        ),
        lambda w: twins.Scdro(w, 0.5, rho, lr, beta, bound=bound, lam_eta=lam_lr, **settings),
    )
    assert (history[:, 0] == lam0).sum() >= 3
    assert (history[:, 0] == lam0 + bound / rho).sum() >= 3


def test_scdro_with_a_loss_bound_that_never_binds():
    lr, rho, beta, bound = 0.05, 0.3, 0.3, 50.0
    run_in_lockstep(
        lambda model: SCDRO(
            model.parameters(), lr, rho, beta=beta, temperature=PrintedTemperature(initial=LAM1), loss_bound=bound
        ),
        lambda w: twins.Scdro(w, LAM1, rho, lr, beta, bound=bound),
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_ascdro_is_algorithm_2_without_resets(setting):
    ours, theirs, weighted = SETTINGS[setting]
    lr, rho, beta = 0.01, 0.3, 0.3
    opt, _, history = run_in_lockstep(
        lambda model: ASCDRO(
            model.parameters(), lr, rho, beta=beta, temperature=PrintedTemperature(initial=LAM1), **ours
        ),
        lambda w: twins.Ascdro(w, LAM1, rho, lr, beta, **theirs),
        weighted=weighted,
    )
    assert opt.resets.item() == 0
    assert np.ptp(history[:, 0]) > 0.01


@pytest.mark.parametrize(
    ("lr", "beta", "rho", "lam1", "bound"), [(0.1, 0.6, 1.0, 1.5, 4.0), (0.5, 0.6, 0.3, 0.3, None)]
)
def test_ascdro_is_algorithm_2_with_resets(lr, beta, rho, lam1, bound):
    settings = {"radius": 0.9, "lam0": 0.1}
    opt, twin, _ = run_in_lockstep(
        lambda model: ASCDRO(
            model.parameters(),
            lr,
            rho,
            beta=beta,
            temperature=PrintedTemperature(initial=lam1),
            loss_bound=bound,
            **settings,
        ),
        lambda w: twins.Ascdro(w, lam1, rho, lr, beta, bound=bound, **settings),
    )
    assert opt.resets.item() == twin.resets >= 2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("algorithm", "twin", "lr_factor"), [(RSCDRO, twins.Scdro, 0.5), (RASCDRO, twins.Ascdro, 0.7)])
def test_restarted_forms_are_algorithm_3(algorithm, twin, lr_factor, weighted):
    stages = scdro.factor_stages(0.05, 0.8, 14, 4, lr_factor=lr_factor, steps_factor=1.5)
    rho, mu, wd = 0.3, 0.1, 0.02
    opt, reference, _ = run_in_lockstep(
        lambda model: algorithm(
            model.parameters(), stages, rho, mu=mu, weight_decay=wd, temperature=PrintedTemperature(initial=LAM1)
        ),
        lambda w: twin(w, LAM1, rho, None, None, mu=mu, wd=wd, stages=[tuple(stage) for stage in stages]),
        weighted=weighted,
    )
    assert opt.stage == reference.k == 3


def test_restarted_stages_may_change_in_any_way():
    stages = [
        Stage(0.02, 0.3, 10),
        Stage(0.05, 0.9, 5),
        Stage(0.01, 0.1, 40),
        Stage(0.03, 1.0, 20),
        Stage(0.02, 0.2, 0),
    ]
    for algorithm, twin in ((RSCDRO, twins.Scdro), (RASCDRO, twins.Ascdro)):
        opt, _, _ = run_in_lockstep(
            lambda model, algorithm=algorithm: algorithm(
                model.parameters(), stages, 0.2, mu=0.2, temperature=PrintedTemperature(initial=LAM1)
            ),
            lambda w, twin=twin: twin(w, LAM1, 0.2, None, None, mu=0.2, stages=[tuple(stage) for stage in stages]),
        )
        assert opt.stage == 4


@pytest.mark.parametrize(("algorithm", "twin"), [(SCDRO, twins.Scdro), (ASCDRO, twins.Ascdro)])
def test_parameter_groups_have_their_own_lr_and_weight_decay(algorithm, twin):
    lr, rho, beta = 0.02, 0.3, 0.4
    scale, wd = np.ones(K * D + K), np.full(K * D + K, 0.05)
    scale[K * D :], wd[K * D :] = 3.0, 0.0
    run_in_lockstep(
        lambda model: algorithm(
            [{"params": [model.weight], "weight_decay": 0.05}, {"params": [model.bias], "lr": 3 * lr}],
            lr,
            rho,
            beta=beta,
            temperature=PrintedTemperature(initial=LAM1),
        ),
        lambda w: twin(w, LAM1, rho, lr, beta, wd=wd, scale=scale),
    )


def test_varying_batch_sizes_and_single_samples():
    rng = np.random.default_rng(5)
    indices = [rng.choice(N, rng.integers(1, 12), replace=False) for _ in range(STEPS)]
    run_in_lockstep(
        lambda model: SCDRO(model.parameters(), 0.05, 0.3, beta=0.3, temperature=PrintedTemperature(initial=LAM1)),
        lambda w: twins.Scdro(w, LAM1, 0.3, 0.05, 0.3),
        indices=indices,
    )
    run_in_lockstep(
        lambda model: ASCDRO(model.parameters(), 0.01, 0.3, beta=0.5, temperature=PrintedTemperature(initial=LAM1)),
        lambda w: twins.Ascdro(w, LAM1, 0.3, 0.01, 0.5),
        indices=indices,
    )


# -- exp(20000): float32 models at lam = 1e-3 ---


@pytest.mark.parametrize("lam_lr", [0.0, 1e-8])
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("algorithm", "twin"), [(SCDRO, twins.Scdro), (ASCDRO, twins.Ascdro)])
def test_float32_at_the_smallest_temperature(algorithm, twin, beta, lam_lr):
    """Losses come from a table, so that both see the same float32 numbers; their gradients are fixed vectors."""
    lam, lr, rho, dim, m, steps = 1e-3, 0.02, 0.5, 5, 6, 100
    rng = np.random.default_rng(3)
    w = nn.Parameter(torch.tensor(rng.normal(size=dim), dtype=torch.float32))
    opt = algorithm([w], lr, rho, beta=beta, lam0=5e-4, temperature=PrintedTemperature(initial=lam, lr=lam_lr))
    exact = twin(twins.precise(w.detach().numpy()), twins.mpmath.mpf(lam), rho, lr, beta, lam0=5e-4, lam_eta=lam_lr)
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


@pytest.mark.parametrize("fall", [0.01, 0.03, 5.0])
def test_reset_where_s_is_lost_to_cancellation(fall):
    """The same batch again, its losses lower by `fall`: s - ghat' = 0 leaves exp(-fall/lam) of the largest term."""
    lam, lr, beta = 1e-3, 0.02, 0.1
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = ASCDRO([w], lr, 0.5, beta=beta, temperature=PrintedTemperature(initial=lam, lr=0.0))
    exact = twins.Ascdro(twins.precise(np.zeros(2)), twins.mpmath.mpf(lam), 0.5, lr, beta, lam_eta=0.0)
    rows, high = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([20.0, 19.999])
    for tables in ([high], [high, high - fall]):
        calls = iter(tables)
        opt.step(lambda calls=calls: torch.tensor(next(calls)) + torch.tensor(rows) @ (w - w.detach()))
        exact.step(lambda at, tables=tables: (twins.precise(tables[-1 if at is exact.w else 0]), twins.precise(rows)))
    assert opt.resets.item() == exact.resets == (fall > 0.02)
    assert distance(w.detach(), exact.w) <= 1e-9
    assert distance(opt.log_s.item(), exact.log_s) <= 1e-9


# -- identities ---

TEMPERATURES = {
    "printed": lambda: PrintedTemperature(initial=LAM1, lr=0.01),
    "default": WindowTemperature,
    "default, initial lam": lambda: WindowTemperature(0.7),
}


def exact_gradients(model, x, y, lam, rho, weight=None):
    """(grad_w F, dF/dlam): by autograd through scdro.objective, and by the formulas of section 1."""
    lam_variable = torch.tensor(lam, dtype=torch.float64, requires_grad=True)
    losses = cross_entropy(model(x), y, reduction="none")
    value = scdro.objective(losses, lam_variable, rho, sample_weight=weight)
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
    source = PrintedTemperature(initial=LAM1, lr=0.0) if temperature == "printed" else WindowTemperature()
    opt = algorithm(model.parameters(), 0.0, rho, beta=beta, temperature=source, window=5 * N)
    closure, before = losses_of(model, x, y, slice(None)), flat(model)
    losses = cross_entropy(model(x), y, reduction="none").detach()
    lam = LAM1 if temperature == "printed" else scdro.worst_case(losses, rho).lam.item()
    expected = exact_gradients(model, x, y, lam, rho)
    for _ in range(20):
        opt.step(closure)
        assert (flat(model) == before).all()
        assert opt.lam.item() == pytest.approx(lam, rel=1e-12)
        assert opt.log_s.item() == pytest.approx(math.log(np.exp(losses.numpy() / lam).mean()), abs=1e-10)
    opt.param_groups[0]["lr"] = 1.0
    if temperature == "printed":
        opt.temperature.lr = 0.01
    opt.step(closure)
    for gradient, d_lam in expected:
        np.testing.assert_allclose(before - flat(model), gradient, rtol=0, atol=1e-10)
        if temperature == "printed":
            assert (lam - opt.lam.item()) / 0.01 == pytest.approx(d_lam, abs=1e-10)


def frozen(algorithm, temperature, params, lr, beta, lam):
    """lam stays: by lr = 0, or for the default, by lam = lam0 and a radius that the losses cannot spend."""
    if temperature == "printed":
        return algorithm(params, lr, 0.4, beta=beta, temperature=PrintedTemperature(initial=lam, lr=0.0))
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
