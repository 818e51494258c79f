"""The distribution over all n samples of the primal-dual methods: sampling, and projection onto the KL ball."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import wrightomega
from torch import Tensor

from reproduction.baselines.parts import DualParts, alone, log_sum
from scdro._buffers import Modules
from scdro._scalar import Scalar
from scdro._state import MethodState
from scdro._validation import LARGEST_LOSS, check_number, check_positions, check_rho
from scdro.distributed import ALONE, Group, Ranks
from scdro.errors import CheckpointError, ClosureError, LossError, NonFiniteLossError
from scdro.functional import worst_case
from scdro.optim._base import Closure, ClosureOptimizer

__all__ = [
    "NO_LAM0",
    "Dual",
    "LogSumTree",
    "Multipliers",
    "PrimalDual",
    "check_all_losses",
    "check_index",
    "check_vector",
    "euclidean_kl_ball",
    "tempered",
]


Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
# Children per node. With wide nodes the tree has only three or four levels, and NumPy is called
# rarely.
_WIDTH = 32
_BLOCK = 1024
_LARGE = 1e3  # the largest |log sum w| at which KL still has twelve digits


class LogSumTree:
    """n log weights (up to a constant), with the log of their sum and their weighted mean at every node.

    Example:
        >>> tree = LogSumTree(torch.log(torch.tensor([1.0, 2.0, 5.0])))
        >>> round(math.exp(tree.total), 6)
        8.0
        >>> tree.draw(1000, torch.Generator().manual_seed(0)).bincount().tolist()
        [132, 248, 620]
    """

    def __init__(self, log_weights: torch.Tensor) -> None:
        self.n = len(log_weights)
        leaves = np.full(_padded(self.n), -np.inf)
        leaves[: self.n] = log_weights.numpy()
        self._logs: list[Floats] = [leaves.reshape(-1, _WIDTH)]
        self._means: list[Floats] = []
        while len(self._logs[-1]) > 1:
            level, count = len(self._logs) - 1, len(self._logs[-1])
            log_sums, means = np.full(_padded(count), -np.inf), np.zeros(_padded(count))
            for start in range(0, count, _BLOCK):  # One block fits in the cache.
                rows = slice(start, min(start + _BLOCK, count))
                log_sums[rows], means[rows] = self._summed(level, rows)
            self._logs.append(log_sums.reshape(-1, _WIDTH))
            self._means.append(means.reshape(-1, _WIDTH))

    @property
    def log_weights(self) -> torch.Tensor:
        """The leaves."""
        return torch.from_numpy(self._logs[0].reshape(-1)[: self.n])

    @property
    def total(self) -> float:
        """log sum_i exp(log weight_i)."""
        return float(self._summed(len(self._logs) - 1, slice(None))[0][0])

    @property
    def mean(self) -> float:
        """The mean log weight, weighted by the weights."""
        return float(self._summed(len(self._logs) - 1, slice(None))[1][0])

    @property
    def kl(self) -> float:
        """KL(p, 1/n) of the normalised weights p: log n + mean_p(log p)."""
        return math.log(self.n) + self.mean - self.total

    def update(self, index: torch.Tensor, log_weights: torch.Tensor) -> None:
        """Set the log weights of the leaves at `index`, which has no duplicates."""
        nodes: Integers = index.numpy()
        self._logs[0].reshape(-1)[nodes] = log_weights.numpy()
        for level in range(len(self._means)):
            nodes = np.unique(nodes // _WIDTH)
            log_sums, means = self._summed(level, nodes)
            self._logs[level + 1].reshape(-1)[nodes] = log_sums
            self._means[level].reshape(-1)[nodes] = means

    def draw(self, size: int, generator: torch.Generator) -> torch.Tensor:
        """Draw `size` leaves with replacement, with probabilities exp(log weight)/sum."""
        uniform = (
            1.0
            - torch.rand(
                len(self._logs), size, generator=generator, dtype=torch.float64, device="cpu"
            ).numpy()
        )
        node = np.zeros(size, dtype=np.int64)
        for level, u in zip(reversed(self._logs), uniform, strict=True):
            logs = level[node]
            below = np.exp(logs - logs.max(1, keepdims=True)).cumsum(1)
            # 0 < u <= 1, so a child of weight zero is never the first to reach it.
            child = (below < (u * below[:, -1])[:, None]).sum(1)
            node = node * _WIDTH + child
        return torch.from_numpy(node)

    def _summed(self, level: int, rows: Integers | slice) -> tuple[Floats, Floats]:
        """For the given nodes, the log-sum of their children and the mean log weight of the leaves below."""
        logs = self._logs[level][rows]
        top = np.maximum(logs.max(1), -1e300)
        weights = np.exp(logs - top[:, None])
        sums = weights.sum(1)
        of_children = (
            np.where(weights > 0, logs, 0.0) if level == 0 else self._means[level - 1][rows]
        )
        with np.errstate(divide="ignore"):
            log_sums = top + np.log(sums)
        return log_sums, (weights * of_children).sum(1) / np.maximum(sums, 1e-300)


def _padded(size: int) -> int:
    return -(-size // _WIDTH) * _WIDTH


# -- projections
# ------------------------------------------------------------------------------------------------------


def tempered(log_weights: Tensor, rho: float, parts: DualParts | None = None) -> Tensor:
    """log p of the distribution in {KL(p, 1/n) <= rho} that is nearest to q ~ exp(log_weights) in KL(p, q).

    p is q tempered, p ~ q^(1/(1+nu)) with nu >= 0. So 1 + nu is the temperature of the worst case
    of the losses log q, bounded below by one. `parts` is given if log_weights is only one process's
    part of n.

    Example:
        >>> log_p = tempered(torch.log(torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64)), rho=0.1)
        >>> log_p.exp()
        tensor([0.2242, 0.2242, 0.5516], dtype=torch.float64)
    """
    parts = parts or alone(len(log_weights))
    if rho == 0.0:
        return torch.full_like(log_weights, -math.log(parts.n))
    nu_plus_one = parts.solve_lam(log_weights, rho, 1.0, start=1.0)
    return parts.log_softmax(log_weights / nu_plus_one)


class Multipliers(NamedTuple):
    """The multipliers of sum p = 1 and of KL(p) <= rho."""

    m: float
    nu: float


def euclidean_kl_ball(
    z: Tensor, rho: float, guess: Multipliers | None = None, parts: DualParts | None = None
) -> tuple[Tensor, Multipliers]:
    r"""The point of the simplex with KL(p, 1/n) <= rho that is nearest to z, and its multipliers.

    p_i + nu log p_i = z_i - m, so p_i = nu W(exp((z_i - m)/nu)/nu) with Lambert's W. m is such that
    p sums to one, and nu >= 0 such that KL(p) = rho, unless the plain projection onto the simplex
    is already inside the ball.

    Args:
        z: any vector.
        rho: radius of the KL ball around 1/n.
        guess: first guess of the multipliers, such as the last result; then a few Newton steps are
            enough.
        parts: given if z, and so the result, is only one process's part of n.

    Example:
        >>> p, _ = euclidean_kl_ball(torch.tensor([0.0, 0.0, 0.9], dtype=torch.float64), rho=0.1)
        >>> p
        tensor([0.2242, 0.2242, 0.5516], dtype=torch.float64)
    """
    parts = parts or alone(len(z))
    n, top = parts.n, parts.top(float(z.max()))
    values = _Part(z.numpy() - top, parts)
    if rho == 0.0:
        return torch.full_like(z, 1.0 / n), Multipliers(0.0, math.inf)
    if guess is not None and not 1e-14 / n < guess.nu < math.inf:
        guess = None
    if guess is not None:
        at = _polished(values, rho, Multipliers(guess.m - top, guess.nu))
        if at is not None:
            return torch.from_numpy(at.p / at.total), Multipliers(at.m + top, at.nu)
    p = _onto_simplex(values)
    entropy = np.where(p > 0, p * np.log(np.maximum(p, 1e-300)), 0.0)
    minus_entropy, squares = parts.sums(float(entropy.sum()), float(((p - 1.0 / n) ** 2).sum()))
    if minus_entropy + math.log(n) <= rho:
        return torch.from_numpy(p), Multipliers(0.0, 0.0)
    start = max(math.sqrt(squares / n), 1.0 / n) if guess is None else guess.nu
    at = _bracketed(values, rho, start)
    return torch.from_numpy(at.p / at.total), Multipliers(at.m + top, at.nu)


class _Part(NamedTuple):
    """This process's entries of a vector. Its sums are over the whole vector."""

    z: Floats
    parts: DualParts

    @property
    def n(self) -> int:
        return self.parts.n


