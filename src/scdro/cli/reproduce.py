"""`scdro reproduce`: the paper's figures and tables, one command each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from scdro.cli.board import Board
from scdro.cli.memory import keep_freed_memory
from scdro.cli.parsing import add_command, completed_by
from scdro.cli.places import check_folder
from scdro.cli.tensorboard import TENSORBOARD, check
from scdro.distributed.start import is_first
from scdro.errors import HyperparameterError, MissingDataError

__all__ = ["add"]

STAND_INS = {"hidden": "digits-hidden"}
TABLE1 = "table1"  # rates, on problems of its own
TABLE1_OPTIONS = ("scale", "out", "results", "workers", "command", "experiment", "checkpoint_seconds", "run", "shared")
NAMED_ELSEWHERE = ("experiment", "dataset", "scale")
ABOUT = {
    "methods": "names in scdro.optim.REGISTRY",
    "inputs": "features, images or rows",
    "model": "linear, mlp, resnet8, resnet20, resnet32 or resnet50",
    "width": "first channels of a ResNet, or units of an mlp",
    "part": "what is trained of a ResNet: all, last_block or classifier",
    "pool": "make images smaller by this factor",
    "epochs": "passes over the training data",
    "decay_epoch": "after how many of them lr falls by ten; with --epochs by default the same share of them",
    "batch_size": "samples to a step",
    "weight_decay": "of every method",
    "max_grad_norm": "bound on the norm of each gradient; 0 for none",
    "rho": "radii, each with a result of its own",
    "choose_rho": "one result instead, at the radius that is best on the validation data",
    "tune_rho": "search settings at this radius alone; 0 searches at each",
    "tune_epochs": "length of the runs that search; 0 for that of all",
    "trials": "settings to try of each grid; 0 for all of it",
    "grid": "values to try, such as lr=.1,.5 SCDRO.beta=.1",
    "seeds": "runs of the best settings",
    "points": "how often a run is evaluated",
    "threads": "of each run",
}


def add(commands: Any) -> None:
    from scdro.experiments.presets import EXPERIMENTS, SCALES

    parser = add_command(
        commands,
        "reproduce",
        usage="EXPERIMENT [options]",
        help="the paper's figures and tables, and what is beyond them",
        description="Run an experiment of the paper. Settings are searched on validation data, the best run with "
        "several seeds; tables and figures have the paper's numbers beside ours. To resume after a kill at any "
        "moment, run the same command again. Under torchrun the processes share each batch of one run after the other.",
        examples="""
            scdro reproduce figure1 --scale smoke
                a minute, on embedded digits where there are no data
            scdro reproduce figure2 --dataset cifar10-st --data data --workers 2
                one data set of an experiment, two runs at a time
            scdro reproduce table4 --methods SCDRO ERM --grid lr=.1,.5 SCDRO.beta=.1 --epochs 30
                methods, grids and lengths of your own
            scdro reproduce table4 --scale paper --dry-run
                the configuration and the number of runs, and nothing else
            torchrun --standalone --nproc-per-node 2 -m scdro reproduce figure2
                in two processes
        """,
    )
    names = [TABLE1, *EXPERIMENTS]
    parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        choices=names,
        help=f"one of {', '.join(names)}; the last is not in the paper",
    )
    dataset = parser.add_argument(
        "--dataset", nargs="+", default=None, help="by default all of the experiment's, at that scale"
    )
    completed_by(dataset, dict.fromkeys(name for known in EXPERIMENTS.values() for name in known[1]))
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="small",
        help="paper: its protocol; small (default): two cores, an evening; smoke: a minute, on digits if need be",
    )
    parser.add_argument("--data", type=Path, default=None, help="folder with the data; else $SCDRO_DATA, or ./data")
    parser.add_argument(
        "--features", type=Path, default=None, help="folder with a folder of features for each data set"
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where runs go (default: runs)")
    parser.add_argument(
        "--results", type=Path, default=None, help="where tables and figures go (default: with the runs)"
    )
    parser.add_argument("--workers", type=int, default=1, help="runs at a time (default: 1; under torchrun no more)")
    parser.add_argument(
        "--image-workers", type=int, default=None, help="processes of each run that decode large images (default: 0)"
    )
    parser.add_argument("--tensorboard", action="store_true", default=None, help=TENSORBOARD)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        default=None,
        help="print the configuration, what is shortened and how many runs there are; make nothing",
    )
    parser.add_argument("--checkpoint-seconds", type=float, default=20.0, help=argparse.SUPPRESS)
    _add_fields(parser)
    parser.set_defaults(run=run, shared=lambda args: args.experiment != TABLE1)


def _add_fields(parser: argparse.ArgumentParser) -> None:
    """A flag for each field of `Study`."""
    from scdro.experiments.config import INPUTS, MODELS, Study
    from scdro.models.network import PARTS
    from scdro.optim import REGISTRY

    offered = {"methods": tuple(REGISTRY), "inputs": INPUTS, "model": MODELS, "part": PARTS}
    group = parser.add_argument_group("anything else of the configuration, in place of the scale's")
    for field in fields(Study):
        if field.name in NAMED_ELSEWHERE:
            continue
        flag, about = f"--{field.name.replace('_', '-')}", ABOUT[field.name]
        if field.name == "grid":
            group.add_argument(flag, nargs="+", type=_grid_entry, metavar="KEY=V,V", help=about)
        elif field.name in ("methods", "rho"):
            kind = str if field.name == "methods" else float
            completed_by(group.add_argument(flag, nargs="+", type=kind, help=about), offered.get(field.name, ()))
        elif isinstance(field.default, bool):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=about)
        else:
            completed_by(group.add_argument(flag, type=type(field.default), help=about), offered.get(field.name, ()))


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
    if args.experiment == TABLE1:
        _run_table1(args)
        return
    from scdro.experiments.plan import plan
    from scdro.experiments.pool import Means
    from scdro.experiments.protocol import SMOKE
    from scdro.experiments.sweep import sweep
    from scdro.experiments.tasks import Sources

    check(args)
    sources = Sources(args.data, args.features, args.image_workers or 0)
    means = Means(sources, args.workers, args.checkpoint_seconds, bool(args.tensorboard))
    folder = args.out / f"{args.experiment}-{args.scale}"
    studies = _studies(args, means)
    if args.dry_run:
        if is_first():
            print(plan(studies))
        return
    board = Board()
    found = [(study, sweep(study, folder / study.dataset, means, board, board.say)) for study in studies]
    if is_first():
        _write(found, folder, args.results or folder)
        if args.scale == "smoke":
            _say(SMOKE)


def _check_once(name: str, values: Sequence[Any]) -> None:
    again = [value for i, value in enumerate(values) if value in values[:i]]
    if again:
        raise HyperparameterError(f"expected each of --{name} once, got {again[0]} twice; leave one out")


def _run_table1(args: argparse.Namespace) -> None:
    from scdro.cli.progress import ProgressLine
    from scdro.experiments import table1

    given = [name for name, value in vars(args).items() if name not in TABLE1_OPTIONS and value is not None]
    if given:
        raise HyperparameterError(
            f"expected --scale, --out, --results and --workers alone for {TABLE1}, which has problems of its own, got "
            f"{', '.join('--' + name.replace('_', '-') for name in given)} too; leave it out"
        )
    folder = args.results or args.out / f"{TABLE1}-{args.scale}"
    table1.run(folder, args.scale, args.workers, ProgressLine(), _say)
    print((folder / "table1.md").read_text())


def _study(args: argparse.Namespace, dataset: str) -> Any:
    from scdro.experiments.presets import changed, study

    given = {name: tuple(v) if isinstance(v, list) else v for name, v in vars(args).items() if v is not None}
    plain = study(args.experiment, dataset, args.scale, given.get("methods"))
    own = {field.name: given[field.name] for field in fields(plain) if field.name in given}
    return changed(plain, {name: value for name, value in own.items() if name not in NAMED_ELSEWHERE})


def _studies(args: argparse.Namespace, means: Any) -> list[Any]:
    """Those whose data are there; a smoke test does without the others, and where there are none, with the embedded
    digits, and we say so."""
    from scdro.experiments.presets import datasets

    names = args.dataset or datasets(args.experiment, args.scale)
    if args.scale != "smoke" or args.dataset is not None:
        return [_opened(args, name, means) for name in names]
    tried = {name: _opened_or_why(args, name, means) for name in names}
    missing = [name for name, study in tried.items() if study is None]
    if len(missing) < len(names):
        if missing:
            _say(f"until then without {', '.join(missing)}")
        return [study for study in tried.values() if study is not None]
    stand_in = STAND_INS.get(args.experiment, "digits-st")
    _say(f"until then, in place of {', '.join(names)}: scikit-learn's embedded digits, {stand_in}")
    return [_opened(args, stand_in, means)]


def _opened(args: argparse.Namespace, dataset: str, means: Any) -> Any:
    """The study of a data set that can be read and suits the methods; a plan does without the data."""
    from scdro.experiments.tasks import check_methods, open_task

    study = _study(args, dataset)
    try:
        check_methods(study, open_task(study.inputs, dataset, study.pool, means.sources))
    except MissingDataError as error:
        if not args.dry_run or args.scale == "smoke":
            raise
        _say(str(error))
    return study


def _opened_or_why(args: argparse.Namespace, dataset: str, means: Any) -> Any | None:
    try:
        return _opened(args, dataset, means)
    except MissingDataError as error:
        _say(str(error))
        return None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(found: Any, runs: Path, folder: Path) -> None:
    """Tables, figures and the configuration, beside the runs or in a folder of their own."""
    from scdro.experiments.figures import draw
    from scdro.experiments.protocol import STUDIES
    from scdro.experiments.records import csv_text, curve_rows, seed_rows, trial_rows
    from scdro.experiments.results import markdown
    from scdro.experiments.storage import read_json, write, write_json
    from scdro.experiments.sweep import environments

    made_in = {study.dataset: environments(study, runs / study.dataset) for study, _ in found}
    text = markdown(found, [one for own in made_in.values() for one in own])
    rows = {"seeds.csv": seed_rows(found), "trials.csv": trial_rows(found), "curves.csv": curve_rows(found)}
    files = {"results.md": text, **{name: csv_text(own) for name, own in rows.items()}}
    for name, content in files.items():
        write(folder / name, content.encode())
    studies = {name: _saved(read_json(runs / name / "study.json"), own) for name, own in made_in.items()}
    write_json(folder / STUDIES, studies)
    print(text)
    try:
        pictures = draw(found, folder, found[0][0].experiment)
    except MissingDataError as error:
        _say(str(error))
        pictures = []
    print(f"written to {folder}: {', '.join([*files, STUDIES, *(path.name for path in pictures)])}")


def _saved(study: dict[str, Any], environments: list[dict[str, Any]]) -> dict[str, Any]:
    """A study.json with the environments of its runs, which may be older than the last command's."""
    return {**{key: value for key, value in study.items() if key != "environment"}, "environments": environments}
