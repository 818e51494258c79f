"""Where the files of data sets are, and what to say when they are not there."""

from __future__ import annotations

import os
from pathlib import Path

from scdro.data.files import PathLike
from scdro.errors import MissingDataError

__all__ = ["data_folder", "find"]


def data_folder(root: PathLike | None = None) -> Path:
    """The folder the user names, else that of the environment variable SCDRO_DATA, else ./data.

    Example:
        >>> data_folder("photos").name
        'photos'
    """
    return Path(os.environ.get("SCDRO_DATA", "data") if root is None else root).expanduser()


def find(folders: tuple[Path, ...], names: str | tuple[str, ...], how: str) -> Path:
    """The first of the folders' files of that name, or of one of those names, plain or gzip.

    Raises:
        MissingDataError: names every place looked at, and `how` to get the file.
    """
    wanted = [folder / name for folder in folders for name in ((names,) if isinstance(names, str) else names)]
    for file in wanted:
        for candidate in (file, file.with_name(f"{file.name}.gz")):
            if candidate.is_file():
                return candidate
    places = " or ".join(str(file.absolute()) for file in dict.fromkeys(wanted))
    raise MissingDataError(f"expected the file {places} (plain or .gz), found none; {how}")
