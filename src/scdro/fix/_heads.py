"""The last linear layer of a network, fitted again on frozen features: the remedy of `repair`.

    reference   the penalty of the smallest log loss, classes weighted equally    _reference_penalty
    remedy      `examine`, with strong penalties for a second look, and a wider   _refit
                choice for confirmed groups
    kept        the given head, where the hard samples (or the worst confirmed    _kept_if_they_lose
                group) would lose
    solution    the chosen head fitted to all samples, to the exact minimum       _solved

Features are standardised; the solution is that of the layer for the features as they are. A layer
with two outputs is one row of coefficients here: their difference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from torch import nn

from scdro.fix._criteria import WorstCell, paired
from scdro.fix._decide import CLEARLY
from scdro.fix._examine import Examined, LookSettings, examine
from scdro.fix._folds import FitProgress, FoldPlan, partitions, predict_out_of_fold
from scdro.fix._groups import ConfirmedGroups
from scdro.fix._verdict import (
    BALANCED,
    GROUPS,
    NO_HARD_GAIN,
    NOT_HELPED,
    NOT_SEEN,
    PLAIN,
    REFIT,
    SECOND,
    THRESHOLD,
    Verdict,
)
from scdro.fix._weights import FEW, balanced, look_weights

__all__ = ["HeadRefit", "HeadSettings", "RefittedHead", "balanced_mean"]

Array = npt.NDArray[Any]

# On features with mean zero and variance one. The first model should be sharp, the second strongly
# penalised.
REFERENCE_PENALTIES = tuple(10.0**k for k in range(-4, 1))
SECOND_PENALTIES = tuple(10.0**k for k in range(-7, -1))
GROUP_PENALTIES = tuple(10.0**k for k in range(-6, 1))  # where groups are confirmed
FOLDS = 5
MEMORISED = (
    0.998  # out-of-fold accuracy above which the network was probably trained on these samples
)


class RefittedHead(NamedTuple):
    """The new head, or none, and what is known about it."""

    verdict: Verdict  # about it
    look: Examined  # weights and scores
    solution: tuple[Array, Array] | None  # weight and bias of the layer; None: the given one stays
    right: Array  # (n,), of the head of the result, out of fold
    hard_before: float  # accuracy of the given head on the hard samples
    hard_after: float  # and of the result's


class HeadSettings(NamedTuple):
    """The given layer, and how it is fitted again: the arguments of `repair`."""

    layer: nn.Linear
    budget: float | None
    refuse: bool
    show: bool
    seed: int
    n_jobs: int | None


class HeadRefit:
    """Heads fitted to the features of one layer."""

    def __init__(self, settings: HeadSettings, X: Array, y: Array) -> None:
        self.settings, self.y = settings, y
        layer = settings.layer
        self.scaled = _Scaled.of(X, layer)
        self.Z = (X - self.scaled.centre) / self.scaled.scale
        self.given = _given_scores(self.scaled.standardised(layer), self.Z, y)
        self.intercept = layer.bias is not None
        # Fits that only choose take half of the time in single precision, and choose the same.
        self.Z_fast = self.Z.astype(np.float32)

    def run(self, confirmed: ConfirmedGroups | None) -> RefittedHead:
        """The head that these samples ask for, and the verdict about it."""
        penalties = SECOND_PENALTIES if confirmed is None else GROUP_PENALTIES
        head = _logistic(1.0, self.intercept)  # the penalty is chosen first
        look = LookSettings(
            head, [{"C": C} for C in penalties], reference=head, cv=FOLDS, budget=self.settings.budget,
            refuse=self.settings.refuse, n_jobs=self.settings.n_jobs, random_state=self.settings.seed,
        )  # fmt: skip
        fits = look.count_fits(confirmed is not None) + FOLDS * len(REFERENCE_PENALTIES)
        fits += 0 if confirmed is not None else FOLDS * 4
        tell = FitProgress("repair", fits, self.settings.show)
        try:
            found = self._refit(look, confirmed, tell)
        finally:
            tell.close()
        return found._replace(verdict=replace(found.verdict, fits=tell.done))

    def _refit(
        self, look: LookSettings, confirmed: ConfirmedGroups | None, tell: FitProgress
    ) -> RefittedHead:
        """The order of this file's head: reference, remedy, whether the given head is kept, solution."""
        y, ones = self.y, np.ones(len(self.y))
        penalty, accuracy = self._reference_penalty(tell)
        head = look.estimator.set_params(C=penalty)
        found = examine(look, self.Z_fast, y, ones, None, confirmed, tell)
        kind, verdict = self._new_head(found, accuracy)
        if kind == THRESHOLD and not self.intercept:  # thresholds are a layer's bias
            kind, verdict = None, replace(verdict, answer=_nothing_done(verdict), used=PLAIN)
        weights = {BALANCED: balanced(ones, y), SECOND: found.weights, GROUPS: found.weights}.get(
            kind or PLAIN, ones
        )
        C = verdict.chosen.get("C", penalty) if kind in (SECOND, GROUPS) else penalty
        right = self.given if kind is None else found.scores[kind]
        hard = (
            self._on_the_hard(head, weights, C, tell)
            if confirmed is None
            else self._in_the_groups(confirmed, right)
        )
        if kind is not None:
            kind, verdict = self._kept_if_they_lose(kind, verdict, hard, right)
        if kind is None:
            return RefittedHead(verdict, found, None, self.given, hard.before, hard.before)
        moves = found.offsets if kind == THRESHOLD else None
        solution = self._solved(weights, C, moves)
        return RefittedHead(verdict, found, solution, right, hard.before, hard.after)

    def _solved(self, weights: Array, C: float, moves: Array | None) -> tuple[Array, Array]:
        """Weight and bias of the layer, for features as they are; `moves` are offsets of the classes."""
        exact = _logistic(C, self.intercept).set_params(tol=1e-7, max_iter=100_000)
        exact.fit(self.Z, self.y, weights)
        bias = exact.intercept_
        if moves is not None:
            bias = bias + (moves[1:] - moves[:1] if len(bias) == 1 else moves)
        return self.scaled.raw(exact.coef_, bias)

    def _reference_penalty(self, tell: Callable[[str], None]) -> tuple[float, float]:
        """The penalty with the smallest out-of-fold log loss, classes weighted equally, and its accuracy."""
        Z, y = self.Z_fast, self.y
        splits = partitions(FOLDS, 1, Z, y, None, self.settings.seed, classifier=True)[0]

        def in_balance(rows: Array) -> Array:
            return balanced(np.ones(len(rows)), y[rows], FEW * len(rows) / len(y))

        plans = [
            FoldPlan(_logistic(C, self.intercept), splits, in_balance, f"reference: C = {C:g}")
            for C in REFERENCE_PENALTIES
        ]
        classes = np.arange(int(y.max()) + 1)
        found = []
        predicted = predict_out_of_fold(plans, Z, y, classes, self.settings.n_jobs, tell)
        for C, proba in zip(REFERENCE_PENALTIES, predicted, strict=True):
            losses = -np.log(proba[np.arange(len(y)), y].clip(1e-12))
            found.append((balanced_mean(losses, y), C, float((proba.argmax(1) == y).mean())))
        _, penalty, accuracy = min(found)
        return penalty, accuracy

    def _on_the_hard(
        self, head: LogisticRegression, weights: Array, C: float, tell: Callable[[str], None]
    ) -> _Hard:
        """The given head and one fitted with these weights, where a reference fitted to none of its samples is unsure.

        A second look weighs samples that its reference gets wrong, in part by the chance of what it
        was fitted to. A head fitted to the same samples repeats some of these mistakes, and the
        given head, fitted to others, does not: it would seem better than it is. So every test fold
        has a reference from one half of the other folds and a new head from the other half, both
        ways.
        """
        Z, y, seed = self.Z_fast, self.y, self.settings.seed
        new = clone(head).set_params(C=C)
        splits: list[list[tuple[Array, Array]]] = [[], []]
        for seen, unseen in partitions(FOLDS, 1, Z, y, None, seed, classifier=True)[0]:
            parts = partitions(2, 1, Z[seen], y[seen], None, seed, classifier=True)[0]
            halves = [seen[part] for part, _ in parts]
            splits[0].append((halves[0], unseen))
            splits[1].append((halves[-1], unseen))

        def even(part: Array) -> Array:
            return balanced(np.ones(len(part)), y[part])

        def own(part: Array) -> Array:
            chosen: Array = weights[part]
            return chosen

        plans = []
        for first, second in (splits, splits[::-1]):
            plans += [
                FoldPlan(head, first, even, "hard samples"),
                FoldPlan(new, second, own, "hard samples"),
            ]
        classes = np.arange(int(y.max()) + 1)
        predicted = predict_out_of_fold(plans, Z, y, classes, self.settings.n_jobs, tell)
        hard = [look_weights(p[np.arange(len(y)), y], y).weights for p in predicted[::2]]
        right = [(p.argmax(1) == y).astype(float) for p in predicted[1::2]]
        given = self.given
        gain, error = np.mean(
            [paired(r, given, w) for r, w in zip(right, hard, strict=True)], 0
        ).tolist()
        before, after = (np.mean([np.average(r, weights=w) for r, w in zip(each, hard, strict=True)])
                         for each in ((given, given), right))  # fmt: skip
        return _Hard(float(before), float(after), gain, error)

    def _in_the_groups(self, confirmed: ConfirmedGroups, right: Array) -> _Hard:
        """The worst confirmed group, of the given head and of the new one."""
        base, classes = np.ones(len(self.y)), np.arange(int(self.y.max()) + 1)
        cells = confirmed.cells(self.y, classes, base)
        criterion = WorstCell.of(cells.numbers, cells.names, base)
        before, after = (criterion.of_rows(each) for each in (self.given, right))
        gain, error = criterion.gain(after, before)
        return _Hard(criterion.score(before), criterion.score(after), gain, error)

    def _new_head(self, look: Examined, accuracy: float) -> tuple[str | None, Verdict]:
        """Which head these samples ask for, None for the given one, and the verdict about it.

        The verdict is about heads fitted to these samples. Where none of them is used, a plain one
        may still be better than the given head, which was fitted to others.
        """
        verdict, given = look.verdict, self.given
        here = (
            "Before and after are of heads fitted to these samples; the given head is right for"
            f" {_percent(given.mean())}."
        )
        if self.settings.refuse and accuracy >= MEMORISED and given.mean() >= MEMORISED:
            note = (
                f"Even out of fold, {_percent(accuracy)} are right: the network may have memorised"
                " these samples. Pass data that the network was not trained on; refuse=False repairs"
                " it anyway."
            )
            return None, replace(
                verdict, answer=_nothing_done(verdict), used=PLAIN, note=note, over_budget=False
            )
        if verdict.used != PLAIN:
            return verdict.used, replace(verdict, note=f"{verdict.note} {here}".strip())
        gain, error = paired(look.scores[PLAIN], given, np.ones(len(given)))
        if gain > CLEARLY * error:
            return PLAIN, replace(verdict, answer=REFIT, note=here, over_budget=False)
        advice = (
            "Training the whole network again with weights (out_of_fold, second_look_weights) can gain"
            " where a new last layer does not."
        )
        return None, replace(verdict, note=" ".join(filter(None, [verdict.note, here, advice])))

    def _kept_if_they_lose(
        self, kind: str, verdict: Verdict, hard: _Hard, right: Array
    ) -> tuple[str | None, Verdict]:
        """Keep the given head, with the reason, where the hard samples lose by the new one.

        On data with a shortcut, a head that uses it is better than one that does not, on average.
        So a plain head, which only the average speaks for, must also gain clearly where the
        shortcut fails.
        """
        given, y = self.given, self.y
        every = balanced(np.ones(len(y)), y)
        lead, error = paired(given, np.full(len(y), 1 / (int(y.max()) + 1)), every)
        if lead <= CLEARLY * error:  # no better than a guess
            return kind, verdict
        gains = hard.gain > CLEARLY * hard.error if kind == PLAIN else hard.gain >= 0
        if gains:
            return kind, verdict
        named = {
            PLAIN: "a plain head",
            THRESHOLD: "a plain head with other thresholds",
            GROUPS: "a head with equal weights of the groups",
            BALANCED: "a head with class weights",
            SECOND: "a head with the second look's weights",
        }
        where = "In the worst of the groups" if kind == GROUPS else "On the hard samples (weighted)"
        note = (
            f"{where}, the given head is right for {_percent(hard.before)} and"
            f" {named[kind]} fitted to these samples for {_percent(hard.after)} (change"
            f" {100 * hard.gain:+.1f} points, standard error {100 * hard.error:.1f}). On all of them"
            f" the given head is right for {_percent(given.mean())}, the other for"
            f" {_percent(right.mean())}."
        )
        if not self.settings.refuse:
            return kind, replace(verdict, note=f"{note} It is replaced because of refuse=False.")
        why = (
            "If these samples have a shortcut that the given head does not use, a head fitted to them"
            " would use it; if the given head was fitted to these very samples, its score on them says"
            " little, and others are needed. refuse=False takes a head with the second look's weights"
            " anyway."
        )
        return None, replace(
            verdict, answer=NO_HARD_GAIN, used=PLAIN, note=f"{note} {why}", over_budget=False
        )


