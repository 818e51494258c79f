"""Checks and conversions of what several parts of the library take: radii, losses, weights, labels,
positions.

The rules of every function here and of the other files with checks:

- It raises before anything changes, and the error says what was expected, what came, what to do.
- `check_...` returns nothing, or the argument in the form that the caller needs; `as_...` and
  `read_...` convert; `refuse_...` always raises.
- The range in an error message is the range that is checked: `check_number("beta", beta,
  "in (0, 1]")` reads its bounds from the words.

Elsewhere are the checks that one part alone needs: numbers, choices and names, without torch, in
`_arguments`; what an optimizer is constructed with in `optim._settings`; scikit-learn estimators in
`_estimators`. What can only be seen in the middle of a computation is checked where it happens: a
checkpoint that does not fit, processes that disagree, a damaged file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from scdro._arguments import check_choice as check_choice
from scdro._arguments import check_flag as check_flag
from scdro._arguments import check_is as check_is
from scdro._arguments import check_names as check_names
from scdro._arguments import check_number as check_number
from scdro._arguments import check_optional as check_optional
from scdro._arguments import check_whole as check_whole
from scdro._scalar import host_reads, scalar_dtype
from scdro.errors import (
    ClosureError,
    DataError,
    HyperparameterError,
    LossError,
    NonFiniteLossError,
    ScdroError,
)

Array = npt.NDArray[Any]

# The largest loss allowed: squares of l/lam stay finite in float64 for every lam >= 1e-50.
LARGEST_LOSS = 1e100


# -- numbers and choices ---------------------------------------------------------------------------
def check_rho(rho: Any) -> None:
    """The radius of a KL ball: a finite number >= 0."""
    check_number(
        "rho", rho, ">= 0", "a radius (rho_for_group(alpha) computes it from a group's share)"
    )


def check_half_or_rho(rho: Any) -> None:
    """A radius, or "half" for that of the half rule (`scdro.fix.weights`)."""
    if not isinstance(rho, str):
        check_rho(rho)
    elif rho != "half":
        raise HyperparameterError(f'expected rho to be "half" or a radius >= 0, got {rho!r}')


def check_budget(budget: Any, of_accuracy: bool = True) -> None:
    """The largest loss of accuracy allowed, or the largest rise of the error."""
    if not of_accuracy:
        check_number("budget", budget, ">= 0", "a rise of the mean absolute error", infinite=True)
        return
    percent = isinstance(budget, int | float) and 1 < budget <= 100
    hint = f" ({budget:g}% is {budget / 100:g})" if percent else ""
    check_number("budget", budget, "in [0, 1]", f"a share of accuracy{hint}")


def check_share(alpha: Any) -> None:
    """A share of the data, in (0, 1]; the message recognises a percentage."""
    percent = isinstance(alpha, (int, float)) and 1.0 < alpha <= 100.0
    hint = f" ({alpha:g}% is {alpha / 100:g})" if percent else ""
    check_number("alpha", alpha, "in (0, 1]", f"a group's share of the data{hint}")


def check_radius(rho: float, lam0: float) -> None:
    """A radius and the smallest temperature. Below 1e-50, l/lam could overflow."""
    check_rho(rho)
    check_number("lam0", lam0, ">= 1e-50", "the smallest temperature (the paper uses 1e-3)")


def check_trim(trim: float) -> None:
    """A share of the hardest samples; all of them cannot be left out."""
    check_number("trim", trim, "in [0, 1)", "the fraction of hardest samples to leave out")


def check_beta(beta: float) -> None:
    """The weight of a new batch in an average."""
    # Every step comes by here, so a valid float passes without a call.
    if not (isinstance(beta, float) and 0.0 < beta <= 1.0):
        check_number("beta", beta, "in (0, 1]", "the weight of the new batch in the averages")


# -- losses ----------------------------------------------------------------------------------------
def check_losses(losses: Tensor, may_be_empty: bool = False, second: object = None) -> None:
    """Check the losses of a batch. `second` is the next argument, which is labels if the user
    passed logits.
    """
    if not isinstance(losses, Tensor):
        raise LossError(
            f"expected a tensor with one loss per sample, got {type(losses).__name__}; pass what"
            ' the model\'s loss returns: cross_entropy(logits, labels, reduction="none")'
        )
    _check_shape(losses, may_be_empty, second)
    if not losses.is_floating_point():
        raise LossError(f"expected floating-point losses, got {losses.dtype}")
    if losses.layout != torch.strided:
        raise LossError("expected a dense vector of losses, got a sparse one; call to_dense()")
    if second is not None and _are_integers(second):
        raise LossError(
            "expected sample_weight as floating-point numbers, got integers: are these labels? Pass"
            " the losses alone; if they are weights, pass weights.float()"
        )


def _are_integers(values: Any) -> bool:
    """Whether these may be labels, which are never sample weights."""
    if isinstance(values, Tensor):
        return not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    return np.asarray(values).dtype.kind in "iu"


def refuse_arguments(unknown: dict[str, Any]) -> NoReturn:
    """Keyword arguments that a robust loss does not take; transformers' Trainer passes
    `num_items_in_batch`.
    """
    names = ", ".join(unknown)
    if "num_items_in_batch" in unknown:
        raise LossError(
            f"expected per-sample losses, got a Trainer's outputs and {names}; pass"
            " RobustTrainerLoss(KLRobustLoss(...)) of scdro.integrations.transformers as"
            " compute_loss_func, and in callbacks"
        )
    raise LossError(f"expected losses, sample_weight, mask and groups, got {names}")


def _check_shape(losses: Tensor, may_be_empty: bool = False, second: Any = None) -> None:
    """Raise unless the losses are a vector. The three usual mistakes have a remedy of their own."""
    if losses.ndim == 0:
        raise LossError(
            "expected one loss per sample, got a single number: the loss is already reduced; "
            'compute it with reduction="none"'
        )
    if losses.ndim > 1:
        _refuse_matrix(losses, second)
    if losses.numel() == 0 and not may_be_empty:
        raise LossError("expected at least one loss, got none; skip empty batches")


def _refuse_matrix(losses: Tensor, second: Any) -> NoReturn:
    """Losses with several dimensions: logits with labels, a column, or one loss per pixel or token."""
    shape = tuple(losses.shape)
    if isinstance(second, Tensor) and second.dtype in (torch.int64, torch.int32):
        raise LossError(
            f"expected a vector with one loss per sample, got logits, shape {shape}, and labels;"
            " pass losses, one per sample, instead of logits: cross_entropy(logits, labels,"
            ' reduction="none")'
        )
    if len(shape) == 2 and shape[1] == 1:
        raise LossError(
            f"expected a vector with one loss per sample, got shape {shape}, a column; pass"
            " losses.squeeze(1)"
        )
    raise LossError(
        f"expected a vector with one loss per sample, got shape {shape}; average over the other"
        " dimensions first, or flatten and pass the padding as a mask; if these are logits,"
        ' compute the losses first: cross_entropy(logits, labels, reduction="none")'
    )


def check_values(values: Tensor, bound: float | None, skip_nonfinite: bool) -> Tensor | None:
    """Check that the losses of a batch, (b,), are finite and within [0, bound].

    With `skip_nonfinite` non-finite losses are no error; the flag that says whether all are finite
    is returned, on their device, because reading it would wait.
    """
    size = torch.dot(values, values)  # one pass finds NaN, infinity and values beyond 1e100
    if not skip_nonfinite and bound is None and host_reads(size) and size.item() < LARGEST_LOSS**2:
        return None
    finite = size < LARGEST_LOSS**2
    if not skip_nonfinite:
        require(
            finite,
            NonFiniteLossError,
            "expected finite losses, got NaN or infinity (or values beyond 1e100); lower the"
            " learning rate, look for overflow in the model, or pass skip_nonfinite=True to skip"
            " such batches",
        )
    if bound is not None:
        low, high = torch.aminmax(values)
        require(
            ((low >= 0) & (high <= bound)) | ~finite,
            LossError,
            f"expected losses in [0, loss_bound] = [0, {bound}], got one outside; raise loss_bound"
            " or omit it",
        )
    return finite if skip_nonfinite else None


def require(condition: Tensor | bool, error: type[ScdroError], message: str) -> None:
    """Raise if the host can read the flag for free; on an accelerator or in a compiled graph,
    assert on the device.
    """
    if isinstance(condition, Tensor) and not host_reads(condition):
        torch._assert_async(condition, message)
    elif not bool(condition):
        raise error(message)


def read_losses(losses: Any, sample_weight: Any) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Check the losses of an exact function, from tensors, arrays or lists.

    Returns:
        the losses with their graph, (n,), at least float32.
        the losses detached, in float64.
        log q, (n,), which sums to one in q; -inf for samples of weight zero.
        whether the input was not a tensor, so that the result should not be one either.
    """
    # `vector` keeps the caller's graph and dtype, `double` is what is computed with.
    vector = losses if isinstance(losses, Tensor) else torch.from_numpy(as_floats(losses, "losses"))
    _check_shape(vector)
    if vector.is_complex():
        raise LossError(f"expected real losses, got {vector.dtype}")
    vector = vector.to(torch.promote_types(vector.dtype, torch.float32))
    double = vector.detach().to(scalar_dtype(vector.device))
    log_q = log_weights(double, sample_weight)
    if log_q is None:
        log_q = torch.full_like(double, -math.log(len(double)))
    else:
        # In logs, so that nothing overflows or underflows.
        log_q = log_q - torch.logsumexp(log_q, 0)
        absent = log_q == -math.inf
        if bool(absent.any()):  # Losses of weight zero may have any value, even NaN.
            vector, double = torch.where(absent, 0.0, vector), torch.where(absent, 0.0, double)
    finite = double.abs() < LARGEST_LOSS
    if not bool(finite.all()):
        raise NonFiniteLossError(
            f"expected finite losses, got {int((~finite).sum())} NaN or infinite (or beyond 1e100)"
            f" of {len(double)}; look for overflow or division by zero in the model"
        )
    return vector, double, log_q, not isinstance(losses, Tensor)


