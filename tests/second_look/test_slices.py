"""find_slices: against brute force, on groups that are there, and on columns that mean nothing."""

import itertools
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.stats import irwinhall, mannwhitneyu
from sklearn.datasets import load_digits
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline

from scdro.errors import DataError, HyperparameterError, LossError
from scdro.second_look import Slice, Slices, find_slices, second_look_weights
from scdro.second_look._conditions import conditions_of
from scdro.second_look._slices import (
    EXACT,
    SIMPLER,
    _join_p_values,
    _p_value,
    _rank_in_classes,
    _search,
    _z,
)


def planted(n=2000, seed=0):
    """Weight on landbirds on water; age and colour say nothing."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.25).astype(int)
    water = rng.random(n) < np.where(y == 1, 0.95, 0.05)
    hard = (y == 0) & water
    p = np.where(hard, rng.beta(2, 3, n), rng.beta(9, 1, n))
    weights = np.exp(-p / 0.2)
    for k in (0, 1):
        weights[y == k] /= weights[y == k].sum()
    frame = pd.DataFrame(
        {
            "place": np.where(water, "water", "land"),
            "age": rng.normal(40, 10, n),
            "colour": rng.choice(["red", "green", "blue"], n),
            "empty": [None] * n,
        }
    )
    return weights, frame, y, p, hard


def test_the_planted_group_is_named_first():
    weights, frame, y, p, hard = planted()
    found = find_slices(weights, frame, y=y, proba=p, after=np.ones(2000, bool))
    first = found[0]
    assert set(first.conditions) == {"place = water", "label = 0"}
    assert first.size == hard.sum()
    assert first.share == pytest.approx(hard.mean())
    usual = weights[y == 0].mean()
    assert first.lift == pytest.approx(weights[hard].mean() / usual, rel=0.1)
    assert first.added == pytest.approx((weights[hard] - usual).sum() / weights.sum(), rel=0.1)
    assert first.before == pytest.approx((p > 0.5)[hard].mean(), abs=0.05)
    assert first.after == 1
    assert first.p_value < 0.01


def test_sentences_frames_and_html():
    weights, frame, y, p, _ = planted()
    found = find_slices(
        weights, frame.assign(place=frame.place.replace("water", "<b>water")), y=y, proba=p
    )
    sentences = str(found).splitlines()
    assert len(sentences) == len(found)
    assert sentences[0].startswith("place = <b>water and label = 0: ")
    assert "accuracy" in sentences[0]
    assert found.to_frame()["conditions"][0] == "place = <b>water and label = 0"
    assert isinstance(find_slices(weights, pl.from_pandas(frame), y=y).to_frame(), pl.DataFrame)
    assert isinstance(found.to_frame("polars"), pl.DataFrame)
    assert "&lt;b&gt;water" in found._repr_html_()
    assert "<b>" not in found._repr_html_()
    assert str(Slices()) == "No subgroup found."
    assert "No subgroup found." in Slices()._repr_html_()
    worse = Slice(("age > 60",), 10, 0.1, 3.0, 0.2, 1e-4, 2.25, 1.5, loss=True)
    assert "mean error 2.25 before, 1.5 after" in str(worse)
    assert "class" not in str(worse)  # a regression has none
    assert "19,662 before" in str(worse._replace(before=19662.3))


def test_any_frame_gives_the_same():
    weights, frame, y, _, _ = planted(600)
    frame = frame.drop(columns="empty")
    expected = tuple(find_slices(weights, frame, y=y))
    assert expected
    for other in (
        pl.from_pandas(frame),
        frame.to_dict("list"),
        {name: frame[name].to_numpy() for name in frame},
        {name: frame[name] for name in frame},
    ):
        assert tuple(find_slices(weights, other, y=y)) == expected
    pyarrow = pytest.importorskip("pyarrow")
    assert tuple(find_slices(weights, pyarrow.Table.from_pandas(frame), y=y)) == expected


def test_the_search_is_brute_force():
    """All conjunctions of up to three conditions, one at a time, by masks."""
    weights, frame, y, _, _ = planted(300, seed=3)
    w = weights * 300 / weights.sum()
    columns = {
        "place": frame["place"].to_numpy(object),
        "colour": frame["colour"].to_numpy(object),
        "label": y * 1.0,
    }
    conditions = [c for name, values in columns.items() for c in conditions_of(name, values, 4)]
    (ranks, usual), half = _rank_in_classes(w, y), np.arange(300) % 2 == 0
    n = half.sum()

    def score(numbers):
        rows = half & np.logical_and.reduce([conditions[k].rows for k in numbers])
        size = rows.sum()
        if size < 4:
            return 0.0
        value = (w - usual)[rows].sum() / n / np.sqrt(size / n)
        return (
            value
            if value > 0 and (ranks[rows].mean() - 0.5) / np.sqrt((1 / size - 1 / n) / 12) > 2
            else 0.0
        )

    found = {}
    for depth in (1, 2, 3):
        for numbers in itertools.combinations(range(len(conditions)), depth):
            parts = [
                part for size in range(1, depth) for part in itertools.combinations(numbers, size)
            ]
            if score(numbers) > SIMPLER * max(
                [found.get(part, 0.0) for part in parts], default=0.0
            ):
                found[numbers] = score(numbers)
        expected = sorted(found, key=lambda k: (-found[k], len(k), k))
        assert _search(conditions, w - usual, ranks, half, depth, 4) == expected[:5]
    assert len(expected[0]) == 2


def test_three_conditions():
    rng = np.random.default_rng(0)
    frame = {name: rng.choice(["yes", "no"], 3000) for name in ("a", "b", "c", "d")}
    hard = (frame["a"] == "yes") & (frame["b"] == "yes") & (frame["c"] == "no")
    weights = np.where(hard, 4.0, 0.5) * rng.uniform(0.9, 1.1, 3000)
    assert set(find_slices(weights, frame, depth=3)[0].conditions) == {
        "a = yes",
        "b = yes",
        "c = no",
    }


@pytest.mark.parametrize("m", [3, 8, EXACT])
def test_p_values_of_few_members_are_exact(m):
    """The sum of m uniform numbers."""
    rng = np.random.default_rng(m)
    for ranks in (rng.random(m), 0.7 + 0.3 * rng.random(m)):
        assert _p_value(ranks, 10_000) == pytest.approx(
            irwinhall.sf(ranks.sum(), m), rel=1e-6, abs=1e-12
        )
    assert _p_value(np.full(m, 0.999), 10_000) == pytest.approx(
        (0.001 * m) ** m / math.factorial(m), rel=1e-6
    )


def test_the_p_value_of_many_is_mann_and_whitneys():
    rng = np.random.default_rng(0)
    w = rng.random(300)
    rows = rng.random(300) < 0.2
    ranks, _ = _rank_in_classes(w, np.zeros(300))
    expected = mannwhitneyu(
        w[rows], w[~rows], alternative="greater", method="asymptotic", use_continuity=False
    )
    assert _p_value(ranks[rows], 300) == pytest.approx(expected.pvalue, rel=0.02)
    assert np.isinf(_z(0.5, 1, 1)) or np.isnan(_z(0.5, 1, 1))


def test_many_halves_join_to_one_p_value():
    rng = np.random.default_rng(0)
    assert (
        np.mean([_join_p_values(rng.random(20).tolist(), 20) <= 0.05 for _ in range(2000)]) <= 0.05
    )
    assert _join_p_values([1e-9] * 4, 20) == 1.0  # among the candidates of four halves of twenty
    assert _join_p_values([1e-9] * 5, 20) == pytest.approx(4e-9)


def digits(seed):
    """Odd or even, 8 samples each of the digits 2, 3, 8 and 9, as in examples/hidden_digits.py."""
    source = load_digits()
    rng = np.random.default_rng(seed)
    rows = np.concatenate(
        [
            rng.permutation(np.flatnonzero(source.target == d))[: 8 if d in (2, 3, 8, 9) else 108]
            for d in range(10)
        ]
    )
    return source.data[rows] / 16, source.target[rows]


@pytest.fixture(scope="module", params=[0, 1])
def rare_digits(request):
    X, digit = digits(request.param)
    model = make_pipeline(
        Nystroem(gamma=0.05, n_components=200, random_state=0), LogisticRegression(C=10)
    )
    proba = cross_val_predict(model, X, digit % 2, cv=5, method="predict_proba")
    return second_look_weights(proba, digit % 2), digit, proba


def test_rare_digits_are_named_first(rare_digits):
    weights, digit, proba = rare_digits
    found = find_slices(weights, {"digit": digit}, y=digit % 2, proba=proba)
    assert found[0].conditions in [(f"digit = {d}",) for d in (2, 3, 8, 9)]
    assert found[0].lift > 5
    assert found[0].before < 0.6


def test_shuffled_digits_mean_nothing(rare_digits):
    weights, digit, _ = rare_digits
    orders = (np.random.default_rng(k).permutation(len(digit)) for k in range(100))
    assert sum(bool(find_slices(weights, {"digit": digit[order]}, y=digit % 2, seed=k)) for k, order in
               enumerate(orders)) <= 5  # fmt: skip


def test_shuffled_columns_mean_nothing():
    named = 0
    for seed in range(100):
        weights, frame, y, _, _ = planted(400, seed=seed)
        order = np.random.default_rng(1000 + seed).permutation(400)
        named += bool(
            find_slices(weights, frame.iloc[order].reset_index(drop=True), y=y, seed=seed)
        )
    assert named <= 5


def test_many_columns_that_mean_nothing():
    """Of thousands of conjunctions, some stand out on the half that finds them; the other half knows better."""
    named = 0
    for seed in range(20):
        weights, _, y, _, _ = planted(300, seed=seed)
        noise = np.random.default_rng(seed).choice(["a", "b", "c"], (30, 300))
        named += bool(
            find_slices(
                weights, {f"column {k}": values for k, values in enumerate(noise)}, y=y, seed=seed
            )
        )
    assert named <= 1


def test_unequal_classes_alone_are_no_slice():
    rng = np.random.default_rng(0)
    y = (rng.random(1000) < 0.1).astype(int)
    weights = np.where(y == 1, 5.0, 0.55) * rng.uniform(0.9, 1.1, 1000)
    assert len(find_slices(weights, {"colour": rng.choice(["red", "green"], 1000)}, y=y)) == 0


def test_numbers_and_dates_are_cut_where_it_says():
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 80, 1000)
    old = find_slices(np.where(age > 74, 5.0, 0.5) * rng.uniform(0.9, 1.1, 1000), {"age": age})
    name, _, cut = old[0].conditions[0].split()
    assert (name, round(float(cut))) == ("age", 74)
    assert old[0].size == (age > float(cut)).sum()
    days = np.datetime64("2020-01-01") + rng.integers(0, 1000, 1000)
    late = find_slices(np.where(days > np.datetime64("2022-07-01"), 5.0, 0.5), {"day": days})
    assert late[0].conditions[0].startswith("day > 2022-0")
    numbers = rng.normal(size=1000) * 1e-5
    assert (
        find_slices(np.exp(numbers / 1e-5), {"tiny": numbers})[0]
        .conditions[0]
        .startswith("tiny > 0.00001")
    )


def test_words_of_texts():
    rng = np.random.default_rng(0)
    hard = rng.random(1000) < 0.1
    texts = [f"{'finna gö' if h else 'going to'} number {k} of things" for k, h in enumerate(hard)]
    weights = np.where(hard, 4.0, 0.7) * rng.uniform(0.9, 1.1, 1000)
    for frame in (texts, {"text": texts}, pd.DataFrame({"text": texts})):
        assert find_slices(weights, frame)[0].conditions[0] in ('text has "finna"', 'text has "gö"')


def test_missing_values_are_values():
    rng = np.random.default_rng(0)
    known = rng.random(1000) < 0.9
    weights = np.where(known, 0.5, 5.0) * rng.uniform(0.9, 1.1, 1000)
    for values in (np.where(known, rng.normal(size=1000), np.nan), np.where(known, "a", None)):
        assert find_slices(weights, {"payer": values})[0].conditions == ("payer is missing",)


def test_numbers_to_predict_are_no_classes():
    rng = np.random.default_rng(0)
    place, y = rng.choice(["land", "water"], 1000, p=[0.9, 0.1]), rng.normal(size=1000)
    weights = np.where(place == "water", 4.0, 0.7) * rng.uniform(0.9, 1.1, 1000)
    assert find_slices(weights, {"place": place}, y=y)[0].conditions == ("place = water",)
    assert find_slices(np.exp(y), {"place": place}, y=y)[0].conditions[0].startswith("label > ")


def test_a_column_called_label_stays():
    weights, frame, y, _, _ = planted(600)
    found = find_slices(weights, frame.rename(columns={"place": "label"}), y=y)
    assert set(found[0].conditions) == {"label = water", "given label = 0"}


def test_a_confirmed_slice_keeps_columns_named_like_the_label():
    """Only the condition on the label itself is left out, not one on "label source"."""
    weights, frame, y, _, _ = planted()
    frame = frame.rename(columns={"place": "label source"})
    first = find_slices(weights, frame, y=y)[0]
    assert set(first.conditions) == {"label source = water", "label = 0"}
    assert first.members.text == "label source = water"
    assert (np.asarray(first.members) == (frame["label source"] == "water")).all()


def test_bad_input():
    weights, frame, y, _, _ = planted(100)
    with pytest.raises(DataError, match="rows"):
        find_slices(weights, frame.iloc[:50])
    with pytest.raises(DataError, match="DataFrame"):
        find_slices(weights, np.zeros((100, 2)))
    with pytest.raises(DataError, match="vector"):
        find_slices(np.ones((10, 2)), frame)
    with pytest.raises(DataError, match="vectors"):
        find_slices(weights, {"a": np.zeros((100, 2))})
    with pytest.raises(DataError, match="rows"):
        find_slices(weights, frame, y=y[:50])
    with pytest.raises(DataError, match="probability"):
        find_slices(weights, frame, y=y, proba=np.ones(50))
    with pytest.raises(ValueError, match="finite"):
        find_slices(np.full(100, np.nan), frame)
    for options in ({"alpha": 0.0}, {"depth": 4}, {"min_size": 1}):
        with pytest.raises(HyperparameterError, match="expected"):
            find_slices(weights, frame, **options)
    assert len(find_slices(weights, {})) == 0
    assert len(find_slices(np.ones(100), frame)) == 0


def test_errors_of_a_regressor():
    rng = np.random.default_rng(0)
    place = rng.choice(["land", "water"], 400, p=[0.8, 0.2])
    error = np.where(place == "water", 30.0, 2.0) * rng.uniform(0.8, 1.2, 400)
    (found,) = find_slices(error, {"place": place}, proba=error, after=error / 2, errors=True)
    assert found.conditions == ("place = water",)
    np.testing.assert_allclose([found.before, found.after], [30.0, 15.0], rtol=0.05)
    assert "mean error 3" in str(found)
    with pytest.raises(DataError, match="one error per sample"):
        find_slices(error, {"place": place}, proba=error[:-1], errors=True)


def test_labels_have_the_name_that_is_passed():
    weights, frame, y, _, _ = planted(600)
    found = find_slices(weights, frame.rename(columns={"place": "label"}), y=y, label="bird")
    assert set(found[0].conditions) == {"label = water", "bird = 0"}
    taken = frame.assign(**{"given label": "a", "label of the model": "b", "label": "c"})
    assert set(find_slices(weights, taken, y=y)[0].conditions) == {
        "place = water",
        "given given label = 0",
    }


def test_what_is_no_number():
    weights, frame, _, _, _ = planted(100)
    for bad in (["a"] * 100, {"w": 1}):
        with pytest.raises(LossError, match="weights as real numbers"):
            find_slices(bad, frame)
        with pytest.raises(LossError, match="probabilities as real numbers"):
            find_slices(weights, frame, proba=bad)
        with pytest.raises(LossError, match="errors as real numbers"):
            find_slices(weights, frame, proba=bad, errors=True)


def test_scores_that_are_no_probabilities():
    weights, frame, y, _, _ = planted(100)
    for bad in (np.linspace(-3, 3, 100), np.full(100, np.inf)):
        with pytest.raises(LossError, match=r"\[0, 1\].*softmax"):
            find_slices(weights, frame, y=y, proba=bad)
    unknown = np.where(np.arange(100) < 50, np.nan, 0.9)
    assert isinstance(find_slices(weights, frame, y=y, proba=unknown), Slices)


def test_missing_labels():
    weights, frame, y, _, _ = planted(100)
    for bad in (np.where(y, 1.0, np.nan), np.where(y, "a", None)):
        with pytest.raises(DataError, match="missing"):
            find_slices(weights, frame, y=bad)
