"""LightGBM on the worst case: against a loop with gradients by hand, and against LightGBM itself where rho = 0."""

import copy
import pickle

import joblib
import lightgbm as lgb
import numpy as np
import polars as pl
import pytest
from boosting_tables import frame, table, worst_weights
from scipy.special import expit
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV

import scdro
from scdro.boosting import (
    KLDROLGBMClassifier,
    KLDROLGBMRegressor,
    LightGBMWorstCase,
    lightgbm_metric,
    lightgbm_objective,
)
from scdro.boosting._round_weights import best_constant_shares
from scdro.errors import DataError, HyperparameterError, NonFiniteLossError

pytestmark = pytest.mark.filterwarnings("ignore:The argument 'eval_set'")
QUIET = {"n_jobs": 1, "verbose": -1, "n_estimators": 12}
PARAMS = {"num_threads": 1, "verbose": -1, "deterministic": True}


def by_hand(X, y, w, rho, rounds, start, slopes):
    """Boosting with gradients from numpy and weights from scipy, from a constant."""
    data = lgb.Dataset(X, y, init_score=np.full(len(y), start))
    booster = lgb.Booster({**PARAMS, "objective": "none"}, data)
    for k in range(rounds):
        scores = booster.predict(X, raw_score=True) + start if k else np.full(len(y), start)
        first, second, losses = slopes(y, scores)
        ratio = worst_weights(losses, w, rho) if k else first_weights(y, w, rho, slopes)
        booster.update(fobj=lambda _, __, g=w * ratio * first, h=w * ratio * second: (g, h))
    return booster.predict(X, raw_score=True) + start


def first_weights(y, w, rho, slopes):
    if slopes is not logistic:
        return np.ones(len(y))
    share = np.average(y, weights=w)
    shares = best_constant_shares(np.array([1 - share, share]), rho) / [1 - share, share]
    return shares[y]


def logistic(y, s):
    p = expit(s)
    return p - y, p * (1 - p), np.logaddexp(0, np.where(y > 0, -s, s))


def squared(y, s):
    return s - y, np.ones(len(y)), (s - y) ** 2 / 2


@pytest.mark.parametrize("weighted", [False, True])
def test_a_classifier_equals_a_loop_by_hand(weighted):
    X, y, _ = table()
    w = (
        np.random.default_rng(1).exponential(size=len(y)).astype(np.float32)
        if weighted
        else np.ones(len(y))
    )
    model = KLDROLGBMClassifier(rho=0.3, **QUIET).fit(X, y, sample_weight=w if weighted else None)
    share = np.average(y, weights=w)
    start = np.log(1 / (1 / best_constant_shares(np.array([1 - share, share]), 0.3)[1] - 1))
    hand = by_hand(X, y, w, 0.3, 12, start, logistic)
    assert model.predict(X, raw_score=True) == pytest.approx(hand, abs=1e-4)


def test_a_regressor_equals_a_loop_by_hand():
    X, _, y = table()
    y = y.astype(np.float32)
    model = KLDROLGBMRegressor(rho=0.3, **QUIET).fit(X, y)
    hand = by_hand(X, y, np.ones(len(y)), 0.3, 12, float(y.astype(np.float64).mean()), squared)
    assert model.predict(X) == pytest.approx(hand, abs=1e-4)


@pytest.mark.parametrize(
    ("ours", "plain", "settings"),
    [
        (KLDROLGBMClassifier, lgb.LGBMClassifier, {}),
        (KLDROLGBMClassifier, lgb.LGBMClassifier, {"class_weight": "balanced"}),
        (KLDROLGBMRegressor, lgb.LGBMRegressor, {"objective": "quantile"}),
        (KLDROLGBMRegressor, lgb.LGBMRegressor, {"objective": "tweedie"}),
        (
            KLDROLGBMRegressor,
            lgb.LGBMRegressor,
            {"boosting_type": "rf", "subsample": 0.5, "subsample_freq": 1},
        ),
    ],
)
def test_no_radius_is_lightgbm_bit_for_bit(ours, plain, settings):
    X, labels, target = table()
    y = labels if ours is KLDROLGBMClassifier else np.abs(target)
    models = [kind(**QUIET, **settings) for kind in (ours, plain)]
    models[0].set_params(rho=0.0)
    texts = []
    for model in models:
        model.fit(X, y, eval_set=[(X, y)])
        texts.append(model.booster_.model_to_string())
    assert texts[0] == texts[1]
    assert models[0].evals_result_ == models[1].evals_result_


