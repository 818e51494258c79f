"""Contrastive learning with a learned temperature for each anchor, from the worst case over its negatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scdro._kl import attainable, divergence, newton_step, solve_root
from scdro._scalar import Scalar, as_tensor, scalar_dtype
from scdro._sharding import Sharding
from scdro._state import MethodState
from scdro._validation import (
    check_beta,
    check_choice,
    check_embeddings,
    check_is,
    check_number,
    check_positions,
    check_rho,
    check_samples,
)
from scdro.distributed import ALONE, Cut, Group, Ranks
from scdro.errors import CheckpointError, HyperparameterError, LossError, NonFiniteLossError
from scdro.temperature import MovingAverage

__all__ = [
    "FixedTemperatures",
    "NewtonTemperatures",
    "PrintedTemperatures",
    "RobustContrastiveLoss",
]


def one_tower(views: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], different: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (b, 4 m) of b samples with two views each, against both views of all m, and which of them count.

    Both views are anchors of the same problem: they are two draws of the augmentation inside its expectation.
    """
    positive = _positive(views)
    columns = torch.cat(others)
    losses = torch.cat([view @ columns.T for view in views], 1) - positive[:, None]
    return losses, different.repeat(1, 4)


def two_towers(pair: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], different: Tensor) -> tuple[Tensor, Tensor]:
    """Losses (2 b, m): first tower's samples against the second tower's, then the other way around."""
    positive = _positive(pair)
    losses = torch.cat([pair[0] @ others[1].T, pair[1] @ others[0].T]) - positive.repeat(2)[:, None]
    return losses, different.repeat(2, 1)


def _positive(pair: tuple[Tensor, Tensor]) -> Tensor:
    return (pair[0] * pair[1]).sum(1)


class Tilts(NamedTuple):
    """The tilts of all anchors over their negatives. `terms` are exp((h - top)/tau), zero for columns that do not
    count, and `log_mean` is log mean exp(h/tau)."""

    terms: Tensor
    total: Tensor
    log_mean: Tensor
    kl: Tensor
    var: Tensor

    def weights(self, log_u: Tensor) -> Tensor:
        """exp(h/tau)/(u m), the weights of the gradients of h."""
        scale = torch.exp(self.log_mean - log_u) / self.total
        return self.terms * scale.to(self.terms.dtype)[:, None]


class Negatives(NamedTuple):
    """The losses of all anchors minus each anchor's largest, and which of them count."""

    centred: Tensor
    counts: Tensor
    top: Tensor
    number: Tensor

    @classmethod
    def of(cls, losses: Tensor, counts: Tensor) -> Negatives:
        """`losses` (b, m) are detached; `counts` says which of them count."""
        top = losses.masked_fill(~counts, -torch.inf).amax(1)
        centred = (losses - top[:, None]).masked_fill(~counts, 0.0)
        double = scalar_dtype(losses.device)
        return cls(centred, counts, top.to(double), counts.sum(1).to(double))

    def at(self, tau: Tensor) -> Tilts:
        """The tilt of each anchor at its temperature, (b,)."""
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
        """The temperature at which the KL of each anchor's worst case equals rho, or tau0."""
        mean = self.centred.sum(1, dtype=self.top.dtype) / self.number
        square = (self.centred**2).sum(1, dtype=self.top.dtype) / self.number
        std = torch.sqrt((square - mean**2).clamp_min(0.0))

        def kl_and_var(tau: Scalar) -> tuple[Scalar, Scalar]:
            tau = torch.as_tensor(tau, dtype=self.top.dtype, device=self.top.device).expand_as(self.top)
            at = self.at(tau)
            norm = at.log_mean - self.top / tau
            log_ratio = self.centred / tau.to(self.centred.dtype)[:, None] - norm.to(self.centred.dtype)[:, None]
            terms = as_tensor(divergence(log_ratio, self.counts.to(log_ratio.dtype)))
            return terms.sum(1, dtype=self.top.dtype) / self.number, at.var

        eps = torch.finfo(self.centred.dtype).eps
        tau = solve_root(kl_and_var, mean, std, rho, tau0, eps=eps, wait=True, iterations=iterations)
        assert isinstance(tau, Tensor)
        return tau


# -- the state of each anchor -----------------------------------------------------------------------------------------


