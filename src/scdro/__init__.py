"""scdro: train models on the worst case instead of the average.

KL-constrained distributionally robust optimization for PyTorch: min over w of the largest weighted
loss over all reweightings of the data within KL distance rho. Here are the names most programs
need; the rest is in the modules: `scdro.optim`, `scdro.functional`, `scdro.metrics`,
`scdro.linear_model`, `scdro.temperature`, `scdro.errors`, ...
"""

import importlib
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scdro import auditing as auditing
    from scdro import boosting as boosting
    from scdro import contrastive as contrastive
    from scdro import data as data
    from scdro import distributed as distributed
    from scdro import errors as errors
    from scdro import evaluation as evaluation
    from scdro import fix as fix
    from scdro import functional as functional
    from scdro import linear_model as linear_model
    from scdro import loss as loss
    from scdro import metrics as metrics
    from scdro import optim as optim
    from scdro import second_look as second_look
    from scdro import tables as tables
    from scdro import temperature as temperature
    from scdro.auditing import audit
    from scdro.errors import ScdroError, ScdroWarning
    from scdro.evaluation import evaluate
    from scdro.functional import rho_for_group, worst_case
    from scdro.loss import KLRobustLoss
    from scdro.optim import ASCDRO, RASCDRO, RSCDRO, SCDRO
    from scdro.second_look import SecondLook, find_slices, out_of_fold, repair, second_look_weights
    from scdro.tables import load

__version__ = "0.1.0"

# The library logs nothing unless the program asks for it.
logging.getLogger("scdro").addHandler(logging.NullHandler())

__all__ = [
    "ASCDRO",
    "RASCDRO",
    "RSCDRO",
    "SCDRO",
    "KLRobustLoss",
    "ScdroError",
    "ScdroWarning",
    "SecondLook",
    "audit",
    "evaluate",
    "find_slices",
    "load",
    "out_of_fold",
    "repair",
    "rho_for_group",
    "second_look_weights",
    "worst_case",
]

# The module of each public name. Names are imported on first use: `import scdro` loads neither
# torch nor scikit-learn.
_HOMES = {
    "ASCDRO": "optim",
    "RASCDRO": "optim",
    "RSCDRO": "optim",
    "SCDRO": "optim",
    "KLRobustLoss": "loss",
    "ScdroError": "errors",
    "ScdroWarning": "errors",
    "SecondLook": "second_look",
    "audit": "auditing",
    "evaluate": "evaluation",
    "find_slices": "second_look",
    "load": "tables",
    "out_of_fold": "second_look",
    "repair": "second_look",
    "rho_for_group": "functional",
    "second_look_weights": "second_look",
    "worst_case": "functional",
}
_MODULES = (
    "auditing",
    "boosting",
    "contrastive",
    "data",
    "distributed",
    "errors",
    "evaluation",
    "fix",
    "functional",
    "linear_model",
    "loss",
    "metrics",
    "optim",
    "printed",
    "second_look",
    "tables",
    "temperature",
)


if not TYPE_CHECKING:  # a type checker would take every name for known

    def __getattr__(name):
        if name not in _HOMES and name not in _MODULES:
            raise AttributeError(f"module 'scdro' has no attribute {name!r}")
        try:
            module = importlib.import_module(f"scdro.{_HOMES.get(name, name)}")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(
                f"scdro.{name} needs torch, which is not installed: pip install torch"
                " (scdro.audit of predictions works without)",
                name="torch",
            ) from error
        if name in _HOMES:
            value = globals()[name] = getattr(module, name)
            return value
        return module


def __dir__() -> list[str]:
    return [*__all__, *_MODULES, "__version__"]
