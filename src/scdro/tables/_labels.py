"""The classes of a target, with its own values and type: predictions can be compared with the column they are of."""

from __future__ import annotations

from typing import Any

import polars as pl

from scdro.errors import CheckpointError
from scdro.tables._read import shown

__all__ = ["Labels"]

NUMBERS = (
    "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32", "Float64",
)  # fmt: skip
TICKS = {f"Datetime {unit}": unit for unit in ("ms", "us", "ns")}
TYPES = (*NUMBERS, *TICKS, "Boolean", "Date", "String")  # all others are given back as texts


class Labels:
    """The values of the classes, in the order of the class numbers.

    They are saved as plain JSON: the name of a type and numbers or texts (dates as numbers of days
    or ticks).

    Example:
        >>> import polars as pl
        >>> labels = Labels(pl.Series([False, True]))
        >>> labels.of([1, 0]).to_list(), labels.as_json()
        ([True, False], {'type': 'Boolean', 'values': [False, True]})
        >>> Labels.from_json({"type": "Date", "values": [0, 19000]}).values.to_list()[0]
        datetime.date(1970, 1, 1)
    """

    def __init__(self, values: pl.Series) -> None:
        self.values = values.alias("prediction")

    @classmethod
    def of_texts(cls, names: list[str]) -> Labels:
        return cls(pl.Series(names, dtype=pl.String))

    @classmethod
    def of_target(cls, classes: pl.Series, given: Any) -> Labels:
        """`classes`: the target's different values, as the table has them. `given`: its type before it was read; None
        in a text file, where true and false are booleans."""
        texts = classes.cast(pl.String)
        spelled = set(texts.str.to_lowercase()) <= {"true", "false"}
        if classes.dtype == pl.String and spelled and (given is None or given == pl.Boolean):
            return cls(texts.str.to_lowercase() == "true")
        if given == pl.Float32 and classes.dtype.is_float():
            classes = classes.cast(pl.Float32)  # 0.1 as float32 does not equal 0.1 as float64
        return cls(classes if _name_of(classes.dtype) is not None else texts)

    def of(self, numbers: Any) -> pl.Series:
        """The labels of these class numbers."""
        found: pl.Series = self.values.gather(numbers)
        return found

    def as_json(self) -> dict[str, Any]:
        return {"type": _name_of(self.values.dtype), "values": self.values.to_physical().to_list()}

    @classmethod
    def from_json(cls, about: dict[str, Any]) -> Labels:
        name, values = about["type"], about["values"]
        if name not in TYPES or not isinstance(values, list):
            raise CheckpointError(f"expected a type of labels that scdro writes, got {shown(name)}")
        kind: Any = str if name == "String" else bool if name == "Boolean" else (int, float)
        if any(
            not isinstance(value, kind) or isinstance(value, bool) != (name == "Boolean")
            for value in values
        ):
            raise CheckpointError(f"expected labels of type {name}, got {shown(values)}")
        dtype = pl.Datetime(TICKS[name]) if name in TICKS else getattr(pl, name)
        try:
            return cls(pl.Series(values).cast(dtype))
        except pl.exceptions.PolarsError as error:
            raise CheckpointError(f"expected labels of type {name}, got {shown(values)}") from error


def _name_of(dtype: Any) -> str | None:
    """How a type is saved; None for one that is not."""
    if isinstance(dtype, pl.Datetime):
        return f"Datetime {dtype.time_unit}" if dtype.time_zone is None else None
    name = str(dtype)
    return name if name in TYPES else None
