"""repair: the last linear layer of a trained network, fitted again on frozen features; all in seconds."""

from __future__ import annotations

import copy
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler

from scdro.errors import DataError, HyperparameterError, ScdroWarning
from scdro.linear_model import KLDROClassifier
from scdro.second_look._estimator import SecondLook
from scdro.second_look._folds import cross_fit, partitions
from scdro.second_look._verdict import CLASS_WEIGHTS, NOTHING, Verdict
from scdro.second_look._weights import balanced

__all__ = ["Repaired", "Scores", "repair"]

Array = npt.NDArray[Any]

# On features with mean zero and variance one. The first model should be sharp, the second strongly penalised.
REFERENCE_PENALTIES = tuple(10.0**k for k in range(-4, 1))
SECOND_PENALTIES = tuple(10.0**k for k in range(-7, -1))
FOLDS = 5
BY_HEART = 0.998  # of the samples right out of fold: the features have seen them


class Scores(NamedTuple):
    """Accuracies in [0, 1], of the given head as it is, or of the new one out of fold.

    `hard` is weighted: where the first model knows nothing.

    Example:
        >>> Scores(accuracy=0.96, balanced=0.93, hard=0.47).hard
        0.47
    """

    accuracy: float
    balanced: float
    hard: float

    @classmethod
    def of(cls, right: Array, y: Array, weights: Array) -> Scores:
        """Of what is right, 1 or 0."""
        return cls(float(right.mean()), _balanced_mean(right, y), float(weights @ right / weights.sum()))


class Repaired(NamedTuple):
    """A new network, the verdict, scores before and after, and the weights of the samples in the order of the data.

    Example:
        >>> Repaired._fields
        ('model', 'verdict', 'before', 'after', 'weights', 'proba')
    """

    model: nn.Module
    verdict: Verdict
    before: Scores
    after: Scores
    weights: Array
    proba: Array


def repair(
    model: nn.Module,
    loader: Any,
    *,
    head: str | None = None,
    budget: float | None = None,
    refuse: bool = True,
    device: Any = None,
    progress: bool = True,
    seed: int = 0,
) -> Repaired:
    """Fit the last linear layer of a trained network again, for whom it fails, without knowing who that is.

    The features in front of the layer are taken once. A reference head is fitted to them out of fold, with the
    penalty of the least log loss; `second_look_weights` say where it knows nothing; heads with these weights and
    penalties of their own are tried out of fold; the best is solved exactly and put into a copy, if the verdict is that
    it helps. The given model stays as it is, also when interrupted.

    Args:
        model: a classifier whose output (or whose output's `logits`) is that of an `nn.Linear`.
        loader: batches (inputs, labels), or dictionaries with "labels", as Hugging Face's are. Best of data that the
            network was not trained on: features of training data may know them by heart. A DataLoader that shuffles is
            read in the order of its data set.
        head: name of the layer, such as "fc"; None finds it.
        budget: the most accuracy (a share, out of fold) that a new head may cost; None for no bound.
        refuse: whether the copy keeps the given head, with a warning, when the verdict is no.
        device: where the features are computed; None: where the model is.
        progress: whether to show it, on stderr.
        seed: of the folds.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> y = torch.arange(600) % 2
        >>> shortcut = torch.where(torch.rand(600) < 0.95, y, 1 - y) + 0.1 * torch.randn(600)
        >>> x = torch.stack([shortcut, y + 0.25 * torch.randn(600)], 1)
        >>> model = nn.Sequential(nn.Identity(), nn.Linear(2, 2))
        >>> data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=100)
        >>> fixed = repair(model, data, progress=False)
        >>> fixed.verdict.answer, fixed.model is model
        ('helps', False)

    Reference: last-layer retraining for groups is that of DFR (Kirichenko et al., ICLR 2023), which needs group labels.
    """
    with _shown(progress) as tell:
        name, X, y = _features(model, loader, head, device, tell)
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        classes = max(layer.out_features, 2)
        _check_labels(y, classes, name)
        given = _given_scores(layer, X, y)
        centre, scale = X.mean(0), X.std(0)
        scale = np.where(scale > 1e-12 * (1 + np.abs(centre)), scale, 1.0)
        Z = (X - centre) / scale

        penalty, accuracy = _reference_penalty(Z, y, seed, tell)
        look = _looked(Z, y, penalty, seed, budget, tell)
    verdict, right = look.verdict_, given
    if accuracy >= BY_HEART and refuse:
        note = (
            f"Even out of fold, {100 * accuracy:.1f}% are right: the features may know these samples by heart. Give "
            "data that the network was not trained on; refuse=False goes on."
        )
        verdict = replace(verdict, answer=NOTHING, note=note)
    new = copy.deepcopy(model)
    if verdict.helps or not refuse:
        solution = _solved(Z, y, verdict.chosen.get("C", penalty), look.weights_)
        right = look._right["second"]
    elif verdict.answer == CLASS_WEIGHTS:
        solution = _solved(Z, y, penalty, balanced(np.ones(len(y)), y))
        right = look._right["reference"]
    else:
        solution = None
        warnings.warn(f"the given head is kept: {verdict.answer}; see the verdict", ScdroWarning, stacklevel=2)
    if solution is not None:
        _put(new.get_submodule(name), *solution, centre, scale)
    before, after = (Scores.of(each, y, look.weights_) for each in (given, right))
    return Repaired(new, verdict, before, after, look.weights_, look.reference_proba_)


