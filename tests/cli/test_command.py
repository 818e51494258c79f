"""The command itself: how it starts, and what it shows."""

from __future__ import annotations

import io
import platform
import runpy
import subprocess
import sys

import pytest

import scdro
from scdro.cli import main, memory
from scdro.cli.progress import ProgressLine


def test_version_and_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scdro", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("scdro", run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == f"scdro {scdro.__version__}"


def test_no_command_is_a_wrong_command_line(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_interrupted(monkeypatch, tmp_path, capsys):
    from scdro.application.own import opening

    monkeypatch.setattr(opening, "open_own", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["train", "data.csv", "--out", str(tmp_path)]) == 130
    assert "stopped" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_in_a_file_is_few_lines(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stream = io.StringIO()
    show = ProgressLine(stream, every=30.0)
    for done in range(1, 101):
        show(done, 100, f"step {done}")
        now[0] += 1.0
    assert stream.getvalue().splitlines() == [
        "  1%  step 1",
        " 31%  step 31  0:01:09 left",
        " 61%  step 61  0:00:39 left",
        " 91%  step 91  0:00:09 left",
        "100%  step 100",
    ]


def test_progress_on_a_terminal_is_one_line(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    stream = Terminal()
    show = ProgressLine(stream)
    for done in (1, 2, 3):
        now[0] += 7200.0
        show(done, 3, "x")
    assert stream.getvalue() == "\r\x1b[2K 33%  x\r\x1b[2K 67%  x  2:00:00 left\r\x1b[2K100%  x\n"


FAULTS = """
import ctypes, resource, runpy, sys
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        block = libc.malloc(1 << 26)
        libc.memset(block, 1, 1 << 26)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

plain = faults()
runpy.run_path(sys.argv[1])["keep_freed_memory"]()
print(plain, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_freed_memory_is_kept():
    """Five blocks of 64 MB, one after the other, are mapped once and not five times."""
    command = [sys.executable, "-c", FAULTS, memory.__file__]
    plain, kept = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert kept < plain / 2
