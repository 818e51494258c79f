"""What confirming each of several slices would gain, before anybody confirms one.

Each slice is examined as if a person had confirmed it: equal weights of its condition within each
class, the penalty of the best worst group out of fold, and the same verdict. Who matters is still a
person's word. The slices were found on these rows, so their gains are somewhat too large; a
confirmed slice is judged again by the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from scdro.fix._groups import ConfirmedGroups, name_of_group
from scdro.fix._verdict import GROUPS, Verdict

__all__ = ["Gain", "Gains", "gains_of"]


class Gain(NamedTuple):
    """One slice and the verdict if it was confirmed; prints as one sentence.

    Attributes:
        slice: as it was given; pass it as `groups` to confirm it.
        verdict: what `SecondLook(groups=slice)`, or `repair(groups=slice)`, would say.

    Example:
        >>> verdict = Verdict("helps", 0.2, 0.05, 0.9, 0.96, 0.94, 0.9, 0.9, 0.6, 0.8, 60.0, 12, confirmed=("0, red",))
        >>> print(Gain("red", verdict))
        red: its worst group would go from 60.0% to 80.0% (gain 20.0 +- 5.0), accuracy from 96.0% to
        94.0%: helps.
    """

    slice: Any
    verdict: Verdict  # of the ladder with this slice as a confirmed group

    def __str__(self) -> str:
        found = self.verdict
        error = found.loss

        def say(value: float) -> str:
            return f"{value:.3g}" if error else f"{100 * value:.1f}%"

        def number(value: float) -> str:
            return f"{value:.3g}" if error else f"{100 * value:.1f}"

        last = next((rung for rung in found.rungs if rung.name == GROUPS), None)
        accuracy = found.after if last is None else last.accuracy
        return (
            f"{name_of_group(self.slice)}: its worst group would go from {say(found.hard_before)} to"
            f" {say(found.hard_after)} (gain {number(found.gain)} +-"
            f" {number(found.gain_error)}), {'the error' if error else 'accuracy'} from"
            f" {say(found.before)} to {say(accuracy)}: {found.answer}."
        )


class Gains(tuple[Gain, ...]):
    """One `Gain` for each slice, in the order given; prints as one sentence each.

    Example:
        >>> print(Gains())
        No slices: nobody to confirm.
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "No slices: nobody to confirm."


def gains_of(
    slices: Any,
    read: Callable[[Any], ConfirmedGroups],
    verdict_of: Callable[[ConfirmedGroups], Verdict],
) -> Gains:
    """The verdict about each slice, as if it was confirmed.

    Args:
        slices: one, or several, of what `SecondLook(groups=...)` takes.
        read: what `ConfirmedGroups.of` makes of one of them.
        verdict_of: the examination with these groups.
    """
    alone = hasattr(slices, "conditions") or not isinstance(slices, list | tuple)
    each = [(one, read(one)) for one in ([slices] if alone else slices)]
    return Gains(Gain(one, verdict_of(groups)) for one, groups in each)
