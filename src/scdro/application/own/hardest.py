"""The hardest training samples of one's own data, told such that their owner can find them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scdro.application.own.opening import OwnData
from scdro.application.own.pictures import Pictures
from scdro.application.report.png import png, small
from scdro.application.storage import write, write_json

__all__ = ["tell"]

FOLDER = "hardest"  # of the pictures, by position


def tell(result: dict[str, Any], data: OwnData, out: Path, path: Path) -> dict[str, Any]:
    """A run's result with the origin, values and group of each of its hardest samples; what is new is written."""
    told = result | {"hardest": [sample | _about(sample["position"], data) for sample in result["hardest"]]}
    if isinstance(data.inputs, Pictures):
        for sample in told["hardest"]:
            file = out / FOLDER / f"{sample['position']}.png"
            if not file.exists():
                write(file, png(small(data.inputs.picture(sample["position"]))))
    if told != result:
        write_json(path / "result.json", told)
    return told


def _about(position: int, data: OwnData) -> dict[str, Any]:
    groups = getattr(data.task.train, "groups", None)
    about: dict[str, Any] = {"origin": data.inputs.origin(position)}
    if not isinstance(data.inputs, Pictures):
        about["values"] = data.inputs.values_of(position)
    return about if groups is None else about | {"group": int(groups[position])}
