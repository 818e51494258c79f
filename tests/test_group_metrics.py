"""Metrics by group: values against scikit-learn on each group, intervals against the normal approximation."""

import functools

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
@pytest.mark.parametrize(("labels", "columns"), [([0, 1], 1), (["no", "yes"], 2)], ids=str)
def test_values_are_those_of_each_group(weight, labels, columns):
    y = np.array(labels)[Y]
    p = P if columns == 1 else np.stack([1 - P, P], 1)
    other = "f1_score" if labels == [0, 1] else "accuracy_score"
    table = group_table(y, p, GROUP, weight, metrics=[*NAMES, other], bootstrap=60)
    assert isinstance(table, pd.DataFrame)
    for row in table.to_dict("records"):
        own = row["group"] == GROUP
        w = None if weight is None else weight[own]
        assert row["size"] == own.sum()
        assert row["accuracy"] == pytest.approx(
            sk.accuracy_score(Y[own], P[own] > 0.5, sample_weight=w)
        )
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
    assert table.loc["b", "roc_auc"] == pytest.approx(
        sk.roc_auc_score(y[own], p[own], multi_class="ovr")
    )
    assert table.loc["b", "brier"] == pytest.approx(
        ((p[own] - np.eye(3)[y[own]]) ** 2).sum(1).mean()
    )


def test_numbers_and_functions():
    y, prediction = RNG.normal(size=N), RNG.normal(size=N)

    def largest(y_true, y_pred):
        return np.abs(y_true - y_pred).max()

    table = group_table(
        y, prediction, GROUP, metrics=["mean_absolute_error", largest], bootstrap=50
    )
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
    table = group_table(
        y, prediction, np.zeros(2000), metrics="mean_absolute_error", bootstrap=2000, level=0.9
    )
    errors = np.abs(y)
    half = 1.645 * errors.std() / np.sqrt(2000)
    assert table["mean_absolute_error_low"][0] == pytest.approx(
        errors.mean() - half, abs=0.1 * half
    )
    assert table["mean_absolute_error_high"][0] == pytest.approx(
        errors.mean() + half, abs=0.1 * half
    )


def test_the_same_seed_gives_the_same_intervals():
    pd.testing.assert_frame_equal(
        *(group_table(Y, P, GROUP, metrics="brier", random_state=3) for _ in range(2))
    )


def test_a_group_of_one_class_has_no_auc():
    y = np.where(GROUP == "c", 1, Y)
    table = group_table(y, P, GROUP, metrics=["log_loss", "roc_auc"], bootstrap=20).set_index(
        "group"
    )
    assert np.isnan(table.loc["c", ["roc_auc", "roc_auc_low"]].astype(float)).all()
    assert np.isfinite(table.loc["c", "log_loss"])


def test_groups_without_weight_are_left_out():
    table = group_table(Y, P, GROUP, W * (GROUP != "a"), metrics="brier", bootstrap=5)
    assert set(table["group"]) == {"b", "c"}
    assert table["share"].sum() == pytest.approx(1)


def test_calibration_error_of_calibrated_and_of_certain_probabilities():
    assert calibration_error(Y, P) < 0.1
    assert calibration_error(Y, (P > 0.5).astype(float)) == pytest.approx(
        np.mean((P > 0.5) != Y), abs=0.05
    )


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


@pytest.mark.parametrize("names", [(0, 1), (1, 2), ("no", "yes")])
@pytest.mark.parametrize("columns", [1, 2])
def test_functions_of_scores_get_the_probabilities(names, columns):
    """Not the likeliest labels; and the second label is the one that they are of."""
    rng = np.random.default_rng(0)
    second = rng.integers(0, 2, 300)
    p = np.clip(0.35 + 0.3 * second + 0.2 * rng.normal(size=300), 0.01, 0.99)
    y, given = np.array(names)[second], p if columns == 1 else np.stack([1 - p, p], 1)
    asked = ["roc_auc_score", "average_precision_score", "brier_score_loss"]
    found = group_table(y, given, ["all"] * 300, metrics=asked, bootstrap=0).iloc[0]
    for name in asked:
        assert found[name] == pytest.approx(getattr(sk, name)(second, p))
    positive = (
        0 if names == (1, 2) else 1
    )  # where there is a label 1, it is scikit-learn's positive one
    f1 = group_table(y, given, ["all"] * 300, metrics="f1_score", bootstrap=0)["f1_score"].iloc[0]
    assert f1 == pytest.approx(sk.f1_score(second, p > 0.5, pos_label=positive))


