"""A study in words: the command that runs it, and how it differs from the paper's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from reproduction.catalog import EMBEDDED
from reproduction.engine.study import Arm, Study
from reproduction.engine.wording import plural
from reproduction.paired import OURS
from reproduction.presets import BY_LR, EXPERIMENTS, datasets, decay_at, names_lr, study

__all__ = [
    "BEYOND",
    "SMOKE",
    "STUDIES",
    "claimed",
    "command",
    "plan",
    "shortened",
    "shortened_line",
    "title",
    "warnings",
]

STUDIES = "studies.json"  # next to the tables: the study of each data set

BEYOND = ("hidden",)  # experiments that are not in the paper
NAMES = {
    "cifar10-st": "CIFAR10-ST",
    "cifar100-st": "CIFAR100-ST",
    "imagenet-lt": "ImageNet-LT",
    "inaturalist18": "iNaturalist18",
}
SMOKE = "smoke scale: that it runs, nothing more; which method is ahead means nothing"
HALVED = "Test accuracy is that of every other test image; the others are the validation data."
# What a reader has to know about our data besides the study.
DATA_NOTES: Mapping[str, str] = {
    "cifar10-st": HALVED,
    "cifar100-st": f"{HALVED} Its rare images are not the paper's very ones.",
    "digits-st": HALVED,
    "inaturalist18": (
        "Test accuracy is that of two of the three validation images of each class; the third is"
        " the validation data."
    ),
}
Config = Mapping[str, Any]  # a study's fields, or some of them


# -- how to run it
# ----------------------------------------------------------------------------------------------------


def _own_choices(own: Study) -> dict[str, Any]:
    """The fields in which a study differs from its scale's, as options would set them."""
    plain = study(own.experiment, own.dataset, own.scale)
    preset = study(own.experiment, own.dataset, own.scale, own.methods)
    found = {
        f.name: getattr(own, f.name)
        for f in fields(Study)
        if getattr(own, f.name) != getattr(preset, f.name)
    }
    if own.decay_epoch == decay_at(preset, own.epochs):
        found.pop("decay_epoch", None)
    else:
        found["decay_epoch"] = own.decay_epoch
    if "grid" in found:
        found["grid"] = tuple(entry for entry in own.grid if entry not in preset.grid)
        if not found["grid"]:  # an entry less: the bound on the gradients is given, not searched
            del found["grid"]
        elif names_lr(found["grid"]):
            found = {name: value for name, value in found.items() if value != BY_LR.get(name, ...)}
    return ({} if own.methods == plain.methods else {"methods": own.methods}) | found


def _choices(studies: Iterable[Study]) -> dict[str, Any]:
    """The choices for all data sets of a command, which has one value per option."""
    return {name: value for own in studies for name, value in _own_choices(own).items()}


def title(studies: Sequence[Study]) -> str:
    """The experiment, its scale, and changed settings."""
    first, chosen = studies[0], _choices(studies)
    set_to = ", ".join(
        f"{name.replace('_', ' ')} {_written(name, value)}" for name, value in chosen.items()
    )
    return f"{first.experiment}, scale {first.scale}" + (f", with {set_to}" if set_to else "")


def command(studies: Sequence[Study]) -> str:
    """The command that runs these studies, with DIR for folders."""
    first, names = studies[0], tuple(own.dataset for own in studies)
    words = ["python -m reproduction", first.experiment]
    words += [] if first.scale == "small" else [f"--scale {first.scale}"]
    words += (
        [] if names == datasets(first.experiment, first.scale) else [f"--dataset {' '.join(names)}"]
    )
    read = [own.inputs for own in studies if own.dataset not in EMBEDDED]
    words += ["--features DIR"] * ("features" in read) + ["--data DIR"] * any(
        kind != "features" for kind in read
    )
    for name, value in _choices(studies).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{flag}")
        else:
            words.append(f"--{flag} {_written(name, value).replace(', ', ' ')}")
    return " ".join(words)


