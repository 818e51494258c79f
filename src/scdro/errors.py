"""What can go wrong, one type each. All are raised before any state changes."""

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
]


class ScdroError(Exception):
    """The common base of every error raised on purpose by scdro."""


class HyperparameterError(ScdroError, ValueError):
    """A setting outside its range: rho < 0, lam0 <= 0, beta outside (0, 1], and the like."""


class LossError(ScdroError, ValueError):
    """Not a non-empty vector of per-sample losses, not differentiable, or outside [0, loss_bound]."""


class NonFiniteLossError(LossError):
    """A loss is NaN or infinite."""


class ClosureError(ScdroError, RuntimeError):
    """The closure did something an optimizer of per-sample losses cannot work with, such as calling backward."""


class CheckpointError(ScdroError, ValueError):
    """A state_dict that belongs to another algorithm, another version, or another shape."""


class DataError(ScdroError, ValueError):
    """A data set that is not what it should be: a damaged file, wrong counts, labels out of range."""


class MissingDataError(ScdroError, FileNotFoundError):
    """A file, or a package that reads it, is not there; the message says where it was looked for and how to get it."""
