r"""Contrastive learning with a learned temperature for each anchor, from the worst case over its
negatives.

Anchor i has the losses h_ij = sim(i, j) - sim(i, i+) against its negatives j, and a problem of its
own:

    max_{KL(p_i, uniform) <= rho} sum_j p_ij h_ij
        =  min_{tau_i >= tau0}  tau_i log( mean_j exp(h_ij/tau_i) ) + (tau_i - tau0) rho

A batch holds only some of the negatives, so u_i ~ mean_j exp(h_ij/tau_i) is an average over the
visits to an anchor, as s is in SCDRO. A training step, in the order of the code:

    h        <-  similarities of this process's anchors with the joined batch      (_losses)
    tau      <-  the anchors' temperatures, or choose_first for new ones
    p_ij     ~   exp(h_ij/tau_i)                                                   (Negatives.at)
    log u_i  <-  log( (1-beta) u_i + beta mean_j exp(h_ij/tau_i) )
    value     =  mean_i tau_i log u_i + (tau_i - tau0) rho                         (_value)
    tau_i    <-  by its KL, towards KL_i = rho                                     (Temperatures.advance)

The files of the other losses hold one problem with one temperature; here are b problems at once,
one per row of a matrix. That is why the tilt is not `_kl.tilt`: rows have different numbers of
negatives (`counts`), the matrix stays in the precision of the embeddings, and only the sums over
its rows are in float64. The root, the Newton step, the small KL and the radius that n negatives can
resolve are those of `_kl`.

References:
    Qiu, Hu, Yuan, Zhou, Zhang, Yang: Not all semantics are created equal: contrastive
    self-supervised learning with automatic temperature individualization, ICML 2023 (iSogCLR).
    Yuan et al., Provable stochastic optimization for global contrastive learning, ICML 2022
    (SogCLR).
"""

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


def one_tower(
    views: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], different: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses (b, 4 m) of b samples with two views each, against both views of all m, and which of
    them count.

    Both views are anchors of the same problem: they are two draws of the augmentation inside its
    expectation.
    """
    positive = _positive(views)
    columns = torch.cat(others)
    losses = torch.cat([view @ columns.T for view in views], 1) - positive[:, None]
    return losses, different.repeat(1, 4)


def two_towers(
    pair: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor], different: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses (2 b, m): first tower's samples against the second tower's, then the other way around."""
    positive = _positive(pair)
    losses = torch.cat([pair[0] @ others[1].T, pair[1] @ others[0].T]) - positive.repeat(2)[:, None]
    return losses, different.repeat(2, 1)


def _positive(pair: tuple[Tensor, Tensor]) -> Tensor:
    """Similarity of the two views, or of both towers, of each sample, (b,)."""
    return (pair[0] * pair[1]).sum(1)


class Tilts(NamedTuple):
    """The tilts of b anchors over their m columns, each at its own temperature."""

    terms: Tensor  # exp((h - top)/tau), (b, m), zero for columns that do not count
    total: Tensor  # the sums of their rows, (b,)
    log_mean: Tensor  # log mean exp(h/tau) over the negatives, (b,)
    kl: Tensor  # KL of the tilt from uniform weights, (b,)
    var: Tensor  # variance of h/tau under the tilt, (b,)

    def weights(self, log_u: Tensor) -> Tensor:
        """exp(h/tau)/(u n), (b, m), the weights of the gradients of h; n is the number of
        negatives.
        """
        scale = torch.exp(self.log_mean - log_u) / self.total
        return self.terms * scale.to(self.terms.dtype)[:, None]


