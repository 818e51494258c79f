"""scdro: train models on the worst case instead of the average.

KL-constrained distributionally robust optimization for PyTorch: min over w of the largest weighted loss over all
reweightings of the data within KL distance rho.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scdro.errors import (
        CheckpointError,
        ClosureError,
        DataError,
        HyperparameterError,
        LossError,
        MissingDataError,
        NonFiniteLossError,
        ScdroError,
        ScdroWarning,
    )
    from scdro.evaluation import Evaluation, evaluate
    from scdro.functional import WorstCase, objective, rho_for_confidence, rho_for_group, worst_case
    from scdro.loss import KLRobustLoss
    from scdro.optim import ASCDRO, RASCDRO, RSCDRO, SCDRO, Stage, decay_stages, factor_stages, lemma_stages
    from scdro.temperature import MovingAverage, NormalizedStorm, PrintedTemperature, Storm, WindowTemperature

__version__ = "0.1.0"

__all__ = [
    "ASCDRO",
    "RASCDRO",
    "RSCDRO",
    "SCDRO",
    "CheckpointError",
    "ClosureError",
    "DataError",
    "Evaluation",
    "HyperparameterError",
    "KLRobustLoss",
    "LossError",
    "MissingDataError",
    "MovingAverage",
    "NonFiniteLossError",
    "NormalizedStorm",
    "PrintedTemperature",
    "ScdroError",
    "ScdroWarning",
    "Stage",
    "Storm",
    "WindowTemperature",
    "WorstCase",
    "decay_stages",
    "evaluate",
    "factor_stages",
    "lemma_stages",
    "objective",
    "rho_for_confidence",
    "rho_for_group",
    "worst_case",
]


# Where each name lives. They are imported when first asked for: `import scdro` loads neither torch nor scikit-learn.
_NAMES = {
    "errors": (
        "CheckpointError",
        "ClosureError",
        "DataError",
        "HyperparameterError",
        "LossError",
        "MissingDataError",
        "NonFiniteLossError",
        "ScdroError",
        "ScdroWarning",
    ),
    "evaluation": (
        "Evaluation",
        "evaluate",
    ),
    "functional": (
        "WorstCase",
        "objective",
        "rho_for_confidence",
        "rho_for_group",
        "worst_case",
    ),
    "loss": ("KLRobustLoss",),
    "optim": (
        "ASCDRO",
        "RASCDRO",
        "RSCDRO",
        "SCDRO",
        "Stage",
        "decay_stages",
        "factor_stages",
        "lemma_stages",
    ),
    "temperature": (
        "MovingAverage",
        "NormalizedStorm",
        "PrintedTemperature",
        "Storm",
        "WindowTemperature",
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = (*_NAMES, "boosting", "contrastive", "data", "distributed", "linear_model", "metrics")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(f"scdro.{_HOMES[name]}"), name)
        return value
    if name in _MODULES:
        return importlib.import_module(f"scdro.{name}")
    raise AttributeError(f"module 'scdro' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
