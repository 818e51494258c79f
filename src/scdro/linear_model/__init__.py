"""Linear models on the worst case, as scikit-learn estimators: exact and fast, or by the stochastic algorithms."""

from scdro.linear_model._classifier import KLDROClassifier
from scdro.linear_model._regressor import KLDRORegressor

__all__ = ["KLDROClassifier", "KLDRORegressor"]
