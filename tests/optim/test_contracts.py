"""What torch.optim's and torchmetrics' own suites check, of every registered optimizer and of the loss.

Hooks, named parameters, parameter groups, copies, pickles, checkpoints by torch.distributed.checkpoint, the meta
device, threads, tensors for lr, sparse gradients, complex parameters, compiling for changing sizes.
"""

import copy
import io
import math
import os
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import checkpoint_worker
import scdro
from checkpoint_worker import differences, sizes_for
from ranks import RHO, N, Training, World, batches, data, flat, own_settings
from scdro import KLRobustLoss, PrintedTemperature, WindowTemperature
from scdro.optim import REGISTRY, decay_stages

every_method = pytest.mark.parametrize("name", REGISTRY)
ROBUST = {"SCDRO": scdro.SCDRO, "ASCDRO": scdro.ASCDRO}


def training(name, steps=0, dtype=torch.float32, **settings):
    t = Training(World(), name, dtype=dtype, **settings)
    train(t, range(steps))
    return t


def build(name, params, module, all_losses):
    """A registered method on parameters of one's own."""
    facts = {"rho": RHO, "n": N, "groups": torch.arange(N) % 3, "milestones": [2, 4]}
    return REGISTRY[name].build(params, {**facts, "module": module, "all_losses": all_losses}, **own_settings(name))


def train(t, numbers):
    drawn = batches(sizes_for(t.name))
    for number in numbers:
        t.step(drawn[number], number)
    return t


