"""Data for training: imbalance, splits, samples with their index or their weight."""

from scdro.data.imbalance import imbalanced, keep_last, labels_of, step_imbalance
from scdro.data.indexed import Indexed
from scdro.data.split import hold_out
from scdro.data.weighted import Weighted, WeightedSampler

__all__ = [
    "Indexed",
    "Weighted",
    "WeightedSampler",
    "hold_out",
    "imbalanced",
    "keep_last",
    "labels_of",
    "step_imbalance",
]
