"""Batches: augmentation against a loop over images, and that they depend on seed, epoch and position alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from reproduction.data.augment import CropFlip, crop_flip
from reproduction.data.images import ImageData
from reproduction.data.loading import MemoryBatches, WorkerBatches
from reproduction.data.order import shuffled
from scdro.distributed import Ranks
from scdro.errors import DataError, HyperparameterError, MissingDataError
from scdro.optim.samplers import DrawnBatches


def images(n=21, size=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (n, 3, size, size), generator=g, dtype=torch.uint8)
    return ImageData(
        pixels,
        torch.arange(n) % 3,
        mean=(0.4, 0.5, 0.6),
        std=(0.2, 0.3, 0.4),
        names=("a", "b", "c"),
    )


class Decoder:
    """What a `LongTailList` looks like to a loader."""

    def __init__(self, n=21):
        self.labels = torch.arange(n) % 3

    def load(self, index, rng):
        return torch.tensor([float(index), rng.random()], dtype=torch.float64)


def kinds(**settings):
    return [
        MemoryBatches(images(), 4, augment=CropFlip(2), **settings),
        WorkerBatches(Decoder(), 4, **settings),
        WorkerBatches(Decoder(), 4, workers=2, **settings),
    ]


def same(a, b):
    a, b = list(a), list(b)
    return len(a) == len(b) and all(
        torch.equal(s, t) for x, y in zip(a, b, strict=True) for s, t in zip(x, y, strict=True)
    )


def literal_crop_flip(image, top, left, flip, pad):
    h, w = image.shape[1:]
    out = torch.zeros_like(image)
    for i in range(h):
        for j in range(w):
            column = w - 1 - j if flip else j
            y, x = top + i - pad, left + column - pad
            if 0 <= y < h and 0 <= x < w:
                out[:, i, j] = image[:, y, x]
    return out


@pytest.mark.parametrize(("height", "width", "pad"), [(8, 8, 2), (6, 9, 4), (5, 5, 0)])
def test_crop_and_flip_by_a_loop_over_pixels(height, width, pad):
    rng = np.random.default_rng(0)
    batch = torch.from_numpy(rng.integers(256, size=(40, 3, height, width), dtype=np.uint8))
    top, left = torch.from_numpy(rng.integers(2 * pad + 1, size=(2, 40)))
    flip = torch.from_numpy(rng.random(40) < 0.5)
    found = crop_flip(batch, top, left, flip, pad)
    for i in range(40):
        assert torch.equal(
            found[i], literal_crop_flip(batch[i], int(top[i]), int(left[i]), bool(flip[i]), pad)
        )


def test_every_place_and_both_directions_are_as_likely():
    batch = torch.zeros(20_000, 1, 3, 3, dtype=torch.uint8)
    batch[:, 0, 1] = torch.tensor(
        [1, 2, 3], dtype=torch.uint8
    )  # the middle row, so that a shift and a flip show
    found = CropFlip(1)(batch, np.random.default_rng(0))[:, 0]
    kinds, counts = found.reshape(len(found), -1).unique(dim=0, return_counts=True)
    assert len(kinds) == 18
    assert counts.min() > 0.85 * len(found) / 18
    assert counts.max() < 1.15 * len(found) / 18


def test_batches_are_normalised_images_in_channels_last_order():
    data = images()
    x, y, index = next(iter(MemoryBatches(data, 5, seed=3)))
    assert x.is_contiguous(memory_format=torch.channels_last)
    for k, i in enumerate(index):
        assert y[k] == data.labels[i]
        for c in range(3):
            expected = (data.images[i, c].double() / 255 - data.mean[c]) / data.std[c]
            torch.testing.assert_close(x[k, c].double(), expected, rtol=0, atol=2e-6)


def test_every_sample_once_an_epoch():
    for batches in kinds():
        for _ in range(2):
            seen = torch.cat([index for _, _, index in batches])
            assert seen.sort().values.tolist() == list(range(21))
        assert len(batches) == 6
    for batches in kinds(drop_last=True):
        assert [len(index) for _, _, index in batches] == [4] * 5
        assert len(batches) == 5
    for batches in kinds(shuffle=False):
        assert torch.cat([index for _, _, index in batches]).tolist() == list(range(21))


def test_seed_and_epoch_decide_all():
    for batches, again, other in zip(kinds(seed=1), kinds(seed=1), kinds(seed=2), strict=True):
        assert same(batches.epoch(3), again.epoch(3))
        assert not same(batches.epoch(3), batches.epoch(4))
        assert not same(batches.epoch(3), other.epoch(3))
    assert not torch.equal(shuffled(50, 0, 1), shuffled(50, 1, 0))


def test_augmentation_differs_between_batches_and_epochs():
    """Of one image, many times over, so that the order cannot be what differs."""
    one = images(1).subset(torch.zeros(64, dtype=torch.int64))
    batches = MemoryBatches(one, 32, augment=CropFlip(2), shuffle=False)
    (a, _, _), (b, _, _) = batches.epoch(0)
    c, _, _ = next(batches.epoch(1))
    assert len(a.unique(dim=0)) > 10
    assert not torch.equal(a, b)
    assert not torch.equal(a, c)


def test_epochs_count_up_and_can_be_set():
    for batches, again in zip(kinds(), kinds(), strict=True):
        first, second = list(batches), list(batches)
        assert not same(first, second)
        again.next_epoch = 1
        assert same(second, again)
        assert same(first, again.epoch(0))


def test_an_epoch_resumed_anywhere_is_the_same():
    for batches, again in zip(kinds(seed=5), kinds(seed=5), strict=True):
        whole = list(batches.epoch(2))
        for start in (0, 1, 4, 6):
            assert same(whole[start:], again.epoch(2, start))
        next(iter(again.epoch(2)))  # abandoned half-way
        assert same(whole, again.epoch(2))


def test_the_number_of_workers_does_not_matter():
    by_workers = [list(WorkerBatches(Decoder(), 4, seed=7, workers=w).epoch(1)) for w in (0, 1, 2)]
    assert same(by_workers[0], by_workers[1])
    assert same(by_workers[0], by_workers[2])


class OneOf(Ranks):
    """As a process of several sees them."""

    def __init__(self, rank, size):
        super().__init__(False)
        self._place = rank, size

    rank = property(lambda self: self._place[0])
    size = property(lambda self: self._place[1])

    @classmethod
    def sizes(cls, n, size):
        return [len(cls(rank, size).part(n)) for rank in range(size)]


def test_the_parts_of_several_processes_make_the_batches_of_one():
    """Augmentation included. Of the last batch, of one sample, two of three processes have nothing."""
    whole = [list(batches.epoch(2)) for batches in kinds()]
    parts = [
        [list(batches.epoch(2)) for batches in kinds(ranks=OneOf(rank, 3))] for rank in range(3)
    ]
    for kind, batches in enumerate(whole):
        queues = [iter(part[kind]) for part in parts]
        for x, y, index in batches:
            mine = [
                next(queue)
                for queue, size in zip(queues, OneOf.sizes(len(y), 3), strict=True)
                if size
            ]
            assert same([tuple(map(torch.cat, zip(*mine, strict=True)))], [(x, y, index)])
        assert all(next(queue, None) is None for queue in queues)


class FromADistribution:
    """Batches drawn with replacement from weights that change while training, as a primal-dual method's do."""

    def __init__(self, n):
        self.p, self.generator = torch.ones(n), torch.Generator().manual_seed(0)

    def __iter__(self):
        for _ in range(3):
            yield torch.multinomial(self.p, 8, replacement=True, generator=self.generator)


