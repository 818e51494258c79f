"""repair: fit the last linear layer of a trained network again, on frozen features."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from scdro._validation import check_budget, check_choice, check_flag
from scdro.errors import DataError, HyperparameterError, ScdroWarning
from scdro.linear_model._head_solver import HeadSolver
from scdro.second_look._examine import Examined, LookSettings, examine
from scdro.second_look._folds import cross_fit, partitions
from scdro.second_look._gallery import Gallery, clustered
from scdro.second_look._head import copied, features_of, put_head
from scdro.second_look._slices import Slices, described
from scdro.second_look._verdict import BALANCED, CLEARLY, NOTHING, PLAIN, REFIT, SECOND, Verdict, paired
from scdro.second_look._weights import FEW, balanced

__all__ = ["HeadScores", "Repaired", "repair"]

Array = npt.NDArray[Any]

# On features with mean zero and variance one. The first model should be sharp, the second strongly penalised.
REFERENCE_PENALTIES = tuple(10.0**k for k in range(-4, 1))
SECOND_PENALTIES = tuple(10.0**k for k in range(-7, -1))
FOLDS = 5
MEMORISED = 0.998  # out-of-fold accuracy above which the network was probably trained on these samples


class HeadScores(NamedTuple):
    """Accuracies in [0, 1], of the given head as it is, or of the new one out of fold.

    `hard` is weighted by the second look, where the reference, a head refitted to these data, is no better than a
    guess. The weights are chosen against the reference, not against the given head, so the given head's `hard` may be
    higher although the new head is better.

    Example:
        >>> HeadScores(accuracy=0.96, balanced=0.93, hard=0.47).hard
        0.47
    """

    accuracy: float
    balanced: float
    hard: float

    @classmethod
    def of(cls, right: Array, y: Array, weights: Array) -> HeadScores:
        """Scores of a head, given for each sample whether it is right, 1 or 0."""
        return cls(float(right.mean()), _balanced_mean(right, y), float(weights @ right / weights.sum()))


@dataclass(frozen=True, eq=False)
class Repaired:
    """The new network, whether it helps, and what is known about each sample, in the order of the data.

    Attributes:
        model: a copy of the given network, with a new head if that helps.
        verdict: a `Verdict`; print it.
        before: `HeadScores` of the given head.
        after: `HeadScores` of the head of `model`, out of fold.
        weights: the weights of the second look, (n,), with mean one.
        proba: the reference head's out-of-fold probability of each sample's label, (n,).
        labels: the labels, (n,).
        features: the inputs of the head, (n, d).
        right_before: whether the given head is right, (n,).
        right_after: how often the head of `model` is right out of fold, averaged over the partitions, (n,).

    Example:
        >>> list(Repaired.__dataclass_fields__)[:4]
        ['model', 'verdict', 'before', 'after']
    """

    model: nn.Module = field(repr=False)
    verdict: Verdict
    before: HeadScores
    after: HeadScores
    weights: Array = field(repr=False)
    proba: Array = field(repr=False)
    labels: Array = field(repr=False)
    features: Array = field(repr=False)
    right_before: Array = field(repr=False)
    right_after: Array = field(repr=False)

    def find_slices(
        self, frame: Any, *, depth: int = 2, max_slices: int = 5, min_size: int = 3, alpha: float = 0.01,
        seed: int = 0, label: str = "label",
    ) -> Slices:  # fmt: skip
        """Describe the samples with more weight: `scdro.find_slices` with weights, labels and scores filled in."""
        return described(
            self.weights, frame, self.labels, self.right_before, self.right_after, depth=depth, max_slices=max_slices,
            min_size=min_size, alpha=alpha, seed=seed, label=label,
        )  # fmt: skip

    def gallery(
        self, images: Any, *, clusters: int = 10, across: int = 8, max_slices: int = 3, names: Any = None, seed: int = 0
    ) -> Gallery:
        """Show the images with more weight: `scdro.second_look.gallery`, with clusters of the head's features."""
        return clustered(
            self.weights, images, self.features, self.labels, self.right_before, self.right_after, clusters=clusters,
            across=across, max_slices=max_slices, names=names, seed=seed,
        )  # fmt: skip


