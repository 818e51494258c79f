"""The common suite: what every method must do, the library's and the paper's baselines in `reproduction`."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import convex
import scdro
from convex import (
    BATCH,
    DECAY,
    DISTINCT,
    METHODS,
    SETTINGS,
    D,
    K,
    N,
    Training,
    counts,
    data,
    new_model,
    task,
)
from logistic import flat
from scdro.errors import HyperparameterError

OWN_SCHEDULE = ("RSCDRO", "RASCDRO", "RSCDRO-printed", "RASCDRO-printed", "PGSMD2")
every_method = pytest.mark.parametrize("name", DISTINCT)


def test_every_method_is_here():
    assert set(SETTINGS) == set(METHODS) == {*convex.OBJECTIVES, "Focal"}
    assert set(DISTINCT) <= set(METHODS)
    classes = {type(Training(name).opt) for name in METHODS}
    assert classes == {type(Training(name).opt) for name in DISTINCT}
    public = {getattr(scdro.optim, name) for name in scdro.optim.__all__}
    optimizers = {
        cls for cls in public if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)
    }
    assert optimizers <= classes, (
        "add the new method to METHODS, SETTINGS and OBJECTIVES in tests/convex.py"
    )


def focal_optimum():
    """Not convex, so no cone program: the best of L-BFGS from zero, as the method starts."""
    t = Training("Focal")

    def value_and_grad(w):
        with torch.no_grad():
            t.model.weight.copy_(torch.tensor(w[: D * K].reshape(K, D)))
            t.model.bias.copy_(torch.tensor(w[D * K :]))
        t.model.zero_grad()
        value = t.losses(slice(None)).mean() + DECAY / 2 * sum(
            (p**2).sum() for p in t.model.parameters()
        )
        value.backward()
        return value.item(), np.concatenate([p.grad.numpy().ravel() for p in t.model.parameters()])

    return minimize(value_and_grad, np.zeros((D + 1) * K), jac=True, method="L-BFGS-B").fun


@pytest.mark.parametrize("name", METHODS)
def test_removes_95_percent_of_the_gap_to_its_own_optimum(name):
    t = Training(name)
    best = focal_optimum() if name == "Focal" else convex.optimum(name, t.settings)
    start = t.value()
    schedule = None
    if name not in OWN_SCHEDULE:
        schedule = torch.optim.lr_scheduler.MultiStepLR(t.opt, [400, 600], 0.3)
    for _ in range(800):
        t.step()
        if schedule:
            schedule.step()
    assert t.value() >= best - 1e-6
    assert (start - t.value()) / (start - best) >= 0.95


@every_method
def test_a_resumed_run_equals_the_uninterrupted_one(name):
    whole, first, second = (Training(name) for _ in range(3))
    values = [whole.step() for _ in range(30)]
    again = [first.step() for _ in range(12)]
    second.load(first.state())
    again += [second.step() for _ in range(18)]
    assert (flat(whole.model) == flat(second.model)).all()
    assert torch.equal(torch.stack(values), torch.stack(again))


@every_method
def test_a_checkpoint_loads_with_weights_only(name, tmp_path):
    t = Training(name)
    for _ in range(3):
        t.step()
    torch.save(t.opt.state_dict(), tmp_path / "state.pt")
    Training(name).opt.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


@every_method
def test_a_copy_goes_its_own_way(name):
    t = Training(name)
    t.step()
    index, (model, opt) = t.batch(), copy.deepcopy((t.model, t.opt))
    before = flat(t.model)
    x, y = data()
    opt.step(lambda: t.per_sample(model(x[index]), y[index]), index)
    assert (flat(t.model) == before).all()
    assert (flat(model) != before).any()
    t.opt.step(lambda: t.losses(index), index)
    np.testing.assert_array_equal(flat(t.model), flat(model))


@every_method
def test_parameter_groups_and_schedulers(name):
    """A group's own lr is obeyed, and half the lr makes half the first step."""
    moves = []
    for factor in (1.0, 0.5):
        t = Training(name)
        t.opt.param_groups[0]["lr"] *= factor
        t.opt.add_param_group(
            {"params": [nn.Parameter(torch.ones(1, dtype=torch.float64))], "lr": 0.0}
        )
        extra = t.opt.param_groups[1]["params"][0]
        index = t.batch()
        t.opt.step(lambda t=t, i=index, e=extra: t.losses(i) + e, index)
        assert extra.item() == 1.0
        moves.append(flat(t.model))
    # PG-SMD2's step is a proximal one: lr/(1 + lr gamma).
    np.testing.assert_allclose(moves[0], 2.0 * moves[1], rtol=0.03 if name == "PGSMD2" else 1e-12)


