"""How every subcommand's help reads: what it does, its options, and commands to copy."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

__all__ = ["DefaultsHelp", "Help", "add_command"]

EXAMPLES = "examples:\n"


class Help(argparse.HelpFormatter):
    """Fills paragraphs, and leaves examples as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLES) else super()._fill_text(text, width, indent)


class DefaultsHelp(Help, argparse.ArgumentDefaultsHelpFormatter):
    """The same, with the default of every option that has one."""

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
        usage=f"scdro {name} {usage}",
        help=help,
        description=description,
        epilog=EXAMPLES + textwrap.indent(textwrap.dedent(examples).strip(), "  "),
        formatter_class=formatter,
    )
    return parser
