"""ERM, ABSGD and FastDRO against literal twins in the linear domain, and their identities."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from torch import nn
from torch.nn.functional import cross_entropy

import scdro
from logistic import N, flat, losses_of, problem
from scdro.optim import (
    ABSGD,
    ERM,
    Chi2,
    Chi2Penalty,
    CVaR,
    FastDRO,
    KLBall,
    Multilevel,
)
from weighting_twins import L4, STEPS, Twin, gradient_of


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
    return p(
        brentq(
            lambda eta: (q * (p(eta) / q - 1) ** 2).sum() / 2 - rho, l.min() - 1e4, top, xtol=1e-14
        )
    )


def penalty_response(l, q, reg=0.7):
    eta = brentq(
        lambda eta: (q * np.maximum(l - eta, 0)).sum() - reg, l.min() - 10, l.max(), xtol=1e-15
    )
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

    return (
        padded(0, small) + (padded(0, size) - (padded(0, half) + padded(half, size)) / 2) / chance
    )


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
    "ABSGD": (
        lambda p: ABSGD(p, 0.02, 0.8, gamma=0.3),
        lambda w: AbsgdTwin(w, 0.02, lam=0.8, gamma=0.3),
    ),
    "TERM": (
        lambda p: ABSGD(p, 0.02, 0.8, gamma=1.0),
        lambda w: AbsgdTwin(w, 0.02, lam=0.8, gamma=1.0),
    ),
    "FastDRO, KL": (
        lambda p: FastDRO(p, 0.02, KLBall(0.4, 1e-9)),
        lambda w: FastTwin(w, 0.02, response=kl_response),
    ),
    "FastDRO, CVaR": (
        lambda p: FastDRO(p, 0.02, CVaR(0.3)),
        lambda w: FastTwin(w, 0.02, response=cvar_response),
    ),
    "FastDRO, chi2": (
        lambda p: FastDRO(p, 0.02, Chi2(0.4)),
        lambda w: FastTwin(w, 0.02, response=chi2_response),
    ),
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
        np.testing.assert_allclose(
            flat(model), twin.w, rtol=0, atol=1e-8 if "FastDRO" in name else 1e-10
        )


def test_erm_is_torch_sgd():
    runs = []
    for make in (
        lambda p: ERM(p, 0.1, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01),
    ):
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


def test_a_checkpoint_of_another_temperature():
    model, *_ = problem()
    with pytest.raises(scdro.errors.CheckpointError, match=r"lam = 5\.0.*lam = 1\.0"):
        ABSGD(model.parameters(), lam=5.0).load_state_dict(
            ABSGD(model.parameters(), lam=1.0).state_dict()
        )


@pytest.mark.parametrize(
    "build",
    [
        lambda p: ERM(p, momentum=1.0),
        lambda p: ERM(p, -0.1),
        lambda p: ABSGD(p, lam=0.0),
        lambda p: ABSGD(p, gamma=0.0),
        lambda p: FastDRO(p, geometry=CVaR(0.0)),
        lambda p: FastDRO(p, geometry=Chi2Penalty(0.0)),
        lambda p: FastDRO(p, geometry=Chi2(-1.0)),
    ],
)
def test_bad_settings(build):
    with pytest.raises(scdro.errors.HyperparameterError):
        build([nn.Parameter(torch.ones(1))])


# -- identity 12 of a correct implementation
# ------------------------------------------------------------------


def test_identity_12_absgd():
    _, term = gradient_of(lambda p: ABSGD(p, 1.0, 0.8, gamma=1.0, momentum=0.0), L4)
    np.testing.assert_allclose(
        term, torch.softmax(torch.tensor(L4, dtype=torch.float64) / 0.8, 0), rtol=1e-12
    )
    _, plain = gradient_of(lambda p: ABSGD(p, 1.0, 1e6, gamma=1.0, momentum=0.0), L4)
    np.testing.assert_allclose(plain, np.full(4, 0.25), atol=1e-5)
