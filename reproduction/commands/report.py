"""`python -m reproduction report`: runs as one HTML page, beside what the paper says."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from reproduction.commands import add_command

__all__ = ["add"]


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "report",
        usage="RUN_DIR [options]",
        help="what is in a folder of runs, as one HTML page",
        description=(
            "Write one HTML page that needs no network: results beside the paper's, curves,"
            " accuracy of each class, the samples that the worst case weighs most, configuration."
            " The runs need not be finished."
        ),
        examples="""
            python -m reproduction report runs/figure1-small
                runs/figure1-small/report.html, which opens from disk
        """,
    )
    parser.add_argument("run_dir", type=Path, help="folder of a sweep, of several, or of a run")
    parser.add_argument(
        "--out", type=Path, default=None, help="the page; by default report.html in that folder"
    )
    parser.add_argument(
        "--data", type=Path, default=None, help="folder with the data; else $SCDRO_DATA, or ./data"
    )
    parser.add_argument(
        "--features", type=Path, default=None, help="folder with features, one below it a data set"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from reproduction.report import report
    from reproduction.tasks import Sources

    out = args.out or args.run_dir / "report.html"
    sweeps = report(args.run_dir, out, Sources(args.data, args.features))
    print(f"{'; '.join(sweep.title for sweep in sweeps)}: {out}")