def saved_and_loaded(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def assert_same_future(t, other, numbers=range(3, 6)):
    """The same state, and the same steps from it, to the bit."""
    assert differences(t.opt.state_dict(), other.opt.state_dict()) == []
    for each in (t, other):
        train(each, numbers)
    assert torch.equal(flat(t.model), flat(other.model))
    assert differences(t.opt.state_dict(), other.opt.state_dict()) == []


def with_weights_of(name, source, **settings):
    t = training(name, **settings)
    t.inner.load_state_dict(source.inner.state_dict())
    return t


# -- state_dict -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every_method
def test_a_state_dict_survives_to_the_bit(name, dtype):
    """Also in bfloat16, to which torch casts what a parameter's state holds."""
    t = training(name, 3, dtype)
    other = with_weights_of(name, t, dtype=dtype)
    other.opt.load_state_dict(saved_and_loaded(t.opt.state_dict()))
    other.draw()
    assert_same_future(t, other)


OPTIONS = {
    "plain": {},
    "flat": {"flatten_optimizer_state_dict": True},
    "full": {"full_state_dict": True},
    "on the host": {"cpu_offload": True},
    "flat, full, on the host": {"flatten_optimizer_state_dict": True, "full_state_dict": True, "cpu_offload": True},
}


def through_torch(t, other, options):
    """The state of one optimizer, as torch saves it, into another."""
    state = saved_and_loaded(get_optimizer_state_dict(t.inner, t.opt, options=StateDictOptions(**options)))
    if options.get("flatten_optimizer_state_dict"):
        options = {"flatten_optimizer_state_dict": True}  # torch (2.13) cannot load its own that is flat and full
    set_optimizer_state_dict(other.inner, other.opt, state, options=StateDictOptions(**options))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@every_method
def test_all_state_survives_torchs_checkpoints(name, options):
    t = training(name, 3)
    other = with_weights_of(name, t)
    through_torch(t, other, options)
    assert_same_future(t, other)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@every_method
def test_a_fresh_state_survives_torchs_checkpoints(name, options):
    """torch would call step() without a closure to make a state that is not there."""
    t, other = training(name), training(name, 2)
    before = flat(t.model)
    other.inner.load_state_dict(t.inner.state_dict())
    through_torch(t, other, options)
    assert torch.equal(flat(t.model), before)
    assert_same_future(t, other, range(3))


@pytest.mark.parametrize("options", [OPTIONS["plain"], OPTIONS["flat"]], ids=["plain", "flat"])
@every_method
def test_frozen_parameters_and_groups_in_torchs_checkpoints(name, options):
    """What is no parameter's own is not with a frozen one, whose state torch drops; nor is it in the groups."""

    def make():
        t = training(name)
        t.inner[0].weight.requires_grad_(False)
        groups = [{"params": [t.inner[0].weight, t.inner[2].bias]}, {"params": [t.inner[0].bias, t.inner[2].weight]}]
        t.opt = build(name, groups, t.inner, getattr(t.opt, "_all_losses", None))
        t.draw()
        return t

    t, other = train(make(), range(3)), make()
    other.inner.load_state_dict(t.inner.state_dict())
    through_torch(t, other, options)
    assert_same_future(t, other)


def test_a_state_whose_carrier_is_frozen_here_is_refused():
    t, other = training("SCDRO", 3), training("SCDRO", 1)
    other.inner[0].requires_grad_(False)
    before = copy.deepcopy(other.opt.state_dict())
    with pytest.raises(scdro.CheckpointError, match="parameters"):
        set_optimizer_state_dict(other.inner, other.opt, get_optimizer_state_dict(t.inner, t.opt))
    assert differences(before, other.opt.state_dict()) == []


@every_method
def test_hooks_of_state_dicts_see_all_of_it(name):
    t, seen = training(name, 3), []
    t.opt.register_state_dict_pre_hook(lambda opt: seen.append("before"))

    def rename(opt, state_dict):
        """All of what is no parameter's own, and nothing else, has the optimizer's name."""
        seen.append(sorted(key for entries in state_dict["state"].values() for key in entries if "." in key))
        state = {
            i: {k.replace(f"{type(opt).__name__}.", "Renamed."): v for k, v in entries.items()}
            for i, entries in state_dict["state"].items()
        }
        return {**state_dict, "state": state}

    handle = t.opt.register_state_dict_post_hook(rename)
    state = saved_and_loaded(t.opt.state_dict())
    handle.remove()
    kind = type(t.opt).__name__
    assert seen == ["before", sorted(f"{kind}.{key}" for key in t.opt._own_state())]
    other = with_weights_of(name, t)
    with pytest.raises(scdro.CheckpointError, match=rf"\b{kind}\b.*Renamed"):
        other.opt.load_state_dict(state)

    def rename_back(opt, state_dict):
        state = state_dict["state"]
        state_dict["state"] = {
            i: {k.replace("Renamed.", f"{kind}."): v for k, v in entries.items()} for i, entries in state.items()
        }

    after = []
    other.opt.register_load_state_dict_pre_hook(rename_back)
    other.opt.register_load_state_dict_post_hook(lambda opt: after.append(copy.deepcopy(opt.state_dict())))
    other.opt.load_state_dict(state)
    other.draw()
    assert differences(after[0], t.opt.state_dict()) == []
    assert_same_future(t, other)


@every_method
def test_hooks_of_steps_run_once(name):
    t, seen = training(name), []
    t.opt.register_step_pre_hook(lambda opt, args, settings: seen.append("before"))
    t.opt.register_step_post_hook(lambda opt, args, settings: seen.append("after"))
    train(t, range(2))
    assert seen == ["before", "after"] * 2


@every_method
def test_named_parameters(name):
    t, named = training(name, 3), training(name, 3, named=True)
    names = [key for key, _ in t.inner.named_parameters()]
    assert named.opt.state_dict()["param_groups"][0]["param_names"] == names
    assert torch.equal(flat(t.model), flat(named.model))
    fresh = with_weights_of(name, t, named=True)
    fresh.opt.load_state_dict(saved_and_loaded(named.opt.state_dict()))
    fresh.draw()
    assert fresh.opt.param_groups[0]["param_names"] == names
    assert_same_future(named, fresh)


def detached(t, model, opt):
    """A training with another model and optimizer, which are copies of its own."""
    twin = copy.copy(t)
    x, y = data()
    twin.model = twin.inner = model
    twin.opt = opt
    twin.losses = lambda index: t.per_sample(model(x[index].float()), y[index])
    return twin


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("how", ["copy", "pickle"])
@every_method
def test_copies_and_pickles(name, how, steps):
    t = training(name, steps)
    pair = (t.inner, t.opt)
    model, opt = copy.deepcopy(pair) if how == "copy" else pickle.loads(pickle.dumps(pair))
    before = flat(t.model)
    twin = train(detached(t, model, opt), range(3, 4))
    assert torch.equal(flat(t.model), before)
    train(t, range(3, 4))
    assert_same_future(t, twin, range(4, 6))


@every_method
def test_lr_as_a_tensor(name):
    settings = own_settings(name)
    number = training(name, 3, torch.float64)
    tensor = training(name, 3, torch.float64, lr=torch.tensor(settings["lr"], dtype=torch.float64))
    torch.testing.assert_close(flat(tensor.model), flat(number.model), rtol=1e-12, atol=1e-12)
    other = with_weights_of(name, tensor, dtype=torch.float64)
    other.opt.load_state_dict(saved_and_loaded(tensor.opt.state_dict()))
    other.draw()
    assert_same_future(tensor, other)


@every_method
def test_on_the_meta_device(name):
    """torch.optim's own can be made there, to know the shapes of a state; so can these."""
    real, model = training(name), nn.Linear(4, 3, device="meta")
    opt = build(name, model.parameters(), model, lambda: None)
    state = opt.state_dict()["state"]
    assert state[0].keys() == real.opt.state_dict()["state"][0].keys()
    assert all(value.is_meta for value in state[0].values() if isinstance(value, torch.Tensor))


def test_several_threads_at_once():
    made = [training(name) for name in [*REGISTRY] * 2]  # one after the other: models draw from torch's one generator
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda t: flat(train(t, range(6)).model), made))
    for k, name in enumerate(REGISTRY):
        expected = flat(training(name, 6).model)
        assert torch.equal(found[k], expected), name
        assert torch.equal(found[k + len(REGISTRY)], expected), name


