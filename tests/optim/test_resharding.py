"""Checkpoints saved by one process, loaded by two, and the reverse."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

import checkpoint_worker
from checkpoint_worker import WithLoss
from contracts import train, training
from equality import differences
from ranks import World, flat
from reproduction.baselines import REGISTRY

pytestmark = pytest.mark.processes


def run_pair(folder, names):
    worker = Path(checkpoint_worker.__file__)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(worker), str(rank), str(folder), *names], env=environment
        )
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=250) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()


def resharded(folder, names):
    """One process saves, two load, go on, save; one loads. Nothing is lost on the way, to the bit."""
    alone = {}
    for name in names:
        alone[name] = training(name, 3)
        state = {"model": alone[name].inner.state_dict()}
        state["optimizer"] = get_optimizer_state_dict(alone[name].inner, alone[name].opt)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torch.distributed is not there
            dcp.save(state, checkpoint_id=folder / f"one {name}")
    run_pair(folder, names)
    for name in names:
        for wrapper in ("ddp", "fsdp"):
            found = torch.load(folder / f"{wrapper} {name}.pt", weights_only=True)
            loaded = get_optimizer_state_dict(alone[name].inner, alone[name].opt)
            assert differences(found["loaded"], loaded) == [], (name, wrapper)
            back = training(name)
            state = {
                "model": back.inner.state_dict(),
                "optimizer": get_optimizer_state_dict(back.inner, back.opt),
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dcp.load(state, checkpoint_id=folder / f"{wrapper} {name}")
            back.inner.load_state_dict(state["model"])
            set_optimizer_state_dict(back.inner, back.opt, state["optimizer"])
            ours = get_optimizer_state_dict(back.inner, back.opt)
            assert differences(found["saved"], ours) == [], (name, wrapper)
            train(back, range(4, 6))
            torch.testing.assert_close(flat(back.model), found["end"], rtol=1e-4, atol=1e-5)


def test_a_loss_resharded_from_one_process_to_two_and_back(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch.distributed is not there
        alone = WithLoss(World()).train_on(range(3)).save(tmp_path / "one loss")
        run_pair(tmp_path, ["loss"])
        for wrapper in ("ddp", "fsdp"):
            found = torch.load(tmp_path / f"{wrapper} loss.pt", weights_only=True)
            assert differences(found["loaded"], alone) == []
            back = WithLoss(World())
            assert differences(found["saved"], back.load(tmp_path / f"{wrapper} loss")) == []
            assert float(back.robust.lam) > 0.0
            back.train_on([4, 5])
            torch.testing.assert_close(back.state_dict(), found["end"], rtol=1e-9, atol=1e-12)


def test_resharded_from_one_process_to_two_and_back(tmp_path):
    resharded(tmp_path, ["SCDRO", "RASCDRO", "AccMDA"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_method_resharded_from_one_process_to_two_and_back(tmp_path):
    resharded(tmp_path, list(REGISTRY))
