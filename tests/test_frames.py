"""The same rows as arrays and as tables of pandas, polars and Arrow: the same results, with names of columns."""

import datetime
import math
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from scdro import worst_case
from scdro._frames import as_array, as_vector, backend_of, columns_of, frame_of, name_of
from scdro.boosting import (
    KLDROLGBMClassifier,
    KLDROLGBMRegressor,
    KLDROXGBClassifier,
    KLDROXGBRegressor,
)
from scdro.errors import DataError
from scdro.linear_model import KLDROClassifier, KLDRORegressor
from scdro.metrics import group_table, robust_accuracy, worst_group_accuracy
from scdro.second_look import SecondLook, second_look_weights

RNG = np.random.default_rng(0)
N = 240
X = RNG.normal(size=(N, 3))
Y = (X[:, 0] + 0.7 * RNG.normal(size=N) > 0).astype(int)
TARGET = X @ [1.0, 2.0, 0.0] + RNG.normal(size=N)
WEIGHT = RNG.exponential(size=N)
P = 1 / (1 + np.exp(-X[:, 0]))
PLACE = np.where(RNG.random(N) < 0.3, None, RNG.choice(["land", "sea"], N))
NAMES = ["height", "weight", "age of house"]


def pandas_frame(columns):
    return pd.DataFrame(columns).set_index(
        pd.Index(range(1000, 1000 + len(next(iter(columns.values())))))
    )


KINDS = {
    "pandas": (pandas_frame, pd.Series),
    "polars": (pl.DataFrame, pl.Series),
    "Arrow": (pa.table, pa.chunked_array),
}


@pytest.fixture(params=KINDS)
def kind(request):
    """Functions that make a table, and a column."""
    table, series = KINDS[request.param]
    column = (lambda values: series([pa.array(values)])) if request.param == "Arrow" else series
    return table, column


def settings(library):
    return {"n_estimators": 8, "n_jobs": 1} | ({"verbose": -1} if library == "lightgbm" else {})


ESTIMATORS = [
    (KLDROClassifier(rho=0.1), Y),
    (KLDRORegressor(rho=0.1), TARGET),
    (KLDROLGBMClassifier(rho=0.1, **settings("lightgbm")), Y),
    (KLDROLGBMRegressor(rho=0.1, **settings("lightgbm")), TARGET),
    (KLDROXGBClassifier(rho=0.1, **settings("xgboost")), Y),
    (KLDROXGBRegressor(rho=0.1, **settings("xgboost")), TARGET),
    (SecondLook(LogisticRegression(), cv=2, repeats=1, grid=None, refuse=False, random_state=0), Y),
]


@pytest.mark.parametrize(("model", "y"), ESTIMATORS, ids=lambda thing: type(thing).__name__)
def test_estimators(kind, model, y):
    table, column = kind
    frame = table({name: X[:, k] for k, name in enumerate(NAMES)})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*feature names")  # of LightGBM, for arrays
        expected = model.fit(X, y, sample_weight=WEIGHT).predict(X)
    found = model.fit(frame, column(y), sample_weight=column(WEIGHT)).predict(frame)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert model.score(frame, column(y)) > 0
    spaces = isinstance(
        model, KLDROLGBMClassifier | KLDROLGBMRegressor
    )  # LightGBM itself replaces them
    assert list(model.feature_names_in_) == [
        name.replace(" ", "_") if spaces else name for name in NAMES
    ]


