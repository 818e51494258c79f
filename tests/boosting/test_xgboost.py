"""XGBoost on the worst case: against a loop with gradients by hand, and against XGBoost itself where rho = 0."""

import copy
import pickle

import numpy as np
import polars as pl
import pytest
import xgboost as xgb
from boosting_tables import frame, table, worst_weights
from scipy.special import expit
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import scdro
from scdro.boosting import (
    KLDROXGBClassifier,
    KLDROXGBRegressor,
    XGBoostWorstCase,
    xgboost_metric,
    xgboost_objective,
)
from scdro.boosting._round_weights import best_constant_shares
from scdro.errors import DataError, HyperparameterError

QUIET = {"n_jobs": 1, "n_estimators": 12, "max_depth": 3}
PARAMS = {"nthread": 1, "max_depth": 3}


def by_hand(X, y, w, rho, rounds, objective, start, slopes, first):
    """Boosting with gradients from numpy and weights from scipy."""
    data = xgb.QuantileDMatrix(X, y, weight=w, nthread=1)
    booster = xgb.Booster({**PARAMS, "objective": objective, "base_score": start}, [data])
    for k in range(rounds):

        def gradients(scores, _, k=k):
            slope, curvature, losses = slopes(y, scores.astype(float))
            ratio = worst_weights(losses, w, rho) if k else first
            return w * ratio * slope, w * ratio * curvature

        booster.update(data, k, fobj=gradients)
    return booster.predict(data, output_margin=True)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_classifier_equals_a_loop_by_hand(weighted):
    X, y, _ = table()
    w = (
        np.random.default_rng(1).exponential(size=len(y)).astype(np.float32)
        if weighted
        else np.ones(len(y))
    )

    def logistic(y, s):
        p = expit(s)
        return p - y, p * (1 - p), np.logaddexp(0, np.where(y > 0, -s, s))

    share = np.average(y, weights=w)
    shares = best_constant_shares(np.array([1 - share, share]), 0.3)
    first = (shares / [1 - share, share])[y]
    model = KLDROXGBClassifier(rho=0.3, **QUIET).fit(X, y, sample_weight=w if weighted else None)
    hand = by_hand(X, y, w, 0.3, 12, "binary:logistic", shares[1], logistic, first)
    assert model.predict(X, output_margin=True) == pytest.approx(hand, abs=1e-4)


def test_a_regressor_equals_a_loop_by_hand():
    X, _, y = table()
    y = y.astype(np.float32)
    model = KLDROXGBRegressor(rho=0.3, **QUIET).fit(X, y)
    w = np.ones(len(y))
    hand = by_hand(
        X,
        y,
        w,
        0.3,
        12,
        "reg:squarederror",
        y.mean(),
        lambda y, s: (s - y, np.ones(len(y)), (s - y) ** 2 / 2),
        w,
    )
    assert model.predict(X) == pytest.approx(hand, abs=1e-4)


@pytest.mark.parametrize(
    ("ours", "plain", "settings"),
    [
        (KLDROXGBClassifier, xgb.XGBClassifier, {}),
        (
            KLDROXGBRegressor,
            xgb.XGBRegressor,
            {"objective": "reg:quantileerror", "quantile_alpha": 0.8},
        ),
        (KLDROXGBRegressor, xgb.XGBRegressor, {"objective": "reg:gamma"}),
    ],
)
def test_no_radius_is_xgboost_bit_for_bit(ours, plain, settings):
    X, labels, target = table()
    y = labels if ours is KLDROXGBClassifier else np.abs(target) + 0.1
    models = [ours(rho=0.0, **QUIET, **settings), plain(**QUIET, **settings)]
    for model in models:
        model.fit(X, y, eval_set=[(X, y)], verbose=False)
    assert models[0].get_booster().save_raw("json") == models[1].get_booster().save_raw("json")
    assert models[0].evals_result() == models[1].evals_result()


