"""FastDRO: the exact worst case of each single batch, in four geometries, or multi-level.

    p = argmax over p in a ball around 1/b of sum_j p_j l_j          on the batch alone
    v <- momentum v + sum_j p_j grad l_j;   w <- w - lr v            no gradient through p

There is no state beyond the momentum. On average the worst case of b losses is smaller than that of
all n: the gradient is biased, the more the smaller the batch. The multi-level variant removes all
but the bias of its largest batch, at the price of variance.

References:
    Levy, Carmon, Duchi, Sidford, "Large-Scale Methods for Distributionally Robust Optimization",
    NeurIPS 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from scdro._buffers import Modules
from scdro._scalar import scalar
from scdro._state import Batch, MethodState
from scdro._validation import check_is, check_samples, check_whole
from scdro.distributed import ALONE, Group
from scdro.errors import HyperparameterError, LossError
from scdro.functional import (
    BestResponse,
    WorstCase,
    chi2_constrained,
    chi2_penalized,
    cvar,
    worst_case,
)
from scdro.optim.baselines.erm import Weighed, WeightingOptimizer
from scdro.optim.samplers import DrawnBatches

__all__ = [
    "CVaR",
    "Chi2",
    "Chi2Penalty",
    "FastDRO",
    "KLBall",
    "Multilevel",
]


class Geometry(Protocol):
    """An exact worst case with its settings. Returns the value and the weights of a vector of losses."""

    def __call__(self, losses: Any, *, sample_weight: Any = None) -> WorstCase | BestResponse: ...


@dataclass(frozen=True)
class KLBall:
    """max over KL(p, q) <= rho of sum p l - lam0 KL(p, q).

    Example:
        >>> import torch
        >>> opt = FastDRO(torch.nn.Linear(3, 2).parameters(), lr=0.1, geometry=KLBall(0.1))
        >>> round(float(opt.full_objective(torch.arange(4.0))), 4)
        1.9942
    """

    rho: float
    lam0: float = 1e-3

    def __call__(self, losses: Any, *, sample_weight: Any = None) -> WorstCase:
        return worst_case(losses, self.rho, self.lam0, sample_weight=sample_weight)


@dataclass(frozen=True)
class CVaR:
    """The mean loss of the hardest fraction alpha of the samples.

    Example:
        >>> import torch
        >>> opt = FastDRO(torch.nn.Linear(3, 2).parameters(), lr=0.1, geometry=CVaR(0.2))
        >>> float(opt.full_objective(torch.arange(10.0)))  # the mean of the two hardest of ten
        8.5
    """

    alpha: float

    def __call__(self, losses: Any, *, sample_weight: Any = None) -> BestResponse:
        return cvar(losses, self.alpha, sample_weight=sample_weight)


@dataclass(frozen=True)
class Chi2:
    """max over D(p) <= rho of sum p l, where D is the chi-square divergence (`chi2_constrained`).

    Example:
        >>> import torch
        >>> opt = FastDRO(torch.nn.Linear(3, 2).parameters(), lr=0.1, geometry=Chi2(0.1))
        >>> round(float(opt.full_objective(torch.arange(4.0))), 6)
        2.0
    """

    rho: float

    def __call__(self, losses: Any, *, sample_weight: Any = None) -> BestResponse:
        return chi2_constrained(losses, self.rho, sample_weight=sample_weight)


@dataclass(frozen=True)
class Chi2Penalty:
    """max over p of sum p l - reg D(p), where D is the chi-square divergence (`chi2_penalized`).

    Example:
        >>> import torch
        >>> opt = FastDRO(torch.nn.Linear(3, 2).parameters(), lr=0.1, geometry=Chi2Penalty(2.5))
        >>> round(float(opt.full_objective(torch.arange(4.0))), 6)
        1.75
    """

    reg: float

    def __call__(self, losses: Any, *, sample_weight: Any = None) -> BestResponse:
        return chi2_penalized(losses, self.reg, sample_weight=sample_weight)


class Multilevel(NamedTuple):
    """Batch sizes of the multi-level Monte Carlo variant: `smallest` times 2, 4, 8, ... up to `largest`.

    The size 2^j smallest, j = 1, 2, ..., has probability 2^-j, and the largest the rest. If R is
    the worst case of a batch,

        R(first `smallest`) + (R(all) - (R(first half) + R(second half))/2) / chance

    has the expectation of R on the largest batch, whatever size was drawn.

    Example:
        >>> import torch
        >>> opt = FastDRO(torch.nn.Linear(3, 2).parameters(), lr=0.1, geometry=KLBall(0.5), multilevel=Multilevel(2, 8))
        >>> sizes = {len(index) for index in opt.batch_sampler(n=100, steps=50)}
        >>> sizes <= {4, 8}
        True
    """

    smallest: int  # the batch of the first term
    largest: int  # the batch whose bias remains

    @property
    def sizes(self) -> list[int]:
        """The batch sizes, twice `smallest` and up."""
        return [self.smallest * 2**j for j in range(1, self.levels + 1)]

    @property
    def levels(self) -> int:
        """The number of sizes."""
        return (self.largest // self.smallest).bit_length() - 1

    def check(self) -> None:
        """Raise unless `largest` is `smallest` times a power of two."""
        check_whole("smallest", self.smallest, meaning="a batch size")
        check_whole("largest", self.largest, 2 * self.smallest, meaning="a batch size")
        if self.sizes[-1] != self.largest:
            raise HyperparameterError(
                f"expected a largest batch of smallest times 2, 4, 8 ..., got {self}"
            )

    def chance(self, size: int) -> float:
        """The probability of this batch size."""
        if size not in self.sizes:
            raise LossError(
                f"expected a batch of {self.sizes} losses, got {size}; draw it with"
                " batch_sampler(...)"
            )
        j = self.sizes.index(size) + 1
        return 2.0 ** -min(j, self.levels - 1)

    def draw(self, generator: torch.Generator) -> int:
        """A size: doubled at random with probability 1/2, until the largest."""
        j = 1
        while j < self.levels and bool(torch.rand((), generator=generator, device="cpu") < 0.5):
            j += 1
        return self.sizes[j - 1]


class FastDRO(WeightingOptimizer):
    r"""The exact worst case of each single batch (Levy, Carmon, Duchi, Sidford, NeurIPS 2020).

    No gradient flows through p. On average the worst case of a batch is smaller than that of the
    data; this bias falls with the batch size. With `multilevel`, batch sizes are random, and the
    bias is that of the largest size.

    Args:
        geometry: `KLBall(rho)` (0.5 by default), `CVaR(alpha)`, `Chi2(rho)` or `Chi2Penalty(reg)`.
        multilevel: `Multilevel(smallest, largest)`; batches then come from `batch_sampler`.
        params, lr, momentum, weight_decay, radius, skip_nonfinite, module, process_group: as for
        `ERM`.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = FastDRO(model.parameters(), lr=0.1, geometry=CVaR(0.2))
    """

    _own_attributes = (*WeightingOptimizer._own_attributes, "geometry", "multilevel")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        geometry: Geometry | None = None,
        *,
        multilevel: Multilevel | None = None,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        radius: float | None = None,
        skip_nonfinite: bool = False,
        module: Modules = None,
        process_group: Group = None,
    ) -> None:
        self.geometry = KLBall(0.5) if geometry is None else geometry
        if isinstance(self.geometry, type) or not callable(self.geometry):
            raise HyperparameterError(
                f"expected a geometry such as KLBall(0.5) or CVaR(0.1), got {geometry!r}"
            )
        self.geometry(torch.zeros(1))  # Raises for bad settings now instead of at the first step.
        self.multilevel = multilevel
        if multilevel is not None:
            check_is(multilevel, Multilevel, "multilevel=Multilevel(smallest, largest)")
            multilevel.check()
        method_state = MethodState(skip_nonfinite=skip_nonfinite, process_group=process_group)
        super().__init__(
            params,
            lr,
            method_state,
            momentum=momentum,
            weight_decay=weight_decay,
            radius=radius,
            module=module,
        )

    def batch_sampler(
        self, *, n: int, steps: int | None = None, seed: int = 0, joint: bool = False
    ) -> DrawnBatches:
        """Batches of random sizes from n samples, for `DataLoader(batch_sampler=...)`; for `multilevel` only.

        An epoch has `steps` batches, by default enough to cover n samples on average. With several
        processes, each gets its part of the batch; with `joint` each gets the whole batch, to be
        split later.
        """
        multilevel = self.multilevel
        if multilevel is None:
            raise HyperparameterError(
                "expected FastDRO(multilevel=...), got fixed batch sizes; use any loader"
            )
        check_samples(n)
        mean_size = sum(size * multilevel.chance(size) for size in multilevel.sizes)
        steps = math.ceil(n / mean_size) if steps is None else steps
        # With replacement, so that the two halves are independent, as the telescoping sum requires.
        return DrawnBatches(
            lambda g: torch.randint(n, (multilevel.draw(g),), generator=g, device="cpu"),
            steps,
            seed,
            ALONE if joint else self.ranks,
        )

    def draws(
        self, n: int, batch_size: int, seed: int = 0, *, joint: bool = False
    ) -> DrawnBatches | None:
        """One epoch of batches with `multilevel`; else the method takes any loader's."""
        return None if self.multilevel is None else self.batch_sampler(n=n, seed=seed, joint=joint)

    def _weigh(self, batch: Batch) -> Weighed:
        """The worst case of the batch, or with `multilevel` the telescoping sum of four."""
        value, weights = self._response(batch, slice(None))
        if self.multilevel is None:
            return Weighed(weights, scalar(value), [])
        # R(first) + (R(all) - (R(half) + R(other half))/2) / chance, for the value and the weights.
        size, small = len(batch.losses), self.multilevel.smallest
        scale = 1.0 / self.multilevel.chance(size)
        parts = [
            (slice(0, small), 1.0),
            (slice(0, size // 2), -scale / 2),
            (slice(size // 2, size), -scale / 2),
        ]
        value, weights = value * scale, weights * scale
        for part, factor in parts:
            of_part, weights_of_part = self._response(batch, part)
            value = value + factor * of_part
            weights[part] += factor * weights_of_part
        return Weighed(weights, scalar(value), [])

    def _response(self, batch: Batch, part: slice) -> tuple[Tensor, Tensor]:
        """Value and weights, (part,), of the worst case of a part of the batch."""
        weight = None
        if batch.log_weight is not None:
            of_part = batch.log_weight[part]
            weight = torch.exp(of_part - of_part.max())
        found = self.geometry(batch.losses[part], sample_weight=weight)
        return found.value, found.weights

    def full_objective(self, losses: Tensor) -> Tensor:
        """The worst case of the losses of all training samples, in the method's geometry."""
        value: Tensor = self.geometry(losses).value
        return value
