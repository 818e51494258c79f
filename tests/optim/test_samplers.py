"""Samplers that draw from p."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.utils.data import DataLoader, TensorDataset

import scdro
from logistic import N, problem
from primal_dual_twins import RHO
from scdro.optim import SPD
from scdro.optim.samplers import DrawnBatches


def test_a_data_loader_draws_from_p():
    model, x, y, _ = problem()
    opt = SPD(model.parameters(), 0.1, RHO, n=N, dual_lr=0.1)
    opt._dual.respond(torch.linspace(0, 3, N, dtype=torch.float64), 1e-3)
    loader = DataLoader(TensorDataset(x, y, torch.arange(N)), batch_sampler=opt.batch_sampler(10))
    assert len(loader) == 6
    for xb, yb, index in loader:
        opt.step(lambda m=model, a=xb, b=yb: torch.nn.functional.cross_entropy(m(a), b, reduction="none"), index)
    p = opt.weights.numpy()
    frozen = DrawnBatches(lambda g: opt.draw(N, g), 200, seed=1)
    found = np.bincount(np.concatenate([np.array(batch) for batch in frozen]), minlength=N)
    assert chisquare(found, found.sum() * p).pvalue > 1e-3


def test_epochs_of_a_sampler():
    """A new epoch is whole, also after one that was left early; only a loaded one goes on where it stopped."""
    sampler = DrawnBatches(lambda g: torch.randint(50, (3,), generator=g), 5)
    assert [len([b for _, b in zip(range(stop), sampler, strict=False)]) for stop in (5, 9, 2, 9)] == [5, 5, 2, 5]
    whole = iter(DrawnBatches(lambda g: torch.randint(50, (3,), generator=g), 5))
    expected = [next(whole) for _ in range(5)]
    first, second = (DrawnBatches(lambda g: torch.randint(50, (3,), generator=g), 5) for _ in range(2))
    beginning = iter(first)
    found = [next(beginning) for _ in range(2)]
    second.load_state_dict(first.state_dict())
    assert found + list(second) == expected
    assert len(list(second)) == 5
    with pytest.raises(scdro.errors.CheckpointError, match="steps"):
        DrawnBatches(lambda g: torch.arange(3), 4).load_state_dict(first.state_dict())
