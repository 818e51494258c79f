"""From a study to data in three parts."""

import pytest

from reproduction.tasks import Sources, open_task
from scdro.errors import MissingDataError


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
