"""Files of a run that are complete at any moment, even after `kill -9`."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import IO, Any

from scdro.errors import CheckpointError, HyperparameterError

__all__ = [
    "JsonLines",
    "check_folder",
    "make_folder",
    "read_json",
    "read_lines",
    "write",
    "write_json",
]

LEFT_SECONDS = 600.0  # no write takes this long


def check_folder(path: Path) -> None:
    """Raise unless --out is a folder or can become one."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        above = "" if there == path else f" above {path}"
        raise HyperparameterError(
            f"expected a folder for --out, got the file {there}{above}; name another"
        )


def make_folder(folder: Path) -> None:
    """Create a folder and those above it, unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise HyperparameterError(
            f"expected a folder, or a place for one, at {folder.absolute()}, got a file there; name"
            " another"
        ) from error
    except OSError as error:
        raise HyperparameterError(
            f"expected a place where a folder can be made, got {folder.absolute()}"
            f" ({error.strerror}); name another"
        ) from error


def write(path: Path, content: bytes) -> None:
    """Replace a file by new content, all or nothing; if several processes write, the last one wins."""
    make_folder(path.parent)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            _write_through(file, content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    _remove_left(path)


def _remove_left(path: Path) -> None:
    """Remove temporary files of killed processes; those of active ones are younger."""
    for left in path.parent.glob(f".{escape(path.name)}.*.part"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_SECONDS:
                left.unlink()


def write_json(path: Path, content: Any) -> None:
    write(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read an object that `write_json` wrote."""
    return _parsed(path.read_bytes(), path, "it")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records that `JsonLines` wrote, without an incomplete last line; empty if there is no file."""
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [_parsed(line, path, "its folder") for line in whole.splitlines()]


class JsonLines:
    """A file of JSON objects, one per line.

    A checkpoint records `size`; on resume, everything written after it is cut off and written
    again.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        make_folder(path.parent)
        path.touch()
        if path.stat().st_size < size:
            raise CheckpointError(
                f"expected at least {size} bytes in {path}, as its checkpoint says, got fewer"
            )
        os.truncate(path, size)
        self.path, self.size = path, size

    @classmethod
    def reopen(cls, path: Path) -> tuple[JsonLines, list[dict[str, Any]]]:
        """Reopen a file after a kill; return it and its records. An incomplete last line is dropped."""
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        return cls(path, len(whole)), [
            _parsed(line, path, "its folder") for line in whole.splitlines()
        ]

    def append(self, record: dict[str, Any]) -> None:
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        with open(self.path, "ab") as file:
            _write_through(file, line)
        self.size += len(line)


def _parsed(content: bytes, path: Path, removed: str) -> dict[str, Any]:
    remedy = f"remove {removed}, and run the command again"
    try:
        found = json.loads(content)
    except ValueError as error:
        raise CheckpointError(
            f"expected JSON in {path}, got a damaged file ({error}); {remedy}"
        ) from error
    if not isinstance(found, dict):
        raise CheckpointError(
            f"expected a JSON object in {path}, got {type(found).__name__}; {remedy}"
        )
    return found


def _write_through(file: IO[bytes], content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