class _Point:
    """p_i = nu omega((z_i - m)/nu - log nu), where omega + log omega = x (Wright); max z is 0.

    With s_i = p_i/(nu + p_i): dp/dm = -s and dp/dnu = -s log p. a, b, c are the sums of s, s log p
    and s (log p)^2.
    """

    def __init__(self, of: _Part, m: float, nu: float) -> None:
        self.m, self.nu, self._of = m, nu, of
        x = (of.z - m) / nu - math.log(nu)
        omega = wrightomega(x)
        self._share = omega / (1.0 + omega)
        self.p = nu * omega
        with np.errstate(divide="ignore"):
            # x - omega cancels if omega is large, and log omega underflows if it is small.
            self.log_p = math.log(nu) + np.where(omega > 1.0, np.log(omega), x - omega)
        self.total, self.a = of.parts.sums(float(self.p.sum()), float(self._share.sum()))

    def second_sums(self) -> tuple[float, float, float]:
        """KL, b and c."""
        weighted = self._share * self.log_p
        sums = (float(self.p @ self.log_p), float(weighted.sum()), float(weighted @ self.log_p))
        kl, b, c = self._of.parts.sums(*sums)
        return kl + self.total * math.log(self._of.n), b, c


def _polished(z: _Part, rho: float, guess: Multipliers) -> _Point | None:
    """Newton on both equations at once, with nu changing at most fivefold per step. None if it does not converge."""
    at, log_n = _Point(z, *guess), math.log(z.n)
    for _ in range(15):
        kl, b, c = at.second_sums()
        excess, too_far = at.total - 1.0, kl - rho
        if abs(excess) <= 1e-13 and abs(too_far) <= 1e-13 * (1.0 + rho):
            return at
        # (excess, too_far) decreases by [[a, b], [a (1 + log n) + b, b (1 + log n) + c]] (dm, dnu).
        determinant = at.a * c - b * b
        if not determinant > 0.0:
            return None
        rest = too_far - (1.0 + log_n) * excess
        nu = min(max(at.nu + (at.a * rest - b * excess) / determinant, 0.2 * at.nu), 5.0 * at.nu)
        m = at.m + (excess - b * (nu - at.nu)) / at.a
        at = _Point(z, min(max(m, -1.0), nu * log_n), nu)
    return None


