"""Lightning (DDP), Trainer and Accelerate in two processes that torchrun starts equal one process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

for package in ("lightning", "transformers", "accelerate"):
    pytest.importorskip(package)
pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

import two_processes  # noqa: E402

NAMES = ("Trainer", "Accelerate", "Lightning", "Lightning, ASCDRO")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder, root = tmp_path_factory.mktemp("two"), Path(__file__).parents[2]
    paths = [str(root / "examples"), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, two_processes.__file__, str(folder)]
    subprocess.run(command, env={**os.environ, **settings}, check=True, timeout=600)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return two_processes.main(tmp_path_factory.mktemp("one"))


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_equal_one(found, alone, name):
    assert abs(alone[name]["lam"] - 1.0) > 0.1  # not where it began
    for key, value in alone[name].items():
        assert torch.equal(found[0][name][key], found[1][name][key]), key
        torch.testing.assert_close(found[0][name][key], value, rtol=1e-9, atol=1e-10, msg=key)
