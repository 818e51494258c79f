"""Imbalance and splits: exact counts, the last by the order of the data set."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from scdro.data import Indexed, hold_out, imbalanced, keep_last, labels_of, step_imbalance
from scdro.errors import DataError, HyperparameterError


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=40),
    st.lists(st.integers(0, 6), min_size=5, max_size=5),
)
def test_keep_last_by_going_backwards(labels, counts):
    counts = [min(c, labels.count(k)) for k, c in enumerate(counts)]
    left, expected = list(counts), []
    for i in reversed(range(len(labels))):
        if left[labels[i]]:
            left[labels[i]] -= 1
            expected.insert(0, i)
    assert keep_last(labels, counts).tolist() == expected


def test_step_imbalance_cuts_the_first_half_or_the_classes_named():
    labels = torch.arange(6).repeat(10)
    assert torch.bincount(labels[step_imbalance(labels, keep=3)]).tolist() == [3, 3, 3, 10, 10, 10]
    assert torch.bincount(
        labels[step_imbalance(labels, minority=[5], keep=0)], minlength=6
    ).tolist() == [10] * 5 + [0]


@pytest.mark.parametrize("counts", [{0: 4}, {0: -1}, {7: 1}])
def test_more_than_there_are_is_an_error(counts):
    with pytest.raises(
        HyperparameterError,
        match=r"class (0 to keep from 0 to 3|7 to keep from 0 to 0).*got (4|-1|1)",
    ):
        keep_last([0, 0, 0, 1], counts)


class Plain(Dataset):
    """Labels only in its items."""

    def __init__(self, labels):
        self.hidden = labels

    def __len__(self):
        return len(self.hidden)

    def __getitem__(self, i):
        return torch.zeros(1), self.hidden[i]


def test_imbalanced_takes_any_labelled_data_set():
    labels = [0, 1, 0, 1, 0]
    targets = Plain([9] * 5)
    targets.targets = labels
    for data in (Plain(labels), targets, TensorDataset(torch.randn(5, 2), torch.tensor(labels))):
        part = imbalanced(data, {0: 1})
        assert isinstance(part, Subset)
        assert part.indices == [1, 3, 4]
        assert labels_of(part).tolist() == [1, 1, 0]


class Divisible(Plain):
    """Makes its own parts."""

    def subset(self, index):
        return Divisible([self.hidden[i] for i in index])


def test_a_part_has_the_type_of_a_data_set_with_subset():
    part = imbalanced(Divisible([0, 1, 0, 1, 0]), {0: 1})
    assert isinstance(part, Divisible)
    assert part.hidden == [1, 1, 0]


def test_items_carry_their_index():
    data = TensorDataset(torch.arange(7.0), torch.arange(7) % 2)
    for x, y, index in DataLoader(Indexed(data), batch_size=3, shuffle=True):
        assert torch.equal(x, index.float())
        assert torch.equal(y, index % 2)


def test_importing_scdro_imports_none_of_this():
    code = (
        "import scdro, sys; print([m for m in sys.modules if m.split('.')[:2] in (%s)]); scdro.data"
    )
    names = ", ".join(str(["scdro", part]) for part in ("data", "cli", "application"))
    result = subprocess.run(
        [sys.executable, "-c", code % names], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "labels",
    [
        [[0], [0], [0], [1]],
        [],
        ["a", "b"],
        [0.0, 1.0],
        torch.zeros(3, 1, dtype=torch.int64),
        [[0], [1, 2]],
        3,
        [None],
    ],
)
def test_labels_are_a_vector_of_integers(labels):
    for call in (
        lambda: keep_last(labels, {}),
        lambda: step_imbalance(labels, keep=0),
        lambda: hold_out(labels, 2),
    ):
        with pytest.raises(DataError, match="labels"):
            call()


def test_labels_come_in_many_kinds():
    values = [0, 1, 0, 1, 0]
    series = pandas.Series(values, index=[7, 6, 5, 4, 3])
    for labels in (
        values,
        tuple(values),
        np.array(values, np.uint8),
        torch.tensor(values, dtype=torch.int16),
        series,
    ):
        assert keep_last(labels, {0: 1}).tolist() == [1, 3, 4]
        assert step_imbalance(labels, keep=1).tolist() == [1, 3, 4]
    with pytest.raises(HyperparameterError, match=r"whole number.*got 1\.0"):
        step_imbalance(values, keep=1.0)
    with pytest.raises(HyperparameterError, match=r"class.*whole number.*got '0'"):
        keep_last(values, {"0": 1})


def test_negative_labels():
    """To keep, they are classes like others; held out, every class needs a number from 0 on."""
    assert keep_last([-1, 0, -1, 0], {-1: 1}).tolist() == [1, 2, 3]
    with pytest.raises(DataError, match=r"labels >= 0, got -1; drop"):
        hold_out([0, -1, 1], 2)


def test_labels_of_items_are_their_second_entry():
    y, w = torch.tensor([0, 1, 0]), torch.tensor([5, 6, 7])
    assert labels_of(TensorDataset(torch.zeros(3, 2), y, w)).tolist() == [0, 1, 0]
    assert labels_of(Plain(list(y))).tolist() == [0, 1, 0]
    for floats in (TensorDataset(y, y.float()), Plain([0.0, 1.0, 0.0]), Plain(list(y.double()))):
        assert labels_of(floats).tolist() == [0, 1, 0]
    for wrong in (TensorDataset(y), Plain([0.5, 1.0]), Plain(["a"])):
        with pytest.raises(DataError):
            labels_of(wrong)


@pytest.mark.parametrize("every", [2, 3, 5])
def test_hold_out_takes_the_same_share_of_each_class(every):
    labels = torch.from_numpy(np.random.default_rng(every).integers(4, size=101))
    stays, aside = hold_out(labels, every)
    assert sorted([*stays.tolist(), *aside.tolist()]) == list(range(101))
    for c in range(4):
        own = torch.nonzero(labels == c)[:, 0].tolist()
        assert [i for i in own if i in set(aside.tolist())] == own[every - 1 :: every]
