"""`python -m reproduction`: one command for each figure and table of the paper, and for their ingredients."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence

from reproduction.commands import EXAMPLES, PROGRAM, Help
from scdro.cli import Parser
from scdro.errors import ScdroError

__all__ = ["main", "parser"]

EPILOG = f"""{EXAMPLES}  {PROGRAM} figure1 --scale smoke
      a minute, on embedded digits if there are no data
  {PROGRAM} COMMAND --help
      all about a command
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status is 0 if it worked, 1 if scdro or the system raised an error, 2 for wrong use."""
    with _only_first_prints():
        args = parser().parse_args(argv)
    name = f"{PROGRAM} {args.command}"
    return _run(name, lambda: args.run(args), args.shared(args), getattr(args, "device", "cpu"))


def _run(name: str, run: Callable[[], int | None], shared: bool, device: str) -> int:
    """Run a command and return its exit status: 130 if it was interrupted.

    Under torchrun, all processes run a `shared` command, and the first alone any other.
    """
    if not shared and not _is_first():
        return 0
    from reproduction.engine.devices import as_device
    from reproduction.engine.processes import first_to_fail
    from scdro.distributed import finish, initialize

    try:
        with _only_first_prints():
            if shared:
                initialize(device="cuda" if device == "cuda" else "cpu")
            else:
                _say_if_alone(name)
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
        return 1  # because another process failed


@contextlib.contextmanager
def _only_first_prints() -> Iterator[None]:
    if _is_first():
        yield
        return
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def _is_first() -> bool:
    """Whether this process is the only one, or the first that torchrun started."""
    return int(os.environ.get("RANK", 0)) == 0


def _say_if_alone(name: str) -> None:
    processes = int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1
    if processes > 1:
        print(
            f"{name}: one of the {processes} processes does this, the others have ended",
            file=sys.stderr,
        )


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    from reproduction.commands import experiment, features, pretrain, report, so_far, table1

    whole = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} COMMAND [options]",
        description="The experiments of the paper, and what is beyond them.",
        epilog=EPILOG,
        formatter_class=Help,
    )
    whole.set_defaults(shared=lambda args: False)
    commands = whole.add_subparsers(
        dest="command", required=True, metavar="COMMAND", title="commands", prog=PROGRAM
    )
    for command in (table1, experiment, pretrain, features, report, so_far):
        command.add(commands)
    return whole


if __name__ == "__main__":
    sys.exit(main())