def as_floats(
    values: Any,
    what: str,
    read: Callable[[Any], Array] = np.asarray,
    error: type[ScdroError] = LossError,
) -> npt.NDArray[np.float64]:
    """A new float64 array. torch would read a list of floats as float32. `read` makes an array of
    the values.
    """
    try:
        if values is None:
            raise TypeError("there are none")
        array = read(values)
        if array.dtype.kind == "c":
            raise TypeError("they are complex")
        return np.array(array, dtype=np.float64)
    except (TypeError, ValueError) as cause:
        raise error(f"expected {what} as real numbers, got {_kind(values)}: {cause}") from cause


def check_probabilities(p: Array, *, may_be_nan: bool = False) -> None:
    """Numbers in [0, 1], up to rounding; NaN only if it stands for an unknown one."""
    bad = ~((p >= -1e-6) & (p <= 1 + 1e-6)) & ~(np.isnan(p) & may_be_nan)
    if bad.any():
        raise LossError(
            f"expected probabilities in [0, 1], got {int(bad.sum())} others (NaN counts), such as"
            f" {p[bad][0]}; "
            f"{'did training diverge?' if np.isnan(p[bad]).any() else 'logits need a softmax first'}"
        )


def read_probabilities(proba: Any, labels: Array) -> npt.NDArray[np.float64]:
    """The probability of each sample's label, given this, (n,), or the probabilities of classes 0
    to k - 1, (n, k).
    """
    from scdro._frames import as_array  # loads narwhals, which training does not need

    p = as_floats(proba, "probabilities", as_array)  # (n,) or (n, k)
    if labels.ndim != 1 or len(labels) == 0:
        raise LossError(f"expected labels as a vector, not empty, got shape {labels.shape}")
    if p.ndim == 2 and len(p) == len(labels):
        if labels.dtype.kind not in "iubf" or not np.isin(labels, np.arange(p.shape[1])).all():
            raise LossError(
                f"expected labels 0 to {p.shape[1] - 1} for probabilities of {p.shape[1]} classes,"
                f" got {np.unique(labels)[:5].tolist()}...; or pass the probability of each"
                " sample's own label, (n,)"
            )
        p = p[np.arange(len(p)), labels.astype(int)]
    if p.shape != labels.shape:
        raise LossError(f"expected one probability per label, {labels.shape}, got shape {p.shape}")
    check_probabilities(p)
    return p.clip(0.0, 1.0)


