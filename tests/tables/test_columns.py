"""What becomes of the columns, and what models see of them."""

import numpy as np
import polars as pl
import pytest
import sklearn
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.preprocessing import TargetEncoder

from scdro.errors import DataError
from scdro.tables._models import MOST_SPLIT_VALUES, Columns
from scdro.tables._problem import describe_columns
from scdro.tables._read import as_table

N = 200
RNG = np.random.default_rng(0)
FRAME = pl.DataFrame(
    {
        "row": np.arange(N),
        "name": [f"person {k}" for k in range(N)],
        "one": ["same"] * N,
        "empty": pl.Series([None] * N, dtype=pl.String),
        "x": RNG.normal(size=N),
        "colour": RNG.choice(["red", "blue", None], N),
        "price": [f"{k % 40},5" for k in range(N)],
        "mixed": ["?" if k % 10 == 0 else str(k % 30) for k in range(N)],
        "zip": RNG.integers(1000, 1010, N),
        "y": RNG.integers(0, 2, N),
    }
)


def kinds(**given):
    settings = {"special": {"y": "target"}, "drop": [], "categorical": [], **given}
    return {c["name"]: c for c in describe_columns(FRAME, **settings)}


def test_useless_columns_are_left_out_and_odd_ones_noted():
    found = kinds()
    for name in ("row", "name", "one", "empty"):
        assert found[name]["kind"] == "left out", name
        assert found[name]["note"]
    assert [found[name]["kind"] for name in ("x", "colour", "zip", "y")] == [
        "number",
        "category",
        "number",
        "target",
    ]
    assert not found["x"]["note"]
    assert "comma" in found["price"]["note"]
    assert "180 of the 200 values are numbers" in found["mixed"]["note"]
    assert found["colour"]["missing"] == FRAME["colour"].null_count()


def test_what_a_user_says_comes_first():
    found = kinds(drop=["x"], categorical=["zip"])
    assert (found["x"]["kind"], found["zip"]["kind"]) == ("left out", "category")
    with pytest.raises(DataError, match="'colour'"):
        kinds(drop=["color"])
    with pytest.raises(DataError):
        describe_columns(FRAME.select("row", "y"), {"y": "target"}, [], [])


def test_codes_are_those_of_training():
    columns = Columns.fit(FRAME, ["x", "colour", "zip"], ["zip"])
    assert columns.names == ["x", "colour", "zip"]
    assert columns.categorical == [1, 2]
    new = pl.DataFrame({"zip": [1000, 7], "colour": ["green", None], "x": [None, 2.0]})
    codes = columns.encode(new)
    known = len(columns.categories["colour"])
    np.testing.assert_array_equal(codes[:, 0], [np.nan, 2.0])
    np.testing.assert_array_equal(codes[:, 1], [known, np.nan])  # unseen, missing
    assert codes[0, 2] == columns.categories["zip"].index("1000")
    assert codes[1, 2] == len(columns.categories["zip"])
    again = Columns.from_json(columns.as_json())
    np.testing.assert_array_equal(again.encode(FRAME), columns.encode(FRAME))


def test_all_values_have_codes_and_columns_with_many_are_told_apart():
    values = [f"v{k}" for k in range(400)] * 2 + ["often"] * 50
    frame = pl.DataFrame({"c": values, "few": [value[:2] for value in values]})
    columns = Columns.fit(frame, ["c", "few"], [])
    assert len(columns.categories["c"]) == 401 > MOST_SPLIT_VALUES
    assert columns.categories["c"][0] == "often"
    assert (columns.many_valued, columns.categorical) == ([0], [1])


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_column_with_many_values_becomes_mean_targets(classes):
    """As scikit-learn's TargetEncoder has them: in training by other rows, later by all."""
    rng = np.random.default_rng(0)
    code = rng.integers(0, 300, 3000)
    y = rng.normal(code / 100) if classes == 0 else (code + rng.integers(0, 9, 3000)) % classes
    frame = pl.DataFrame({"x": rng.normal(size=3000), "c": [f"v{k}" for k in code]})
    columns = Columns.fit(frame, ["x", "c"], [])
    X = columns.encode(frame)
    prepare, categorical = columns.without_many_values(classes)
    assert categorical == []
    kind = {0: "continuous", 2: "binary", 3: "multiclass"}[classes]
    splits = (StratifiedKFold if classes else KFold)(5, shuffle=True, random_state=0)
    new = tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 9)
    how = {"cv": splits} if new else {"random_state": 0}
    expected = TargetEncoder(target_type=kind, **how)
    found = prepare.fit_transform(X, y)
    np.testing.assert_array_equal(found[:, 0], frame["x"])
    np.testing.assert_allclose(found[:, 1:], expected.fit_transform(X[:, 1:], y))
    np.testing.assert_allclose(prepare.transform(X)[:, 1:], expected.transform(X[:, 1:]))
    scaled = columns.features(classes).fit_transform(X, y)
    assert scaled.shape[1] == found.shape[1]
    np.testing.assert_allclose(np.corrcoef(scaled[:, 1], found[:, 1])[0, 1], 1)