def _written(name: str, value: Any) -> str:
    if name == "grid":
        return ", ".join(f"{key}={','.join(f'{v:g}' for v in values)}" for key, values in value)
    if isinstance(value, (list, tuple)):
        return ", ".join(_written(name, each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- how it differs from the paper
# ------------------------------------------------------------------------------------


def shortened(config: Config) -> list[str]:
    """How a study differs from the paper's for that experiment; empty if it is the protocol itself.

    For data that are not in the paper, it is compared with the protocols of the data that are.
    """
    known = EXPERIMENTS[config["experiment"]][1]
    there = config["dataset"] in known
    theirs = [
        study(config["experiment"], name, "paper")
        for name in ([config["dataset"]] if there else known)
    ]
    found = (
        []
        if there
        else [f"{config['dataset']} (the paper's: {_and(NAMES.get(n, n) for n in known)})"]
    )
    for key, words in WORDS.items():
        if key not in config or (
            key == "decay_epoch" and any(text.startswith("epochs") for text in found)
        ):
            continue
        own, others = words(config), dict.fromkeys(words(asdict(one)) for one in theirs)
        if own not in others:
            usual = " or ".join(map(str, others))
            text = (
                f"not {usual}"
                if own is None
                else own
                if None in others
                else f"{own} instead of {usual}"
            )
            found.append(LABELS.get(key, "") + text)
    return found + _methods(config, theirs[0].methods)


def shortened_line(config: Config) -> str:
    """The same in one line, with notes about the update of lam and the data."""
    found, note = shortened(config), DATA_NOTES.get(config["dataset"], "")
    ours = [method for method in config.get("methods", ()) if method in OURS]
    if ours and config["experiment"] not in BEYOND:
        note = f"lam is solved for in {_and(ours)}; the paper takes gradient steps. {note}"
    of = " of its own full scale" if config["experiment"] in BEYOND else ""
    given = ", given the features" if config.get("inputs") == "features" else ""
    what = "; ".join(found) if found else f"nothing{given}"
    return f"What was shortened or changed{of}: {what}. {note}".strip()


def claimed(config: Config) -> bool:
    """Whether the paper's claim is about these methods: all of the experiment's methods are there."""
    return set(EXPERIMENTS[config["experiment"]][2]) <= set(config.get("methods", ()))


def warnings(studies: Sequence[Study]) -> list[str]:
    """What to know before reading any number."""
    first, found = studies[0], []
    for own in studies:
        if own.dataset in EMBEDDED:
            usual = _and(datasets(first.experiment, first.scale))
            pixels = "; pixels, not features" if own.inputs == "features" else ""
            found.append(f"{own.dataset}: embedded digits in place of {usual}{pixels}")
    return found + ([SMOKE] if first.scale == "smoke" else [])


def _model(config: Config) -> str:
    model, part = config["model"], config.get("part", "all")
    size = {"linear": "", "resnet50": ""}.get(model, f" of width {config.get('width')}")
    return f"{model}{size}" if part == "all" else f"the {part.replace('_', ' ')} of {model}{size}"


def _plain(key: str) -> Callable[[Config], str | None]:
    return lambda config: _written(key, config[key])


def _unless(usual: Any, key: str, form: str) -> Callable[[Config], str | None]:
    """Words without "instead of"; None for the usual value."""
    return lambda config: form.format(_written(key, config[key])) if config[key] != usual else None


def _counted(form: str, count: int, noun: str) -> str | None:
    return form.format(plural(count, noun)) if count else None


LABELS = {
    "epochs": "epochs ",
    "decay_epoch": "lr falls after epoch ",
    "batch_size": "batches of ",
    "weight_decay": "weight decay ",
    "rho": "rho ",
    "seeds": "seeds ",
}
# None is the usual value, which needs no words.
WORDS: Mapping[str, Callable[[Config], str | None]] = {
    "inputs": _plain("inputs"),
    "model": _model,
    "pool": _unless(1, "pool", "images smaller by {}"),
    "epochs": _plain("epochs"),
    "decay_epoch": _plain("decay_epoch"),
    "batch_size": _plain("batch_size"),
    "weight_decay": _plain("weight_decay"),
    "max_grad_norm": _unless(0.0, "max_grad_norm", "gradients bounded by {}"),
    "precision": _unless("float32", "precision", "steps in {}"),
    "rho": _plain("rho"),
    "choose_rho": lambda config: (
        "rho chosen on validation data" if config["choose_rho"] else "each rho by itself"
    ),
    "tune_rho": _unless(0.0, "tune_rho", "settings searched at rho {} alone"),
    "tune_epochs": lambda config: _counted("searches of {}", config["tune_epochs"], "epoch"),
    "tune_seeds": lambda config: _counted(
        "searches with {}", config["tune_seeds"] - 1 and config["tune_seeds"], "seed"
    ),
    "choose_by": _unless("accuracy", "choose_by", "settings chosen by the robust value"),
    "trials": lambda config: _counted("at most {} of each grid", config["trials"], "setting"),
    "grid": lambda config: (
        f"grids {_written('grid', config['grid'])} in place of the paper's"
        if config["grid"]
        else None
    ),
    "steps": lambda config: (
        f"effective steps {_written('steps', config['steps'])} for every method"
        if config["steps"]
        else None
    ),
    "refine": lambda config: "four steps more around the best" if config["refine"] else None,
    "seeds": _plain("seeds"),
}


def _methods(config: Config, usual: Sequence[str]) -> list[str]:
    own = config.get("methods", usual)
    missing, more = [m for m in usual if m not in own], [m for m in own if m not in usual]
    return [
        f"{word} {_and(names)}" for word, names in (("without", missing), ("with", more)) if names
    ]


def _and(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


# -- what is going to be done
# ------------------------------------------------------------------------------------------


def plan(studies: Sequence[Study]) -> str:
    """The fields, what was shortened, and the number of settings and runs, for every data set."""
    head = [title(studies), *warnings(studies), command(studies)]
    return "\n\n".join(["\n".join(head), *map(_planned, studies)])


def _planned(study: Study) -> str:
    width = max(map(len, study.as_dict()))
    named = ("experiment", "dataset", "scale")
    fields = [
        f"  {key:{width}}  {json.dumps(value)}"
        for key, value in study.as_dict().items()
        if key not in named
    ]
    settings = [f"{arm}: {plural(len(_settings(study, arm)), 'setting')}" for arm in study.arms()]
    searched, around, final = number_of_runs(study)
    refined = f"{around:,} around the best, " if around else ""
    runs = f"runs: {searched:,} to search, {refined}{final:,} of seeds"
    return "\n".join([study.dataset, *fields, shortened_line(study.as_dict()), *settings, runs])


def number_of_runs(study: Study) -> tuple[int, int, int]:
    """The number of runs of the search, where arms may share runs, of those around the best, at most, and of the seeds
    of the best."""
    tried = [runs for arm in study.arms() if len(runs := study.search(arm)) > 1]
    around = sum(
        len(study.finer(arm, study.search(arm)[0].settings))
        for arm in study.arms()
        if study.searches
    )
    return (
        len({run.path for runs in tried for run in runs}),
        around,
        study.seeds * len(study.arms()),
    )


def _settings(study: Study, arm: Arm) -> set[Any]:
    return {tuple(run.settings.items()) for run in study.search(arm)}
