"""Find the group that a model fails, describe it, and fix the model: without group labels."""

from scdro.fix import Verdict, out_of_fold, second_look_weights
from scdro.second_look._estimator import SecondLook
from scdro.second_look._gallery import Gallery, gallery
from scdro.second_look._repair import HeadScores, Repaired, repair
from scdro.second_look._slices import Members, Slice, Slices, find_slices

__all__ = [
    "Gallery",
    "HeadScores",
    "Members",
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
