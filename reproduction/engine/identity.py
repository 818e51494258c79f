"""The identity of a run, checked before an existing file is used: a study's configuration, a checkpoint, a result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scdro.errors import CheckpointError

__all__ = ["OtherRun", "check_identity"]

CALLED = ("experiment", "scale")  # names only: one experiment may use runs of another


class OtherRun(CheckpointError):
    """A file was made with other settings or data."""


def check_identity(
    there: Mapping[str, Any], own: Mapping[str, Any], path: Path, remedy: str
) -> None:
    """Raise if a file has another identity.

    Args:
        there: the file's content, which may have more entries than an identity.
        own: the expected identity, of plain values as read back from JSON.
        path: the file.
        remedy: what to do if they differ.
    """
    wrong = [difference for key in own for difference in _at(key, there, own)]
    if wrong:
        raise OtherRun(
            f"expected {path} to be of these settings and data, got others: {', '.join(wrong)};"
            f" {remedy}"
        )


def _at(key: str, there: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    was, asked = there.get(key), own.get(key)
    if isinstance(was, Mapping) and isinstance(asked, Mapping):
        for inner in sorted((was.keys() | asked.keys()) - set(CALLED)):
            yield from _at(inner, was, asked)
    elif was != asked:
        yield f"{key} {was} is not {asked}"
