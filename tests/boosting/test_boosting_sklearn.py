"""scikit-learn's own checks, for the four estimators; what the libraries themselves fail is listed."""

import warnings

import pytest
from lightgbm import LGBMClassifier, LGBMRegressor
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from xgboost import XGBClassifier, XGBRegressor

from scdro.boosting import (
    KLDROLGBMClassifier,
    KLDROLGBMRegressor,
    KLDROXGBClassifier,
    KLDROXGBRegressor,
)

LIGHTGBM = {"n_estimators": 10, "n_jobs": 1, "verbose": -1}
XGBOOST = {"n_estimators": 10, "n_jobs": 1}
PAIRS = {
    KLDROLGBMClassifier: (LGBMClassifier, LIGHTGBM),
    KLDROLGBMRegressor: (LGBMRegressor, LIGHTGBM),
    KLDROXGBClassifier: (XGBClassifier, XGBOOST),
    KLDROXGBRegressor: (XGBRegressor, XGBOOST),
}

_PRIVATE = "LightGBM sets private attributes in __init__"
_ZEROS = "LightGBM takes weights that are all zero; XGBoost refuses them in other words"
_LABELS = "XGBoost takes labels 0, 1, ... only"
KNOWN = {
    KLDROLGBMClassifier: {
        "check_no_attributes_set_in_init": _PRIVATE,
        "check_all_zero_sample_weights_error": _ZEROS,
    },
    KLDROLGBMRegressor: {
        "check_no_attributes_set_in_init": _PRIVATE,
        "check_all_zero_sample_weights_error": _ZEROS,
    },
    KLDROXGBClassifier: {
        "check_all_zero_sample_weights_error": _ZEROS,
        "check_estimators_overwrite_params": "XGBClassifier sets `objective` in fit",
        "check_dont_overwrite_parameters": "XGBClassifier sets `objective` in fit",
        "check_classifiers_multilabel_output_format_predict": (
            "XGBClassifier predicts labels of another dtype"
        ),
        "check_fit2d_1sample": _LABELS,
        "check_fit2d_1feature": _LABELS,
        "check_sample_weight_equivalence_on_dense_data": "XGBoost sums in single precision",
        "check_sample_weight_equivalence_on_sparse_data": "XGBoost sums in single precision",
        **dict.fromkeys(
            [
                "check_estimators_dtypes",
                "check_sample_weights_pandas_series",
                "check_sample_weights_not_an_array",
                "check_sample_weights_shape",
                "check_sample_weights_not_overwritten",
                "check_classifier_data_not_an_array",
                "check_classifiers_classes",
            ],
            _LABELS,
        ),
    },
    KLDROXGBRegressor: {
        "check_all_zero_sample_weights_error": _ZEROS,
        "check_regressor_multioutput": "XGBoost predicts in single precision",
    },
}


@parametrize_with_checks(
    [kind(**settings) for kind, (_, settings) in PAIRS.items()],
    expected_failed_checks=lambda estimator: KNOWN[type(estimator)],
)
def test_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("ours", PAIRS)
def test_what_is_listed_fails_in_the_library_itself(ours):
    plain, settings = PAIRS[ours]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(plain(**settings), on_fail=None)
    run = {result["check_name"] for result in results}  # scikit-learn adds some with every release
    failed = {result["check_name"] for result in results if result["status"] == "failed"}
    assert KNOWN[ours].keys() & run <= failed
