"""Scores by class and group, against definitions, loops, a cone program and scikit-learn."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss, recall_score, top_k_accuracy_score

import oracles
from reproduction.scores import (
    Scores,
    halves,
    per_class_accuracy,
    score,
    shots,
    top_k_accuracy,
)
from scdro.errors import DataError, HyperparameterError

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
    with pytest.raises(HyperparameterError, match=r"classes.*'2'"):
        per_class_accuracy([0, 1], [0, 1], "2")
    with pytest.raises(HyperparameterError, match=f"k from 1 to 3.*3 classes, got {k}"):
        top_k_accuracy(torch.eye(3), [0, 1, 2], k)


def test_score_puts_them_together():
    logits, labels = predictions()
    found = score(logits, labels, COUNTS, rho=0.3)
    losses = -torch.log_softmax(logits.double(), 1)[torch.arange(200), labels].numpy()
    worst = oracles.by_cone_program(losses, 0.3, 1e-3)
    assert found.top1 == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert found.top5 == pytest.approx(top_k_accuracy_score(labels, logits, k=5))
    assert found.loss == pytest.approx(
        log_loss(labels, torch.softmax(logits.double(), 1).numpy()), abs=1e-9
    )
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
    assert [value for g, value in enumerate(found.per_group) if g != 4] == pytest.approx(
        list(means.values())
    )
    assert math.isnan(found.per_group[4])
    assert found.worst_group == pytest.approx(min(means.values()))
    assert found.rare_groups == pytest.approx(means[2])
    assert found.balanced == pytest.approx(
        np.mean(recall_score(labels, logits.argmax(1), average=None))
    )
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["per_group"][4] is None
    assert Scores.from_dict(plain).as_dict() == plain
    assert "worst_group" not in score(logits, labels, COUNTS).as_dict()
