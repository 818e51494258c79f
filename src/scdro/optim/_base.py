"""What the optimizers share: the closure's contract, gradients, the descent, monitoring and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from scdro._buffers import Buffers, Modules
from scdro._scalar import Scalar, scalar_dtype
from scdro._state import Batch, RobustState, Tracked, check_fits
from scdro._validation import check_beta, check_parameters, check_steps
from scdro.distributed import Group, Ranks, full, is_sharded, like
from scdro.errors import CheckpointError, ClosureError, HyperparameterError, LossError
from scdro.functional import worst_case
from scdro.optim.samplers import DrawnBatches
from scdro.temperature import Temperature, Tracker, given_or_default

__all__ = [
    "Ball",
    "Closure",
    "ClosureOptimizer",
    "Gradients",
    "RobustOptimizer",
    "descend",
    "global_norm",
]


def global_norm(tensors: list[Tensor]) -> Tensor:
    """The Euclidean norm of all tensors together, in a dtype in which it does not overflow."""
    kinds = ([t for t in tensors if is_sharded(t)], [t for t in tensors if not is_sharded(t)])
    norm: Tensor = torch.linalg.vector_norm(torch.stack([full(_norm_of_like(kind)) for kind in kinds if kind]))
    return norm


def _norm_of_like(tensors: list[Tensor]) -> Tensor:
    norms = torch._foreach_norm(tensors, dtype=scalar_dtype(tensors[0].device))
    norm: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    return norm


class Ball:
    """The Euclidean ball of radius R around zero, over all parameters together (the paper's W)."""

    def __init__(self, radius: float) -> None:
        if not 0.0 < radius < math.inf:
            raise HyperparameterError(f"expected a radius R > 0 for the ball of the model, got {radius}")
        self.radius = radius

    @torch.no_grad()
    def project_(self, params: Sequence[Tensor]) -> None:
        """Scale the parameters into the ball, in place, without asking the device whether they were outside."""
        if not params:
            return
        scale = (self.radius / global_norm(list(params))).clamp_max(1.0)
        for p in params:
            p.mul_(scale.to(p.device, p.dtype))


# -- gradients between backward and step ------------------------------------------------------------------------------


class Gradients:
    """The gradients of an optimizer during one step.

    `GradScaler.step` refuses closures. So to a scaler this looks like an optimizer of the same parameters, whose step
    only notes that the scaler found no overflow.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self._finite = optimizer, False
        self.scaler: GradScaler | None = None
        self.max_norm: float | None = None

    def begin(self, scaler: GradScaler | None, max_norm: float | None) -> None:
        if max_norm is not None and not 0.0 < max_norm < math.inf:
            raise HyperparameterError(f"expected max_grad_norm > 0, or None for no bound, got {max_norm}")
        self.scaler, self.max_norm = scaler, max_norm

    def end(self) -> None:
        self.scaler = self.max_norm = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    def step(self) -> None:
        self._finite = True

    def scaled(self, weights: Tensor) -> Tensor:
        """Weights of the losses, for the backward pass."""
        if self.scaler is None:
            return weights
        scaled: Tensor = self.scaler.scale(weights)
        return scaled

    def ready(self, old: dict[Tensor, Tensor] | None = None) -> bool:
        """Unscale and clip the gradients; unscale the `old` ones of an earlier pass. False after an overflow."""
        if self.scaler is not None and not self._unscaled(self.scaler, old or {}):
            return False
        if self.max_norm is not None:
            clip_grad_norm_(self._params(), self.max_norm)
        return True

    def _unscaled(self, scaler: GradScaler, old: dict[Tensor, Tensor]) -> bool:
        if old:
            for p, gradient in old.items():
                if p.grad is not None:  # 0 times infinity is NaN: an overflow of the old is one of the new.
                    p.grad.add_(gradient * 0.0)
            torch._foreach_div_(list(old.values()), float(scaler.scale(torch.ones(()))))
        self._finite = False
        scaler.step(self)  # type: ignore[arg-type]
        return self._finite

    def pass_over(self) -> None:
        """A batch is left out for its losses: the scaler wants to see gradients all the same."""
        if self.scaler is None:
            return
        self.scaler.scale(torch.ones(()))  # It makes its state when first used.
        for p in self._params():
            p.grad = torch.zeros_like(p)
        self.scaler.step(self)  # type: ignore[arg-type]
        for p in self._params():
            p.grad = None

    def clipped(self, coefficient: Any, gradients: list[Tensor], among: float) -> Any:
        """A coefficient of `gradients`, smaller where `coefficient / among` times them would exceed the bound."""
        if self.max_norm is None or not gradients or among == 0.0:
            return coefficient
        size = global_norm(gradients) * abs(coefficient) / among
        return coefficient * (self.max_norm / (size + 1e-6)).clamp_max(1.0)

    def _params(self) -> Iterable[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]


# -- every optimizer --------------------------------------------------------------------------------------------------


Closure = Callable[[], Tensor]


class ClosureOptimizer(Optimizer):
    """Base of every algorithm: `step(closure)`, with one `Tracked` module as its state beyond `torch.optim`'s."""

    _tracked: Tracked
    _two_points: ClassVar[bool] = False  # whether each batch is evaluated at the previous point as well
    _vectors: ClassVar[tuple[str, ...]] = ()  # what `state` has of each parameter, in its shape
    _own_attributes: ClassVar[tuple[str, ...]] = ("_tracked", "_ball", "_gradients", "_buffers")

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        tracked: Tracked,
        *,
        radius: float | None = None,
        module: Modules = None,
    ) -> None:
        check_steps(defaults)
        self._ball = None if radius is None else Ball(radius)
        super().__init__(params, defaults)
        self._tracked = tracked.to(self._first_parameter().device)
        self._gradients = Gradients(self)
        self._buffers = Buffers(module)
        self._announce(self._own_state())

    @torch.no_grad()
    def step(  # type: ignore[override]
        self,
        closure: Closure | None = None,
        index: Tensor | None = None,
        *,
        sample_weight: Tensor | None = None,
        grad_scaler: GradScaler | None = None,
        max_grad_norm: float | None = None,
    ) -> Tensor:
        """One step on one batch.

        Args:
            closure: computes and returns the per-sample losses of a batch fixed outside of it; does not call backward.
            index: positions of the samples in the data set, for the methods that keep one number for each.
            sample_weight: importance weights of the samples, >= 0.
            grad_scaler: scales the losses for float16. A step in which it finds an overflow is left out, and nothing
                moves. Call its `update()` afterwards, as always.
            max_grad_norm: bound on the norm of each gradient, all parameters together.

        Under torch.distributed the batch is that of all processes (see `process_group`). Gradients must be averaged, as
        DistributedDataParallel and fully_shard do.

        Returns:
            The method's estimate of its own objective, a 0-d tensor: the running one where it keeps one, else this
            batch's.
        """
        if closure is None or not callable(closure):
            _refuse_closure(closure)
        self._gradients.begin(grad_scaler, max_grad_norm)
        try:
            with self._buffers.during_step() if self._buffers.modules else nullcontext():
                value = self._step(closure, index, sample_weight)
                if value is None:
                    self._buffers.restore()
        finally:
            self._gradients.end()
        if value is None:
            value = self._value_if_skipped()
        else:
            self._after_step()
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=self._tracked.dtype)

    def full_objective(self, losses: Tensor) -> Tensor:
        """What the method minimises, exactly, given the losses of all training samples."""
        raise NotImplementedError

    def _step(self, closure: Closure, index: Tensor | None, sample_weight: Tensor | None) -> Scalar | None:
        """The algorithm: the objective, or None where a bad batch was left out."""
        raise NotImplementedError

    def _after_step(self) -> None:
        """For the methods in stages."""

    def _value_if_skipped(self) -> Scalar:
        return math.nan

    # -- the closure --------------------------------------------------------------------------------------------------

    def _losses(self, closure: Closure) -> Tensor:
        """Per-sample losses of the batch at the present parameters, with their graph, and no gradients left over."""
        for p in self._parameters():
            p.grad = None
        with torch.enable_grad(), self._inspection():
            losses = closure()
        with self.ranks.joining(self._first_parameter().device):
            self._check_closure(losses)
        return losses

    def _inspection(self) -> AbstractContextManager[None]:
        """Refuses a layer whose running statistics would move where they should not."""
        if self._two_points:
            return self._buffers.inspection(
                "this method evaluates each batch twice and would move its statistics twice"
            )
        if self._tracked.skip_nonfinite:
            return self._buffers.inspection("a batch that skip_nonfinite leaves out would move its statistics")
        return nullcontext()

    def _check_closure(self, losses: Tensor) -> None:
        if any(p.grad is not None for p in self._parameters()):
            raise ClosureError(
                "expected a closure that only computes the per-sample losses, got one that called backward(); "
                "remove the call: step() makes its own"
            )
        if isinstance(losses, Tensor) and losses.is_floating_point() and losses.ndim == 1 and not losses.requires_grad:
            raise LossError(
                "expected losses that require grad, got detached ones; is the closure under torch.no_grad(), or the "
                "model frozen?"
            )

    def _backward(self, losses: Tensor, batch: Batch, weights: Tensor) -> None:
        """Gradients of sum_j weight_j l_j over the batch, by the loss's own graph; still scaled by the grad_scaler."""
        weights = self._gradients.scaled(batch.own_weights(weights))
        try:
            torch.autograd.backward(losses, weights.to(losses.dtype))
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise ClosureError(
                "expected a closure that only computes the per-sample losses, got one whose graph was already used; "
                "remove its call of backward()"
            ) from error
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        if not gradients:
            raise ClosureError(
                "expected losses that depend on the parameters of this optimizer, got none that do; was it made for "
                "another model?"
            )
        if any(gradient.layout != torch.strided for gradient in gradients):
            raise ClosureError(
                "expected dense gradients, got sparse ones; make the layer with sparse=False, or use KLRobustLoss with "
                "an optimizer that takes them"
            )
        self._tracked.ranks.check_averaged(gradients)

    def _skips(self, finite: Tensor | None) -> bool:
        """Whether to leave the step out, where the host may look; elsewhere the flag stays on the device."""
        if finite is None or (finite.device.type != "cpu" and self._tracked.started) or bool(finite):
            return False
        self._tracked.count_skipped(True)
        self._gradients.pass_over()
        return True

    def _undone_unless(self, finite: Tensor | None) -> AbstractContextManager[None]:
        """Take back what happened to parameters and vectors if the batch was bad, by the device's own knowledge."""
        return nullcontext() if finite is None or finite.device.type == "cpu" else self._undo_on_device(finite)

    @contextmanager
    def _undo_on_device(self, finite: Tensor) -> Iterator[None]:
        vectors = (self.state[p][name] for p in self._parameters() for name in self._vectors if name in self.state[p])
        tensors = [*self._parameters(), *vectors]
        before = [t.clone() for t in tensors]
        for p in self._parameters():
            if p.grad is not None:
                p.grad = torch.where(finite, p.grad, 0.0)
        yield
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(finite, tensor, old))
        self._buffers.restore(unless=finite)

    # -- parameters ---------------------------------------------------------------------------------------------------

    def _parameters(self) -> Iterator[Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def _first_parameter(self) -> Tensor:
        return next(self._parameters())

    def _has_past(self, p: Tensor) -> bool:
        """Whether a parameter's vectors are those of a step, or zeros still."""
        return bool(self.state[p].get("started", 0))

    def _begin_at(self, p: Tensor, **vectors: Tensor) -> None:
        self.state[p].update(vectors, started=1)

    def _decayed(self, vectors: list[Tensor], params: list[Tensor], decay: float) -> list[Tensor]:
        """Vectors plus weight decay."""
        return list(torch._foreach_add(vectors, params, alpha=decay)) if params and decay else vectors

    def _follow(self, group: dict[str, Any], keep: float, share: float, decay: float) -> None:
        """v <- keep v + share (gradient + decay w);  w <- w - lr v.  The first v is the gradient itself."""
        params = [p for p in group["params"] if p.grad is not None]
        gradients = self._decayed([p.grad for p in params if p.grad is not None], params, decay)
        old = [(self.state[p]["v"], g) for p, g in zip(params, gradients, strict=True) if self._has_past(p)]
        if old:
            vectors, fresh = (list(side) for side in zip(*old, strict=True))
            torch._foreach_mul_(vectors, keep)
            torch._foreach_add_(vectors, fresh, alpha=share)
        for p, gradient in zip(params, gradients, strict=True):
            if not self._has_past(p):
                self._begin_at(p, v=torch.clone(gradient))
        descend(params, [self.state[p]["v"] for p in params], group["lr"])

    def _project(self) -> None:
        if self._ball is not None:
            self._ball.project_([p for p in self._parameters() if p.requires_grad])

    def draws(self, n: int, batch_size: int, seed: int = 0, *, joint: bool = False) -> DrawnBatches | None:
        """An epoch of batches out of n samples, where the method draws its samples itself; with `joint`, whole ones
        for all processes."""
        return None

    @property
    def ranks(self) -> Ranks:
        """The processes that share each batch."""
        return self._tracked.ranks

    @property
    def skipped(self) -> Tensor:
        """How many batches were left out for NaN or infinite losses."""
        return self._tracked.skipped[0].clone()

    # -- checkpoints --------------------------------------------------------------------------------------------------
    #
    # A state_dict has all state in its "state", which torch's own tools save, reshard and show to hooks: the vectors of
    # each parameter, and with the first that trains what is no parameter's own, as "SCDRO.recent". Before the first
    # step too: those tools would call step() for it. They take the names of what to load from `self.state`.

    def state_dict(self) -> dict[str, Any]:
        """torch's own: parameters' vectors, and with the first parameter that trains lam, log s and the like."""
        self._fill(self._parameters())
        first = self.register_state_dict_post_hook(lambda _, state_dict: self._completed(state_dict), prepend=True)
        try:
            return super().state_dict()
        finally:
            first.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state, or refuse it and stay as it is.

        Settings that `param_groups` has (lr, beta, weight_decay, ...) are those that were saved, as in torch. The
        others are this object's own, and may differ where the state means the same under both (docs, "Checkpoints").
        """
        own: dict[str, Any] = {}
        last = self.register_load_state_dict_pre_hook(lambda _, came: self._checked(came, own))
        first = self.register_load_state_dict_post_hook(lambda _: self._restore(own), prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            first.remove()

    def _own_state(self) -> dict[str, Any]:
        """What is no parameter's own. Copies: dcp.load writes into the tensors of a state_dict."""
        return {**{k: v.clone() for k, v in self._tracked.state_dict().items()}, **self._extra_state()}

    def _completed(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        own, prefix = self._own_state(), f"{type(self).__name__}."
        carrier = self._announce(own)
        if scalar_dtype(carrier.device) == torch.float64:  # torch wants all on one device
            own = {k: v.to(carrier.device) if isinstance(v, Tensor) else v for k, v in own.items()}
        state = {i: dict(entries) for i, entries in state_dict["state"].items()}
        state[self._numbered(state_dict)[carrier]].update({prefix + k: v for k, v in own.items()})
        return {**state_dict, "state": state}

    def _announce(self, names: Iterable[str]) -> Tensor:
        """Have the names of what is no parameter's own with the first parameter that trains; gives that one."""
        prefix = f"{type(self).__name__}."
        for entries in self.state.values():
            for key in [key for key in entries if key.startswith(prefix)]:
                del entries[key]
        carrier = next((p for p in self._parameters() if p.requires_grad), self._first_parameter())
        self.state[carrier].update({prefix + name: 0 for name in names})
        return carrier

    def _numbered(self, state_dict: dict[str, Any]) -> dict[Tensor, Any]:
        """What a state_dict calls each parameter."""
        numbers = (i for group in state_dict["param_groups"] for i in group["params"])
        return dict(zip(self._parameters(), numbers, strict=True))

    def _fill(self, params: Iterable[Tensor]) -> None:
        """Zeros for the vectors of parameters that have not moved yet."""
        for p in params:
            entries = self.state[p]
            if self._vectors and p.requires_grad and "started" not in entries:
                entries.update({name: torch.zeros_like(p) for name in self._vectors}, started=0)

    def _checked(self, state_dict: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        """Take what is no parameter's own out of a state that fits, before torch casts it to the parameter's dtype."""
        state, prefix = state_dict.get("state", {}), f"{type(self).__name__}."
        carried = {key: value for entries in state.values() for key, value in entries.items() if "." in str(key)}
        own.update({k.removeprefix(prefix): v for k, v in carried.items() if k.startswith(prefix)})
        if not own:
            _refuse_state(type(self).__name__, next(iter(carried), ""))
        self._check_vectors(state_dict)
        check_fits(self._tracked, {k: own.get(k) for k in self._tracked.state_dict()})
        self._check_extra_state(own)
        vectors = {
            i: {k: _copied(like(v, p)) for k, v in state[i].items() if not k.startswith(prefix)}
            for p, i in self._numbered(state_dict).items()
            if i in state
        }
        return {**state_dict, "state": vectors}

    def _restore(self, own: dict[str, Any]) -> None:
        self._tracked.load_state_dict({k: own[k] for k in self._tracked.state_dict()})
        self._load_extra_state(own)
        self._fill(self._parameters())
        self._announce(own)

    def _check_vectors(self, state_dict: dict[str, Any]) -> None:
        groups = state_dict["param_groups"]
        sizes, came = ([len(group["params"]) for group in g] for g in (self.param_groups, groups))
        if sizes != came:
            raise CheckpointError(
                f"expected parameter groups of {sizes} parameters, got {came}; is it another model's?"
            )
        for p, number in self._numbered(state_dict).items():
            entries = state_dict["state"].get(number, {})
            for value in (entries.get(name) for name in self._vectors if "started" in entries):
                shape = tuple(value.shape) if isinstance(value, Tensor) else None
                if shape != tuple(p.shape):
                    raise CheckpointError(
                        f"expected the state of a parameter of shape {tuple(p.shape)}, got {shape}; "
                        "is it another model's?"
                    )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        check_steps(param_group)
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except HyperparameterError:
            self.param_groups.pop()
            raise
        self._fill(self.param_groups[-1]["params"])

    def _check_group(self, group: dict[str, Any]) -> None:
        check_parameters(group)

    def _extra_state(self) -> dict[str, Any]:
        """State beyond vectors and `Tracked`: tensors, integers and floats, the same on all processes."""
        return {}

    def _check_extra_state(self, own: dict[str, Any]) -> None:
        pass

    def _load_extra_state(self, own: dict[str, Any]) -> None:
        pass

    def __getstate__(self) -> dict[str, Any]:
        """torch keeps three attributes when an optimizer is copied or pickled; lam and log s are not among them."""
        own = {k: v for k, v in self.__dict__.items() if k in self._own_attributes}
        return {**super().__getstate__(), **own}


def _copied(value: Any) -> Any:
    """torch keeps a tensor that needs no cast: the state that is loaded would move with this one."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _refuse_state(expected: str, key: str) -> NoReturn:
    if key:
        came = key.partition(".")[0]
        raise CheckpointError(f"expected a state_dict of {expected}, got one of {came}; load it into that optimizer")
    raise CheckpointError(
        f"expected a state_dict of {expected}, got one of another optimizer, or without the first parameter that "
        "trained when it was saved; load it into that optimizer, or let the same parameters train"
    )


def _refuse_closure(came: object) -> NoReturn:
    if came is not None:
        raise ClosureError(
            f"expected step(closure) with a closure that returns per-sample losses, got a {type(came).__name__}; pass "
            "a function: opt.step(lambda: losses(model(x), y)), or use KLRobustLoss with any torch optimizer"
        )
    raise ClosureError(
        "expected step(closure) with a closure that returns per-sample losses, got none; for loops that call "
        "backward() themselves use KLRobustLoss with any torch optimizer"
    )


def descend(params: list[Tensor], direction: list[Tensor], lr: Tensor | float) -> None:
    """w <- w - lr direction."""
    if not params:
        return
    if isinstance(lr, Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(direction, lr.to(direction[0].device)))
    else:
        torch._foreach_add_(params, direction, alpha=-lr)


# -- the KL-constrained ones ------------------------------------------------------------------------------------------


class RobustOptimizer(ClosureOptimizer):
    """Base of the optimizers over x = (w, lam)."""

    _robust: RobustState
    _own_attributes: ClassVar[tuple[str, ...]] = (*ClosureOptimizer._own_attributes, "_robust")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 0.1,
        rho: float = 0.5,
        *,
        beta: float = 0.1,
        lam0: float = 1e-3,
        weight_decay: float = 0.0,
        temperature: Temperature | None = None,
        tracker: Tracker | None = None,
        loss_bound: float | None = None,
        radius: float | None = None,
        trim: float = 0.0,
        window: int | None = None,
        skip_nonfinite: bool = False,
        mu: float = 0.0,
        module: Modules = None,
        process_group: Group = None,
    ) -> None:
        check_beta(beta)
        temperature = given_or_default(temperature)
        if tracker is None:
            tracker = temperature.two_point_tracker() if self._two_points else temperature.one_point_tracker()
        if tracker.two_points != self._two_points:
            raise HyperparameterError(
                f"expected a tracker of {2 if self._two_points else 1} point(s) for {type(self).__name__}, "
                f"got {type(tracker).__name__}"
            )
        self._robust = RobustState(
            rho,
            lam0,
            temperature,
            tracker,
            loss_bound=loss_bound,
            trim=trim,
            window=window,
            skip_nonfinite=skip_nonfinite,
            mu=mu,
            process_group=process_group,
        )
        defaults = {"lr": lr, "beta": beta, "weight_decay": weight_decay}
        super().__init__(params, defaults, self._robust, radius=radius, module=module)

    def _value_if_skipped(self) -> Scalar:
        return self._robust.objective

    def full_objective(self, losses: Tensor) -> Tensor:
        """The worst case of the losses of all training samples: what the method minimises."""
        limits = self._robust.limits
        value: Tensor = worst_case(losses, limits.rho, limits.lam0, trim=self._robust.trim).value
        return value

    @property
    def _beta(self) -> float:
        """s is one number, and so is beta, whatever the parameter groups."""
        beta: float = self.param_groups[0]["beta"]
        if any(group["beta"] != beta for group in self.param_groups):
            raise HyperparameterError("expected the same beta in all parameter groups, got different ones")
        return beta

    # -- monitoring ---------------------------------------------------------------------------------------------------

    @property
    def temperature(self) -> Temperature:
        """How lam moves: this optimizer's own copy of what it was given."""
        return self._robust.temperature

    @property
    def lam(self) -> Tensor:
        """The temperature the next batch will use; NaN before the first, inf where rho = 0."""
        return self._robust.lam

    @property
    def log_s(self) -> Tensor:
        """log of the tracked mean of exp(l/lam), at the temperature of the last batch."""
        return self._robust.log_s

    @property
    def kl(self) -> Tensor:
        """The KL distance that the worst case spends on the recent losses: near rho, or below it at lam0."""
        return self._robust.monitor()[0]

    @property
    def ess(self) -> Tensor:
        """Effective sample size of the worst case as a share of the recent samples, in (0, 1]."""
        return self._robust.monitor()[1]

    @property
    def resets(self) -> Tensor:
        """How often STORM's estimates had to start anew (printed form only)."""
        return self._robust.resets[0].clone()

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_beta(group["beta"])
        _ = self._beta
