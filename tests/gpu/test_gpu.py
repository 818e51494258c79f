"""What only a GPU shows; `make test-gpu` runs it, and says so where there is none.

`SCDRO_GPU_TESTS_ON=cpu` runs what also makes sense on a CPU, to see that the tests themselves work.
"""

import os
import socket
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import scdro
from scdro.distributed import Ranks

DEVICE = os.environ.get("SCDRO_GPU_TESTS_ON", "cuda")
MPS = torch.backends.mps.is_available()
cuda = pytest.mark.skipif(
    DEVICE == "cuda" and not torch.cuda.is_available(),
    reason="no CUDA GPU here: nothing of this file's CUDA part ran",
)
real_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA GPU here: needs CUDA's own functions"
)
mps = pytest.mark.skipif(not MPS, reason="no Apple GPU here: MPS's float32 scalars were not tried")
pytestmark = pytest.mark.gpu


def problem(device=DEVICE, dtype=torch.float32):
    rng = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(5, 3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    x, y = torch.randn(8, 64, 5, generator=rng), torch.randint(3, (8, 64), generator=rng)
    return model.to(device, dtype), x.to(device, dtype), y.to(device)


@contextmanager
def waiting_is_an_error():
    if DEVICE == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if DEVICE == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def loss_steps(model, x, y, robust, optimizer):
    for features, labels in zip(x, y, strict=True):
        optimizer.zero_grad()
        robust(F.cross_entropy(model(features), labels, reduction="none")).backward()
        optimizer.step()


def method_steps(model, x, y, optimizer):
    for features, labels in zip(x, y, strict=True):
        optimizer.step(lambda f=features, t=labels: F.cross_entropy(model(f), t, reduction="none"))


@cuda
@pytest.mark.parametrize(
    "settings", [{}, {"attach": True}, {"skip_nonfinite": True}, {"trim": 0.1}], ids=str
)
def test_no_step_of_the_loss_waits(settings):
    model, x, y = problem()
    attach = settings.get("attach", False)
    robust = scdro.KLRobustLoss(0.5, **{k: v for k, v in settings.items() if k != "attach"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if attach:
        robust.attach(optimizer)
    loss_steps(model, x[:3], y[:3], robust, optimizer)  # the first good batch may wait once
    with waiting_is_an_error():
        loss_steps(model, x[3:], y[3:], robust, optimizer)
    assert torch.isfinite(robust.lam)


@cuda
@pytest.mark.parametrize("method", [scdro.SCDRO, scdro.ASCDRO])
def test_no_step_of_a_method_waits(method):
    model, x, y = problem()
    optimizer = method(model.parameters(), lr=0.1, rho=0.5)
    method_steps(model, x[:3], y[:3], optimizer)
    with waiting_is_an_error():
        method_steps(model, x[3:], y[3:], optimizer)


@cuda
@pytest.mark.parametrize("method", [scdro.SCDRO, scdro.ASCDRO])
def test_equals_the_cpu(method):
    states = []
    for device in ("cpu", DEVICE):
        model, x, y = problem(device, torch.float64)
        optimizer = method(model.parameters(), lr=0.1, rho=0.5)
        method_steps(model, x, y, optimizer)
        states.append(
            {**{k: v.cpu() for k, v in model.state_dict().items()}, "lam": optimizer.lam.cpu()}
        )
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-8, atol=1e-10, msg=key)


@real_cuda
def test_a_captured_step_equals_the_step():
    """In a CUDA graph, replayed on new data."""
    model, x, y = problem("cuda")
    twin, _, _ = problem("cuda")
    losses = [scdro.KLRobustLoss(0.5).cuda() for _ in range(2)]
    features, labels = x[0].clone(), y[0].clone()

    def step(model, robust):
        robust(F.cross_entropy(model(features), labels, reduction="none")).backward()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.zero_grad()
            step(model, losses[0])
    torch.cuda.current_stream().wait_stream(stream)
    for _ in range(3):
        step(twin, losses[1])
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(model, losses[0])
    for i in range(1, 8):
        features.copy_(x[i])
        labels.copy_(y[i])
        for parameter in model.parameters():
            parameter.grad.zero_()
        graph.replay()
        twin.zero_grad()
        step(twin, losses[1])
        torch.testing.assert_close(losses[0].lam, losses[1].lam)
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)


@cuda
def test_a_step_that_the_scaler_skips_changes_nothing():
    """float16 with GradScaler: a loss scale that overflows."""
    model, x, y = problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    robust = scdro.KLRobustLoss(0.5).attach(optimizer)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=128.0)
    skipped, before = 0, None
    for i, (features, labels) in enumerate(zip(x, y, strict=True)):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.float16):
            losses = F.cross_entropy(model(features), labels, reduction="none")
        if i == 4:
            scaler.update(new_scale=float(2.0**127))
            before = (robust.lam.clone(), model.weight.detach().clone())
        scaler.scale(robust(losses.float())).backward()
        scaler.step(optimizer)
        scaler.update()
        if i == 4:
            skipped += 1
            assert torch.equal(robust.lam, before[0])
            assert torch.equal(model.weight, before[1])
            scaler.update(new_scale=128.0)
    assert skipped == 1
    assert torch.isfinite(robust.lam)
    assert not torch.equal(robust.lam, before[0])


def one_of(rank, size, port, backend, file):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, rank=rank, world_size=size)
    model, x, y = problem(device, torch.float64)
    averaged = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = scdro.SCDRO(model.parameters(), lr=0.1, rho=0.5)
    part = Ranks(None).part(64)
    method_steps(averaged, x[:, part.start : part.stop], y[:, part.start : part.stop], optimizer)
    if rank == 0:
        torch.save(
            {**{k: v.cpu() for k, v in model.state_dict().items()}, "lam": optimizer.lam.cpu()},
            file,
        )
    dist.barrier()
    dist.destroy_process_group()


@cuda
def test_processes_with_nccl_equal_one(tmp_path):
    """As many as there are GPUs."""
    size, backend = (torch.cuda.device_count(), "nccl") if DEVICE == "cuda" else (2, "gloo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(one_of, (size, port, backend, tmp_path / "state.pt"), nprocs=size)
    model, x, y = problem(DEVICE, torch.float64)
    optimizer = scdro.SCDRO(model.parameters(), lr=0.1, rho=0.5)
    method_steps(model, x, y, optimizer)
    for key, value in torch.load(tmp_path / "state.pt").items():
        alone = optimizer.lam if key == "lam" else model.state_dict()[key]
        torch.testing.assert_close(value, alone.cpu(), rtol=1e-8, atol=1e-10, msg=key)


@mps
def test_mps_keeps_scalars_in_float32():
    """MPS has no float64: the state moves there in float32, and comes near the CPU's."""
    found = []
    for device in ("cpu", "mps"):
        model, x, y = problem(device)
        robust = scdro.KLRobustLoss(0.5).to(device)
        loss_steps(model, x, y, robust, torch.optim.SGD(model.parameters(), lr=0.1))
        assert robust.state.scalars.dtype == (torch.float32 if device == "mps" else torch.float64)
        found.append([float(robust.lam), *model.weight.detach().cpu().flatten().tolist()])
    assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-4)
