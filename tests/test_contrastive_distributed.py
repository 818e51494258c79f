"""Two processes with uneven parts of a batch, each with half of the anchors, equal one process on the joined batch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import contrastive_worker as worker
from scdro.contrastive import RobustContrastiveLoss


@pytest.mark.parametrize("towers", [1, 2])
def test_two_processes_equal_one(towers, tmp_path):
    script, out = Path(worker.__file__), tmp_path / "out.pt"
    command = [sys.executable, str(script)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "rendezvous"), str(out), str(towers)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=240) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    found = torch.load(out, weights_only=True)
    loss, network = RobustContrastiveLoss(worker.N, 0.5, towers=towers), worker.network()
    values = worker.train(loss, network, lambda index: index)
    assert found["values"] == pytest.approx(values, rel=1e-10)
    assert found["kept"] == towers * worker.N // 2
    torch.testing.assert_close(found["loss"], dict(loss.state_dict()), rtol=1e-10, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(found["model"], dict(network.state_dict()), rtol=1e-10, atol=1e-12)
