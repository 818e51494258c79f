"""What came of a training, in a few lines to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scdro.experiments.config import Run
from scdro.experiments.own.fitting import Fit
from scdro.experiments.own.opening import OwnData
from scdro.optim import REGISTRY

__all__ = ["about_data", "about_rho", "summary", "warnings"]

MOST_GROUPS = 20


def about_data(data: OwnData) -> str:
    """Samples, classes and inputs."""
    task = data.task
    sizes = f"{len(task.train):,} to train on, {len(task.validation):,} to validate on"
    sizes += f", {len(task.test):,} to test on" if task.test is not None else ""
    counts = [f"{name} {count:,}" for name, count in zip(data.classes, task.train.counts.tolist(), strict=True)]
    shown = ", ".join(counts[:10]) + (f" and {len(counts) - 10} more" if len(counts) > 10 else "")
    shape = data.preparation.shape
    inputs = f"images of {shape[1]} x {shape[2]}" if data.images else f"{shape[0]} features"
    return f"{sizes}; {inputs}; {len(counts)} classes: {shown}"


def about_rho(run: Run) -> str:
    """What the radius of a run means."""
    rho = run.rho
    if not _takes_rho(run):
        return f"{run.method} has no rho; robust losses are at rho {rho:.4g}"
    if rho == 0.0:
        return "rho 0: the mean loss, no group is guarded"
    return f"rho {rho:.4g}: guards every group of at least {math.exp(-rho):.2g} of the data, known or not"


def summary(fits: Sequence[Fit], data: OwnData) -> str:
    """A table of all methods, side by side, on the test data where there are any."""
    part = "test" if data.task.test is not None else "validation"
    found = [fit.result[part] for fit in fits]
    rows: list[tuple[str, list[str]]] = [(part, [fit.run.method for fit in fits])]
    rows.append(("accuracy", [_percent(f["top1"]) for f in found]))
    rows.append(("mean over classes", [_percent(f["balanced"]) for f in found]))
    rows.append(("worst class", [_worst(f["per_class"], data.classes) for f in found]))
    if all("per_group" in f for f in found):
        rows.append(("worst group", [_worst(f["per_group"], data.groups) for f in found]))
        rows += _groups(found, data.groups)
    rows.append(("mean loss", [f"{f['loss']:.3f}" for f in found]))
    rows.append(("robust loss", [f"{f['robust_loss']:.3f}" for f in found]))
    rows.append(("lam (training)", [_number(fit.lam) for fit in fits]))
    rows.append(("KL (training)", [_number(fit.kl) for fit in fits]))
    return _aligned(rows)


def warnings(fits: Sequence[Fit], data: OwnData) -> list[str]:
    """What to beware of in the last of them."""
    found = _learnt_nothing(fits[-1], len(data.classes))
    if fits[-1].run.study.trials and data.task.test is None:
        found.append(
            "settings were chosen on the validation data, so these scores flatter; --test FILE gives honest ones"
        )
    return found


def _learnt_nothing(fit: Fit, classes: int) -> list[str]:
    """Whether the loss that the method minimises is that of a model that knows nothing, log(classes) in any worst case:
    then the task is too hard. Above it the training went wrong."""
    robust = _takes_rho(fit.run) and fit.run.rho > 0
    loss, unsure = fit.result["train"]["robust_loss" if robust else "loss"], math.log(classes)
    if loss <= 0.95 * unsure:
        return []
    what = f"the {'robust' if robust else 'mean'} loss of the training data, {loss:.3f}, is"
    ignorant = f"that of a model that answers 'I do not know' to all, log {classes} = {unsure:.3f}"
    if loss > 1.05 * unsure:
        return [
            f"{what} worse than {ignorant}: the training is too short or its steps too large. Take more --epochs or a "
            "lower --lr, or let --search 10 find one"
        ]
    advice = "a smaller --rho (a larger --protect), " if robust else ""
    why = ": at this rho the model cannot fit the worst case" if robust else ""
    return [
        f"{what} hardly better than {ignorant}{why}. Take {advice}more --epochs or a larger model, and do not trust "
        "the probabilities"
    ]


def _takes_rho(run: Run) -> bool:
    return "rho" in REGISTRY[run.method].needs


def _groups(found: Sequence[dict[str, Any]], names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The groups that are there, the worst of the last method first."""
    last = found[-1]["per_group"]
    order = sorted((g for g, value in enumerate(last) if value is not None), key=lambda g: (last[g], g))
    rows = [(f"  {names[g]}", [_percent(f["per_group"][g]) for f in found]) for g in order[:MOST_GROUPS]]
    more = len(order) - len(rows)
    return rows + ([(f"  and {more} better ones", [""] * len(found))] if more > 0 else [])


def _worst(values: Sequence[float | None], names: Sequence[str]) -> str:
    value, place = min((value, k) for k, value in enumerate(values) if value is not None)
    return f"{_percent(value)} ({names[place]})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _aligned(rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    first = max(len(name) for name, _ in rows)
    widths = [max(len(cells[k]) for _, cells in rows) for k in range(len(rows[0][1]))]
    lines = [
        name.ljust(first) + "".join(f"   {cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        for name, cells in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
