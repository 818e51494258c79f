"""What is asked of every slice, and how the slices that answer are chosen, each told once.

A question has an event e_i for each row and its expectation m_i. A slice answers it if the sum of
e_i - m_i over its rows is larger than chance allows:

    wrong probabilities   e: the class happens    m: the probability that the model gave it
    hard                  e: the decision is wrong    m: how often that happens to everybody
    threshold             e: a member of the class is missed    m: how often, over the class
    bias, spread          e: rank of the residual, or of its size    m: 1/2
    coverage              e: the value is outside of its interval    m: how often, over all

For the first the null hypothesis is exact: labels drawn from the model's own probabilities. For
the others it is that columns say nothing about the event, as if they were shuffled.

Slices overlap: if the married are failed, so are the married men, and people who own a house. The
slice with the clearest evidence is told first; then m is corrected on its rows, so that what it
explains is explained, and the next one is searched for in what is left.

**How unlikely** is a sum of coin flips sum_i w_i (b_i - p_i), with b_i = 1 with probability p_i? The
normal approximation is far off where it matters here: at probabilities of 1e-7, in slices of a few
hundred rows, with rare events. Lugannani and Rice's formula (1980) has a small *relative* error
there. With K(t) = sum_i [log(1 - p_i + p_i e^{t w_i}) - t w_i p_i], the cumulant generating
function, and t solving K'(t) = x:

    P(S >= x) = 1 - Phi(r) + phi(r) (1/u - 1/r)
    r = sign(t) sqrt(2 (t x - K(t))),  u = t sqrt(K''(t))

Sums of whole numbers have steps: then u = (1 - e^{-t}) sqrt(K''(t)) (Daniels 1987, the first continuity
correction). The second one, half a step lower, fails for a single event whose probability is tiny.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_ndtr, logit, ndtr
from scipy.stats import t as student

from scdro.auditing._codes import SliceCondition
from scdro.auditing._scan import SliceIndex, refine

__all__ = ["Answer", "Question", "bernoulli_tail", "find_answers", "normal_tail", "probability"]

Array = npt.NDArray[Any]
# A single condition is told instead of a pair if it has this share of the pair's evidence.
SIMPLER_EVIDENCE = 0.9
TRIES = 40  # slices whose exact probability is computed before a search gives up
SCREEN = 3.0  # standard errors below which nothing is computed exactly
OVERLAP = 0.5  # of a hard slice's rows that may belong to slices already told
NESTED = 0.9  # share of a slice's rows inside of another that makes it a part of that one
LEAST_CHANCE = 1e-6  # probabilities are at least this where log odds are shifted
BINS = 2048  # probabilities are grouped into this many ranges where there are more rows


@dataclass
class Question:
    """An event and its expectation, for every row.

    Attributes:
        kind: one of those above.
        label: the class that it is about; "" if none.
        event: (n,), 0 or 1, or a rank in (0, 1).
        expected: (n,); changes as findings are explained.
        weight: (n,); 0 for rows that the question is not about.
        upward: whether only more events than expected count.
        coins: whether events are 0 or 1; else they are ranks.
        shifts: whether a finding shifts the log odds of its rows (else it gets their mean).
    """

    kind: str
    label: str
    event: Array
    expected: Array
    weight: Array
    upward: bool = True
    coins: bool = True
    shifts: bool = False
    unit: bool = field(init=False)  # whether all weights are 0 or 1

    def __post_init__(self) -> None:
        self.unit = bool(np.isin(self.weight, (0.0, 1.0)).all())
        self._explained: Array = np.zeros(len(self.event), bool)  # rows of the findings so far
        self._start: Array | None = None  # log odds before everybody was matched
        self._offset = 0.0  # the shift of the rows that no finding explains

    def residuals(self) -> Array:
        """What the expectation leaves of the events, times weights, (n,)."""
        left: Array = self.weight * (self.event - self.expected)
        return left

    def variances(self) -> Array:
        """Of each residual: p (1 - p) of a coin, 1/12 of a rank."""
        spread = (
            self.expected * (1 - self.expected) if self.coins else np.full(len(self.event), 1 / 12)
        )
        each: Array = self.weight**2 * spread
        return each

    def explain(self, rows: Array) -> None:
        """Correct the expectation on these rows, so that nothing is left of the finding.

        With `shifts` all of them get the same shift of their log odds, since a model that is too
        low in a slice is so for likely and unlikely members; otherwise all get the mean of the
        event. Then the others, whom the finding no longer pulls, get theirs again.

        Args:
            rows: of the finding, (n,), booleans.
        """
        asked = rows & (self.weight > 0)
        w, e = self.weight[asked], self.event[asked]
        if self.shifts:
            self._explained |= rows
            start = logit(np.clip(self.expected[asked], LEAST_CHANCE, 1 - LEAST_CHANCE))
            self.expected[asked] = expit(start + _solve_shift(start, w, float(w @ e)))
            self._match_others()
            return
        self.expected[asked] = np.average(e, weights=w)
        others = ~rows & (self.weight > 0)
        untouched = others & (self.expected == self._usual)
        if untouched.any():
            self._usual = float(np.average(self.event[untouched], weights=self.weight[untouched]))
            self.expected[untouched] = self._usual

    def match_everyone(self) -> None:
        """Shift all log odds, so that as many events are expected as there are.

        A small error of the whole must not be told as that of any large slice.
        """
        self._start = logit(np.clip(self.expected, LEAST_CHANCE, 1 - LEAST_CHANCE))
        self._offset = np.inf
        self._match_others()

    def _match_others(self) -> None:
        """Shift the rows that no finding explains, as little as possible.

        If the finding was the reason for the error of the whole, the others need no shift any more;
        if it was not, a shift that hides what is wrong about them must not become larger.
        """
        rows = ~self._explained & (self.weight > 0)
        if rows.any() and self._start is not None:
            w, start = self.weight[rows], self._start[rows]
            needed = _solve_shift(start, w, float(w @ self.event[rows]))
            self._offset = min(self._offset, needed, key=abs)
            self.expected[rows] = expit(start + self._offset)

    _usual: float = field(default=np.nan)

    @classmethod
    def about_mean(
        cls, kind: str, label: str, event: Array, weight: Array, **options: Any
    ) -> Question:
        """One whose expectation is the mean of the event over the rows it is about."""
        usual = float(np.average(event, weights=weight))
        return cls(kind, label, event, np.full(len(event), usual), weight, _usual=usual, **options)


def _solve_shift(start: Array, weight: Array, events: float) -> float:
    """d such that the probabilities expit(start + d) add up to the events.

    Newton's method inside a bracket: sum w expit(start + d) rises in d.

    Args:
        start: log odds, (n,).
        weight: (n,).
        events: the weighted number of events to reach; it is kept off 0 and off the total, which no
            finite d reaches.
    """
    total = float(weight.sum())
    events = min(max(events, LEAST_CHANCE * total), (1 - LEAST_CHANCE) * total)
    low, high = -40.0, 40.0  # beyond, a probability is 0 or 1 to all digits
    d = 0.0
    for _ in range(200):
        p = expit(start + d)
        value, slope = float(weight @ p) - events, float(weight @ (p * (1 - p)))
        low, high = (low, d) if value > 0 else (d, high)
        new = d - value / slope if slope > 0 else low
        new = new if low < new < high else (low + high) / 2
        if abs(new - d) < 1e-12 * max(1.0, abs(d)):
            return new
        d = new
    return d


@dataclass(frozen=True)
class Answer:
    """A slice that answers a question: its conditions and rows, and how sure that is."""

    question: Question
    where: tuple[SliceCondition, ...]  # one or two; their ends may have been moved
    rows: Array  # (n,), booleans
    p_value: float  # of the tested slice, corrected for the number of slices and questions
    z: float  # its events minus those expected, in standard errors; above 0 for too many events
    slice: int  # the number in the index of the slice that was tested


def find_answers(
    question: Question,
    index: SliceIndex,
    *,
    tests: float,
    alpha: float,
    most: int,
    good: Any,
    holds: Any = None,
    candidates: Array | None = None,
    taken: Array | None = None,
    clusters: Array | None = None,
) -> list[Answer]:
    """The slices that answer a question, clearest first, each in what the earlier ones leave.

        repeat, at most `most` times:
            z_k       <- sums of events minus expectations over every slice k, in standard errors
            best      <- the slice with the largest |z| whose exact probability is small enough
            its ends  <- moved to where the evidence is, if it is still worth telling
            tell it, unless its people were told; correct the expectation on its rows

    Args:
        tests: effective number of slices times questions, which p-values are multiplied by.
        alpha: largest corrected p-value.
        most: largest number of slices.
        good: called with the sums of the weights and of the residuals over the slices; says which
            are large enough to be worth telling.
        holds: called with the rows of a slice whose ends were moved; says whether it is still worth
            telling. None: ends are not moved.
        candidates: slices that may answer at all, booleans; None: all. Sums over others are not
            computed.
        taken: rows that belong to earlier findings; slices with most of their rows among them are
            left out, and found ones are added. None: overlaps are handled by `explain` alone.
        clusters: numbers of the units that rows belong to, for standard errors.
    """
    found: list[Answer] = []
    candidates = np.ones(len(index), bool) if candidates is None else candidates
    if not candidates.any():
        return found
    mass = index.sums(question.weight[None], candidates)[0]
    # slices whose people were told already: events above, or below, what was expected
    covered_above, covered_below = np.zeros((2, len(index)), bool)
    while len(found) < most:
        # Sums over every slice: events minus expectations, their variance, and if there are
        # earlier findings, the weight of their rows inside.
        asked = [question.residuals(), question.variances()]
        asked += [question.weight * taken] if taken is not None else []
        left, variance, *inside = index.sums(np.array(asked), candidates)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(variance > 0, left / np.sqrt(variance), 0.0)
        evidence = z if question.upward else np.abs(z)
        usable = candidates & (mass > 0) & good(mass, left)
        if inside:
            usable &= inside[0] <= OVERLAP * mass
        usable &= ~(covered_above & (left > 0)) & ~(covered_below & (left < 0))
        evidence = np.where(usable, evidence, 0.0)
        best = _find_first_sure(question, index, evidence, left, z, tests, alpha, clusters)
        if best is None:
            break
        # Never this slice again, even if it turns out to be about people who were told.
        (covered_above if best.z > 0 else covered_below)[best.slice] = True
        if holds is not None:
            best = _improve_ends(best, index, asked[0], asked[1], holds)
            told = [one.rows for one in found if one.z * best.z > 0]
            told += [] if taken is None else [taken]
            if any(_mostly_told(best.rows, rows) for rows in told):
                continue
        found.append(best)
        question.explain(best.rows)
        same = _find_same_people(index, best.rows, candidates)
        (covered_above if best.z > 0 else covered_below)[same] = True
        if taken is not None:
            taken |= best.rows
    return found


def _mostly_told(rows: Array, told: Array) -> bool:
    """Whether most of these rows belong to people who were told already."""
    return bool((rows & told).sum() > OVERLAP * rows.sum())


def _find_same_people(index: SliceIndex, rows: Array, candidates: Array) -> Array:
    """Candidates nested in these rows, or with mostly the same ones."""
    inside = index.sums(rows[None].astype(float), candidates)[0]
    either = index.counts + rows.sum() - inside
    same: Array = (inside >= NESTED * index.counts) | (inside >= OVERLAP * either)
    return same


def _find_first_sure(
    question: Question, index: SliceIndex, evidence: Array, left: Array, z: Array, tests: float,
    alpha: float, clusters: Array | None,
) -> Answer | None:  # fmt: skip
    """The slice with the most evidence whose exact probability is small enough; None for none.

    The exact probability takes a pass over a slice's rows, so it is computed for the clearest ones
    only, in the order of z, and never below `SCREEN` standard errors.

    Args:
        evidence: |z|, or z, of every slice, (slices,); 0 for those that may not answer.
        left: sums of events minus expectations, (slices,).
        z: the same in standard errors, (slices,).
    """
    for k in np.argsort(-evidence, kind="stable")[:TRIES]:
        if evidence[k] < SCREEN:
            return None
        k = _simplify(int(k), index, evidence, z)
        rows = index.rows(k)
        p = min(1.0, tests * probability(question, rows, float(left[k]), float(z[k]), clusters))
        if p <= alpha:
            return Answer(question, index.conditions_of(k), rows, p, float(z[k]), k)
    return None


def _improve_ends(
    best: Answer, index: SliceIndex, left: Array, variance: Array, holds: Any
) -> Answer:
    """The answer with the ends of its ranges moved (`_scan.refine`); as it was if these rows are not worth telling."""
    where = refine(index, best.slice, left, variance)
    rows = index.rows_holding(best.slice, where)
    return replace(best, where=where, rows=rows) if holds(rows) else best


def _simplify(k: int, index: SliceIndex, evidence: Array, z: Array) -> int:
    """One of a pair's two conditions instead of the pair, if it has nearly as much evidence."""
    if index.second[k] < 0:
        return k
    parts = [int(index.first[k]), int(index.second[k])]  # singles come first: number = condition
    simpler = [
        c for c in parts if evidence[c] >= SIMPLER_EVIDENCE * evidence[k] and z[c] * z[k] > 0
    ]
    return max(simpler, key=lambda c: evidence[c], default=k)


