"""Bad input: the documented error, a message that says what was expected, and no trace in any state."""

from __future__ import annotations

import copy
import functools
import math
import queue
import re
import threading
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from scdro import (
    ASCDRO,
    RASCDRO,
    RSCDRO,
    SCDRO,
    CheckpointError,
    ClosureError,
    HyperparameterError,
    KLRobustLoss,
    LossError,
    MovingAverage,
    NonFiniteLossError,
    NormalizedStorm,
    PrintedTemperature,
    ScdroError,
    Stage,
    Storm,
    WindowTemperature,
    decay_stages,
    lemma_stages,
    objective,
    rho_for_confidence,
    rho_for_group,
    worst_case,
)

NAN, INF = math.nan, math.inf
OPTIMIZERS = ["SCDRO", "ASCDRO", "RSCDRO", "RASCDRO"]
TWO_POINT = ["ASCDRO", "RASCDRO"]


def make(name, params, *, rho=0.5, lr=0.1, beta=0.5, **settings):
    if name == "SCDRO":
        return SCDRO(params, lr, rho, beta=beta, **settings)
    if name == "ASCDRO":
        return ASCDRO(params, lr, rho, beta=beta, **settings)
    stages = [Stage(lr, beta, 4), Stage(lr / 2, beta, 4)]
    return {"RSCDRO": RSCDRO, "RASCDRO": RASCDRO}[name](params, stages, rho, **settings)


