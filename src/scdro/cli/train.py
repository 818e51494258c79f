"""`scdro train`: a robust model of one's own data."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scdro.cli.memory import keep_freed_memory
from scdro.cli.parsing import add_command, completed_by
from scdro.cli.places import check_folder
from scdro.cli.progress import ProgressLine
from scdro.cli.tensorboard import TENSORBOARD, check
from scdro.errors import HyperparameterError

if TYPE_CHECKING:
    from scdro.application.own.opening import Wanted
    from scdro.application.own.plan import Plan

__all__ = ["add"]


MANY: dict[str, Any] = {"action": "append", "default": [], "metavar": "COLUMN"}
DATA: dict[str, dict[str, Any]] = {
    "--target": {"help": "column of the class, of a CSV file"},
    "--group": MANY | {"help": "column of groups, for evaluation (and GroupDRO) alone; repeat it for combinations"},
    "--drop": MANY | {"help": "column to leave out; repeatable"},
    "--categorical": MANY | {"help": "column whose numbers are mere names; repeatable"},
    "--validation": {
        "default": "0.2",
        "metavar": "FILE|SHARE",
        "help": "to validate on, or a share to set aside (0.2)",
    },
    "--test": {"type": Path, "metavar": "FILE", "help": "data to test on, never used otherwise"},
    "--root": {"type": Path, "help": "folder that the paths of a list are relative to; by default its own"},
    "--size": {"type": int, "help": "side of images in files, in pixels (32; resnet50: 224)"},
    "--no-augment": {"action": "store_true", "help": "do not crop and mirror images in training"},
}
METHOD: dict[str, dict[str, Any]] = {
    "--method": {
        "default": "SCDRO",
        "help": "any of scdro.optim.REGISTRY (SCDRO): ASCDRO, ERM, GroupDRO, ...",
    },
    "--rho": {"type": float, "help": "radius of the KL ball (0.5)"},
    "--protect": {"type": float, "metavar": "SHARE", "help": "guard groups of at least this share: rho = log(1/share)"},
    "--lr": {"type": float, "help": "learning rate"},
    "--set": MANY | {"metavar": "NAME=VALUE", "help": "other settings of the method, such as beta=0.5; repeatable"},
    "--search": {"type": int, "metavar": "N", "help": "try N settings on the validation data"},
    "--baseline": {"action": "store_true", "help": "train ERM as well, and show both"},
}
MODEL: dict[str, dict[str, Any]] = {
    "--model": {"help": "linear, mlp (for rows), resnet8 (for images), resnet20, resnet32, resnet50 (pretrained)"},
    "--width": {"type": int, "help": "units of an mlp (64), first channels of a ResNet (16)"},
    "--part": {"help": "what is trained of a ResNet: all, last_block (resnet50) or classifier"},
    "--epochs": {"type": int, "help": "passes over the training data (about 6,000 steps' worth)"},
    "--batch-size": {"type": int, "help": "samples to a step (128; of fewer than 2,000 samples 32)"},
    "--weight-decay": {"type": float, "default": 2e-4, "help": "of every method (2e-4)"},
    "--max-grad-norm": {"type": float, "default": 1.0, "help": "bound on the norm of each gradient; 0 for none (1)"},
    "--seed": {"type": int, "default": 1, "help": "of weights, order and augmentation (1)"},
    "--threads": {"type": int, "help": "of torch (as many as it takes, or as the run in the folder had)"},
    "--workers": {
        "type": int,
        "default": 0,
        "help": "processes that decode images that do not fit into memory; under torchrun for each of its processes",
    },
    "--device": {"default": "cpu", "help": "where to train (cpu); under torchrun `cuda` is one GPU for each process"},
    "--checkpoint-seconds": {"type": float, "default": 20.0, "help": "from one checkpoint to the next (20)"},
    "--tensorboard": {"action": "store_true", "help": TENSORBOARD},
    "--export": {"action": "store_true", "help": "write model.pt2 as well, as is done for ResNets"},
}


def _methods() -> Iterable[str]:
    from scdro.optim import REGISTRY

    return REGISTRY


def _models() -> Iterable[str]:
    from scdro.application.study import MODELS

    return MODELS


def _parts() -> Iterable[str]:
    from scdro.application.networks import PARTS

    return PARTS


def add(commands: Any) -> None:
    parser = add_command(
        commands,
        "train",
        usage="DATA --out FOLDER [options]",
        help="a robust model of your own data: a CSV or .npz file, a folder or a list of images",
        description="Train a model on your own data. To resume after a kill at any moment, run the same command again: "
        "it goes on, bit for bit. Under torchrun the processes share each batch.",
        examples="""
            scdro train data.csv --target income --baseline --out run
                guard every group of at least 61% of the data, rho 0.5; show plain training beside it
            scdro train data.csv --target income --protect 0.3 --baseline --out run
                smaller groups, down to 30%; a model that cannot fit them all gets worse for it
            scdro train data.csv --target income --group sex --group race --search 10 --out run
                try ten settings; show the accuracy of each group, which the model does not see
            scdro train photos/ --epochs 20 --size 64 --out run
                a folder with a subfolder of images for each class
            scdro train data.csv --target income --method FastDRO --set momentum=0.9 --out run
                another method, with a setting of its own
            torchrun --standalone --nproc-per-node 2 -m scdro train photos/ --out run
                in two processes
        """,
    )
    parser.add_argument(
        "data",
        type=Path,
        help="a .csv, .tsv or .npz file, a folder with a subfolder of images for each class, or a "
        ".txt file of lines `path label`",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    for title, options in (("data", DATA), ("method", METHOD), ("model and training", MODEL)):
        group = parser.add_argument_group(title)
        for flag, about in options.items():
            action = group.add_argument(flag, **about)
            completed_by(action, {"--method": _methods, "--model": _models, "--part": _parts}.get(flag, tuple))
    parser.set_defaults(run=run, shared=lambda args: True)


def run(args: argparse.Namespace) -> None:
    keep_freed_memory()
    from scdro.application.own.fitting import fit
    from scdro.application.own.opening import open_own
    from scdro.application.own.summary import about_data, about_rho, summary, warnings

    check(args)
    check_folder(args.out)
    plan = _plan(args)  # before the data: a wrong option should not wait for them
    data = open_own(_wanted(args))
    print(about_data(data))
    for note in data.notes:
        print(f"note: {note}")
    fits = fit(
        plan,
        data,
        args.out,
        args.data.name,
        export=args.export,
        device=args.device,
        checkpoint_seconds=args.checkpoint_seconds,
        tensorboard=args.tensorboard,
        progress=ProgressLine(),
        say=lambda text: print(text, file=sys.stderr),
    )
    print(f"{fits[-1].run}; {about_rho(fits[-1].run)}\n\n{summary(fits, data)}\n")
    for warning in warnings(fits, data):
        print(f"beware: {warning}")
    print(f"model: {args.out / 'model.pt'}; predict new data by `scdro predict {args.out} FILE`")


def _plan(args: argparse.Namespace) -> Plan:
    import torch

    from scdro.application.own.fitting import remembered_threads
    from scdro.application.own.plan import Plan
    from scdro.functional import rho_for_group

    if args.protect is not None and args.rho is not None:
        raise HyperparameterError("expected --rho or --protect, got both; they say the same thing in two ways")
    rho = rho_for_group(args.protect) if args.protect is not None else 0.5 if args.rho is None else args.rho
    settings = dict(map(_setting, args.set)) | ({} if args.lr is None else {"lr": args.lr})
    threads = args.threads
    if threads is None:
        threads = remembered_threads(args.out) or torch.get_num_threads()
    same = ["method", "model", "width", "part", "epochs", "batch_size", "weight_decay", "max_grad_norm"]
    same += ["search", "baseline", "seed"]
    return Plan(rho=rho, settings=settings, threads=threads, **{name: getattr(args, name) for name in same})


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise HyperparameterError(f"expected --set NAME=NUMBER, such as beta=0.5, got {text!r}") from None


def _wanted(args: argparse.Namespace) -> Wanted:
    from scdro.application.own.opening import Wanted
    from scdro.application.own.plan import check_count

    check_count("--size", args.size)
    size = (224 if args.model == "resnet50" else 32) if args.size is None else args.size
    try:
        validation: Path | float = float(args.validation)
    except ValueError:
        validation = Path(args.validation)
    return Wanted(
        args.data,
        validation,
        args.test,
        args.target,
        tuple(args.group),
        tuple(args.drop),
        tuple(args.categorical),
        args.root,
        size,
        not args.no_augment,
        args.workers,
    )
