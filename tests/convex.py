"""One convex problem for every method, its settings there, and the optimum of its own objective by cvxpy."""

import copy
import math
from functools import cache

import cvxpy as cp
import numpy as np
import torch
from torch import nn

from reproduction.baselines import REGISTRY
from scdro.optim.samplers import DrawnBatches

N, D, K, BATCH, RHO, DECAY = 240, 4, 3, 32, 0.2, 0.02

# What the common suites run. A method of the library that no experiment of the paper uses is added
# here, `| {"Mine": Method("Mine", Mine)}`, with `Method` from reproduction.baselines.
METHODS = dict(REGISTRY)

# One entry for each piece of code. The others are one of these with another temperature, geometry,
# constant or loss: they only run to their own optimum.
DISTINCT = (
    *("SCDRO", "ASCDRO", "RSCDRO", "RASCDRO", "SCDRO-printed", "ASCDRO-printed"),
    *("ERM", "FastDRO", "FastDRO-MLMC", "ABSGD", "GroupDRO"),
    *("DualSGM", "SPD", "PGSMD2", "AccMDA", "RECOVER"),
)

# Step sizes for batches of 32 out of 240 samples.
SETTINGS = {
    **{name: {"lr": 0.3, "beta": 0.1} for name in ("SCDRO", "ASCDRO", "RSCDRO", "RASCDRO")},
    "SCDRO-printed": {"lr": 0.1, "beta": 0.5, "lam": 1.0},
    "ASCDRO-printed": {"lr": 0.1, "beta": 0.9, "lam": 1.0},
    "RSCDRO-printed": {"lr": 0.1, "beta": 0.5, "lam": 1.0},
    "RASCDRO-printed": {"lr": 0.1, "beta": 0.9, "lam": 1.0},
    "ERM": {"lr": 0.05},
    "FastDRO": {"lr": 0.05},
    "FastDRO-MLMC": {"lr": 0.01, "smallest": 16, "largest": 64},
    "FastDRO-CVaR": {"lr": 0.03, "alpha": 0.5},
    "FastDRO-chi2": {"lr": 0.05},
    "FastDRO-chi2-penalty": {"lr": 0.05, "reg": 1.0},
    "DualSGM": {"lr": 0.03, "lam": 1.0},
    "SPD": {"lr": 0.2, "dual_lr": 2e-3},
    "PGSMD2": {"lr": 0.4, "dual_lr": 2e-3, "stage_steps": 20},
    "AccMDA": {"lr": 1.0, "dual_lr": 1e-3},
    "RECOVER": {"lr": 0.1, "beta": 0.5, "lam": 1.0},
    "ABSGD": {"lr": 0.03, "lam": 1.0, "gamma": 0.5},
    "TERM": {"lr": 0.03, "lam": 1.0, "gamma": 1.0},
    "GroupDRO": {"lr": 0.01, "dual_lr": 0.01},
    "Focal": {"lr": 0.1, "gamma": 1.0},
    "ClassBalanced": {"lr": 0.05, "balance": 0.999},
}


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
    per_sample = per_sample or METHODS["ERM"].per_sample(counts())
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


class Training:
    """A model, a method and its batches."""

    def __init__(self, name, modules=(), **settings):
        self.settings = SETTINGS[name] | settings
        self.name, self.model, self.method = name, new_model(), METHODS[name]
        self.per_sample = self.method.per_sample(counts(), **self.settings)
        facts = task(self.model, self.per_sample)
        own = {"weight_decay": DECAY} | self.settings
        if modules:
            known = [self.model, *modules]
            facts, own = (
                facts | {"module": known},
                own if "module" in self.method.needs else own | {"module": known},
            )
        self.opt = self.method.build(self.model.parameters(), facts, **own)
        sampler = self.method.batches(self.opt, N, BATCH)
        self.sampler = sampler if isinstance(sampler, DrawnBatches) else None
        self.drawn = iter(self.sampler) if self.sampler else None
        self.generator = torch.Generator().manual_seed(0)

    def batch(self):
        if self.drawn is None:
            return torch.randperm(N, generator=self.generator)[:BATCH]
        index = next(self.drawn, None)
        if index is None:
            self.drawn = iter(self.sampler)
            index = next(self.drawn)
        return torch.tensor(index)

    def losses(self, index):
        x, y = data()
        return self.per_sample(self.model(x[index]), y[index])

    def step(self):
        index = self.batch()
        return self.opt.step(lambda: self.losses(index), index)

    def value(self):
        """The method's own objective on all samples, and the decay that was asked for."""
        with torch.no_grad():
            return float(self.opt.full_objective(self.losses(slice(None))) + penalty(self.model))

    def state(self):
        sampler = self.sampler.state_dict() if self.sampler else None
        return copy.deepcopy(
            (self.model.state_dict(), self.opt.state_dict(), sampler, self.generator.get_state())
        )

    def load(self, state):
        model, opt, sampler, generator = copy.deepcopy(state)
        self.model.load_state_dict(model)
        self.opt.load_state_dict(opt)
        if self.sampler:
            self.sampler.load_state_dict(sampler)
            self.drawn = iter(self.sampler)
        self.generator.set_state(generator)


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
    return (
        cp.max(cp.hstack([cp.sum(l[np.nonzero(y == g)[0]]) / (y == g).sum() for g in range(K)])),
        [],
    )


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
    weights = (
        METHODS["ClassBalanced"]
        .per_sample(counts(), **settings)(torch.zeros(N, K), torch.tensor(y))
        .numpy()
    )
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
