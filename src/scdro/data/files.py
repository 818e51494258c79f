"""Open plain or gzip files, with an error that explains when they are damaged."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from scdro.errors import DataError

__all__ = ["PathLike", "open_bytes", "open_text"]

PathLike = str | os.PathLike[str]


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a text file, plain or gzip."""
    with open_bytes(path) as file:
        try:
            yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        except UnicodeDecodeError as error:
            raise DataError(
                f"expected UTF-8 text in {path}, got other bytes ({error}); save it as UTF-8, or download it again"
            ) from error


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, plain or gzip. Reading past the end of a truncated file raises a DataError."""
    with cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else open(path, "rb") as file:
        try:
            yield file
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise DataError(
                f"expected a complete file, got a damaged one, {path} ({error}); download it again"
            ) from error
