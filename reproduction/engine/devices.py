"""Devices by name."""

from __future__ import annotations

import torch

from scdro.errors import HyperparameterError

__all__ = ["as_device", "devices"]


def devices() -> list[str]:
    """The devices that torch can use."""
    found = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
    return [*found, "mps"] if torch.backends.mps.is_available() else found


def as_device(name: torch.device | str) -> torch.device:
    """The device, after checking that it works.

    Example:
        >>> as_device("cpu")
        device(type='cpu')
    """
    try:
        tried = torch.zeros(1, device=name)
        tried.item()  # The meta device holds no values.
    except Exception as error:  # each backend raises its own type
        raise HyperparameterError(
            f"expected a device that torch can use here ({', '.join(devices())}), got"
            f" {str(name)!r}; name another by --device, or leave it out"
        ) from error
    return tried.device
