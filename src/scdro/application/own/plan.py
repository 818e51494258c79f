"""How to train on one's own data: what the user says, and for the rest what works untouched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from scdro.application.own.opening import OwnData
from scdro.application.study import Study, chosen
from scdro.errors import HyperparameterError
from scdro.optim import REGISTRY

__all__ = ["Plan", "check_count"]

BASELINE = "ERM"


@dataclass(frozen=True)
class Plan:
    """None stands for what the data suggest.

    Attributes:
        method: a name in `REGISTRY`.
        rho: the radius to train at and to report.
        model, width, part: as in a `Study`.
        settings: of the method, such as lr and beta.
        max_grad_norm: a bound on the norm of each gradient, 0 for none. Where a few samples have most of the weight a
            step can go far too far.
        search: so many settings of the method's grid are tried on the validation data; None for fixed ones.
        baseline: whether ERM is trained as well.
    """

    method: str = "SCDRO"
    rho: float = 0.5
    model: str | None = None
    width: int | None = None
    part: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    weight_decay: float = 2e-4
    max_grad_norm: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    search: int | None = None
    baseline: bool = False
    seed: int = 1
    threads: int = 1

    def __post_init__(self) -> None:
        method = chosen(REGISTRY, self.method, "a method")
        unknown = [name for name in self.settings if name not in method.grid]
        if unknown:
            raise HyperparameterError(
                f"expected settings of {self.method}, {', '.join(method.grid)}, got {unknown[0]!r}"
            )
        if not 0.0 <= self.rho < math.inf:
            raise HyperparameterError(f"expected a radius rho >= 0, got {self.rho}")
        if self.seed < 1:
            raise HyperparameterError(f"expected a seed >= 1, got {self.seed}; 0 is that of the search")
        for name in ("width", "epochs", "batch_size", "search", "threads"):
            check_count(f"--{name.replace('_', '-')}", getattr(self, name))

    @property
    def methods(self) -> tuple[str, ...]:
        """The baseline first."""
        return (BASELINE, self.method) if self.baseline and self.method != BASELINE else (self.method,)

    def options(self) -> dict[str, Any]:
        """What the user said, by the names of the options."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        settings = {"--lr" if name == "lr" else f"--set {name}": value for name, value in named.pop("settings").items()}
        del named["baseline"]  # may be added
        return {f"--{name.replace('_', '-')}": value for name, value in named.items()} | settings

    def study(self, data: OwnData, name: str) -> Study:
        """The configuration that the engine trains by."""
        n = len(data.task.train)
        if "groups" in REGISTRY[self.method].needs and not data.groups:
            raise HyperparameterError(f"expected groups for {self.method}, got none; name a column by --group")
        batch_size = min(128 if n >= 2000 else 32, n) if self.batch_size is None else self.batch_size
        epochs = _epochs(n, batch_size, data.images) if self.epochs is None else self.epochs
        model = self.model or ("resnet8" if data.images else "mlp")
        return Study(
            experiment="own",
            dataset=name,
            scale="own",
            methods=self.methods,
            inputs="images" if data.images else "rows",
            model=model,
            width=(16 if model.startswith("resnet") else 64) if self.width is None else self.width,
            part=self.part or ("last_block" if model == "resnet50" else "all"),
            epochs=epochs,
            decay_epoch=max(round(0.75 * epochs), 1),
            batch_size=batch_size,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm,
            rho=(self.rho,),
            trials=self.search or 0,
            grid=tuple(
                (f"{method}.{key}", values) for method in self.methods for key, values in self._grid(method, batch_size)
            ),
            seeds=1,
            points=6,
            threads=self.threads,
        )

    def _grid(self, method: str, batch_size: int) -> list[tuple[str, tuple[Any, ...]]]:
        """Values to try: those of the user, else the registry's if there is a search, else one that works."""
        own = self.settings if method == self.method else {}
        grid = REGISTRY[method].grid
        every = {key: tuple(values) for key, values in grid.items()}
        usual = every if self.search else _usual(method, self.rho, batch_size, bounded=self.max_grad_norm > 0)
        return [(key, (own[key],) if key in own else usual[key]) for key in grid]


def check_count(flag: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise HyperparameterError(f"expected {flag} >= 1, got {value}; leave it out for what suits the data")


def _epochs(n: int, batch_size: int, images: bool) -> int:
    """About 6,000 steps, within limits."""
    fewest, most = (10, 100) if images else (5, 200)
    return min(max(math.ceil(6000 * batch_size / n), fewest), most)


def _usual(method: str, rho: float, batch_size: int, *, bounded: bool) -> dict[str, tuple[Any, ...]]:
    """The middle of the grid, but for the learning rate, and class weights, which are those that make classes equal.

    Methods that average gradients by beta take ten times the lr of those with momentum .9: the longest step is then the
    same. Where gradients are not bounded, lr falls with rho: a worst case looks at a share exp(-rho) of a batch, and at
    one sample at least, as if batches were smaller by that factor.
    """
    known = REGISTRY[method]
    usual = {key: values[len(values) // 2] for key, values in known.grid.items()}
    usual |= {"balance": 1.0} if "balance" in known.grid else {}
    usual |= {"lr": 0.5, "beta": 0.1} if "beta" in known.grid else {"lr": 0.05}
    if "rho" in known.needs and not bounded:
        usual["lr"] = float(f"{usual['lr'] * max(math.exp(-rho), 1 / batch_size):.2g}")
    return {key: (value,) for key, value in usual.items()}
