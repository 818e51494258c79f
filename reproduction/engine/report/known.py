"""What is known of a sweep's samples, beside what its results say of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reproduction.engine.report.markup import Html
from reproduction.engine.report.png import data_uri
from reproduction.engine.report.reading import Sweep
from reproduction.engine.study import Arm

__all__ = ["Known", "told_by_folder"]


@dataclass(frozen=True)
class Known:
    """What the page shows beside the results.

    Attributes:
        missing: why samples are known by position alone, or "".
        names, group_names: of the classes and groups; empty where unknown.
        counts, group_counts: training samples of each.
        pictures: addresses that hold an image, by position.
        features: of rows, the largest by position, as (name, value).
        groups: by position.
        claim: a paragraph to head the page.
        reported: accuracies that others report of an arm, in per cent, by data set.
    """

    missing: str = ""
    names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()
    group_counts: tuple[int, ...] = ()
    pictures: Mapping[int, str] = field(default_factory=dict)
    features: Mapping[int, list[tuple[str, float]]] = field(default_factory=dict)
    groups: Mapping[int, int] = field(default_factory=dict)
    claim: Html | None = None
    reported: Mapping[Arm, Mapping[str, float]] = field(default_factory=dict)

    def class_name(self, label: int) -> str:
        return self.names[label] if label < len(self.names) else str(label)

    def group_name(self, group: int) -> str:
        return self.group_names[group] if group < len(self.group_names) else str(group)


def told_by_folder(sweep: Sweep) -> Known:
    """What `scdro train` left in the folder: names, sizes and pictures."""
    files = {s["position"]: sweep.folder / "hardest" / f"{s['position']}.png" for s in sweep.hardest if sweep.folder}
    pictures = {i: data_uri(file.read_bytes()) for i, file in files.items() if file.is_file()}
    return Known("", sweep.names, sweep.group_names, sweep.counts, sweep.group_counts, pictures)
