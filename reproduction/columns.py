"""The scores that tables and figures show."""

from __future__ import annotations

from typing import NamedTuple

from reproduction.engine.study import Study

__all__ = ["Column", "columns", "drawn"]


class Column(NamedTuple):
    """A column: its title, and where its value is in a result; accuracies are shown in per cent."""

    title: str
    part: str
    name: str
    percent: bool = True


ON_TRAINING = (
    Column("training accuracy", "train", "top1"),
    Column("robust objective", "train", "robust_loss", percent=False),
)
COLUMNS = (
    Column("test accuracy", "test", "top1"),
    Column("rarer half", "test", "minority"),
    Column("other half", "test", "majority"),
    *ON_TRAINING,
)
GROUP_COLUMNS = (
    Column("mean accuracy", "test", "top1"),
    Column("worst group", "test", "worst_group"),
    Column("rare groups", "test", "rare_groups"),
    *ON_TRAINING,
)


def columns(study: Study) -> tuple[Column, ...]:
    return GROUP_COLUMNS if study.experiment == "hidden" else COLUMNS


def drawn(study: Study) -> list[Column]:
    """The columns in figures, from top to bottom: training, test, objective."""
    shown = [score for score in columns(study) if score.name != "majority"]
    return sorted(shown, key=lambda score: (not score.percent, score.part == "test"))
