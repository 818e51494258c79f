"""The results of an experiment as tables: mean and standard deviation, and significant differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reproduction import protocol
from reproduction.columns import columns
from reproduction.engine.outcomes import Outcome
from reproduction.engine.study import Study
from reproduction.engine.wording import plural
from reproduction.paired import PairedDifference, comparisons, falls, verdicts
from reproduction.paper import CLAIMS, numbers_for
from reproduction.sweep import Found

__all__ = ["cell", "described", "lines", "markdown", "settings_line", "versions"]

FAR = 10  # times the loss of uniform predictions: no successful training ends above that
ENDED_WELL = (
    f"A trial ended well if its training robust loss is finite and at most {FAR} log(classes):"
    " log(classes) is that of equal chances for all classes, in any worst case."
)
PAIRED = (
    "Paired by seed, in points of accuracy. Each interval is for one comparison by itself. Ours is "
    '"higher" or "lower" where that holds for all {} of this page at once, with 95% (Holm).'
)


def markdown(found: Found, environments: Sequence[Mapping[str, Any]] = ()) -> str:
    """All tables of an experiment, with the paper's numbers next to ours, the command, and what was shortened.

    `environments` are those of the runs.
    """
    studies = [study for study, _ in found]
    first = studies[0]
    parts = [
        f"# {protocol.title(studies)}",
        *(f"**{text}**" for text in protocol.warnings(studies)),
    ]
    if first.experiment in protocol.BEYOND:
        parts.append(CLAIMS[first.experiment])
    elif all(protocol.claimed(study.as_dict()) for study in studies):
        parts.append(f"The paper's claim: {CLAIMS[first.experiment]}")
    parts.append(f"Made by\n\n    {protocol.command(studies)}\n\n{versions(environments)}")
    if any(len(study.rho) > 1 and not study.choose_rho for study in studies):
        parts.append(_by_radius(found))
    for (study, outcomes), differences in zip(found, _differences(found), strict=True):
        parts += [f"## {study.dataset}", described(study), protocol.shortened_line(study.as_dict())]
        parts += [_table(study, outcomes), *differences]
    return "\n\n".join(parts) + "\n"


def versions(environments: Sequence[Mapping[str, Any]]) -> str:
    """Versions in one line; all of them if runs differ."""
    keys = dict.fromkeys(key for one in environments for key in one)
    known = {
        key: " and ".join(dict.fromkeys(str(one[key]) for one in environments if key in one))
        for key in keys
    }
    versions = ", ".join(f"{key} {value}" for key, value in known.items())
    return (
        f"with {versions}; " if versions else ""
    ) + "the whole configuration is in studies.json."


def described(study: Study) -> str:
    smaller = f", images smaller by {study.pool}" if study.pool > 1 else ""
    of = f"Mean and standard deviation of {study.seeds} seeds." if study.seeds > 1 else "One seed."
    return (
        f"{study.model} on {study.inputs}{smaller}, {plural(study.epochs, 'epoch')} (lr falls by"
        f" ten after {study.decay_epoch}), batches of {study.batch_size}. {_search(study)} {of}"
    )


def _search(study: Study) -> str:
    if not study.searches:
        return "One setting of each method, no search."
    length = f"for {plural(study.tune_epochs, 'epoch')}" if study.tune_epochs else "at full length"
    score = "mean accuracy over classes" if study.choose_by == "accuracy" else "robust value"
    seeds = f", the mean of {study.tune_seeds} seeds" if study.tune_seeds > 1 else ""
    return f"Settings searched {length} by the {score} of the validation data{seeds}."


def _table(study: Study, outcomes: Sequence[Outcome]) -> str:
    shown = columns(study)
    head = ["method", *(column.title for column in shown), "settings", "trials that ended well"]
    rows = [
        [
            str(outcome.arm),
            *(cell(outcome.values(c.part, c.name), c.percent) for c in shown),
            settings_line(outcome),
            _searched(outcome),
        ]
        for outcome in outcomes
    ]
    paper = [numbers_for(study.experiment, study.dataset, outcome.arm) for outcome in outcomes]
    for data in sorted({data for row in paper for data in row}):
        head.append(f"paper, {data}")
        for row, numbers in zip(rows, paper, strict=True):
            row.append(f"{numbers[data]:.2f}" if data in numbers else "")
    searched = any(outcome.trials for outcome in outcomes)
    return lines(head, rows) + (f"\n\n{ENDED_WELL}" if searched else "")


def _by_radius(found: Found) -> str:
    """Test accuracy by rho as in the paper's table 4, with the paper's numbers in brackets."""
    radii = found[0][0].rho
    rows = []
    for study, outcomes in found:
        for method in study.methods:
            cells = []
            for rho in radii:
                own = [o for o in outcomes if o.arm.method == method and o.arm.rho in (rho, None)]
                paper = numbers_for(study.experiment, study.dataset, own[0].arm).get(study.dataset)
                ours = cell(own[0].values("test", "top1"))
                cells.append(ours if paper is None else f"{ours} [{paper:.2f}]")
            rows.append([study.dataset, method, *cells])
    table = lines(["data", "method", *(f"rho {rho:g}" for rho in radii)], rows)
    brackets = ", and in brackets the paper's" if "[" in table else ""
    return f"Test accuracy by rho{brackets}:\n\n{table}"


def cell(values: Sequence[float], percent: bool = True) -> str:
    """Mean and standard deviation, and the number of missing runs."""
    good = [value for value in values if not math.isnan(value)]
    if not good:
        return "none"
    factor, form = (100, ".2f") if percent else (1, ".4g")
    spread = f" ± {factor * statistics.stdev(good):{form}}" if len(good) > 1 else ""
    lost = f" ({len(values) - len(good)} lost)" if len(good) < len(values) else ""
    return f"{factor * statistics.mean(good):{form}}{spread}{lost}"


def _searched(outcome: Outcome) -> str:
    ended = sum(map(_ended_well, outcome.trials))
    return f"{ended} of {len(outcome.trials)}" if outcome.trials else "one setting, no search"


def _ended_well(trial: Mapping[str, Any]) -> bool:
    if trial["status"] != "done":
        return False
    train = trial["train"]
    return bool(train["robust_loss"] <= FAR * math.log(len(train["per_class"])))


def settings_line(outcome: Outcome) -> str:
    settings = {
        k: v for k, v in (outcome.settings or {}).items() if k != "rho" or outcome.arm.rho is None
    }
    return ", ".join(f"{key} {value:g}" for key, value in settings.items())


def lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _differences(found: Found) -> list[list[str]]:
    """The comparisons on each data set; the verdicts are corrected for those on all of them."""
    differences = [comparisons(*one) + falls(*one) for one in found]
    words = iter(verdicts([d for own in differences for d in own]))
    head = ["ours", "other", "score", "pairs", "difference", "95% interval", "ours is"]
    intro = PAIRED.format(plural(sum(map(len, differences)), "comparison"))
    tables = [
        [[d.ours, d.other, d.score, str(d.pairs), *_interval(d), next(words)] for d in own]
        for own in differences
    ]
    return [[f"{intro}\n\n{lines(head, rows)}"] if rows else [] for rows in tables]


def _interval(d: PairedDifference) -> list[str]:
    """Mean and interval in points, if there are enough pairs for them."""
    mean = f"{100 * d.mean:+.2f}" if d.pairs else "none"
    return [mean, f"{100 * d.low:+.2f} to {100 * d.high:+.2f}" if d.pairs > 1 else "none"]
