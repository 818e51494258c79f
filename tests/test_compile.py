"""torch.compile: captured in one graph, equal to eager, and compiled once for changing sizes."""

import copy

import pytest
import torch
import torch._dynamo.testing

from contracts import LOSSES, losses_at
from loops import TEMPERATURES, assert_close_state, assert_same_state, data, flat, linear, losses_of
from scdro import KLRobustLoss


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


@pytest.mark.parametrize(
    ("whole", "attached"), [(False, False), (True, True)], ids=["loss", "model, attached loss"]
)
@pytest.mark.parametrize("temperature", ["default", "printed"])
def test_captured_in_one_graph(whole, attached, temperature):
    """The graph and what it does to buffers, without generating code."""
    assert_compiled_equals_eager("aot_eager", whole, attached, temperature)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("whole", "attached"),
    [
        (True, False),
        *(
            pytest.param(*how, marks=pytest.mark.slow)
            for how in ((False, False), (False, True), (True, True))
        ),
    ],
)
def test_compiled_to_code(whole, attached):
    """Gradients too: torch (2.13) may recompute the weights in the backward pass from buffers that have moved on."""
    assert_compiled_equals_eager("inductor", whole, attached, "default")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_evaluation(backend):
    robust = KLRobustLoss(0.4).eval()
    compiled = torch.compile(robust, fullgraph=True, backend=backend)
    before = copy.deepcopy(robust)
    for size in (12, 30, 12, 21):
        losses = (
            torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(size)) * 3
        )
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
            value = loss(
                losses, torch.rand(9, generator=g, dtype=torch.float64), torch.arange(9) != i
            )
            value.backward()
            values.append((value.detach(), losses.grad))
        runs.append((values, robust))
    for a, b in zip(runs[0][0], runs[1][0], strict=True):
        torch.testing.assert_close(a[0], b[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(a[1], b[1], rtol=1e-9, atol=1e-9)
    assert_close_state(runs[0][1], runs[1][1], 1e-9)


# -- changing sizes
# ---------------------------------------------------------------------------------------------------


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
@pytest.mark.parametrize(
    ("kind", "backend"), [("default", "inductor"), *((kind, "aot_eager") for kind in LOSSES)]
)
def test_every_loss_is_compiled_once_for_changing_sizes(kind, backend):
    """Gradients too."""
    make = LOSSES[kind]
    torch._dynamo.reset()
    robust, eager = make(window=40), make(window=40)
    compiled = torch.compile(robust, dynamic=True, fullgraph=True, backend=backend)
    with torch._dynamo.config.patch(error_on_recompile=False, recompile_limit=3):
        for k, size in enumerate([*SIZES, *range(2, 60, 3)]):
            ours, theirs = losses_at(k, size), losses_at(k, size)
            values = [
                robust_loss(losses) for robust_loss, losses in ((compiled, ours), (eager, theirs))
            ]
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
