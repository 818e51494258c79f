"""Every door gives one verdict: the same rows, folds and settings, the same numbers."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from scdro import SecondLook, repair
from scdro.errors import DataError
from scdro.fix import compare
from scdro.second_look import find_slices

SAME = ("answer", "gain", "gain_error", "kept", "before", "after", "worst_class_before",
        "worst_class_after", "hard_before", "hard_after", "effective_size", "smallest_group",
        "chosen", "used", "confirmed")  # fmt: skip


def shortcut(n=600):
    """Features, classes, and the shortcut, which agrees with the class in 95%."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], n // 2)
    other = np.where(rng.random(n) < 0.95, y, 1 - y)
    return np.c_[other + 0.1 * rng.normal(size=n), y + 0.25 * rng.normal(size=n)], y, other


@pytest.mark.parametrize("confirm", [False, True])
def test_a_network_s_head_and_a_model_of_its_features(confirm):
    X, y, other = shortcut()
    network = nn.Sequential(nn.Identity(), nn.Linear(2, 2).double())
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(y)), batch_size=100)
    groups = other if confirm else None
    fixed = repair(network, loader, groups=groups, refuse=False, progress=False, seed=3)
    Z = StandardScaler().fit_transform(fixed.features).astype(np.float32)
    penalties = [10.0**k for k in (range(-6, 1) if confirm else range(-7, -1))]
    looks = []
    for C in (10.0**k for k in range(-4, 1)):  # `repair` chooses one of these for its reference
        head = LogisticRegression(C=C, max_iter=1000)
        look = SecondLook(
            head, reference=head, grid={"C": penalties}, groups=groups, refuse=False, random_state=3
        )
        looks.append(look.fit(Z, y))
    (same,) = [one for one in looks if np.array_equal(one.reference_proba_, fixed.proba)]
    for name in SAME:
        assert getattr(same.verdict_, name) == getattr(fixed.verdict, name), name
    assert np.array_equal(same.weights_, fixed.weights)
    before, after = (
        [(rung.name, rung.score, rung.gain, rung.cells, rung.changes) for rung in verdict.rungs]
        for verdict in (same.verdict_, fixed.verdict)
    )
    assert before == after


def test_asked_before_confirmed_and_confirmed():
    """A slice asked for with `would_gain`, confirmed as it is, and confirmed as one value a row."""
    X, y, other = shortcut()
    look = SecondLook(LogisticRegression(), random_state=0).fit(X, y)
    place = np.where(other == 1, "water", "land")
    one = find_slices(look.weights_, {"place": place}, y=y)[0]
    (asked,) = look.would_gain(one, X, y)
    confirmed = SecondLook(LogisticRegression(), groups=one, random_state=0).fit(X, y)
    by_value = SecondLook(LogisticRegression(), groups=place, random_state=0).fit(X, y)
    for name in SAME[:-1]:  # the names of the groups differ
        assert getattr(asked.verdict, name) == getattr(confirmed.verdict_, name), name
        assert getattr(by_value.verdict_, name) == getattr(confirmed.verdict_, name), name


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda slices, y: slices, "one finding or slice, got"),
        (lambda slices, y: [slices[0], slices[0]], "got 2 in a list"),
        (lambda slices, y: SimpleNamespace(findings=slices), "a whole audit"),
        (lambda slices, y: "place = water", "text 'place = water'"),
        (lambda slices, y: np.zeros(len(y), bool), "divide a class"),
        (lambda slices, y: y, "one group in each class"),
        (lambda slices, y: np.arange(len(y)) / 7, "ranges first"),
    ],
)
def test_what_is_no_group_is_told_before_any_fit(wrong, said):
    """Through every door."""
    X, y, other = shortcut()
    slices = find_slices(
        np.where(other == y, 0.5, 5.0), {"place": np.where(other == 1, "water", "land")}, y=y
    )
    groups = wrong(slices, y)
    network = nn.Sequential(nn.Identity(), nn.Linear(2, 2).double())
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(y)), batch_size=100)
    proba = np.full((len(y), 2), 0.5)
    for door in (
        lambda: SecondLook(LogisticRegression(), groups=groups).fit(X, y),
        lambda: repair(network, loader, groups=groups, progress=False),
        lambda: compare(proba, proba, y, groups=groups),
    ):
        with pytest.raises(DataError, match=said):
            door()
