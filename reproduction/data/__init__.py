"""The data sets of the experiments."""

from reproduction.data.cifar import CIFAR10, CIFAR10ST, CIFAR100, CIFAR100ST, CIFAR100Hidden
from reproduction.data.digits import DigitsHidden, DigitsST
from reproduction.data.files import data_folder
from reproduction.data.lists import ImageNetLT, LongTailList, PlacesLT, Size, iNaturalist18
from reproduction.data.tabular import Table, adult, census_income, covertype
from reproduction.data.transforms import TrainTransform

__all__ = [
    "CIFAR10",
    "CIFAR10ST",
    "CIFAR100",
    "CIFAR100ST",
    "CIFAR100Hidden",
    "DigitsHidden",
    "DigitsST",
    "ImageNetLT",
    "LongTailList",
    "PlacesLT",
    "Size",
    "Table",
    "TrainTransform",
    "adult",
    "census_income",
    "covertype",
    "data_folder",
    "iNaturalist18",
]
