"""KLRobustLoss: the same algorithm in anybody's loop, with accumulation, mixed precision, compilation and copies."""

import copy
import io
import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import scdro
from scdro import SCDRO, KLRobustLoss, LossError, PrintedTemperature, WindowTemperature

D, K = 5, 3
TEMPERATURES = {
    "default": WindowTemperature,
    "default, initial": lambda: WindowTemperature(0.4),
    "printed": lambda: PrintedTemperature(initial=0.8, lr=0.02),
}


def data(steps, size=12, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    teacher = torch.randn(D, K, generator=g, dtype=torch.float64)
    batches = []
    for _ in range(steps):
        x = torch.randn(size, D, generator=g, dtype=torch.float64)
        y = (x @ teacher + torch.randn(size, K, generator=g, dtype=torch.float64)).argmax(1)
        batches.append((x.to(dtype), y))
    return batches


def linear(dtype=torch.float64, seed=1):
    g = torch.Generator().manual_seed(seed)
    model = nn.Linear(D, K, dtype=dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=g, dtype=torch.float64))
    return model


def losses_of(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def assert_same_state(a, b):
    """Bit for bit."""
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key].nan_to_num(-1.0), b[key].nan_to_num(-1.0)), key


def assert_close_state(a, b, tolerance):
    a, b = a.state_dict(), b.state_dict()
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=tolerance, atol=tolerance, equal_nan=True, msg=key)


def train_step(model, robust, optimizer, x, y, **how):
    optimizer.zero_grad()
    value = robust(losses_of(model, x, y), **how)
    value.backward()
    optimizer.step()
    return value.detach()


