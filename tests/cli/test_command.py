"""The command itself: how it starts, what it shows, what its help says."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import scdro
import scdro.tables
from scdro.cli import main, parser

ROOT = Path(__file__).parents[2]
COMMANDS = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)).choices


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
    monkeypatch.setattr(
        scdro.tables, "train", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert main(["train", "data.csv", "--target", "y", "--out", str(tmp_path)]) == 130
    assert "stopped" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["scdro.cli", "argparse", "scdro.tables._summary"])
def test_interrupted_while_the_command_is_imported(module):
    program = f"""
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.modules.pop("argparse", None)
from scdro.__main__ import main
sys.exit(main(["doctor"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 130
    assert done.stderr.strip() == "stopped"
    assert 'scdro = "scdro.__main__:main"' in (ROOT / "pyproject.toml").read_text()


def help_of(*command):
    shown = io.StringIO()
    with pytest.raises(SystemExit) as stop, contextlib.redirect_stdout(shown):
        main([*command, "--help"])
    assert stop.value.code == 0
    return shown.getvalue()


def test_examples_of_the_help_are_right():
    examples = re.findall(r"^  (scdro .*)$", help_of().split("examples:\n")[1], re.M)
    assert len(examples) == 4
    for example in examples:
        assert parser().parse_args(shlex.split(example)[1:]).command == example.split()[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command):
    assert help_of(command)
    for action in COMMANDS[command]._actions:
        assert action.help, f"scdro {command} {action.option_strings}"


def test_help_says_how_to_resume():
    assert "resume it if it was interrupted, run the same command again" in " ".join(
        help_of("train").split()
    )


@pytest.mark.parametrize("page", ["README.md", "docs/train.md", "docs/audit.md"])
def test_commands_of_the_pages_are_right(page):
    lines = re.findall(
        rf"^(?:    )?(scdro (?:{'|'.join(COMMANDS)}) .*)$", (ROOT / page).read_text(), re.M
    )
    assert lines
    for line in lines:
        assert parser().parse_args(shlex.split(line, comments=True)[1:]).command


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_has_every_command_and_option(shell):
    text = (ROOT / "completions" / f"scdro.{shell}").read_text()
    for name, command in COMMANDS.items():
        assert name in text
        for action in command._actions:
            for flag in action.option_strings:
                assert (
                    f"-l {flag.removeprefix('--')}" in text or flag in text
                ) or not flag.startswith("--"), flag
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


def test_the_wheel_is_the_library_alone():
    builders = pytest.importorskip("hatchling.builders.wheel")
    files = {
        file.distribution_path for file in builders.WheelBuilder(str(ROOT)).recurse_included_files()
    }
    assert all(name.startswith("scdro/") for name in files)
    assert {"scdro/tables/_page.py", "scdro/tables/templates/report.html"} <= files


def test_commands_of_the_readme_run(tmp_path, monkeypatch, capsys):
    """One after the other, on a table in which the rows of its `--fix` are overlooked."""
    rng = np.random.default_rng(0)
    age, hours = rng.integers(20, 80, 600), rng.integers(10, 60, 600)
    p = 1 / (1 + np.exp((35 - hours) / 5))
    income = rng.random(600) < np.where(age > 59, 1 - p, p)
    rows = list(zip(age, hours, np.where(income, "high", "low"), 1 - p, strict=True))
    for name, columns in (("scored.csv", 4), ("data.csv", 3)):
        with open(tmp_path / name, "w", newline="") as file:
            header = ["age", "hours", "income", "p"]
            csv.writer(file).writerows([row[:columns] for row in (header, *rows)])
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^(scdro (?:audit|train) .*)$", (ROOT / "README.md").read_text(), re.M)
    for command in commands:
        assert main(shlex.split(command, comments=True)[1:]) == 0
        assert "age > 59" in capsys.readouterr().out or "--fix" not in command
    assert (tmp_path / "audit.html").exists()
    assert (tmp_path / "fixed" / "report.html").exists()
    assert len(commands) == 3
