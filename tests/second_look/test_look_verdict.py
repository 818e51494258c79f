"""The verdict: its numbers against other ways to get them, its words."""

import numpy as np
import pytest

from scdro.second_look import Verdict
from scdro.second_look._verdict import (
    BALANCED,
    BELOW_CLASS_WEIGHTS,
    CLASS_WEIGHTS,
    CLEARLY,
    FLAT,
    HELPS,
    KEPT,
    MAY_FALL,
    NOTHING,
    PLAIN,
    SECOND,
    UNSURE,
    WORTH,
    WRONG_LABELS,
    answer_for,
    class_weights_help,
    kept_share,
    paired,
    smallest_visible,
    surely_right,
)


def test_the_standard_error_is_that_of_many_draws():
    """Of a weighted mean over samples drawn with replacement, weights and all."""
    rng = np.random.default_rng(0)
    n = 400
    weights = rng.exponential(size=n)
    after, before = rng.integers(0, 2, n).astype(float), rng.integers(0, 2, n).astype(float)
    gain, error = paired(after, before, weights)
    draws = rng.integers(0, n, (4000, n))
    means = ((after - before)[draws] * weights[draws]).sum(1) / weights[draws].sum(1)
    assert gain == pytest.approx(np.average(after - before, weights=weights))
    assert error == pytest.approx(means.std(), rel=0.05)


def test_the_smallest_group_is_the_first_that_shows():
    weights = np.r_[np.full(950, 0.5), np.full(50, 10.5)]
    error = 0.03
    w = 10.5 / weights.sum()
    shows = [m for m in range(1, 200) if (m * w) / np.sqrt(error**2 + m * w**2) >= CLEARLY]
    assert smallest_visible(weights, error) == shows[0] > 1
    assert smallest_visible(np.ones(10), 100.0) == 11


@pytest.mark.parametrize(
    ("gain", "error", "kept", "fall", "below", "size", "answer"),
    [
        (0.05, 0.02, 0.95, -0.1, 0.0, 0.1, HELPS),
        (0.03, 0.10, 0.95, -0.1, 0.0, 0.1, NOTHING),
        (-0.05, 0.02, 0.95, 0.0, 0.0, 0.1, NOTHING),
        (0.06, 0.10, 0.99, 0.0, 0.0, 0.1, NOTHING),
        (0.08, 0.10, KEPT, 0.0, 0.0, 0.1, HELPS),
        (0.08, 0.10, KEPT, 0.01, 0.0, 0.1, NOTHING),  # surer, where the worst class loses
        (0.02, 0.01, 0.95, MAY_FALL, 0.0, 0.1, HELPS),
        (0.02, 0.01, 0.95, MAY_FALL + 0.01, 0.0, 0.1, NOTHING),  # the worst class loses more than the hard samples gain
        (0.01, 0.001, 0.95, 0.01 / WORTH - 0.001, 0.0, 0.1, HELPS),
        (0.01, 0.001, 0.95, 0.01 / WORTH + 0.001, 0.0, 0.1, NOTHING),
        (0.06, 0.01, 0.95, 0.06, 0.0, 0.1, HELPS),
        (0.06, 0.01, 0.95, 0.07, 0.0, 0.1, NOTHING),
        (0.05, 0.02, 0.95, -0.1, BELOW_CLASS_WEIGHTS, 0.1, HELPS),
        (
            0.05,
            0.02,
            0.95,
            -0.1,
            BELOW_CLASS_WEIGHTS + 0.01,
            0.1,
            NOTHING,
        ),  # class weights serve the worst class better
        (0.20, 0.02, 0.95, -0.1, 0.15, 0.1, HELPS),
        (0.05, 0.02, 0.95, 0.0, 0.0, FLAT + 0.01, NOTHING),  # the weights single nobody out
        (-0.05, 0.02, 0.3, 0.0, 0.0, FLAT + 0.01, NOTHING),
        (-0.05, 0.02, 0.3, 0.5, 0.0, 0.1, WRONG_LABELS),
        (0.01, 0.02, KEPT - 0.01, 0.0, 0.0, 0.1, WRONG_LABELS),
        (0.10, 0.02, 0.3, 0.0, 0.0, 0.1, NOTHING),  # a price too high, but no sign of wrong labels
    ],
)
def test_answers(gain, error, kept, fall, below, size, answer):
    assert answer_for(gain, error, kept, fall, below, size) == answer


