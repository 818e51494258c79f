"""KLRobustLoss attached to an optimizer: parts of a batch equal the batch, and skipped steps leave no trace."""

from __future__ import annotations

import copy
import functools
import math
from functools import partial

import pytest
import torch
from torch import nn

import scdro
from equality import differences
from loops import (
    TEMPERATURES,
    assert_close_state,
    assert_same_state,
    data,
    flat,
    linear,
    losses_of,
    train_step,
)
from refusals import BAD_LOSSES, Problem, refuses
from scdro import KLRobustLoss
from scdro.errors import CheckpointError, HyperparameterError
from scdro.printed import PrintedTemperature
from scdro.temperature import WindowTemperature

# -- gradient accumulation ---


OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(
        params, 0.1, momentum=0.7, dampening=0.7, weight_decay=0.01
    ),
    "adam": lambda params: torch.optim.Adam(params, 0.02),
}


def accumulated_steps(
    batches,
    parts,
    make_optimizer,
    temperature,
    *,
    clip=None,
    scale=None,
    weighted=False,
    **settings,
):
    """Train with each batch in `parts` micro-batches; yields model, loss and the parameters after each step."""
    model, robust = linear(), KLRobustLoss(**{"rho": 0.4, "temperature": temperature, **settings})
    optimizer = make_optimizer(model.parameters())
    robust.attach(optimizer)
    for t, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        factors = torch.ones(len(y), dtype=x.dtype) if scale is None else scale[t]
        weight = (
            torch.linspace(0.5, 1.5, len(y) // parts, dtype=x.dtype).repeat(parts)
            if weighted
            else None
        )
        for rows in torch.arange(len(y)).chunk(parts):
            losses = factors[rows] * losses_of(model, x[rows], y[rows])
            (
                robust(losses, sample_weight=None if weight is None else weight[rows]) / parts
            ).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        yield flat(model).clone(), robust


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("parts", [2, 4, 12])
def test_micro_batches_equal_one_large_batch(parts, temperature, optimizer, clip):
    batches, make = data(20), OPTIMIZERS[optimizer]
    small = accumulated_steps(batches, parts, make, TEMPERATURES[temperature](), clip=clip)
    large = accumulated_steps(batches, 1, make, TEMPERATURES[temperature](), clip=clip)
    for (a, robust), (b, reference) in zip(small, large, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        assert_close_state(robust, reference, 1e-10)


@pytest.mark.parametrize(
    "settings", [{"trim": 0.13}, {"window": 8}, {"beta": 1.0}, {"loss_bound": 30.0}, {"rho": 0.0}]
)
def test_micro_batches_with_other_settings(settings):
    batches, make = data(20), OPTIMIZERS["sgd"]
    small = accumulated_steps(batches, 3, make, WindowTemperature(), **settings)
    large = accumulated_steps(batches, 1, make, WindowTemperature(), **settings)
    for (a, robust), (b, reference) in zip(small, large, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        assert_close_state(robust, reference, 1e-10)


@pytest.mark.parametrize("memory", [0, 16, 100])
@pytest.mark.parametrize("parts", [2, 4, 12])
def test_rate_of_s_counts_all_parts(parts, memory):
    """B in B/(B + memory) is the whole batch; a part alone would move s by much less."""
    batches, temperature = data(20), WindowTemperature(memory=memory)
    plain = partial(torch.optim.SGD, lr=0.1)
    small = accumulated_steps(batches, parts, plain, temperature, beta=0.05)
    large = accumulated_steps(batches, 1, plain, temperature, beta=0.05)
    for (a, robust), (b, reference) in zip(small, large, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        assert_close_state(robust, reference, 1e-10)


@pytest.mark.parametrize("beta", [0.02, 0.3])
def test_micro_batches_while_losses_fall(beta):
    """What holds s near the recent losses knows the batches before alone."""
    batches, make = data(40), OPTIMIZERS["sgd"]
    scale = [torch.full((12,), 100.0 if t < 15 else 1.0, dtype=torch.float64) for t in range(40)]
    settings = {"beta": beta, "window": 60, "scale": scale}
    small = accumulated_steps(batches, 3, make, WindowTemperature(), **settings)
    large = accumulated_steps(batches, 1, make, WindowTemperature(), **settings)
    late = 0
    for (a, robust), (b, reference) in zip(small, large, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)
        assert_close_state(robust, reference, 1e-8)
        _, _, lam_log_s, _, most = robust.state.numbers()
        late += lam_log_s > most
    assert late > 0


@pytest.mark.parametrize("beta", [0.2, 1.0])
@pytest.mark.parametrize("rho", [0.0, 0.4])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_micro_batches_that_are_trimmed_away(temperature, rho, beta):
    """A whole batch, its first part, its last part: they count for nothing, and the parts equal the whole."""
    batches = data(20)
    scale = torch.ones(20, 12, dtype=torch.float64)
    scale[7], scale[11, :4], scale[14, 8:] = 1e5, 1e5, 1e5
    plain = partial(torch.optim.SGD, lr=0.1)
    settings = {"beta": beta, "rho": rho, "trim": 0.3, "scale": scale}
    small = accumulated_steps(batches, 3, plain, TEMPERATURES[temperature](), **settings)
    large = accumulated_steps(batches, 1, plain, TEMPERATURES[temperature](), **settings)
    before = None
    for t, ((a, robust), (b, reference)) in enumerate(zip(small, large, strict=True)):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        assert_close_state(robust, reference, 1e-10)
        if t == 7:
            torch.testing.assert_close(a, before, rtol=0, atol=0)
        before = a


@pytest.mark.parametrize("backward", ["each part", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_part_that_is_trimmed_away_before_losses_that_fell_far(dtype, backward):
    """With beta = 1 s falls by exp(4000) between the parts; the first one's gradient is zero, and stays zero."""
    w = nn.Parameter(torch.zeros(6, dtype=dtype))
    robust, optimizer = KLRobustLoss(0.5, beta=1.0, trim=0.2), torch.optim.SGD([w], 0.0)
    robust.attach(optimizer)
    spread = torch.linspace(0.0, 2e-3, 6, dtype=dtype)
    for _ in range(10):
        robust(5.0 + spread + w).backward()
        optimizer.step()
        optimizer.zero_grad()
    if backward == "each part":
        (robust(100.0 + spread + w) / 2).backward()
        (robust(1.0 + spread + w) / 2).backward()
    else:
        ((robust(100.0 + spread + w) + robust(1.0 + spread + w)) / 2).backward()
    assert w.grad.sum().item() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("order", ["forwards first", "one sum", "zero_grad last"])
def test_all_parts_may_be_computed_before_the_first_backward(order):
    """Whatever the order of forwards, backwards and zero_grad, the gradient is that of the large batch."""
    batches, runs = data(12), []
    for parts in (1, 3):
        model, robust = linear(), KLRobustLoss(0.4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        robust.attach(optimizer)
        for x, y in batches:
            if order != "zero_grad last":
                optimizer.zero_grad()
            rows = torch.arange(len(y)).chunk(parts)
            values = [robust(losses_of(model, x[r], y[r])) / parts for r in rows]
            if order == "zero_grad last":
                optimizer.zero_grad()
            for value in [sum(values)] if order == "one sum" else values:
                value.backward()
            optimizer.step()
        runs.append((flat(model), robust))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=0, atol=1e-12)
    assert_close_state(runs[0][1], runs[1][1], 1e-12)


@pytest.mark.parametrize("drop", ["optimizer", "model", "never differentiated"])
def test_an_abandoned_batch_leaves_no_trace(drop):
    batches, runs = data(8), []
    for abandons in (False, True):
        model, robust = linear(), KLRobustLoss(0.4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        robust.attach(optimizer)
        for t, (x, y) in enumerate(batches):
            if abandons and t in (0, 4):
                value = robust(5 * losses_of(model, 3 * x, y))
                if drop != "never differentiated":
                    value.backward()
                if drop == "model":
                    model.zero_grad()
            if drop != "model":
                optimizer.zero_grad()
            robust(losses_of(model, x, y)).backward()
            optimizer.step()
            if drop == "model":
                model.zero_grad()
        runs.append((flat(model), robust))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=0, atol=1e-12)
    assert_close_state(runs[0][1], runs[1][1], 1e-12)


def test_one_loss_for_each_optimizer():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    first = KLRobustLoss(0.4).attach(optimizer)
    with pytest.raises(scdro.errors.HyperparameterError, match=r"one loss per optimizer.*detach"):
        KLRobustLoss(0.4).attach(optimizer)
    with pytest.raises(scdro.errors.HyperparameterError, match=r"optimizer.*Linear"):
        KLRobustLoss(0.4).attach(model)
    zero_grad = optimizer.zero_grad
    first.detach()
    assert optimizer.zero_grad != zero_grad
    KLRobustLoss(0.4).attach(optimizer)


def test_detached_again_it_is_as_if_never_attached():
    runs = []
    for attached in (True, False):
        model, robust = linear(), KLRobustLoss(0.4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if attached:
            robust.attach(optimizer)
            assert robust.detach() is robust
        for x, y in data(6):
            train_step(model, robust, optimizer, x, y)
        runs.append((flat(model), robust))
    assert torch.equal(runs[0][0], runs[1][0])
    assert_same_state(runs[0][1], runs[1][1])
    robust = KLRobustLoss(0.4).attach(optimizer)
    robust(losses_of(model, *data(1)[0])).backward()
    with pytest.raises(HyperparameterError, match="between two batches"):
        robust.detach()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sizes", [[1, 1], [1, 7, 3], [16, 1], [5] * 9, [100, 400]])
def test_rate_of_s_is_that_of_all_parts(sizes, weighted):
    """Parts of any sizes move s as the whole batch does: its rate depends on how many samples there are in all."""
    generator = torch.Generator().manual_seed(0)
    whole, parts = (KLRobustLoss(0.5, temperature=WindowTemperature(1.0)) for _ in range(2))
    w = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.0)
    parts.attach(optimizer)
    for _ in range(5):
        losses = torch.rand(sum(sizes), generator=generator, dtype=torch.float64)
        weight = (
            torch.rand(sum(sizes), generator=generator, dtype=torch.float64) if weighted else None
        )
        optimizer.zero_grad()
        whole(losses + w, sample_weight=weight)
        split = [None] * len(sizes) if weight is None else weight.split(sizes)
        for part, own in zip(losses.split(sizes), split, strict=True):
            parts(part + w, sample_weight=own).backward()
        optimizer.step()
        assert_close_state(parts, whole, 1e-12)


def test_micro_batches_with_sample_weights():
    batches, make = data(20), OPTIMIZERS["sgd"]
    *_, (accumulated, _) = accumulated_steps(
        batches, 4, make, WindowTemperature(0.5), weighted=True
    )
    model, robust = linear(), KLRobustLoss(0.4, temperature=WindowTemperature(0.5))
    optimizer = make(model.parameters())
    for x, y in batches:
        train_step(
            model,
            robust,
            optimizer,
            x,
            y,
            sample_weight=torch.linspace(0.5, 1.5, 3).double().repeat(4),
        )
    torch.testing.assert_close(accumulated, flat(model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("temperature", ["default, initial", "printed"])
def test_attached_equals_unattached_where_lam_is_given(temperature):
    batches, make = data(20), OPTIMIZERS["sgd"]
    model, robust = linear(), KLRobustLoss(0.4, temperature=TEMPERATURES[temperature]())
    optimizer = make(model.parameters())
    attached = accumulated_steps(batches, 4, make, TEMPERATURES[temperature]())
    for (x, y), (a, other) in zip(batches, attached, strict=True):
        train_step(model, robust, optimizer, x, y)
        torch.testing.assert_close(a, flat(model), rtol=0, atol=1e-10)
        assert_close_state(other, robust, 1e-10)


def test_first_attached_step_weighs_all_samples_the_same():
    (x, y), *_ = data(1)
    model, other, robust = linear(), linear(), KLRobustLoss(0.4)
    robust.attach(torch.optim.SGD(model.parameters(), 0.1))
    for rows in torch.arange(12).chunk(3):
        (robust(losses_of(model, x[rows], y[rows])) / 3).backward()
    losses_of(other, x, y).mean().backward()
    torch.testing.assert_close(model.weight.grad, other.weight.grad, rtol=1e-12, atol=1e-12)
    assert robust.lam.isnan()


@pytest.mark.parametrize("order", ["up", "down"])
@pytest.mark.parametrize("lam_lr", [None, 0.0])
def test_micro_batches_whose_losses_jump(order, lam_lr):
    """By 1e4 at lam near 1e-3: exp(1e7) is never formed, and part by part is still all at once."""
    temperatures = [
        (
            WindowTemperature(1.5e-3)
            if lam_lr is None
            else PrintedTemperature(initial=1.5e-3, lr=lam_lr)
        )
        for _ in range(2)
    ]
    runs = []
    for parts, temperature in zip((2, 1), temperatures, strict=True):
        model, robust = linear(), KLRobustLoss(0.4, temperature=temperature)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        robust.attach(optimizer)
        history = []
        for t, (x, y) in enumerate(data(20)):
            jump = torch.zeros(len(y), dtype=x.dtype)
            if t % 4 == 1:
                jump[slice(6, 12) if order == "up" else slice(0, 6)] = 1e4
            optimizer.zero_grad()
            for rows in torch.arange(len(y)).chunk(parts):
                (robust(losses_of(model, x[rows], y[rows]) + jump[rows]) / parts).backward()
            assert all(torch.isfinite(p.grad).all() for p in model.parameters())
            history.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())
            optimizer.step()
            assert torch.isfinite(robust.state.state_dict()["recent"][0]).all()
        runs.append((history, robust))
    for a, b in zip(runs[0][0], runs[1][0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert_close_state(runs[0][1], runs[1][1], 1e-9)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("how", ["optimizer", "optimizer, zeros", "model"])
def test_zero_grad_drops_what_was_accumulated(how, temperature):
    runs = []
    for disturbed in (False, True):
        model, robust = linear(), KLRobustLoss(0.4, temperature=TEMPERATURES[temperature]())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        robust.attach(optimizer)
        for t, (x, y) in enumerate(data(8)):
            if disturbed and t % 2 == 0:
                (robust(100.0 * losses_of(model, x, y)) / 2).backward()
            if how == "model":
                model.zero_grad()
            else:
                optimizer.zero_grad(set_to_none=how == "optimizer")
            robust(losses_of(model, x, y)).backward()
            optimizer.step()
        runs.append((flat(model), robust))
    assert torch.equal(runs[0][0], runs[1][0])
    assert_same_state(runs[0][1], runs[1][1])


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_zero_grad_between_the_loss_and_its_backward(temperature):
    """As in torch's own tutorials, and in Lightning: loss = ...; zero_grad(); loss.backward(); step()."""
    runs = []
    for late in (False, True):
        model, robust = linear(), KLRobustLoss(0.4, temperature=TEMPERATURES[temperature]())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        robust.attach(optimizer)
        for x, y in data(8):
            if not late:
                optimizer.zero_grad()
            value = robust(losses_of(model, x, y))
            if late:
                optimizer.zero_grad()
            value.backward()
            optimizer.step()
        runs.append((flat(model), robust))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=0, atol=1e-12)
    assert_close_state(runs[0][1], runs[1][1], 1e-12)


def test_attached_loss_waits_for_the_step():
    model, robust = linear(), KLRobustLoss(0.4, temperature=WindowTemperature(0.5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    robust.attach(optimizer)
    before = copy.deepcopy(robust.state)
    (x, y), *_ = data(1)
    robust(losses_of(model, x, y)).backward()
    assert_same_state(robust.state, before)
    optimizer.step()
    assert robust.lam.item() != 0.5
    after = copy.deepcopy(robust.state)
    optimizer.step()
    assert_same_state(robust.state, after)


def test_a_loss_moves_to_a_second_optimizer():
    """Between two batches; and leaves the first as it was."""
    batches = data(6)
    runs = []
    for moves in (False, True):
        model, robust = linear(), KLRobustLoss(0.4)
        first, second = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
        robust.attach(first)
        for k, (x, y) in enumerate(batches):
            if k == 3 and moves:
                robust.attach(second)
            optimizer = second if k >= 3 and moves else first
            optimizer.zero_grad()
            robust(losses_of(model, x, y)).backward()
            optimizer.step()
        runs.append((flat(model), robust))
    assert torch.equal(runs[0][0], runs[1][0])
    assert_same_state(runs[0][1], runs[1][1])
    assert first.zero_grad.__func__ is torch.optim.Optimizer.zero_grad
    before = copy.deepcopy(robust.state)
    robust(losses_of(model, *batches[0])).backward()
    first.step()
    assert_same_state(robust.state, before)
    KLRobustLoss(0.4).attach(first)  # It is free.


def test_a_second_optimizer_amid_a_batch_is_refused():
    model, robust = linear(), KLRobustLoss(0.4)
    first, second = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
    robust.attach(first).attach(first)
    robust(losses_of(model, *data(1)[0])).backward()
    with pytest.raises(scdro.errors.HyperparameterError, match=r"optimizer.*step\(\)"):
        robust.attach(second)
    first.step()
    assert robust.state.started
    robust.attach(second)


class Wrapped(torch.optim.Optimizer):
    """As Accelerate's prepare() gives it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_a_wrapped_optimizer():
    model, robust = linear(), KLRobustLoss(0.4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    robust.attach(Wrapped(optimizer))
    robust(losses_of(model, *data(1)[0])).backward()
    assert not robust.state.started
    optimizer.step()
    assert robust.state.started


# -- gradient scaling ---


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("bad_step", [0, 7])
@pytest.mark.parametrize("late", [False, True], ids=["", "zero_grad after the forward"])
def test_a_step_that_the_grad_scaler_skips_leaves_no_trace(
    temperature, parts, bad_step, fused, late
):
    """The scaled gradient of one batch overflows; the run then equals one that never saw that batch.

    A fused optimizer is called all the same, and skips the step itself.
    """
    batches = data(15)
    runs = []
    for with_bad in (True, False):
        model, robust = linear(), KLRobustLoss(0.4, temperature=TEMPERATURES[temperature]())
        optimizer = torch.optim.Adam(model.parameters(), 0.02, fused=fused)
        robust.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)
        assert scaler.is_enabled()
        for t, (x, y) in enumerate(batches):
            bad = t == bad_step
            if bad and not with_bad:
                continue
            before, parameters = copy.deepcopy(robust.state), flat(model)
            if not late:
                optimizer.zero_grad()
            for i, rows in enumerate(torch.arange(len(y)).chunk(parts)):
                value = robust((3.0 if bad else 1.0) * losses_of(model, x[rows], y[rows])) / parts
                if late and i == 0:
                    optimizer.zero_grad()
                if bad and i == parts - 1:
                    value = value * 1e307
                scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            if bad:
                assert scaler.get_scale() == 2.0**9
                assert_same_state(robust.state, before)
                assert torch.equal(flat(model), parameters)
        runs.append((flat(model), robust))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=0, atol=1e-12)
    assert_close_state(runs[0][1], runs[1][1], 1e-12)


def test_grad_scaler_changes_nothing_otherwise():
    model, robust = linear(), KLRobustLoss(0.4)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    robust.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    reference = accumulated_steps(data(12), 1, OPTIMIZERS["adam"], None)
    for (x, y), (expected, _) in zip(data(12), reference, strict=True):
        optimizer.zero_grad()
        scaler.scale(robust(losses_of(model, x, y))).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-12)


def test_reset_drops_the_parts_of_an_attached_batch():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    robust = KLRobustLoss(0.5).attach(optimizer)
    robust(model(torch.randn(8, 2)).square().squeeze(1)).backward()
    robust.reset_parameters()
    optimizer.step()
    assert math.isnan(robust.lam)


def test_loading_drops_the_parts_of_an_attached_batch():
    """What the old state has seen of a batch is not committed to the loaded one; loading fails whole."""
    model, robust, plain = linear(), KLRobustLoss(0.4), KLRobustLoss(0.4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    (x, y), (other_x, other_y), *_ = data(3)
    robust(losses_of(model, x, y))
    saved = copy.deepcopy(robust.state_dict())
    robust.attach(optimizer)
    robust(losses_of(model, other_x, other_y)).backward()
    with pytest.raises(CheckpointError):
        robust.load_state_dict(KLRobustLoss(0.4, window=7).state_dict())
    assert robust.accumulation.shares == [1.0]
    robust.load_state_dict(saved)
    assert robust.accumulation.shares == []
    optimizer.zero_grad()
    plain.load_state_dict(saved)
    robust(losses_of(model, x, y)).backward()
    plain(losses_of(model, x, y))
    optimizer.step()
    assert differences(robust.state_dict(), plain.state_dict()) == []


# -- what is refused
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BAD_LOSSES)
def test_bad_losses_between_accumulated_parts(kind):
    spoil, error, match = BAD_LOSSES[kind]
    runs = []
    for bad in (False, True):
        problem, robust = Problem(), KLRobustLoss(0.5)
        sgd = torch.optim.SGD(problem.model.parameters(), 0.1)
        robust.attach(sgd)
        for parts in ((0, 1), (2, 3)):
            sgd.zero_grad()
            for k in parts:
                (robust(problem.losses(k)) / 2).backward()
                if bad:
                    call = functools.partial(robust, spoil(problem.losses(4)))
                    refuses(problem, call, error, match, robust, sgd)
            sgd.step()
        runs.append(problem.snapshot(robust, sgd))
    assert differences(*runs) == []


def test_attaching_twice():
    model = nn.Linear(3, 1)
    robust = KLRobustLoss(0.5).attach(torch.optim.SGD(model.parameters(), 0.1))
    robust(model(torch.randn(4, 3)).flatten())
    with pytest.raises(HyperparameterError, match=r"optimizer.*step\(\)"):
        robust.attach(torch.optim.SGD(model.parameters(), 0.1))
