"""What looks wrong with a table is told before anything is trained: and what is right is not."""

import numpy as np
import polars as pl
import pytest

from scdro.errors import DataError
from scdro.tables import _problem, load, train
from scdro.tables._options import TrainOptions
from scdro.tables._read import has_decimal_commas, read_written_numbers
from scdro.tables._study import worse_than_constant


def make_problem(data, target, **options):
    return _problem.make_problem(data, target, TrainOptions(**options))


N = 600
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
NOISY = X[:, 0] + RNG.normal(size=N)
FRAME = {
    "a": X[:, 0],
    "b": X[:, 1].round(1),
    "c": RNG.choice(["red", "blue", "green"], N),
    "y": np.where(NOISY > 0, "yes", "no"),
}
QUICK = {"model": "linear", "candidates": 1, "seeds": 1, "methods": ["plain"]}


def notes(frame, target="y", **settings):
    return make_problem(frame, target, **settings).warnings


def test_an_ordinary_table_has_no_notes():
    assert notes(FRAME) == []


LEAKS = {
    "a copy of the target": {"leak": FRAME["y"]},
    "another spelling": {"leak": np.where(FRAME["y"] == "yes", "Y", "N")},
    "a number": {"leak": np.where(FRAME["y"] == "yes", 1.0, 0.0) + RNG.normal(size=N) / 100},
    "not monotone": {"leak": np.where(FRAME["y"] == "yes", RNG.choice([-1.0, 1.0], N), 0.0)},
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_column_that_gives_the_target_away(name):
    (told,) = notes({**FRAME, **LEAKS[name]})
    assert "'leak'" in told
    assert "--drop leak" in told
    assert notes({**FRAME, **LEAKS[name]}, drop=["leak"]) == []


def test_a_rare_class_is_no_leak_and_its_copy_is():
    y = np.where(np.arange(N) % 30 == 0, "yes", "no")  # 97% right by a constant
    assert notes({**FRAME, "y": y}) == []
    assert "'leak'" in " ".join(notes({**FRAME, "y": y, "leak": (y == "yes").astype(int)}))


def test_the_logarithm_of_a_wage_gives_it_away():
    wage = np.exp(4.5 + 0.4 * NOISY)
    frame = {**FRAME, "wage": wage, "logwage": np.log(wage)}
    told = [one for one in notes(frame, "wage", drop=["y"]) if "--drop" in one]
    assert len(told) == 1
    assert "'logwage'" in told[0]
    noisy = {**frame, "logwage": np.log(wage) + RNG.normal(size=N) / 5}
    assert not [one for one in notes(noisy, "wage", drop=["y"]) if "--drop" in one]


def test_rows_that_occur_several_times():
    four = {name: np.tile(column, 4) for name, column in FRAME.items()}
    (told,) = notes(four)
    assert "2,400 of 2,400 rows occur more than once" in told
    assert "--split-by" in told
    together = {**four, "case": np.tile(np.arange(N), 4)}
    assert notes(together, split_by="case") == []
    few = {"c": FRAME["c"], "y": FRAME["y"]}  # rows of few categories are alike by chance
    assert notes(few) == []


def test_test_rows_that_are_training_rows():
    other = pl.DataFrame(FRAME).with_columns(a=pl.col("a") + 0.5)
    copies = pl.concat([other[:100], pl.DataFrame(FRAME)[:50]])
    assert notes(FRAME, test=other[:100]) == []
    (told,) = notes(FRAME, test=copies)
    assert "50 different ones are among the training and the test rows" in told


def test_classes_and_categories_that_differ_only_in_case_or_spaces():
    y = RNG.choice(["yes", "YES", "yes ", "no"], N)
    (told,) = notes({**FRAME, "y": y})
    assert "'YES', 'yes', 'yes '" in told
    c = RNG.choice(["New York", "new  york", "Rome"], N)
    (told,) = notes({**FRAME, "c": c})
    assert "'New York', 'new  york'" in told
    y[:] = np.where(y == "no", "no", "yes")
    y[0] = "Yes"
    with pytest.raises(DataError, match=r"'Yes', 'yes' differ only in case or spaces"):
        notes({**FRAME, "y": y})


WRITTEN = {
    "dollars": (["$5.0", "$1,234.50", None, "-$3"], [5.0, 1234.5, None, -3.0]),
    "euros": (["5 €", "12.5 €"], [5.0, 12.5]),
    "thousands": (["37,000.00", "1,000,000", "5"], [37000.0, 1e6, 5.0]),
    "spaces": (["37 000", "1 000 000.5"], [37000.0, 1000000.5]),
    "percents": (["35%", "7.5 %", "+2%"], [35.0, 7.5, 2.0]),
    "percents among numbers": (["35%", "0.35"], None),
    "two currencies": (["$5", "€5"], None),
    "plain numbers": (["5", "6.5"], None),
    "decimal commas": (["3,5", "12,25"], None),
    "groups of two": (["12,34,56", "1,000"], None),
    "begins with 0": (["0,125", "1,250"], None),
    "nothing": ([None, None], None),
    "a sign only": (["$", "%"], None),
    "a date": (["2024-01-31", "2024-02-01"], None),
    "a text": (["$5.0", "cheap"], None),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_numbers_with_signs(name):
    texts, expected = WRITTEN[name]
    found = read_written_numbers(pl.Series(texts, dtype=pl.String))
    assert (None if found is None else found.to_list()) == expected


def test_a_column_of_prices_is_numbers_in_training_and_later(tmp_path):
    price = np.abs(X[:, 0]) * 10_000
    frame = {
        "price": [f"${value:,.2f}" for value in price],
        "rate": [f"{100 * value:.0f}%" for value in X[:, 1]],
        "y": np.where(price > 6000, "dear", "cheap"),
    }
    run = train(frame, "y", out=tmp_path / "run", **QUICK)
    kinds = {c["name"]: c["kind"] for c in run.summary["data"]["columns"]}
    assert kinds == {"price": "number", "rate": "number", "y": "target"}
    told = " ".join(run.summary["warnings"])
    assert f"'${price[0]:,.2f}' is read as {price[0].round(2):g}" in told
    new = {"price": ["$9,999.00", "$12"], "rate": ["1%", "2%"]}
    assert run.predict(new).tolist() == ["dear", "cheap"]
    numbers = {"price": [9999.0, 12.0], "rate": [1.0, 2.0]}
    again = load(tmp_path / "run")
    np.testing.assert_allclose(again.predict_proba(new), again.predict_proba(numbers))
    with pytest.raises(DataError, match="'ask'"):
        run.predict({"price": ["$9,999.00", "ask"], "rate": ["1%", "2%"]})


def test_a_price_can_be_the_target():
    wage = [f"$ {value:,.2f}" for value in np.exp(10 + NOISY)]
    problem = make_problem({**FRAME, "wage": wage}, "wage")
    np.testing.assert_allclose(problem.y, np.exp(10 + NOISY).round(2))
    assert any("is read as" in one for one in problem.warnings)


def test_decimal_commas_are_named_in_every_column(tmp_path):
    frame = {f"x{k}": [f"{value:.{k}f}".replace(".", ",") for value in X[:, 0]] for k in (1, 2, 3)}
    frame["few"] = RNG.choice(["0,5", "1,5"], N)
    assert has_decimal_commas(pl.Series(["1.234,56", "7"]))
    assert not has_decimal_commas(pl.Series(["1.5", "7"]))
    told = [one for one in notes({**frame, "y": FRAME["y"]}) if "--decimal ," in one]
    assert all(f"'{name}'" in " ".join(told) for name in frame)
    assert len(told) == 2  # those with a value of its own in nearly every row are left out
    path = tmp_path / "eu.csv"
    pl.DataFrame({**frame, "y": FRAME["y"]}).write_csv(path, separator=";")
    run = train(path, "y", decimal=",", drop=["x2", "x3"], **QUICK)
    assert {c["kind"] for c in run.summary["data"]["columns"]} == {"number", "target", "left out"}
    with pytest.raises(DataError, match="--decimal"):
        run.predict(path)  # the same file, read without saying so


def test_decimal_commas_of_many_columns_are_one_note():
    values = [f"{k % most},5" for most in range(280, 286) for k in range(N)]
    frame = {f"x{k}": values[k * N : (k + 1) * N] for k in range(6)}
    (told,) = (one for one in notes({**frame, "y": FRAME["y"]}) if "--decimal ," in one)
    assert all(f"'{name}'" in told for name in frame)


def test_how_many_values_are_texts_is_a_count_not_a_rounded_share():
    mixed = [str(k % 90) for k in range(N - 1)] + ["unknown"]
    (told,) = notes({**FRAME, "c": mixed})
    assert "599 of the 600 values are numbers, the others texts such as 'unknown'" in told
    assert "100%" not in told


def test_whole_numbers_as_classes_are_told():
    stars = RNG.integers(0, 12, N)
    told = notes({**FRAME, "y": stars})
    assert any("12 different numbers, 0 to 11: taken as classes" in one for one in told)
    assert not any("as classes" in one for one in notes({**FRAME, "y": stars % 2}))
    asked = notes({**FRAME, "y": stars}, task="classification")
    assert not any("as classes" in one for one in asked)


@pytest.mark.parametrize("model", ["trees", "linear"])
def test_a_column_of_many_names_is_learned_from(tmp_path, model):
    """Each name has its own mean, in nothing but its rows: the 254 most frequent ones hold a third of the rows."""
    rng = np.random.default_rng(1)
    names = np.concatenate([np.arange(800), rng.integers(0, 800, 3200)])
    effect = rng.normal(size=800)
    frame = {
        "x": rng.normal(size=4000),
        "who": [f"name {k}" for k in names],
        "y": effect[names] + rng.normal(size=4000) / 2,
    }
    settings = {**QUICK, "model": model}
    run = train(frame, "y", out=tmp_path / "run", **settings)
    assert any("800 different values" in one for one in run.summary["warnings"])
    assert run.summary["methods"][0]["scores"]["R2"]["value"] > 0.6
    again = load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict(frame), run.predict(frame))
    unseen = again.predict({"x": [0.0, 0.0], "who": ["nobody", None]})
    assert np.abs(unseen - np.mean(frame["y"])).max() < 0.6


def test_a_model_below_a_constant_on_a_time_split_is_told():
    """The sign of the only column turns around: worse than one answer for everybody."""
    year = np.repeat(np.arange(10), N // 10)
    wage = np.where(year < 8, 1, -1) * X[:, 0] + RNG.normal(size=N) / 5
    frame = {"a": X[:, 0], "year": year, "wage": wage}
    run = train(frame, "wage", split_after=("year", 7), **QUICK)
    assert run.summary["methods"][0]["scores"]["R2"]["value"] < 0
    assert any("worse than one answer for everybody" in one for one in run.summary["warnings"])
    run = train({**frame, "y": np.where(wage > 0, "up", "down")}, "y", drop=["wage"],
                split_after=("year", 7), **QUICK)  # fmt: skip
    (told,) = (one for one in run.summary["warnings"] if "worse than" in one)
    assert "does not hold later" in told
    run = train(frame, "wage", **QUICK)
    assert not any("worse than" in one for one in run.summary["warnings"])


def test_a_constant_is_not_worse_than_itself():
    train_rows, test = np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1])
    assert not worse_than_constant(train_rows, test, np.array([1, 1, 1]), "classification", "by")
    assert worse_than_constant(train_rows, test, np.array([1, 0, 0]), "classification", "by")
    few = np.array([0] * 940 + [1] * 60)  # of a rare class, one wrong answer more is chance
    assert not worse_than_constant(few, few, np.arange(1000) == 0, "classification", "by")
    target = np.array([1.0, 2.0, 6.0])
    assert not worse_than_constant(target, target, np.full(3, 3.0), "regression", "by")


