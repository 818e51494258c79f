"""The `scdro` command. Each subcommand is a file with `add(subparsers)`, which names the function that runs it, and
one that says whether the processes of torchrun share it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from scdro import __version__
from scdro.cli.parsing import EXAMPLES, Help, Parser
from scdro.cli.together import one_voice, run_command

__all__ = ["main", "parser"]

EPILOG = (
    EXAMPLES
    + """  scdro train data.csv --target income --baseline --out run
      a robust model (rho 0.5) and a plain one beside it
  scdro predict run new.csv --out predictions.csv
      classes and probabilities of new rows
  scdro COMMAND --help
      all about a command
"""
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 if it worked, 1 if scdro or the system raised an error, 2 for wrong use."""
    with one_voice():
        args = parser().parse_args(argv)
    return run_command(
        f"scdro {args.command}", lambda: args.run(args), args.shared(args), getattr(args, "device", "cpu")
    )


def parser() -> argparse.ArgumentParser:
    """Of the command and all of its subcommands."""
    from scdro.cli import completion, doctor, predict, report, train

    whole = Parser(
        prog="scdro",
        usage="scdro COMMAND [options]",
        description="Train models on the worst case instead of the average: every group of at least a share exp(-rho) "
        "of the data counts, whether or not anybody labelled it.",
        epilog=EPILOG,
        formatter_class=Help,
    )
    whole.set_defaults(shared=lambda args: False)
    whole.add_argument("--version", action="version", version=f"scdro {__version__}", help="print the version")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands", prog="scdro")
    for command in (train, predict, report, doctor, completion):
        command.add(commands)
    return whole
