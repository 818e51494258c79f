"""Exact counts on the real files, where they are: in $SCDRO_DATA, or in shared/data beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from reproduction.data import (
    CIFAR10,
    CIFAR10ST,
    CIFAR100,
    CIFAR100ST,
    CIFAR100Hidden,
    ImageNetLT,
    PlacesLT,
    adult,
    census_income,
    covertype,
    iNaturalist18,
)

pytestmark = pytest.mark.realdata
PLACES = [Path(os.environ.get("SCDRO_DATA", "data")), Path(__file__).parents[2] / "shared" / "data"]


def folder_with(name):
    for place in PLACES:
        if (place / name).exists():
            return place
    pytest.skip(f"no {name} in {' or '.join(map(str, PLACES))}")
    return None


def test_cifar10_st():
    root = folder_with("cifar-10-batches-py")
    whole, train, test = CIFAR10(root), CIFAR10ST(root), CIFAR10ST(root, train=False)
    assert len(train) == 25_500
    assert train.counts.tolist() == [100] * 5 + [5000] * 5
    assert test.counts.tolist() == [1000] * 10
    for label in range(5):
        own = torch.nonzero(whole.labels == label).flatten()
        assert train.positions[train.labels == label].tolist() == own[-100:].tolist()
    assert torch.equal(train.images, whole.images[train.positions])
    mean = whole.images.double().mean((0, 2, 3)) / 255
    np.testing.assert_allclose(mean, whole.mean, atol=1e-4)


def test_cifar100_st_and_hidden():
    root = folder_with("cifar-100-python")
    whole, train = CIFAR100(root), CIFAR100ST(root)
    assert len(train) == 30_000
    assert train.counts.tolist() == [100] * 50 + [500] * 50
    assert CIFAR100ST(root, train=False).counts.tolist() == [100] * 100
    np.testing.assert_allclose(whole.images.double().mean((0, 2, 3)) / 255, whole.mean, atol=1e-4)
    hidden = CIFAR100Hidden(root)
    assert len(hidden) == 32_000
    assert hidden.counts.tolist() == [1600] * 20
    fine = torch.bincount(hidden.groups)
    assert sorted(fine.tolist()) == [50] * 40 + [500] * 60
    for superclass in range(20):
        assert sorted(fine[hidden.groups[hidden.labels == superclass].unique()].tolist()) == [
            50,
            50,
            500,
            500,
            500,
        ]


@pytest.mark.parametrize(
    ("preset", "split", "lines", "classes"),
    [
        (ImageNetLT, "val", 20_000, 1000),
        (ImageNetLT, "test", 50_000, 1000),
        (PlacesLT, "train", 62_500, 365),
        (PlacesLT, "val", 7_300, 365),
        (PlacesLT, "test", 36_500, 365),
        (iNaturalist18, "val", 24_426, 8142),
    ],
)
def test_lists(preset, split, lines, classes):
    data = preset(folder_with("lists") / "lists", split)
    assert len(data) == len(set(data.paths)) == lines
    assert len(data.counts) == classes
    assert int(data.counts.min()) > 0


def test_adult():
    root = folder_with("tabular") / "tabular"
    train, test = adult(root)
    assert (len(train.y), train.y.sum(), len(test.y), test.y.sum()) == (
        32_561,
        7_841,
        16_281,
        3_846,
    )
    assert len(np.unique(train.groups, axis=0)) == 10


@pytest.mark.slow
def test_large_tables():
    root = folder_with("tabular") / "tabular"
    train, test = census_income(root)
    assert (len(train.y), len(test.y)) == (199_523, 99_762)
    assert train.y.mean() == pytest.approx(0.062, abs=5e-4)
    X, y, groups, _ = covertype(root)
    assert X.shape == (581_012, 54)
    assert np.bincount(y).max() == 283_301
    assert np.bincount(y).min() == 2_747
    assert len(np.unique(groups)) == 4