def test_surely_right_is_right_or_wrong_but_for_the_unsure():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(500, 3))
    y = rng.integers(0, 3, 500)

    def proba(scale):
        p = np.exp(scale * scores)
        return p / p.sum(1, keepdims=True)

    surely = surely_right(proba(1.0), y)
    odds = np.array([s[k] - max(s[j] for j in range(3) if j != k) for s, k in zip(scores, y, strict=True)])
    unit = UNSURE * np.median(np.abs(odds))
    right = scores.argmax(1) == y
    clear = np.abs(odds) > unit
    np.testing.assert_array_equal(surely[clear], right[clear])
    np.testing.assert_allclose(surely[~clear], 0.5 + odds[~clear] / (2 * unit))
    assert 0 < (~clear).sum() < 100
    np.testing.assert_allclose(surely_right(proba(0.01), y), surely, atol=1e-9)  # a penalty only scales the odds


def test_surely_right_without_doubt_or_without_prediction():
    certain = np.eye(2)[[0, 1, 1, 0]]
    np.testing.assert_array_equal(surely_right(certain, np.array([0, 1, 0, 0])), [1, 1, 0, 1])
    np.testing.assert_array_equal(surely_right(np.full((3, 2), 0.5), np.array([0, 1, 0])), [0.5, 0.5, 0.5])
    unseen = np.array([[0.9, 0.1], [np.nan, np.nan], [0.2, 0.8]])
    np.testing.assert_array_equal(surely_right(unseen, np.array([0, 1, 0])), [1, np.nan, 0])


def test_what_is_kept():
    before, after = np.r_[np.ones(9), 0.0], np.r_[np.ones(7), np.zeros(3)]
    assert kept_share(after, before, np.ones(10), 0.5) == pytest.approx(0.2 / 0.4)
    assert kept_share(after, np.zeros(10), np.ones(10), 0.5) == 0.0


def test_class_weights_help_the_class_that_is_served_worst():
    y = np.repeat([0, 1], [900, 100])
    plain = np.r_[np.ones(900), np.zeros(70), np.ones(30)]
    balanced = np.r_[np.ones(800), np.zeros(100), np.ones(100)]
    assert class_weights_help(plain, balanced, y, np.ones(1000))
    assert not class_weights_help(balanced, plain, y, np.ones(1000))
    assert not class_weights_help(plain, plain, y, np.ones(1000))


def test_class_weights_that_only_move_the_threshold_do_not_help():
    y = np.repeat([0, 1], [302, 298])
    plain = np.r_[np.ones(260), np.zeros(42), np.ones(250), np.zeros(48)]
    moved = np.r_[np.ones(254), np.zeros(48), np.ones(256), np.zeros(42)]  # six more here, six fewer there
    assert not class_weights_help(plain, moved, y, np.ones(600))


def test_printed():
    numbers = {
        "gain": 0.04,
        "gain_error": 0.02,
        "kept": 0.9,
        "before": 0.96,
        "after": 0.93,
        "hard_before": 0.47,
        "hard_after": 0.51,
        "worst_class_before": 0.81,
        "worst_class_after": 0.85,
    }
    rest = {"effective_size": 300.0, "smallest_group": 9, "left_alone": {"cat": "too few"}}
    texts = {
        answer: str(Verdict(answer, **numbers, **rest, used=used))
        for answer, used in {HELPS: SECOND, CLASS_WEIGHTS: BALANCED, NOTHING: PLAIN, WRONG_LABELS: PLAIN}.items()
    }
    assert len({text.split(".")[0] for text in texts.values()}) == 4
    for text in texts.values():
        assert "from 47.0% to 51.0%" in text
        assert "cat (too few)" in text
        assert "about 9 samples" in text
        assert "effectively 300" in text
        assert "from 96.0% to 93.0%, that of the worst class from 81.0% to 85.0%" in text
    assert "would keep 90%" in texts[WRONG_LABELS]
    assert all(("would go" in texts[answer]) == (answer != HELPS) for answer in texts)
    assert "With class weights, accuracy goes from 96.0%" in texts[CLASS_WEIGHTS]
