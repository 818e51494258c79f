"""The search: all slices of one or two conditions, sums over each, their effective number, and better ends.

**Sums.** Let H[a, b] be the sum of a quantity over the rows with code a in one column and code b in another:
one pass over the rows. If A and B say which codes fulfil the conditions of the two columns, then
A H B^T has the sum over every slice "condition of the one and condition of the other". The cost is
one pass per pair of columns, not per slice.

Even that is more than is needed. The table of four columns, H[a, b, c, d], also takes one pass, and
summed over two of its axes it gives all six pairs of them. So pairs are covered by blocks of a few
columns, as many as keep the table small: twenty columns have 190 pairs, and about forty blocks.

**How many slices are these?** They overlap, so K of them raise fewer false alarms than K independent
ones would. The chance that any of K slices exceeds a limit by chance is at most K times that of one
of them (Bonferroni). Slices that share most of their rows exceed it together, so the chance is less.
With A_k the event that slice k exceeds the limit, and N the number of slices that do,

    P(A_1 or ... or A_K) = sum_k P(A_k) E[1/N | A_k] = K P(A) mean of 1/N

where a slice k is drawn at random, and the data so that k exceeds the limit (Naiman and Priebe
2001). 1/N lies between 1/K and 1, so a few dozen draws give the mean within about ten per cent,
however small the probability is. K times that mean is the effective number of slices, used in
place of K. It grows with the limit; here the limit is the one that K independent slices would
need, so that the number errs upward. Under the null a slice's sum of e_i - m_i is nearly normal,
with variance sum v_i, and two slices have the covariance of their common rows. So the data are drawn
as sqrt(v_i) times standard normal numbers, of at most `DRAWN_ROWS` rows: overlaps in a sample are
those of the table. Only the *number* of slices comes from this; each slice's own probability is that
of coins (see `_questions`).

**Better ends.** The search looks at a few dozen ranges of a number; whom a model fails has other
ends. Let l_a and v_a be the sums of e_i - m_i and of their variances over the rows with code a in
one column, among the rows that fulfil the slice's other condition. The range of codes [a, b) has

    z(a, b)^2 = (l_a + ... + l_{b-1})^2 / (v_a + ... + v_{b-1})

and cumulative sums give it for all of the five thousand ranges at once. The best one is taken, then
the other condition gets its turn, until nothing changes. An end must be worth it: it has to raise
z^2 / 2, the log likelihood, by `END`. This describes a slice that was found; it finds none. The
p-value stays that of the slice that the search has tested, and a range that is moved never has less
evidence than that one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from joblib import Parallel, delayed, effective_n_jobs
from scipy.special import ndtr, ndtri

from scdro.auditing._codes import CodedColumn, SliceCondition

__all__ = ["SliceIndex", "effective_slices", "refine"]

Array = npt.NDArray[Any]
# Columns whose pairs are looked at; of wider tables, the first ones in `order`.
MOST_PAIRED_COLUMNS = 60
CELLS = 2**15  # largest table of a block: it should stay in a core's cache
ROWS_COUNTED_AT_ONCE = 2**19  # rows whose joint codes are in memory at once
DRAWN_ROWS = 10_000  # rows that the draws of the effective number are made of
OVERLAP_DRAWS = 48  # of them
AT_ONCE = 4_000_000  # sums of slices in memory
END = 1.0  # evidence that a moved end must bring
TURNS = 6  # of the conditions of a slice, at most, while their ends move


@dataclass(frozen=True)
class ColumnBlock:
    """Columns whose joint table gives the tables of several pairs of them.

    Attributes:
        columns: their numbers.
        pairs: pairs of these numbers, i < j, each in one block of an index only.
    """

    columns: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]


class SliceIndex:
    """The slices of a table: every condition, and every pair of conditions on different columns.

    A slice has at least `min_rows` rows, and so has its complement. Two descriptions of the same
    rows are kept once, the simpler one.

    Attributes:
        n: number of rows.
        first, second: for every slice the numbers of its conditions; `second` is -1 for one alone.
        counts: rows of every slice.
        tests: how many slices there could be, at least as many as there are: for corrections.
    """

    def __init__(
        self,
        columns: Sequence[CodedColumn],
        n: int,
        *,
        min_rows: int = 10,
        depth: int = 2,
        n_jobs: int | None = None,
        order: Callable[[Array], Sequence[int]] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.columns, self.n, self.min_rows, self.n_jobs = tuple(columns), n, min_rows, n_jobs
        self.tell, self.passes = tell, 0  # where to say what it is doing; passes over the table
        kept = [self._distinct(column) for column in self.columns]
        # All conditions are numbered, column by column.
        # (column, condition) of every condition, and the first number of each column's conditions
        self.conditions = [(i, k) for i, ks in enumerate(kept) for k in ks]
        self.start = np.cumsum([0, *map(len, kept)])
        # which codes fulfil each condition, and the codes: those that no condition tells apart are one
        merged = [_merge_codes(column, ks) for column, ks in zip(self.columns, kept, strict=True)]
        self.sets = [sets for sets, _ in merged]
        self.codes = [codes for _, codes in merged]
        self.blocks: list[ColumnBlock] = []
        self._pick: dict[tuple[int, int], Array] = {}  # valid entries of a pair's table, flat
        self._place: dict[tuple[int, int], slice] = {}  # its slices among all of them
        self.counts = self.single_sums(None)[0]
        self.first = np.arange(len(self.conditions))
        self.second = np.full(len(self.conditions), -1)
        self.tests = len(self.conditions)
        if depth > 1:
            self._add_pairs(order)

    def __len__(self) -> int:
        return len(self.first)

    @property
    def describable(self) -> int:
        """How many slices there could be with all ends that ranges may be moved to."""
        sizes, pairs = [], []
        for column, conditions in zip(self.columns, self.sets, strict=True):
            size = len(conditions)
            if any(map(column.is_range, range(len(column.conditions)))):
                codes = len(column.coder.cuts) + 1
                size += codes * (codes + 1) // 2
            sizes.append(size)
            pairs.append(size * column.paired)
        return sum(sizes) + (sum(pairs) ** 2 - sum(size**2 for size in pairs)) // 2

    def text(self, k: int) -> str:
        """A slice in words, such as "age > 60 and city = Rome"."""
        return " and ".join(self.texts(k))

    def texts(self, k: int) -> tuple[str, ...]:
        """The conditions of a slice, in words."""
        return tuple(self.columns[i].conditions[c] for i, c in self.parts(k))

    def conditions_of(self, k: int) -> tuple[SliceCondition, ...]:
        """The conditions of a slice, which can be applied to another table."""
        return tuple(self.columns[i].condition(c) for i, c in self.parts(k))

    def rows(self, k: int) -> Array:
        """For which rows a slice's conditions hold, (n,)."""
        numbers = [c for c in (self.first[k], self.second[k]) if c >= 0]
        parts = [(self.conditions[c][0], int(c)) for c in numbers]
        held: Array = np.logical_and.reduce(
            [self.sets[i][c - self.start[i]].astype(bool)[self.codes[i]] for i, c in parts]
        )
        return held

    def at(self, rows: Array) -> SliceIndex:
        """The same slices of some of the rows: `rows`, `sums` and `single_sums` are about these."""
        part = copy.copy(self)
        part.n, part.codes, part.tell = len(rows), [codes[rows] for codes in self.codes], None
        return part

    def parts(self, k: int) -> list[tuple[int, int]]:
        """The conditions of a slice: the number of the column, and that of its condition."""
        return [self.conditions[c] for c in (self.first[k], self.second[k]) if c >= 0]

    def rows_holding(self, k: int, where: Sequence[SliceCondition]) -> Array:
        """The rows for which conditions on the columns of slice k hold, (n,)."""
        pairs = zip(where, self.parts(k), strict=True)
        held: Array = np.logical_and.reduce(
            [condition.codes[self.columns[i].codes] for condition, (i, _) in pairs]
        )
        return held

    def sums(self, values: Array, wanted: Array | None = None) -> Array:
        """Sums over every slice of each row of `values`: (s, n) -> (s, slices).

        Args:
            values: quantities, (s, n).
            wanted: slices whose sums are needed, booleans; those of other pairs may be left 0.
        """
        sums = np.zeros((len(values), len(self)))
        sums[:, : len(self.conditions)] = self.single_sums(values)
        blocks = self.blocks
        if wanted is not None:
            blocks = [
                block
                for block in blocks
                if any(wanted[self._place[pair]].any() for pair in block.pairs)
            ]
        for block, tables in zip(blocks, self._tables(blocks, values), strict=True):
            for pair, table in zip(block.pairs, tables, strict=True):
                picked = table.reshape(len(values), -1)[:, self._pick[pair]]
                sums[:, self._place[pair]] = picked
        return sums

    def single_sums(self, values: Array | None) -> Array:
        """Sums over every single condition, (s, conditions); counts if `values` is None."""
        size = 1 if values is None else len(values)
        parts = [np.zeros((size, 0))]
        for codes, sets in zip(self.codes, self.sets, strict=True):
            if len(sets):
                parts.append(sum_table([codes], [sets.shape[1]], values) @ sets.T)
        return np.concatenate(parts, axis=1)

    # -- how ----------------------------------------------------------------------------------

    def _distinct(self, column: CodedColumn) -> list[int]:
        """Conditions of a column with enough rows on either side, no two with the same rows."""
        counts = np.bincount(column.codes, minlength=column.members.shape[1])
        sizes = column.members @ counts
        kept: dict[bytes, int] = {}
        for k in np.flatnonzero((sizes >= self.min_rows) & (sizes <= self.n - self.min_rows)):
            kept.setdefault((column.members[k] & (counts > 0)).tobytes(), int(k))
        return list(kept.values())

    def _add_pairs(self, order: Callable[[Array], Sequence[int]] | None) -> None:
        """Add the slices of two conditions: every pair with enough rows that is not one of its parts.

        order: sorts the numbers of columns, where there are too many to pair all of them.
        """
        usable = [i for i, c in enumerate(self.columns) if c.paired and len(self.sets[i])]
        number = np.array([len(self.sets[i]) for i in usable], dtype=float)
        if len(usable) > MOST_PAIRED_COLUMNS:
            # the choice may look at the labels: the correction counts every pair there could be
            self.tests += int((number.sum() ** 2 - (number**2).sum()) / 2)
            first = list(order(np.array(usable))) if order else usable
            usable = sorted(first[:MOST_PAIRED_COLUMNS])
        widths = {i: self.sets[i].shape[1] for i in usable}
        self.blocks = _cover_pairs(usable, widths, min(CELLS, max(self.n // 4, 256)))
        counts: dict[tuple[int, int], Array] = {}
        for block, tables in zip(self.blocks, self._tables(self.blocks, None), strict=True):
            counts |= dict(zip(block.pairs, (table[0] for table in tables), strict=True))
        sizes, first_ids, second_ids = [], [], []
        at = len(self.conditions)
        for i, j in combinations(usable, 2):
            table = counts[i, j]
            a = self.counts[self.start[i] : self.start[i + 1], None]
            b = self.counts[None, self.start[j] : self.start[j + 1]]
            good = (table >= self.min_rows) & (table < a) & (table < b)
            picked = self._pick[i, j] = np.flatnonzero(good)
            left, right = np.divmod(picked, table.shape[1])
            sizes.append(table.ravel()[picked])
            first_ids.append(self.start[i] + left)
            second_ids.append(self.start[j] + right)
            self._place[i, j] = slice(at, at + len(picked))
            at += len(picked)
        self.counts = np.concatenate([self.counts, *sizes])
        self.first = np.concatenate([self.first, *first_ids]).astype(int)
        self.second = np.concatenate([self.second, *second_ids]).astype(int)
        self.tests = max(self.tests, len(self.first))

    def _tables(self, blocks: Sequence[ColumnBlock], values: Array | None) -> list[list[Array]]:
        """The tables of each block's pairs; the same numbers in the same order for any `n_jobs`."""
        self.passes += 1
        if self.tell is not None:
            self.tell(f"pass {self.passes} over {len(blocks)} blocks of columns")
        jobs = [
            ([self.codes[i] for i in block.columns], [self.sets[i] for i in block.columns], block)
            for block in blocks
        ]
        if effective_n_jobs(self.n_jobs) == 1 or len(jobs) < 2:
            return [_pair_tables(*job, values) for job in jobs]
        run = delayed(_pair_tables)
        made: list[list[Array]] = Parallel(n_jobs=self.n_jobs, prefer="threads")(
            run(*job, values) for job in jobs
        )
        return made


def _merge_codes(column: CodedColumn, kept: list[int]) -> tuple[Array, Array]:
    """Codes that no condition tells apart become one, which makes the tables of pairs small.

    Returns:
        The sets of the conditions that are kept, (conditions, new codes), 0 and 1.
        The new code of each row, (n,).
    """
    sets, numbers = np.unique(column.members[kept], axis=1, return_inverse=True)
    if not kept:
        return np.zeros((0, 1)), np.zeros(len(column.codes), np.uint8)
    small = numbers.reshape(-1).astype(np.uint8 if sets.shape[1] <= 256 else np.uint16)
    return sets.astype(float), small[column.codes]


def _cover_pairs(usable: Sequence[int], widths: dict[int, int], cells: int) -> list[ColumnBlock]:
    """Blocks of columns that have every pair of them once, none with a larger table than `cells`.

    Greedy: a block begins with the first pair left, and takes the columns that bring the most.

    Args:
        usable: numbers of the columns.
        widths: number of codes of each.
        cells: the largest product of widths in a block.
    """
    columns = np.array(usable, dtype=int)
    width = np.array([widths[i] for i in usable])
    open_pairs = np.triu(np.ones((len(columns), len(columns)), bool), 1)
    open_pairs |= open_pairs.T
    blocks = []
    while open_pairs.any():
        first = int(np.argmax(open_pairs.any(1)))
        chosen = [first, int(np.argmax(open_pairs[first]))]
        while True:
            gain = open_pairs[chosen].sum(0) * (width[chosen].prod() * width <= cells)
            gain[chosen] = 0
            if not gain.any():
                break
            chosen.append(int(np.lexsort((width, -gain))[0]))
        chosen.sort()
        pairs = [(a, b) for a, b in combinations(chosen, 2) if open_pairs[a, b]]
        for a, b in pairs:
            open_pairs[a, b] = open_pairs[b, a] = False
        numbers = tuple(int(columns[k]) for k in chosen)
        blocks.append(
            ColumnBlock(numbers, tuple((int(columns[a]), int(columns[b])) for a, b in pairs))
        )
    return blocks


def _pair_tables(
    codes: list[Array], sets: list[Array], block: ColumnBlock, values: Array | None
) -> list[Array]:
    """Sums over all pairs of conditions, (s, conditions of i, conditions of j), of a block's pairs."""
    table = sum_table(codes, [one.shape[1] for one in sets], values)
    tables = []
    for i, j in block.pairs:
        a, b = block.columns.index(i), block.columns.index(j)
        others = tuple(1 + k for k in range(len(codes)) if k not in (a, b))
        tables.append(sets[a] @ table.sum(axis=others) @ sets[b].T)
    return tables


def sum_table(codes: list[Array], widths: list[int], values: Array | None) -> Array:
    """The sums of each quantity over the rows with the same codes, (s, width, width, ...).

    `values` is (s, n); None counts rows.
    """
    n, cells = len(codes[0]), int(np.prod(widths))
    kind = np.uint16 if cells <= 2**16 else np.uint32  # of the joint code: small is fast
    total = np.zeros((1 if values is None else len(values), cells))
    for at in range(0, n, ROWS_COUNTED_AT_ONCE):
        rows = slice(at, at + ROWS_COUNTED_AT_ONCE)
        joint: Array = codes[0][rows].astype(kind)
        for code, width in zip(codes[1:], widths[1:], strict=True):
            joint *= kind(width)
            joint += code[rows]
        place = joint.astype(np.intp)
        if values is None:
            total[0] += np.bincount(place, minlength=cells)
        else:
            for k, value in enumerate(values):
                total[k] += np.bincount(place, weights=value[rows], minlength=cells)
    return total.reshape(-1, *widths)


# -- the effective number of slices


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
    rows = np.sort(rng.permutation(index.n)[:DRAWN_ROWS])
    part = index.at(rows)
    limit = float(-ndtri(0.5 * level / index.tests))
    turns = np.array_split(np.arange(OVERLAP_DRAWS), min(len(variances), OVERLAP_DRAWS))
    shares: list[float] = []  # 1/N of each draw
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
    # One standard error up: rather too many slices than too few.
    mean = float(np.mean(shares)) + float(np.std(shares)) / len(shares) ** 0.5
    return float(max(1.0, min(1.0, mean) * index.tests))


def _draw(
    rng: np.random.Generator, index: SliceIndex, v: Array, able: Array, limit: float
) -> Array:
    """Normal numbers with these variances, of which the sum over a random slice exceeds the limit, (n,).

    Independent numbers are drawn first. Then the sum over the slice is replaced by one from the
    tail beyond the limit, and the difference goes to the slice's rows in proportion to their
    variances: that is the distribution given that the sum exceeds it.
    """
    values: Array = np.sqrt(v) * rng.standard_normal(len(v))
    inside = v * index.rows(int(rng.choice(able)))
    spread = float(inside.sum())
    z = -float(ndtri(rng.uniform() * ndtr(-limit)))
    values += inside * ((z * spread**0.5 - values[inside > 0].sum()) / spread)
    return values


# -- better ends


def refine(index: SliceIndex, k: int, left: Array, variance: Array) -> tuple[SliceCondition, ...]:
    """The conditions of slice k, with better ends.

    Args:
        left: what the expectation leaves of the events, times weights, (n,).
        variance: of each of them, (n,).
    """
    parts = index.parts(k)
    conditions = [index.columns[i].condition(c) for i, c in parts]
    movable = [index.columns[i].is_range(c) for i, c in parts]
    if not any(movable):
        return tuple(conditions)
    columns = [index.columns[i] for i, _ in parts]
    widths = [column.members.shape[1] for column in columns]
    values = np.array([left, variance, np.ones(len(left))])
    # Sums of events minus expectations, of variances and of rows, for each (pair of) code(s).
    table = sum_table([column.codes for column in columns], widths, values)
    total = float(sum_over(table, conditions)[0])
    for _ in range(TURNS):
        before = [one.codes for one in conditions]
        for axis in range(len(parts)):
            if movable[axis]:
                # The same over the codes of one column, within the other's condition, (3, codes).
                profile = np.moveaxis(table, 1 + axis, 1)
                for other in range(len(parts)):
                    if other != axis:
                        profile = profile @ conditions[other].codes.astype(float)
                best = _best_range(columns[axis], profile, index, 1.0 if total > 0 else -1.0)
                conditions[axis] = best or conditions[axis]
        if all((a == b.codes).all() for a, b in zip(before, conditions, strict=True)):
            break
    return tuple(conditions)


def sum_over(table: Array, conditions: list[SliceCondition]) -> Array:
    """The sums over a slice, from the table of all codes."""
    for condition in reversed(conditions):
        table = table @ condition.codes.astype(float)
    return table


def _best_range(
    column: CodedColumn, profile: Array, index: SliceIndex, sign: float
) -> SliceCondition | None:
    """The range of codes with the most evidence in one direction; None if none has enough rows.

    Args:
        column: whose ends are moved; its last code is "missing".
        profile: sums of events minus expectations, variances and rows over each code, (3, codes).
        index: with the least number of rows of a slice and of its complement.
        sign: 1 for more events than expected, -1 for fewer.
    """
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(profile[:, :-1], axis=1)], axis=1)
    last = sums.shape[1] - 1
    left, variance, counts = sums[:, None, :] - sums[:, :, None]  # [a, b): from a to below b
    low, high = np.indices(left.shape)
    allowed = (counts >= index.min_rows) & (counts <= index.n - index.min_rows)
    allowed &= (left * sign > 0) & (variance > 0) & (high - low < last)
    if not allowed.any():
        return None
    gain = np.where(allowed, left**2 / (2 * np.where(allowed, variance, 1.0)), -np.inf)
    gain -= END * ((low > 0).astype(float) + (high < last))
    a, b = np.unravel_index(int(np.argmax(gain)), gain.shape)
    return column.between(int(a), int(b))
