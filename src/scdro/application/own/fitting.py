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
from scdro.application.assess import predicted
from scdro.application.checkpoints import usable
from scdro.application.folder import environment
from scdro.application.networks import Network
from scdro.application.outcomes import best_settings
from scdro.application.own.differences import differences
from scdro.application.own.hardest import tell
from scdro.application.own.opening import OwnData
from scdro.application.own.plan import Plan
from scdro.application.own.saved import SavedModel
from scdro.application.storage import read_json, write_json
from scdro.application.study import Arm, Run, Study
from scdro.application.training import Progress, train
from scdro.distributed import Ranks
from scdro.errors import CheckpointError, NonFiniteLossError
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
        trained = train(run, data.task, out / run.path, keep_model=True, **means)
        result = trained.result
        if result["status"] != "done":
            raise NonFiniteLossError(
                f"expected a training that converges, got one that diverged, {run}: {result['error'].split(';')[0]}; "
                "lower --lr, or let --search 10 find one that works"
            )
        result = ranks.agreed(partial(tell, result, data, out, out / run.path))
        last = trained.curve[-1] if trained.curve else {}
        fits.append(Fit(run, result, last.get("lam"), last.get("kl")))
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
    tried = [train(run, data.task, out / run.path, **means).result for run in runs] if len(runs) > 1 else [None]
    found = best_settings(runs, tried)
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
        with usable(path):
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
