"""What the command says of itself: help and completion."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import subprocess

import pytest

from scdro.application.study import Study
from scdro.cli import main, parser
from scdro.cli.completion import SHELLS, script, words
from scdro.cli.parsing import values_of
from scdro.optim import REGISTRY

COMMANDS = list(words(parser()))


def help_of(*command):
    shown = io.StringIO()
    with pytest.raises(SystemExit) as stop, contextlib.redirect_stdout(shown):
        main([*command, "--help"])
    assert stop.value.code == 0
    return shown.getvalue()


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=" ".join)
def test_examples_of_the_help_are_right(command):
    text = help_of(*command)
    examples = re.findall(r"^  (?:eval \"\$\()?(scdro [^|)\n]*)", text.split("examples:\n")[1], re.M)
    assert examples
    for example in examples:
        if "COMMAND" not in example:
            assert parser().parse_args(shlex.split(example)[1:]).command == example.split()[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command):
    for flag, action in words(parser())[command].options.items():
        assert action.help, f"scdro {command} {flag}"


def test_help_says_how_to_resume():
    assert "To resume after a kill at any moment, run the same command again" in " ".join(help_of("train").split())


def completed(*line):
    """What bash offers at the end of a line."""
    setup = f"{script('bash', parser())}\nCOMP_WORDS=({' '.join(map(shlex.quote, line))})\nCOMP_CWORD={len(line) - 1}\n"
    found = subprocess.run(
        ["bash", "-c", f'{setup}_scdro\nprintf "%s\\n" "${{COMPREPLY[@]}}"'], capture_output=True, text=True, check=True
    )
    assert not found.stderr
    return found.stdout.split()


def completed_in_zsh(*line):
    """The same by zsh, whose arrays begin at 1 unless it is told otherwise, and which compares with the word itself."""
    setup = (
        f"{script('zsh', parser())}\nsetopt KSH_ARRAYS SH_WORD_SPLIT\nCOMP_WORDS=({' '.join(map(shlex.quote, line))})"
    )
    shown = f'COMP_CWORD={len(line) - 1}\n_scdro\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    found = subprocess.run(["zsh", "-f", "-c", f"{setup}\n{shown}"], capture_output=True, text=True, check=True)
    assert not found.stderr
    return [word for word in found.stdout.split() if word.startswith(line[-1])]


def completed_in_fish(*line):
    """What fish offers: each word with its description."""
    command = f"{script('fish', parser())}\ncomplete -C {shlex.quote(' '.join(line))}"
    found = subprocess.run(["fish", "-N", "-c", command], capture_output=True, text=True, check=True)
    assert not found.stderr
    return [(word, about) for word, _, about in (text.partition("\t") for text in found.stdout.splitlines())]


VALUES = [
    (["train", "data.csv", "--method", "SC"], ["SCDRO", "SCDRO-printed"]),
    (["train", "data.csv", "--model", ""], ["linear", "mlp", "resnet8", "resnet20", "resnet32", "resnet50"]),
    (["train", "data.csv", "--part", ""], ["classifier", "last_block", "all"]),
]


@pytest.mark.parametrize(("line", "expected"), VALUES, ids=lambda value: " ".join(value))
@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_values(shell, line, expected):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    if shell == "fish":
        offered = completed_in_fish("scdro", *line)
        assert sorted(offered) == sorted((word, "") for word in expected)  # The description is the option's.
    else:
        assert (completed if shell == "bash" else completed_in_zsh)("scdro", *line) == expected


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_describes_options_once():
    about = words(parser())["train"].options["--method"].help
    assert completed_in_fish("scdro", "train", "--meth") == [("--method", about)]


def test_values_offered_are_those_that_are_taken():
    """The commands check them by themselves: a value that is offered must not be refused."""
    offered = {name: found.options for name, found in words(parser()).items()}
    assert values_of(offered["train"]["--method"]) == list(REGISTRY)
    for model in values_of(offered["train"]["--model"]):
        Study("own", "x", "own", ("ERM",), model=model)


def test_the_first_example_is_the_modest_one():
    """A small --protect is more than most models can give."""
    for command in ((), ("train",)):
        (first, *_) = re.findall(r"^  (scdro .*)", help_of(*command).split("examples:\n")[1], re.M)
        assert first == "scdro train data.csv --target income --baseline --out run"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["scdro", ""], COMMANDS),
        (["scdro", "pre"], ["predict"]),
        (["scdro", "train", "data.csv", "--pro"], ["--protect"]),
        (["scdro", "train", "--out", ""], []),  # a file: bash's own completion
        (["scdro", "train", "da"], []),
        (["scdro", "completion", ""], list(SHELLS)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bash_completes(line, expected):
    assert completed(*line) == expected


def test_completion_has_every_option():
    for shell in SHELLS:
        text = script(shell, parser())
        for command, found in words(parser()).items():
            assert command in text
            for flag in found.options:
                assert (f"-l {flag.removeprefix('--')}" if shell == "fish" else flag) in text


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_reads_its_script(shell, capsys):
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    subprocess.run([shell, "-n"], input=text, text=True, check=True)
