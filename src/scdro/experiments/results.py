"""What came of an experiment, as tables: every seed, mean and deviation, and differences that mean something."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from scdro.experiments.columns import Score, columns
from scdro.experiments.config import Study
from scdro.experiments.paper import CLAIMS, reported
from scdro.experiments.sweep import Outcome

__all__ = ["Difference", "Found", "comparisons", "csv_text", "curve_rows", "markdown", "seed_rows", "trial_rows"]

Row = dict[str, Any]
Found = Sequence[tuple[Study, Sequence[Outcome]]]  # an experiment's data sets
OURS = ("SCDRO", "ASCDRO", "RSCDRO", "RASCDRO")


# -- tables -----------------------------------------------------------------------------------------------------------


def markdown(found: Found) -> str:
    """All tables of an experiment, with the paper's numbers beside ours."""
    study = found[0][0]
    parts = [f"# {study.experiment}, scale {study.scale}", f"The paper's claim: {CLAIMS[study.experiment]}"]
    if any(len(study.rho) > 1 and not study.choose_rho for study, _ in found):
        parts.append(_by_radius(found))
    for study, outcomes in found:
        parts += [f"## {study.dataset}", _described(study), _table(study, outcomes), *_differences(study, outcomes)]
    return "\n\n".join(parts) + "\n"


def _described(study: Study) -> str:
    searched = f"searched for {study.tune_epochs} epochs" if study.tune_epochs else "searched at full length"
    smaller = f", images smaller by {study.pool}" if study.pool > 1 else ""
    return (
        f"{study.model} on {study.inputs}{smaller}, {study.epochs} epochs (lr falls by ten after {study.decay_epoch}), "
        f"batches of {study.batch_size}. Settings {searched} by the mean accuracy over classes of the validation data. "
        f"Mean and standard deviation of {study.seeds} seeds."
    )


def _table(study: Study, outcomes: Iterable[Outcome]) -> str:
    shown = columns(study)
    head = ["method", *(column.title for column in shown), "settings", "trials that ended well"]
    rows = [
        [
            str(outcome.arm),
            *(cell(outcome.values(c.part, c.name), c.percent) for c in shown),
            _settings(outcome),
            _searched(outcome),
        ]
        for outcome in outcomes
    ]
    paper = [reported(study.experiment, outcome.arm) for outcome in outcomes]
    for data in sorted({data for row in paper for data in row}):
        if data == study.dataset or study.experiment in ("table2", "table3"):
            head.append(f"paper, {data}")
            for row, numbers in zip(rows, paper, strict=True):
                row.append(f"{numbers[data]:.2f}" if data in numbers else "")
    return _lines(head, rows)


def _by_radius(found: Found) -> str:
    """The form of the paper's table 4: test accuracy by rho, and in brackets what the paper has."""
    radii = found[0][0].rho
    rows = []
    for study, outcomes in found:
        for method in study.methods:
            cells = []
            for rho in radii:
                own = [o for o in outcomes if o.arm.method == method and o.arm.rho in (rho, None)]
                paper = reported(study.experiment, own[0].arm).get(study.dataset)
                ours = cell(own[0].values("test", "top1"))
                cells.append(ours if paper is None else f"{ours} [{paper:.2f}]")
            rows.append([study.dataset, method, *cells])
    table = _lines(["data", "method", *(f"rho {rho:g}" for rho in radii)], rows)
    return f"Test accuracy by rho, and in brackets the paper's, whose runs are longer:\n\n{table}"


def cell(values: Sequence[float], percent: bool = True) -> str:
    """Mean and standard deviation, and how many runs are missing."""
    good = [value for value in values if not math.isnan(value)]
    if not good:
        return "none"
    factor, form = (100, ".2f") if percent else (1, ".4g")
    spread = f" ± {factor * statistics.stdev(good):{form}}" if len(good) > 1 else ""
    lost = f" ({len(values) - len(good)} lost)" if len(good) < len(values) else ""
    return f"{factor * statistics.mean(good):{form}}{spread}{lost}"


def _searched(outcome: Outcome) -> str:
    ended = sum(trial["status"] == "done" for trial in outcome.trials)
    return f"{ended} of {len(outcome.trials)}" if outcome.trials else "one setting, no search"


def _settings(outcome: Outcome) -> str:
    settings = {k: v for k, v in (outcome.settings or {}).items() if k != "rho" or outcome.arm.rho is None}
    return ", ".join(f"{key} {value:g}" for key, value in settings.items())


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


# -- differences ------------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """Ours less the other's, seed by seed, with a 95% confidence interval of its mean over seeds (Student's t)."""

    ours: str
    other: str
    score: str
    mean: float
    low: float
    high: float
    pairs: int

    @property
    def verdict(self) -> str:
        return "higher" if self.low > 0 else "lower" if self.high < 0 else "no difference shown"


def comparisons(study: Study, outcomes: Sequence[Outcome]) -> list[Difference]:
    """Each of ours against each baseline, at the same rho where both have one."""
    ours = [outcome for outcome in outcomes if outcome.arm.method in OURS]
    others = [outcome for outcome in outcomes if outcome.arm.method not in OURS]
    score = [c for c in columns(study) if c.part == "test"]
    return [
        difference(a, b, c)
        for c in (score if study.experiment == "hidden" else score[:1])
        for a in ours
        for b in others
        if a.arm.rho == b.arm.rho or None in (a.arm.rho, b.arm.rho)
    ]


def difference(a: Outcome, b: Outcome, score: Score) -> Difference:
    """Seeds are paired: the same first weights and the same order of the data."""
    from scipy.stats import t

    pairs = zip(a.values(score.part, score.name), b.values(score.part, score.name), strict=False)
    gaps = [x - y for x, y in pairs if not math.isnan(x - y)]
    name = (str(a.arm), str(b.arm), score.title)
    if len(gaps) < 2:
        return Difference(*name, gaps[0] if gaps else math.nan, -math.inf, math.inf, len(gaps))
    half = float(t.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    mean = statistics.mean(gaps)
    return Difference(*name, mean, mean - half, mean + half, len(gaps))


def _differences(study: Study, outcomes: Sequence[Outcome]) -> list[str]:
    found = comparisons(study, outcomes)
    if not found:
        return []
    rows = [
        [d.ours, d.other, d.score, f"{100 * d.mean:+.2f}", f"{100 * d.low:+.2f} to {100 * d.high:+.2f}", d.verdict]
        for d in found
    ]
    head = ["ours", "other", "score", "difference", "95% interval", "ours is"]
    return [f"Paired by seed, in points of accuracy:\n\n{_lines(head, rows)}"]


# -- files ------------------------------------------------------------------------------------------------------------


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
            **{f"{score.part} {score.name}": point[score.part].get(score.name) for score in columns(study)},
            **{key: point.get(key) for key in ("lam", "kl")},
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
        ("test", ("top1", "minority", "majority", "balanced", "worst_group", "rare_groups", "robust_loss")),
        ("train", ("top1", "loss", "robust_loss", "kl")),
    )
    for name in names
)


def _named(study: Study, outcome: Outcome) -> Row:
    settings = _plain(outcome.settings or {})
    return {"dataset": study.dataset, "method": outcome.arm.method, "rho": outcome.arm.rho, "settings": settings}


def _plain(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value:g}" for key, value in settings.items())


def _value(result: Row | None, part: str, name: str) -> Any:
    return None if result is None else result.get(part, {}).get(name)


def _rounded(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value
