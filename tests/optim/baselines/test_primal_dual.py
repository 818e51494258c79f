"""What the primal-dual methods are made of, against independent oracles; and literal twins of SPD, PG-SMD2, AccMDA."""

import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize
from scipy.special import lambertw
from scipy.stats import chisquare
from torch.utils.data import DataLoader, TensorDataset

import scdro
from logistic import N, flat, losses_of, problem
from scdro.optim import PGSMD2, SPD, AccMDA
from scdro.optim.baselines._dual import Dual, LogSumTree, Multipliers, euclidean_kl_ball, tempered
from scdro.optim.samplers import DrawnBatches

RHO = 0.3


def kl(p):
    p = np.asarray(p)
    return float(np.sum(p[p > 0] * np.log(p[p > 0] * len(p))))


# -- the tree ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.floats(0.0, 300.0), st.integers(0, 10**6))
def test_the_tree_sums_what_its_leaves_hold(n, spread, seed):
    rng = np.random.default_rng(seed)
    logs = spread * rng.normal(size=n)
    tree = LogSumTree(torch.tensor(logs))
    for _ in range(3):
        index = rng.choice(n, min(n, 5), replace=False)
        logs[index] = spread * rng.normal(size=len(index))
        tree.update(torch.tensor(index), torch.tensor(logs[index]))
        top = logs.max()
        p = np.exp(logs - top) / np.exp(logs - top).sum()
        assert tree.total == pytest.approx(top + math.log(np.exp(logs - top).sum()), abs=1e-11 * (1 + spread))
        assert tree.kl == pytest.approx(kl(p), abs=1e-10 * (1 + spread))
        np.testing.assert_array_equal(tree.log_weights.numpy(), logs)


