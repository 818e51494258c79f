"""Data in memory: what they take, and what they refuse."""

import numpy as np
import pytest
import torch

from reproduction.data.images import ImageData
from reproduction.data.memory import Rows
from scdro.errors import DataError


def test_image_data_takes_arrays_and_refuses_what_it_cannot_normalise():
    pixels = np.zeros((3, 3, 4, 4), np.uint8)
    about = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "names": ("a", "b")}
    data = ImageData(pixels, np.array([0, 1, 1], np.int32), **about)
    tensors = ImageData(torch.from_numpy(pixels), torch.tensor([0, 1, 1]), **about)
    assert data.fingerprint() == tensors.fingerprint()
    assert data.subset([2, 0]).labels.tolist() == [1, 0]
    for index in ([3], [-1], [True, False, True], [0.0]):
        with pytest.raises(DataError, match="positions"):
            data.subset(index)
    for bad in ({"std": (0.0, 1.0, 1.0)}, {"mean": (0.5, np.nan, 0.5)}, {"std": (1.0,)}):
        with pytest.raises(DataError, match="deviations > 0"):
            ImageData(pixels, [0, 1, 1], **about | bad)
    with pytest.raises(DataError, match="images"):
        ImageData(None, [0, 1, 1], **about)
    with pytest.raises(DataError, match="expected 3 labels"):
        ImageData(pixels, [0, 1], **about)


def test_rows_are_finite_numbers():
    with pytest.raises(DataError, match=r"finite.*NaN"):
        Rows(torch.tensor([[1.0], [torch.nan]]), [0, 1], names=["a", "b"])
