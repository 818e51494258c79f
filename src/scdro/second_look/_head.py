"""The last linear layer of a network: find it, read its inputs, and replace its parameters.

A network is run as it is, with hooks on its linear layers. The head is the layer whose output is
the network's output: as it is, as probabilities, or averaged over tokens. Comparing tensors is
surer than guessing from names and from the order of the modules.

    features_of   one pass over the loader: the inputs of the head, (n, d), and the labels, (n,)
    put_head      the new weight and bias, in a copy of the network
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from scdro._batches import in_order, logits_of, read_batch
from scdro._validation import check_is_loader
from scdro.errors import DataError, HyperparameterError

__all__ = ["Features", "copy_network", "features_of", "put_head"]

Array = npt.NDArray[Any]


class Features(NamedTuple):
    """The name of the last linear layer, its inputs in double precision, (n, d), and the labels, (n,)."""

    name: str  # of the layer, such as "fc"
    X: Array  # (n, d), in float64
    y: Array  # (n,), class numbers


def features_of(
    model: nn.Module, loader: Any, head: str | None = None, device: Any = None
) -> Features:
    """One pass over the loader, in evaluation mode.

    Args:
        model: a copy that may be changed.
        loader: as in `repair`.
        head: the name of the layer; None finds it in the first batch.
        device: where to run the network; None leaves it where it is.
    """
    check_is_loader(loader)
    model.eval()
    if device is not None:
        model.to(device)
    here = next((p.device for p in model.parameters()), torch.device("cpu"))
    if head is not None:
        _check_layer(model, head)
    name = head
    features: list[Array] = []
    labels: list[Array] = []
    with torch.no_grad():
        for batch in in_order(loader):
            read = read_batch(batch)
            y = _class_numbers(read.labels)
            seen = _Seen(model, [name] if name is not None else _linear_layers(model))
            with seen:
                result = read.call(model, here)
            logits = logits_of(result)
            if name is None:
                name = _find_head(model, seen, logits)
                _check_layer(model, name)
            x = _rows(seen, name, logits, named=head is not None)
            if len(x) != len(y):
                raise DataError(f"expected one label per sample, got {len(y)} for {len(x)}")
            features.append(x.double().cpu().numpy())
            labels.append(y)
    if name is None or not sum(map(len, labels)):
        raise DataError("expected a loader with samples, got an empty one")
    X = np.concatenate(features)
    if not np.isfinite(X).all():
        raise DataError(
            f"expected finite features, got NaN or infinite ones from the inputs of {name!r}"
        )
    return Features(name, X, np.concatenate(labels))


# -- the layer
# --------------------------------------------------------------------------------------------------------


class _Seen:
    """A context that records inputs and outputs of some layers, call by call, and the last layer with parameters."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
        self.calls: list[tuple[str, Tensor, Tensor]] = []
        self.last = ""
        self._model, self._names = model, names

    def __enter__(self) -> _Seen:
        self._hooks = [
            self._model.get_submodule(name).register_forward_hook(
                lambda _, args, kwargs, out, name=name: self.calls.append(
                    (name, args[0] if args else kwargs["input"], out)
                ),
                with_kwargs=True,
            )
            for name in self._names
        ]
        self._hooks += [
            module.register_forward_hook(lambda _, __, ___, name=name: setattr(self, "last", name))
            for name, module in self._model.named_modules()
            if next(module.parameters(recurse=False), None) is not None
        ]
        return self

    def __exit__(self, *_: Any) -> None:
        for hook in self._hooks:
            hook.remove()


def _linear_layers(model: nn.Module) -> list[str]:
    """The names of all linear layers."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def _find_head(model: nn.Module, seen: _Seen, logits: Tensor | None) -> str:
    """The linear layer whose output is the model's."""
    for name, inputs, output in reversed(seen.calls):
        if logits is not None and _matching(inputs, output, logits) is not None:
            return name
    layers = list(dict.fromkeys(name for name, _, _ in seen.calls))
    last = model.get_submodule(seen.last) if seen.last else None
    why = (
        f"its last layer is {type(last).__name__} {seen.last!r}"
        if last is not None
        else "it has no layers"
    )
    if logits is not None and logits.ndim != 2:
        why = f"its output has shape {tuple(logits.shape)}, not one row of scores per sample"
    elif isinstance(last, nn.Linear):
        why += ", whose output is changed before it is returned"
    if type(last).__name__.startswith("Conv"):
        why += (
            ", and a convolution is not refitted: end the network with a pooling and an nn.Linear"
        )
    raise HyperparameterError(
        f"expected a network whose output is that of an nn.Linear; {why}. If one decides the class,"
        f" name it with head=...; the last linear layers that were used: {layers[-5:] or 'none'}"
    )


