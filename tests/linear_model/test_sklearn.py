"""The linear models as scikit-learn estimators: its own checks, pandas, sparse data, weights, bad input."""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import oracles
from scdro.errors import HyperparameterError
from scdro.linear_model import KLDROClassifier, KLDRORegressor, _threads

ESTIMATORS = [
    KLDROClassifier(),
    KLDROClassifier(rho=0.0),
    KLDRORegressor(),
    KLDRORegressor(loss="absolute_error"),
    KLDRORegressor(loss="huber"),
]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# -- beyond the checks
# ------------------------------------------------------------------------------------------------


def test_pandas_names_and_pipelines():
    pd = pytest.importorskip("pandas")
    X, y = load_iris(return_X_y=True, as_frame=True)
    names = pd.Series(["setosa", "versicolor", "virginica"])
    model = KLDROClassifier(rho=0.2).fit(X, names[y].to_numpy())
    assert list(model.feature_names_in_) == list(X.columns)
    assert set(model.predict(X)) <= set(names)
    assert model.coef_.shape == (3, 4)
    np.testing.assert_allclose(model.predict_proba(X).sum(1), 1)
    assert model.intercept_.sum() == pytest.approx(0, abs=1e-12)
    assert (
        cross_val_score(make_pipeline(StandardScaler(), KLDROClassifier(rho=0.2)), X, y).mean()
        > 0.9
    )
    search = GridSearchCV(
        KLDRORegressor(), {"loss": ["huber", "absolute_error"], "rho": [0.0, 0.1]}, cv=2
    )
    assert search.fit(X.iloc[:, :3], X.iloc[:, 3]).best_score_ > 0


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_coefficients_of_several_classes_without_a_penalty_are_those_of_scikit_learn(fit_intercept):
    X, y = load_iris(return_X_y=True)
    X = X + np.random.default_rng(0).normal(size=X.shape)
    model = KLDROClassifier(rho=0.0, C=np.inf, fit_intercept=fit_intercept, tol=1e-10).fit(X, y)
    same = LogisticRegression(C=np.inf, fit_intercept=fit_intercept, tol=1e-10, max_iter=1000).fit(
        X, y
    )
    np.testing.assert_allclose(model.coef_, same.coef_, atol=1e-5)
    np.testing.assert_allclose(model.intercept_, same.intercept_, atol=1e-5)


def test_class_weight_is_a_factor_of_the_sample_weight():
    X, y = make_classification(200, 5, weights=[0.8], random_state=0)
    by_class = KLDROClassifier(class_weight={0: 1.0, 1: 3.0}).fit(X, y)
    by_sample = KLDROClassifier().fit(X, y, np.where(y == 1, 3.0, 1.0))
    np.testing.assert_allclose(by_class.coef_, by_sample.coef_, atol=1e-6)
    expected = by_sample.worst_case_weights(X, y, np.where(y == 1, 3.0, 1.0))
    np.testing.assert_allclose(by_class.worst_case_weights(X, y), expected, rtol=1e-4)


def test_weights_of_zero_and_repeats():
    X, y = make_classification(150, 4, random_state=1)
    weight = np.random.default_rng(0).integers(0, 3, 150)
    weighted = KLDROClassifier(rho=0.3).fit(X, y, weight)
    repeated = KLDROClassifier(rho=0.3).fit(np.repeat(X, weight, 0), np.repeat(y, weight))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-6)
    assert weighted.lam_ == pytest.approx(repeated.lam_, rel=1e-6)


