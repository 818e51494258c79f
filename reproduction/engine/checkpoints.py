"""Checkpoint files with a version and a checksum; the previous one is kept."""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from reproduction.engine.storage import write
from scdro.errors import CheckpointError, ScdroError

__all__ = ["Checkpoints", "load", "save", "usable"]

_VERSION = 1
_TAG = b"scdro sha256 "
_TAG_SIZE = len(_TAG) + 64


class _Damaged(CheckpointError):
    """The file has changed since it was written."""


def save(path: Path, state: dict[str, Any]) -> None:
    """`torch.save`, all or nothing, with a version and a checksum.

    The file is a zip archive with the checksum as its comment, so `torch.load(path,
    weights_only=True)` reads it too.
    """
    write(path, _packed(state))


def load(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Load what `save` wrote; a damaged file raises a `CheckpointError`."""
    content = path.read_bytes()
    _check(path, content)
    try:
        state: dict[str, Any] = torch.load(
            io.BytesIO(content), map_location=map_location, weights_only=True
        )
        version = state.pop("version")
    except Exception as error:
        raise _Damaged(
            f"expected a file written by scdro, got one that does not load: {path}"
        ) from error
    if version != _VERSION:
        raise CheckpointError(
            f"expected a file of version {_VERSION}, got {version}: {path}; upgrade scdro"
        )
    return state


class Checkpoints:
    """The newest state of a run and the one before it, in a folder.

    If the newest file is damaged, `load` uses the older one and lists the damaged one in `damaged`.

    Example:
        >>> import tempfile
        >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()))
        >>> checkpoints.load() is None
        True
        >>> checkpoints.save({"step": 1})
        >>> checkpoints.load()
        {'step': 1}
    """

    def __init__(self, folder: Path, name: str = "checkpoint") -> None:
        self.newest, self.previous = folder / f"{name}.pt", folder / f"{name}.previous.pt"
        self.damaged: list[Path] = []

    def save(self, state: dict[str, Any]) -> None:
        content = _packed(state)
        if self.newest.exists() and self.newest not in self.damaged:
            os.replace(self.newest, self.previous)  # If killed here, the previous one is there.
        write(self.newest, content)
        self.damaged = []

    def remove(self) -> None:
        for path in (self.newest, self.previous):
            path.unlink(missing_ok=True)

    def load(self, map_location: Any = "cpu") -> dict[str, Any] | None:
        """The newest undamaged state; None if there never was one."""
        self.damaged = []
        for path in (self.newest, self.previous):
            if not path.exists():
                continue
            try:
                return load(path, map_location)
            except _Damaged:
                self.damaged.append(path)
        if self.damaged:
            raise CheckpointError(
                "expected a checkpoint that is whole, got damaged ones:"
                f" {', '.join(map(str, self.damaged))}; restore one from a copy, or remove them to"
                " start again"
            )
        return None


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Turn any error inside that comes from the content of the file into a CheckpointError that names it."""
    try:
        yield
    except (OSError, ScdroError):
        raise
    except Exception as error:  # torch and pickle fail in many ways on bytes that are not theirs
        raise CheckpointError(
            f"expected what scdro wrote in {path.absolute()}, got a file that is damaged or not"
            f" scdro's ({type(error).__name__}: {error}); name another folder, or delete it to"
            " start again"
        ) from error


def _packed(state: dict[str, Any]) -> bytes:
    """A zip archive, which ends with the length of its comment (two bytes) and the comment: here, the checksum."""
    buffer = io.BytesIO()
    torch.save({"version": _VERSION, **state}, buffer)
    body = buffer.getvalue()[:-2]
    return body + struct.pack("<H", _TAG_SIZE) + _TAG + hashlib.sha256(body).hexdigest().encode()


def _check(path: Path, content: bytes) -> None:
    body, tag = content[: -_TAG_SIZE - 2], content[-_TAG_SIZE:]
    if tag != _TAG + hashlib.sha256(body).hexdigest().encode():
        raise _Damaged(
            f"expected a file as scdro wrote it, got one that is cut off or changed: {path}"
        )