@every_method
def test_stays_in_the_ball(name):
    t = Training(name, radius=0.1)
    for _ in range(60):
        t.step()
        assert np.linalg.norm(flat(t.model)) <= 0.1 + 1e-12
    if name not in ("PGSMD2", "AccMDA"):  # these average points of the ball
        assert np.linalg.norm(flat(t.model)) == pytest.approx(0.1)


@every_method
def test_frozen_parameters_stay_as_they_are(name):
    t = Training(name, radius=0.1)
    t.model.bias.data.fill_(1.0)
    t.model.bias.requires_grad_(False)
    for _ in range(10):
        t.step()
    assert (t.model.bias == 1.0).all()
    assert t.model.weight.norm() <= 0.1 + 1e-12


@every_method
def test_another_parameter_group_in_the_middle(name):
    t = Training(name)
    t.step()
    extra = nn.Parameter(torch.ones(1, dtype=torch.float64))
    t.opt.add_param_group({"params": [extra]})
    for _ in range(2):
        index = t.batch()
        t.opt.step(lambda i=index: t.losses(i) + extra, index)
    assert extra.item() != 1.0


@every_method
def test_two_epochs_of_its_own_batches(name):
    """Plain use: build, take the batches it asks for, two epochs."""
    method, model = METHODS[name], new_model()
    x, y = data()
    per_sample = method.per_sample(counts(), **SETTINGS[name])
    opt = method.build(model.parameters(), task(model, per_sample), **SETTINGS[name])
    sampler = method.batches(opt, N, BATCH, seed=1)
    seen = 0
    for _ in range(2):
        for index in sampler:
            opt.step(lambda i=index: per_sample(model(x[i]), y[i]), torch.tensor(index))
            seen += len(index)
    assert seen >= 1.5 * N


@every_method
def test_bad_input_is_refused_and_changes_nothing(name):
    t = Training(name)
    t.step()
    index, before = t.batch(), t.state()
    bad = [
        (scdro.errors.NonFiniteLossError, lambda: t.losses(index) * math.nan),
        (scdro.errors.LossError, lambda: t.losses(index).mean()),
        (scdro.errors.LossError, lambda: t.losses(index).reshape(2, -1)),
        (scdro.errors.LossError, lambda: t.losses(index).detach()),
    ]
    for error, closure in bad:
        with pytest.raises(error):
            t.opt.step(closure, index)
    with pytest.raises(scdro.errors.ClosureError):
        t.opt.step(None, index)
    other = "ERM" if name != "ERM" else "FastDRO"
    if type(t.opt) is not type(Training(other).opt):
        with pytest.raises(scdro.errors.CheckpointError):
            t.opt.load_state_dict(Training(other).opt.state_dict())
    assert str(t.state()) == str(before)


@every_method
def test_bad_batches_are_skipped_and_counted_when_asked(name):
    t = Training(name, skip_nonfinite=True)
    t.step()
    index = t.batch()
    before = flat(t.model)
    t.opt.step(lambda: t.losses(index) * math.inf, index)
    assert (flat(t.model) == before).all()
    assert t.opt.skipped == 1
    t.opt.step(lambda: t.losses(index), index)
    assert (flat(t.model) != before).any()


@every_method
def test_bad_batches_leave_running_statistics_as_they_were(name):
    norm = nn.BatchNorm1d(D, affine=False, dtype=torch.float64)
    t = Training(name, skip_nonfinite=True, modules=[norm])
    x, y = data()

    def losses(index, factor=1.0):
        return t.per_sample(t.model(norm(factor * x[index])), y[index])

    index = t.batch()
    t.opt.step(lambda: losses(index), index)
    before = copy.deepcopy(norm.state_dict())
    assert before["num_batches_tracked"] == 1
    t.opt.step(lambda: losses(index, math.nan), index)
    assert t.opt.skipped == 1
    assert all(torch.equal(norm.state_dict()[key], value) for key, value in before.items())
    unaware = Training(name, skip_nonfinite=True)
    index = unaware.batch()
    with pytest.raises(scdro.errors.ClosureError, match=r"BatchNorm1d.*module=model"):
        unaware.opt.step(lambda: losses(index), index)


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": -1.0},
        {"lr": math.nan},
        {"weight_decay": -1.0},
        {"radius": 0.0},
    ],
    ids=str,
)
@every_method
def test_bad_settings_are_refused(name, settings):
    with pytest.raises(scdro.errors.HyperparameterError, match="expected"):
        Training(name, **settings)


