"""How settings are chosen: by the mean of several seeds, by accuracy or by the robust value, and refined."""

import math

import pytest

from reproduction.engine.outcomes import best_settings, searched
from reproduction.engine.study import Arm, Study
from scdro.errors import HyperparameterError


def a_study(**own):
    grid = {"grid": (("beta", (0.1, 0.5)),), "steps": (0.1, 1.0), **own}
    return Study("figure2", "made", "small", ("SCDRO",), **grid)


ARM = Arm("SCDRO", 0.5)


def result(accuracy, value, status="done"):
    return {"status": status, "validation": {"balanced": accuracy, "robust_loss": value}}


def test_settings_are_judged_by_the_mean_of_their_seeds():
    own = a_study(tune_seeds=3)
    runs = own.search(ARM)
    assert len(runs) == 12
    lucky, steady = runs[0].settings, runs[3].settings
    scores = {str(lucky): iter((0.9, 0.1, 0.1)), str(steady): iter((0.5, 0.5, 0.5))}
    results = [result(next(scores.get(str(run.settings), iter((0.2,)))), 1.0) for run in runs]
    assert best_settings(runs, results) == steady
    results[4] = result(0.5, 1.0, "diverged")  # a seed of the steady one
    assert best_settings(runs, results) == lucky


def test_the_robust_value_is_not_fooled_by_accuracy():
    for choose_by, expected in (("accuracy", 0), ("robust_value", 1)):
        runs = a_study(choose_by=choose_by).search(ARM)
        results = [result(0.9, 0.69), result(0.8, 0.4), result(0.1, 5.0), result(0.1, 5.0)]
        assert best_settings(runs, results) == runs[expected].settings


def test_the_search_is_refined_around_its_best_step():
    own = a_study(refine=True)

    def bowl(run):
        return result(
            -abs(math.log10(run.settings["lr"] / 1.5)) + (run.settings["beta"] == 0.5), 1.0
        )

    runs, best = searched(own, ARM, bowl)
    assert len(runs) == 4 + 4
    assert {run.settings["beta"] for run in runs[4:]} == {0.5}
    assert best == {"lr": pytest.approx(10 ** (1 / 6), rel=1e-4), "beta": 0.5, "rho": 0.5}
    assert len(searched(own, ARM, lambda run: None)[0]) == 4  # nothing is known of the best yet


def test_one_setting_needs_no_seeds_and_no_refinement():
    own = a_study(grid=(("beta", (0.1,)),), steps=(0.1,), tune_seeds=3, refine=True)
    runs, best = searched(own, ARM, lambda run: None)
    assert len(runs) == 1
    assert best == runs[0].settings


def test_runs_of_the_search_are_never_among_the_reported_ones():
    own = a_study(tune_seeds=5, seeds=1000)
    assert all(run.searches for run in own.search(ARM))
    assert not any(run.searches for run in own.finals(ARM, {"lr": 0.1, "beta": 0.1}))


@pytest.mark.parametrize(
    "wrong", [{"tune_seeds": 0}, {"tune_seeds": 6}, {"choose_by": "luck"}, {"steps": (0.0,)}]
)
def test_a_search_that_cannot_be(wrong):
    with pytest.raises(HyperparameterError):
        a_study(**wrong)
