"""The verdict: its numbers against other ways to get them, its words."""

import numpy as np
import pytest

from scdro.fix._apart import LARGEST_SHARE, LARGEST_SKEW, LEAST_DOUBT, Apart, set_apart
from scdro.fix._criteria import UNSURE, RowScores, WorstCell, paired, surely_right
from scdro.fix._decide import (
    CLEARLY,
    KEPT,
    WORTH,
    answer_for,
    clearly_better,
    kept_share,
    smallest_visible,
)
from scdro.fix._verdict import (
    BALANCED,
    CLASS_WEIGHTS,
    HELPS,
    NOT_SEEN,
    PLAIN,
    SECOND,
    THRESHOLD,
    THRESHOLD_SUFFICES,
    TOO_DEAR,
    WRONG_LABELS,
)
from scdro.fix._weights import look_weights
from scdro.second_look import Verdict


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


GROUP = Apart(share=0.1, skew=-0.5, doubt=0.3)


@pytest.mark.parametrize(
    ("gain", "error", "kept", "apart", "answer"),
    [
        (0.05, 0.02, 0.95, GROUP, HELPS),
        (0.00, 0.02, KEPT, GROUP, HELPS),  # a group of few rows need not gain clearly
        (-0.03, 0.02, 0.95, GROUP, NOT_SEEN),  # but must not lose
        (0.05, 0.02, 0.95, GROUP._replace(share=LARGEST_SHARE + 0.01), TOO_DEAR),
        (0.05, 0.02, 0.95, GROUP._replace(skew=LARGEST_SKEW + 0.01), TOO_DEAR),
        (0.05, 0.02, 0.95, GROUP._replace(doubt=LEAST_DOUBT - 0.01), TOO_DEAR),
        (0.00, 0.02, 0.95, GROUP._replace(doubt=LEAST_DOUBT - 0.01), NOT_SEEN),
        (0.01, 0.02, KEPT - 0.01, GROUP, WRONG_LABELS),
        (0.10, 0.02, 0.3, GROUP, TOO_DEAR),  # a clear gain is no sign of wrong labels
    ],
)
def test_answers(gain, error, kept, apart, answer):
    assert answer_for(gain, error, kept, 0.5, apart) == answer


@pytest.mark.parametrize(
    ("gain", "fall", "answer"),
    [
        (0.03, 0.0, HELPS),
        (0.01, 0.0, NOT_SEEN),
        (0.03, WORTH * 0.03 + 0.001, TOO_DEAR),
    ],
)
def test_where_nothing_can_be_apart_the_gain_must_be_clear(gain, fall, answer):
    assert answer_for(gain, 0.02, 0.95, fall, None) == answer


