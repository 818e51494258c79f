"""The numbers of all anchors, of which each process keeps a part."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from scdro.contrastive.temperatures import Anchors
from scdro.distributed import Group
from scdro.distributed.rows import Cut
from scdro.errors import CheckpointError
from scdro.sharding import Sharding
from scdro.tracked import Tracked

__all__ = ["AnchorState"]


class AnchorState(Tracked):
    """One row for each anchor, NaN until it is seen; with several processes each keeps a block of them.

    `anchors` is in the state_dict, and follows the model to its device, but it is no buffer: DDP would copy the first
    process's over the others'. `last`, the objective of the last batch, is the same on all processes.
    """

    anchors: Tensor
    last: Tensor

    def __init__(self, n: int, towers: int, skip_nonfinite: bool, process_group: Group) -> None:
        super().__init__(skip_nonfinite=skip_nonfinite, process_group=process_group)
        self.n, self.towers = n, towers
        self.parts = Sharding(towers * n, self.ranks)
        self.register_buffer("last", torch.empty(1, dtype=self.dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.last.fill_(math.nan)
        self.anchors = self.last.new_full((self.parts.count, len(Anchors._fields)), math.nan)

    def settle(self) -> None:
        """Cut the anchors for the processes there are by now: of one process it has all, and any cut can be made."""
        if self.parts.size == 1 < self.ranks.size:
            self.parts = Sharding(self.parts.n, self.ranks)
            self.anchors = self.parts.here(self.anchors).clone()
        self.parts.check()

    def made_with(self) -> str:
        return f"{self.n} samples and {self.towers} towers"

    def rows(self, cut: Cut, everybody: Tensor) -> Anchors:
        """This process's of the anchors that all ask for."""
        return Anchors.unpacked(cut.own(self.parts.at(self.anchors, everybody)))

    @torch.no_grad()
    def write(self, cut: Cut, everybody: Tensor, new: Anchors) -> None:
        self.parts.put(self.anchors, everybody, cut.joined(new.packed()))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)
        self.anchors = self.anchors.to(self.last)
        return moved

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Tensor]:
        """What of all anchors takes the place of this process's in a state_dict; a call that all processes make."""
        self.settle()
        return {"anchors": self.parts.whole(self.anchors), "part": self._part(0, self.parts.n)}

    def _part(self, start: int, stop: int) -> Tensor:
        return torch.tensor([self.n, self.towers, start, stop])

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "anchors"] = self.anchors
        destination[prefix + "part"] = self._part(self.parts.start, self.parts.stop)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """All anchors fit as well as this process's own."""
        self.settle()
        anchors, part = (state_dict.get(prefix + name) for name in ("anchors", "part"))
        if isinstance(anchors, Tensor) and isinstance(part, Tensor):
            state_dict = {**state_dict, prefix + "anchors": self._fitting(anchors, part.tolist())}
        super()._load_from_state_dict(state_dict, prefix, *rest)
        unexpected = rest[3]
        unexpected[:] = [key for key in unexpected if key not in (prefix + "anchors", prefix + "part")]
        if prefix + "anchors" in state_dict:
            self.anchors = state_dict[prefix + "anchors"].detach().to(self.last).clone()

    def _fitting(self, anchors: Tensor, part: list[int]) -> Tensor:
        """This process's part, from its own or from all; refuses what is none of it."""
        if part[:2] != [self.n, self.towers]:
            raise CheckpointError(
                f"expected the state of {self.made_with()}, got one of {part[0]} and {part[1]}; "
                "construct the object with the same arguments"
            )
        if part[2:] == [0, self.parts.n]:
            return self.parts.here(anchors)
        if part[2:] != [self.parts.start, self.parts.stop]:
            raise CheckpointError(
                f"expected all {self.parts.n} anchors, or this process's {self.parts.start} to {self.parts.stop}, got "
                f"{part[2]} to {part[3]}; save full_state_dict(), which all processes call"
            )
        return anchors
