"""Files of a run that are whole at any moment, also after `kill -9`, and known to be."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from pathlib import Path
from typing import IO, Any

import torch

from scdro.errors import CheckpointError

__all__ = ["Checkpoints", "JsonLines", "load", "read_json", "save", "write", "write_json"]

_VERSION = 1


class _Damaged(CheckpointError):
    """A file that is not as it was written."""


_TAG = b"scdro sha256 "
_TAG_SIZE = len(_TAG) + 64


def write(path: Path, content: bytes) -> None:
    """Replace a file by new content, all or nothing; one process at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with open(part, "wb") as file:
        _write_through(file, content)
    os.replace(part, path)


def save(path: Path, state: dict[str, Any]) -> None:
    """`torch.save`, all or nothing, with a version and a checksum.

    The file is an archive, and the checksum its comment: `torch.load(path, weights_only=True)` reads it as any other.
    """
    write(path, _packed(state))


def load(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """What `save` wrote; a damaged file is a `CheckpointError`."""
    content = path.read_bytes()
    _check(path, content)
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=map_location, weights_only=True)
        version = state.pop("version", _VERSION)
    except Exception as error:
        raise _Damaged(f"expected a file written by scdro, got one that does not load: {path}") from error
    if version != _VERSION:
        raise CheckpointError(f"expected a file of version {_VERSION}, got {version}: {path}; upgrade scdro")
    return state


class Checkpoints:
    """The newest state of a run and the one before it, in a folder.

    A damaged file is passed over for the older one; `load` then says so in `damaged`.

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
            os.replace(self.newest, self.previous)  # Killed here: the previous one is there.
        write(self.newest, content)
        self.damaged = []

    def load(self, map_location: Any = "cpu") -> dict[str, Any] | None:
        """The newest state that is whole; None where there never was one."""
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
                f"expected a checkpoint that is whole, got damaged ones: {', '.join(map(str, self.damaged))}; "
                "restore one from a copy, or remove them to start anew"
            )
        return None


def write_json(path: Path, content: Any) -> None:
    write(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


class JsonLines:
    """A file to which one JSON object a line is appended.

    A checkpoint records `size`; what was written after it is cut off on resuming, and written again.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        if path.stat().st_size < size:
            raise CheckpointError(f"expected at least {size} bytes in {path}, as its checkpoint says, got fewer")
        os.truncate(path, size)
        self.path, self.size = path, size

    def append(self, record: dict[str, Any]) -> None:
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        with open(self.path, "ab") as file:
            _write_through(file, line)
        self.size += len(line)


def _packed(state: dict[str, Any]) -> bytes:
    """A zip archive, which ends with the length of its comment (two bytes) and the comment: here, the checksum."""
    buffer = io.BytesIO()
    torch.save({"version": _VERSION, **state}, buffer)
    body = buffer.getvalue()[:-2]
    return body + struct.pack("<H", _TAG_SIZE) + _TAG + hashlib.sha256(body).hexdigest().encode()


def _check(path: Path, content: bytes) -> None:
    if content[-22:-18] == b"PK\x05\x06" and content[-2:] == b"\0\0":
        return  # An archive without a comment: from before there were checksums.
    body, tag = content[: -_TAG_SIZE - 2], content[-_TAG_SIZE:]
    if tag != _TAG + hashlib.sha256(body).hexdigest().encode():
        raise _Damaged(f"expected a file as scdro wrote it, got one that is cut off or changed: {path}")


def _write_through(file: IO[bytes], content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