@pytest.mark.parametrize(
    ("y_true", "y_pred", "metrics", "error", "fact"),
    [
        ([0, 1, None], [0.1, 0.2, 0.3], "accuracy", DataError, "y_true"),
        ([0, 1, 1], [0.1, np.nan, 0.3], "log_loss", DataError, "y_pred"),
        ([0, 1, 1], [0.1, 0.2, 0.3], "confusion_matrix", HyperparameterError, "one number"),
        (
            [0, 1, 1],
            [0.1, 0.2, 0.3],
            [lambda a, b: 1.0, lambda a, b: 2.0],
            HyperparameterError,
            "dict",
        ),
        ([], [], "accuracy", DataError, "none"),
    ],
)
def test_what_has_no_value(y_true, y_pred, metrics, error, fact):
    with pytest.raises(error, match=fact):
        group_table(y_true, y_pred, ["a"] * len(y_true), metrics=metrics)


def test_intervals_of_many_rows_are_made_of_fewer(monkeypatch):
    from scdro import _group_metrics

    rng = np.random.default_rng(0)
    y, groups = rng.integers(0, 2, 20_000), ["all"] * 20_000
    p = (rng.random(20_000) < np.where(y, 0.7, 0.4)).astype(int)
    whole = group_table(y, p, groups, metrics="accuracy").iloc[0]
    monkeypatch.setattr(_group_metrics, "MOST_DRAWN", 2000)
    part = group_table(y, p, groups, metrics="accuracy").iloc[0]
    assert part["accuracy"] == whole["accuracy"]
    widths = [row["accuracy_high"] - row["accuracy_low"] for row in (whole, part)]
    assert widths[1] == pytest.approx(widths[0], rel=0.2)
    assert part["accuracy_low"] < part["accuracy"] < part["accuracy_high"]


@pytest.mark.parametrize(
    "name", ["d2_log_loss_score", "brier_score_loss", "top_k_accuracy_score", "roc_auc_score"]
)
def test_metrics_of_scikit_learn_that_need_all_classes(name):
    """A group that has not all of them has the value, or none; it does not end the table."""
    y, p, group = (
        np.tile([0, 1, 2], 40),
        np.random.default_rng(0).dirichlet(np.ones(3), 120),
        np.repeat(["a", "b"], 60),
    )
    group[y == 2] = "a"
    table = group_table(y, p, group, metrics=name, bootstrap=3).set_index("group")
    settings = {"multi_class": "ovr"} if name == "roc_auc_score" else {}
    own = group == "a"
    assert table.loc["a", name] == pytest.approx(
        getattr(sk, name)(y[own], p[own], labels=[0, 1, 2], **settings)
    )
    if name == "brier_score_loss":
        assert table.loc["b", name] == pytest.approx(((p - np.eye(3)[y]) ** 2).sum(1)[~own].mean())


def test_a_metric_without_a_value_on_a_group_is_missing_there():
    group = np.where(np.arange(N) < 5, "tiny", "rest")
    y = np.where(group == "tiny", 1.0, RNG.random(N))
    table = group_table(y, RNG.random(N), group, metrics="d2_tweedie_score", bootstrap=0).set_index(
        "group"
    )
    assert np.isnan(table.loc["tiny", "d2_tweedie_score"])
    assert np.isfinite(table.loc["rest", "d2_tweedie_score"])


def test_metrics_of_regression_get_the_numbers():
    found = group_table(
        Y, P, ["all"] * N, metrics=["mean_squared_error", "hinge_loss"], bootstrap=0
    ).iloc[0]
    assert found["mean_squared_error"] == pytest.approx(
        sk.mean_squared_error(Y, P)
    )  # not of the likeliest labels
    assert found["hinge_loss"] == pytest.approx(sk.hinge_loss(Y, P))


@pytest.mark.parametrize(
    "metric", ["classification_report", "precision_recall_curve", "confusion_matrix"]
)
def test_metrics_of_several_numbers_are_refused_by_name(metric):
    with pytest.raises(HyperparameterError, match=metric):
        group_table(Y, P, GROUP, metrics=metric)


def test_a_metric_without_a_name_needs_one():
    macro = functools.partial(sk.f1_score, average="macro")
    with pytest.raises(HyperparameterError, match="dict"):
        group_table(Y, P > 0.5, GROUP, metrics=[macro])
    assert "f1" in group_table(Y, P > 0.5, GROUP, metrics={"f1": macro}, bootstrap=0)
