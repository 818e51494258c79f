"""What the report shows about a sweep besides its runs: the paper's claims, and samples if the data are available."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reproduction.catalog import IMAGES, LISTS
from reproduction.data import LongTailList
from reproduction.data.images import ImageData
from reproduction.data.memory import Rows
from reproduction.engine.report import Known, Sweep, data_uri, png, small, tag, write_report
from reproduction.engine.task import Samples
from reproduction.paper import CLAIMS, numbers_for
from reproduction.presets import EXPERIMENTS
from reproduction.protocol import BEYOND, STUDIES, claimed, shortened, shortened_line
from reproduction.tasks import Sources, open_task
from scdro.errors import DataError, MissingDataError, ScdroError

__all__ = ["look_up", "report"]

FEATURES_SHOWN = 6
NOT_ONE_BY_ONE = "Its numbers do not compare with the paper's one by one."
Wanted = set[tuple[int, int]]  # positions and labels


def report(folder: Path, out: Path, sources: Sources) -> list[Sweep]:
    """Write the report of a folder of runs, and return its sweeps."""
    if (folder / STUDIES).exists() and not list(folder.glob("**/study.json")):
        raise MissingDataError(
            f"expected runs in {folder.absolute()} or below it, found only tables; pass the folder"
            " of the runs, which was their --out (by default runs/EXPERIMENT-SCALE)"
        )
    return write_report(folder, out, lambda sweep: look_up(sweep, sources))


def look_up(sweep: Sweep, sources: Sources) -> Known:
    """The paper's claims and the hardest samples in the data; images are preferred to features made from them."""
    reported = {
        outcome.arm: numbers_for(sweep.experiment, sweep.dataset, outcome.arm)
        for outcome in sweep.outcomes
    }
    return replace(_samples(sweep, sources), claim=_claim(sweep), reported=reported)


def _claim(sweep: Sweep) -> Any:
    """What the paper says about these methods, and how the sweep differs from the paper's."""
    if sweep.experiment not in EXPERIMENTS or "dataset" not in sweep.config:
        return None
    if sweep.experiment in BEYOND:
        return tag("p", CLAIMS[sweep.experiment], class_="claim")
    claim = (
        [tag("b", "The paper: "), CLAIMS[sweep.experiment], " "] if claimed(sweep.config) else None
    )
    note = f" {NOT_ONE_BY_ONE}" if shortened(sweep.config) else ""
    return tag("p", claim, shortened_line(sweep.config), note, class_="claim")


def _samples(sweep: Sweep, sources: Sources) -> Known:
    wanted = {(int(sample["position"]), int(sample["label"])) for sample in sweep.hardest}
    reasons = []
    for inputs in _kinds(sweep.config):
        known = _opened(inputs, sweep.dataset, sources, wanted)
        if not known.missing:
            return known
        reasons.append(known.missing)
    return Known(missing="; ".join(reasons))


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
                f"expected the data that the runs were made with, got others: sample {i} does not"
                f" have label {label}; pass the folder as --data or --features"
            )
    positions = sorted({i for i, _ in wanted})
    groups: Tensor | None = getattr(train, "groups", None)
    return Known(
        names=tuple(getattr(train, "names", ())),
        group_names=tuple(getattr(train, "group_names", ())),
        counts=tuple(train.counts.tolist()),
        group_counts=() if groups is None else tuple(torch.bincount(groups).tolist()),
        pictures=(
            {i: data_uri(png(small(_pixels(train, i)))) for i in positions}
            if not isinstance(train, Rows)
            else {}
        ),
        features={i: _largest(train, i) for i in positions} if isinstance(train, Rows) else {},
        groups={} if groups is None else {i: int(groups[i]) for i in positions},
    )


def _pixels(train: Samples, i: int) -> Tensor:
    if isinstance(train, ImageData):
        return train.images[i]
    assert isinstance(train, LongTailList)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in train.normalisation)
    image = train.as_evaluated().load(i, np.random.default_rng(0))
    return ((image * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)


def _largest(rows: Rows, i: int) -> list[tuple[str, float]]:
    names = rows.feature_names
    row = rows.inputs[i]
    order = torch.argsort(row.abs(), descending=True, stable=True)[:FEATURES_SHOWN].tolist()
    return [(names[j] if names else f"feature {j}", float(row[j])) for j in order if row[j] != 0]
