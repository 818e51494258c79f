"""Half precision, loss scaling, clipping, activation checkpointing, compiled models, per-sample gradients."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

import ranks
import scdro
from convex import DISTINCT
from ranks import Training, World, batches, data, flat

every_method = pytest.mark.parametrize("name", DISTINCT)


def sizes(name):
    return (16, 8, 16) if name == "FastDRO-MLMC" else (16, 11, 8)


def state(t):
    return copy.deepcopy((flat(t.model), t.opt.state_dict()))


def blown(t, index):
    """Finite losses whose gradients are infinite."""

    def closure():
        losses = t.losses(index)
        losses.register_hook(lambda g: g * math.inf)
        return losses

    return closure


@every_method
def test_loss_scaling_changes_nothing(name):
    plain, scaled = Training(World(), name), Training(World(), name)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for i, index in enumerate(batches(sizes(name))):
        a, b = plain.step(index, i), scaled.step(index, i, grad_scaler=scaler)
        scaler.update()
        assert a == b
    assert scaler.get_scale() == 2048.0
    np.testing.assert_allclose(flat(plain.model), flat(scaled.model), rtol=1e-12)


@every_method
def test_steps_that_overflow_at_first_do_not_stop_the_later_ones(name):
    """A scaler starts too high and finds its scale; nobody calls zero_grad, and infinities stay in `.grad`."""
    t, twin = Training(World(), name), Training(World(), name)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for index in batches(sizes(name))[:2]:
        t.opt.step(blown(t, index), index, grad_scaler=scaler)
        scaler.update()
    for i, index in enumerate(batches(sizes(name))):
        t.opt.step(lambda index=index: t.losses(index), index, grad_scaler=scaler)
        scaler.update()
        twin.opt.step(lambda index=index: twin.losses(index), index)
        assert scaler.get_scale() == 256.0, i
    np.testing.assert_allclose(flat(t.model), flat(twin.model), rtol=1e-12)


@every_method
def test_an_overflow_leaves_everything_as_it_was(name):
    t = Training(World(), name)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    first, second, third = batches(sizes(name))
    t.opt.step(blown(t, first), first, grad_scaler=scaler)  # the very first step, too
    scaler.update()
    twin = Training(World(), name)
    for u in (t, twin):
        u.step(second, 1)
    before = state(t)
    t.opt.step(blown(t, first), first, grad_scaler=scaler)
    scaler.update()
    assert scaler.get_scale() == 256.0
    assert str(state(t)) == str(before)
    assert t.step(third, 2) == twin.step(third, 2)
    np.testing.assert_array_equal(flat(t.model), flat(twin.model))


@pytest.mark.parametrize("name", ["ASCDRO", "AccMDA", "RECOVER"])
def test_an_overflow_at_the_previous_point_is_seen(name):
    t = Training(World(), name)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    index = batches()[0]
    t.step(index, 0)
    before, calls = state(t), []

    def closure():
        losses = t.losses(index)
        calls.append(1)
        if len(calls) == 1:
            losses.register_hook(lambda g: g * math.inf)
        return losses

    t.opt.step(closure, index, grad_scaler=scaler)
    scaler.update()
    assert len(calls) == 2
    assert scaler.get_scale() == 512.0
    assert str(state(t)) == str(before)


@every_method
def test_a_batch_left_out_for_its_losses_passes_the_scaler(name):
    t = Training(World(), name, skip_nonfinite=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    index = batches(sizes(name))[0]
    before = flat(t.model)
    t.opt.step(lambda: t.losses(index) * math.nan, index, grad_scaler=scaler)
    scaler.update()  # raises where the scaler has seen no gradients
    assert t.opt.skipped == 1
    assert torch.equal(flat(t.model), before)


def test_a_scaler_that_is_off():
    t = Training(World(), "SCDRO")
    before = flat(t.model)
    t.step(batches()[0], 0, grad_scaler=torch.amp.GradScaler("cpu", enabled=False))
    assert not torch.equal(flat(t.model), before)


@pytest.mark.parametrize("name", ["SCDRO", "ASCDRO", "SPD", "AccMDA"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(name, dtype):
    """A float32 model whose layers run in half precision follows the float32 one."""
    found, (x, y) = [], data()
    for enabled in (False, True):
        t = Training(World(), name)
        t.model.float()
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0, enabled=enabled)
        for index in batches():

            def closure(index=index, t=t, enabled=enabled):
                with torch.autocast("cpu", dtype, enabled=enabled):
                    return F.cross_entropy(t.model(x[index].float()), y[index], reduction="none")

            t.opt.step(closure, index, grad_scaler=scaler)
            scaler.update()
        found.append(flat(t.model))
    assert (found[0] - found[1]).norm() <= 0.02 * found[0].norm()
    assert not torch.equal(*found)


# -- clipping
# ---------------------------------------------------------------------------------------------------------


def test_clipping_is_torchs():
    """SCDRO with max_grad_norm is KLRobustLoss and SGD with clip_grad_norm_ in between."""
    t, model = Training(World(), "SCDRO", weight_decay=0.0, radius=None), ranks.new_model()
    group = t.opt.param_groups[0]
    keep = 1.0 - group["beta"]
    sgd = torch.optim.SGD(model.parameters(), lr=group["lr"], momentum=keep, dampening=keep)
    robust = scdro.KLRobustLoss(ranks.RHO, beta=group["beta"])
    x, y = data()
    for i, index in enumerate(batches()):
        t.step(index, i, max_grad_norm=0.2)
        sgd.zero_grad()
        robust(F.cross_entropy(model(x[index]), y[index], reduction="none")).backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.2) > 0.2
        sgd.step()
    np.testing.assert_allclose(flat(t.model), flat(model), rtol=1e-12)


def test_storm_clips_both_points_alike():
    """On one batch, at a model and a temperature that stand still, STORM's estimate is the clipped gradient itself."""
    model, (x, y) = ranks.new_model(), data()
    frozen = scdro.printed.PrintedTemperature(0.5, lr=0.0)
    opt = scdro.ASCDRO(model.parameters(), lr=0.0, rho=0.1, beta=0.3, temperature=frozen)
    for _ in range(4):
        opt.step(lambda: F.cross_entropy(model(x), y, reduction="none"), max_grad_norm=0.05)
    z = torch.cat([opt.state[p]["z"].reshape(-1) for p in model.parameters()])
    assert z.norm() == pytest.approx(0.05, rel=1e-4)


