"""A sweep whose runs are shared by two processes, as torchrun starts them, equals that of one."""

import csv
import os
import subprocess
import sys

import pytest

from reproduction.__main__ import main

pytestmark = pytest.mark.processes
COMMAND = [
    "figure1",
    "--scale",
    "smoke",
    "--dataset",
    "digits-st",
    "--methods",
    "RSCDRO",
    "FastDRO",
    "--grid",
    "lr=.1,.5",
    "beta=.5",
    "--seeds",
    "1",
    "--epochs",
    "1",
    "--decay-epoch",
    "1",
    "--points",
    "2",
]


def torchrun(out, *more, **settings):
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "reproduction",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, *launcher, *COMMAND, "--out", str(out), *more]
    return subprocess.run(command, env=environment, timeout=500, check=False, **settings)


@pytest.mark.timeout(600)
def test_two_processes_equal_one(tmp_path):
    assert torchrun(tmp_path / "two").returncode == 0
    assert main([*COMMAND, "--out", str(tmp_path / "one")]) == 0
    tables = []
    for name in ("one", "two"):
        with open(tmp_path / name / "figure1-smoke" / "seeds.csv") as file:
            tables.append(list(csv.DictReader(file)))
    assert [row["method"] for row in tables[1]] == ["RSCDRO", "FastDRO"]
    for one, two in zip(*tables, strict=True):
        for key, value in one.items():
            if key != "seconds":
                assert two[key] == value or float(two[key]) == pytest.approx(
                    float(value), rel=1e-4
                ), key


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_error_of_both_processes_is_said_once(tmp_path):
    found = torchrun(tmp_path, "--workers", "2", stderr=subprocess.PIPE, text=True)
    assert found.returncode == 1
    assert found.stderr.count("expected one run at a time under torchrun") == 1
