"""Several processes equal one on the joined batch: every algorithm and the loss, with DDP and FSDP2."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import ranks
from ranks import CASES, N, World

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What each of four processes, and each of two among them, got; all cases in one start of four processes."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [
        subprocess.Popen([sys.executable, "ranks.py", str(rank), str(folder)], cwd=HERE, env=environment())
        for rank in range(4)
    ]
    try:
        assert [process.wait(timeout=1200) for process in processes] == [0] * 4
    finally:
        for process in processes:
            process.kill()
    return {
        (wrapper, size): [torch.load(folder / f"{wrapper}-{size}-{rank}.pt") for rank in range(size)]
        for wrapper in CASES
        for size in (2, 4)
    }


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@cache
def alone(wrapper, name):
    """The same in this process."""
    return CASES[wrapper][name](World())


runs = pytest.mark.parametrize("size", [2, 4])
comparable = [(wrapper, name) for wrapper, cases in CASES.items() for name in cases if name not in ("drawn", "errors")]


@runs
@pytest.mark.parametrize(("wrapper", "name"), comparable)
@pytest.mark.timeout(1500)
def test_processes_equal_one_on_the_joined_batch(outcomes, wrapper, name, size):
    expected = alone(wrapper, name)
    first = outcomes[wrapper, size][0][name]
    assert first.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(first[key].numpy(), value.numpy(), rtol=1e-10, atol=1e-10, err_msg=key)


@runs
@pytest.mark.parametrize("wrapper", CASES)
def test_all_processes_agree_to_the_bit(outcomes, wrapper, size):
    first, *others = outcomes[wrapper, size]
    for name in CASES[wrapper].keys() - {"drawn", "errors"}:
        for other in others:
            for key, value in first[name].items():
                assert torch.equal(other[name][key].nan_to_num(7.0), value.nan_to_num(7.0)), (name, key)