def _bracketed(z: _Part, rho: float, nu: float) -> _Point:
    """Newton in log nu inside a bisection bracket, solving for m at each nu."""
    low, high, theta, m = -math.inf, math.inf, math.log(nu), -1.0
    for _ in range(200):
        at = _summing_to_one(z, m, math.exp(theta))
        kl, b, c = at.second_sums()
        kl = max(kl, 1e-300)
        low, high = (theta, high) if kl > rho else (low, theta)
        # Newton on log KL, which is nearly linear in log nu; m follows nu.
        slope = at.nu * (c - b * b / at.a) / kl
        step = min(max(math.log(kl / rho) / max(slope, 1e-300), -3.0), 3.0)
        small = abs(step) <= 1e-14 * (1.0 + abs(theta))
        theta = theta + step if small or low < theta + step < high else 0.5 * (low + high)
        if small or high - low <= 1e-14 * (1.0 + abs(theta)):
            break
        m = at.m - b / at.a * (math.exp(theta) - at.nu)  # to first order, sum p stays one
    return at


def _summing_to_one(z: _Part, m: float, nu: float) -> _Point:
    """The point with sum p = 1 for this nu.

    The largest p is in [1/n, 1], so m = -p - nu log p is bounded. sum p is convex in m, so Newton
    from the left never passes the root. log sum p gets steeper with m, so Newton on it from the
    right does not either.
    """
    m = min(max(m, -1.0), nu * math.log(z.n) - 1.0 / z.n)
    for _ in range(200):
        at = _Point(z, m, nu)
        step = (at.total - 1.0) / at.a if at.total > 1.0 else math.log(at.total) * at.total / at.a
        if abs(at.total - 1.0) <= 1e-14 or abs(step) <= 1e-16 * abs(m):
            break
        m += step
    return at


