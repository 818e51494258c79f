"""Devices by name."""

from __future__ import annotations

import torch

from scdro.errors import HyperparameterError

__all__ = ["as_device"]


def as_device(name: torch.device | str) -> torch.device:
    """The device, tried.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    try:
        return torch.zeros(1, device=name).device
    except Exception as error:  # each backend has its own way to say no
        raise HyperparameterError(
            f"expected a device that torch can use here, such as cpu, got {name!r}: {str(error).splitlines()[0]}"
        ) from error
