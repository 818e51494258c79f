"""What every optimizer refuses: losses, weights, settings, closures and checkpoints, each without a trace."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from equality import differences
from refusals import (
    BAD_LOSSES,
    BAD_SETTINGS,
    BAD_WEIGHTS,
    NAN,
    OPTIMIZERS,
    TWO_POINT,
    Problem,
    make,
    refuses,
    with_value,
)
from scdro import SCDRO, KLRobustLoss
from scdro.errors import CheckpointError, ClosureError, HyperparameterError, LossError
from scdro.optim import RASCDRO, RSCDRO, Stage, decay_stages, factor_stages
from scdro.printed import PrintedTemperature

# -- losses
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("kind", BAD_LOSSES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bad_losses_of_a_closure(name, kind, started):
    problem = Problem()
    optimizer = problem.optimizer(name, started)
    spoil, error, match = BAD_LOSSES[kind]
    refuses(
        problem, lambda: optimizer.step(lambda: spoil(problem.losses())), error, match, optimizer
    )
    optimizer.step(problem.losses)


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("value", [-0.001, 101.0])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("name", [*OPTIMIZERS, "KLRobustLoss"])
def test_loss_outside_its_bound(name, skip, value, started):
    problem = Problem()
    if name == "KLRobustLoss":
        stateful = KLRobustLoss(0.5, loss_bound=100.0, skip_nonfinite=skip)
        if started:
            stateful(problem.losses())
    else:
        stateful = problem.optimizer(name, started, loss_bound=100.0, skip_nonfinite=skip)

    def call():
        if name == "KLRobustLoss":
            stateful(with_value(value)(problem.losses()))
        else:
            stateful.step(lambda: with_value(value)(problem.losses()))

    refuses(problem, call, LossError, r"loss_bound.*100", stateful)


# -- sample weights and masks
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("kind", BAD_WEIGHTS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bad_weights_of_a_step(name, kind, started):
    problem = Problem()
    optimizer = problem.optimizer(name, started)
    weight, match = BAD_WEIGHTS[kind]
    weight = torch.tensor(weight)
    refuses(
        problem,
        lambda: optimizer.step(problem.losses, sample_weight=weight),
        LossError,
        match,
        optimizer,
    )


# -- settings
# ---------------------------------------------------------------------------------------------------------


OF_THE_LOSS = {"rho", "lam0", "beta", "trim", "loss_bound", "window"}


@pytest.mark.parametrize(("setting", "value", "match"), BAD_SETTINGS)
@pytest.mark.parametrize("name", [*OPTIMIZERS, "KLRobustLoss"])
def test_bad_settings(name, setting, value, match):
    if name == "KLRobustLoss" and setting not in OF_THE_LOSS:
        with pytest.raises(TypeError, match=setting):
            KLRobustLoss(0.5, **{setting: value})
        return
    problem = Problem()

    def call():
        if name == "KLRobustLoss":
            KLRobustLoss(**{"rho": 0.5, setting: value})
        else:
            problem.optimizer(name, **{setting: value})

    refuses(problem, call, HyperparameterError, f"{match}.*{re.escape(str(value))}")


@pytest.mark.parametrize(
    ("setting", "value"), [("lr", -0.1), ("weight_decay", -1e-4), ("beta", 1.5)]
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bad_settings_of_one_parameter_group(name, setting, value):
    model = nn.Linear(3, 1)
    with pytest.raises(HyperparameterError, match=f"{setting}.*{value}"):
        make(name, [{"params": [model.weight]}, {"params": [model.bias], setting: value}])


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_settings_changed_to_bad_ones(name, started):
    problem = Problem()
    optimizer = problem.optimizer(name, started)
    for beta in (0.0, 1.5, NAN):
        optimizer.param_groups[0]["beta"] = beta
        refuses(
            problem, lambda: optimizer.step(problem.losses), HyperparameterError, "beta", optimizer
        )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_different_betas(name):
    problem = Problem()
    groups = [{"params": [problem.model.weight]}, {"params": [problem.model.bias]}]
    optimizer = make(name, groups)
    optimizer.step(problem.losses)
    optimizer.param_groups[1]["beta"] = 0.25
    refuses(problem, lambda: optimizer.step(problem.losses), HyperparameterError, "beta", optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_of_another_model(name):
    problem, other = Problem(), Problem()
    optimizer = problem.optimizer(name, started=True)
    refuses(
        problem, lambda: optimizer.step(other.losses), ClosureError, "parameters.*model", optimizer
    )


@pytest.mark.parametrize("name", ["RSCDRO", "RASCDRO"])
def test_bad_stages(name):
    params, kind = [nn.Parameter(torch.ones(2))], {"RSCDRO": RSCDRO, "RASCDRO": RASCDRO}[name]
    for stages, match in (
        ([], "stage"),
        ([Stage(0.1, 0.5, 0), Stage(0.1, 0.5, 1)], "steps >= 1.*stage 0"),
        ([Stage(0.1, 0.5, 1), Stage(0.0, 0.5, 1)], "lr > 0.*stage 1"),
        ([Stage(0.1, 0.5, 1), Stage(0.1, 1.5, 1)], r"beta.*\(0, 1\].*stage 1.*1.5"),
        ([Stage(0.1, 0.5, -3)], "steps >= 0.*stage 0.*-3"),
        ([Stage(0.1, 0.5, 2.5), Stage(0.1, 0.5, 0)], "steps.*whole number.*stage 0.*2.5"),
        ([Stage("fast", 0.5, 3)], "number for lr.*fast"),
        ([(0.1, 0.5)], r"Stage\(lr, beta, steps\).*\(0.1, 0.5\).*decay_stages"),
        ("abc", "Stage.*'abc'.*decay_stages"),
        (600, "Stage.*600.*decay_stages"),
        (None, "Stage.*None"),
        (Stage(0.1, 0.5, 10), "list of Stage.*steps=10"),
    ):
        with pytest.raises(HyperparameterError, match=match):
            kind(params, stages)


def test_bad_schedules():
    for milestones in ([0], [5, 5], [7, 3], [-1]):
        with pytest.raises(HyperparameterError, match="milestones"):
            decay_stages(0.1, 0.5, milestones)
    for milestones in ("abc", [2.5]):
        with pytest.raises(HyperparameterError, match=r"milestones.*whole number"):
            decay_stages(0.1, 0.5, milestones)
    with pytest.raises(HyperparameterError, match=r"stages >= 1.*-1"):
        factor_stages(0.1, 0.5, 100, -1)


# -- closures
# ---------------------------------------------------------------------------------------------------------


def freed(problem):
    losses = problem.losses()
    losses.mean().backward()
    return losses


def retained(problem):
    losses = problem.losses()
    losses.mean().backward(retain_graph=True)
    return losses


def hidden(problem):
    losses = freed(problem)
    problem.model.zero_grad()
    return losses


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("closure", [freed, retained, hidden])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_closure_that_called_backward(name, closure, started):
    problem = Problem()
    optimizer = problem.optimizer(name, started)
    refuses(
        problem,
        lambda: optimizer.step(lambda: closure(problem)),
        ClosureError,
        r"backward\(\)",
        optimizer,
    )
    optimizer.step(problem.losses)


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize(
    "closure", [(), (None,), (3.0,), (torch.ones(5),)], ids=["none", "None", "number", "losses"]
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_closure_missing(name, closure, started):
    problem = Problem()
    optimizer = problem.optimizer(name, started)
    refuses(
        problem,
        lambda: optimizer.step(*closure),
        ClosureError,
        r"step\(closure\).*KLRobustLoss",
        optimizer,
    )


def test_losses_in_place_of_a_closure():
    problem = Problem()
    optimizer = problem.optimizer("SCDRO")
    match = r"Tensor.*lambda: "
    refuses(problem, lambda: optimizer.step(problem.losses()), ClosureError, match, optimizer)


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_closure_that_raises(name, started):
    problem = Problem()
    optimizer = problem.optimizer(name, started)
    calls_allowed = 1 if started and name in TWO_POINT else 0
    for survivors in range(calls_allowed + 1):
        calls = []

        def closure(calls=calls, survivors=survivors):
            calls.append(None)
            if len(calls) > survivors:
                raise KeyError("the user's own")
            return problem.losses()

        before = problem.snapshot(optimizer)
        with pytest.raises(KeyError, match="the user's own"):
            optimizer.step(closure)
        assert differences(before, problem.snapshot(optimizer)) == []


# -- checkpoints
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [*OPTIMIZERS, "SGD"])
@pytest.mark.parametrize("target", OPTIMIZERS)
def test_checkpoint_of_another_algorithm(target, source):
    problem, other = Problem(0), Problem(1)
    optimizer = problem.optimizer(target, started=True)
    if source == "SGD":
        sgd = torch.optim.SGD(other.model.parameters(), 0.1, momentum=0.9)
        other.losses().mean().backward()
        sgd.step()
        checkpoint = sgd.state_dict()
    else:
        checkpoint = other.optimizer(source, started=True).state_dict()
    if source == target:
        optimizer.load_state_dict(checkpoint)
        assert differences(checkpoint, optimizer.state_dict()) == []
        return
    came = "another optimizer" if source == "SGD" else source
    match = rf"\b{target}\b.*\b{came}\b"
    refuses(
        problem, lambda: optimizer.load_state_dict(checkpoint), CheckpointError, match, optimizer
    )
    optimizer.step(problem.losses)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_checkpoint_of_other_settings(name):
    problem, other = Problem(0), Problem(1)
    optimizer = problem.optimizer(name, started=True, window=64)
    size = "window.*64.*WindowTemperature"
    kind = "WindowTemperature.*another"
    for settings, says in (
        ({"window": 32}, size),
        ({"window": 64, "temperature": PrintedTemperature()}, kind),
    ):
        checkpoint = other.optimizer(name, started=True, **settings).state_dict()
        refuses(
            problem,
            lambda c=checkpoint: optimizer.load_state_dict(c),
            CheckpointError,
            says,
            optimizer,
        )


@pytest.mark.parametrize("kind", [RSCDRO, RASCDRO])
def test_checkpoint_of_other_stages(kind):
    problem = Problem()
    optimizer = kind(problem.model.parameters(), decay_stages(0.1, 0.5, [5]))
    optimizer.step(problem.losses)
    other = kind(Problem().model.parameters(), decay_stages(0.1, 0.5, [5, 9]))
    checkpoint = other.state_dict()
    refuses(
        problem, lambda: optimizer.load_state_dict(checkpoint), CheckpointError, "stages", optimizer
    )


@pytest.mark.parametrize("shape", [[(4, 2)], [(3,), (3,)]], ids=["other shape", "other number"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_checkpoint_of_other_parameters(name, shape):
    problem = Problem()
    optimizer = make(name, [problem.model.weight])
    optimizer.step(problem.losses)
    params = [nn.Parameter(torch.ones(s)) for s in shape]
    other = make(name, params)
    other.step(lambda: sum(p.sum() for p in params) * torch.ones(3))
    checkpoint = other.state_dict()
    refuses(
        problem,
        lambda: optimizer.load_state_dict(checkpoint),
        CheckpointError,
        "expected",
        optimizer,
    )
    optimizer.step(problem.losses)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float16, 65504.0), (torch.float32, 3.4e38), (torch.float64, 1e308)]
)
@pytest.mark.parametrize("setting", ["lr", "weight_decay"])
def test_steps_that_parameters_cannot_hold(dtype, most, setting):
    held, free = (torch.nn.Parameter(torch.ones(2, dtype=d)) for d in (dtype, torch.float64))
    settings = {"lr": 0.1, "rho": 0.5}
    SCDRO([held], **settings | {setting: most})
    if most < 1e308:
        with pytest.raises(HyperparameterError, match=f"{setting} <= "):
            SCDRO(
                [
                    {"params": [free], setting: 1.0},
                    {"params": [free.detach().clone().requires_grad_(), held]},
                ],
                **settings | {setting: 1.1 * most},
            )


# -- what looks like something else
# -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_in_the_place_of_the_index(name):
    problem = Problem()
    opt = make(name, problem.model.parameters())
    for weights in (torch.rand(5), [0.1, 0.2, 0.3, 0.2, 0.2]):
        with pytest.raises(ClosureError, match="sample_weight=weights"):
            opt.step(problem.losses, weights)
    opt.step(problem.losses, torch.arange(5))  # methods that need no index ignore it


def test_settings_that_cannot_be_changed_afterwards():
    opt, robust = SCDRO(nn.Linear(3, 1).parameters(), 0.1, 0.5), KLRobustLoss(0.5)
    assert opt.rho == robust.rho == 0.5
    for owner in (opt, robust):
        with pytest.raises(AttributeError):
            owner.rho = 3.0
    for name in ("cap", "lag"):
        with pytest.raises(AttributeError):  # the tracker has been made from it
            setattr(opt.temperature, name, None)
    with pytest.raises(AttributeError):
        PrintedTemperature().lr = 0.1


@pytest.mark.parametrize("name", ["RSCDRO", "RASCDRO"])
def test_the_stages_have_lr_and_beta(name):
    for setting in ("lr", "beta"):
        with pytest.raises(HyperparameterError, match=f"{setting} as part of the stages"):
            {"RSCDRO": RSCDRO, "RASCDRO": RASCDRO}[name](
                nn.Linear(3, 1).parameters(), [Stage(0.1, 0.5, 4)], **{setting: 0.3}
            )


def test_a_saved_beta_is_checked():
    opt = SCDRO(nn.Linear(3, 1).parameters(), 0.1, 0.5)
    saved = opt.state_dict()
    for change, error in (({"beta": 7.0}, HyperparameterError), ({}, CheckpointError)):
        groups = [
            {k: v for k, v in group.items() if k != "beta"} | change
            for group in saved["param_groups"]
        ]
        with pytest.raises(error, match="beta"):
            opt.load_state_dict({**saved, "param_groups": groups})
    assert opt.param_groups[0]["beta"] == 0.1