def test_a_radius_lowers_the_robust_value_on_the_training_data():
    X, y, _ = table(classes=3)
    values = []
    for rho in (0.0, 0.5):
        model = KLDROLGBMClassifier(rho=rho, **QUIET).fit(X, y)
        losses = -np.log(model.predict_proba(X)[np.arange(len(y)), y])
        values.append(scdro.worst_case(losses, 0.5).value)
    assert values[1] < values[0] - 0.05


@pytest.mark.parametrize(
    ("settings", "losses"),
    [
        ({}, lambda r, y, p: r**2),
        ({"objective": "regression_l1"}, lambda r, y, p: np.abs(r)),
        ({"objective": "quantile", "alpha": 0.7}, lambda r, y, p: np.maximum(-0.7 * r, 0.3 * r)),
        (
            {"objective": "huber", "alpha": 0.5},
            lambda r, y, p: np.minimum(np.abs(r), 0.5) * (np.abs(r) + 0.5),
        ),
        ({"objective": "poisson"}, lambda r, y, p: p - y * np.log(p) + y * np.log(y) - y),
    ],
)
def test_every_regression_loss_has_a_lower_worst_case(settings, losses):
    X, _, y = table(600)
    y = np.abs(y) + 0.1
    values = []
    for rho in (0.0, 0.3):
        model = KLDROLGBMRegressor(rho=rho, **{**QUIET, "n_estimators": 40}, **settings).fit(X, y)
        predicted = model.predict(X)
        values.append(scdro.worst_case(losses(predicted - y, y, predicted), 0.3, 1e-9).value)
    assert values[1] < values[0]


def test_a_rare_class_does_not_make_newton_overshoot():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20_000, 3)), np.zeros(20_000, dtype=int)
    y[:40] = 1
    X[:40, 0] += 1.0
    model = KLDROLGBMClassifier(rho=0.1, **{**QUIET, "n_estimators": 5}).fit(X, y)
    assert np.abs(model.predict(X, raw_score=True)).max() < 10


def test_weights_are_as_good_as_repeated_rows():
    X, y, _ = table(300, values=8)
    w = np.random.default_rng(0).integers(1, 4, len(y))
    settings = {
        **QUIET,
        "min_child_samples": 1,
        "min_child_weight": 5.0,
        "min_data_in_bin": 1,
        "reg_lambda": 1.0,
        "num_leaves": 300,
    }
    weighted = KLDROLGBMClassifier(rho=0.2, **settings).fit(X, y, sample_weight=w)
    repeated = KLDROLGBMClassifier(rho=0.2, **settings).fit(np.repeat(X, w, 0), np.repeat(y, w))
    assert weighted.predict_proba(X) == pytest.approx(repeated.predict_proba(X), abs=1e-5)


@pytest.mark.parametrize(
    "settings", [{"scale_pos_weight": 3.0}, {"class_weight": {0: 1.0, 1: 3.0}}]
)
def test_weights_of_classes_belong_to_the_base(settings):
    X, y, _ = table()
    common = {
        **QUIET,
        "rho": 0.2,
        "boost_from_average": False,
    }  # LightGBM's average does not know scale_pos_weight
    by_class = KLDROLGBMClassifier(**common, **settings).fit(X, y)
    by_row = KLDROLGBMClassifier(**common).fit(X, y, sample_weight=1.0 + 2.0 * y)
    assert by_class.predict_proba(X) == pytest.approx(by_row.predict_proba(X), abs=1e-5)


@pytest.mark.parametrize("name", ["max_delta_step", "max_tree_output"])
def test_leaves_of_a_rare_class_do_not_run_away(name):
    # In a pure leaf of 32 of 8,000 samples Newton's step is 250 log odds. Unbounded, it starts a
    # chain of overshoots.
    rng = np.random.default_rng(1)
    X = rng.normal(size=(8000, 4))
    y = (X[:, 0] + 0.7 * rng.normal(size=len(X)) > 0).astype(int)
    y[(X[:, 1] > np.quantile(X[:, 1], 0.9948)) & (rng.random(len(X)) < 0.8)] = 2

    def loss(**bound):
        model = KLDROLGBMClassifier(
            rho=0.02, learning_rate=0.3, n_estimators=40, n_jobs=1, verbose=-1, **bound
        )
        return log_loss(y, model.fit(X, y).predict_proba(X))

    assert loss() < 0.35
    assert loss(**{name: 0.0}) > 1.0  # given by the user: LightGBM's own, without a bound
    assert loss(**{name: 10.0}) == loss()