def test_pickled_model_predicts_the_same():
    X, y = make_classification(100, 4, random_state=2)
    model = KLDROClassifier().fit(X, y)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X)
    )
    assert clone(model).get_params() == model.get_params()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"rho": -0.1}, "rho >= 0"),
        ({"rho": np.nan}, "rho >= 0"),
        ({"lam0": 0.0}, "lam0 >= 1e-50"),
        ({"C": 0.0}, "C > 0"),
        ({"C": -1.0}, "C > 0"),
        ({"tol": -1e-3}, "tol >= 0"),
        ({"max_iter": 0}, "max_iter"),
        ({"max_iter": 2.5}, "max_iter"),
        ({"batch_size": 0}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate > 0"),
        ({"verbose": -1}, "verbose"),
    ],
)
@pytest.mark.parametrize("Estimator", [KLDROClassifier, KLDRORegressor])
def test_bad_settings(Estimator, setting, message):
    X, y = make_classification(30, 4, random_state=0)
    with pytest.raises(ValueError, match=message):
        Estimator(**setting).fit(X, y)
    with pytest.raises(ValueError, match=message):
        Estimator(**setting).partial_fit(X, y)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"loss": "hinge"}, "loss"),
        ({"epsilon": 0.0}, "epsilon > 0"),
        ({"quantile": 1.0}, "quantile in"),
    ],
)
def test_bad_settings_of_the_regressor(setting, message):
    with pytest.raises(ValueError, match=message):
        KLDRORegressor(**setting).fit([[0.0], [1.0]], [0.0, 1.0])


def test_bad_data():
    X, y = make_classification(40, 4, random_state=0)
    model = KLDROClassifier().fit(X, y)
    with pytest.raises(ValueError, match="NaN"):
        KLDROClassifier().fit(np.where(X > 2, np.nan, X) * np.nan, y)
    with pytest.raises(ValueError, match="one class"):
        KLDROClassifier().fit(X, np.zeros(40))
    with pytest.raises(ValueError, match="one class"):
        KLDROClassifier().fit(X, y, (y == 1).astype(float))
    with pytest.raises(ValueError, match="inconsistent"):
        KLDROClassifier().fit(X, y[:-1])
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, :2])
    with pytest.raises(ValueError, match="negative"):
        KLDROClassifier().fit(X, y, -np.ones(40))
    with pytest.raises(ValueError, match="positive"):
        KLDROClassifier().fit(X, y, np.zeros(40))
    with pytest.raises(ValueError, match="among the classes"):
        model.worst_case_weights(X, y + 5)
    with pytest.raises(ValueError, match="per sample"):
        model.worst_case_weights(X, y[:-1])
    with pytest.raises(ValueError, match="per sample"):
        KLDRORegressor().fit(X, y).worst_case_weights(X, y[:-1])
    with pytest.raises(ValueError, match="Unknown label type"):
        KLDROClassifier().fit(X, X[:, 0])


def test_constant_features_and_extreme_scales():
    rng = np.random.default_rng(0)
    X = np.column_stack(
        [rng.standard_normal(100), np.full(100, 3.0), 1e8 * rng.standard_normal(100), np.zeros(100)]
    )
    y = (X[:, 0] + 1e-8 * X[:, 2] + rng.standard_normal(100) > 0).astype(int)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = KLDROClassifier(rho=0.1).fit(X, y)
    assert np.all(np.isfinite(model.coef_))
    assert model.coef_[0, 3] == 0.0
    assert model.dual_gap_ < 1e-6
    theirs = LogisticRegression(tol=1e-8, max_iter=10_000).fit(X[:, :2], y)
    np.testing.assert_allclose(
        KLDROClassifier(rho=0.0).fit(X[:, :2], y).coef_, theirs.coef_, atol=1e-4
    )


def test_sparse_input_is_not_made_dense():
    X = sp.random_array((2000, 5000), density=0.002, rng=np.random.default_rng(0), format="csr")
    y = (X @ np.random.default_rng(1).standard_normal(5000) > 0).astype(int)
    model = KLDROClassifier(rho=0.05, C=10.0).fit(X, y)
    assert model.dual_gap_ <= 1e-7
    theirs = LogisticRegression(C=10.0, tol=1e-8, max_iter=5000).fit(X, y)
    np.testing.assert_allclose(
        KLDROClassifier(rho=0.0, C=10.0).fit(X, y).coef_, theirs.coef_, atol=1e-4
    )


