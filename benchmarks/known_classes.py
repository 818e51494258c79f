"""Classes known and rare: plain training, class weights, class weights at the end, and the worst case.

    python benchmarks/known_classes.py --data DIR      # DIR has CIFAR-10

CIFAR10-ST: of five of the ten classes only 100 training images each. "Deferred" trains plainly first
and with class weights for the last quarter (Cao et al., 2019). Two models: a hidden layer with
BatchNorm on random convolutions, trained from scratch, and a linear head on the features of a frozen
network (results/features). Every method has the same search: four effective steps, each with
gradients bounded by 1 or not, by the accuracy of the validation images (every other test image),
averaged over classes, on one seed. The table has the other test images and five other seeds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rate import NormalisedTask, random_filters
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import scdro
from scdro.functional import class_balanced_weights

ROOT = Path(__file__).parents[1]
BATCH, EPOCHS, DEFER_AT, DECAY_AT = 128, 6, 3 / 4, 2 / 3
STEPS, BOUNDS = (0.03, 0.1, 0.3, 1.0), (None, 1.0)
TUNING_SEED, SEEDS = 0, (1, 2, 3, 4, 5)
METHODS = ("plain", "class weights", "deferred class weights", "worst case, rho .5")


class Split(NamedTuple):
    """Inputs and labels: training, validation and test data, and a function of a seed that makes the model."""

    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    model: Callable[[int], nn.Module]


def from_scratch(folder: Path) -> Split:
    from reproduction.data import CIFAR10, CIFAR10ST

    train, test = CIFAR10ST(folder), CIFAR10(folder, train=False)
    x, other = random_filters(train.images), random_filters(test.images)
    mean, std = x.mean(0), x.std(0)
    x, other = (x - mean) / std, (other - mean) / std
    made = NormalisedTask("conv", x, train.labels)
    halves = [(other[k::2], test.labels[k::2]) for k in (0, 1)]
    return Split((x, train.labels), halves[1], halves[0], made.model)


def frozen_features() -> Split:
    from reproduction.tasks import Sources, open_task

    task: Any = open_task("features", "cifar10-st", 1, Sources(None, ROOT / "results" / "features"))
    parts = [(p.inputs.float(), p.labels) for p in (task.train, task.validation, task.test)]

    def model(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return nn.Linear(parts[0][0].shape[1], 10)

    return Split(parts[0], parts[1], parts[2], model)


def trained(split: Split, method: str, step: float, bound: float | None, seed: int) -> nn.Module:
    """SGD with momentum .9; lr falls by ten after two thirds."""
    x, y = split.train
    model, generator = split.model(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), 0.1 * step, momentum=0.9, weight_decay=1e-3)
    weights = class_balanced_weights(torch.bincount(y))
    robust = scdro.KLRobustLoss(0.5)
    steps = EPOCHS * (len(x) // BATCH)
    orders = (
        torch.split(torch.randperm(len(x), generator=generator), BATCH) for _ in itertools.count()
    )
    for t, index in zip(range(steps), itertools.chain.from_iterable(orders), strict=False):
        if t == int(DECAY_AT * steps):
            optimizer.param_groups[0]["lr"] *= 0.1
        losses = cross_entropy(model(x[index]), y[index], reduction="none")
        late = method == "deferred class weights" and t >= DEFER_AT * steps
        if method == "class weights" or late:
            loss = (weights[y[index]] * losses).mean()
        elif method.startswith("worst case"):
            loss = robust(losses)
        else:
            loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if bound is not None:
            nn.utils.clip_grad_norm_(model.parameters(), bound)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def accuracies(model: nn.Module, part: tuple[Tensor, Tensor]) -> Tensor:
    """Of each class, in per cent."""
    x, y = part
    right = (model(x).argmax(1) == y).double()
    return torch.stack([100 * right[y == c].mean() for c in range(10)])


def rows(name: str, split: Split) -> list[str]:
    lines = []
    for method in METHODS:
        scores = {
            (step, bound): accuracies(
                trained(split, method, step, bound, TUNING_SEED), split.validation
            ).mean()
            for step, bound in itertools.product(STEPS, BOUNDS)
        }
        step, bound = max(scores, key=lambda each: scores[each])
        found = [accuracies(trained(split, method, step, bound, s), split.test) for s in SEEDS]
        cells = []
        for part in (slice(None), slice(5), slice(5, None)):
            values = [accuracy[part].mean().item() for accuracy in found]
            cells.append(f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}")
        settings = f"step {step:g}" + ("" if bound is None else f", clipped at {bound:g}")
        lines.append(f"| {name} | {method} | {' | '.join(cells)} | {settings} |")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder that has CIFAR-10")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "known_classes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| model | method | test accuracy, % | five rare classes | the others | settings |",
        "|---" * 6 + "|",
        *rows("linear head on frozen features", frozen_features()),
        *rows("network from scratch", from_scratch(args.data)),
    ]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