# -- the algorithm ---


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("beta", [0.05, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_with_sgd_it_is_scdro(temperature, beta, weight_decay):
    lr, rho = 0.1, 0.4
    model, other = linear(), linear()
    robust = KLRobustLoss(rho, beta=beta, temperature=TEMPERATURES[temperature]())
    sgd = torch.optim.SGD(model.parameters(), lr, momentum=1 - beta, dampening=1 - beta, weight_decay=weight_decay)
    opt = SCDRO(
        other.parameters(), lr, rho, beta=beta, weight_decay=weight_decay, temperature=TEMPERATURES[temperature]()
    )
    for t, (x, y) in enumerate(data(50)):
        weight = torch.linspace(0.0, 2.0, len(y)) if t % 3 == 1 else None
        value = train_step(model, robust, sgd, x, y, sample_weight=weight)
        expected = opt.step(lambda x=x, y=y: losses_of(other, x, y), sample_weight=weight)
        torch.testing.assert_close(flat(model), flat(other), rtol=0, atol=1e-12)
        assert value.item() == pytest.approx(expected.item(), abs=1e-12)
        assert robust.lam.item() == pytest.approx(opt.lam.item(), rel=1e-12)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_value_is_the_running_objective(temperature):
    """lam_t log s_t + (lam_t - lam0) rho, with s_t in the linear domain; by default s is carried and capped at two, and
    no loss counts for more than the hardest before."""
    rho, beta, lam0 = 0.4, 0.3, 1e-2
    model, robust = linear(), KLRobustLoss(rho, beta=beta, lam0=lam0, temperature=TEMPERATURES[temperature]())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    s, lam_past, top = None, None, -math.inf
    for x, y in data(40):
        losses = losses_of(model, x, y).detach().numpy()
        lam = robust.lam.item()
        if math.isnan(lam):
            lam = scdro.worst_case(losses, rho, lam0).lam
        value = train_step(model, robust, optimizer, x, y)
        counted = losses if s is None or temperature == "printed" else np.minimum(losses, top)
        top = max(top, losses.max())
        ghat = np.exp(counted / lam).mean()
        if s is None:
            s = ghat
        elif temperature == "printed":
            s = (1 - beta) * s + beta * ghat
        else:
            s = max((1 - beta) * s ** (lam_past / lam) + beta * ghat, ghat / 2)
        lam_past = lam
        assert value.item() == pytest.approx(lam * math.log(s) + (lam - lam0) * rho, abs=1e-8)


@pytest.mark.parametrize("how", ["plain", "weights", "mask"])
@pytest.mark.parametrize("rho", [0.0, 0.01, 0.5, 1.1])
def test_first_batch_is_the_worst_case(rho, how):
    losses = torch.linspace(-1.0, 2.0, 17, dtype=torch.float64).square().requires_grad_()
    same = losses.detach().clone().requires_grad_()
    weight = torch.linspace(0.0, 1.0, 17) if how == "weights" else None
    mask = torch.arange(17) % 3 != 0 if how == "mask" else None
    value = KLRobustLoss(rho)(losses, sample_weight=weight, mask=mask)
    worst = scdro.worst_case(same, rho, sample_weight=mask.double() if how == "mask" else weight)
    value.backward()
    worst.value.backward()
    assert value.item() == pytest.approx(worst.value.item(), abs=1e-8)
    torch.testing.assert_close(losses.grad, same.grad, rtol=0, atol=1e-8)


def test_padding_takes_no_room_in_the_window():
    """Batches larger than the window, padded at the end; and a few samples among much padding."""
    robust = KLRobustLoss(0.5, window=64)
    for k in range(3):
        losses = (torch.rand(400, dtype=torch.float64) + k).requires_grad_()
        robust(losses, mask=torch.arange(400) < 200).backward()
        assert losses.grad.isfinite().all()
        assert set(robust.state.window.losses.tolist()) <= set(losses[:200].tolist())
        assert robust.kl == pytest.approx(0.5, abs=0.3)
    for _ in range(50):
        losses = torch.rand(64, dtype=torch.float64, requires_grad=True)
        robust(losses, mask=torch.arange(64) % 32 == 0)
    assert (robust.state.window.log_weight == 0.0).all()
    assert (robust.state.window.losses < 1.0).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_order_of_a_batch_larger_than_the_window_does_not_matter(weighted):
    found = []
    for order in (torch.arange(8192), torch.arange(8192).flip(0)):
        losses = torch.linspace(0, 4, 8192, dtype=torch.float64).exp()[order].requires_grad_()
        robust = KLRobustLoss(0.5)
        for _ in range(30):
            robust(losses, sample_weight=torch.ones(8192) if weighted else None)
        found.append(robust.lam.item())
    assert found == pytest.approx([scdro.worst_case(losses.detach(), 0.5).lam.item()] * 2, rel=0.02)


@pytest.mark.parametrize("rho", [2.3, 4.6, 10.0])
@pytest.mark.parametrize("size", [1, 2, 8, 64])
def test_batches_too_small_to_show_rho_do_not_stall(size, rho):
    """KL is at most log n on n samples: lam must not fall to lam0 for that, nor s wait for it to come back."""
    g = torch.Generator().manual_seed(0)
    robust, live = KLRobustLoss(rho, beta=0.1), 0
    for _ in range(200):
        losses = torch.empty(size, dtype=torch.float64).exponential_(generator=g).requires_grad_()
        (gradient,) = torch.autograd.grad(robust(losses), losses)
        live += bool(gradient.sum() > 1e-3)
    assert live > 100
    assert robust.lam > 0.2


@pytest.mark.parametrize("trim", [0.0, 0.13])
@pytest.mark.parametrize("mode", ["eval", "no_grad", "inference"])
@pytest.mark.parametrize("trained", [False, True])
def test_evaluation_is_exact_and_leaves_no_trace(trained, mode, trim):
    rho = 0.4
    model, robust = linear(), KLRobustLoss(rho, trim=trim)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in data(5 if trained else 0):
        train_step(model, robust, optimizer, x, y)
    before = copy.deepcopy(robust)
    robust.train(mode != "eval")
    guard = {"eval": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}[mode]
    for x, y in data(3, size=37, seed=9):
        with guard():
            losses = losses_of(model, x, y)
            value = robust(losses)
            worst = scdro.worst_case(losses.detach(), rho, trim=trim)
        assert value.item() == pytest.approx(worst.value.item(), rel=1e-12)
        if mode == "eval":
            gradient = torch.autograd.grad(value, losses)[0]
            torch.testing.assert_close(gradient, worst.weights, rtol=1e-9, atol=1e-12)
    assert_same_state(robust, before)
    robust.train()
    for x, y in data(3, seed=4):
        a, b = robust(losses_of(model, x, y)), before(losses_of(model, x, y))
        assert a.item() == b.item()


def test_detached_losses_are_refused_in_training():
    robust = KLRobustLoss(0.5)
    with pytest.raises(LossError, match="require grad"):
        robust(torch.ones(4))
    assert robust.lam.isnan()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
def test_masked_entries_are_harmless(bad):
    rho = 0.4
    robust, reference = KLRobustLoss(rho), KLRobustLoss(rho)
    for x, _ in data(4):
        kept = x[:, 0].clone().requires_grad_()
        padded = torch.cat([x[:, 0], torch.full((5,), bad, dtype=x.dtype)]).requires_grad_()
        mask = torch.arange(17) < 12
        value, expected = robust(padded, mask=mask), reference(kept)
        value.backward()
        expected.backward()
        assert value.item() == pytest.approx(expected.item(), rel=1e-12)
        torch.testing.assert_close(padded.grad[:12], kept.grad, rtol=1e-12, atol=0)
        assert (padded.grad[12:] == 0).all()
        robust.eval(), reference.eval()
        assert robust(padded, mask=mask).item() == pytest.approx(reference(kept).item(), rel=1e-12)
        robust.train(), reference.train()
    assert robust.lam.item() == pytest.approx(reference.lam.item(), rel=1e-12)


def test_masked_entries_are_harmless_through_a_model():
    """sqrt at zero has an infinite derivative: padding must not turn 0 * inf into NaN."""
    x = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64, requires_grad=True)
    KLRobustLoss(0.5)(x.sqrt(), mask=torch.tensor([True, True, False])).backward()
    assert torch.isfinite(x.grad[:2]).all()
    assert (x.grad[:2] > 0).all()


def test_sample_weight_and_mask_together_and_scale_free():
    g = torch.Generator().manual_seed(0)
    losses = torch.rand(9, generator=g, dtype=torch.float64).requires_grad_()
    weight, mask = torch.rand(9, generator=g), torch.arange(9) != 4
    a = KLRobustLoss(0.5)(losses, sample_weight=weight, mask=mask)
    b = KLRobustLoss(0.5)(losses, sample_weight=7.0 * weight * mask)
    keep = mask.nonzero()[:, 0]
    c = KLRobustLoss(0.5)(losses[keep], sample_weight=weight[keep])
    assert a.item() == pytest.approx(b.item(), rel=1e-6)
    assert a.item() == pytest.approx(c.item(), rel=1e-12)


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_other_optimizers_lower_the_worst_case(optimizer):
    model, robust, rho = linear(), KLRobustLoss(0.4), 0.4
    x, y = (torch.cat(parts) for parts in zip(*data(10), strict=True))
    before = scdro.worst_case(losses_of(model, x, y).detach(), rho).value
    opt = optimizer(model.parameters(), 0.02)
    for i in range(150):
        batch = torch.arange(i * 12, i * 12 + 12) % len(y)
        train_step(model, robust, opt, x[batch], y[batch])
    after = scdro.worst_case(losses_of(model, x, y).detach(), rho).value
    assert after < 0.8 * before


# -- dtypes and places ---


@pytest.mark.parametrize("cast", ["half", "bfloat16", "float", "to_half", "to_tensor"])
@pytest.mark.parametrize("nested", [False, True])
def test_scalars_stay_float64_when_the_model_is_cast(cast, nested):
    temperature = PrintedTemperature(initial=0.7, lr=0.1)
    robust = KLRobustLoss(0.5, temperature=temperature)
    x = torch.linspace(0.0, 1.0, 6, dtype=torch.float64, requires_grad=True)
    robust(x).backward()
    before = copy.deepcopy(robust)
    owner = nn.ModuleDict({"net": nn.Linear(2, 2), "robust": robust}) if nested else robust
    casts = {
        "half": lambda m: m.half(),
        "bfloat16": lambda m: m.bfloat16(),
        "float": lambda m: m.float(),
        "to_half": lambda m: m.to(torch.float16),
        "to_tensor": lambda m: m.to(torch.zeros(1, dtype=torch.bfloat16)),
    }
    casts[cast](owner)
    assert all(b.dtype in (torch.float64, torch.int64) for b in robust.buffers())
    assert_same_state(robust, before)
    if nested:
        assert owner["net"].weight.dtype != torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_losses_give_float32_values(dtype):
    robust, reference = KLRobustLoss(0.5), KLRobustLoss(0.5)
    for i in range(5):
        losses = (torch.rand(8, generator=torch.Generator().manual_seed(i)) * 20).to(dtype).requires_grad_()
        value = robust(losses)
        value.backward()
        expected = reference(losses.detach().double().requires_grad_())
        assert value.dtype == torch.float32
        assert losses.grad.dtype == dtype
        assert value.item() == pytest.approx(expected.item(), rel=1e-3)
    assert_same_state(robust, reference)


def test_inside_a_larger_module():
    class Trainer(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.robust = linear(), KLRobustLoss(0.4)

        def forward(self, x, y):
            return self.robust(losses_of(self.net, x, y))

    trainer, reference = Trainer(), Trainer()
    assert {id(p) for p in trainer.parameters()} == {id(p) for p in trainer.net.parameters()}
    assert any(key.startswith("robust.") for key in trainer.state_dict())
    for x, y in data(5):
        trainer(x, y).backward()
    reference.load_state_dict(trainer.state_dict())
    x, y = data(1, seed=5)[0]
    assert trainer(x, y).item() == reference(x, y).item()
    trainer.eval()
    assert not trainer.robust.training
    assert trainer(x, y).item() == pytest.approx(
        scdro.worst_case(losses_of(trainer.net, x, y).detach(), 0.4).value.item(), rel=1e-12
    )


def test_autocast_changes_only_the_model():
    """Under bfloat16 autocast the scalars are those of the bfloat16 losses, in float64."""
    model, robust, reference = linear(torch.float32), KLRobustLoss(0.4), KLRobustLoss(0.4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in data(10, dtype=torch.float32):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
            assert logits.dtype == torch.bfloat16
            losses = cross_entropy(logits, y, reduction="none")
            value = robust(losses)
        expected = reference(losses)
        assert value.dtype == torch.float32
        assert value.item() == expected.item()
        (got,) = torch.autograd.grad(value, logits, retain_graph=True)
        (want,) = torch.autograd.grad(expected, logits, retain_graph=True)
        assert torch.equal(got, want)
        value.backward()
        optimizer.step()
        assert torch.isfinite(flat(model)).all()
    assert_same_state(robust, reference)


# -- gradient accumulation ---

OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, 0.1, momentum=0.7, dampening=0.7, weight_decay=0.01),
    "adam": lambda params: torch.optim.Adam(params, 0.02),
}


def accumulated_steps(
    batches, parts, make_optimizer, temperature, *, clip=None, scale=None, weighted=False, **settings
):
    """Train with each batch in `parts` micro-batches; yields model, loss and the parameters after each step."""
    model, robust = linear(), KLRobustLoss(**{"rho": 0.4, "temperature": temperature, **settings})
    optimizer = make_optimizer(model.parameters())
    robust.attach(optimizer)
    for t, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        factors = torch.ones(len(y), dtype=x.dtype) if scale is None else scale[t]
        weight = torch.linspace(0.5, 1.5, len(y) // parts, dtype=x.dtype).repeat(parts) if weighted else None
        for rows in torch.arange(len(y)).chunk(parts):
            losses = factors[rows] * losses_of(model, x[rows], y[rows])
            (robust(losses, sample_weight=None if weight is None else weight[rows]) / parts).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        yield flat(model).clone(), robust


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("parts", [2, 4, 12])
def test_micro_batches_equal_one_large_batch(parts, temperature, optimizer, clip):
    batches, make = data(20), OPTIMIZERS[optimizer]
    small = accumulated_steps(batches, parts, make, TEMPERATURES[temperature](), clip=clip)
    large = accumulated_steps(batches, 1, make, TEMPERATURES[temperature](), clip=clip)
    for (a, robust), (b, reference) in zip(small, large, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        assert_close_state(robust, reference, 1e-10)


@pytest.mark.parametrize("settings", [{"trim": 0.13}, {"window": 8}, {"beta": 1.0}, {"loss_bound": 30.0}, {"rho": 0.0}])
def test_micro_batches_with_other_settings(settings):
    batches, make = data(20), OPTIMIZERS["sgd"]
    small = accumulated_steps(batches, 3, make, WindowTemperature(), **settings)
    large = accumulated_steps(batches, 1, make, WindowTemperature(), **settings)
    for (a, robust), (b, reference) in zip(small, large, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        assert_close_state(robust, reference, 1e-10)


@pytest.mark.parametrize("beta", [0.02, 0.3])
def test_micro_batches_while_losses_fall(beta):
    """What holds s near the recent losses knows the batches before alone."""
    batches, make = data(40), OPTIMIZERS["sgd"]
    scale = [torch.full((12,), 100.0 if t < 15 else 1.0, dtype=torch.float64) for t in range(40)]
    settings = {"beta": beta, "window": 60, "scale": scale}
    small = accumulated_steps(batches, 3, make, WindowTemperature(), **settings)
    large = accumulated_steps(batches, 1, make, WindowTemperature(), **settings)
    late = 0
    for (a, robust), (b, reference) in zip(small, large, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)
        assert_close_state(robust, reference, 1e-8)
        _, _, lam_log_s, _, most = robust.state.numbers()
        late += lam_log_s > most
    assert late > 0


@pytest.mark.parametrize("beta", [0.2, 1.0])
@pytest.mark.parametrize("rho", [0.0, 0.4])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_micro_batches_that_are_trimmed_away(temperature, rho, beta):
    """A whole batch, its first part, its last part: they count for nothing, and the parts equal the whole."""
    batches = data(20)
    scale = torch.ones(20, 12, dtype=torch.float64)
    scale[7], scale[11, :4], scale[14, 8:] = 1e5, 1e5, 1e5
    plain = partial(torch.optim.SGD, lr=0.1)
    settings = {"beta": beta, "rho": rho, "trim": 0.3, "scale": scale}
    small = accumulated_steps(batches, 3, plain, TEMPERATURES[temperature](), **settings)
    large = accumulated_steps(batches, 1, plain, TEMPERATURES[temperature](), **settings)
    before = None
    for t, ((a, robust), (b, reference)) in enumerate(zip(small, large, strict=True)):
        assert torch.isfinite(a).all()
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
        assert_close_state(robust, reference, 1e-10)
        if t == 7:
            torch.testing.assert_close(a, before, rtol=0, atol=0)
        before = a


@pytest.mark.parametrize("backward", ["each part", "both"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_part_that_is_trimmed_away_before_losses_that_fell_far(dtype, backward):
    """With beta = 1 s falls by exp(4000) between the parts; the first one's gradient is zero, and stays zero."""
    w = nn.Parameter(torch.zeros(6, dtype=dtype))
    robust, optimizer = KLRobustLoss(0.5, beta=1.0, trim=0.2), torch.optim.SGD([w], 0.0)
    robust.attach(optimizer)
    spread = torch.linspace(0.0, 2e-3, 6, dtype=dtype)
    for _ in range(10):
        robust(5.0 + spread + w).backward()
        optimizer.step()
        optimizer.zero_grad()
    if backward == "each part":
        (robust(100.0 + spread + w) / 2).backward()
        (robust(1.0 + spread + w) / 2).backward()
    else:
        ((robust(100.0 + spread + w) + robust(1.0 + spread + w)) / 2).backward()
    assert w.grad.sum().item() == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("order", ["forwards first", "one sum", "zero_grad last"])
def test_all_parts_may_be_computed_before_the_first_backward(order):
    """Whatever the order of forwards, backwards and zero_grad, the gradient is that of the large batch."""
    batches, runs = data(12), []
    for parts in (1, 3):
        model, robust = linear(), KLRobustLoss(0.4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        robust.attach(optimizer)
        for x, y in batches:
            if order != "zero_grad last":
                optimizer.zero_grad()
            rows = torch.arange(len(y)).chunk(parts)
            values = [robust(losses_of(model, x[r], y[r])) / parts for r in rows]
            if order == "zero_grad last":
                optimizer.zero_grad()
            for value in [sum(values)] if order == "one sum" else values:
                value.backward()
            optimizer.step()
        runs.append((flat(model), robust))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=0, atol=1e-12)
    assert_close_state(runs[0][1], runs[1][1], 1e-12)


@pytest.mark.parametrize("drop", ["optimizer", "model", "never differentiated"])
def test_an_abandoned_batch_leaves_no_trace(drop):
    batches, runs = data(8), []
    for abandons in (False, True):
        model, robust = linear(), KLRobustLoss(0.4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        robust.attach(optimizer)
        for t, (x, y) in enumerate(batches):
            if abandons and t in (0, 4):
                value = robust(5 * losses_of(model, 3 * x, y))
                if drop != "never differentiated":
                    value.backward()
                if drop == "model":
                    model.zero_grad()
            if drop != "model":
                optimizer.zero_grad()
            robust(losses_of(model, x, y)).backward()
            optimizer.step()
            if drop == "model":
                model.zero_grad()
        runs.append((flat(model), robust))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=0, atol=1e-12)
    assert_close_state(runs[0][1], runs[1][1], 1e-12)


def test_one_loss_for_each_optimizer():
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    KLRobustLoss(0.4).attach(optimizer)
    with pytest.raises(scdro.HyperparameterError, match="one loss per optimizer"):
        KLRobustLoss(0.4).attach(optimizer)


def test_micro_batches_with_sample_weights():
    batches, make = data(20), OPTIMIZERS["sgd"]
    *_, (accumulated, _) = accumulated_steps(batches, 4, make, WindowTemperature(0.5), weighted=True)
    model, robust = linear(), KLRobustLoss(0.4, temperature=WindowTemperature(0.5))
    optimizer = make(model.parameters())
    for x, y in batches:
        train_step(model, robust, optimizer, x, y, sample_weight=torch.linspace(0.5, 1.5, 3).double().repeat(4))
    torch.testing.assert_close(accumulated, flat(model), rtol=0, atol=1e-10)


@pytest.mark.parametrize("temperature", ["default, initial", "printed"])
def test_attached_equals_unattached_where_lam_is_given(temperature):
    batches, make = data(20), OPTIMIZERS["sgd"]
    model, robust = linear(), KLRobustLoss(0.4, temperature=TEMPERATURES[temperature]())
    optimizer = make(model.parameters())
    attached = accumulated_steps(batches, 4, make, TEMPERATURES[temperature]())
    for (x, y), (a, other) in zip(batches, attached, strict=True):
        train_step(model, robust, optimizer, x, y)
        torch.testing.assert_close(a, flat(model), rtol=0, atol=1e-10)
        assert_close_state(other, robust, 1e-10)


def test_first_attached_step_weighs_all_samples_the_same():
    (x, y), *_ = data(1)
    model, other, robust = linear(), linear(), KLRobustLoss(0.4)
    robust.attach(torch.optim.SGD(model.parameters(), 0.1))
    for rows in torch.arange(12).chunk(3):
        (robust(losses_of(model, x[rows], y[rows])) / 3).backward()
    losses_of(other, x, y).mean().backward()
    torch.testing.assert_close(model.weight.grad, other.weight.grad, rtol=1e-12, atol=1e-12)
    assert robust.lam.isnan()


@pytest.mark.parametrize("order", ["up", "down"])
@pytest.mark.parametrize("lam_lr", [None, 0.0])
def test_micro_batches_whose_losses_jump(order, lam_lr):
    """By 1e4 at lam near 1e-3: exp(1e7) is never formed, and part by part is still all at once."""
    temperatures = [
        WindowTemperature(1.5e-3) if lam_lr is None else PrintedTemperature(initial=1.5e-3, lr=lam_lr) for _ in range(2)
    ]
    runs = []
    for parts, temperature in zip((2, 1), temperatures, strict=True):
        model, robust = linear(), KLRobustLoss(0.4, temperature=temperature)
        optimizer = torch.optim.SGD(model.parameters(), 1e-6)
        robust.attach(optimizer)
        history = []
        for t, (x, y) in enumerate(data(20)):
            jump = torch.zeros(len(y), dtype=x.dtype)
            if t % 4 == 1:
                jump[slice(6, 12) if order == "up" else slice(0, 6)] = 1e4
            optimizer.zero_grad()
            for rows in torch.arange(len(y)).chunk(parts):
                (robust(losses_of(model, x[rows], y[rows]) + jump[rows]) / parts).backward()
            assert all(torch.isfinite(p.grad).all() for p in model.parameters())
            history.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())
            optimizer.step()
            assert torch.isfinite(robust.state.state_dict()["recent"][0]).all()
        runs.append((history, robust))
    for a, b in zip(runs[0][0], runs[1][0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert_close_state(runs[0][1], runs[1][1], 1e-9)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("how", ["optimizer", "optimizer, zeros", "model"])
def test_zero_grad_drops_what_was_accumulated(how, temperature):
    runs = []
    for disturbed in (False, True):
        model, robust = linear(), KLRobustLoss(0.4, temperature=TEMPERATURES[temperature]())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        robust.attach(optimizer)
        for t, (x, y) in enumerate(data(8)):
            if disturbed and t % 2 == 0:
                (robust(100.0 * losses_of(model, x, y)) / 2).backward()
            if how == "model":
                model.zero_grad()
            else:
                optimizer.zero_grad(set_to_none=how == "optimizer")
            robust(losses_of(model, x, y)).backward()
            optimizer.step()
        runs.append((flat(model), robust))
    assert torch.equal(runs[0][0], runs[1][0])
    assert_same_state(runs[0][1], runs[1][1])


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_zero_grad_between_the_loss_and_its_backward(temperature):
    """As in torch's own tutorials, and in Lightning: loss = ...; zero_grad(); loss.backward(); step()."""
    runs = []
    for late in (False, True):
        model, robust = linear(), KLRobustLoss(0.4, temperature=TEMPERATURES[temperature]())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        robust.attach(optimizer)
        for x, y in data(8):
            if not late:
                optimizer.zero_grad()
            value = robust(losses_of(model, x, y))
            if late:
                optimizer.zero_grad()
            value.backward()
            optimizer.step()
        runs.append((flat(model), robust))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=0, atol=1e-12)
    assert_close_state(runs[0][1], runs[1][1], 1e-12)


def test_attached_loss_waits_for_the_step():
    model, robust = linear(), KLRobustLoss(0.4, temperature=WindowTemperature(0.5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    robust.attach(optimizer)
    before = copy.deepcopy(robust.state)
    (x, y), *_ = data(1)
    robust(losses_of(model, x, y)).backward()
    assert_same_state(robust.state, before)
    optimizer.step()
    assert robust.lam.item() != 0.5
    after = copy.deepcopy(robust.state)
    optimizer.step()
    assert_same_state(robust.state, after)


def test_a_loss_moves_to_a_second_optimizer():
    """Between two batches; and leaves the first as it was."""
    batches = data(6)
    runs = []
    for moves in (False, True):
        model, robust = linear(), KLRobustLoss(0.4)
        first, second = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
        robust.attach(first)
        for k, (x, y) in enumerate(batches):
            if k == 3 and moves:
                robust.attach(second)
            optimizer = second if k >= 3 and moves else first
            optimizer.zero_grad()
            robust(losses_of(model, x, y)).backward()
            optimizer.step()
        runs.append((flat(model), robust))
    assert torch.equal(runs[0][0], runs[1][0])
    assert_same_state(runs[0][1], runs[1][1])
    assert first.zero_grad.__func__ is torch.optim.Optimizer.zero_grad
    before = copy.deepcopy(robust.state)
    robust(losses_of(model, *batches[0])).backward()
    first.step()
    assert_same_state(robust.state, before)
    KLRobustLoss(0.4).attach(first)  # It is free.


def test_a_second_optimizer_amid_a_batch_is_refused():
    model, robust = linear(), KLRobustLoss(0.4)
    first, second = (torch.optim.SGD(model.parameters(), 0.1) for _ in range(2))
    robust.attach(first).attach(first)
    robust(losses_of(model, *data(1)[0])).backward()
    with pytest.raises(scdro.HyperparameterError, match=r"optimizer.*step\(\)"):
        robust.attach(second)
    first.step()
    assert robust.state.started
    robust.attach(second)


class Wrapped(torch.optim.Optimizer):
    """As Accelerate's prepare() gives it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


def test_a_wrapped_optimizer():
    model, robust = linear(), KLRobustLoss(0.4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    robust.attach(Wrapped(optimizer))
    robust(losses_of(model, *data(1)[0])).backward()
    assert not robust.state.started
    optimizer.step()
    assert robust.state.started


# -- gradient scaling ---


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("bad_step", [0, 7])
@pytest.mark.parametrize("late", [False, True], ids=["", "zero_grad after the forward"])
def test_a_step_that_the_grad_scaler_skips_leaves_no_trace(temperature, parts, bad_step, fused, late):
    """The scaled gradient of one batch overflows; the run then equals one that never saw that batch.

    A fused optimizer is called all the same, and skips the step itself.
    """
    batches = data(15)
    runs = []
    for with_bad in (True, False):
        model, robust = linear(), KLRobustLoss(0.4, temperature=TEMPERATURES[temperature]())
        optimizer = torch.optim.Adam(model.parameters(), 0.02, fused=fused)
        robust.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6)
        assert scaler.is_enabled()
        for t, (x, y) in enumerate(batches):
            bad = t == bad_step
            if bad and not with_bad:
                continue
            before, parameters = copy.deepcopy(robust.state), flat(model)
            if not late:
                optimizer.zero_grad()
            for i, rows in enumerate(torch.arange(len(y)).chunk(parts)):
                value = robust((3.0 if bad else 1.0) * losses_of(model, x[rows], y[rows])) / parts
                if late and i == 0:
                    optimizer.zero_grad()
                if bad and i == parts - 1:
                    value = value * 1e307
                scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
            if bad:
                assert scaler.get_scale() == 2.0**9
                assert_same_state(robust.state, before)
                assert torch.equal(flat(model), parameters)
        runs.append((flat(model), robust))
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=0, atol=1e-12)
    assert_close_state(runs[0][1], runs[1][1], 1e-12)


def test_grad_scaler_changes_nothing_otherwise():
    model, robust = linear(), KLRobustLoss(0.4)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    robust.attach(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    reference = accumulated_steps(data(12), 1, OPTIMIZERS["adam"], None)
    for (x, y), (expected, _) in zip(data(12), reference, strict=True):
        optimizer.zero_grad()
        scaler.scale(robust(losses_of(model, x, y))).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.testing.assert_close(flat(model), expected, rtol=0, atol=1e-12)


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
@pytest.mark.parametrize("algorithm", [SCDRO, scdro.ASCDRO, scdro.RSCDRO, scdro.RASCDRO])
def test_copies_of_an_optimizer_keep_its_state(algorithm, temperature, copied):
    model = linear()
    settings = {"temperature": TEMPERATURES[temperature](), "radius": 1.5}
    if algorithm in (SCDRO, scdro.ASCDRO):
        opt = algorithm(model.parameters(), 0.05, 0.4, **settings)
    else:
        opt = algorithm(model.parameters(), [(0.05, 0.5, 3), (0.02, 0.3, 4), (0.01, 0.2, 0)], 0.4, mu=0.01, **settings)
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


# -- torch.compile: slow, and all of it here ---


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()


def training_history(model, robust, optimizer, forward, batches):
    history = []
    for x, y in batches:
        optimizer.zero_grad()
        value = forward(x, y)
        value.backward()
        optimizer.step()
        history.append((value.detach(), flat(model).clone(), robust.lam))
    return history


def compiled_and_eager(backend, whole, attached, temperature):
    """Histories and final states of the same training, eager and compiled: the loss alone, or the model with it."""
    sizes = [12, 12, 7, 9, 12, 5]
    batches = [(x[:size], y[:size]) for (x, y), size in zip(data(len(sizes)), sizes, strict=True)]
    for compile_it in (False, True):
        model, robust = linear(), KLRobustLoss(0.4, temperature=TEMPERATURES[temperature]())
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
        if attached:
            robust.attach(optimizer)

        def compiled(f, compile_it=compile_it):
            return torch.compile(f, fullgraph=True, backend=backend) if compile_it else f

        def together(x, y, model=model, robust=robust):
            return robust(losses_of(model, x, y))

        loss = compiled(robust)

        def apart(x, y, model=model, loss=loss):
            return loss(losses_of(model, x, y))

        forward = compiled(together) if whole else apart
        yield training_history(model, robust, optimizer, forward, batches), robust


def assert_compiled_equals_eager(*how):
    (eager, a), (compiled, b) = compiled_and_eager(*how)
    for step, (ours, theirs) in enumerate(zip(compiled, eager, strict=True)):
        for name, got, expected in zip(("value", "parameters", "lam"), ours, theirs, strict=True):
            message = f"{name} after step {step}"
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9, msg=message)
    assert_close_state(b, a, 1e-9)


@pytest.mark.parametrize("temperature", ["default", "printed"])
@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize("whole", [False, True], ids=["loss", "model and loss"])
def test_captured_in_one_graph(whole, attached, temperature):
    """The graph and what it does to buffers, without generating code."""
    assert_compiled_equals_eager("aot_eager", whole, attached, temperature)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("attached", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("whole", [False, True], ids=["loss", "model and loss"])
def test_compiled_to_code(whole, attached):
    """Gradients too: torch (2.13) may recompute the weights in the backward pass from buffers that have moved on."""
    assert_compiled_equals_eager("inductor", whole, attached, "default")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_evaluation(backend):
    robust = KLRobustLoss(0.4).eval()
    compiled = torch.compile(robust, fullgraph=True, backend=backend)
    before = copy.deepcopy(robust)
    for size in (12, 30, 12, 21):
        losses = torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(size)) * 3
        with torch.no_grad():
            assert compiled(losses).item() == pytest.approx(robust(losses).item(), rel=1e-9)
    assert_same_state(robust, before)


def test_captured_with_sample_weight_mask_trim_and_bound():
    runs = []
    for compile_it in (False, True):
        robust = KLRobustLoss(0.4, trim=0.13, loss_bound=50.0)
        loss = torch.compile(robust, fullgraph=True, backend="aot_eager") if compile_it else robust
        values = []
        for i in range(4):
            g = torch.Generator().manual_seed(i)
            losses = (3 * torch.rand(9, dtype=torch.float64, generator=g)).requires_grad_()
            value = loss(losses, torch.rand(9, generator=g, dtype=torch.float64), torch.arange(9) != i)
            value.backward()
            values.append((value.detach(), losses.grad))
        runs.append((values, robust))
    for a, b in zip(runs[0][0], runs[1][0], strict=True):
        torch.testing.assert_close(a[0], b[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(a[1], b[1], rtol=1e-9, atol=1e-9)
    assert_close_state(runs[0][1], runs[1][1], 1e-9)


@pytest.mark.parametrize("scale", [1e-307, 1e-300, 1e-160, 1e155, 1e200, 4e307])
@pytest.mark.parametrize("training", [True, False])
def test_weights_of_any_size(training, scale):
    answers = []
    for factor in (1.0, scale):
        robust, p = KLRobustLoss(0.3).train(training), torch.tensor([1.0, 2.0, 4.0, 3.0], dtype=torch.float64)
        p.requires_grad_()
        for k in range(3):
            value = robust(p * (1 + k), factor * torch.tensor([1.0, 2.0, 1.0, 0.5], dtype=torch.float64))
            value.backward()
        answers.append([value.item(), *p.grad.tolist(), *([robust.kl, robust.ess, robust.lam] if training else [])])
    np.testing.assert_allclose(*answers, rtol=1e-9)


def test_reset_drops_the_parts_of_an_attached_batch():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    robust = KLRobustLoss(0.5).attach(optimizer)
    robust(model(torch.randn(8, 2)).square().squeeze(1)).backward()
    robust.reset_parameters()
    optimizer.step()
    assert math.isnan(robust.lam)


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
