"""Imbalance and CIFAR: exact counts, the last by the order of the data set, and errors that say what is missing."""

from __future__ import annotations

import pickle
import subprocess
import sys
import types

import numpy as np
import pandas
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from cifar_files import dump, write_cifar10, write_cifar100
from scdro import DataError, MissingDataError
from scdro.data import (
    CIFAR10,
    CIFAR10ST,
    CIFAR100,
    CIFAR100ST,
    CIFAR100Hidden,
    ImageData,
    Indexed,
    hold_out,
    imbalanced,
    keep_last,
    labels_of,
    step_imbalance,
)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.lists(st.integers(0, 6), min_size=5, max_size=5))
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
    assert torch.bincount(labels[step_imbalance(labels, minority=[5], keep=0)], minlength=6).tolist() == [10] * 5 + [0]


@pytest.mark.parametrize("counts", [{0: 4}, {0: -1}, {7: 1}])
def test_more_than_there_are_is_an_error(counts):
    with pytest.raises(DataError, match="samples of class"):
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


def test_cifar10_is_what_its_files_say(tmp_path):
    data, labels = write_cifar10(tmp_path)
    found = CIFAR10(tmp_path)
    assert np.array_equal(found.images.reshape(len(data), -1).numpy(), data)
    assert found.labels.tolist() == labels.tolist()
    assert found.names[3] == "cat"
    image, label = found[7]
    red = data[7].reshape(3, 32, 32)[0, 5, 6] / 255
    assert label == labels[7]
    assert image[0, 5, 6].item() == pytest.approx((red - 0.4914) / 0.2023, abs=1e-5)
    assert torch.equal(found[-1][0], found[len(data) - 1][0])
    assert len(CIFAR10(tmp_path / "cifar-10-batches-py", train=False)) == 100


def test_cifar10_st_keeps_the_last_of_the_first_five_classes(tmp_path):
    data, labels = write_cifar10(tmp_path)
    found = CIFAR10ST(tmp_path, keep=4)
    assert found.counts.tolist() == [4] * 5 + [30] * 5
    kept = [i for i, y in enumerate(labels) if y >= 5 or (labels[i + 1 :] == y).sum() < 4]
    assert found.positions.tolist() == kept
    assert np.array_equal(found.images.reshape(len(kept), -1).numpy(), data[kept])
    assert CIFAR10ST(tmp_path, train=False).counts.tolist() == [10] * 10


def test_cifar100_st_and_hidden(tmp_path):
    data, fine = write_cifar100(tmp_path)
    assert CIFAR100ST(tmp_path, keep=2).counts.tolist() == [2] * 50 + [8] * 50
    assert CIFAR100(tmp_path).groups is None
    hidden = CIFAR100Hidden(tmp_path, keep=3)
    assert hidden.rare == tuple(range(40))
    assert torch.bincount(hidden.groups).tolist() == [3] * 40 + [8] * 60
    assert hidden.counts.tolist() == [2 * 3 + 3 * 8] * 20
    assert torch.equal(hidden.labels, hidden.groups % 20)
    kept = [i for i, g in enumerate(fine) if g >= 40 or (fine[i + 1 :] == g).sum() < 3]
    assert hidden.positions.tolist() == kept
    assert np.array_equal(hidden.images.reshape(len(kept), -1).numpy(), data[kept])
    test = CIFAR100Hidden(tmp_path, train=False)
    assert len(test) == 200
    assert test.rare == hidden.rare


def test_a_missing_file_is_named_with_how_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(MissingDataError, match=r"data_batch_1.*cs\.toronto\.edu.*SCDRO_DATA"):
        CIFAR10(tmp_path)
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "cifar-10-batches-py" / "data_batch_4")):
        CIFAR10(tmp_path)
    monkeypatch.setenv("SCDRO_DATA", str(tmp_path))
    assert len(CIFAR10(train=False)) == 100


def test_damaged_files_are_refused(tmp_path):
    write_cifar10(tmp_path)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="data_batch_2"):
        CIFAR10(tmp_path)
    dump(path, data=np.zeros((3, 3072), np.uint8), labels=[0, 1])
    with pytest.raises(DataError, match="3 entries under 'labels'"):
        CIFAR10(tmp_path)
    dump(path, data=np.zeros((2, 3072), np.float32), labels=[0, 1])
    with pytest.raises(DataError, match="uint8"):
        CIFAR10(tmp_path)
    dump(path, data=np.zeros((2, 3072), np.uint8), labels=[0, 10])
    with pytest.raises(DataError, match=r"\[0, 10\)"):
        CIFAR10(tmp_path)


def test_a_pickle_that_runs_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "touched"), "w"))

    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(DataError, match="no place in a data file"):
        CIFAR10(tmp_path)
    assert not (tmp_path / "touched").exists()


def test_flipped_bytes_are_an_error_of_ours(tmp_path):
    """Or other labels, which no check can tell; never another error, and never code that runs."""
    write_cifar10(tmp_path, each=1)
    path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
    whole = path.read_bytes()
    refused = 0
    for i in [*range(120), *range(len(whole) - 80, len(whole))]:  # pixels lie between
        for flip in (0xFF, 0x20, 0x01):
            path.write_bytes(whole[:i] + bytes([whole[i] ^ flip]) + whole[i + 1 :])
            try:
                CIFAR10(tmp_path)
            except DataError:
                refused += 1
    assert refused > 100


@pytest.mark.parametrize("labels", [None, "ab", ["a", "b"], [[0], [1]], [0.5, 1.0], 3])
def test_labels_of_another_kind_are_refused(tmp_path, labels):
    write_cifar10(tmp_path)
    dump(tmp_path / "cifar-10-batches-py" / "test_batch", data=np.zeros((2, 3072), np.uint8), labels=labels)
    with pytest.raises(DataError, match=r"entries under 'labels' in .*test_batch"):
        CIFAR10(tmp_path, train=False)


