"""A CSV file of a million rows and twenty columns, from start to report: time and memory of `scdro train`.

    python benchmarks/large_table.py [--rows 1000000] [--columns 20]

The file has numbers and categories, with gaps, and is written first. The command runs in a process
of its own, without options. Writes results/large_table/table.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

LIMITS = "under 5 minutes and 3 GB"


def write(path: Path, rows: int, columns: int) -> None:
    """The class depends on some of the numbers and one category; a rare category turns the rule round."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns - 6)).round(4)
    kinds = {f"kind{k}": rng.choice([f"v{j}" for j in range(4 * k + 3)], rows) for k in range(5)}
    rare = rng.random(rows) < 0.03
    score = (
        x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + (kinds["kind1"] == "v0") + 0.7 * rng.normal(size=rows)
    )
    score = np.where(rare, -score, score)
    frame = {f"x{k}": np.where(rng.random(rows) < 0.02, np.nan, x[:, k]) for k in range(x.shape[1])}
    frame |= kinds | {"site": np.where(rare, "odd", "usual")}
    target = np.where(score > 0.5, "yes", "no")
    pl.DataFrame(frame | {"y": target}).fill_nan(None).write_csv(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parents[1] / "results" / "large_table" / "table.md",
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "large.csv"
        write(path, args.rows, args.columns)
        command = [
            sys.executable,
            "-m",
            "scdro",
            "train",
            str(path),
            "--target",
            "y",
            "--out",
            f"{made}/run",
        ]
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        assert status == 0
        line = (
            f"| {args.rows:,} x {args.columns} | {path.stat().st_size / 1e6:.0f} MB | {seconds:.0f}"
            f" s | {used.ru_utime + used.ru_stime:.0f} s | {used.ru_maxrss / 1e6:.2f} GB |"
            f" {os.getloadavg()[2]:.0f} |"
        )
    text = f"""# A large table

    python benchmarks/large_table.py

`scdro train` with no options on a CSV file, from the start of the process to the report, on two cores.
The aim is {LIMITS}.

| rows x columns | file | time | of that, CPU | memory, at most | load average |
|---|---|---|---|---|---|
{line}

It said:

{said[:1500]}
"""
    args.out.write_text("\n".join(x.rstrip() for x in text.splitlines()) + "\n")
    print(line)


if __name__ == "__main__":
    main()
