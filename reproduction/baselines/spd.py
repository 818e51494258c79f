"""SPD: stochastic mirror steps on the model and on a distribution over all n samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reproduction.baselines.dual_variable import Dual, PrimalDual, check_index, check_vector
from reproduction.baselines.parts import DualParts
from scdro._buffers import Modules
from scdro._scalar import Scalar
from scdro._state import Batch
from scdro.distributed import ALONE, Group, Ranks
from scdro.errors import ClosureError, HyperparameterError
from scdro.optim._base import Closure, descend
from scdro.optim.samplers import DrawnBatches

__all__ = [
    "SPD",
]


class SPD(PrimalDual):
    r"""Stochastic primal-dual descent ascent (Namkoong & Duchi, NeurIPS 2016), for convex losses:

        min over w, max over {KL(p, 1/n) <= rho} of sum_i p_i l_i(w).

    1. Draw a batch of samples I from p.
    2. w <- Proj_W(w - lr grad l_I).
    3. q ~ p exp(dual_lr l_I e_I / p_I), then p is the point of the ball nearest to q in KL: q
        tempered.

    A step costs O(log n), or O(n) if p has left the ball. Batches come from `batch_sampler`. With
    `uniform=True` they come from any loader that draws uniformly, and weights n p_i replace drawing
    from p.

    Args:
        params: parameters or parameter groups.
        lr: step size of the model.
        rho: radius of the KL ball.
        n: number of training samples.
        dual_lr: step size of p, in units of 1/loss. Schedulers change only lr.
        uniform: whether batches are drawn uniformly instead of from p.
        weight_decay, radius, skip_nonfinite, module, process_group: as for `SCDRO`.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
        >>> opt = SPD(model.parameters(), lr=0.1, rho=0.5, n=100)
        >>> for index in opt.batch_sampler(8, steps=5):
        ...     value = opt.step(
        ...         lambda: torch.nn.functional.cross_entropy(model(x[index]), y[index], reduction="none"),
        ...         torch.tensor(index),
        ...     )
    """

    _own_attributes = (*PrimalDual._own_attributes, "_dual", "uniform", "_drawing")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        rho: float = 0.5,
        *,
        n: int,
        dual_lr: float = 1e-4,
        uniform: bool = False,
        weight_decay: float = 0.0,
        radius: float | None = None,
        skip_nonfinite: bool = False,
        module: Modules = None,
        process_group: Group = None,
    ) -> None:
        self._dual, self.uniform, self._drawing = Dual(n, rho, Ranks(process_group)), uniform, False
        super().__init__(
            params,
            lr,
            rho,
            dual_lr,
            weight_decay=weight_decay,
            radius=radius,
            skip_nonfinite=skip_nonfinite,
            module=module,
            process_group=process_group,
        )

    def draw(self, size: int, generator: torch.Generator) -> Tensor:
        """Positions of `size` samples, drawn from p."""
        self._sharding.check()
        self._drawing = True
        return self._dual.draw(size, generator)

    def batch_sampler(
        self, batch_size: int, steps: int | None = None, seed: int = 0, *, joint: bool = False
    ) -> DrawnBatches:
        """Batches drawn from the current p at the moment each is requested, for `DataLoader(batch_sampler=...)`.

        An epoch has `steps` batches, by default enough to cover n samples. With several processes,
        each gets `batch_size` samples of one joint draw; with `joint` all get the same `batch_size`
        samples, to be split later. All processes must request each batch.
        """
        if self.uniform:
            raise HyperparameterError(
                "expected an optimizer that draws from p, got one made with uniform=True"
            )
        return DrawnBatches.of_size(
            batch_size, self.draw, self._dual.n, steps, seed, ALONE if joint else self.ranks
        )

    def draws(
        self, n: int, batch_size: int, seed: int = 0, *, joint: bool = False
    ) -> DrawnBatches | None:
        return None if self.uniform else self.batch_sampler(batch_size, seed=seed, joint=joint)

    def _primal_dual_step(self, closure: Closure, index: Tensor | None) -> Scalar | None:
        if not self.uniform and not self._drawing:
            raise ClosureError(
                "expected batches drawn from p, got one although no sampler was made; use"
                " batch_sampler(...), or uniform=True with a loader that shuffles"
            )
        losses = self._losses(closure)
        batch = self._method_state.read(
            losses, read_ids=lambda: check_index(index, self._dual.n, losses)
        )
        assert batch.ids is not None
        positions = batch.ids.cpu()
        if self._skips(None if batch.finite is None else batch.finite.cpu()):
            return None
        self._begin()
        weights = torch.full_like(batch.losses, 1.0 / len(positions))
        if self.uniform:
            weights *= self._dual.n * self._dual.at(positions).to(weights)
        self._backward(losses, batch, weights)
        if not self._gradients.unscale_and_clip():
            return None
        self._descend()
        self._dual.ascend(positions, self._rate() * self._dual_gradient(batch, positions))
        self._method_state.store([], batch)
        return torch.dot(weights, batch.losses)

    @property
    def _sharding(self) -> DualParts:
        return self._dual.parts

    def _begin(self) -> None:
        """For methods that run in stages."""

    def _rate(self) -> float:
        return self._dual_lr

    def _descend(self) -> None:
        """w <- Proj_W(w - lr (gradient + wd w))."""
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            gradients = self._add_decay(
                [p.grad for p in params if p.grad is not None], params, group["weight_decay"]
            )
            descend(params, gradients, group["lr"])
        self._project()

    def _dual_gradient(self, batch: Batch, index: Tensor) -> Tensor:
        """Entries at `index` of an unbiased estimate of the n losses: l_I/p_I divided by the batch size."""
        losses = batch.losses.cpu().to(torch.float64)
        chance = (
            torch.full_like(losses, 1.0 / self._dual.n) if self.uniform else self._dual.at(index)
        )
        return losses / (chance.clamp_min(1e-300) * len(index))

    @property
    def weights(self) -> Tensor:
        """p of all n samples. With several processes, all must call this."""
        return torch.exp(self._dual.log_p)

    def _extra_state(self) -> dict[str, Any]:
        return {"log_p": self._dual.state_dict()}

    def _check_extra_state(self, own: dict[str, Any]) -> None:
        check_vector(own.get("log_p"), self._dual.n)

    def _load_extra_state(self, own: dict[str, Any]) -> None:
        self._dual.load_state_dict(own["log_p"])
