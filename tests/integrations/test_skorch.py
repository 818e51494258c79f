"""The criterion that the docs show, in a scikit-learn search."""

import numpy as np
import pytest
import torch
from torch import nn

skorch = pytest.importorskip("skorch")
pytestmark = pytest.mark.integration

from sklearn.datasets import load_digits  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402

import scdro  # noqa: E402


class RobustCrossEntropy(nn.Module):
    def __init__(self, rho=0.5):
        super().__init__()
        self.robust = scdro.KLRobustLoss(rho)

    def forward(self, logits, y):
        return self.robust(nn.functional.cross_entropy(logits, y, reduction="none"))


def net(**settings):
    torch.manual_seed(0)
    return skorch.NeuralNetClassifier(
        nn.Linear(64, 10),
        criterion=RobustCrossEntropy,
        optimizer=torch.optim.Adam,
        lr=0.01,
        predict_nonlinearity=nn.Softmax(dim=1),
        verbose=0,
        **settings,
    )


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return (data.data / 16).astype(np.float32), data.target


def test_robust_net_fits_and_searches(digits):
    x, y = digits
    search = GridSearchCV(net(max_epochs=15), {"criterion__rho": [0.1, 0.5]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.8
    robust = search.best_estimator_.criterion_.robust
    assert float(robust.state.equation.rho) == search.best_params_["criterion__rho"]
    np.testing.assert_allclose(search.predict_proba(x).sum(1), 1.0, rtol=1e-5)


def test_validation_leaves_no_trace(digits):
    """skorch evaluates after each epoch; the state is that of a loop that does not."""
    x, y = digits
    robust = [
        net(max_epochs=3, train_split=split, iterator_train__shuffle=False)
        .fit(x[:1000], y[:1000])
        .criterion_.robust
        for split in (None, skorch.dataset.ValidSplit(cv=2, stratified=False))
    ]
    assert float(robust[0].lam) != float(robust[1].lam)
    again = net(max_epochs=3, train_split=None, iterator_train__shuffle=False).fit(
        x[500:1000], y[500:1000]
    )
    assert float(again.criterion_.robust.lam) == float(robust[1].lam)
