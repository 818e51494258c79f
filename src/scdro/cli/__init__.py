"""The `scdro` command: thin, over `scdro.tables`.

    main -> parser -> _audit, _train, _predict, _report or _doctor -> a function of scdro.tables -> text

The options of `train` and `audit` are the fields of their options in Python: `_add_options` makes a
flag of each, `_given` makes keyword arguments of those that were given. A command imports what it
needs when it runs, so that help is fast. An error of ours, or of the system, is one line and status 1;
anything else is a bug, and keeps its traceback.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import math
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from scdro import __version__
from scdro._terminal import ProgressLine, clean, show_text
from scdro.errors import ScdroError
from scdro.tables._options import AuditOptions, TableOptions, TrainOptions, option_fields

__all__ = ["main", "parser"]

EXAMPLES = """examples:
  scdro audit data.csv --target income
      where an ordinary model of the table fails
  scdro audit scored.csv --target income --prediction p --fail-if "gap > 0.05"
      where the model that made column p fails; status 3 if a slice breaks the rule
  scdro train data.csv --target income --out run
      a plain and a robust model, compared; the better one is kept
  scdro predict run new.csv --out predictions.csv
      classes and probabilities of new rows
"""
FILE = "CSV, Excel, Parquet, Feather or JSON lines file, or one of them in a .zip"
GATE_FAILED = 3  # exit status


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. The exit status: 0 success, 1 error, 2 wrong command line, 3 a gate failed, 130 interrupted."""
    args = parser().parse_args(argv)
    try:
        return args.run(args) or 0
    except (ScdroError, OSError, MemoryError) as error:
        text = str(error) or "Out of memory."
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "")
        if extra is None:
            raise
        text = f"expected {error.name}, which is not installed; pip install {extra}"
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr, flush=True)
        return 130
    print(f"scdro {args.command}: {clean(text)}", file=sys.stderr, flush=True)
    return 1


EXTRAS = {  # what to install for a package that is missing
    "torch": "torch",
    "jinja2": "jinja2",
    **dict.fromkeys(("polars", "lightgbm", "skops", "filelock"), "'scdro[tables]'"),
}


# -- the parser


