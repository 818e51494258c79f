"""Findings: who a model fails, how, and by how much. They are few, and no failure is reported twice.

`FindingSearch.run` asks the questions of `_questions` of all slices of the table, in this order:

    wrong probabilities   for each class: does it happen as often as the model says, as a whole, by level
                          of the probability, and in every slice? Then: are its answers wrong more often
                          than it admits? Half of alpha is for these
    hard                  of the slices whose probabilities are not in doubt: where are decisions wrong
                          more often than elsewhere? A quarter of alpha
    threshold             and where are the members of a class missed more often? A quarter of alpha

    regression            bias (ranks of the residuals), spread (of their sizes), coverage of intervals

The rows of a finding are taken: a later one must be about other people. Hard slices and thresholds have
`RESERVED` places among the `most` findings, so that many wrong probabilities do not hide them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.isotonic import IsotonicRegression

from scdro.auditing._codes import CodedColumn, SliceCondition, code_columns, read_frame
from scdro.auditing._outcomes import Outcomes
from scdro.auditing._questions import Answer, Question, find_answers, probability
from scdro.auditing._scan import SliceIndex, effective_slices

__all__ = ["Finding", "FindingSearch", "wilson"]

Array = npt.NDArray[Any]
MOST_CLASSES = 50  # only so many classes have their probabilities tested, the most frequent ones
RESERVED = 3  # places kept for hard slices, and for thresholds, among the findings
GAP, RATIO = 0.01, 1.5  # a gap that is smaller, and a ratio that is smaller, are not worth telling
# a hard slice's error is at least this many times the usual one, and this far above it
HARDER, HARDER_BY = 1.3, 0.03
MISSED_BY = 0.1  # a class is missed in a slice at least this much more often than elsewhere
SAME = 0.5  # share of the rows of either of two slices above which the clearer one is told
DOUBT = 2.0  # standard errors of a gap above which a slice's probabilities are not called right
DOUBT_OF_ANSWERS = 3.0  # the same, where answers are wrong more often than the model admits
SHARES_OF_ALPHA = {"wrong": 0.5, "threshold": 0.25, "hard": 0.25}  # of alpha


@dataclass(frozen=True, repr=False)
class Finding:
    """People whom the model fails.

    Attributes:
        kind: "wrong probabilities", "hard" or "threshold"; "errors" if only classes are known;
            "bias", "spread" or "coverage" of a regression.
        slice: who they are, in the columns given.
        conditions: the same, one by one; () for all rows, and for a range of probabilities.
        where: the same as objects with their `column`, which `rows_of` applies to any table.
        label: the class that it is about; "" for none.
        rows: how many.
        share: of all rows, by weight.
        predicted: mean probability of the class that the model gave, or mean prediction.
        observed: share of the class, or mean target.
        low, high: interval of `observed`; at 95% it holds for all slices looked at, at once.
        error: share of wrong decisions, or mean absolute error.
        error_elsewhere: the same for all other rows.
        loss: mean log loss, or squared error; NaN if only classes are known.
        loss_elsewhere: the same for all other rows.
        missed: of the class's members in the slice, the share not predicted as such; NaN if it is
            about no class.
        missed_elsewhere: the same for all other rows.
        p_value: probability of a finding this clear by chance, corrected for everything looked at.
        members: which rows, (n,).

    Example:
        >>> import scdro
        >>> p, city = np.full(1000, 0.5), np.array(["Oslo"] * 500 + ["Rome"] * 500)
        >>> y = np.r_[np.arange(500) % 10 == 0, np.arange(500) % 10 != 0]
        >>> [f"{one.slice}: {one.predicted} {one.observed}" for one in scdro.audit(y, p, {"city": city}).findings][:2]
        ['city = Oslo: 0.5 0.1', 'city = Rome: 0.5 0.9']
    """

    kind: str
    slice: str
    conditions: tuple[str, ...]
    label: str
    rows: int
    share: float
    predicted: float
    observed: float
    low: float
    high: float
    error: float
    error_elsewhere: float
    loss: float
    loss_elsewhere: float
    missed: float
    missed_elsewhere: float
    p_value: float
    members: Array
    where: tuple[SliceCondition, ...] = ()

    def rows_of(self, frame: Any) -> Array:
        """For which rows of another table the conditions hold, (n,), booleans.

        Args:
            frame: a table with the columns of the conditions: pandas, polars, Arrow, or a
                dictionary. A finding about a range of probabilities needs a column "predicted
                probability".

        Example:
            >>> import scdro
            >>> p, city = np.full(1000, 0.5), np.array(["Oslo"] * 500 + ["Rome"] * 500)
            >>> y = np.r_[np.arange(500) % 10 == 0, np.arange(500) % 10 != 0]
            >>> first = scdro.audit(y, p, {"city": city}).findings[0]
            >>> first.slice, first.rows_of({"city": ["Rome", "Oslo", None]}).tolist()
            ('city = Oslo', [False, True, False])
        """
        columns = read_frame(frame)
        number = len(next(iter(columns.values()), ()))
        rows = np.ones(number, bool)
        for condition in self.where:
            rows &= condition.rows(columns)
        return rows

    def __str__(self) -> str:
        who = f"{self.slice}: {self.rows:,} rows ({_write_share(self.share)})."
        said = f"{_write_share(self.predicted)} predicted, {_write_share(self.observed)} observed"
        name = f" {self.label!r}" if self.label else ""
        if self.kind == "wrong probabilities" and not self.label:
            text = (
                f"The model is sure of its answers to {_write_share(self.predicted)} on average;"
                f" {_write_share(self.observed)} are right ({_write_share(self.low)} to"
                f" {_write_share(self.high)})."
            )
        elif self.kind == "wrong probabilities":
            text = (
                f"The model gives{name} {_write_share(self.predicted)}; it is {_write_share(self.observed)}"
                f" ({_write_share(self.low)} to {_write_share(self.high)})."
            )
        elif self.kind == "hard":
            text = (
                f"{_write_share(self.error)} of the decisions are wrong"
                f" ({_write_share(self.error_elsewhere)} elsewhere), above all for{name}"
                f" ({_write_share(self.missed)} missed, {_write_share(self.missed_elsewhere)} elsewhere)."
                f" The probabilities are right ({said}): these columns cannot tell."
            )
        elif self.kind == "threshold":
            elsewhere = (
                ""
                if math.isnan(self.missed_elsewhere)
                else f" ({_write_share(self.missed_elsewhere)} elsewhere)"
            )
            # all rows may be missed by the threshold, and have wrong probabilities as well
            right = self.low <= self.predicted <= self.high
            text = f"{_write_share(self.missed)} of{name} are missed{elsewhere}" + (
                f", but the probabilities are right ({said}): the threshold fails them."
                if right
                else f": the threshold fails them, and the probabilities are wrong too ({said})."
            )
        elif self.kind == "errors":
            text = (
                f"{_write_share(self.error)} of the decisions are wrong"
                f" ({_write_share(self.error_elsewhere)} elsewhere), above all for{name}"
                f" ({_write_share(self.missed)} missed, {_write_share(self.missed_elsewhere)} elsewhere)."
            )
        elif self.kind == "bias":
            between = f"({self.low:.4g} to {self.high:.4g})"
            text = (
                f"Mean prediction {self.predicted:.4g}, mean target {self.observed:.4g} {between}."
            )
        elif self.kind == "spread":
            text = f"Mean absolute error {self.error:.4g} ({self.error_elsewhere:.4g} elsewhere)."
        else:
            text = (
                f"{_write_share(self.missed)} outside of their intervals"
                f" ({_write_share(self.missed_elsewhere)} elsewhere)."
            )
        return f"{who} {text}"

    def __repr__(self) -> str:
        return f"<{self.kind}: {self}>"


def _write_share(share: float) -> str:
    """A share in per cent, with two digits where it is below one per cent."""
    plain = share >= 0.01 or share < 5e-5  # a bound of an interval may be 1e-17: that is 0.0%
    return f"{100 * share:.1f}%" if plain else f"{100 * share:.2g}%"


def wilson(share: float, size: float, z: float) -> tuple[float, float]:
    """Wilson's interval of a share of `size` rows, z standard errors to either side; [0, 1] without rows."""
    if size <= 0:
        return 0.0, 1.0
    middle = (share + z * z / (2 * size)) / (1 + z * z / size)
    half = (
        z * math.sqrt(share * (1 - share) / size + z * z / (4 * size * size)) / (1 + z * z / size)
    )
    return max(0.0, middle - half), min(1.0, middle + half)