def _onto_simplex(of: _Part) -> Floats:
    """The nearest point of the simplex (Michelot): subtract a constant so that the positive entries sum to one."""
    z, excess, staying = of.z, -math.inf, of.n + 1
    while True:
        above = z > excess
        total, count = of.parts.sums(float(z[above].sum()), float(above.sum()))
        if count == staying:
            nearest: Floats = np.maximum(z - excess, 0.0)
            return nearest
        excess, staying = (total - 1.0) / count, int(count)


# -- the dual variable
# ------------------------------------------------------------------------------------------------


class Dual:
    """p over n samples with KL(p, 1/n) <= rho, in the log domain, in host memory. Each process holds a part of it.

    Drawing from p, changing some entries and checking whether p has left the ball cost O(log n).
    Projecting it back costs O(n).
    """

    def __init__(self, n: int, rho: float, ranks: Ranks = ALONE) -> None:
        self.parts = DualParts(n, ranks)
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
        """Draw positions from p: first the process's part, then the position within it."""
        if len(self._logs) == 1:
            return self._tree.draw(size, generator)
        mine, seed = self.parts.draw(self._logs, size, generator)
        own = torch.Generator(device="cpu").manual_seed(seed)
        return self.parts.collect(mine, self.parts.start + self._tree.draw(int(mine.sum()), own))

    def ascend(self, index: Tensor, amounts: Tensor) -> None:
        """p_i <- p_i exp(amount_i), then project onto the ball. Amounts of the same sample are added up."""
        mine, here = self.parts.inside(index)
        where, member = torch.unique(here, return_inverse=True)
        total = torch.zeros(len(where), dtype=torch.float64).index_add(0, member, amounts[mine])
        self._tree.update(where, self._tree.log_weights[where] + total)
        self._sum_up()
        # KL is a difference of numbers as large as the log of the total: after a huge step it is
        # lost in rounding.
        if self.kl > self.rho or not abs(self._total) < _LARGE:
            self.set(tempered(self._tree.log_weights, self.rho, self.parts))

    def respond(self, losses: Tensor, lam0: float) -> None:
        """Set p to the exact worst case of all n losses, given this process's part of them."""
        if self.rho == 0.0:
            return
        lam = self.parts.solve_lam(losses, self.rho, lam0)
        self.set(self.parts.log_softmax((losses - self.parts.top(float(losses.max()))) / lam))

    def set(self, log_p: Tensor) -> None:
        """Set this process's part of log p."""
        self._tree = LogSumTree(log_p.cpu())
        self._sum_up()

    def _sum_up(self) -> None:
        """Share what all processes need to know about p: the log mass of each part, and KL."""
        self._logs, means = self.parts.numbers(self._tree.total, self._tree.mean)
        self._total = log_sum(self._logs)
        shares = (math.exp(a - self._total) for a in self._logs)
        mean = math.fsum(share * mean for share, mean in zip(shares, means, strict=True))
        self._kl = math.log(self.n) + mean - self._total

    def state_dict(self) -> Tensor:
        """The unnormalised log weights of all n samples, so that a resumed run equals the uninterrupted one."""
        return self.parts.whole(self._tree.log_weights).clone()

    def load_state_dict(self, log_weights: Tensor) -> None:
        self.set(self.parts.here(log_weights))
        if self.kl > self.rho + 1e-9:  # it was saved with a larger ball
            self.set(tempered(self._tree.log_weights, self.rho, self.parts))


