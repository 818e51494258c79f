"""All kinds of models by name."""

from __future__ import annotations

from typing import Any

from scdro.tables._image_models import Images
from scdro.tables._models import Linear, Trees
from scdro.tables._network import Networks

__all__ = ["FAMILIES"]

FAMILIES: dict[str, Any] = {"trees": Trees, "linear": Linear, "network": Networks, "images": Images}
