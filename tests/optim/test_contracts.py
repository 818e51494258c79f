"""What torch.optim's own suite checks, of every registered optimizer.

Hooks, named parameters, parameter groups, copies, pickles, checkpoints by
torch.distributed.checkpoint, the meta device, threads, tensors for lr, sparse gradients, complex
parameters, compiled models.
"""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import scdro
from contracts import MEANINGS, Embedded, train, training
from convex import DISTINCT, METHODS
from equality import differences, saved_and_loaded
from ranks import RHO, N, data, flat, own_settings
from scdro.optim import decay_stages

every_method = pytest.mark.parametrize("name", DISTINCT)
ROBUST = {"SCDRO": scdro.SCDRO, "ASCDRO": scdro.ASCDRO}


def build(name, params, module, all_losses):
    """A registered method on parameters of one's own."""
    facts = {"rho": RHO, "n": N, "groups": torch.arange(N) % 3, "milestones": [2, 4]}
    return METHODS[name].build(
        params, {**facts, "module": module, "all_losses": all_losses}, **own_settings(name)
    )


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
    "flat, full, on the host": {
        "flatten_optimizer_state_dict": True,
        "full_state_dict": True,
        "cpu_offload": True,
    },
}


def through_torch(t, other, options):
    """The state of one optimizer, as torch saves it, into another."""
    state = saved_and_loaded(
        get_optimizer_state_dict(t.inner, t.opt, options=StateDictOptions(**options))
    )
    if options.get("flatten_optimizer_state_dict"):
        options = {
            "flatten_optimizer_state_dict": True
        }  # torch (2.13) cannot load its own that is flat and full
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
        groups = [
            {"params": [t.inner[0].weight, t.inner[2].bias]},
            {"params": [t.inner[0].bias, t.inner[2].weight]},
        ]
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
    with pytest.raises(scdro.errors.CheckpointError, match="parameters"):
        set_optimizer_state_dict(other.inner, other.opt, get_optimizer_state_dict(t.inner, t.opt))
    assert differences(before, other.opt.state_dict()) == []


@every_method
def test_hooks_of_state_dicts_see_all_of_it(name):
    t, seen = training(name, 3), []
    t.opt.register_state_dict_pre_hook(lambda opt: seen.append("before"))

    def rename(opt, state_dict):
        """All of what is no parameter's own, and nothing else, has the optimizer's name."""
        seen.append(
            sorted(key for entries in state_dict["state"].values() for key in entries if "." in key)
        )
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
    with pytest.raises(scdro.errors.CheckpointError, match=rf"\b{kind}\b.*Renamed"):
        other.opt.load_state_dict(state)

    def rename_back(opt, state_dict):
        state = state_dict["state"]
        state_dict["state"] = {
            i: {k.replace("Renamed.", f"{kind}."): v for k, v in entries.items()}
            for i, entries in state.items()
        }

    after = []
    other.opt.register_load_state_dict_pre_hook(rename_back)
    other.opt.register_load_state_dict_post_hook(
        lambda opt: after.append(copy.deepcopy(opt.state_dict()))
    )
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
    made = [
        training(name) for name in [*DISTINCT] * 2
    ]  # one after the other: models draw from torch's one generator
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda t: flat(train(t, range(6)).model), made))
    for k, name in enumerate(DISTINCT):
        expected = flat(training(name, 6).model)
        assert torch.equal(found[k], expected), name
        assert torch.equal(found[k + len(DISTINCT)], expected), name


@every_method
def test_a_compiled_model_with_batches_of_changing_sizes(name):
    """One graph for all sizes, and one for the first step of methods that inspect the layers in it."""
    torch._dynamo.reset()
    plain, t = training(name), training(name)
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(t.model, dynamic=True, fullgraph=True, backend=counter)
    t = detached(t, compiled, t.opt)
    for each in (plain, t):
        train(each, range(6))
    torch.testing.assert_close(flat(t.model), flat(plain.model))
    assert counter.frame_count <= (2 if t.opt._two_points else 1)


@every_method
def test_sparse_gradients_are_refused_before_anything_moves(name):
    model, index = Embedded(sparse=True), torch.arange(8)
    opt = build(name, model.parameters(), model, lambda: model(torch.arange(N)))
    if hasattr(opt, "draw"):
        opt.draw(1, torch.Generator().manual_seed(0))
    before = copy.deepcopy((model.state_dict(), opt.state_dict()))
    with pytest.raises(scdro.errors.ClosureError, match="sparse=False"):
        opt.step(lambda: model(index), index)
    assert differences(before, (model.state_dict(), opt.state_dict())) == []
    model.embedding.sparse = False
    opt.step(lambda: model(index), index)
    assert differences(before[0], model.state_dict())


@every_method
def test_complex_parameters_are_refused(name):
    real, imaginary = (
        nn.Parameter(torch.ones(2)),
        nn.Parameter(torch.ones(2, dtype=torch.complex64)),
    )
    with pytest.raises(scdro.errors.HyperparameterError, match="real parameters"):
        build(name, [imaginary], nn.Linear(1, 1), lambda: None)
    opt = build(name, [real], nn.Linear(1, 1), lambda: None)
    with pytest.raises(scdro.errors.HyperparameterError, match="real parameters"):
        opt.add_param_group({"params": [imaginary]})
    assert len(opt.param_groups) == 1
    opt.state_dict()


# -- what a state means
# -----------------------------------------------------------------------------------------------


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
    with pytest.raises(scdro.errors.CheckpointError, match=says):
        opt.load_state_dict(saved_and_loaded(other.state_dict()))
    assert differences(before, opt.state_dict()) == []


def test_a_state_of_another_tracker_is_refused():
    made = [
        scdro.ASCDRO(nn.Linear(3, 2).parameters(), rho=0.5, tracker=tracker)
        for tracker in (None, scdro.printed.Storm())
    ]
    with pytest.raises(scdro.errors.CheckpointError, match=r"NormalizedStorm.*tracker"):
        made[0].load_state_dict(made[1].state_dict())


def test_stages_are_saved_whole():
    stages = decay_stages(0.1, 0.5, [2, 4])
    opt = scdro.optim.RSCDRO(nn.Linear(3, 2).parameters(), stages)
    assert opt.state_dict()["state"][0]["RSCDRO.stages"].tolist() == [
        list(stage) for stage in stages
    ]
