"""A worker killed under torchrun: all start again, and lose nothing but the steps since the last checkpoint."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import distributed as dist

from scdro.distributed import initialize

pytestmark = pytest.mark.processes
SCRIPT = Path(__file__).parents[1] / "examples" / "distributed.py"
STEPS = 400


ONE_AGENT = ("--standalone", "--nproc-per-node=2", "--max-restarts=2")


def torchrun(*command, agents=ONE_AGENT):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if agents != ONE_AGENT:
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    launched = [sys.executable, "-m", "torch.distributed.run", *agents, *map(str, command)]
    return subprocess.Popen(launched, env=environment, stdout=subprocess.PIPE, text=True)


def start(folder, *extra, agents=ONE_AGENT):
    return torchrun(
        SCRIPT, "--out", folder, "--steps", STEPS, "--checkpoint-every", 50, *extra, agents=agents
    )


def lines(folder):
    path = folder / "log.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def workers(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the workers in /proc")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", [(), ("--fsdp",)])
def test_a_killed_worker(tmp_path, extra):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process, undisturbed = start(broken, *extra), start(whole, *extra)
    try:
        while len(lines(broken)) < 120:
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(workers(process.pid)[-1], signal.SIGKILL)
        output, _ = process.communicate(timeout=600)
        undisturbed.communicate(timeout=300)
    finally:
        process.kill()
        undisturbed.kill()
    assert process.returncode == undisturbed.returncode == 0
    assert_nothing_lost(broken, whole, output)


def assert_nothing_lost(broken, whole, output):
    found, expected = lines(broken), lines(whole)
    assert (
        [line["step"] for line in found]
        == [line["step"] for line in expected]
        == list(range(STEPS))
    )
    resumed = int(re.search(rf"steps (\d+) to {STEPS}", output)[1])
    assert resumed % 50 == 0
    assert resumed >= 100
    for a, b in zip(found, expected, strict=True):
        assert (a["value"], a["lam"]) == (b["value"], b["lam"])
    states = [torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (broken, whole)]
    for name, value in states[0]["model"].items():
        assert torch.equal(value, states[1]["model"][name])


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the workers in /proc")
@pytest.mark.timeout(900)
def test_a_killed_worker_of_one_agent_among_two(tmp_path):
    """As on two machines: each agent counts the failures of its own worker alone."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=two"]
    settings = ["--nnodes=2", "--nproc-per-node=1", "--max-restarts=2", *meeting]
    agents = [start(broken, agents=settings) for _ in range(2)]
    try:
        while len(lines(broken)) < 120:
            assert all(agent.poll() is None for agent in agents)
            time.sleep(0.005)
        os.kill(workers(agents[1].pid)[-1], signal.SIGKILL)
        outputs = [agent.communicate(timeout=300)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0]
    undisturbed = start(whole)
    try:
        undisturbed.communicate(timeout=300)
    finally:
        undisturbed.kill()
    assert_nothing_lost(broken, whole, "".join(outputs))


def test_processes_end():
    """torch's own end, while a model still holds the group, hangs within a few of these."""
    process = torchrun(Path(__file__).with_name("finish_worker.py"))
    try:
        process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0


def test_agents_that_share_a_store_are_told(monkeypatch):
    """Two agents in this process's eyes: it is one of two, and alone on its machine."""
    given = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    given |= {"MASTER_PORT": str(free_port()), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "rendezvous", lambda url: iter([(dist.HashStore(), 0, 2)]))
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **settings: None)
    with pytest.warns(UserWarning, match="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"):
        initialize()