def test_a_radius_lowers_the_robust_value_on_the_training_data():
    X, y, _ = table(classes=3)
    values = []
    for rho in (0.0, 0.5):
        model = KLDROXGBClassifier(rho=rho, **QUIET).fit(X, y)
        losses = -np.log(model.predict_proba(X)[np.arange(len(y)), y])
        values.append(scdro.worst_case(losses, 0.5).value)
    assert values[1] < values[0] - 0.05


@pytest.mark.parametrize(
    ("settings", "losses"),
    [
        ({}, lambda r, y, p: r**2),
        ({"objective": "reg:absoluteerror"}, lambda r, y, p: np.abs(r)),
        (
            {"objective": "reg:quantileerror", "quantile_alpha": 0.7},
            lambda r, y, p: np.maximum(-0.7 * r, 0.3 * r),
        ),
        (
            {"objective": "reg:pseudohubererror", "huber_slope": 0.5},
            lambda r, y, p: np.sqrt(1 + 4 * r**2) - 1,
        ),
        ({"objective": "count:poisson"}, lambda r, y, p: p - y * np.log(p) + y * np.log(y) - y),
    ],
)
def test_every_regression_loss_has_a_lower_worst_case(settings, losses):
    X, _, y = table(600)
    y = np.abs(y) + 0.1
    values = []
    for rho in (0.0, 0.3):
        steps = {"n_estimators": 60, "learning_rate": 0.1}
        model = KLDROXGBRegressor(rho=rho, **{**QUIET, **steps}, **settings).fit(X, y)
        predicted = model.predict(X)
        values.append(scdro.worst_case(losses(predicted - y, y, predicted), 0.3, 1e-9).value)
    assert values[1] < values[0]


def test_several_targets():
    X, _, y = table()
    Y = np.stack([y, -2 * y], 1)
    model = KLDROXGBRegressor(rho=0.3, **QUIET).fit(X, Y)
    plain = xgb.XGBRegressor(**QUIET).fit(X, Y)
    values = [scdro.worst_case(((m.predict(X) - Y) ** 2).sum(1), 0.3).value for m in (model, plain)]
    assert values[0] < values[1]


def test_a_given_base_score_is_where_the_first_losses_come_from():
    X, _, y = table()
    callback = XGBoostWorstCase(0.3)
    KLDROXGBRegressor(
        rho=0.0, base_score=5.0, callbacks=[callback], **{**QUIET, "n_estimators": 1}
    ).fit(X, y)
    assert callback.value == pytest.approx(
        scdro.worst_case((y - 5.0) ** 2 / 2, 0.3, 1e-9).value, rel=1e-5
    )


# -- XGBoost's habits
# -------------------------------------------------------------------------------------------------


def test_metrics_of_the_training_data_have_the_samples_own_weights():
    X, y, _ = table()
    w = np.random.default_rng(1).exponential(size=len(y))
    for weight in (None, w):
        model = KLDROXGBClassifier(rho=0.5, eval_metric=["logloss", "robust"], **QUIET)
        given = None if weight is None else [weight]
        model.fit(
            X,
            y,
            sample_weight=weight,
            eval_set=[(X, y)],
            sample_weight_eval_set=given,
            verbose=False,
        )
        found = model.evals_result()["validation_0"]
        losses = -np.log(model.predict_proba(X)[np.arange(len(y)), y].astype(float))
        robust = scdro.worst_case(losses, 0.5, 1e-9, sample_weight=weight).value
        assert found["logloss"][-1] == pytest.approx(np.average(losses, weights=weight), rel=1e-4)
        assert found["robust"][-1] == pytest.approx(robust, rel=1e-4)


def test_early_stopping_goes_by_the_robust_value():
    X, y, _ = table(800)
    model = KLDROXGBClassifier(rho=0.2, **{**QUIET, "n_estimators": 300}, early_stopping_rounds=10)
    model.fit(X[:500], y[:500], eval_set=[(X[500:], y[500:])], verbose=False)
    curve = model.evals_result()["validation_0"]["robust@0.04"]
    assert model.best_iteration == np.argmin(curve) < 289
    p = model.predict_proba(X[500:])
    losses = -np.log(p[np.arange(300), y[500:]].astype(float))
    assert model.best_score == pytest.approx(scdro.worst_case(losses, 0.04, 1e-9).value, rel=1e-4)


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("auc", ["auc"]),
        ("robust@0.5", ["logloss", "robust@0.5"]),
        (["auc", "robust"], ["auc", "robust"]),
    ],
)
def test_metrics_by_name(asked, shown):
    X, y, _ = table()
    model = KLDROXGBClassifier(rho=0.2, eval_metric=asked, **QUIET).fit(
        X, y, eval_set=[(X, y)], verbose=False
    )
    assert list(model.evals_result()["validation_0"]) == shown
    assert model.get_params()["eval_metric"] == asked
    assert model.callbacks is None


