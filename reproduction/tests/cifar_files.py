"""Small data in CIFAR's own files: images whose pixels tell where they came from."""

from __future__ import annotations

import pickle

import numpy as np

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def dump(path, **entries):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        pickle.dump({key.encode(): value for key, value in entries.items()}, file, protocol=2)


def pixels(n, rng):
    return rng.integers(256, size=(n, 3072), dtype=np.uint8)


def write_cifar10(root, each=30, seed=0):
    """`each` images of every class over the five batches, in mixed order, and ten of each for the test."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(10), each))
    data = pixels(len(labels), rng)
    folder = root / "cifar-10-batches-py"
    for i, part in enumerate(np.array_split(np.arange(len(labels)), 5), 1):
        dump(folder / f"data_batch_{i}", data=data[part], labels=labels[part].tolist())
    test = np.repeat(np.arange(10), 10)
    dump(folder / "test_batch", data=pixels(100, rng), labels=test.tolist())
    dump(folder / "batches.meta", label_names=[name.encode() for name in NAMES])
    return data, labels


def write_cifar100(root, each=8, seed=0):
    """Superclass c has the fine classes c, c + 20, ..., c + 80."""
    rng = np.random.default_rng(seed)
    folder = root / "cifar-100-python"
    for split, n in (("train", each), ("test", 2)):
        fine = rng.permutation(np.repeat(np.arange(100), n))
        data = pixels(len(fine), rng)
        dump(
            folder / split, data=data, fine_labels=fine.tolist(), coarse_labels=(fine % 20).tolist()
        )
        if split == "train":
            kept = data, fine
    names = {"fine_label_names": 100, "coarse_label_names": 20}
    dump(
        folder / "meta",
        **{key: [f"{key[0]}{i}".encode() for i in range(n)] for key, n in names.items()},
    )
    return kept
