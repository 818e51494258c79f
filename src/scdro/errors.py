"""The error types of scdro. Every error is raised before any state changes."""

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
    """Base class of all errors that scdro raises.

    Example:
        >>> import torch, scdro
        >>> try:
        ...     scdro.KLRobustLoss(rho=0.5)(torch.tensor(1.0))
        ... except ScdroError as error:
        ...     print(type(error).__name__)
        LossError
    """


class HyperparameterError(ScdroError, ValueError):
    """A hyperparameter is out of range, for example rho < 0, lam0 <= 0 or beta outside (0, 1].

    Example:
        >>> import scdro
        >>> scdro.rho_for_group(10)
        Traceback (most recent call last):
        scdro.errors.HyperparameterError: expected alpha in (0, 1], a group's share of the data (10% is 0.1), got 10
    """


class LossError(ScdroError, ValueError):
    """The losses are not a non-empty vector, not differentiable, or outside [0, loss_bound].

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
    """The closure is missing, or does something that these optimizers do not support, such as calling backward.

    Example:
        >>> import torch, scdro
        >>> scdro.SCDRO(torch.nn.Linear(3, 2).parameters(), lr=0.1, rho=0.5).step()
        Traceback (most recent call last):
        scdro.errors.ClosureError: expected step(closure) with a closure that returns per-sample losses, got none; ...
    """


class CheckpointError(ScdroError, ValueError):
    """The state_dict does not fit: it is from another algorithm, has other shapes, or was made with other settings.

    Example:
        >>> import scdro
        >>> scdro.KLRobustLoss(rho=0.5, window=64).load_state_dict(scdro.KLRobustLoss(rho=0.5).state_dict())
        Traceback (most recent call last):
        scdro.errors.CheckpointError: expected a state made with a window of 64 losses and WindowTemperature, got ...
    """


class DataError(ScdroError, ValueError):
    """The data set is invalid: a damaged file, wrong counts, or labels out of range.

    Example:
        >>> import scdro
        >>> scdro.data.hold_out([0, 0, -1], every=2)
        Traceback (most recent call last):
        scdro.errors.DataError: expected labels >= 0, got -1; ...
    """


class MissingDataError(ScdroError, FileNotFoundError):
    """A file, or the package that reads it, is missing. The message says where scdro looked and how to get it.

    Example:
        >>> import scdro
        >>> scdro.load("no/such/folder")
        Traceback (most recent call last):
        scdro.errors.MissingDataError: expected the folder of a run, got 'no/such/folder', ...
    """


class ScdroWarning(UserWarning):
    """Training continues but probably does not do what you want. Each warning is shown once.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", ScdroWarning)  # raise an error instead
        >>> warnings.simplefilter("default", ScdroWarning)
    """
