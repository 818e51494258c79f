"""The scores that tables and figures show."""

from __future__ import annotations

from typing import NamedTuple

from scdro.application.study import Study

__all__ = ["Score", "columns", "drawn"]


class Score(NamedTuple):
    """A column: its title, and where its value is in a result; accuracies are shown in per cent."""

    title: str
    part: str
    name: str
    percent: bool = True


ON_TRAINING = (
    Score("training accuracy", "train", "top1"),
    Score("robust objective", "train", "robust_loss", percent=False),
)
COLUMNS = (
    Score("test accuracy", "test", "top1"),
    Score("rarer half", "test", "minority"),
    Score("other half", "test", "majority"),
    *ON_TRAINING,
)
GROUP_COLUMNS = (
    Score("mean accuracy", "test", "top1"),
    Score("worst group", "test", "worst_group"),
    Score("rare groups", "test", "rare_groups"),
    *ON_TRAINING,
)


def columns(study: Study) -> tuple[Score, ...]:
    return GROUP_COLUMNS if study.experiment == "hidden" else COLUMNS


def drawn(study: Study) -> list[Score]:
    """What figures show, from top to bottom: training, test, objective."""
    shown = [score for score in columns(study) if score.name != "majority"]
    return sorted(shown, key=lambda score: (not score.percent, score.part == "test"))