class Embedded(nn.Module):
    """A layer with sparse gradients, and one without."""

    def __init__(self, sparse):
        super().__init__()
        self.dense, self.embedding = nn.Linear(1, 1), nn.Embedding(N, 1, sparse=sparse)

    def forward(self, index):
        return self.dense(self.embedding(index)).reshape(-1) ** 2


@every_method
def test_sparse_gradients_are_refused_before_anything_moves(name):
    model, index = Embedded(sparse=True), torch.arange(8)
    opt = build(name, model.parameters(), model, lambda: model(torch.arange(N)))
    if hasattr(opt, "draw"):
        opt.draw(1, torch.Generator().manual_seed(0))
    before = copy.deepcopy((model.state_dict(), opt.state_dict()))
    with pytest.raises(scdro.ClosureError, match="sparse=False"):
        opt.step(lambda: model(index), index)
    assert differences(before, (model.state_dict(), opt.state_dict())) == []
    model.embedding.sparse = False
    opt.step(lambda: model(index), index)
    assert differences(before[0], model.state_dict())


@every_method
def test_complex_parameters_are_refused(name):
    real, imaginary = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(scdro.HyperparameterError, match="real parameters"):
        build(name, [imaginary], nn.Linear(1, 1), lambda: None)
    opt = build(name, [real], nn.Linear(1, 1), lambda: None)
    with pytest.raises(scdro.HyperparameterError, match="real parameters"):
        opt.add_param_group({"params": [imaginary]})
    assert len(opt.param_groups) == 1
    opt.state_dict()


# -- what a state means -----------------------------------------------------------------------------------------------

MEANINGS = {
    "rho = 0": ({"rho": 0.5}, {"rho": 0.0}, "rho > 0.*rho = 0"),
    "rho > 0": ({"rho": 0.0}, {"rho": 0.5}, "rho = 0.*rho > 0"),
    "trim": ({"rho": 0.5, "trim": 0.1}, {"rho": 0.5}, "trim > 0.*trim = 0"),
    "temperature": (
        {"rho": 0.5},
        {"rho": 0.5, "temperature": PrintedTemperature(1.0, lr=0.1)},
        "WindowTemperature",
    ),
}


def losses_at(step, count=20):
    return 3 * torch.rand(count, generator=torch.Generator().manual_seed(step)).requires_grad_()


def used(loss, steps=3):
    for step in range(steps):
        loss(losses_at(step)).backward()
    return loss


@pytest.mark.parametrize(("mine", "theirs", "says"), MEANINGS.values(), ids=MEANINGS)
def test_a_loss_refuses_a_state_that_means_something_else(mine, theirs, says):
    for steps in (0, 3):
        robust, other = used(KLRobustLoss(**mine), steps), used(KLRobustLoss(**theirs))
        before = copy.deepcopy(robust.state_dict())
        with pytest.raises(scdro.CheckpointError, match=says):
            robust.load_state_dict(saved_and_loaded(other.state_dict()))
        assert differences(before, robust.state_dict()) == []


