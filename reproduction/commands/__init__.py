"""The commands of `python -m reproduction`: each file has `add(subparsers)`, which names the function that runs it, and
one that says whether the processes of torchrun share it."""

from __future__ import annotations

import argparse
import sys
import textwrap
from typing import Any

__all__ = ["EXAMPLES", "PROGRAM", "DefaultsHelp", "Help", "add_command", "say"]

PROGRAM = "python -m reproduction"
EXAMPLES = "examples:\n"


class Help(argparse.HelpFormatter):
    """Fills paragraphs, and leaves examples as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLES) else super()._fill_text(text, width, indent)


class DefaultsHelp(Help, argparse.ArgumentDefaultsHelpFormatter):
    """With the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


def add_command(
    commands: Any,
    name: str,
    *,
    usage: str,
    help: str,
    description: str,
    examples: str,
    formatter: type[Help] = Help,
) -> argparse.ArgumentParser:
    """A subcommand; `examples` are lines, commands and below each, indented, what it does."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        usage=f"{PROGRAM} {name} {usage}",
        help=help,
        description=description,
        epilog=EXAMPLES + textwrap.indent(textwrap.dedent(examples).strip(), "  "),
        formatter_class=formatter,
    )
    return parser


def say(text: str) -> None:
    """A line for the user that is no result."""
    print(text, file=sys.stderr, flush=True)
