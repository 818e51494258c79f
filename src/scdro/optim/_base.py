"""The base classes of the optimizers: everything in a step that is the same for all methods.

A step of any method takes a closure that returns the per-sample losses of a batch, and does

    losses   = closure()                                       _losses: checked, gradients cleared
    batch    = state.read(losses)                              joined over the processes
    weights  = ... of the losses, by the method                the only part that differs
    gradient = sum_j weight_j grad l_j                         _backward: one backward pass
    unscale, clip                                              Gradients.unscale_and_clip
    v <- keep v + share (gradient + wd w);  w <- w - lr v      _momentum_step
    w <- Proj_W(w)                                             _project
    state.commit(...)                                          after all that could fail

The batch may be bad (NaN), or the gradients may overflow in float16. Then the step leaves no trace:
parameters, vectors, buffers of the model and the method's state stay as they were. On the host a
bad batch returns early (`_skips`). On an accelerator the host does not read the flag: the step runs
on, and what it wrote is put back where the flag says so (`_undo_unless`).

    ClosureOptimizer     the step above, parameters and vectors, checkpoints
      WeightingOptimizer   (baselines/erm.py) plain weights of a batch, SGD with momentum
      RobustOptimizer      (here) lam, s and the window: SCDRO, ASCDRO

`Gradients` is the GradScaler's and the clipping's view of a step, `Ball` the constraint set W.
"""

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
from scdro._state import Batch, MethodState, RobustState, check_fits, state_for
from scdro._validation import check_beta, check_number
from scdro.distributed import Group, Ranks, full, is_sharded, like
from scdro.errors import CheckpointError, ClosureError, HyperparameterError, LossError
from scdro.functional import worst_case
from scdro.optim._settings import check_parameters, check_steps
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
    """The Euclidean norm of all tensors together, in a dtype where it does not overflow.

    Sharded tensors are summed over the processes, and cannot be stacked with plain ones.
    """
    plain = [t for t in tensors if not is_sharded(t)]
    if len(plain) == len(tensors):
        return _norm_of_like(tensors)
    kinds = ([t for t in tensors if is_sharded(t)], plain)
    norm: Tensor = torch.linalg.vector_norm(
        torch.stack([full(_norm_of_like(kind)) for kind in kinds if kind])
    )
    return norm


def _norm_of_like(tensors: list[Tensor]) -> Tensor:
    """The norm of tensors that are all sharded, or all plain."""
    norms = torch._foreach_norm(tensors, dtype=scalar_dtype(tensors[0].device))
    norm: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]))
    return norm


class Ball:
    """The Euclidean ball of radius R around zero, over all parameters together (the paper's W)."""

    def __init__(self, radius: float) -> None:
        check_number("radius", radius, "> 0", "the radius R of the ball of the model")
        self.radius = radius

    @torch.no_grad()
    def project_(self, params: Sequence[Tensor]) -> None:
        """Scale the parameters into the ball in place, without waiting for the device."""
        if not params:
            return
        scale = (self.radius / global_norm(list(params))).clamp_max(1.0)
        for p in params:
            p.mul_(scale.to(p.device, p.dtype))


# -- gradients between backward and step -----------------------------------------------------------


