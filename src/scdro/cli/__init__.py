"""The `scdro` command. Each subcommand is a file with `add(subparsers)`, which names the function that runs it, and
one that says whether the processes of torchrun share it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from scdro import __version__
from scdro.cli.together import one_voice, run_command

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 if it worked, 1 if scdro or the system raised an error, 2 for wrong use."""
    with one_voice():
        args = _parser().parse_args(argv)
    return run_command(args.command, lambda: args.run(args), args.shared(args))


def _parser() -> argparse.ArgumentParser:
    from scdro.cli import features, predict, pretrain, report, reproduce, train

    parser = argparse.ArgumentParser(prog="scdro", description="KL-constrained distributionally robust optimization.")
    parser.set_defaults(shared=lambda args: False)
    parser.add_argument("--version", action="version", version=f"scdro {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (train, predict, reproduce, report, pretrain, features):
        command.add(commands)
    return parser
