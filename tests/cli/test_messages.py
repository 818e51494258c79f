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


def lacking(said, *facts):
    return [fact for fact in facts if fact not in said]


TRAIN = "train data.csv --target label --out run"


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "meta"])
def test_a_device_that_is_not_there(told, device):
    status, said = told(f"{TRAIN} --device {device}")
    assert status == 1
    assert lacking(said, "scdro train: ", "(cpu", f"'{device}'", "--device") == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_no_process_has_is_told_once(told, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "scdro"]
    found = subprocess.run([*command, *TRAIN.split(), "--device", "cuda"], capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode
    assert [found.stderr.count(fact) for fact in ("(cpu)", "'cuda'")] == [1, 1]


@pytest.mark.parametrize("flag", ["--epochs", "--batch-size", "--width", "--size", "--search", "--threads"])
@pytest.mark.parametrize("value", [0, -1])
def test_nought_is_not_the_default(told, flag, value):
    status, said = told(f"{TRAIN} {flag} {value}")
    assert status == 1
    assert lacking(said, "scdro train: ", f"{flag} >= 1", str(value)) == []


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("predict data.csv run", ("data.csv", "scdro predict RUN DATA")),
        ("train data.csv --target label --out data.csv", ("folder", "--out", "data.csv")),
        ("train data.csv --target label --out data.csv/x", ("data.csv ", "data.csv/x")),
        (f"{TRAIN} --protect 10", ("(0, 1]", "10.0", "10% is 0.1")),
        ("train headless.csv --target income --out run", ("'income'", "headless.csv", "first line")),
        ("train data.csv --target income --out run", ("'income'", "'label'")),
    ],
)
def test_messages_say_what_to_do(told, line, facts):
    status, said = told(line)
    assert status == 1
    assert lacking(said, *facts) == []
    assert ("first line" in said) == ("headless" in line)


def test_predictions_go_to_a_file(told, tmp_path):
    status, said = told(f"predict run data.csv --out {tmp_path}")
    assert status == 1
    assert lacking(said, "scdro predict: ", "--out", str(tmp_path), "file") == []


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="no /proc")
def test_a_place_where_no_folder_can_be_made(told):
    status, said = told("train data.csv --target label --out /proc/x")
    assert status == 1
    assert lacking(said, "scdro train: ", "folder", "/proc/x") == []


def test_the_line_of_a_missing_class(told, tmp_path):
    content = rows(60)
    content[29]["label"] = ""
    write_csv(tmp_path / "gap.csv", content)
    status, said = told("train gap.csv --target label --out run")
    assert status == 1
    assert "line 31" in said  # below the names of the columns


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