class Negatives(NamedTuple):
    """The losses of b anchors against m columns."""

    centred: Tensor  # losses minus each anchor's largest, (b, m), zero where they do not count
    counts: Tensor  # which of them count, (b, m): a sample is not a negative of itself
    top: Tensor  # the largest loss of each anchor, (b,), float64
    number: Tensor  # of the negatives of each anchor, (b,), float64

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
        """The temperature at which the KL of each anchor's worst case equals rho, or tau0, (b,).

        `rho` is a number or one for each anchor. `iterations` bounds the passes over the matrix.
        """
        mean = self.centred.sum(1, dtype=self.top.dtype) / self.number
        square = (self.centred**2).sum(1, dtype=self.top.dtype) / self.number
        std = torch.sqrt((square - mean**2).clamp_min(0.0))

        def kl_and_var(tau: Scalar) -> tuple[Scalar, Scalar]:
            """KL and variance of each anchor's tilt, (b,): what `solve_root` asks at each trial."""
            tau = torch.as_tensor(tau, dtype=self.top.dtype, device=self.top.device).expand_as(
                self.top
            )
            at = self.at(tau)
            norm = at.log_mean - self.top / tau
            log_ratio = (
                self.centred / tau.to(self.centred.dtype)[:, None]
                - norm.to(self.centred.dtype)[:, None]
            )
            terms = as_tensor(divergence(log_ratio, self.counts.to(log_ratio.dtype)))
            return terms.sum(1, dtype=self.top.dtype) / self.number, at.var

        eps = torch.finfo(self.centred.dtype).eps
        tau = solve_root(
            kl_and_var, mean, std, rho, tau0, eps=eps, wait=True, iterations=iterations
        )
        assert isinstance(tau, Tensor)
        return tau


# -- the state of each anchor
class Anchors(NamedTuple):
    """The state of some anchors, (b,) each; NaN before an anchor has been seen.

    What is kept between visits is tau log u and not u, because it hardly depends on tau, which
    changes in between.
    """

    tau: Tensor  # the temperature
    soft: Tensor  # tau log u, the soft maximum of h; u is the moving average of mean exp(h/tau)
    kl: Tensor  # KL of the worst case
    var: Tensor  # variance of h/tau under it
    size: Tensor  # effective number of negatives behind these numbers

    @classmethod
    def unpack(cls, rows: Tensor) -> Anchors:
        """From rows of numbers, (b, 5)."""
        return cls(*rows.unbind(1))

    def pack(self) -> Tensor:
        """As rows of numbers, (b, 5), for the state."""
        return torch.stack(self, 1)

    @property
    def new(self) -> Tensor:
        """Which anchors have not been seen yet, (b,)."""
        return torch.isnan(self.soft)


class AnchorBatch(NamedTuple):
    """What a rule for the temperatures knows about the b anchors of a batch."""

    before: Anchors  # their state before this batch
    tau: Tensor  # the temperatures of this batch, (b,)
    at: Tilts  # their negatives at these temperatures
    log_u: Tensor  # after this batch, (b,)
    number: Tensor  # of negatives in this batch, (b,)
    beta: float  # weight of this batch in u
    rho: float  # radius of each anchor's KL ball
    tau0: float  # the smallest temperature

    def keep_temperatures(self, kl: Tensor, var: Tensor) -> Anchors:
        """The anchors after this batch, with unchanged temperatures.

        Args:
            kl: KL of the worst case over all visits, (b,). New anchors take that of the batch.
            var: the variance, likewise.
        """
        b, new = self.beta, self.before.new
        size = 1.0 / ((1.0 - b) ** 2 / self.before.size + b**2 / self.number)
        first = (self.at.kl, self.at.var, self.number)
        kl, var, size = (
            torch.where(new, x, y) for x, y in zip(first, (kl, var, size), strict=True)
        )
        return Anchors(self.tau, self.tau * self.log_u, kl, var, size)


