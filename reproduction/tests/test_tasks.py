"""From a study to data in three parts."""

import numpy as np
import pytest
import torch

from reproduction.data.images import ImageData
from reproduction.tasks import Sources, open_task, pooled
from scdro.errors import DataError, MissingDataError


def test_the_parts_of_a_task_do_not_overlap():
    hidden = open_task("features", "digits-hidden", 1, Sources())
    assert not set(hidden.train.positions.tolist()) & set(hidden.validation.positions.tolist())
    assert hidden.validation.counts.tolist() == [75, 76]  # as imbalanced as training
    plain = open_task("images", "digits-st", 1, Sources())
    assert not set(plain.test.positions.tolist()) & set(plain.validation.positions.tolist())
    assert len(plain.test) + len(plain.validation) == 596


def test_missing_features_say_how_to_get_them(tmp_path):
    with pytest.raises(MissingDataError, match="reproduction pretrain cifar10-st"):
        open_task("features", "cifar10-st", 1, Sources(tmp_path))


def test_pooled_images_are_means_of_squares():
    images = torch.from_numpy(
        np.random.default_rng(0).integers(256, size=(3, 3, 4, 6), dtype=np.uint8)
    )
    data = ImageData(
        images, torch.zeros(3, dtype=torch.int64), mean=(0.5,) * 3, std=(0.5,) * 3, names="a"
    )
    expected = images.double().reshape(3, 3, 2, 2, 3, 2).mean((3, 5))
    assert (pooled(data, 2).images.double() - expected).abs().max() <= 0.5
    with pytest.raises(DataError, match="factor"):
        pooled(data, 4)
