"""The values that the paper tries for each method, and how to choose some of them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["GRIDS", "trials"]

Grid = Mapping[str, Sequence[Any]]

_LR = (0.01, 0.05, 0.1, 0.5, 1.0)
_BETA = tuple(k / 10 for k in range(1, 10))
_LAM = (0.1, 1.0, 10.0)
_AVERAGED: Grid = {"lr": _LR, "beta": _BETA}
_PRINTED: Grid = {**_AVERAGED, "lam": _LAM}
_DUAL: Grid = {"lr": _LR, "dual_lr": (1e-5, 5e-5, 1e-4, 5e-4)}

# By the names of reproduction.baselines.REGISTRY. Where the paper gives no values, ours are around each
# method's default.
GRIDS: Mapping[str, Grid] = {
    "SCDRO": _AVERAGED,
    "ASCDRO": _AVERAGED,
    "RSCDRO": _AVERAGED,
    "RASCDRO": _AVERAGED,
    "SCDRO-printed": _PRINTED,
    "ASCDRO-printed": _PRINTED,
    "RSCDRO-printed": _PRINTED,
    "RASCDRO-printed": _PRINTED,
    "ERM": {"lr": _LR},
    "FastDRO": {"lr": _LR},
    "FastDRO-MLMC": {"lr": _LR, "smallest": (16, 32), "largest": (1024,)},
    "FastDRO-CVaR": {"lr": _LR, "alpha": (0.1, 0.2, 0.5)},
    "FastDRO-chi2": {"lr": _LR},
    "FastDRO-chi2-penalty": {"lr": _LR, "reg": (0.1, 1.0, 10.0)},
    "DualSGM": {"lr": _LR, "lam": _LAM, "dual_lr": (0.01, 0.1, 1.0)},
    "SPD": _DUAL,
    "PGSMD2": _DUAL,
    "AccMDA": _DUAL,
    "RECOVER": {**_AVERAGED, "lam": (1.0, 50.0, 100.0)},
    "ABSGD": {"lr": _LR, "lam": _LAM, "gamma": (0.1, 0.5, 0.9)},
    "TERM": {"lr": _LR, "lam": _LAM, "gamma": (1.0,)},
    "GroupDRO": {"lr": _LR, "dual_lr": (0.001, 0.01, 0.1)},
    "Focal": {"lr": _LR, "gamma": (0.5, 1.0, 2.0, 5.0)},
    "ClassBalanced": {"lr": _LR, "balance": (0.99, 0.999, 0.9999, 1.0)},
}


def trials(
    method: str, count: int | None = None, seed: int = 0, values: Grid | None = None
) -> list[dict[str, Any]]:
    """All combinations of a method's grid, or `count` of them at random, such that all values are tried equally often.

    `values` replaces or extends the values of the grid.

    Example:
        >>> len(trials("SCDRO")), trials("ERM")[0]
        (45, {'lr': 0.01})
    """
    grid = {**GRIDS[method], **(values or {})}
    every = [dict(zip(grid, each, strict=True)) for each in itertools.product(*grid.values())]
    return (
        every
        if count is None or count >= len(every)
        else _spread(every, count, random.Random(seed))
    )


def _spread(every: list[dict[str, Any]], count: int, rng: random.Random) -> list[dict[str, Any]]:
    """Choose trials one by one, always one whose values and pairs of values were tried least so far."""
    left, drawn = rng.sample(every, len(every)), []
    sizes = {key: len({trial[key] for trial in every}) for key in every[0]}
    tried: Counter[Any] = Counter()

    def so_far(trial: dict[str, Any]) -> int:
        pairs = itertools.combinations(trial.items(), 2)
        alone = sum(sizes[item[0]] * tried[item] for item in trial.items())
        return alone + sum(sizes[a[0]] * sizes[b[0]] * tried[a, b] for a, b in pairs)

    for _ in range(count):
        drawn.append(min(left, key=so_far))
        left.remove(drawn[-1])
        tried.update([*drawn[-1].items(), *itertools.combinations(drawn[-1].items(), 2)])
    return drawn