@pytest.mark.parametrize(("mine", "theirs", "says"), MEANINGS.values(), ids=MEANINGS)
@pytest.mark.parametrize("method", ROBUST)
def test_an_optimizer_refuses_a_state_that_means_something_else(method, mine, theirs, says):
    def make(settings):
        model = nn.Linear(3, 2)
        opt = ROBUST[method](model.parameters(), lr=0.1, **settings)
        x, y = torch.randn(16, 3), torch.randint(2, (16,))
        for _ in range(3):
            opt.step(lambda: F.cross_entropy(model(x), y, reduction="none"))
        return opt

    opt, other = make(mine), make(theirs)
    before = copy.deepcopy(opt.state_dict())
    with pytest.raises(scdro.CheckpointError, match=says):
        opt.load_state_dict(saved_and_loaded(other.state_dict()))
    assert differences(before, opt.state_dict()) == []


def test_a_state_of_another_tracker_is_refused():
    made = [scdro.ASCDRO(nn.Linear(3, 2).parameters(), rho=0.5, tracker=tracker) for tracker in (None, scdro.Storm())]
    with pytest.raises(scdro.CheckpointError, match=r"NormalizedStorm.*tracker"):
        made[0].load_state_dict(made[1].state_dict())


@pytest.mark.parametrize(
    "settings",
    [{"rho": 0.1}, {"rho": 2.0}, {"rho": 0.5, "lam0": 5.0}, {"rho": 0.5, "beta": 0.9}, {"rho": 0.5, "loss_bound": 4.0}],
    ids=str,
)
def test_what_may_change_on_resume(settings):
    """A radius, a bound or a share that differs: the loss goes on from the state, and ends as one that began so."""
    robust, fresh = KLRobustLoss(**settings), KLRobustLoss(**settings)
    robust.load_state_dict(used(KLRobustLoss(rho=0.5, beta=0.3), 10).state_dict())
    assert robust.state.limits.lam0 <= robust.lam <= robust.state.limits.lam_max
    for step in range(10, 200):
        values = [loss(losses_at(step)).item() for loss in (robust, fresh)]
        assert math.isfinite(values[0])
    assert values[0] == pytest.approx(values[1], rel=1e-3)
    assert robust.lam.item() == pytest.approx(fresh.lam.item(), rel=1e-3)


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("saved", [None, 0.7])
def test_a_state_without_a_batch_leaves_the_first_lam_to_the_object(saved, initial):
    """lam_1 is not found from the first batch where one was given: an unused state that has none must not take it."""
    robust, new = (KLRobustLoss(0.5, temperature=WindowTemperature(initial)) for _ in range(2))
    robust.load_state_dict(KLRobustLoss(0.5, temperature=WindowTemperature(saved)).state_dict())
    assert differences(robust.state_dict(), new.state_dict()) == []
    assert [robust(losses_at(k)).item() for k in range(3)] == [new(losses_at(k)).item() for k in range(3)]


# -- the loss ---------------------------------------------------------------------------------------------------------

LOSSES = {
    "default": lambda **where: KLRobustLoss(0.5, **where),
    "initial": lambda **where: KLRobustLoss(0.5, temperature=WindowTemperature(0.7), **where),
    "printed": lambda **where: KLRobustLoss(0.5, temperature=PrintedTemperature(0.7, lr=0.1), **where),
    "trim": lambda **where: KLRobustLoss(0.5, trim=0.1, **where),
    "rho = 0": lambda **where: KLRobustLoss(0.0, **where),
}
every_loss = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)


def values_of(loss, steps=4):
    return [loss(losses_at(step)).item() for step in range(steps)]


def dirty(tensor):
    """What to_empty may give: memory that somebody has used."""
    return tensor.fill_(7 if not tensor.is_floating_point() else -3.7e5)


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("how", ["copy", "pickle", "state_dict"])
@every_loss
def test_a_loss_is_copied_pickled_and_resumed(make, how, steps):
    loss = used(make(), steps)
    if how == "state_dict":
        twin = make()
        twin.load_state_dict(saved_and_loaded(loss.state_dict()))
    else:
        twin = copy.deepcopy(loss) if how == "copy" else pickle.loads(pickle.dumps(loss))
    assert differences(loss.state_dict(), twin.state_dict()) == []
    assert values_of(twin) == values_of(loss)
    assert differences(loss.state_dict(), twin.state_dict()) == []