class Problem:
    """A small regression: `losses()` is a good closure, `losses(k)` that of the k-th batch."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(6, 5, 3, generator=generator)
        self.y = torch.randn(6, 5, generator=generator)
        self.model = nn.Linear(3, 1)
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))

    def losses(self, k=0):
        return (self.model(self.x[k]).squeeze(1) - self.y[k]).square()

    def optimizer(self, name, started=False, **settings):
        optimizer = make(name, self.model.parameters(), **settings)
        for k in range(2 if started else 0):
            optimizer.step(lambda k=k: self.losses(k))
        return optimizer

    def snapshot(self, *stateful):
        return copy.deepcopy([self.model.state_dict(), *(s.state_dict() for s in stateful)])


def differences(a, b, path=""):
    """Every place where two nested states differ; NaN equals NaN."""
    if type(a) is not type(b):
        return [(path, a, b)]
    if isinstance(a, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return [(path, a, b)]
        unequal = (a != b) & ~((a != a) & (b != b))
        return [(f"{path}{i.tolist()}", a[tuple(i)], b[tuple(i)]) for i in unequal.nonzero()]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [(path, a.keys(), b.keys())]
        return [d for key in a for d in differences(a[key], b[key], f"{path}.{key}")]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [(path, len(a), len(b))]
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{path}.{i}")]
    return [] if a == b or (a != a and b != b) else [(path, a, b)]


def refuses(problem, call, error, match, *stateful):
    """`call` raises exactly `error`, says `match`, and changes nothing."""
    before = problem.snapshot(*stateful)
    with pytest.raises(ScdroError, match=match) as caught:
        call()
    assert caught.type is error
    assert differences(before, problem.snapshot(*stateful)) == []


def with_value(value):
    return lambda losses: torch.cat([losses[:2], losses[2:3] * 0 + value, losses[3:]])


def test_differences_can_see():
    state = {"a": torch.tensor([1.0, NAN]), "b": [1, (2, NAN)], "c": None}
    assert differences(state, copy.deepcopy(state)) == []
    for changed in (
        {**state, "a": torch.tensor([1.0, 2.0])},
        {**state, "a": torch.tensor([1.0, NAN], dtype=torch.float64)},
        {**state, "b": [1, (3, NAN)]},
        {**state, "c": 0},
        {"a": state["a"]},
    ):
        assert len(differences(state, changed)) == 1


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (HyperparameterError, (ScdroError, ValueError)),
        (LossError, (ScdroError, ValueError)),
        (NonFiniteLossError, (LossError,)),
        (ClosureError, (ScdroError, RuntimeError)),
        (CheckpointError, (ScdroError, ValueError)),
    ],
)
def test_errors_can_be_caught_as_what_they_are(error, bases):
    assert all(issubclass(error, base) for base in bases)


# -- losses -----------------------------------------------------------------------------------------------------------

BAD_LOSSES = {
    "nan": (with_value(NAN), NonFiniteLossError, "finite.*NaN"),
    "inf": (with_value(INF), NonFiniteLossError, "finite.*NaN"),
    "-inf": (with_value(-INF), NonFiniteLossError, "finite.*NaN"),
    "2-D": (lambda l: l[:, None], LossError, r"\(5, 1\)"),
    "reduced": (lambda l: l.mean(), LossError, 'reduction="none"'),
    "empty": (lambda l: l[:0], LossError, "empty"),
    "integer": (lambda l: l.detach().round().long(), LossError, "floating-point.*int64"),
    "detached": (lambda l: l.detach(), LossError, "require grad"),
    "list": (lambda l: l.tolist(), LossError, "tensor.*list"),
    "forgotten return": (lambda l: None, LossError, "tensor.*NoneType"),
}


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("kind", BAD_LOSSES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bad_losses_of_a_closure(name, kind, started):
    problem = Problem()
    optimizer = problem.optimizer(name, started)
    spoil, error, match = BAD_LOSSES[kind]
    refuses(problem, lambda: optimizer.step(lambda: spoil(problem.losses())), error, match, optimizer)
    optimizer.step(problem.losses)


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("kind", BAD_LOSSES)
def test_bad_losses_of_the_loss_module(kind, started):
    problem, robust = Problem(), KLRobustLoss(0.5)
    if started:
        robust(problem.losses())
    spoil, error, match = BAD_LOSSES[kind]
    refuses(problem, lambda: robust(spoil(problem.losses(1))), error, match, robust)
    robust(problem.losses()).backward()


@pytest.mark.parametrize("kind", [k for k in BAD_LOSSES if k != "detached"])
def test_bad_losses_in_evaluation(kind):
    problem, robust = Problem(), KLRobustLoss(0.5)
    robust(problem.losses())
    robust.eval()
    spoil, error, match = BAD_LOSSES[kind]
    refuses(problem, lambda: robust(spoil(problem.losses(1))), error, match, robust)


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


def test_losses_at_their_bounds_are_fine():
    robust = KLRobustLoss(0.5, loss_bound=2.0)
    assert torch.isfinite(robust(torch.tensor([0.0, 2.0], requires_grad=True)))


@pytest.mark.parametrize("padding", [NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("training", [False, True])
def test_padding_may_hold_anything(training, padding):
    answers = []
    for last in (0.0, padding):
        robust = KLRobustLoss(0.5).train(training)
        losses = torch.tensor([1.0, 2.0, last], requires_grad=True)
        value = robust(losses, mask=torch.tensor([True, True, False]))
        value.backward()
        answers.append((value.detach(), losses.grad, robust.state_dict()))
    assert differences(*answers) == []


# -- sample weights and masks -----------------------------------------------------------------------------------------

BAD_WEIGHTS = {
    "negative": ([1.0, -1.0, 1.0, 1.0, 1.0], "weights.*negative"),
    "nan": ([1.0, NAN, 1.0, 1.0, 1.0], "weights.*non-finite"),
    "inf": ([1.0, INF, 1.0, 1.0, 1.0], "weights.*non-finite"),
    "zeros": ([0.0] * 5, "weights.*positive"),
    "short": ([1.0] * 4, r"weight.*\(5,\).*\(4,\)"),
    "2-D": ([[1.0]] * 5, r"weight.*\(5,\).*\(5, 1\)"),
    "number": (1.0, r"weight.*\(5,\).*\(\)"),
}


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("kind", BAD_WEIGHTS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_bad_weights_of_a_step(name, kind, started):
    problem = Problem()
    optimizer = problem.optimizer(name, started)
    weight, match = BAD_WEIGHTS[kind]
    weight = torch.tensor(weight)
    refuses(problem, lambda: optimizer.step(problem.losses, sample_weight=weight), LossError, match, optimizer)


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", BAD_WEIGHTS)
def test_bad_weights_of_the_loss_module(kind, training, started):
    problem, robust = Problem(), KLRobustLoss(0.5)
    if started:
        robust(problem.losses())
    robust.train(training)
    weight, match = BAD_WEIGHTS[kind]
    refuses(problem, lambda: robust(problem.losses(1), torch.tensor(weight)), LossError, match, robust)


def test_bad_masks():
    problem, robust = Problem(), KLRobustLoss(0.5)
    for mask, match in (([False] * 5, "positive"), ([True] * 4, r"\(5,\).*\(4,\)")):
        refuses(problem, lambda m=mask: robust(problem.losses(), mask=torch.tensor(m)), LossError, match, robust)


@pytest.mark.parametrize("kind", BAD_WEIGHTS)
def test_bad_weights_of_functions(kind):
    weight, match = BAD_WEIGHTS[kind]
    if kind in ("negative", "nan", "inf"):
        match = "weights.*negative.*non-finite"
    with pytest.raises(LossError, match=match):
        worst_case([1.0] * 5, 0.1, sample_weight=weight)
    with pytest.raises(LossError, match=match):
        objective(torch.ones(5), 1.0, 0.1, sample_weight=torch.tensor(weight))


# -- settings ---------------------------------------------------------------------------------------------------------

RADIUS_RHO = "rho >= 0"
BAD_SETTINGS = [
    *(("rho", v, RADIUS_RHO) for v in (-0.1, NAN, INF)),
    *(("lam0", v, "lam0 > 0") for v in (0.0, -1e-3, NAN, INF)),
    *(("beta", v, r"beta.*\(0, 1\]") for v in (0.0, -0.1, 1.001, NAN)),
    *(("lr", v, "lr >=? 0") for v in (-0.1, NAN, INF)),
    *(("weight_decay", v, "weight_decay >= 0") for v in (-1e-4, NAN, INF)),
    *(("radius", v, "R > 0") for v in (0.0, -1.0, NAN, INF)),
    *(("trim", v, r"trim.*\[0, 1\)") for v in (-0.1, 1.0, 1.5, NAN)),
    *(("loss_bound", v, "loss_bound > 0") for v in (0.0, -1.0, NAN, INF)),
    *(("window", v, "window") for v in (0, -5)),
    *(("mu", v, "mu >= 0") for v in (-0.1, NAN, INF)),
]
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


@pytest.mark.parametrize(("setting", "value"), [("lr", -0.1), ("weight_decay", -1e-4), ("beta", 1.5)])
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
        refuses(problem, lambda: optimizer.step(problem.losses), HyperparameterError, "beta", optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_different_betas(name):
    problem = Problem()
    groups = [{"params": [problem.model.weight]}, {"params": [problem.model.bias]}]
    optimizer = make(name, groups)
    optimizer.step(problem.losses)
    optimizer.param_groups[1]["beta"] = 0.25
    refuses(problem, lambda: optimizer.step(problem.losses), HyperparameterError, "beta", optimizer)


@pytest.mark.parametrize("initial", [0.0, -1.0, NAN, INF])
def test_bad_initial_temperature(initial):
    for temperature in (WindowTemperature, PrintedTemperature):
        with pytest.raises(HyperparameterError, match=f"lam > 0.*{initial}"):
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
    with pytest.raises(HyperparameterError, match=r"1 point.*SCDRO.*Storm"):
        SCDRO(params, tracker=Storm())
    with pytest.raises(HyperparameterError, match=r"2 point.*ASCDRO.*MovingAverage"):
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


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_of_another_model(name):
    problem, other = Problem(), Problem()
    optimizer = problem.optimizer(name, started=True)
    refuses(problem, lambda: optimizer.step(other.losses), ClosureError, "parameters.*model", optimizer)


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


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_ascdro_with_gradients_whose_square_is_out_of_range(scale):
    w = nn.Parameter(torch.tensor([1.0, -2.0]))
    opt = ASCDRO([w], 1e-3 / scale, 0.5)
    g = torch.Generator().manual_seed(0)
    for _ in range(5):
        x = torch.randn(8, 2, generator=g)
        opt.step(lambda x=x: scale * (x @ w - 1.0).abs())
    assert w.isfinite().all()


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("kind", [torch.tensor, lambda values: values])
def test_losses_of_weight_zero_may_be_anything(kind, bad):
    weight = [1.0, 0.0, 2.0]
    for function in (
        lambda l: worst_case(l, 0.1, sample_weight=weight).value,
        lambda l: objective(l, 1.0, 0.1, sample_weight=weight),
    ):
        assert float(function(kind([1.0, bad, 2.0]))) == float(function(kind([1.0, 0.0, 2.0])))


@pytest.mark.parametrize("name", ["RSCDRO", "RASCDRO"])
def test_bad_stages(name):
    params, kind = [nn.Parameter(torch.ones(2))], {"RSCDRO": RSCDRO, "RASCDRO": RASCDRO}[name]
    for stages, match in (
        ([], "stage"),
        ([Stage(0.1, 0.5, 0), Stage(0.1, 0.5, 1)], "step.*Stage"),
        ([Stage(0.1, 0.5, 1), Stage(0.0, 0.5, 1)], "lr > 0.*Stage"),
        ([Stage(0.1, 0.5, 1), Stage(0.1, 1.5, 1)], r"beta.*\(0, 1\].*1.5"),
    ):
        with pytest.raises(HyperparameterError, match=match):
            kind(params, stages)


def test_bad_schedules():
    for milestones in ([0], [5, 5], [7, 3], [-1]):
        with pytest.raises(HyperparameterError, match="milestones"):
            decay_stages(0.1, 0.5, milestones)
    for bad in ("mu", "eps1", "sigma", "L_F"):
        with pytest.raises(HyperparameterError, match=f"{bad} > 0.*-1"):
            lemma_stages(**{"mu": 1.0, "eps1": 1.0, "sigma": 1.0, "L_F": 1.0, "stages": 2, bad: -1.0})


def test_attaching_twice():
    model = nn.Linear(3, 1)
    robust = KLRobustLoss(0.5).attach(torch.optim.SGD(model.parameters(), 0.1))
    robust(model(torch.randn(4, 3)).flatten())
    with pytest.raises(HyperparameterError, match=r"optimizer.*step\(\)"):
        robust.attach(torch.optim.SGD(model.parameters(), 0.1))


# -- functions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.tensor, list])
def test_bad_losses_of_functions(kind):
    for losses, error, match in (
        ([1.0, NAN, INF], NonFiniteLossError, "2 NaN"),
        ([1.0, -INF], NonFiniteLossError, "1 NaN"),
        ([[1.0, 2.0]], LossError, r"\(1, 2\)"),
        ([], LossError, "empty"),
    ):
        for function in (lambda l: worst_case(l, 0.1), lambda l: objective(l, 1.0, 0.1)):
            with pytest.raises(error, match=match) as caught:
                function(kind(losses))
            assert caught.type is error
    for function in (lambda l: worst_case(l, 0.1), lambda l: objective(l, 1.0, 0.1)):
        for reduced in (torch.tensor(3.0), 3.0):
            with pytest.raises(LossError, match='reduction="none"'):
                function(reduced)


@pytest.mark.parametrize(("setting", "value", "match"), [b for b in BAD_SETTINGS if b[0] in ("rho", "lam0", "trim")])
def test_bad_settings_of_functions(setting, value, match):
    with pytest.raises(HyperparameterError, match=match):
        worst_case([1.0, 2.0], **{"rho": 0.1, setting: value})
    if setting != "trim":
        with pytest.raises(HyperparameterError, match=match):
            objective([1.0, 2.0], 1.0, **{"rho": 0.1, setting: value})


@pytest.mark.parametrize("value", ["0.5", None])
@pytest.mark.parametrize("setting", ["rho", "lam0", "trim", "beta"])
def test_settings_that_are_no_numbers(setting, value):
    with pytest.raises(HyperparameterError, match=f"{setting}.*0.5|{setting}.*None"):
        KLRobustLoss(**{"rho": 0.5, setting: value})
    if setting != "beta":
        with pytest.raises(HyperparameterError, match=f"number.*{setting}.*{value!r}"):
            worst_case([1.0, 2.0], **{"rho": 0.5, setting: value})
    if setting in ("rho", "lam0", "beta"):
        with pytest.raises(HyperparameterError, match=setting):
            make("SCDRO", nn.Linear(3, 1).parameters(), **{setting: value})


def test_tensors_and_numpy_numbers_are_numbers():
    for rho in (torch.tensor(0.5), np.float32(0.5), np.int64(1), True):
        assert float(worst_case([1.0, 2.0], rho=rho).value) > 1.5


@pytest.mark.parametrize("lam", [0.0, -1.0, NAN])
def test_bad_lam(lam):
    for temperature in (lam, torch.tensor(lam)):
        with pytest.raises(HyperparameterError, match=f"lam > 0.*{lam}"):
            objective([1.0, 2.0], temperature, 0.1)


def test_per_cent_in_place_of_a_share():
    with pytest.raises(HyperparameterError, match=r"12\.5.*0\.125"):
        rho_for_group(12.5)
    with pytest.raises(HyperparameterError, match=r"1000[^%]*$"):
        rho_for_group(1000)
    with pytest.raises(HyperparameterError, match=r"0\.0[^%]*$"):
        rho_for_group(0.0)
    with pytest.raises(HyperparameterError, match=r"number.*'0\.1'"):
        rho_for_group("0.1")


def test_bad_meanings_of_rho():
    for alpha in (0.0, -0.1, 1.1, NAN):
        with pytest.raises(HyperparameterError, match=rf"\(0, 1\].*{alpha}"):
            rho_for_group(alpha)
    for level in (0.4, 1.0, 2.0, NAN):
        with pytest.raises(HyperparameterError, match=rf"\[0\.5, 1\).*{level}"):
            rho_for_confidence(10, level)
    with pytest.raises(HyperparameterError, match="n = 0"):
        rho_for_confidence(0)


# -- closures ---------------------------------------------------------------------------------------------------------


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
    refuses(problem, lambda: optimizer.step(lambda: closure(problem)), ClosureError, r"backward\(\)", optimizer)
    optimizer.step(problem.losses)


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("closure", [(), (None,), (3.0,), (torch.ones(5),)], ids=["none", "None", "number", "losses"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_closure_missing(name, closure, started):
    problem = Problem()
    optimizer = problem.optimizer(name, started)
    refuses(problem, lambda: optimizer.step(*closure), ClosureError, r"step\(closure\).*KLRobustLoss", optimizer)


def test_losses_in_place_of_a_closure():
    problem = Problem()
    optimizer = problem.optimizer("SCDRO")
    match = r"Tensor.*lambda: "
    refuses(problem, lambda: optimizer.step(problem.losses()), ClosureError, match, optimizer)


def test_what_is_no_vector_of_losses_is_told_apart():
    robust, logits = KLRobustLoss(0.5), torch.randn(6, 3, requires_grad=True)
    for call, match in (
        (lambda: robust(logits, torch.arange(6) % 3), r"logits.*\(6, 3\).*labels"),
        (lambda: robust(logits[:, :1]), r"\(6, 1\).*squeeze\(1\)"),
        (lambda: robust(logits), r"\(6, 3\).*average"),
        (lambda: robust(logits, torch.ones(6)), r"\(6, 3\).*average"),
        (lambda: worst_case(logits[:, :1], 0.5), r"squeeze\(1\)"),
    ):
        with pytest.raises(LossError, match=match):
            call()


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


@pytest.mark.parametrize("name", TWO_POINT)
def test_closure_that_draws_its_own_batch(name):
    problem = Problem()
    optimizer = problem.optimizer(name, started=True)
    sizes = iter([5, 3])
    refuses(
        problem,
        lambda: optimizer.step(lambda: problem.losses()[: next(sizes)]),
        ClosureError,
        "batch.*5.*3",
        optimizer,
    )


@pytest.mark.parametrize("bad_call", [1, 2])
@pytest.mark.parametrize("kind", BAD_LOSSES)
@pytest.mark.parametrize("name", TWO_POINT)
def test_bad_losses_at_one_of_two_points(name, kind, bad_call):
    problem = Problem()
    optimizer = problem.optimizer(name, started=True)
    spoil, error, match = BAD_LOSSES[kind]
    calls = []

    def closure():
        calls.append(None)
        return spoil(problem.losses()) if len(calls) == bad_call else problem.losses()

    refuses(problem, lambda: optimizer.step(closure), error, match, optimizer)


# -- checkpoints ------------------------------------------------------------------------------------------------------


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
    refuses(problem, lambda: optimizer.load_state_dict(checkpoint), CheckpointError, match, optimizer)
    optimizer.step(problem.losses)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_checkpoint_of_other_settings(name):
    problem, other = Problem(0), Problem(1)
    optimizer = problem.optimizer(name, started=True, window=64)
    size = "window.*64.*WindowTemperature"
    kind = "WindowTemperature.*another"
    for settings, says in (({"window": 32}, size), ({"window": 64, "temperature": PrintedTemperature()}, kind)):
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
    refuses(problem, lambda: optimizer.load_state_dict(checkpoint), CheckpointError, "stages", optimizer)


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
    refuses(problem, lambda: optimizer.load_state_dict(checkpoint), CheckpointError, "expected", optimizer)
    optimizer.step(problem.losses)


@pytest.mark.parametrize(
    ("settings", "mine"),
    [({"window": 32}, {"window": 64}), ({"window": 64, "temperature": PrintedTemperature(lr=0.1)}, {"window": 64})],
    ids=["window", "temperature"],
)
def test_checkpoint_of_another_loss_module(settings, mine):
    problem = Problem()
    robust, other = KLRobustLoss(0.5, **mine), KLRobustLoss(0.5, **settings)
    robust(problem.losses(0))
    other(problem.losses(1))
    refuses(problem, lambda: robust.load_state_dict(other.state_dict()), CheckpointError, "window", robust)


# -- skip_nonfinite ---------------------------------------------------------------------------------------------------


def only_skipped_moved(before, after, stateful):
    """Exactly one element of all the state differs: a counter, which went up by one and is `skipped`."""
    moved = differences(before, after)
    assert len(moved) == 1, moved
    _, old, new = moved[0]
    assert not new.is_floating_point()
    assert new - old == 1
    assert new == stateful.skipped


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_skipped_batch_leaves_no_trace(name, at, value):
    problem, twin = Problem(), Problem()
    optimizer, clean = problem.optimizer(name, skip_nonfinite=True), twin.optimizer(name, skip_nonfinite=True)
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


@pytest.mark.parametrize("bad_call", [1, 2])
@pytest.mark.parametrize("name", TWO_POINT)
def test_skipped_where_one_of_two_points_is_bad(name, bad_call):
    problem = Problem()
    optimizer = problem.optimizer(name, started=True, skip_nonfinite=True)
    calls = []

    def closure():
        calls.append(None)
        return with_value(NAN)(problem.losses()) if len(calls) == bad_call else problem.losses()

    before = problem.snapshot(optimizer)
    optimizer.step(closure)
    only_skipped_moved(before, problem.snapshot(optimizer), optimizer)


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
    robust.state.commit(robust.state.estimate(batch, 0.1))
    only_skipped_moved(before, problem.snapshot(robust), robust)
    robust(problem.losses(2)).backward()


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
def test_step_that_a_scaler_skipped_leaves_no_trace(started):
    problem, robust = Problem(), KLRobustLoss(0.5)
    if started:
        robust(problem.losses())
    before = problem.snapshot(robust)
    estimate = robust.state.estimate(robust.state.read(problem.losses(1)), 0.1)
    robust.state.commit(estimate, only_if=torch.tensor(False))
    assert differences(before, problem.snapshot(robust)) == []
    robust.state.commit(estimate, only_if=torch.tensor(True))
    assert differences(before, problem.snapshot(robust)) != []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_skipped_batch_gives_a_value_of_the_usual_dtype(dtype):
    robust = KLRobustLoss(0.5, skip_nonfinite=True)
    good, bad = (robust(torch.tensor([1.0, v], dtype=dtype, requires_grad=True)) for v in (2.0, NAN))
    assert good.dtype == bad.dtype


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_without_skipping_nothing_is_counted(name):
    problem = Problem()
    optimizer = problem.optimizer(name, started=True)
    with pytest.raises(NonFiniteLossError, match="skip_nonfinite=True"):
        optimizer.step(lambda: with_value(NAN)(problem.losses()))
    assert optimizer.skipped == 0


# -- what a batch that was left out did to the model ------------------------------------------------------------------


def spoilt(problem, k):
    """A batch with a NaN in its input: BatchNorm sees it before any loss is known."""
    problem.x[k, 0, 0] = NAN
    return problem


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("first", [True, False])
def test_a_batch_left_out_leaves_running_statistics_as_they_were(name, first):
    problem = spoilt(problem_with(normalised(nn.BatchNorm1d(4))), 4)
    optimizer = problem.optimizer(name, started=not first, skip_nonfinite=True, module=problem.model)
    before = problem.snapshot()
    optimizer.step(lambda: problem.losses(4))
    assert optimizer.skipped == 1
    assert differences(before, problem.snapshot()) == []
    optimizer.step(lambda: problem.losses(3))
    assert all(torch.isfinite(b).all() for b in problem.model.buffers())
    assert differences(before, problem.snapshot()) != []


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
    refuses(problem, lambda: optimizer.step(lambda: problem.losses(4)), NonFiniteLossError, "NaN", optimizer)


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


# -- ASCDRO's two evaluations -----------------------------------------------------------------------------------------


def normalised(*layers):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 1))


HIDDEN = {
    "BatchNorm1d": lambda: normalised(nn.BatchNorm1d(4)),
    "cumulative": lambda: normalised(nn.BatchNorm1d(4, momentum=None)),
    "nested": lambda: nn.Sequential(normalised(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(4)))),
    "SyncBatchNorm": lambda: nn.SyncBatchNorm.convert_sync_batchnorm(normalised(nn.BatchNorm1d(4))),
    "InstanceNorm1d": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten(), nn.Linear(3, 1)
    ),
}


def problem_with(model):
    problem = Problem()
    problem.model = model
    return problem


@pytest.mark.parametrize("kind", HIDDEN)
@pytest.mark.parametrize("name", TWO_POINT)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_hidden_statistics(name, kind, elsewhere):
    problem = problem_with(HIDDEN[kind]())
    optimizer = problem.optimizer(name, module=nn.BatchNorm1d(4) if elsewhere else None)
    what = {"SyncBatchNorm": "SyncBatchNorm", "InstanceNorm1d": "InstanceNorm1d"}.get(kind, "BatchNorm1d")
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
    assert [m[1].num_batches_tracked.item() for m in (problem.model, second)] == [t + 3 for t in tracked]


@pytest.mark.parametrize("name", TWO_POINT)
def test_hidden_statistics_that_start_to_move_later(name):
    problem = problem_with(normalised(nn.BatchNorm1d(4)))
    optimizer = problem.optimizer(name)
    problem.model.eval()
    optimizer.step(problem.losses)
    problem.model.train()
    refuses(problem, lambda: optimizer.step(problem.losses), ClosureError, "BatchNorm1d.*module=model", optimizer)


def test_layers_without_moving_statistics_are_fine():
    frozen = normalised(nn.BatchNorm1d(4))
    frozen[1].eval()
    for model in (frozen, normalised(nn.BatchNorm1d(4, track_running_stats=False)), normalised(nn.LayerNorm(4))):
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


class Beside:
    """Another thread, that does one thing each time it is asked to."""

    def __init__(self, work):
        self.results, self._asked, self._done, self._work = [], queue.Queue(), queue.Queue(), work
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while self._asked.get():
            self._done.put(self._outcome())

    def _outcome(self):
        try:
            return self._work(), None
        except Exception as error:
            return None, error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._asked.put(False)
        self._thread.join()

    def __call__(self):
        self._asked.put(True)
        result, error = self._done.get(timeout=60)
        if error is not None:
            raise error
        self.results.append(result)


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


@pytest.mark.parametrize("when", ["first evaluation", "second evaluation", "both"])
@pytest.mark.parametrize("layers", [(), (nn.Dropout(0.5),)], ids=["plain", "dropout"])
@pytest.mark.parametrize("name", TWO_POINT)
def test_another_thread_draws_nothing_twice(name, layers, when):
    """After a step it gets numbers that nobody has had; during one, the closure's own where that draws some."""
    torch.manual_seed(0)
    problem, calls = problem_with(normalised(*layers)), 0
    optimizer = problem.optimizer(name)
    with Beside(lambda: torch.randint(2**62, (3,)).tolist()) as beside:

        def closure(k):
            nonlocal calls
            calls += 1
            losses = problem.losses(k)
            if calls > 1 and (calls % 2 == 0 or when == "both") != (when == "second evaluation"):
                beside()
            return losses

        for k in range(5):
            optimizer.step(lambda k=k: closure(k))
            before = len(beside.results)
            beside()
            fresh = set(beside.results[-1])
            assert len(fresh) == 3
            assert all(fresh.isdisjoint(drawn) for drawn in beside.results[:before])
        if when != "both":
            drawn = [number for numbers in beside.results for number in numbers]
            assert len(set(drawn)) == len(drawn)
    assert calls == 9