# -- data sets and loaders -------------------------------------------------------------------------
def check_is_loader(loader: Any) -> None:
    """A data set gives single samples, which a model may take for batches."""
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        raise DataError(
            f"expected a loader of batches, got a {_kind(loader)}; pass DataLoader(dataset)"
        )
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise DataError(
            f"expected a loader of batches, got a {_kind(loader)}; pass DataLoader(it,"
            " batch_size=256)"
        )


def check_is_dataset(dataset: Any) -> None:
    """Raise unless it is a data set of items (input, label, ...) or dictionaries, with a length."""
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"expected a data set with a length and dataset[i], got a {_kind(dataset)}; for a"
            " DataLoader, pass loader.dataset"
        )
    item = dataset[0] if len(dataset) else None
    if not isinstance(item, Mapping) and (not isinstance(item, tuple | list) or len(item) < 2):
        got = f"a {_kind(item)}" if len(dataset) else "an empty data set"
        raise DataError(
            f'expected items (input, label), or dictionaries with "labels", got {got}; for two'
            " tensors, pass TensorDataset(x, y)"
        )


def check_trains(train: Any) -> None:
    """Raise unless it is a function that trains, and not a network."""
    if isinstance(train, torch.nn.Module) or not callable(train):
        raise HyperparameterError(
            "expected train to be a function that takes a data set and returns a network, got a"
            f" {_kind(train)}"
        )


