"""Data sets of the experiments, any data set made imbalanced, and batches that depend on a seed alone."""

from scdro.data.augment import CropFlip, crop_flip
from scdro.data.cifar import CIFAR10, CIFAR10ST, CIFAR100, CIFAR100ST, CIFAR100Hidden
from scdro.data.digits import DigitsHidden, DigitsST
from scdro.data.files import data_folder
from scdro.data.image_files import ImageFiles
from scdro.data.images import ImageData
from scdro.data.imbalance import imbalanced, keep_last, labels_of, step_imbalance
from scdro.data.indexed import Indexed
from scdro.data.lists import ImageNetLT, LongTailList, PlacesLT, Size, iNaturalist18
from scdro.data.loading import Batches, MemoryBatches, WorkerBatches
from scdro.data.memory import Rows
from scdro.data.split import hold_out
from scdro.data.tabular import Table, adult, census_income, covertype
from scdro.data.transforms import EvalTransform, TrainTransform

__all__ = [
    "CIFAR10",
    "CIFAR10ST",
    "CIFAR100",
    "CIFAR100ST",
    "Batches",
    "CIFAR100Hidden",
    "CropFlip",
    "DigitsHidden",
    "DigitsST",
    "EvalTransform",
    "ImageData",
    "ImageFiles",
    "ImageNetLT",
    "Indexed",
    "LongTailList",
    "MemoryBatches",
    "PlacesLT",
    "Rows",
    "Size",
    "Table",
    "TrainTransform",
    "WorkerBatches",
    "adult",
    "census_income",
    "covertype",
    "crop_flip",
    "data_folder",
    "hold_out",
    "iNaturalist18",
    "imbalanced",
    "keep_last",
    "labels_of",
    "step_imbalance",
]
