"""The numbers of all anchors, in buffers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from scdro.contrastive.shards import Shards
from scdro.contrastive.temperatures import Anchors
from scdro.tracked import Tracked

__all__ = ["AnchorState"]


class AnchorState(Tracked):
    """One row for each anchor, NaN until it is seen; with several processes each keeps a block of them."""

    anchors: Tensor

    def __init__(self, shards: Shards, skip_nonfinite: bool) -> None:
        super().__init__(skip_nonfinite=skip_nonfinite)
        self.shards = shards
        rows = torch.full((shards.length, len(Anchors._fields)), math.nan, dtype=self.dtype)
        self.register_buffer("anchors", rows)

    def made_with(self) -> str:
        return f"{self.shards.n} anchors, or of this process's {self.shards.length}"

    def rows(self, rows: Tensor, everybody: Tensor) -> Anchors:
        return Anchors.unpacked(self.shards.fetch(self.anchors, rows, everybody))

    @torch.no_grad()
    def write(self, everybody: Tensor, new: Anchors) -> None:
        self.shards.store(self.anchors, everybody, new.packed())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """All anchors fit as well as this process's own."""
        full = state_dict.get(prefix + "anchors")
        if isinstance(full, Tensor) and len(full) == self.shards.n > self.shards.length:
            state_dict = {**state_dict, prefix + "anchors": self.shards.part(full)}
        super()._load_from_state_dict(state_dict, prefix, *rest)