@pytest.mark.parametrize("resets", [False, True])
@every_loss
def test_a_loss_made_on_the_meta_device(make, resets, monkeypatch):
    """As FSDP2's users do: make, to_empty, reset_parameters of every module that has it; and without the last."""
    with torch.device("meta"):
        model = nn.ModuleDict({"layer": nn.Linear(3, 2), "loss": make()})
    assert all(buffer.is_meta for buffer in model.buffers())
    empty_like = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *args, **where: dirty(empty_like(*args, **where)))
    model.to_empty(device="cpu")
    monkeypatch.undo()
    if resets:
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    assert differences(model["loss"].state_dict(), make().state_dict()) == []
    assert values_of(model["loss"]) == values_of(make())


@every_loss
def test_a_loss_on_the_meta_device_follows_its_first_losses(make):
    with torch.device("meta"):
        loss = make()
    assert values_of(loss) == values_of(make())


def test_a_contrastive_loss_made_on_the_meta_device():
    new = scdro.contrastive.RobustContrastiveLoss(n=20, rho=0.5)
    with torch.device("meta"):
        loss = scdro.contrastive.RobustContrastiveLoss(n=20, rho=0.5)
    loss.to_empty(device="cpu")
    assert differences(loss.state_dict(), new.state_dict()) == []
    a, b = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert loss(a, b, torch.arange(6)).item() == new(a, b, torch.arange(6)).item()


@every_loss
def test_reset_parameters_makes_a_loss_new(make):
    loss = used(make())
    loss.reset_parameters()
    assert differences(loss.state_dict(), make().state_dict()) == []
    assert values_of(loss) == values_of(make())


@every_loss
def test_no_move_changes_what_a_loss_knows(make):
    """No dtype is taken, and to_empty of a loss in use loses nothing."""
    loss, twin = used(make()), used(make())
    loss.half().float().double().bfloat16().type(torch.float32)
    loss.to_empty(device="cpu").to("cpu").cpu().share_memory()
    assert differences(loss.state_dict(), twin.state_dict()) == []
    assert values_of(loss) == values_of(twin)


def test_a_loss_loads_a_state_by_assignment():
    loss = used(KLRobustLoss(0.5))
    with torch.device("meta"):
        other = KLRobustLoss(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that nothing is copied into meta tensors
        other.load_state_dict(loss.state_dict())
    other.load_state_dict(saved_and_loaded(loss.state_dict()), assign=True)
    assert values_of(other) == values_of(loss)


def test_losses_in_several_threads_at_once():
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda make: values_of(make(), 8), [*LOSSES.values()] * 8))
    assert found == [values_of(make(), 8) for make in LOSSES.values()] * 8


def test_hooks_of_a_loss_run_once():
    loss, seen = KLRobustLoss(0.5), []
    loss.register_forward_pre_hook(lambda *_: seen.append("before"))
    loss.register_forward_hook(lambda *_: seen.append("after"))
    values_of(loss, 2)
    assert seen == ["before", "after"] * 2


@pytest.mark.parametrize("kind", ["complex", "sparse"])
def test_a_loss_refuses_complex_and_sparse_losses(kind):
    loss = KLRobustLoss(0.5)
    values = torch.ones(4, dtype=torch.complex64) if kind == "complex" else torch.ones(4).to_sparse()
    with pytest.raises(scdro.LossError, match="expected"):
        loss(values.requires_grad_())
    assert differences(loss.state_dict(), KLRobustLoss(0.5).state_dict()) == []


def test_a_loss_with_sparse_gradients_and_complex_parameters():
    """They are the model's and the optimizer's: the loss does not see them, also where it accumulates."""
    for accumulated in (False, True):
        model, index = Embedded(sparse=True), torch.arange(8)
        phase = nn.Parameter(torch.ones(8, dtype=torch.complex64))
        loss, opt = KLRobustLoss(0.5), torch.optim.SGD([*model.parameters(), phase], 0.1)
        if accumulated:
            loss.attach(opt)
        before = copy.deepcopy(model.state_dict())
        for part in index.split(4):
            (loss(model(part) * phase[part].abs()) / 2).backward()
        assert model.embedding.weight.grad.is_sparse
        opt.step()
        assert all(torch.isfinite(p).all() for p in opt.param_groups[0]["params"])
        assert differences(before, model.state_dict())