def _matching(inputs: Tensor, output: Tensor, logits: Tensor) -> Tensor | None:
    """The inputs, one row per sample, if the logits come from this output: as it is, as probabilities, at one token, or
    averaged over tokens."""
    if not isinstance(output, Tensor) or output.ndim < 2 or logits.numel() % output.shape[-1]:
        return None
    wanted = logits.detach().float().nan_to_num().reshape(-1, output.shape[-1])
    out = output.detach().float().nan_to_num()
    for link in (lambda z: z, lambda z: z.softmax(-1), lambda z: z.log_softmax(-1), torch.sigmoid):
        shown = link(out)
        if out.ndim == 2 and shown.shape == wanted.shape and torch.equal(shown, wanted):
            return inputs
        if out.ndim == 3 and len(shown) == len(wanted):
            hits = (shown == wanted[:, None]).all(-1)
            if hits.any(1).all():
                last = hits.shape[1] - 1 - hits.flip(1).int().argmax(1)
                return inputs[torch.arange(len(inputs), device=inputs.device), last]
    if (
        out.ndim == 3
        and len(out) == len(wanted)
        and torch.allclose(out.mean(1), wanted, rtol=1e-4, atol=1e-6)
    ):
        return inputs.float().mean(1)
    return None


def _rows(seen: _Seen, name: str, logits: Tensor | None, named: bool) -> Tensor:
    """The features of a batch, (rows, d), from what the hooks have recorded.

    Of several calls of the layer the last one that the output comes from counts. A layer that the
    user named may be followed by others; then it must have been called once, with one row per
    sample.
    """
    calls = [(inputs, output) for called, inputs, output in seen.calls if called == name]
    for inputs, output in reversed(calls):
        found = None if logits is None else _matching(inputs, output, logits)
        if found is not None:
            return found
    if named and len(calls) == 1 and calls[0][0].ndim == 2:  # more follows after it; the user knows
        return calls[0][0]
    shapes = [tuple(inputs.shape) for inputs, _ in calls]
    raise HyperparameterError(
        f"expected {name!r} to see one row of features per sample, once, got {shapes}"
    )


def _check_layer(model: nn.Module, name: str) -> None:
    """Raise unless the name is that of a linear layer whose weight is a parameter."""
    try:
        layer = model.get_submodule(name)
    except AttributeError:
        layer = None
    if not isinstance(layer, nn.Linear):
        got = f"{name!r}" if layer is None else f"{name!r}, a {type(layer).__name__}"
        known = ", ".join(
            repr(one) if one else "'' (the model itself)" for one in _linear_layers(model)[-5:]
        )
        raise HyperparameterError(
            f"expected head to name an nn.Linear of the model ({known or 'it has none'}), got {got}"
        )
    if is_parametrized(layer) or "weight" not in layer._parameters:
        raise HyperparameterError(
            f"expected the weight of {name!r} to be a parameter, but it is computed from others"
            " (weight norm, a parametrization); remove that first, for example with"
            " torch.nn.utils.parametrize.remove_parametrizations"
        )


@torch.no_grad()
def put_head(model: nn.Module, name: str, coef: Array, intercept: Array) -> None:
    """Set new parameters of the layer's own, even if it shared them with another.

    For two classes `coef` may have one row: half of it is added to one class and taken from the
    other, which gives the same differences.
    """
    layer: Any = model.get_submodule(name)
    if len(coef) == 1 and layer.out_features == 2:
        coef, intercept = (
            np.concatenate([-coef, coef]) / 2,
            np.concatenate([-intercept, intercept]) / 2,
        )
    for what, values in (("weight", coef), ("bias", intercept)):
        old = getattr(layer, what)
        if old is not None:
            new = torch.as_tensor(values, dtype=old.dtype, device=old.device).contiguous()
            setattr(layer, what, nn.Parameter(new, requires_grad=old.requires_grad))


def copy_network(model: nn.Module) -> nn.Module:
    """A deep copy; for a compiled network, a copy of the original."""
    if not isinstance(model, nn.Module):
        raise HyperparameterError(
            f"expected a torch network, got {type(model).__name__}; for scikit-learn's estimators"
            " there is SecondLook"
        )
    try:
        return copy.deepcopy(getattr(model, "_orig_mod", model))
    except Exception as error:
        raise HyperparameterError(
            f"expected a network that copy.deepcopy can copy, got {type(error).__name__}: {error}"
        ) from error


# -- batches
# ----------------------------------------------------------------------------------------------------------


def _class_numbers(labels: Any) -> Array:
    """The labels of a batch as class numbers, (n,)."""
    try:
        y = torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"expected class numbers 0, 1, ... as labels, got {type(labels).__name__}: {error}"
        ) from error
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1:
        raise DataError(
            f"expected one class number per sample, got labels of shape {tuple(y.shape)}; the"
            ' labels are the second item of a batch, or its "labels"'
        )
    if y.is_floating_point() and not bool((y == y.round()).all()):
        raise DataError("expected class numbers as labels, got fractions")
    return y.long().cpu().numpy()
