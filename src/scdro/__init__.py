"""scdro: train models on the worst case instead of the average.

KL-constrained distributionally robust optimization for PyTorch: min over w of the largest weighted loss over all
reweightings of the data within KL distance rho.
"""

from typing import Any

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


def __getattr__(name: str) -> Any:
    """Subpackages that not everybody needs, imported when first asked for: scikit-learn is slow to import."""
    if name in ("contrastive", "data", "linear_model", "metrics"):
        import importlib

        return importlib.import_module(f"scdro.{name}")
    raise AttributeError(f"module 'scdro' has no attribute {name!r}")
