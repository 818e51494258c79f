"""A slice that a person wants served: which rows it is, what they weigh, and whether the model for them is kept."""

import numpy as np
import polars as pl
import pytest

from scdro.auditing._codes import code_columns, read_frame
from scdro.errors import DataError, HyperparameterError
from scdro.tables import load, train
from scdro.tables._fix import find_rows, make_fix
from scdro.tables._problem import make_problem


@pytest.fixture(scope="module")
def odd():
    """Every kind of column, with names and values that look like conditions."""
    rng = np.random.default_rng(0)
    n = 400
    return pl.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "wage, net": rng.exponential(30_000, n).round(2),
            "age > 3": rng.choice(["a and b", "a", "= 5", None], n),
            "and": rng.choice([True, False], n),
            "day": pl.date_range(pl.date(2020, 1, 1), pl.date(2020, 1, 1) + pl.duration(days=n - 1), eager=True),
            "few": rng.choice([0, 1, 2], n),
            "note": [f"row {k} is {'very late' if k % 3 else 'early'} today for us" for k in range(n)],
        }
    ).with_columns(pl.when(pl.col("few") == 2).then(None).otherwise(pl.col("age")).alias("gaps"))  # fmt: skip


def test_every_condition_of_the_audit_is_understood(odd):
    """What the audit writes about a column selects the rows that it counted."""
    conditions = 0
    for column in code_columns(read_frame(odd)):
        for k, text in enumerate(column.conditions):
            np.testing.assert_array_equal(find_rows(text, odd), column.rows(k), err_msg=text)
            conditions += 1
    assert conditions > 100


def test_joined_conditions_hold_together(odd):
    rng = np.random.default_rng(1)
    texts = [
        (text, column.rows(k)) for column in code_columns(read_frame(odd)) for k, text in enumerate(column.conditions)
    ]  # fmt: skip
    for _ in range(200):
        first, second, third = (texts[k] for k in rng.integers(0, len(texts), 3))
        together = f"{first[0]} and {second[0]} and {third[0]}"
        np.testing.assert_array_equal(
            find_rows(together, odd), first[1] & second[1] & third[1], err_msg=together
        )


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("agee > 3", "'age'"), ("age", "age"), ("", "conditions"), ("age > old", "number"), ("note > 3", "texts"),
        ("day > soon", "date"), ("age = 20 or few = 1", "number"), ("age > 3 = c", "a and b"), ("age > 20 and", "age"),
    ],
)  # fmt: skip
def test_what_is_no_condition_is_named(odd, text, fact):
    with pytest.raises((DataError, HyperparameterError), match=fact):
        find_rows(text, odd)


def test_parts_weigh_the_same_within_each_class_and_classes_what_they_did():
    rng = np.random.default_rng(0)
    y, few = rng.choice(["a", "b", "c"], 600, p=[0.7, 0.2, 0.1]), rng.random(600) < 0.1
    few[y == "c"] = False  # a class without a part
    problem = make_problem(
        pl.DataFrame({"x": rng.normal(size=600), "few": few.astype(int), "y": y}), "y"
    )
    fix = make_fix(problem, "few = 1 and y = b")
    assert (fix.members == (few & (y == "b"))).all()
    weights = fix.weights(np.arange(600), "within each class")
    for name in "abc":
        assert weights[y == name].sum() == pytest.approx((y == name).sum())
        parts = [weights[(y == name) & (few == part)].sum() for part in (0, 1)]
        assert parts[0] == pytest.approx(parts[1]) or name == "c"
    alike = fix.weights(np.arange(600), "cells alike")
    assert alike.sum() == pytest.approx(600)
    sums = [alike[mask].sum() for mask in fix.cell_masks(np.arange(600))]
    np.testing.assert_allclose(sums, 600 / 5)


def planted(n=5000, seed=0, share=0.06, weak=True):
    """A shortcut that misleads a few (if weak), and a rule that serves all; `few` says who, and no model sees it."""
    rng = np.random.default_rng(seed)
    y, few = rng.integers(0, 2, n), rng.random(n) < share
    shortcut = np.where(few & weak, 1 - y, y) + 0.1 * rng.normal(size=n)
    return {"shortcut": shortcut, "rule": y + 0.3 * rng.normal(size=n), "few": few.astype(int), "y": y}  # fmt: skip


