"""Out-of-fold predictions, for scikit-learn's estimators and for torch training loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn import get_config
from sklearn.base import clone
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils._indexing import _safe_indexing
from torch import Tensor, nn

from scdro._frames import as_array, is_missing
from scdro._validation import (
    check_class_sizes,
    check_is_dataset,
    check_no_missing,
    check_takes_weights,
    check_trains,
    check_whole,
)
from scdro.data import labels_of
from scdro.errors import DataError, HyperparameterError
from scdro.evaluation import on_device
from scdro.second_look._head import logits_of

__all__ = ["out_of_fold"]

Array = npt.NDArray[Any]
Split = tuple[Array, Array]
LARGE = 20  # samples per group, on average: more than most patients or users have


def out_of_fold(
    train: Callable[[Any], nn.Module],
    dataset: Any,
    folds: int = 2,
    *,
    labels: Any = None,
    batch_size: int = 256,
    seed: int = 0,
) -> Tensor:
    """Class probabilities of every sample, (n, classes), by networks that were not trained on it.

    The samples are split into `folds` parts, stratified by class. For each part, `train` gets a
    `torch.utils.data.Subset` of the others and returns a network, which then predicts the part in evaluation mode.

    Args:
        train: a function that takes a data set and returns a trained network; it is called `folds` times. The network
            returns logits or probabilities of the classes (or an output with `logits`), or one of them for two classes.
            Outputs that are in [0, 1] for all samples (and sum to one, if there are several) are probabilities.
        dataset: a data set of pairs (input, label), with a length; `dataset[i]` must always be the same sample. Every
            class needs two samples or more.
        folds: number of parts, >= 2. Two are enough: the reference need not be as good as the final network.
        labels: the labels of the whole data set, of any kind; by default `scdro.data.labels_of(dataset)`.
        batch_size: batch size of the predictions.
        seed: seed of the split.

    Example:
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
        >>> def train(subset):
        ...     net = nn.Linear(1, 2)
        ...     with torch.no_grad():
        ...         net.weight.copy_(torch.tensor([[-9.0], [9.0]])); net.bias.zero_()
        ...     return net
        >>> proba = out_of_fold(train, data)
        >>> from scdro.second_look import second_look_weights
        >>> proba.shape, second_look_weights(proba, data.tensors[1]).shape
        (torch.Size([40, 2]), torch.Size([40]))
    """
    check_trains(train)
    check_is_dataset(dataset)
    check_whole("batch_size", batch_size)
    n = len(dataset)
    y = as_array(labels_of(dataset) if labels is None else labels)
    if y.shape != (n,):
        raise DataError(f"expected one label for each of the {n} samples, got shape {y.shape}")
    check_no_missing(y, "labels")
    check_class_sizes(y)
    check_whole("folds", folds, 2, n, "at most as many as samples")
    parts: list[Tensor] = []
    order: list[Array] = []
    for seen, unseen in _stratified(np.unique(y, return_inverse=True)[1], folds, seed):
        network = train(torch.utils.data.Subset(dataset, seen.tolist()))
        if not isinstance(network, nn.Module):
            raise HyperparameterError(f"expected train(subset) to return a torch network, got {type(network).__name__}")
        parts.append(_predicted(network, dataset, unseen, batch_size))
        order.append(unseen)
        if parts[-1].shape[1] != parts[0].shape[1]:
            raise DataError(
                f"expected networks with {parts[0].shape[1]} outputs for every fold, got {parts[-1].shape[1]}"
            )
    probabilities = _as_probabilities(torch.cat(parts))  # of all folds at once: a guess about each could differ
    found = torch.zeros_like(probabilities)
    found[torch.as_tensor(np.concatenate(order))] = probabilities
    return found


@torch.no_grad()
def _predicted(network: nn.Module, dataset: Any, rows: Array, batch_size: int) -> Tensor:
    """Outputs, (samples, outputs), on the CPU; the network's mode is restored."""
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    training = network.training
    network.eval()
    try:
        parts = []
        for at in range(0, len(rows), batch_size):
            batch = rows[at : at + batch_size].tolist()
            inputs = torch.utils.data.default_collate([dataset[i][0] for i in batch])
            result = logits_of(network(on_device(inputs, device)))
            if result is None or result.ndim not in (1, 2) or len(result) != len(batch):
                got = "none" if result is None else f"shape {tuple(result.shape)}"
                raise DataError(f"expected outputs ({len(batch)}, classes) for {len(batch)} samples, got {got}")
            if not bool(result.isfinite().all()):
                raise DataError(
                    "expected finite outputs of the network, got NaN or infinite ones; did training diverge?"
                )
            parts.append(result.float().cpu().reshape(len(batch), -1))
    finally:
        network.train(training)
    return torch.cat(parts)


