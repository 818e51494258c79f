"""Lightning (DDP), Trainer, TRL and Accelerate in two processes that torchrun starts equal one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

for package in ("lightning", "transformers", "accelerate", "trl"):
    pytest.importorskip(package)
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

import two_processes  # noqa: E402


def test_two_processes_equal_one(tmp_path):
    """One start for all of them."""
    root = Path(__file__).parents[2]
    paths = [str(root / "examples"), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, two_processes.__file__, str(tmp_path)]
    subprocess.run(command, env={**os.environ, **settings}, check=True, timeout=600)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for name, alone in two_processes.main(tmp_path / "one").items():
        assert "lam" not in alone or abs(alone["lam"] - 1.0) > 0.1, name  # not where it began
        for key, value in alone.items():
            assert torch.equal(first[name][key], second[name][key]), (name, key)
            near = 1e-5 if name in two_processes.IN_FLOAT32 else 1e-9
            torch.testing.assert_close(
                first[name][key], value, rtol=near, atol=0.1 * near, msg=f"{name} {key}"
            )
