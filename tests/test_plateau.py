"""The warning of a model that has given up: it comes once where it should, and never where it should not."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from scdro import ASCDRO, SCDRO, KLRobustLoss, ScdroWarning
from scdro._plateau import plateau_of
from scdro.temperature import Window

STEPS = 800


def task(k, seed=0, wrong=0.2):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1000, 6, generator=g)
    y = (x @ torch.randn(6, k, generator=g)).argmax(1)
    flipped = torch.rand(1000, generator=g) < wrong
    return x, torch.where(flipped, torch.randint(k, (1000,), generator=g), y)


def told(caught):
    return [str(w.message) for w in caught if issubclass(w.category, ScdroWarning)]


def train(losses_of, model, rho, steps=STEPS, lr=0.1, weight_decay=0.0, wrap=None):
    """Warnings of training by the loss, or by an optimizer that `wrap` makes."""
    g = torch.Generator().manual_seed(1)
    robust = KLRobustLoss(rho) if wrap is None else None
    optimizer = (
        torch.optim.SGD(model.parameters(), lr, 0.9, weight_decay=weight_decay)
        if robust
        else wrap(model)
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            index = torch.randint(1000, (64,), generator=g)
            if robust is None:
                optimizer.step(lambda index=index: losses_of(model, index))
                continue
            optimizer.zero_grad()
            robust(losses_of(model, index)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return told(caught)


def network(k, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, k))


@pytest.mark.parametrize("k", [2, 10])
def test_training_that_gives_up_is_told_once(k):
    """A radius and weight decay at which equal chances are the best robust model."""
    x, y = task(k)
    losses = lambda m, i: cross_entropy(m(x[i]), y[i], reduction="none")  # noqa: E731
    said = train(losses, network(k), 2.0, 1000, lr=0.02, weight_decay=0.3)
    assert len(said) == 1
    assert f"near log {k} = {math.log(k):.3g}" in said[0]
    assert "lower rho" in said[0]


@pytest.mark.parametrize(
    "make", [lambda m: SCDRO(m.parameters(), 0.0, 1.0), lambda m: ASCDRO(m.parameters(), 0.0, 1.0)]
)
@pytest.mark.parametrize("k", [3, 100])
def test_optimizers_tell_it_too(make, k):
    x, y = task(k)
    model = nn.Linear(6, k)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    assert (
        len(
            train(
                lambda m, i: cross_entropy(m(x[i]), y[i], reduction="none"), model, 1.0, wrap=make
            )
        )
        == 1
    )


@pytest.mark.parametrize(("k", "rho"), [(2, 0.0), (2, 0.5), (10, 0.1), (50, 0.0), (50, 0.5)])
def test_training_that_learns_is_left_alone(k, rho):
    x, y = task(k)
    assert train(lambda m, i: cross_entropy(m(x[i]), y[i], reduction="none"), network(k), rho) == []


def test_training_that_starts_at_equal_chances_is_left_alone():
    x, y = task(10, wrong=0.0)
    model = network(10)
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    assert train(lambda m, i: cross_entropy(m(x[i]), y[i], reduction="none"), model, 0.5) == []


def test_training_that_has_converged_is_left_alone():
    x, y = task(2, wrong=0.0)
    model, y = network(2), (x[:, 0] > 0).long()
    x = x + 5 * torch.sign(x[:, :1])
    losses = []

    def losses_of(m, i):
        losses.append(cross_entropy(m(x[i]), y[i], reduction="none"))
        return losses[-1]

    assert train(losses_of, model, 0.5, 600) == []
    assert losses[-1].max() < 0.05


@pytest.mark.parametrize("level", [0.0, 0.25, 1.0, 2.0, 2.25, 4.0, 9.0])
def test_equal_losses_are_no_plateau_of_classes(level):
    """Targets +c and -c, and predictions 0: told as what they are, lam at lam0, unless everything is fitted, c = 0."""
    target = math.sqrt(level) * torch.sign(
        torch.randn(1000, generator=torch.Generator().manual_seed(0))
    )
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)

    def losses_of(m, i):
        return (m(torch.ones(len(i), 1)).squeeze(1) * 0 - target[i]).square()

    said = train(losses_of, model, 0.5)
    assert len(said) == (level > 0)
    assert all("only equal losses" in message and "log" not in message for message in said)


def test_regression_is_left_alone():
    x, _ = task(2)
    y = x[:, 0] + 0.5 * torch.randn(1000, generator=torch.Generator().manual_seed(2))
    assert train(lambda m, i: (m(x[i]).squeeze(1) - y[i]).square(), network(1), 1.0, lr=0.02) == []


def test_a_collapse_late_in_a_short_run_is_told():
    """396 steps, one prediction for everybody from step 198 on."""
    x, y = task(2)
    model, step = network(2), []

    def losses_of(m, i):
        step.append(1)
        if len(step) == 198:
            with torch.no_grad():
                for p in m.parameters():
                    p.mul_(1e-3)
        return cross_entropy(m(x[i]) if len(step) < 198 else 1e-3 * m(x[i]), y[i], reduction="none")

    said = train(losses_of, model, 0.5, 396)
    assert len(said) == 1
    assert "log 2" in said[0]


def test_a_batch_with_less_than_one_effective_sample_is_told():
    x, y = task(3)
    robust = KLRobustLoss(3.0)
    model = network(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for index in torch.randint(1000, (400, 4), generator=torch.Generator().manual_seed(1)):
            optimizer.zero_grad()
            robust(cross_entropy(model(x[index]), y[index], reduction="none")).backward()
            optimizer.step()
    (said,) = told(caught)
    assert "effective samples in a batch of 4" in said
    assert "attach()" in said


def test_training_that_diverges_is_told():
    """A rate so high that accuracy is chance."""
    x, y = task(10)
    model, robust = network(10), KLRobustLoss(0.5)
    optimizer = torch.optim.SGD(model.parameters(), 30.0, 0.9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for index in torch.randint(1000, (300, 64), generator=torch.Generator().manual_seed(1)):
            optimizer.zero_grad()
            robust(cross_entropy(model(x[index]), y[index], reduction="none")).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    said = told(caught)
    assert sum("diverged" in message for message in said) == 1
    assert "learning rate" in said[0]


def window_of(losses):
    return Window(torch.stack([losses, torch.zeros_like(losses)]))


def test_what_a_plateau_is():
    g = torch.Generator().manual_seed(0)
    noise = torch.rand(2000, generator=g, dtype=torch.float64) - 0.5
    for k, width in ((2, 0.05), (10, 0.2), (19, 0.25), (100, 0.004), (1000, 0.0004), (1000, 0.0)):
        level = torch.full_like(noise, math.log(k))
        assert plateau_of(window_of(level + width * noise)) == k
        outliers = copy.deepcopy(level)
        outliers[:15] = 7.0 * level[0]
        assert plateau_of(window_of(outliers)) == k
        assert plateau_of(window_of(level + 3 * max(width, 0.001) * noise)) is None
        assert plateau_of(window_of(0.97 * level)) is None
        assert plateau_of(window_of(level[:99])) is None
    empty = Window(torch.empty(2, 1024, dtype=torch.float64))
    empty.clear_()
    assert plateau_of(empty) is None
