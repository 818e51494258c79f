"""Linear models for the worst case as scikit-learn estimators, with a fast exact solver and the stochastic ones."""

from scdro.linear_model._classifier import KLDROClassifier
from scdro.linear_model._regressor import KLDRORegressor

__all__ = ["KLDROClassifier", "KLDRORegressor"]
