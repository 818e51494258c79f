"""Data for training: imbalance, splits, samples with their index or their weight.

Everything here works on any map-style data set whose items are (input, label, ...) or dictionaries
with labels; nothing is copied. Orders are those of the data set, so a result depends on nothing
random but what a seed says.
"""

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
