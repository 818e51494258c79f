"""From a plan and data to a trained model in a folder: the experiments' own engine, one run after the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import scdro
from scdro.distributed.ranks import Ranks
from scdro.errors import CheckpointError, NonFiniteLossError
from scdro.experiments.assess import predicted
from scdro.experiments.config import Arm, Run, Study
from scdro.experiments.folder import environment
from scdro.experiments.own.differences import differences
from scdro.experiments.own.hardest import tell
from scdro.experiments.own.opening import OwnData
from scdro.experiments.own.plan import Plan
from scdro.experiments.own.saved import SavedModel
from scdro.experiments.storage import read_json, write_json
from scdro.experiments.sweep import best_settings
from scdro.experiments.training import Progress, train
from scdro.models import Network
from scdro.optim import REGISTRY

__all__ = ["Fit", "fit", "remembered_threads"]


@dataclass(frozen=True)
class Fit:
    """What came of one method: its settings, the engine's result, and lam and KL at the end where it has them.

    `right` says which of the evaluated samples it predicts rightly, where there are two methods to compare.
    """

    run: Run
    result: dict[str, Any]
    lam: float | None
    kl: float | None
    right: Tensor | None = None


def fit(
    plan: Plan,
    data: OwnData,
    out: Path,
    name: str,
    *,
    export: bool = False,
    device: str = "cpu",
    checkpoint_seconds: float = 20.0,
    tensorboard: bool = False,
    progress: Progress = lambda done, total, text: None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Fit]:
    """Train what the plan asks for, or go on where a process was killed; the last is the plan's own method. Where
    torch.distributed is initialised, its processes share each run, and all call this.

    Writes study.json, a folder for each run, and at the end model.pt; of a network also model.pt2.
    """
    study, ranks = plan.study(data, name), Ranks()
    ranks.agreed(lambda: _begin(plan, study, data, out))
    torch.set_num_threads(study.threads)
    means: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds, "device": device, "progress": progress}
    means["tensorboard"] = tensorboard
    fits = []
    for method in study.methods:
        settings = _searched(study, method, data, out, means, say)
        run = Run(study, method, settings, plan.seed)
        result = train(run, data.task, out / run.path, keep_model=True, **means)
        if result["status"] != "done":
            raise NonFiniteLossError(
                f"expected a training that converges, got one that diverged, {run}: {result['error'].split(';')[0]}; "
                "lower --lr, or let --search 10 find one that works"
            )
        result = ranks.agreed(partial(tell, result, data, out, out / run.path))
        fits.append(Fit(run, result, *_last_temperature(out / run.path)))
    if ranks.first:
        _save(_saved(fits[-1], data, out), out, export)
    if ranks.first and len(fits) > 1:
        fits = [replace(fit, right=_right(_saved(fit, data, out).model().to(device), data)) for fit in fits]
    return fits


def remembered_threads(out: Path) -> int | None:
    """Those of the run in a folder: sums depend on them, so it must go on with as many."""
    path = out / "study.json"
    return int(read_json(path)["study"]["threads"]) if path.exists() else None


def _searched(
    study: Study, method: str, data: OwnData, out: Path, means: dict[str, Any], say: Callable[[str], None]
) -> dict[str, Any]:
    """The best of the settings to try, by the mean accuracy over the validation data's classes."""
    runs = study.search(Arm(method, study.rho[0] if "rho" in REGISTRY[method].needs else None))
    if len(runs) > 1:
        say(f"{method}: trying {len(runs)} settings on the validation data")
        for run in runs:
            train(run, data.task, out / run.path, **means)
    found = best_settings(out, runs)
    if found is None:
        raise NonFiniteLossError(f"expected settings of {method} that converge, got none of {len(runs)}")
    return found


def _begin(plan: Plan, study: Study, data: OwnData, out: Path) -> None:
    """Save what a run in this folder is; another one is refused."""
    own = {"method": plan.method, "seed": plan.seed, "data": data.fingerprint(), "study": study.as_dict()}
    own["options"] = {"data": data.options, "run": plan.options()}
    path = out / "study.json"
    plain = json.loads(json.dumps(own))
    if path.exists():
        wrong = differences(read_json(path), plain, trained=(out / "model.pt").exists())
        if wrong:
            raise CheckpointError(
                f"expected the same data and options as before in {out}, got others: {', '.join(wrong)}; name another "
                "folder by --out"
            )
    elif out.is_dir() and (out / "model.pt").exists():
        raise CheckpointError(f"expected a new folder, or one of `scdro train`, got {out}, which holds another model")
    write_json(path, plain | _described(data) | {"environment": environment(Ranks())})


def _described(data: OwnData) -> dict[str, Any]:
    """Names of classes and groups, and the training samples of each."""
    groups = getattr(data.task.train, "groups", None)
    sizes = [] if groups is None else torch.bincount(groups, minlength=len(data.groups)).tolist()
    counts = {"class_counts": data.task.train.counts.tolist(), "group_counts": sizes}
    return {"classes": list(data.classes), "groups": list(data.groups), **counts}


def _last_temperature(folder: Path) -> tuple[float | None, float | None]:
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return last.get("lam"), last.get("kl")


def _right(model: nn.Module, data: OwnData) -> Tensor:
    found = predicted(model, data.task, data.evaluated)
    return found.logits.argmax(1) == found.labels


def _saved(fitted: Fit, data: OwnData, out: Path) -> SavedModel:
    run = fitted.run
    weights = torch.load(out / run.path / "model.pt", map_location="cpu", weights_only=True)["state_dict"]
    study = run.study
    return SavedModel(
        {
            "name": study.model,
            "shape": list(data.preparation.shape),
            "classes": len(data.classes),
            "width": study.width,
        },
        weights,
        list(data.classes),
        data.preparation,
        list(data.columns),
        {"method": run.method, "settings": dict(run.settings), "rho": run.rho, "seed": run.seed}
        | {"epochs": study.epochs, "batch_size": study.batch_size, "scdro": scdro.__version__},
    )


def _save(saved: SavedModel, out: Path, export: bool) -> None:
    saved.save(out / "model.pt")
    if export or isinstance(saved.model(), Network):
        saved.export(out / "model.pt2")