def test_categories_missing_values_and_names_of_columns():
    X, y = frame()
    model = KLDROXGBClassifier(rho=0.2, enable_categorical=True, **QUIET).fit(X, y)
    assert list(model.feature_names_in_) == list(X.columns)
    assert model.predict(X).shape == y.shape
    assert len(model.feature_importances_) == X.shape[1]


@pytest.mark.integration  # XGBoost reads polars by way of pyarrow
def test_polars():
    pytest.importorskip("pyarrow")
    X, y = frame()
    numbers = X.drop(columns="kind")
    pandas = KLDROXGBClassifier(rho=0.2, **QUIET).fit(numbers, y).predict_proba(numbers)
    columns = pl.DataFrame({name: numbers[name].to_numpy() for name in numbers})
    polars = KLDROXGBClassifier(rho=0.2, **QUIET).fit(columns, y).predict_proba(columns)
    assert (pandas == polars).all()


def test_contributions_add_up_to_the_score():
    X, y, _ = table()
    model = KLDROXGBClassifier(rho=0.2, **QUIET).fit(X, y)
    shap = model.get_booster().predict(xgb.DMatrix(X), pred_contribs=True)
    assert shap.sum(1) == pytest.approx(model.predict(X, output_margin=True), abs=1e-5)


@pytest.mark.parametrize("kind", ["json", "ubj"])
def test_the_native_file_holds_the_whole_model(tmp_path, kind):
    X, y, _ = table(classes=3)
    model = KLDROXGBClassifier(rho=0.2, **QUIET).fit(X, y)
    model.save_model(tmp_path / f"model.{kind}")
    for again in (KLDROXGBClassifier(), xgb.XGBClassifier()):
        again.load_model(tmp_path / f"model.{kind}")
        assert (again.predict_proba(X) == model.predict_proba(X)).all()


def test_copies_clones_and_pickles():
    X, y, _ = table()
    model = KLDROXGBClassifier(rho=0.2, gamma=0.1, **QUIET)
    assert str(clone(model).get_params()) == str(model.get_params())
    assert model.get_params()["rho"] == 0.2
    model.fit(X, y, eval_set=[(X, y)], verbose=False)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert (other.predict_proba(X) == model.predict_proba(X)).all()


def test_training_goes_on_from_a_model():
    X, y, _ = table()
    half = {**QUIET, "n_estimators": 6}
    model = KLDROXGBClassifier(rho=0.3, **half).fit(X, y)
    further = KLDROXGBClassifier(rho=0.3, **half).fit(X, y, xgb_model=model)
    whole = KLDROXGBClassifier(rho=0.3, **QUIET).fit(X, y)
    assert further.predict_proba(X) == pytest.approx(whole.predict_proba(X), abs=1e-5)


@pytest.mark.filterwarnings("error")
def test_the_library_does_not_hear_of_the_radius():
    X, y, _ = table()
    KLDROXGBClassifier(rho=0.2, **QUIET).fit(X, y, eval_set=[(X, y)], verbose=False)


def test_a_search_over_the_radius():
    X, y, _ = table(200)
    search = GridSearchCV(
        KLDROXGBClassifier(**QUIET), {"rho": [0.0, 0.1], "max_depth": [2]}, cv=2
    ).fit(X, y)
    assert search.best_params_["rho"] in (0.0, 0.1)


def test_a_failed_fit_leaves_the_settings_alone():
    X, y, _ = table(60)
    model = KLDROXGBClassifier(objective="rank:ndcg", **QUIET)
    with pytest.raises(HyperparameterError, match="rank:ndcg"):
        model.fit(X, y)
    assert model.callbacks is None
    assert model.eval_metric is None


