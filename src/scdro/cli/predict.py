"""`scdro predict`: classes and probabilities of new data, by a model of `scdro train`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from scdro.cli.parsing import add_command
from scdro.cli.places import check_file

__all__ = ["add"]


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "predict",
        usage="RUN DATA [options]",
        help="classes and probabilities of new data, by a model of `scdro train`",
        description="Predict the class of every row or image.",
        examples="""
            scdro predict run new.csv --out predictions.csv
                of every row its line, the class and the probabilities of all classes
            scdro predict run photo.jpg
                of one image, on the screen
        """,
    )
    parser.add_argument("run_folder", type=Path, help="folder of `scdro train`, or its model.pt")
    parser.add_argument("data", type=Path, help="a CSV or .npz file, an image or a folder of images")
    parser.add_argument("--out", type=Path, default=None, help="CSV file to write; by default to the screen")
    parser.add_argument("--workers", type=int, default=0, help="processes that decode images that do not fit in memory")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    from scdro.application.own.predicting import predict
    from scdro.application.own.saved import load_model
    from scdro.application.storage import write

    check_file(args.out)
    found = predict(load_model(args.run_folder), args.data, workers=args.workers)
    if found.unknown:
        print(f"note: columns that the model does not know are left out: {', '.join(found.unknown)}", file=sys.stderr)
    if args.out is None:
        sys.stdout.write(found.as_csv())
    else:
        write(args.out, found.as_csv().encode())
        print(f"{len(found.probabilities):,} predictions in {args.out}")