def test_a_sampler_of_ones_own():
    sampler = FromADistribution(21)
    batches = MemoryBatches(images(), augment=CropFlip(2), sampler=sampler)
    drawn = []
    for _, _, index in batches:
        drawn.append(index)
        sampler.p.zero_()[5] = 1.0
    assert drawn[1].tolist() == drawn[2].tolist() == [5] * 8
    assert len(set(drawn[0].tolist())) > 1
    listed = WorkerBatches(Decoder(), sampler=[[3, 3], [1]])
    x, _, index = next(iter(listed))
    assert index.tolist() == [3, 3]
    assert x[0, 1] != x[1, 1]  # the same image twice, each with an augmentation of its own
    assert len(listed) == 2


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"seed": -1}])
def test_bad_settings(bad):
    with pytest.raises(HyperparameterError, match=next(iter(bad))):
        MemoryBatches(images(), **bad)


@pytest.mark.parametrize("workers", [0, 2])
def test_one_epoch_at_a_time(workers):
    """The older of two epochs raises, and does not end early, for any number of workers."""
    batches = WorkerBatches(Decoder(), 4, workers=workers)
    older = batches.epoch(0)
    next(older)
    assert len(list(batches.epoch(1))) == 6
    with pytest.raises(DataError, match="epoch"):
        next(older)
    assert len(list(batches.epoch(2))) == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_generator_is_not_touched(workers):
    state = torch.get_rng_state()
    for _ in range(2):
        list(WorkerBatches(Decoder(), 4, workers=workers))
    assert torch.equal(torch.get_rng_state(), state)


