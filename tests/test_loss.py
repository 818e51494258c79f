"""KLRobustLoss: the same algorithm in anybody's loop, in any precision; what it refuses."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import scdro
from equality import differences
from loops import TEMPERATURES, assert_same_state, data, flat, linear, losses_of, train_step
from refusals import BAD_LOSSES, BAD_WEIGHTS, INF, NAN, Problem, refuses
from scdro import SCDRO, KLRobustLoss, worst_case
from scdro.errors import CheckpointError, LossError
from scdro.printed import PrintedTemperature

# -- the algorithm ---


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("beta", [0.05, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_with_sgd_it_is_scdro(temperature, beta, weight_decay):
    lr, rho = 0.1, 0.4
    model, other = linear(), linear()
    robust = KLRobustLoss(rho, beta=beta, temperature=TEMPERATURES[temperature]())
    sgd = torch.optim.SGD(
        model.parameters(), lr, momentum=1 - beta, dampening=1 - beta, weight_decay=weight_decay
    )
    opt = SCDRO(
        other.parameters(),
        lr,
        rho,
        beta=beta,
        weight_decay=weight_decay,
        temperature=TEMPERATURES[temperature](),
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
    """lam_t log s_t + (lam_t - lam0) rho, with s_t in the linear domain; by default s is carried and
    capped at two, and no loss counts for more than the hardest before."""
    rho, beta, lam0 = 0.4, 0.3, 1e-2
    model, robust = (
        linear(),
        KLRobustLoss(rho, beta=beta, lam0=lam0, temperature=TEMPERATURES[temperature]()),
    )
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
    guard = {
        "eval": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
    }[mode]
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
        losses = (
            (torch.rand(8, generator=torch.Generator().manual_seed(i)) * 20)
            .to(dtype)
            .requires_grad_()
        )
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


@pytest.mark.parametrize("scale", [1e-307, 1e-300, 1e-160, 1e155, 1e200, 4e307])
@pytest.mark.parametrize("training", [True, False])
def test_weights_of_any_size(training, scale):
    answers = []
    for factor in (1.0, scale):
        robust, p = (
            KLRobustLoss(0.3).train(training),
            torch.tensor([1.0, 2.0, 4.0, 3.0], dtype=torch.float64),
        )
        p.requires_grad_()
        for k in range(3):
            value = robust(
                p * (1 + k), factor * torch.tensor([1.0, 2.0, 1.0, 0.5], dtype=torch.float64)
            )
            value.backward()
        answers.append(
            [
                value.item(),
                *p.grad.tolist(),
                *([robust.kl, robust.ess, robust.lam] if training else []),
            ]
        )
    np.testing.assert_allclose(*answers, rtol=1e-9)


# -- what is refused
# --------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("bad", [NAN, INF])
def test_evaluation_of_a_batch_that_would_be_skipped(bad):
    """Its value is not known. A zero would be taken for the best model."""
    problem, robust = Problem(), KLRobustLoss(0.5, skip_nonfinite=True)
    robust(problem.losses())
    before = problem.snapshot(robust)
    losses = torch.tensor([1.0, bad], requires_grad=True)
    value = robust.eval()(losses)
    value.backward()
    assert math.isnan(value.item())
    assert losses.grad.tolist() == [0.0, 0.0]
    assert differences(before, problem.snapshot(robust)) == []
    good = torch.tensor([1.0, 2.0])
    assert robust(good).item() == KLRobustLoss(0.5).eval()(good).item()


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


@pytest.mark.parametrize("started", [False, True], ids=["fresh", "started"])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", BAD_WEIGHTS)
def test_bad_weights_of_the_loss_module(kind, training, started):
    problem, robust = Problem(), KLRobustLoss(0.5)
    if started:
        robust(problem.losses())
    robust.train(training)
    weight, match = BAD_WEIGHTS[kind]
    refuses(
        problem, lambda: robust(problem.losses(1), torch.tensor(weight)), LossError, match, robust
    )


def test_bad_masks():
    problem, robust = Problem(), KLRobustLoss(0.5)
    for mask, match in (([False] * 5, "positive"), ([True] * 4, r"\(5,\).*\(4,\)")):
        refuses(
            problem,
            lambda m=mask: robust(problem.losses(), mask=torch.tensor(m)),
            LossError,
            match,
            robust,
        )
    for mask, match in (
        ("abc", "mask of booleans.*'abc'"),
        (["a"] * 5, "mask of booleans"),
        ({}, "booleans.*{}"),
    ):
        refuses(problem, lambda m=mask: robust(problem.losses(), mask=m), LossError, match, robust)


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


@pytest.mark.parametrize(
    ("settings", "mine"),
    [
        ({"window": 32}, {"window": 64}),
        ({"window": 64, "temperature": PrintedTemperature(lr=0.1)}, {"window": 64}),
    ],
    ids=["window", "temperature"],
)
def test_checkpoint_of_another_loss_module(settings, mine):
    problem = Problem()
    robust, other = KLRobustLoss(0.5, **mine), KLRobustLoss(0.5, **settings)
    robust(problem.losses(0))
    other(problem.losses(1))
    refuses(
        problem,
        lambda: robust.load_state_dict(other.state_dict()),
        CheckpointError,
        "(?i)window",
        robust,
    )
