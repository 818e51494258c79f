"""The common suite: what every registered method must do."""

import copy
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import convex
import scdro
from convex import BATCH, DECAY, D, K, N, counts, data, new_model, task
from logistic import flat
from scdro.optim import REGISTRY
from scdro.optim.samplers import DrawnBatches

# Step sizes for batches of 32 out of 240 samples.
SETTINGS = {
    **{name: {"lr": 0.3, "beta": 0.1} for name in ("SCDRO", "ASCDRO", "RSCDRO", "RASCDRO")},
    "SCDRO-printed": {"lr": 0.1, "beta": 0.5, "lam": 1.0},
    "ASCDRO-printed": {"lr": 0.1, "beta": 0.9, "lam": 1.0},
    "RSCDRO-printed": {"lr": 0.1, "beta": 0.5, "lam": 1.0},
    "RASCDRO-printed": {"lr": 0.1, "beta": 0.9, "lam": 1.0},
    "ERM": {"lr": 0.05},
    "FastDRO": {"lr": 0.05},
    "FastDRO-MLMC": {"lr": 0.01, "smallest": 16, "largest": 64},
    "FastDRO-CVaR": {"lr": 0.03, "alpha": 0.5},
    "FastDRO-chi2": {"lr": 0.05},
    "FastDRO-chi2-penalty": {"lr": 0.05, "reg": 1.0},
    "DualSGM": {"lr": 0.03, "lam": 1.0},
    "SPD": {"lr": 0.2, "dual_lr": 2e-3},
    "PGSMD2": {"lr": 0.4, "dual_lr": 2e-3, "stage_steps": 20},
    "AccMDA": {"lr": 1.0, "dual_lr": 1e-3},
    "RECOVER": {"lr": 0.1, "beta": 0.5, "lam": 1.0},
    "ABSGD": {"lr": 0.03, "lam": 1.0, "gamma": 0.5},
    "TERM": {"lr": 0.03, "lam": 1.0, "gamma": 1.0},
    "GroupDRO": {"lr": 0.01, "dual_lr": 0.01},
    "Focal": {"lr": 0.1, "gamma": 1.0},
    "ClassBalanced": {"lr": 0.05, "balance": 0.999},
}
OWN_SCHEDULE = ("RSCDRO", "RASCDRO", "RSCDRO-printed", "RASCDRO-printed", "PGSMD2")
every_method = pytest.mark.parametrize("name", REGISTRY)


class Training:
    """A model, a method and its batches."""

    def __init__(self, name, modules=(), **settings):
        self.settings = SETTINGS[name] | settings
        self.name, self.model, self.method = name, new_model(), REGISTRY[name]
        self.per_sample = self.method.per_sample(counts(), **self.settings)
        facts = task(self.model, self.per_sample)
        own = {"weight_decay": DECAY} | self.settings
        if modules:
            known = [self.model, *modules]
            facts, own = facts | {"module": known}, own if "module" in self.method.needs else own | {"module": known}
        self.opt = self.method.build(self.model.parameters(), facts, **own)
        sampler = self.method.batches(self.opt, N, BATCH)
        self.sampler = sampler if isinstance(sampler, DrawnBatches) else None
        self.drawn = iter(self.sampler) if self.sampler else None
        self.generator = torch.Generator().manual_seed(0)

    def batch(self):
        if self.drawn is None:
            return torch.randperm(N, generator=self.generator)[:BATCH]
        index = next(self.drawn, None)
        if index is None:
            self.drawn = iter(self.sampler)
            index = next(self.drawn)
        return torch.tensor(index)

    def losses(self, index):
        x, y = data()
        return self.per_sample(self.model(x[index]), y[index])

    def step(self):
        index = self.batch()
        return self.opt.step(lambda: self.losses(index), index)

    def value(self):
        """The method's own objective on all samples, and the decay that was asked for."""
        with torch.no_grad():
            return float(self.opt.full_objective(self.losses(slice(None))) + convex.penalty(self.model))

    def state(self):
        sampler = self.sampler.state_dict() if self.sampler else None
        return copy.deepcopy((self.model.state_dict(), self.opt.state_dict(), sampler, self.generator.get_state()))

    def load(self, state):
        model, opt, sampler, generator = copy.deepcopy(state)
        self.model.load_state_dict(model)
        self.opt.load_state_dict(opt)
        if self.sampler:
            self.sampler.load_state_dict(sampler)
            self.drawn = iter(self.sampler)
        self.generator.set_state(generator)


