"""Write files completely or not at all.

The content goes to a temporary file in the same folder, which then takes the name of the file: the
system does this at once, so a killed process leaves either the old file or the new one.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from scdro.errors import DataError

__all__ = ["write_file"]


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file completely or not at all.

    Args:
        path: the file; it keeps its mode. Links and devices are written in place.
        content: bytes, or text, which is written in UTF-8.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    mode: int | None = None  # of the file that is there; None if there is none
    if os.path.lexists(path):
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):  # a link must stay a link, and /dev/stdout a device
            if path.is_dir():
                raise DataError(f"expected a file to write, got a folder, {str(path)!r}")
            with open(path, "wb") as file:
                file.write(data)
            return
        mode = stat.S_IMODE(found.st_mode)
    if not path.parent.is_dir():
        raise DataError(f"expected a folder for the file {str(path)!r}, found none")
    # In the same folder, since a file can only be renamed within a file system.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if mode is None:
            mask = os.umask(0)  # it can only be read by setting it
            os.umask(mask)
            mode = 0o666 & ~mask
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
