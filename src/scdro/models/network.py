"""What every network here has: features, a linear classifier on them, and parts that can be frozen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TypeVar

from torch import Tensor, nn

from scdro.errors import HyperparameterError

__all__ = ["Network"]

PARTS = ("classifier", "last_block", "all")
Self = TypeVar("Self", bound="Network")


class Network(nn.Module, ABC):
    """classifier(features(x)).

    Attributes:
        classifier: the last linear layer.

    Example:
        >>> from scdro.models import resnet20
        >>> model = resnet20(10).freeze_to("classifier")
        >>> [tuple(p.shape) for p in model.trained()]
        [(10, 64), (10,)]
    """

    classifier: nn.Linear

    def __init__(self) -> None:
        super().__init__()
        self._part = "all"

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """What the classifier sees, (b, d)."""

    @property
    @abstractmethod
    def last_block(self) -> nn.Module:
        """The last residual block before the classifier."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(x))
        return scores

    def freeze_to(self: Self, part: str) -> Self:
        """Train nothing but the "classifier", or the "last_block" and the classifier, or "all" again.

        Frozen parts have no gradients, and their batch norms stay as in evaluation, also after `train()`.
        """
        if part not in PARTS:
            raise HyperparameterError(f"expected to freeze to one of {', '.join(PARTS)}, got {part!r}")
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
        """What is trained, if not all."""
        blocks = [self.last_block] if self._part == "last_block" else []
        return [] if self._part == "all" else [*blocks, self.classifier]
