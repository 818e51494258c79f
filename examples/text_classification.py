"""Text: which kind of library is this sentence from, and what about a library that is rare in the training data?

The texts are real and already on your disk: the first sentences of the docstrings of NumPy, torch,
SciPy and scikit-learn. One class is NumPy or torch, the other SciPy or scikit-learn. Only a few
training sentences of NumPy are kept. The model is a bag of words with learned embeddings, and does
not know the libraries.

    python examples/text_classification.py             # three seeds, about two minutes of one core
    python examples/text_classification.py --quick     # one seed, one epoch
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import random
import re
import statistics
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import scdro

LIBRARIES = {"torch": 0, "numpy": 0, "scipy": 1, "sklearn": 1}  # and their classes
RARE, KEPT, WORDS = "numpy", 40, 4000


class Texts(NamedTuple):
    """Word numbers padded with 0, (n, 20); classes; and the library of each text, used only for evaluation."""

    words: Tensor
    labels: Tensor
    libraries: list[str]


@functools.cache
def sentences(library: str, most: int) -> list[str]:
    """First sentences of docstrings, without duplicates, read from the source without running it."""
    spec = importlib.util.find_spec(library)
    assert spec is not None
    assert spec.origin is not None
    folder, found = Path(spec.origin).parent, dict[str, None]()
    files = sorted(
        path for path in folder.rglob("*.py") if "test" not in str(path.relative_to(folder))
    )
    random.Random(0).shuffle(files)
    for path in files:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                if len(text.split()) >= 4:
                    found[text] = None
        if len(found) >= most:
            break
    return list(found)[:most]


def tokens(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())[:20]


def open_texts(most: int, seed: int) -> tuple[Texts, Texts]:
    """Training and test texts; only the test texts have all of the rare library."""
    draw = random.Random(seed)
    train, test = [], []
    for library in LIBRARIES:
        rows = [(text, library) for text in sentences(library, most)]
        draw.shuffle(rows)
        third = len(rows) // 3
        test += rows[:third]
        train += rows[third : third + KEPT] if library == RARE else rows[third:]
    counts = Counter(word for text, _ in train for word in tokens(text))
    known = {word: i for i, (word, _) in enumerate(counts.most_common(WORDS), 1)}
    return as_texts(train, known), as_texts(test, known)


def as_texts(rows: list[tuple[str, str]], known: dict[str, int]) -> Texts:
    words = torch.zeros(len(rows), 20, dtype=torch.int64)
    for i, (text, _) in enumerate(rows):
        numbers = [known[word] for word in tokens(text) if word in known]
        words[i, : len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
    return Texts(
        words,
        torch.tensor([LIBRARIES[library] for _, library in rows]),
        [library for _, library in rows],
    )


def train(data: Texts, rho: float, epochs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.EmbeddingBag(WORDS + 1, 32, mode="mean", padding_idx=0), nn.Linear(32, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    robust = scdro.KLRobustLoss(rho)
    for _ in range(epochs):
        order: Tensor = torch.randperm(len(data.labels))
        for index in torch.split(order, 64):
            loss = robust(
                cross_entropy(model(data.words[index]), data.labels[index], reduction="none")
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracies(model: nn.Module, data: Texts) -> list[float]:
    """Accuracy overall and for each library."""
    right = (model(data.words).argmax(1) == data.labels).double()
    by_library = [
        right[[name == library for name in data.libraries]].mean().item() for library in LIBRARIES
    ]
    return [right.mean().item(), *by_library]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, one epoch")
    args = parser.parse_args()
    most, epochs, seeds = (300, 1, 1) if args.quick else (1500, 5, 3)
    sets = [open_texts(most, seed) for seed in range(seeds)]
    data = sets[0][0]
    print(
        f"{len(data.labels)} training sentences, {dict(Counter(data.libraries))}; {epochs}"
        " epoch(s)\n"
    )
    print(f"| method | accuracy, % | {' | '.join(LIBRARIES)} |\n|{'---|' * (2 + len(LIBRARIES))}")
    for rho in (0.0, 0.1, 0.5, 1.0):
        found = [
            accuracies(train(one, rho, epochs, seed), other)
            for seed, (one, other) in enumerate(sets)
        ]
        cells = (f"{100 * statistics.mean(column):.1f}" for column in zip(*found, strict=True))
        print(f"| {f'scdro, rho = {rho:g}' if rho else 'ERM'} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
