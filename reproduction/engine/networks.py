"""Networks, and models by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reproduction.engine.study import chosen
from scdro.errors import HyperparameterError, MissingDataError

__all__ = ["DEPTHS", "CifarResNet", "Network", "ResNet50", "image_model", "row_model"]

PARTS = ("classifier", "last_block", "all")
Self = TypeVar("Self", bound="Network")


class Network(nn.Module, ABC):
    """classifier(features(x)).

    Attributes:
        classifier: the last linear layer.

    Example:
        >>> model = CifarResNet(20, classes=10).freeze_to("classifier")
        >>> [tuple(p.shape) for p in model.trained()]
        [(10, 64), (10,)]
    """

    classifier: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self._part = "all"

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The inputs of the classifier, (b, d)."""

    @property
    @abstractmethod
    def last_block(self) -> nn.Module:
        """The last residual block before the classifier."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x))
        return scores

    def freeze_to(self: Self, part: str) -> Self:
        """Train only the "classifier", or the "last_block" and the classifier, or "all" again.

        Frozen parts have no gradients, and their batch norms stay in evaluation mode, even after
        `train()`.
        """
        if part not in PARTS:
            raise HyperparameterError(
                f"expected to freeze to one of {', '.join(PARTS)}, got {part!r}"
            )
        self._part = part
        self.requires_grad_(part == "all")
        for module in self._unfrozen():
            module.requires_grad_(True)
        return self.train(self.training)

    def trained(self) -> Iterator[nn.Parameter]:
        """The parameters that are not frozen, for an optimizer."""
        return (p for p in self.parameters() if p.requires_grad)

    def train(self: Self, mode: bool = True) -> Self:
        super().train(mode and self._part == "all")
        self.training = mode
        for module in self._unfrozen():
            module.train(mode)
        return self

    def _unfrozen(self) -> list[nn.Module]:
        """The trained modules, if not all."""
        blocks = [self.last_block] if self._part == "last_block" else []
        return [] if self._part == "all" else [*blocks, self.classifier]


class Block(nn.Module):
    """Two convolutions and a shortcut without parameters (option A): every other pixel, new channels zero."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride, self.pad = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.pad:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + x)


class CifarResNet(Network):
    """He et al. (2016), section 4.2: `depth` = 6 k + 2 layers in three stages of k blocks, whose channels are `width`,
    2 and 4 times `width`.

    Weights are Kaiming normal, and in channels_last order, which is the fastest on CPU.

    Example:
        >>> sum(p.numel() for p in CifarResNet(20, classes=10).parameters())
        269722
    """

    def __init__(self, depth: int, classes: int, width: int = 16) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise HyperparameterError(f"expected a depth of 8, 14, 20, ..., 6 k + 2, got {depth}")
        if width < 2 or width % 2:
            raise HyperparameterError(
                f"expected an even width, half of which is padded on either side, got {width}"
            )
        each = (depth - 2) // 6
        self.conv = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        stages = [
            [
                Block(width << max(s - (k == 0), 0), width << s, 2 if s > 0 and k == 0 else 1)
                for k in range(each)
            ]
            for s in range(3)
        ]
        self.blocks = nn.Sequential(*(block for stage in stages for block in stage))
        self.classifier = nn.Linear(4 * width, classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def last_block(self) -> nn.Module:
        return self.blocks[-1]

    def features(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(F.relu(self.norm(self.conv(x))))
        return y.mean((2, 3))


class ResNet50(Network):
    """torchvision's ResNet50 with a new classifier on its 2,048 features.

    Args:
        classes: number of outputs of the new classifier, which is randomly initialised.
        weights: torchvision's name of pretrained weights, which it downloads; None to load your own
            state_dict.

    Example:
        >>> model = ResNet50(classes=365).freeze_to("last_block")  # doctest: +SKIP
        >>> optimizer = torch.optim.SGD(model.trained(), lr=0.1)  # doctest: +SKIP
    """

    def __init__(self, classes: int, weights: str | None = "IMAGENET1K_V1") -> None:
        super().__init__()
        self.body = _resnet50()(weights=weights)
        self.classifier = nn.Linear(self.body.fc.in_features, classes)
        self.body.fc = nn.Identity()

    @property
    def last_block(self) -> nn.Module:
        block: nn.Module = self.body.layer4[-1]
        return block

    def features(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return torch.flatten(y, 1)


def _resnet50() -> Any:
    try:
        from torchvision.models import resnet50
    except (
        Exception
    ) as error:  # torchvision fails in many ways beside a torch that it was not built for
        raise MissingDataError(
            "expected torchvision, for ResNet50 and its weights, but it cannot be imported"
            f" ({error}); install the torchvision that belongs to torch {torch.__version__}"
        ) from error
    return resnet50


def row_model(name: str, features: int, classes: int, width: int) -> nn.Module:
    """A model for rows of numbers, made of torch's layers."""
    return chosen(_ROW_MODELS, name, "a model for rows")(features, classes, width)


def image_model(
    name: str, features: int, classes: int, width: int, part: str = "all", pretrained: bool = True
) -> nn.Module:
    """A model for images. The simple ones, which take `features` pixel values, are always trained as a whole."""
    if name == "resnet50":
        return (ResNet50(classes) if pretrained else ResNet50(classes, weights=None)).freeze_to(
            part
        )
    if name in _ROW_MODELS:
        if not features:
            raise HyperparameterError(
                f"expected a network for images that do not fit into memory, got {name!r}"
            )
        return nn.Sequential(nn.Flatten(), *_layers(row_model(name, features, classes, width)))
    return CifarResNet(chosen(DEPTHS, name, "a model for images"), classes, width).freeze_to(part)


def _layers(model: nn.Module) -> list[nn.Module]:
    return list(model) if isinstance(model, nn.Sequential) else [model]


def _mlp(features: int, classes: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, classes))


DEPTHS: Mapping[str, int] = {f"resnet{depth}": depth for depth in (8, 20, 32)}
_ROW_MODELS: Mapping[str, Callable[[int, int, int], nn.Module]] = {
    "linear": lambda features, classes, width: nn.Linear(features, classes),
    "mlp": _mlp,
}
