"""How every subcommand's help reads: what it does, its options, and commands to copy."""

from __future__ import annotations

import argparse
import difflib
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

__all__ = ["Help", "Parser", "add_command", "completed_by", "values_of"]

EXAMPLES = "examples:\n"


class Parser(argparse.ArgumentParser):
    """Of an option that does not exist it says which one may be meant, and what is wrong by its own name."""

    given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.given = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        super().error(message + "".join(map(self._meant, self.given)))

    def _meant(self, word: str) -> str:
        flag = word.partition("=")[0]
        known = self._option_string_actions
        if not flag.startswith("--") or any(option.startswith(flag) for option in known):
            return ""
        close = difflib.get_close_matches(flag, known, 1)
        return f"; did you mean {close[0]}?" if close else ""


def completed_by(action: argparse.Action, values: Callable[[], Iterable[str]]) -> None:
    """Values for a shell to offer, looked up when it asks: importing those of torch takes a second.

    The command itself checks what it gets, and explains more than `choices` do.
    """
    action.known_values = values  # type: ignore[attr-defined]


def values_of(action: argparse.Action) -> list[str]:
    """What a shell should offer for an argument; none where files may be meant."""
    known: Iterable[Any] = getattr(action, "known_values", tuple)() if action.choices is None else action.choices
    return [str(value) for value in known]


class Help(argparse.HelpFormatter):
    """Fills paragraphs, and leaves examples as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLES) else super()._fill_text(text, width, indent)


def add_command(
    commands: Any,
    name: str,
    *,
    usage: str,
    help: str,
    description: str,
    examples: str,
    formatter: type[Help] = Help,
    program: str = "scdro",
) -> argparse.ArgumentParser:
    """A subcommand; `examples` are lines, commands and below each, indented, what it does."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        usage=f"{program} {name} {usage}",
        help=help,
        description=description,
        epilog=EXAMPLES + textwrap.indent(textwrap.dedent(examples).strip(), "  "),
        formatter_class=formatter,
    )
    return parser
