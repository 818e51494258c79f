"""The numbers of all anchors, in buffers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from scdro.contrastive.temperatures import Anchors
from scdro.distributed import Group
from scdro.distributed.rows import Cut
from scdro.sharding import Sharding
from scdro.tracked import Tracked

__all__ = ["AnchorState"]


class AnchorState(Tracked):
    """One row for each anchor, NaN until it is seen; with several processes each keeps a block of them."""

    anchors: Tensor

    def __init__(self, n: int, skip_nonfinite: bool, process_group: Group) -> None:
        super().__init__(skip_nonfinite=skip_nonfinite, process_group=process_group)
        self.parts = Sharding(n, self.ranks)
        rows = torch.full((self.parts.count, len(Anchors._fields)), math.nan, dtype=self.dtype)
        self.register_buffer("anchors", rows)

    def made_with(self) -> str:
        return f"{self.parts.n} anchors, or of this process's {self.parts.count}"

    def rows(self, cut: Cut, everybody: Tensor) -> Anchors:
        """This process's of the anchors that all ask for."""
        return Anchors.unpacked(cut.own(self.parts.at(self.anchors, everybody)))

    @torch.no_grad()
    def write(self, cut: Cut, everybody: Tensor, new: Anchors) -> None:
        self.parts.put(self.anchors, everybody, cut.joined(new.packed()))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """All anchors fit as well as this process's own."""
        full = state_dict.get(prefix + "anchors")
        if isinstance(full, Tensor) and len(full) == self.parts.n > self.parts.count:
            state_dict = {**state_dict, prefix + "anchors": self.parts.here(full)}
        super()._load_from_state_dict(state_dict, prefix, *rest)
