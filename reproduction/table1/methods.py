"""The rows of table 1: the paper's claim for each algorithm, how it runs here, and which iterates are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from reproduction.baselines import PGSMD2, SPD, AccMDA, DualSGM
from reproduction.table1.problems import PROBLEMS, Problem
from reproduction.table1.schedules import Ascdro, Constant, Restarts, Scdro
from scdro.optim import (
    ASCDRO,
    RASCDRO,
    RSCDRO,
    SCDRO,
    FastDRO,
    KLBall,
)
from scdro.printed import PrintedTemperature

__all__ = ["BATCH", "ROWS", "MethodRow", "Plan"]

BATCH = {"bounded": 2, "curved": 8, "flat": 8}


@dataclass(frozen=True)
class Plan:
    """One run: the optimizer, and which of its iterates count."""

    opt: Any
    steps: int
    batch: int
    looks: Sequence[int]  # numbers of steps after which the iterate may be the answer
    average: bool = False  # whether the answer is the mean of all iterates instead
    before: Callable[[int], None] = lambda t: None  # sets the step sizes of step t = 1, 2, ...
    passes: int = 0  # over all samples, besides the batches


@dataclass(frozen=True)
class MethodRow:
    """An algorithm on a problem.

    Attributes:
        claim: the paper's oracle complexity as a power of 1/eps.
        cost: the paper's cost of a step.
        plan: the run of T steps, or of as many samples in other batches.
        settings: the constants.
    """

    algorithm: str
    problem: str
    claim: int
    cost: str
    plan: Callable[[Problem, Tensor, int], Plan]
    settings: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.algorithm} on {self.problem}"

    @property
    def ours(self) -> bool:
        """Whether it is the paper's method, not a baseline."""
        return self.algorithm.endswith("SCDRO")

    @property
    def measure(self) -> str:
        """ "dist2", the squared distance of the subgradient from zero, or "gap", the objective gap."""
        return "gap" if PROBLEMS[self.problem].convex else "dist2"

    @property
    def exponent(self) -> float:
        """The claimed slope of the measure: dist falls like samples^(-1/claim), its square twice as fast."""
        return -(2.0 if self.measure == "dist2" else 1.0) / self.claim

    def at(self, problem: Problem, w: Tensor, opt: Any) -> float:
        """The measure of an iterate: of (w, lam) for the paper's methods, of w at its best lam for the rest."""
        if self.measure == "dist2":
            return (
                problem.stationarity(w, float(opt.lam))
                if self.ours
                else problem.robust_stationarity(w)
            )
        value = problem.value(w, float(opt.lam)) if self.ours else problem.robust_value(w)
        return value - problem.optimum().value


# -- the paper's
# ------------------------------------------------------------------------------------------------------


def _printed(problem: Problem) -> dict[str, Any]:
    return {
        "lam0": problem.lam0,
        "temperature": PrintedTemperature(problem.first_lam),
        "loss_bound": problem.loss_bound,
        "radius": problem.radius,
    }


def _scdro(schedule: Scdro) -> Callable[[Problem, Tensor, int], Plan]:
    def plan(problem: Problem, w: Tensor, horizon: int) -> Plan:
        lr, beta = schedule.at(horizon)
        return Plan(
            SCDRO([w], lr, problem.rho, beta=beta, **_printed(problem)),
            horizon,
            BATCH[problem.name],
            range(horizon),
        )

    return plan


def _ascdro(schedule: Ascdro) -> Callable[[Problem, Tensor, int], Plan]:
    def plan(problem: Problem, w: Tensor, horizon: int) -> Plan:
        opt = ASCDRO([w], rho=problem.rho, **_printed(problem))

        def before(t: int) -> None:
            opt.param_groups[0]["lr"], opt.param_groups[0]["beta"] = schedule.at(t)

        return Plan(opt, horizon, BATCH[problem.name], range(horizon), before=before)

    return plan


def _restarted(schedule: Restarts) -> Callable[[Problem, Tensor, int], Plan]:
    """The answer is a random iterate of the last stage."""

    def plan(problem: Problem, w: Tensor, horizon: int) -> Plan:
        stages, (_, mu) = schedule.stages(horizon), schedule.target(horizon)
        kind = RASCDRO if schedule.accelerated else RSCDRO
        opt = kind([w], stages, problem.rho, mu=mu, **_printed(problem))
        return Plan(opt, horizon, BATCH[problem.name], range(horizon - stages[-1].steps, horizon))

    return plan


# -- the baselines
# ----------------------------------------------------------------------------------------------------


def _spd(lr: Constant, dual_lr: Constant) -> Callable[[Problem, Tensor, int], Plan]:
    def plan(problem: Problem, w: Tensor, horizon: int) -> Plan:
        opt = SPD(
            [w],
            lr.at(horizon),
            problem.rho,
            n=problem.n,
            dual_lr=dual_lr.at(horizon),
            radius=problem.radius,
        )
        return Plan(opt, horizon, BATCH[problem.name], (), average=True)

    return plan