def test_a_missing_or_wrong_column_says_which():
    columns = Columns.fit(FRAME, ["x", "colour"], [])
    with pytest.raises(DataError, match="'colour'"):
        columns.encode(FRAME.select("x"))
    with pytest.raises(DataError, match="'many'"):
        columns.encode(FRAME.with_columns(pl.lit("many").alias("x")))


def test_features_of_linear_models_are_scaled_and_without_gaps():
    columns = Columns.fit(FRAME, ["x", "colour"], [])
    X = columns.encode(FRAME)
    X[:50, 0] = np.nan
    features = columns.features(2).fit(X)
    Z = features.transform(X)
    assert np.isfinite(Z).all()
    np.testing.assert_allclose(Z[:, 0].mean(), 0, atol=1e-12)
    assert Z.shape[1] == 1 + 1 + 3  # the number, its gaps, red, blue and missing
    assert np.isfinite(features.transform(np.array([[np.nan, 99.0]]))).all()


@pytest.mark.parametrize(
    ("texts", "few"),
    [(["428", "250.83", "V57", "410"], 2), (["01", "02", "0A"], 2), (["1.50", "2", "x"], 2)],
)
def test_codes_do_not_depend_on_the_other_rows_of_a_file(tmp_path, texts, few):
    """A file without the letters has numbers, which a reader would write otherwise: 428 as 428.0, 01 as 1."""
    columns = Columns.fit(pl.DataFrame({"code": texts}), ["code"], [])
    path = tmp_path / "few.csv"
    path.write_text("code\n" + "\n".join(texts[:few]) + "\n")
    assert (
        columns.encode(as_table(path, list(columns.categories)))[:, 0].tolist()
        == columns.encode(pl.DataFrame({"code": texts[:few]}))[:, 0].tolist()
    )
    numbers = pl.DataFrame({"code": [float(text) for text in texts[:few]]})
    assert (
        columns.encode(numbers)[:, 0].tolist()
        == columns.encode(pl.DataFrame({"code": texts[:few]}))[:, 0].tolist()
    )


def test_codes_do_not_depend_on_the_reader():
    booleans = Columns.fit(pl.DataFrame({"b": ["True", "False", "True"]}), ["b"], [])
    assert booleans.encode(pl.DataFrame({"b": ["true", "false", "FALSE", "no"]}))[
        :, 0
    ].tolist() == [0, 1, 1, 2]
    wholes = Columns.fit(pl.DataFrame({"k": [1, 1, 2]}), ["k"], ["k"])
    assert wholes.encode(pl.DataFrame({"k": [1.0, 2.0, 1.5]}))[:, 0].tolist() == [0, 1, 2]
    both = Columns.fit(pl.DataFrame({"k": ["1", "1", "01"]}), ["k"], [])
    assert both.encode(pl.DataFrame({"k": ["1", "01", "1.0", "1_0"]}))[:, 0].tolist() == [
        0,
        1,
        0,
        2,
    ]


def test_dates_are_the_same_in_every_unit():
    day = pl.Series("t", ["2020-01-01", "2021-07-11"]).str.to_date()
    columns = Columns.fit(pl.DataFrame({"t": day}), ["t"], [])
    expected = columns.encode(pl.DataFrame({"t": day}))
    assert np.ptp(expected) == 557 * 86_400 * 1e6
    for unit in ("ms", "us", "ns"):
        assert np.array_equal(
            columns.encode(pl.DataFrame({"t": day.cast(pl.Datetime(unit))})), expected
        ), unit


def test_a_text_among_new_numbers_is_found_by_its_line():
    """Its whole column was read as texts; the numbers before it are not what is wrong."""
    columns = Columns.fit(pl.DataFrame({"x": [1.0, 2.0]}), ["x"], [])
    with pytest.raises(DataError, match="'three' in row 3, line 4"):
        columns.encode(pl.DataFrame({"x": ["1.5", None, "three"]}))


def test_names_are_not_listed_again_for_every_column(monkeypatch):
    """`frame.columns` makes a list of all names: once for each column, it is quadratic in their number."""
    frame = pl.DataFrame({f"x{k}": [1.0, 2.0] for k in range(300)}).with_columns(
        pl.lit("a").alias(f"c{k}") for k in range(300)
    )
    columns = Columns.fit(frame, frame.columns, [])
    own, calls = pl.DataFrame.columns, []
    monkeypatch.setattr(
        pl.DataFrame, "columns", property(lambda self: calls.append(1) or own.fget(self))
    )
    columns.encode(frame)
    Columns.fit(frame, columns.names, [])
    assert len(calls) < 20