def test_every_registered_method_is_here():
    assert set(SETTINGS) == set(REGISTRY) == {*convex.OBJECTIVES, "Focal"}


def focal_optimum():
    """Not convex, so no cone program: the best of L-BFGS from zero, as the method starts."""
    t = Training("Focal")

    def value_and_grad(w):
        with torch.no_grad():
            t.model.weight.copy_(torch.tensor(w[: D * K].reshape(K, D)))
            t.model.bias.copy_(torch.tensor(w[D * K :]))
        t.model.zero_grad()
        value = t.losses(slice(None)).mean() + DECAY / 2 * sum((p**2).sum() for p in t.model.parameters())
        value.backward()
        return value.item(), np.concatenate([p.grad.numpy().ravel() for p in t.model.parameters()])

    return minimize(value_and_grad, np.zeros((D + 1) * K), jac=True, method="L-BFGS-B").fun


@every_method
def test_removes_95_percent_of_the_gap_to_its_own_optimum(name):
    t = Training(name)
    settings = {k: v for k, v in t.settings.items() if k in ("lam", "alpha", "reg", "balance")}
    best, start = focal_optimum() if name == "Focal" else convex.optimum(name, settings), t.value()
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
        t.opt.add_param_group({"params": [nn.Parameter(torch.ones(1, dtype=torch.float64))], "lr": 0.0})
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
def test_a_loop_over_the_registry(name):
    """Plain use: build, take the batches it asks for, two epochs."""
    method, model = REGISTRY[name], new_model()
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
    settings = {"lr": small, **({"lam": 1e-3} if "lam" in SETTINGS[name] and name != "RECOVER" else {})}
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


def test_what_a_method_needs_is_named():
    with pytest.raises(scdro.errors.HyperparameterError, match=r"n, all_losses.*PGSMD2"):
        REGISTRY["PGSMD2"].build(new_model().parameters(), {"rho": 0.1}, lr=0.1)


@pytest.mark.parametrize("name", ["RSCDRO", "RASCDRO"])
def test_printed_stages_are_those_of_the_method_with_the_papers_temperature(name):
    """The same weights, bit for bit, as the class itself with stages and temperature by hand."""
    settings = SETTINGS[f"{name}-printed"]
    named = Training(f"{name}-printed", **settings)
    by_hand = Training(f"{name}-printed", **settings)
    stages = scdro.optim.decay_stages(settings["lr"], settings["beta"], [400, 600])
    by_hand.opt = getattr(scdro.optim, name)(
        by_hand.model.parameters(),
        stages,
        convex.RHO,
        temperature=scdro.temperature.PrintedTemperature(settings["lam"]),
        weight_decay=DECAY,
        **({"module": by_hand.model} if name == "RASCDRO" else {}),
    )
    for t in (named, by_hand):
        for _ in range(410):
            t.step()
    assert named.opt.stage == by_hand.opt.stage == 1
    assert named.opt.param_groups[0]["lr"] == pytest.approx(0.1 * settings["lr"])
    assert (flat(named.model) == flat(by_hand.model)).all()


def test_class_balanced_training_balances_classes_by_default():
    """At .999 two such classes got nearly the same weight: it was plain training."""
    counts = torch.tensor([6273, 19776])
    losses = REGISTRY["ClassBalanced"].per_sample(counts)(torch.zeros(2, 2), torch.tensor([0, 1]))
    torch.testing.assert_close(counts * losses, (counts * losses).mean().expand(2))
