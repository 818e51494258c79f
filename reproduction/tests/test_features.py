"""Features: what the network computes, once for the same data and weights."""

from __future__ import annotations

import copy
import threading
import time

import numpy as np
import pytest
import torch

from reproduction.__main__ import main
from reproduction.catalog import open_splits
from reproduction.data import CIFAR10, CIFAR10ST, CIFAR100Hidden, LongTailList, PlacesLT, Size
from reproduction.data.images import ImageData
from reproduction.data.transforms import IMAGENET, EvalTransform
from reproduction.engine.networks import CifarResNet
from reproduction.features import extract, load_features, weights_fingerprint
from reproduction.tests.cifar_files import write_cifar10, write_cifar100
from scdro.errors import DataError, HyperparameterError, MissingDataError


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
    np.testing.assert_allclose(
        found.x, expected, rtol=1e-3 if dtype == "float16" else 1e-5, atol=1e-4
    )
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
def test_any_change_extracts_again(tmp_path, data, model, change):
    extract(model, data, tmp_path, "train")
    before = load_features(tmp_path, "train")
    old = np.array(before.x), before.y.copy()
    change(model, data)
    assert extract(model, data, tmp_path, "train")
    after = load_features(tmp_path, "train")
    assert not (np.array_equal(old[0], after.x) and np.array_equal(old[1], after.y))


def test_half_written_or_damaged_features_do_not_count(tmp_path, data, model):
    with pytest.raises(MissingDataError, match="python -m reproduction features"):
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
    with pytest.raises(DataError, match="make them again"):
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


@pytest.mark.parametrize("name", ["features", "labels", "groups"])
def test_files_changed_in_place_do_not_count(tmp_path, data, model, name):
    extract(model, data, tmp_path, "train")
    whole = (tmp_path / f"train_{name}.npy").read_bytes()
    with open(tmp_path / f"train_{name}.npy", "r+b") as file:
        file.seek(-16, 2)
        file.write(bytes(16))
    with pytest.raises(DataError, match="SHA-256"):
        load_features(tmp_path, "train")
    assert extract(model, data, tmp_path, "train")
    assert (tmp_path / f"train_{name}.npy").read_bytes() == whole


@pytest.mark.parametrize("manifest", ["[]", "{}", "{", '{"sha256": {}}', '{"sha256": 3}', "null"])
def test_a_manifest_that_says_nothing(tmp_path, data, model, manifest):
    extract(model, data, tmp_path, "train")
    (tmp_path / "train.json").write_text(manifest)
    with pytest.raises(DataError, match="make them again"):
        load_features(tmp_path, "train")
    assert extract(model, data, tmp_path, "train")


def test_a_failed_extraction_leaves_what_was_there(tmp_path, data, model):
    extract(model, data, tmp_path, "train")
    change_pixel(model, data)
    for wrong in ({"batch_size": 0}, {"device": "nowhere"}):
        with pytest.raises(HyperparameterError):
            extract(model, data, tmp_path, "train", **wrong)
    load_features(tmp_path, "train")
    assert not list(tmp_path.glob(".*.part"))


def test_another_dtype_is_another_extraction(tmp_path, data, model):
    extract(model, data, tmp_path, "train")
    assert extract(model, data, tmp_path, "train", dtype="float32")
    assert load_features(tmp_path, "train").x.dtype == np.float32


def test_two_at_once_wait_for_each_other(tmp_path, data, model):
    """Each has weights of its own; whoever is last, its features are whole."""
    other = copy.deepcopy(model)
    change_statistic(other, None)
    (tmp_path / ".train_features.1.part").write_bytes(b"left by a process that was killed")
    inside, told = threading.Event(), []
    second = threading.Thread(
        target=extract,
        args=(other, data, tmp_path, "train"),
        kwargs={"batch_size": 5, "notice": told.append},
    )

    def progress(done, total, text):
        if not inside.is_set():
            inside.set()
            second.start()
            while not told:
                time.sleep(0.001)

    assert extract(model, data, tmp_path, "train", batch_size=5, progress=progress)
    second.join()
    assert told == [f"waiting for another process in {tmp_path}"]
    with torch.no_grad():
        expected = other.features(torch.stack([data[i][0] for i in range(13)])).numpy()
    np.testing.assert_allclose(load_features(tmp_path, "train").x, expected, rtol=1e-3, atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lock",
        "train.json",
        "train_features.npy",
        "train_groups.npy",
        "train_labels.npy",
    ]


