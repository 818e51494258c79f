"""The example of the summary has the fields of the schema, all of them and no others."""

import json
import types
import typing
from pathlib import Path

import pytest

from scdro.tables._summary import FORMAT, Summary

EXAMPLE = Path(__file__).parent / "summary_example.json"


def mismatch(value, kind, where="summary"):
    """Where plain data differ from a type made of TypedDicts, lists, dictionaries, literals and unions."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is typing.Any:
        return None
    if typing.is_typeddict(kind):
        fields = typing.get_type_hints(kind)
        if not isinstance(value, dict) or set(value) != set(fields):
            return f"{where}: {sorted(set(value) ^ set(fields)) if isinstance(value, dict) else value!r}"
        return next((m for name, t in fields.items() if (m := mismatch(value[name], t, f"{where}.{name}"))), None)
    if origin is list:
        found = (mismatch(v, inner[0], f"{where}[{k}]") for k, v in enumerate(value))
        return next((m for m in found if m), None) if isinstance(value, list) else f"{where}: {value!r}"
    if origin is dict:
        if not isinstance(value, dict):
            return f"{where}: {value!r}"
        return next((m for k, v in value.items() if (m := mismatch(v, inner[1], f"{where}[{k!r}]"))), None)
    if origin is typing.Literal:
        return None if value in inner else f"{where}: {value!r}"
    if origin in (typing.Union, types.UnionType):
        return None if any(mismatch(value, t, where) is None for t in inner) else f"{where}: {value!r}"
    good = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    return None if good else f"{where}: {value!r} is no {kind}"


def test_the_example_is_a_summary():
    example = json.loads(EXAMPLE.read_text())
    assert mismatch(example, Summary) is None
    assert example["format"] == FORMAT


@pytest.mark.parametrize("path", [("verdict", "kept"), ("data", "rows"), ("methods", 0, "scores"), ("settings", "rho")])
def test_a_wrong_field_is_seen(path):
    example = json.loads(EXAMPLE.read_text())
    inner = example
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = [None]
    assert mismatch(example, Summary) is not None
    del inner[path[-1]]
    assert mismatch(example, Summary) is not None
