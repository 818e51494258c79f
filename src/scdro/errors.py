"""What can go wrong, one type each. All errors are raised before any state changes."""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ClosureError",
    "DataError",
    "HyperparameterError",
    "LossError",
    "MissingDataError",
    "NonFiniteLossError",
    "ScdroError",
    "ScdroWarning",
]


class ScdroError(Exception):
    """The common base of every error raised on purpose by scdro.

    Example:
        >>> import torch, scdro
        >>> try:
        ...     scdro.KLRobustLoss(rho=0.5)(torch.tensor(1.0))
        ... except ScdroError as error:
        ...     print(type(error).__name__)
        LossError
    """


class HyperparameterError(ScdroError, ValueError):
    """A setting outside its range: rho < 0, lam0 <= 0, beta outside (0, 1], and the like.

    Example:
        >>> import scdro
        >>> scdro.rho_for_group(10)
        Traceback (most recent call last):
        scdro.errors.HyperparameterError: expected a group's share of the data in (0, 1], got 10; 10% is 0.1
    """


class LossError(ScdroError, ValueError):
    """Not a non-empty vector of per-sample losses, not differentiable, or outside [0, loss_bound].

    Example:
        >>> import torch, scdro
        >>> scdro.KLRobustLoss(rho=0.5)(torch.ones(4, 2))
        Traceback (most recent call last):
        scdro.errors.LossError: expected a vector with one loss per sample, got shape (4, 2); ...
    """


class NonFiniteLossError(LossError):
    """A loss is NaN or infinite.

    Example:
        >>> import scdro
        >>> scdro.worst_case([1.0, float("nan")], rho=0.5)
        Traceback (most recent call last):
        scdro.errors.NonFiniteLossError: expected finite losses, got 1 NaN or infinite (or beyond 1e100) of 2; ...
    """


class ClosureError(ScdroError, RuntimeError):
    """The closure did something an optimizer of per-sample losses cannot work with, such as calling backward.

    Example:
        >>> import torch, scdro
        >>> scdro.SCDRO(torch.nn.Linear(3, 2).parameters(), lr=0.1, rho=0.5).step()
        Traceback (most recent call last):
        scdro.errors.ClosureError: expected step(closure) with a closure that returns per-sample losses, got none; ...
    """


class CheckpointError(ScdroError, ValueError):
    """A state_dict of another algorithm, of another shape, or whose numbers mean something else here.

    Example:
        >>> import scdro
        >>> scdro.KLRobustLoss(rho=0.5, window=64).load_state_dict(scdro.KLRobustLoss(rho=0.5).state_dict())
        Traceback (most recent call last):
        scdro.errors.CheckpointError: expected the state of a window of 64 losses and of WindowTemperature, got one ...
    """


class DataError(ScdroError, ValueError):
    """A data set that is not what it should be: a damaged file, wrong counts, labels out of range.

    Example:
        >>> import scdro
        >>> scdro.data.keep_last([0, 0, 1], {0: 5})
        Traceback (most recent call last):
        scdro.errors.DataError: expected to keep 0 to 2 samples of class 0, all there are, got 5
    """


class MissingDataError(ScdroError, FileNotFoundError):
    """A file, or a package that reads it, is not there; the message says where it was looked for and how to get it.

    Example:
        >>> import torch
        >>> from scdro.data import EvalTransform, ImageFiles
        >>> data = ImageFiles("no/such/folder", ["1.jpg"], torch.tensor([0]), classes=1, transform=EvalTransform())
        >>> data[0]
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the image ...
    """


class ScdroWarning(UserWarning):
    """Training goes on, and probably not where you want: each is told once.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", ScdroWarning)  # stop there instead
        >>> warnings.simplefilter("default", ScdroWarning)
    """
