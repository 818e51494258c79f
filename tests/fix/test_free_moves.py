"""A temperature and offsets for classes: against scipy, against all thresholds, and never chosen by the rows moved."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from scdro.fix._free_moves import (
    best_offsets,
    best_temperature,
    chosen_out_of_fold,
    moved,
    robust_log_loss,
)
from scdro.functional import worst_case


def problem(n=400, classes=2, sure=3.0, seed=0):
    """Probabilities `sure` times too sure, and labels drawn from the right ones."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n, classes)) + np.linspace(1.0, 0.0, classes)
    y = (softmax(scores, axis=1).cumsum(1) > rng.random((n, 1))).argmax(1)
    return softmax(sure * scores, axis=1), y


def tail(losses):
    return float(np.sort(losses)[-len(losses) // 20 :].mean())


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("criterion", [np.mean, robust_log_loss(0.1), robust_log_loss(0.5), tail])
def test_the_temperature_is_scipy_s(classes, criterion):
    """By Nelder and Mead over log T from five starts."""
    proba, y = problem(classes=classes)
    logs, rows = np.log(proba), np.arange(len(y))

    def after(log_t):
        return criterion(-log_softmax(logs / np.exp(log_t[0]), axis=1)[rows, y])

    found = [
        minimize(after, [start], method="Nelder-Mead", options={"xatol": 1e-6})
        for start in np.linspace(-1, 4, 5)
    ]
    best = min(found, key=lambda one: one.fun)
    ours = best_temperature(proba, y, criterion)
    assert after([np.log(ours)]) <= best.fun + 1e-5
    if criterion is np.mean:
        assert abs(ours - 3) < 0.5  # the labels were drawn at a third of these log odds


@pytest.mark.parametrize(("sure", "share"), [(0.5, 0.3), (1.0, 2.0), (3.0, 0.02)])
def test_the_temperature_keeps_to_a_mean_loss(sure, share):
    """By a fine grid of 1 / T."""
    proba, y = problem(sure=sure)
    logs, rows, criterion = np.log(proba), np.arange(len(y)), robust_log_loss(0.5)
    losses = [-log_softmax(inverse * logs, axis=1)[rows, y] for inverse in np.linspace(0, 10, 4001)]
    most = min(one.mean() for one in losses) * (1 + share)
    best = min(criterion(one) for one in losses if one.mean() <= most)
    found = -np.log(moved(proba, best_temperature(proba, y, criterion, most))[rows, y])
    assert found.mean() <= most + 1e-9
    assert criterion(found) <= best + 1e-4
    none = best_temperature(proba, y, criterion, 0.9 * min(one.mean() for one in losses))
    assert abs(none - best_temperature(proba, y, np.mean)) < 0.01


def test_the_temperature_of_the_worst_case_is_higher_than_that_of_the_mean():
    proba, y = problem(sure=1.0)
    mean, worst = (
        best_temperature(proba, y, criterion) for criterion in (np.mean, robust_log_loss(0.5))
    )
    assert worst > 1.2 * mean
    losses = [-np.log(moved(proba, t)[np.arange(len(y)), y]) for t in (mean, worst)]
    assert worst_case(losses[1], 0.5).value < worst_case(losses[0], 0.5).value
    assert losses[1].mean() > losses[0].mean()


def test_a_temperature_changes_no_answer_and_impossible_classes_are_no_error():
    proba, y = problem(classes=4)
    assert (moved(proba, 7.0).argmax(1) == proba.argmax(1)).all()
    np.testing.assert_allclose(moved(proba, np.inf), 0.25)
    np.testing.assert_allclose(moved(proba), proba)
    impossible = np.eye(4)[(y + 1) % 4]  # sure, and wrong for all
    assert best_temperature(impossible, y, np.mean) > 100
    assert np.isfinite(moved(impossible, 2.0)).all()


@pytest.mark.parametrize("seed", range(5))
def test_offsets_of_two_classes_are_the_best_of_all_thresholds(seed):
    """By trying each: the most right answers of a class at no less than an accuracy."""
    proba, y = problem(n=150, sure=1.0, seed=seed)
    accuracy = (proba.argmax(1) == y).mean()
    edges = np.sort(proba[:, 1])
    cuts = [-1.0, *(edges[1:] + edges[:-1]) / 2, 2.0]
    for least in (accuracy, accuracy - 0.05):
        right = np.array([(proba[:, 1] > cut) == (y == 1) for cut in cuts])
        best = right[right.mean(1) >= least][:, y == 1].mean(1).max()
        found = moved(proba, offsets=best_offsets(proba, y, y == 1, least)).argmax(1) == y
        assert found.mean() >= least
        assert found[y == 1].mean() == best


def test_offsets_of_three_classes_are_as_good_as_a_grid_s():
    proba, y = problem(n=300, classes=3, sure=1.0)
    least = (proba.argmax(1) == y).mean() - 0.03
    found = moved(proba, offsets=best_offsets(proba, y, y == 2, least)).argmax(1) == y
    grid = np.linspace(-2, 2, 41)
    answers = [(np.log(proba) + np.array([0, a, b])).argmax(1) == y for a in grid for b in grid]
    best = max(one[y == 2].mean() for one in answers if one.mean() >= least)
    assert found.mean() >= least
    assert found[y == 2].mean() >= best - 0.03


def test_no_fold_has_a_say_in_its_own_move():
    proba, y = problem(n=90)
    rows = np.arange(90)
    folds = [(np.delete(rows, part), part) for part in np.split(rows, 3)]

    def choose(seen):
        return {"temperature": best_temperature(proba[seen], y[seen], np.mean)}

    found = chosen_out_of_fold(proba, folds, choose)
    before = proba.copy()
    y[:30] = 1 - y[:30]  # other labels of the first fold
    again = chosen_out_of_fold(proba, folds, choose)
    np.testing.assert_array_equal(found[:30], again[:30])
    assert (found[30:] != again[30:]).any()
    np.testing.assert_array_equal(proba, before)
