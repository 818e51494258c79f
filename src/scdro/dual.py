"""The dual variable of the primal-dual methods: a distribution over all n samples, kept in its KL ball."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scdro.distributed.ranks import ALONE, Ranks
from scdro.errors import CheckpointError, LossError, NonFiniteLossError
from scdro.projections import tempered
from scdro.reading import LARGEST
from scdro.sharding import Sharding, log_sum
from scdro.tree import LogSumTree

__all__ = ["Dual", "check_all_losses", "check_vector"]


class Dual:
    """p over n samples with KL(p, 1/n) <= rho, in the log domain, in the hosts' memory: each process has a part of it.

    Drawing from p and raising some of its entries cost O(log n); so does seeing whether p left the ball. Bringing it
    back costs O(n).
    """

    def __init__(self, n: int, rho: float, ranks: Ranks = ALONE) -> None:
        self.parts = Sharding(n, ranks)
        self.n, self.rho = n, rho
        self.set(torch.full((self.parts.count,), -math.log(n), dtype=torch.float64, device="cpu"))

    @property
    def log_p(self) -> Tensor:
        return self.parts.whole(self._tree.log_weights) - self._total

    @property
    def kl(self) -> float:
        """KL(p, 1/n) = log n + mean_p(log p)."""
        return self._kl

    def at(self, index: Tensor) -> Tensor:
        """p of these samples."""
        return torch.exp(self.parts.at(self._tree.log_weights, index) - self._total)

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Positions drawn from p: first whose part, then which of it."""
        if len(self._logs) == 1:
            return self._tree.draw(size, generator)
        mine, seed = self.parts.draw(self._logs, size, generator)
        own = torch.Generator(device="cpu").manual_seed(seed)
        return self.parts.collect(mine, self.parts.start + self._tree.draw(int(mine.sum()), own))

    def ascend(self, index: Tensor, amounts: Tensor) -> None:
        """p_i <- p_i exp(amount_i), amounts of the same sample added up, and back into the ball."""
        mine, here = self.parts.inside(index)
        where, member = torch.unique(here, return_inverse=True)
        total = torch.zeros(len(where), dtype=torch.float64).index_add(0, member, amounts[mine])
        self._tree.update(where, self._tree.log_weights[where] + total)
        self._sum_up()
        if self.kl > self.rho:
            self.set(tempered(self._tree.log_weights, self.rho, self.parts))

    def respond(self, losses: Tensor, lam0: float) -> None:
        """The worst case of all n losses, exactly, given this process's part of them."""
        if self.rho == 0.0:
            return
        lam = self.parts.solve_lam(losses, self.rho, lam0)
        self.set(self.parts.log_softmax((losses - self.parts.top(float(losses.max()))) / lam))

    def set(self, log_p: Tensor) -> None:
        """This process's part of log p."""
        self._tree = LogSumTree(log_p.cpu())
        self._sum_up()

    def _sum_up(self) -> None:
        """What all processes know of p: the log mass of each part, and KL."""
        self._logs, means = self.parts.numbers(self._tree.total, self._tree.mean)
        self._total = log_sum(self._logs)
        shares = (math.exp(a - self._total) for a in self._logs)
        mean = math.fsum(share * mean for share, mean in zip(shares, means, strict=True))
        self._kl = math.log(self.n) + mean - self._total

    def state_dict(self) -> Tensor:
        """The log weights of all n as they are, unnormalised: a resumed run equals the uninterrupted one."""
        return self.parts.whole(self._tree.log_weights).clone()

    def load_state_dict(self, log_weights: Tensor) -> None:
        self.set(self.parts.here(log_weights))
        if self.kl > self.rho + 1e-9:  # It is of a larger ball.
            self.set(tempered(self._tree.log_weights, self.rho, self.parts))


def check_vector(values: Tensor | None, n: int) -> None:
    """A number for each of n samples, from a checkpoint."""
    if not isinstance(values, Tensor) or values.shape != (n,):
        came = "none" if values is None else len(values)
        raise CheckpointError(f"expected the weights of n = {n} samples, got {came}; is it another data set's?")


def check_all_losses(losses: Tensor, parts: Sharding) -> Tensor:
    """This process's part of the losses of all n samples, in float64 on the host."""
    if not isinstance(losses, Tensor) or losses.ndim != 1 or len(losses) not in (parts.n, parts.count):
        came = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        part = "" if parts.count == parts.n else f", or of the {parts.count} in this process's shard(n)"
        raise LossError(
            f"expected all_losses() to give a vector with the losses of all {parts.n} samples{part}, got {came}"
        )
    losses = losses.detach().cpu().to(torch.float64)
    losses = losses if len(losses) == parts.count else parts.here(losses)
    if any(parts.sums(float((~(losses.abs() < LARGEST)).sum()))):  # on all processes, or they would wait for each other
        raise NonFiniteLossError(
            "expected finite losses from all_losses(), got NaN or infinity (or a size beyond 1e100)"
        )
    return losses