def _as_probabilities(out: Tensor) -> Tensor:
    """Probabilities from logits, or from probabilities; a single output is that of the second of two classes."""
    within = bool(((out >= 0) & (out <= 1)).all())
    if out.shape[1] == 1:
        second = out if within else out.sigmoid()
        return torch.cat([1 - second, second], 1)
    return out if within and torch.allclose(out.sum(1), torch.ones(len(out)), atol=1e-2) else out.softmax(1)


# -- scikit-learn -----------------------------------------------------------------------------------------------------


def partitions(cv: Any, repeats: int, X: Any, y: Array, groups: Any, seed: int, classifier: bool) -> list[list[Split]]:
    """Partitions of the samples into folds: `repeats` of them if cv is a number, as many as a splitter makes.

    A class with fewer members than folds is tested in as many folds as it has members; a single member is in every
    training part and is never tested. If a splitter makes no partitions, all its splits are returned as one.
    """
    n = len(y)
    if groups is not None and (cv is None or isinstance(cv, int | np.integer)):
        number = "5" if cv is None or isinstance(cv, bool) else f"{cv}"
        raise HyperparameterError(
            f"expected a splitter that uses groups, got cv={cv!r}; pass cv=GroupKFold({number})"
            + ("; known groups go to SecondLook(groups=...)" if _look_known(groups) else "")
        )
    if isinstance(cv, int | np.integer):
        check_whole("cv", cv, 2, n, f"the number of folds (at most n_samples = {n}), or a splitter")
        check_whole("repeats", repeats)
        seeds = [int(s) for s in np.random.RandomState(seed).randint(2**31 - 1, size=repeats)]
        if classifier:
            return [_stratified(y, int(cv), s) for s in seeds]
        return [list(KFold(cv, shuffle=True, random_state=s).split(y)) for s in seeds]
    splitter = check_cv(cv, y, classifier=classifier)
    splits = [(np.asarray(seen), np.asarray(unseen)) for seen, unseen in splitter.split(X, y, groups)]
    found: list[list[Split]] = [[]]
    covered = np.zeros(n, bool)
    for seen, unseen in splits:
        if covered[unseen].any():
            return [splits]
        covered[unseen] = True
        found[-1].append((seen, unseen))
        if covered.all():
            found.append([])
            covered[:] = False
    return [splits] if found[-1] else found[:-1]


def _look_known(groups: Any) -> bool:
    """Whether groups are few, or some are missing: those that a model may fail, rather than a patient's samples."""
    names = as_array(groups).ravel().tolist()
    return any(map(is_missing, names)) or LARGE * len(set(map(str, names))) <= len(names)


def _stratified(y: Array, folds: int, seed: int) -> list[Split]:
    """Like StratifiedKFold, for classes of any size."""
    counts = np.unique(y, return_counts=True)[1]
    if counts.min() >= folds:
        return list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(y, y))
    rng = np.random.RandomState(seed)
    member = np.full(len(y), -1)
    start = 0
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        if len(rows) > 1:
            member[rows] = (start + np.arange(len(rows))) % folds
            start += len(rows)
    numbers = np.arange(len(y))
    return [(numbers[member != k], numbers[member == k]) for k in range(folds) if (member == k).any()]


def fit_weighted(estimator: Any, X: Any, y: Array, weights: Array) -> Any:
    """A clone, fitted with sample weights; those of a Pipeline go to its last step."""
    model = clone(estimator)
    if isinstance(model, Pipeline) and not get_config()["enable_metadata_routing"]:
        name, last = model.steps[-1]
        check_takes_weights(last)
        return model.fit(X, y, **{f"{name}__sample_weight": weights})
    return model.fit(X, y, sample_weight=weights)


def cross_fit(
    estimator: Any, X: Any, y: Array, splits: Sequence[Split], weights: Callable[[Array], Array], classes: Array | None
) -> Array:
    """Out-of-fold predictions: probabilities (n, k) if `classes` are given, else those of `predict`, (n,).

    `weights(rows)` returns the weights of a training part. Samples in several test folds get the mean, others NaN.
    """
    total = np.zeros((len(y), 1 if classes is None else len(classes)))
    times = np.zeros((len(y), 1))
    for seen, unseen in splits:
        model = fit_weighted(estimator, _safe_indexing(X, seen), y[seen], weights(seen))
        part = _safe_indexing(X, unseen)
        if classes is None:
            total[unseen, 0] += model.predict(part)
        else:  # 0 for a class that the training part does not have
            total[np.ix_(unseen, np.searchsorted(classes, model.classes_))] += _probabilities(model, part)
        times[unseen] += 1
    found: Array = np.where(times > 0, total / np.maximum(times, 1), np.nan)
    return found[:, 0] if classes is None else found


def _probabilities(model: Any, X: Any) -> Array:
    """The model's probabilities; without `predict_proba`, 1 for the predicted class, enough to see if it is right."""
    if hasattr(model, "predict_proba"):
        proba: Array = model.predict_proba(X)
        return proba
    certain: Array = (model.predict(X)[:, None] == model.classes_).astype(float)
    return certain
