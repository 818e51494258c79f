"""List files and large images: parsing, counts, errors, and transforms against their definition."""

from __future__ import annotations

import dataclasses
import gzip
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from reproduction.data import (
    ImageNetLT,
    LongTailList,
    PlacesLT,
    Size,
    TrainTransform,
    iNaturalist18,
)
from reproduction.data.loading import WorkerBatches
from reproduction.data.transforms import EvalTransform, random_box
from scdro.data import imbalanced
from scdro.errors import DataError, MissingDataError

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
INATURALIST = ((0.466, 0.471, 0.380), (0.195, 0.194, 0.192))


def write_list(path, counts, packed=False):
    lines = "".join(
        f"train/c {c}/{c}_{i}.png {c}\n" for c, n in enumerate(counts) for i in range(n)
    )
    path.write_bytes(gzip.compress(lines.encode()) if packed else lines.encode())


def write_images(root, counts, size=(40, 30)):
    rng = np.random.default_rng(0)
    for c, n in enumerate(counts):
        (root / "train" / f"c {c}").mkdir(parents=True)
        for i in range(n):
            pixels = rng.integers(256, size=(size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "train" / f"c {c}" / f"{c}_{i}.png")


@pytest.mark.parametrize("packed", [False, True])
def test_lists_plain_and_packed(tmp_path, packed):
    write_list(tmp_path / ("all.txt.gz" if packed else "all.txt"), [4, 2, 1], packed)
    found = LongTailList(tmp_path / "all.txt", tmp_path, size=Size(7, 4, 1))
    assert found.counts.tolist() == [4, 2, 1]
    assert found.paths[4] == "train/c 1/1_0.png"  # paths may have spaces
    assert len(found) == 7


def test_wrong_counts_and_lines_are_refused(tmp_path):
    write_list(tmp_path / "all.txt", [4, 2, 1])
    for size in (Size(8, 4, 1), Size(7, 5, 1), Size(7, 4, 2)):
        with pytest.raises(DataError, match=r"got Size\(lines=7, largest=4, smallest=1\)"):
            LongTailList(tmp_path / "all.txt", size=size)
    with pytest.raises(DataError, match=r"\[0, 2\)"):
        LongTailList(tmp_path / "all.txt", classes=2)
    assert LongTailList(tmp_path / "all.txt", classes=4).counts.tolist() == [4, 2, 1, 0]
    for text in ("a.png 0\nb.png\n", "a.png 0\nb.png one\n", ""):
        (tmp_path / "bad.txt").write_text(text)
        with pytest.raises(DataError, match=r"line 2|empty"):
            LongTailList(tmp_path / "bad.txt")


def test_presets_say_what_is_missing_or_wrong(tmp_path):
    with pytest.raises(MissingDataError, match=r"ImageNet_LT_val\.txt.*OpenLongTail"):
        ImageNetLT(tmp_path, "val")
    with pytest.raises(DataError, match="train, val"):
        iNaturalist18(tmp_path, "test")
    write_list(tmp_path / "ImageNet_LT_val.txt", [20] * 999 + [19])
    with pytest.raises(DataError, match=r"expected Size\(lines=20000"):
        ImageNetLT(tmp_path, "val")
    write_list(tmp_path / "ImageNet_LT_val.txt", [20] * 1000)
    assert len(ImageNetLT(tmp_path, "val")) == 20_000
    lists = tmp_path / "lists"
    lists.mkdir()
    write_list(lists / "iNaturalist18_val.txt.gz", [3] * 8142, packed=True)
    found = iNaturalist18(tmp_path, "val", lists=lists)
    assert found.root == tmp_path
    assert found.transform.mean == (0.466, 0.471, 0.380)


@pytest.mark.parametrize(
    ("preset", "normalisation", "sizes"),
    [
        (
            ImageNetLT,
            IMAGENET,
            {"train": (115_846, 1280, 5), "val": (20_000, 20, 20), "test": (50_000, 50, 50)},
        ),
        (
            PlacesLT,
            IMAGENET,
            {"train": (62_500, 4980, 5), "val": (7_300, 20, 20), "test": (36_500, 100, 100)},
        ),
        (iNaturalist18, INATURALIST, {"train": (437_513, 1000, 2), "val": (24_426, 3, 3)}),
    ],
)
def test_presets_are_as_published(preset, normalisation, sizes, tmp_path, monkeypatch):
    """Sizes of the lists as their sources give them; random parts to train on, the middle to evaluate."""
    assert {split: dataclasses.astuple(size) for split, size in preset.sizes.items()} == sizes
    monkeypatch.setattr(preset, "number", 2)
    monkeypatch.setattr(preset, "sizes", dict.fromkeys(sizes, Size(2, 1, 1)))
    for split in sizes:
        write_list(tmp_path / f"{preset.stem}_{split}.txt", [1, 1])
        transform = preset(tmp_path, split).transform
        kind = (
            TrainTransform(*normalisation, 224, 0.4)
            if split == "train"
            else EvalTransform(*normalisation, 224, 256)
        )
        assert transform == kind


def test_lists_of_other_bytes(tmp_path, monkeypatch):
    path = tmp_path / "all.txt"
    path.write_bytes(
        b"\xef\xbb\xbfa.png 0\r\nb.png 1\r\n"
    )  # with the mark that some editors put first
    assert LongTailList(path).paths == ["a.png", "b.png"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert LongTailList("~/all.txt", "~").root == tmp_path
    for text in (b"a.png 99999999999\n", b"a.png 10000000\n", b"a.png " + b"9" * 5000):
        path.write_bytes(text)
        with pytest.raises(DataError, match="line 1"):
            LongTailList(path)
    path.write_bytes(b"\xff\xfe.png 0\n")
    with pytest.raises(DataError, match=r"UTF-8.*all\.txt"):
        LongTailList(path)
    path.unlink()
    whole = gzip.compress(b"a.png 0\n" * 1000)
    for content in (b"no gzip", whole[:-9], whole[:12] + b"\x00\xff" + whole[14:]):
        (tmp_path / "all.txt.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"all\.txt\.gz"):
            LongTailList(path)


def test_missing_and_damaged_images(tmp_path, monkeypatch):
    write_list(tmp_path / "all.txt", [1])
    data = LongTailList(tmp_path / "all.txt")
    with pytest.raises(MissingDataError, match=rf"0_0\.png.*root.*{tmp_path}"):
        data[0]
    write_images(tmp_path, [1])
    assert data[0][0].shape == (3, 224, 224)
    (tmp_path / data.paths[0]).write_bytes(b"no image")
    with pytest.raises(DataError, match="decoded"):
        data[0]
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDataError, match=r"scdro\[images\]"):
        data[0]


def test_the_middle_of_an_image():
    """A ramp shrunk by two: pixel values are those of the middle, whatever the filter does inside."""
    ramp = np.broadcast_to(np.arange(0, 240, dtype=np.uint8)[None, :, None], (80, 240, 3))
    found = (
        EvalTransform((0.0,) * 3, (1.0,) * 3, size=32, resize=40)(
            Image.fromarray(ramp.copy()), None
        )
        * 255
    )
    assert found.shape == (3, 32, 32)
    left = (120 - 32) / 2  # of 120 columns
    torch.testing.assert_close(found[0, 0], 2 * (left + torch.arange(32.0)) + 0.5, rtol=0, atol=1.0)


def test_random_parts_are_parts_of_the_stated_size():
    rng = np.random.default_rng(0)
    areas = []
    for _ in range(2000):
        left, top, right, bottom = random_box(600, 500, rng)
        assert 0 <= left < right <= 600
        assert 0 <= top < bottom <= 500
        w, h = right - left, bottom - top
        assert 0.74 < w / h < 1.35
        areas.append(w * h / 300_000)
    assert 0.07 < min(areas) < 0.1
    assert max(areas) > 0.9
    assert random_box(1000, 10, rng)[1::2] == (0, 10)  # no part fits: the middle
    assert random_box(1000, 10, np.random.default_rng(1))[0] == (1000 - 13) // 2


def test_training_images_vary_with_the_generator_alone():
    image = Image.fromarray(
        np.random.default_rng(0).integers(256, size=(50, 60, 3), dtype=np.uint8)
    )
    transform = TrainTransform(size=16)
    a, b, c = (transform(image, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    grey = Image.new("RGB", (50, 60), (100, 100, 100))
    plain = TrainTransform((0.0,) * 3, (1.0 / 255,) * 3, size=16, jitter=0.0)(
        grey, np.random.default_rng(0)
    )
    torch.testing.assert_close(plain, torch.full((3, 16, 16), 100.0))
    bright = [
        TrainTransform((0.0,) * 3, (1.0 / 255,) * 3, size=4)(grey, np.random.default_rng(s)).mean()
        for s in range(200)
    ]
    assert 57 <= min(bright) < 70 < 130 < max(bright) <= 141


def test_half_of_the_training_images_are_mirrored():
    two = np.zeros((64, 64, 3), np.uint8)
    two[:, 32:] = 200
    flips = 0
    for seed in range(300):
        x = TrainTransform(size=16, jitter=0.0)(Image.fromarray(two), np.random.default_rng(seed))
        flips += bool(x[0, :, 0].mean() > x[0, :, -1].mean())
    assert 95 < flips < 190  # some parts are of one colour


def test_decoded_by_any_number_of_workers(tmp_path):
    write_list(tmp_path / "all.txt", [4, 2, 1])
    write_images(tmp_path, [4, 2, 1])
    data = LongTailList(tmp_path / "all.txt", transform=TrainTransform(size=16))
    runs = [list(WorkerBatches(data, 3, seed=1, workers=w).epoch(4)) for w in (0, 2)]
    assert len(runs[0]) == 3
    for one, two in zip(*runs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
        assert torch.equal(data.labels[one[2]], one[1])


def test_an_imbalanced_list_is_a_list(tmp_path):
    write_list(tmp_path / "all.txt", [4, 2, 1])
    write_images(tmp_path, [4, 2, 1])
    data = LongTailList(tmp_path / "all.txt", transform=EvalTransform(size=8, resize=8))
    part = imbalanced(data, {0: 1, 1: 1})
    assert part.counts.tolist() == [1, 1, 1]
    assert part.paths == [data.paths[i] for i in (3, 5, 6)]
    x, y, _ = next(iter(WorkerBatches(part, 3, shuffle=False)))
    assert y.tolist() == [0, 1, 2]
    assert torch.equal(x[1], data[5][0])


def test_fingerprint_sees_list_and_transform(tmp_path):
    write_list(tmp_path / "a.txt", [4, 2, 1])
    write_list(tmp_path / "b.txt", [4, 1, 2])
    made = [LongTailList(tmp_path / f"{name}.txt") for name in "aab"]
    made.append(LongTailList(tmp_path / "a.txt", transform=EvalTransform(size=200)))
    assert made[0].fingerprint() == made[1].fingerprint()
    assert len({data.fingerprint() for data in made}) == 3


def test_fingerprint_sees_images_wherever_they_are(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_list(tmp_path / name / "all.txt", [2, 1])
        write_images(tmp_path / name, [2, 1])
    one, two = (LongTailList(tmp_path / name / "all.txt") for name in ("one", "two"))
    before = one.fingerprint()
    assert before == two.fingerprint()
    Image.new("RGB", (9, 9)).save(tmp_path / "two" / two.paths[1])
    assert two.fingerprint() != before
    (tmp_path / "one" / one.paths[0]).unlink()
    assert one.fingerprint() != before
    with pytest.raises(DataError, match="repr"):
        one.with_transform(lambda image, rng: None).fingerprint()