def graphs_for(call, sizes):
    """How many graphs a function compiled for any size needs, and what it gives."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(call, dynamic=True, backend=counter, fullgraph=True)
    found = [compiled(losses_at(k, size)) for k, size in enumerate(sizes)]
    return counter.frame_count, [value.item() for value in found]


SIZES = [5, 6, 9, 7, 31, 12, 64, 11, 50, 8, 13, 45]


def test_compiled_once_for_changing_sizes():
    """One graph for the first batch, one for all others, and one for those that are larger than the window."""
    count, found = graphs_for(KLRobustLoss(0.5, window=40), SIZES)
    eager = KLRobustLoss(0.5, window=40)
    assert count == 3
    torch.testing.assert_close(found, [eager(losses_at(k, n)).item() for k, n in enumerate(SIZES)])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "backend"), [("default", "inductor"), *((kind, "aot_eager") for kind in LOSSES)])
def test_every_loss_is_compiled_once_for_changing_sizes(kind, backend):
    """Gradients too."""
    make = LOSSES[kind]
    torch._dynamo.reset()
    robust, eager = make(window=40), make(window=40)
    compiled = torch.compile(robust, dynamic=True, fullgraph=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=False, recompile_limit=3):
        for k, size in enumerate([*SIZES, *range(2, 60, 3)]):
            ours, theirs = losses_at(k, size), losses_at(k, size)
            values = [robust_loss(losses) for robust_loss, losses in ((compiled, ours), (eager, theirs))]
            torch.testing.assert_close(*values)
            for losses, value in zip((ours, theirs), values, strict=True):
                losses.retain_grad()
                value.backward()
            torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.slow
def test_evaluation_is_compiled_once_for_changing_sizes():
    count, found = graphs_for(KLRobustLoss(0.5).eval(), SIZES)
    assert count == 1
    eager = KLRobustLoss(0.5).eval()
    torch.testing.assert_close(found, [eager(losses_at(k, n)).item() for k, n in enumerate(SIZES)])


# -- several processes ------------------------------------------------------------------------------------------------


def run_pair(folder, names):
    worker = Path(checkpoint_worker.__file__)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen([sys.executable, str(worker), str(rank), str(folder), *names], env=environment)
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=250) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()


def resharded(folder, names):
    """One process saves, two load, go on, save; one loads. Nothing is lost on the way, to the bit."""
    alone = {}
    for name in names:
        alone[name] = training(name, 3)
        state = {"model": alone[name].inner.state_dict()}
        state["optimizer"] = get_optimizer_state_dict(alone[name].inner, alone[name].opt)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch.distributed is not there
            dcp.save(state, checkpoint_id=folder / f"one {name}")
    run_pair(folder, names)
    for name in names:
        for wrapper in ("ddp", "fsdp"):
            found = torch.load(folder / f"{wrapper} {name}.pt", weights_only=True)
            loaded = get_optimizer_state_dict(alone[name].inner, alone[name].opt)
            assert differences(found["loaded"], loaded) == [], (name, wrapper)
            back = training(name)
            state = {"model": back.inner.state_dict(), "optimizer": get_optimizer_state_dict(back.inner, back.opt)}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp.load(state, checkpoint_id=folder / f"{wrapper} {name}")
            back.inner.load_state_dict(state["model"])
            set_optimizer_state_dict(back.inner, back.opt, state["optimizer"])
            ours = get_optimizer_state_dict(back.inner, back.opt)
            assert differences(found["saved"], ours) == [], (name, wrapper)
            train(back, range(4, 6))
            torch.testing.assert_close(flat(back.model), found["end"], rtol=1e-4, atol=1e-5)


def test_resharded_from_one_process_to_two_and_back(tmp_path):
    resharded(tmp_path, ["SCDRO", "RASCDRO", "AccMDA"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_method_resharded_from_one_process_to_two_and_back(tmp_path):
    resharded(tmp_path, list(REGISTRY))


def test_stages_are_saved_whole():
    stages = decay_stages(0.1, 0.5, [2, 4])
    opt = scdro.RSCDRO(nn.Linear(3, 2).parameters(), stages)
    assert opt.state_dict()["state"][0]["RSCDRO.stages"].tolist() == [list(stage) for stage in stages]
