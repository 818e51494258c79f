"""How sure to be of several findings at once: that none of them is chance, with 95%."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ERROR", "confidence_of_each", "hold_at_once"]

ERROR = 0.05


def confidence_of_each(count: int) -> float:
    """Of one of `count` intervals that are to hold all at once (Bonferroni)."""
    return 1 - ERROR / count


def hold_at_once(p_values: Sequence[float]) -> list[bool]:
    """Which of several findings are none of them chance (Holm, 1979): Bonferroni's bound, for those still in question.

    Example:
        >>> hold_at_once([0.02, 0.001, 0.3])
        [True, True, False]
    """
    found = [False] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda k: p_values[k])
    for left, k in zip(range(len(order), 0, -1), order, strict=True):
        if p_values[k] > 1 - confidence_of_each(left):
            break
        found[k] = True
    return found
