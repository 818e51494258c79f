"""The configuration of an experiment on one data set, and of one of its runs: plain values, saved with every run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from reproduction.baselines import REGISTRY
from reproduction.grids import GRIDS, trials
from scdro.errors import HyperparameterError

__all__ = ["BOUND", "UNDAMPED", "Arm", "Study", "StudyRun", "chosen", "takes"]

Choice = TypeVar("Choice")

INPUTS = ("features", "images", "rows")
PRECISIONS = ("float32", "bfloat16")
MODELS = ("linear", "mlp", "resnet8", "resnet20", "resnet32", "resnet50")
TUNING_SEEDS = (0, 1001, 1002, 1003, 1004)  # never among those of reported runs
CHOOSE_BY = ("accuracy", "robust_value")
# Methods whose momentum is not damped: a constant gradient moves them by lr / (1 - momentum) per
# step, others by lr.
UNDAMPED = (
    *(
        "ERM",
        "ClassBalanced",
        "Focal",
        "GroupDRO",
        "DualSGM",
        "ABSGD",
        "TERM",
        "FastDRO",
        "FastDRO-MLMC",
    ),
    *("FastDRO-CVaR", "FastDRO-chi2", "FastDRO-chi2-penalty"),
)
USUAL_MOMENTUM = 0.9
BOUND = "max_grad_norm"  # in a grid: searched, for every method, in place of the study's
FINER = tuple(
    10 ** (k / 6) for k in (-2, -1, 1, 2)
)  # times the best step: between its neighbours at 10^(+-1/2)


def chosen(choices: Mapping[str, Choice], name: str, what: str) -> Choice:
    """The entry with this name, or an error that lists all names."""
    if name not in choices:
        raise HyperparameterError(f"expected {what} of {', '.join(choices)}, got {name!r}")
    return choices[name]


def takes(method: str, setting: str) -> bool:
    """Whether a setting of a method can be searched: those in its grid, momentum if it is not damped, and the bound
    on the gradients, which every method has."""
    usual = setting == BOUND or (setting == "momentum" and method in UNDAMPED)
    return usual or setting in GRIDS[method]


def _short(value: float) -> float:
    return float(f"{value:.6g}")


@dataclass(frozen=True)
class Study:
    """An experiment on one data set.

    Attributes:
        experiment, dataset, scale: names.
        methods: names in `REGISTRY`.
        inputs: "features" of a frozen network, "images" or "rows" of a table.
        model, width, part: the model; channels of a ResNet's first stage, or units of an MLP; which
            part is trained.
        pool: factor by which images are shrunk.
        epochs, decay_epoch: passes over the training data, and the epoch after which lr is divided
            by ten.
        batch_size, weight_decay: the same for every method.
        max_grad_norm: a bound on the norm of each gradient; 0 for none. If `grid` has values of it,
            it is searched instead, for every method.
        rho: the radii; each gets its own result.
        choose_rho: report one result instead, at the best radius on the validation set.
        tune_rho: search settings at this radius only, and use them at all; 0 searches at each
            radius.
        tune_epochs: length of the search runs; 0 for `epochs`.
        tune_seeds: runs of each setting in the search, compared by their mean.
        choose_by: the mean "accuracy" over the classes of the validation data, or their
            "robust_value".
        trials: number of settings to try for each method, drawn from its grid; 0 for the whole
            grid.
        grid: values that replace the grid's own, for a setting of all methods ("lr") or of one
            ("SCDRO.beta").
        steps: effective step sizes, the same for all methods, that replace the grid's lr: lr, or lr
            / (1 - momentum) for methods that do not damp their momentum.
        refine: try four more step sizes around the best.
        seeds: runs of the best settings.
        points: number of evaluations of a run.
        precision: precision of the forward and backward passes of a step; "bfloat16" by autocast,
            with weights, losses, optimizer and evaluation in float32.
        threads: number of threads of each run; part of the configuration because sums depend on it.

    `WHICH_RUNS` are the fields that decide which runs there are, but not how a run proceeds. They
    may change when a sweep is extended.
    """

    WHICH_RUNS: ClassVar[tuple[str, ...]] = (
        *(
            "methods",
            "rho",
            "choose_rho",
            "tune_rho",
            "tune_seeds",
            "choose_by",
            "trials",
            "grid",
            "steps",
            "refine",
        ),
        "seeds",
    )

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
    tune_seeds: int = 1
    choose_by: str = "accuracy"
    trials: int = 0
    grid: tuple[tuple[str, tuple[float, ...]], ...] = ()
    steps: tuple[float, ...] = ()
    refine: bool = False
    seeds: int = 5
    points: int = 12
    precision: str = "float32"
    threads: int = 1

    def __post_init__(self) -> None:
        for method in self.methods:
            chosen(REGISTRY, method, "a method")
        chosen(dict.fromkeys(INPUTS), self.inputs, "inputs")
        chosen(dict.fromkeys(MODELS), self.model, "a model")
        chosen(dict.fromkeys(PRECISIONS), self.precision, "a precision")
        chosen(dict.fromkeys(CHOOSE_BY), self.choose_by, "what to choose settings by")
        for name in ("width", "pool", "epochs", "batch_size", "seeds", "points", "threads"):
            if not getattr(self, name) >= 1:
                raise HyperparameterError(f"expected {name} >= 1, got {getattr(self, name)}")
        if not 1 <= self.tune_seeds <= len(TUNING_SEEDS) or self.seeds >= TUNING_SEEDS[1]:
            raise HyperparameterError(
                f"expected tune_seeds of 1 to {len(TUNING_SEEDS)}, and at most"
                f" {TUNING_SEEDS[1] - 1} seeds, got {self.tune_seeds} and {self.seeds}"
            )
        if not all(0.0 < step < math.inf for step in self.steps):
            raise HyperparameterError(f"expected steps > 0, got {', '.join(map(str, self.steps))}")
        for name, usual in (
            ("trials", "the whole grid"),
            ("tune_epochs", "the length of all runs"),
        ):
            if getattr(self, name) < 0:
                raise HyperparameterError(
                    f"expected {name} >= 1, or 0 for {usual}, got {getattr(self, name)}"
                )
        if not 0.0 <= self.max_grad_norm < math.inf:
            raise HyperparameterError(
                f"expected max_grad_norm > 0, or 0 for no bound, got {self.max_grad_norm}"
            )
        if not self.methods or not self.rho:
            raise HyperparameterError(
                f"expected methods and radii, got {self.methods} and {self.rho}"
            )
        for radius in (*self.rho, self.tune_rho):
            if not 0.0 <= radius < math.inf:
                raise HyperparameterError(f"expected a radius rho >= 0, got {radius}")
        for key, values in self.grid:
            method, _, setting = key.rpartition(".")
            known = [m for m in self.methods if m == (method or m) and takes(m, setting)]
            if not known or not values:
                raise HyperparameterError(
                    f"expected a grid of values for a setting of a method, got {key}={values}"
                )
            if setting == BOUND and not all(value >= 0.0 for value in values):
                raise HyperparameterError(
                    f"expected {BOUND} > 0, or 0 for no bound, got {', '.join(map(str, values))}"
                )
            if not all(map(math.isfinite, values)):
                raise HyperparameterError(
                    f"expected finite values of {key}, got {', '.join(map(str, values))}"
                )

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values, as read back from JSON."""
        return dict(json.loads(json.dumps(asdict(self))))

    @staticmethod
    def shared(saved: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of an `as_dict` that all runs of a sweep have in common."""
        return {key: value for key, value in saved.items() if key not in Study.WHICH_RUNS}

    @property
    def score_rho(self) -> float:
        """The radius of the reported robust objective for arms without a radius."""
        return self.tune_rho or self.rho[len(self.rho) // 2]

    def arms(self) -> list[Arm]:
        """The arms: each gets a row in the results."""
        return [
            Arm(method, rho)
            for method in self.methods
            for rho in (
                self.rho if "rho" in REGISTRY[method].needs and not self.choose_rho else (None,)
            )
        ]

    def search(self, arm: Arm) -> list[StudyRun]:
        """The search runs of an arm, without those around the best."""
        method = REGISTRY[arm.method]
        values = dict(self._own_grid(arm.method))
        if self.steps:
            values["lr"] = self.steps
        if "rho" in method.needs:
            values["rho"] = self.rho if arm.rho is None else (self.tune_rho or arm.rho,)
        tried = trials(arm.method, self.trials or None, values=values)
        return self._tuning(
            arm, [self._with_lr(arm.method, own) for own in tried] if self.steps else tried
        )

    def finer(self, arm: Arm, best: Mapping[str, Any]) -> list[StudyRun]:
        """The runs with step sizes around the best setting of the search; none unless the study refines."""
        if not self.refine:
            return []
        return self._tuning(arm, [{**best, "lr": _short(best["lr"] * factor)} for factor in FINER])

    def _tuning(self, arm: Arm, tried: Sequence[Mapping[str, Any]]) -> list[StudyRun]:
        seeds = TUNING_SEEDS[: self.tune_seeds if len(tried) > 1 else 1]
        return [StudyRun(self, arm.method, settings, seed) for settings in tried for seed in seeds]

    @staticmethod
    def _with_lr(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings, with the effective step size converted to lr."""
        damped = 1.0 - settings.get("momentum", USUAL_MOMENTUM) if method in UNDAMPED else 1.0
        return {**settings, "lr": _short(settings["lr"] * damped)}

    @property
    def searches(self) -> bool:
        """Whether there is anything to search: some method has more than one setting."""
        return any(len(self.search(arm)) > 1 for arm in self.arms())

    def finals(self, arm: Arm, settings: Mapping[str, Any]) -> list[StudyRun]:
        """The reported runs, with the settings that the search found."""
        at = {**settings, "rho": arm.rho} if arm.rho is not None else dict(settings)
        return [StudyRun(self, arm.method, at, seed) for seed in range(1, self.seeds + 1)]

    def _own_grid(self, method: str) -> Mapping[str, Sequence[Any]]:
        general = {key: values for key, values in self.grid if takes(method, key)}
        return general | {
            key.split(".")[1]: v
            for key, v in self.grid
            if key.split(".")[0] == method and "." in key
        }


@dataclass(frozen=True)
class Arm:
    """A method, and its radius if each radius gets its own result."""

    method: str
    rho: float | None

    def __str__(self) -> str:
        return self.method if self.rho is None else f"{self.method}, rho {self.rho:g}"


@dataclass(frozen=True)
class StudyRun:
    """One training of a study."""

    study: Study
    method: str
    settings: Mapping[str, Any]
    seed: int

    @property
    def searches(self) -> bool:
        """Whether it is a search run, which never sees the test data."""
        return self.seed in TUNING_SEEDS

    @property
    def rho(self) -> float:
        """The radius used in training."""
        return float(self.settings.get("rho", self.study.score_rho))

    @property
    def max_grad_norm(self) -> float | None:
        """The bound on the norm of each gradient, searched or the study's; None for no bound."""
        return float(self.settings.get(BOUND, self.study.max_grad_norm)) or None

    @property
    def scored_at(self) -> float:
        """The radius of the reported robust objective: the arm's, or the study's if arms are compared at one."""
        own = "rho" in REGISTRY[self.method].needs and not self.study.choose_rho
        return self.rho if own else self.study.score_rho

    @property
    def length(self) -> Study:
        """The study with this run's number of epochs; lr falls at the same share of them."""
        study = self.study
        if not self.searches or not study.tune_epochs:
            return study
        decay = round(study.decay_epoch * study.tune_epochs / study.epochs)
        return replace(study, epochs=study.tune_epochs, decay_epoch=decay, points=1)

    @property
    def path(self) -> Path:
        """The run's folder, relative to the study's; different settings have different folders."""
        settings = "_".join(
            f"{key}-{self._named(key, value)}" for key, value in sorted(self.settings.items())
        )
        return Path(self.method) / settings / f"seed-{self.seed}"

    def _named(self, key: str, value: float) -> str:
        """Six digits if they are exact, or if it is the only radius; else all digits."""
        short = f"{value:g}"
        return (
            short
            if float(short) == value or (key == "rho" and len(self.study.rho) == 1)
            else repr(float(value))
        )

    def identity(self, data: str) -> dict[str, Any]:
        """Everything the result depends on, including the fingerprint of the data."""
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