class Parser(argparse.ArgumentParser):
    """Suggests the option you may have meant."""

    given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Remember the words that were given, for suggestions; refuse unknown ones."""
        self.given = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        super().error(clean(message + "".join(map(self._suggest, self.given))))

    def _suggest(self, word: str) -> str:
        """ "; did you mean --x?" for an unknown flag that is nearly a known one; else ""."""
        flag, known = word.partition("=")[0], self._option_string_actions
        if not flag.startswith("--") or any(option.startswith(flag) for option in known):
            return ""
        close = difflib.get_close_matches(flag, known, 1)
        return f"; did you mean {close[0]}?" if close else ""


def parser() -> argparse.ArgumentParser:
    """The parser of the command and all of its subcommands."""
    whole = Parser(
        prog="scdro",
        description=(
            "Find where a model fails, say for whom, train robustly, and say whether it was worth it."
        ),
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument(
        "--version", action="version", version=f"scdro {__version__}", help="print the version"
    )
    commands = whole.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands", prog="scdro"
    )
    for add in (_add_train, _add_audit, _add_predict, _add_report, _add_doctor):
        add(commands)
    return whole


def _add_command(commands: Any, run: Any, about: str, more: str = "") -> Any:
    """A subcommand; options that are not given leave no trace in its arguments."""
    made = commands.add_parser(
        run.__name__.strip("_"), help=about, argument_default=argparse.SUPPRESS,
        description=f"{about[0].upper()}{about[1:]}. {more}".strip(),
    )  # fmt: skip
    made.set_defaults(run=run)
    return made


def _add_train(commands: Any) -> None:
    """The options of `scdro train`: those of `TrainOptions`, the folder and a log."""
    made = _add_command(
        commands, _train, "a plain and a robust model of a table, compared",
        "Settings are chosen by cross-validation, with the same number of candidates for every"
        " method. The robust model is kept if on the test rows it gains what the plain one cannot have"
        " by other thresholds or a temperature. To resume it if it was interrupted, run the same"
        " command again.",
    )  # fmt: skip
    _add_table(made, "the column to predict")
    made.add_argument("--out", required=True, help="folder of the run")
    _add_options(made, TrainOptions)
    made.add_argument("--log", metavar="FILE",
                      help="file of JSON lines: every candidate as it is evaluated, then the results")  # fmt: skip


def _add_audit(commands: Any) -> None:
    """The options of `scdro audit`: those of `AuditOptions`, the rules of a gate and a file."""
    made = _add_command(
        commands, _audit, "where a model fails: wrong probabilities, merely hard rows, or the threshold",
        "Give the column of its predictions; without one, an ordinary model is trained and every"
        " row is judged by one that did not see it. Status 3: a rule of --fail-if is broken.",
    )  # fmt: skip
    _add_table(made, "the column with the labels")
    _add_options(made, AuditOptions)
    made.add_argument("--fail-if", action="append", metavar="RULE",
                      help='what no slice may be, such as "accuracy < 0.7"')  # fmt: skip
    made.add_argument("--if-unsure", choices=["pass", "fail"],
                      help="for slices with too few rows (default pass)")  # fmt: skip
    made.add_argument("--out", metavar="FILE", help="page (.html) or numbers (.json) to write")


def _add_predict(commands: Any) -> None:
    """The options of `scdro predict`: a run, data, and how their file is read."""
    made = _add_command(commands, _predict, "predictions of a run for new rows")
    made.add_argument("folder", metavar="RUN", help="folder of `scdro train`")
    made.add_argument("data", help=FILE)
    _add_options(made, TableOptions, ("encoding", "decimal", "sheet"))
    made.add_argument("--out", required=True, metavar="FILE", help="CSV or Parquet file to write")
    made.add_argument("--model", choices=["kept", "plain", "robust"], default="kept",
                      help="default: the one kept")  # fmt: skip
    made.add_argument("--id", action="append", default=[], metavar="COLUMN",
                      help="column to copy to the predictions")  # fmt: skip


def _add_report(commands: Any) -> None:
    """The options of `scdro report`."""
    made = _add_command(commands, _report, "the page of a run, as one HTML file")
    made.add_argument("folder", metavar="RUN", help="folder of `scdro train`")
    made.add_argument("--out", metavar="FILE", help="default: report.html in the folder")


def _add_doctor(commands: Any) -> None:
    """`scdro doctor` has no options."""
    about = "versions, devices, extras, and a numeric self-test"
    _add_command(commands, _doctor, about, "Its output belongs in a bug report.")


def _add_table(made: Any, target: str) -> None:
    """What `train` and `audit` cannot do without: the data and the target."""
    made.add_argument("data", help=FILE)
    made.add_argument("--target", metavar="COLUMN", required=True, help=target)


def _add_options(made: Any, options: type[TableOptions], only: Sequence[str] = ()) -> None:
    """A flag for each field of the options, or only for some."""
    kinds = {"whole": int, "number": _number}
    for one in option_fields(options):
        about = one.metadata
        own: dict[str, Any] = {"dest": one.name, "help": about["meaning"].replace("%", "%%")}
        if about.get("kind") == "flag":
            own["action"] = "store_true"
        else:
            own |= {key: about[key] for key in ("choices", "metavar") if key in about}
            own |= {"action": "append"} if about.get("kind") == "names" else {}
            own |= {"type": kinds[about["kind"]]} if about.get("kind") in kinds else {}
        if not only or one.name in only:
            made.add_argument(f"--{about.get('flag', one.name).replace('_', '-')}", **own)


def _number(text: str) -> float:
    """The type of an option: argparse shows its name if a text is no such number."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


_number.__name__ = "finite number"


def _given(args: argparse.Namespace, options: type[TableOptions]) -> dict[str, Any]:
    """The options of the command line, as keyword arguments."""
    return {k.name: getattr(args, k.name) for k in option_fields(options) if hasattr(args, k.name)}


# -- the commands