def test_a_closure_that_draws_nothing_leaves_the_generator_alone(monkeypatch):
    problem = Problem()
    optimizer = problem.optimizer("ASCDRO", started=True)
    monkeypatch.setattr(torch, "set_rng_state", lambda _: pytest.fail("nothing was drawn"))
    optimizer.step(problem.losses)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("name", TWO_POINT)
def test_statistics_move_once_as_by_one_forward(name, momentum):
    problem = problem_with(normalised(nn.BatchNorm1d(4, momentum=momentum), nn.Dropout(0.3)))
    optimizer = problem.optimizer(name, module=problem.model)
    for k in range(5):
        single = copy.deepcopy(problem.model)
        state = torch.get_rng_state()
        single(problem.x[k])
        torch.set_rng_state(state)
        optimizer.step(lambda k=k: problem.losses(k))
        assert differences(dict(single.named_buffers()), dict(problem.model.named_buffers())) == []
        assert problem.model[1].num_batches_tracked == k + 1


@pytest.mark.parametrize("name", TWO_POINT)
def test_the_two_points_are_the_previous_and_the_present(name):
    problem, seen = Problem(), []
    optimizer = problem.optimizer(name)

    def closure(k):
        seen.append(problem.model.weight.detach().clone())
        return problem.losses(k)

    trajectory = []
    for k in range(4):
        trajectory.append(problem.model.weight.detach().clone())
        optimizer.step(lambda k=k: closure(k))
    expected = [trajectory[0]]
    for previous, present in pairwise(trajectory):
        expected += [previous, present]
    assert differences(seen, expected) == []
    assert not torch.equal(trajectory[0], trajectory[1])


