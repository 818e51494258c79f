"""Samples come as often as their weights say; the order depends on seed and epoch only."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from scdro import second_look_weights
from scdro.data import Weighted, WeightedSampler
from scdro.errors import HyperparameterError, LossError
from scdro.functional import class_balanced_weights


def test_frequencies_are_the_weights():
    weights = np.array([0.0, 1.0, 2.0, 5.0])
    n = 20_000
    counts = np.bincount(list(WeightedSampler(weights, n)), minlength=4)
    expected = n * weights / weights.sum()
    assert counts[0] == 0
    assert (
        (counts - expected)[1:] ** 2 / expected[1:]
    ).sum() < 13.8  # chi-square with two degrees, 0.1%


def test_second_look_weights_as_a_sampler():
    proba = torch.cat([torch.full((80,), 0.9), torch.full((20,), 0.1)])
    drawn = list(WeightedSampler(second_look_weights(proba, torch.zeros(100)), 4000))
    assert (
        0.46 < np.mean(np.array(drawn) >= 80) < 0.54
    )  # the half rule: a mean probability of one half


def test_the_same_epoch_is_the_same_and_the_next_is_another():
    sampler = WeightedSampler(np.ones(50), seed=3)
    first, second = list(sampler), list(sampler)
    assert first != second
    resumed = WeightedSampler(np.ones(50), seed=3)
    resumed.set_epoch(1)
    assert list(resumed) == second
    assert list(WeightedSampler(np.ones(50), seed=4)) != first


def test_without_replacement():
    drawn = list(WeightedSampler([1.0, 0.0, 3.0], 2, replacement=False))
    assert sorted(drawn) == [0, 2]
    with pytest.raises(HyperparameterError, match="2"):
        WeightedSampler([1.0, 0.0, 3.0], replacement=False)


def test_a_column():
    weights = class_balanced_weights([3, 1])[torch.tensor([0, 0, 0, 1])]
    data = TensorDataset(torch.arange(4.0), torch.tensor([0, 0, 0, 1]))
    _, y, weight = next(iter(DataLoader(Weighted(data, weights), batch_size=4)))
    assert float(weight[y == 0].sum()) == pytest.approx(float(weight[y == 1].sum()))
    rows = [{"x": 1.0}, {"x": 2.0}]
    assert Weighted(rows, [1.0, 3.0])[1] == {"x": 2.0, "weight": torch.tensor(3.0)}


@pytest.mark.parametrize(
    "weights", [[], [[1.0]], [0.0, 0.0], [1.0, -1.0], [1.0, np.nan], [np.inf, 1.0]]
)
def test_wrong_weights(weights):
    with pytest.raises(LossError):
        WeightedSampler(weights)


@pytest.mark.parametrize("weights", [3, None, torch.tensor(1.0)])
def test_one_weight_for_all(weights):
    with pytest.raises(LossError, match=r"one per sample, got .*shuffle=True"):
        WeightedSampler(weights)


def test_wrong_numbers():
    with pytest.raises(LossError, match="2"):
        Weighted(TensorDataset(torch.zeros(2)), [1.0])
    for size in (0, True, 2.0):
        with pytest.raises(HyperparameterError):
            WeightedSampler([1.0], size)
