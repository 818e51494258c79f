"""
What if some labels are wrong?
==============================

A wrong label is the hardest sample of all, so the worst case trains on it. Look at the hardest
samples first; ``trim`` leaves out a share of them, and too much of it removes the very samples that
you want to help.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.nn.functional import cross_entropy

import scdro

# %%
# Digits, one in twenty training labels replaced by another one. The test labels are right.

images, digit = load_digits(return_X_y=True)
train, test = train_test_split(np.arange(len(digit)), test_size=0.5, stratify=digit, random_state=0)
rng = np.random.default_rng(0)
flipped = rng.random(len(train)) < 0.05
label = np.where(flipped, (digit[train] + rng.integers(1, 10, len(train))) % 10, digit[train])
x, y = torch.tensor(images[train] / 16, dtype=torch.float32), torch.tensor(label)
x_test, y_test = torch.tensor(images[test] / 16, dtype=torch.float32), torch.tensor(digit[test])


def fit(rho: float, trim: float = 0.0, epochs: int = 30) -> torch.nn.Module:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3, weight_decay=0.01)
    robust = scdro.KLRobustLoss(rho=rho, trim=trim)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(64):
            loss = robust(cross_entropy(network(x[rows]), y[rows], reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
    return network.eval()


# %%
# **Look.** ``scdro.evaluate`` gives the hardest samples of a plainly trained network. How many of the
# first fifty are wrong?

plain = fit(0.0, epochs=10)
report = scdro.evaluate(plain, [(x, y)], torch.nn.CrossEntropyLoss(reduction="none"), rho=0.5)
hardest = report.hardest[:50].numpy()
print(f"{flipped[hardest].sum()} of the 50 hardest samples have a wrong label")
print(f"their share of the weight: {float(report.weights[torch.tensor(flipped)].sum()):.0%}")

# %%
# **Trim**, and without.

settings = {"plain": (0.0, 0.0)} | {f"rho 0.5\ntrim {t}": (0.5, t) for t in (0.0, 0.02, 0.05, 0.15)}
accuracy = {}
for name, (rho, trim) in settings.items():
    network = fit(rho, trim)
    with torch.no_grad():
        right = (network(x_test).argmax(1) == y_test).double()
    accuracy[name] = (
        float(right.mean()),
        min(float(right[y_test == d].mean()) for d in range(10)),
    )
    print(
        f"{name:<18}".replace("\n", ", "), "all {:.3f}  worst class {:.3f}".format(*accuracy[name])
    )

# %%
# Left: the hardest images, with the label that they came with. Right: test accuracy.

figure = plt.figure(figsize=(10, 3.8), layout="constrained")
left, right_part = figure.subfigures(1, 2, width_ratios=[1, 1.3])
for ax, row in zip(left.subplots(3, 5).flat, hardest, strict=False):
    ax.imshow(-x[row].reshape(8, 8), cmap="gray")
    ax.set_title(f"{label[row]}", color="C3" if flipped[row] else "black", fontsize=9)
    ax.set(xticks=[], yticks=[])
left.suptitle("hardest images, with their labels (red: wrong)", fontsize=10)
ax = right_part.subplots()
places = np.arange(len(settings))
ax.bar(places - 0.2, [one for one, _ in accuracy.values()], 0.38, label="all")
ax.bar(places + 0.2, [worst for _, worst in accuracy.values()], 0.38, label="worst class")
ax.set_xticks(places, list(settings))
ax.set(ylim=(0.5, 1.0), ylabel="test accuracy")
ax.legend(loc="lower left")
plt.show()