def repair(
    model: nn.Module,
    loader: Any,
    *,
    head: str | None = None,
    towards: str | None = None,
    budget: float | None = None,
    refuse: bool = True,
    device: Any = None,
    progress: bool = True,
    seed: int = 0,
) -> Repaired:
    """Fit the last linear layer of a trained network again, for the group that it fails, without group labels.

    1. The inputs of the layer, the features, are computed once.
    2. A reference head is fitted to them out of fold, with the penalty of the smallest log loss.
    3. `second_look_weights` gives weight to the samples where the reference is no better than a guess.
    4. Heads with these weights and several penalties are compared out of fold.
    5. If the verdict is that the best one helps, it is solved exactly and put into a copy of the network. If nothing
       stands out, but a plain head fitted to these data is clearly better than the given one, that is used. The given
       model never changes, even if you interrupt.

    Apart from that, the verdict compares heads fitted to these data. A head that was trained well on far more data may
    be better than all of them: then use `towards="old"`, and compare `model` with the given one on held-out data.

    Args:
        model: a classifier whose output (or whose output's `logits`) is that of an `nn.Linear`, as it is or as
            probabilities. The result for a compiled network is not compiled.
        loader: batches (inputs, labels), (input, input, labels), or dictionaries with "labels", as Hugging Face's
            are. Use data that the network was not trained on: it may have memorised its training data. A DataLoader
            that shuffles is read in the order of its data set.
        head: name of the layer, such as "fc"; None finds it.
        towards: "old" for a penalty on the distance to the given head (on standardised features), which is safer with
            few samples; None for a penalty on the size of the coefficients.
        budget: the largest loss of out-of-fold accuracy allowed, as a share; None for no bound.
        refuse: whether the copy keeps the given head, with a warning, if the verdict is no.
        device: where to compute the features; by default the model's device.
        progress: whether to show progress on stderr.
        seed: seed of the folds.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(2)
        >>> y = torch.arange(600) % 2
        >>> shortcut = torch.where(torch.rand(600) < 0.95, y, 1 - y) + 0.1 * torch.randn(600)
        >>> x = torch.stack([shortcut, y + 0.25 * torch.randn(600)], 1)
        >>> model = nn.Sequential(nn.Identity(), nn.Linear(2, 2))
        >>> data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=100)
        >>> fixed = repair(model, data, progress=False)
        >>> fixed.verdict.answer, fixed.model is model
        ('helps', False)

    Reference: DFR (Kirichenko et al., ICLR 2023) retrains the last layer for groups, with group labels.
    """
    if towards is not None:
        check_choice("towards", towards, ("old",))
    if budget is not None:
        check_budget(budget)
    check_flag("refuse", refuse)
    new = copied(model)
    modes = [module.training for module in new.modules()]
    home = {p.device for p in new.parameters()}
    if device is not None and len(home) > 1:
        raise HyperparameterError(f"expected device=None for a network on several devices, {home}, got {device!r}")
    with _shown(progress) as tell:
        with torch.random.fork_rng(devices=[]):  # every pass over a DataLoader draws a number
            name, X, y = features_of(new, loader, head, device, tell)
        layer = new.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        _check_labels(y, max(layer.out_features, 2), name)
        scaled = _Scaled.of(X, layer)
        Z = (X - scaled.centre) / scaled.scale
        old = scaled.standardised(layer)
        given = _given_scores(old, Z, y)
        intercept = layer.bias is not None
        start = old if towards == "old" else None

        penalty, accuracy = _reference_penalty(Z, y, intercept, seed, tell)
        look = _looked(Z, y, penalty, intercept, start, seed, budget, refuse, tell)
        verdict = _with_the_given_head(look, given, accuracy, refuse)
        right, solution = given, None
        if verdict.used != PLAIN or verdict.answer == REFIT:
            right = look.scores[verdict.used]
            weights = {PLAIN: np.ones(len(y)), BALANCED: balanced(np.ones(len(y)), y), SECOND: look.weights}
            C = verdict.chosen.get("C", penalty) if verdict.used == SECOND else penalty
            solution = HeadSolver(C, start, intercept, tol=1e-6).fit(Z, y, weights[verdict.used])
    if solution is None:
        warnings.warn(f"the given head is kept: {verdict.answer}; see the verdict", ScdroWarning, stacklevel=2)
    else:
        put_head(new, name, *scaled.raw(solution.coef_, solution.intercept_))
    if device is not None and home:
        new.to(home.pop())
    for module, training in zip(new.modules(), modes, strict=True):
        module.training = training
    before, after = (HeadScores.of(each, y, look.weights) for each in (given, right))
    return Repaired(new, verdict, before, after, look.weights, look.of_label, y, X, given, right)


