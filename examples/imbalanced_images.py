"""Images of ten classes, five of them rare: plain training, class weights, the worst case, and both.

The data are scikit-learn's digits with only ten training images each of 0 to 4; the test images are
balanced. Every method uses the same small convolutional network, optimizer and number of steps,
with weight decay .01 and clipped gradients.

    python examples/imbalanced_images.py             # three seeds, half a minute of one core
    python examples/imbalanced_images.py --clip 0    # gradients not clipped
    python examples/imbalanced_images.py --quick     # one seed, few epochs
"""

from __future__ import annotations

import argparse
import statistics

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import scdro
from scdro.data import hold_out, step_imbalance
from scdro.functional import class_balanced_weights
from scdro.metrics import group_table

# rho, and whether classes are weighted; rho = 0 is plain training.
METHODS = {
    "ERM": (0.0, False),
    "class weights": (0.0, True),
    "scdro, rho = 0.5": (0.5, False),
    "scdro, rho = 1": (1.0, False),
    "class weights and scdro, rho = 0.5": (0.5, True),
}


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and test data; every third image of each class is for testing."""
    table = load_digits()
    labels = torch.from_numpy(table.target)
    images = (
        torch.tensor(table.images / 16, dtype=torch.float32)[:, None].expand(-1, 3, -1, -1) - 0.305
    ) / 0.376
    stays, aside = hold_out(labels, every=3)
    stays = stays[step_imbalance(labels[stays], range(5), keep=10)]
    return TensorDataset(images[stays], labels[stays]), TensorDataset(images[aside], labels[aside])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(
    data: TensorDataset,
    rho: float,
    weighted: bool,
    *,
    lr: float,
    clip: float,
    epochs: int,
    seed: int,
) -> nn.Module:
    torch.manual_seed(seed)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=0.01)
    order = torch.Generator().manual_seed(seed)  # the same batches for every method
    batches = DataLoader(data, 64, shuffle=True, generator=order)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(batches))
    robust = scdro.KLRobustLoss(rho)
    class_weights = class_balanced_weights(torch.bincount(data.tensors[1]), beta=0.999)
    for _ in range(epochs):
        for x, y in batches:
            losses = cross_entropy(model(x), y, reduction="none")
            loss = robust(losses, sample_weight=class_weights[y] if weighted else None)
            optimizer.zero_grad()
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def test(model: nn.Module, data: TensorDataset) -> list[float]:
    """Accuracy on all classes, on the rare ones (0 to 4), on the others, and on the worst class."""
    x, y = data.tensors
    rows = group_table(y.numpy(), model(x).argmax(1).numpy(), groups=y.numpy())
    by_class = {row.group: row.accuracy for row in rows}
    rare = statistics.mean(by_class[c] for c in range(5))
    frequent = statistics.mean(by_class[c] for c in range(5, 10))
    return [(rare + frequent) / 2, rare, frequent, rows[0].accuracy]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one seed, few epochs")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (0.05)")
    parser.add_argument(
        "--clip", type=float, default=1.0, help="bound on the norm of a gradient; 0 for none (1)"
    )
    args = parser.parse_args()
    epochs, seeds = (4, 1) if args.quick else (60, 3)
    data, held_out = digits()
    counts = torch.bincount(data.tensors[1])
    print(f"{len(data)} training images, by class {counts.tolist()}; {len(held_out)} test images\n")
    print(
        "| method | accuracy, % | rare classes | frequent classes | worst class"
        " |\n|---|---|---|---|---|"
    )
    for name, (rho, weighted) in METHODS.items():
        models = (
            train(data, rho, weighted, lr=args.lr, clip=args.clip, epochs=epochs, seed=seed)
            for seed in range(seeds)
        )
        columns = [test(model, held_out) for model in models]
        cells = (f"{100 * statistics.mean(column):.1f}" for column in zip(*columns, strict=True))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