# -- sample weights --------------------------------------------------------------------------------
_NEGATIVE = "expected sample weights >= 0, got negative or non-finite values"
_ALL_ZERO = "expected sample weights (or a mask) with a positive sum, got none above zero"


def as_weights(values: Any, losses: Tensor) -> Tensor:
    """Sample weights of a vector of losses, (n,), with its device and dtype; not normalised."""
    tensor = (
        values
        if isinstance(values, Tensor)
        else torch.from_numpy(as_floats(values, "sample weights"))
    )
    if tensor.is_complex():
        raise LossError(f"expected real sample weights, got {tensor.dtype}")
    weight = tensor.detach().to(losses.device, losses.dtype)
    if weight.shape != losses.shape:
        raise LossError(
            f"expected one sample weight per loss, shape {tuple(losses.shape)}, got"
            f" {tuple(weight.shape)}"
        )
    require(((weight >= 0) & (weight < math.inf)).all(), LossError, _NEGATIVE)
    return weight


def log_weights(
    losses: Tensor, sample_weight: Any, mask: Any = None, *, may_be_zero: bool = False
) -> Tensor | None:
    """The log of the weights, (n,), -inf where the mask is false; None for neither weights nor mask.

    A positive sum is required unless `may_be_zero`: of one process's part of a batch, all weights
    may be zero.
    """
    log_weight = None if sample_weight is None else torch.log(as_weights(sample_weight, losses))
    if mask is not None:
        keep = _as_mask(mask).to(losses.device)
        if keep.shape != losses.shape:
            raise LossError(
                f"expected one mask entry per loss, shape {tuple(losses.shape)}, got"
                f" {tuple(keep.shape)}"
            )
        log_weight = torch.where(keep, 0.0 if log_weight is None else log_weight, -math.inf).to(
            losses.dtype
        )
    if log_weight is not None and not may_be_zero:
        check_mass(log_weight.amax())
    return log_weight


def _as_mask(mask: Any) -> Tensor:
    """A mask as booleans: True for each loss that counts.

    Zeros and ones are read as booleans; other numbers are more likely weights in the wrong place.
    """
    try:
        given = mask if isinstance(mask, Tensor) else torch.as_tensor(mask)
    except (TypeError, ValueError, RuntimeError):
        raise LossError(
            f"expected a mask of booleans, True for each loss that counts, got {mask!r}"
        ) from None
    keep = given.to(torch.bool)
    if given.dtype != torch.bool:
        require(
            (keep == given).all(),
            LossError,
            "expected a mask of booleans, or of zeros and ones, got other numbers; pass weights as"
            " sample_weight",
        )
    return keep


def check_mass(log_mass: Tensor | float) -> None:
    """Raise if the sum of all weights is zero, given its log."""
    require(log_mass > -math.inf, LossError, _ALL_ZERO)


def array_weights(sample_weight: Any, n: int) -> npt.NDArray[np.float64]:
    """Sample weights of n rows as a new NumPy array; None means ones, and a number is the weight of
    every row.
    """
    if sample_weight is None:
        return np.ones(n)
    if isinstance(sample_weight, Tensor):
        sample_weight = sample_weight.detach().cpu().numpy()
    weight = as_floats(sample_weight, "sample weights")
    if weight.ndim == 0:
        weight = np.full(n, weight)
    if weight.shape != (n,):
        raise LossError(f"expected one sample weight per sample, shape ({n},), got {weight.shape}")
    if not ((weight >= 0) & (weight < math.inf)).all():
        raise LossError(_NEGATIVE)
    if not weight.any():
        raise LossError(_ALL_ZERO)
    return weight


# -- positions in a data set -----------------------------------------------------------------------
def check_samples(n: Any) -> None:
    """The size of a data set."""
    check_whole("n", n, meaning="the number of training samples")


def check_positions(index: Tensor, n: int) -> Tensor:
    """Return positions in a data set of n samples, on the CPU."""
    index = torch.as_tensor(index).cpu()
    if index.is_floating_point() or index.dtype == torch.bool or index.ndim != 1:
        raise ClosureError(
            f"expected a vector of integer sample positions, got {index.dtype} of shape"
            f" {tuple(index.shape)}"
        )
    low, high = (int(index.min()), int(index.max())) if len(index) else (0, 0)
    if low < 0 or high >= n:
        raise ClosureError(
            f"expected positions in [0, n) with n = {n}, got positions from {low} to {high}"
        )
    return index.to(torch.int64)


