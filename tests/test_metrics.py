"""Group and robust accuracy and scores by class, against definitions, cone programs, loops and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn
from sklearn.datasets import make_classification
from sklearn.metrics import (
    accuracy_score,
    make_scorer,
)
from sklearn.model_selection import GridSearchCV, KFold

import oracles
from scdro.errors import HyperparameterError
from scdro.linear_model import KLDROClassifier
from scdro.metrics import (
    group_table,
    robust_accuracy,
    worst_group_accuracy,
)


def labels(n=60, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=n)
    return y, np.where(rng.random(n) < 0.7, y, (y + 1) % 3), rng.integers(4, size=n), rng.random(n)


def test_table_by_definition():
    y, predicted, groups, weight = labels()
    table = group_table(y, predicted, groups, weight)
    assert [row.accuracy for row in table] == sorted(row.accuracy for row in table)
    for row in table:
        own = groups == row.group
        assert row.size == own.sum()
        assert row.share == pytest.approx(weight[own].sum() / weight.sum())
        assert row.accuracy == pytest.approx(
            accuracy_score(y[own], predicted[own], sample_weight=weight[own])
        )
    assert worst_group_accuracy(y, predicted, groups, weight) == table[0].accuracy
    assert sum(row.share * row.accuracy for row in table) == pytest.approx(
        accuracy_score(y, predicted, sample_weight=weight)
    )


def test_groups_of_several_columns():
    y, predicted, groups, _ = labels()
    sex = np.where(groups % 2, "f", "m")
    table = group_table(y, predicted, np.stack([sex, (groups // 2).astype(str)], 1))
    assert {row.group for row in table} == {("f", "0"), ("f", "1"), ("m", "0"), ("m", "1")}
    assert sorted(row.accuracy for row in table) == [
        row.accuracy for row in group_table(y, predicted, groups)
    ]


def test_groups_without_weight_are_left_out():
    assert worst_group_accuracy([0, 0], [0, 1], ["a", "b"], [1.0, 0.0]) == 1.0


@pytest.mark.parametrize("rho", [1e-4, 0.1, 0.7])
def test_robust_accuracy_is_the_worst_reweighting(rho):
    y, predicted, _, weight = labels()
    errors = (y != predicted).astype(float)
    expected = 1 - oracles.by_cone_program(errors, rho, 1e-9, weight).value
    assert robust_accuracy(y, predicted, rho, weight) == pytest.approx(expected, abs=1e-6)


def test_robust_accuracy_at_the_ends():
    y, predicted, _, _ = labels()
    assert robust_accuracy(y, predicted, 0.0) == accuracy_score(y, predicted)
    assert robust_accuracy(y, y, 1.0) == 1.0
    assert robust_accuracy(y, (y + 1) % 3, 1.0) == 0.0
    assert robust_accuracy(y, predicted, -math.log(np.mean(y != predicted))) == 0.0


def test_all_right_is_one_under_any_weights():
    """Rounding made it more than one, where the logarithm of the error is not defined, or less, which rho amplifies."""
    for seed in range(50):
        rng = np.random.default_rng(seed)
        y, weight = rng.integers(2, size=5 + seed), rng.random(5 + seed)
        assert robust_accuracy(y, y, 0.5, weight) == 1.0
        assert group_table(y, y, np.zeros_like(y), weight)[0].accuracy == 1.0


def test_a_rare_error_counts():
    """e' log(e'/e) + (1 - e') log((1 - e')/(1 - e)) = rho, with an error rate e that is lost in 1 - e."""
    rare = 1 - robust_accuracy([0, 1], [0, 0], 0.5, [1.0, 1e-20])
    assert rare * math.log(rare / 1e-20) + (1 - rare) * math.log1p(-rare) == pytest.approx(
        0.5, rel=1e-9
    )


def test_robust_accuracy_bounds_every_large_group():
    y, predicted, groups, _ = labels(400)
    for row in group_table(y, predicted, groups):
        assert row.accuracy >= robust_accuracy(y, predicted, -math.log(row.share)) - 1e-12


def test_choosing_rho_by_a_search():
    X, y = make_classification(300, 5, random_state=0)
    group = (X[:, 0] > 0).astype(int)
    with sklearn.config_context(enable_metadata_routing=True):
        scorer = make_scorer(worst_group_accuracy).set_score_request(groups=True)
        search = GridSearchCV(KLDROClassifier(), {"rho": [0.0, 0.2]}, scoring=scorer, cv=KFold(3))
        by_group = search.fit(X, y, groups=group)
    by_hand = np.zeros((3, 2))
    for k, (train, test) in enumerate(KFold(3).split(X)):
        for j, rho in enumerate([0.0, 0.2]):
            right = KLDROClassifier(rho=rho).fit(X[train], y[train]).predict(X[test]) == y[test]
            by_hand[k, j] = min(right[group[test] == g].mean() for g in (0, 1))
    np.testing.assert_allclose(by_group.cv_results_["mean_test_score"], by_hand.mean(0))
    scorer = make_scorer(robust_accuracy, rho=0.1)
    search = GridSearchCV(KLDROClassifier(), {"rho": [0.0, 0.2]}, scoring=scorer, cv=3).fit(X, y)
    assert np.all(
        (search.cv_results_["mean_test_score"] > 0) & (search.cv_results_["mean_test_score"] < 1)
    )


def test_bad_input():
    with pytest.raises(HyperparameterError, match="rho >= 0"):
        robust_accuracy([0], [0], -1.0)
    with pytest.raises(ValueError, match="inconsistent"):
        worst_group_accuracy([0, 1], [0, 1], ["a"])
    with pytest.raises(ValueError, match="inconsistent"):
        robust_accuracy([0, 1], [0], 0.1)
    with pytest.raises(ValueError, match="positive"):
        robust_accuracy([0, 1], [0, 1], 0.1, [0.0, 0.0])
    with pytest.raises(ValueError, match="columns"):
        group_table([0], [0], np.zeros((1, 1, 1)))


def test_missing_groups_are_a_group():
    pd = pytest.importorskip("pandas")
    y, predicted = [0, 1, 1, 0], [0, 1, 0, 0]
    for groups in (
        ["a", None, None, "a"],
        [1.0, np.nan, np.nan, 1.0],
        np.array(["a", np.nan, float("nan"), "a"], dtype=object),
        pd.Series(["a", pd.NA, pd.NA, "a"], dtype="string"),
        pd.Series(["a", None, None, "a"]).astype("category"),
        pd.Series(pd.to_datetime(["2020-01-01", None, None, "2020-01-01"])).astype(object),
    ):
        worst, best = group_table(y, predicted, groups)
        assert (worst.group, worst.size, worst.accuracy) == (None, 2, 0.5)
        assert (best.size, best.accuracy) == (2, 1.0)
    frame = pd.DataFrame({"sex": ["f", None, "m", "m"], "age": [1, 2, 1, np.nan]})
    assert {row.group for row in group_table(y, predicted, frame)} == {
        ("f", 1),
        (None, 2),
        ("m", 1),
        ("m", None),
    }


def test_groups_of_mixed_types():
    table = group_table([0, 1, 1, 0], [0, 1, 0, 0], [1, "1", "1", 1])
    assert [(row.group, row.size) for row in table] == [("1", 2), (1, 2)]


def test_labels_that_never_agree():
    with pytest.raises(ValueError, match=r"y_true.*y_pred"):
        robust_accuracy([0, 1], ["0", "1"], 0.1)
    for missing in ([0, None], [0.0, np.nan]):
        with pytest.raises(ValueError, match="y_true"):
            worst_group_accuracy(missing, [0, 1], ["a", "b"])
    assert robust_accuracy([0, 1], [False, True], 0.1) == 1.0
    assert robust_accuracy(np.array(["a", "b"], dtype=object), np.array(["a", "b"]), 0.1) == 1.0
