"""Models by the names a study knows them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

from scdro.errors import HyperparameterError
from scdro.experiments.catalog import MODELS, PRETRAINED, chosen
from scdro.models import CifarResNet, ResNet50, linear_head

__all__ = ["image_model", "row_model"]


def row_model(name: str, features: int, classes: int, width: int) -> nn.Module:
    """A model of rows of numbers, made of torch's own layers."""
    return chosen(_ROW_MODELS, name, "a model for rows")(features, classes, width)


def image_model(
    name: str, features: int, classes: int, width: int, part: str = "all", pretrained: bool = True
) -> nn.Module:
    """A model of images; of the simple ones, which see `features` pixel values, all is trained."""
    if name in PRETRAINED:
        return (PRETRAINED[name](classes) if pretrained else ResNet50(classes, weights=None)).freeze_to(part)
    if name in _ROW_MODELS:
        if not features:
            raise HyperparameterError(f"expected a network for images that do not fit into memory, got {name!r}")
        return nn.Sequential(nn.Flatten(), *_layers(row_model(name, features, classes, width)))
    chosen(MODELS, name, "a model for images")
    return CifarResNet(int(name.removeprefix("resnet")), classes, width).freeze_to(part)


def _layers(model: nn.Module) -> list[nn.Module]:
    return list(model) if isinstance(model, nn.Sequential) else [model]


def _mlp(features: int, classes: int, width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, classes))


_ROW_MODELS: Mapping[str, Callable[[int, int, int], nn.Module]] = {
    "linear": lambda features, classes, width: linear_head(features, classes),
    "mlp": _mlp,
}
