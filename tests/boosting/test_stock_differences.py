"""Our estimators beside those of LightGBM and XGBoost: what the libraries' own tests look at, and each difference.

Every behaviour is a function of a maker of estimators; what it returns, prints or raises is
compared. The lists of
differences are complete: one that is not listed fails, and so does one that is listed and gone.
"""

import inspect
import pickle
import re
import warnings

import lightgbm as lgb
import numpy as np
import polars as pl
import pytest
import xgboost as xgb
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from scdro.boosting import (
    KLDROLGBMClassifier,
    KLDROLGBMRegressor,
    KLDROXGBClassifier,
    KLDROXGBRegressor,
)

PAIRS = {
    "lightgbm classifier": (lgb.LGBMClassifier, KLDROLGBMClassifier),
    "lightgbm regressor": (lgb.LGBMRegressor, KLDROLGBMRegressor),
    "xgboost classifier": (xgb.XGBClassifier, KLDROXGBClassifier),
    "xgboost regressor": (xgb.XGBRegressor, KLDROXGBRegressor),
}


def data(model):
    X, y = (load_breast_cancer if is_classifier(model) else load_diabetes)(return_X_y=True)
    return X[:200, :6], y[:200]


def shapes(fitted):
    return {
        name: (np.shape(value), np.asarray(value).dtype.kind)
        for name in (
            "classes_",
            "feature_names_in_",
            "feature_importances_",
            "n_features_in_",
            "n_classes_",
        )
        if (value := getattr(fitted, name, None)) is not None
    }


def wrong_number_of_columns(make):
    X, y = data(make())
    model = make().fit(X, y)
    methods = [method for method in ("predict", "predict_proba") if hasattr(model, method)]
    return [
        outcome(lambda _, m=method, rows=rows: getattr(model, m)(rows).shape, make)
        for rows in (X[:, :-1], np.c_[X, X])
        for method in methods
    ]


def before_and_after_fit(make):
    model = make()
    with pytest.raises(NotFittedError):
        check_is_fitted(model)
    fitted = model.fit(*data(model))
    check_is_fitted(model)
    return fitted is model, shapes(model)


def refit_on_other_labels(make):
    X, y = data(make())
    if not is_classifier(make()):
        return make().fit(X, y).fit(X, -y).predict(X).max() <= 0
    model = make().fit(X, y)
    return [model.fit(X, np.arange(len(y)) % k).classes_.tolist() for k in (3, 2)]


def texts_as_labels(make):
    X, y = data(make())
    model = make().fit(X, np.where(y > np.median(y) - 0.5, "yes", "no"))
    return sorted(set(model.predict(X))), model.classes_.tolist()


def metrics(make):
    X, y = data(make())
    model = make().fit(X, y, eval_set=[(X, y)])
    found = model.evals_result_ if hasattr(model, "evals_result_") else model.evals_result()
    return {name: sorted(values) for name, values in found.items()}


def own_objective(make):
    X, y = data(make())
    return make(objective=lambda t, p: (p - t, np.ones_like(t))).fit(X, y).predict(X).shape


def objectives(names, **more):
    def each(make):
        X, y = data(make())
        return [
            outcome(lambda _, n=name: make(objective=n, **more).fit(X, y).predict(X).shape, make)
            for name in names
        ]

    return each


def search(make):
    grid = GridSearchCV(make(), {"max_depth": [2, 3], "n_estimators": [2, 3]}, cv=2)
    return sorted(grid.fit(*data(make())).best_params_)


def continued(make):
    X, y = data(make())
    first = make().fit(X, y)
    booster = first.booster_ if hasattr(first, "booster_") else first.get_booster()
    key = "init_model" if hasattr(first, "booster_") else "xgb_model"
    more = make().fit(X, y, **{key: booster})
    return (
        more.booster_.num_trees()
        if hasattr(more, "booster_")
        else more.get_booster().num_boosted_rounds()
    ) - 4


def copies(make):
    X, y = data(make())
    model = make(max_depth=3).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict(X), model.predict(X))
    return clone(model).get_params() == model.get_params()


def a_constant_column(make):
    return make().fit(np.ones((20, 1)), np.arange(20) % 2).feature_importances_.tolist()


def weights_below_zero(make):
    X, y = data(make())
    return make().fit(X, y, sample_weight=np.linspace(-0.1, 1.0, len(y))).predict(X).shape


def kinds_of_tables(make):
    X, y = data(make())
    names = [f"c{k}" for k in range(X.shape[1])]
    tables = {
        "array": X,
        "float32": X.astype(np.float32),
        "list": X.tolist(),
        "polars": pl.DataFrame(X, schema=names),
    }
    return {
        kind: outcome(lambda _, t=t: make().fit(t, y).predict(t).shape, make)
        for kind, t in tables.items()
    }


