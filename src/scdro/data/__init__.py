"""Data for training: imbalance, splits, samples with their index, and batches that depend only on a seed."""

from scdro.data.augment import CropFlip, crop_flip
from scdro.data.image_files import ImageFiles
from scdro.data.images import ImageData
from scdro.data.imbalance import imbalanced, keep_last, labels_of, step_imbalance
from scdro.data.indexed import Indexed
from scdro.data.loading import Batches, MemoryBatches, WorkerBatches
from scdro.data.memory import Rows
from scdro.data.split import hold_out
from scdro.data.transforms import EvalTransform
from scdro.data.weighted import Weighted, WeightedSampler

__all__ = [
    "Batches",
    "CropFlip",
    "EvalTransform",
    "ImageData",
    "ImageFiles",
    "Indexed",
    "MemoryBatches",
    "Rows",
    "Weighted",
    "WeightedSampler",
    "WorkerBatches",
    "crop_flip",
    "hold_out",
    "imbalanced",
    "keep_last",
    "labels_of",
    "step_imbalance",
]
