"""XGBoost on a Dask cluster of two processes with uneven parts; `test_dask.py` runs each scenario as a program.

    python dask_cluster.py equal

A program, because tests have benchmarks/ and examples/ on their path, whose distributed.py hide
Dask's own.
"""

import os
import signal
import sys
import time

import dask.array as da
import numpy as np
import pytest
import xgboost as xgb
from distributed import Client, LocalCluster
from xgboost import dask as xgboost_dask

from scdro.boosting import XGBoostWorstCase, xgboost_metric, xgboost_objective

PARTS = (900, 70, 130)
BINARY = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1}


class Kill(xgb.callback.TrainingCallback):
    """Ends the second worker in the third round, as the system would."""

    def before_iteration(self, model, epoch, evals_log):
        if epoch == 3 and xgb.collective.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return False


def table():
    """Features of twenty values each: all workers find the same bins."""
    rng = np.random.default_rng(0)
    n = sum(PARTS)
    X = rng.integers(0, 20, size=(n, 4)).astype(float)
    return X, X[:, 0] + 6 * rng.normal(size=n), rng.exponential(size=n)


def in_parts(array):
    return da.from_array(array, chunks=(PARTS, -1) if array.ndim == 2 else (PARTS,))


def spread(client, X, y, weight=None):
    weight = None if weight is None else in_parts(weight)
    return xgboost_dask.DaskQuantileDMatrix(client, in_parts(X), in_parts(y), weight=weight)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def equal(client):
    """Two workers grow the trees of one process, and report its robust value."""
    X, score, weight = table()
    for objective in ("binary:logistic", "multi:softprob", "reg:squarederror", "count:poisson"):
        edges = [8.0, 13.0] if "multi" in objective else [12.0]
        y = np.digitize(score, edges) if objective[0] in "bm" else score - score.min()
        params = (
            BINARY | {"objective": objective} | ({"num_class": 3} if "multi" in objective else {})
        )
        for w in (None, weight):
            data, parts = xgb.QuantileDMatrix(X, y, weight=w, nthread=1), spread(client, X, y, w)
            settings = {"custom_metric": xgboost_metric(0.3, objective), "verbose_eval": False}
            alone, found = XGBoostWorstCase(0.3), {}
            one = xgb.train(
                params,
                data,
                10,
                evals=[(data, "train")],
                evals_result=found,
                callbacks=[alone],
                **settings,
            )
            several = xgboost_dask.train(
                client,
                params,
                parts,
                10,
                evals=[(parts, "train")],
                callbacks=[XGBoostWorstCase(0.3)],
                **settings,
            )
            close(several["booster"].predict(data), one.predict(data))
            curve = several["history"]["train"]["robust@0.3"]
            close(curve, found["train"]["robust@0.3"])
            assert curve[-1] < curve[0]


def medians(client):
    """XGBoost averages the workers' medians in its leaves, so that trees differ; the worst case still falls."""
    X, score, _ = table()
    parts = spread(client, X, score)
    metric = xgboost_metric(0.3, "reg:absoluteerror")
    values = []
    for rho in (0.0, 0.3):
        found = xgboost_dask.train(
            client,
            BINARY | {"objective": "reg:absoluteerror"},
            parts,
            20,
            evals=[(parts, "train")],
            custom_metric=metric,
            callbacks=[XGBoostWorstCase(rho)],
            verbose_eval=False,
        )
        values.append(found["history"]["train"]["robust@0.3"][-1])
    assert values[1] < values[0], values


def function(client):
    """The objective as a function knows all workers too."""
    X, score, _ = table()
    y = (score > 12).astype(float)
    data = xgb.QuantileDMatrix(X, y, nthread=1)
    one = xgb.train(BINARY, data, 10, obj=xgboost_objective(0.3))
    several = xgboost_dask.train(
        client, BINARY, spread(client, X, y), 10, obj=xgboost_objective(0.3)
    )
    close(several["booster"].predict(data), one.predict(data))


def estimator(client):
    """XGBoost's own Dask estimators take the callback."""
    X, score, _ = table()
    y = (score > 12).astype(int)
    model = xgboost_dask.DaskXGBClassifier(
        n_estimators=10, max_depth=3, callbacks=[XGBoostWorstCase(0.3)]
    )
    model.client = client
    model.fit(in_parts(X), in_parts(y))
    data = xgb.QuantileDMatrix(X, y, nthread=1)
    one = xgb.train(BINARY, data, 10, callbacks=[XGBoostWorstCase(0.3)])
    close(model.get_booster().predict(data), one.predict(data))


def killed(client):
    """A killed worker is an error, soon, and not a hang."""
    X, score, _ = table()
    parts = spread(client, X, (score > 12).astype(float))
    began = time.monotonic()
    with pytest.raises((RuntimeError, ValueError), match=r"one has died|one of the workers died"):
        xgboost_dask.train(client, BINARY, parts, 50, callbacks=[XGBoostWorstCase(0.3), Kill()])
    assert time.monotonic() - began < 60


if __name__ == "__main__":
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        for name in sys.argv[1:]:
            {
                "equal": equal,
                "medians": medians,
                "function": function,
                "estimator": estimator,
                "killed": killed,
            }[name](client)
    print("done", *sys.argv[1:])
