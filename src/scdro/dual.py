"""The dual variable of the primal-dual methods: a distribution over all n samples, kept in its KL ball."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scdro.errors import CheckpointError, LossError, NonFiniteLossError
from scdro.positions import check_samples
from scdro.projections import tempered
from scdro.tilt import solve_lam
from scdro.tree import LogSumTree

__all__ = ["Dual", "check_all_losses", "check_vector"]


class Dual:
    """p over n samples with KL(p, 1/n) <= rho, in the log domain, in the host's memory.

    Drawing from p and raising some of its entries cost O(log n); so does seeing whether p left the ball. Bringing it
    back costs O(n).
    """

    def __init__(self, n: int, rho: float) -> None:
        check_samples(n)
        self.n, self.rho = n, rho
        self._tree = LogSumTree(torch.full((n,), -math.log(n), dtype=torch.float64, device="cpu"))

    @property
    def log_p(self) -> Tensor:
        return self._tree.log_weights - self._tree.total

    @property
    def kl(self) -> float:
        return self._tree.kl

    def at(self, index: Tensor) -> Tensor:
        """p of these samples."""
        return torch.exp(self._tree.log_weights[index] - self._tree.total)

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        return self._tree.draw(size, generator)

    def ascend(self, index: Tensor, amounts: Tensor) -> None:
        """p_i <- p_i exp(amount_i), amounts of the same sample added up, and back into the ball."""
        where, member = torch.unique(index, return_inverse=True)
        total = torch.zeros(len(where), dtype=torch.float64).index_add(0, member, amounts)
        self._tree.update(where, self._tree.log_weights[where] + total)
        if self._tree.kl > self.rho:
            self.set(tempered(self._tree.log_weights, self.rho))

    def respond(self, losses: Tensor, lam0: float) -> None:
        """The worst case of all n losses, exactly."""
        if self.rho == 0.0:
            return
        lam = solve_lam(losses, torch.zeros_like(losses), self.rho, lam0)
        self.set(torch.log_softmax((losses - losses.max()) / lam, 0))

    def set(self, log_p: Tensor) -> None:
        self._tree = LogSumTree(log_p.cpu())

    def state_dict(self) -> Tensor:
        """The log weights as they are, unnormalised: a resumed run equals the uninterrupted one."""
        return self._tree.log_weights.clone()

    def load_state_dict(self, log_weights: Tensor) -> None:
        self.set(log_weights)
        if self._tree.kl > self.rho + 1e-9:  # It is of a larger ball.
            self.set(tempered(self._tree.log_weights, self.rho))


def check_vector(values: Tensor | None, n: int) -> None:
    """A number for each of n samples, from a checkpoint."""
    if not isinstance(values, Tensor) or values.shape != (n,):
        came = "none" if values is None else len(values)
        raise CheckpointError(f"expected the weights of n = {n} samples, got {came}; is it another data set's?")


def check_all_losses(losses: Tensor, n: int) -> Tensor:
    """The losses of all n samples, in float64 on the host."""
    if not isinstance(losses, Tensor) or losses.shape != (n,):
        came = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise LossError(f"expected all_losses() to give a vector with the losses of all {n} samples, got {came}")
    losses = losses.detach().cpu().to(torch.float64)
    if not bool(torch.isfinite(losses).all()):
        raise NonFiniteLossError("expected finite losses from all_losses(), got NaN or infinity")
    return losses
