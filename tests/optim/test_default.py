"""The default: lam from the recent losses, s carried and capped, STORM normalised. Its twin, corners and limits."""

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import scdro
import twins
from scdro import ASCDRO, RASCDRO, RSCDRO, SCDRO, KLRobustLoss, PrintedTemperature, WindowTemperature, worst_case

STEPS, N, D, K = 100, 120, 4, 3
ALGORITHMS = [SCDRO, ASCDRO]


def problem(seed=0, rare=12):
    """Logistic regression with a small hard group; the same in NumPy with gradients by hand."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(N, D, generator=g, dtype=torch.float64)
    y = (x @ torch.randn(D, K, generator=g, dtype=x.dtype) + torch.randn(N, K, generator=g, dtype=x.dtype)).argmax(1)
    y[:rare] = (y[:rare] + 1) % K
    model = nn.Linear(D, K, dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    return model, x, y, twins.Logistic(x.numpy(), y.numpy(), K)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().copy()


def batches(steps=STEPS, low=10, high=10, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.choice(N, rng.integers(low, high + 1), replace=False) for _ in range(steps)]


def losses_of(model, x, y, index, scale=1.0, shift=0.0):
    return lambda: scale * cross_entropy(model(x[index]), y[index], reduction="none") + shift


def distance(a, b):
    a, b = np.atleast_1d(np.asarray(a, dtype=float)), np.atleast_1d(np.asarray(b, dtype=float))
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b))))


def scaled(evaluate, scale):
    return lambda w: tuple(scale * part for part in evaluate(w))


def run_in_lockstep(
    algorithm, indices, *, lr=0.2, rho=0.5, beta=0.2, ours=None, theirs=None, weighted=False, scales=None
):
    model, x, y, by_hand = problem()
    ours, theirs = {"window": 2048, **(ours or {})}, {"window": 2048, **(theirs or {})}
    twin = twins.Default(flat(model), rho, lr, beta, storm=algorithm in (ASCDRO, RASCDRO), **theirs)
    if twin.stages is None:
        opt = algorithm(model.parameters(), lr, rho, beta=beta, **ours)
    else:
        opt = algorithm(model.parameters(), twin.stages, rho, **ours)
    rng, history = np.random.default_rng(2), []
    for t, index in enumerate(indices, 1):
        weight = rng.uniform(0.0, 2.0, len(index)) * (rng.random(len(index)) < 0.8) + 1e-3 if weighted else None
        scale = 1.0 if scales is None else scales[t - 1]
        opt.step(losses_of(model, x, y, index, scale), sample_weight=None if weight is None else torch.tensor(weight))
        twin.step(scaled(by_hand.batch(index), scale), weight)
        for name, a, b in (
            ("w", flat(model), twin.w),
            ("lam", opt.lam.item(), twin.lam),
            ("log s", opt.log_s.item(), twin.log_s),
        ):
            assert distance(a, b) <= 1e-9, f"{name} differs by {distance(a, b):.1e} after step {t}"
        history.append((twin.lam, twin.capped, twin.clipped))
    return opt, twin, np.array(history)


SETTINGS = {
    "plain": ({}, {}),
    "initial": ({"temperature": WindowTemperature(0.3)}, {"lam": 0.3}),
    "weight_decay": ({"weight_decay": 0.05}, {"wd": 0.05}),
    "mu": ({"mu": 0.1}, {"mu": 0.1}),
    "radius": ({"radius": 0.8}, {"radius": 0.8}),
    "loss_bound": ({"loss_bound": 20.0}, {"bound": 20.0}),
    "window": ({"window": 64}, {"window": 64}),
    "tiny window": ({"window": 7}, {"window": 7}),
    "trim": ({"trim": 0.033}, {"trim": 0.033}),
    "trim, window": ({"trim": 0.127, "window": 50}, {"trim": 0.127, "window": 50}),
    "cap, clip": ({"temperature": WindowTemperature(cap=1.1, clip=0.05)}, {"cap": 1.1, "clip": 0.05}),
    "lam0": ({"lam0": 0.6}, {"lam0": 0.6}),
    "no ceiling": ({"temperature": WindowTemperature(ceiling=None)}, {"ceiling_lams": None}),
    "no lag": ({"temperature": WindowTemperature(lag=None)}, {"lag": None}),
    "little lag": ({"temperature": WindowTemperature(lag=1.0)}, {"lag": 1.0}),
    "high ceiling": ({"temperature": WindowTemperature(ceiling=0.5)}, {"ceiling_lams": 0.5}),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lockstep_with_the_twin(algorithm, setting, weighted):
    ours, theirs = SETTINGS[setting]
    _, twin, history = run_in_lockstep(algorithm, batches(), ours=ours, theirs=theirs, weighted=weighted)
    if setting in ("plain", "window", "no ceiling", "trim"):
        assert (twin.topped > 0) == (setting in ("plain", "window"))
    if setting in ("no lag", "little lag"):
        assert (twin.late > 0) == (setting == "little lag")
    if setting == "lam0":
        assert (history[:, 0] == 0.6).any()
    elif setting != "mu":
        assert history[:, 0].std() > 0.01
    if setting == "cap, clip":
        assert history[:, 1].any()
        assert algorithm is SCDRO or history[:, 2].any()


@pytest.mark.parametrize("beta", [0.05, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lockstep_over_betas_and_batch_sizes(algorithm, beta):
    run_in_lockstep(algorithm, batches(low=1, high=30), beta=beta)


@pytest.mark.parametrize("rho", [0.01, 0.1, 1.0, 2.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lockstep_over_radii(algorithm, rho):
    run_in_lockstep(algorithm, batches(), rho=rho)


@pytest.mark.parametrize("algorithm", [RSCDRO, RASCDRO])
def test_lockstep_of_the_restarted_forms(algorithm):
    stages = [(0.2, 0.5, 20), (0.1, 0.3, 30), (0.05, 0.2, 20), (0.02, 0.1, 0)]
    opt, twin, _ = run_in_lockstep(
        algorithm, batches(), ours={"mu": 0.1, "weight_decay": 0.01}, theirs={"mu": 0.1, "wd": 0.01, "stages": stages}
    )
    assert opt.stage == twin.k == 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_batches_larger_than_the_window(algorithm):
    run_in_lockstep(algorithm, batches(low=5, high=40), ours={"window": 16}, theirs={"window": 16})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_single_samples(algorithm):
    """The first batch has one loss, KL 0: lam starts at lam0, and rises once the window has something to compare."""
    indices = batches(low=1, high=1)
    ours, theirs = {"lam0": 0.02}, {"lam0": 0.02}
    _, _, history = run_in_lockstep(algorithm, indices, lr=0.02, ours=ours, theirs=theirs)
    assert history[0, 0] == 0.02
    assert history[-1, 0] > 0.2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("trim", [0.0, 0.127])
@pytest.mark.parametrize("beta", [0.01, 0.1, 0.9])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lockstep_while_losses_rise_and_fall(algorithm, beta, trim, weighted):
    """A hundredfold for thirty batches, and back: s is held near the recent losses."""
    ours = theirs = {"window": 64, "trim": trim, "lam0": 0.02}
    scales = [1.0] * 20 + [100.0] * 30 + [1.0] * 50
    _, twin, _ = run_in_lockstep(
        algorithm, batches(), lr=0.002, beta=beta, ours=ours, theirs=theirs, scales=scales, weighted=weighted
    )
    assert twin.late > 0 or beta == 0.9


@pytest.mark.parametrize("beta", [0.2, 1.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_batches_that_are_trimmed_away(algorithm, beta):
    """A single sample above the ceiling is a batch of weight zero: s decays (with beta = 1 it stays), the model coasts,
    nothing is NaN."""
    ours, theirs = {"trim": 0.253, "lam0": 0.02}, {"trim": 0.253, "lam0": 0.02}
    _, twin, _ = run_in_lockstep(algorithm, batches(low=1, high=2), lr=0.02, beta=beta, ours=ours, theirs=theirs)
    assert twin.empty >= 5


@pytest.mark.parametrize("beta", [0.1, 1.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_printed_temperature_with_batches_that_are_trimmed_away(algorithm, beta):
    model, x, y, _ = problem()
    opt = algorithm(model.parameters(), 0.02, 0.5, beta=beta, trim=0.253, temperature=PrintedTemperature(initial=1.0))
    for index in batches(low=1, high=1):
        opt.step(losses_of(model, x, y, index))
        assert torch.isfinite(opt.lam)
        assert np.isfinite(flat(model)).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lam_is_near_the_root_of_the_recent_losses(algorithm):
    opt, twin, _ = run_in_lockstep(
        algorithm, batches(400, 32, 32), lr=0.05, theirs={"window": 256}, ours={"window": 256}
    )
    recent = np.array([loss for loss, _ in twin.recent])
    assert opt.lam.item() == pytest.approx(scdro.worst_case(recent, 0.5).lam, rel=0.05)
    assert opt.kl.item() == pytest.approx(0.5, abs=0.05)


# -- corners ---


@pytest.mark.parametrize("initial", [None, 5.0])
@pytest.mark.parametrize("level", [0.0, 5.0, -3.0, 1e6])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_equal_losses(algorithm, level, initial):
    """KL is 0 at every lam: lam falls to lam0, weights stay uniform, and the step is that of the plain mean."""
    w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    lr, beta, rows = 0.1, 0.3, torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [1.0, -1.0]], dtype=torch.float64)
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
    sgd = torch.optim.SGD(other.parameters(), lr, momentum=1 - beta, dampening=1 - beta, weight_decay=weight_decay)
    running = None
    for index in batches(low=1, high=20):
        weight = torch.linspace(0.1, 1.5 if weighted else 0.1, len(index), dtype=torch.float64)
        value = opt.step(losses_of(model, x, y, index), sample_weight=weight if weighted else None)
        sgd.zero_grad()
        mean = (losses_of(other, x, y, index)() * weight).sum() / weight.sum()
        mean.backward()
        sgd.step()
        np.testing.assert_allclose(flat(model), flat(other), rtol=0, atol=1e-12)
        running = mean.item() if running is None else (1 - beta) * running + beta * mean.item()
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
@pytest.mark.parametrize(("scale", "shift"), [(1e6, 0.0), (1e6, -5e6), (1.0, -7.0), (1e-6, 0.0), (-1.0, 0.0)])
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
    ("n", "trim", "kept"), [(10, 0.1, 9), (10, 0.2, 8), (30, 0.1, 27), (88, 0.25, 66), (20, 0.1, 18)]
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


# -- where it ends ---


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
    [(SCDRO, 1.0, N, 1e-9), (ASCDRO, 1.0, N, 1e-9), (SCDRO, 0.1, 30, 3e-3), (ASCDRO, 0.1, 30, 3e-3)],
)
def test_convergence_to_the_optimum(algorithm, beta, size, tolerance, rho):
    model, x, y, by_hand = problem()
    wd, lam0 = 0.05, 1e-3
    best, w = optimum(x, y, rho, lam0, wd)
    opt = algorithm(model.parameters(), 0.3, rho, beta=beta, weight_decay=wd, window=N if size == N else None)
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
    target = x @ torch.tensor([1.0, -2.0, 0.5]).double() + torch.randn(25, generator=g, dtype=torch.float64)
    w, t, lam, parts = cvxpy.Variable(3), cvxpy.Variable(25), cvxpy.Variable(), cvxpy.Variable(25)
    value = cvxpy.Variable()
    # lam log mean exp(t/lam) <= value  <=>  sum lam exp((t - value)/lam) <= 25 lam
    constraints = [t >= cvxpy.square(x.numpy() @ w - target.numpy()), lam >= lam0, cvxpy.sum(parts) <= 25 * lam]
    constraints += [cvxpy.constraints.ExpCone(t - value, lam * np.ones(25), parts)]
    best = cvxpy.Problem(cvxpy.Minimize(value + (lam - lam0) * rho), constraints).solve()
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    opt = SCDRO([parameter], 0.05, rho, beta=1.0)
    for _ in range(500):
        opt.step(lambda: (x @ parameter - target).square())
    residuals = (x @ parameter - target).square().detach()
    assert scdro.worst_case(residuals, rho).value.item() == pytest.approx(best, rel=1e-5)
    np.testing.assert_allclose(parameter.detach().numpy(), w.value, atol=1e-3)


def test_losses_that_jump_share_the_weight():
    """After a step that went too far all losses are above everything recent: none of them takes all the weight."""
    w = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    jumped = torch.tensor([50.0, 60.0, 80.0, 0.3], dtype=torch.float64)
    for ceiling, expected in ((0.0, [1 / 3, 1 / 3, 1 / 3, 0.0]), (None, [0.0, 0.0, 1.0, 0.0])):
        loss = scdro.KLRobustLoss(rho=0.5, temperature=WindowTemperature(cap=1.0, ceiling=ceiling))
        g = torch.Generator().manual_seed(0)
        for _ in range(50):
            loss(w.sum() * 0 + torch.rand(32, generator=g, dtype=torch.float64))
        lam = loss.lam.item()
        w.grad = None
        loss(w + jumped).backward()
        weights = w.grad / w.grad.sum()
        np.testing.assert_allclose(weights[:3], expected[:3], atol=0.01)
        assert weights[3] < math.exp(-0.5 / lam) + 1e-9


def test_the_ceiling_moves_with_the_losses():
    """Also where they are negative, and while the window is not full."""
    w = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    runs = []
    for level in (0.0, -1000.0):
        loss = scdro.KLRobustLoss(rho=0.5)
        gradients = []
        for k in range(6):
            w.grad = None
            loss(w + level + k * torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)).backward()
            gradients.append(w.grad.clone())
        runs.append(torch.stack(gradients))
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-7, atol=1e-9)


def test_a_fall_of_lam_leaves_lam_log_s_near():
    """lam falls to a hundredth of its start, and log s rises as much within steps that mix in 5% of each batch."""
    losses = torch.rand(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    robust = scdro.KLRobustLoss(0.5, beta=0.05, temperature=WindowTemperature(initial=30.0, cap=None))
    for _ in range(12):
        value = robust(losses.requires_grad_()).item()
    assert robust.lam.item() < 0.3
    assert value == pytest.approx(scdro.worst_case(losses.detach(), 0.5).value.item(), rel=0.2)


def gradient_masses(algorithm, levels, scales, beta, rho=0.5, batch=64):
    """The sum of the weights of each batch, read from the gradient of a parameter that shifts all losses."""
    w, g = nn.Parameter(torch.zeros((), dtype=torch.float64)), torch.Generator().manual_seed(0)
    opt = None if algorithm is scdro.KLRobustLoss else algorithm([w], 0.0, rho, beta=beta)
    robust, masses = scdro.KLRobustLoss(rho, beta=beta), []
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


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_small_beta_does_not_stop_before_the_model_fits(algorithm):
    """Least squares with targets of size 100: losses fall ten-thousandfold, faster than s by itself."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(500, 5, generator=g, dtype=torch.float64)
    target = 100 * x @ torch.randn(5, generator=g, dtype=torch.float64) + torch.randn(500, generator=g, dtype=x.dtype)
    w = nn.Parameter(torch.zeros(5, dtype=torch.float64))
    opt = algorithm([w], 0.05, 0.5, beta=0.01)
    for _ in range(1500):
        index = torch.randint(500, (64,), generator=g)
        opt.step(lambda index=index: (x[index] @ w - target[index]).square() / 2)
    assert (x @ w - target).square().mean().item() < 2.0


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


def test_views_before_the_first_batch_are_nan():
    module = torch.nn.Linear(2, 1)
    for source in (SCDRO(module.parameters(), rho=0.5), scdro.KLRobustLoss(0.5)):
        assert all(torch.isnan(getattr(source, name)) for name in ("lam", "kl", "ess"))


@pytest.mark.parametrize("period", [2, 3, 4, 16])
def test_a_large_batch_in_any_order_is_seen_evenly(period):
    """Every second loss of a batch of twice the window, and a class at every second place: the window held no other."""
    robust = KLRobustLoss(rho=0.5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        losses = torch.rand(2048, generator=generator, dtype=torch.float64)
        losses[1::period] += 3.0
        value = robust(losses.requires_grad_())
    hard = (robust.state.window.losses > 2.0).double().mean().item()
    assert hard == pytest.approx(1 / period, abs=0.02)
    assert value.item() == pytest.approx(worst_case(losses.detach(), 0.5).value.item(), rel=0.05)
