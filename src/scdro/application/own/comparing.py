"""Whether two models that predicted the same samples differ, where it matters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from torch import Tensor

from scdro.application.chance import confidence_of_each
from scdro.application.own.fitting import Fit
from scdro.application.own.opening import OwnData

__all__ = ["difference", "verdict"]


def verdict(fits: Sequence[Fit], data: OwnData) -> list[str]:
    """What a baseline and a method have to say to each other, on the class or group that is worst for the baseline.

    That one is chosen by the same samples, which favours the other method: of many groups one is bad by chance, and not
    again. So the interval is one that holds for all of them at once.
    """
    plain, own = fits[0], fits[-1]
    if plain.right is None or own.right is None:
        return []
    what, names, members = _parts(plain, data)
    shares = {k: plain.right[members == k].double().mean().item() for k in set(members.tolist())}
    worst = min(shares, key=lambda k: (shares[k], k))
    first, second = (right[members == worst] for right in (plain.right, own.right))
    seen = _seen(own.run.method, *difference(first, second, confidence_of_each(len(shares))))
    of = f"{plain.run.method} {_percent(first)}, {own.run.method} {_percent(second)}"
    lines = [f"worst {what} of plain training, {names[worst]!r}, {len(first):,} samples: {of}: {seen}"]
    if all(fit.result["train"]["top1"] == 1.0 for fit in (plain, own)):
        lines.append("both fit every training sample: there is little for the worst case to do")
    return lines


def difference(first: Tensor, second: Tensor, confidence: float = confidence_of_each(1)) -> tuple[float, float]:
    """An interval for how much more often the second is right than the first, of the same samples (bool, (n,)).

    That of Bonett and Price (2012), which counts one sample more each way.
    """
    up, down = (int((a & ~b).sum()) + 1 for a, b in ((second, first), (first, second)))
    n = len(first) + 2
    mean = (up - down) / n
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt(((up + down) / n - mean**2) / n)
    return max(mean - reach, -1.0), min(mean + reach, 1.0)


def _parts(plain: Fit, data: OwnData) -> tuple[str, Sequence[str], Tensor]:
    """Groups where there are any, else classes: what they are called, their names, and that of each sample."""
    groups: Tensor | None = getattr(data.evaluated, "groups", None)
    if groups is not None and "per_group" in plain.result[data.part]:
        return "group", data.groups, groups
    return "class", data.classes, data.evaluated.labels


def _seen(method: str, low: float, high: float) -> str:
    if low > 0:
        return f"{method} is higher, by {100 * low:.1f} to {100 * high:.1f} points (95%)"
    if high < 0:
        return f"{method} is lower, by {-100 * high:.1f} to {-100 * low:.1f} points (95%)"
    return f"no difference can be seen ({100 * low:+.1f} to {100 * high:+.1f} points, 95%)"


def _percent(right: Tensor) -> str:
    return f"{100 * right.double().mean().item():.1f}%"
