"""Seconds and memory of an audit: tables in memory, and a Parquet file that is not.

Twenty columns (fourteen of numbers, six of twelve texts), two classes, one slice with a gap of .2.
Memory is the largest resident size during the audit less that before it, with the table in memory.

python benchmarks/audit_speed.py --rows 1000000 --jobs 2 --out results/audit_speed/table.csv
python benchmarks/audit_speed.py --rows 10000000 --parquet FOLDER --out results/audit_speed/table.csv
"""

from __future__ import annotations

import argparse
import csv
import importlib
import resource
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import scdro
from scdro import tables

NUMBERS, TEXTS, VALUES = 14, 6, 12
CHUNK = 1_000_000


def make(n: int, seed: int) -> pl.DataFrame:
    """Columns, probabilities and labels."""
    rng = np.random.default_rng(seed)
    names = np.array([f"v{k}" for k in range(VALUES)])
    frame: dict[str, Any] = {f"x{k}": rng.normal(size=n) for k in range(NUMBERS)}
    frame |= {f"c{k}": names[rng.integers(0, VALUES, n)] for k in range(TEXTS)}
    frame["p"] = p = rng.uniform(0.05, 0.6, n)
    failed = (frame["x0"] > 1) & (frame["c0"] == "v3")
    frame["y"] = (rng.random(n) < p + 0.2 * failed).astype(np.int8)
    return pl.DataFrame(frame)


def write(n: int, folder: Path) -> Path:
    """A Parquet file, made and written a million rows at a time."""
    pq = importlib.import_module("pyarrow.parquet")

    path = folder / f"scored_{n}.parquet"
    if not path.exists():
        parts = [(at, min(CHUNK, n - at)) for at in range(0, n, CHUNK)]
        first = make(parts[0][1], 0).to_arrow()
        with pq.ParquetWriter(path, first.schema) as writer:
            writer.write_table(first)
            for at, size in parts[1:]:
                writer.write_table(make(size, at).to_arrow().cast(first.schema))
    return path


class MemoryWatch:
    """The largest resident memory, looked at ten times a second."""

    def __enter__(self) -> MemoryWatch:
        self.before = self.largest = resident()
        self.seconds, self.cpu = time.perf_counter(), time.process_time()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def _look(self) -> None:
        while not self.done.wait(0.1):
            self.largest = max(self.largest, resident())

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()
        self.seconds, self.cpu = time.perf_counter() - self.seconds, time.process_time() - self.cpu


def resident() -> float:
    """Gigabytes."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**30
    except OSError:  # not Linux: the largest so far
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--parquet", type=Path, help="folder for a file to audit by its path")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    scdro.audit([0, 1] * 50, [0.4, 0.6] * 50, {"a": [1, 2] * 50})  # imports
    if args.parquet:
        path = write(args.rows, args.parquet)
        size = path.stat().st_size / 2**30
        with MemoryWatch() as watch:
            audit = tables.audit(path, "y", prediction=["p"])
    else:
        frame = make(args.rows, 0)
        size = frame.estimated_size() / 2**30
        columns = frame.drop("y", "p")
        with MemoryWatch() as watch:
            audit = scdro.audit(frame["y"], frame["p"], columns, n_jobs=args.jobs)
    print(audit)
    row = {
        "rows": args.rows, "from": "Parquet" if args.parquet else "memory", "jobs": args.jobs,
        "table_GB": round(size, 2), "slices": audit.slices, "seconds": round(watch.seconds, 1),
        "cpu_seconds": round(watch.cpu, 1), "extra_GB": round(watch.largest - watch.before, 2),
    }  # fmt: skip
    print(row)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        new = not args.out.exists()
        with args.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if new:
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()