@pytest.mark.parametrize("model", ["linear", "trees"])
def test_a_planted_slice_is_served_and_new_rows_confirm_it(tmp_path, model):
    run = train(planted(), "y", model=model, group=["few"], fix="few = 1 and y = 1", candidates=2,
                out=tmp_path / "run")  # fmt: skip
    verdict = run.summary["verdict"]
    assert (verdict["answer"], run.kept) == ("helps", "group-weighted")
    slice_ = verdict["worst_group"]
    assert slice_["name"] == "few = 1 and y = 1"
    assert slice_["low"] > 0
    assert verdict["headline"].startswith("Training for few = 1 and y = 1 helped")
    for value in (slice_["before"], slice_["after"]):
        assert f"{100 * value:.1f}% right" in verdict["headline"]
    assert "other thresholds" in " ".join(verdict["sentences"])
    names = {group["name"] for group in run.summary["groups"]}
    assert {"few = 1, y = 0", "few = 1, y = 1", "few = 0, y = 1"} <= names
    new = planted(6000, seed=7)
    here = (new["few"] == 1) & (new["y"] == 1)
    right = {name: (load(tmp_path / "run").predict(new, name) == new["y"]) for name in run.models}
    assert right["group-weighted"][here].mean() > right["plain"][here].mean() + 0.05
    cells = [
        right["group-weighted"][(new["few"] == a) & (new["y"] == b)].mean()
        for a in (0, 1)
        for b in (0, 1)
    ]
    assert min(cells) > 0.75  # nobody pays for it with being failed


@pytest.mark.parametrize("model", ["linear", "trees"])
def test_where_the_slice_is_served_already_the_plain_model_is_kept(model):
    run = train(
        planted(2000, weak=False),
        "y",
        model=model,
        group=["few"],
        fix="few = 1",
        candidates=1,
        seeds=1,
    )
    verdict = run.summary["verdict"]
    assert verdict["answer"] == "no difference"
    assert run.kept == "plain"


def test_a_slice_that_thresholds_serve_as_well_is_left_to_them():
    """Labels drawn from the columns' own probabilities: nobody is overlooked, a rare class is merely rare."""
    rng = np.random.default_rng(0)
    x, few = rng.normal(size=(6000, 3)), rng.random(6000) < 0.2
    y = rng.random(6000) < 1 / (1 + np.exp(-x[:, 0] - 0.5 * x[:, 1] + 2.5))
    table = {
        **{f"x{k}": x[:, k] for k in range(3)},
        "few": few.astype(int),
        "y": np.where(y, "yes", "no"),
    }
    run = train(
        table, "y", model="linear", fix="few = 1 and y = yes", candidates=2, seeds=1, budget=0.5
    )
    verdict = run.summary["verdict"]
    assert verdict["answer"] == "no difference"
    assert run.kept == "plain"


def test_a_price_above_the_budget_is_said():
    run = train(
        planted(),
        "y",
        model="linear",
        group=["few"],
        fix="few = 1",
        candidates=1,
        seeds=1,
        budget=0.001,
    )
    verdict = run.summary["verdict"]
    assert verdict["answer"] == "costs too much"
    assert "points of accuracy; the plain model is kept" in verdict["headline"]


def test_regression():
    rng = np.random.default_rng(0)
    x, z, few = rng.normal(size=3000), rng.normal(size=3000), rng.random(3000) < 0.05
    wage = 100 * z + np.where(few, -80, 80) * x + 5 * rng.normal(size=3000)
    run = train({"x": x, "z": z, "few": few.astype(int), "wage": wage}, "wage", model="linear", group=["few"],
                fix="few = 1", candidates=1, seeds=1, budget=0.9)  # fmt: skip
    change = run.summary["verdict"]["worst_group"]
    assert change["high"] < 0  # the error of the few falls
    assert run.kept == "group-weighted"


@pytest.mark.parametrize(
    ("fix", "fact"),
    [
        ("y = 1", "target"),
        ("few = 1 and y = 7", "rows"),
        ("few > 1", "at least"),
        ("many = 1", "'few'"),
    ],
)
def test_slices_that_cannot_be_fixed(fix, fact):
    with pytest.raises((DataError, HyperparameterError), match=fact):
        train(planted(200), "y", fix=fix)