def log_odds(seed, beside, share=0.05, n=4000):
    """Two classes, a bell of log odds around 4 each; a share of the rows lies at `beside`."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    odds = 4 + rng.normal(size=n)
    few = rng.random(n) < share
    odds[few] = beside + rng.normal(size=few.sum())
    p = 1 / (1 + np.exp(-odds))
    proba = np.c_[np.where(y, 1 - p, p), np.where(y, p, 1 - p)]
    weights = look_weights(p, y).weights
    return set_apart([proba], y, weights, np.ones(n))


def test_what_lies_apart():
    for seed in range(5):
        group, bell, wrong = (log_odds(seed, at) for at in (1.5, 4.0, -4.0))
        assert group.seen
        assert bell.skew > LARGEST_SKEW
        assert not bell.seen  # classes that overlap: the end of a bell curve
        assert wrong.doubt < LEAST_DOUBT
        assert not wrong.seen  # as surely wrong as the others are right
        assert not log_odds(seed, 1.5, share=0.6).seen  # not few


def test_a_tiny_class_is_left_out_and_nothing_is_apart_in_nothing():
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(3), 500)
    y = np.r_[np.full(3, 2), rng.integers(0, 2, 497)]
    base = rng.exponential(size=500)
    two = set_apart(
        [proba[3:, :2] / proba[3:, :2].sum(1, keepdims=True)], y[3:], base[3:], base[3:]
    )
    assert set_apart([proba], y, base, base) == pytest.approx(two)
    nothing = set_apart([np.full((6, 2), 0.5)], np.repeat([0, 1], 3), np.ones(6), np.ones(6))
    assert not nothing.seen


def test_surely_right_is_right_or_wrong_but_for_the_unsure():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(500, 3))
    y = rng.integers(0, 3, 500)

    def proba(scale):
        p = np.exp(scale * scores)
        return p / p.sum(1, keepdims=True)

    surely = surely_right(proba(1.0), y)
    odds = np.array(
        [s[k] - max(s[j] for j in range(3) if j != k) for s, k in zip(scores, y, strict=True)]
    )
    unit = UNSURE * np.median(np.abs(odds))
    right = scores.argmax(1) == y
    clear = np.abs(odds) > unit
    np.testing.assert_array_equal(surely[clear], right[clear])
    np.testing.assert_allclose(surely[~clear], 0.5 + odds[~clear] / (2 * unit))
    assert 0 < (~clear).sum() < 100
    np.testing.assert_allclose(
        surely_right(proba(0.01), y), surely, atol=1e-9
    )  # a penalty only scales the odds


def test_surely_right_without_doubt_or_without_prediction():
    certain = np.eye(2)[[0, 1, 1, 0]]
    np.testing.assert_array_equal(surely_right(certain, np.array([0, 1, 0, 0])), [1, 1, 0, 1])
    np.testing.assert_array_equal(
        surely_right(np.full((3, 2), 0.5), np.array([0, 1, 0])), [0.5, 0.5, 0.5]
    )
    unseen = np.array([[0.9, 0.1], [np.nan, np.nan], [0.2, 0.8]])
    np.testing.assert_array_equal(surely_right(unseen, np.array([0, 1, 0])), [1, np.nan, 0])


def test_what_is_kept():
    before, after = np.r_[np.ones(9), 0.0], np.r_[np.ones(7), np.zeros(3)]
    assert kept_share(after, before, np.ones(10), 0.5) == pytest.approx(0.2 / 0.4)
    assert kept_share(after, np.zeros(10), np.ones(10), 0.5) == 0.0


def as_cells(y):
    return WorstCell.of(y, [str(k) for k in np.unique(y)], np.ones(len(y)))


def test_a_lower_rung_helps_the_class_that_is_served_worst():
    y = np.repeat([0, 1], [900, 100])
    plain = WorstCell.of_rows(np.r_[np.ones(900), np.zeros(70), np.ones(30)])
    balanced = WorstCell.of_rows(np.r_[np.ones(800), np.zeros(100), np.ones(100)])
    assert clearly_better(balanced, plain, as_cells(y))
    assert not clearly_better(plain, balanced, as_cells(y))
    assert not clearly_better(plain, plain, as_cells(y))


def test_one_class_that_gains_what_another_loses_is_no_help():
    y = np.repeat([0, 1], [302, 298])
    plain = np.r_[np.ones(260), np.zeros(42), np.ones(250), np.zeros(48)]
    moved = np.r_[np.ones(254), np.zeros(48), np.ones(256), np.zeros(42)]  # six here, six there
    plain, moved = (WorstCell.of_rows(one) for one in (plain, moved))
    assert not clearly_better(moved, plain, as_cells(y))


def test_the_gain_of_the_worst_cell_is_that_of_many_draws():
    """The worst cell before and after may differ: against a bootstrap within the cells."""
    rng = np.random.default_rng(0)
    cells = np.repeat([0, 1], [300, 200])
    before = np.where(cells == 0, rng.random(500) < 0.5, rng.random(500) < 0.9).astype(float)
    after = np.where(cells == 0, rng.random(500) < 0.95, rng.random(500) < 0.8).astype(float)
    criterion = as_cells(cells)
    gain, error = criterion.gain(RowScores(after, after[None]), RowScores(before, before[None]))
    assert gain == pytest.approx(after[cells == 1].mean() - before[cells == 0].mean())
    draws = [
        after[rng.choice(np.flatnonzero(cells == 1), 200)].mean()
        - before[rng.choice(np.flatnonzero(cells == 0), 300)].mean()
        for _ in range(3000)
    ]
    assert error == pytest.approx(np.std(draws), rel=0.06)


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
        for answer, used in {
            HELPS: SECOND,
            CLASS_WEIGHTS: BALANCED,
            THRESHOLD_SUFFICES: THRESHOLD,
            NOT_SEEN: PLAIN,
            WRONG_LABELS: PLAIN,
        }.items()
    }
    assert len({text.split(".")[0] for text in texts.values()}) == 5
    for text in texts.values():
        assert "from 47.0% to 51.0%" in text
        assert "cat (too few)" in text
        assert "about 9 samples" in text
        assert "effectively 300" in text
        assert "from 96.0% to 93.0%, that of the worst class from 81.0% to 85.0%" in text
    assert "would keep 90%" in texts[WRONG_LABELS]
    assert all(("would go" in texts[answer]) == (answer != HELPS) for answer in texts)
    assert "With class weights, accuracy goes from 96.0%" in texts[CLASS_WEIGHTS]
