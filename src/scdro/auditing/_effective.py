"""How many independent slices would raise as many false alarms as these, which overlap.

The chance that any of K slices exceeds a limit by chance is at most K times that of one of them
(Bonferroni). Slices that share most of their rows exceed it together, so the chance is less. With
A_k the event that slice k exceeds the limit, and N the number of slices that do,

    P(A_1 or ... or A_K) = sum_k P(A_k) E[1/N | A_k] = K P(A) mean of 1/N

where a slice k is drawn at random, and the data so that k exceeds the limit (Naiman and Priebe
2001). 1/N lies between 1/K and 1, so a few dozen draws give the mean within about ten per cent,
however small the probability is. K times that mean is the effective number of slices, used in
place of K. It grows with the limit; here the limit is the one that K independent slices would
need, so that the number errs upward.

Under the null a slice's sum of e_i - m_i is nearly normal, with variance sum v_i, and two slices
have the covariance of their common rows. So the data are drawn as sqrt(v_i) times standard normal
numbers, of at most `ROWS` rows: overlaps in a sample are those of the table. Only the *number* of
slices comes from this; each slice's own probability is that of coins (see `_tails`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from scdro.auditing._scan import SliceIndex

__all__ = ["effective_slices"]

Array = npt.NDArray[Any]
ROWS = 10_000  # rows that the draws are made of
DRAWS = 48
AT_ONCE = 4_000_000  # sums of slices in memory


def effective_slices(index: SliceIndex, variances: Sequence[Array], level: float) -> float:
    """The effective number of an index's slices, at most `index.tests`.

    Args:
        variances: of each row, (n,) for each question that is asked of all slices; draws take them
            in turn, and the mean is over all of them.
        level: chance of a false alarm that the limit is for.
    """
    if len(index) < 2:
        return float(index.tests)
    rng = np.random.default_rng(0)
    rows = np.sort(rng.permutation(index.n)[:ROWS])
    part = index.at(rows)
    limit = float(-ndtri(0.5 * level / index.tests))
    turns = np.array_split(np.arange(DRAWS), min(len(variances), DRAWS))
    shares: list[float] = []
    for turn, v in zip(turns, variances, strict=False):
        v = v[rows]
        spread = part.sums(v[None])[0]
        able = np.flatnonzero(spread > 0)
        if len(able) == 0:
            return float(index.tests)
        size = max(1, min(len(turn), AT_ONCE // len(index)))
        for at in range(0, len(turn), size):
            draws = [_draw(rng, part, v, able, limit) for _ in turn[at : at + size]]
            squares = part.sums(np.array(draws)) ** 2
            exceeding = (squares[:, able] >= limit**2 * spread[able]).sum(1)
            shares += (1 / np.maximum(exceeding, 1)).tolist()
    mean = float(np.mean(shares)) + float(np.std(shares)) / len(shares) ** 0.5
    return float(max(1.0, min(1.0, mean) * index.tests))


def _draw(
    rng: np.random.Generator, index: SliceIndex, v: Array, able: Array, limit: float
) -> Array:
    """Normal numbers with these variances, of which the sum over a random slice exceeds the limit."""
    values: Array = np.sqrt(v) * rng.standard_normal(len(v))
    inside = v * index.rows(int(rng.choice(able)))
    spread = float(inside.sum())
    z = -float(ndtri(rng.uniform() * ndtr(-limit)))
    values += inside * ((z * spread**0.5 - values[inside > 0].sum()) / spread)
    return values