@pytest.mark.parametrize("n", [3, 32, 33, 1500])
def test_the_tree_draws_by_weight(n):
    rng = np.random.default_rng(n)
    weights = rng.gamma(1.0, size=n) + 0.05
    weights[rng.choice(n, n // 3, replace=False)] = 0.0
    with np.errstate(divide="ignore"):
        tree = LogSumTree(torch.tensor(np.log(weights) - 500.0))  # exp(-500) of it is still drawn right
    draws = tree.draw(40_000, torch.Generator().manual_seed(1))
    found = np.bincount(draws.numpy(), minlength=n)
    assert len(found) == n
    assert (found[weights == 0] == 0).all()
    live = weights > 0
    assert chisquare(found[live], 40_000 * weights[live] / weights.sum()).pvalue > 1e-3


# -- projections ------------------------------------------------------------------------------------------------------


def by_cone_program(n, cost, rho):
    p = cp.Variable(n, nonneg=True)
    program = cp.Problem(cp.Minimize(cost(p)), [cp.sum(p) == 1, cp.sum(cp.rel_entr(p, np.full(n, 1 / n))) <= rho])
    program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
    return p.value


@pytest.mark.parametrize("rho", [0.01, 0.3, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_tempering_is_the_kl_projection(rho, seed):
    q = np.random.default_rng(seed).dirichlet(np.full(12, 0.3 + seed)) + 0.01
    q /= q.sum()
    found = tempered(torch.tensor(np.log(q) + 3.0), rho).exp().numpy()
    np.testing.assert_allclose(found, by_cone_program(12, lambda p: cp.sum(cp.rel_entr(p, q)), rho), atol=1e-4)
    np.testing.assert_allclose(found, temper(q, rho), atol=1e-10)
    assert kl(found) <= rho + 1e-12
    assert kl(found) == pytest.approx(min(rho, kl(q)), rel=1e-9)


@pytest.mark.parametrize("rho", [0.01, 0.3, 1.5])
@pytest.mark.parametrize("scale", [0.03, 1.0, 20.0])
def test_the_euclidean_projection_against_cvxpy(rho, scale):
    z = scale * np.random.default_rng(int(100 * rho)).normal(size=12)
    found, _ = euclidean_kl_ball(torch.tensor(z), rho)
    np.testing.assert_allclose(found.numpy(), by_cone_program(12, lambda p: cp.sum_squares(p - z), rho), atol=3e-5)


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 60), st.floats(-5, 5), st.floats(-5, 0.8), st.integers(0, 10**6), st.booleans())
def test_the_euclidean_projection_satisfies_its_conditions(n, log_scale, log_rho, seed, with_guess):
    """Stationarity, feasibility, complementary slackness: for a convex problem, that is optimality."""
    rng, rho = np.random.default_rng(seed), 10.0**log_rho
    scale = 10.0**log_scale
    z = scale * rng.normal(size=n)
    guess = Multipliers(*rng.normal(size=2)) if with_guess else None
    p, (m, nu) = euclidean_kl_ball(torch.tensor(z), rho, guess)
    p = p.numpy()
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert kl(p) <= rho * (1 + 1e-9) + 1e-12
    if nu > 0:
        assert kl(p) == pytest.approx(rho, rel=1e-8, abs=1e-12)
        live = p > 1e-280
        residual = z - p - nu * np.log(np.where(live, p, 1.0)) - m
        np.testing.assert_allclose(residual[live], 0.0, atol=1e-8 * (1.0 + scale + nu))
    else:
        threshold = (z - p)[p > 0]
        assert np.ptp(threshold) <= 1e-10 * (1 + scale)
        assert (z[p == 0] <= threshold.mean() + 1e-10 * (1 + scale)).all()


@pytest.mark.parametrize("nu", [1e-300, 1e-18, 1e-9, 1e9])
def test_a_bad_guess_does_no_harm(nu):
    z = torch.tensor([3.0, 0.0, 0.0, 1.0, 2.0], dtype=torch.float64)
    exact, _ = euclidean_kl_ball(z, 0.1)
    found, _ = euclidean_kl_ball(z, 0.1, Multipliers(0.5, nu))
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)


def test_the_euclidean_projection_from_the_last_answer():
    rng = np.random.default_rng(0)
    z = 1 / 2000 + 1e-3 * rng.exponential(size=2000)
    _, last = euclidean_kl_ball(torch.tensor(z), 0.1)
    z += 1e-5 * rng.normal(size=2000)
    cold, warm = euclidean_kl_ball(torch.tensor(z), 0.1), euclidean_kl_ball(torch.tensor(z), 0.1, last)
    assert last.nu > 0
    np.testing.assert_allclose(warm[0], cold[0], rtol=0, atol=1e-13)


# -- the dual ---------------------------------------------------------------------------------------------------------


def test_the_dual_stays_in_its_ball_and_weights_add_up():
    dual, rng = Dual(500, RHO), np.random.default_rng(0)
    for _ in range(50):
        dual.ascend(torch.tensor(rng.integers(0, 500, 8)), torch.tensor(rng.exponential(size=8)))
        assert dual.kl <= RHO + 1e-12
        assert dual.log_p.exp().sum() == pytest.approx(1.0)
    assert dual.kl == pytest.approx(RHO, rel=1e-9)
    for level, scale in ((0.0, 1.0), (1e9, 1e-6)):
        dual.respond(torch.tensor(level + scale * rng.normal(size=500)), 1e-9)
        assert dual.kl == pytest.approx(RHO, rel=1e-9)


def test_the_dual_adds_up_what_a_sample_drawn_twice_gets():
    one, two = Dual(20, 5.0), Dual(20, 5.0)
    one.ascend(torch.tensor([3, 7, 3]), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64))
    two.ascend(torch.tensor([3, 7]), torch.tensor([0.5, 0.5], dtype=torch.float64))
    torch.testing.assert_close(one.log_p, two.log_p)


@pytest.mark.parametrize("uniform", [False, True])
def test_the_dual_gradient_is_unbiased(uniform):
    """The mean of l_I e_I / p_I over draws is l: by summing over all draws, not by sampling."""
    model, x, y, _ = problem()
    opt = SPD(model.parameters(), n=N, rho=RHO, uniform=uniform)
    opt._dual.respond(torch.linspace(0, 2, N, dtype=torch.float64), 1e-3)
    losses = losses_of(model, x, y, torch.arange(N))().detach()
    chance = np.full(N, 1 / N) if uniform else opt.weights.numpy()
    expected = np.zeros(N)
    for i in range(N):
        batch = opt._tracked.read(losses[[i]])
        expected[i] += chance[i] * float(opt._dual_gradient(batch, torch.tensor([i]))[0])
    np.testing.assert_allclose(expected, losses.numpy(), rtol=1e-12)


