"""`scdro report`: a folder of runs as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scdro.cli.parsing import add_command

__all__ = ["add"]


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "report",
        usage="RUN_DIR [options]",
        help="what is in a folder of runs, as one HTML page",
        description="Write one HTML page that needs no network: results, curves, accuracy of each class, the samples "
        "that the worst case weighs most, configuration. The runs need not be finished.",
        examples="""
            scdro report run
                run/report.html, which opens from disk
        """,
    )
    parser.add_argument("run_dir", type=Path, help="folder of `scdro train`, or one above several")
    parser.add_argument("--out", type=Path, default=None, help="the page; by default report.html in that folder")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from scdro.application.report import write_report

    out = args.out or args.run_dir / "report.html"
    sweeps = write_report(args.run_dir, out)
    print(f"{'; '.join(sweep.title for sweep in sweeps)}: {out}")
