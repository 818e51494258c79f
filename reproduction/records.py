"""The results of an experiment as CSV: every reported run, every run of the search, every evaluation."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.columns import columns
from reproduction.engine.outcomes import Outcome
from reproduction.engine.study import Study
from reproduction.sweep import Found

__all__ = ["csv_text", "curve_rows", "seed_rows", "trial_rows"]

Row = dict[str, Any]


def seed_rows(found: Found) -> list[Row]:
    """A row for each reported run."""
    return [
        {
            **_named(study, outcome),
            "seed": seed,
            "status": "missing" if result is None else result["status"],
            **{f"{part} {name}": _value(result, part, name) for part, name in _SAVED},
            "seconds": None if result is None else result.get("seconds"),
        }
        for study, outcomes in found
        for outcome in outcomes
        for seed, result in enumerate(outcome.results, 1)
    ]


def trial_rows(found: Found) -> list[Row]:
    """A row for each run of the search."""
    return [
        {
            **_named(study, outcome),
            "settings": _plain(trial["settings"]),
            "status": trial["status"],
            "validation balanced": _value(trial, "validation", "balanced"),
            "validation robust_loss": _value(trial, "validation", "robust_loss"),
            "train robust_loss": _value(trial, "train", "robust_loss"),
        }
        for study, outcomes in found
        for outcome in outcomes
        for trial in outcome.trials
    ]


def curve_rows(found: Found) -> list[Row]:
    """A row for each evaluation of each reported run."""
    return [
        {
            **_named(study, outcome),
            "seed": seed,
            **{key: point[key] for key in ("samples", "seconds")},
            **{
                f"{score.part} {score.name}": point[score.part].get(score.name)
                for score in columns(study)
            },
            **{key: point.get(key) for key in ("lam", "kl", "epoch")},
        }
        for study, outcomes in found
        for outcome in outcomes
        for seed, curve in enumerate(outcome.curves, 1)
        for point in curve
    ]


def csv_text(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _rounded(value) for key, value in row.items()} for row in rows)
    return buffer.getvalue()


_SAVED = tuple(
    (part, name)
    for part, names in (
        (
            "test",
            (
                "top1",
                "minority",
                "majority",
                "balanced",
                "worst_group",
                "rare_groups",
                "robust_loss",
            ),
        ),
        ("train", ("top1", "loss", "robust_loss", "kl")),
    )
    for name in names
)


def _named(study: Study, outcome: Outcome) -> Row:
    """The radius is the arm's, if it has one; its settings may have been searched at another radius."""
    arm, found = outcome.arm, outcome.settings or {}
    settings = {key: value for key, value in found.items() if key != "rho" or arm.rho is None}
    return {
        "dataset": study.dataset,
        "method": arm.method,
        "rho": arm.rho,
        "settings": _plain(settings),
    }


def _plain(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value:g}" for key, value in settings.items())


def _value(result: Row | None, part: str, name: str) -> Any:
    return None if result is None else result.get(part, {}).get(name)


def _rounded(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