def test_leaves_of_regressors_are_not_bounded():
    X, _, z = table()
    settings = {**QUIET, "rho": 0.2, "learning_rate": 1.0}
    unbounded = KLDROLGBMRegressor(max_delta_step=0.0, **settings).fit(X, 1e3 * z).predict(X)
    assert (KLDROLGBMRegressor(**settings).fit(X, 1e3 * z).predict(X) == unbounded).all()


# -- LightGBM's habits
# ------------------------------------------------------------------------------------------------


def test_metrics_of_the_training_data_have_the_samples_own_weights():
    X, y, _ = table()
    w = np.random.default_rng(1).exponential(size=len(y))
    model = KLDROLGBMClassifier(rho=0.5, **QUIET)
    model.fit(X, y, sample_weight=w, eval_set=[(X, y)], eval_metric=["logloss", "robust"])
    (found,) = model.evals_result_.values()
    losses = -np.log(model.predict_proba(X)[np.arange(len(y)), y])
    weighted = scdro.worst_case(losses, 0.5, 1e-9, sample_weight=w).value
    assert list(model.evals_result_) == ["training"]
    assert found["binary_logloss"][-1] == pytest.approx(np.average(losses, weights=w), rel=1e-5)
    assert found["robust"][-1] == pytest.approx(weighted, rel=1e-5)


def test_early_stopping_goes_by_the_robust_value():
    X, y, _ = table(800)
    model = KLDROLGBMClassifier(rho=0.2, n_estimators=300, n_jobs=1, verbose=-1)
    stop = lgb.early_stopping(10, verbose=False)
    model.fit(X[:500], y[:500], eval_X=X[500:], eval_y=y[500:], callbacks=[stop])
    (curve,) = model.evals_result_["valid_0"].values()
    assert list(model.evals_result_["valid_0"]) == ["robust@0.04"]
    assert model.best_iteration_ == np.argmin(curve) + 1 < 290
    p = model.predict_proba(X[500:])
    losses = -np.log(p[np.arange(300), y[500:]])
    assert min(curve) == pytest.approx(scdro.worst_case(losses, 0.04, 1e-9).value, rel=1e-6)


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ("auc", {"auc", "binary_logloss"}),
        ("robust@0.5", {"robust@0.5"}),
        (["robust", "robust@1", "auc"], {"robust", "robust@1", "auc", "binary_logloss"}),
        (None, {"robust@0.04"}),
    ],
)
def test_metrics_by_name(asked, shown):
    X, y, _ = table()
    model = KLDROLGBMClassifier(rho=0.2, **QUIET).fit(X, y, eval_set=[(X, y)], eval_metric=asked)
    assert set(model.evals_result_["training"]) == shown


def test_a_metric_among_the_parameters_stays():
    X, y, _ = table()
    model = KLDROLGBMClassifier(rho=0.2, metric="auc", **QUIET).fit(X, y, eval_set=[(X, y)])
    assert set(model.evals_result_["training"]) == {"auc"}
    model.fit(X, y, eval_set=[(X, y)], eval_metric="robust@1")
    assert set(model.evals_result_["training"]) == {"auc", "robust@1"}


def test_categories_missing_values_and_names_of_columns():
    X, y = frame()
    model = KLDROLGBMClassifier(rho=0.2, **QUIET).fit(X, y)
    assert list(model.feature_names_in_) == list(X.columns)
    assert model.predict(X).shape == y.shape
    assert len(model.feature_importances_) == X.shape[1]
    numbers = X.drop(columns="kind")
    pandas = KLDROLGBMClassifier(rho=0.2, **QUIET).fit(numbers, y).predict_proba(numbers)
    columns = pl.DataFrame({name: numbers[name].to_numpy() for name in numbers})
    polars = KLDROLGBMClassifier(rho=0.2, **QUIET).fit(columns, y).predict_proba(columns)
    assert (pandas == polars).all()


def test_contributions_add_up_to_the_score():
    X, y, _ = table()
    model = KLDROLGBMClassifier(rho=0.2, **QUIET).fit(X, y)
    shap = model.predict(X, pred_contrib=True)
    assert shap.sum(1) == pytest.approx(model.predict(X, raw_score=True))


