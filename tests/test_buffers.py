"""Running statistics: as they were after a batch that is left out, and never moved twice."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from equality import differences
from refusals import (
    INF,
    OPTIMIZERS,
    TWO_POINT,
    Beside,
    Problem,
    normalised,
    only_skipped_moved,
    problem_with,
    refuses,
    spoilt,
)
from scdro import ASCDRO, KLRobustLoss
from scdro.errors import ClosureError, HyperparameterError, NonFiniteLossError


@pytest.mark.parametrize("skips", [False, True])
def test_ascdro_leaves_running_statistics_alone_at_a_bad_batch(skips):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    opt = ASCDRO(model.parameters(), 0.1, 0.5, module=model, skip_nonfinite=skips)
    x, y = torch.randn(8, 3), torch.randint(2, (8,))

    def losses(x):
        return nn.functional.cross_entropy(model(x), y, reduction="none")

    for _ in range(3):
        opt.step(lambda: losses(x))
    before = copy.deepcopy(model.state_dict())
    with nullcontext() if skips else pytest.raises(NonFiniteLossError):
        opt.step(lambda: losses(x * INF))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert opt.skipped == int(skips)


# -- what a batch that was left out did to the model
# ------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("first", [True, False])
def test_a_batch_left_out_leaves_running_statistics_as_they_were(name, first):
    problem = spoilt(problem_with(normalised(nn.BatchNorm1d(4))), 4)
    optimizer = problem.optimizer(
        name, started=not first, skip_nonfinite=True, module=problem.model
    )
    before = problem.snapshot()
    optimizer.step(lambda: problem.losses(4))
    assert optimizer.skipped == 1
    assert differences(before, problem.snapshot()) == []
    optimizer.step(lambda: problem.losses(3))
    assert all(torch.isfinite(b).all() for b in problem.model.buffers())
    assert differences(before, problem.snapshot()) != []


@pytest.mark.parametrize("name", ["SCDRO", "ASCDRO"])
def test_a_batch_left_out_on_an_accelerator(name, monkeypatch):
    """There the host does not read the flag: what the step changed is undone on the device."""
    problem = spoilt(problem_with(normalised(nn.BatchNorm1d(4))), 4)
    optimizer = problem.optimizer(name, started=True, skip_nonfinite=True, module=problem.model)
    monkeypatch.setattr(optimizer, "_skips", lambda finite: False)
    monkeypatch.setattr(optimizer, "_undo_unless", optimizer._undo_on_device)
    before = problem.snapshot(optimizer)
    optimizer.step(lambda: problem.losses(4))
    only_skipped_moved(before, problem.snapshot(optimizer), optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_statistics_that_a_batch_left_out_would_spoil_are_asked_for(name):
    problem = problem_with(normalised(nn.BatchNorm1d(4)))
    optimizer = problem.optimizer(name, skip_nonfinite=True)
    match = "BatchNorm1d.*module=model"
    refuses(problem, lambda: optimizer.step(problem.losses), ClosureError, match, optimizer)
    problem.model.eval()  # Statistics that do not move need nobody to know them.
    optimizer.step(problem.losses)


@pytest.mark.parametrize("name", ["SCDRO", "ASCDRO"])
def test_an_error_leaves_running_statistics_as_they_were(name):
    problem = spoilt(problem_with(normalised(nn.BatchNorm1d(4))), 4)
    optimizer = problem.optimizer(name, started=True, module=problem.model)
    refuses(
        problem,
        lambda: optimizer.step(lambda: problem.losses(4)),
        NonFiniteLossError,
        "NaN",
        optimizer,
    )


@pytest.mark.parametrize("skips", [True, False])
@pytest.mark.parametrize("attached", [True, False])
def test_a_model_that_the_loss_watches(skips, attached):
    problem = spoilt(problem_with(normalised(nn.BatchNorm1d(4))), 4)
    robust = KLRobustLoss(0.5, skip_nonfinite=skips).watch(problem.model)
    sgd = torch.optim.SGD(problem.model.parameters(), 0.1)
    if attached:
        robust.attach(sgd)
    robust(problem.losses(0)).backward()
    before = problem.snapshot()
    if skips:
        robust(problem.losses(4))
    else:
        refuses(Problem(), lambda: robust(problem.losses(4)), NonFiniteLossError, "NaN", robust)
    assert differences(before, problem.snapshot()) == []
    single = copy.deepcopy(problem.model)
    single(problem.x[1])
    robust(problem.losses(1)).backward()
    assert differences(dict(single.named_buffers()), dict(problem.model.named_buffers())) == []
    robust.watch()
    assert not problem.model._forward_pre_hooks


def test_a_model_that_the_loss_watches_on_an_accelerator(monkeypatch):
    monkeypatch.setattr("scdro.loss.host_reads", lambda tensor: False)
    problem = spoilt(problem_with(normalised(nn.BatchNorm1d(4))), 4)
    robust = KLRobustLoss(0.5, skip_nonfinite=True).watch(problem.model)
    robust(problem.losses(0)).backward()
    before = problem.snapshot()
    robust(problem.losses(4))
    assert robust.skipped == 1
    assert differences(before, problem.snapshot()) == []


def test_what_is_not_a_module_is_not_watched_and_what_was_stays():
    model = torch.nn.BatchNorm1d(2)
    robust = KLRobustLoss(0.5).watch(model)
    hooks, watched = len(model._forward_pre_hooks), list(robust._watched)
    for wrong in ("x", [model]):
        with pytest.raises(HyperparameterError, match="watch"):
            robust.watch(wrong)
    assert len(model._forward_pre_hooks) == hooks
    assert robust._watched == watched


def test_watching_a_model_that_holds_the_loss():
    problem = spoilt(problem_with(normalised(nn.BatchNorm1d(4))), 4)
    problem.model.robust = KLRobustLoss(0.5, skip_nonfinite=True)
    robust, body = problem.model.robust, nn.Sequential(*list(problem.model)[:3])
    problem.model.forward = body.forward
    robust.watch(problem.model)
    robust(problem.losses(0)).backward()
    statistics = copy.deepcopy(body.state_dict())
    robust(problem.losses(4))
    assert robust.skipped == 1
    assert differences(statistics, body.state_dict()) == []
    copied = copy.deepcopy(robust)
    assert copied._watched == []


# -- ASCDRO's two evaluations
# -----------------------------------------------------------------------------------------


HIDDEN = {
    "BatchNorm1d": lambda: normalised(nn.BatchNorm1d(4)),
    "cumulative": lambda: normalised(nn.BatchNorm1d(4, momentum=None)),
    "nested": lambda: nn.Sequential(normalised(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4)))),
    "SyncBatchNorm": lambda: nn.SyncBatchNorm.convert_sync_batchnorm(normalised(nn.BatchNorm1d(4))),
    "InstanceNorm1d": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3)),
        nn.InstanceNorm1d(1, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(3, 1),
    ),
}


@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("name", TWO_POINT)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_hidden_statistics(name, kind, elsewhere):
    problem = problem_with(HIDDEN[kind]())
    optimizer = problem.optimizer(name, module=nn.BatchNorm1d(4) if elsewhere else None)
    what = {"SyncBatchNorm": "SyncBatchNorm", "InstanceNorm1d": "InstanceNorm1d"}.get(
        kind, "BatchNorm1d"
    )
    match = f"{what}.*module=model"
    for _ in range(2):
        refuses(problem, lambda: optimizer.step(problem.losses), ClosureError, match, optimizer)


def test_statistics_hidden_in_a_second_model():
    problem, second = problem_with(normalised(nn.BatchNorm1d(4))), normalised(nn.BatchNorm1d(4))

    def closure():
        return problem.losses() + second(problem.x[0]).squeeze(1).square()

    optimizer = problem.optimizer("ASCDRO", module=problem.model)
    with pytest.raises(ClosureError, match=r"BatchNorm1d.*module=model"):
        optimizer.step(closure)
    optimizer = problem.optimizer("ASCDRO", module=[problem.model, second])
    tracked = [m[1].num_batches_tracked.item() for m in (problem.model, second)]
    for _ in range(3):
        optimizer.step(closure)
    assert [m[1].num_batches_tracked.item() for m in (problem.model, second)] == [
        t + 3 for t in tracked
    ]


@pytest.mark.parametrize("name", TWO_POINT)
def test_hidden_statistics_that_start_to_move_later(name):
    problem = problem_with(normalised(nn.BatchNorm1d(4)))
    optimizer = problem.optimizer(name)
    problem.model.eval()
    optimizer.step(problem.losses)
    problem.model.train()
    refuses(
        problem,
        lambda: optimizer.step(problem.losses),
        ClosureError,
        "BatchNorm1d.*module=model",
        optimizer,
    )


def test_layers_without_moving_statistics_are_fine():
    frozen = normalised(nn.BatchNorm1d(4))
    frozen[1].eval()
    for model in (
        frozen,
        normalised(nn.BatchNorm1d(4, track_running_stats=False)),
        normalised(nn.LayerNorm(4)),
    ):
        problem = problem_with(model)
        problem.optimizer("ASCDRO", started=True)


@pytest.mark.parametrize("name", ["SCDRO", "RSCDRO"])
def test_one_evaluation_needs_no_module(name):
    problem = problem_with(normalised(nn.BatchNorm1d(4)))
    problem.optimizer(name, started=True)
    assert problem.model[1].num_batches_tracked == 2


def test_the_inspecting_hook_goes_away():
    hooks = torch_module._global_forward_pre_hooks
    before = len(hooks)
    problem = problem_with(normalised(nn.BatchNorm1d(4)))
    with pytest.raises(ClosureError):
        problem.optimizer("ASCDRO").step(problem.losses)
    assert len(hooks) == before
    problem.optimizer("ASCDRO", started=True, module=problem.model)
    assert len(hooks) == before


@pytest.mark.parametrize("name", TWO_POINT)
def test_a_model_of_another_thread_is_its_own_affair(name):
    problem, other = Problem(), normalised(nn.BatchNorm1d(4))
    optimizer = problem.optimizer(name)
    with Beside(lambda: other(problem.x[0])) as beside:

        def closure():
            beside()
            return problem.losses()

        optimizer.step(closure)
        optimizer.step(closure)
    assert other[1].num_batches_tracked == 3
