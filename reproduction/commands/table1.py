"""`python -m reproduction table1`: rates and costs, on problems of its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from reproduction import table1
from reproduction.commands import add_command, say
from reproduction.engine.memory import keep_freed_memory
from reproduction.engine.storage import check_folder
from scdro._terminal import ProgressLine

__all__ = ["add"]


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "table1",
        usage="[options]",
        help="rates of convergence and the cost of a step, measured",
        description=(
            "Measure the powers at which stationarity and objective gap fall with samples, and what"
            " a step costs. To resume after a kill at any moment, run the same command again."
        ),
        examples="""
            python -m reproduction table1 --scale smoke
                a few seconds
            python -m reproduction table1 --results results/table1 --workers 2
                an hour or two
        """,
    )
    parser.add_argument(
        "--scale", choices=table1.SCALES, default="small", help="how much is run (small)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="where runs go (default: runs)"
    )
    parser.add_argument(
        "--results", type=Path, default=None, help="where runs and tables go, in place of --out"
    )
    parser.add_argument("--workers", type=int, default=1, help="runs at a time (default: 1)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    keep_freed_memory()
    folder = args.results or args.out / f"table1-{args.scale}"
    check_folder(folder)
    print(table1.run(folder, args.scale, args.workers, ProgressLine(), say).text)
