"""Runs of the experiments' engine, the same by one process and by those that torchrun starts (`test_torchrun.py`)."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

import torch

from reproduction.__main__ import main
from reproduction.baselines import REGISTRY
from reproduction.data.images import ImageData
from reproduction.data.memory import Rows
from reproduction.engine.study import Study, StudyRun
from reproduction.engine.task import Task
from reproduction.engine.training import train
from reproduction.grids import GRIDS
from scdro.distributed import finish, initialize

STUDY = Study(
    "own",
    "made up",
    "own",
    tuple(REGISTRY),
    inputs="rows",
    epochs=6,
    decay_epoch=4,
    batch_size=15,
    points=4,
)
LONG = replace(STUDY, epochs=60, points=30)
IMAGES = Study(
    "own",
    "noise",
    "own",
    ("SCDRO",),
    inputs="images",
    model="resnet8",
    width=4,
    epochs=1,
    batch_size=8,
)
# Begun by one process, and ended by two.
INTERRUPTED = ("SCDRO", "RASCDRO", "ERM", "DualSGM", "PGSMD2", "AccMDA", "RECOVER", "GroupDRO")
DIVERGING = ("ERM", "SPD")


class Stop(Exception):
    pass


def rows():
    """Three parts of 103, 31 and 1 rows in float64, which are no multiples of anything."""
    generator = torch.Generator().manual_seed(0)

    def part(n):
        x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
        groups = (x[:, 1] > 0.8).long()
        labels = (x[:, 0] > 0).long() ^ groups
        return Rows(x, labels, names=("a", "b"), groups=groups, group_names=("usual", "odd"))

    return Task(part(103), part(31), part(1))


def images():
    generator = torch.Generator().manual_seed(0)

    def part(n):
        pixels = torch.randint(256, (n, 3, 8, 8), generator=generator, dtype=torch.uint8)
        return ImageData(
            pixels, torch.arange(n) % 2, mean=(0.5,) * 3, std=(0.25,) * 3, names=("a", "b")
        )

    return Task(part(24), part(7), part(5))


def run_of(method, study=STUDY, lr=0.05):
    settings = {key: values[0] for key, values in GRIDS[method].items()}
    return StudyRun(
        study,
        method,
        settings | {"lr": lr} | ({"rho": 0.5} if "rho" in REGISTRY[method].needs else {}),
        1,
    )


@contextlib.contextmanager
def float64():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def train_all(out):
    with float64():
        for method in REGISTRY:
            train(run_of(method), rows(), out / method, keep_model=True)
        for method in DIVERGING:
            train(run_of(method, lr=1e300), rows(), out / "diverging" / method)


def begin(out):
    """Stop some of the runs after a while."""

    def stop(done, total, text):
        if done > 0.4 * total:
            raise Stop

    with float64():
        for method in INTERRUPTED:
            with contextlib.suppress(Stop):
                train(run_of(method), rows(), out / method, checkpoint_seconds=0.0, progress=stop)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, *alone = Path(sys.argv[1]), *sys.argv[2:]
    initialize()
    if alone:  # one long run, for the test that kills a process
        with float64():
            train(run_of("SCDRO", LONG), rows(), folder, keep_model=True, checkpoint_seconds=0.0)
        finish()
        sys.exit()
    train_all(folder)
    train(run_of("SCDRO", IMAGES), images(), folder / "images", keep_model=True)
    finish()
    with contextlib.suppress(SystemExit):
        main(["figure1", "--no-such-option"])
    sys.exit(
        main(
            [
                "figure1",
                "--scale",
                "smoke",
                "--methods",
                "NoSuchMethod",
                "--out",
                str(folder / "wrong"),
            ]
        )
    )
