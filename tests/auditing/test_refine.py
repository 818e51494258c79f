"""Ends of ranges that are moved to where people begin and end, and the effective number of slices."""

import numpy as np
import pytest
from scipy.special import ndtr

import scdro
from scdro.auditing._codes import code_columns, read_frame  # what the search stands on
from scdro.auditing._scan import SliceIndex, effective_slices


def overlap(a, b):
    return (a & b).sum() / (a | b).sum()


@pytest.mark.parametrize(
    ("low", "high", "only_rome"), [(37, 43, False), (20, 23, False), (52, 71, True), (84, 99, True)]
)
def test_ends_are_where_people_begin_and_end(low, high, only_rome):
    """None of these ranges is one that the search looks at."""
    rng = np.random.default_rng(low)
    frame = {"age": rng.uniform(18, 90, 20_000), "city": rng.choice(["Oslo", "Rome"], 20_000)}
    failed = (frame["age"] > low) & (frame["age"] <= high)
    failed &= (frame["city"] == "Rome") | (not only_rome)
    p = rng.uniform(0.1, 0.5, 20_000)
    found = scdro.audit(rng.random(20_000) < p + 0.3 * failed, p, frame).findings
    first = next(one for one in found if one.conditions)
    assert overlap(first.members, failed) > 0.9
    assert first.rows == first.members.sum() == first.rows_of(frame).sum()
    assert ("city = Rome" in first.conditions) == only_rome
    told = [one for one in found if one.kind == "wrong probabilities" and one.conditions]
    assert len(told) == 1  # the same people are not told again by other ends


def test_dates_and_regressions_too():
    rng = np.random.default_rng(1)
    day = np.datetime64("2026-01-01") + rng.integers(0, 365, 8000).astype("timedelta64[D]")
    failed = (day > np.datetime64("2026-03-09")) & (day <= np.datetime64("2026-03-30"))
    first = scdro.audit(rng.normal(size=8000) + 2 * failed, np.zeros(8000), {"day": day}).findings[
        0
    ]
    assert first.kind == "bias"
    assert overlap(first.members, failed) > 0.9


def test_moved_ends_hold_for_missing_values_and_other_tables():
    rng = np.random.default_rng(2)
    age = np.where(rng.random(9000) < 0.2, np.nan, rng.uniform(18, 90, 9000))
    failed = (age > 33) & (age < 41)
    y = rng.random(9000) < np.where(failed, 0.7, 0.2)
    first = next(
        one for one in scdro.audit(y, np.full(9000, 0.2), {"age": age}).findings if one.conditions
    )
    assert first.rows_of({"age": [37.0, None, 20.0, 80.0]}).tolist() == [True, False, False, False]


def make_index(columns, n=3000):
    rng = np.random.default_rng(3)
    frame = {f"x{k}": rng.normal(size=n) for k in range(columns)}
    return SliceIndex(code_columns(read_frame(frame, n)), n, min_rows=30)


def test_the_effective_number_gives_the_chance_of_the_largest():
    """Against the share of draws whose largest sum exceeds a limit."""
    index, rng = make_index(2), np.random.default_rng(4)
    v = rng.uniform(0.05, 0.25, index.n)
    spread = index.sums(v[None])[0]
    draws = np.concatenate(
        [index.sums(np.sqrt(v) * rng.standard_normal((100, index.n))) for _ in range(10)]
    )
    largest = np.abs(draws / np.sqrt(spread)).max(1)
    level = 0.3
    effective = effective_slices(index, [v], level)
    # at the limit of this number, alarms are no more frequent than they should be
    limits = np.linspace(2, 6, 4001)
    limit = limits[np.searchsorted(-effective * 2 * ndtr(-limits), -level)]
    assert 0.4 * level < (largest > limit).mean() < 1.1 * level
    assert effective < index.tests / 2


def test_the_effective_number_is_that_of_slices_that_do_not_overlap():
    codes = np.arange(4000) // 40
    frame = {"x": np.array([f"v{k:03}" for k in codes])}
    index = SliceIndex(code_columns(read_frame(frame, 4000)), 4000, min_rows=10)
    assert effective_slices(index, [np.ones(4000)], 0.01) == pytest.approx(len(index), rel=0.01)


def test_people_are_told_once_though_several_classes_are_wrong():
    rng = np.random.default_rng(5)
    p = rng.dirichlet([3, 2, 1], 12_000)
    city = rng.choice(["Oslo", "Rome", "Lima"], 12_000)
    truth = np.where((city == "Rome")[:, None], [0.1, 0.2, 0.7], p)
    y = (rng.random(12_000)[:, None] > truth.cumsum(1)).sum(1).clip(0, 2)
    found = scdro.audit(y, p, {"city": city}, classes=[0, 1, 2]).findings
    told = [one.slice for one in found if one.kind == "wrong probabilities"]
    assert told.count("city = Rome") == 1
    assert told.count("all rows") <= 1


def test_biases_that_an_earlier_finding_overstates_are_not_told():
    """Ranks of noisier people rise less with the same shift: no bias of their own."""
    rng = np.random.default_rng(6)
    age, city = rng.integers(18, 90, 12_000), rng.choice(["Oslo", "Lima"], 12_000)
    y = (1 + 2 * (city == "Lima")) * rng.normal(size=12_000) + 2 * ((age > 30) & (age < 40))
    found = scdro.audit(y, np.zeros(12_000), {"age": age, "city": city}).findings
    bias = [one.slice for one in found if one.kind == "bias"]
    assert bias == ["30 < age <= 39"]


def test_intervals_and_gates_know_that_ends_were_chosen():
    """Its interval is as wide as a choice among millions of slices asks for."""
    rng = np.random.default_rng(7)
    frame = {"a": rng.random(3000), "b": rng.random(3000)}
    index = SliceIndex(code_columns(read_frame(frame, 3000)), 3000, min_rows=30)
    assert index.describable > 4000**2 > len(index)
    first = scdro.audit(
        rng.random(3000) < 0.2 + 0.4 * (frame["a"] > 0.8), np.full(3000, 0.2), frame
    )
    one = next(one for one in first.findings if one.conditions)
    by_slice = {each.slice: each for each in first.slices_scored}
    _, low, high = by_slice[one.slice].scores["accuracy"]
    half = 5.8 * (0.25 / one.rows) ** 0.5  # in standard errors: chosen of 20 million, not of 200
    assert high - low > 1.8 * half


def test_zero_has_no_sign():
    x = np.linspace(-1, 1, 2001) - 0.001
    texts = [text for column in code_columns({"x": x}) for text in column.conditions]
    assert "x <= 0" in texts
    assert not any("-0 " in f"{text} " for text in texts)
