"""A folder of images, one subfolder for each class: features of a frozen network, a linear head, and its repair.

    python examples/images_folder.py FOLDER                  # a pretrained ResNet-18 of torchvision
    python examples/images_folder.py FOLDER --weights none   # untrained features, to try the script
    python examples/images_folder.py --quick                 # made images: squares and circles

The images that train the head and those that repair it share none: a head always looks good on what
it was fitted to. `scdro.repair` says whether another head is worth it, and shows whom it serves.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import scdro

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's


def read_images(folder: Path, size: int) -> tuple[Tensor, Tensor, list[str]]:
    """Images (n, 3, size, size), class numbers (n,), and the classes: the names of the subfolders."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    pixels, labels = [], []
    for label, name in enumerate(classes):
        for path in sorted((folder / name).iterdir()):
            with Image.open(path) as image:
                pixels.append(np.asarray(image.convert("RGB").resize((size, size)), np.float32))
            labels.append(label)
    scaled = (np.stack(pixels) / 255 - np.array(MEAN)) / np.array(DEVIATION)
    images = torch.tensor(scaled.transpose(0, 3, 1, 2), dtype=torch.float32)
    return images, torch.tensor(labels), classes


def backbone(weights: str) -> tuple[nn.Module, int]:
    """A network that makes features, frozen, and how many."""
    if weights == "none":
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Conv2d(3, 64, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        return nn.Sequential(layers, nn.Flatten()).eval(), 64 * 16
    from torchvision.models import get_model

    network = get_model("resnet18", weights=weights)
    network.fc = nn.Identity()
    return network.eval(), 512


@torch.no_grad()
def features_of(network: nn.Module, images: Tensor, batch: int = 64) -> Tensor:
    return torch.cat([network(part) for part in torch.split(images, batch)])


def fit_head(features: Tensor, labels: Tensor) -> nn.Linear:
    """Logistic regression as the last layer of a network."""
    fitted = LogisticRegression(C=1.0, max_iter=2000).fit(features.numpy(), labels.numpy())
    coefficients, offsets = fitted.coef_, fitted.intercept_
    if len(coefficients) == 1:  # two classes: one row of log odds
        coefficients, offsets = (
            np.vstack([-coefficients, coefficients]) / 2,
            np.r_[-offsets, offsets] / 2,
        )
    head = nn.Linear(coefficients.shape[1], len(coefficients))
    with torch.no_grad():
        head.weight.copy_(torch.tensor(coefficients))
        head.bias.copy_(torch.tensor(offsets))
    return head


def make_images(folder: Path, each: int = 120, size: int = 32) -> None:
    """Light squares and dark circles; one in twelve is of the other colour."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:size, :size]
    for name in ("circle", "square"):
        (folder / name).mkdir(parents=True)
        for k in range(each):
            light = (name == "square") != (k % 12 == 0)
            middle, radius = rng.integers(size // 3, 2 * size // 3, 2), rng.integers(5, 9)
            away = np.abs(np.stack([y, x]) - middle[:, None, None])
            inside = (away.max(0) if name == "square" else np.hypot(*away)) < radius
            grey = np.where(inside, 220 if light else 90, 20) + rng.integers(0, 20, (size, size))
            rgb = np.repeat(grey[..., None], 3, axis=2).astype(np.uint8)
            Image.fromarray(rgb).save(folder / name / f"{k:03d}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--weights", default="DEFAULT", help="of torchvision's ResNet-18, or none")
    parser.add_argument("--quick", action="store_true", help="made images, untrained features")
    args = parser.parse_args()
    if args.folder is None and not args.quick:
        parser.error("expected a FOLDER with a subfolder of images for each class, or --quick")
    if args.quick:
        args.folder, args.size, args.weights = Path(tempfile.mkdtemp()) / "images", 32, "none"
        make_images(args.folder)
    images, labels, classes = read_images(args.folder, args.size)
    network, _ = backbone(args.weights)
    features = features_of(network, images)
    parts = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)) % 3
    train, held_out, test = (parts == k for k in range(3))
    head = nn.Sequential(nn.Identity(), fit_head(features[train], labels[train]))
    loader = DataLoader(TensorDataset(features[held_out], labels[held_out]), batch_size=256)
    fixed = scdro.repair(head, loader)
    print(fixed.verdict)
    for name, model in (("as it was", head), ("repaired", fixed.model)):
        right = (model(features[test]).argmax(1) == labels[test]).float()
        by_class = ", ".join(
            f"{name} {100 * right[labels[test] == k].mean():.0f}%" for k, name in enumerate(classes)
        )
        print(f"{name}: {100 * right.mean():.0f}% of {int(test.sum())} test images ({by_class})")


if __name__ == "__main__":
    main()
