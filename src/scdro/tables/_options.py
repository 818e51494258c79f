"""What can be asked of `train` and `audit`: each option once, for Python and for the command.

A field says its type, its default, how it is checked and what it means; the command makes a flag of
it (`ids` is `--id`, and may be repeated), Python a keyword argument with the same text in `help`.
Nothing heavy is imported, so that `scdro --help` is fast.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scdro.tables._summary import METHODS

__all__ = ["AuditOptions", "TableOptions", "TrainOptions", "option_fields", "takes"]

Function = TypeVar("Function", bound=Callable[..., Any])


def _option(default: Any, meaning: str, **about: Any) -> Any:
    """A field with what it means. `about` is at most

    kind: "names" (a list), "whole", "number", "flag" or "text", which is the default;
    choices, or `within`: the values it may have, a pair for whole numbers;
    flag: the name on the command line, if it is another one; metavar: what its help calls the value.
    """
    return dataclasses.field(default=default, metadata={"meaning": meaning, **about})


def _columns_option(meaning: str, **about: Any) -> Any:
    """A list of columns, empty by default; on the command line a flag that may be repeated."""
    return _option((), meaning, kind="names", metavar="COLUMN", **about)


def _whole_option(default: int | None, least: int, most: int | None, meaning: str) -> Any:
    """A whole number from `least` to `most`; None as default: decided when the table is known."""
    return _option(default, meaning, kind="whole", within=(least, most))


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What `train` and `audit` share: the model, the roles of columns, the folds, and how files are read."""

    model: str = _option("trees", "trees (LightGBM) or linear (exact); default: trees",
                         choices=("trees", "linear"))  # fmt: skip
    task: str | None = _option(None, "default: by the target; more than 20 numbers are a quantity",
                               choices=("classification", "regression"))  # fmt: skip
    group: Sequence[str] = _columns_option(
        "report each of its values, also within each class; never trained on"
    )
    drop: Sequence[str] = _columns_option("leave a column out")
    categorical: Sequence[str] = _columns_option("numbers that are categories")
    split_by: str | None = _option(None, "rows with the same value stay together", metavar="COLUMN")
    folds: int = _whole_option(3, 2, 20, "folds of the cross-validation (default 3)")
    candidates: int = _whole_option(
        4, 1, 6, "candidate settings of every method, 1 to 6 (default 4)"
    )
    seed: int = _whole_option(
        0, 0, 2**31 - 1, "seed of the splits, the folds and the models (default 0)"
    )
    threads: int | None = _whole_option(
        None,
        1,
        4 * (os.cpu_count() or 1),
        "threads of trees (default: 1 below 20,000 rows, else all idle cores)",
    )
    drop_missing: bool = _option(False, "leave out rows without a value of the target", kind="flag")
    encoding: str | None = _option(None, "of a CSV file (default: utf-8)", metavar="NAME")
    decimal: str = _option(
        ".", "in numbers of a CSV or Excel file (default: .)", choices=(".", ",")
    )
    sheet: str | None = _option(None, "of an Excel file with several", metavar="NAME")

    def __post_init__(self) -> None:
        """Check every value as its field says; whether the table has the columns shows later."""
        # Here, since `scdro --help` makes no options and should not load NumPy for its checks.
        from scdro._arguments import check_choice, check_names, check_number, check_whole

        for one in option_fields(type(self)):
            name, value, about = one.name, getattr(self, one.name), one.metadata
            if about.get("kind") == "names" and value is not None:
                check_names(name, value)
            elif value is None:
                continue
            elif "choices" in about:
                check_choice(name, value, about["choices"])
            elif about.get("kind") == "whole":
                check_whole(name, value, *about["within"])
            elif "within" in about:
                check_number(name, value, about["within"], about["meaning"])


@dataclass(frozen=True, kw_only=True)
class TrainOptions(TableOptions):
    """All options of `train`; methods, budget and seeds are None until the table is known."""

    methods: Sequence[str] = _option(
        None, "only these, and plain; may be repeated (default: all that are possible)",
        kind="names", choices=METHODS[:4], flag="method",
    )  # fmt: skip
    fix: str | None = _option(
        None,
        'serve these rows, such as "male = 1 and label = 1": columns, values, joined by and',
        metavar="CONDITIONS",
    )
    rho: float = _option(
        0.5, "radius at which models are compared (default 0.5)", kind="number", within=">= 0"
    )
    budget: float = _option(
        None, "most accuracy, as a share, that robust training may cost (default 0.002; with --fix 0.1)",
        kind="number",
    )  # fmt: skip
    ids: Sequence[str] = _columns_option("not trained on; copied to the predictions", flag="id")
    split_after: str | tuple[str, Any] | None = _option(
        None, "test on the rows after a value, or the last fifth", metavar="COLUMN[=VALUE]"
    )
    test: object = _option(None, "test on the rows of another file", metavar="FILE")
    seeds: int = _whole_option(
        None, 1, 100,
        "splits to repeat everything on (default: 3 up to 5,000 rows, with --fix 50,000, 1 beyond)",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AuditOptions(TableOptions):
    """All options of `audit`; those of models are without effect if there are predictions."""

    prediction: Sequence[str] = _columns_option(
        "probabilities of the second class, predicted classes, or numbers; repeated: probabilities of each class"
    )
    weight: str | None = _option(None, "sample weights, with --prediction", metavar="COLUMN")
    threshold: float = _option(
        0.5, "of the second class's probability (default 0.5)", kind="number", within="in (0, 1)"
    )
    candidates: int = _whole_option(
        2, 1, 6, "settings of the model that is trained, 1 to 6 (default 2)"
    )


def option_fields(options: type[TableOptions]) -> list[dataclasses.Field[Any]]:
    """The fields of a class of options, in the order of its help."""
    return list(dataclasses.fields(options))


def takes(options: type[TableOptions]) -> Callable[[Function], Function]:
    """Give a function with `**options` the signature and the list of its options, for help and editors."""

    def with_options(function: Function) -> Function:
        # What `inspect` and an editor show: the function's own parameters, without **options, and
        # each option as a keyword.
        own = inspect.signature(function)
        given = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
        named = [
            inspect.Parameter(
                one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=one.type
            )
            for one in option_fields(options)
        ]
        function.__signature__ = own.replace(parameters=[*given, *named])  # type: ignore[attr-defined]
        lines = [
            f"        {one.name}: {one.metadata['meaning']}." for one in option_fields(options)
        ]
        text = function.__doc__ or ""
        function.__doc__ = text.replace("        **options: as below.", "\n".join(lines))
        return function

    return with_options
