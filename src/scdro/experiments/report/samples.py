"""The training samples that runs name by position: pictures, or rows of a table, as far as the data are on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scdro.data import EvalTransform, ImageData, LongTailList, Rows
from scdro.errors import DataError, ScdroError
from scdro.experiments.catalog import IMAGES, LISTS
from scdro.experiments.report.png import data_uri, png, small
from scdro.experiments.report.reading import Sweep
from scdro.experiments.tasks import Samples, Sources, open_task

__all__ = ["Known", "look_up"]

FEATURES_SHOWN = 6
OLD = "an older version made this run; the same `scdro train` again adds lines and files"
Wanted = set[tuple[int, int]]  # positions and labels


@dataclass(frozen=True)
class Known:
    """What the data tell of a sweep's samples.

    Attributes:
        missing: why there are no data, or "".
        names, group_names: of the classes and groups; empty where unknown.
        counts, group_counts: training samples of each.
        pictures: addresses that hold an image, by position.
        features: of rows, the largest by position, as (name, value).
        groups: by position.
    """

    missing: str = ""
    names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    group_counts: tuple[int, ...] = ()
    pictures: Mapping[int, str] = field(default_factory=dict)
    features: Mapping[int, list[tuple[str, float]]] = field(default_factory=dict)
    groups: Mapping[int, int] = field(default_factory=dict)

    def class_name(self, label: int) -> str:
        return self.names[label] if label < len(self.names) else str(label)

    def group_name(self, group: int) -> str:
        return self.group_names[group] if group < len(self.group_names) else str(group)


def look_up(sweep: Sweep, sources: Sources) -> Known:
    """Open the data of a sweep and find its hardest samples; images before the features that were made of them."""
    samples = [s for o in sweep.outcomes for result in o.results for s in (result or {}).get("hardest", ())]
    if sweep.own:
        return _own(sweep, samples)
    wanted = {(int(sample["position"]), int(sample["label"])) for sample in samples}
    reasons = []
    for inputs in _kinds(sweep.config):
        known = _opened(inputs, sweep.dataset, sources, wanted)
        if not known.missing:
            return known
        reasons.append(known.missing)
    return Known(missing="; ".join(reasons))


def _own(sweep: Sweep, samples: list[dict[str, Any]]) -> Known:
    """What `scdro train` left; older versions of it did not say where a sample is from."""
    missing = "" if all("origin" in sample for sample in samples) else OLD
    files = {s["position"]: sweep.folder / "hardest" / f"{s['position']}.png" for s in samples if sweep.folder}
    pictures = {i: data_uri(file.read_bytes()) for i, file in files.items() if file.is_file()}
    return Known(missing, sweep.names, sweep.group_names, sweep.counts, sweep.group_counts, pictures)


def _opened(inputs: str, dataset: str, sources: Sources, wanted: Wanted) -> Known:
    try:
        return _known(open_task(inputs, dataset, 1, sources).train, wanted)
    except (ScdroError, OSError, ImportError) as error:
        return Known(missing=str(error))


def _kinds(config: Mapping[str, Any]) -> list[str]:
    images = ["images"] if config.get("dataset") in {**IMAGES, **LISTS} else []
    return list(dict.fromkeys([*images, str(config.get("inputs", "features"))]))


def _known(train: Samples, wanted: Wanted) -> Known:
    for i, label in sorted(wanted):
        if i >= len(train) or int(train.labels[i]) != label:
            raise DataError(
                f"expected the data that the runs were made with, got others: sample {i} has not the label {label}; "
                "name the folder by --data or --features"
            )
    positions = sorted({i for i, _ in wanted})
    groups: Tensor | None = getattr(train, "groups", None)
    return Known(
        names=tuple(getattr(train, "names", ())),
        group_names=tuple(getattr(train, "group_names", ())),
        counts=tuple(train.counts.tolist()),
        group_counts=() if groups is None else tuple(torch.bincount(groups).tolist()),
        pictures={i: data_uri(png(small(_pixels(train, i)))) for i in positions} if not isinstance(train, Rows) else {},
        features={i: _largest(train, i) for i in positions} if isinstance(train, Rows) else {},
        groups={} if groups is None else {i: int(groups[i]) for i in positions},
    )


def _pixels(train: Samples, i: int) -> Tensor:
    if isinstance(train, ImageData):
        return train.images[i]
    assert isinstance(train, LongTailList)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in train.normalisation)
    image = train.with_transform(EvalTransform(*train.normalisation)).load(i, np.random.default_rng(0))
    return ((image * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)


def _largest(rows: Rows, i: int) -> list[tuple[str, float]]:
    names = rows.feature_names
    row = rows.inputs[i]
    order = torch.argsort(row.abs(), descending=True, stable=True)[:FEATURES_SHOWN].tolist()
    return [(names[j] if names else f"feature {j}", float(row[j])) for j in order if row[j] != 0]