@pytest.mark.parametrize("level", [0.0, 20.0, 1e6])
@every_method
def test_huge_and_equal_losses(name, level):
    """Temperatures of 1e-3 where the method has one; steps small enough for gradients that are not normalised."""
    small = {"DualSGM": 1e-12}.get(name, 1e-4)
    settings = {
        "lr": small,
        **({"lam": 1e-3} if "lam" in SETTINGS[name] and name != "RECOVER" else {}),
    }
    t = Training(name, **settings)
    x, _ = data()
    w = t.model.weight
    for spread in (0.0, 1.0, 20.0):
        for _ in range(5):
            index = t.batch()
            t.opt.step(lambda i=index, s=spread: level + s * torch.sigmoid(x[i] @ w[0]), index)
    assert torch.isfinite(w).all()
    assert math.isfinite(t.step())


@every_method
def test_losses_as_large_as_allowed_and_larger(name):
    t = Training(name, radius=1.0)
    x, y = data()

    def step(size):
        index = t.batch()
        t.opt.step(lambda: size * t.per_sample(t.model(x[index]), y[index]), index)

    for _ in range(3):
        step(1e97)
        assert torch.isfinite(t.model.weight).all()
        if hasattr(t.opt, "weights"):  # p of the primal-dual methods
            p = t.opt.weights.clamp_min(1e-300)
            assert torch.dot(p, torch.log(N * p)) <= convex.RHO + 1e-9
    with pytest.raises(scdro.errors.NonFiniteLossError, match="1e100"):
        step(1e110)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_method
def test_any_dtype(name, dtype):
    t = Training(name)
    t.model.to(dtype)
    x, y = data()
    for _ in range(5):
        index = t.batch()
        t.opt.step(lambda i=index: t.per_sample(t.model(x[i].to(dtype)), y[i]), index)
    assert all(p.dtype == dtype and torch.isfinite(p).all() for p in t.model.parameters())


SCHEDULERS = {
    "OneCycleLR": {"max_lr": 0.2, "total_steps": 20, "cycle_momentum": False},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.2, "cycle_momentum": False},
    "CosineAnnealingWarmRestarts": {"T_0": 5},
    "ExponentialLR": {"gamma": 0.9},
    "LinearLR": {},
    "PolynomialLR": {},
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("kind", [scdro.SCDRO, scdro.ASCDRO])
def test_schedulers_of_torch_move_the_learning_rate(kind, scheduler):
    """As docs/tuning.md says: any, and those that cycle a momentum if they are told not to."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    opt = kind(model.parameters(), lr=0.1)
    schedule = getattr(torch.optim.lr_scheduler, scheduler)(opt, **SCHEDULERS[scheduler])
    x, y = torch.randn(16, 3), torch.randint(2, (16,))
    rates = []
    for _ in range(5):
        opt.step(lambda: nn.functional.cross_entropy(model(x), y, reduction="none"))
        schedule.step()
        rates.append(opt.param_groups[0]["lr"])
    assert len(set(rates)) > 1
    assert rates[-1] == pytest.approx(schedule.get_last_lr()[0])


@pytest.mark.parametrize("kind", [scdro.SCDRO, scdro.ASCDRO])
@pytest.mark.parametrize(
    ("setting", "value", "fact"),
    [("momentum", 0.9, "beta = 1 - m"), ("betas", (0.9, 0.999), "KLRobustLoss"),
     ("dampening", 0.1, "beta"), ("nesterov", True, "ASCDRO"), ("eps", 1e-8, "KLRobustLoss")],
)  # fmt: skip
def test_settings_of_other_optimizers_say_what_there_is_here(kind, setting, value, fact):
    with pytest.raises(HyperparameterError, match=fact) as told:
        kind(nn.Linear(3, 2).parameters(), lr=0.1, **{setting: value})
    assert setting in str(told.value)
    assert kind.__name__ in str(told.value)
    with pytest.raises(TypeError, match=rf"{kind.__name__}.*'learning'"):
        kind(nn.Linear(3, 2).parameters(), learning=0.1)