def test_the_native_file_holds_the_whole_model(tmp_path):
    X, y, _ = table(classes=3)
    model = KLDROLGBMClassifier(rho=0.2, **QUIET).fit(X, y)
    model.booster_.save_model(tmp_path / "model.txt")
    assert (
        lgb.Booster(model_file=tmp_path / "model.txt").predict(X) == model.predict_proba(X)
    ).all()


def test_copies_clones_and_pickles():
    X, y, _ = table()
    model = KLDROLGBMClassifier(rho=0.2, num_leaves=7, **QUIET)
    assert clone(model).get_params() == model.get_params()
    assert model.get_params()["rho"] == 0.2
    model.fit(X, y, eval_set=[(X, y)])
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert (other.predict_proba(X) == model.predict_proba(X)).all()
    fits = joblib.Parallel(2, prefer="threads")(
        joblib.delayed(clone(model).fit)(X, y) for _ in range(2)
    )
    assert (fits[0].predict_proba(X) == fits[1].predict_proba(X)).all()


def test_labels_of_any_kind():
    X, y, _ = table(classes=3)
    names = np.array(["low", "middle", "high"])[y]
    model = KLDROLGBMClassifier(rho=0.2, **QUIET).fit(X, names, eval_set=[(X, names)])
    assert set(model.predict(X)) <= set(names)


def test_training_goes_on_from_a_model():
    X, y, _ = table()
    w = np.ones(len(y))
    model = KLDROLGBMClassifier(rho=0.3, **{**QUIET, "n_estimators": 6}).fit(X, y, sample_weight=w)
    further = KLDROLGBMClassifier(rho=0.3, **{**QUIET, "n_estimators": 6}).fit(
        X, y, init_model=model
    )
    whole = KLDROLGBMClassifier(rho=0.3, **QUIET).fit(X, y)
    assert further.predict_proba(X) == pytest.approx(whole.predict_proba(X), abs=1e-5)


def test_the_library_does_not_hear_of_the_radius(capfd):
    X, y, _ = table()
    KLDROLGBMClassifier(rho=0.2, n_estimators=2, n_jobs=1, verbose=0).fit(X, y).predict(X)
    out, err = capfd.readouterr()
    assert "rho" not in out + err


def test_a_search_over_the_radius():
    X, y, _ = table(200)
    search = GridSearchCV(
        KLDROLGBMClassifier(**QUIET), {"rho": [0.0, 0.1], "num_leaves": [4]}, cv=2
    ).fit(X, y)
    assert search.best_params_["rho"] in (0.0, 0.1)


def test_recalibrated_out_of_fold():
    X, y, _ = table(2000)
    y = y | (X[:, 0] > -1)  # rarer
    train, test = slice(0, 1200), slice(1200, None)
    robust = KLDROLGBMClassifier(rho=0.5, **{**QUIET, "n_estimators": 40}).fit(X[train], y[train])
    for method in ("isotonic", "sigmoid"):
        calibrated = CalibratedClassifierCV(clone(robust), method=method, cv=4).fit(
            X[train], y[train]
        )
        assert log_loss(y[test], calibrated.predict_proba(X[test])) < log_loss(
            y[test], robust.predict_proba(X[test])
        )


# -- loops of one's own
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["binary", "multiclass", "multiclassova", "regression_l1"])
def test_the_callback_in_train_and_cv(objective):
    classes = 3 if "class" in objective else 2
    X, labels, target = table(classes=classes)
    y = target if "regression" in objective else labels
    params = {
        **PARAMS,
        "objective": objective,
        "num_class": classes if classes > 2 else 1,
        "metric": "None",
    }
    metric = lightgbm_metric(0.3, objective)
    values = []
    for rho in (0.0, 0.3):
        data, callback, found = lgb.Dataset(X, y), LightGBMWorstCase(rho), {}
        callbacks = [callback, lgb.record_evaluation(found)]
        model = lgb.train(params, data, 15, valid_sets=[data], feval=metric, callbacks=callbacks)
        values.append(found["training"]["robust@0.3"])
        assert pickle.loads(pickle.dumps(model)).num_trees() == model.num_trees()
    assert values[1][-1] < values[0][-1]
    assert callback.value == pytest.approx(values[1][-2])
    assert callback.lam > 0
    folds = lgb.cv(
        params,
        lgb.Dataset(X, y),
        5,
        nfold=2,
        stratified=False,
        feval=metric,
        callbacks=[LightGBMWorstCase(0.3)],
    )
    assert len(folds["valid robust@0.3-mean"]) == 5


