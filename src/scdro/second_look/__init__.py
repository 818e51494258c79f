"""Find the group that a model fails, describe it, and fix the model: without group labels."""

from scdro.second_look._estimator import SecondLook
from scdro.second_look._folds import out_of_fold
from scdro.second_look._gallery import Gallery, gallery
from scdro.second_look._repair import HeadScores, Repaired, repair
from scdro.second_look._slices import Slice, Slices, find_slices
from scdro.second_look._verdict import Verdict
from scdro.second_look._weights import second_look_weights

__all__ = [
    "Gallery",
    "HeadScores",
    "Repaired",
    "SecondLook",
    "Slice",
    "Slices",
    "Verdict",
    "find_slices",
    "gallery",
    "out_of_fold",
    "repair",
    "second_look_weights",
]
