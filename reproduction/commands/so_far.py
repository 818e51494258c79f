"""`python -m reproduction so-far`: runs that may not be at their end, as a table and a curve beside the paper's."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from reproduction.commands import add_command

__all__ = ["add"]


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "so-far",
        usage="RUN_DIR [options]",
        help="how far unfinished runs are, with their last scores",
        description=(
            "Of an experiment on one data set, whose runs may still go on: the epochs that each has"
            " reached, the scores of its last evaluation beside the paper's, and its curve. Nothing"
            " is trained."
        ),
        examples="""
            python -m reproduction so-far runs/table4-paper/cifar10-st --results results/table4-full
                table.md, curves.csv, studies.json, figure.png and figure.svg
        """,
    )
    parser.add_argument(
        "run_dir", type=Path, help="folder of an experiment on one data set, which has a study.json"
    )
    parser.add_argument(
        "--results", type=Path, default=None, help="where tables and figure go (default: RUN_DIR)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from reproduction.so_far import so_far

    print(so_far(args.run_dir, args.results or args.run_dir), end="")
