"""The commands: what they take, and what they refuse."""

import csv
import re
import shlex

import pytest

from reproduction.__main__ import main, parser
from reproduction.columns import drawn
from reproduction.commands.experiment import _studies
from reproduction.presets import EXPERIMENTS, study
from reproduction.tasks import Sources
from reproduction.tests.test_tabular import write_adult
from scdro.errors import MissingDataError


@pytest.mark.parametrize("experiment", ["figure2", "hidden"])
def test_reproduce_falls_back_to_digits_and_says_so(experiment, tmp_path, capsys):
    quick = [
        "--epochs",
        "1",
        "--decay-epoch",
        "1",
        "--trials",
        "1",
        "--seeds",
        "1",
        "--points",
        "1",
    ]
    argv = [
        experiment,
        "--scale",
        "smoke",
        "--data",
        str(tmp_path),
        "--out",
        str(tmp_path / "runs"),
        *quick,
    ]
    assert main(argv) == 0
    written = capsys.readouterr()
    assert "embedded digits" in written.err
    assert "smoke scale: that it runs, nothing more" in written.err
    folder = tmp_path / "runs" / f"{experiment}-smoke"
    for name in ("table.md", "seeds.csv", "curves.csv", "figure-samples.png"):
        assert (folder / name).stat().st_size > 0
    with (folder / "curves.csv").open() as file:
        curves = list(csv.DictReader(file))
    for score in drawn(study(experiment, curves[0]["dataset"], "smoke")):  # no empty panels
        assert all(row[f"{score.part} {score.name}"] for row in curves)
    assert (folder / "trials.csv").read_text() == ""  # one setting each
    head = (folder / "table.md").read_text()
    assert all(method in head for method in EXPERIMENTS[experiment][2])


def resolved(*options):
    args = parser().parse_args([*map(str, options)])
    return _studies(args, Sources(args.data, args.features))


def test_options_that_would_be_ignored_are_refused(tmp_path, capsys):
    argv = ["--scale", "smoke", "--out", str(tmp_path / "runs")]
    for option in (
        ["--seeds", "99"],
        ["--methods", "nonsense"],
        ["--dataset", "adult"],
        ["--tensorboard"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["table1", *argv, *option])
        assert ended.value.code == 2
        assert f"unrecognized arguments: {option[0]}" in capsys.readouterr().err
    for experiment in ("table1", "figure1"):  # figure1: also where the digits stand in
        assert main([experiment, *argv, "--workers", "0"]) == 1
        assert "worker" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_lr_falls_at_the_same_share_of_other_epochs():
    on = ("figure1", "--scale", "smoke", "--dataset", "digits-st")
    for options, expected in (
        ((), 4),
        (("--epochs", 12), 8),
        (("--epochs", 1), 1),
        (("--decay-epoch", 2), 2),
    ):
        (study,) = resolved(*on, *options)
        assert study.decay_epoch == expected
    (study,) = resolved(*on, "--epochs", 12, "--decay-epoch", 5)
    assert (study.epochs, study.decay_epoch) == (12, 5)


def test_digits_stand_in_only_where_there_are_no_data_at_all(tmp_path, capsys):
    write_adult(tmp_path, packed=False)
    (study,) = resolved("hidden", "--scale", "smoke", "--data", tmp_path)
    assert study.dataset == "adult"
    assert "until then without cifar100-hidden" in capsys.readouterr().err
    (study,) = resolved("hidden", "--scale", "smoke", "--data", tmp_path / "empty")
    assert study.dataset == "digits-hidden"
    said = capsys.readouterr().err
    assert "in place of cifar100-hidden, adult" in said
    assert "pretrain cifar100-hidden" in said
    for options in (
        ("--scale", "small"),
        ("--scale", "smoke", "--dataset", "adult", "cifar100-hidden"),
    ):
        with pytest.raises(MissingDataError):
            resolved("hidden", *options, "--data", tmp_path)


def test_reproduce_refuses_what_it_cannot_do(tmp_path, capsys):
    assert main(["figure1", "--data", str(tmp_path), "--out", str(tmp_path / "runs")]) == 1
    assert "features" in capsys.readouterr().err
    assert main(["figure1", "--scale", "smoke", "--dataset", "digits-st", "--methods", "SGD"]) == 1
    assert "method" in capsys.readouterr().err


# -- help and messages
# ------------------------------------------------------------------------------------------------

COMMANDS = ["table1", *EXPERIMENTS, "pretrain", "features", "report"]
SMOKE = "figure1 --scale smoke"


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_of_the_help_are_right(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    examples = re.findall(
        r"^  (?:torchrun.*?-m|python -m) reproduction (.*)", text.split("examples:\n")[1], re.M
    )
    assert examples
    for example in examples:
        assert parser().parse_args(shlex.split(example)).command == command


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """What a command that fails says, with its status; it leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").touch()

    def say(line):
        status = main(line.split())
        assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]
        return status, capsys.readouterr().err.splitlines()[-1]

    return say


@pytest.mark.parametrize("command", ["pretrain digits-st --out run", "features nothing"])
def test_a_device_that_is_not_there(told, command):
    status, said = told(f"{command} --device gpu")
    assert status == 1
    name = f"python -m reproduction {command.split()[0]}"
    assert said.startswith(f"{name}: expected a device that torch can use here (cpu")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "pretrain digits-st --out data.csv",
            "a folder for --out, got the file data.csv; name another",
        ),
        ("figure1 --out data.csv", "a folder for --out, got the file data.csv; name another"),
        (f"{SMOKE} --trials -1 --dataset digits-st", "or 0 for the whole grid, got -1"),
        (
            f"{SMOKE} --dataset digits-st digits-st",
            "each of --dataset once, got digits-st twice; leave one out",
        ),
        (f"{SMOKE} --methods SPD ERM SPD", "each of --methods once, got SPD twice; leave one out"),
        (f"{SMOKE} --rho .1 1 0.1", "each of --rho once, got 0.1 twice; leave one out"),
        (
            "pretrain cifar10-st --out run --data nowhere",
            "or name the folder by --data or $SCDRO_DATA",
        ),
        (
            "figure2 --dataset cifar100-st --data nowhere",
            "or name the folder by --data or $SCDRO_DATA",
        ),
    ],
)
def test_messages_say_what_to_do(told, line, expected):
    status, said = told(line)
    assert status == 1
    assert said.endswith(expected)
