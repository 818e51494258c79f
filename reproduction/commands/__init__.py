"""The commands of `python -m reproduction`: each file has `add(subparsers)`, which names the function that runs it, and
one that says whether the processes of torchrun share it."""

from __future__ import annotations

import argparse
from functools import partial

from reproduction.engine import parsing

__all__ = ["PROGRAM", "DefaultsHelp", "add_command"]

PROGRAM = "python -m reproduction"
add_command = partial(parsing.add_command, program=PROGRAM)


class DefaultsHelp(parsing.Help, argparse.ArgumentDefaultsHelpFormatter):
    """With the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)