# -- twins: linear domain, scipy and Lambert's W, one sample at a time where the paper does so ------------------------


def temper(q, rho):
    q = q / q.sum()
    if kl(q) <= rho:
        return q

    def p(nu):
        e = q ** (1 / (1 + nu))
        return e / e.sum()

    return p(brentq(lambda nu: kl(p(nu)) - rho, 0.0, 1e6, xtol=1e-15))


def nearest(z, rho):
    """Two nested roots with Lambert's W, as the formula is written."""
    low = z.max() - 1.0
    simplex = np.maximum(z - brentq(lambda m: np.maximum(z - m, 0).sum() - 1, low, z.max(), xtol=1e-16), 0)
    if kl(simplex) <= rho:
        return simplex

    def p(nu):
        def at(m):
            return nu * lambertw(np.exp((z - m) / nu) / nu).real

        high = z.max() + nu * math.log(len(z))
        return at(brentq(lambda m: at(m).sum() - 1, low, high, xtol=1e-16))

    return p(math.exp(brentq(lambda t: kl(p(math.exp(t))) - rho, -6.5, 3.0, xtol=1e-15)))


class SpdTwin:
    def __init__(self, w, lr, dual_lr, rho, wd=0.0, uniform=False):
        self.w, self.lr, self.dual_lr, self.rho, self.wd, self.uniform = w, lr, dual_lr, rho, wd, uniform
        self.p = np.full(N, 1 / N)

    def step(self, index, evaluate):
        losses, gradients = evaluate(self.w)
        size = len(index)
        weights = N * self.p[index] / size if self.uniform else np.full(size, 1 / size)
        ascent = np.zeros(N)
        for i, l in zip(index, losses, strict=True):
            ascent[i] += l * N / size if self.uniform else l / (size * self.p[i])
        self.w = self.primal(weights @ gradients + self.wd * self.w)
        self.p = temper(self.p * np.exp(self.dual_rate() * ascent), self.rho)

    def primal(self, gradient):
        return self.w - self.lr * gradient

    def dual_rate(self):
        return self.dual_lr


class PgsmdTwin(SpdTwin):
    def __init__(self, *args, gamma, length, everything, **more):
        super().__init__(*args, **more)
        self.gamma, self.length, self.everything, self.k = gamma, length, everything, 0
        self.begin()

    def begin(self):
        self.k += 1
        self.anchor, self.visited = self.w, []
        losses = self.everything(self.w)[0]

        def p(lam):
            e = np.exp((losses - losses.max()) / lam)
            return e / e.sum()

        self.p = p(math.exp(brentq(lambda t: kl(p(math.exp(t))) - self.rho, -5, 8, xtol=1e-14)))

    def step(self, index, evaluate):
        super().step(index, evaluate)
        if len(self.visited) == self.k * self.length:
            self.w = np.mean(self.visited, axis=0)
            self.begin()

    def primal(self, gradient):
        eta = self.lr / self.k
        w = minimize(
            lambda v: (
                gradient @ v + self.gamma / 2 * ((v - self.anchor) ** 2).sum() + ((v - self.w) ** 2).sum() / 2 / eta
            ),
            self.w,
            jac=lambda v: gradient + self.gamma * (v - self.anchor) + (v - self.w) / eta,
            tol=1e-13,
        ).x
        self.visited.append(w)
        return w

    def dual_rate(self):
        return self.dual_lr / self.k