def test_rows_without_a_target():
    y = np.array(FRAME["y"], dtype=object)
    y[[3, 5, 8]] = None
    with pytest.raises(DataError, match=r"none in 3 of 600 rows.*row 4.*--drop-missing"):
        make_problem({**FRAME, "y": list(y)}, "y")
    problem = make_problem({**FRAME, "y": list(y)}, "y", drop_missing=True)
    assert len(problem.y) == problem.frame.height == N - 3
    np.testing.assert_array_equal(problem.frame["a"], np.delete(FRAME["a"], [3, 5, 8]))
    assert any("3 of 600 rows have no value" in one for one in problem.warnings)
    test = {**{name: column[:40] for name, column in FRAME.items()}, "y": list(y[:40])}
    test["a"] = test["a"] + 1.0
    problem = make_problem(FRAME, "y", test=test, drop_missing=True)
    assert (len(problem.fixed.train), len(problem.fixed.test)) == (N, 37)
    with pytest.raises(DataError, match="600 of 600"):
        make_problem({**FRAME, "y": [None] * N}, "y", drop_missing=True)


def test_a_split_after_a_day_is_said_as_the_file_says_it(tmp_path):
    days = [f"{k % 28 + 1:02d}.{k // 50 + 1:02d}.2024" for k in range(N)]
    path = tmp_path / "days.csv"
    pl.DataFrame({**FRAME, "day": days}).write_csv(path)
    late = sum(int(day[3:5]) > 10 for day in days)
    for bound in ("31.10.2024", "2024-10-31"):
        problem = make_problem(path, "y", split_after=("day", bound))
        assert len(problem.fixed.test) == late
