"""`python -m reproduction figure1`, `figure2`, `table2`, ...: an experiment, from its search to its tables."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from reproduction.board import Board
from reproduction.commands import add_command, say
from reproduction.engine.memory import keep_freed_memory
from reproduction.engine.storage import check_folder, write, write_json
from reproduction.engine.study import Study
from reproduction.engine.tensorboard import TENSORBOARD, check_tensorboard
from reproduction.figures import draw
from reproduction.paper import CLAIMS, TITLES
from reproduction.pool import Means
from reproduction.presets import EXPERIMENTS, SCALES, changed, datasets, study
from reproduction.protocol import BEYOND, SMOKE, STUDIES, plan
from reproduction.records import csv_text, curve_rows, seed_rows, trial_rows
from reproduction.results import markdown
from reproduction.sweep import Swept, sweep
from reproduction.tasks import Sources, check_methods, open_task
from scdro.distributed import Ranks
from scdro.errors import HyperparameterError, MissingDataError

__all__ = ["add"]

STAND_INS = {"hidden": "digits-hidden"}
NAMED_ELSEWHERE = ("experiment", "dataset", "scale")
ABOUT = {
    "methods": "names in reproduction.baselines.REGISTRY",
    "inputs": "features, images or rows",
    "model": "linear, mlp, resnet8, resnet20, resnet32 or resnet50",
    "width": "first channels of a ResNet, or units of an mlp",
    "part": "what is trained of a ResNet: all, last_block or classifier",
    "pool": "make images smaller by this factor",
    "epochs": "passes over the training data",
    "decay_epoch": (
        "after how many of them lr falls by ten; with --epochs by default the same share of them"
    ),
    "batch_size": "samples to a step",
    "weight_decay": "of every method",
    "max_grad_norm": "bound on the norm of each gradient; 0 for none",
    "rho": "radii, each with a result of its own",
    "choose_rho": "one result instead, at the radius that is best on the validation data",
    "tune_rho": "search settings at this radius alone; 0 searches at each",
    "tune_epochs": "length of the runs that search; 0 for that of all",
    "tune_seeds": "runs of each setting in the search, judged by their mean",
    "choose_by": "what settings are chosen by on validation data: accuracy or robust_value",
    "trials": "settings to try of each grid; 0 for all of it",
    "grid": "values to try, such as lr=.1,.5 SCDRO.beta=.1",
    "steps": (
        "effective step sizes in place of lr: lr, or lr / (1 - momentum) where momentum is not"
        " damped"
    ),
    "refine": "try four steps more around the best",
    "seeds": "runs of the best settings",
    "points": "how often a run is evaluated",
    "precision": "float32, or bfloat16 for the forward and backward passes of a step",
    "threads": "of each run",
}


def add(commands: Any) -> None:
    for experiment in EXPERIMENTS:
        beyond = experiment in BEYOND
        parser = add_command(
            commands,
            experiment,
            usage="[options]",
            help=TITLES[experiment],
            description=("" if beyond else f"The paper's claim: {CLAIMS[experiment]} ")
            + "Settings are searched on validation data, the best run with several seeds; tables"
            " and figures have the paper's numbers beside ours. To resume after a kill at any"
            " moment, run the same command again. Under torchrun the processes share each batch"
            " of one run after the other.",
            examples=f"""
                python -m reproduction {experiment} --scale smoke
                    a minute, on embedded digits where there are no data
                python -m reproduction {experiment} --data data --features runs --workers 2
                    two runs at a time
                python -m reproduction {experiment} --methods SCDRO ERM --grid lr=.1,.5 SCDRO.beta=.1 --epochs 30
                    methods, grids and lengths of your own
                python -m reproduction {experiment} --scale paper --dry-run
                    the configuration and the number of runs, and nothing else
                torchrun --standalone --nproc-per-node 2 -m reproduction {experiment}
                    in two processes
            """,
        )
        _add_options(parser)
        parser.set_defaults(run=run, shared=lambda args: True, experiment=experiment)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dataset",
        nargs="+",
        default=None,
        help="by default all of the experiment's, at that scale",
    )
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="small",
        help=(
            "paper: its protocol; small (default): two cores, an evening; smoke: a minute, on"
            " digits if need be"
        ),
    )
    parser.add_argument(
        "--data", type=Path, default=None, help="folder with the data; else $SCDRO_DATA, or ./data"
    )
    parser.add_argument(
        "--features",
        type=Path,
        default=None,
        help="folder with a folder of features for each data set",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="where runs go (default: runs)"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=None,
        help="where tables and figures go (default: with the runs)",
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="runs at a time (default: 1; under torchrun no more)"
    )
    parser.add_argument(
        "--image-workers",
        type=int,
        default=0,
        help="processes of each run that decode large images (default: 0)",
    )
    parser.add_argument("--tensorboard", action="store_true", help=TENSORBOARD)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the configuration, what is shortened and how many runs there are; make nothing",
    )
    parser.add_argument("--checkpoint-seconds", type=float, default=20.0, help=argparse.SUPPRESS)
    group = parser.add_argument_group("anything else of the configuration, in place of the scale's")
    for field in fields(Study):
        if field.name in NAMED_ELSEWHERE:
            continue
        flag, about = f"--{field.name.replace('_', '-')}", ABOUT[field.name]
        if field.name == "grid":
            group.add_argument(flag, nargs="+", type=_grid_entry, metavar="KEY=V,V", help=about)
        elif field.name in ("methods", "rho", "steps"):
            group.add_argument(
                flag, nargs="+", type=str if field.name == "methods" else float, help=about
            )
        elif isinstance(field.default, bool):
            group.add_argument(
                flag, action=argparse.BooleanOptionalAction, default=None, help=about
            )
        else:
            group.add_argument(flag, type=type(field.default), help=about)


def _grid_entry(text: str) -> tuple[str, tuple[float, ...]]:
    key, _, values = text.partition("=")
    try:
        return key, tuple(float(value) for value in values.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE,VALUE, got {text!r}") from error


def run(args: argparse.Namespace) -> None:
    keep_freed_memory()
    if args.workers < 1:
        raise HyperparameterError(f"expected at least one worker, got {args.workers}")
    for name in ("dataset", "methods", "rho"):
        _check_once(name, getattr(args, name) or ())
    check_folder(args.out)
    if args.tensorboard:
        check_tensorboard()
    means = Means(
        Sources(args.data, args.features, args.image_workers),
        args.workers,
        args.checkpoint_seconds,
        args.tensorboard,
    )
    studies = _studies(args, means.sources)
    if args.dry_run:
        if Ranks().first:
            print(plan(studies))
        return
    board, folder = Board(), args.out / f"{args.experiment}-{args.scale}"
    swept = [sweep(study, folder / study.dataset, means, board, board.say) for study in studies]
    if Ranks().first:
        _write(swept, args.results or folder)
        if args.scale == "smoke":
            say(SMOKE)


def _check_once(name: str, values: Sequence[Any]) -> None:
    again = [value for i, value in enumerate(values) if value in values[:i]]
    if again:
        raise HyperparameterError(
            f"expected each of --{name} once, got {again[0]} twice; leave one out"
        )


def _study(args: argparse.Namespace, dataset: str) -> Study:
    given = {
        name: tuple(v) if isinstance(v, list) else v
        for name, v in vars(args).items()
        if v is not None
    }
    plain = study(args.experiment, dataset, args.scale, given.get("methods"))
    own = {field.name: given[field.name] for field in fields(plain) if field.name in given}
    return changed(
        plain, {name: value for name, value in own.items() if name not in NAMED_ELSEWHERE}
    )


def _studies(args: argparse.Namespace, sources: Sources) -> list[Study]:
    """Those whose data are there; a smoke test does without the others, and where there are none, with the embedded
    digits, and we say so."""
    names = args.dataset or datasets(args.experiment, args.scale)
    if args.scale != "smoke" or args.dataset is not None:
        return [_opened(args, name, sources) for name in names]
    tried = {name: _opened_or_why(args, name, sources) for name in names}
    missing = [name for name, own in tried.items() if own is None]
    if len(missing) < len(names):
        if missing:
            say(f"until then without {', '.join(missing)}")
        return [own for own in tried.values() if own is not None]
    stand_in = STAND_INS.get(args.experiment, "digits-st")
    say(f"until then, in place of {', '.join(names)}: scikit-learn's embedded digits, {stand_in}")
    return [_opened(args, stand_in, sources)]


def _opened(args: argparse.Namespace, dataset: str, sources: Sources) -> Study:
    """The study of a data set that can be read and suits the methods; a plan does without the data."""
    own = _study(args, dataset)
    try:
        check_methods(own, open_task(own.inputs, dataset, own.pool, sources))
    except MissingDataError as error:
        if not args.dry_run or args.scale == "smoke":
            raise
        say(str(error))
    return own


def _opened_or_why(args: argparse.Namespace, dataset: str, sources: Sources) -> Study | None:
    try:
        return _opened(args, dataset, sources)
    except MissingDataError as error:
        say(str(error))
        return None


def _write(swept: Sequence[Swept], folder: Path) -> None:
    """Tables, figures and the configuration."""
    found = [(own.study, own.outcomes) for own in swept]
    text = markdown(found, [one for own in swept for one in own.environments])
    rows = {
        "seeds.csv": seed_rows(found),
        "trials.csv": trial_rows(found),
        "curves.csv": curve_rows(found),
    }
    files = {"table.md": text, **{name: csv_text(own) for name, own in rows.items()}}
    for name, content in files.items():
        write(folder / name, content.encode())
    write_json(
        folder / STUDIES,
        {
            s.study.dataset: {
                "study": s.study.as_dict(),
                "data": s.data,
                "environments": s.environments,
            }
            for s in swept
        },
    )
    print(text)
    try:
        pictures = draw(found, folder)
    except MissingDataError as error:
        say(str(error))
        pictures = []
    print(f"written to {folder}: {', '.join([*files, STUDIES, *(path.name for path in pictures)])}")