@pytest.mark.parametrize("name", TWO_POINT)
def test_both_points_see_the_same_masks(name):
    torch.manual_seed(0)
    problem = problem_with(normalised(nn.Dropout(0.5)))
    optimizer, masks, draws = problem.optimizer(name), [], []
    problem.model[1].register_forward_hook(lambda _, inputs, output: masks.append((output == 0).clone()))

    def closure(k):
        draws.append(torch.rand(7))
        return problem.losses(k)

    for k in range(4):
        optimizer.step(lambda k=k: closure(k))
    assert len(masks) == len(draws) == 7
    for recorded in (masks, draws):
        for i in (1, 3, 5):
            assert torch.equal(recorded[i], recorded[i + 1])
            assert not torch.equal(recorded[i - 1], recorded[i])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_random_state_moves_as_by_one_evaluation(name):
    problem = problem_with(normalised(nn.Dropout(0.5)))
    optimizer = problem.optimizer(name)
    for k in range(3):
        torch.manual_seed(k)
        problem.losses(k)
        once = torch.get_rng_state()
        torch.manual_seed(k)
        optimizer.step(lambda k=k: problem.losses(k))
        assert torch.equal(torch.get_rng_state(), once)


@pytest.mark.parametrize("name", TWO_POINT)
def test_buffers_and_random_state_after_a_failed_rehearsal(name):
    problem = problem_with(normalised(nn.BatchNorm1d(4), nn.Dropout(0.5)))
    optimizer = problem.optimizer(name, started=True, module=problem.model)
    before, state = problem.snapshot(optimizer), torch.get_rng_state()
    with pytest.raises(NonFiniteLossError):
        optimizer.step(lambda: with_value(NAN)(problem.losses()))
    assert differences(before, problem.snapshot(optimizer)) == []
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 65504.0), (torch.float32, 3.4e38), (torch.float64, 1e308)])
@pytest.mark.parametrize("setting", ["lr", "weight_decay"])
def test_steps_that_parameters_cannot_hold(dtype, most, setting):
    held, free = (torch.nn.Parameter(torch.ones(2, dtype=d)) for d in (dtype, torch.float64))
    settings = {"lr": 0.1, "rho": 0.5}
    SCDRO([held], **settings | {setting: most})
    if most < 1e308:
        with pytest.raises(HyperparameterError, match=f"{setting} <= "):
            SCDRO(
                [{"params": [free], setting: 1.0}, {"params": [free.detach().clone().requires_grad_(), held]}],
                **settings | {setting: 1.1 * most},
            )
