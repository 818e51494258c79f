"""Where data files are, and what to say when they are not there."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import IO, cast

from scdro.errors import MissingDataError

__all__ = ["PathLike", "data_folder", "find", "open_bytes", "open_text"]

PathLike = str | os.PathLike[str]


def data_folder(root: PathLike | None = None) -> Path:
    """The folder the user names, else that of the environment variable SCDRO_DATA, else ./data."""
    return Path(os.environ.get("SCDRO_DATA", "data") if root is None else root).expanduser()


def find(folders: tuple[Path, ...], name: str, how: str) -> Path:
    """The first of the folders' files of that name, plain or gzip.

    Raises:
        MissingDataError: names every place looked at, and `how` to get the file.
    """
    for folder in folders:
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    places = " or ".join(str(folder.absolute() / name) for folder in dict.fromkeys(folders))
    raise MissingDataError(f"expected the file {places} (plain or .gz), found none; {how}")


def open_text(path: Path) -> IO[str]:
    """A text file, plain or gzip."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8", newline="")


def open_bytes(path: Path) -> IO[bytes]:
    """A file, plain or gzip."""
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else open(path, "rb")
