"""What the page shows about a sweep besides its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reproduction.engine.report.markup import Html
from reproduction.engine.study import Arm

__all__ = ["Known"]


@dataclass(frozen=True)
class Known:
    """What is known about the data and the methods besides the results.

    Attributes:
        missing: why samples are shown by position only, or "".
        names, group_names: names of the classes and groups; empty if unknown.
        counts, group_counts: number of training samples of each.
        pictures: images as data URIs, by position.
        features: the largest features of a row, as (name, value), by position.
        groups: groups of the samples, by position.
        claim: a paragraph for the top of the page.
        reported: accuracies of an arm in the paper, in percent, by data set.
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
