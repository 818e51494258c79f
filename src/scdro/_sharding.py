"""Vectors with an entry for each training sample, divided over the processes, such as p of the primal-dual methods."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from scdro._kl import CANCELS, divergence, solve_lam, solve_root, tilt
from scdro._scalar import Scalar
from scdro._validation import check_samples
from scdro.distributed import ALONE, Ranks
from scdro.errors import HyperparameterError

__all__ = ["Sharding", "alone", "log_sum"]


class Sharding:
    """How a vector of n entries is divided over the processes, and operations on it that exchange only a few numbers.

    All processes must call each method, except `check`, `here`, `inside` and `put`. With one process the methods are
    the plain operations.
    """

    def __init__(self, n: int, ranks: Ranks) -> None:
        check_samples(n)
        if n < ranks.size:
            raise HyperparameterError(f"expected n >= {ranks.size} samples, one for each process, got {n}")
        self.n, self.size, self._ranks = n, ranks.size, ranks
        part = ranks.part(n)
        self.start, self.stop, self.count = part.start, part.stop, len(part)

    def check(self) -> None:
        """Raise if the number of processes has changed since construction."""
        if self.size != self._ranks.size:
            raise HyperparameterError(
                f"expected {self.size} processes, as when this object was constructed, got {self._ranks.size}; "
                "construct it after initialize() or init_process_group()"
            )

    def here(self, whole: Tensor) -> Tensor:
        """This process's part of a vector."""
        return whole[self.start : self.stop]

    def inside(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the positions belong to this process's part, and their positions within it."""
        mine = (index >= self.start) & (index < self.stop)
        return mine, index[mine] - self.start

    # -- collective ---------------------------------------------------------------------------------------------------

    def numbers(self, *local: float) -> list[list[float]]:
        """The numbers of all processes: one list per argument, in rank order."""
        self.check()
        rows: list[list[float]] = self._ranks.gather(torch.tensor(local, dtype=torch.float64)).T.tolist()
        return rows

    def sums(self, *local: float) -> list[float]:
        return [math.fsum(parts) for parts in self.numbers(*local)] if self._ranks.size > 1 else list(local)

    def top(self, local: float) -> float:
        return max(self.numbers(local)[0])

    def log_softmax(self, local: Tensor) -> Tensor:
        if self._ranks.size == 1:
            return torch.log_softmax(local, 0)
        return local - log_sum(self.numbers(float(torch.logsumexp(local, 0)))[0])

    def at(self, local: Tensor, index: Tensor) -> Tensor:
        """Entries of the whole vector at positions `index`, the same on all processes."""
        if self._ranks.size == 1:
            return local[index]
        mine, where = self.inside(index)
        found = local.new_zeros(len(index), *local.shape[1:])
        found[mine] = local[where]
        return self._ranks.merged(found)

    def put(self, local: Tensor, index: Tensor, values: Tensor) -> None:
        """Write entries of the whole vector that belong to this process. For duplicates, the last value stays."""
        mine, where = self.inside(index)
        local.index_copy_(0, where, values[mine])

    def whole(self, local: Tensor) -> Tensor:
        if self._ranks.size == 1:
            return local
        padded = local.new_zeros(-(-self.n // self._ranks.size), *local.shape[1:])
        padded[: self.count] = local
        parts = self._ranks.gather(padded)
        bounds = [self.n * rank // self._ranks.size for rank in range(self._ranks.size + 1)]
        return torch.cat([part[: b - a] for part, a, b in zip(parts, bounds, bounds[1:], strict=False)])

    def draw(self, log_masses: list[float], size: int, generator: torch.Generator) -> tuple[Tensor, int]:
        """Which of `size` draws fall into this process's part, according to the masses of the parts, and a seed."""
        masses = np.exp(np.array(log_masses) - max(log_masses))
        uniform = torch.rand(size, generator=generator, dtype=torch.float64, device="cpu").numpy()
        below = masses.cumsum()
        owner = np.searchsorted(below, (1.0 - uniform) * below[-1])  # 0 < 1 - uniform <= 1: never past the end
        mine = torch.from_numpy(owner == self._ranks.rank)
        seed = int(torch.randint(2**62, (), generator=generator, device="cpu"))
        return mine, seed + self._ranks.rank

    def collect(self, mine: Tensor, values: Tensor) -> Tensor:
        """Combine integers from all processes; this process has those at `mine`."""
        found = torch.zeros(len(mine), dtype=torch.int64)
        found[mine] = values
        return self._ranks.merged(found)

    def solve_lam(self, local: Tensor, rho: float, lam0: float, start: float | None = None) -> Scalar:
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


def alone(n: int) -> Sharding:
    """All n entries in this process."""
    return Sharding(n, ALONE)


def log_sum(logs: list[float]) -> float:
    top = max(logs)
    return top + math.log(math.fsum(math.exp(a - top) for a in logs))
