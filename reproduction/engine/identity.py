"""What makes a run another than others, compared wherever something that is there is taken for one's own: a study's
configuration, a checkpoint, a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scdro.errors import CheckpointError

__all__ = ["OtherRun", "check_identity"]

CALLED = ("experiment", "scale")  # no run depends on them: one experiment may take over runs of another


class OtherRun(CheckpointError):
    """A file of other settings or data than those asked for."""


def check_identity(there: Mapping[str, Any], own: Mapping[str, Any], path: Path, remedy: str) -> None:
    """Refuse what was written of another identity.

    Args:
        there: what was written; it may hold more than an identity.
        own: the identity asked for, of plain values, as JSON gives them back.
        path: of the file.
        remedy: what to do where they differ.
    """
    wrong = [difference for key in own for difference in _at(key, there, own)]
    if wrong:
        raise OtherRun(f"expected {path} to be of these settings and data, got others: {', '.join(wrong)}; {remedy}")


def _at(key: str, there: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    was, asked = there.get(key), own.get(key)
    if isinstance(was, Mapping) and isinstance(asked, Mapping):
        for inner in sorted((was.keys() | asked.keys()) - set(CALLED)):
            yield from _at(inner, was, asked)
    elif was != asked:
        yield f"{key} {was} is not {asked}"