class Gradients:
    """The gradients of an optimizer during one step: scaled, unscaled, clipped, or thrown away.

    `GradScaler.step` does not support closures. So this object acts as an optimizer of the same
    parameters towards the scaler; its `step` only records that the scaler found no overflow.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self._finite = optimizer, False
        # Of the present step only; None between steps.
        self.scaler: GradScaler | None = None
        self.max_norm: float | None = None

    def begin(self, scaler: GradScaler | None, max_norm: float | None) -> None:
        """What the step was called with."""
        if max_norm is not None:  # on the path of every step
            check_number("max_grad_norm", max_norm, "> 0", "or None for no bound")
        self.scaler, self.max_norm = scaler, max_norm

    def end(self) -> None:
        """Forget it, so that a copy of the optimizer holds no scaler."""
        self.scaler = self.max_norm = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """What the scaler asks an optimizer for."""
        return self._optimizer.param_groups

    def step(self) -> None:
        """Called by the scaler if it found no overflow."""
        self._finite = True

    def scale(self, weights: Tensor) -> Tensor:
        """The weights of the losses for the backward pass, scaled by the GradScaler."""
        if self.scaler is None:
            return weights
        scaled: Tensor = self.scaler.scale(weights)
        return scaled

    def unscale_and_clip(self, old: dict[Tensor, Tensor] | None = None) -> bool:
        """Unscale and clip the gradients, and unscale the `old` ones of an earlier pass.

        False after an overflow in either; the caller then returns without a trace.
        """
        if self.scaler is not None and not self._unscale(self.scaler, old or {}):
            return False
        if self.max_norm is not None:
            clip_grad_norm_(self._params(), self.max_norm)
        return True

    def _unscale(self, scaler: GradScaler, old: dict[Tensor, Tensor]) -> bool:
        """Let the scaler unscale the gradients and look for overflows; False if it found one."""
        if old:
            # The scaler only looks at p.grad, but an overflow at the previous point counts too.
            for p, gradient in old.items():
                # 0 * inf is NaN, so an overflow in the old gradients shows up here.
                if p.grad is not None:
                    p.grad.add_(gradient * 0.0)
            torch._foreach_div_(list(old.values()), float(scaler.scale(torch.ones(()))))
        self._finite = False
        scaler.step(self)  # type: ignore[arg-type]
        return self._finite

    def skip(self) -> None:
        """Skip a batch because of its losses. The scaler still needs to see gradients."""
        if self.scaler is None:
            return
        self.scaler.scale(torch.ones(()))  # It creates its state on first use.
        for p in self._params():
            p.grad = torch.zeros_like(p)
        self.scaler.step(self)  # type: ignore[arg-type]
        for p in self._params():
            p.grad = None

    def clip_coefficient(self, coefficient: Any, gradients: list[Tensor], among: float) -> Any:
        """The coefficient with which `gradients` may be subtracted, under the norm bound.

        STORM subtracts old gradients times `coefficient`, which is `among` (1 - beta) times the
        weight ratio of the batch. Clipped is the gradient itself, that is, coefficient/among times
        its norm.
        """
        if self.max_norm is None or not gradients or among == 0.0:
            return coefficient
        size = global_norm(gradients) * abs(coefficient) / among
        return coefficient * (self.max_norm / (size + 1e-6)).clamp_max(1.0)

    def _params(self) -> Iterable[Tensor]:
        """The parameters that have gradients."""
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]


# -- every optimizer -------------------------------------------------------------------------------


Closure = Callable[[], Tensor]


class ClosureOptimizer(Optimizer):
    """Base class of all algorithms: `step(closure)`, with one `MethodState` module for state beyond `torch.optim`'s."""

    _method_state: MethodState
    _two_points: ClassVar[bool] = (
        False  # whether each batch is also evaluated at the previous point
    )
    _vectors: ClassVar[tuple[str, ...]] = ()  # names of the per-parameter tensors in `state`
    _own_attributes: ClassVar[tuple[str, ...]] = (
        "_method_state",
        "_ball",
        "_gradients",
        "_buffers",
    )

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        method_state: MethodState,
        *,
        radius: float | None = None,
        module: Modules = None,
    ) -> None:
        check_steps(defaults)
        self._ball = None if radius is None else Ball(radius)
        super().__init__(params, defaults)
        self._method_state = method_state.to(self._first_parameter().device)
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
            closure: returns the per-sample losses of a batch that is chosen outside of it; does not
                call backward.
            index: positions of the samples in the data set, for methods that keep one number per
                sample.
            sample_weight: importance weights of the samples, >= 0.
            grad_scaler: scales the losses for float16. If it finds an overflow, the step is skipped
                and nothing changes. Call its `update()` afterwards, as usual.
            max_grad_norm: bound on the norm of each gradient, over all parameters together.

        Under torch.distributed the batch is that of all processes (see `process_group`). Gradients
        must be averaged, as DistributedDataParallel and fully_shard do.

        Returns:
            The method's estimate of its objective, a 0-d tensor: a running estimate if it keeps
            one, else the value on this batch.
        """
        if index is not None or not callable(closure):
            closure = _check_closure(closure)
            _refuse_weights(index)
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
        return (
            value
            if isinstance(value, Tensor)
            else torch.tensor(
                value, dtype=self._method_state.dtype, device=self._method_state.skipped.device
            )
        )

    def full_objective(self, losses: Tensor) -> Tensor:
        """The exact objective of the method, given the losses of all training samples."""
        raise NotImplementedError

    def _step(
        self, closure: Closure, index: Tensor | None, sample_weight: Tensor | None
    ) -> Scalar | None:
        """Do one step. Return the objective, or None if a bad batch was skipped."""
        raise NotImplementedError

    def _after_step(self) -> None:
        """For methods that run in stages."""

    def _value_if_skipped(self) -> Scalar:
        """What `step` returns for a skipped batch."""
        return math.nan

    # -- the closure -------------------------------------------------------------------------------

    def _losses(self, closure: Closure) -> Tensor:
        """Clear the gradients and return the per-sample losses at the current parameters, with their graph."""
        for p in self._parameters():
            p.grad = None
        with torch.enable_grad(), self._inspection():
            losses = closure()
        if self.ranks.may_have_others():
            with self.ranks.joining(self._first_parameter().device):
                self._check_closure_losses(losses)
        else:
            self._check_closure_losses(losses)
        return losses

    def _inspection(self) -> AbstractContextManager[None]:
        """Raise if a layer would change its running statistics when it should not."""
        if self._two_points:
            return self._buffers.inspection(
                "this method evaluates each batch twice and would update its statistics twice"
            )
        if self._method_state.skip_nonfinite:
            return self._buffers.inspection(
                "a batch that skip_nonfinite skips would change its statistics"
            )
        return nullcontext()

    def _check_closure_losses(self, losses: Tensor) -> None:
        """Raise if the closure called backward, or its losses have no gradient."""
        if any(p.grad is not None for p in self._parameters()):
            raise ClosureError(
                "expected a closure that only computes the per-sample losses, got one that called"
                " backward(); remove the call, since step() calls backward itself"
            )
        if (
            isinstance(losses, Tensor)
            and losses.is_floating_point()
            and losses.ndim == 1
            and not losses.requires_grad
        ):
            raise LossError(
                "expected losses that require grad, got detached losses; is the closure under"
                " torch.no_grad(), or the model frozen?"
            )

    def _backward(self, losses: Tensor, batch: Batch, weights: Tensor) -> None:
        """Compute the gradients of sum_j weight_j l_j, still scaled by the grad_scaler.

        Args:
            losses: (own,) this process's losses, with their graph.
            batch: the whole batch.
            weights: (b,) the weights of all its losses, without a gradient.
        """
        weights = self._gradients.scale(batch.own_weights(weights))
        try:
            torch.autograd.backward(losses, weights.to(losses.dtype))
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise ClosureError(
                "expected a closure that only computes the per-sample losses, got one whose graph"
                " was already used; remove its call to backward()"
            ) from error
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        if not gradients:
            raise ClosureError(
                "expected losses that depend on the parameters of this optimizer, got none that do;"
                " was it made for another model?"
            )
        if any(gradient.layout != torch.strided for gradient in gradients):
            raise ClosureError(
                "expected dense gradients, got sparse ones; make the layer with sparse=False, or"
                " use KLRobustLoss with an optimizer that supports them"
            )
        if self.ranks.may_have_others():
            self.ranks.check_averaged(gradients)

    def _skips(self, finite: Tensor | None) -> bool:
        """Whether to skip the step, if the host can read the flag.

        Elsewhere the flag stays on the device, except for the first batch: skipping that one must leave
        `started` false.
        """
        if (
            finite is None
            or (finite.device.type != "cpu" and self._method_state.started)
            or bool(finite)
        ):
            return False
        self._method_state.count_skipped(True)
        self._gradients.skip()
        return True

    def _undo_unless(self, finite: Tensor | None) -> AbstractContextManager[None]:
        """Undo changes to parameters and vectors if the batch was bad, without reading the flag on the host."""
        return (
            nullcontext()
            if finite is None or finite.device.type == "cpu"
            else self._undo_on_device(finite)
        )

    @contextmanager
    def _undo_on_device(self, finite: Tensor) -> Iterator[None]:
        """Copies of parameters and vectors before, and the copy back where the flag is false."""
        vectors = (
            self.state[p][name]
            for p in self._parameters()
            for name in self._vectors
            if name in self.state[p]
        )
        tensors = [*self._parameters(), *vectors]
        before = [t.clone() for t in tensors]
        # p.grad stays after the step, and must not be NaN.
        for p in self._parameters():
            if p.grad is not None:
                p.grad = torch.where(finite, p.grad, 0.0)
        yield
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(finite, tensor, old))
        self._buffers.restore(unless=finite)

    # -- parameters --------------------------------------------------------------------------------

    def _parameters(self) -> Iterator[Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def _first_parameter(self) -> Tensor:
        return next(self._parameters())

    def _has_past(self, p: Tensor) -> bool:
        """Whether a step has set the parameter's vectors. Before, they are zeros or not there.

        Each parameter has its own start: one that is frozen at first begins later.
        """
        return bool(self.state[p].get("started", 0))

    def _begin_at(self, p: Tensor, **vectors: Tensor) -> None:
        """Set the first vectors of a parameter."""
        self.state[p].update(vectors, started=1)

    def _add_decay(self, vectors: list[Tensor], params: list[Tensor], decay: float) -> list[Tensor]:
        """Vectors plus weight decay."""
        return (
            list(torch._foreach_add(vectors, params, alpha=decay)) if params and decay else vectors
        )

    def _momentum_step(
        self, group: dict[str, Any], keep: float, share: float, decay: float
    ) -> None:
        """v <- keep v + share (gradient + decay w);  w <- w - lr v.  The first v is the gradient.

        SCDRO has keep = 1 - beta and share = beta, SGD with momentum has keep = momentum and share = 1.
        Parameters without a gradient stay where they are.
        """
        params = [p for p in group["params"] if p.grad is not None]
        gradients = self._add_decay([p.grad for p in params if p.grad is not None], params, decay)
        entries = [self.state[p] for p in params]
        # 1. The v of parameters that have had a step (`_has_past`), all in one call.
        old = [(e["v"], g) for e, g in zip(entries, gradients, strict=True) if e.get("started")]
        if old:
            vectors, fresh = (list(side) for side in zip(*old, strict=True))
            torch._foreach_mul_(vectors, keep)
            torch._foreach_add_(vectors, fresh, alpha=share)
        # 2. The first v of the others (Algorithm 1, line 2).
        if len(old) < len(params):
            for p, gradient in zip(params, gradients, strict=True):
                if not self._has_past(p):
                    self._begin_at(p, v=torch.clone(gradient))
        descend(params, [e["v"] for e in entries], group["lr"])

    def _project(self) -> None:
        """Project the trainable parameters onto W, if there is one."""
        if self._ball is not None:
            self._ball.project_([p for p in self._parameters() if p.requires_grad])

    def draws(
        self, n: int, batch_size: int, seed: int = 0, *, joint: bool = False
    ) -> DrawnBatches | None:
        """One epoch of batches from n samples, if the method draws its own samples, else None.

        With `joint`, every process gets the whole batch.
        """
        return None

    @property
    def ranks(self) -> Ranks:
        """The processes that share each batch."""
        return self._method_state.ranks

    @property
    def skipped(self) -> Tensor:
        """Number of batches skipped because of NaN or infinite losses."""
        return self._method_state.skipped[0].clone()

    # -- checkpoints -------------------------------------------------------------------------------
    #
    # A state_dict keeps all state in its "state", which torch's tools save, reshard and pass to
    # hooks: the vectors of each parameter, and, stored with the first trainable parameter, the
    # state that belongs to no parameter, such as "SCDRO.recent". It is complete before the first
    # step, because those tools would otherwise call step() to create it. They take the names to
    # load from `self.state`.
    #
    #     {"state": {0: {"v": ..., "started": 1, "SCDRO.scalars": ..., "SCDRO.recent": ...},
    #                1: {"v": ..., "started": 1}},
    #      "param_groups": [{"lr": .1, "beta": .1, ..., "params": [0, 1]}]}
    #
    # Saving:   _fill (zeros for vectors that are not there yet), torch's own, _add_own_state.
    # Loading:  _check_and_split (every check, then our state apart), torch's own, _restore.
    # Both go through torch's hooks, so that hooks that users register see the whole state.

    def state_dict(self) -> dict[str, Any]:
        """Like torch's: the vectors of each parameter; lam, log s and so on are stored with the first trainable one."""
        # The hook is only there during this call, and first, so that the user's own hooks see the
        # whole state.
        self._fill(self._parameters())
        first = self.register_state_dict_post_hook(
            lambda _, state_dict: self._add_own_state(state_dict), prepend=True
        )
        try:
            return super().state_dict()
        finally:
            first.remove()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state. If it does not fit, raise and change nothing.

        Settings in `param_groups` (lr, beta, weight_decay, ...) are loaded too, as in torch. All
        others stay as in this object. They may differ from the saved ones if that does not change
        the meaning of the state (docs, "Checkpoints").
        """
        own: dict[str, Any] = {}  # filled by the hook with the state that belongs to no parameter
        last = self.register_load_state_dict_pre_hook(
            lambda _, came: self._check_and_split(came, own)
        )
        first = self.register_load_state_dict_post_hook(lambda _: self._restore(own), prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            last.remove()
            first.remove()

    def _own_state(self) -> dict[str, Any]:
        """Copies of the state that belongs to no parameter, because dcp.load writes into a state_dict's tensors."""
        return {
            **{k: v.clone() for k, v in self._method_state.state_dict().items()},
            **self._extra_state(),
        }

    def _add_own_state(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The state_dict of torch, plus the state that belongs to no parameter."""
        own, prefix = self._own_state(), f"{type(self).__name__}."
        carrier = self._announce(own)
        if scalar_dtype(carrier.device) == torch.float64:  # torch needs all of it on one device
            own = {k: v.to(carrier.device) if isinstance(v, Tensor) else v for k, v in own.items()}
        state = {i: dict(entries) for i, entries in state_dict["state"].items()}
        state[self._parameter_keys(state_dict)[carrier]].update(
            {prefix + k: v for k, v in own.items()}
        )
        return {**state_dict, "state": state}

    def _announce(self, names: Iterable[str]) -> Tensor:
        """Put the names of the state that belongs to no parameter with the first trainable one.

        The values are zeros: only the names matter, since torch's tools take from `self.state` the
        names to load. Returns that parameter.
        """
        prefix = f"{type(self).__name__}."
        for entries in self.state.values():
            for key in [key for key in entries if key.startswith(prefix)]:
                del entries[key]
        carrier = next((p for p in self._parameters() if p.requires_grad), self._first_parameter())
        self.state[carrier].update({prefix + name: 0 for name in names})
        return carrier

    def _parameter_keys(self, state_dict: dict[str, Any]) -> dict[Tensor, Any]:
        """The key of each parameter in a state_dict."""
        numbers = (i for group in state_dict["param_groups"] for i in group["params"])
        return dict(zip(self._parameters(), numbers, strict=True))

    def _fill(self, params: Iterable[Tensor]) -> None:
        """Fill in zeros for the vectors of parameters that have had no step yet."""
        for p in params:
            entries = self.state[p]
            if self._vectors and p.requires_grad and "started" not in entries:
                entries.update({name: torch.zeros_like(p) for name in self._vectors}, started=0)

    def _check_and_split(self, state_dict: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
        """Check a state and remove what belongs to no parameter, which goes to `own`.

        Torch would cast it to the parameter's dtype, and log s would lose its digits.
        """
        state, prefix = state_dict.get("state", {}), f"{type(self).__name__}."
        # All entries of ours have a dot in their name, "SCDRO.recent"; torch's have none.
        carried = {
            key: value
            for entries in state.values()
            for key, value in entries.items()
            if "." in str(key)
        }
        own.update({k.removeprefix(prefix): v for k, v in carried.items() if k.startswith(prefix)})
        if not own:
            _refuse_state(type(self).__name__, next(iter(carried), ""))
        self._check_vectors(state_dict)
        check_fits(self._method_state, {k: own.get(k) for k in self._method_state.state_dict()})
        self._check_extra_state(own)
        vectors = {
            i: {
                k: _copy_if_tensor(like(v, p))
                for k, v in state[i].items()
                if not k.startswith(prefix)
            }
            for p, i in self._parameter_keys(state_dict).items()
            if i in state
        }
        return {**state_dict, "state": vectors}

    def _restore(self, own: dict[str, Any]) -> None:
        """After torch has loaded the vectors: the state that belongs to no parameter."""
        self._method_state.load_state_dict({k: own[k] for k in self._method_state.state_dict()})
        self._load_extra_state(own)
        self._fill(self._parameters())
        self._announce(own)

    def _check_vectors(self, state_dict: dict[str, Any]) -> None:
        """Raise unless groups and shapes of a state_dict are those of this optimizer."""
        groups = state_dict["param_groups"]
        sizes, came = ([len(group["params"]) for group in g] for g in (self.param_groups, groups))
        if sizes != came:
            raise CheckpointError(
                f"expected parameter groups of {sizes} parameters, got {came}; is it from another"
                " model?"
            )
        for p, number in self._parameter_keys(state_dict).items():
            entries = state_dict["state"].get(number, {})
            for value in (entries.get(name) for name in self._vectors if "started" in entries):
                shape = tuple(value.shape) if isinstance(value, Tensor) else None
                if shape != tuple(p.shape):
                    raise CheckpointError(
                        f"expected the state of a parameter of shape {tuple(p.shape)}, got {shape};"
                        " is it from another model?"
                    )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; a group that is refused leaves nothing behind."""
        check_steps(param_group)
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except HyperparameterError:
            self.param_groups.pop()
            raise
        self._fill(self.param_groups[-1]["params"])

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise unless the settings of a group are valid."""
        check_parameters(group)

    def _extra_state(self) -> dict[str, Any]:
        """State beyond the vectors and `MethodState`: tensors, integers and floats, identical on all processes."""
        return {}

    def _check_extra_state(self, own: dict[str, Any]) -> None:
        """Raise if the state beyond vectors and `MethodState` does not fit."""

    def _load_extra_state(self, own: dict[str, Any]) -> None:
        """Load it; called only after every check has passed."""

    def __getstate__(self) -> dict[str, Any]:
        """Keep all attributes. torch's own version keeps only three when copying or pickling, without lam and log s."""
        own = {k: v for k, v in self.__dict__.items() if k in self._own_attributes}
        return {**super().__getstate__(), **own}


def _copy_if_tensor(value: Any) -> Any:
    """Copy tensors. torch would reuse those that need no cast, and then training would change the loaded state."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _refuse_state(expected: str, key: str) -> NoReturn:
    """Raise for a state_dict of another optimizer, which it may name."""
    if key:
        came = key.partition(".")[0]
        raise CheckpointError(
            f"expected a state_dict of {expected}, got one of {came}; load it into that optimizer"
        )
    raise CheckpointError(
        f"expected a state_dict of {expected}, got one of another optimizer, or one saved with"
        " another first trainable parameter; load it into that optimizer, or make the same"
        " parameters trainable"
    )


def descend(params: list[Tensor], direction: list[Tensor], lr: Tensor | float) -> None:
    """w <- w - lr direction, for all parameters in one call. `lr` may be a tensor, as in torch."""
    if not params:
        return
    if isinstance(lr, Tensor):
        torch._foreach_sub_(params, torch._foreach_mul(direction, lr.to(direction[0].device)))
    else:
        torch._foreach_add_(params, direction, alpha=-lr)


# -- KL-constrained methods ------------------------------------------------------------------------


IN_PLACE_OF = {  # settings of torch's optimizers, and what there is here
    "momentum": "beta, the weight of the new batch in the averaged gradient: momentum m is beta = 1 - m",
    "betas": "beta, the weight of the new batch in the averaged gradient: (m, ...) is beta = 1 - m;"
    " for Adam, use KLRobustLoss with torch.optim.Adam",
    "dampening": "beta: the new gradient always has weight beta, as with dampening = momentum",
    "nesterov": "no such option; ASCDRO evaluates each batch at two points",
    "maximize": "losses, which are minimised: negate a reward",
    "eps": "no such option; for Adam, use KLRobustLoss with torch.optim.Adam",
}


def _check_unknown(name: str, unknown: dict[str, Any]) -> None:
    """A setting of another optimizer gets an error that says what to use instead."""
    for key, value in unknown.items():
        if key in IN_PLACE_OF:
            raise HyperparameterError(
                f"expected {IN_PLACE_OF[key]}; got {key}={value!r} for {name}"
            )
        raise TypeError(f"{name}() got an unexpected keyword argument {key!r}")


def _check_closure(closure: Callable[[], Tensor] | None) -> Callable[[], Tensor]:
    """The closure, or an error that says what to pass: a tensor of losses is the usual mistake."""
    if callable(closure):
        return closure
    if closure is not None:
        raise ClosureError(
            "expected step(closure) with a closure that returns per-sample losses, got a"
            f" {type(closure).__name__}; pass a function: opt.step(lambda: losses(model(x), y)), or"
            " use KLRobustLoss with any torch optimizer"
        )
    raise ClosureError(
        "expected step(closure) with a closure that returns per-sample losses, got none; if your"
        " loop calls backward() itself, use KLRobustLoss with any torch optimizer"
    )


def _refuse_weights(index: Any) -> None:
    """Raise for weights in the place of `index`, which most methods do not use."""
    if index is not None and torch.as_tensor(index).is_floating_point():
        raise ClosureError(
            "expected step(closure, index) with integer positions, got floating-point numbers; pass"
            " weights as step(closure, sample_weight=weights)"
        )


class RobustOptimizer(ClosureOptimizer):
    """Base class of the optimizers over x = (w, lam): settings, objective, monitoring.

    Its `_method_state` is a `RobustState` with lam, log s and the recent losses. Subclasses write
    `_step`; arguments are explained at `SCDRO`.
    """

    _method_state: RobustState

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
        **unknown: Any,
    ) -> None:
        _check_unknown(type(self).__name__, unknown)
        check_beta(beta)
        temperature = given_or_default(temperature)
        # A tracker of one point cannot use the second evaluation, one of two points needs it.
        if tracker is None:
            tracker = (
                temperature.two_point_tracker()
                if self._two_points
                else temperature.one_point_tracker()
            )
        at = (
            "twice: NormalizedStorm(cap=2.0)"
            if self._two_points
            else "once: MovingAverage(cap=2.0)"
        )
        if isinstance(tracker, type) or getattr(tracker, "two_points", None) != self._two_points:
            raise HyperparameterError(
                f"expected a tracker for {type(self).__name__}, which evaluates each batch {at},"
                f" got {tracker!r}"
            )
        robust = state_for(
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
        super().__init__(params, defaults, robust, radius=radius, module=module)

    def _value_if_skipped(self) -> Scalar:
        """The running objective, which a skipped batch does not change."""
        return self._method_state.objective

    def full_objective(self, losses: Tensor) -> Tensor:
        """The objective of the method: the worst case of the losses of all training samples."""
        equation = self._method_state.equation
        value: Tensor = worst_case(
            losses, equation.rho, equation.lam0, trim=self._method_state.trim
        ).value
        return value

    @property
    def _beta(self) -> float:
        """beta, which must be the same in all parameter groups because there is only one s."""
        beta = self.param_groups[0]["beta"]
        if any(group["beta"] != beta for group in self.param_groups):
            raise HyperparameterError(
                "expected the same beta in all parameter groups, got different values"
            )
        return float(beta)

    # -- monitoring --------------------------------------------------------------------------------

    @property
    def temperature(self) -> Temperature:
        """The rule for lam."""
        return self._method_state.temperature

    @property
    def rho(self) -> float:
        """The radius of the KL ball."""
        return self._method_state.equation.rho

    @property
    def lam(self) -> Tensor:
        """The temperature for the next batch; NaN before the first batch, inf if rho = 0."""
        return self._method_state.lam

    @property
    def log_s(self) -> Tensor:
        """log s, the log of the tracked mean of exp(l/lam), at the temperature of the last batch."""
        return self._method_state.log_s

    @property
    def kl(self) -> Tensor:
        """KL of the worst case on the recent losses: near rho, or less if lam is at lam0."""
        return self._method_state.monitor()[0]

    @property
    def ess(self) -> Tensor:
        """Effective sample size of the worst case as a share of the recent samples, in (0, 1]."""
        return self._method_state.monitor()[1]

    @property
    def resets(self) -> Tensor:
        """Number of times STORM's estimates were reset (printed form only)."""
        return self._method_state.resets[0].clone()

    def _check_vectors(self, state_dict: dict[str, Any]) -> None:
        super()._check_vectors(state_dict)
        for group in state_dict["param_groups"]:
            if "beta" not in group:
                raise CheckpointError(
                    "expected beta in every parameter group, got one without; is it of another"
                    " method?"
                )
            check_beta(group["beta"])

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        check_beta(group["beta"])
        _ = self._beta