@pytest.mark.parametrize(
    "model", [KLDROClassifier(rho=0.1), KLDRORegressor(rho=0.1)], ids=lambda m: type(m).__name__
)
def test_other_names_are_refused(kind, model):
    table, _ = kind
    model.fit(table({name: X[:, k] for k, name in enumerate(NAMES)}), Y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(
            table({name: X[:, k] for k, name in enumerate(["height", "weight", "other"])})
        )


def test_columns(kind):
    table, _ = kind
    frame = table({"place": PLACE, "age": [1.5, None] * (N // 2), "rooms": np.arange(N)})
    found = columns_of(frame)
    assert list(found) == ["place", "age", "rooms"]
    assert [
        None if value is None or value != value else value for value in found["place"]
    ] == PLACE.tolist()
    np.testing.assert_array_equal(found["age"].astype(float), [1.5, np.nan] * (N // 2))
    assert found["rooms"].dtype.kind == "i"


@pytest.mark.parametrize(
    "category",
    [
        pd.Series(["a", "b", None, "b"]).astype("category"),
        pl.Series(["a", "b", None, "b"], dtype=pl.Categorical),
        pl.Series(["a", "b", None, "b"], dtype=pl.Enum(["b", "a"])),
        pa.chunked_array([pa.array(["a", "b", None, "b"]).dictionary_encode()]),
    ],
    ids=["pandas", "polars", "enum", "Arrow"],
)
def test_categories_keep_what_is_missing(category):
    found = as_array(category)
    assert found[[0, 1, 3]].tolist() == ["a", "b", "b"]
    assert found[2] is None or found[2] != found[2]


NOON = datetime.datetime(2020, 5, 1, 12, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, None, 3], np.array([1, np.nan, 3])),
        ([True, None, False], np.array([True, None, False], dtype=object)),
        (["a", None, "b"], np.array(["a", None, "b"], dtype=object)),
        ([Decimal("1.5"), None, Decimal(2)], np.array([1.5, np.nan, 2])),
        (
            [NOON, None, NOON],
            np.array(["2020-05-01T12", None, "2020-05-01T12"], dtype="datetime64[us]"),
        ),
        (
            [NOON.date(), None, NOON.date()],
            np.array(["2020-05-01", None, "2020-05-01"], dtype="datetime64[us]"),
        ),
    ],
    ids=["whole", "booleans", "texts", "decimals", "times", "dates"],
)
@pytest.mark.parametrize(
    "make", [pl.Series, lambda v: pa.chunked_array([v])], ids=["polars", "Arrow"]
)
def test_vectors_are_floats_dates_or_objects(make, values, expected):
    found = as_vector(make(values))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_times_are_those_of_their_own_zone():
    naive = datetime.datetime(2020, 5, 1, 12)
    for column in (
        pl.Series([naive]).dt.replace_time_zone("Europe/Paris"),
        pd.Series([naive]).dt.tz_localize("Europe/Paris"),
    ):
        assert as_vector(column).tolist() == [naive]


@pytest.mark.parametrize("missing", [None, math.nan, pd.NA, pd.NaT])
def test_vectors_of_lists_and_pandas(missing):
    for make in (list, pd.Series, lambda values: np.array(values, dtype=object)):
        assert as_vector(make(["a", missing])).tolist() == ["a", None]
        np.testing.assert_array_equal(as_vector(make([2, missing])), [2.0, np.nan])
    assert as_vector(torch.tensor([1, 2])).dtype == float
    with pytest.raises(DataError, match=r"vectors.*\(1, 2\)"):
        as_vector([[1, 2]])


def test_what_is_no_table():
    assert columns_of(X) is None
    assert columns_of([1, 2]) is None
    assert name_of([1]) is None
    assert name_of(pd.Series([1])) is None
    assert name_of(pl.Series("place", [1])) == "place"
    assert as_array(torch.ones(2, dtype=torch.bfloat16, requires_grad=True)).tolist() == [1.0, 1.0]
    assert list(columns_of(pd.DataFrame({0: [1], "b": [2]}))) == ["0", "b"]
    with pytest.raises(DataError, match="collect"):
        columns_of(pl.LazyFrame({"a": [1]}))


def test_a_table_of_the_same_kind(kind):
    table, column = kind
    made = frame_of(
        {"a": ["x", None], "b": np.array([1.0, 2.0])}, backend_of([1, 2], column([1, 2]))
    )
    assert type(made) is type(table({"a": [1]}))
    assert columns_of(made)["b"].tolist() == [1.0, 2.0]
    assert isinstance(frame_of({"a": [1]}, backend_of(np.zeros(1))), pd.DataFrame)


def test_functions_of_rows(kind):
    _, column = kind
    y, guess, p, weight = column(Y), column((P > 0.6).astype(int)), column(P), column(WEIGHT)
    predicted = (P > 0.6).astype(int)
    assert robust_accuracy(y, guess, 0.1, weight) == robust_accuracy(Y, predicted, 0.1, WEIGHT)
    assert worst_group_accuracy(y, guess, column(PLACE), weight) == worst_group_accuracy(
        Y, predicted, PLACE, WEIGHT
    )
    assert (
        worst_case(p, 0.5, sample_weight=weight).value
        == worst_case(P, 0.5, sample_weight=WEIGHT).value
    )
    np.testing.assert_array_equal(
        second_look_weights(p, y, sample_weight=weight),
        second_look_weights(P, Y, sample_weight=WEIGHT),
    )


def test_group_table_by_name(kind):
    table, column = kind
    old = np.where(X[:, 2] > 0, "old", "new")
    groups = table({"place": PLACE, "house": old})
    proba = table({"no": 1 - P, "yes": P})
    found = group_table(
        column(Y), proba, groups, column(WEIGHT), metrics=["log_loss", "roc_auc"], bootstrap=0
    )
    assert type(found) is type(groups)
    found = columns_of(found)
    assert list(found)[:5] == ["place", "house", "size", "share", "log_loss"]
    expected = group_table(
        Y, P, np.stack([PLACE, old], 1), WEIGHT, metrics=["log_loss", "roc_auc"], bootstrap=0
    )
    assert list(expected)[:2] == ["group 0", "group 1"]
    for name in list(found)[2:]:
        np.testing.assert_array_equal(found[name], expected[name])
    assert {row.group for row in group_table(Y, Y, groups)} == {
        (p, o) for p in (None, "land", "sea") for o in set(old)
    }
    single = group_table(Y, P, pl.Series("house", old), metrics="brier", bootstrap=0)
    assert single.columns == ["house", "size", "share", "brier"]
    with pytest.raises(DataError, match="share"):
        group_table(Y, P, pl.Series("share", old), metrics="brier", bootstrap=0)
