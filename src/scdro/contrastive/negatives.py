r"""One vector of losses for each anchor: h_ij = sim(anchor i, negative j) - sim(anchor i, its positive).

Matrices stay in the embeddings' dtype (float32 for halves), the few numbers of an anchor are float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scdro._kl import divergence, solve_root
from scdro.scalar import Scalar, scalar_dtype

__all__ = ["Negatives", "Tilts", "one_tower", "two_towers"]


def one_tower(views: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], different: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (b, 4 m) of b samples, each seen in two views, against both views of all m, and which of them count.

    Both views of a sample are anchors of its one problem: two draws of the augmentation inside its expectation.
    """
    positive = _positive(views)
    columns = torch.cat(others)
    losses = torch.cat([view @ columns.T for view in views], 1) - positive[:, None]
    return losses, different.repeat(1, 4)


def two_towers(pair: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], different: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (2 b, m): first those of the first tower's samples against the second tower's, then the other way."""
    positive = _positive(pair)
    losses = torch.cat([pair[0] @ others[1].T, pair[1] @ others[0].T]) - positive.repeat(2)[:, None]
    return losses, different.repeat(2, 1)


def _positive(pair: tuple[Tensor, Tensor]) -> Tensor:
    return (pair[0] * pair[1]).sum(1)


class Tilts(NamedTuple):
    """Every anchor's negatives under its worst case at its temperature: `terms` are exp((h - top)/tau), zero where a
    column does not count, and `log_mean` is log mean exp(h/tau)."""

    terms: Tensor
    total: Tensor
    log_mean: Tensor
    kl: Tensor
    var: Tensor

    def weights(self, log_u: Tensor) -> Tensor:
        """exp(h/tau)/(u m): what the gradients of h are weighted with."""
        scale = torch.exp(self.log_mean - log_u) / self.total
        return self.terms * scale.to(self.terms.dtype)[:, None]


class Negatives(NamedTuple):
    """Losses of all anchors less their largest one, and where they count."""

    centred: Tensor
    counts: Tensor
    top: Tensor
    number: Tensor

    @classmethod
    def of(cls, losses: Tensor, counts: Tensor) -> Negatives:
        """`losses` (b, m) without their graph; `counts` says which of them do."""
        top = losses.masked_fill(~counts, -torch.inf).amax(1)
        centred = (losses - top[:, None]).masked_fill(~counts, 0.0)
        double = scalar_dtype(losses.device)
        return cls(centred, counts, top.to(double), counts.sum(1).to(double))

    def at(self, tau: Tensor) -> Tilts:
        """Each anchor at its temperature, (b,)."""
        double = self.top.dtype
        x = self.centred / tau.to(self.centred.dtype)[:, None]
        terms = torch.exp(x).masked_fill_(~self.counts, 0.0)
        total = terms.sum(1, dtype=double)
        mean = (terms * x).sum(1, dtype=double) / total
        deviation = x - mean.to(x.dtype)[:, None]
        var = (terms * deviation * deviation).sum(1, dtype=double) / total
        log_mean = torch.log(total / self.number)
        return Tilts(terms, total, log_mean + self.top / tau, mean - log_mean, var)

    def solve(self, rho: Scalar, tau0: float, iterations: int | None = None) -> Tensor:
        """The temperature at which each anchor's worst case spends rho, or tau0."""
        mean = self.centred.sum(1, dtype=self.top.dtype) / self.number
        square = (self.centred**2).sum(1, dtype=self.top.dtype) / self.number
        std = torch.sqrt((square - mean**2).clamp_min(0.0))

        def kl_and_var(tau: Scalar) -> tuple[Scalar, Scalar]:
            tau = torch.as_tensor(tau, dtype=self.top.dtype, device=self.top.device).expand_as(self.top)
            at = self.at(tau)
            norm = at.log_mean - self.top / tau
            log_ratio = self.centred / tau.to(self.centred.dtype)[:, None] - norm.to(self.centred.dtype)[:, None]
            kl = divergence(log_ratio, self.counts.to(log_ratio.dtype)).sum(1, dtype=self.top.dtype) / self.number
            return kl, at.var

        eps = torch.finfo(self.centred.dtype).eps
        tau = solve_root(kl_and_var, mean, std, rho, tau0, eps=eps, wait=True, iterations=iterations)
        assert isinstance(tau, Tensor)
        return tau
