"""repair: fit the last linear layer of a trained network again, on frozen features."""

from __future__ import annotations

import copy
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from scdro._validation import check_budget, check_flag
from scdro.errors import DataError, HyperparameterError, ScdroWarning
from scdro.fix import (
    ConfirmedGroups,
    Gains,
    HeadRefit,
    HeadSettings,
    Verdict,
    balanced_mean,
    gains_of,
)
from scdro.second_look._gallery import Gallery, GallerySettings, cluster_images
from scdro.second_look._head import copy_network, features_of, put_head
from scdro.second_look._slices import Slices, SliceSearch, WeightedRows, describe_slices

__all__ = ["HeadScores", "Repaired", "repair"]

Array = npt.NDArray[Any]


class HeadScores(NamedTuple):
    """Accuracies in [0, 1], of the given head as it is, or of the new one out of fold.

    `hard` is weighted by second looks: the weights are where reference heads, refitted to these
    data, are no better than a guess. These references share no sample with the new head, which is
    fitted to the others: their mistakes are then no more the new head's than the given one's, and
    the two can be compared. Each is fitted to two fifths of the data. With confirmed groups, `hard`
    is the accuracy of the worst of them, within each class.

    Example:
        >>> HeadScores(accuracy=0.96, balanced=0.93, hard=0.47).hard
        0.47
    """

    accuracy: float  # over all samples
    balanced: float  # the mean over classes
    hard: float  # where the reference is no better than a guess, or in the worst confirmed group


@dataclass(frozen=True, eq=False)
class Repaired:
    """The new network, whether it helps, and what is known about each sample, in the order of the data.

    Attributes:
        model: a copy of the given network, with a new head if that helps and the hard samples do
            not lose.
        verdict: a `Verdict`, which `print` shows.
        before: `HeadScores` of the given head.
        after: `HeadScores` of the head of `model`, out of fold.
        weights: the weights of the second look, (n,), with mean one.
        proba: the reference head's out-of-fold probability of each sample's label, (n,).
        labels: the labels, (n,).
        features: the inputs of the head, (n, d).
        right_before: whether the given head is right, (n,).
        right_after: how often the head of `model` is right out of fold, averaged over the
            partitions, (n,).

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
    _settings: HeadSettings = field(repr=False)

    def __str__(self) -> str:
        return str(self.verdict)

    def would_gain(self, slices: Any) -> Gains:
        """What `repair(groups=slice)` would gain for each slice, before anybody confirms it.

        Args:
            slices: of `find_slices` or `gallery`, findings of `scdro.audit`, or a list of these;
                each takes as many fits as `repair`.
        """
        refit = HeadRefit(self._settings, self.features, self.labels)
        return gains_of(
            slices,
            lambda one: ConfirmedGroups.of(one, None, self.labels),
            lambda groups: refit.run(groups).verdict,
        )

    def find_slices(
        self, frame: Any, *, depth: int = 2, max_slices: int = 5, min_size: int = 3, alpha: float = 0.01,
        seed: int = 0, label: str = "label",
    ) -> Slices:  # fmt: skip
        """Describe the samples with more weight: `scdro.find_slices` with weights, labels and scores filled in."""
        search = SliceSearch(depth, max_slices, min_size, alpha, seed, label)
        return describe_slices(self._rows(), frame, search)

    def _rows(self) -> WeightedRows:
        return WeightedRows(self.weights, self.labels, self.right_before, self.right_after)

    def gallery(
        self,
        images: Any,
        *,
        clusters: int = 10,
        across: int = 8,
        max_slices: int = 3,
        names: Any = None,
        seed: int = 0,
    ) -> Gallery:
        """Show the images with more weight: `scdro.second_look.gallery`, with clusters of the head's features."""
        shown = GallerySettings(clusters, across, max_slices, names, seed)
        return cluster_images(self._rows(), images, self.features, shown)


