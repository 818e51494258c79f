"""What torchmetrics' own suite checks, of the losses: copies, pickles, states, devices, threads, hooks."""

import copy
import io
import math
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import scdro
from contracts import LOSSES, MEANINGS, Embedded, losses_at
from equality import differences, saved_and_loaded
from loops import TEMPERATURES, assert_same_state, data, flat, linear, losses_of, train_step
from scdro import SCDRO, KLRobustLoss
from scdro.temperature import WindowTemperature

# -- copies ---


def through_deepcopy(thing):
    return copy.deepcopy(thing)


def through_pickle(thing):
    return pickle.loads(pickle.dumps(thing))


def through_torch_save(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("copied", [through_deepcopy, through_pickle, through_torch_save])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("steps", [0, 5])
def test_copies_of_a_loss_keep_its_state(steps, temperature, copied):
    model, robust = linear(), KLRobustLoss(0.4, beta=0.3, temperature=TEMPERATURES[temperature]())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in data(steps):
        train_step(model, robust, optimizer, x, y)
    other = copied(robust)
    assert_same_state(robust, other)
    for x, y in data(3, seed=7):
        assert robust(losses_of(model, x, y)).item() == other(losses_of(model, x, y)).item()
    assert_same_state(robust, other)


@pytest.mark.parametrize("copied", [through_deepcopy, through_pickle, through_torch_save])
def test_copies_of_an_attached_loss_and_its_optimizer_go_on(copied):
    model, robust = linear(), KLRobustLoss(0.4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
    robust.attach(optimizer)
    for x, y in data(5):
        train_step(model, robust, optimizer, x, y)
    trios = [(model, robust, optimizer), copied((model, robust, optimizer))]
    for trio in trios:
        for x, y in data(5, seed=7):
            train_step(*trio, x, y)
    assert torch.equal(flat(trios[0][0]), flat(trios[1][0]))
    assert_same_state(trios[0][1], trios[1][1])


@pytest.mark.parametrize("copied", [through_deepcopy, through_pickle, through_torch_save])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(
    "algorithm", [SCDRO, scdro.ASCDRO, scdro.optim.RSCDRO, scdro.optim.RASCDRO]
)
def test_copies_of_an_optimizer_keep_its_state(algorithm, temperature, copied):
    model = linear()
    settings = {"temperature": TEMPERATURES[temperature](), "radius": 1.5}
    if algorithm in (SCDRO, scdro.ASCDRO):
        opt = algorithm(model.parameters(), 0.05, 0.4, **settings)
    else:
        opt = algorithm(
            model.parameters(),
            [(0.05, 0.5, 3), (0.02, 0.3, 4), (0.01, 0.2, 0)],
            0.4,
            mu=0.01,
            **settings,
        )
    for x, y in data(5):
        opt.step(lambda x=x, y=y: losses_of(model, x, y))
    twin_model, twin = copied((model, opt))
    for x, y in data(5, seed=7):
        a = opt.step(lambda x=x, y=y: losses_of(model, x, y))
        b = twin.step(lambda x=x, y=y: losses_of(twin_model, x, y))
        assert a.item() == b.item()
    assert torch.equal(flat(model), flat(twin_model))
    assert twin.lam.item() == opt.lam.item()
    assert twin.log_s.item() == opt.log_s.item()


def test_loading_by_assignment_leaves_the_given_state_alone():
    first, second = KLRobustLoss(0.5), KLRobustLoss(0.5, lam0=10.0)
    first(torch.rand(64, requires_grad=True))
    given = first.state_dict()
    before = given["state.scalars"].clone()
    second.load_state_dict(given, assign=True)
    assert second.lam == 10.0
    torch.testing.assert_close(given["state.scalars"], before, rtol=0, atol=0, equal_nan=True)


def test_a_copy_of_a_watched_model_is_not_watched():
    """It brought its hook along, with the loss behind it."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    plain = len(pickle.dumps(model))
    KLRobustLoss(0.5, skip_nonfinite=True).watch(model)
    assert len(pickle.dumps(model)) < plain + 500
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied(torch.randn(4, 2))


# -- what a state means
# -----------------------------------------------------------------------------------------------


def used(loss, steps=3):
    for step in range(steps):
        loss(losses_at(step)).backward()
    return loss


@pytest.mark.parametrize(("mine", "theirs", "says"), MEANINGS.values(), ids=MEANINGS)
def test_a_loss_refuses_a_state_that_means_something_else(mine, theirs, says):
    for steps in (0, 3):
        robust, other = used(KLRobustLoss(**mine), steps), used(KLRobustLoss(**theirs))
        before = copy.deepcopy(robust.state_dict())
        with pytest.raises(scdro.errors.CheckpointError, match=says):
            robust.load_state_dict(saved_and_loaded(other.state_dict()))
        assert differences(before, robust.state_dict()) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"rho": 0.1},
        {"rho": 2.0},
        {"rho": 0.5, "lam0": 5.0},
        {"rho": 0.5, "beta": 0.9},
        {"rho": 0.5, "loss_bound": 4.0},
    ],
    ids=str,
)
def test_what_may_change_on_resume(settings):
    """A radius, a bound or a share that differs: the loss goes on from the state, and ends as one that began so."""
    robust, fresh = KLRobustLoss(**settings), KLRobustLoss(**settings)
    robust.load_state_dict(used(KLRobustLoss(rho=0.5, beta=0.3), 10).state_dict())
    assert robust.state.equation.lam0 <= robust.lam <= robust.state.equation.lam_max
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
    assert [robust(losses_at(k)).item() for k in range(3)] == [
        new(losses_at(k)).item() for k in range(3)
    ]


# -- pickles, devices, threads, hooks
# ---------------------------------------------------------------------------------


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
    monkeypatch.setattr(
        torch, "empty_like", lambda *args, **where: dirty(empty_like(*args, **where))
    )
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
    values = (
        torch.ones(4, dtype=torch.complex64) if kind == "complex" else torch.ones(4).to_sparse()
    )
    with pytest.raises(scdro.errors.LossError, match="expected"):
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
