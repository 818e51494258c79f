"""Focal loss, class-balanced weights and group means."""

import math

import numpy as np
import pytest
import torch

import scdro
from scdro.functional import class_balanced_weights, focal_loss, group_means

# -- groups
# -----------------------------------------------------------------------------------------------------------


def test_group_means():
    losses = torch.tensor([1.0, 2.0, 6.0, math.nan, 5.0], dtype=torch.float64, requires_grad=True)
    groups, weight = torch.tensor([7, 7, -3, 7, -3]), torch.tensor([1.0, 3.0, 1.0, 0.0, 1.0])
    means = group_means(losses, groups, weight)
    torch.testing.assert_close(
        means, torch.tensor([1.75, 1.75, 5.5, 1.75, 5.5], dtype=torch.float64)
    )
    means[0].backward()
    torch.testing.assert_close(
        losses.grad, torch.tensor([0.25, 0.75, 0.0, 0.0, 0.0], dtype=torch.float64)
    )
    with pytest.raises(scdro.errors.LossError, match="integers"):
        group_means(losses, groups.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_group_means_of_many_halves(dtype):
    losses = torch.full((2000,), 100.0, dtype=dtype)
    losses[1000:] = 1.0
    means = group_means(losses, (torch.arange(2000) >= 1000).long())
    torch.testing.assert_close(means, losses.float())


# -- focal loss and class weights
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_loss_is_its_formula(gamma):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 4, generator=g, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(4, (20,), generator=g)
    p = torch.softmax(logits, 1)[torch.arange(20), labels]
    torch.testing.assert_close(
        focal_loss(logits, labels, gamma), -((1 - p) ** gamma) * torch.log(p)
    )
    assert torch.autograd.gradcheck(lambda z: focal_loss(z, labels, gamma), logits)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.testing.assert_close(
        focal_loss(logits, labels, gamma, weight=weight),
        weight[labels] * focal_loss(logits, labels, gamma),
    )


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_loss_of_certain_predictions(gamma):
    logits = torch.tensor([[1000.0, 0.0], [0.0, 1000.0], [40.0, 0.0]], requires_grad=True)
    losses = focal_loss(logits, torch.tensor([0, 0, 0]), gamma)
    losses.sum().backward()
    assert losses.isfinite().all()
    assert logits.grad.isfinite().all()
    with pytest.raises(scdro.errors.HyperparameterError):
        focal_loss(logits, torch.tensor([0, 0, 0]), -1.0)


def test_class_balanced_weights():
    counts = [5000, 100, 7]
    for beta in (0.9, 0.999, 0.9999):
        expected = np.array([(1 - beta) / (1 - beta**n) for n in counts])
        np.testing.assert_allclose(
            class_balanced_weights(counts, beta), expected / expected.mean(), rtol=1e-6
        )
    torch.testing.assert_close(class_balanced_weights(counts, 0.0), torch.ones(3))
    inverse = 1 / np.array(counts)
    np.testing.assert_allclose(
        class_balanced_weights(counts, 1.0), inverse / inverse.mean(), rtol=1e-6
    )
    torch.testing.assert_close(
        class_balanced_weights([5, 0, 15], 1.0), torch.tensor([1.5, 0.0, 0.5])
    )
    torch.testing.assert_close(class_balanced_weights(counts), class_balanced_weights(counts, 1.0))
    for bad in ([0, 0], [], [-1, 3], [[1, 2]]):
        with pytest.raises(scdro.errors.LossError, match="count of each class"):
            class_balanced_weights(bad)
    with pytest.raises(scdro.errors.HyperparameterError):
        class_balanced_weights(counts, 1.5)
