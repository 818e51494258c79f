"""CIFAR: exact counts, the last by the order of its files, and errors that say what is missing."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from reproduction.data import CIFAR10, CIFAR10ST, CIFAR100, CIFAR100ST, CIFAR100Hidden
from reproduction.data.images import ImageData
from reproduction.tests.cifar_files import dump, write_cifar10, write_cifar100
from scdro.errors import DataError, MissingDataError


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
    with pytest.raises(
        FileNotFoundError, match=str(tmp_path / "cifar-10-batches-py" / "data_batch_4")
    ):
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
    with pytest.raises(DataError, match="place"):
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
    dump(
        tmp_path / "cifar-10-batches-py" / "test_batch",
        data=np.zeros((2, 3072), np.uint8),
        labels=labels,
    )
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


@pytest.mark.parametrize(
    "name", ["os.scalar", "builtins.ndarray", "numpy.testing.dtype", "numpy.load"]
)
def test_only_what_arrays_need_is_called(tmp_path, name):
    """An allowed name in another module, or another name of numpy's, is refused before it is looked up."""
    module, _, function = name.rpartition(".")
    write_cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(
        f"c{module}\n{function}\n.".encode()
    )
    with pytest.raises(DataError, match="place"):
        CIFAR10(tmp_path, train=False)


def test_cifar100_is_normalised_by_its_own_statistics(tmp_path):
    data, _ = write_cifar100(tmp_path)
    image, _ = CIFAR100(tmp_path)[3]
    pixels = data[3].reshape(3, 32, 32) / 255
    for c, (mean, std) in enumerate([(0.5071, 0.2673), (0.4865, 0.2564), (0.4409, 0.2762)]):
        np.testing.assert_allclose(image[c], (pixels[c] - mean) / std, atol=1e-5)


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
