"""python -m scdro.experiments.table1 --out DIR [--scale smoke|small|paper] [--workers 1]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scdro.cli.progress import ProgressLine
from scdro.errors import ScdroError
from scdro.experiments.table1 import SCALES, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scdro.experiments.table1", description="Table 1, measured.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; run again, it goes on")
    parser.add_argument("--scale", default="small", choices=SCALES)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    args = parser.parse_args()
    try:
        run(args.out, args.scale, args.workers, ProgressLine())
    except ScdroError as error:
        print(f"table1: {error}", file=sys.stderr)
        return 1
    print((args.out / "table1.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
