"""find_slices: against brute force, on groups that are there, and on columns that mean nothing."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import mannwhitneyu

from scdro.errors import DataError, HyperparameterError
from scdro.second_look import find_slices
from scdro.second_look._slices import SIMPLER, _conditions, _ranks, _search, _z


def planted(n=2000, seed=0):
    """Weight on landbirds on water; age and colour say nothing."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.25).astype(int)
    water = rng.random(n) < np.where(y == 1, 0.95, 0.05)
    hard = (y == 0) & water
    p = np.where(hard, rng.beta(2, 3, n), rng.beta(9, 1, n))
    weights = np.exp(-p / 0.2)
    for k in (0, 1):
        weights[y == k] /= weights[y == k].sum()
    frame = pd.DataFrame(
        {
            "place": np.where(water, "water", "land"),
            "age": rng.normal(40, 10, n),
            "colour": rng.choice(["red", "green", "blue"], n),
            "empty": [None] * n,
        }
    )
    return weights, frame, y, p, hard


def test_the_planted_group_is_named_first():
    weights, frame, y, p, hard = planted()
    found = find_slices(weights, frame, y=y, proba=p)
    assert set(found[0].conditions) == {"place = water", "label = 0"}
    assert found[0].lift > 3
    assert found[0].size == pytest.approx(hard.sum() / 2, rel=0.3)
    assert found[0].before == pytest.approx((p > 0.5)[hard].mean(), abs=0.1)
    assert found[0].p_value < 0.01
    assert "place = water and label = 0" in str(found)
    assert found.to_frame().shape[0] == len(found)
    assert "place" in found._repr_html_()


def test_the_search_is_brute_force():
    """All pairs, one at a time, by masks."""
    weights, frame, y, _, _ = planted(300, seed=3)
    w = weights * 300 / weights.sum()
    columns = {"place": frame["place"].to_numpy(), "colour": frame["colour"].to_numpy(), "label": y}
    conditions = [c for name, values in columns.items() for c in _conditions(name, np.asarray(values), 4)]
    ranks, half = _ranks(w, y), np.arange(300) % 2 == 0
    n = half.sum()

    def score(numbers):
        rows = half & np.logical_and.reduce([conditions[k].rows for k in numbers])
        size = rows.sum()
        if size < 4:
            return 0.0
        value = (w[rows].sum() / w[half].mean() - size) / n / np.sqrt(size / n)
        return value if value > 0 and (ranks[rows].mean() - 0.5) / np.sqrt((1 / size - 1 / n) / 12) > 2 else 0.0

    singles = {(i,): score((i,)) for i in range(len(conditions))}
    pairs = {
        (i, j): score((i, j))
        for i, j in itertools.combinations(range(len(conditions)), 2)
        if score((i, j)) > SIMPLER * max(singles[(i,)], singles[(j,)])
    }
    expected = sorted(
        (k for k, v in (singles | pairs).items() if v > 0), key=lambda k: (-(singles | pairs)[k], len(k), k)
    )
    assert _search(conditions, w, ranks, half, 2, 4) == expected[:5]
    assert expected


def test_the_statistic_is_mann_and_whitneys():
    rng = np.random.default_rng(0)
    w = rng.random(300)
    rows = rng.random(300) < 0.2
    ranks = _ranks(w, np.zeros(300))
    expected = mannwhitneyu(w[rows], w[~rows], alternative="greater", method="asymptotic", use_continuity=False)
    from scipy.stats import norm

    found = norm.sf(_z(ranks[rows].sum(), rows.sum(), 300))
    assert found == pytest.approx(expected.pvalue, rel=0.02)


def test_shuffled_columns_mean_nothing():
    named = 0
    for seed in range(100):
        weights, frame, y, _, _ = planted(600, seed=seed)
        order = np.random.default_rng(1000 + seed).permutation(600)
        named += bool(find_slices(weights, frame.iloc[order].reset_index(drop=True), y=y, seed=seed))
    assert named <= 5


def test_unequal_classes_alone_are_no_slice():
    rng = np.random.default_rng(0)
    y = (rng.random(1000) < 0.1).astype(int)
    weights = np.where(y == 1, 5.0, 0.55) * rng.uniform(0.9, 1.1, 1000)
    assert len(find_slices(weights, {"colour": rng.choice(["red", "green"], 1000)}, y=y)) == 0


def test_numbers_and_words():
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, 1000)
    old = find_slices(np.where(age > 74, 5.0, 0.5) * rng.uniform(0.9, 1.1, 1000), {"age": age})
    assert old[0].conditions[0].startswith("age > 7")
    words = np.array(["plain words about things"] * 1000, dtype=object) + np.array([f" {i}" for i in range(1000)])
    hard = rng.random(1000) < 0.1
    texts = np.where(hard, "finna go " + words, words)
    found = find_slices(np.where(hard, 4.0, 0.7) * rng.uniform(0.9, 1.1, 1000), {"text": texts})
    assert found[0].conditions[0] in ('text has "finna"', 'text has "go"')


def test_bad_input():
    weights, frame, _, _, _ = planted(100)
    with pytest.raises(DataError, match="rows"):
        find_slices(weights, frame.iloc[:50])
    with pytest.raises(DataError, match="DataFrame"):
        find_slices(weights, np.zeros((100, 2)))
    with pytest.raises(DataError, match="vector"):
        find_slices(np.ones((10, 2)), frame)
    with pytest.raises(ValueError, match="finite"):
        find_slices(np.full(100, np.nan), frame)
    for options in ({"alpha": 0.0}, {"depth": 3}, {"least": 1}):
        with pytest.raises(HyperparameterError, match="expected"):
            find_slices(weights, frame, **options)
    assert len(find_slices(weights, {})) == 0