def repair(
    model: nn.Module,
    loader: Any,
    *,
    head: str | None = None,
    budget: float | None = None,
    groups: Any = None,
    refuse: bool = True,
    device: Any = None,
    progress: bool | None = None,
    n_jobs: int | None = None,
    seed: int = 0,
) -> Repaired:
    """Fit the last linear layer of a trained network again, for the group that it fails.

    Without `groups`, nobody needs to know the group:

    1. The inputs of the layer, the features, are computed once.
    2. A reference head is fitted to them out of fold, with the penalty of the smallest log loss.
    3. `second_look_weights` gives weight to the samples where the reference is no better than a
       guess.
    4. Heads with these weights and several penalties are compared out of fold.
    5. If the verdict is that the best one helps, or that class weights do, it is solved exactly and
       put into a copy of the network. If nothing stands out, but a plain head fitted to these data
       is clearly better than the given one, that is used. The given model never changes, even if
       you interrupt.
    6. The given head is kept where the hard samples would lose by the new one (`before.hard`,
       `after.hard`): data with a shortcut favour a head that uses it, and the given one may not. A
       plain head must gain clearly there. A given head that is no better than a guess has nothing
       to lose.

    Apart from that, the verdict compares heads fitted to these data. A head that was trained well
    on far more data may be better than all of them: compare `model` with the given one on
    held-out data (`scdro.fix.compare`).

    Args:
        model: a classifier whose output (or whose output's `logits`) is that of an `nn.Linear`, as
            it is or as probabilities. The result for a compiled network is not compiled.
        loader: batches (inputs, labels, ...), or dictionaries with the network's arguments and
            "labels", as Hugging Face's are; what follows the labels, such as an index, is left out.
            Use data that the network was not trained on: it may have memorised its training data. A
            DataLoader that shuffles is read in the order of its data set.
        head: name of the layer, such as "fc"; None finds it.
        budget: the largest loss of out-of-fold accuracy allowed, as a share; None for no bound.
        groups: confirmed groups of the samples, in the order of the data: a finding of
            `scdro.audit`, a slice of `find_slices`, a mask, or one value a sample. Steps 3 to 5
            then have equal weights of the groups within each class, and the worst of them decides;
            the given head is kept where it would lose.
        refuse: whether the copy keeps the given head, with a warning, if the verdict is no.
        device: where to compute the features; by default the model's device.
        progress: whether to show progress on stderr; by default if that is a terminal.
        n_jobs: number of processes, as in scikit-learn; the result is the same for any number.
        seed: seed of the folds.

    Example:
        >>> import torch
        >>> _ = torch.manual_seed(2)
        >>> y = torch.arange(600) % 2
        >>> shortcut = torch.where(torch.rand(600) < 0.95, y, 1 - y) + 0.1 * torch.randn(600)
        >>> x = torch.stack([shortcut, y + 0.25 * torch.randn(600)], 1)
        >>> model = nn.Sequential(nn.Identity(), nn.Linear(2, 2))
        >>> data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=100)
        >>> fixed = repair(model, data, progress=False)  # its layer was never trained
        >>> fixed.verdict.answer, fixed.model is model
        ('helps', False)

    Reference: DFR (Kirichenko et al., ICLR 2023) retrains the last layer for groups, with group
    labels.
    """
    if budget is not None:
        check_budget(budget)
    check_flag("refuse", refuse)
    new = copy_network(model)
    modes = [module.training for module in new.modules()]
    home = {p.device for p in new.parameters()}
    if device is not None and len(home) > 1:
        raise HyperparameterError(
            f"expected device=None for a network on several devices, {home}, got {device!r}"
        )
    with torch.random.fork_rng(devices=[]):  # every pass over a DataLoader draws a number
        name, X, y = features_of(new, loader, head, device)
    layer = new.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    _check_labels(y, max(layer.out_features, 2), name)
    confirmed = None if groups is None else ConfirmedGroups.of(groups, None, y)
    show = sys.stderr.isatty() if progress is None else bool(progress)
    # put_head changes the layer of the copy; the given one is needed by `would_gain`
    settings = HeadSettings(copy.deepcopy(layer), budget, refuse, show, seed, n_jobs)
    refit = HeadRefit(settings, X, y)
    result = refit.run(confirmed)
    if result.solution is None:
        answer = result.verdict.answer
        warnings.warn(
            f"the given head is kept: {answer}; see the verdict", ScdroWarning, stacklevel=2
        )
    else:
        put_head(new, name, *result.solution)
    if device is not None and home:
        new.to(home.pop())
    for module, training in zip(new.modules(), modes, strict=True):
        module.training = training
    given, right = refit.given, result.right
    before = HeadScores(float(given.mean()), balanced_mean(given, y), result.hard_before)
    after = HeadScores(float(right.mean()), balanced_mean(right, y), result.hard_after)
    look = result.look
    return Repaired(
        new, result.verdict, before, after, look.weights, look.of_label, y, X, given, right,
        settings,
    )  # fmt: skip


def _check_labels(y: Array, classes: int, name: str) -> None:
    """Raise unless labels are outputs of the layer, with at least two samples of each class."""
    counts = np.bincount(y, minlength=classes) if len(y) and y.min() >= 0 else np.zeros(0)
    if len(counts) != classes:
        raise DataError(
            f"expected labels 0 to {classes - 1}, the outputs of {name!r}, got"
            f" {np.unique(y)[:10].tolist()}"
        )
    if counts.min() < 2:
        few = np.flatnonzero(counts < 2)[:10].tolist()
        raise DataError(
            f"expected at least two samples of every class of {name!r}, got fewer of {few}"
        )
