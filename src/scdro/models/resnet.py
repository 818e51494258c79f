"""ResNets for CIFAR: "Deep residual learning for image recognition" (He et al., 2016), section 4.2."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scdro.errors import HyperparameterError
from scdro.models.network import Network

__all__ = ["CifarResNet", "resnet20", "resnet32"]


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
    """A ResNet of `depth` = 6 k + 2 layers: three stages of k blocks, `width`, 2 and 4 times `width` channels wide.

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
            raise HyperparameterError(f"expected an even width, half of which is padded on either side, got {width}")
        each = (depth - 2) // 6
        self.conv = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        stages = [
            [Block(width << max(s - (k == 0), 0), width << s, 2 if s > 0 and k == 0 else 1) for k in range(each)]
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


def resnet20(classes: int = 10) -> CifarResNet:
    """ResNet20 for CIFAR, with 64 features.

    Example:
        >>> resnet20(10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    return CifarResNet(20, classes)


def resnet32(classes: int = 10) -> CifarResNet:
    """ResNet32 for CIFAR, with 64 features.

    Example:
        >>> resnet32(10)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    return CifarResNet(32, classes)