class Anchors(NamedTuple):
    """The state of some anchors, (b,) each; NaN before an anchor has been seen.

    `soft` is tau log u, where u is the moving average of mean exp(h/tau). `kl` is the KL of the worst case, `var` the
    variance of h/tau under it, and `size` the effective number of negatives behind these numbers.
    """

    tau: Tensor
    soft: Tensor
    kl: Tensor
    var: Tensor
    size: Tensor

    @classmethod
    def unpacked(cls, rows: Tensor) -> Anchors:
        return cls(*rows.unbind(1))

    def packed(self) -> Tensor:
        return torch.stack(self, 1)

    @property
    def new(self) -> Tensor:
        return torch.isnan(self.soft)


class Seen(NamedTuple):
    """A batch of anchors: their state before, their negatives at their temperatures, and log u after this batch."""

    before: Anchors
    tau: Tensor
    at: Tilts
    log_u: Tensor
    number: Tensor
    beta: float
    rho: float
    tau0: float

    def kept(self, kl: Tensor, var: Tensor) -> Anchors:
        """The anchors after this batch, with unchanged temperatures."""
        b, new = self.beta, self.before.new
        size = 1.0 / ((1.0 - b) ** 2 / self.before.size + b**2 / self.number)
        first = (self.at.kl, self.at.var, self.number)
        kl, var, size = (torch.where(new, x, y) for x, y in zip(first, (kl, var, size), strict=True))
        return Anchors(self.tau, self.tau * self.log_u, kl, var, size)


