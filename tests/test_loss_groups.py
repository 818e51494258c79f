"""KLRobustLoss over groups: the worst case of their means."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import scdro
from logistic import problem
from scdro.functional import worst_case


def test_the_robust_loss_over_groups_takes_weights_and_masks_as_without():
    losses, groups = (
        torch.tensor([1.0, 2.0, 4.0, 9.0], requires_grad=True),
        torch.tensor([0, 0, 1, 1]),
    )
    robust = scdro.KLRobustLoss(rho=0.2).eval()
    weight, mask = [1.0, 3.0, 1.0, 1.0], [1, 1, 1, 0]
    value = robust(losses, weight, torch.tensor(mask), groups=groups)
    by_hand = worst_case(
        torch.tensor([1.75, 1.75, 4.0]), 0.2, sample_weight=torch.tensor([1.0, 3.0, 1.0])
    ).value
    torch.testing.assert_close(value, by_hand)
    for bad in ({"sample_weight": torch.ones(3)}, {"mask": torch.ones(3)}):
        with pytest.raises(scdro.errors.LossError, match="shape"):
            robust(losses, groups=groups, **bad)


@pytest.mark.parametrize("masked", [False, True])
def test_the_robust_loss_over_groups_is_the_worst_case_of_group_means(masked):
    """In eval mode exactly, value and gradient: cvxpy over three group probabilities."""
    import cvxpy as cp

    rng = np.random.default_rng(0)
    losses = torch.tensor(rng.exponential(size=14), requires_grad=True)
    groups = torch.tensor([0] * 8 + [1] * 4 + [2] * 2)
    mask = torch.ones(14, dtype=torch.bool)
    if masked:
        mask[[0, 9]] = False
    loss = scdro.KLRobustLoss(rho=0.2, lam0=1e-6).eval()
    value = loss(losses, mask=mask if masked else None, groups=groups)
    value.backward()
    kept = mask.numpy()
    means = np.array(
        [losses.detach().numpy()[kept & (groups.numpy() == g)].mean() for g in range(3)]
    )
    share = np.array([(kept & (groups.numpy() == g)).sum() for g in range(3)]) / kept.sum()
    p = cp.Variable(3)
    cp.Problem(
        cp.Maximize(p @ means), [cp.sum(p) == 1, cp.sum(cp.rel_entr(p, share)) <= 0.2]
    ).solve(cp.CLARABEL)
    assert value.item() == pytest.approx(p.value @ means, abs=1e-4)
    by_group = [losses.grad[groups == g].sum().item() for g in range(3)]
    np.testing.assert_allclose(by_group, p.value, atol=1e-3)
    assert (losses.grad.numpy()[~kept] == 0).all()


def test_the_robust_loss_over_groups_trains():
    model, x, y, _ = problem()
    loss, opt = scdro.KLRobustLoss(rho=0.3), torch.optim.SGD(model.parameters(), 0.5)
    groups = y.clone()

    def worst():
        with torch.no_grad():
            return max(cross_entropy(model(x[y == g]), y[y == g]).item() for g in range(3))

    before = worst()
    for _ in range(100):
        opt.zero_grad()
        loss(cross_entropy(model(x), y, reduction="none"), groups=groups).backward()
        opt.step()
    assert worst() < 0.6 * before