def _with_the_given_head(look: Examined, given: Array, accuracy: float, refuse: bool) -> Verdict:
    """The verdict is about heads fitted to these samples. Where none of them is used, a plain one may still be better
    than the given head, which was fitted to others."""
    verdict = look.verdict
    here = (
        f"Before and after are of heads fitted to these samples; the given head is right for {_percent(given.mean())}."
    )
    if refuse and accuracy >= MEMORISED and given.mean() >= MEMORISED:
        note = (
            f"Even out of fold, {_percent(accuracy)} are right: the network may have memorised these samples. Pass "
            "data that the network was not trained on; refuse=False repairs it anyway."
        )
        return replace(verdict, answer=NOTHING, used=PLAIN, note=note)
    if verdict.used != PLAIN:
        return replace(verdict, note=f"{verdict.note} {here}".strip())
    gain, error = paired(look.scores[PLAIN], given, np.ones(len(given)))
    if gain > CLEARLY * error:
        return replace(verdict, answer=REFIT, note=here, over_budget=False)
    advice = (
        "Training the whole network again with weights (out_of_fold, second_look_weights) can gain where a new last "
        "layer does not."
    )
    return replace(verdict, note=" ".join(filter(None, [verdict.note, here, advice])))


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _check_labels(y: Array, classes: int, name: str) -> None:
    counts = np.bincount(y, minlength=classes) if len(y) and y.min() >= 0 else np.zeros(0)
    if len(counts) != classes:
        raise DataError(
            f"expected labels 0 to {classes - 1}, the outputs of {name!r}, got {np.unique(y)[:10].tolist()}"
        )
    if counts.min() < 2:
        few = np.flatnonzero(counts < 2)[:10].tolist()
        raise DataError(f"expected at least two samples of every class of {name!r}, got fewer of {few}")


# -- heads ------------------------------------------------------------------------------------------------------------


class _Scaled(NamedTuple):
    """z = (x - centre)/scale. The centre is zero for a layer without a bias, which could not absorb it."""

    centre: Array
    scale: Array

    @classmethod
    def of(cls, X: Array, layer: nn.Linear) -> _Scaled:
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


def _reference_penalty(
    Z: Array, y: Array, intercept: bool, seed: int, tell: Callable[[str], None]
) -> tuple[float, float]:
    """The penalty with the smallest out-of-fold log loss, classes weighted equally, and its accuracy."""
    splits = partitions(FOLDS, 1, Z, y, None, seed, classifier=True)[0]
    classes = np.arange(int(y.max()) + 1)
    found = []

    def in_balance(rows: Array) -> Array:
        return balanced(np.ones(len(rows)), y[rows], FEW * len(rows) / len(y))

    for C in REFERENCE_PENALTIES:
        tell(f"reference: C = {C:g}")
        head = _reference(C, intercept)
        proba = cross_fit(head, Z, y, splits, in_balance, classes)
        losses = -np.log(proba[np.arange(len(y)), y].clip(1e-12))
        found.append((_balanced_mean(losses, y), C, float((proba.argmax(1) == y).mean())))
    _, penalty, accuracy = min(found)
    return penalty, accuracy


def _reference(C: float, intercept: bool) -> LogisticRegression:
    return LogisticRegression(C=C, fit_intercept=intercept, max_iter=1000)


def _looked(
    Z: Array, y: Array, penalty: float, intercept: bool, start: tuple[Array, Array] | None, seed: int,
    budget: float | None, refuse: bool, tell: Callable[[str], None],
) -> Examined:  # fmt: skip
    reference = _reference(penalty, intercept)
    head = reference if start is None else HeadSolver(penalty, start, intercept)
    candidates = [{"C": C} for C in SECOND_PENALTIES]
    look = LookSettings(head, candidates, reference, cv=FOLDS, budget=budget, refuse=refuse, random_state=seed)
    return examine(look, Z, y, np.ones(len(y)), tell=tell)


def _given_scores(old: tuple[Array, Array], Z: Array, y: Array) -> Array:
    """Whether the given head is right, 1 or 0."""
    scores = Z @ old[0].T + old[1]
    predicted = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(1)
    right: Array = (predicted == y).astype(float)
    return right


def _balanced_mean(right: Array, y: Array) -> float:
    return float(np.mean([right[y == k].mean() for k in np.unique(y)]))


# -- progress ---------------------------------------------------------------------------------------------------------


@contextmanager
def _shown(progress: bool) -> Iterator[Callable[[str], None]]:
    """Show the current stage and the elapsed time in one line on stderr."""
    start, last = time.monotonic(), 0.0

    def tell(what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if progress and now - last > 0.2:
            last = now
            sys.stderr.write(f"\rrepair, {now - start:.0f} s: {what:<50}")
            sys.stderr.flush()

    try:
        yield tell
    finally:
        if progress:
            sys.stderr.write(f"\rrepair: {time.monotonic() - start:.1f} s{'':<60}\n")
