"""The robust value as a metric."""

import numpy as np
import pytest

import scdro
from scdro.boosting._losses import LogisticLoss
from scdro.boosting._metric import RobustMetric

RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=100)
Y = RNG.integers(0, 2, 100)
LOSSES = np.logaddexp(0, np.where(Y > 0, -SCORES, SCORES))


@pytest.mark.parametrize("weight", [None, RNG.exponential(size=100)], ids=["", "weighted"])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_weights_of_samples_and_classes_are_the_base(weight, scale):
    found = RobustMetric("robust", 0.3, LogisticLoss(scale), raw=True)(Y, SCORES, weight)
    base = (1.0 if weight is None else weight) * np.where(Y > 0, scale, 1.0)
    assert found == pytest.approx(
        scdro.worst_case(LOSSES, 0.3, 1e-9, sample_weight=base).value, rel=1e-6
    )


def test_scores_and_probabilities_have_the_same_value():
    raw = RobustMetric("robust", 0.3, LogisticLoss(), raw=True)(Y, SCORES)
    assert RobustMetric("robust", 0.3, LogisticLoss())(
        Y, 1 / (1 + np.exp(-SCORES))
    ) == pytest.approx(raw)