def test_weights_of_the_worst_case_follow_the_definition():
    X, _ = load_iris(return_X_y=True)
    model = KLDRORegressor("absolute_error", rho=0.3).fit(X[:, :3], X[:, 3])
    weights = model.worst_case_weights(X[:, :3], X[:, 3])
    expected = oracles.by_root(np.abs(model.predict(X[:, :3]) - X[:, 3]), 0.3).weights
    np.testing.assert_allclose(weights, expected, rtol=1e-6, atol=1e-10)
    plain = KLDRORegressor(rho=0.0).fit(X[:, :3], X[:, 3])
    np.testing.assert_allclose(plain.worst_case_weights(X[:, :3], X[:, 3]), 1 / len(X))
    np.testing.assert_allclose(plain.coef_, Ridge(1.0).fit(X[:, :3], X[:, 3]).coef_, atol=1e-4)


def test_a_call_that_fails_leaves_the_model_as_it_was():
    X, y = np.random.default_rng(0).normal(size=(50, 2)), np.arange(50) % 2
    model = KLDROClassifier().fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="one class"):
        model.fit(X, np.zeros(50))
    assert (model.predict(X) == before).all()
    fresh = KLDROClassifier()
    with pytest.raises(ValueError, match="among the classes"):
        fresh.partial_fit(X, y + 5, classes=[0, 1])
    fresh.partial_fit(X, y + 5, classes=[5, 6])


@pytest.mark.parametrize("weights", [{0: -1.0, 1: 1.0}, {0: 0.0, 1: 1.0}])
def test_class_weights_that_leave_nothing(weights):
    X, y = np.random.default_rng(0).normal(size=(50, 2)), np.arange(50) % 2
    with pytest.raises(ValueError, match="class"):
        KLDROClassifier(class_weight=weights).fit(X, y)


def test_settings_of_a_stream_stay():
    X, y = np.random.default_rng(0).normal(size=(50, 2)), np.arange(50) % 2
    model = KLDROClassifier(rho=0.1).partial_fit(X, y, classes=[0, 1])
    model.set_params(C=0.5).partial_fit(X, y)
    with pytest.raises(ValueError, match="as in the first call"):
        model.set_params(rho=2.0).partial_fit(X, y)


def test_fits_in_threads_share_one_limit():
    X, y = np.random.default_rng(0).normal(size=(20_000, 5)), np.arange(20_000) % 2
    with ThreadPoolExecutor(3) as pool:
        fitted = list(pool.map(lambda rho: KLDROClassifier(rho=rho).fit(X, y).coef_, [0.1] * 6))
    assert all(np.allclose(coef, fitted[0], atol=1e-9) for coef in fitted)
    assert (_threads._workers, _threads._depth) == (1, 0)


@pytest.mark.parametrize(
    "setting", [{"rho": "a"}, {"rho": None}, {"C": "a"}, {"tol": "x"}, {"lam0": None}]
)
def test_settings_that_are_not_numbers(setting):
    with pytest.raises(HyperparameterError, match="number"):
        KLDROClassifier(**setting).fit([[0.0], [1.0]], [0, 1])


def test_targets_of_the_worst_case_must_be_finite():
    X = np.random.default_rng(0).normal(size=(20, 2))
    model = KLDRORegressor().fit(X, X[:, 0])
    with pytest.raises(ValueError, match="finite targets"):
        model.worst_case_weights(X, np.full(20, np.nan))


def test_verbose_prints_a_line_for_every_step(capsys):
    X, y = make_classification(300, 5, random_state=0)
    quiet = KLDROClassifier().fit(X, y)
    assert capsys.readouterr().out == ""
    model = KLDROClassifier(verbose=True).fit(X, y)
    *steps, last = capsys.readouterr().out.splitlines()
    assert len(steps) == model.n_iter_ > 1
    penalty = (model.coef_**2).sum() / (2 * model.C * len(y))
    values = [float(line.split("objective ")[1].split(",")[0]) for line in steps]
    assert min(values) == pytest.approx(model.robust_value_ + penalty, rel=1e-4)
    assert f"{model.dual_gap_:.2g}" in last
    np.testing.assert_array_equal(model.coef_, quiet.coef_)
