"""Samplers of methods that draw their own batches."""

import pytest
import torch

import scdro
from scdro.optim.samplers import DrawnBatches


def test_epochs_of_a_sampler():
    """A new epoch is whole, also after one that was left early; only a loaded one goes on where it stopped."""
    sampler = DrawnBatches(lambda g: torch.randint(50, (3,), generator=g), 5)
    assert [
        len([b for _, b in zip(range(stop), sampler, strict=False)]) for stop in (5, 9, 2, 9)
    ] == [5, 5, 2, 5]
    whole = iter(DrawnBatches(lambda g: torch.randint(50, (3,), generator=g), 5))
    expected = [next(whole) for _ in range(5)]
    first, second = (
        DrawnBatches(lambda g: torch.randint(50, (3,), generator=g), 5) for _ in range(2)
    )
    beginning = iter(first)
    found = [next(beginning) for _ in range(2)]
    second.load_state_dict(first.state_dict())
    assert found + list(second) == expected
    assert len(list(second)) == 5
    with pytest.raises(scdro.errors.CheckpointError, match="steps"):
        DrawnBatches(lambda g: torch.arange(3), 4).load_state_dict(first.state_dict())
