"""Recalibration after reweighting, by scikit-learn's own means: better probabilities, the same ranking."""

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import normalize
from sklearn.utils.fixes import parse_version

from scdro.boosting import KLDROLGBMClassifier, KLDROXGBClassifier
from scdro.linear_model import KLDROClassifier
from scdro.metrics import group_table
from scdro.second_look import SecondLook

TEMPERATURE = pytest.mark.skipif(
    parse_version(sklearn.__version__) < parse_version("1.8"),
    reason="scikit-learn 1.8 has temperatures",
)


def rows(n, seed):
    """A rare class, and a shortcut that says it for most rows."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.2).astype(int)
    shortcut = np.where(rng.random(n) < 0.9, y, 1 - y)
    return np.c_[2 * shortcut + rng.normal(size=n), y + rng.normal(size=n), rng.normal(size=n)], y


MODELS = {
    "lightgbm": KLDROLGBMClassifier(rho=0.5, n_estimators=30, num_leaves=7, n_jobs=1, verbose=-1),
    "xgboost": KLDROXGBClassifier(rho=0.5, n_estimators=20, max_depth=3, n_jobs=1),
    "linear": KLDROClassifier(rho=0.5),
    "second look": SecondLook(
        LogisticRegression(), cv=3, repeats=1, grid=None, refuse=False, random_state=0
    ),
}


# A temperature keeps even odds even; where a second look made classes equal, they have to move.
PAIRS = [(name, method) for name in MODELS for method in ("sigmoid", "isotonic")]
PAIRS += [
    pytest.param(name, "temperature", marks=TEMPERATURE) for name in MODELS if name != "second look"
]


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_probabilities_improve_and_ranks_stay(name, method):
    X, y = rows(1500, seed=0)
    X_test, y_test = rows(4000, seed=1)
    model = clone(MODELS[name]).fit(X, y)
    calibrated = CalibratedClassifierCV(
        clone(MODELS[name]), method=method, cv=4, ensemble=False
    ).fit(X, y)
    before, after = (
        normalize(m.predict_proba(X_test), norm="l1") for m in (model, calibrated)
    )  # of float32
    assert log_loss(y_test, after) < log_loss(y_test, before) - 0.02
    everyone = np.zeros(len(y_test))
    errors = [
        group_table(y_test, p, everyone, metrics="calibration_error", bootstrap=0)
        for p in (before, after)
    ]
    assert errors[1]["calibration_error"][0] < 0.6 * errors[0]["calibration_error"][0]
    ties = 1e-2 if method == "isotonic" else 1e-9
    assert roc_auc_score(y_test, after[:, 1]) == pytest.approx(
        roc_auc_score(y_test, before[:, 1]), abs=ties
    )