def probability(
    question: Question, rows: Array, left: float, z: float, clusters: Array | None
) -> float:
    """How likely it is by chance that the events of a slice are this far from what was expected.

    Args:
        rows: the slice, (n,), booleans.
        left: the sum of events minus expectations there; z: the same in standard errors.
        clusters: units of the rows: with them, the less unlikely of this and of Student's t over units.
    """
    asked = rows & (question.weight > 0)
    if question.coins:
        weights = None if question.unit else question.weight[asked]
        p = bernoulli_tail(left, question.expected[asked], weights)
    else:
        p = normal_tail(z)
    if clusters is not None:
        sums = np.bincount(clusters[asked], weights=question.residuals()[asked])
        error = float(np.sqrt((sums**2).sum()))
        units = int((np.bincount(clusters[asked]) > 0).sum())
        if units < 2 or error == 0:
            return 1.0
        p = max(p, float(2 * student.sf(abs(left) / error, units - 1)))
    return p


# -- how unlikely a sum of coin flips is


def normal_tail(z: float) -> float:
    """P(|Z| >= |z|) of a standard normal Z."""
    return float(2 * ndtr(-abs(z)))


def bernoulli_tail(total: float, p: Array, weights: Array | None = None) -> float:
    """Two-sided: twice the probability of a sum of w_i (b_i - p_i) at least as extreme as `total`.

    Args:
        total: the observed sum.
        p: probabilities, (n,).
        weights: (n,), none negative; None: all 1. A sum of whole numbers then gets a continuity
            correction.
    """
    sign = 1.0 if total >= 0 else -1.0
    w = np.ones(len(p)) if weights is None else np.asarray(weights, dtype=float)
    if len(p) > 2 * BINS:
        p, w, count = _join_similar_rows(np.asarray(p, dtype=float), w)
    else:
        p, count = np.asarray(p, dtype=float), np.ones(len(p))
    x = abs(total)
    most = float((count * w * ((1 - p) if sign > 0 else p)).sum())
    if x <= 0:
        return 1.0
    if abs(total) >= most * (1 - 1e-12):  # every flip fell on the same side
        sure = (p if sign > 0 else 1 - p) > 0
        side = np.where(sure, p if sign > 0 else 1 - p, 1.0)
        return float(min(1.0, 2 * math.exp(float((count * np.log(side)).sum()))))
    return min(1.0, 2 * _upper_tail(x, p if sign > 0 else 1 - p, w, count, weights is None))


