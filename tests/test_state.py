"""A batch that is left out leaves no trace in the state, and views of a state without a batch."""

from __future__ import annotations

import pytest
import torch

import scdro
from equality import differences
from refusals import INF, NAN, OPTIMIZERS, Problem, only_skipped_moved, with_value
from scdro import SCDRO, KLRobustLoss
from scdro.errors import NonFiniteLossError


def test_views_before_the_first_batch_are_nan():
    module = torch.nn.Linear(2, 1)
    for source in (SCDRO(module.parameters(), rho=0.5), scdro.KLRobustLoss(0.5)):
        assert all(torch.isnan(getattr(source, name)) for name in ("lam", "kl", "ess"))


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_skipped_batch_leaves_no_trace(name, at, value):
    problem, twin = Problem(), Problem()
    optimizer, clean = (
        problem.optimizer(name, skip_nonfinite=True),
        twin.optimizer(name, skip_nonfinite=True),
    )
    for k in range(6):
        if k == at:
            for _ in range(2):
                before = problem.snapshot(optimizer)
                optimizer.step(lambda: with_value(value)(problem.losses(5)))
                only_skipped_moved(before, problem.snapshot(optimizer), optimizer)
        optimizer.step(lambda k=k: problem.losses(k))
        clean.step(lambda k=k: twin.losses(k))
        assert differences(problem.model.state_dict(), twin.model.state_dict()) == []
    assert optimizer.skipped == 2
    assert clean.skipped == 0
    assert optimizer.lam == clean.lam


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_skipped_step_returns_the_objective_as_it_stands(name):
    problem = Problem()
    optimizer = problem.optimizer(name, skip_nonfinite=True)
    value = [optimizer.step(lambda k=k: problem.losses(k)) for k in range(3)][-1]
    skipped = optimizer.step(lambda: with_value(NAN)(problem.losses()))
    torch.testing.assert_close(skipped, value, rtol=1e-12, atol=0)


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_skipped_batch_of_the_loss_module(at, value, attached):
    runs = []
    for bad in (True, False):
        problem, robust = Problem(), KLRobustLoss(0.5, skip_nonfinite=True)
        sgd = torch.optim.SGD(problem.model.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        if attached:
            robust.attach(sgd)

        def step(losses, robust=robust, sgd=sgd):
            sgd.zero_grad()
            loss = robust(losses)
            loss.backward()
            sgd.step()
            return loss

        for k in range(5):
            if bad and k == at:
                before = problem.snapshot(robust, sgd)
                assert torch.isfinite(step(with_value(value)(problem.losses(5))))
                only_skipped_moved(before, problem.snapshot(robust, sgd), robust)
            step(problem.losses(k))
        assert robust.skipped == int(bad)
        runs.append(problem.snapshot(sgd))
    assert differences(*runs) == []


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_skipped_batch_whose_flag_was_never_read(value, started):
    """As on an accelerator: the batch goes all the way to `commit`, which takes nothing from it."""
    problem, robust = Problem(), KLRobustLoss(0.5, skip_nonfinite=True)
    if started:
        robust(problem.losses())
    before = problem.snapshot(robust)
    batch = robust.state.read(with_value(value)(problem.losses(1)))
    robust.state.commit(robust.state.estimate(batch, 0.1), batch)
    only_skipped_moved(before, problem.snapshot(robust), robust)
    robust(problem.losses(2)).backward()


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
def test_step_that_a_scaler_skipped_leaves_no_trace(started):
    problem, robust = Problem(), KLRobustLoss(0.5)
    if started:
        robust(problem.losses())
    before = problem.snapshot(robust)
    batch = robust.state.read(problem.losses(1))
    estimate = robust.state.estimate(batch, 0.1)
    robust.state.commit(estimate, batch, only_if=torch.tensor(False))
    assert differences(before, problem.snapshot(robust)) == []
    robust.state.commit(estimate, batch, only_if=torch.tensor(True))
    assert differences(before, problem.snapshot(robust)) != []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_skipped_batch_gives_a_value_of_the_usual_dtype(dtype):
    robust = KLRobustLoss(0.5, skip_nonfinite=True)
    good, bad = (
        robust(torch.tensor([1.0, v], dtype=dtype, requires_grad=True)) for v in (2.0, NAN)
    )
    assert good.dtype == bad.dtype


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_skipping_nothing_is_counted(name):
    problem = Problem()
    optimizer = problem.optimizer(name, started=True)
    with pytest.raises(NonFiniteLossError, match="skip_nonfinite=True"):
        optimizer.step(lambda: with_value(NAN)(problem.losses()))
    assert optimizer.skipped == 0
