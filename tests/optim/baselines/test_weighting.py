"""ERM, ABSGD, DualSGM, FastDRO and RECOVER against literal twins in the linear domain, and their identities."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import nn
from torch.nn.functional import cross_entropy

import scdro
import twins
from logistic import N, flat, losses_of, problem
from scdro.optim import ABSGD, ASCDRO, ERM, RECOVER, Chi2, Chi2Penalty, CVaR, DualSGM, FastDRO, KLBall, Multilevel

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


def multilevel_response(l, q, small=3, largest=12):
    """The sum as printed: base level, and the difference between a batch and its halves over the size's chance."""
    size = len(l)
    chance = {6: 1 / 2, 12: 1 / 2}[size]
    half = size // 2

    def padded(a, b):
        p = np.zeros(size)
        p[a:b] = cvar_response(l[a:b], q[a:b] / q[a:b].sum())
        return p

    return padded(0, small) + (padded(0, size) - (padded(0, half) + padded(half, size)) / 2) / chance


METHODS = {
    "FastDRO, multi-level": (
        lambda p: FastDRO(p, 0.01, CVaR(0.3), multilevel=Multilevel(3, 12)),
        lambda w: FastTwin(w, 0.01, response=multilevel_response),
    ),
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


def test_dual_sgm_keeps_lam_above_its_floor():
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = DualSGM([w], 0.0, 5.0, lam=0.1, lam0=0.05, dual_lr=1.0)
    opt.step(lambda: w + torch.tensor([0.0, 0.01], dtype=torch.float64))
    assert opt.lam == 0.05


def test_dual_sgm_with_a_tensor_as_lr_is_as_exact():
    etas = []
    for lr in (0.1, torch.tensor(0.1)):
        w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        opt = DualSGM([w], lr, 0.5, lam=1.0)
        for _ in range(3):
            opt.step(lambda w=w: w + torch.tensor([1e6, 1e6 + 1.0], dtype=torch.float64))
        etas.append(opt.eta.item())
    assert etas[0] == pytest.approx(etas[1], abs=1e-6)


@pytest.mark.parametrize("method", [ABSGD, RECOVER])
def test_a_checkpoint_of_another_temperature(method):
    model, *_ = problem()
    with pytest.raises(scdro.errors.CheckpointError, match=r"lam = 5\.0.*lam = 1\.0"):
        method(model.parameters(), lam=5.0).load_state_dict(method(model.parameters(), lam=1.0).state_dict())


def test_dual_sgm_counts_what_it_caps():
    w = nn.Parameter(torch.zeros(1))
    opt = DualSGM([w], 0.0, 0.5, lam=1e-3, dual_lr=0.0)
    opt.step(lambda: w + torch.tensor([0.0, 0.0]))
    opt.step(lambda: w + torch.tensor([1.0, 0.0]))
    assert opt.capped == 1
    assert w.isfinite().all()


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
    with pytest.raises(scdro.errors.HyperparameterError):
        build([nn.Parameter(torch.ones(1))])


# -- RECOVER ----------------------------------------------------------------------------------------------------------


def test_recover_in_lockstep_and_as_ascdro_with_lam_frozen():
    model, x, y, by_hand = problem()
    opt, twin = RECOVER(model.parameters(), 0.05, 0.8, beta=0.4), twins.Recover(flat(model), 0.8, 0.05, 0.4)
    other = problem()[0]
    frozen = scdro.temperature.PrintedTemperature(0.8, lr=0.0)
    ascdro = ASCDRO(other.parameters(), 0.05, 0.7, beta=0.4, temperature=frozen)  # rho only moves lam
    rng = np.random.default_rng(2)
    for _ in range(STEPS):
        index = rng.choice(N, 12, replace=False)
        value = opt.step(losses_of(model, x, y, index))
        ascdro.step(losses_of(other, x, y, index))
        twin.step(by_hand.batch(index))
        np.testing.assert_allclose(flat(model), twin.w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(model), flat(other), rtol=0, atol=1e-12)
        assert value.item() == pytest.approx(0.8 * math.log(twin.s), abs=1e-10)
    assert opt.lam.item() == 0.8
    assert opt.resets == 0


# -- identities 10 to 12 of a correct implementation ------------------------------------------------------------------


def gradient_of(make, losses):
    """What one step with lr = 1 and no momentum moves the losses' own parameters by."""
    w = nn.Parameter(torch.tensor(losses, dtype=torch.float64))
    opt = make([w])
    value = opt.step(lambda: w * 1.0)
    return value.item(), (torch.tensor(losses, dtype=torch.float64) - w.detach()).numpy()


L4 = [0.0, 1.0, 2.0, 3.0]


def test_identity_10_dual_sgm_at_its_start_has_the_value_and_gradient_of_f():
    """eta starts at lam log g: there lam E[e^a - 1] + eta + (lam - lam0) rho is F."""
    losses = torch.tensor(L4, dtype=torch.float64, requires_grad=True)
    f = scdro.functional.objective(losses, 0.7, rho=0.3)
    f.backward()
    value, moved = gradient_of(lambda p: DualSGM(p, 1.0, 0.3, lam=0.7, dual_lr=0.0, momentum=0.0), L4)
    assert value == pytest.approx(f.item(), rel=1e-12)
    np.testing.assert_allclose(moved, losses.grad, rtol=1e-12)


def test_identity_12_absgd():
    _, term = gradient_of(lambda p: ABSGD(p, 1.0, 0.8, gamma=1.0, momentum=0.0), L4)
    np.testing.assert_allclose(term, torch.softmax(torch.tensor(L4, dtype=torch.float64) / 0.8, 0), rtol=1e-12)
    _, plain = gradient_of(lambda p: ABSGD(p, 1.0, 1e6, gamma=1.0, momentum=0.0), L4)
    np.testing.assert_allclose(plain, np.full(4, 0.25), atol=1e-5)
