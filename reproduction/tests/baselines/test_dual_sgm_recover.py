"""Dual SGM and RECOVER against literal twins in the linear domain, and their identities."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import scdro
import twins
from logistic import N, flat, losses_of, problem
from reproduction.baselines import RECOVER, DualSGM
from scdro.optim import ASCDRO
from weighting_twins import L4, STEPS, Twin, gradient_of


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


@pytest.mark.parametrize("weighted", [False, True])
def test_lockstep_with_the_twin(weighted):
    model, x, y, by_hand = problem()
    opt = DualSGM(model.parameters(), 0.01, 0.3, lam=1.0, dual_lr=0.05)
    twin = DualTwin(flat(model), 0.01, rho=0.3, lam=1.0, lam0=1e-3, dual_lr=0.05)
    rng = np.random.default_rng(2)
    for _ in range(STEPS):
        index = rng.choice(N, 12, replace=False)
        weight = rng.uniform(0.5, 2.0, 12) if weighted else None
        given = None if weight is None else torch.tensor(weight)
        opt.step(losses_of(model, x, y, index), torch.as_tensor(index), sample_weight=given)
        twin.step(by_hand.batch(index), weight)
        np.testing.assert_allclose(flat(model), twin.w, rtol=0, atol=1e-10)
    assert opt.lam.item() == pytest.approx(twin.lam, abs=1e-10)
    assert opt.eta.item() == pytest.approx(twin.eta, abs=1e-10)
    assert opt.capped == 0


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
        lambda p: DualSGM(p, rho=-1.0),
        lambda p: DualSGM(p, lam=1e-9),
        lambda p: DualSGM(p, cap=0.0),
        lambda p: DualSGM(p, dual_lr=-1.0),
    ],
)
def test_bad_settings(build):
    with pytest.raises(scdro.errors.HyperparameterError):
        build([nn.Parameter(torch.ones(1))])


def test_identity_10_dual_sgm_at_its_start_has_the_value_and_gradient_of_f():
    """eta starts at lam log g: there lam E[e^a - 1] + eta + (lam - lam0) rho is F."""
    losses = torch.tensor(L4, dtype=torch.float64, requires_grad=True)
    f = scdro.functional.objective(losses, 0.7, rho=0.3)
    f.backward()
    value, moved = gradient_of(
        lambda p: DualSGM(p, 1.0, 0.3, lam=0.7, dual_lr=0.0, momentum=0.0), L4
    )
    assert value == pytest.approx(f.item(), rel=1e-12)
    np.testing.assert_allclose(moved, losses.grad, rtol=1e-12)


def test_a_checkpoint_of_another_temperature():
    model, *_ = problem()
    with pytest.raises(scdro.errors.CheckpointError, match=r"lam = 5\.0.*lam = 1\.0"):
        RECOVER(model.parameters(), lam=5.0).load_state_dict(
            RECOVER(model.parameters(), lam=1.0).state_dict()
        )


def test_recover_in_lockstep_and_as_ascdro_with_lam_frozen():
    model, x, y, by_hand = problem()
    opt, twin = (
        RECOVER(model.parameters(), 0.05, 0.8, beta=0.4),
        twins.Recover(flat(model), 0.8, 0.05, 0.4),
    )
    other = problem()[0]
    frozen = scdro.printed.PrintedTemperature(0.8, lr=0.0)
    ascdro = ASCDRO(
        other.parameters(), 0.05, 0.7, beta=0.4, temperature=frozen
    )  # rho only moves lam
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
