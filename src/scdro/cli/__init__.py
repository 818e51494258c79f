"""The `scdro` command. Each subcommand is a file with `add(subparsers)`, which names the function that runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from scdro import __version__
from scdro.errors import ScdroError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 if it worked, 1 if scdro or the system raised an error, 2 for wrong use."""
    args = _parser().parse_args(argv)
    try:
        args.run(args)
    except (ScdroError, OSError) as error:
        print(f"scdro {args.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    from scdro.cli import features, predict, pretrain, report, reproduce, train

    parser = argparse.ArgumentParser(prog="scdro", description="KL-constrained distributionally robust optimization.")
    parser.add_argument("--version", action="version", version=f"scdro {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (train, predict, reproduce, report, pretrain, features):
        command.add(commands)
    return parser
