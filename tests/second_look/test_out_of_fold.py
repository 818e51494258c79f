"""Predictions by networks, and estimators, that have not seen the sample."""

import numpy as np
import pytest
import torch
from sklearn.model_selection import (
    GroupKFold,
    LeaveOneGroupOut,
    RepeatedStratifiedKFold,
    ShuffleSplit,
    StratifiedGroupKFold,
)
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from scdro.errors import DataError, HyperparameterError
from scdro.fix._folds import partitions
from scdro.second_look import out_of_fold


class Memory(nn.Module):
    """Sure of class 1 for inputs that it was trained on, of class 0 for others: shows who has seen what."""

    def __init__(self, subset):
        super().__init__()
        self.seen = {round(float(x)) for x, _ in subset}
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        known = torch.tensor([round(float(v)) in self.seen for v in x])
        return 50 * torch.stack([~known, known], 1).float() * self.scale


@pytest.mark.parametrize("folds", [2, 5])
def test_no_network_has_seen_the_sample(folds):
    y = torch.arange(60) % 3
    sizes = []

    def train(subset):
        sizes.append(len(subset))
        return Memory(subset)

    proba = out_of_fold(train, TensorDataset(torch.arange(60.0), y), folds=folds)
    assert proba[:, 1].max() < 1e-6
    assert sizes == [60 - 60 // folds] * folds


def test_modes_of_the_networks_are_put_back_and_evaluation_is_used():
    nets = []

    def train(subset):
        net = nn.Sequential(nn.Dropout(0.9), nn.Linear(4, 2)).train()
        nets.append(net)
        return net

    torch.manual_seed(0)
    x = torch.randn(40, 4)
    proba = out_of_fold(train, TensorDataset(x, torch.arange(40) % 2))
    assert all(net.training for net in nets)
    with torch.no_grad():
        by_linear = torch.stack([net[1](x).softmax(1) for net in nets])
    assert torch.minimum((proba - by_linear[0]).abs(), (proba - by_linear[1]).abs()).max() < 1e-6


class Plain(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, i):
        return torch.ones(3) * i, i % 2


def test_labels_are_read_from_any_data_set():
    proba = out_of_fold(lambda subset: nn.Linear(3, 2), Plain())
    assert proba.shape == (20, 2)
    given = out_of_fold(lambda subset: nn.Linear(3, 2), Plain(), labels=[i % 2 for i in range(20)])
    assert given.shape == (20, 2)


def test_bad_calls():
    with pytest.raises(HyperparameterError, match="folds"):
        out_of_fold(lambda subset: nn.Linear(3, 2), Plain(), folds=1)
    with pytest.raises(HyperparameterError, match="network"):
        out_of_fold(lambda subset: None, Plain())
    with pytest.raises(DataError, match="label"):
        out_of_fold(lambda subset: nn.Linear(3, 2), Plain(), labels=[0, 1])
    with pytest.raises(HyperparameterError, match=r"function.*Linear"):
        out_of_fold(nn.Linear(3, 2), Plain())
    x, y = torch.zeros(20, 3), torch.arange(20) % 2
    rows = [{"x": a, "kind": b} for a, b in zip(x, y, strict=True)]
    for bad, got in (
        (DataLoader(Plain()), "dataset"),
        ((x, y), "TensorDataset"),
        (rows, r"labels.*x, kind"),
        ([], "empty"),
    ):
        with pytest.raises(DataError, match=got):
            out_of_fold(lambda subset: nn.Linear(3, 2), bad)


def test_the_second_tensor_has_the_labels():
    """The last one, an index, was taken for the labels."""
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    found = out_of_fold(lambda _: network, TensorDataset(x, y, torch.arange(20)))
    assert torch.equal(found, out_of_fold(lambda _: network, TensorDataset(x, y)))


def test_a_network_that_has_diverged():
    network = nn.Linear(3, 2)
    nn.init.constant_(network.bias, torch.nan)
    with pytest.raises(DataError, match="NaN"):
        out_of_fold(lambda _: network, Plain())


def test_every_sample_is_tested_once_in_each_partition():
    y = np.repeat([0, 1, 2], [50, 30, 3])
    found = partitions(5, 3, y, y, None, 0, classifier=True)
    assert len(found) == 3
    for splits in found:
        assert sorted(np.concatenate([unseen for _, unseen in splits])) == list(range(83))
        for seen, unseen in splits:
            assert not set(seen) & set(unseen)
            assert len(np.unique(y[seen])) == 3
    assert not np.array_equal(found[0][0][1], found[1][0][1])


def test_a_class_with_one_member_is_always_seen():
    y = np.r_[np.zeros(20, int), np.ones(20, int), 2]
    for splits in partitions(5, 2, y, y, None, 0, classifier=True):
        assert all(40 in seen for seen, _ in splits)
        assert sorted(np.concatenate([unseen for _, unseen in splits])) == list(range(40))


def test_splitters_of_the_user():
    y = np.arange(40) % 2
    assert (
        len(partitions(RepeatedStratifiedKFold(n_splits=4, n_repeats=2), 9, y, y, None, 0, True))
        == 2
    )
    groups = np.arange(40) // 4
    (splits,) = partitions(GroupKFold(5), 1, y, y, groups, 0, True)
    assert all(not set(groups[seen]) & set(groups[unseen]) for seen, unseen in splits)
    (splits,) = partitions(ShuffleSplit(3, random_state=0), 1, y, y, None, 0, True)  # no partition
    assert len(splits) == 3
    with pytest.raises(HyperparameterError, match="folds"):
        partitions(1, 1, y, y, None, 0, True)


class WithLogits(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return {"loss": None, "logits": self.network(x)}


def test_logits_probabilities_outputs_and_one_number_say_the_same():
    x = torch.linspace(-1, 1, 40, dtype=torch.float32)[:, None]
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    two, one = nn.Linear(1, 2), nn.Linear(1, 1)
    with torch.no_grad():
        two.weight.copy_(torch.tensor([[-2.0], [2.0]])), two.bias.zero_()
        one.weight.fill_(4.0), one.bias.zero_()
    expected = two(x).softmax(1).detach()
    for network in (
        two,
        nn.Sequential(two, nn.Softmax(1)),
        WithLogits(two),
        one,
        nn.Sequential(one, nn.Sigmoid()),
    ):
        torch.testing.assert_close(out_of_fold(lambda _, network=network: network, data), expected)


def test_outputs_that_are_no_classes():
    data = torch.utils.data.TensorDataset(torch.zeros(10, 1), torch.arange(10) % 2)
    with pytest.raises(DataError, match="shape"):
        out_of_fold(lambda _: nn.Unflatten(1, (1, 1)), data)
    with pytest.raises(DataError, match=r"shape \(10,\)"):
        out_of_fold(lambda _: nn.Sequential(nn.Linear(1, 2), nn.Flatten(0)), data)


def test_a_class_with_one_sample():
    """Its only sample would have no network that has seen the class."""
    y = torch.tensor([0, 1] * 10 + [7])
    data = TensorDataset(torch.zeros(21, 3), y)
    with pytest.raises(DataError, match=r"two samples.*class 7.*labels="):
        out_of_fold(lambda _: nn.Linear(3, 8), data)
    assert out_of_fold(lambda _: nn.Linear(3, 8), data, labels=y.clamp(max=1)).shape == (21, 8)
    with pytest.raises(DataError, match=r"two samples.*and 15 more"):
        out_of_fold(
            lambda _: nn.Linear(3, 2),
            TensorDataset(torch.zeros(20, 3), y[:20]),
            labels=torch.rand(20),
        )


def test_labels_as_floats_and_names():
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    torch.manual_seed(0)
    network = nn.Linear(3, 1)
    expected = out_of_fold(lambda _: network, TensorDataset(x, y))
    for labels in (None, y.float(), y + 0.5, ["no", "yes"] * 10):
        assert torch.equal(
            out_of_fold(lambda _: network, TensorDataset(x, y.float()), labels=labels), expected
        )
    with pytest.raises(DataError, match="integers"):
        out_of_fold(lambda _: network, TensorDataset(x, torch.rand(20)))
    for missing in ([*[0.0, 1.0] * 9, np.nan, np.nan], [*["a", "b"] * 9, None, None]):
        with pytest.raises(DataError, match="missing"):
            out_of_fold(lambda _: network, TensorDataset(x, y), labels=missing)


@pytest.mark.parametrize("bad", [0, -1, 2.5, "all"])
def test_bad_batch_sizes(bad):
    with pytest.raises(HyperparameterError, match="batch_size"):
        out_of_fold(lambda _: nn.Linear(3, 2), Plain(), batch_size=bad)


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, inputs):
        return self.linear(inputs[0] + inputs[1])


def test_inputs_of_several_parts():
    x, other, y = torch.randn(20, 3), torch.randn(20, 3), torch.arange(20) % 2
    network = Both()
    found = out_of_fold(lambda _: network, [((x[i], other[i]), int(y[i])) for i in range(20)])
    torch.testing.assert_close(found, network((x, other)).softmax(1).detach())


@pytest.mark.parametrize("cv", [5, None, np.int64(5), True])
def test_groups_need_a_splitter_that_uses_them(cv):
    y = np.arange(60) % 2
    with pytest.raises(HyperparameterError, match=r"uses groups.*cv=.*GroupKFold\(5\)") as caught:
        partitions(cv, 1, y, y, np.arange(60) // 3, 0, True)
    assert "SecondLook" not in str(caught.value)
    for known in (np.arange(60) // 30, ["few", None] * 30, np.where(y, np.nan, np.arange(60))):
        with pytest.raises(HyperparameterError, match=r"SecondLook\(groups="):
            partitions(cv, 1, y, y, known, 0, True)


@pytest.mark.parametrize("cv", [GroupKFold(3), StratifiedGroupKFold(3), LeaveOneGroupOut()])
def test_splitters_that_use_groups(cv):
    y, groups = np.arange(60) % 2, np.arange(60) // 10
    (splits,) = partitions(cv, 1, y, y, groups, 0, True)
    assert sorted(np.concatenate([unseen for _, unseen in splits])) == list(range(60))
    assert all(not set(groups[seen]) & set(groups[unseen]) for seen, unseen in splits)


def test_a_bool_is_no_number_of_folds():
    y = np.arange(40) % 2
    with pytest.raises(HyperparameterError, match="cv"):
        partitions(True, 1, y, y, None, 0, True)


@pytest.mark.parametrize("flat", [False, True])
def test_one_output_is_read_in_one_way_in_all_folds(flat):
    """In [0, 1] in one fold and not in the other: logits in both."""
    x = torch.linspace(0, 1, 40)[:, None]
    slopes = iter([1.0, 3.0])

    def train(subset):
        net = nn.Linear(1, 1)
        nn.init.constant_(net.weight, next(slopes))
        nn.init.zeros_(net.bias)
        return nn.Sequential(net, nn.Flatten(0)) if flat else net

    proba = out_of_fold(train, TensorDataset(x, torch.arange(40) % 2))
    logits = torch.logit(proba[:, 1])
    assert ((logits - x[:, 0]).abs() < 1e-5).sum() >= 20
    assert ((logits - 3 * x[:, 0]).abs() < 1e-5).sum() >= 20
