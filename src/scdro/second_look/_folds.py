"""Out-of-fold predictions, for scikit-learn's estimators and for torch training loops."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn import get_config
from sklearn.base import clone, is_classifier
from sklearn.model_selection import KFold, StratifiedKFold, check_cv
from sklearn.pipeline import Pipeline
from sklearn.utils._indexing import _safe_indexing
from sklearn.utils.validation import has_fit_parameter
from torch import Tensor, nn

from scdro._validation import check_whole
from scdro.errors import DataError, HyperparameterError
from scdro.second_look._head import logits_of

__all__ = ["out_of_fold"]

Array = npt.NDArray[Any]
Split = tuple[Array, Array]


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
        train: a function of a data set that returns a trained network; it is called `folds` times. The network returns
            logits or probabilities of the classes (or an output with `logits`), or one of them for two classes.
        dataset: a data set of pairs (input, label), with a length; `dataset[i]` must always be the same sample.
        folds: number of parts, >= 2. Two are enough: the reference need not be as good as the final network.
        labels: the labels of the whole data set; by default its `targets`, or read item by item.
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
    if isinstance(train, nn.Module) or not callable(train):
        raise HyperparameterError(
            f"expected train, a function of a data set that returns a trained network, got a {type(train).__name__}"
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"expected a data set with a length and dataset[i], got a {type(dataset).__name__}; of a DataLoader, give "
            "its dataset"
        )
    n = len(dataset)
    item = dataset[0] if n else None
    if not isinstance(item, tuple | list) or len(item) < 2:
        got = f"a {type(item).__name__}" if n else "an empty data set"
        raise DataError(f"expected items (input, label), got {got}; of two tensors, make TensorDataset(x, y)")
    y = np.asarray(_labels_of(dataset) if labels is None else torch.as_tensor(labels).cpu().numpy())
    if y.shape != (n,):
        raise DataError(f"expected one label for each of the {n} samples, got shape {y.shape}")
    check_whole("folds", folds, 2, n, "at most as many as samples")
    found: Tensor | None = None
    for seen, unseen in _stratified(y, folds, seed):
        network = train(torch.utils.data.Subset(dataset, seen.tolist()))
        if not isinstance(network, nn.Module):
            raise HyperparameterError(f"expected train(subset) to return a torch network, got {type(network).__name__}")
        proba = _predicted(network, dataset, unseen, batch_size)
        found = torch.zeros(n, proba.shape[1]) if found is None else found
        if proba.shape[1] != found.shape[1]:
            raise DataError(f"expected networks with {found.shape[1]} outputs for every fold, got {proba.shape[1]}")
        found[torch.as_tensor(unseen)] = proba
    assert found is not None
    return found


@torch.no_grad()
def _predicted(network: nn.Module, dataset: Any, rows: Array, batch_size: int) -> Tensor:
    """Probabilities, on the CPU; the network's mode is restored."""
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    training = network.training
    network.eval()
    try:
        parts = []
        for at in range(0, len(rows), batch_size):
            inputs = torch.utils.data.default_collate([dataset[i][0] for i in rows[at : at + batch_size].tolist()])
            result = logits_of(network(inputs.to(device)))
            if result is None or result.ndim != 2:
                got = "none" if result is None else f"shape {tuple(result.shape)}"
                raise DataError(f"expected outputs (samples, classes) of the network, got {got}")
            if not bool(result.isfinite().all()):
                raise DataError(
                    "expected finite outputs of the network, got NaN or infinite ones; did training diverge?"
                )
            parts.append(result.float().cpu())
    finally:
        network.train(training)
    return _as_probabilities(torch.cat(parts))


def _as_probabilities(out: Tensor) -> Tensor:
    """Probabilities from logits, or from probabilities; a single output is that of the second of two classes."""
    within = bool(((out >= 0) & (out <= 1)).all())
    if out.shape[1] == 1:
        second = out if within else out.sigmoid()
        return torch.cat([1 - second, second], 1)
    return out if within and torch.allclose(out.sum(1), torch.ones(len(out)), atol=1e-2) else out.softmax(1)


def _labels_of(dataset: Any) -> Array:
    if hasattr(dataset, "targets"):
        return np.asarray(dataset.targets)
    if isinstance(dataset, torch.utils.data.TensorDataset):
        return np.asarray(dataset.tensors[1])
    return np.array([int(dataset[i][1]) for i in range(len(dataset))])


# -- scikit-learn -----------------------------------------------------------------------------------------------------


def partitions(cv: Any, repeats: int, X: Any, y: Array, groups: Any, seed: int, classifier: bool) -> list[list[Split]]:
    """Partitions of the samples into folds: `repeats` of them if cv is a number, as many as a splitter makes.

    A class with fewer members than folds is tested in as many folds as it has members; a single member is in every
    training part and is never tested. If a splitter makes no partitions, all its splits are returned as one.
    """
    n = len(y)
    if isinstance(cv, int | np.integer) and not isinstance(cv, bool) and groups is None:
        check_whole("cv", cv, 2, n, f"folds, n_samples = {n} at most, or a splitter")
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


def check_takes_weights(estimator: Any) -> None:
    last = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator
    if not has_fit_parameter(last, "sample_weight") and not _passes_on(last) and not _takes_anything(last):
        raise HyperparameterError(
            f"expected an estimator whose fit takes sample_weight, got {type(last).__name__}; a second look "
            "trains with weights"
        )


def _passes_on(estimator: Any) -> bool:
    """Whether it is a meta-estimator, such as a grid search, whose estimator takes sample weights."""
    inner = getattr(estimator, "estimator", None)
    return inner is not None and (has_fit_parameter(inner, "sample_weight") or _passes_on(inner))


def _takes_anything(estimator: Any) -> bool:
    """Whether `fit` has **keywords, as that of VotingClassifier, which passes them on."""
    fit = getattr(estimator, "fit", None)
    return fit is not None and any(p.kind is p.VAR_KEYWORD for p in inspect.signature(fit).parameters.values())


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


def check_reference(reference: Any) -> None:
    if is_classifier(reference) and not hasattr(reference, "predict_proba"):
        raise HyperparameterError(
            f"expected a reference with predict_proba, got {type(reference).__name__}; give another one, such as "
            "reference=LogisticRegression(), or wrap it in CalibratedClassifierCV"
        )