class AccmdaTwin:
    def __init__(self, w, lr, dual_lr, rho, k=1.0, m=8.0, c=4.0):
        self.w, self.lr, self.dual_lr, self.rho, self.k, self.m, self.c = w, lr, dual_lr, rho, k, m, c
        self.y, self.t = np.full(N, 1 / N), 0

    def gradients(self, w, y, index, evaluate):
        losses, gradients = evaluate(w)
        dual = np.zeros(N)
        for i, l in zip(index, losses, strict=True):
            dual[i] += N * l / len(index)
        return (N * y[index] / len(index)) @ gradients, dual

    def eta(self, t):
        return self.k / (self.m + t) ** (1 / 3)

    def step(self, index, evaluate):
        g, d = self.gradients(self.w, self.y, index, evaluate)
        if self.t == 0:
            self.v, self.u = g, d
        else:
            alpha = min(1.0, self.c * self.eta(self.t - 1) ** 2)
            g_old, d_old = self.gradients(*self.old, index, evaluate)
            self.v, self.u = g + (1 - alpha) * (self.v - g_old), d + (1 - alpha) * (self.u - d_old)
        self.old = self.w, self.y
        eta = self.eta(self.t)
        self.w = self.w + eta * (self.w - self.lr * self.v - self.w)
        self.y = self.y + eta * (nearest(self.y + self.dual_lr * self.u, self.rho) - self.y)
        self.t += 1


def lockstep(opt, twin, model, x, y, by_hand, steps, atol, weights_of):
    """Batches drawn from the method's own p where it draws; both must agree on w and p at every step."""
    rng, g = np.random.default_rng(2), torch.Generator().manual_seed(3)
    drawing = isinstance(opt, SPD) and not opt.uniform
    for _ in range(steps):
        index = opt.draw(6, g).numpy() if drawing else rng.integers(0, N, 6)
        twin.step(index, by_hand.batch(index))
        opt.step(losses_of(model, x, y, index), torch.tensor(index))
        np.testing.assert_allclose(flat(model), twin.w, rtol=0, atol=atol)
        np.testing.assert_allclose(opt.weights.numpy(), weights_of(twin), rtol=0, atol=atol)
    assert opt.kl.item() == pytest.approx(kl(weights_of(twin)), abs=1e-6)
    assert opt.ess.item() == pytest.approx(1 / (N * (weights_of(twin) ** 2).sum()), rel=1e-6)


@pytest.mark.parametrize("uniform", [False, True])
def test_spd_in_lockstep(uniform):
    model, x, y, by_hand = problem()
    opt = SPD(model.parameters(), 0.1, RHO, n=N, dual_lr=0.05, uniform=uniform, weight_decay=0.01)
    twin = SpdTwin(flat(model), 0.1, 0.05, RHO, wd=0.01, uniform=uniform)
    lockstep(opt, twin, model, x, y, by_hand, 80, 1e-9, lambda t: t.p)
    assert opt.kl.item() == pytest.approx(RHO)  # the constraint did bind


@pytest.mark.parametrize("uniform", [False, True])
def test_pgsmd2_in_lockstep(uniform):
    model, x, y, by_hand = problem()
    opt = PGSMD2(
        model.parameters(),
        0.1,
        RHO,
        n=N,
        all_losses=losses_of(model, x, y, slice(None)),
        dual_lr=0.05,
        gamma=0.5,
        stage_steps=7,
        uniform=uniform,
        weight_decay=0.05,
    )
    everything = by_hand.batch(np.arange(N))
    twin = PgsmdTwin(flat(model), 0.1, 0.05, RHO, uniform=uniform, gamma=0.5, length=7, everything=everything, wd=0.05)
    lockstep(opt, twin, model, x, y, by_hand, 50, 1e-6, lambda t: t.p)
    assert opt.stage == twin.k == 4


def test_accmda_in_lockstep():
    model, x, y, by_hand = problem()
    opt = AccMDA(model.parameters(), 0.3, RHO, n=N, dual_lr=0.02)
    twin = AccmdaTwin(flat(model), 0.3, 0.02, RHO)
    lockstep(opt, twin, model, x, y, by_hand, 60, 1e-8, lambda t: t.y)
    assert opt.kl.item() > 0.1


def test_pgsmd2_draws_its_first_batch_from_the_exact_p():
    model, x, y, _ = problem()
    everything = losses_of(model, x, y, slice(None))
    opt = PGSMD2(model.parameters(), n=N, rho=RHO, all_losses=everything)
    opt.draw(1, torch.Generator().manual_seed(0))
    exact = scdro.worst_case(everything().detach(), RHO, 1e-9).weights
    torch.testing.assert_close(opt.weights, exact, rtol=1e-6, atol=1e-9)


