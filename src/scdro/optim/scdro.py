"""SCDRO (Algorithm 1) and its restarted form RSCDRO (Algorithm 3): one backward pass per step.

The objective over x = (w, lam) is compositional, the logarithm of an expectation:

    F(w, lam) = lam log E exp(l(w)/lam) + (lam - lam0) rho

Its gradient in w is E[ exp(l/lam)/s grad l ] with s = E exp(l/lam). A batch alone estimates s with
noise, and 1/s with a bias. So s is tracked from batch to batch (line 6), the weighted gradients are
averaged with momentum (line 7), and the batch may have any size, even one sample.

    s <- (1-beta) s + beta mean exp(l/lam)
    v <- (1-beta) v + beta mean( exp(l/lam)/s grad l )
    w <- Proj_W(w - eta v)

`SCDRO._step` is these three lines with the checks around them; lam moves in `commit`. The restarted
form runs them in stages with smaller and smaller steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scdro._scalar import Scalar
from scdro._validation import check_is, check_number, check_whole
from scdro.errors import CheckpointError, HyperparameterError
from scdro.optim._base import Closure, RobustOptimizer
from scdro.optim._settings import check_stages

__all__ = [
    "RSCDRO",
    "SCDRO",
    "Stage",
    "decay_stages",
    "factor_stages",
]


class SCDRO(RobustOptimizer):
    r"""Stochastic constrained DRO (Algorithm 1): mini-batch gradient descent on the KL-constrained worst case.

    Each `step(closure)`, where l are the per-sample losses that the closure returns at w_t:

    1. s_t = (1-r) s_{t-1} + r mean exp(l/lam_t); r is the paper's beta, or with `WindowTemperature(memory=16)`
       B/(B + 16) for a batch of B samples if that is larger                  (line 6)
    2. v_t = (1-beta) v_{t-1} + beta [mean(exp(l/lam_t)/s_t grad l) + wd w_t]   (line 7, eq. 6)
    3. w_{t+1} = Proj_W(w_t - lr v_t)                                         (line 4)
    4. lam_{t+1} by the `temperature`; with `PrintedTemperature` as printed   (line 4)

    The first step uses the batch's own estimates (line 2). The method is equivalent to
    `KLRobustLoss` with SGD(momentum=1-beta, dampening=1-beta, weight_decay=wd).

    Args:
        params: parameters or parameter groups.
        lr: step size of the model.
        rho: radius of the KL ball; `rho_for_group(0.1)` protects every group of at least a tenth of
            the data.
        beta: weight of the new batch in v, and at least in s, in (0, 1]; 1 - beta is the momentum.
        lam0: the paper's KL regulariser and the smallest lam.
        weight_decay: adds wd |w|^2/2 to the objective.
        temperature: how lam moves; `WindowTemperature()` by default, `PrintedTemperature()` for the
            paper's update.
        tracker: how s moves; by default the temperature chooses it.
        loss_bound: C if all losses are in [0, C]; then lam_max = lam0 + C/rho. A loss outside
            raises an error.
        radius: R, projects all parameters together onto the ball |w| <= R.
        trim: fraction of the hardest recent losses to leave out, for data with wrong labels.
        window: number of recent losses used to determine lam; by default enough for rho.
        skip_nonfinite: skip batches with NaN or infinite losses and count them in `skipped`,
            instead of raising.
        module: the model (or models) whose buffers, such as BatchNorm's running statistics, the
            closure changes. They are restored after a skipped batch or an error. Needed with
            `skip_nonfinite` if there are such layers.
        mu: adds mu |x|^2/2 over x = (w, lam) to the objective, as the restarted forms do.
        process_group: the processes that share each batch: None for all, if torch.distributed is
            initialised; False for this process only.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(3, 2)
        >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
        >>> opt = SCDRO(model.parameters(), lr=0.1, rho=0.5)
        >>> value = opt.step(lambda: torch.nn.functional.cross_entropy(model(x), y, reduction="none"))

    Reference: Qi, Lyu, Chan, Bai, Yang, "Stochastic Constrained DRO with a Complexity Independent
    of Sample Size", TMLR 2023.
    """

    _vectors = ("v",)

    def _step(
        self, closure: Closure, index: Tensor | None, sample_weight: Tensor | None
    ) -> Scalar | None:
        beta = self._beta
        losses = self._losses(closure)  # (own,), with their graph
        batch = self._method_state.read(losses, sample_weight)  # all processes' losses, detached
        if self._skips(batch.finite):
            return None
        step = self._method_state.estimate(batch, beta)  # lam_t, s_t (line 6) and the weights
        self._backward(losses, batch, step.weights)  # the new term of v_t
        if not self._gradients.unscale_and_clip():
            return None  # an overflow in float16: nothing has changed yet
        with self._undo_unless(batch.finite):
            for group in self.param_groups:  # v_t (line 7), then w_{t+1} (line 4)
                self._momentum_step(
                    group, 1.0 - beta, beta, group["weight_decay"] + self._method_state.equation.mu
                )
            self._project()
        # s_t is stored, and lam_{t+1} found; nothing after this line can fail.
        self._method_state.commit(step, batch, lr=self.param_groups[0]["lr"])
        return step.objective


# -- in stages -------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """eta_k, beta_k and T_k of one stage.

    Example:
        >>> Stage(lr=0.1, beta=0.5, steps=600)
        Stage(lr=0.1, beta=0.5, steps=600)
    """

    lr: float  # eta_k, the step size
    beta: float  # beta_k, the weight of a new batch
    steps: int  # T_k, the number of steps; 0 for a last stage without an end


def factor_stages(
    lr: float,
    beta: float,
    steps: int,
    stages: int,
    *,
    lr_factor: float = 0.5,
    beta_factor: float = 0.5,
    steps_factor: float = 2.0,
) -> list[Stage]:
    """Stages as in the lemmas, without their constants: from stage to stage, steps, lr and beta change by a factor.

    The defaults are RSCDRO's (beta_k ~ eps_k, eta_k ~ eps_k, T_k ~ 1/eps_k); RASCDRO's lr_factor is
    sqrt(1/2).

    Example:
        >>> factor_stages(0.1, 0.5, 100, 3)[2]
        Stage(lr=0.025, beta=0.125, steps=400)
    """
    check_whole("stages", stages)
    check_stages([Stage(lr, beta, steps)])
    check_whole("steps", steps)
    for name, factor in {
        "lr_factor": lr_factor,
        "beta_factor": beta_factor,
        "steps_factor": steps_factor,
    }.items():
        check_number(name, factor, "> 0")
    return [
        Stage(lr * lr_factor**k, beta * beta_factor**k, math.ceil(steps * steps_factor**k))
        for k in range(stages)
    ]


def decay_stages(
    lr: float, beta: float, milestones: Iterable[int], *, factor: float = 0.1
) -> list[Stage]:
    """Stages for practice, as in the paper's experiments: lr times `factor` after each of the `milestones` (in steps).

    Example:
        >>> decay_stages(1.0, 0.5, [600])
        [Stage(lr=1.0, beta=0.5, steps=600), Stage(lr=0.1, beta=0.5, steps=0)]
    """
    check_stages([Stage(lr, beta, 0)])
    check_number("factor", factor, "> 0")
    check_is(milestones, Iterable, "milestones as a list of steps, such as [600]")
    ends = [0, *milestones]  # where each stage ends, in steps from the start
    for end in ends:
        check_whole("milestones", end, 0, meaning="in steps")
    if any(b <= a for a, b in pairwise(ends)):
        raise HyperparameterError(f"expected increasing milestones above zero, got {ends[1:]}")
    lengths = [b - a for a, b in pairwise(ends)] + [0]
    return [Stage(lr * factor**k, beta, length) for k, length in enumerate(lengths)]


class Restarted(RobustOptimizer):
    """Runs the stages in order (Algorithm 3). x, v, u and s are carried over (line 5).

    A stage only sets lr and beta: the paper's restart from a random iterate of the stage before is
    left out, as the last iterate is what works. The last stage never ends.

    `_stage` is the number k of the current stage and `_steps_left` how many of its steps are to
    come.
    """

    _own_attributes = (*RobustOptimizer._own_attributes, "_stages", "_stage", "_steps_left")

    def __init__(
        self,
        params: Any,
        stages: Sequence[Stage],
        rho: float = 0.5,
        *,
        mu: float = 0.0,
        **settings: Any,
    ) -> None:
        check_stages(stages)
        for name in ("lr", "beta"):
            if name in settings:
                raise HyperparameterError(
                    f"expected {name} as part of the stages, got {name}={settings[name]}"
                )
        self._stages = [Stage(float(lr), float(beta), int(steps)) for lr, beta, steps in stages]
        first = self._stages[0]
        self._stage, self._steps_left = 0, first.steps
        super().__init__(params, first.lr, rho, beta=first.beta, mu=mu, **settings)

    @property
    def stage(self) -> int:
        """The number k of the current stage, starting at 0."""
        return self._stage

    def _after_step(self) -> None:
        """After the last step of a stage, set lr and beta of the next one (line 6)."""
        self._steps_left -= 1
        if self._steps_left == 0 and self._stage + 1 < len(self._stages):
            before, after = self._stages[self._stage : self._stage + 2]
            for group in self.param_groups:
                # Not in place: groups may share a tensor.
                group["lr"] = group["lr"] * (after.lr / before.lr)
                group["beta"] = after.beta
            self.defaults.update(lr=after.lr, beta=after.beta)
            self._stage, self._steps_left = self._stage + 1, after.steps

    def _extra_state(self) -> dict[str, Any]:
        """The stages, (k, 3), and where in them the optimizer is."""
        stages = torch.tensor(self._stages, dtype=torch.float64, device="cpu")
        return {"stages": stages, "stage": self._stage, "steps_left": self._steps_left}

    def _check_extra_state(self, own: dict[str, Any]) -> None:
        """A state saved in stage 2 of other stages would continue with the wrong step size."""
        stages = [Stage(lr, beta, int(steps)) for lr, beta, steps in own["stages"].tolist()]
        if stages != self._stages:
            raise CheckpointError(
                f"expected a state_dict with the stages {self._stages}, got {stages}; construct the"
                " optimizer with the same stages"
            )

    def _load_extra_state(self, own: dict[str, Any]) -> None:
        """Continue in the saved stage. lr and beta of the groups are loaded by torch."""
        self._stage, self._steps_left = own["stage"], own["steps_left"]
        stage = self._stages[self._stage]
        self.defaults.update(lr=stage.lr, beta=stage.beta)


class RSCDRO(Restarted, SCDRO):
    r"""Restarted SCDRO (Algorithm 3), for convex losses: SCDRO on F + mu |x|^2/2 in stages with decreasing step size.

    mu x_t enters the moving average (section 5); the equation for lam becomes KL(p_lam) = rho + mu
    lam.

    Args:
        params: parameters or parameter groups. A group with its own lr keeps the ratio of it to the
            stage's lr.
        stages: `decay_stages`, `factor_stages`, or any sequence of Stage(lr, beta, steps). The last
            stage continues for as long as you step. Do not combine with a learning-rate scheduler.
        rho: radius of the KL ball.
        mu: strength of the regulariser; 0 is allowed, and is what the paper uses in practice.
        lam0, weight_decay, temperature, ...: as for `SCDRO`.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(3, 2)
        >>> opt = RSCDRO(model.parameters(), decay_stages(0.1, 0.5, [600]), rho=0.5)
    """
