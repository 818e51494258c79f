"""Outcomes of a model that exists: scikit-learn's and its like, or a torch network with a loader."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from scdro._frames import as_array
from scdro.errors import DataError

__all__ = ["is_model", "is_network", "predict_with", "run_network"]

Array = npt.NDArray[Any]


def is_network(thing: Any) -> bool:
    """Whether it is a torch module; torch is not imported to find out."""
    return any(
        f"{t.__module__}.{t.__name__}" == "torch.nn.modules.module.Module"
        for t in type(thing).__mro__
    )


def is_model(thing: Any) -> bool:
    return hasattr(thing, "predict") or is_network(thing)


def predict_with(model: Any, X: Any, y: Any, cv: Any = None, groups: Any = None) -> tuple[Any, Any]:
    """What a fitted model predicts, and its classes (None for a regressor).

    With `cv`, copies of the model are fitted, and every row is predicted by one that did not see
    it.
    """
    from sklearn.base import is_classifier
    from sklearn.exceptions import NotFittedError
    from sklearn.model_selection import GroupKFold, StratifiedGroupKFold, cross_val_predict

    method = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    if cv is not None:
        if isinstance(cv, int) and groups is not None:  # KFold would take units apart
            cv = StratifiedGroupKFold(cv) if is_classifier(model) else GroupKFold(cv)
        predicted = cross_val_predict(model, X, y, cv=cv, method=method, groups=groups)
        classes = np.unique(np.asarray(y)) if is_classifier(model) else None
        return predicted, classes
    try:
        predicted = getattr(model, method)(X)
    except NotFittedError as error:
        raise DataError(
            f"expected a fitted model, got {type(model).__name__} before fit; fit it on other rows,"
            " or set cv=5 to have every row predicted by a copy that did not see it"
        ) from error
    classes = getattr(model, "classes_", None) if method == "predict_proba" else None
    return predicted, classes


def _logits(made: Any) -> Any:
    """The logits of what a network returns: a tensor, or an object or dictionary that has them."""
    if isinstance(made, dict) and "logits" in made:
        made = made["logits"]
    made = getattr(made, "logits", made)
    made = made[0] if isinstance(made, tuple) else made
    if not hasattr(made, "float"):
        raise DataError(
            f"expected a network that returns a tensor, or an object with logits, got a"
            f" {type(made).__name__}"
        )
    return made


def run_network(network: Any, loader: Any) -> tuple[Array, Array]:
    """Labels and probabilities (or numbers) of a network, over batches as in `scdro._batches`.

    One output per row is a logit if the labels are 0 and 1, else a predicted number; several are
    logits of the classes.
    """
    import torch

    from scdro._batches import read_batch

    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    training, outputs, labels = network.training, [], []
    network.eval()
    try:
        with torch.no_grad():
            for item in loader:
                batch = read_batch(item)
                made = batch.call(network, device)
                outputs.append(_logits(made).float().cpu().numpy())
                labels.append(as_array(batch.labels))
    finally:
        network.train(training)
    if not outputs:
        raise DataError("expected batches of (inputs, labels), got an empty loader")
    if any(len(one) != len(two) for one, two in zip(outputs, labels, strict=True)):
        raise DataError(
            f"expected one output for each label, got {len(outputs[0])} outputs for"
            f" {len(labels[0])} labels"
        )
    y, scores = np.concatenate(labels), np.concatenate(outputs).astype(float)
    if scores.ndim == 2 and scores.shape[1] > 1:
        shifted = np.exp(scores - scores.max(1, keepdims=True))
        return y, shifted / shifted.sum(1, keepdims=True)
    scores = scores.reshape(len(scores))
    if np.isin(y, (0, 1)).all():
        return y, 0.5 * (1 + np.tanh(scores / 2))  # the sigmoid, without overflow
    return y, scores