BEHAVIOURS = {
    "parameters and defaults": lambda make: make().get_params(),
    "signature": lambda make: str(inspect.signature(type(make()).__init__)),
    "unknown parameter": lambda make: make(not_a_parameter=3).get_params().get("not_a_parameter"),
    "positional arguments": lambda make: type(make())("gbdt").get_params(),
    "tags": lambda make: str(get_tags(make())),
    "wrong number of columns": wrong_number_of_columns,
    "before and after fit": before_and_after_fit,
    "refit on other labels": refit_on_other_labels,
    "texts as labels": texts_as_labels,
    "predictions": lambda make: make().fit(*data(make())).predict(data(make())[0]).tolist(),
    "max_depth=5 prints": lambda make: (
        make(max_depth=5, verbose=1).fit(*data(make())).get_params()["max_depth"]
    ),
    "metrics": metrics,
    "own objective": own_objective,
    "search": search,
    "continued": continued,
    "copies": copies,
    "a constant column": a_constant_column,
    "weights below zero": weights_below_zero,
    "kinds of tables": kinds_of_tables,
    "random state": lambda make: (
        make(random_state=np.random.RandomState(3)).fit(*data(make())).n_features_in_
    ),
}
LIGHTGBM = {
    "objectives": objectives(["regression", "l1", "huber", "quantile", "poisson", "binary"]),
    "other objectives": objectives(["fair", "mape", "gamma", "tweedie", "cross_entropy"]),
    "forests": lambda make: (
        make(boosting_type="rf", subsample=0.5, subsample_freq=1).fit(*data(make())).n_features_in_
    ),
    "dart": lambda make: make(boosting_type="dart").fit(*data(make())).n_features_in_,
    "shape check": lambda make: (
        make().fit(*data(make())).predict(data(make())[0], validate_features=True).shape
    ),
    "leaves": lambda make: make().fit(*data(make())).predict(data(make())[0], pred_leaf=True).shape,
}
XGBOOST = {
    "objectives": objectives(
        ["reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror", "binary:logistic"]
    ),
    "other objectives": objectives(
        ["reg:gamma", "reg:tweedie", "binary:hinge", "reg:squaredlogerror"]
    ),
    "forests": lambda make: (
        make(num_parallel_tree=3).fit(*data(make())).get_booster().num_boosted_rounds()
    ),
    "several targets": lambda make: (
        make().fit(data(make())[0], np.eye(200, 2)).predict(data(make())[0]).shape
    ),
    "parameters of the booster": lambda make: make().get_xgb_params(),
    "two names": lambda make: make(nthread=2).fit(*data(make())).n_features_in_,
    "intercept": lambda make: np.shape(make().fit(*data(make())).intercept_),
}

# What differs at any rho, and what differs at rho = 0.1 besides.
ALWAYS = {
    "parameters and defaults": "rho is a parameter",
    "signature": (
        "rho, and the library's own as **kwargs, so that they are those of the installed version"
    ),
}
ALWAYS_XGBOOST = {"positional arguments": "deprecated there, never allowed here"}
ROBUST = {
    "predictions": "what the class is for",
    "metrics": "the robust value at rho / 5 decides early stopping",
    "own objective": "a function of gradients has no losses of samples: refused",
    "other objectives": "their losses are not among those the worst case knows: refused",
}
ROBUST_LIGHTGBM = {
    "forests": "a forest takes gradients only once: refused",
    "weights below zero": "no distribution: refused, as XGBoost does itself",
}


def outcome(behaviour, make):
    """What a behaviour returns or raises; names of classes, addresses and times of day left out."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = repr(behaviour(make))
        said = sorted({f"{w.category.__name__}: {w.message}" for w in caught})
    except Exception as error:
        result, said = f"{type(error).__name__}: {str(error).splitlines()[0]}", []
    varying = r"KLDRO(?=XGB)|KLDROLGBM|LGBM|0x[0-9a-f]+|\[\d\d:\d\d:\d\d\]"
    return re.sub(varying, "", "\n".join([result, *said]))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("rho", [0.0, 0.1])
def test_every_difference_has_a_reason(pair, rho, capfd):
    stock, ours = PAIRS[pair]
    is_lightgbm = pair.startswith("lightgbm")
    quiet = {"n_estimators": 4, "n_jobs": 1} | ({"verbose": -1} if is_lightgbm else {})
    behaviours = BEHAVIOURS | (LIGHTGBM if is_lightgbm else XGBOOST)

    def run(behaviour, kind, **own):
        capfd.readouterr()
        found = outcome(behaviour, lambda **kwargs: kind(**{**quiet, **own, **kwargs}))
        printed = set(re.findall(r"\[Warning\] .*|WARNING: .*", "".join(capfd.readouterr())))
        return found, sorted(printed)

    found = {
        name: (run(behaviour, stock), run(behaviour, ours, rho=rho))
        for name, behaviour in behaviours.items()
    }
    different = {name for name, (theirs, mine) in found.items() if theirs != mine}
    reasons = ALWAYS | ({} if is_lightgbm else ALWAYS_XGBOOST)
    if rho:
        reasons |= ROBUST | (ROBUST_LIGHTGBM if is_lightgbm else {})
    missing = {name: found[name] for name in different - set(reasons)}
    assert not missing
    assert different == {name for name in reasons if name in behaviours}
