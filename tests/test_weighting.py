"""The weighting baselines against literal twins in the linear domain, and what the common interface asks of them."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import nn
from torch.nn.functional import cross_entropy

import scdro
from logistic import N, flat, losses_of, problem
from scdro.optim import ABSGD, ERM, Chi2, Chi2Penalty, CVaR, DualSGM, FastDRO, KLBall

STEPS = 100


class Twin:
    """w - lr v with v = momentum v + gradient, as printed in any textbook."""

    def __init__(self, w, lr, momentum=0.9, wd=0.0):
        self.w, self.lr, self.momentum, self.wd, self.v = w, lr, momentum, wd, None

    def step(self, evaluate, weight=None):
        losses, gradients = evaluate(self.w)
        q = np.full(len(losses), 1 / len(losses)) if weight is None else weight / weight.sum()
        g = self.weights(losses, q) @ gradients + self.wd * self.w
        self.v = g if self.v is None else self.momentum * self.v + g
        self.w = self.w - self.lr * self.v


class ErmTwin(Twin):
    def weights(self, l, q):
        return q


class AbsgdTwin(Twin):
    def __init__(self, *args, lam, gamma, **more):
        super().__init__(*args, **more)
        self.lam, self.gamma, self.u = lam, gamma, 0.0

    def weights(self, l, q):
        self.u = (1 - self.gamma) * self.u + self.gamma * (q * np.exp(l / self.lam)).sum()
        return q * np.exp(l / self.lam) / self.u


class DualTwin(Twin):
    def __init__(self, *args, rho, lam, lam0, dual_lr, **more):
        super().__init__(*args, **more)
        self.rho, self.lam, self.lam0, self.dual_lr, self.eta = rho, lam, lam0, dual_lr, None

    def weights(self, l, q):
        if self.eta is None:
            self.eta = self.lam * math.log((q * np.exp(l / self.lam)).sum())
        a = (l - self.eta) / self.lam
        e = q * np.exp(a)
        d_eta, d_lam = 1 - e.sum(), (e * (1 - a)).sum() - 1 + self.rho
        self.eta -= self.dual_lr * d_eta
        self.lam = max(self.lam - self.dual_lr * d_lam, self.lam0)
        return e


class FastTwin(Twin):
    def __init__(self, *args, response, **more):
        super().__init__(*args, **more)
        self.weights = response


def kl_response(l, q, rho=0.4):
    def p(lam):
        e = q * np.exp((l - l.max()) / lam)
        return e / e.sum()

    return p(brentq(lambda lam: (p(lam) * np.log(p(lam) / q)).sum() - rho, 0.05, 1e3, xtol=1e-14))


def cvar_response(l, q, alpha=0.3):
    p, left = np.zeros(len(l)), 1.0
    for i in np.argsort(-l):
        p[i] = min(q[i] / alpha, left)
        left -= p[i]
    return p


def chi2_response(l, q, rho=0.4):
    def p(eta):
        e = q * np.maximum(l - eta, 0)
        return e / e.sum()

    top = np.sort(l)[-2]
    return p(brentq(lambda eta: (q * (p(eta) / q - 1) ** 2).sum() / 2 - rho, l.min() - 1e4, top, xtol=1e-14))


def penalty_response(l, q, reg=0.7):
    eta = brentq(lambda eta: (q * np.maximum(l - eta, 0)).sum() - reg, l.min() - 10, l.max(), xtol=1e-15)
    return q * np.maximum(l - eta, 0) / reg


METHODS = {
    "ERM": (lambda p: ERM(p, 0.1), lambda w: ErmTwin(w, 0.1)),
    "ERM, decay": (
        lambda p: ERM(p, 0.1, momentum=0.5, weight_decay=0.05),
        lambda w: ErmTwin(w, 0.1, momentum=0.5, wd=0.05),
    ),
    "ABSGD": (lambda p: ABSGD(p, 0.02, 0.8, gamma=0.3), lambda w: AbsgdTwin(w, 0.02, lam=0.8, gamma=0.3)),
    "TERM": (lambda p: ABSGD(p, 0.02, 0.8, gamma=1.0), lambda w: AbsgdTwin(w, 0.02, lam=0.8, gamma=1.0)),
    "DualSGM": (
        lambda p: DualSGM(p, 0.01, 0.3, lam=1.0, dual_lr=0.05),
        lambda w: DualTwin(w, 0.01, rho=0.3, lam=1.0, lam0=1e-3, dual_lr=0.05),
    ),
    "FastDRO, KL": (
        lambda p: FastDRO(p, 0.02, KLBall(0.4, 1e-9)),
        lambda w: FastTwin(w, 0.02, response=kl_response),
    ),
    "FastDRO, CVaR": (lambda p: FastDRO(p, 0.02, CVaR(0.3)), lambda w: FastTwin(w, 0.02, response=cvar_response)),
    "FastDRO, chi2": (lambda p: FastDRO(p, 0.02, Chi2(0.4)), lambda w: FastTwin(w, 0.02, response=chi2_response)),
    "FastDRO, penalty": (
        lambda p: FastDRO(p, 0.02, Chi2Penalty(0.7)),
        lambda w: FastTwin(w, 0.02, response=penalty_response),
    ),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_lockstep_with_the_twin(name, weighted):
    model, x, y, by_hand = problem()
    make, make_twin = METHODS[name]
    opt, twin = make(model.parameters()), make_twin(flat(model))
    rng = np.random.default_rng(2)
    for _ in range(STEPS):
        index = rng.choice(N, 12, replace=False)
        weight = rng.uniform(0.5, 2.0, 12) if weighted else None
        opt.step(
            losses_of(model, x, y, index),
            torch.as_tensor(index),
            sample_weight=None if weight is None else torch.tensor(weight),
        )
        twin.step(by_hand.batch(index), weight)
        np.testing.assert_allclose(flat(model), twin.w, rtol=0, atol=1e-8 if "FastDRO" in name else 1e-10)
    if name == "DualSGM":
        assert opt.lam.item() == pytest.approx(twin.lam, abs=1e-10)
        assert opt.eta.item() == pytest.approx(twin.eta, abs=1e-10)
        assert opt.capped == 0


def test_erm_is_torch_sgd():
    runs = []
    for make in (lambda p: ERM(p, 0.1, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)):
        model, x, y, _ = problem()
        opt = make(model.parameters())
        for k in range(20):
            index = torch.arange(k, k + 10)
            if isinstance(opt, ERM):
                opt.step(losses_of(model, x, y, index))
            else:
                opt.zero_grad()
                cross_entropy(model(x[index]), y[index]).backward()
                opt.step()
        runs.append(flat(model))
    np.testing.assert_allclose(*runs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_equals_the_uninterrupted_one(name):
    runs = []
    for stop in (None, 7):
        model, x, y, _ = problem()
        opt = METHODS[name][0](model.parameters())
        for k in range(15):
            if k == stop:
                saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
                model = problem(seed=5)[0]
                opt = METHODS[name][0](model.parameters())
                model.load_state_dict(saved[0])
                opt.load_state_dict(saved[1])
            rows = torch.arange(k, k + 12)
            opt.step(losses_of(model, x, y, rows))
        runs.append(flat(model))
    assert (runs[0] == runs[1]).all()


@pytest.mark.parametrize("level", [0.0, 20.0, 1e6])
@pytest.mark.parametrize("name", [*METHODS, "small lam", "small dual"])
def test_huge_and_equal_losses(name, level):
    extra = {
        "small lam": lambda p: ABSGD(p, 1e-4, 1e-3),
        "small dual": lambda p: DualSGM(p, 1e-12, 0.5, lam=1e-3, dual_lr=1e-3),
    }
    w = nn.Parameter(torch.ones(3))
    opt = extra[name]([w]) if name in extra else METHODS[name][0]([w])
    g = torch.Generator().manual_seed(0)
    for spread in (0.0, 1.0, 20.0):
        for _ in range(5):
            x = torch.rand(8, 3, generator=g)
            opt.step(lambda x=x, s=spread: level + s * torch.sigmoid(x @ w))
    assert w.isfinite().all()


def test_dual_sgm_counts_what_it_caps():
    w = nn.Parameter(torch.zeros(1))
    opt = DualSGM([w], 0.0, 0.5, lam=1e-3, dual_lr=0.0)
    opt.step(lambda: w + torch.tensor([0.0, 0.0]))
    opt.step(lambda: w + torch.tensor([1.0, 0.0]))
    assert opt.capped == 1
    assert w.isfinite().all()


@pytest.mark.parametrize("name", METHODS)
def test_bad_batches(name):
    model, x, y, _ = problem()
    opt = METHODS[name][0](model.parameters())
    before = flat(model), copy.deepcopy(opt.state_dict())
    with pytest.raises(scdro.NonFiniteLossError):
        opt.step(lambda: cross_entropy(model(x * math.nan), y, reduction="none"))
    with pytest.raises(scdro.LossError):
        opt.step(lambda: cross_entropy(model(x), y))
    with pytest.raises(scdro.ClosureError):
        opt.step()
    assert (flat(model) == before[0]).all()
    assert str(opt.state_dict()) == str(before[1])
    with pytest.raises(scdro.CheckpointError):
        opt.load_state_dict(scdro.SCDRO(model.parameters()).state_dict())


def test_skipped_batches_are_counted():
    model, x, y, _ = problem()
    opt = ABSGD(model.parameters(), 0.1, skip_nonfinite=True)
    before = flat(model)
    assert opt.step(lambda: cross_entropy(model(x * math.inf), y, reduction="none")).isnan()
    assert (flat(model) == before).all()
    assert opt.skipped == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda p: ERM(p, momentum=1.0),
        lambda p: ERM(p, -0.1),
        lambda p: ABSGD(p, lam=0.0),
        lambda p: ABSGD(p, gamma=0.0),
        lambda p: DualSGM(p, rho=-1.0),
        lambda p: DualSGM(p, lam=1e-9),
        lambda p: DualSGM(p, cap=0.0),
        lambda p: DualSGM(p, dual_lr=-1.0),
        lambda p: FastDRO(p, geometry=CVaR(0.0)),
        lambda p: FastDRO(p, geometry=Chi2Penalty(0.0)),
        lambda p: FastDRO(p, geometry=Chi2(-1.0)),
    ],
)
def test_bad_settings(build):
    with pytest.raises(scdro.HyperparameterError):
        build([nn.Parameter(torch.ones(1))])