def _join_similar_rows(p: Array, w: Array) -> tuple[Array, Array, Array]:
    """Rows with nearly the same probability as one, so that K(t) sums over `BINS` and not over all rows.

    Returns:
        The mean probability by weight, the weight of one row, and the number of rows, (BINS,) each.
    """
    order = np.argsort(p, kind="stable")
    starts = np.linspace(0, len(p), BINS, endpoint=False).astype(int)
    count = np.diff(np.r_[starts, len(p)]).astype(float)
    mass = np.add.reduceat(w[order], starts)
    mean = np.add.reduceat((w * p)[order], starts) / np.maximum(mass, 1e-300)
    # the root of the mean square, so that the variance is right
    size = np.sqrt(np.add.reduceat((w * w)[order], starts) / count)
    return np.clip(mean, 0.0, 1.0), size, count


def _upper_tail(x: float, p: Array, w: Array, count: Array, steps: bool) -> float:
    """P(S >= x) for 0 < x < the largest possible sum: the formula at the head of this file.

    Args:
        x: the sum.
        p, w, count: probabilities, weights and numbers of the flips, (bins,).
        steps: whether sums are whole numbers.
    """
    t = _saddlepoint(x, p, w, count)
    k = float((count * (_log_mean_exp(t * w, p) - t * w * p)).sum())
    tilted = _tilt_coins(t * w, p)
    variance = float((count * w * w * tilted * (1 - tilted)).sum())
    r = math.sqrt(max(2 * (t * x - k), 0.0))
    u = (-math.expm1(-t) if steps else t) * math.sqrt(variance)
    if r < 1e-3:  # 1/u - 1/r loses all digits, and the correction is small
        return float(ndtr(-r))
    log_density = -r * r / 2 - math.log(2 * math.pi) / 2
    tail = math.exp(float(log_ndtr(-r)))
    return min(1.0, max(0.0, tail + math.exp(log_density) * (1 / u - 1 / r)))


