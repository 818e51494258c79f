"""`python -m reproduction`: one command for each figure and table of the paper, and for their ingredients."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from reproduction.commands import EXAMPLES, PROGRAM, Help
from reproduction.engine.together import one_voice, run_command
from scdro.cli import Parser

__all__ = ["main", "parser"]

EPILOG = f"""{EXAMPLES}  {PROGRAM} figure1 --scale smoke
      a minute, on embedded digits if there are no data
  {PROGRAM} COMMAND --help
      all about a command
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 if it worked, 1 if scdro or the system raised an error, 2 for wrong use."""
    with one_voice():
        args = parser().parse_args(argv)
    name = f"{PROGRAM} {args.command}"
    return run_command(name, lambda: args.run(args), args.shared(args), getattr(args, "device", "cpu"))


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from reproduction.commands import experiment, features, pretrain, report, so_far, table1

    whole = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND [options]",
        description="The experiments of the paper, and what is beyond them.",
        epilog=EPILOG,
        formatter_class=Help,
    )
    whole.set_defaults(shared=lambda args: False)
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands", prog=PROGRAM)
    for command in (table1, experiment, pretrain, features, report, so_far):
        command.add(commands)
    return whole


if __name__ == "__main__":
    sys.exit(main())
