"""Where results go, checked before any work is done."""

from __future__ import annotations

from pathlib import Path

from scdro.errors import HyperparameterError

__all__ = ["check_file", "check_folder"]


def check_folder(path: Path) -> None:
    """Whether --out is a folder or can become one."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        above = "" if there == path else f" above {path}"
        raise HyperparameterError(f"expected a folder for --out, got the file {there}{above}; name another")


def check_file(path: Path | None) -> None:
    """Whether --out is a file or can become one."""
    if path is not None and path.is_dir():
        raise HyperparameterError(f"expected a file for --out, got the folder {path}; name a file in it")
