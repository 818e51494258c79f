"""The losses behind the libraries' objectives: derivatives by finite differences, values by scikit-learn's metrics."""

import numpy as np
import pytest
from sklearn.metrics import (
    log_loss,
    mean_absolute_error,
    mean_pinball_loss,
    mean_poisson_deviance,
    mean_squared_error,
)

from scdro.boosting import _losses as module
from scdro.boosting._losses import lightgbm_loss, xgboost_loss
from scdro.boosting._round_weights import solve_ratio
from scdro.errors import DataError, HyperparameterError

RNG = np.random.default_rng(0)
REAL = RNG.normal(size=40)
COUNT = RNG.poisson(2.0, 40).astype(float)
CLASS = RNG.integers(0, 4, 40)
# Losses with a kink in their slope have second derivatives of one by convention: only their slopes
# are compared.
CASES = {
    "logistic": (module.LogisticLoss(), (CLASS > 1).astype(float), 1, True),
    "soft labels": (module.LogisticLoss(), RNG.random(40), 1, True),
    "softmax": (module.SoftmaxLoss(), CLASS, 4, True),
    "one against all": (module.OneVsAllLoss(), CLASS, 4, True),
    "squared": (module.SquaredLoss(), REAL, 1, True),
    "absolute": (module.AbsoluteLoss(), REAL, 1, False),
    "pinball": (module.PinballLoss(0.3), REAL, 1, False),
    "huber": (module.HuberLoss(0.5), REAL, 1, False),
    "pseudo-huber": (module.PseudoHuberLoss(0.5), REAL, 1, True),
    "poisson": (module.PoissonLoss(), COUNT, 1, True),
}


@pytest.mark.parametrize("case", CASES)
def test_derivatives_of_the_robust_value_at_fixed_weights(case):
    loss, y, k, curved = CASES[case]
    scores = RNG.normal(size=(40, k) if k > 1 else 40)
    p = solve_ratio(loss.of_samples(y, loss.prediction(scores)), None, 0.3).ratio / 40

    def value(scores):
        return p @ loss.of_samples(y, loss.prediction(scores))

    first, second = loss.derivatives(y, scores)
    share = p[:, None] if k > 1 else p
    for i in [0, 7, 23, 39]:
        for entry in [(i, c) for c in range(k)] if k > 1 else [i]:
            step = np.zeros_like(scores)
            step[entry] = 1e-4
            up, down = value(scores + step), value(scores - step)
            assert (up - down) / 2e-4 == pytest.approx((share * first)[entry], rel=1e-5, abs=1e-9)
            if curved:
                bend = (up - 2 * value(scores) + down) / 1e-8
                assert bend == pytest.approx((share * second)[entry], rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_never_negative(case):
    loss, y, k, _ = CASES[case]
    scores = 5 * RNG.normal(size=(40, k) if k > 1 else 40)
    assert (loss.of_samples(y, loss.prediction(scores)) >= 0).all()


FORESTS = ("rf", "RF", "random_forest", "Random_Forest")


def test_values_are_those_of_scikit_learn():
    p = RNG.random(40)
    y = CLASS > 1
    assert module.LogisticLoss().losses(y.astype(float), p).mean() == pytest.approx(log_loss(y, p))
    P = RNG.dirichlet(np.ones(4), 40)
    assert module.SoftmaxLoss().losses(CLASS, P).mean() == pytest.approx(log_loss(CLASS, P))
    s = RNG.normal(size=40)
    assert 2 * module.SquaredLoss().losses(REAL, s).mean() == pytest.approx(
        mean_squared_error(REAL, s)
    )
    assert module.AbsoluteLoss().losses(REAL, s).mean() == pytest.approx(
        mean_absolute_error(REAL, s)
    )
    assert module.PinballLoss(0.3).losses(REAL, s).mean() == pytest.approx(
        mean_pinball_loss(REAL, s, alpha=0.3)
    )
    mean = np.exp(s)
    assert 2 * module.PoissonLoss().losses(COUNT, mean).mean() == pytest.approx(
        mean_poisson_deviance(COUNT, mean)
    )


def test_a_certain_mistake_costs_much_but_not_everything():
    single = np.array([0.0, 1.0], dtype=np.float32)
    losses = module.LogisticLoss().losses(np.array([1.0, 0.0]), single)
    assert np.isfinite(losses).all()
    assert (losses > 15).all()


def test_several_targets_are_summed():
    y, scores = RNG.normal(size=(5, 3)), RNG.normal(size=(5, 3))
    assert module.SquaredLoss().of_samples(y, scores) == pytest.approx(
        ((y - scores) ** 2).sum(1) / 2
    )


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, module.SquaredLoss),
        ({"objective": "binary"}, module.LogisticLoss),
        ({"objective": "softmax"}, module.SoftmaxLoss),
        ({"objective": "ova"}, module.OneVsAllLoss),
        ({"objective": "mae"}, module.AbsoluteLoss),
        ({"objective": "rmse"}, module.SquaredLoss),
        ({"objective": "poisson"}, module.PoissonLoss),
    ],
)
def test_lightgbm_names(params, expected):
    assert isinstance(lightgbm_loss(params), expected)


def test_settings_of_a_loss():
    assert lightgbm_loss({"objective": "quantile", "alpha": 0.2}) == module.PinballLoss(0.2)
    assert lightgbm_loss({"objective": "huber"}) == module.HuberLoss(0.9)
    assert xgboost_loss("reg:quantileerror", quantile_alpha=[0.2]) == module.PinballLoss(0.2)
    assert xgboost_loss("reg:pseudohubererror", huber_slope=2.0) == module.PseudoHuberLoss(2.0)
    y = np.array([1.0, 0.0, 0.0, 0.0])
    for yes in (True, "true", "True", "+"):
        assert lightgbm_loss(
            {"objective": "binary", "is_unbalance": yes}, y
        ) == module.LogisticLoss(3.0)
    for no in (False, None, "false", "False", "-"):
        assert lightgbm_loss(
            {"objective": "binary", "unbalance": no, "reg_sqrt": no}, y
        ) == module.LogisticLoss(1.0)
    assert module.LogisticLoss(3.0).factor(y).tolist() == [3, 1, 1, 1]


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: lightgbm_loss({"objective": "tweedie"}), "tweedie"),
        (lambda: lightgbm_loss({"objective": len}), "function len"),
        (lambda: lightgbm_loss({"objective": "binary", "sigmoid": 2}), "sigmoid"),
        (lambda: lightgbm_loss({"reg_sqrt": True}), "reg_sqrt"),
        *(
            (lambda n=n, v=v: lightgbm_loss({n: v}), "forest")
            for n in ("boosting", "boosting_type")
            for v in FORESTS
        ),
        (lambda: xgboost_loss("rank:ndcg"), "rank:ndcg"),
        (
            lambda: xgboost_loss("reg:quantileerror", quantile_alpha=[0.1, 0.9]),
            "one quantile_alpha",
        ),
        (lambda: module.LogisticLoss(2.0).factor(np.zeros((3, 2))), "several labels"),
    ],
)
def test_what_has_no_worst_case_is_refused(ask, told):
    with pytest.raises(HyperparameterError, match=told):
        ask()


def test_classes_in_place_of_probabilities_are_refused():
    with pytest.raises(DataError, match="multi:softprob"):
        module.SoftmaxLoss().losses(CLASS, CLASS.astype(float))
