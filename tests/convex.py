"""One convex problem for every method, and the optimum of each method's own objective by cvxpy."""

import math
from functools import cache

import cvxpy as cp
import numpy as np
import torch
from torch import nn

from scdro.optim import REGISTRY

N, D, K, BATCH, RHO, DECAY = 240, 4, 3, 32, 0.2, 0.02


@cache
def data():
    """Three classes of unequal size and noise, the rare one hard."""
    rng = np.random.default_rng(4)
    y = np.repeat(np.arange(K), [150, 70, 20])
    centres = np.array([[1.5, 0.0, 0.0, 0.0], [0.0, 1.5, 0.0, 0.0], [0.7, 0.7, 0.0, 0.8]])
    x = centres[y] + rng.normal(size=(N, D)) * np.array([0.7, 0.9, 1.1])[y, None]
    order = rng.permutation(N)
    return torch.tensor(x[order]), torch.tensor(y[order])


def counts():
    return torch.bincount(data()[1])


def new_model():
    model = nn.Linear(D, K, dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    return model


def task(model, per_sample=None):
    x, y = data()
    per_sample = per_sample or REGISTRY["ERM"].per_sample(counts())
    return {
        "rho": RHO,
        "n": N,
        "groups": y,
        "module": model,
        "milestones": [400, 600],
        "all_losses": lambda: per_sample(model(x.to(model.weight.dtype)), y),
    }


def penalty(model):
    return DECAY / 2 * sum((p.detach() ** 2).sum() for p in model.parameters())


def optimum(name, settings):
    return _optimum(name, tuple(sorted(settings.items())))


@cache
def _optimum(name, settings):
    """min of the method's own objective plus DECAY |w|^2/2."""
    settings = dict(settings)
    x, y = (a.numpy() for a in data())
    w, b = cp.Variable((D, K)), cp.Variable((1, K))
    z = x @ w + np.ones((N, 1)) @ b
    l = cp.log_sum_exp(z, axis=1) - cp.sum(cp.multiply(z, np.eye(K)[y]), axis=1)
    ridge = DECAY / 2 * (cp.sum_squares(w) + cp.sum_squares(b))
    value, constraints = OBJECTIVES[name](l, y, settings)
    problem = cp.Problem(cp.Minimize(value + ridge), constraints)
    problem.solve(solver=cp.CLARABEL)
    assert problem.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE), problem.status
    return float(problem.value)


def _tilted(l, lam):
    """The least t with mean exp((l - t)/lam) <= 1: lam log mean exp(l/lam), lam a number or a variable."""
    t, s, bound = cp.Variable(), cp.Variable(N), cp.Variable(N)
    cone = cp.constraints.ExpCone(bound - t, lam * np.ones(N), s)
    return t, [bound >= l, cone, cp.sum(s) / N <= lam]


def _kl_ball(l, y, settings):
    lam = cp.Variable()
    t, constraints = _tilted(l, lam)
    return t + lam * RHO, [*constraints, lam >= 1e-3]


def _at_temperature(l, y, settings):
    return _tilted(l, settings["lam"])


def _mean(l, y, settings):
    return cp.sum(l) / N, []


def _worst_group(l, y, settings):
    return cp.max(cp.hstack([cp.sum(l[np.nonzero(y == g)[0]]) / (y == g).sum() for g in range(K)])), []


def _cvar(l, y, settings):
    eta = cp.Variable()
    return eta + cp.sum(cp.pos(l - eta)) / (settings["alpha"] * N), []


def _chi2(l, y, settings):
    eta = cp.Variable()
    return eta + math.sqrt((1 + 2 * RHO) / N) * cp.norm(cp.pos(l - eta)), []


def _chi2_penalty(l, y, settings):
    eta, reg = cp.Variable(), settings["reg"]
    return eta + reg / 2 + cp.sum(cp.square(cp.pos(l - eta))) / (2 * reg * N), []


def _balanced(l, y, settings):
    weights = REGISTRY["ClassBalanced"].per_sample(counts(), **settings)(torch.zeros(N, K), torch.tensor(y)).numpy()
    return (weights / math.log(K)) @ l / N, []


OBJECTIVES = {
    **dict.fromkeys(
        (
            *("SCDRO", "ASCDRO", "RSCDRO", "RASCDRO", "SCDRO-printed", "ASCDRO-printed"),
            *("RSCDRO-printed", "RASCDRO-printed"),
            *("FastDRO", "FastDRO-MLMC", "DualSGM", "SPD", "PGSMD2", "AccMDA"),
        ),
        _kl_ball,
    ),
    **dict.fromkeys(("RECOVER", "ABSGD", "TERM"), _at_temperature),
    "ERM": _mean,
    "FastDRO-CVaR": _cvar,
    "FastDRO-chi2": _chi2,
    "FastDRO-chi2-penalty": _chi2_penalty,
    "GroupDRO": _worst_group,
    "ClassBalanced": _balanced,
}