def test_pgsmd2_takes_another_parameter_group_in_the_middle_of_a_stage():
    model, x, y, _ = problem()
    opt = PGSMD2(model.parameters(), n=N, uniform=True, all_losses=losses_of(model, x, y, slice(None)))
    index, extra = torch.arange(6), torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    opt.step(losses_of(model, x, y, index), index)
    opt.add_param_group({"params": [extra]})
    opt.step(lambda: losses_of(model, x, y, index)() + extra, index)
    assert extra.item() < 1.0


def test_pgsmd2_keeps_a_stage_that_could_not_end():
    """all_losses fails at the end of a stage: the model stands at the mean, and the next step tries again."""
    model, x, y, _ = problem()
    healthy = [True]

    def all_losses():
        losses = losses_of(model, x, y, slice(None))()
        return losses if healthy[0] else losses * math.nan

    opt = PGSMD2(model.parameters(), 0.1, RHO, n=N, all_losses=all_losses, stage_steps=2, uniform=True)
    index = torch.arange(6)
    opt.step(losses_of(model, x, y, index), index)
    healthy[0] = False
    with pytest.raises(scdro.NonFiniteLossError, match="all_losses"):
        opt.step(losses_of(model, x, y, index), index)
    assert opt.stage == 1
    healthy[0] = True
    opt.step(losses_of(model, x, y, index), index)
    assert opt.stage == 2


# -- use --------------------------------------------------------------------------------------------------------------


def test_a_data_loader_draws_from_p():
    model, x, y, _ = problem()
    opt = SPD(model.parameters(), 0.1, RHO, n=N, dual_lr=0.1)
    opt._dual.respond(torch.linspace(0, 3, N, dtype=torch.float64), 1e-3)
    loader = DataLoader(TensorDataset(x, y, torch.arange(N)), batch_sampler=opt.batch_sampler(10))
    assert len(loader) == 6
    for xb, yb, index in loader:
        opt.step(lambda m=model, a=xb, b=yb: torch.nn.functional.cross_entropy(m(a), b, reduction="none"), index)
    p = opt.weights.numpy()
    frozen = DrawnBatches(lambda g: opt.draw(N, g), 200, seed=1)
    found = np.bincount(np.concatenate([np.array(batch) for batch in frozen]), minlength=N)
    assert chisquare(found, found.sum() * p).pvalue > 1e-3


def test_epochs_of_a_sampler():
    """A new epoch is whole, also after one that was left early; only a loaded one goes on where it stopped."""
    sampler = DrawnBatches(lambda g: torch.randint(50, (3,), generator=g), 5)
    assert [len([b for _, b in zip(range(stop), sampler, strict=False)]) for stop in (5, 9, 2, 9)] == [5, 5, 2, 5]
    whole = iter(DrawnBatches(lambda g: torch.randint(50, (3,), generator=g), 5))
    expected = [next(whole) for _ in range(5)]
    first, second = (DrawnBatches(lambda g: torch.randint(50, (3,), generator=g), 5) for _ in range(2))
    beginning = iter(first)
    found = [next(beginning) for _ in range(2)]
    second.load_state_dict(first.state_dict())
    assert found + list(second) == expected
    assert len(list(second)) == 5
    with pytest.raises(scdro.CheckpointError, match="steps"):
        DrawnBatches(lambda g: torch.arange(3), 4).load_state_dict(first.state_dict())


def test_batches_that_were_not_drawn_from_p_are_refused():
    model, x, y, _ = problem()
    index = torch.arange(6)
    opt = SPD(model.parameters(), n=N)
    with pytest.raises(scdro.ClosureError, match="batch_sampler"):
        opt.step(losses_of(model, x, y, index), index)
    with pytest.raises(scdro.HyperparameterError, match="uniform"):
        SPD(model.parameters(), n=N, uniform=True).batch_sampler(4)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (None, "no index"),
        (torch.arange(5), "6 losses"),
        (torch.arange(6.0), "integer"),
        (torch.ones(6, dtype=torch.bool), "integer"),
        (torch.arange(6) - 1, "-1"),
        (torch.arange(6) + N, "n = 60"),
    ],
)
@pytest.mark.parametrize("method", [SPD, AccMDA])
def test_bad_positions(method, index, says):
    model, x, y, _ = problem()
    opt = method(model.parameters(), n=N, **({"uniform": True} if method is SPD else {}))
    before = flat(model), str(opt.state_dict())
    with pytest.raises(scdro.ClosureError, match=says):
        opt.step(losses_of(model, x, y, slice(0, 6)), index)
    with pytest.raises(scdro.LossError, match="sample_weight"):
        opt.step(losses_of(model, x, y, slice(0, 6)), torch.arange(6), sample_weight=torch.ones(6))
    assert (flat(model) == before[0]).all()
    assert str(opt.state_dict()) == before[1]


