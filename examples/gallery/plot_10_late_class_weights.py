"""
Class weights late in training, from the start, or not at all?
==============================================================

A network on long-tailed classes. Weights from the first step let a handful of images shape all of its
features; large networks do better with weights in the last part of training only ("deferred
re-weighting"), which mostly move the boundary. The free rival moves the boundary without any
training: the logits of the plain network less ``log(size of the class)`` ("logit adjustment"). Which
one suits your data is quickly tried.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy

from scdro.functional import class_balanced_weights

# %%
# scikit-learn's digits, from 100 training images of a 0 down to 5 of a 9. The test images are balanced.

images, digit = load_digits(return_X_y=True)
sizes = np.geomspace(100, 5, 10).astype(int)


def split(seed: int) -> tuple[torch.Tensor, ...]:
    """Long-tailed training images, and balanced test images."""
    train, test = train_test_split(
        np.arange(len(digit)), test_size=0.4, stratify=digit, random_state=seed
    )
    kept = np.concatenate([train[digit[train] == d][: sizes[d]] for d in range(10)])
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digit)
    return x[kept], y[kept], x[test], y[test]


def fit(
    x: torch.Tensor, y: torch.Tensor, begin: float, seed: int, epochs: int = 40
) -> torch.nn.Module:
    """Train with class weights from the share `begin` of the epochs on; 1 for never."""
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    weights = class_balanced_weights(torch.tensor(sizes))
    for epoch in range(epochs):
        for rows in torch.randperm(len(y)).split(64):
            now = weights.float() if epoch >= begin * epochs else None
            loss = cross_entropy(network(x[rows]), y[rows], weight=now)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return network.eval()


# %%
# Three seeds: each has its own split and its own start.

begins = {"never": 1.0, "never, logits adjusted": 1.0, "last third": 0.67, "from the start": 0.0}
accuracy: dict[str, list[list[float]]] = {name: [] for name in begins}
for seed in range(3):
    x, y, x_test, y_test = split(seed)
    fitted = {begin: fit(x, y, begin, seed) for begin in sorted(set(begins.values()))}
    for name, begin in begins.items():
        with torch.no_grad():
            logits = fitted[begin](x_test)
        if "adjusted" in name:
            logits = logits - torch.tensor(sizes / sizes.sum()).log()
        right = (logits.argmax(1) == y_test).double()
        accuracy[name].append([float(right[y_test == d].mean()) for d in range(10)])
for name, seeds in accuracy.items():
    rates = np.array(seeds)
    print(
        f"{name:<24} mean of classes {rates.mean():.3f}   five rarest {rates[:, 5:].mean():.3f}"
        f"   worst class {rates.min(1).mean():.3f}"
    )

# %%
# On these small images the three are close on average: all of them help the rare classes by twenty
# points and more, and the adjusted logits, which cost nothing, are close to the best in the mean over
# classes. In the worst class they are behind the best: .46 against .52.

figure, ax = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
for (name, seeds), mark in zip(accuracy.items(), ("o-", "D--", "s-", "^-"), strict=True):
    ax.plot(range(10), np.mean(seeds, axis=0), mark, mfc="none", label=f"weights: {name}")
ax.set_xticks(range(10), [f"{d}\n({size})" for d, size in enumerate(sizes)])
ax.set(xlabel="digit (training images)", ylabel="accuracy, mean of three seeds")
ax.legend()
plt.show()
