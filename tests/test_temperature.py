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
from scdro.printed import PrintedTemperature, Storm
from scdro.temperature import MovingAverage, NormalizedStorm, WindowTemperature


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
    robust = scdro.KLRobustLoss(
        0.5, beta=0.05, temperature=WindowTemperature(initial=30.0, cap=None)
    )
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


# -- what is refused
# --------------------------------------------------------------------------------------------------


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
        for build in (
            lambda c: SCDRO(params, temperature=WindowTemperature(cap=c)),
            MovingAverage,
            NormalizedStorm,
        ):
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
        (
            lambda: SCDRO(
                [{"params": params, "beta": 0.2}, {"params": [nn.Parameter(torch.ones(1))]}]
            ),
            "beta",
        ),
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
            make(
                "SCDRO",
                p.model.parameters(),
                temperature=temperature if shared else PrintedTemperature(),
            )
            for p in problems
        ]
        for k in range(4):
            for problem, optimizer in zip(problems, made, strict=True):
                optimizer.step(lambda problem=problem, k=k: problem.losses(k))
        runs.append([optimizer.lam.item() for optimizer in made])
    assert runs[0] == runs[1]


# -- the rate of s ---


def s_before_and_after(robust, losses, **more):
    """s before the batch, carried to its temperature, and s after it, as multiples of the batch's own mean of g."""
    lam, (_, _, lam_log_s, _, most) = robust.lam.item(), robust.state.numbers()
    robust(losses.requires_grad_(), **more)
    ghat = torch.exp(losses.detach() / lam)
    weight = more.get("sample_weight", torch.ones_like(losses))
    log_mean = torch.log((weight * ghat).sum() / weight.sum()).item()
    return math.exp(min(lam_log_s, most) / lam - log_mean), math.exp(
        robust.state.log_s.item() - log_mean
    )


@pytest.mark.parametrize("beta", [0.1, 0.9, 1.0])
def test_rate_of_s_knows_the_batch(beta):
    """s moves by B/(B + 16) of the way to the batch's mean, and by beta if that is more.

    With the usual beta for every B from 1 to 4,096.
    """
    generator = torch.Generator().manual_seed(0)
    robust = KLRobustLoss(
        0.5, beta=beta, temperature=WindowTemperature(2.0, ceiling=None, cap=None, memory=16)
    )
    robust(torch.rand(64, generator=generator, dtype=torch.float64).requires_grad_())
    sizes = torch.randperm(4096, generator=generator) + 1
    for size in sizes if beta == 0.1 else sizes[::16]:
        # Losses of another scale than those before, so that s has somewhere to go.
        losses = (1.0 + size % 2) * torch.rand(size, generator=generator, dtype=torch.float64)
        before, after = s_before_and_after(robust, losses)
        if abs(1.0 - before) < 1e-3:
            continue  # nothing to measure the rate by
        rate = max(beta, size.item() / (size.item() + 16))
        assert (after - before) / (1.0 - before) == pytest.approx(rate, rel=1e-7), size


def test_rate_of_s_counts_samples_by_weight():
    """Padding does not count, the scale of the weights does not matter, and uneven weights count for fewer samples."""
    generator = torch.Generator().manual_seed(0)
    for weight in ([1.0] * 8 + [0.0] * 24, [1e-30] * 8 + [0.0] * 24, [1.0, 2.0, 3.0, 0.5] * 8):
        robust = KLRobustLoss(
            0.5, temperature=WindowTemperature(2.0, ceiling=None, cap=None, memory=16)
        )
        robust(torch.rand(64, generator=generator, dtype=torch.float64).requires_grad_())
        weight = torch.tensor(weight, dtype=torch.float64)
        losses = torch.rand(len(weight), generator=generator, dtype=torch.float64)
        before, after = s_before_and_after(robust, losses, sample_weight=weight)
        size = (weight / weight.max()).sum() ** 2 / (weight / weight.max()).square().sum()
        assert (after - before) / (1.0 - before) == pytest.approx(
            (size / (size + 16)).item(), rel=1e-6
        )


@pytest.mark.parametrize("beta", [0.1, 0.5])
@pytest.mark.parametrize("size", [1, 16, 4096])
def test_printed_update_keeps_the_papers_single_beta(size, beta):
    generator = torch.Generator().manual_seed(size)
    robust = KLRobustLoss(0.5, beta=beta, temperature=PrintedTemperature(2.0, lr=0.0))
    robust(torch.rand(64, generator=generator, dtype=torch.float64).requires_grad_())
    before, after = s_before_and_after(
        robust, torch.rand(size, generator=generator, dtype=torch.float64)
    )
    assert (after - before) / (1.0 - before) == pytest.approx(beta, rel=1e-9)


@pytest.mark.parametrize("fall", [0.01, 0.02, 0.05])
@pytest.mark.parametrize(
    ("rho", "size"),
    [*((rho, size) for rho in (0.5, 2.0) for size in (16, 32, 64)), (4.0, 64)],
)
def test_falling_losses_keep_their_weight_in_small_batches(rho, size, fall):
    """With memory=16, ten batches in a row have more than half of their weight while losses fall.

    With rho = 4 not in batches of 16 or 32: one sample in 50 has most of the weight there, and most
    batches have none of these.
    """
    generator = torch.Generator().manual_seed(1)
    robust, masses = KLRobustLoss(rho, temperature=WindowTemperature(memory=16)), []
    for step in range(300):
        losses = 2.3 + 0.3 * torch.randn(size, generator=generator, dtype=torch.float64)
        losses = (math.exp(-fall * step) * losses).requires_grad_()
        robust(losses).backward()
        masses.append(losses.grad.sum())
    assert torch.stack(masses)[20:].unfold(0, 10, 1).mean(1).min() > 0.5