def check_vector(values: Tensor | None, n: int) -> None:
    """Check that a checkpoint has one number for each of the n samples."""
    if not isinstance(values, Tensor) or values.shape != (n,):
        came = "none" if values is None else len(values)
        raise CheckpointError(
            f"expected the weights of n = {n} samples, got {came}; is it from another data set?"
        )


def check_index(index: Tensor | None, n: int, losses: Tensor) -> Tensor:
    """Return the positions of a batch's samples in the data set, on the CPU."""
    if index is None:
        raise ClosureError(
            "expected step(closure, index) with the positions of the batch's samples in the data"
            " set, got no index; let the data set return it with each item"
        )
    index = check_positions(index, n)
    if index.shape != losses.shape:
        raise ClosureError(
            f"expected one position for each of the {len(losses)} losses, got {len(index)}"
        )
    return index


def check_all_losses(losses: Tensor, parts: DualParts) -> Tensor:
    """Return this process's part of the losses of all n samples, in float64 on the CPU."""
    if (
        not isinstance(losses, Tensor)
        or losses.ndim != 1
        or len(losses) not in (parts.n, parts.count)
    ):
        came = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        part = (
            ""
            if parts.count == parts.n
            else f", or of the {parts.count} in this process's shard(n)"
        )
        raise LossError(
            f"expected all_losses() to return a vector with the losses of all {parts.n}"
            f" samples{part}, got {came}"
        )
    losses = losses.detach().cpu().to(torch.float64)
    losses = losses if len(losses) == parts.count else parts.here(losses)
    if any(
        parts.sums(float((~(losses.abs() < LARGEST_LOSS)).sum()))
    ):  # raise on all processes, or they would deadlock
        raise NonFiniteLossError(
            "expected finite losses from all_losses(), got NaN or infinity (or values beyond 1e100)"
        )
    return losses


# -- the methods
# ------------------------------------------------------------------------------------------------------


# lam0 for a worst case without regulariser: small enough not to matter, large enough to divide by.
NO_LAM0 = 1e-9


class PrimalDual(ClosureOptimizer):
    """min over w, max over {KL(p, 1/n) <= rho} of sum_i p_i l_i(w), with p kept for all n samples, on the host."""

    _own_attributes = (*ClosureOptimizer._own_attributes, "_rho", "_dual_lr")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor,
        rho: float,
        dual_lr: float,
        *,
        weight_decay: float,
        radius: float | None,
        skip_nonfinite: bool,
        process_group: Group,
        module: Modules = None,
    ) -> None:
        check_rho(rho)
        check_number("dual_lr", dual_lr, ">= 0")
        self._rho, self._dual_lr = rho, dual_lr
        method_state = MethodState(skip_nonfinite=skip_nonfinite, process_group=process_group)
        super().__init__(
            params,
            {"lr": lr, "weight_decay": weight_decay},
            method_state,
            radius=radius,
            module=module,
        )

    def _step(
        self, closure: Closure, index: Tensor | None, sample_weight: Tensor | None
    ) -> Scalar | None:
        if sample_weight is not None:
            raise LossError(
                f"expected no sample_weight, got one; {type(self).__name__} has its own weights p"
            )
        self._sharding.check()
        return self._primal_dual_step(closure, index)

    @property
    def _sharding(self) -> DualParts:
        """How p is divided over the processes."""
        raise NotImplementedError

    def _primal_dual_step(self, closure: Closure, index: Tensor | None) -> Scalar | None:
        raise NotImplementedError

    def full_objective(self, losses: Tensor) -> Tensor:
        """The worst case of the losses of all training samples, without lam0."""
        value: Tensor = worst_case(losses, self._rho, NO_LAM0).value
        return value

    # -- monitoring
    # ---------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> Tensor:
        """p of all n samples."""
        raise NotImplementedError

    @property
    def kl(self) -> Tensor:
        """KL(p, 1/n)."""
        p = self.weights
        kl: Tensor = torch.special.xlogy(p, p * len(p)).sum()
        return kl

    @property
    def ess(self) -> Tensor:
        """Effective sample size of p as a share of n."""
        p = self.weights
        return torch.reciprocal(len(p) * torch.dot(p, p))
