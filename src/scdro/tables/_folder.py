"""The folder of a run: one run at a time, atomic writes, every file checked when it is opened.

    .lock           held while a run works here: a second one fails at once
    started.json    which run this is: its options and a hash of its table. Another run is refused
    fits/           what was computed so far, a file for each candidate; removed at the end
    models/, ...    the models, labels and summary, written by `Run.save`
    manifest.json   the checksum of every file, written last: a folder that has one is finished

So a run that was killed leaves a folder without a manifest, and the same command goes on in it.
Opening a run trusts no file: names that lead out of the folder, files without a checksum and archives
that would unpack to more than they are, are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scdro._files import write_file
from scdro.errors import CheckpointError, DataError, MissingDataError
from scdro.tables._read import quote

__all__ = ["Fits", "check_run", "check_same_run", "check_zip", "lock_folder", "read_json", "seal"]

MANIFEST, STARTED, FITS, MODELS = "manifest.json", "started.json", "fits", "models"
LARGEST = 1 << 30  # bytes of a file that is read whole
# What reading a file raises whose content is not what it should be.
ERRORS = KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError


def read_json(path: Path) -> Any:
    """Plain data; the error names the damaged file."""
    try:
        return json.loads(_read_bytes(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"expected JSON in {quote(path)}, got a damaged file: {error}"
        ) from error


def _read_bytes(path: Path) -> bytes:
    """The content of a file of a run, which must be there and not too large for memory."""
    if not path.is_file():
        raise CheckpointError(
            f"expected the file {quote(path)}, found none: the run is damaged or not finished"
        )
    if path.stat().st_size > LARGEST:
        raise CheckpointError(
            f"expected a file of at most {LARGEST:,} bytes, got more, {quote(path)}"
        )
    return path.read_bytes()


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create the folder if needed and lock it; a second run there fails at once."""
    from filelock import FileLock, Timeout

    if folder.exists() and not folder.is_dir():
        raise DataError(f"expected --out to be a folder, got the file {quote(folder)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise CheckpointError(
            f"expected a folder that no other run is using, got {quote(folder)}; wait, or choose"
            " another --out"
        ) from None
    except OSError as error:
        raise DataError(
            f"expected a folder that can be written, got {quote(folder)}: {error.strerror}"
        ) from error
    try:
        yield
    finally:
        lock.release()


def check_same_run(folder: Path, about: dict[str, Any]) -> None:
    """Record which run this is; a run with other data or settings is an error that says what differs."""
    path = folder / STARTED
    if path.exists():
        before = read_json(path)
        before = before if isinstance(before, dict) else {}
        other = [key for key in {**about, **before} if before.get(key) != about.get(key)]
        if other:
            what = ", ".join(
                f"{key} was {quote(before.get(key))}, is now {quote(about.get(key))}"
                for key in other[:4]
            )
            raise CheckpointError(
                f"expected the run that began in {quote(folder)}, got another: {what}; choose"
                " another --out"
            )
        return
    if any(not entry.name.startswith(".") for entry in folder.iterdir()):
        raise CheckpointError(
            f"expected an empty folder or a run, got {quote(folder)}, which has other files; choose"
            " another --out"
        )
    write_file(path, json.dumps(about, indent=1))


class Fits:
    """Finished fits on disk: an interrupted run resumes where it stopped. Without a folder nothing is stored.

    A fit is arrays by name, in NumPy's format without pickle; its file is named after what it is of.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else folder / FITS
        if self.folder is not None:
            self.folder.mkdir(exist_ok=True)

    def get(self, what: dict[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Arrays by name: stored by an interrupted run, or computed and stored now.

        Args:
            what: what the fit is of, as JSON can write it; its hash is the name of the file.
            compute: makes the arrays.
        """
        if self.folder is None:
            return compute()
        name = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]
        path = self.folder / f"{name}.npz"
        if path.exists():
            with contextlib.suppress(Exception), np.load(path, allow_pickle=False) as stored:
                return {key: stored[key] for key in stored.files}  # a damaged one is computed again
        found, content = compute(), io.BytesIO()
        np.savez(content, **found)
        write_file(path, content.getvalue())
        return found

    def clear(self) -> None:
        """Remove all: the run is finished."""
        if self.folder is not None:
            shutil.rmtree(self.folder)


def seal(folder: Path) -> None:
    """Write the checksums of all files: the run is finished."""
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in (MANIFEST, ".lock", "report.html")
        and path.parent.name != FITS
    }
    write_file(folder / MANIFEST, json.dumps({"format": 1, "files": files}, indent=1))


def check_zip(path: Path) -> None:
    """Refuse an archive whose content is larger than itself: what scdro writes is not compressed.

    A few megabytes could otherwise take all memory before anything in them is looked at.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            packed = any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist())
            claimed = sum(one.file_size for one in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(f"expected a zip archive in {quote(path)}, got: {error}") from error
    if packed or claimed > path.stat().st_size:
        raise CheckpointError(
            f"expected an archive without compression, as scdro writes it, in {quote(path)}, got"
            f" one of {claimed:,} bytes in {path.stat().st_size:,}"
        )


def check_run(folder: Path) -> None:
    """Check every file of a run against its checksum, before anything in them is used.

    A folder that is none of a run or of an unfinished one, a file that has changed, and a file
    among the models without a checksum are errors.
    """
    if not folder.is_dir():
        raise MissingDataError(
            f"expected the folder of a run, got {quote(folder)}, which is not a folder"
        )
    if not (folder / MANIFEST).is_file():
        what = "is not one: `scdro train` makes one"
        if (folder / STARTED).is_file():
            what = "has not finished: run the same command again"
        raise MissingDataError(f"expected the folder of a run, got {quote(folder)}, which {what}")
    # Of the files that the manifest names, none outside of the folder is opened.
    files = _read_manifest(folder)
    root = folder.resolve()
    for name, digest in files.items():
        path = folder / name
        if root not in path.resolve().parents:
            raise CheckpointError(f"expected files inside {quote(folder)}, got {quote(name)}")
        if hashlib.sha256(_read_bytes(path)).hexdigest() != digest:
            raise CheckpointError(
                f"expected {quote(path)} as the run wrote it, got a changed or damaged file"
            )
    # A file that was added among the models could be read by a library that looks for its name.
    for path in (folder / MODELS).rglob("*"):
        name = path.relative_to(folder).as_posix()
        if name not in files and (path.is_symlink() or not path.is_dir()):
            raise CheckpointError(
                f"expected only files of {MANIFEST} among the models of {quote(folder)}, got"
                f" {quote(name)}, which is not in it; remove it"
            )


def _read_manifest(folder: Path) -> dict[str, str]:
    """The checksums of the files, by name."""
    manifest = read_json(folder / MANIFEST)
    try:
        form = manifest["format"]
        files = {str(name): str(digest) for name, digest in dict(manifest["files"]).items()}
    except ERRORS as error:
        raise CheckpointError(
            f"expected checksums in {quote(folder / MANIFEST)}, got a damaged file"
        ) from error
    if form != 1:
        raise CheckpointError(
            f"expected a run of format 1, got {quote(form)}; use the scdro that made it"
        )
    if not {"summary.json", "model.json"} <= set(files):
        raise CheckpointError(
            f"expected summary.json and model.json among the files of {quote(folder)}"
        )
    return files
