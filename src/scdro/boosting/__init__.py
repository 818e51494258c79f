"""Boosted trees on the worst case: LightGBM's and XGBoost's own estimators, with a radius rho.

Before every round:

    l  =  losses of the training rows under the trees so far             (_losses)
    p  =  argmax_{KL(p, q) <= rho} sum_i p_i l_i                         (_round_weights)
    the library grows its next tree with the weights w_i p_i/q_i         (_lightgbm, _xgboost)

Gradients and Hessians of the tree are then those of the robust value at fixed p, which by the
envelope theorem is its gradient. `_metric` has the robust value as a metric for early stopping.

Names are imported on first use, so the names of one library do not need the other.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scdro.boosting._lightgbm import (
        KLDROLGBMClassifier,
        KLDROLGBMRegressor,
        LightGBMWorstCase,
        lightgbm_metric,
        lightgbm_objective,
    )
    from scdro.boosting._xgboost import (
        KLDROXGBClassifier,
        KLDROXGBRegressor,
        XGBoostWorstCase,
        xgboost_metric,
        xgboost_objective,
    )

__all__ = [
    "KLDROLGBMClassifier",
    "KLDROLGBMRegressor",
    "KLDROXGBClassifier",
    "KLDROXGBRegressor",
    "LightGBMWorstCase",
    "XGBoostWorstCase",
    "lightgbm_metric",
    "lightgbm_objective",
    "xgboost_metric",
    "xgboost_objective",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'scdro.boosting' has no attribute {name!r}")
    library = "xgboost" if "xgb" in name.lower() else "lightgbm"
    try:
        module = importlib.import_module(f"scdro.boosting._{library}")
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise ModuleNotFoundError(
            f"expected {library} to be installed, which {name} needs; pip install"
            f" 'scdro[{library}]'",
            name=library,
        ) from error
    value = globals()[name] = getattr(module, name)
    return value