class Temperatures:
    """Base class of the rules for the anchors' temperatures."""

    @property
    def tracker(self) -> MovingAverage:
        """The rule by which u follows the batches."""
        return MovingAverage()

    def choose_first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        """The temperatures of anchors that have not been seen yet, (b,)."""
        raise NotImplementedError

    def advance(self, batch: AnchorBatch) -> Anchors:
        """The anchors after a batch."""
        raise NotImplementedError

    def solve_alone(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        """The temperatures when only this batch is known, as in evaluation, (b,)."""
        return negatives.solve(rho, tau0)


@dataclass(frozen=True)
class NewtonTemperatures(Temperatures):
    r"""One safeguarded Newton step per visit towards KL_i(tau_i) = rho. The default; nothing to
    tune.

    1. At the first visit tau_i is solved for on the anchor's negatives.
    2. KL_i and Var_i are pooled over the visits, each weighted by its share of u_i.
    3. log tau_i += clip(KL log(KL/rho)/Var, -1, 1).
    4. tau log u, KL and Var are extrapolated to the new tau along the line in (log tau, log KL)
       that the Newton step used. Otherwise the averages would request the same step again, and tau
       would oscillate.

    With n negatives the KL of the worst case is at most log n. If rho is larger, a smaller one is
    used until enough negatives have been seen (`attainable`).

    Args:
        cap: how many visits one visit may count for in u at most (`MovingAverage`); None for no
            bound.

    Example:
        >>> from scdro.contrastive import RobustContrastiveLoss
        >>> loss = RobustContrastiveLoss(n=100, rho=0.5, temperature=NewtonTemperatures(cap=None))
    """

    cap: float | None = 2.0

    @property
    def tracker(self) -> MovingAverage:
        return MovingAverage(self.cap)

    def choose_first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        return negatives.solve(attainable(rho, negatives.number), tau0, iterations=8)

    def advance(self, batch: AnchorBatch) -> Anchors:
        """Steps 2 to 4 above."""
        pooled = batch.keep_temperatures(*_pool_visits(batch))
        # For tiny KL the sum loses all digits, and Var/2 is KL to first order.
        kl = torch.where(pooled.kl < 1e-8, pooled.var / 2, pooled.kl).clamp_min(1e-300)
        change = newton_step(kl, pooled.var, pooled.tau, attainable(batch.rho, pooled.size))
        tau = (pooled.tau * torch.exp(torch.as_tensor(change).clamp(-1.0, 1.0))).clamp_min(
            batch.tau0
        )
        # What KL and Var are multiplied by on the line of the Newton step, between the old tau and
        # the new.
        scale = torch.exp(-torch.log(tau / pooled.tau) * pooled.var / kl)
        # d(tau log u)/dtau = -KL, integrated by the trapezoidal rule.
        soft = pooled.soft - 0.5 * (1.0 + scale) * kl * (tau - pooled.tau)
        return Anchors(tau, soft, kl * scale, pooled.var * scale, pooled.size)


@dataclass(frozen=True)
class PrintedTemperatures(Temperatures):
    r"""The update as iSogCLR prints it (Qiu et al. 2023, Algorithm 1).

        v_i    <-  (1-beta) v_i + beta ( log u_i + rho - mean(exp(h/tau) h)/(u_i tau) )
        tau_i  <-  clip(tau_i - lr v_i, tau0, tau_max)

    log u_i is kept as it is when tau_i changes.

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

    def choose_first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        return torch.full_like(negatives.top, max(self.initial, tau0))

    def advance(self, batch: AnchorBatch) -> Anchors:
        """v_i and tau_i as above; v_i is kept as rho - v_i, in the place of the KL."""
        # v = rho - KL, where KL is the batch's, relative to u.
        fresh = (
            torch.exp(batch.at.log_mean - batch.log_u) * (batch.at.kl + batch.at.log_mean)
            - batch.log_u
        )
        kept = batch.keep_temperatures(
            batch.before.kl + batch.beta * (fresh - batch.before.kl), batch.at.var
        )
        tau = (kept.tau - self.lr * (batch.rho - kept.kl)).clamp(batch.tau0, self.tau_max)
        return kept._replace(tau=tau, soft=tau * batch.log_u)


@dataclass(frozen=True)
class FixedTemperatures(Temperatures):
    """One fixed temperature for all anchors: the global contrastive loss of SogCLR (Yuan et al.
    2022).

    Args:
        tau: the temperature.

    Example:
        >>> from scdro.contrastive import RobustContrastiveLoss
        >>> loss = RobustContrastiveLoss(n=100, rho=0.0, temperature=FixedTemperatures(0.1))
    """

    tau: float

    def __post_init__(self) -> None:
        check_number("tau", self.tau, _SMALLEST, "a temperature")

    def choose_first(self, negatives: Negatives, rho: float, tau0: float) -> Tensor:
        return torch.full_like(negatives.top, self.tau)

    solve_alone = choose_first

    def advance(self, batch: AnchorBatch) -> Anchors:
        return batch.keep_temperatures(*_pool_visits(batch))


def _pool_visits(batch: AnchorBatch) -> tuple[Tensor, Tensor]:
    """KL and Var, (b,), under the worst case over the visits so far, each weighted by its share of
    u.

    The worst case over all visits is a mixture of the tilt of this batch, with a weight `share`,
    and that of the visits before. Its mean of h/tau and its variance are those of a mixture.
    """
    before, at = batch.before, batch.at
    log_past = before.soft / batch.tau
    now, past = (
        torch.exp(at.log_mean - batch.log_u),
        torch.exp(log_past - batch.log_u).clamp_max(1e300),
    )
    # The batch's weight w in u = (1-w) past + w now is beta, or more if `cap` has raised u.
    capped = 1.0 - (1.0 - batch.beta) * past - batch.beta * now > 1e-9
    share = now * torch.where(capped, (1.0 - past) / (now - past), batch.beta)
    old, fresh = before.kl + log_past, at.kl + at.log_mean  # means of h/tau: KL = mean - log u
    mean = old + share * (fresh - old)
    var = before.var + share * (at.var - before.var) + share * (1.0 - share) * (fresh - old) ** 2
    return (mean - batch.log_u).clamp_min(0.0), var


_SMALLEST = ">= 1e-15"  # similarities divided by tau, and their squares, stay finite in float32


# -- the state
class AnchorState(MethodState):
    """One row per anchor, NaN until it is seen. With several processes, each keeps a block of the
    anchors.

    `anchors` is in the state_dict and moves with the model to its device, but it is not a buffer,
    because DDP would overwrite it with rank 0's. `last`, the objective of the last batch, is the
    same on all processes.
    """

    anchors: Tensor  # (anchors of this process, fields of Anchors), float64
    last: Tensor  # the objective of the last batch, (1,)

    def __init__(self, n: int, towers: int, skip_nonfinite: bool, process_group: Group) -> None:
        super().__init__(skip_nonfinite=skip_nonfinite, process_group=process_group)
        self.n, self.towers = n, towers
        self.parts = Sharding(towers * n, self.ranks)
        self.register_buffer("last", torch.empty(1, dtype=self.dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """No anchor has been seen."""
        super().reset_parameters()
        self.last.fill_(math.nan)
        self.anchors = self.last.new_full((self.parts.count, len(Anchors._fields)), math.nan)

    def divide(self) -> None:
        """Divide the anchors over the current processes. With one process this object had all of
        them.
        """
        if self.parts.size == 1 < self.ranks.size:
            self.parts = Sharding(self.parts.n, self.ranks)
            self.anchors = self.parts.here(self.anchors).clone()
        self.parts.check()

    def made_with(self) -> str:
        """What a checkpoint must have been made with, for its error message."""
        return f"{self.n} samples and {self.towers} towers"

    def rows(self, cut: Cut, everybody: Tensor) -> Anchors:
        """This process's rows of the anchors that all processes request."""
        return Anchors.unpack(cut.own(self.parts.at(self.anchors, everybody)))

    @torch.no_grad()
    def write(self, cut: Cut, everybody: Tensor, new: Anchors) -> None:
        """Store the anchors after a batch, wherever they are kept.

        Args:
            cut: which rows of the joined batch are this process's.
            everybody: positions of all processes' anchors, (all,).
            new: this process's anchors after the batch.
        """
        self.parts.put(self.anchors, everybody, cut.joined(new.pack()))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move `anchors` too, which is no buffer, in the dtype that it has."""
        moved = super()._apply(fn, recurse)
        self.anchors = self.anchors.to(self.last)
        return moved

    # -- checkpoints
    def whole(self) -> dict[str, Tensor]:
        """The entries for all anchors, to replace this process's in a state_dict. All processes
        must call it.
        """
        self.divide()
        return {"anchors": self.parts.whole(self.anchors), "part": self._part(0, self.parts.n)}

    def _part(self, start: int, stop: int) -> Tensor:
        """What a checkpoint says about its anchors: the settings, and which part it has, (4,)."""
        return torch.tensor([self.n, self.towers, start, stop])

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """This process's anchors beside the buffers."""
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
        unexpected[:] = [
            key for key in unexpected if key not in (prefix + "anchors", prefix + "part")
        ]
        if prefix + "anchors" in state_dict:
            self.anchors = state_dict[prefix + "anchors"].detach().to(self.last).clone()

    def _fitting(self, anchors: Tensor, part: list[int]) -> Tensor:
        """Return this process's part, given its own or all anchors; raise for any others."""
        if part[:2] != [self.n, self.towers]:
            raise CheckpointError(
                f"expected a state made with {self.made_with()}, got one made with {part[0]} and"
                f" {part[1]}; construct the object with the same arguments"
            )
        if part[2:] == [0, self.parts.n]:
            return self.parts.here(anchors)
        if part[2:] != [self.parts.start, self.parts.stop]:
            raise CheckpointError(
                f"expected all {self.parts.n} anchors, or this process's {self.parts.start} to"
                f" {self.parts.stop}, got {part[2]} to {part[3]}; save full_state_dict(), called on"
                " all processes"
            )
        return anchors


# -- the loss
class RobustContrastiveLoss(nn.Module):
    r"""Contrastive loss with a learned temperature for each sample (iSogCLR; Qiu et al. 2023).

    Anchor i with losses h_ij = sim(i, j) - sim(i, i+) over its negatives j has its own
    KL-constrained problem:

        min over tau_i >= tau0 of  tau_i log( mean_j exp(h_ij/tau_i) ) + (tau_i - tau0) rho

    1. tau_i depends on the previous visits; the first visit determines its own.
    2. u_i = (1-beta) u_i + beta mean_j exp(h_ij/tau_i) over the batch, in the log domain.
    3. The value is the mean over anchors of tau_i log u_i + (tau_i - tau0) rho.
    4. Its gradient is mean_j exp(h_ij/tau_i)/u_i grad h_ij, so hard negatives get more weight.
    5. tau_i is updated (`temperature`).

    Steps 1 to 5 are for training mode. In `eval()` mode, or with gradients disabled, each anchor's
    problem is solved on this process's batch alone, and the state does not change.

    Args:
        n: number of training samples.
        rho: radius of each anchor's KL ball. A larger rho means fewer, harder negatives and a
            smaller temperature.
        towers: 1 for two views of each sample from one network, 2 for pairs, such as images and
            texts, from two.
        beta: weight of the current batch in u_i, in (0, 1]. An anchor is seen once per epoch, so
            the past is old.
        tau0: the smallest temperature.
        temperature: `NewtonTemperatures()` by default; `FixedTemperatures(tau)` is SogCLR,
            `PrintedTemperatures` the update of iSogCLR.
        normalize: scale embeddings to length one.
        process_group: the processes that share the batch, as for `KLRobustLoss`: by default all, if
            torch.distributed is initialised. Negatives come from the joined batch, and each process
            keeps n/world anchors. Gradients are correct after DDP's averaging.
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
        check_is(
            temperature,
            Temperatures,
            "a temperature such as NewtonTemperatures() or FixedTemperatures(0.1)",
        )
        if rho == 0.0 and not isinstance(temperature, FixedTemperatures):
            raise HyperparameterError(
                "expected rho > 0 for learned temperatures, got 0; they would be infinite"
            )
        if isinstance(temperature, PrintedTemperatures):
            check_number("tau_max", temperature.tau_max, f">= tau0 = {tau0}", infinite=True)
        self.n, self.rho, self.towers, self.beta, self.tau0 = n, rho, towers, beta, tau0
        self.temperature, self.normalize = temperature, normalize
        self.state = AnchorState(n, towers, skip_nonfinite, process_group)

    def forward(self, first: Tensor, second: Tensor, index: Tensor) -> Tensor:
        """Return the objective of a batch; call `backward` on it.

        Args:
            first, second: embeddings (b, d): two views of each sample, or each pair's embeddings
                from the two towers.
            index: positions of the samples in the data set, (b,). A sample is not a negative of
                itself.
        """
        trains = self.training and torch.is_grad_enabled()
        ranks = self.state.ranks if trains else ALONE
        with ranks.cutting(getattr(first, "device", self.state.last.device)):
            index = self._check_arguments(first, second, index, trains, may_be_empty=ranks.size > 1)
        if self.state.last.device != first.device:
            self.state.to(first.device)
        if trains:
            self.state.divide()
        cut = ranks.cut(
            len(index),
            first.device,
            first.shape[1],
            float(self.state.last) if ranks.size > 1 else 0.0,
        )
        # Half precision is too coarse at a small tau.
        with torch.autocast(first.device.type, enabled=False):
            losses, counts = self._losses((first, second), index, cut)
            good = torch.isfinite(losses.detach()).all()
            if ranks.total((~good).to(torch.int64)[None]).item():
                return self._skip(losses)
            negatives = Negatives.of(losses.detach(), counts)
            if not trains:
                return self._exact(losses, negatives)
            rows = torch.cat([index + tower * self.n for tower in range(self.towers)])
            return self._step(
                losses,
                negatives,
                rows,
                cut._replace(sizes=[self.towers * size for size in cut.sizes]),
            )

    def _check_arguments(
        self, first: Tensor, second: Tensor, index: Tensor, trains: bool, may_be_empty: bool
    ) -> Tensor:
        """Check the embeddings and return the positions."""
        check_embeddings(first, second, may_be_empty)
        index = check_positions(index, self.n)
        if len(index) != len(first):
            raise LossError(
                f"expected one position for each of the {len(first)} samples, got {len(index)}"
            )
        if trains and not (first.requires_grad or second.requires_grad):
            raise LossError(
                "expected embeddings that require grad, got detached ones; to evaluate only, call"
                " the loss in eval() mode or under torch.no_grad()"
            )
        return index.to(first.device)

    def _losses(
        self, pair: tuple[Tensor, Tensor], index: Tensor, cut: Cut
    ) -> tuple[Tensor, Tensor]:
        """h of this process's anchors against the joined batch, and which entries count."""
        dtype = torch.promote_types(pair[0].dtype, torch.float32)
        first, second = (
            F.normalize(x.to(dtype), dim=1) if self.normalize else x.to(dtype) for x in pair
        )
        everybody = cut.joined(index)
        if not bool((everybody != everybody[:1]).any()):
            raise LossError(
                "expected at least two different samples in a batch, got one, which has no"
                " negatives"
            )
        build = one_tower if self.towers == 1 else two_towers
        return build(
            (first, second), (cut.joined(first), cut.joined(second)), index[:, None] != everybody
        )

    def _step(self, losses: Tensor, negatives: Negatives, rows: Tensor, cut: Cut) -> Tensor:
        """A training step: the value of the batch, after the state of its anchors has been updated.

        Args:
            losses: h with its graph, (b, m).
            negatives: the same, detached.
            rows: numbers of this process's anchors in the state, (b,).
            cut: how the anchors of the batch are distributed over the processes.
        """
        everybody = cut.joined(rows)
        before = self.state.rows(cut, everybody)
        tau, new = before.tau, before.new
        if bool(new.any()):
            unseen = Negatives(*(part[new] for part in negatives))
            tau = tau.masked_scatter(
                new, self.temperature.choose_first(unseen, self.rho, self.tau0)
            )
        at = negatives.at(tau)
        moved = torch.as_tensor(
            self.temperature.tracker.log_s(before.soft / tau, at.log_mean, self.beta)
        )
        log_u = torch.where(new, at.log_mean, moved)
        batch = AnchorBatch(
            before, tau, at, log_u, negatives.number, self.beta, self.rho, self.tau0
        )
        value = self._value(losses, at, tau, log_u, self.state.ranks)
        self.state.write(cut, everybody, self.temperature.advance(batch))
        self.state.last.copy_(value.detach())
        return value

    def _exact(self, losses: Tensor, negatives: Negatives) -> Tensor:
        """Solve every anchor's problem on this batch alone. By the envelope theorem, tau may be
        held constant.
        """
        tau = self.temperature.solve_alone(negatives, self.rho, self.tau0)
        at = negatives.at(tau)
        return self._value(losses, at, tau, at.log_mean, ALONE)

    def _value(self, losses: Tensor, at: Tilts, tau: Tensor, log_u: Tensor, ranks: Ranks) -> Tensor:
        """The mean over the anchors of all processes of tau log u + (tau - tau0) rho.

        The gradient is that of sum_ij w_ij h_ij with constant weights: this process's part, times
        the world size, since DDP divides by it.
        """
        value = (tau * log_u + (tau - self.tau0) * self.rho).sum()
        value, number = ranks.total(torch.stack([value, torch.full_like(value, len(tau))]))
        surrogate = (at.weights(log_u) * losses).sum() * (ranks.size / number).to(losses.dtype)
        result: Tensor = (value / number).to(losses.dtype) + (surrogate - surrogate.detach())
        return result

    def _skip(self, losses: Tensor) -> Tensor:
        """The value of a batch with NaN or infinite similarities: an error, or zero if it is
        skipped.
        """
        if not self.state.skip_nonfinite:
            raise NonFiniteLossError(
                "expected finite similarities, got NaN or infinity; lower the learning rate, look"
                " for overflow in the model, or pass skip_nonfinite=True to skip such batches"
            )
        if self.training and torch.is_grad_enabled():
            self.state.count_skipped(True)
            return losses.new_zeros((), requires_grad=True)
        return losses.new_full((), math.nan, requires_grad=True)

    # -- monitoring and checkpoints
    @property
    def anchors(self) -> Anchors:
        """The state of each anchor, n per tower, first tower first. With several processes, this
        one's part.
        """
        return Anchors.unpack(self.state.anchors.clone())

    @property
    def tau(self) -> Tensor:
        """The temperatures of the anchors, NaN if not seen yet. With several processes, this one's
        part.
        """
        return self.anchors.tau

    @property
    def skipped(self) -> Tensor:
        """Number of batches skipped because of NaN or infinite similarities."""
        return self.state.skipped[0].clone()

    def full_state_dict(self) -> dict[str, Any]:
        """A state_dict with the anchors of all processes. All must call it; any number of processes
        can load it.
        """
        return {
            **self.state_dict(),
            **{f"state.{name}": value for name, value in self.state.whole().items()},
        }

    def extra_repr(self) -> str:
        return (
            f"n={self.n}, rho={self.rho:g}, towers={self.towers}, beta={self.beta:g},"
            f" tau0={self.tau0:g}"
        )
