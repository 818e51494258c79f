"""A command that torchrun started in several processes: one voice, and one message where something fails."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

from scdro.errors import ScdroError

__all__ = ["one_voice", "run_command"]


def run_command(name: str, run: Callable[[], int | None], shared: bool, device: str = "cpu") -> int:
    """The exit status: the command's own or 0, 1 if scdro or the system raised an error, 130 if it was interrupted.

    What is not shared the first process does alone.
    """
    if not shared and not _is_first():
        return 0
    from reproduction.engine.devices import as_device
    from scdro.distributed import finish, first_to_fail, initialize

    try:
        with one_voice():
            if shared:
                initialize(device="cuda" if device == "cuda" else "cpu")
            else:
                _say_alone(name)
            if device != "cpu":
                as_device(device)  # before any work, and by each process
            status = run()
            finish()
        return status or 0
    except (ScdroError, OSError) as error:
        if first_to_fail():
            print(f"{name}: {error}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        if first_to_fail():
            print("\nstopped", file=sys.stderr, flush=True)
        return 130
    except Exception:
        if first_to_fail():
            raise
        return 1  # in consequence of another's failure


@contextlib.contextmanager
def one_voice() -> Iterator[None]:
    """All processes but the first are silent."""
    if _is_first():
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        yield


def _is_first() -> bool:
    """Whether this process is alone, or the first of those that torchrun started."""
    return int(os.environ.get("RANK", 0)) == 0


def _say_alone(name: str) -> None:
    processes = int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1
    if processes > 1:
        print(f"{name}: one of the {processes} processes does this, the others have ended", file=sys.stderr)
