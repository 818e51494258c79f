"""`python -m reproduction features`: what a frozen network makes of a data set, once and for all."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from reproduction.catalog import PRETRAINED, open_splits
from reproduction.commands import DefaultsHelp, add_command, say
from reproduction.engine.memory import keep_freed_memory
from reproduction.engine.storage import check_folder
from reproduction.engine.study import chosen
from reproduction.features import extract
from reproduction.pretrain import load_pretrained
from scdro._terminal import ProgressLine
from scdro.errors import HyperparameterError

__all__ = ["add"]


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "features",
        usage="[RUN | --model MODEL --dataset DATASET --out FOLDER] [options]",
        help="features of a pretrained network, kept on disk",
        description=(
            "Compute the features of every split of a data set, unless those of these data and"
            " weights exist."
        ),
        examples="""
            python -m reproduction features runs/cifar10-st --data data
                of all splits of the data that the network was trained on
            python -m reproduction features runs/cifar10-st --dataset cifar100-hidden --data data
                of other data, in runs/cifar10-st/features/cifar100-hidden
            python -m reproduction features --model resnet50 --dataset places-lt --data data --out features/places-lt
                of the weights that torchvision has
        """,
        formatter=DefaultsHelp,
    )
    parser.add_argument(
        "run_folder",
        type=Path,
        nargs="?",
        help="folder of `python -m reproduction pretrain`; without, see --model",
    )
    parser.add_argument(
        "--model", default=None, help="resnet50: torchvision's, with ImageNet's weights"
    )
    parser.add_argument("--dataset", default=None, help="by default that of the run")
    parser.add_argument(
        "--split",
        action="append",
        help="train, val or test; may be repeated; by default all there are",
    )
    parser.add_argument(
        "--data", type=Path, default=None, help="folder with the data; else $SCDRO_DATA, or ./data"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=None,
        help=(
            "where to; by default features/ in the run's folder, of other data than its own"
            " features/DATASET/"
        ),
    )
    parser.add_argument(
        "--dtype", choices=("float16", "float32"), default="float16", help="of the numbers on disk"
    )
    parser.add_argument("--batch-size", type=int, default=500, help="images at a time")
    parser.add_argument("--workers", type=int, default=0, help="processes that decode large images")
    parser.add_argument("--device", default="cpu", help="where to compute")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    keep_freed_memory()
    model, dataset, out = _source(args)
    check_folder(out)
    for split, data in open_splits(dataset, args.data, args.split).items():
        wrote = extract(
            model,
            data,
            out,
            split,
            dtype=args.dtype,
            batch_size=args.batch_size,
            workers=args.workers,
            device=args.device,
            progress=ProgressLine(),
            notice=say,
        )
        print(
            f"{split}: {len(data):,} x {model.classifier.in_features} in {out}"
            + ("" if wrote else " (were there)")
        )


def _source(args: argparse.Namespace) -> tuple[Any, str, Path]:
    """The network, the data set's name and where the features go."""
    if args.run_folder is not None:
        if args.model is not None:
            raise HyperparameterError(
                "expected the folder of a run, whose model it is, or --model, got both"
            )
        model, about = load_pretrained(args.run_folder)
        own, plain = about["dataset"], args.run_folder / "features"
        dataset = args.dataset or own
        return model, dataset, args.out or (plain if dataset == own else plain / dataset)
    if args.model is None or args.dataset is None or args.out is None:
        raise HyperparameterError(
            "expected the folder of a run, or all of --model, --dataset and --out"
        )
    return chosen(PRETRAINED, args.model, "a pretrained model")(1), args.dataset, args.out
