"""Every bad input: the type of its error, and the facts that its message must have, in any words.

A fact is the name of an argument, the value that came, or what to write instead.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import scdro
from scdro import errors
from scdro.cli import main
from scdro.contrastive import RobustContrastiveLoss
from scdro.data import keep_last, step_imbalance
from scdro.errors import (
    CheckpointError,
    ClosureError,
    DataError,
    HyperparameterError,
    LossError,
    MissingDataError,
    NonFiniteLossError,
    ScdroError,
)
from scdro.linear_model import KLDROClassifier, KLDRORegressor

N = 8
MODEL = nn.Linear(3, 2)
X, Y = torch.linspace(-1, 1, 3 * N).reshape(N, 3), torch.arange(N) % 2
MEAN, EACH = nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")


def per_sample(model=MODEL):
    return F.cross_entropy(model(X), Y, reduction="none")


def robust(*args, **settings):
    return scdro.KLRobustLoss(0.5)(*args, **settings)


def scdro_step(closure, params=None, cls=scdro.SCDRO, **settings):
    settings = {"lr": 0.1, "rho": 0.5, **settings}
    return cls(list(MODEL.parameters() if params is None else params), **settings).step(closure)


def attached_twice():
    loss = scdro.KLRobustLoss(0.5).attach(torch.optim.SGD(MODEL.parameters(), lr=0.1))
    loss(per_sample())
    loss.attach(torch.optim.SGD(MODEL.parameters(), lr=0.1))


def called_backward():
    losses = per_sample()
    losses.mean().backward()
    return losses


def two_batches():
    sizes = iter([8, 8, 6])
    opt = scdro.ASCDRO(MODEL.parameters(), lr=0.1, rho=0.5)
    for _ in range(2):
        opt.step(lambda: per_sample()[: next(sizes)])


def loaded(into, state):
    into.load_state_dict(state.state_dict())


def optimizer(cls=scdro.SCDRO, model=MODEL, stepped=False):
    opt = cls(model.parameters(), lr=0.1, rho=0.5)
    if stepped:
        opt.step(lambda: per_sample(model))
    return opt


SPARSE = nn.Embedding(10, 1, sparse=True)
NORMED = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
CONTRASTIVE = {"n": 100, "rho": 0.5}

CASES = {
    # the losses
    "reduced": (lambda: robust(MEAN(MODEL(X), Y)), LossError, 'reduction="none"'),
    "2-D": (lambda: robust(per_sample().expand(5, N).T), LossError, "(8, 5)", "mask"),
    "column": (lambda: robust(per_sample()[:, None]), LossError, "(8, 1)", "squeeze(1)"),
    "logits": (lambda: robust(MODEL(X), Y), LossError, "logits", "(8, 2)", 'reduction="none"'),
    "NaN": (lambda: robust(per_sample() / 0 * 0), NonFiniteLossError, "NaN", "skip_nonfinite=True"),
    "detached": (
        lambda: robust(per_sample().detach()),
        LossError,
        "require grad",
        "eval()",
        "no_grad()",
    ),
    "empty": (lambda: robust(per_sample()[:0]), LossError, "at least one", "skip empty batches"),
    "integers": (lambda: robust(Y), LossError, "floating-point", "int64"),
    "list": (lambda: robust(list(per_sample())), LossError, "tensor", "list"),
    "out of bound": (
        lambda: scdro.KLRobustLoss(0.5, loss_bound=0.01)(per_sample()),
        LossError,
        "loss_bound",
        "0.01",
    ),
    "negative weight": (
        lambda: robust(per_sample(), sample_weight=-torch.ones(N)),
        LossError,
        "weights",
        "negative",
    ),
    "short weight": (
        lambda: robust(per_sample(), sample_weight=torch.ones(7)),
        LossError,
        "weight",
        "(8,)",
        "(7,)",
    ),
    "named groups": (
        lambda: robust(per_sample(), groups=torch.rand(N)),
        LossError,
        "groups",
        "float32",
        "integers",
    ),
    # settings
    "rho < 0": (
        lambda: scdro.KLRobustLoss(-1.0),
        HyperparameterError,
        "rho",
        "-1.0",
        "rho_for_group",
    ),
    "rho a text": (
        lambda: scdro.KLRobustLoss("0.5"),
        HyperparameterError,
        "rho",
        "'0.5'",
        "number",
    ),
    "per cent": (lambda: scdro.rho_for_group(10), HyperparameterError, "(0, 1]", "10", "0.1"),
    "95 per cent": (
        lambda: scdro.functional.rho_for_confidence(1000, level=95),
        HyperparameterError,
        "[0.5, 1)",
        "95",
    ),
    "beta": (
        lambda: scdro_step(per_sample, beta=0.0),
        HyperparameterError,
        "beta",
        "(0, 1]",
        "0.0",
    ),
    "lam0": (
        lambda: scdro.worst_case([1.0, 2.0], 0.5, lam0=0.0),
        HyperparameterError,
        "lam0 >= 1e-50",
        "0.0",
    ),
    "trim": (lambda: scdro.KLRobustLoss(0.5, trim=5), HyperparameterError, "trim", "[0, 1)", "5"),
    "temperature": (
        lambda: scdro.KLRobustLoss(0.5, temperature=1.0),
        HyperparameterError,
        "temperature",
        "WindowTemperature()",
        "1.0",
    ),
    "printed temperature": (
        lambda: scdro.KLRobustLoss(0.5, temperature=scdro.printed.PrintedTemperature()),
        HyperparameterError,
        "PrintedTemperature(lr=",
    ),
    "attached twice": (attached_twice, HyperparameterError, "optimizer", "step()", "zero_grad()"),
    # closures
    "no closure": (lambda: optimizer().step(), ClosureError, "step(closure)", "KLRobustLoss"),
    "losses": (
        lambda: optimizer().step(per_sample()),
        ClosureError,
        "step(closure)",
        "Tensor",
        "lambda",
    ),
    "backward": (lambda: scdro_step(called_backward), ClosureError, "backward()", "remove"),
    "another model": (
        lambda: scdro_step(lambda: per_sample(nn.Linear(3, 2))),
        ClosureError,
        "parameters",
        "model",
    ),
    "sparse": (
        lambda: scdro_step(lambda: SPARSE(torch.arange(N)).reshape(-1) ** 2, SPARSE.parameters()),
        ClosureError,
        "sparse=False",
        "KLRobustLoss",
    ),
    "BatchNorm": (
        lambda: scdro_step(lambda: per_sample(NORMED), NORMED.parameters(), scdro.ASCDRO),
        ClosureError,
        "BatchNorm1d",
        "module=model",
    ),
    "two batches": (two_batches, ClosureError, "batch", "8", "6"),
    "no groups": (
        lambda: scdro.optim.GroupDRO(MODEL.parameters(), lr=0.1, groups=3).step(per_sample),
        ClosureError,
        "groups=groups",
    ),
    # evaluation
    "evaluate a mean": (
        lambda: scdro.evaluate(MODEL, [(X, Y)], MEAN, 0.5),
        LossError,
        "loss_fn",
        'reduction="none"',
    ),
    "evaluate a batch": (
        lambda: scdro.evaluate(MODEL, (X, Y), EACH, 0.5),
        DataError,
        "[(x, y)]",
        "DataLoader",
        "tuple",
    ),
    "evaluate nothing": (
        lambda: scdro.evaluate(MODEL, iter([]), EACH, 0.5),
        LossError,
        "batch",
        "empty",
    ),
    # checkpoints
    "another algorithm": (
        lambda: loaded(optimizer(scdro.ASCDRO), optimizer()),
        CheckpointError,
        "ASCDRO",
        " SCDRO",
    ),
    "another shape": (
        lambda: loaded(optimizer(model=nn.Linear(9, 1)), optimizer(stepped=True)),
        CheckpointError,
        "(1, 9)",
        "(2, 3)",
    ),
    "another window": (
        lambda: loaded(scdro.KLRobustLoss(0.5, window=64), scdro.KLRobustLoss(0.5)),
        CheckpointError,
        "window",
        "64",
        "arguments",
    ),
    "another problem": (
        lambda: loaded(scdro.KLRobustLoss(0.5), scdro.KLRobustLoss(0.0)),
        CheckpointError,
        "rho > 0",
        "rho = 0",
    ),
    # data
    "no run": (
        lambda: scdro.load("no/such/folder"),
        MissingDataError,
        "folder of a run",
        "no/such/folder",
    ),
    "labels": (
        lambda: step_imbalance(torch.tensor([0.5, 1.5]), keep=1),
        DataError,
        "labels",
        "integers",
        "float32",
    ),
    "too many": (
        lambda: keep_last(torch.tensor([0, 0, 1]), {0: 5}),
        HyperparameterError,
        "class 0",
        "2",
        "5",
    ),
    # linear models
    "C": (
        lambda: KLDROClassifier(C=0.0).fit(X.numpy(), Y.numpy()),
        HyperparameterError,
        "C > 0",
        "0.0",
    ),
    "no classes": (
        lambda: KLDROClassifier().partial_fit(X.numpy(), Y.numpy()),
        DataError,
        "classes",
        "partial_fit",
    ),
    "another loss": (
        lambda: KLDRORegressor(loss="mse").fit(X.numpy(), Y.numpy()),
        HyperparameterError,
        "loss",
        "'squared_error'",
        "'mse'",
    ),
    # contrastive learning
    "contrastive rho": (
        lambda: RobustContrastiveLoss(n=100, rho=0.0),
        HyperparameterError,
        "rho > 0",
        "0",
    ),
    "one sample": (
        lambda: RobustContrastiveLoss(**CONTRASTIVE)(MODEL(X[:1]), MODEL(X[:1]), torch.tensor([0])),
        LossError,
        "two",
        "negatives",
    ),
    "two shapes": (
        lambda: RobustContrastiveLoss(**CONTRASTIVE)(X, torch.ones(N, 5), torch.arange(N)),
        LossError,
        "(8, 3)",
        "(8, 5)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case):
    call, error, *facts = CASES[case]
    with pytest.raises(error) as caught:
        call()
    assert caught.type is error
    assert lacking(facts, str(caught.value)) == []


def lacking(facts, message):
    return [fact for fact in facts if fact not in message]


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (HyperparameterError, (ScdroError, ValueError)),
        (LossError, (ScdroError, ValueError)),
        (NonFiniteLossError, (LossError,)),
        (ClosureError, (ScdroError, RuntimeError)),
        (CheckpointError, (ScdroError, ValueError)),
        (DataError, (ScdroError, ValueError)),
        (MissingDataError, (ScdroError, FileNotFoundError)),
        (errors.ScdroWarning, (UserWarning,)),
    ],
)
def test_errors_can_be_caught_as_what_they_are(error, bases):
    assert all(issubclass(error, base) for base in bases)


# -- the page
# ---------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs" / "errors.md").read_text()
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$(?:\n^```text\n(.*?)^```$)?", re.M | re.S)


def outcome(language, code, names):
    """What a block ends with: `Type: message`, what a command prints, or nothing."""
    if language == "console":
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            assert main(shlex.split(code.removeprefix("$ scdro "))) == 1
        return said.getvalue()
    try:
        exec(compile(code, "errors.md", "exec"), names)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def shown(page):
    """Language and code of each block, and what it should end with."""
    for language, code, message in BLOCK.findall(page):
        yield (
            (language, *code.split("\n", 1)) if language == "console" else (language, code, message)
        )


def test_the_page_is_true(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for language, code, message in shown(PAGE):
        got = outcome(language, code, names)
        if message:
            kind, *facts = (part.strip() for part in message.split("..."))
            assert got.startswith(kind), code
            assert lacking(facts, got) == [], got
        else:
            assert got == "", code


def test_the_page_has_every_type_and_ten_messages():
    table = re.findall(r"^\| `(\w+)` \| `(\w+)`", PAGE, re.M)
    assert {name for name, _ in table} | {"ScdroError"} == set(errors.__all__)
    for name, base in table:
        assert issubclass(
            getattr(errors, name), getattr(errors, base, None) or getattr(builtins, base)
        )
    assert len([message for _, _, message in shown(PAGE) if message]) >= 10