# -- loops of one's own
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["binary:logistic", "multi:softprob", "reg:absoluteerror"])
@pytest.mark.parametrize("matrix", [xgb.DMatrix, xgb.QuantileDMatrix])
def test_the_callback_in_train_and_cv(objective, matrix):
    classes = 3 if "multi" in objective else 2
    X, labels, target = table(classes=classes)
    y = target if "reg" in objective else labels
    params = {**PARAMS, "objective": objective} | ({"num_class": 3} if classes == 3 else {})
    metric = xgboost_metric(0.3, objective)
    values = []
    for rho in (0.0, 0.3):
        data, callback, found = matrix(X, y, nthread=1), XGBoostWorstCase(rho), {}
        settings = {
            "evals": [(data, "train")],
            "custom_metric": metric,
            "evals_result": found,
            "verbose_eval": False,
        }
        xgb.train(params, data, 15, callbacks=[callback], **settings)
        values.append(found["train"]["robust@0.3"])
        assert not data.get_weight().size
    assert values[1][-1] < values[0][-1]
    assert callback.value == pytest.approx(values[1][-2], rel=1e-4)
    if matrix is xgb.DMatrix:
        settings = {
            "custom_metric": metric,
            "as_pandas": False,
            "callbacks": [XGBoostWorstCase(0.3)],
        }
        folds = xgb.cv(params, xgb.DMatrix(X, y, nthread=1), 5, nfold=2, **settings)
        assert len(folds["test-robust@0.3-mean"]) == 5


@pytest.mark.parametrize(
    "objective", ["binary:logistic", "multi:softprob", "reg:squarederror", "count:poisson"]
)
def test_the_objective_as_a_function(objective):
    X, labels, target = table(classes=3 if "multi" in objective else 2)
    y = np.abs(target) if objective[0] in "rc" else labels
    data = xgb.DMatrix(X, y, weight=np.random.default_rng(0).exponential(size=len(y)), nthread=1)
    params = PARAMS | ({"num_class": 3} if "multi" in objective else {})
    found = {}
    settings = {"custom_metric": xgboost_metric(0.3, objective, raw=True), "evals_result": found}
    obj = xgboost_objective(0.3, objective)
    xgb.train(params, data, 15, obj=obj, evals=[(data, "train")], verbose_eval=False, **settings)
    curve = found["train"]["robust@0.3"]
    assert curve[-1] < 0.9 * curve[0]


# -- bad input
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [-1.0, np.nan, np.inf, "much", None])
def test_a_radius_that_is_none(rho):
    X, y, _ = table(60)
    with pytest.raises(HyperparameterError, match="rho"):
        KLDROXGBClassifier(rho=rho, **QUIET).fit(X, y)
    for kind in (XGBoostWorstCase, xgboost_objective, xgboost_metric):
        with pytest.raises(HyperparameterError, match="rho"):
            kind(rho)


def test_objectives_without_a_worst_case_are_refused():
    X, _, y = table(60)
    with pytest.raises(HyperparameterError, match="reg:gamma"):
        KLDROXGBRegressor(objective="reg:gamma", **QUIET).fit(X, np.abs(y) + 1)
    with pytest.raises(HyperparameterError, match="one quantile_alpha"):
        KLDROXGBRegressor(objective="reg:quantileerror", quantile_alpha=[0.1, 0.9], **QUIET).fit(
            X, y
        )
    with pytest.raises(HyperparameterError, match="function"):
        KLDROXGBRegressor(objective=lambda y, p: (p - y, np.ones(len(y))), **QUIET).fit(X, y)


def test_classes_in_place_of_probabilities_have_no_robust_metric():
    X, y, _ = table(classes=3)
    model = KLDROXGBClassifier(objective="multi:softmax", **QUIET)
    with pytest.raises(DataError, match="multi:softprob"):
        model.fit(X, y, eval_set=[(X, y)], verbose=False)
    assert model.fit(X, y).predict(X).shape == y.shape
