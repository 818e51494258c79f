"""`scdro completion`: what a shell should offer, read off the command itself."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from scdro.cli.parsing import add_command, values_of

__all__ = ["Words", "add", "script", "words"]

SHELLS = ("bash", "zsh", "fish")

BASH = """_scdro() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"; else
    case "${{COMP_WORDS[1]}} $before $current" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _scdro scdro
"""


class Words(NamedTuple):
    """What may follow a subcommand: values of its arguments, its options, and whether and which values they take."""

    help: str
    values: list[str]
    options: dict[str, argparse.Action]


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "completion",
        usage="[-h] {bash,zsh,fish}",
        help="completion of commands and options in your shell",
        description="Print a script for your shell, which then completes subcommands, options and their values.",
        examples="""
            eval "$(scdro completion bash)"
                for this bash; put the line into ~/.bashrc for all, or into ~/.zshrc with zsh
            scdro completion fish | source
                the same in fish, ~/.config/fish/config.fish
        """,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from scdro.cli import parser

    print(script(args.shell, parser()), end="")


def words(parser: argparse.ArgumentParser) -> dict[str, Words]:
    """Of each subcommand, what can follow it."""
    subparsers = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    about = {action.dest: action.help or "" for action in subparsers._choices_actions}
    found = {}
    for name, command in subparsers.choices.items():
        shown = [action for action in command._actions if action.help != argparse.SUPPRESS]
        values = [value for a in shown if not a.option_strings for value in values_of(a)]
        options = {flag: a for a in shown for flag in a.option_strings if flag.startswith("--")}
        found[name] = Words(about[name], values, options)
    return found


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    found = words(parser)
    if shell == "fish":
        return _fish(found)
    text = BASH.format(commands=" ".join(found), cases="\n".join(_cases(found)))
    return f"autoload -U +X compinit bashcompinit && compinit && bashcompinit\n{text}" if shell == "zsh" else text


def _cases(found: dict[str, Words]) -> list[str]:
    """First those after an option that takes a value, then options, then the rest."""
    lines = []
    for name, (_, values, options) in found.items():
        for flag, action in options.items():
            if offered := values_of(action):
                lines.append(f'"{name} {flag} "*) words="{" ".join(offered)}" ;;')
        taking = "|".join(f'"{name} {flag} "*' for flag, a in options.items() if a.nargs != 0 and not values_of(a))
        lines += [f"{taking}) ;;"] if taking else []
        lines.append(f'"{name} "*" -"*) words="{" ".join(options)}" ;;')
        lines.append(f'"{name} "*) words="{" ".join(values)}" ;;')
    return [f"      {line}" for line in lines]


def _fish(found: dict[str, Words]) -> str:
    lines = []
    for name, (about, values, options) in found.items():
        lines.append(f"complete -c scdro -n __fish_use_subcommand -f -a {name} -d {_quoted(about)}")
        here = f"complete -c scdro -n '__fish_seen_subcommand_from {name}'"
        if values:
            lines.append(f"{here} -f -a {_quoted(' '.join(values))}")
        for flag, action in options.items():
            option = f"{here} -l {flag.removeprefix('--')}{'' if action.nargs == 0 else ' -r'}"
            if offered := values_of(action):  # apart: the description is the option's, not each value's
                lines.append(f"{option} -f -a {_quoted(' '.join(offered))}")
            lines.append(f"{option} -d {_quoted(action.help or '')}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
