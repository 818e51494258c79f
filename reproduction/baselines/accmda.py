"""AccMDA: accelerated momentum descent ascent, with a distribution over all n samples as the dual variable."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reproduction.baselines.dual_variable import (
    Multipliers,
    PrimalDual,
    check_index,
    check_vector,
    euclidean_kl_ball,
)
from reproduction.baselines.parts import DualParts
from scdro._buffers import Modules
from scdro._scalar import Scalar
from scdro._state import Batch
from scdro._validation import check_number
from scdro.distributed import Group, Ranks
from scdro.optim._base import Closure
from scdro.optim.ascdro import TwoPoints, match_batches

__all__ = [
    "AccMDA",
]


class AccMDA(TwoPoints, PrimalDual):
    r"""Accelerated momentum descent ascent (Huang, Gao, Pei, Huang, JMLR 2022), on

        min over w, max over {KL(y, 1/n) <= rho} of f(w, y) = sum_i y_i l_i(w).

    With eta_t = k/(m + t)^(1/3) and alpha_t = min(1, c eta_{t-1}^2), on batches drawn uniformly:

    1. v <- grad_w f(w_t, y_t) + (1-alpha_t)(v - grad_w f(w_{t-1}, y_{t-1})), on the same batch; u,
        for y, the same.
    2. w <- w + eta_t (Proj_W(w - lr v) - w)
    3. y <- y + eta_t (Proj_Y(y + dual_lr u) - y), a Euclidean projection onto the simplex and the
        KL ball.

    A step costs O(n). The closure runs twice, as for `ASCDRO`.

    Args:
        n: number of training samples.
        dual_lr: step size of y.
        k, m, c: constants of eta_t and alpha_t; m >= k^3 keeps eta_t <= 1.
        module: as for `ASCDRO`.
        params, lr, rho, weight_decay, radius, skip_nonfinite, process_group: as for `SCDRO`.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(100, 3), torch.randint(2, (100,))
        >>> opt = AccMDA(model.parameters(), lr=0.1, rho=0.5, n=100)
        >>> index = torch.arange(8)
        >>> losses = lambda: torch.nn.functional.cross_entropy(model(x[index]), y[index], reduction="none")
        >>> value = opt.step(losses, index)
    """

    _vectors = ("v", "previous")
    _own_attributes = (
        *PrimalDual._own_attributes,
        *("_schedule", "_t", "_multipliers", "_parts", "_y", "_y_previous", "_u"),
    )

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        rho: float = 0.5,
        *,
        n: int,
        dual_lr: float = 1e-4,
        k: float = 1.0,
        m: float = 8.0,
        c: float = 4.0,
        weight_decay: float = 0.0,
        radius: float | None = None,
        skip_nonfinite: bool = False,
        module: Modules = None,
        process_group: Group = None,
    ) -> None:
        self._parts = DualParts(n, Ranks(process_group))
        check_number("k", k, "> 0")
        check_number("c", c, "> 0")
        check_number("m", m, f">= k^3 = {k**3}")
        self._schedule = (k, m, c)
        self._t, self._multipliers = 0, Multipliers(0.0, 0.0)
        self._y = torch.full((self._parts.count,), 1.0 / n, dtype=torch.float64, device="cpu")
        self._y_previous, self._u = self._y.clone(), torch.zeros_like(self._y)
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

    def _primal_dual_step(self, closure: Closure, index: Tensor | None) -> Scalar | None:
        method_state, old = self._method_state, None
        if self._t:
            with self._at_previous_point():
                old_losses = self._losses(closure)
                old = method_state.read(
                    old_losses, read_ids=lambda: check_index(index, self._parts.n, old_losses)
                )
                self._backward(old_losses, old, self._weights(self._y_previous, old))
        old_gradients = {} if old is None else self._keep_gradients()
        losses = self._replay_losses(closure)
        batch = method_state.read(
            losses, read_ids=lambda: check_index(index, self._parts.n, losses)
        )
        if old is not None:
            batch = match_batches(batch, old)
        if self._skips(None if batch.finite is None else batch.finite.cpu()):
            return None
        weights = self._weights(self._y, batch)
        self._backward(losses, batch, weights)
        if not self._gradients.unscale_and_clip(old_gradients):
            return None
        keep = 1.0 - self._share()
        self._descend(old_gradients, keep)
        self._ascend(
            _positions(batch), batch.losses.cpu(), None if old is None else old.losses.cpu(), keep
        )
        method_state.store([], batch)
        self._t += 1
        return torch.dot(weights, batch.losses)

    @property
    def _sharding(self) -> DualParts:
        return self._parts

    def _eta(self, t: int) -> float:
        k, m, _ = self._schedule
        return float(k / (m + t) ** (1 / 3))

    def _share(self) -> float:
        """alpha_t. It is 1 in the first step, whose estimates are the batch's own."""
        return 1.0 if self._t == 0 else min(1.0, self._schedule[2] * self._eta(self._t - 1) ** 2)

    def _weights(self, y: Tensor, batch: Batch) -> Tensor:
        """n y_i divided by the batch size."""
        weights = self._parts.at(y, _positions(batch)) * (self._parts.n / len(batch.losses))
        return weights.to(batch.losses)

    def _descend(self, old_gradients: dict[Tensor, Tensor], keep: float) -> None:
        clipped = self._gradients.clip_coefficient(keep, list(old_gradients.values()), keep)
        self._remember_point()
        active = [p for p in self._parameters() if p.grad is not None]
        for p in active:
            state = self.state[p]
            assert p.grad is not None
            if not self._has_past(p):
                self._begin_at(p, v=p.grad.clone(), previous=p.detach().clone())
                continue
            old = old_gradients.get(p)
            state["v"].mul_(keep).add_(p.grad)
            if old is not None:
                state["v"].sub_(old, alpha=float(clipped))
        targets = {p: p.detach().clone() for p in self._parameters() if p.requires_grad}
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    targets[p] -= group["lr"] * (self.state[p]["v"] + group["weight_decay"] * p)
        if self._ball is not None:
            self._ball.project_(list(targets.values()))
        for p, target in targets.items():
            p.add_(target - p, alpha=self._eta(self._t))

    def _ascend(self, index: Tensor, losses: Tensor, old: Tensor | None, keep: float) -> None:
        change = losses if old is None else losses - keep * old
        mine, here = self._parts.inside(index)
        self._u.mul_(keep).index_add_(
            0, here, change[mine].to(torch.float64), alpha=self._parts.n / len(index)
        )
        self._y_previous.copy_(self._y)
        raised = self._y + self._dual_lr * self._u
        target, self._multipliers = euclidean_kl_ball(
            raised, self._rho, self._multipliers, self._parts
        )
        self._y.add_(target - self._y, alpha=self._eta(self._t))

    @property
    def weights(self) -> Tensor:
        """p of all n samples. With several processes, all must call this."""
        return self._parts.whole(self._y).clone()

    def _extra_state(self) -> dict[str, Any]:
        local = {"y": self._y, "y_previous": self._y_previous, "u": self._u}
        vectors = {name: self._parts.whole(vector).clone() for name, vector in local.items()}
        multipliers = torch.tensor(self._multipliers, dtype=torch.float64, device="cpu")
        return {**vectors, "t": self._t, "multipliers": multipliers}

    def _check_extra_state(self, own: dict[str, Any]) -> None:
        for name in ("y", "y_previous", "u"):
            check_vector(own.get(name), self._parts.n)

    def _load_extra_state(self, own: dict[str, Any]) -> None:
        for mine, came in ((self._y, "y"), (self._y_previous, "y_previous"), (self._u, "u")):
            mine.copy_(self._parts.here(own[came]))
        if self.kl > self._rho + 1e-9:  # it was saved with a larger ball
            self._y.copy_(euclidean_kl_ball(self._y, self._rho, parts=self._parts)[0])
        self._t, self._multipliers = own["t"], Multipliers(*own["multipliers"].tolist())


def _positions(batch: Batch) -> Tensor:
    assert batch.ids is not None
    return batch.ids.cpu()
