"""Time and memory of a step as the number n of training samples grows: O(d) against O(n + d).

    python benchmarks/scaling.py               # n = 1e4 to 1e7, a process for each point; a few minutes

A linear model of 50 features, batches of 64. The batch's features are the same at every n: what grows is only what the
methods keep. PG-SMD2 is timed within a stage; its start needs a forward pass over all n besides. "SPD, inside" is SPD
while its p does not touch the edge of the KL ball, when nothing of size n has to be done.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import scdro
from scdro.optim import PGSMD2, SPD, AccMDA

ROOT = Path(__file__).parents[1]
SIZES, BATCH, FEATURES, SECONDS = (10**4, 10**5, 10**6, 10**7), 64, 50, 3.0

RHO = 0.5


def _spd(params: Any, n: int) -> SPD:
    """At the edge of the ball, where it is most of the time."""
    opt = SPD(params, 0.1, RHO, n=n, dual_lr=2 / n)
    opt._dual.respond(torch.rand(n, dtype=torch.float64), 1e-3)
    return opt


def _pgsmd2(params: Any, n: int) -> PGSMD2:
    """Within a stage, which starts at the edge."""
    return PGSMD2(params, 0.1, RHO, n=n, dual_lr=2 / n, stage_steps=10**9, all_losses=lambda: torch.rand(n))


def _accmda(params: Any, n: int) -> AccMDA:
    opt = AccMDA(params, 0.1, RHO, n=n, dual_lr=20 / n**2)
    opt._y = scdro.worst_case(torch.rand(n, dtype=torch.float64), RHO).weights
    return opt


# Steps of a few per cent.
METHODS: dict[str, Callable[[Any, int], Any]] = {
    "SCDRO": lambda params, n: scdro.SCDRO(params, 0.1, RHO),
    "SPD": _spd,
    "SPD, inside": lambda params, n: SPD(params, 0.1, RHO, n=n, dual_lr=2 / n),
    "PGSMD2": _pgsmd2,
    "AccMDA": _accmda,
}


def peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, n: int) -> dict[str, float]:
    """Median milliseconds of a step after the first, and mebibytes beyond the model's and torch's own."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    model, x = nn.Linear(FEATURES, 2), torch.randn(BATCH, FEATURES, generator=generator)
    y = torch.randint(2, (BATCH,), generator=generator)

    def losses() -> torch.Tensor:
        return cross_entropy(model(x), y, reduction="none")

    scdro.SCDRO(model.parameters()).step(losses)
    before, opt = peak(), METHODS[name](model.parameters(), n)
    times: list[float] = []
    index = torch.arange(BATCH)
    if hasattr(opt, "draw"):
        opt.draw(BATCH, generator)
    if hasattr(opt, "weights"):
        index = opt.weights.topk(BATCH).indices  # The heaviest rise: p leaves the ball wherever it was at the edge.
    start = time.perf_counter()
    while len(times) < 4 or (time.perf_counter() - start < SECONDS and len(times) < 2000):
        begin = time.perf_counter()
        if hasattr(opt, "draw"):
            opt.draw(BATCH, generator)
        opt.step(losses, index)
        times.append(time.perf_counter() - begin)
    return {"ms": 1e3 * statistics.median(times[1:]), "mib": max(peak() - before, 0) / 2**20}


def sweep() -> list[dict[str, Any]]:
    rows = []
    for name in METHODS:
        for n in SIZES:
            out = subprocess.run(
                [sys.executable, __file__, "--point", name, str(n)], check=True, capture_output=True, text=True
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
            f"| {name} | " + " | ".join(f"{own[n]['ms']:.3g} ms, {own[n]['mib']:.3g} MiB" for n in SIZES) + " |"
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
    for ax, label in zip(axes, ("milliseconds a step", "MiB kept and used (0.1 = none seen)"), strict=True):
        ax.set(xscale="log", yscale="log", xlabel="training samples n", ylabel=label)
        ax.grid(alpha=0.25, which="both")
    axes[0].legend(fontsize=8)
    fig.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--point", nargs=2, metavar=("METHOD", "N"), help="measure one point, as JSON")
    args = parser.parse_args()
    if args.point:
        print(json.dumps(measure(args.point[0], int(args.point[1]))))
        return
    rows = sweep()
    (ROOT / "results" / "scaling.md").write_text(table(rows) + "\n")
    figure(rows, ROOT / "docs" / "img" / "scaling.png")
    print(table(rows))


if __name__ == "__main__":
    main()