@every_method
def test_a_large_bound_clips_nothing(name):
    plain, bounded = Training(World(), name), Training(World(), name)
    for i, index in enumerate(batches(sizes(name))):
        plain.step(index, i)
        bounded.step(index, i, max_grad_norm=1e9)
    np.testing.assert_allclose(flat(plain.model), flat(bounded.model), rtol=1e-12)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_bad_bounds(bound):
    with pytest.raises(scdro.errors.HyperparameterError, match="max_grad_norm"):
        Training(World(), "SCDRO").step(batches()[0], 0, max_grad_norm=bound)


# -- graphs
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SCDRO", "ASCDRO", "AccMDA"])
def test_activation_checkpointing(name):
    plain, saving = Training(World(), name), Training(World(), name)
    x, y = data()
    for i, index in enumerate(batches()):
        plain.step(index, i)

        def closure(index=index):
            logits = checkpoint(saving.model, x[index], use_reentrant=False)
            return F.cross_entropy(logits, y[index], reduction="none")

        saving.opt.step(closure, index)
    np.testing.assert_array_equal(flat(plain.model), flat(saving.model))


def test_per_sample_gradients():
    """The gradient of the robust loss is that of its samples, by torch.func, weighed by the worst case."""
    model, (x, y) = ranks.new_model(), data()
    robust = scdro.KLRobustLoss(rho=0.5).eval()
    params = {k: p.detach() for k, p in model.named_parameters()}

    def losses(params, x, y):
        return F.cross_entropy(functional_call(model, params, x), y, reduction="none")

    each = vmap(grad(lambda p, x, y: losses(p, x[None], y[None]).squeeze(0)), (None, 0, 0))(
        params, x, y
    )
    weights = scdro.worst_case(losses(params, x, y), rho=0.5).weights
    whole = grad(lambda p: robust(losses(p, x, y)))(params)
    robust(losses(dict(model.named_parameters()), x, y)).backward()
    for name, p in model.named_parameters():
        expected = torch.tensordot(weights, each[name], 1)
        torch.testing.assert_close(p.grad, expected, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(whole[name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SCDRO", "ASCDRO"])
def test_a_compiled_model(name):
    plain, t = Training(World(), name), Training(World(), name)
    compiled = torch.compile(t.model)
    x, y = data()
    for i, index in enumerate(batches()):
        plain.step(index, i)
        t.opt.step(lambda i=index: F.cross_entropy(compiled(x[i]), y[i], reduction="none"), index)
    np.testing.assert_allclose(flat(plain.model), flat(t.model), rtol=1e-10)