def _train(args: argparse.Namespace) -> None:
    """Train, or find the finished run; then show the verdict and the scores."""
    from scdro.cli.show import show
    from scdro.integrations.loggers import JSONLinesLogger
    from scdro.tables import train

    given = _given(args, TrainOptions)
    if "=" in given.get("split_after", ""):
        given["split_after"] = tuple(given["split_after"].split("=", 1))
    loggers = [JSONLinesLogger(args.log)] if "log" in args else []
    run = train(
        args.data, args.target, out=args.out, progress=ProgressLine(), loggers=loggers, **given
    )
    if run.reopened:
        when = run.summary["created"][:16]
        print(
            clean(f"The run in {args.out} had finished before, on {when} UTC: nothing was trained"
                  " now. For another run, choose another --out.") + "\n"
        )  # fmt: skip
    show(run.summary)
    models = f"models ({', '.join(run.models)})" if run.models else "no model"
    print(clean(f"The run is in {args.out}: report.html, summary.json, {models}."))


def _audit(args: argparse.Namespace) -> int:
    """Audit, show and save the findings, then judge the rules of --fail-if; the exit status."""
    import warnings

    from scdro.auditing import Gate, GateError
    from scdro.errors import HyperparameterError
    from scdro.tables import audit

    if "out" in args and not args.out.lower().endswith((".html", ".json")):
        raise HyperparameterError(f"expected --out to end with .html or .json, got {args.out}")
    if "out" in args and args.out.lower().endswith(".html"):
        importlib.import_module("jinja2")  # without it, say so before the audit
    if "if_unsure" in args and "fail_if" not in args:
        raise HyperparameterError("expected --if-unsure with --fail-if RULE, got no rule")
    if "fail_if" in args:
        Gate.check_rules(*args.fail_if)  # before anything is trained
    # With predictions nothing is trained: an option of training would be ignored.
    given = _given(args, AuditOptions)
    of_training = ("model", "folds", "candidates", "seed", "threads")
    ignored = [name for name in of_training if "prediction" in given and name in given]
    if ignored:
        raise HyperparameterError(
            f"expected --{ignored[0]} only without --prediction, with which nothing is trained"
        )
    report = audit(args.data, args.target, progress=ProgressLine(), **given)
    show_text(str(report))
    if "out" in args:
        report.save(args.out)
        print(clean(f"Written to {args.out}."))
    if "fail_if" not in args:
        return 0
    # The gate warns of what it is not sure of: on a terminal a sentence, not Python's warning.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            report.check(*args.fail_if, if_unsure=getattr(args, "if_unsure", "pass"))
        except GateError as error:
            show_text(str(error), sys.stderr)
            return GATE_FAILED
    for one in caught:
        show_text(str(one.message), sys.stderr)
    print("The gate passed.")
    return 0


def _predict(args: argparse.Namespace) -> None:
    """Write predictions; what would overwrite the data, or swaps RUN and DATA, is refused first."""
    from pathlib import Path

    from scdro.tables import load

    run, data, out = Path(args.folder), Path(args.data), Path(args.out)
    if not run.is_dir() and data.is_dir():
        raise NotADirectoryError(f"expected RUN DATA, in this order, got {run} {data}")
    if out.is_dir():
        raise IsADirectoryError(f"expected --out to be a file, got the folder {out}")
    if out.exists() and data.exists() and out.samefile(data):
        raise FileExistsError(
            f"expected --out to be another file than the data, got {out} for both"
        )
    options = {name: value for name, value in _given(args, TableOptions).items() if name != "model"}
    model = None if args.model == "kept" else args.model
    load(run).write_predictions(out, data, model=model, ids=args.id, **options)


def _report(args: argparse.Namespace) -> None:
    """Write the page of a run, by default into its folder."""
    from pathlib import Path

    from scdro._files import write_file
    from scdro.tables import load

    run = load(args.folder)
    path = Path(args.out) if "out" in args else Path(args.folder) / "report.html"
    # someone else's run must not choose which file is overwritten, or what waits for a reader
    if "out" not in args and (path.is_symlink() or (path.exists() and not path.is_file())):
        raise FileExistsError(
            f"expected a file of the run, got a link or a pipe, {path}; choose another place with"
            " --out"
        )
    write_file(path, run.report())
    print(clean(str(path)))


def _doctor(args: argparse.Namespace) -> int:
    """Print the report of `scdro.cli.doctor`; its exit status."""
    from scdro.cli.doctor import run

    return run()