def _saddlepoint(x: float, p: Array, w: Array, count: Array) -> float:
    """t > 0 with K'(t) = x. K' rises, so a bracket and Newton's steps inside it."""

    def slope(t: float) -> tuple[float, float]:
        tilted = _tilt_coins(t * w, p)
        first = float((count * w * (tilted - p)).sum())
        return first - x, float((count * w * w * tilted * (1 - tilted)).sum())

    low, high = 0.0, 1.0 / max(float(w.max()), 1e-300)
    while slope(high)[0] < 0 and high < 1e6:
        low, high = high, 2 * high
    t = (low + high) / 2
    for _ in range(60):
        value, curvature = slope(t)
        low, high = (low, t) if value > 0 else (t, high)
        step = t - value / curvature if curvature > 0 else math.inf
        new = step if low < step < high else (low + high) / 2
        if abs(new - t) <= 1e-10 * max(t, 1e-10):
            return new
        t = new
    return t


def _tilt_coins(a: Array, p: Array) -> Array:
    """p e^a/(1 - p + p e^a): the probability of each coin under its own tilt.

    Not `_kl.tilt`, which tilts one distribution over many rows: here every row is a distribution
    over 0 and 1.
    """
    with np.errstate(divide="ignore"):
        tilted: Array = expit(a + np.log(p) - np.log1p(-p))
    return tilted


def _log_mean_exp(a: Array, p: Array) -> Array:
    """log(1 - p + p e^a)."""
    with np.errstate(divide="ignore"):
        mixed: Array = np.logaddexp(np.log1p(-p), np.log(p) + a)
    return mixed
