"""What came of a training, in a few lines to read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from scdro.application.own.comparing import verdict
from scdro.application.own.fitting import Fit
from scdro.application.own.opening import OwnData
from scdro.application.study import Run
from scdro.optim import REGISTRY

__all__ = ["about_data", "about_rho", "summary", "warnings"]

MOST_SHOWN = 20  # classes or groups
OTHER_BALLS = ("FastDRO-chi2",)  # whose rho is not that of the robust loss
Row = tuple[str, int | None, Sequence[str]]  # a name, the number of samples, a cell for each method


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
    share = f"{math.exp(-rho):.2g}"
    return f"rho {rho:.4g}: bounds the training loss of every group of at least {share} of the data, known or not"


def summary(fits: Sequence[Fit], data: OwnData) -> str:
    """A table of all methods, side by side, on the test data where there are any; of two also whether they differ."""
    samples, found = data.evaluated, [fit.result[data.part] for fit in fits]
    rows: list[Row] = [
        ("accuracy", len(samples), [_percent(f["top1"]) for f in found]),
        ("mean over classes", None, [_percent(f["balanced"]) for f in found]),
        *_parts("class", found, data.classes, samples.labels),
    ]
    if all("per_group" in f for f in found):
        rows += _parts("group", found, data.groups, getattr(samples, "groups", None))
    rows += [
        ("mean loss", None, [f"{f['loss']:.3f}" for f in found]),
        (f"robust loss at rho {fits[-1].run.scored_at:.4g}", None, [f"{f['robust_loss']:.3f}" for f in found]),
        ("lam (training)", None, [_number(fit.lam) for fit in fits]),
        ("KL (training)", None, [_number(fit.kl) for fit in fits]),
    ]
    table = _aligned(data.part, [fit.run.method for fit in fits], rows)
    return "\n".join([table, *(f"\n{line}" for line in verdict(fits, data))])


def warnings(fits: Sequence[Fit], data: OwnData) -> list[str]:
    """What to beware of in the last of them."""
    found = _learnt_nothing(fits[-1], len(data.classes)) + _beaten(fits[0], fits[-1])
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


def _beaten(plain: Fit, own: Fit) -> list[str]:
    """Whether plain training minimised the robust loss better than the method that is made for it."""
    if not _takes_rho(own.run) or own.run.method in OTHER_BALLS:
        return []
    theirs, ours = (fit.result["train"]["robust_loss"] for fit in (plain, own))
    if ours - theirs <= max(0.005, 0.05 * ours):
        return []
    return [
        f"plain training has the lower robust loss on the training data ({theirs:.3f} against {ours:.3f}): "
        f"{own.run.method} was not trained well; try more --epochs, or --search 10"
    ]


def _takes_rho(run: Run) -> bool:
    return "rho" in REGISTRY[run.method].needs


def _parts(what: str, found: Sequence[dict[str, Any]], names: Sequence[str], members: Any) -> list[Row]:
    """The classes or groups that are there, the worst of the last method first."""
    shares = [f[f"per_{what}"] for f in found]
    counts = torch.bincount(members.cpu(), minlength=len(names)).tolist()
    order = sorted((k for k, value in enumerate(shares[-1]) if value is not None), key=lambda k: (shares[-1][k], k))
    rows: list[Row] = [(f"worst {what}", None, [_worst(each, names) for each in shares])]
    rows += [(f"  {names[k]}", counts[k], [_percent(each[k]) for each in shares]) for k in order[:MOST_SHOWN]]
    more = len(order) - MOST_SHOWN
    return rows + ([(f"  and {more} better ones", None, [""] * len(found))] if more > 0 else [])


def _worst(values: Sequence[float | None], names: Sequence[str]) -> str:
    value, place = min((value, k) for k, value in enumerate(values) if value is not None)
    return f"{_percent(value)} ({names[place]})"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _aligned(title: str, heads: Sequence[str], rows: Sequence[Row]) -> str:
    texts = [[title, "n", *heads]]
    texts += [[name, "" if n is None else f"{n:,}", *cells] for name, n, cells in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = [
        "   ".join(f"{text:{'>' if k == 1 else '<'}{widths[k]}}" for k, text in enumerate(line)).rstrip()
        for line in texts
    ]
    return "\n".join(lines)