@pytest.mark.parametrize("objective", ["binary", "multiclass", "regression", "poisson"])
def test_the_objective_as_a_function(objective):
    X, labels, target = table(classes=3 if objective == "multiclass" else 2)
    y = np.abs(target) if objective in ("regression", "poisson") else labels
    data = lgb.Dataset(X, y, weight=np.random.default_rng(0).exponential(size=len(y)))
    params = {**PARAMS, "objective": lightgbm_objective(0.3, objective)}
    params["num_class"] = 3 if objective == "multiclass" else 1
    found = {}
    metric = lightgbm_metric(0.3, objective, raw=True)
    lgb.train(
        params, data, 15, valid_sets=[data], feval=metric, callbacks=[lgb.record_evaluation(found)]
    )
    curve = found["training"]["robust@0.3"]
    assert curve[-1] < 0.9 * curve[0]


# -- bad input
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rho", [-1.0, np.nan, np.inf, "much", None])
def test_a_radius_that_is_none(rho):
    X, y, _ = table(60)
    with pytest.raises(HyperparameterError, match="rho"):
        KLDROLGBMClassifier(rho=rho, **QUIET).fit(X, y)
    for kind in (LightGBMWorstCase, lightgbm_objective, lightgbm_metric):
        with pytest.raises(HyperparameterError, match="rho"):
            kind(rho)


@pytest.mark.parametrize("name", ["robust@", "robust@x", "robust@-1"])
def test_a_metric_that_is_none(name):
    X, y, _ = table(60)
    with pytest.raises(HyperparameterError, match=r"robust|radius"):
        KLDROLGBMClassifier(**QUIET).fit(X, y, eval_set=[(X, y)], eval_metric=name)


def test_objectives_without_a_worst_case_are_refused_before_any_tree():
    X, _, y = table(60)
    with pytest.raises(HyperparameterError, match="gamma"):
        KLDROLGBMRegressor(objective="gamma", **QUIET).fit(X, np.abs(y) + 1)
    with pytest.raises(HyperparameterError, match="forest"):
        KLDROLGBMRegressor(boosting_type="rf", subsample=0.5, subsample_freq=1, **QUIET).fit(X, y)


def test_a_model_that_diverges():
    X, _, y = table(60)
    with pytest.raises(NonFiniteLossError, match="learning_rate"):
        KLDROLGBMRegressor(learning_rate=1e200, min_child_samples=1, **QUIET).fit(X, y)


def test_weights_below_zero_are_no_distribution():
    X, y = np.arange(60.0)[:, None], np.arange(60) % 2
    with pytest.raises(DataError, match="-1"):
        KLDROLGBMClassifier(**QUIET).fit(X, y, sample_weight=np.where(y, 1.0, -1.0))


@pytest.mark.parametrize("kind", ["polars", "arrow"])
def test_categories_and_texts_of_polars_and_arrow(kind):
    """LightGBM alone ends the process in its C++ code."""
    rng = np.random.default_rng(0)
    colour, size = rng.choice(["red", "blue", "green"], 300), rng.normal(size=300)
    y = np.where((colour == "red") ^ (size > 1), "yes", "no")
    texts = pl.DataFrame({"colour": colour, "size": size})
    known = texts.with_columns(pl.col("colour").cast(pl.Categorical))
    given, bad = (known, texts) if kind == "polars" else (known.to_arrow(), texts.to_arrow())
    pandas = known.to_pandas()
    expected = KLDROLGBMClassifier(**QUIET).fit(pandas, y).predict_proba(pandas)
    model = KLDROLGBMClassifier(**QUIET).fit(given, y, eval_set=[(given, y)])
    np.testing.assert_array_equal(model.predict_proba(given), expected)
    np.testing.assert_array_equal(
        model.predict_proba(known.tail(3)), expected[-3:]
    )  # by name, not by number
    assert (model.predict(given) == y).mean() > 0.9
    assert list(model.feature_names_in_) == ["colour", "size"]
    KLDROLGBMRegressor(**QUIET).fit(given, size).predict(given)
    with pytest.raises(ValueError, match="colour"):
        KLDROLGBMClassifier(**QUIET).fit(bad, y)
