"""Time and memory of a step as the number n of training samples grows: O(d) against O(n + d).

    python benchmarks/scaling.py               # n = 1e4 to 1e7, one process per point; a few minutes

The steps are those timed for table 1 (`reproduction.table1.cost`): a linear model of 50 features,
batches of 64.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from reproduction.table1.cost import step_seconds, steps

OUT = Path(__file__).parents[1] / "results" / "scaling"
SIZES, SECONDS = (10**4, 10**5, 10**6, 10**7), 3.0
METHODS = ("SCDRO", "SPD", "SPD, inside", "PG-SMD2", "AccMDA")


def peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, n: int) -> dict[str, float]:
    """Median milliseconds per step after the first, and mebibytes beyond those of the model and torch."""
    next(steps("SCDRO", 1))
    before = peak()
    seconds = step_seconds(name, n, SECONDS)
    return {"ms": 1e3 * seconds, "mib": max(peak() - before, 0) / 2**20}


def sweep() -> list[dict[str, Any]]:
    rows = []
    for name in METHODS:
        for n in SIZES:
            out = subprocess.run(
                [sys.executable, __file__, "--point", name, str(n)],
                check=True,
                capture_output=True,
                text=True,
            )
            rows.append({"method": name, "n": n, **json.loads(out.stdout)})
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    heads = " | ".join(f"n = 1e{len(str(n)) - 1}" for n in SIZES)
    lines = [f"| method | {heads} |", "|---" * (len(SIZES) + 1) + "|"]
    for name in METHODS:
        own = {r["n"]: r for r in rows if r["method"] == name}
        lines.append(
            f"| {name} | "
            + " | ".join(f"{own[n]['ms']:.3g} ms, {own[n]['mib']:.3g} MiB" for n in SIZES)
            + " |"
        )
    return "\n".join(lines)


def figure(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    fig, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    colours = ("#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7")
    for name, colour, marker in zip(METHODS, colours, "osD^v", strict=True):
        own = [r for r in rows if r["method"] == name]
        for ax, key in zip(axes, ("ms", "mib"), strict=True):
            heights = [max(r[key], 0.1 if key == "mib" else 0.0) for r in own]
            ax.plot([r["n"] for r in own], heights, marker=marker, color=colour, label=name)
    for ax, label in zip(
        axes, ("milliseconds a step", "MiB kept and used (0.1 = none seen)"), strict=True
    ):
        ax.set(xscale="log", yscale="log", xlabel="training samples n", ylabel=label)
        ax.grid(alpha=0.25, which="both")
    axes[0].legend(fontsize=8)
    fig.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--point", nargs=2, metavar=("METHOD", "N"), help="measure one point, as JSON"
    )
    args = parser.parse_args()
    if args.point:
        print(json.dumps(measure(args.point[0], int(args.point[1]))))
        return
    rows = sweep()
    figure(rows, OUT / "figure.png")
    (OUT / "table.md").write_text(table(rows) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
