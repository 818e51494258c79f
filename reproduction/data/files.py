"""The files of data sets: find them, and open them plain or gzip, with an error that explains what is wrong."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from scdro.errors import DataError, MissingDataError

__all__ = ["PathLike", "data_folder", "find", "open_bytes", "open_text"]

PathLike = str | os.PathLike[str]


def data_folder(root: PathLike | None = None) -> Path:
    """The given folder, else that of the environment variable SCDRO_DATA, else ./data.

    Example:
        >>> data_folder("photos").name
        'photos'
    """
    return Path(os.environ.get("SCDRO_DATA", "data") if root is None else root).expanduser()


def find(folders: tuple[Path, ...], names: str | tuple[str, ...], how: str) -> Path:
    """The first file with one of these names in the folders, plain or gzip.

    Raises:
        MissingDataError: with every path that was tried, and `how` to get the file.
    """
    wanted = [
        folder / name
        for folder in folders
        for name in ((names,) if isinstance(names, str) else names)
    ]
    for file in wanted:
        for candidate in (file, file.with_name(f"{file.name}.gz")):
            if candidate.is_file():
                return candidate
    places = " or ".join(str(file.absolute()) for file in dict.fromkeys(wanted))
    raise MissingDataError(f"expected the file {places} (plain or .gz), found none; {how}")


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Open a text file, plain or gzip."""
    with open_bytes(path) as file:
        try:
            yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        except UnicodeDecodeError as error:
            raise DataError(
                f"expected UTF-8 text in {path}, got other bytes ({error}); save it as UTF-8, or"
                " download it again"
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