def test_augmentation_of_decoded_images_by_epoch_batch_and_place():
    """Of one image, so that the order cannot be what differs."""
    batches = WorkerBatches(Decoder(), sampler=[[5, 5], [5, 5]], seed=1)
    drawn = [
        float(value) for epoch in (0, 1) for x, _, _ in batches.epoch(epoch) for value in x[:, 1]
    ]
    expected = [
        np.random.default_rng((1, 2, epoch, number, place)).random()
        for epoch in (0, 1)
        for number in (0, 1)
        for place in (0, 1)
    ]
    assert drawn == expected
    assert len(set(drawn)) == 8


@pytest.mark.parametrize("make", [MemoryBatches, WorkerBatches])
def test_a_sampler_without_state_is_passed_over(make):
    data = images() if make is MemoryBatches else Decoder()
    whole = list(make(data, sampler=[[0, 1], [2], [3, 4]]).epoch(2))
    for start in range(4):
        assert same(whole[start:], make(data, sampler=[[0, 1], [2], [3, 4]]).epoch(2, start))


def test_a_sampler_with_state_resumes_by_it():
    """Also where the state is that of an epoch's end: nothing is left of it, and the next one begins."""

    def made():
        sampler = DrawnBatches(lambda g: torch.randint(21, (4,), generator=g), steps=3)
        return sampler, MemoryBatches(images(), augment=CropFlip(2), sampler=sampler)

    _, whole = made()
    expected = [batch for epoch in (0, 1) for batch in whole.epoch(epoch)]
    for stop in (1, 2, 3):
        sampler, batches = made()
        seen = [batch for _, batch in zip(range(stop), batches.epoch(0), strict=False)]
        state = sampler.state_dict()
        sampler, batches = made()
        sampler.load_state_dict(state)
        assert same(expected, [*seen, *batches.epoch(0, stop), *batches.epoch(1)])


def test_starts_outside_an_epoch_and_samplers_of_one_use_are_refused():
    for batches in (
        *kinds(),
        MemoryBatches(images(), sampler=[[0]] * 6),
        MemoryBatches(images(), sampler=Endless()),
    ):
        for start in (-1, *(() if isinstance(batches.order.sampler, Endless) else (7,))):
            with pytest.raises(HyperparameterError, match=f"start.*got {start}|0 to .*{start}"):
                batches.epoch(0, start)
        with pytest.raises(HyperparameterError, match="epoch >= 0"):
            batches.epoch(-1)
    with pytest.raises(HyperparameterError, match="generator"):
        MemoryBatches(images(), sampler=([i] for i in range(3)))
    with pytest.raises(HyperparameterError, match="workers >= 0"):
        WorkerBatches(Decoder(), workers=-1)


class Endless:
    def __iter__(self):
        while True:
            yield [0]


class Broken(Decoder):
    def load(self, index, rng):
        if index == 5:
            raise MissingDataError("expected 5.png")
        return super().load(index, rng)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_goes_wrong_in_a_worker_is_said_as_here(workers):
    with pytest.raises(MissingDataError) as caught:
        list(WorkerBatches(Broken(), 4, workers=workers))
    assert str(caught.value) == "expected 5.png"