def _dual_sgm(lr: Constant) -> Callable[[Problem, Tensor, int], Plan]:
    def plan(problem: Problem, w: Tensor, horizon: int) -> Plan:
        opt = DualSGM(
            [w],
            lr.at(horizon),
            problem.rho,
            lam=problem.first_lam,
            lam0=problem.lam0,
            momentum=0.0,
            radius=problem.radius,
        )
        return Plan(opt, horizon, BATCH[problem.name], (), average=True)

    return plan


def _fastdro(lr: Constant, batch: Constant) -> Callable[[Problem, Tensor, int], Plan]:
    """As many samples as the others, in batches of N^(1/3): a batch of 1/eps where the gap is eps."""

    def plan(problem: Problem, w: Tensor, horizon: int) -> Plan:
        samples = BATCH[problem.name] * horizon
        size = round(batch.at(samples))
        steps = round(samples / size)
        opt = FastDRO(
            [w],
            lr.at(steps),
            KLBall(problem.rho, problem.lam0),
            momentum=0.0,
            radius=problem.radius,
        )
        return Plan(opt, steps, size, (), average=True)

    return plan


def _pgsmd2(
    lr: float, dual_lr: float, gamma: float, stage_steps: int
) -> Callable[[Problem, Tensor, int], Plan]:
    """The answer is the mean of a random stage. Each stage starts with a pass over all n."""

    def plan(problem: Problem, w: Tensor, horizon: int) -> Plan:
        opt = PGSMD2(
            [w],
            lr,
            problem.rho,
            n=problem.n,
            dual_lr=dual_lr,
            gamma=gamma,
            stage_steps=stage_steps,
            radius=problem.radius,
            all_losses=lambda: problem.losses(w),
        )
        ends = [0]
        while ends[-1] <= horizon:
            ends.append(ends[-1] + len(ends) * stage_steps)
        stages = [end for end in ends if end < horizon]
        return Plan(opt, horizon, BATCH[problem.name], stages[1:], passes=len(stages))

    return plan


def _accmda(
    lr: float, dual_lr: float, k: float, m: float, c: float
) -> Callable[[Problem, Tensor, int], Plan]:
    def plan(problem: Problem, w: Tensor, horizon: int) -> Plan:
        opt = AccMDA(
            [w], lr, problem.rho, n=problem.n, dual_lr=dual_lr, k=k, m=m, c=c, radius=problem.radius
        )
        return Plan(opt, horizon, BATCH[problem.name], range(horizon))

    return plan


# -- the rows
# ---------------------------------------------------------------------------------------------------------


def _row(
    algorithm: str, problem: str, claim: int, cost: str, make: Callable[..., Any], **settings: Any
) -> MethodRow:
    return MethodRow(algorithm, problem, claim, cost, make(**settings), settings)


_RSCDRO = Restarts(accelerated=False, eps=1.0, mu=0.1, eta=50.0, beta=100.0, gap=0.3)
_RASCDRO = Restarts(accelerated=True, eps=2.0, mu=0.1, eta=3.0, beta=60.0, gap=0.3)

ROWS: Sequence[MethodRow] = (
    _row(
        "PG-SMD2",
        "bounded",
        4,
        "O(n + d)",
        _pgsmd2,
        lr=1.0,
        dual_lr=0.01,
        gamma=1.0,
        stage_steps=10,
    ),
    _row("AccMDA", "bounded", 3, "O(n + d)", _accmda, lr=1.0, dual_lr=1e-4, k=1.0, m=8.0, c=1.0),
    _row("SCDRO", "bounded", 4, "O(d)", _scdro, schedule=Scdro(2.0)),
    _row("ASCDRO", "bounded", 3, "O(d)", _ascdro, schedule=Ascdro(1.0, 10.0, 0.5)),
    _row(
        "FastDRO", "curved", 3, "O(d/eps)", _fastdro, lr=Constant(2.0), batch=Constant(1.0, 1 / 3)
    ),
    _row("SPD", "curved", 2, "O(n + d)", _spd, lr=Constant(2.0), dual_lr=Constant(0.1)),
    _row("Dual SGM", "curved", 2, "O(d)", _dual_sgm, lr=Constant(2.0)),
    _row("RSCDRO", "curved", 3, "O(d)", _restarted, schedule=_RSCDRO),
    _row("RASCDRO", "curved", 2, "O(d)", _restarted, schedule=_RASCDRO),
    _row("RSCDRO", "flat", 3, "O(d)", _restarted, schedule=_RSCDRO),
    _row("RASCDRO", "flat", 2, "O(d)", _restarted, schedule=_RASCDRO),
)