# -- features ---------------------------------------------------------------------------------------------------------


def _features(
    model: nn.Module, loader: Any, head: str | None, device: Any, tell: Callable[[str], None]
) -> tuple[str, Array, Array]:
    """Name of the last linear layer, its inputs in double precision, (n, d), and the labels."""
    before = next((p.device for p in model.parameters()), torch.device("cpu"))
    device = before if device is None else torch.device(device)
    modes = {module: module.training for module in model.modules()}
    batches = _ordered(loader)
    name = head
    features: list[Array] = []
    labels: list[Array] = []
    try:
        model.to(device).eval()
        with torch.no_grad():
            for k, batch in enumerate(batches):
                inputs, y = _read(batch)
                if name is None:
                    name = _find_head(model, inputs, device)
                features.append(_inputs_of(model, name, inputs, device))
                labels.append(y)
                if len(features[-1]) != len(y):
                    raise DataError(f"expected one label per sample, got {len(y)} for {len(features[-1])}")
                tell(f"features: batch {k + 1}{_of_total(batches)}")
    finally:
        model.to(before)
        for module, training in modes.items():
            module.training = training
    if name is None:
        raise DataError("expected a loader with samples, got an empty one")
    X = np.concatenate(features)
    if not np.isfinite(X).all():
        raise DataError(f"expected finite features, got NaN or infinite ones from the inputs of {name!r}")
    return name, X, np.concatenate(labels)


def _ordered(loader: Any) -> Any:
    """A DataLoader that shuffles, in the order of its data set; other batches as they come."""
    if not isinstance(loader, DataLoader) or isinstance(loader.sampler, SequentialSampler) or loader.batch_size is None:
        return loader
    if isinstance(loader.sampler, RandomSampler) and not loader.sampler.replacement:
        order: Any = range(len(loader.sampler.data_source))
    elif isinstance(loader.sampler, SubsetRandomSampler):
        order = sorted(loader.sampler.indices)
    else:
        warnings.warn(
            f"the loader's {type(loader.sampler).__name__} may repeat samples: copies on both sides of a fold look "
            "known; give each sample once",
            ScdroWarning,
            stacklevel=4,
        )
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=order,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
    )


def _read(batch: Any) -> tuple[Any, Array]:
    """What the model is called with, and the labels."""
    if hasattr(batch, "keys"):
        key = next((k for k in ("labels", "label") if k in batch), None)
        if key is None:
            raise DataError(f'expected batches with "labels", got {sorted(batch)}')
        y, inputs = batch[key], {k: v for k, v in batch.items() if k != key}
    elif isinstance(batch, list | tuple) and len(batch) == 2:
        inputs, y = batch
    else:
        raise DataError(f'expected batches (inputs, labels) or dictionaries with "labels", got {type(batch).__name__}')
    y = torch.as_tensor(y)
    if y.is_floating_point() and not bool((y == y.round()).all()):
        raise DataError("expected class numbers as labels, got fractions")
    return inputs, y.reshape(-1).long().cpu().numpy() if y.ndim == 2 and y.shape[1] == 1 else y.long().cpu().numpy()


def _call(model: nn.Module, inputs: Any, device: torch.device) -> Any:
    if hasattr(inputs, "keys"):
        return model(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()})
    return model(inputs.to(device) if isinstance(inputs, Tensor) else inputs)


def _find_head(model: nn.Module, inputs: Any, device: torch.device) -> str:
    """The linear layer whose output is the model's."""
    outputs: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _, __, out, name=name: outputs.__setitem__(name, out))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        result = _call(model, inputs, device)
    finally:
        for hook in hooks:
            hook.remove()
    logits = getattr(result, "logits", result)
    for name, output in reversed(outputs.items()):
        if isinstance(logits, Tensor) and output.ndim == 2 and _same(output, logits):
            return name
    known = list(outputs) or "none"
    raise HyperparameterError(
        "expected a network whose output is that of a linear layer, and found none; name the layer with head=..., "
        f"linear layers: {known}"
    )


