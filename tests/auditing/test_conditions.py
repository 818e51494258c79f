"""The conditions of a finding, applied to the table itself and to another one."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import scdro
from scdro.errors import DataError


def table(seed, n=3000):
    rng = np.random.default_rng(seed)
    words = np.array(["red", "green", "blue", "black", "white", "brown", "pink"])
    return pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.integers(18, 90, n)),
            "level": rng.integers(0, 4, n),
            "city": rng.choice(["Oslo", "Rome", "Lima", None], n),
            "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D"),
            "text": [f"case {k} " + " ".join(rng.choice(words, 3)) for k in range(n)],
        }
    )


def first_slice(y, p, frame):
    """The first finding that is not about all rows."""
    return next(one for one in scdro.audit(y, p, frame).findings if one.conditions)


FAILED = {
    "age > 61 and city = Rome": lambda t: (t.age > 61) & (t.city == "Rome"),
    "age is missing": lambda t: t.age.isna(),
    "level = 2": lambda t: t.level == 2,
    "city is missing": lambda t: t.city.isna(),
    "day": lambda t: t.day > pd.Timestamp("2026-08-29"),
    'text has "green"': lambda t: t.text.str.contains("green"),
}


@pytest.mark.parametrize("name", FAILED)
def test_conditions_hold_for_the_same_rows_in_another_table(name):
    frame, other = table(0), table(1)
    rng = np.random.default_rng(2)
    y = rng.random(len(frame)) < np.where(FAILED[name](frame), 0.8, 0.2)
    p = np.full(len(y), 0.2) + 1e-3 * rng.random(len(y))
    first = first_slice(y, p, frame)
    np.testing.assert_array_equal(first.rows_of(frame), first.members)
    for kind in (other, pl.from_pandas(other), pl.from_pandas(other).to_arrow(), dict(other)):
        rows = first.rows_of(kind)
        assert rows.dtype == bool
        truth = FAILED[name](other).to_numpy()
        assert (rows & truth).sum() > 0.8 * (rows | truth).sum()
    assert {one.column for one in first.where} <= set(frame)
    assert tuple(one.text for one in first.where) == first.conditions


def test_values_that_were_never_seen_and_missing_ones_do_not_fulfil_a_condition():
    frame = table(0)
    y = np.random.default_rng(3).random(len(frame)) < np.where(frame.city == "Rome", 0.8, 0.2)
    first = first_slice(y, np.full(len(y), 0.2), frame[["city"]])
    assert first.slice == "city = Rome"
    assert first.rows_of({"city": ["Rome", "Bonn", None]}).tolist() == [True, False, False]
    assert not first.rows_of({"city": [None, None]}).any()


def test_what_does_not_fit_is_refused():
    frame = table(0)
    y = np.random.default_rng(3).random(len(frame)) < np.where(frame.age > 60, 0.8, 0.2)
    first = first_slice(y, np.full(len(y), 0.2), frame[["age"]])
    with pytest.raises(DataError, match=r"'age'.*got city"):
        first.rows_of(frame[["city"]])
    with pytest.raises(DataError, match=r"expected numbers in column 'age'.*got texts"):
        first.rows_of({"age": ["old", "young"]})
    assert not first.rows_of({"age": [None, None]}).any()


def test_a_finding_about_all_rows_holds_for_all_rows():
    y = np.random.default_rng(3).random(2000) < 0.7
    first = scdro.audit(y, np.full(2000, 0.3), {"a": np.arange(2000)}).findings[0]
    assert first.conditions == ()
    assert first.rows_of({"a": [1.0, 2.0]}).tolist() == [True, True]


def test_columns_of_findings_have_not_passed():
    """Names that are parts of other names: "a" stands in "a b > 3", and is not the column."""
    rng = np.random.default_rng(4)
    frame = {"a": rng.random(4000), "a b": rng.random(4000), "b": rng.random(4000)}
    y = rng.random(4000) < np.where(frame["a b"] > 0.5, 0.8, 0.2)
    audit = scdro.audit(y, np.full(4000, 0.2), frame)
    assert {c.column for one in audit.findings for c in one.where} == {"a b"}
    assert [one.column for one in audit.passed] == ["a", "b"]
    text = scdro.audit(y, np.full(4000, 0.2), table(0, 4000)[["text"]])
    assert [one.column for one in text.passed] == ["text"]