def test_features_too_large_for_float16(tmp_path, data, model):
    with torch.no_grad():
        model.norm.weight.mul_(1e8)
    with pytest.raises(DataError, match="float16"):
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
    run, folder = str(tmp_path / "runs" / "cifar10-st"), str(tmp_path)
    assert main(["features", run, "--data", folder]) == 1
    assert "python -m reproduction pretrain" in capsys.readouterr().err
    settings = ["--model", "resnet8", "--epochs", "1", "--data", folder, "--out", run]
    assert main(["pretrain", "cifar10-st", *settings]) == 0
    assert "test accuracy" in capsys.readouterr().out
    assert main(["features", run, "--data", folder]) == 0
    assert "train: 1,010 x 64" in capsys.readouterr().out
    assert main(["features", run, "--data", folder]) == 0
    assert "were there" in capsys.readouterr().out
    found = load_features(f"{run}/features", "train")
    assert found.y.tolist() == CIFAR10ST(tmp_path).labels.tolist()
    assert len(load_features(f"{run}/features", "test").y) == len(CIFAR10(tmp_path, train=False))
    assert main(["features", "--model", "resnet50"]) == 1
    assert "--dataset and --out" in capsys.readouterr().err
    assert main(["features", run, "--model", "resnet50"]) == 1
    assert "got both" in capsys.readouterr().err
    write_cifar100(tmp_path, each=50)
    other = [
        "features",
        run,
        "--data",
        folder,
        "--dataset",
        "cifar100-hidden",
        "--out",
        str(tmp_path / "other"),
    ]
    assert main([*other, "--split", "val"]) == 1
    assert "a split of train, test" in capsys.readouterr().err
    assert main([*other, "--split", "test"]) == 0
    assert "test: 200 x 64" in capsys.readouterr().out
    assert not (tmp_path / "other" / "train.json").exists()
    hidden = CIFAR100Hidden(tmp_path, train=False)
    found = load_features(tmp_path / "other", "test")
    assert (found.y.tolist(), found.groups.tolist()) == (
        hidden.labels.tolist(),
        hidden.groups.tolist(),
    )
    own = {path: path.read_bytes() for path in (tmp_path / "runs/cifar10-st/features").iterdir()}
    assert main(["features", run, "--data", folder, "--dataset", "cifar100-hidden"]) == 0
    assert {path: path.read_bytes() for path in own} == own
    assert _reproduces("figure1", "cifar10-st", tmp_path / "runs")
    assert _reproduces("hidden", "cifar100-hidden", tmp_path / "runs/cifar10-st/features")


def _reproduces(experiment, dataset, features):
    """By the commands of reproduction/README.md, made short."""
    short = [
        "--scale",
        "smoke",
        "--methods",
        "ERM",
        "--trials",
        "1",
        "--seeds",
        "1",
        "--epochs",
        "1",
        "--points",
        "1",
    ]
    where = ["--dataset", dataset, "--features", str(features), "--out", str(features / "out")]
    return main([experiment, *short, *where]) == 0


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ("cifar11", "expected a data set of cifar10-st, cifar100-st"),
        (
            "cifar10-st",
            (
                "`python -m reproduction pretrain cifar10-st --out {place}` and `python -m"
                " reproduction features {place}`"
            ),
        ),
        (
            "imagenet-lt",
            "`python -m reproduction features --model resnet50 --dataset imagenet-lt --out",
        ),
    ],
)
def test_features_that_are_not_there(dataset, said, tmp_path, capsys):
    place = tmp_path / dataset
    if dataset != "cifar11":
        place.mkdir()  # empty
    argv = [
        "figure1",
        "--dataset",
        dataset,
        "--features",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main(argv) == 1
    assert said.format(place=place) in capsys.readouterr().err


def test_features_of_a_part_alone(tmp_path, data, model, capsys):
    """Without test data it is said what is missing."""
    extract(model, data, tmp_path / "cifar10-st", "train")
    argv = [
        "figure1",
        "--dataset",
        "cifar10-st",
        "--features",
        str(tmp_path),
        "--out",
        str(tmp_path / "o"),
    ]
    assert main(argv) == 1
    assert "cifar10-st, got train" in capsys.readouterr().err


def test_splits_of_a_list_are_as_in_evaluation(tmp_path, monkeypatch):
    """Also the training images: random parts of them would be other features each time."""
    from PIL import Image

    monkeypatch.setattr(PlacesLT, "number", 2)
    monkeypatch.setattr(PlacesLT, "sizes", dict.fromkeys(("train", "val", "test"), Size(2, 1, 1)))
    rng = np.random.default_rng(0)
    for i in range(2):
        Image.fromarray(rng.integers(256, size=(40, 50, 3), dtype=np.uint8)).save(
            tmp_path / f"{i}.png"
        )
    for split in ("train", "val", "test"):
        (tmp_path / f"Places_LT_{split}.txt").write_text("0.png 0\n1.png 1\n")
    splits = open_splits("places-lt", tmp_path)
    assert list(splits) == ["train", "val", "test"]
    for data in splits.values():
        assert data.transform == EvalTransform(*IMAGENET)
        assert torch.equal(data[0][0], splits["test"][0][0])
    (tmp_path / "Places_LT_train.txt").unlink()
    assert list(open_splits("places-lt", tmp_path, ["val"])) == ["val"]
