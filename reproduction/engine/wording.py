"""Plurals."""

from __future__ import annotations

__all__ = ["plural"]


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    Example:
        >>> plural(1, "epoch"), plural(2, "epoch")
        ('1 epoch', '2 epochs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
