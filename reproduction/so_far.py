"""Unfinished runs: the epoch that each has reached, and its scores there, next to the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction import protocol
from reproduction.columns import columns
from reproduction.engine.checkpoints import Checkpoints
from reproduction.engine.folder import began_in
from reproduction.engine.outcomes import Outcome, read_outcomes
from reproduction.engine.report.sweeps import read_study
from reproduction.engine.storage import read_json, write, write_json
from reproduction.engine.study import Study
from reproduction.figures import COLOURS, LINES, pyplot
from reproduction.paper import numbers_for
from reproduction.records import csv_text, curve_rows, seed_rows
from reproduction.results import cell, described, lines, settings_line, versions
from scdro.errors import MissingDataError

__all__ = ["Reached", "reached", "so_far"]

NOT_AT_THE_END = (
    "Scores are those of the last evaluation. The paper's numbers are of {} epochs: for a run that"
    " has not reached them they are the goal, not a comparison."
)


@dataclass(frozen=True)
class Reached:
    """How far a run has come.

    Attributes:
        status: "done", "diverged" or "failed"; "not finished" or "not begun" if there is no result.
        epochs: the epoch of its last evaluation or of its checkpoint, whichever is later.
        curve: its evaluations.
    """

    name: str
    outcome: Outcome
    status: str
    epochs: float
    curve: list[dict[str, Any]]


def so_far(folder: Path, out: Path) -> str:
    """Write the table, seeds, curves, study and figure of the runs of one data set; returns the text."""
    path = folder / "study.json"
    if not path.exists():
        raise MissingDataError(
            f"expected the study.json of a sweep in {folder.absolute()}, found none; name the"
            " folder of one data set, such as runs/table4-paper/cifar10-st"
        )
    study, outcomes = read_study(folder), read_outcomes(read_study(folder), folder)
    runs = reached(study, outcomes, folder)
    began = [began_in(at) for outcome in outcomes for at in _folders(study, outcome, folder)]
    environments = [one for k, one in enumerate(began) if one and one not in began[:k]]
    text = _text(study, runs, environments)
    write(out / "table.md", text.encode())
    write(out / "seeds.csv", csv_text(seed_rows([(study, outcomes)])).encode())
    write(out / "curves.csv", csv_text(curve_rows([(study, outcomes)])).encode())
    own = {"study": study.as_dict(), "data": read_json(path)["data"], "environments": environments}
    write_json(out / protocol.STUDIES, {study.dataset: own})
    _draw(study, runs, out / "figure")
    return text


def reached(study: Study, outcomes: Sequence[Outcome], folder: Path) -> list[Reached]:
    """The progress of each arm and seed, in the order of the study."""
    found = []
    for outcome in outcomes:
        for k, at in enumerate(_folders(study, outcome, folder)):
            result, curve = outcome.results[k], outcome.curves[k]
            epochs = max((point["epoch"] for point in curve), default=0.0)
            with suppress(FileNotFoundError):  # an active run replaces its checkpoint
                epochs = max(epochs, (Checkpoints(at).load() or {}).get("epochs_done", 0.0))
            status = result["status"] if result else "not finished" if curve else "not begun"
            name = f"{outcome.arm}, seed {k + 1}" if study.seeds > 1 else str(outcome.arm)
            found.append(Reached(name, outcome, status, epochs, curve))
    return found


def _folders(study: Study, outcome: Outcome, folder: Path) -> list[Path]:
    return (
        []
        if outcome.settings is None
        else [folder / r.path for r in study.finals(outcome.arm, outcome.settings)]
    )


def _text(study: Study, runs: Sequence[Reached], environments: Sequence[dict[str, Any]]) -> str:
    parts = [
        f"# {protocol.title([study])}: so far",
        f"Made by\n\n    {protocol.command([study])}\n\n{versions(environments)}",
        f"## {study.dataset}",
        described(study),
        protocol.shortened_line(study.as_dict()),
        _table(study, runs),
    ]
    if any(run.status == "not finished" for run in runs):
        parts.append(NOT_AT_THE_END.format(study.epochs))
    begun = [run for run in runs if run.curve]
    if begun:
        parts.append(f"Test accuracy after each evaluation:\n\n{_evaluations(begun)}")
    return "\n\n".join(parts) + "\n"


def _table(study: Study, runs: Sequence[Reached]) -> str:
    shown = columns(study)
    head = [
        "method",
        f"epochs of {study.epochs}",
        "state",
        "evaluated after",
        *(column.title for column in shown),
    ]
    rows = []
    for run in runs:
        last = run.curve[-1] if run.curve else {}
        values = [last.get(column.part, {}).get(column.name) for column in shown]
        cells = [
            cell([] if v is None else [v], c.percent) for v, c in zip(values, shown, strict=True)
        ]
        paper = numbers_for(study.experiment, study.dataset, run.outcome.arm).get(study.dataset)
        how_far = [run.name, f"{run.epochs:.1f}", run.status, f"{last['epoch']:g}" if last else ""]
        rows.append(
            [*how_far, *cells, settings_line(run.outcome), "" if paper is None else f"{paper:.2f}"]
        )
    return lines([*head, "settings", "the paper"], rows)


def _evaluations(runs: Sequence[Reached]) -> str:
    """One row per epoch and one column per run; evaluations are rounded to the nearest epoch."""
    scores = [
        {round(point["epoch"]): point["test"].get("top1") for point in run.curve} for run in runs
    ]
    rows = [
        [str(epoch), *("" if (v := own.get(epoch)) is None else f"{100 * v:.2f}" for own in scores)]
        for epoch in sorted({epoch for own in scores for epoch in own})
    ]
    return lines(["epoch", *(run.name for run in runs)], rows)


def _draw(study: Study, runs: Sequence[Reached], path: Path) -> None:
    """Test accuracy, also of the rarer half, against epochs, for runs that have begun; circles are the paper's."""
    plots = pyplot()
    shown = [
        column for column in columns(study) if column.part == "test" and column.name != "majority"
    ]
    figure, axes = plots.subplots(
        len(shown), 1, figsize=(7, 2.8 * len(shown)), squeeze=False, sharex=True
    )
    for ax, column in zip(axes[:, 0], shown, strict=True):
        for k, run in enumerate(run for run in runs if run.curve):
            known = [
                (p["epoch"], 100 * y)
                for p in run.curve
                if (y := p["test"].get(column.name)) is not None
            ]
            style = {"color": COLOURS[k % 8], "linestyle": LINES[k % 8], "marker": "."}
            ax.plot(
                *(zip(*known, strict=True) if known else ((), ())),
                label=f"{run.name}, {run.epochs:.0f} epochs",
                **style,
            )
            paper = numbers_for(study.experiment, study.dataset, run.outcome.arm).get(study.dataset)
            if column.name == "top1" and paper is not None:
                label = f"{run.name}, the paper: {paper:.2f}"
                ax.plot(study.epochs, paper, "o", mfc="none", color=style["color"], label=label)
        ax.axvline(study.decay_epoch, color="#999999", linewidth=0.8)
        ax.set(xlim=(0, 1.02 * study.epochs), ylim=(0, None), ylabel=f"{column.title}, %")
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    if any(run.curve for run in runs):
        axes[0, 0].legend(fontsize=8, frameon=False, loc="lower right")
    axes[-1, 0].set_xlabel("epochs; the grey line is where lr falls")
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(
            path.with_suffix(f".{kind}"),
            dpi=110,
            metadata={"Date": None} if kind == "svg" else None,
        )
    plots.close(figure)
