"""`python -m reproduction pretrain`: a network by cross-entropy, from which features come."""

from __future__ import annotations

import argparse
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from reproduction.catalog import IMAGES, MODELS, open_image_data
from reproduction.commands import DefaultsHelp, add_command, say
from reproduction.engine.memory import keep_freed_memory
from reproduction.engine.storage import check_folder
from reproduction.engine.tensorboard import TENSORBOARD, check_tensorboard
from reproduction.pretrain import Pretraining, pretrain
from scdro._terminal import ProgressLine

__all__ = ["add"]

HELP = {
    "epochs": "passes over the training data",
    "schedule": "step (lr falls by 10 after 2/3 of the steps) or one-cycle (for short runs)",
    "lr": "largest learning rate",
    "momentum": "of SGD",
    "weight_decay": "of SGD",
    "batch_size": "images to a step",
    "seed": "of weights, order and augmentation",
    "evaluate_every": "epochs from one look at the test images to the next",
}


def add(commands: Any) -> None:
    known = {**HELP, "model": f"one of {', '.join(MODELS)}"}
    parser = add_command(
        commands,
        "pretrain",
        usage="DATASET --out FOLDER [options]",
        help="train a network by cross-entropy, the start of the convex setting",
        description=(
            "Train a network by cross-entropy. Run again, it goes on where it was stopped, bit for"
            " bit."
        ),
        examples="""
            python -m reproduction pretrain cifar10-st --out runs/cifar10-st --epochs 25 --schedule one-cycle
                a ResNet20 in a few hours of one core
        """,
        formatter=DefaultsHelp,
    )
    parser.add_argument("dataset", help=f"one of {', '.join(IMAGES)}")
    parser.add_argument(
        "--data", type=Path, default=None, help="folder with the data; else $SCDRO_DATA, or ./data"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    for field in fields(Pretraining):
        if field.name != "dataset":
            flag = f"--{field.name.replace('_', '-')}"
            about: dict[str, Any] = {
                "type": type(field.default),
                "default": field.default,
                "help": known[field.name],
            }
            parser.add_argument(flag, **about)
    parser.add_argument("--device", default="cpu", help="where to train")
    parser.add_argument("--tensorboard", action="store_true", help=TENSORBOARD)
    parser.add_argument(
        "--checkpoint-every", type=int, default=100, help="steps from one checkpoint to the next"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    keep_freed_memory()
    if args.tensorboard:
        check_tensorboard()
    check_folder(args.out)
    config = Pretraining(**{field.name: getattr(args, field.name) for field in fields(Pretraining)})
    train, test = open_image_data(config.dataset, args.data)
    found = pretrain(
        config,
        train,
        test,
        args.out,
        device=args.device,
        checkpoint_every=args.checkpoint_every,
        tensorboard=args.tensorboard,
        progress=ProgressLine(),
        notice=say,
    )
    parts = {
        "rarer half of the classes": found.minority,
        "other half": found.majority,
        "rare groups": found.rare_groups,
        "worst group": found.worst_group,
    }
    told = ", ".join(
        f"{name} {value:.2%}" for name, value in parts.items() if not math.isnan(value)
    )
    print(
        f"{config.dataset}, {config.model}, {config.epochs} epochs: test accuracy {found.top1:.2%}"
        + (f" ({told})" if told else "")
        + f"; top-5 {found.top5:.2%}"
    )
    print(f"weights: {args.out / 'model.pt'}, scores: {args.out / 'scores.json'}")
