"""Differences between methods, seed by seed."""

import math

import numpy as np
import pytest
import scipy.stats

from reproduction.columns import COLUMNS
from reproduction.engine.outcomes import Outcome
from reproduction.engine.study import Arm, Study
from reproduction.paired import comparisons, difference, falls
from reproduction.results import cell


def an_outcome(method, values, rho=0.5):
    results = [
        (
            {"status": "diverged"}
            if math.isnan(v)
            else {"status": "done", "test": {"top1": v}, "train": {}}
        )
        for v in values
    ]
    return Outcome(Arm(method, rho), {"lr": 0.1}, [], results, [[] for _ in values])


def test_differences_are_the_paired_t_interval():
    a, b = [0.71, 0.74, 0.69, 0.73, 0.72], [0.70, 0.71, 0.69, 0.70, 0.71]
    found = difference(an_outcome("SCDRO", a), an_outcome("ERM", b), COLUMNS[0])
    expected = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.mean == pytest.approx(np.mean(np.subtract(a, b)))
    assert found.p_value == pytest.approx(scipy.stats.ttest_rel(a, b).pvalue)
    assert found.direction == ("higher" if expected.low > 0 else "")


def test_seeds_that_diverged_are_left_out_and_counted():
    a, b = an_outcome("SCDRO", [0.7, math.nan, 0.8]), an_outcome("FastDRO", [0.5, 0.9, 0.7])
    assert cell(a.values("test", "top1")) == "75.00 ± 7.07 (1 lost)"
    assert difference(a, b, COLUMNS[0]).pairs == 2
    assert [
        d.other
        for d in comparisons(
            Study("figure1", "made", "smoke", ("SCDRO",)), [a, b, an_outcome("DualSGM", [0.1], 0.1)]
        )
    ] == ["FastDRO, rho 0.5"]


def test_the_fall_over_the_radii_is_compared_seed_by_seed():
    study = Study("table4", "made", "smoke", ("SCDRO", "FastDRO"), rho=(0.01, 0.1, 1.0))
    accuracy = {("SCDRO", 0.01): [0.8, 0.7, 0.9], ("SCDRO", 1.0): [0.7, 0.6, 0.7]}
    accuracy |= {
        ("FastDRO", 0.01): [0.8, 0.8, 0.8],
        ("FastDRO", 1.0): [0.5, 0.4, 0.6],
        ("SCDRO", 0.1): [0.0] * 3,
    }
    (found,) = falls(
        study, [an_outcome(method, values, rho) for (method, rho), values in accuracy.items()]
    )
    expected = scipy.stats.ttest_rel([0.1, 0.1, 0.2], [0.3, 0.4, 0.2])
    assert (found.ours, found.other, found.pairs) == ("SCDRO", "FastDRO", 3)
    assert (found.mean, found.p_value) == pytest.approx((-0.5 / 3, expected.pvalue))
    assert falls(Study("figure2", "made", "smoke", ("SCDRO",)), [an_outcome("SCDRO", [0.1])]) == []
