"""Metrics by group: values against scikit-learn on each group, intervals against the normal approximation."""

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics as sk

from scdro._group_metrics import calibration_error
from scdro.errors import DataError, HyperparameterError
from scdro.metrics import group_table

RNG = np.random.default_rng(0)
N = 600
GROUP = RNG.choice(["a", "b", "c"], N, p=[0.6, 0.3, 0.1])
P = RNG.random(N)
Y = (RNG.random(N) < P).astype(int)
W = RNG.exponential(size=N)
NAMES = ["accuracy", "roc_auc", "log_loss", "brier", "calibration_error"]


@pytest.mark.parametrize("weight", [None, W], ids=["", "weighted"])
@pytest.mark.parametrize("labels", [[0, 1], ["no", "yes"]], ids=str)
@pytest.mark.parametrize("columns", [1, 2])
def test_values_are_those_of_each_group(weight, labels, columns):
    y = np.array(labels)[Y]
    p = P if columns == 1 else np.stack([1 - P, P], 1)
    table = group_table(y, p, GROUP, weight, metrics=[*NAMES, "f1_score" if labels == [0, 1] else "accuracy_score"])
    assert isinstance(table, pd.DataFrame)
    for row in table.to_dict("records"):
        own = row["group"] == GROUP
        w = None if weight is None else weight[own]
        assert row["size"] == own.sum()
        assert row["accuracy"] == pytest.approx(sk.accuracy_score(Y[own], P[own] > 0.5, sample_weight=w))
        assert row["roc_auc"] == pytest.approx(sk.roc_auc_score(Y[own], P[own], sample_weight=w))
        assert row["log_loss"] == pytest.approx(sk.log_loss(Y[own], P[own], sample_weight=w))
        assert row["brier"] == pytest.approx(sk.brier_score_loss(Y[own], P[own], sample_weight=w))
        assert row["calibration_error"] == pytest.approx(calibration_error(Y[own], P[own], w))
        assert all(row[f"{name}_low"] <= row[name] <= row[f"{name}_high"] for name in NAMES[:4])
    assert list(table["accuracy"]) == sorted(table["accuracy"])


def test_several_classes():
    y = RNG.integers(0, 3, N)
    p = RNG.dirichlet(np.ones(3), N)
    table = group_table(y, p, GROUP, metrics=NAMES, bootstrap=0).set_index("group")
    own = GROUP == "b"
    assert table.loc["b", "log_loss"] == pytest.approx(sk.log_loss(y[own], p[own]))
    assert table.loc["b", "roc_auc"] == pytest.approx(sk.roc_auc_score(y[own], p[own], multi_class="ovr"))
    assert table.loc["b", "brier"] == pytest.approx(((p[own] - np.eye(3)[y[own]]) ** 2).sum(1).mean())


def test_numbers_and_functions():
    y, prediction = RNG.normal(size=N), RNG.normal(size=N)

    def largest(y_true, y_pred):
        return np.abs(y_true - y_pred).max()

    table = group_table(y, prediction, GROUP, metrics=["mean_absolute_error", largest], bootstrap=50)
    own = table["group"][0] == GROUP
    assert table["mean_absolute_error"][0] == pytest.approx(np.abs(y - prediction)[own].mean())
    assert table["largest"][0] == np.abs(y - prediction)[own].max()
    assert list(table["mean_absolute_error"]) == sorted(table["mean_absolute_error"], reverse=True)
    assert list(group_table(y, prediction, GROUP, metrics={"far": largest}, bootstrap=0)) == [
        "group",
        "size",
        "share",
        "far",
    ]


def test_intervals_are_those_of_a_mean():
    y, prediction = RNG.normal(size=2000), np.zeros(2000)
    table = group_table(y, prediction, np.zeros(2000), metrics="mean_absolute_error", bootstrap=2000, level=0.9)
    errors = np.abs(y)
    half = 1.645 * errors.std() / np.sqrt(2000)
    assert table["mean_absolute_error_low"][0] == pytest.approx(errors.mean() - half, abs=0.1 * half)
    assert table["mean_absolute_error_high"][0] == pytest.approx(errors.mean() + half, abs=0.1 * half)


def test_the_same_seed_gives_the_same_intervals():
    pd.testing.assert_frame_equal(*(group_table(Y, P, GROUP, metrics="brier", random_state=3) for _ in range(2)))


def test_a_group_of_one_class_has_no_auc():
    y = np.where(GROUP == "c", 1, Y)
    table = group_table(y, P, GROUP, metrics=["log_loss", "roc_auc"], bootstrap=20).set_index("group")
    assert np.isnan(table.loc["c", ["roc_auc", "roc_auc_low"]].astype(float)).all()
    assert np.isfinite(table.loc["c", "log_loss"])


def test_groups_without_weight_are_left_out():
    table = group_table(Y, P, GROUP, W * (GROUP != "a"), metrics="brier", bootstrap=5)
    assert set(table["group"]) == {"b", "c"}
    assert table["share"].sum() == pytest.approx(1)


def test_calibration_error_of_calibrated_and_of_certain_probabilities():
    assert calibration_error(Y, P) < 0.1
    assert calibration_error(Y, (P > 0.5).astype(float)) == pytest.approx(np.mean((P > 0.5) != Y), abs=0.05)


@pytest.mark.parametrize(
    ("settings", "error", "told"),
    [
        ({"metrics": "no_such"}, HyperparameterError, "no_such"),
        ({"metrics": []}, HyperparameterError, "at least one"),
        ({"metrics": "brier", "bootstrap": -1}, HyperparameterError, "bootstrap"),
        ({"metrics": "brier", "level": 95}, HyperparameterError, "level"),
        ({"metrics": lambda a, b: 0.0, "sample_weight": W}, HyperparameterError, "sample_weight"),
    ],
)
def test_settings_that_make_no_sense(settings, error, told):
    with pytest.raises(error, match=told):
        group_table(Y, P, GROUP, **settings)


def test_predictions_that_are_no_probabilities():
    with pytest.raises(DataError, match="predict_proba"):
        group_table(Y, Y, GROUP, metrics="log_loss")
    with pytest.raises(DataError, match="each of the 2 labels"):
        group_table(Y, RNG.dirichlet(np.ones(3), N), GROUP, metrics="accuracy")
