"""Several processes equal one on the joined batch: every algorithm and the loss, with DDP and FSDP2."""

import itertools
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

import ranks
from ranks import CASES, N, World

HERE = Path(__file__).parent
# The first test waits for all processes.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What each of four processes, and each of two among them, got: one start of four, whatever the test workers."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    with FileLock(shared / "ranks.lock"):
        folder = shared / "ranks"
        if not folder.exists():
            start(folder)
    return read(folder, CASES)


def start(folder, *extra):
    folder.mkdir()
    command = [sys.executable, "ranks.py"]
    processes = [
        subprocess.Popen([*command, str(rank), str(folder), *extra], cwd=HERE, env=environment())
        for rank in range(4)
    ]
    try:
        assert [process.wait(timeout=1200) for process in processes] == [0] * 4
    finally:
        for process in processes:
            process.kill()


def read(folder, cases):
    return {
        (wrapper, size): [
            torch.load(folder / f"{wrapper}-{size}-{rank}.pt") for rank in range(size)
        ]
        for wrapper in cases
        for size in (2, 4)
    }


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@cache
def alone(wrapper, name):
    """The same in this process."""
    return CASES[wrapper][name](World())


runs = pytest.mark.parametrize("size", [2, 4])
comparable = [
    (wrapper, name)
    for wrapper, cases in CASES.items()
    for name in cases
    if name not in ("drawn", "errors")
]


@runs
@pytest.mark.parametrize(("wrapper", "name"), comparable)
def test_processes_equal_one_on_the_joined_batch(outcomes, wrapper, name, size):
    expected = alone(wrapper, name)
    first = outcomes[wrapper, size][0][name]
    assert first.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(
            first[key].numpy(), value.numpy(), rtol=1e-10, atol=1e-10, err_msg=key
        )


@runs
@pytest.mark.parametrize("wrapper", CASES)
def test_all_processes_agree_to_the_bit(outcomes, wrapper, size):
    first, *others = outcomes[wrapper, size]
    for name in CASES[wrapper].keys() - {"drawn", "errors"}:
        for other in others:
            for key, value in first[name].items():
                assert torch.equal(other[name][key].nan_to_num(7.0), value.nan_to_num(7.0)), (
                    name,
                    key,
                )


@runs
def test_accumulated_parts_equal_the_large_batch(outcomes, size):
    whole = ranks.robust_loss(World(), **ranks.HALVES)
    for wrapper in CASES:
        parts = outcomes[wrapper, size][0]["loss, halves"]
        for key in ("w", "lam", "recent"):
            np.testing.assert_allclose(
                parts[key].numpy(), whole[key].numpy(), rtol=1e-10, atol=1e-10, err_msg=key
            )


@runs
def test_the_walls_of_the_ball_are_met(outcomes, size):
    """Otherwise the sharded projections would not have been tested."""
    for name in ("SPD", "PGSMD2"):
        assert outcomes["ddp", size][0][f"train {name}"]["kl"] == pytest.approx(ranks.RHO)
    assert outcomes["ddp", size][0]["train AccMDA"]["kl"] > 0.2 * ranks.RHO


def joined(lists):
    return list(itertools.chain.from_iterable(lists))


@runs
def test_joint_draws(outcomes, size):
    """The parts make one draw from p, of the sizes asked for."""
    found = [outcome["drawn"] for outcome in outcomes["ddp", size]]
    p = found[0]["weights"].numpy()
    joint = torch.cat([f["seen"].reshape(2, -1) for f in found], 1).reshape(-1)
    assert joint.shape == (16000,)
    counts = torch.bincount(joint, minlength=N).numpy()
    assert (np.abs(counts - 16000 * p) <= 5 * np.sqrt(16000 * p)).all()
    assert p.max() > 1.5 / N  # not uniform
    sizes = [sum(len(f["small"][k]) for f in found) for k in range(20)]
    assert set(sizes) == {4, 8}
    for k, epoch in enumerate(alone("ddp", "drawn")["small"]):
        assert joined(f["small"][k] for f in found) == epoch
    joint = [joined(f["plain"][k] for f in found) for k in range(len(found[0]["plain"]))]
    assert {len(batch) for batch in joint} == {5 * size}
    assert sorted(joined(joint)) == list(range(N))


@runs
@pytest.mark.parametrize("wrapper", CASES)
def test_an_error_on_one_process_is_one_on_all(outcomes, wrapper, size):
    *others, last = (outcome["errors"]["seen"] for outcome in outcomes[wrapper, size])
    told = {"shape", "detached", "weights", "groups", "detached loss"}
    for seen in others:
        assert all(
            seen[name].startswith("LossError") and f"[{size - 1}]" in seen[name] for name in told
        )
    assert "(2, 2)" in last["shape"]
    assert "negative" in last["weights"]
    assert "group" in last["groups"]
    assert all("require grad" in last[name] for name in ("detached", "detached loss"))
    for seen in (*others, last):
        assert seen["NaN"].startswith("NonFiniteLossError")
        assert "groups" in seen["labels"]
        assert "empty" in seen["empty"]
        assert "DistributedDataParallel" in seen["plain"]
        assert all(
            f"at least {size} samples" in seen[name] for name in ("small batch", "small list")
        )
        assert all(seen[name].startswith("CheckpointError") for name in ("log s", "window", "lam"))
    assert all(outcome["errors"]["untouched"] for outcome in outcomes[wrapper, size])
    values = [outcome["errors"]["value"] for outcome in outcomes[wrapper, size]]
    assert all(value == values[0] for value in values)


@pytest.mark.slow
def test_a_compiled_loss(tmp_path):
    start(tmp_path / "compiled", "compiled")
    for ranks_of_size in read(tmp_path / "compiled", ranks.COMPILED).values():
        for found in ranks_of_size:
            for key, value in found["loss"].items():
                np.testing.assert_allclose(
                    found["loss, compiled"][key].numpy(), value.numpy(), rtol=1e-10, atol=1e-10
                )
