"""Features: what the network computes, once for the same data and weights."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from cifar_files import write_cifar10
from scdro import DataError, MissingDataError
from scdro.cli import main
from scdro.data import CIFAR10, CIFAR10ST, ImageData, LongTailList
from scdro.experiments.features import extract, load_features, weights_fingerprint
from scdro.models import CifarResNet


@pytest.fixture
def data():
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (13, 3, 8, 8), generator=g, dtype=torch.uint8)
    names = {"names": ("a", "b"), "groups": torch.arange(13) % 4, "group_names": tuple("pqrs")}
    return ImageData(pixels, torch.arange(13) % 2, mean=(0.5,) * 3, std=(0.5,) * 3, **names)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return CifarResNet(8, 2)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_features_are_the_networks(tmp_path, data, model, dtype):
    assert extract(model, data, tmp_path, "train", dtype=dtype, batch_size=5)
    found = load_features(tmp_path, "train")
    with torch.no_grad():
        expected = model.eval().features(torch.stack([data[i][0] for i in range(13)])).numpy()
    assert isinstance(found.x, np.memmap)
    assert found.x.dtype == dtype
    np.testing.assert_allclose(found.x, expected, rtol=1e-3 if dtype == "float16" else 1e-5, atol=1e-4)
    assert found.y.tolist() == data.labels.tolist()
    assert found.groups.tolist() == data.groups.tolist()


def test_extracted_once_for_the_same_data_and_weights(tmp_path, data, model):
    assert extract(model, data, tmp_path, "train")
    stamp = (tmp_path / "train_features.npy").stat().st_mtime_ns
    assert not extract(copy.deepcopy(model), data, tmp_path, "train")
    assert (tmp_path / "train_features.npy").stat().st_mtime_ns == stamp
    with torch.no_grad():
        model.classifier.weight.add_(1)  # features do not depend on it
    assert not extract(model, data, tmp_path, "train")
    assert extract(model, data, tmp_path, "test")  # another split has files of its own


def change_weight(model, data):
    with torch.no_grad():
        model.conv.weight[0, 0, 0, 0] += 1e-3


def change_statistic(model, data):
    model.norm.running_mean[0] += 1e-3


def change_pixel(model, data):
    data.images[0, 0, 0, 0] ^= 1


def change_label(model, data):
    data.labels[0] = 1


@pytest.mark.parametrize("change", [change_weight, change_statistic, change_pixel, change_label])
def test_any_change_extracts_anew(tmp_path, data, model, change):
    extract(model, data, tmp_path, "train")
    before = load_features(tmp_path, "train")
    old = np.array(before.x), before.y.copy()
    change(model, data)
    assert extract(model, data, tmp_path, "train")
    after = load_features(tmp_path, "train")
    assert not (np.array_equal(old[0], after.x) and np.array_equal(old[1], after.y))


def test_half_written_or_damaged_features_do_not_count(tmp_path, data, model):
    with pytest.raises(MissingDataError, match="scdro features"):
        load_features(tmp_path, "train")

    class Stop(Exception):
        pass

    def stop(done, total, text):
        raise Stop

    with pytest.raises(Stop):
        extract(model, data, tmp_path, "train", batch_size=5, progress=stop)
    with pytest.raises(MissingDataError):
        load_features(tmp_path, "train")
    assert extract(model, data, tmp_path, "train")
    np.save(tmp_path / "train_features.npy", np.zeros((5, 32), np.float16))
    with pytest.raises(DataError, match="anew"):
        load_features(tmp_path, "train")
    assert extract(model, data, tmp_path, "train")
    (tmp_path / "train.json").write_text("{")
    assert extract(model, data, tmp_path, "train")


def test_killed_between_its_files(tmp_path, data, model, monkeypatch):
    """New features beside old labels do not count."""
    extract(model, data, tmp_path, "train")
    change_pixel(model, data)
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            extract(model, data, tmp_path, "train")
    with pytest.raises(MissingDataError):
        load_features(tmp_path, "train")
    assert extract(model, data, tmp_path, "train")


def test_features_too_large_for_float16(tmp_path, data, model):
    with torch.no_grad():
        model.norm.weight.mul_(1e8)
    with pytest.raises(DataError, match="float16 can hold"):
        extract(model, data, tmp_path, "train")
    assert extract(model, data, tmp_path, "train", dtype="float32")
    with pytest.raises(DataError, match="float16 or float32"):
        extract(model, data, tmp_path, "train", dtype="float64")


def test_fingerprint_of_weights(model):
    base = weights_fingerprint(model)
    assert base == weights_fingerprint(copy.deepcopy(model))
    change_statistic(model, None)
    assert weights_fingerprint(model) != base


def test_features_of_a_list(tmp_path, model):
    from PIL import Image

    for i in range(3):
        Image.new("RGB", (40, 40), (60 * i,) * 3).save(tmp_path / f"{i}.png")
    (tmp_path / "list.txt").write_text("".join(f"{i}.png {i % 2}\n" for i in range(3)))
    data = LongTailList(tmp_path / "list.txt")
    assert extract(model, data, tmp_path / "f", "val", batch_size=2)
    found = load_features(tmp_path / "f", "val")
    with torch.no_grad():
        expected = model.features(data[2][0][None])[0]
    np.testing.assert_allclose(found.x[2], expected, rtol=2e-3, atol=1e-3)
    assert found.groups is None


def test_from_the_command_line(tmp_path, capsys):
    write_cifar10(tmp_path, each=102)
    run, folder = str(tmp_path / "run"), str(tmp_path)
    assert main(["features", run, "--data", folder]) == 1
    assert "scdro pretrain" in capsys.readouterr().err
    settings = ["--model", "resnet8", "--epochs", "1", "--data", folder, "--out", run]
    assert main(["pretrain", "cifar10-st", *settings]) == 0
    assert "test accuracy" in capsys.readouterr().out
    assert main(["features", run, "--data", folder]) == 0
    assert "train: 1,010 x 64" in capsys.readouterr().out
    assert main(["features", run, "--data", folder]) == 0
    assert "were there" in capsys.readouterr().out
    found = load_features(tmp_path / "run" / "features", "train")
    assert found.y.tolist() == CIFAR10ST(tmp_path).labels.tolist()
    assert len(load_features(tmp_path / "run" / "features", "test").y) == len(CIFAR10(tmp_path, train=False))
    assert main(["features", "--model", "resnet50"]) == 1
    assert "--dataset and --out" in capsys.readouterr().err
