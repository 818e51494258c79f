"""Two and four processes with uneven parts of a batch, each with its part of the anchors, equal one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock

import contrastive_worker as worker
from scdro.contrastive import RobustContrastiveLoss

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What each of four processes got: one start, whatever the test workers."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder = shared / "contrastive"
    with FileLock(shared / "contrastive.lock"):
        if not folder.exists():
            start(folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(4)]


def start(folder):
    folder.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(Path(worker.__file__))]
    processes = [
        subprocess.Popen([*command, str(rank), str(folder)], env=environment) for rank in range(4)
    ]
    try:
        assert [process.wait(timeout=240) for process in processes] == [0] * 4
    finally:
        for process in processes:
            process.kill()


def in_one_process(towers):
    loss, network = worker.new_loss(towers), worker.network()
    values = worker.train(worker.Both(network, loss), network.parameters(), lambda index, _: index)
    return values, loss, network


@pytest.mark.parametrize("towers", [1, 2])
def test_two_processes_and_then_four_equal_one(outcomes, towers):
    """With parts of unequal sizes and empty ones, a group of one's own, and the loss inside of DDP and outside."""
    values, loss, network = in_one_process(towers)
    for rank, outcome in enumerate(outcomes):
        found = outcome[f"moved {towers}"]
        assert found["values"] == pytest.approx(values, rel=1e-10)
        sizes = [
            towers * worker.N * (rank + 1) // size - towers * worker.N * rank // size
            for size in (2, 4)
        ]
        assert found["kept"] == sizes[0 if rank < 2 else 1 :]
        torch.testing.assert_close(
            found["loss"], dict(loss.state_dict()), rtol=1e-10, atol=1e-12, equal_nan=True
        )
        torch.testing.assert_close(
            found["model"], dict(network.state_dict()), rtol=1e-10, atol=1e-12
        )


def test_made_before_torch_distributed_is_initialised(outcomes):
    """As a part of a LightningModule is."""
    values, *_ = in_one_process(1)
    for outcome in outcomes:
        assert outcome["early"]["values"] == pytest.approx(values, rel=1e-10)
    assert sum(outcome["early"]["kept"] for outcome in outcomes) == worker.N


def test_an_error_on_one_process_is_one_on_all(outcomes):
    *others, last = (outcome["errors"]["seen"] for outcome in outcomes)
    for seen in others:
        assert "[3]" in seen["position"]
        assert "[3]" in seen["detached"]
    assert "[0, n)" in last["position"]
    assert "require grad" in last["detached"]
    for seen in (*others, last):
        assert "length" in seen["width"]
        assert seen["NaN"].startswith("NonFiniteLossError")
        assert "two" in seen["same"]
        assert seen["state"].startswith("CheckpointError")
        assert "initialize()" in seen["early SPD"]
    assert others[0]["part"] == "none"
    assert all("full_state_dict()" in seen["part"] for seen in (*others[1:], last))
    for outcome in outcomes:
        assert outcome["errors"]["untouched"]
        assert outcome["errors"]["skipped"] == 1
    assert len({outcome["errors"]["value"] for outcome in outcomes}) == 1


def test_evaluation_is_each_process_s_own(outcomes):
    x, index = worker.batch(0)
    expected = float(RobustContrastiveLoss(worker.N, 0.5).eval()(x[0, index], x[1, index], index))
    assert outcomes[0]["alone"] == expected