@pytest.mark.parametrize("method", [SPD, AccMDA])
def test_a_checkpoint_of_another_data_set(method):
    model, *_ = problem()
    with pytest.raises(scdro.CheckpointError, match="n = 60"):
        method(model.parameters(), n=N).load_state_dict(method(model.parameters(), n=N + 1).state_dict())


@pytest.mark.parametrize("method", [SPD, AccMDA])
def test_a_checkpoint_of_a_larger_ball_is_brought_into_this_one(method):
    model, x, y, _ = problem()
    wide = method(model.parameters(), n=N, rho=2.0, dual_lr=1.0)
    for k in range(8):
        index = wide.draw(6, torch.Generator().manual_seed(k)) if method is SPD else torch.arange(6)
        wide.step(losses_of(model, x, y, index), index)
    assert wide.kl > 0.2
    narrow = method(model.parameters(), n=N, rho=0.05)
    narrow.load_state_dict(wide.state_dict())
    assert narrow.kl <= 0.05 + 1e-9


@pytest.mark.parametrize("method", [SPD, AccMDA])
def test_an_incomplete_checkpoint_changes_nothing(method):
    model, _x, _y, _ = problem()
    opt = method(model.parameters(), n=N)
    state = method(model.parameters(), n=N).state_dict()
    name = "log_p" if method is SPD else "u"
    for broken in (None, torch.ones(3, dtype=torch.float64)):
        state["state"][0][f"{method.__name__}.{name}"] = broken
        before = str(opt.state_dict())
        with pytest.raises(scdro.CheckpointError, match="n = 60"):
            opt.load_state_dict(state)
        assert str(opt.state_dict()) == before


@pytest.mark.parametrize(
    "build",
    [
        lambda p: SPD(p, n=0),
        lambda p: SPD(p, n=True),
        lambda p: SPD(p, n=2.5),
        lambda p: SPD(p, n=9, rho=-1.0),
        lambda p: SPD(p, n=9, dual_lr=-1.0),
        lambda p: SPD(p, n=9).batch_sampler(0),
        lambda p: SPD(p, n=9).batch_sampler(2, steps=0),
        lambda p: PGSMD2(p, n=9, all_losses=3),
        lambda p: PGSMD2(p, n=9, all_losses=list, gamma=-1.0),
        lambda p: PGSMD2(p, n=9, all_losses=list, stage_steps=0),
        lambda p: AccMDA(p, n=0),
        lambda p: AccMDA(p, n=9, k=3.0),
        lambda p: AccMDA(p, n=9, c=0.0),
    ],
)
def test_bad_settings(build):
    with pytest.raises(scdro.HyperparameterError, match="expected"):
        build([torch.nn.Parameter(torch.ones(1))])


def test_all_losses_must_be_all():
    model, x, y, _ = problem()
    opt = PGSMD2(model.parameters(), n=N, all_losses=losses_of(model, x, y, slice(0, 5)), uniform=True)
    with pytest.raises(scdro.LossError, match="all 60 samples"):
        opt.step(losses_of(model, x, y, slice(0, 6)), torch.arange(6))


def test_rho_zero_is_erm():
    model, x, y, _ = problem()
    for opt in (
        SPD(model.parameters(), n=N, rho=0.0, dual_lr=1.0, uniform=True),
        AccMDA(model.parameters(), n=N, rho=0.0),
    ):
        opt.step(losses_of(model, x, y, slice(0, 6)), torch.arange(6))
        torch.testing.assert_close(opt.weights, torch.full((N,), 1 / N, dtype=torch.float64))
