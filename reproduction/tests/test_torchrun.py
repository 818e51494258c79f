"""Runs of the engine under torchrun: two processes equal one, survive a kill, and fail as one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torchrun_worker as worker
from filelock import FileLock

from reproduction.baselines import REGISTRY
from reproduction.engine.assess import predicted
from reproduction.engine.task import make_model
from reproduction.engine.training import train
from scdro.distributed import initialize

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]
DRAWING = ("SPD", "PGSMD2")  # other draws for another number of processes


def torchrun(*command, **settings):
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [sys.executable, *launcher, *map(str, command)]
    return subprocess.Popen(started, env=environment, stderr=subprocess.PIPE, text=True, **settings)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Folders of one process and of two, and what the two said: one start, whatever the test workers."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / "torchrun"
    with FileLock(base / "torchrun.lock"):
        if not (folder / "said").exists():
            _make(folder)
    return folder


def _make(folder):
    one, two = folder / "one", folder / "two"
    worker.begin(two)
    process = torchrun("--max-restarts=0", Path(worker.__file__), two, stdout=subprocess.DEVNULL)
    try:
        worker.train_all(one)
        said = process.communicate(timeout=600)[1]
    finally:
        process.kill()
    assert process.returncode == 1, said  # by its last command
    (folder / "said").write_text(said)


def result(folder):
    found = json.loads((folder / "result.json").read_text())
    found.pop("seconds")
    return found


def numbers(value, path=""):
    """All leaves of nested dictionaries and lists, by path, without times."""
    if not isinstance(value, (dict, list)):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {
        p: v
        for k, entry in items
        if k != "seconds"
        for p, v in numbers(entry, f"{path}/{k}").items()
    }


def assert_close(found, expected, rel, floor):
    found, expected = numbers(found), numbers(expected)
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        close = pytest.approx(value, rel=rel, abs=floor) if isinstance(value, float) else value
        assert found[path] == close, path


def weights(folder):
    return torch.load(folder / "model.pt", weights_only=True)["state_dict"]


@pytest.mark.parametrize("method", [m for m in REGISTRY if m not in DRAWING])
def test_two_processes_equal_one(shared, method):
    """In float64: what float32 adds to a rounding error is another matter. Half of them were begun by one process."""
    one, two = (shared / name / method for name in ("one", "two"))
    for name, value in weights(one).items():
        torch.testing.assert_close(weights(two)[name], value, rtol=1e-9, atol=1e-9)
    assert result(two)["status"] == "done"
    assert_close(result(two), result(one), 1e-8, 1e-9)
    logs = [
        [json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()]
        for f in (one, two)
    ]
    assert len(logs[0]) >= 3
    assert_close(logs[1], logs[0], 1e-8, 1e-9)


@pytest.mark.parametrize("method", DRAWING)
def test_methods_that_draw_their_samples(shared, method):
    found, alone = (result(shared / name / method) for name in ("two", "one"))
    assert found["samples"] == alone["samples"]
    assert found["train"]["loss"] == pytest.approx(alone["train"]["loss"], rel=0.1)


@pytest.mark.parametrize("method", worker.DIVERGING)
def test_all_processes_diverge_together(shared, method):
    for name in ("one", "two"):
        assert result(shared / name / "diverging" / method)["status"] == "diverged"


def test_what_began_with_one_process_is_known_to_have(shared):
    for method in REGISTRY:
        config = json.loads((shared / "two" / method / "config.json").read_text())
        assert config["environment"]["processes"] == (1 if method in worker.INTERRUPTED else 2)


def test_statistics_of_batchnorm_are_the_first_process_s(shared):
    """So the scores are those of the model that was saved."""
    folder, task = shared / "two" / "images", worker.images()
    model = make_model(worker.IMAGES, task, seed=1)
    model.load_state_dict(weights(folder))
    for name, part in (("train", task.train), ("validation", task.validation)):
        assert float(predicted(model, task, part).losses().mean()) == pytest.approx(
            result(folder)[name]["loss"], rel=1e-5
        )


def test_errors_are_told_once(shared):
    said = (shared / "said").read_text()
    assert said.count("--no-such-option") == 1
    assert said.count("NoSuchMethod") == 1
    assert "Connection" not in said  # what follows from it for the others


@pytest.mark.parametrize(
    ("asked", "given"), [(None, "cuda:1"), ("cuda", "cuda:1"), ("cuda:3", "cuda:3"), ("cpu", "cpu")]
)
def test_each_process_has_its_gpu_if_it_asks_for_one(monkeypatch, asked, given):
    """As if there were GPUs."""
    seen = []
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: seen.append(str(device)))
    assert str(initialize(device=asked)) == given
    assert seen == [given] * (given != "cpu")


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the workers in /proc")
def test_a_killed_worker(tmp_path):
    out = tmp_path / "two"
    process = torchrun(Path(worker.__file__), out, "alone", stdout=subprocess.DEVNULL)

    def log():
        return [
            line for path in out.rglob("metrics.jsonl") for line in path.read_text().splitlines()
        ]

    try:
        while len(log()) < 3 or not list(out.rglob("checkpoint.pt")):
            assert process.poll() is None
            time.sleep(0.005)
        before = log()[:2]
        os.kill(
            int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[-1]),
            signal.SIGKILL,
        )
        said = process.communicate(timeout=600)[1]
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert log()[:2] == before  # with their times: it did not start again from nothing
    with worker.float64():
        train(worker.run_of("SCDRO", worker.LONG), worker.rows(), tmp_path / "one", keep_model=True)
    assert_close(result(out), result(tmp_path / "one"), 1e-4, 1e-6)
