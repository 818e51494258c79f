"""How lam moves: what a temperature refuses, jumps and falls of the losses, and what the window holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import scdro
from refusals import INF, NAN, Problem, make
from scdro import ASCDRO, SCDRO, KLRobustLoss, worst_case
from scdro.errors import HyperparameterError
from scdro.optim import lemma_stages
from scdro.temperature import MovingAverage, NormalizedStorm, PrintedTemperature, Storm, WindowTemperature


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


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("initial", [0.0, -1.0, NAN, INF])
def test_bad_initial_temperature(initial):
    for temperature in (WindowTemperature, PrintedTemperature):
        with pytest.raises(HyperparameterError, match=f"initial > 0.*{initial}"):
            temperature(initial)


def test_bad_temperatures_and_trackers():
    params = [nn.Parameter(torch.ones(2))]
    for lr in (-0.1, NAN):
        with pytest.raises(HyperparameterError, match=f"lr >= 0.*{lr}"):
            PrintedTemperature(lr=lr)
    for cap in (0.5, NAN):
        for build in (lambda c: SCDRO(params, temperature=WindowTemperature(cap=c)), MovingAverage, NormalizedStorm):
            with pytest.raises(HyperparameterError, match=f"cap >= 1.*{cap}"):
                build(cap)
    with pytest.raises(HyperparameterError, match=r"PrintedTemperature\(lr=...\)"):
        KLRobustLoss(0.5, temperature=PrintedTemperature())
    with pytest.raises(HyperparameterError, match=r"SCDRO.*once.*Storm"):
        SCDRO(params, tracker=Storm())
    with pytest.raises(HyperparameterError, match=r"ASCDRO.*twice.*MovingAverage"):
        ASCDRO(params, tracker=MovingAverage())


def test_bad_temperatures():
    params = [nn.Parameter(torch.ones(2))]
    for build, match in (
        (lambda: WindowTemperature(cap=0.5), "cap >= 1"),
        (lambda: WindowTemperature(ceiling=-1.0), "ceiling >= 0"),
        (lambda: WindowTemperature(lag=0.9), "lag >= 1"),
        (lambda: WindowTemperature(clip=-1.0), "clip >= 0"),
        (lambda: SCDRO(params, temperature="auto"), "WindowTemperature.*'auto'"),
        (lambda: SCDRO(params, lam0=1.0, temperature=WindowTemperature(0.01)), ">= lam0"),
        (lambda: SCDRO(params, window=2.5), "window.*2.5"),
        (lambda: lemma_stages(1.0, 1.0, 1.0, 1.0, 0), "stage.*0"),
        (lambda: SCDRO([{"params": params, "beta": 0.2}, {"params": [nn.Parameter(torch.ones(1))]}]), "beta"),
    ):
        with pytest.raises(HyperparameterError, match=match):
            build()


def test_a_temperature_may_be_given_to_two():
    """Each has its own: PrintedTemperature carries an estimate from step to step."""
    runs = []
    for shared in (False, True):
        temperature = PrintedTemperature()
        problems = Problem(), Problem()
        made = [
            make("SCDRO", p.model.parameters(), temperature=temperature if shared else PrintedTemperature())
            for p in problems
        ]
        for k in range(4):
            for problem, optimizer in zip(problems, made, strict=True):
                optimizer.step(lambda problem=problem, k=k: problem.losses(k))
        runs.append([optimizer.lam.item() for optimizer in made])
    assert runs[0] == runs[1]
