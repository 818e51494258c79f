"""The figures of `python -m reproduction`: all methods of all data, at a radius that is named, without lost seeds."""

import dataclasses

import pytest

from reproduction.engine.outcomes import Outcome
from reproduction.figures import panels
from reproduction.presets import study

pytest.importorskip("matplotlib")


def points(height, count=4, seconds=0.1):
    scores = {"top1": height, "minority": height, "robust_loss": 2 - height}
    return [
        {
            "samples": 100 * k,
            "seconds": seconds * k,
            "test": scores,
            "train": {**scores, "top1": height + k / 100},
        }
        for k in range(count)
    ]


def outcome(arm, height, statuses):
    """A seed that diverged has as many points as others, up to its end."""
    curves = [points(height if s == "done" else 0.9, 4 if s == "done" else 3) for s in statuses]
    return Outcome(arm, {"lr": 0.1}, [], [{"status": s} for s in statuses], curves)


def figure_of(*studies, lost=None, axis="samples"):
    found = []
    for own in studies:
        statuses = {
            arm: (lost or {}).get((own.dataset, arm.method), ["done"] * 2) for arm in own.arms()
        }
        found.append(
            (own, [outcome(arm, 0.1 + (arm.rho or 0.0) / 10, statuses[arm]) for arm in own.arms()])
        )
    return panels(found, axis)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_radius_that_is_drawn_is_there_and_named():
    own = dataclasses.replace(study("table4", "cifar10-st", "small"), rho=(0.1, 1.0), tune_rho=0.5)
    ax = figure_of(own).axes[0]
    assert ax.get_title() == "cifar10-st, rho 0.1"
    assert [list(line.get_ydata()) for line in ax.get_lines()] == [
        pytest.approx([11, 12, 13, 14])
    ] * 3
    assert (
        figure_of(dataclasses.replace(own, tune_rho=0.9)).axes[0].get_title() == "cifar10-st, rho 1"
    )
    assert figure_of(study("figure2", "cifar10-st", "small")).axes[0].get_title() == "cifar10-st"


def test_the_legend_is_that_of_all_data_sets():
    both = [study("figure2", name, "small") for name in ("cifar10-st", "cifar100-st")]
    first = dataclasses.replace(both[0], methods=("SCDRO", "PGSMD2", "FastDRO"), grid=())
    lost = {
        ("cifar10-st", "SCDRO"): ["done", "diverged"],
        ("cifar100-st", "SCDRO"): ["diverged", "failed", "done"],
    }
    figure = figure_of(first, both[1], lost=lost)
    assert legend(figure) == [
        "SCDRO (1 lost on cifar10-st, 2 lost on cifar100-st)",
        "PGSMD2",
        "FastDRO",
        "DualSGM",
    ]
    assert legend(figure_of(first, lost=lost)) == ["SCDRO (1 lost)", "PGSMD2", "FastDRO"]
    colours = {line.get_color() for ax in figure.axes for line in ax.get_lines()}
    assert len(colours) == 4


def test_a_method_whose_seeds_were_all_lost_is_not_drawn():
    own = study("figure2", "cifar10-st", "small")
    figure = figure_of(
        own, lost={("cifar10-st", "DualSGM"): ["diverged"] * 2, ("cifar10-st", "SCDRO"): []}
    )
    assert legend(figure) == ["SCDRO", "PGSMD2", "FastDRO", "DualSGM (all lost)"]
    lengths = [len(line.get_ydata()) for line in figure.axes[0].get_lines()]
    assert lengths == [0, 4, 4, 0]


@pytest.mark.parametrize(("axis", "expected"), [("seconds", "0.5"), ("samples", "5k")])
def test_numbers_at_the_axes_are_plain(axis, expected):
    figure = figure_of(study("figure2", "cifar10-st", "small"), axis=axis)
    assert (
        figure.axes[-1].xaxis.get_major_formatter()(float(expected.replace("k", "e3"))) == expected
    )


def test_the_cost_of_a_step_names_all_methods_that_take_it():
    from matplotlib import pyplot

    from reproduction.table1 import figure
    from reproduction.table1.cost import STEPPERS

    ax = pyplot.subplots()[1]
    figure._costs(
        ax, [{"method": name, "n": n, "seconds": 1e-3} for name in STEPPERS for n in (10, 100)]
    )
    drawn = " ".join(ax.get_legend_handles_labels()[1])
    assert all(name in drawn for name in STEPPERS)
    assert {"RSCDRO", "RASCDRO"} <= {word.strip(",") for word in drawn.split()}
    pyplot.close("all")
