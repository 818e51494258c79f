"""A vector of one number per training sample, divided over the processes: its sums, draws from it, and its worst case.

Every process holds a contiguous part (`scdro._sharding.Sharding`). Each operation exchanges a few
numbers per process, never the vector.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from scdro._kl import CANCELS, divergence, solve_lam, solve_root, tilt
from scdro._scalar import Scalar
from scdro._sharding import Sharding
from scdro.distributed import ALONE

__all__ = ["DualParts", "alone", "log_sum"]


class DualParts(Sharding):
    """How p over n samples is divided over the processes, with sums, softmax, draws and the root of KL = rho.

    All processes must call each method. With one process the methods are the plain operations.
    """

    def numbers(self, *local: float) -> list[list[float]]:
        """The numbers of all processes: one list per argument, in rank order."""
        self.check()
        rows: list[list[float]] = self._ranks.gather(
            torch.tensor(local, dtype=torch.float64)
        ).T.tolist()
        return rows

    def sums(self, *local: float) -> list[float]:
        return (
            [math.fsum(parts) for parts in self.numbers(*local)]
            if self._ranks.size > 1
            else list(local)
        )

    def top(self, local: float) -> float:
        return max(self.numbers(local)[0])

    def log_softmax(self, local: Tensor) -> Tensor:
        if self._ranks.size == 1:
            return torch.log_softmax(local, 0)
        return local - log_sum(self.numbers(float(torch.logsumexp(local, 0)))[0])

    def draw(
        self, log_masses: list[float], size: int, generator: torch.Generator
    ) -> tuple[Tensor, int]:
        """Which of `size` draws fall into this process's part, according to the masses of the parts, and a seed."""
        masses = np.exp(np.array(log_masses) - max(log_masses))
        uniform = torch.rand(size, generator=generator, dtype=torch.float64, device="cpu").numpy()
        below = masses.cumsum()
        owner = np.searchsorted(
            below, (1.0 - uniform) * below[-1]
        )  # 0 < 1 - uniform <= 1: never past the end
        mine = torch.from_numpy(owner == self._ranks.rank)
        seed = int(torch.randint(2**62, (), generator=generator, device="cpu"))
        return mine, seed + self._ranks.rank

    def collect(self, mine: Tensor, values: Tensor) -> Tensor:
        """Combine integers from all processes; this process has those at `mine`."""
        found = torch.zeros(len(mine), dtype=torch.int64)
        found[mine] = values
        return self._ranks.merged(found)

    def solve_lam(
        self, local: Tensor, rho: float, lam0: float, start: float | None = None
    ) -> Scalar:
        """`solve_lam` of the whole vector, with uniform weights. Exchanges three numbers per process and iteration."""
        if self._ranks.size == 1:
            return solve_lam(local, torch.zeros_like(local), rho, lam0, start=start)
        centred = local - self.top(float(local.max()))
        log_q = torch.zeros_like(centred)
        (total,) = self.sums(float(centred.sum()))
        mean = total / self.n
        (square,) = self.sums(float(((centred - mean) ** 2).sum()))

        def kl_and_var(lam: Scalar) -> tuple[Scalar, Scalar]:
            here = tilt(centred, log_q, lam, 0.0)
            x = centred / lam
            log_here = float(torch.logsumexp(x, 0))
            logs, means, variances = self.numbers(log_here, float(here.mean), float(here.var))
            log_norm = log_sum(logs)
            shares = [math.exp(a - log_norm) for a in logs]
            joint = math.fsum(p * m for p, m in zip(shares, means, strict=True))
            parts = zip(shares, means, variances, strict=True)
            variance = math.fsum(p * (v + (m - joint) ** 2) for p, m, v in parts)
            kl = joint - log_norm + math.log(self.n)
            if kl < CANCELS:  # on all processes, or on none
                terms = divergence(x - (log_norm - math.log(self.n)), torch.ones_like(x))
                kl = self.sums(float(terms.sum()))[0] / self.n
            return kl, variance

        return solve_root(kl_and_var, mean, math.sqrt(square / self.n), rho, lam0, start=start)


def alone(n: int) -> DualParts:
    """All n entries in this process."""
    return DualParts(n, ALONE)


def log_sum(logs: list[float]) -> float:
    top = max(logs)
    return top + math.log(math.fsum(math.exp(a - top) for a in logs))
