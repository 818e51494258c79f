"""Bad input for every optimizer and the loss, and how to see that it was refused without a trace."""

from __future__ import annotations

import copy
import math
import queue
import threading

import pytest
import torch
from torch import nn

from equality import differences
from scdro import ASCDRO, SCDRO, ScdroError
from scdro.errors import LossError, NonFiniteLossError
from scdro.optim import RASCDRO, RSCDRO, Stage

NAN, INF = math.nan, math.inf
OPTIMIZERS = ["SCDRO", "ASCDRO", "RSCDRO", "RASCDRO"]
TWO_POINT = ["ASCDRO", "RASCDRO"]


def make(name, params, *, rho=0.5, lr=0.1, beta=0.5, **settings):
    if name == "SCDRO":
        return SCDRO(params, lr, rho, beta=beta, **settings)
    if name == "ASCDRO":
        return ASCDRO(params, lr, rho, beta=beta, **settings)
    stages = [Stage(lr, beta, 4), Stage(lr / 2, beta, 4)]
    return {"RSCDRO": RSCDRO, "RASCDRO": RASCDRO}[name](params, stages, rho, **settings)


class Problem:
    """A small regression: `losses()` is a good closure, `losses(k)` that of the k-th batch."""

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(6, 5, 3, generator=generator)
        self.y = torch.randn(6, 5, generator=generator)
        self.model = nn.Linear(3, 1)
        with torch.no_grad():
            for p in self.model.parameters():
                p.copy_(torch.randn(p.shape, generator=generator))

    def losses(self, k=0):
        return (self.model(self.x[k]).squeeze(1) - self.y[k]).square()

    def optimizer(self, name, started=False, **settings):
        optimizer = make(name, self.model.parameters(), **settings)
        for k in range(2 if started else 0):
            optimizer.step(lambda k=k: self.losses(k))
        return optimizer

    def snapshot(self, *stateful):
        return copy.deepcopy([self.model.state_dict(), *(s.state_dict() for s in stateful)])


def refuses(problem, call, error, match, *stateful):
    """`call` raises exactly `error`, says `match`, and changes nothing."""
    before = problem.snapshot(*stateful)
    with pytest.raises(ScdroError, match=match) as caught:
        call()
    assert caught.type is error
    assert differences(before, problem.snapshot(*stateful)) == []


def with_value(value):
    return lambda losses: torch.cat([losses[:2], losses[2:3] * 0 + value, losses[3:]])


# -- losses
# -----------------------------------------------------------------------------------------------------------


BAD_LOSSES = {
    "nan": (with_value(NAN), NonFiniteLossError, "finite.*NaN"),
    "inf": (with_value(INF), NonFiniteLossError, "finite.*NaN"),
    "-inf": (with_value(-INF), NonFiniteLossError, "finite.*NaN"),
    "2-D": (lambda l: l[:, None], LossError, r"\(5, 1\)"),
    "reduced": (lambda l: l.mean(), LossError, 'reduction="none"'),
    "empty": (lambda l: l[:0], LossError, "empty"),
    "integer": (lambda l: l.detach().round().long(), LossError, "floating-point.*int64"),
    "detached": (lambda l: l.detach(), LossError, "require grad"),
    "list": (lambda l: l.tolist(), LossError, "tensor.*list"),
    "forgotten return": (lambda l: None, LossError, "tensor.*NoneType"),
}

# -- sample weights and masks
# -----------------------------------------------------------------------------------------


BAD_WEIGHTS = {
    "negative": ([1.0, -1.0, 1.0, 1.0, 1.0], "weights.*negative"),
    "nan": ([1.0, NAN, 1.0, 1.0, 1.0], "weights.*non-finite"),
    "inf": ([1.0, INF, 1.0, 1.0, 1.0], "weights.*non-finite"),
    "zeros": ([0.0] * 5, "weights.*positive"),
    "short": ([1.0] * 4, r"weight.*\(5,\).*\(4,\)"),
    "2-D": ([[1.0]] * 5, r"weight.*\(5,\).*\(5, 1\)"),
    "number": (1.0, r"weight.*\(5,\).*\(\)"),
}

# -- settings
# ---------------------------------------------------------------------------------------------------------


RADIUS_RHO = "rho >= 0"
BAD_SETTINGS = [
    *(("rho", v, RADIUS_RHO) for v in (-0.1, NAN, INF)),
    *(("lam0", v, "lam0 >= 1e-50") for v in (0.0, -1e-3, NAN, INF)),
    *(("beta", v, r"beta.*\(0, 1\]") for v in (0.0, -0.1, 1.001, NAN)),
    *(("lr", v, "lr >=? 0") for v in (-0.1, NAN, INF)),
    *(("weight_decay", v, "weight_decay >= 0") for v in (-1e-4, NAN, INF)),
    *(("radius", v, "radius > 0") for v in (0.0, -1.0, NAN, INF)),
    *(("trim", v, r"trim.*\[0, 1\)") for v in (-0.1, 1.0, 1.5, NAN)),
    *(("loss_bound", v, "loss_bound > 0") for v in (0.0, -1.0, NAN, INF)),
    *(("window", v, "window") for v in (0, -5)),
    *(("mu", v, "mu >= 0") for v in (-0.1, NAN, INF)),
]

# -- skip_nonfinite
# ---------------------------------------------------------------------------------------------------


def only_skipped_moved(before, after, stateful):
    """Exactly one element of all the state differs: a counter, which went up by one and is `skipped`."""
    moved = differences(before, after)
    assert len(moved) == 1, moved
    _, old, new = moved[0]
    assert not new.is_floating_point()
    assert new - old == 1
    assert new == stateful.skipped


# -- what a batch that was left out did to the model
# ------------------------------------------------------------------


def spoilt(problem, k):
    """A batch with a NaN in its input: BatchNorm sees it before any loss is known."""
    problem.x[k, 0, 0] = NAN
    return problem


# -- ASCDRO's two evaluations
# -----------------------------------------------------------------------------------------


def normalised(*layers):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 1))


def problem_with(model):
    problem = Problem()
    problem.model = model
    return problem


class Beside:
    """Another thread, that does one thing each time it is asked to."""

    def __init__(self, work):
        self.results, self._asked, self._done, self._work = [], queue.Queue(), queue.Queue(), work
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while self._asked.get():
            self._done.put(self._outcome())

    def _outcome(self):
        try:
            return self._work(), None
        except Exception as error:
            return None, error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._asked.put(False)
        self._thread.join()

    def __call__(self):
        self._asked.put(True)
        result, error = self._done.get(timeout=60)
        if error is not None:
            raise error
        self.results.append(result)