class Temperatures:
    """Base class of the rules for the anchors' temperatures. `tracker` is the rule for u."""

    @property
    def tracker(self) -> MovingAverage:
        return MovingAverage()

    def first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        """The temperatures of anchors that have not been seen yet."""
        raise NotImplementedError

    def advance(self, seen: Seen) -> Anchors:
        """The anchors after a batch."""
        raise NotImplementedError

    def alone(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        """The temperatures when only this batch is known."""
        return negatives.solve(rho, tau0)


@dataclass(frozen=True)
class NewtonTemperatures(Temperatures):
    r"""One safeguarded Newton step per visit towards KL_i(tau_i) = rho. The default; nothing to tune.

    1. At the first visit tau_i is solved for on the anchor's negatives.
    2. KL_i and Var_i are pooled over the visits, each weighted by its share of u_i.
    3. log tau_i += clip(KL log(KL/rho)/Var, -1, 1).
    4. tau log u, KL and Var are extrapolated to the new tau along the line in (log tau, log KL) that the Newton step
       used. Otherwise the averages would request the same step again, and tau would oscillate.

    With n negatives the KL of the worst case is at most log n. If rho is larger, a smaller one is used until enough
    negatives have been seen (`attainable`).

    Args:
        cap: how many visits one visit may count for in u at most (`MovingAverage`); None for no bound.

    Example:
        >>> from scdro.contrastive import RobustContrastiveLoss
        >>> loss = RobustContrastiveLoss(n=100, rho=0.5, temperature=NewtonTemperatures(cap=None))
    """

    cap: float | None = 2.0

    @property
    def tracker(self) -> MovingAverage:
        return MovingAverage(self.cap)

    def first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        return negatives.solve(attainable(rho, negatives.number), tau0, iterations=8)

    def advance(self, seen: Seen) -> Anchors:
        pooled = seen.kept(*_pooled(seen))
        kl = torch.where(pooled.kl < 1e-8, pooled.var / 2, pooled.kl).clamp_min(1e-300)
        change = newton_step(kl, pooled.var, pooled.tau, attainable(seen.rho, pooled.size))
        tau = (pooled.tau * torch.exp(torch.as_tensor(change).clamp(-1.0, 1.0))).clamp_min(seen.tau0)
        scale = torch.exp(-torch.log(tau / pooled.tau) * pooled.var / kl)
        # d(tau log u)/dtau = -KL, integrated by the trapezoidal rule.
        soft = pooled.soft - 0.5 * (1.0 + scale) * kl * (tau - pooled.tau)
        return Anchors(tau, soft, kl * scale, pooled.var * scale, pooled.size)


@dataclass(frozen=True)
class PrintedTemperatures(Temperatures):
    r"""The update of iSogCLR (Qiu et al. 2023, Algorithm 1): tau_i <- clip(tau_i - lr v_i, tau0, tau_max), where
    v_i <- (1-beta) v_i + beta (log u_i + rho - mean(exp(h/tau) h)/(u_i tau)). log u_i is kept as it is.

    Args:
        initial: tau_i before the first visit.
        lr: the step size of all tau_i, not divided by n.
        tau_max: the largest tau_i.

    Example:
        >>> from scdro.contrastive import RobustContrastiveLoss
        >>> loss = RobustContrastiveLoss(n=100, rho=0.5, temperature=PrintedTemperatures(initial=0.1, lr=0.01))
    """

    initial: float = 0.1
    lr: float = 0.01
    tau_max: float = math.inf

    def __post_init__(self) -> None:
        check_number("initial", self.initial, _SMALLEST, "the first temperature")
        check_number("lr", self.lr, ">= 0", "the step size for the temperatures")
        check_number("tau_max", self.tau_max, f">= initial = {self.initial}", infinite=True)

    def first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        return torch.full_like(negatives.top, max(self.initial, tau0))

    def advance(self, seen: Seen) -> Anchors:
        # v = rho - KL, where KL is the batch's, relative to u.
        fresh = torch.exp(seen.at.log_mean - seen.log_u) * (seen.at.kl + seen.at.log_mean) - seen.log_u
        kept = seen.kept(seen.before.kl + seen.beta * (fresh - seen.before.kl), seen.at.var)
        tau = (kept.tau - self.lr * (seen.rho - kept.kl)).clamp(seen.tau0, self.tau_max)
        return kept._replace(tau=tau, soft=tau * seen.log_u)


@dataclass(frozen=True)
class FixedTemperatures(Temperatures):
    """One fixed temperature for all anchors: the global contrastive loss of SogCLR (Yuan et al. 2022).

    Example:
        >>> from scdro.contrastive import RobustContrastiveLoss
        >>> loss = RobustContrastiveLoss(n=100, rho=0.0, temperature=FixedTemperatures(0.1))
    """

    tau: float

    def __post_init__(self) -> None:
        check_number("tau", self.tau, _SMALLEST, "a temperature")

    def first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        return torch.full_like(negatives.top, self.tau)

    alone = first

    def advance(self, seen: Seen) -> Anchors:
        return seen.kept(*_pooled(seen))


def _pooled(seen: Seen) -> tuple[Tensor, Tensor]:
    """KL and Var under the worst case over the visits so far, each weighted by its share of u."""
    before, at = seen.before, seen.at
    log_past = before.soft / seen.tau
    now, past = torch.exp(at.log_mean - seen.log_u), torch.exp(log_past - seen.log_u).clamp_max(1e300)
    # The batch's weight w in u = (1-w) past + w now is beta, or more if `cap` has raised u.
    capped = 1.0 - (1.0 - seen.beta) * past - seen.beta * now > 1e-9
    share = now * torch.where(capped, (1.0 - past) / (now - past), seen.beta)
    old, fresh = before.kl + log_past, at.kl + at.log_mean  # means of h/tau: KL = mean - log u
    mean = old + share * (fresh - old)
    var = before.var + share * (at.var - before.var) + share * (1.0 - share) * (fresh - old) ** 2
    return (mean - seen.log_u).clamp_min(0.0), var


_SMALLEST = ">= 1e-15"  # similarities divided by tau, and their squares, stay finite in float32


# -- the state --------------------------------------------------------------------------------------------------------


class AnchorState(MethodState):
    """One row per anchor, NaN until it is seen. With several processes, each keeps a block of the anchors.

    `anchors` is in the state_dict and moves with the model to its device, but it is not a buffer, because DDP would
    overwrite it with rank 0's. `last`, the objective of the last batch, is the same on all processes.
    """

    anchors: Tensor
    last: Tensor

    def __init__(self, n: int, towers: int, skip_nonfinite: bool, process_group: Group) -> None:
        super().__init__(skip_nonfinite=skip_nonfinite, process_group=process_group)
        self.n, self.towers = n, towers
        self.parts = Sharding(towers * n, self.ranks)
        self.register_buffer("last", torch.empty(1, dtype=self.dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.last.fill_(math.nan)
        self.anchors = self.last.new_full((self.parts.count, len(Anchors._fields)), math.nan)

    def divide(self) -> None:
        """Divide the anchors over the current processes. With one process this object had all of them."""
        if self.parts.size == 1 < self.ranks.size:
            self.parts = Sharding(self.parts.n, self.ranks)
            self.anchors = self.parts.here(self.anchors).clone()
        self.parts.check()

    def made_with(self) -> str:
        return f"{self.n} samples and {self.towers} towers"

    def rows(self, cut: Cut, everybody: Tensor) -> Anchors:
        """This process's rows of the anchors that all processes request."""
        return Anchors.unpacked(cut.own(self.parts.at(self.anchors, everybody)))

    @torch.no_grad()
    def write(self, cut: Cut, everybody: Tensor, new: Anchors) -> None:
        self.parts.put(self.anchors, everybody, cut.joined(new.packed()))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)
        self.anchors = self.anchors.to(self.last)
        return moved

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Tensor]:
        """The entries for all anchors, to replace this process's in a state_dict. All processes must call it."""
        self.divide()
        return {"anchors": self.parts.whole(self.anchors), "part": self._part(0, self.parts.n)}

    def _part(self, start: int, stop: int) -> Tensor:
        return torch.tensor([self.n, self.towers, start, stop])

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "anchors"] = self.anchors
        destination[prefix + "part"] = self._part(self.parts.start, self.parts.stop)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Accept either all anchors or only this process's."""
        self.divide()
        anchors, part = (state_dict.get(prefix + name) for name in ("anchors", "part"))
        if isinstance(anchors, Tensor) and isinstance(part, Tensor):
            state_dict = {**state_dict, prefix + "anchors": self._fitting(anchors, part.tolist())}
        super()._load_from_state_dict(state_dict, prefix, *rest)
        unexpected = rest[3]
        unexpected[:] = [key for key in unexpected if key not in (prefix + "anchors", prefix + "part")]
        if prefix + "anchors" in state_dict:
            self.anchors = state_dict[prefix + "anchors"].detach().to(self.last).clone()

    def _fitting(self, anchors: Tensor, part: list[int]) -> Tensor:
        """Return this process's part, given its own or all anchors; raise for any others."""
        if part[:2] != [self.n, self.towers]:
            raise CheckpointError(
                f"expected a state made with {self.made_with()}, got one made with {part[0]} and {part[1]}; "
                "construct the object with the same arguments"
            )
        if part[2:] == [0, self.parts.n]:
            return self.parts.here(anchors)
        if part[2:] != [self.parts.start, self.parts.stop]:
            raise CheckpointError(
                f"expected all {self.parts.n} anchors, or this process's {self.parts.start} to {self.parts.stop}, got "
                f"{part[2]} to {part[3]}; save full_state_dict(), called on all processes"
            )
        return anchors


