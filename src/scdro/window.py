"""The losses of the last few batches: a fixed-size sample of the present loss distribution, whatever n is."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from scdro._kl import Tilt, effective_size, mass_and_size, solve_lam, tilt, trimmed_log_weights
from scdro.scalar import Scalar, host_reads, scalar

__all__ = ["Window", "default_size"]


def default_size(rho: float) -> int:
    """At least 32 samples of the smallest group that rho guards (a fraction exp(-rho)), between 1,024 and 65,536."""
    return int(min(max(1024.0, 32.0 * math.exp(min(rho, 20.0))), 65536.0))


class Window(NamedTuple):
    """Two rows, losses and their log weights, oldest first. A slot not yet filled has weight zero."""

    rows: Tensor

    def clear_(self) -> None:
        """Empty every slot, in place."""
        self.rows[0].zero_()
        self.rows[1].fill_(-math.inf)

    @property
    def losses(self) -> Tensor:
        return self.rows[0]

    @property
    def log_weight(self) -> Tensor:
        return self.rows[1]

    def pushed(self, losses: Tensor, log_weight: Tensor | None) -> Window:
        """The window with a batch added, and as many of the oldest losses dropped.

        Samples of weight zero take no room. Of a batch larger than the window, every so-many-th sample is kept.
        """
        size = self.rows.shape[1]
        if log_weight is None:
            losses = _spread(losses, size, len(losses))
            rows = torch.cat([self.rows, torch.stack([losses, torch.zeros_like(losses)])], 1)
            return Window(rows[:, -size:])
        batch = _live_last(torch.stack([losses, log_weight]))
        batch = _spread(batch, size, (log_weight > -math.inf).sum())
        return Window(_live_last(torch.cat([self.rows, batch], 1))[:, -size:])

    def tilt(self, lam: Scalar, shift: Scalar) -> tuple[Tilt, Scalar]:
        """The recent losses under the worst case at temperature lam, and how many equally weighted ones they are worth.

        `shift` is any value near their top.
        """
        losses, log_weight = self.rows.unbind()
        log_total, size = mass_and_size(log_weight)
        return tilt(losses - shift, log_weight, lam, log_total), size

    def effective_size(self) -> Scalar:
        return effective_size(self.log_weight)

    def mean(self) -> Scalar:
        return scalar(torch.dot(torch.softmax(self.log_weight, 0), self.losses))

    def log_mean(self, lam: Scalar) -> Scalar:
        """log of the mean of exp(l/lam)."""
        return scalar(torch.logsumexp(self.losses / lam + self.log_weight, 0) - torch.logsumexp(self.log_weight, 0))

    def solve(self, rho: Scalar, lam0: float, mu: float) -> Scalar:
        """lam* of the recent losses."""
        return solve_lam(self.losses, self.log_weight, rho, lam0, mu=mu)

    def top(self) -> Scalar:
        """The hardest of the recent losses."""
        if host_reads(self.rows) and self.rows[1, 0].item() > -math.inf:  # The oldest slot is filled: all are.
            return self.losses.max().item()
        return scalar(torch.where(self.log_weight > -math.inf, self.losses, -math.inf).amax())

    def quantile(self, trim: float) -> Scalar:
        """The loss above which the hardest `trim` of the recent weight lies."""
        kept = trimmed_log_weights(self.losses, self.log_weight, trim)
        return scalar(torch.where(kept > -math.inf, self.losses, -math.inf).amax())

    def without(self, ceiling: Scalar) -> Window:
        """The window less the losses above a ceiling."""
        return Window(torch.stack([self.losses, torch.where(self.losses > ceiling, -math.inf, self.log_weight)]))


def _live_last(rows: Tensor) -> Tensor:
    """Columns of weight zero first, all else in its order."""
    return rows[:, torch.argsort((rows[1] > -math.inf).to(torch.uint8), stable=True)]


def _spread(columns: Tensor, size: int, live: Tensor | int) -> Tensor:
    """At most `size` of the last `live` columns, evenly spaced; all where they fit."""
    count = columns.shape[-1]
    if count <= size:
        return columns
    live = live.clamp_min(size) if isinstance(live, Tensor) else max(live, size)
    return columns[..., count - live + torch.arange(size, device=columns.device) * live // size]
