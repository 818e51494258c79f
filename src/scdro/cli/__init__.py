"""The `scdro` command: thin, over `scdro.tables`."""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from scdro import __version__
from scdro.errors import ScdroError
from scdro.tables._summary import METHODS

__all__ = ["main", "parser"]

EXAMPLES = """examples:
  scdro audit data.csv --target income
      whom a plain model fails, and what a second look would gain at what price
  scdro train data.csv --target income --out run
      a plain and a robust model, compared; the better one is kept
  scdro predict run new.csv --out predictions.csv
      classes and probabilities of new rows
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. The exit status: 0 for success, 1 for an error, 2 for a wrong command line, 130 if interrupted."""
    args = parser().parse_args(argv)
    try:
        return args.run(args) or 0
    except (ScdroError, OSError, MemoryError) as error:
        text = str(error) or "expected enough memory, got none left"
        print(f"scdro {args.command}: {clean(text)}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr, flush=True)
        return 130


def clean(text: str) -> str:
    """One line without control characters: text from a user's file must not control the terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" if ord(c) < 256 else "?" for c in text)


class Parser(argparse.ArgumentParser):
    """Suggests the option you may have meant."""

    given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.given = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        super().error(clean(message + "".join(map(self._meant, self.given))))

    def _meant(self, word: str) -> str:
        flag, known = word.partition("=")[0], self._option_string_actions
        if not flag.startswith("--") or any(option.startswith(flag) for option in known):
            return ""
        close = difflib.get_close_matches(flag, known, 1)
        return f"; did you mean {close[0]}?" if close else ""


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


_number.__name__ = "finite number"


def parser() -> argparse.ArgumentParser:
    """The parser of the command and all of its subcommands."""
    whole = Parser(
        prog="scdro",
        description="Find whom a model fails, say who it is, train robustly, and say whether it was worth it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"scdro {__version__}", help="print the version")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands", prog="scdro")

    def add(name: str, run: Any, about: str, more: str = "") -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}. {more}".strip())
        made.set_defaults(run=run)
        return made

    train = add(
        "train",
        _train,
        "a plain and a robust model of a table or a folder of images, compared",
        "Settings are chosen by cross-validation, with the same number of candidates for every method, and the robust "
        "model is kept if the test rows confirm it. To resume it if it was interrupted, run the same command again.",
    )
    _add_data(train)
    train.add_argument("--out", required=True, help="folder of the run")
    train.add_argument(
        "--split-after", metavar="COLUMN[=VALUE]", help="test on the rows after a value, or the last fifth"
    )
    train.add_argument("--test", metavar="FILE", help="test on the rows of another file")
    train.add_argument(
        "--seeds", type=int, help="splits to repeat everything on (default: 3 up to 5,000 rows, 1 beyond)"
    )
    train.add_argument(
        "--features",
        metavar="NAME",
        help="for images: a pretrained classifier of torchvision, or timm/NAME, whose weights are on this machine "
        "(default: a common one, if there is one); none: a small network",
    )
    train.add_argument("--size", type=int, help="pixels of an image's side (default: 224 with --features, else 64)")

    audit = add(
        "audit",
        _audit,
        "whom a plain model fails, and what a second look would gain at what price",
        "Every row is judged by a model that did not see it; no model is kept.",
    )
    _add_data(audit)
    audit.add_argument("--out", help="folder for the report page and the numbers")

    predict = add("predict", _predict, "predictions of a run for new rows")
    predict.add_argument("folder", metavar="RUN", help="folder of `scdro train`")
    predict.add_argument("data", help="CSV or Parquet file, or a folder of images")
    predict.add_argument("--out", required=True, metavar="FILE", help="CSV file to write")
    predict.add_argument("--model", choices=["kept", "plain", "robust"], default="kept", help="default: the one kept")
    predict.add_argument(
        "--id", action="append", default=[], metavar="COLUMN", help="column to copy to the predictions"
    )

    report = add("report", _report, "the page of a run, as one HTML file")
    report.add_argument("folder", metavar="RUN", help="folder of `scdro train` or `scdro audit`")
    report.add_argument("--out", metavar="FILE", help="default: report.html in the folder")

    add("doctor", _doctor, "versions, devices, extras, and a numeric self-test", "Its output belongs in a bug report.")
    return whole


def _add_data(made: argparse.ArgumentParser) -> None:
    made.add_argument("data", help="CSV or Parquet file (train: or a folder with a subfolder of images for each class)")
    made.add_argument("--target", metavar="COLUMN", help="the column to predict")
    made.add_argument("--model", choices=["trees", "linear", "network"], help="default: trees")
    made.add_argument("--task", choices=["classification", "regression"], help="default: by the target")
    made.add_argument("--method", action="append", choices=METHODS, help="only these; may be repeated")
    made.add_argument("--rho", type=_number, help="radius at which models are compared (default 0.5)")
    made.add_argument(
        "--budget",
        type=_number,
        help="most accuracy, as a share, that robust training may cost (default 0.002; for images 0.02)",
    )
    made.add_argument("--group", action="append", metavar="COLUMN", help="report each of its values; never trained on")
    made.add_argument("--drop", action="append", metavar="COLUMN", help="leave a column out")
    made.add_argument("--categorical", action="append", metavar="COLUMN", help="numbers that are categories")
    made.add_argument("--id", action="append", metavar="COLUMN", help="not trained on; copied to the predictions")
    made.add_argument("--split-by", metavar="COLUMN", help="rows with the same value stay together")
    made.add_argument("--candidates", type=int, help="candidate settings of every method, 1 to 6 (default 4)")
    made.add_argument("--folds", type=int, help="folds of the cross-validation (default 3)")
    made.add_argument("--least-group", type=int, help="groups with fewer test rows never decide (default 30)")
    made.add_argument("--seed", type=int, help="seed of the splits and the models (default 0)")
    made.add_argument(
        "--threads", type=int, help="threads of trees and networks (default: 1 below 20,000 rows, else all idle cores)"
    )
    made.add_argument(
        "--log", metavar="FILE", help="file of JSON lines: every candidate as it is evaluated, then the results"
    )


TABLES = {  # options that only tables have, and their arguments in `scdro.tables.train` and `audit`
    "target": "target", "model": "model", "task": "task", "method": "methods", "group": "group", "drop": "drop",
    "categorical": "categorical", "id": "ids", "split_by": "split_by", "split_after": "split_after", "test": "test",
    "seeds": "seeds", "candidates": "candidates", "folds": "folds", "threads": "threads",
}  # fmt: skip
IMAGES = {"features": "features", "size": "size"}
BOTH = {name: name for name in ("rho", "budget", "least_group", "seed", "out")}


def _given(args: argparse.Namespace, own: dict[str, str], others: dict[str, str], what: str) -> dict[str, Any]:
    """Arguments of the options that were given; one that would be ignored is an error."""
    from scdro.errors import HyperparameterError

    def known(names: dict[str, str]) -> dict[str, Any]:
        return {
            name: getattr(args, option) for option, name in names.items() if getattr(args, option, None) is not None
        }

    ignored = [option for option in others if getattr(args, option, None) is not None]
    if ignored:
        raise HyperparameterError(f"expected options for {what}, got --{ignored[0].replace('_', '-')}")
    return known(own) | known(BOTH) | {"loggers": _loggers(args)}


def _loggers(args: argparse.Namespace) -> list[Any]:
    from scdro.integrations.loggers import JSONLinesLogger

    return [JSONLinesLogger(args.log)] if args.log else []


def _table(args: argparse.Namespace) -> dict[str, Any]:
    from scdro.errors import HyperparameterError

    found = _given(args, TABLES, IMAGES, "a table")
    if "target" not in found:
        raise HyperparameterError("expected --target COLUMN, the column to predict, got none")
    return found


def _train(args: argparse.Namespace) -> None:
    from pathlib import Path

    from scdro.cli.show import ProgressLine, show
    from scdro.tables import train, train_images

    if Path(args.data).is_dir():
        run = train_images(args.data, progress=ProgressLine(), **_given(args, IMAGES, TABLES, "a folder of images"))
    else:
        given = _table(args)
        if "=" in given.get("split_after", ""):
            given["split_after"] = tuple(given["split_after"].split("=", 1))
        run = train(args.data, progress=ProgressLine(), **given)
    show(run.summary)
    models = f"models ({', '.join(run.models)})" if run.models else "no model"
    print(clean(f"The run is in {args.out}: report.html, summary.json, {models}."))


def _audit(args: argparse.Namespace) -> None:
    from scdro.cli.show import ProgressLine, show
    from scdro.tables import audit

    run = audit(args.data, progress=ProgressLine(), **_table(args))
    show(run.summary)
    if args.out:
        print(clean(f"The page is {args.out}/report.html."))


def _predict(args: argparse.Namespace) -> None:
    from pathlib import Path

    from scdro._files import write_file
    from scdro.tables import load

    if not Path(args.folder).is_dir() and Path(args.data).is_dir():
        raise NotADirectoryError(f"expected RUN DATA, in this order, got {args.folder} {args.data}")
    run = load(args.folder)
    if Path(args.out).is_dir():
        raise IsADirectoryError(f"expected --out to be a file, got the folder {args.out}")
    frame = run.predictions(args.data, model=None if args.model == "kept" else args.model, ids=args.id)
    write_file(Path(args.out), frame.write_csv())


def _report(args: argparse.Namespace) -> None:
    from pathlib import Path

    from scdro._files import write_file
    from scdro.tables import load

    run = load(args.folder)
    path = Path(args.out) if args.out else Path(args.folder) / "report.html"
    if path.is_symlink() and not args.out:  # someone else's run must not choose which file is overwritten
        raise FileExistsError(f"expected a file of the run, got a link, {path}; choose another place with --out")
    write_file(path, run.report())
    print(clean(str(path)))


def _doctor(args: argparse.Namespace) -> int:
    from scdro.cli.doctor import run

    return run()
