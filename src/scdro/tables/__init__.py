"""Tables, from a file to a model one would keep: who is failed, whether robust training helps, and at what price.

Names are imported on first use: `scdro --help` needs the names of the methods, and no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scdro.tables._images import train_images
    from scdro.tables._read import read_table
    from scdro.tables._run import Run, load
    from scdro.tables._study import audit, train
    from scdro.tables._summary import Summary

__all__ = ["Run", "Summary", "audit", "load", "read_table", "train", "train_images"]

_HOMES = {
    "Run": "_run",
    "Summary": "_summary",
    "audit": "_study",
    "load": "_run",
    "read_table": "_read",
    "train": "_study",
    "train_images": "_images",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'scdro.tables' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"scdro.tables.{_HOMES[name]}"), name)
    return value
