"""Cross-mistakes against a literal twin, written with other means."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from scdro.fix._cross_mistakes import MISTAKE_ROUNDS, cross_mistakes, mistake_weights
from scdro.second_look import SecondLook


def shortcut_data(n=800, seed=0, strength=3.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    side = np.where(rng.random(n) < 0.93, y, 1 - y)
    X = np.c_[strength * side + 0.2 * rng.normal(size=n), y + 0.6 * rng.normal(size=n)]
    return X, y, side != y


def literal(X, y, halves, rng):
    """Two models A and B by name, labels as lists, one sample at a time."""
    A, B = (list(h) for h in halves)
    labels = [int(label) for label in y]
    twin = {}
    for _ in range(MISTAKE_ROUNDS):
        twin["a"] = LogisticRegression().fit(X[A], [labels[i] for i in A])
        twin["b"] = LogisticRegression().fit(X[B], [labels[i] for i in B])
        proba = {i: twin["b"].predict_proba(X[[i]])[0] for i in A} | {
            i: twin["a"].predict_proba(X[[i]])[0] for i in B
        }
        draws = rng.random_sample(len(y))
        for i in range(len(y)):
            confidence = 2 * (max(proba[i]) - 0.5)
            if draws[i] < confidence:
                labels[i] = int(np.argmax(proba[i]))
    return np.array([int(np.argmax(proba[i])) != y[i] for i in range(len(y))])


def test_the_literal_twin_finds_the_same_mistakes():
    X, y, _ = shortcut_data(200, strength=0.5)  # not so sure: chance decides which labels move
    halves = (np.arange(0, 200, 2), np.arange(1, 200, 2))
    expected = literal(X, y, halves, np.random.RandomState(3))
    found = cross_mistakes(
        LogisticRegression(), X, y, np.ones(200), halves, np.random.RandomState(3)
    )
    assert found.tolist() == expected.tolist()
    assert 0 < expected.sum() < 100


def test_mistakes_are_the_hidden_group():
    X, y, hidden = shortcut_data()
    halves = (np.arange(0, 800, 2), np.arange(1, 800, 2))
    mistakes = cross_mistakes(
        LogisticRegression(), X, y, np.ones(800), halves, np.random.RandomState(0)
    )
    assert mistakes[hidden].mean() > 0.9
    assert mistakes[~hidden].mean() < 0.05


def test_weights_are_equal_for_right_and_wrong_in_each_class():
    rng = np.random.default_rng(0)
    y, mistakes = rng.integers(0, 3, 900), rng.random(900) < 0.1
    w, _ = mistake_weights(mistakes, y, np.ones(900), True, 20)
    totals = [w[(y == k) & (mistakes == m)].sum() for k in range(3) for m in (False, True)]
    assert totals == pytest.approx([150] * 6)
    w, left_alone = mistake_weights(mistakes & (y > 0), y, np.ones(900), True, 20)
    assert list(left_alone) == [0]
    assert np.ptp(w[y == 0]) == 0


def test_as_a_strategy():
    X, y, hidden = shortcut_data()
    look = SecondLook(
        LogisticRegression(), strategy="cross-mistakes", random_state=0, refuse=False
    ).fit(X, y)
    assert look.score(X[hidden], y[hidden]) > look.plain_.score(X[hidden], y[hidden]) + 0.3


def test_classes_left_alone_have_their_own_names():
    X, y, _ = shortcut_data()
    names = np.array(["land", "water"])[y]
    look = SecondLook(LogisticRegression(), strategy="cross-mistakes", random_state=0, refuse=False)
    look.fit(np.c_[y + 0.01 * X[:, 0], X[:, 1]], names)
    assert set(look.verdict_.left_alone) == {"land", "water"}
