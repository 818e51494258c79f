"""What the command says to those who get it wrong."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from own_data import rows, write_csv
from scdro.cli import main


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """What a command that fails says, with its status; it leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "data.csv", rows(60))
    (tmp_path / "headless.csv").write_text("28,17648.36,high\n31,9210.5,low\n")

    def say(line):
        before = sorted(tmp_path.iterdir())
        try:
            status = main(line.split())
        except SystemExit as stop:
            status = stop.code
        assert sorted(tmp_path.iterdir()) == before
        return status, capsys.readouterr().err.splitlines()[-1]

    return say


TRAIN = "train data.csv --target label --out run"


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "meta"])
def test_a_device_that_is_not_there(told, device):
    status, said = told(f"{TRAIN} --device {device}")
    assert status == 1
    assert said.startswith("scdro train: expected a device that torch can use here (cpu")
    assert said.endswith(f"got '{device}'; name another by --device, or leave it out")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_no_process_has_is_told_once(told, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "scdro"]
    found = subprocess.run([*command, *TRAIN.split(), "--device", "cuda"], capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode
    assert found.stderr.count("expected a device that torch can use here (cpu), got 'cuda'") == 1


@pytest.mark.parametrize("flag", ["--epochs", "--batch-size", "--width", "--size", "--search", "--threads"])
@pytest.mark.parametrize("value", [0, -1])
def test_nought_is_not_the_default(told, flag, value):
    status, said = told(f"{TRAIN} {flag} {value}")
    assert status == 1
    assert said == f"scdro train: expected {flag} >= 1, got {value}; leave it out for what suits the data"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("predict data.csv run", "got another file or a damaged one, data.csv; the order is: scdro predict RUN DATA"),
        ("train data.csv --target label --out data.csv", "a folder for --out, got the file data.csv; name another"),
        ("train data.csv --target label --out data.csv/x", "data.csv above data.csv/x; name another"),
        (f"{TRAIN} --protect 10", "share of the data in (0, 1], got 10.0; 10% is 0.1"),
        ("train headless.csv --target income --out run", "; is the first line, with the columns' names, missing?"),
        ("train data.csv --target income --out run", "'label'"),  # which has its first line
    ],
)
def test_messages_say_what_to_do(told, line, expected):
    status, said = told(line)
    assert status == 1
    assert said.endswith(expected)


def test_predictions_go_to_a_file(told, tmp_path):
    assert told(f"predict run data.csv --out {tmp_path}") == (
        1,
        f"scdro predict: expected a file for --out, got the folder {tmp_path}; name a file in it",
    )


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="no /proc")
def test_a_place_where_no_folder_can_be_made(told):
    status, said = told("train data.csv --target label --out /proc/x")
    assert status == 1
    assert said.startswith("scdro train: expected a place where a folder can be made, got /proc/x (")


def test_the_line_of_a_missing_class(told, tmp_path):
    content = rows(60)
    content[29]["label"] = ""
    write_csv(tmp_path / "gap.csv", content)
    status, said = told("train gap.csv --target label --out run")
    assert status == 1
    assert "the first of them in line 31;" in said  # below the names of the columns


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train data.csv --traget label --out run", "arguments: --traget label; did you mean --target?"),
        ("train data.csv --target label --uot run", "required: --out; did you mean --out?"),
        ("train data.csv --out run --tar label --batchsize=3", "--batchsize=3; did you mean --batch-size?"),
        ("train data.csv --out run --qqq", "unrecognized arguments: --qqq"),
    ],
)
def test_misspelt_options(told, line, expected):
    status, said = told(line)
    assert status == 2
    assert said.startswith("scdro train: error: ")
    assert said.endswith(expected)


def test_errors_name_the_command(told):
    status, said = told("completion tcsh")
    assert status == 2
    assert said.startswith("scdro completion: error: argument shell: invalid choice: 'tcsh'")
