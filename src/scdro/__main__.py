"""The `scdro` command, also as `python -m scdro`."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """As `scdro.cli.main`; Ctrl-C while it is imported is no traceback either."""
    try:
        from scdro.cli import main as run

        return run(argv)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr, flush=True)
        return 130


if __name__ == "__main__":
    sys.exit(main())
