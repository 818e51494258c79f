"""RobustContrastiveLoss: the worst case over each anchor's negatives, with a temperature for each anchor."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scdro.contrastive.negatives import Negatives, Tilts, one_tower, two_towers
from scdro.contrastive.state import AnchorState
from scdro.contrastive.temperatures import (
    Anchors,
    FixedTemperatures,
    NewtonTemperatures,
    PrintedTemperatures,
    Seen,
    Temperatures,
    check_temperature,
)
from scdro.distributed import Group
from scdro.distributed.ranks import ALONE, Ranks
from scdro.distributed.rows import Cut
from scdro.errors import HyperparameterError, LossError, NonFiniteLossError
from scdro.positions import check_positions, check_samples
from scdro.reading import check_beta, check_radius

__all__ = ["RobustContrastiveLoss"]


class RobustContrastiveLoss(nn.Module):
    r"""Contrastive learning in which each sample learns its temperature (iSogCLR; Qiu et al. 2023).

    For anchor i with losses h_ij = sim(i, j) - sim(i, i+) over its negatives j, one KL-constrained problem:

        min over tau_i >= tau0 of  tau_i log( mean_j exp(h_ij/tau_i) ) + (tau_i - tau0) rho

    1. tau_i comes from the visits before (the first one finds its own).
    2. u_i = (1-beta) u_i + beta mean_j exp(h_ij/tau_i) over the batch, in the log domain.
    3. The value is the mean over anchors of tau_i log u_i + (tau_i - tau0) rho.
    4. Its gradient is mean_j exp(h_ij/tau_i)/u_i grad h_ij: hard negatives weigh more.
    5. tau_i moves on (`temperature`).

    Steps 1 to 5 happen in training mode. In `eval()` mode, and where gradients are off, each anchor's problem is solved
    on the batch alone, this process's own, and nothing is remembered.

    Args:
        n: number of training samples.
        rho: radius of each anchor's KL ball: larger looks at fewer, harder negatives, at a smaller temperature.
        towers: 1 for two views of each sample by one network, 2 for pairs such as images and texts by two.
        beta: share of the present batch in u_i, in (0, 1]. An anchor is seen once an epoch: the past is old.
        tau0: the smallest temperature.
        temperature: `NewtonTemperatures()` by default; `FixedTemperatures(tau)` is SogCLR, `PrintedTemperatures` the
            update of iSogCLR.
        normalize: scale embeddings to length one.
        process_group: the processes that share the batch, as for `KLRobustLoss`: all, where torch.distributed is
            initialised. Negatives are those of the joined batch, and each process keeps n/world anchors. Gradients are
            right after DDP's averaging.
        skip_nonfinite: leave out batches with NaN or infinite similarities, and count them in `skipped`.

    Example:
        >>> loss = RobustContrastiveLoss(n=100, rho=0.5)
        >>> network = torch.nn.Linear(8, 4)
        >>> index = torch.randperm(100)[:16]
        >>> x, noise = torch.randn(16, 8), torch.randn(2, 16, 8)
        >>> value = loss(network(x + 0.1 * noise[0]), network(x + 0.1 * noise[1]), index)
        >>> value.backward()
        >>> loss.tau[index].shape
        torch.Size([16])
    """

    def __init__(
        self,
        n: int,
        rho: float,
        *,
        towers: int = 1,
        beta: float = 0.5,
        tau0: float = 0.01,
        temperature: Temperatures | None = None,
        normalize: bool = True,
        process_group: Group = None,
        skip_nonfinite: bool = False,
    ) -> None:
        super().__init__()
        check_samples(n)
        check_radius(rho, 1.0)
        check_temperature(tau0, "tau0")
        check_beta(beta)
        if towers not in (1, 2):
            raise HyperparameterError(f"expected 1 or 2 towers, got {towers}")
        temperature = NewtonTemperatures() if temperature is None else temperature
        if not isinstance(temperature, Temperatures):
            raise HyperparameterError(
                f"expected a temperature such as NewtonTemperatures() or FixedTemperatures(0.1), got {temperature!r}"
            )
        if rho == 0.0 and not isinstance(temperature, FixedTemperatures):
            raise HyperparameterError("expected rho > 0 where temperatures are learned, got 0: they would be infinite")
        if isinstance(temperature, PrintedTemperatures) and temperature.tau_max < tau0:
            raise HyperparameterError(f"expected tau_max >= tau0 = {tau0}, got {temperature.tau_max}")
        self.n, self.rho, self.towers, self.beta, self.tau0 = n, rho, towers, beta, tau0
        self.temperature, self.normalize = temperature, normalize
        self.state = AnchorState(n, towers, skip_nonfinite, process_group)

    def forward(self, first: Tensor, second: Tensor, index: Tensor) -> Tensor:
        """The objective of a batch, ready for `backward`.

        Args:
            first, second: embeddings (b, d): two views of each sample, or the two towers' of each pair.
            index: positions of the samples in the data set, (b,). A sample is no negative of itself.
        """
        trains = self.training and torch.is_grad_enabled()
        ranks = self.state.ranks if trains else ALONE
        with ranks.cutting(getattr(first, "device", self.state.last.device)):
            index = self._checked(first, second, index, trains, may_be_empty=ranks.size > 1)
        if self.state.last.device != first.device:
            self.state.to(first.device)
        if trains:
            self.state.settle()
        cut = ranks.cut(len(index), first.device, first.shape[1], float(self.state.last) if ranks.size > 1 else 0.0)
        with torch.autocast(first.device.type, enabled=False):  # At a small tau halves are too coarse.
            losses, counts = self._losses((first, second), index, cut)
            good = torch.isfinite(losses.detach()).all()
            if ranks.total((~good).to(torch.int64)[None]).item():
                return self._skipped(losses)
            negatives = Negatives.of(losses.detach(), counts)
            if not trains:
                return self._exact(losses, negatives)
            rows = torch.cat([index + tower * self.n for tower in range(self.towers)])
            return self._step(losses, negatives, rows, cut._replace(sizes=[self.towers * size for size in cut.sizes]))

    def _checked(self, first: Tensor, second: Tensor, index: Tensor, trains: bool, may_be_empty: bool) -> Tensor:
        """The positions of embeddings that are fit for use."""
        _check_embeddings(first, second, may_be_empty)
        index = check_positions(index, self.n)
        if len(index) != len(first):
            raise LossError(f"expected one position for each of the {len(first)} samples, got {len(index)}")
        if trains and not (first.requires_grad or second.requires_grad):
            raise LossError(
                "expected embeddings that require grad, got detached ones; call the loss in eval() mode, or under "
                "torch.no_grad(), to evaluate only"
            )
        return index.to(first.device)

    def _losses(self, pair: tuple[Tensor, Tensor], index: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
        """h of this process's anchors against the joined batch, and which of it counts."""
        dtype = torch.promote_types(pair[0].dtype, torch.float32)
        first, second = (F.normalize(x.to(dtype), dim=1) if self.normalize else x.to(dtype) for x in pair)
        everybody = cut.joined(index)
        if not bool((everybody != everybody[:1]).any()):
            raise LossError("expected at least two different samples in a batch, got one: it has no negatives")
        build = one_tower if self.towers == 1 else two_towers
        return build((first, second), (cut.joined(first), cut.joined(second)), index[:, None] != everybody)

    def _step(self, losses: Tensor, negatives: Negatives, rows: Tensor, cut: Cut) -> Tensor:
        everybody = cut.joined(rows)
        before = self.state.rows(cut, everybody)
        tau, new = before.tau, before.new
        if bool(new.any()):
            unseen = Negatives(*(part[new] for part in negatives))
            tau = tau.masked_scatter(new, self.temperature.first(unseen, self.rho, self.tau0))
        at = negatives.at(tau)
        moved = torch.as_tensor(self.temperature.tracker.log_s(before.soft / tau, at.log_mean, self.beta))
        log_u = torch.where(new, at.log_mean, moved)
        seen = Seen(before, tau, at, log_u, negatives.number, self.beta, self.rho, self.tau0)
        value = self._value(losses, at, tau, log_u, self.state.ranks)
        self.state.write(cut, everybody, self.temperature.advance(seen))
        self.state.last.copy_(value.detach())
        return value

    def _exact(self, losses: Tensor, negatives: Negatives) -> Tensor:
        """Every anchor's problem on this batch alone; by the envelope theorem tau may be held constant."""
        tau = self.temperature.alone(negatives, self.rho, self.tau0)
        at = negatives.at(tau)
        return self._value(losses, at, tau, at.log_mean, ALONE)

    def _value(self, losses: Tensor, at: Tilts, tau: Tensor, log_u: Tensor, ranks: Ranks) -> Tensor:
        """The mean over all processes' anchors; the gradient is this process's part of it, times their number."""
        value = (tau * log_u + (tau - self.tau0) * self.rho).sum()
        value, number = ranks.total(torch.stack([value, torch.full_like(value, len(tau))]))
        surrogate = (at.weights(log_u) * losses).sum() * (ranks.size / number).to(losses.dtype)
        result: Tensor = (value / number).to(losses.dtype) + (surrogate - surrogate.detach())
        return result

    def _skipped(self, losses: Tensor) -> Tensor:
        if not self.state.skip_nonfinite:
            raise NonFiniteLossError(
                "expected finite similarities, got NaN or infinity; lower the learning rate, look for overflow in the "
                "model, or pass skip_nonfinite=True to leave such batches out"
            )
        if self.training and torch.is_grad_enabled():
            self.state.count_skipped(True)
        return losses.new_zeros((), requires_grad=True)

    # -- monitoring and checkpoints -----------------------------------------------------------------------------------

    @property
    def anchors(self) -> Anchors:
        """What is kept of each anchor: the first tower's n, then the second's; of several processes this one's part."""
        return Anchors.unpacked(self.state.anchors.clone())

    @property
    def tau(self) -> Tensor:
        """Temperatures of the anchors, NaN where one has not been seen; of several processes this one's part."""
        return self.anchors.tau

    @property
    def skipped(self) -> Tensor:
        """How many batches were left out for NaN or infinite similarities."""
        return self.state.skipped[0].clone()

    def full_state_dict(self) -> dict[str, Any]:
        """The state_dict of all processes' anchors, to be called by all; any number of processes can load it."""
        return {**self.state_dict(), **{f"state.{name}": value for name, value in self.state.whole().items()}}

    def extra_repr(self) -> str:
        return f"n={self.n}, rho={self.rho:g}, towers={self.towers}, beta={self.beta:g}, tau0={self.tau0:g}"


def _check_embeddings(first: Tensor, second: Tensor, may_be_empty: bool) -> None:
    for x in (first, second):
        if not isinstance(x, Tensor) or x.ndim != 2 or not x.is_floating_point() or not (len(x) or may_be_empty):
            came = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise LossError(f"expected embeddings (b, d), floating-point, got {came}")
    if first.shape != second.shape:
        raise LossError(
            f"expected both views or towers to give the same shape, got {tuple(first.shape)} and {tuple(second.shape)}"
        )