def test_names_and_archives_that_are_not_there(tmp_path):
    write_cifar10(tmp_path)
    dump(tmp_path / "cifar-10-batches-py" / "batches.meta", num_cases_per_batch=100)
    with pytest.raises(DataError, match=r"'label_names' in .*batches\.meta"):
        CIFAR10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").unlink()
    (tmp_path / "cifar-10-batches-py" / "test_batch.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"test_batch\.gz"):
        CIFAR10(tmp_path, train=False)


@pytest.mark.parametrize("name", ["os.scalar", "builtins.ndarray", "numpy.testing.dtype", "numpy.load"])
def test_only_what_arrays_need_is_called(tmp_path, name):
    """An allowed name in another module, or another name of numpy's, is refused before it is looked up."""
    module, _, function = name.rpartition(".")
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(f"c{module}\n{function}\n.".encode())
    with pytest.raises(DataError, match="no place in a data file"):
        CIFAR10(tmp_path, train=False)


def test_download_fetches_any_missing_file(tmp_path, monkeypatch):
    fetched = []
    package = types.ModuleType("torchvision")
    package.datasets = types.SimpleNamespace(
        CIFAR10=lambda root, download: (fetched.append(root), write_cifar10(tmp_path))
    )
    monkeypatch.setitem(sys.modules, "torchvision", package)
    write_cifar10(tmp_path)
    assert len(CIFAR10(tmp_path, download=True)) == 300
    assert fetched == []
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    assert len(CIFAR10(tmp_path, download=True)) == 300
    assert fetched == [str(tmp_path)]


def test_cifar100_is_normalised_by_its_own_statistics(tmp_path):
    data, _ = write_cifar100(tmp_path)
    image, _ = CIFAR100(tmp_path)[3]
    pixels = data[3].reshape(3, 32, 32) / 255
    for c, (mean, std) in enumerate([(0.5071, 0.2673), (0.4865, 0.2564), (0.4409, 0.2762)]):
        np.testing.assert_allclose(image[c], (pixels[c] - mean) / std, atol=1e-5)


def test_download_needs_torchvision(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingDataError, match="expected torchvision"):
        CIFAR10(tmp_path, download=True)
    write_cifar10(tmp_path)
    assert len(CIFAR10(tmp_path, download=True)) == 300


def test_fingerprint_sees_every_part(tmp_path):
    write_cifar10(tmp_path)
    base = CIFAR10(tmp_path, train=False)
    assert base.fingerprint() == CIFAR10(tmp_path, train=False).fingerprint()
    pixel, label, order, group = (CIFAR10(tmp_path, train=False) for _ in range(4))
    pixel.images[3, 1, 4, 4] += 1
    label.labels[99] = 0
    order = order.subset(torch.arange(100).flip(0))
    group.groups = torch.zeros(100, dtype=torch.int64)
    scaled = ImageData(base.images, base.labels, mean=(0.5,) * 3, std=base.std, names=base.names)
    assert len({d.fingerprint() for d in (base, pixel, label, order, group, scaled)}) == 6


def test_items_carry_their_index():
    data = TensorDataset(torch.arange(7.0), torch.arange(7) % 2)
    for x, y, index in DataLoader(Indexed(data), batch_size=3, shuffle=True):
        assert torch.equal(x, index.float())
        assert torch.equal(y, index % 2)


def test_importing_scdro_imports_none_of_this():
    code = "import scdro, sys; print([m for m in sys.modules if m.split('.')[:2] in (%s)]); scdro.data, scdro.models"
    names = ", ".join(str(["scdro", part]) for part in ("data", "models", "cli", "experiments"))
    result = subprocess.run([sys.executable, "-c", code % names], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "labels",
    [[[0], [0], [0], [1]], [], ["a", "b"], [0.0, 1.0], torch.zeros(3, 1, dtype=torch.int64), [[0], [1, 2]], 3, [None]],
)
def test_labels_are_a_vector_of_integers(labels):
    for call in (lambda: keep_last(labels, {}), lambda: step_imbalance(labels, keep=0), lambda: hold_out(labels, 2)):
        with pytest.raises(DataError, match="labels"):
            call()


def test_labels_come_in_many_kinds():
    values = [0, 1, 0, 1, 0]
    series = pandas.Series(values, index=[7, 6, 5, 4, 3])
    for labels in (values, tuple(values), np.array(values, np.uint8), torch.tensor(values, dtype=torch.int16), series):
        assert keep_last(labels, {0: 1}).tolist() == [1, 3, 4]
        assert step_imbalance(labels, keep=1).tolist() == [1, 3, 4]
    with pytest.raises(DataError, match="whole number"):
        step_imbalance(values, keep=1.0)
    with pytest.raises(DataError, match="whole number"):
        keep_last(values, {"0": 1})


def test_labels_of_items_are_their_second_entry():
    y, w = torch.tensor([0, 1, 0]), torch.tensor([5, 6, 7])
    assert labels_of(TensorDataset(torch.zeros(3, 2), y, w)).tolist() == [0, 1, 0]
    assert labels_of(Plain(list(y))).tolist() == [0, 1, 0]
    for wrong in (TensorDataset(y), Plain([0.5, 1.0]), Plain(["a"])):
        with pytest.raises(DataError):
            labels_of(wrong)


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
        with pytest.raises(DataError, match="standard deviations > 0"):
            ImageData(pixels, [0, 1, 1], **about | bad)
    with pytest.raises(DataError, match="images"):
        ImageData(None, [0, 1, 1], **about)
    with pytest.raises(DataError, match="expected 3 labels"):
        ImageData(pixels, [0, 1], **about)
