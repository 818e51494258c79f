"""Tables, from a file to a model one would keep: where a model fails, whether robust training helps, and its price.

    train(file, "income")                        audit(file, "income")
      _read      the file as a DataFrame           _read
      _problem   task, classes, folds, oddities    with a column of predictions:
      _study     each method on each split           scdro.audit of that column
        _models    fits and predictions            without:
      _verdict   robust against plain                _problem, _models: predictions out of fold,
      _run       models, summary, folder               and scdro.audit of those
        _summary, _page, _folder

`_options` has what can be asked of both, `_fix` the rows that a person wants served.

Names are imported on first use: `scdro --help` needs the options, and no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scdro.tables._audit_table import audit
    from scdro.tables._read import read_table
    from scdro.tables._run import Run, load
    from scdro.tables._study import train
    from scdro.tables._summary import Summary

__all__ = ["Run", "Summary", "audit", "load", "read_table", "train"]

_HOMES = {
    "Run": "_run",
    "Summary": "_summary",
    "audit": "_audit_table",
    "load": "_run",
    "read_table": "_read",
    "train": "_study",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'scdro.tables' has no attribute {name!r}")
    try:
        home = importlib.import_module(f"scdro.tables.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name != "polars":
            raise
        raise ModuleNotFoundError(
            "expected polars, which reads tables; pip install 'scdro[tables]'", name="polars"
        ) from error
    value = globals()[name] = getattr(home, name)
    return value
