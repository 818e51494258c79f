"""The task, the splits, and what is wrong before anything is trained."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from scdro.errors import DataError, HyperparameterError
from scdro.tables import _problem
from scdro.tables._options import TrainOptions


def make_problem(data, target, **options):
    return _problem.make_problem(data, target, TrainOptions(**options))


N = 300
RNG = np.random.default_rng(0)
FRAME = pl.DataFrame(
    {
        "x": RNG.normal(size=N),
        "patient": RNG.integers(0, 60, N),
        "year": RNG.integers(1990, 2010, N),
        "sex": RNG.choice(["f", "m"], N),
        "y": RNG.choice(["no", "yes"], N),
        "wage": RNG.normal(size=N),
        "stars": RNG.integers(1, 6, N),
    }
)


def test_classes_or_a_quantity():
    assert make_problem(FRAME, "y").classes == ["no", "yes"]
    assert make_problem(FRAME, "stars").classes == ["1", "2", "3", "4", "5"]
    found = make_problem(FRAME, "wage")
    assert found.classes == []
    assert any("regression" in warning for warning in found.warnings)
    assert make_problem(FRAME, "stars", task="regression").classes == []
    np.testing.assert_array_equal(make_problem(FRAME, "stars").y + 1, FRAME["stars"])


def test_what_is_odd_about_columns_is_said_once():
    same = FRAME.with_columns(**{f"same {k}": pl.lit("x") for k in range(12)}, row=pl.int_range(N))
    told = make_problem(same, "y").warnings
    assert len(told) == 2
    assert "12 columns" in told[0]
    assert "'same 0'" in told[0]
    assert "4 more" in told[0]
    assert "'row'" in told[1]
    assert all("left out" in one for one in told)


def test_random_splits_keep_the_classes():
    problem = make_problem(FRAME, "y")
    cut = problem.split_rows(0)
    assert sorted([*cut.train, *cut.test]) == list(range(N))
    assert abs(problem.y[cut.train].mean() - problem.y[cut.test].mean()) < 0.02
    assert list(cut.test) != list(problem.split_rows(1).test)
    assert list(cut.test) == list(problem.split_rows(0).test)


def test_rows_of_a_patient_stay_together():
    problem = make_problem(FRAME, "y", split_by="patient")
    patients = FRAME["patient"].to_numpy()
    cut = problem.split_rows(0)
    assert not set(patients[cut.train]) & set(patients[cut.test])
    for seen, unseen in problem.make_folds(cut.train, 3, 0):
        assert not set(patients[cut.train[seen]]) & set(patients[cut.train[unseen]])
    assert "patient" not in problem.features()


def test_a_split_in_time():
    years = FRAME["year"].to_numpy()
    cut = make_problem(FRAME, "y", split_after=("year", 2000)).split_rows(0)
    assert years[cut.train].max() == 2000
    assert years[cut.test].min() == 2001
    late = make_problem(FRAME, "y", split_after="year").split_rows(5)
    assert years[late.train].max() < years[late.test].min()
    assert 0.1 < len(late.test) / N < 0.25


@pytest.mark.parametrize("kind", [pl.Date, pl.Datetime, pl.Datetime("ns", "UTC")], ids=str)
def test_a_split_in_time_by_dates(kind):
    """The bound comes as a text from the command, or as a date."""
    start = datetime(2020, 1, 1)
    days = FRAME.with_columns(
        day=pl.Series([start + timedelta(days=k) for k in range(N)])
    ).with_columns(
        pl.col("day").dt.replace_time_zone("UTC").cast(kind)
        if getattr(kind, "time_zone", None)
        else pl.col("day").cast(kind)
    )
    for bound in ("2020-08-01", date(2020, 8, 1)):
        cut = make_problem(days, "y", split_after=("day", bound)).split_rows(0)
        assert list(cut.test) == list(range((datetime(2020, 8, 1) - start).days + 1, N))
    with pytest.raises(DataError, match="summer"):
        make_problem(days, "y", split_after=("day", "summer"))


def test_a_last_year_with_more_than_a_fifth_is_the_test():
    frame = FRAME.with_columns(year=2000 + pl.int_range(N) // (N // 3))
    problem = make_problem(frame, "y", split_after="year")
    assert problem.split["value"] == "2001"
    assert len(problem.split_rows(0).test) == N // 3


def test_close_numbers_are_classes_of_their_own():
    frame = FRAME.with_columns(y=1234567.0 + pl.int_range(N) % 2)
    assert make_problem(frame, "y").classes == ["1234567.0", "1234568.0"]
    assert make_problem(frame.with_columns(pl.col("y") - 1234567.0), "y").classes == ["0", "1"]


def test_test_rows_of_another_file(tmp_path):
    other = FRAME.head(50).with_columns(pl.col("x").cast(pl.String))
    problem = make_problem(FRAME, "y", test=other)
    assert len(problem.split_rows(0).test) == 50
    with pytest.raises(DataError, match="'sex'"):
        make_problem(FRAME, "y", test=FRAME.drop("sex"))
    assert len(make_problem(FRAME, "y", test=FRAME.drop("sex"), drop=["sex"]).y) == 2 * N


def test_groups_are_named_and_not_learnt_from():
    problem = make_problem(FRAME, "y", group=["sex", "stars"])
    assert "sex = f, stars = 1" in problem.groups
    assert not {"sex", "stars", "y"} & set(problem.features())


@pytest.mark.parametrize(
    ("frame", "settings", "fact"),
    [
        (FRAME, {"target": "Y"}, "'y'"),
        (
            FRAME.with_columns(y=pl.when(pl.int_range(N) == 29).then(None).otherwise(pl.col("y"))),
            {},
            "line 31",
        ),
        (FRAME.with_columns(y=pl.lit("no")), {}, "'no'"),
        (
            FRAME.with_columns(
                y=pl.when(pl.int_range(N) < 2).then(pl.lit("rare")).otherwise(pl.col("y"))
            ),
            {},
            "'rare'",
        ),
        (FRAME.with_columns(y=pl.int_range(N).cast(pl.String)), {}, "300"),
        (FRAME.head(30), {}, "40"),
        (FRAME, {"group": ["six"]}, "'sex'"),
        (FRAME, {"task": "regression"}, "texts"),
        (FRAME, {"split_after": "sex"}, "'sex'"),
        (FRAME, {"split_after": ("year", "soon")}, "'soon'"),
        (FRAME, {"split_after": ("year", 3000)}, "3000"),
        (FRAME, {"split_by": "sex"}, "'sex'"),
        (FRAME, {"test": FRAME.head(1)}, "got 1"),
        (FRAME.with_columns(y=pl.col("x") * 1e200), {}, "unit"),
        (FRAME.with_columns(y=pl.col("x") * 1e-200), {}, "unit"),
    ],
)
def test_bad_data_say_what_is_wrong(frame, settings, fact):
    with pytest.raises(DataError) as caught:
        make_problem(frame, **{"target": "y", **settings})
    assert fact in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"task": "ranking"}, {"split_by": "patient", "split_after": "year"}, {"folds": 1}, {"drop": ["y"]},
        {"ids": ["y"]}, {"categorical": ["y"]}, {"split_by": "y"}, {"split_after": ("y", "no")},
        {"group": ["sex"], "drop": ["sex"]}, {"ids": ["patient"], "drop": ["patient"]},
        {"split_by": "patient", "drop": ["patient"]}, {"categorical": ["year"], "drop": ["year"]},
    ],
)  # fmt: skip
def test_bad_settings(settings):
    with pytest.raises(HyperparameterError):
        make_problem(FRAME, "y", **settings)


def test_the_target_as_a_group_is_its_classes_which_are_reported_anyway():
    assert make_problem(FRAME, "y", group=["y", "sex"]).group == ["sex"]
    assert make_problem(FRAME, "y", group=["y"]).groups is None
    with pytest.raises(HyperparameterError, match="quantity"):
        make_problem(FRAME, "x", group=["x"])


@pytest.mark.parametrize(("column", "settings"), [("y", {}), ("year", {"split_after": "year"})])
def test_a_missing_value_is_found_by_its_row_and_line(column, settings):
    frame = FRAME.with_columns(
        pl.when(pl.int_range(N) == 7).then(None).otherwise(pl.col(column)).alias(column)
    )
    with pytest.raises(DataError, match="row 8, line 9"):
        make_problem(frame, "y", **settings)
