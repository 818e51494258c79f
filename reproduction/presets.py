"""The paper's experiments as data, and how they are shortened.

`paper` is the protocol of section 5 and the appendix. `small` takes an evening on two cores,
`smoke` a minute. What each of them changes is in one place below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from reproduction.catalog import LISTS
from reproduction.engine.study import Study, chosen, takes

__all__ = ["BY_LR", "EXPERIMENTS", "SCALES", "changed", "datasets", "decay_at", "names_lr", "study"]

Grid = tuple[tuple[str, tuple[float, ...]], ...]

CIFAR = ("cifar10-st", "cifar100-st")
LARGE = ("imagenet-lt", "inaturalist18")
SCALES = ("paper", "small", "smoke")
RHO_GRID = (0.1, 0.5, 1.0)
TABLE4_RHO = (0.01, 0.05, 0.1, 0.5, 1.0)

# Epochs, and the epoch after which lr falls by ten.
CONVEX_LENGTH = {"imagenet-lt": (60, 30), "inaturalist18": (30, 20)}
NETWORK_LENGTH = {"imagenet-lt": (30, 20), "inaturalist18": (30, 20)}


def _convex(dataset: str, **own: Any) -> Study:
    """A linear classifier on features of a frozen network."""
    epochs, decay = CONVEX_LENGTH.get(dataset, (3, 2))
    rho = (0.1,) if dataset in LARGE else (0.5,)
    return _study(dataset, **{"epochs": epochs, "decay_epoch": decay, "rho": rho, **own})


def _network(dataset: str, **own: Any) -> Study:
    """ResNet20 from scratch; for large images, the last block and the classifier of a pretrained ResNet50."""
    epochs, decay = NETWORK_LENGTH.get(dataset, (120, 90))
    model = (
        {"model": "resnet50", "part": "last_block"} if dataset in LARGE else {"model": "resnet20"}
    )
    return _study(
        dataset, **{"inputs": "images", "epochs": epochs, "decay_epoch": decay, **model, **own}
    )


def _hidden(dataset: str, **own: Any) -> Study:
    """Weak groups without labels: a small network on frozen features or on the rows of a table.

    Five steps times five values of what matters most for each method. Of a table with two classes
    accuracy can be had by chance, so settings are chosen by the robust value.
    """
    inputs, choose_by = ("rows", "robust_value") if dataset == "adult" else ("features", "accuracy")
    length = {
        "epochs": 20,
        "decay_epoch": 15,
        "model": "mlp",
        "width": 128,
        "max_grad_norm": 1.0,
    }  # as docs/guide.md
    search = {
        "rho": TABLE4_RHO,
        "choose_rho": True,
        "steps": STEPS,
        "refine": True,
        "grid": HIDDEN_GRID,
    }
    return _study(
        dataset,
        **{"inputs": inputs, **length, **search, "tune_seeds": 3, "choose_by": choose_by, **own},
    )


def _study(dataset: str, methods: tuple[str, ...], grid: Grid = (), **own: Any) -> Study:
    batch_size = 512 if dataset in LARGE else 128
    known = _known(grid, methods)
    return Study(
        dataset=dataset, methods=methods, scale="paper", batch_size=batch_size, grid=known, **own
    )


# Of effective steps and of the rest every method tries as many.
STEPS = (0.03, 0.1, 0.3, 1.0, 3.0)
HIDDEN_GRID: Grid = (
    ("beta", (0.1,)),  # rho has five values
    ("ERM.momentum", (0.0, 0.5, 0.8, 0.9, 0.95)),
    ("balance", (0.9, 0.99, 0.999, 0.9999, 1.0)),
    ("Focal.gamma", (0.5, 1.0, 2.0, 3.0, 5.0)),
    ("GroupDRO.dual_lr", (0.001, 0.003, 0.01, 0.03, 0.1)),
    ("ABSGD.lam", (0.1, 0.3, 1.0, 3.0, 10.0)),
    ("ABSGD.gamma", (0.5,)),
)

Maker = Callable[..., Study]
HIDDEN_METHODS = (
    "ERM",
    "ClassBalanced",
    "Focal",
    "GroupDRO",
    "ABSGD",
    "FastDRO",
    "SCDRO",
    "ASCDRO",
)
# The parts of an experiment: the setting, its data sets, the methods, and what differs from the
# setting.
EXPERIMENTS: Mapping[str, tuple[Maker, tuple[str, ...], tuple[str, ...], Mapping[str, Any]]] = {
    "figure1": (_convex, (*CIFAR, *LARGE), ("RSCDRO", "RASCDRO", "SPD", "FastDRO", "DualSGM"), {}),
    "figure2": (_network, (*CIFAR, *LARGE), ("SCDRO", "PGSMD2", "FastDRO", "DualSGM"), {}),
    "table2": (
        _convex,
        LARGE,
        ("RSCDRO", "FastDRO-CVaR", "FastDRO-chi2-penalty", "FastDRO-chi2"),
        {"rho": RHO_GRID, "choose_rho": True},
    ),
    "table3": (
        _network,
        LARGE,
        ("SCDRO", "ERM", "RECOVER", "ABSGD"),
        {"rho": RHO_GRID, "choose_rho": True},
    ),
    "table4": (_network, CIFAR, ("PGSMD2", "FastDRO", "SCDRO"), {"rho": TABLE4_RHO}),
    "hidden": (_hidden, ("cifar100-hidden", "adult"), HIDDEN_METHODS, {}),
}

# Five steps, two values of what matters most, with and without a bound on the gradients, and four
# steps more around the best.
SMALL_GRID: Grid = (
    ("beta", (0.1, 0.5)),
    ("ERM.momentum", (0.5, 0.9)),
    ("FastDRO.momentum", (0.5, 0.9)),
    ("FastDRO-chi2.momentum", (0.5, 0.9)),
    ("lam", (1.0, 10.0)),
    ("gamma", (0.9,)),
    ("dual_lr", (1e-5, 1e-4)),
    ("DualSGM.dual_lr", (0.1,)),
    ("max_grad_norm", (0.0, 1.0)),  # 0 is no bound
)
# The same with three values, since linear models are quick.
CONVEX_GRID: Grid = (
    ("beta", (0.1, 0.5, 0.9)),
    ("ERM.momentum", (0.0, 0.5, 0.9)),
    ("FastDRO.momentum", (0.0, 0.5, 0.9)),
    ("lam", (1.0,)),
    ("dual_lr", (1e-5, 1e-4, 1e-3)),
    ("DualSGM.dual_lr", (0.001, 0.01, 0.1)),
)
# With three values where SCDRO has three radii to choose from.
HEAD_GRID: Grid = (
    ("beta", (0.1,)),
    ("ERM.momentum", (0.0, 0.5, 0.9)),
    ("lam", (0.1, 1.0, 10.0)),
    ("RECOVER.lam", (1.0, 50.0, 100.0)),
    ("gamma", (0.9,)),
)
SMALL_CONVEX: Mapping[str, Grid] = {"figure1": CONVEX_GRID, "table2": HEAD_GRID}
# A narrow ResNet8 on images of half the side, a tenth of the epochs.
SMALL_NETWORK: Mapping[str, Any] = {
    "model": "resnet8",
    "part": "all",
    "width": 8,
    "pool": 2,
    "epochs": 12,
    "decay_epoch": 9,
    "tune_epochs": 4,
    "grid": SMALL_GRID,
    "steps": STEPS,
    "refine": True,
    "points": 10,
}
# A hidden layer on frozen features, where the paper trains the last block of a pretrained network.
SMALL_HEAD: Mapping[str, Any] = {
    "inputs": "features",
    "model": "mlp",
    "part": "all",
    "width": 128,
    "epochs": 10,
    "decay_epoch": 7,
    "grid": HEAD_GRID,
    "steps": STEPS,
    "refine": True,
    "points": 10,
}
SMOKE: Mapping[str, Any] = {
    "epochs": 6,
    "decay_epoch": 4,
    "tune_epochs": 0,
    "batch_size": 32,
    "tune_seeds": 1,
    "trials": 2,
    "refine": False,
    "seeds": 2,
    "points": 3,
}
SMOKE_NETWORK: Mapping[str, Any] = {"model": "resnet8", "part": "all", "width": 4}


BY_LR: Mapping[str, Any] = {"steps": (), "refine": False}


def datasets(experiment: str, scale: str) -> tuple[str, ...]:
    """The data sets of an experiment; `small` uses CIFAR instead of large images."""
    own = chosen(EXPERIMENTS, experiment, "an experiment")[1]
    return own if scale == "paper" else tuple(name for name in own if name not in LARGE) or CIFAR


def study(
    experiment: str, dataset: str, scale: str, methods: tuple[str, ...] | None = None
) -> Study:
    """The configuration of an experiment on a data set, at a scale, with its own methods or others."""
    make, _, usual, own = chosen(EXPERIMENTS, experiment, "an experiment")
    chosen(dict.fromkeys(SCALES), scale, "a scale")
    whole = make(
        dataset, experiment=experiment, methods=usual if methods is None else methods, **own
    )
    return whole if scale == "paper" else _shortened(whole, scale)


def changed(plain: Study, own: Mapping[str, Any]) -> Study:
    """A study with changed fields. Other epochs move the decay of lr; a grid keeps entries that are not given; its
    values of lr take the place of steps; a bound on the gradients that of a search for one."""
    own = dict(own)
    if names_lr(own.get("grid", ())):
        own = {**BY_LR, **own}
    if "epochs" in own and "decay_epoch" not in own:
        own["decay_epoch"] = decay_at(plain, own["epochs"])
    if "max_grad_norm" in own:  # a bound that is given is not searched
        plain = replace(plain, grid=tuple(e for e in plain.grid if e[0] != "max_grad_norm"))
    if "grid" in own:
        own["grid"] = tuple({**dict(plain.grid), **dict(own["grid"])}.items())
    return replace(plain, **own)


def names_lr(grid: Grid) -> bool:
    """Whether it has values of lr."""
    return any(key.rpartition(".")[2] == "lr" for key, _ in grid)


def decay_at(plain: Study, epochs: int) -> int:
    """The epoch after which lr falls: at the same share of all epochs."""
    return max(round(plain.decay_epoch * epochs / plain.epochs), 1)


def _shortened(whole: Study, scale: str) -> Study:
    network = whole.inputs == "images"
    changes: dict[str, Any] = {"scale": scale}
    if network:
        small = SMALL_HEAD if whole.experiment == "table3" else SMALL_NETWORK
        changes |= small if scale == "small" or small is SMALL_HEAD else SMOKE_NETWORK
    elif scale == "small" and whole.experiment in SMALL_CONVEX:
        changes |= {"steps": STEPS, "refine": True, "grid": SMALL_CONVEX[whole.experiment]}
    if scale == "smoke":
        changes |= SMOKE
    changes["grid"] = _known(changes.get("grid", whole.grid), whole.methods)
    return replace(whole, **changes)


def _known(grid: Grid, methods: tuple[str, ...]) -> Grid:
    """The entries that concern these methods."""

    def concerns(key: str) -> bool:
        method, _, setting = key.rpartition(".")
        return any(m == (method or m) and takes(m, setting) for m in methods)

    return tuple((key, values) for key, values in grid if concerns(key))


assert set(LARGE) <= set(LISTS)
