"""Checkpoints: versioned, loaded with weights_only, and passed over for the one before where they are damaged."""

import os
import subprocess
import sys

import pytest
import torch

from reproduction.engine.checkpoints import Checkpoints, load, save
from reproduction.engine.storage import write
from scdro.errors import CheckpointError


class Stop(Exception):
    pass


STATE = {"w": torch.arange(1000.0), "step": 3, "nested": {"a": [1, 2.5, "text", None]}}


def same(a, b):
    return torch.equal(a["w"], b["w"]) and all(a[k] == b[k] for k in ("step", "nested"))


def test_plain_torch_reads_what_we_save(tmp_path):
    save(tmp_path / "file.pt", STATE)
    read = torch.load(tmp_path / "file.pt", weights_only=True)
    assert read.pop("version") == 1
    assert same(read, STATE)
    assert same(load(tmp_path / "file.pt"), STATE)


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "empty":
        content = b""
    elif how == "flipped":
        content[len(content) // 2] ^= 1
    elif how == "flipped in the checksum":
        content[-3] ^= 1
    else:
        content = content[: int(len(content) * how)] if isinstance(how, float) else content[:how]
    path.write_bytes(content)


DAMAGES = [
    "empty",
    "flipped",
    "flipped in the checksum",
    0.1,
    0.5,
    0.99,
    -1,
    -2,
    -40,
    -77,
    -79,
    -100,
]


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_seen_and_the_previous_one_used(tmp_path, how):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load() is None
    checkpoints.save(STATE)
    checkpoints.save(STATE | {"step": 4})
    assert checkpoints.load()["step"] == 4
    damage(checkpoints.newest, how)
    with pytest.raises(CheckpointError):
        load(checkpoints.newest)
    again = Checkpoints(tmp_path)
    assert same(again.load(), STATE)
    assert again.damaged == [again.newest]
    again.save(STATE | {"step": 5})  # must not push the damaged one over the good one
    damage(again.newest, how)
    assert same(Checkpoints(tmp_path).load(), STATE)
    damage(again.previous, how)
    with pytest.raises(CheckpointError, match="damaged"):
        Checkpoints(tmp_path).load()


def test_killed_between_the_two_files(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(STATE)
    calls, replace = [], os.replace

    def once(a, b):
        calls.append(a)
        if len(calls) == 2:
            raise Stop
        replace(a, b)

    monkeypatch.setattr(os, "replace", once)
    with pytest.raises(Stop):
        checkpoints.save(STATE | {"step": 4})
    assert same(Checkpoints(tmp_path).load(), STATE)


WRITER = """
import sys, time
from pathlib import Path
from reproduction.engine.storage import write

folder, letter = Path(sys.argv[1]), sys.argv[2]
(folder / f"ready-{letter}").touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.001)
for _ in range(200):
    write(folder / "out" / "results.md", letter.encode() * 20_000)
"""


def test_two_processes_write_one_file(tmp_path):
    several = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), letter]) for letter in "ab"
    ]
    assert [process.wait() for process in several] == [0, 0]
    assert (tmp_path / "out" / "results.md").read_text() in ("a" * 20_000, "b" * 20_000)
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_files_left_by_killed_processes_are_removed(tmp_path):
    old, new = tmp_path / ".file.1.part", tmp_path / ".file.2.part"
    for left in (old, new):
        left.write_text("half")
    os.utime(old, (0, 0))
    write(tmp_path / "file", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".file.2.part", "file"]


def test_a_write_that_fails_leaves_all_as_it_was(tmp_path, monkeypatch):
    write(tmp_path / "file", b"before")
    monkeypatch.setattr(os, "fsync", lambda file: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


def test_another_version_is_refused_and_not_passed_over(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(STATE)
    checkpoints.save(STATE | {"version": 2})
    with pytest.raises(CheckpointError, match="version 1, got 2"):
        checkpoints.load()


def test_a_file_without_our_checksum_is_refused(tmp_path):
    torch.save(STATE, tmp_path / "checkpoint.pt")
    with pytest.raises(CheckpointError):
        Checkpoints(tmp_path).load()


def test_nothing_unsafe_is_loaded(tmp_path):
    save(tmp_path / "file.pt", {"thing": Stop})
    with pytest.raises(CheckpointError):
        load(tmp_path / "file.pt")
