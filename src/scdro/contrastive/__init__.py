"""Contrastive learning in which each anchor finds its own temperature, as the worst case over its negatives."""

from scdro.contrastive.loss import RobustContrastiveLoss
from scdro.contrastive.temperatures import FixedTemperatures, NewtonTemperatures, PrintedTemperatures

__all__ = ["FixedTemperatures", "NewtonTemperatures", "PrintedTemperatures", "RobustContrastiveLoss"]