# -- the loss ---------------------------------------------------------------------------------------------------------


class RobustContrastiveLoss(nn.Module):
    r"""Contrastive loss with a learned temperature for each sample (iSogCLR; Qiu et al. 2023).

    Anchor i with losses h_ij = sim(i, j) - sim(i, i+) over its negatives j has its own KL-constrained problem:

        min over tau_i >= tau0 of  tau_i log( mean_j exp(h_ij/tau_i) ) + (tau_i - tau0) rho

    1. tau_i depends on the previous visits; the first visit determines its own.
    2. u_i = (1-beta) u_i + beta mean_j exp(h_ij/tau_i) over the batch, in the log domain.
    3. The value is the mean over anchors of tau_i log u_i + (tau_i - tau0) rho.
    4. Its gradient is mean_j exp(h_ij/tau_i)/u_i grad h_ij, so hard negatives get more weight.
    5. tau_i is updated (`temperature`).

    Steps 1 to 5 are for training mode. In `eval()` mode, or with gradients disabled, each anchor's problem is solved on
    this process's batch alone, and the state does not change.

    Args:
        n: number of training samples.
        rho: radius of each anchor's KL ball. A larger rho means fewer, harder negatives and a smaller temperature.
        towers: 1 for two views of each sample from one network, 2 for pairs, such as images and texts, from two.
        beta: weight of the current batch in u_i, in (0, 1]. An anchor is seen once per epoch, so the past is old.
        tau0: the smallest temperature.
        temperature: `NewtonTemperatures()` by default; `FixedTemperatures(tau)` is SogCLR, `PrintedTemperatures` the
            update of iSogCLR.
        normalize: scale embeddings to length one.
        process_group: the processes that share the batch, as for `KLRobustLoss`: by default all, if torch.distributed
            is initialised. Negatives come from the joined batch, and each process keeps n/world anchors. Gradients are
            correct after DDP's averaging.
        skip_nonfinite: skip batches with NaN or infinite similarities and count them in `skipped`.

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
        check_rho(rho)
        check_number("tau0", tau0, _SMALLEST, "the smallest temperature")
        check_beta(beta)
        check_choice("towers", towers, (1, 2))
        temperature = NewtonTemperatures() if temperature is None else temperature
        check_is(temperature, Temperatures, "a temperature such as NewtonTemperatures() or FixedTemperatures(0.1)")
        if rho == 0.0 and not isinstance(temperature, FixedTemperatures):
            raise HyperparameterError("expected rho > 0 for learned temperatures, got 0; they would be infinite")
        if isinstance(temperature, PrintedTemperatures):
            check_number("tau_max", temperature.tau_max, f">= tau0 = {tau0}", infinite=True)
        self.n, self.rho, self.towers, self.beta, self.tau0 = n, rho, towers, beta, tau0
        self.temperature, self.normalize = temperature, normalize
        self.state = AnchorState(n, towers, skip_nonfinite, process_group)

    def forward(self, first: Tensor, second: Tensor, index: Tensor) -> Tensor:
        """Return the objective of a batch; call `backward` on it.

        Args:
            first, second: embeddings (b, d): two views of each sample, or each pair's embeddings from the two towers.
            index: positions of the samples in the data set, (b,). A sample is not a negative of itself.
        """
        trains = self.training and torch.is_grad_enabled()
        ranks = self.state.ranks if trains else ALONE
        with ranks.cutting(getattr(first, "device", self.state.last.device)):
            index = self._checked(first, second, index, trains, may_be_empty=ranks.size > 1)
        if self.state.last.device != first.device:
            self.state.to(first.device)
        if trains:
            self.state.divide()
        cut = ranks.cut(len(index), first.device, first.shape[1], float(self.state.last) if ranks.size > 1 else 0.0)
        with torch.autocast(first.device.type, enabled=False):  # Half precision is too coarse at a small tau.
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
        """Check the embeddings and return the positions."""
        check_embeddings(first, second, may_be_empty)
        index = check_positions(index, self.n)
        if len(index) != len(first):
            raise LossError(f"expected one position for each of the {len(first)} samples, got {len(index)}")
        if trains and not (first.requires_grad or second.requires_grad):
            raise LossError(
                "expected embeddings that require grad, got detached ones; to evaluate only, call the loss in eval() "
                "mode or under torch.no_grad()"
            )
        return index.to(first.device)

    def _losses(self, pair: tuple[Tensor, Tensor], index: Tensor, cut: Cut) -> tuple[Tensor, Tensor]:
        """h of this process's anchors against the joined batch, and which entries count."""
        dtype = torch.promote_types(pair[0].dtype, torch.float32)
        first, second = (F.normalize(x.to(dtype), dim=1) if self.normalize else x.to(dtype) for x in pair)
        everybody = cut.joined(index)
        if not bool((everybody != everybody[:1]).any()):
            raise LossError("expected at least two different samples in a batch, got one, which has no negatives")
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
        """Solve every anchor's problem on this batch alone. By the envelope theorem, tau may be held constant."""
        tau = self.temperature.alone(negatives, self.rho, self.tau0)
        at = negatives.at(tau)
        return self._value(losses, at, tau, at.log_mean, ALONE)

    def _value(self, losses: Tensor, at: Tilts, tau: Tensor, log_u: Tensor, ranks: Ranks) -> Tensor:
        """The mean over the anchors of all processes. The gradient is this process's part times the world size."""
        value = (tau * log_u + (tau - self.tau0) * self.rho).sum()
        value, number = ranks.total(torch.stack([value, torch.full_like(value, len(tau))]))
        surrogate = (at.weights(log_u) * losses).sum() * (ranks.size / number).to(losses.dtype)
        result: Tensor = (value / number).to(losses.dtype) + (surrogate - surrogate.detach())
        return result

    def _skipped(self, losses: Tensor) -> Tensor:
        if not self.state.skip_nonfinite:
            raise NonFiniteLossError(
                "expected finite similarities, got NaN or infinity; lower the learning rate, look for overflow in the "
                "model, or pass skip_nonfinite=True to skip such batches"
            )
        if self.training and torch.is_grad_enabled():
            self.state.count_skipped(True)
            return losses.new_zeros((), requires_grad=True)
        return losses.new_full((), math.nan, requires_grad=True)

    # -- monitoring and checkpoints -----------------------------------------------------------------------------------

    @property
    def anchors(self) -> Anchors:
        """The state of each anchor, n per tower, first tower first. With several processes, this one's part."""
        return Anchors.unpacked(self.state.anchors.clone())

    @property
    def tau(self) -> Tensor:
        """The temperatures of the anchors, NaN if not seen yet. With several processes, this one's part."""
        return self.anchors.tau

    @property
    def skipped(self) -> Tensor:
        """Number of batches skipped because of NaN or infinite similarities."""
        return self.state.skipped[0].clone()

    def full_state_dict(self) -> dict[str, Any]:
        """A state_dict with the anchors of all processes. All must call it; any number of processes can load it."""
        return {**self.state_dict(), **{f"state.{name}": value for name, value in self.state.whole().items()}}

    def extra_repr(self) -> str:
        return f"n={self.n}, rho={self.rho:g}, towers={self.towers}, beta={self.beta:g}, tau0={self.tau0:g}"
