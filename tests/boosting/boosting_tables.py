"""Small tables with a rare hard group, and the worst case of a vector of losses by scipy."""

import math

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import logsumexp


def table(n=400, seed=0, classes=2, values=None):
    """Features, labels and a real target; with `values`, features with that number of distinct values."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5)) if values is None else rng.integers(0, values, size=(n, 5)) / 4.0
    rare = rng.random(n) < 0.1
    score = np.where(rare, -X[:, 0], X[:, 0]) + 0.5 * X[:, 1] + 0.5 * rng.normal(size=n)
    edges = np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1])
    return X, np.searchsorted(edges, score), score


def frame(n=400, seed=0):
    """A column of categories and one with missing values besides."""
    X, y, _ = table(n, seed)
    data = pd.DataFrame(X, columns=["a", "b", "c", "d", "e"])
    data["kind"] = pd.Categorical(
        np.where(X[:, 0] > 0.5, "high", np.where(X[:, 0] > -0.5, "middle", "low"))
    )
    data.loc[::7, "b"] = np.nan
    return data, y


def worst_weights(losses, q, rho):
    """p_i/q_i, independent of the library."""
    q = q / q.sum()

    def log_ratio(lam):
        x = losses / lam
        return x - logsumexp(x, b=q)

    def excess(log_lam):
        t = log_ratio(math.exp(log_lam))
        return (q * np.exp(t)) @ t - rho

    return np.exp(log_ratio(math.exp(brentq(excess, -7, 15, xtol=1e-14))))