def _same(a: Tensor, b: Tensor) -> bool:
    """Value by value, whatever the shapes."""
    return a.numel() == b.numel() and torch.equal(a.nan_to_num().reshape(-1), b.nan_to_num().reshape(-1))


def _inputs_of(model: nn.Module, name: str, inputs: Any, device: torch.device) -> Array:
    try:
        layer = model.get_submodule(name)
    except AttributeError:
        layer = None
    if not isinstance(layer, nn.Linear):
        linear = [n for n, m in model.named_modules() if isinstance(m, nn.Linear)]
        raise HyperparameterError(f"expected head to name a linear layer, one of {linear}, got {name!r}")
    caught: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    try:
        _call(model, inputs, device)
    finally:
        hook.remove()
    if len(caught) != 1 or caught[0].ndim != 2:
        shapes = [tuple(x.shape) for x in caught]
        raise HyperparameterError(f"expected {name!r} to see one row of features per sample, once, got {shapes}")
    return caught[0].double().cpu().numpy()


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


def _reference_penalty(Z: Array, y: Array, seed: int, tell: Callable[[str], None]) -> tuple[float, float]:
    """The penalty with the least log loss out of fold, classes weighted equally; and its accuracy."""
    splits = partitions(FOLDS, 1, Z, y, None, seed, classifier=True)[0]
    classes = np.arange(int(y.max()) + 1)
    found = []
    for C in REFERENCE_PENALTIES:
        tell(f"reference: C = {C:g}")
        proba = cross_fit(_head(C), Z, y, splits, lambda rows: balanced(np.ones(len(rows)), y[rows]), classes)
        losses = -np.log(proba[np.arange(len(y)), y].clip(1e-12))
        found.append((_balanced_mean(losses, y), C, float((proba.argmax(1) == y).mean())))
    _, penalty, accuracy = min(found)
    return penalty, accuracy


def _head(C: float) -> LogisticRegression:
    return LogisticRegression(C=C, max_iter=1000)


def _looked(
    Z: Array, y: Array, penalty: float, seed: int, budget: float | None, tell: Callable[[str], None]
) -> SecondLook:
    grid = {"C": list(SECOND_PENALTIES)}
    head = _head(penalty)
    look = SecondLook(head, reference=head, cv=FOLDS, grid=grid, budget=budget, random_state=seed)
    look._tell = tell
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScdroWarning)  # repair tells it itself
        return look.fit(Z, y)


def _solved(Z: Array, y: Array, C: float, weights: Array) -> tuple[Array, Array]:
    """Coefficients and intercepts of the exact minimiser."""
    solved = KLDROClassifier(rho=0.0, C=C, tol=1e-6).fit(Z, y, sample_weight=weights)
    return solved.coef_, solved.intercept_


@torch.no_grad()
def _put(layer: Any, coef: Array, intercept: Array, centre: Array, scale: Array) -> None:
    """W z + b in the features as they come. Two classes share one row of coefficients."""
    W = coef / scale
    b = intercept - W @ centre
    if len(W) == 1 and layer.out_features == 2:
        W, b = np.concatenate([-W, W]) / 2, np.concatenate([-b, b]) / 2
    layer.weight.copy_(torch.as_tensor(W))
    if layer.bias is None:
        layer.bias = nn.Parameter(torch.zeros(layer.out_features, dtype=layer.weight.dtype, device=layer.weight.device))
    layer.bias.copy_(torch.as_tensor(b))


def _given_scores(layer: nn.Linear, X: Array, y: Array) -> Array:
    """Whether the given head is right, 1 or 0."""
    scores = X @ layer.weight.detach().double().cpu().numpy().T
    if layer.bias is not None:
        scores = scores + layer.bias.detach().double().cpu().numpy()
    predicted = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(1)
    right: Array = (predicted == y).astype(float)
    return right


def _balanced_mean(right: Array, y: Array) -> float:
    return float(np.mean([right[y == k].mean() for k in np.unique(y)]))


# -- progress ---------------------------------------------------------------------------------------------------------


@contextmanager
def _shown(progress: bool) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done, and for how long."""
    start, last = time.monotonic(), 0.0

    def tell(what: str) -> None:
        nonlocal last
        now = time.monotonic()
        if progress and now - last > 0.2:
            last = now
            sys.stderr.write(f"\rrepair, {now - start:.0f} s: {what:<50}")
            sys.stderr.flush()

    yield tell
    if progress:
        sys.stderr.write(f"\rrepair: {time.monotonic() - start:.1f} s{'':<60}\n")


def _of_total(batches: Any) -> str:
    return f" of {len(batches)}" if hasattr(batches, "__len__") else ""