def _nothing_done(verdict: Verdict) -> str:
    """The answer where the given head stays: a group that a person confirmed is seen."""
    return NOT_HELPED if verdict.confirmed else NOT_SEEN


def _percent(share: float) -> str:
    """A share with one digit, in percent."""
    return f"{100 * share:.1f}%"


class _Scaled(NamedTuple):
    """z = (x - centre)/scale. The centre is zero for a layer without a bias, which could not absorb it."""

    centre: Array  # (d,)
    scale: Array  # (d,), 1 for a feature that does not vary

    @classmethod
    def of(cls, X: Array, layer: nn.Linear) -> _Scaled:
        """Mean and standard deviation of the features, (n, d)."""
        mean, scale = X.mean(0), X.std(0)
        scale = np.where(scale > 1e-12 * (1 + np.abs(mean)), scale, 1.0)
        return cls(mean if layer.bias is not None else np.zeros_like(mean), scale)

    def standardised(self, layer: nn.Linear) -> tuple[Array, Array]:
        """The layer's coefficients and intercepts for inputs z; one row for two classes."""
        W = layer.weight.detach().double().cpu().numpy()
        b = np.zeros(len(W)) if layer.bias is None else layer.bias.detach().double().cpu().numpy()
        if len(W) == 2:
            W, b = W[1:] - W[:1], b[1:] - b[:1]
        return W * self.scale, b + W @ self.centre

    def raw(self, coef: Array, intercept: Array) -> tuple[Array, Array]:
        """The same coefficients for inputs x."""
        W = coef / self.scale
        return W, intercept - W @ self.centre


def _logistic(C: float, intercept: bool) -> LogisticRegression:
    """The model of a head; with `intercept`, a bias that is not penalised."""
    return LogisticRegression(C=C, fit_intercept=intercept, max_iter=1000)


class _Hard(NamedTuple):
    """Accuracy on the hard samples, or in the worst confirmed group, of the given head and of a new one; the difference
    and its standard error."""

    before: float  # of the given head
    after: float  # of the new one
    gain: float  # of the new one over the given one
    error: float  # standard error of the gain


def _given_scores(old: tuple[Array, Array], Z: Array, y: Array) -> Array:
    """Whether the given head is right, 1 or 0."""
    scores = Z @ old[0].T + old[1]
    predicted = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(1)
    right: Array = (predicted == y).astype(float)
    return right


def balanced_mean(right: Array, y: Array) -> float:
    """The mean over classes of the means within them."""
    return float(np.mean([right[y == k].mean() for k in np.unique(y)]))
