"""List files and large images: parsing, counts, errors, and transforms against their definition."""

from __future__ import annotations

import gzip
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from scdro import DataError, MissingDataError
from scdro.data import EvalTransform, ImageNetLT, LongTailList, Size, TrainTransform, WorkerBatches, iNaturalist18
from scdro.data.transforms import random_box


def write_list(path, counts, packed=False):
    lines = "".join(f"train/c {c}/{c}_{i}.png {c}\n" for c, n in enumerate(counts) for i in range(n))
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


def test_missing_and_damaged_images(tmp_path, monkeypatch):
    write_list(tmp_path / "all.txt", [1])
    data = LongTailList(tmp_path / "all.txt")
    with pytest.raises(MissingDataError, match=r"0_0\.png"):
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
    found = EvalTransform((0.0,) * 3, (1.0,) * 3, size=32, resize=40)(Image.fromarray(ramp.copy()), None) * 255
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
    image = Image.fromarray(np.random.default_rng(0).integers(256, size=(50, 60, 3), dtype=np.uint8))
    transform = TrainTransform(size=16)
    a, b, c = (transform(image, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    grey = Image.new("RGB", (50, 60), (100, 100, 100))
    plain = TrainTransform((0.0,) * 3, (1.0 / 255,) * 3, size=16, jitter=0.0)(grey, np.random.default_rng(0))
    torch.testing.assert_close(plain, torch.full((3, 16, 16), 100.0))
    bright = [
        TrainTransform((0.0,) * 3, (1.0 / 255,) * 3, size=4)(grey, np.random.default_rng(s)).mean() for s in range(200)
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


def test_fingerprint_sees_list_and_transform(tmp_path):
    write_list(tmp_path / "a.txt", [4, 2, 1])
    write_list(tmp_path / "b.txt", [4, 1, 2])
    made = [LongTailList(tmp_path / f"{name}.txt") for name in "aab"]
    made.append(LongTailList(tmp_path / "a.txt", transform=EvalTransform(size=200)))
    assert made[0].fingerprint() == made[1].fingerprint()
    assert len({data.fingerprint() for data in made}) == 3