# -- labels, groups, embeddings --------------------------------------------------------------------
def as_labels(
    values: Any,
    n: int | None = None,
    classes: int | None = None,
    what: str = "labels",
    least: int | None = None,
) -> Tensor:
    """Return labels as an int64 vector on the CPU.

    Args:
        values: integers, one per sample.
        n: the required number of labels; by default at least one.
        classes: labels must be in [0, classes); by default any integer is allowed.
        what: what the error message calls them.
        least: the smallest label allowed.

    Example:
        >>> as_labels([0, 1, 1], n=3, classes=2)
        tensor([0, 1, 1])
    """
    labels = as_integers(values, what)
    if len(labels) != n if n is not None else not len(labels):
        raise DataError(f"expected {'some' if n is None else n} {what}, got {len(labels)}")
    if (
        classes is not None
        and len(labels)
        and not 0 <= int(labels.min()) <= int(labels.max()) < classes
    ):
        raise DataError(
            f"expected {what} in [0, {classes}), got {int(labels.min())} to {int(labels.max())}"
        )
    if least is not None and int(labels.min()) < least:
        raise DataError(
            f"expected {what} >= {least}, got {int(labels.min())}; drop these samples, or renumber"
            " them"
        )
    return labels


def as_integers(values: Any, what: str) -> Tensor:
    """Return integers as an int64 vector on the CPU."""
    try:
        array = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
    except Exception as error:  # whatever reading `values` raises
        raise DataError(
            f"expected {what} as a vector of integers, got {_kind(values)}: {error}"
        ) from error
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise DataError(
            f"expected {what} as a vector of integers, got {_kind(values)} of {array.dtype} and"
            f" shape {array.shape}; flatten them, and number"
            f" {'the classes' if what == 'labels' else 'them'} 0, 1, ..."
        )
    return torch.from_numpy(array.astype(np.int64))


def _kind(values: Any) -> str:
    """What an error message calls a value of the wrong type."""
    return type(values).__name__


def check_no_missing(labels: Array, name: str) -> None:
    """Raise if a label is missing (None, NaN, or pandas' NA).

    Missing labels would otherwise become a class of their own.
    """
    from scdro._frames import is_missing  # loads narwhals, which training does not need

    if (labels.dtype.kind == "f" and np.isnan(labels).any()) or (
        labels.dtype.kind == "O" and any(map(is_missing, labels.ravel()))
    ):
        raise DataError(
            f"expected a label for every sample in {name}, got missing values; leave these"
            " samples out"
        )


def check_class_sizes(labels: Array) -> None:
    """Raise unless every class has two samples, so that one can be predicted by a model trained on
    the other.
    """
    classes, counts = np.unique(labels, return_counts=True)
    alone = classes[counts == 1]
    if len(alone):
        more = f" and {len(alone) - 5} more" if len(alone) > 5 else ""
        raise DataError(
            "expected at least two samples of every class, got one of class"
            f" {', '.join(map(str, alone[:5]))}{more}; leave it out, or merge classes (labels=...)"
        )


def check_groups(groups: Any, losses: Tensor) -> Tensor:
    """Return the groups of a batch's samples, one integer per loss."""
    given: Tensor = groups if isinstance(groups, Tensor) else as_integers(groups, "groups")
    if given.is_floating_point() or given.is_complex():
        raise LossError(
            f"expected groups as integers, got {given.dtype}; number the groups 0, 1, ..."
        )
    if given.shape != losses.shape:
        raise LossError(
            f"expected one group per loss, shape {tuple(losses.shape)}, got {tuple(given.shape)}"
        )
    return given


def check_embeddings(first: Tensor, second: Tensor, may_be_empty: bool) -> None:
    """Check two matrices of embeddings, one row per sample."""
    for x in (first, second):
        if (
            not isinstance(x, Tensor)
            or x.ndim != 2
            or not x.is_floating_point()
            or not (len(x) or may_be_empty)
        ):
            came = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else _kind(x)
            raise LossError(f"expected floating-point embeddings (b, d), got {came}")
    if first.shape != second.shape:
        raise LossError(
            f"expected both views or towers to have the same shape, got {tuple(first.shape)} and"
            f" {tuple(second.shape)}"
        )
