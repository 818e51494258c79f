"""What an experiment on one data set is, and what one of its runs is: plain values, saved with every run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from scdro.errors import HyperparameterError
from scdro.optim import REGISTRY

__all__ = ["Arm", "Run", "Study", "chosen"]

Choice = TypeVar("Choice")

INPUTS = ("features", "images", "rows")
MODELS = ("linear", "mlp", "resnet8", "resnet20", "resnet32", "resnet50")
TUNING_SEED = 0


def chosen(choices: Mapping[str, Choice], name: str, what: str) -> Choice:
    """The entry of that name."""
    if name not in choices:
        raise HyperparameterError(f"expected {what} of {', '.join(choices)}, got {name!r}")
    return choices[name]


@dataclass(frozen=True)
class Study:
    """An experiment on one data set.

    Attributes:
        experiment, dataset, scale: what it is called.
        methods: names in `REGISTRY`.
        inputs: "features" of a frozen network, "images" or "rows" of a table.
        model, width, part: the model; channels of a ResNet's first stage, or units of an MLP; what is trained of it.
        pool: images are made smaller by this factor.
        epochs, decay_epoch: passes over the training data, and after how many of them lr falls by ten.
        batch_size, weight_decay: of every method.
        max_grad_norm: a bound on the norm of each gradient; 0 for none.
        rho: the radii, each with a result of its own.
        choose_rho: one result instead, at the radius that is best on the validation set.
        tune_rho: settings are searched at this radius alone, and used at all; 0 searches at each.
        tune_epochs: length of the runs that search; 0 for that of all.
        trials: settings to try for each method, drawn from its grid; 0 for the whole grid.
        grid: values in place of the grid's own, for a setting of all methods ("lr") or of one ("SCDRO.beta").
        seeds: runs of the best settings.
        points: how often a run is evaluated.
        threads: of each run; part of the configuration because sums depend on it.

    `WHICH_RUNS` are the fields that decide which runs there are, and not how one goes: a sweep can be extended by them.
    """

    WHICH_RUNS: ClassVar[tuple[str, ...]] = ("methods", "rho", "choose_rho", "tune_rho", "trials", "grid", "seeds")

    experiment: str
    dataset: str
    scale: str
    methods: tuple[str, ...]
    inputs: str = "features"
    model: str = "linear"
    width: int = 16
    part: str = "all"
    pool: int = 1
    epochs: int = 3
    decay_epoch: int = 2
    batch_size: int = 128
    weight_decay: float = 2e-4
    max_grad_norm: float = 0.0
    rho: tuple[float, ...] = (0.5,)
    choose_rho: bool = False
    tune_rho: float = 0.0
    tune_epochs: int = 0
    trials: int = 0
    grid: tuple[tuple[str, tuple[float, ...]], ...] = ()
    seeds: int = 5
    points: int = 12
    threads: int = 1

    def __post_init__(self) -> None:
        for method in self.methods:
            chosen(REGISTRY, method, "a method")
        chosen(dict.fromkeys(INPUTS), self.inputs, "inputs")
        chosen(dict.fromkeys(MODELS), self.model, "a model")
        for name in ("width", "pool", "epochs", "batch_size", "seeds", "points", "threads"):
            if not getattr(self, name) >= 1:
                raise HyperparameterError(f"expected {name} >= 1, got {getattr(self, name)}")
        for name, usual in (("trials", "the whole grid"), ("tune_epochs", "the length of all runs")):
            if getattr(self, name) < 0:
                raise HyperparameterError(f"expected {name} >= 1, or 0 for {usual}, got {getattr(self, name)}")
        if not 0.0 <= self.max_grad_norm < math.inf:
            raise HyperparameterError(f"expected max_grad_norm > 0, or 0 for no bound, got {self.max_grad_norm}")
        if not self.methods or not self.rho:
            raise HyperparameterError(f"expected methods and radii, got {self.methods} and {self.rho}")
        for radius in (*self.rho, self.tune_rho):
            if not 0.0 <= radius < math.inf:
                raise HyperparameterError(f"expected a radius rho >= 0, got {radius}")
        for key, values in self.grid:
            method, _, setting = key.rpartition(".")
            known = [m for m in self.methods if m == (method or m) and setting in REGISTRY[m].grid]
            if not known or not values:
                raise HyperparameterError(f"expected a grid of values for a setting of a method, got {key}={values}")
            if not all(map(math.isfinite, values)):
                raise HyperparameterError(f"expected finite values of {key}, got {', '.join(map(str, values))}")

    def as_dict(self) -> dict[str, Any]:
        """As JSON gives it back."""
        return dict(json.loads(json.dumps(asdict(self))))

    @staticmethod
    def shared(saved: Mapping[str, Any]) -> dict[str, Any]:
        """Of what `as_dict` gave, the part that all runs of a sweep have in common."""
        return {key: value for key, value in saved.items() if key not in Study.WHICH_RUNS}

    @property
    def score_rho(self) -> float:
        """The radius of the robust objective that is reported where an arm has none of its own."""
        return self.tune_rho or self.rho[len(self.rho) // 2]

    def arms(self) -> list[Arm]:
        """What gets a row in the results."""
        return [
            Arm(method, rho)
            for method in self.methods
            for rho in (self.rho if "rho" in REGISTRY[method].needs and not self.choose_rho else (None,))
        ]

    def search(self, arm: Arm) -> list[Run]:
        """The runs that decide the settings of an arm."""
        method = REGISTRY[arm.method]
        values = dict(self._own_grid(arm.method))
        if "rho" in method.needs:
            values["rho"] = self.rho if arm.rho is None else (self.tune_rho or arm.rho,)
        tried = method.trials(self.trials or None, values=values)
        return [Run(self, arm.method, settings, TUNING_SEED) for settings in tried]

    @property
    def searches(self) -> bool:
        """Whether there is anything to search: a method with more than one setting."""
        return any(len(self.search(arm)) > 1 for arm in self.arms())

    def finals(self, arm: Arm, settings: Mapping[str, Any], seeds: Iterable[int] | None = None) -> list[Run]:
        """The runs that are reported, with settings that the search found."""
        at = {**settings, "rho": arm.rho} if arm.rho is not None else dict(settings)
        return [Run(self, arm.method, at, seed) for seed in seeds or range(1, self.seeds + 1)]

    def _own_grid(self, method: str) -> Mapping[str, Sequence[Any]]:
        general = {key: values for key, values in self.grid if key in REGISTRY[method].grid}
        return general | {key.split(".")[1]: v for key, v in self.grid if key.split(".")[0] == method and "." in key}


@dataclass(frozen=True)
class Arm:
    """A method, and a radius where each has a result of its own."""

    method: str
    rho: float | None

    def __str__(self) -> str:
        return self.method if self.rho is None else f"{self.method}, rho {self.rho:g}"


@dataclass(frozen=True)
class Run:
    """One training of a study."""

    study: Study
    method: str
    settings: Mapping[str, Any]
    seed: int

    @property
    def searches(self) -> bool:
        """Whether it serves the search: then it never sees the test data."""
        return self.seed == TUNING_SEED

    @property
    def rho(self) -> float:
        """The radius to train at."""
        return float(self.settings.get("rho", self.study.score_rho))

    @property
    def scored_at(self) -> float:
        """The radius of the robust objective that is reported: the arm's, or one for all that are to be compared."""
        own = "rho" in REGISTRY[self.method].needs and not self.study.choose_rho
        return self.rho if own else self.study.score_rho

    @property
    def length(self) -> Study:
        """The study with this run's own number of epochs, and lr falling at the same share of them."""
        study = self.study
        if not self.searches or not study.tune_epochs:
            return study
        decay = round(study.decay_epoch * study.tune_epochs / study.epochs)
        return replace(study, epochs=study.tune_epochs, decay_epoch=decay, points=1)

    @property
    def path(self) -> Path:
        """Where its folder is, below that of the study: another one for other settings."""
        settings = "_".join(f"{key}-{self._named(key, value)}" for key, value in sorted(self.settings.items()))
        return Path(self.method) / settings / f"seed-{self.seed}"

    def _named(self, key: str, value: float) -> str:
        """In six digits where they say it all; they also do for a radius that is the only one."""
        short = f"{value:g}"
        return short if float(short) == value or (key == "rho" and len(self.study.rho) == 1) else repr(float(value))

    def identity(self, data: str) -> dict[str, Any]:
        """All that its result depends on, with the fingerprint of the data."""
        return {
            "study": Study.shared(self.study.as_dict()) | {"score_rho": self.scored_at},
            "method": self.method,
            "settings": dict(self.settings),
            "seed": self.seed,
            "data": data,
        }

    def __str__(self) -> str:
        settings = " ".join(f"{key} {value:g}" for key, value in self.settings.items())
        return f"{self.method} {settings} seed {self.seed}"
