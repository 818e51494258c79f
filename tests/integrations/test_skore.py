"""The check of weak subgroups in skore's reports."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from scdro.errors import HyperparameterError

skore = pytest.importorskip("skore")
pd = pytest.importorskip("pandas")

from scdro.integrations.skore import WeakSubgroups  # noqa: E402

pytestmark = pytest.mark.integration


def table(gap, seed=0, n=6000):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {"age": rng.integers(20, 80, n), "rome": rng.integers(0, 2, n), "x": rng.normal(size=n)}
    )
    wronged = (X["age"] > 60) & (X["rome"] == 1)
    # an interaction, which no linear model has
    p = 1 / (1 + np.exp(-X["x"])) * (1 - gap * wronged)
    return X, np.where(rng.random(n) < p, "paid", "owes")


def report_of(model, X, y, check):
    report = skore.evaluate(model, X, y, splitter=0.5)
    report.checks.add([check])
    return report


def row_of(report, **settings):
    others = [
        name.split(" ")[0] for name in report.checks.available() if not name.startswith("SCDRO")
    ]  # they take long
    return (
        report.checks.summarize(ignore=others, **settings).frame().set_index("code").loc["SCDRO001"]
    )


def test_a_weak_subgroup_is_an_issue():
    check = WeakSubgroups()
    report = report_of(LogisticRegression(), *table(gap=0.9), check)
    row = row_of(report)
    assert row["section"] == "issue"
    assert "wrong probabilities" in row["explanation"]
    assert any("age" in one.slice and "rome" in one.slice for one in check.audit.findings)
    for one in check.audit.findings:
        assert str(one) in row["explanation"]


def test_nobody_passes_and_fast_mode_skips():
    rng = np.random.default_rng(1)
    X = pd.DataFrame({"x": rng.normal(size=4000)})
    report = report_of(LinearRegression(), X, X["x"] + rng.normal(size=4000), WeakSubgroups())
    assert row_of(report, fast_mode=True)["section"] == "skipped"
    assert row_of(report)["section"] == "passed"


def test_columns_that_the_model_never_saw():
    X, y = table(gap=0.9)
    report = skore.evaluate(LogisticRegression(), X[["x"]], y, splitter=0.5)
    check = WeakSubgroups(frame=X.loc[report.X_test.index], max_findings=3)
    report.checks.add([check])
    assert row_of(report)["section"] == "issue"
    assert len(check.audit.findings) <= 3
    assert "rome" in check.audit.findings[0].slice


def test_what_cannot_be_audited():
    X, y = table(gap=0.0)
    two = np.column_stack([X["x"], X["age"]])
    report = report_of(LinearRegression(), X, two, WeakSubgroups())
    assert row_of(report)["section"] == "not_applicable"
    short = report_of(LogisticRegression(), X, y, WeakSubgroups(frame={"a": [1, 2]}))
    row = row_of(short)
    assert row["section"] == "not_applicable"
    assert "3,000" in row["explanation"]
    with pytest.raises(HyperparameterError, match="alpha"):
        report_of(LogisticRegression(), X, y, WeakSubgroups(alpha=2)).checks.summarize()
