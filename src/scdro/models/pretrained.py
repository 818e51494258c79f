"""ResNet50 with ImageNet's weights, by torchvision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scdro.errors import MissingDataError
from scdro.models.network import Network

__all__ = ["ResNet50"]


class ResNet50(Network):
    """torchvision's ResNet50 with a new classifier on its 2,048 features.

    Args:
        classes: of the new classifier, randomly initialised.
        weights: as torchvision names them, which downloads them; None for none, to load a state_dict of one's own.

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
    except Exception as error:  # torchvision fails in many ways beside a torch that it was not built for
        raise MissingDataError(
            f"expected torchvision, for ResNet50 and its weights, but it cannot be imported ({error}); install the "
            f"torchvision that belongs to torch {torch.__version__}"
        ) from error
    return resnet50