def accept_every_slice(mass: Array, left: Array) -> Array:
    """Every candidate is worth telling: for questions whose candidates were chosen before."""
    return np.ones(len(mass), bool)


def drop_repeats(found: list[Finding]) -> list[Finding]:
    """Of the findings about the same people and different classes, the first: the clearest one.

    Where a model gives one class too much it gives another too little: one failure, told once.
    """
    told: list[Finding] = []
    for one in found:
        others = [x for x in told if x.label != one.label and bool(x.where) == bool(one.where)]
        if not any(_overlap(one.members, x.members) > SAME for x in others):
            told.append(one)
    return told


def _overlap(a: Array, b: Array) -> float:
    """The rows in both, as a share of the rows in either."""
    return float((a & b).sum() / max(int((a | b).sum()), 1))


class FindingSearch:
    """Look for findings of every kind in one table of predictions.

    Attributes:
        data, weight, clusters: labels and predictions; (n,) weights with mean one; (n,) numbers of
            the units that rows belong to, None if all are independent.
        alpha: probability of any false finding.
        errors: wrong decisions, 0 or 1, or absolute errors, (n,).
        losses: log losses, or squared errors, (n,); None if only classes are known.
        index: the slices looked at.
        checked: for each kind, the effective number of slices times questions.
        recalibrated: classes whose probabilities are wrong as a whole.
    """

    def __init__(
        self, data: Outcomes, columns: list[CodedColumn], *, weight: Array, clusters: Array | None,
        alpha: float, depth: int, min_rows: int, n_jobs: int | None,
        tell: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.data, self.weight, self.clusters, self.alpha = data, weight, clusters, alpha
        self.errors = self._errors()
        self.losses = data.losses()
        self.index = SliceIndex(
            columns,
            len(data.y),
            min_rows=min_rows,
            depth=depth,
            n_jobs=n_jobs,
            order=self._order_by_errors(columns),
            tell=tell,
        )
        self.checked: dict[str, float] = {}
        self.recalibrated: list[str] = []

    def run(self, most: int) -> list[Finding]:
        """All findings: wrong probabilities first, then thresholds, then hard ones."""
        if not self.data.classes:
            return self._find_in_regression(most)
        if self.data.proba is None:
            return self._find_hard("errors", most, np.zeros(len(self.weight), bool), 1.0)
        wrong, doubtful = self._find_wrong(most)
        taken: Array = np.zeros(len(self.weight), bool)
        for one in wrong:
            taken |= one.members if one.conditions else False
        hard = self._find_hard("hard", RESERVED, taken, SHARES_OF_ALPHA["hard"], doubtful)
        for one in hard:
            taken |= one.members
        missed = self._find_thresholds(RESERVED, taken, doubtful)
        return [*wrong[: max(most - len(missed) - len(hard), 0)], *missed, *hard][:most]

    # -- wrong probabilities ------------------------------------------------------------------

    def _find_wrong(self, most: int) -> tuple[list[Finding], Array]:
        """Wrong probabilities of every class, and of the answers.

        Two questions. Does a class happen as often as the model says? And is its most likely answer
        wrong more often than the model admits? A slice where high probabilities should be low, and
        low ones high, passes the first on average and fails the second.

            for each class k, and at last for the answers (k is None):
                event   <- y is k, or the answer is wrong;  p <- what the model says of it
                is p wrong as a whole, or where it is low or high? Then a finding, and p is
                recalibrated, so that slices are told where they are wrong beyond that
                slices where events and p differ           -> findings

        Returns:
            The findings, clearest first, at most `most`.
            Which slices of the index may be wrong although they were not told, (slices,).
        """
        data, weight = self.data, self.weight
        assert data.proba is not None
        counts = np.bincount(data.y, weights=weight, minlength=len(data.classes))
        asked = [1] if len(data.classes) == 2 else list(np.argsort(-counts)[:MOST_CLASSES])
        alpha = SHARES_OF_ALPHA["wrong"] * self.alpha
        levels = {k: self._index_levels(data.proba[:, k]) for k in asked}
        spreads = [weight**2 * p * (1 - p) for p in (data.proba[:, k] for k in asked)]
        slices = effective_slices(self.index, spreads, alpha)
        tests = slices * (len(asked) + 1) + sum(level.tests + 1 for level in levels.values())
        self.checked["wrong probabilities"] = tests
        found: list[tuple[float, Finding]] = []
        doubtful = np.zeros(len(self.index), bool)
        taken: Array = np.zeros(len(weight), bool)  # rows of the slices told so far
        explained: list[Array] = []
        for k in (*asked, None):
            if k is None:
                event, p = 1 - self._right(), 1 - data.proba.max(1)
            else:
                event, p = (data.y == k).astype(float), data.proba[:, k]
            label = "" if k is None else data.classes[k]
            question = Question(
                "wrong probabilities", label, event, p.copy(), weight, upward=k is None, shifts=True
            )
            whole = None if k is None else self._test_as_a_whole(question, levels[k], tests, alpha)
            if whole is not None:
                found.append(whole)
                self.recalibrated.append(label)
            if whole is not None or (k is None and self.recalibrated):
                curve = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
                question.expected = curve.fit(p, event, sample_weight=weight).predict(p)
            question.match_everyone()
            for rows in explained if k is None else ():
                question.explain(rows)  # what was told of the classes is also why answers are wrong
            told, unsure = self._wrong_slices(
                question, p, tests, alpha, most, taken if k is None else None
            )
            doubtful |= unsure
            for one in told:
                found.append((-abs(one.z), self._make_finding(one, k)))
                explained.append(one.rows)
                taken |= one.rows
        # of probabilities near 0 or 1 few events make a huge z: the exact probability says how sure
        found.sort(key=lambda entry: (entry[1].p_value, entry[0]))
        return drop_repeats([one for _, one in found])[:most], doubtful

    def _wrong_slices(
        self,
        question: Question,
        p: Array,
        tests: float,
        alpha: float,
        most: int,
        taken: Array | None,
    ) -> tuple[list[Answer], Array]:
        """Slices where events and the model's own probabilities differ, and those where they may.

        A gap must be clear twice: in p itself, and in what recalibration and earlier findings leave
        of it (`question.expected`). So what another finding has overstated is not told as a new one.

        Args:
            question: of one class, or of the answers.
            p: the model's own probabilities of the event, (n,).
            tests, alpha, most, taken: as for `find_answers`.

        Returns:
            The answers; and which slices of the index are in doubt, (slices,), booleans.
        """
        weight = self.weight
        # Over every slice: the events, what the model expected of them, and their variance.
        happened, meant, spread = self.index.sums(
            np.array([weight * question.event, weight * p, weight**2 * p * (1 - p)])
        )
        raw = happened - meant  # the gap in the model's own probabilities
        error = np.sqrt(np.maximum(spread, 1e-300))
        limit = -ndtri(0.5 * min(0.5, alpha / tests))  # in standard errors
        clear = np.abs(raw) > limit * error
        ratio = np.maximum(happened, meant) >= RATIO * np.minimum(happened, meant)

        def worth(mass: Array, left: Array) -> Array:
            """The gap must be clear in the model's own probabilities, not only in what is left."""
            gap = np.minimum(np.abs(left), np.abs(raw)) / np.maximum(mass, 1e-300)
            good: Array = clear & (left * raw > 0) & ((gap >= GAP) | ratio)
            return good

        def holds(rows: Array) -> bool:
            """Whether that is so for a slice whose ends were moved."""
            had, said = (float(weight[rows] @ x[rows]) for x in (question.event, p))
            more, mass = float(question.residuals()[rows].sum()), float(weight[rows].sum())
            large = min(abs(more), abs(had - said)) >= GAP * mass
            return more * (had - said) > 0 and (large or max(had, said) >= RATIO * min(had, said))

        answers = find_answers(
            question, self.index, tests=tests, alpha=alpha, most=most, good=worth, holds=holds,
            candidates=clear, taken=taken, clusters=self.clusters,
        )  # fmt: skip
        if question.upward:
            return answers, raw > DOUBT_OF_ANSWERS * error
        return answers, np.abs(raw) > DOUBT * error

    def _right(self) -> Array:
        """1 where the most likely class is the label, (n,)."""
        assert self.data.proba is not None
        right: Array = (self.data.proba.argmax(1) == self.data.y).astype(float)
        return right

    def _index_levels(self, p: Array) -> SliceIndex:
        """Slices by the probability itself: where it is low, or high."""
        return SliceIndex(
            code_columns({"predicted probability": p}),
            len(p),
            min_rows=self.index.min_rows,
            depth=1,
        )

    def _test_as_a_whole(
        self, question: Question, levels: SliceIndex, tests: float, alpha: float
    ) -> tuple[float, Finding] | None:
        """Whether the probabilities of a class are wrong as a whole, or wherever they are high or low.

        Returns:
            The evidence in standard errors and the finding; None if they are right.
        """
        everyone = np.ones(len(self.weight), bool)
        # As a whole.
        left = float(question.residuals().sum())
        z = left / math.sqrt(max(float(question.variances().sum()), 1e-300))
        k = self.data.classes.index(question.label)
        p = min(1.0, tests * probability(question, everyone, left, z, self.clusters))
        gap = abs(left) / float(self.weight.sum())
        usual = float(np.average(question.event, weights=self.weight))
        if p <= alpha and gap >= min(GAP, 0.2 * max(usual, 1e-12)):
            return -abs(z), self._measure_slice(
                "wrong probabilities", "all rows", (), k, everyone, p
            )
        # By level. A copy, since telling a finding changes the expectation; slices are asked of p.
        copy = Question(
            question.kind,
            question.label,
            question.event,
            question.expected.copy(),
            self.weight,
            upward=False,
            shifts=True,
        )

        def worth(mass: Array, left: Array) -> Array:
            good: Array = np.abs(left) >= GAP * mass
            return good

        first = find_answers(
            copy, levels, tests=tests, alpha=alpha, most=1, good=worth, clusters=self.clusters
        )
        if not first:
            return None
        one = first[0]
        text = " and ".join(condition.text for condition in one.where)
        told = self._measure_slice("wrong probabilities", text, (), k, one.rows, one.p_value)
        return -abs(one.z), replace(told, where=one.where)

    # -- thresholds and hard slices -----------------------------------------------------------

    def _find_thresholds(self, most: int, taken: Array, doubtful: Array) -> list[Finding]:
        """Slices where members of a class are missed more often than elsewhere.

        A class that is decided less than half as often as it happens, and missed mostly, is a finding
        about all rows. `taken` are rows that were told, `doubtful` slices of wrong probabilities.
        """
        data, weight = self.data, self.weight
        found: list[tuple[float, Finding]] = []
        counts = np.bincount(data.y, minlength=len(data.classes))
        asked = [
            int(k)
            for k in np.argsort(-counts)[:MOST_CLASSES]
            if counts[k] >= 2 * self.index.min_rows
        ]
        self.checked["threshold"] = tests = self.index.tests * max(len(asked), 1)
        for k in asked:
            own = weight * (data.y == k)
            missed = (data.decided != k).astype(float)
            usual = float(np.average(missed, weights=own))  # of the class, in all rows
            decided, observed = (
                float(weight @ (v == k) / weight.sum()) for v in (data.decided, data.y)
            )
            if usual > 0.5 and decided < observed / 2:
                everyone = np.ones(len(weight), bool)
                found.append(
                    (math.inf, self._measure_slice("threshold", "all rows", (), k, everyone, 0.0))
                )
                continue
            question = Question.about_mean("threshold", data.classes[k], missed, own)
            # At least 0 where the class is missed by MISSED_BY more, and half as often again.
            more = self.index.sums((own * (missed - max(usual + MISSED_BY, 1.5 * usual)))[None])[0]

            answers = find_answers(
                question, self.index, tests=tests, alpha=SHARES_OF_ALPHA["threshold"] * self.alpha, most=most,
                good=accept_every_slice, candidates=(more >= 0) & ~doubtful, taken=taken.copy(), clusters=self.clusters,
            )  # fmt: skip
            found += [(one.z, self._make_finding(one, k)) for one in answers]
        found.sort(key=lambda entry: -entry[0])
        return [one for _, one in found[:most]]

    def _find_hard(
        self, kind: str, most: int, taken: Array, share: float, doubtful: Any = False
    ) -> list[Finding]:
        """Slices with many wrong decisions; those whose probabilities may be wrong are left out.

        Args:
            kind: "hard", or "errors" if only classes are known.
            most: places among the findings.
            taken: rows that were told, (n,).
            share: of alpha.
            doubtful: slices whose probabilities may be wrong, (slices,).
        """
        usual = float(np.average(self.errors, weights=self.weight))
        if usual <= 0 or usual >= 1:
            return []
        question = Question.about_mean(kind, "", self.errors, self.weight)
        self.checked[kind] = tests = self.index.tests
        limit = max(usual + HARDER_BY, HARDER * usual)  # `more` is at least 0 where errors reach it
        more = self.index.sums((self.weight * (self.errors - limit))[None])[0]
        answers = find_answers(
            question, self.index, tests=tests, alpha=share * self.alpha, most=most, good=accept_every_slice,
            candidates=(more >= 0) & ~np.asarray(doubtful), taken=taken.copy(), clusters=self.clusters,
        )  # fmt: skip
        return [self._make_finding(one, self._choose_most_missed(one.rows)) for one in answers]

    def _choose_most_missed(self, rows: Array) -> int:
        """The class whose members are missed in these rows more often than elsewhere, by most rows.

        Only classes that are missed at least as often as all rows here: where nobody is ever called
        "yes", the few missed "no" are new in a slice, and not what makes it hard.
        """
        data, missed = self.data, self.weight * self.errors
        classes = len(data.classes)

        def shares(where: Array) -> tuple[Array, Array]:
            """The weight of each class in these rows, and the share of it that is missed, (k,)."""
            mass = np.bincount(data.y[where], weights=self.weight[where], minlength=classes)
            lost = np.bincount(data.y[where], weights=missed[where], minlength=classes)
            return mass, lost / np.maximum(mass, 1e-300)

        mass, here = shares(rows)
        often = here >= (1 - 1e-9) * np.average(here, weights=mass)
        return int(np.argmax(np.where(often, mass * (here - shares(~rows)[1]), -np.inf)))

    # -- regression ---------------------------------------------------------------------------

    def _find_in_regression(self, most: int) -> list[Finding]:
        """Findings of a regression: where predictions are biased, errors large, or intervals too short.

        Bias and spread are asked of ranks, which have no outliers: one residual of a million does
        not make a slice. Each of the two or three questions gets an equal part of alpha.
        """
        data, n = self.data, len(self.weight)
        left = data.y - data.decided
        # Kind, event, whether only more events count, whether events are 0 or 1 (else ranks).
        asked: list[tuple[str, Array, bool, bool]] = [
            ("bias", (rankdata(left) - 0.5) / n, False, False),
            ("spread", (rankdata(np.abs(left - np.median(left))) - 0.5) / n, True, False),
        ]
        if data.low is not None and data.high is not None:
            outside = ((data.y < data.low) | (data.y > data.high)).astype(float)
            if 0 < outside.mean() < 1:
                asked.append(("coverage", outside, True, True))
        places = {"bias": most - RESERVED * (len(asked) - 1)}
        tests = effective_slices(self.index, [self.weight**2], self.alpha / len(asked))
        found = []
        for kind, event, upward, coins in asked:
            question = Question.about_mean(kind, "", event, self.weight, upward=upward, coins=coins)
            self.checked[kind] = tests

            raw = self.index.sums(question.residuals()[None])[0]

            def worth(mass: Array, left: Array, raw: Array = raw, upward: bool = upward) -> Array:
                """What an earlier finding overstates is no finding of its own."""
                gap = left / np.maximum(mass, 1e-300)
                good: Array = (gap if upward else np.abs(gap)) >= 0.05
                return good & (left * raw > 0)

            def holds(rows: Array, question: Question = question, upward: bool = upward) -> bool:
                """The same for a slice whose ends were moved."""
                gap = float(question.residuals()[rows].sum() / self.weight[rows].sum())
                return (gap if upward else abs(gap)) >= 0.05

            taken = np.zeros(n, bool) if upward else None
            answers = find_answers(
                question, self.index, tests=tests, alpha=self.alpha / len(asked),
                most=places.get(kind, RESERVED), good=worth, holds=holds, taken=taken,
                clusters=self.clusters,
            )  # fmt: skip
            found += [self._make_finding(one, None) for one in answers]
        return found

    # -- numbers of a slice -------------------------------------------------------------------

    def _make_finding(self, one: Answer, label: int | None) -> Finding:
        """The finding that an answer makes: about one class, or about none (None)."""
        texts = tuple(condition.text for condition in one.where)
        told = self._measure_slice(
            one.question.kind, " and ".join(texts), texts, label, one.rows, one.p_value
        )
        return replace(told, where=one.where)

    def _measure_slice(
        self,
        kind: str,
        text: str,
        conditions: tuple[str, ...],
        label: int | None,
        rows: Array,
        p_value: float,
    ) -> Finding:
        """All numbers of a slice: means over its rows, and over all other rows, by weight.

        What was observed has an interval that holds for all slices at once: Wilson's for a share, with
        the effective number of rows under the weights; of a regression the normal one of the bias.
        """
        data, w = self.data, self.weight
        others = ~rows

        def mean(values: Array | None, where: Array) -> float:
            """The mean of some values over some rows by weight; NaN of none."""
            mass = w[where].sum()
            return (
                float(w[where] @ values[where] / mass)
                if values is not None and mass > 0
                else math.nan
            )

        if not data.classes:
            predicted, observed = mean(data.decided, rows), mean(data.y, rows)
            event: Array | None = None
            error: Array = np.abs(data.y - data.decided)
            size = max(int(rows.sum()), 2)
            half = (
                self.half_width() * float(np.std((data.y - data.decided)[rows])) / math.sqrt(size)
            )
            low, high = observed - half, observed + half
            if kind == "coverage" and data.low is not None and data.high is not None:
                event = ((data.y < data.low) | (data.y > data.high)).astype(float)
            missed, elsewhere = mean(event, rows), mean(event, others)
        else:
            error = self.errors
            k = label
            happens: Array | None = None if k is None else (data.y == k).astype(float)
            proba = None if data.proba is None or k is None else data.proba[:, k]
            if k is None and data.proba is not None:  # about the model's answers, not about a class
                happens, proba = self._right(), data.proba.max(1)
            observed, predicted = mean(happens, rows), mean(proba, rows)
            size_effective = float(w[rows].sum() ** 2 / (w[rows] ** 2).sum()) if rows.any() else 0.0
            low, high = (
                (math.nan, math.nan)
                if happens is None
                else wilson(observed, size_effective, self.half_width())
            )
            own = np.zeros(len(w), bool) if k is None else data.y == k
            not_found: Array = (data.decided != k).astype(float)
            missed, elsewhere = mean(not_found, rows & own), mean(not_found, others & own)
        return Finding(
            kind, text, conditions, "" if label is None or not data.classes else data.classes[label], int(rows.sum()),
            float(w[rows].sum() / w.sum()), predicted, observed, low, high, mean(error, rows), mean(error, others),
            mean(self.losses, rows), mean(self.losses, others), missed, elsewhere, p_value, rows,
        )  # fmt: skip

    def half_width(self) -> float:
        """In standard errors, of intervals that hold at 95% for all slices that could be told, at once."""
        return float(-ndtri(0.025 / max(self.index.describable, 1)))

    def _errors(self) -> Array:
        """Wrong decisions, 0 or 1, or absolute errors, (n,)."""
        errors: Array = (
            (self.data.decided != self.data.y).astype(float)
            if self.data.classes
            else np.abs(self.data.y - self.data.decided)
        )
        return errors

    def _order_by_errors(self, columns: list[CodedColumn]) -> Any:
        """In which order columns are paired with others, where there are too many for all pairs.

        First those whose values explain most of the errors: by the sum of squares between their
        codes.
        """

        def order(usable: Array) -> list[int]:
            """The numbers of some columns, sorted by it."""
            spread = []
            for i in usable:
                counts = np.bincount(columns[i].codes)
                means = np.bincount(columns[i].codes, weights=self.errors) / np.maximum(counts, 1)
                spread.append(float((counts * (means - self.errors.mean()) ** 2).sum()))
            return [int(usable[k]) for k in np.argsort(-np.array(spread), kind="stable")]

        return order
