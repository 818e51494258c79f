"""Group and robust accuracy and scores by class, against definitions, cone programs, loops and scikit-learn."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import sklearn
import torch
from sklearn.datasets import make_classification
from sklearn.metrics import accuracy_score, log_loss, make_scorer, recall_score, top_k_accuracy_score
from sklearn.model_selection import GridSearchCV, KFold

import oracles
from scdro import metrics
from scdro.errors import DataError, HyperparameterError
from scdro.linear_model import KLDROClassifier
from scdro.metrics import (
    Scores,
    group_table,
    halves,
    per_class_accuracy,
    robust_accuracy,
    score,
    shots,
    top_k_accuracy,
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
        assert row.accuracy == pytest.approx(accuracy_score(y[own], predicted[own], sample_weight=weight[own]))
    assert worst_group_accuracy(y, predicted, groups, weight) == table[0].accuracy
    assert sum(row.share * row.accuracy for row in table) == pytest.approx(
        accuracy_score(y, predicted, sample_weight=weight)
    )


def test_groups_of_several_columns():
    y, predicted, groups, _ = labels()
    sex = np.where(groups % 2, "f", "m")
    table = group_table(y, predicted, np.stack([sex, (groups // 2).astype(str)], 1))
    assert {row.group for row in table} == {("f", "0"), ("f", "1"), ("m", "0"), ("m", "1")}
    assert sorted(row.accuracy for row in table) == [row.accuracy for row in group_table(y, predicted, groups)]


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
    assert rare * math.log(rare / 1e-20) + (1 - rare) * math.log1p(-rare) == pytest.approx(0.5, rel=1e-9)


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
    assert np.all((search.cv_results_["mean_test_score"] > 0) & (search.cv_results_["mean_test_score"] < 1))


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
    assert {row.group for row in group_table(y, predicted, frame)} == {("f", 1), (None, 2), ("m", 1), ("m", None)}


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


COUNTS = torch.tensor([101, 100, 20, 19, 5, 500, 300])


def predictions(n=200, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(7, (n,), generator=g)
    return torch.randn(n, 7, generator=g) + 1.5 * torch.nn.functional.one_hot(labels, 7), labels


@pytest.mark.parametrize("k", [1, 3, 5])
def test_top_k(k):
    logits, labels = predictions()
    expected = top_k_accuracy_score(labels, logits, k=k)
    assert top_k_accuracy(logits, labels, k) == pytest.approx(expected, abs=1e-12)


def test_per_class_is_recall():
    logits, labels = predictions()
    found = per_class_accuracy(logits.argmax(1), labels, 7)
    np.testing.assert_allclose(found, recall_score(labels, logits.argmax(1), average=None))
    assert per_class_accuracy(logits.argmax(1), labels, 8)[7].isnan()


def test_halves_and_shots():
    accuracy = torch.tensor([0, 1, 2, 3, 4, 5, 60], dtype=torch.float64)
    assert halves(accuracy, COUNTS) == ((4 + 3 + 2) / 3, (1 + 0 + 60 + 5) / 4)
    assert shots(accuracy, COUNTS) == ((0 + 5 + 60) / 3, (1 + 2) / 2, (3 + 4) / 2)
    accuracy[3] = math.nan  # no test sample of class 3
    assert shots(accuracy, COUNTS)[2] == 4
    assert math.isnan(shots(accuracy, torch.full((7,), 200))[1])


def test_halves_and_shots_of_lists_and_of_what_does_not_fit():
    accuracy, counts = [0.5, 0.25, 1.0, 0.0], [500, 400, 30, 5]
    for function in (halves, shots):
        assert function(accuracy, counts) == function(torch.tensor(accuracy), torch.tensor(counts))
        with pytest.raises(DataError, match=r"4 classes.*\(3,\)"):
            function(accuracy[:3], counts)
        with pytest.raises(DataError, match=r"accuracies.*vector"):
            function(["a", "b", "c", "d"], counts)
        with pytest.raises(DataError, match=r"counts of training samples.*integers"):
            function(accuracy, [0.5, 0.2, 0.2, 0.1])


@pytest.mark.parametrize("k", [0, 9, 1.0])
def test_top_k_of_more_than_there_are(k):
    with pytest.raises(HyperparameterError, match=f"k from 1 to 3.*3 classes, got {k}"):
        top_k_accuracy(torch.eye(3), [0, 1, 2], k)


def test_score_puts_them_together():
    logits, labels = predictions()
    found = score(logits, labels, COUNTS, rho=0.3)
    losses = -torch.log_softmax(logits.double(), 1)[torch.arange(200), labels].numpy()
    worst = oracles.by_cone_program(losses, 0.3, 1e-3)
    assert found.top1 == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert found.top5 == pytest.approx(top_k_accuracy_score(labels, logits, k=5))
    assert found.loss == pytest.approx(log_loss(labels, torch.softmax(logits.double(), 1).numpy()), abs=1e-9)
    assert found.robust_loss == pytest.approx(worst.value, abs=1e-5)
    assert found.kl == pytest.approx(0.3, abs=1e-6)
    per_class = torch.tensor(found.per_class)
    assert (found.minority, found.majority) == pytest.approx(halves(per_class, COUNTS))
    assert (found.many, found.medium, found.few) == pytest.approx(shots(per_class, COUNTS))
    few_classes = score(logits[:, :3], labels % 3, COUNTS[:3])
    assert few_classes.top5 == 1.0


def test_scores_as_json():
    logits, labels = predictions()
    plain = score(logits, labels, torch.full((7,), 200)).as_dict()
    assert plain["few"] is None
    assert json.loads(json.dumps(plain, allow_nan=False))["per_class"] == plain["per_class"]
    assert metrics.score is score


def test_counts_of_other_classes():
    with pytest.raises(DataError, match="expected 7 counts"):
        score(*predictions(), COUNTS[:6])


def test_arrays_and_lists_as_well_as_tensors():
    logits, labels = predictions()
    expected = score(logits, labels, COUNTS)
    assert score(logits.numpy(), labels.numpy().astype(np.int32), COUNTS.tolist()) == expected
    assert score(logits.tolist(), labels.tolist(), COUNTS.numpy()).top1 == expected.top1
    readonly = logits.numpy().astype(np.float16)
    readonly.flags.writeable = False
    assert score(readonly, labels, COUNTS).loss == pytest.approx(expected.loss, abs=1e-3)
    assert top_k_accuracy(logits.numpy(), labels.numpy(), 3) == top_k_accuracy(logits, labels, 3)
    assert per_class_accuracy([0, 1, 1], [0, 0, 1], 2).tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": torch.full((200,), 7)}, r"labels in \[0, 7\)"),
        ({"labels": torch.zeros(199, dtype=torch.int64)}, "expected 200 labels, got 199"),
        ({"labels": torch.zeros(200)}, "vector of integers"),
        ({"logits": torch.zeros(200)}, r"scores \(n, classes\)"),
        ({"logits": torch.zeros(0, 7)}, r"scores \(n, classes\)"),
        ({"logits": "abc"}, r"scores \(n, classes\)"),
        ({"groups": torch.zeros(200, dtype=torch.int64)}, "group_counts"),
        ({"groups": torch.full((200,), 2), "group_counts": [5, 5]}, r"groups in \[0, 2\)"),
    ],
)
def test_what_cannot_be_scored_is_refused(change, said):
    logits, labels = predictions()
    with pytest.raises(DataError, match=said):
        score(**{"logits": logits, "labels": labels, "train_counts": COUNTS} | change)


def test_no_half_is_rarer_where_all_classes_are_as_large():
    found = score(*predictions(), torch.full((7,), 200))
    assert math.isnan(found.minority)
    assert math.isnan(found.majority)
    assert not math.isnan(found.balanced)


def test_groups_by_a_loop():
    logits, labels = predictions()
    groups = (torch.arange(200) * 7) % 6
    groups[groups == 4] = 3  # no test sample of group 4
    counts = [100, 100, 40, 100, 10, 100]  # 2 and 4 are rare
    found = score(logits, labels, COUNTS, groups=groups, group_counts=counts)
    right = (logits.argmax(1) == labels).numpy()
    means = {g: right[groups.numpy() == g].mean() for g in (0, 1, 2, 3, 5)}
    assert [value for g, value in enumerate(found.per_group) if g != 4] == pytest.approx(list(means.values()))
    assert math.isnan(found.per_group[4])
    assert found.worst_group == pytest.approx(min(means.values()))
    assert found.rare_groups == pytest.approx(means[2])
    assert found.balanced == pytest.approx(np.mean(recall_score(labels, logits.argmax(1), average=None)))
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["per_group"][4] is None
    assert Scores.from_dict(plain).as_dict() == plain
    assert "worst_group" not in score(logits, labels, COUNTS).as_dict()
