"""GroupDRO: in lockstep with a literal twin, its batches, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import scdro
from logistic import N, flat, losses_of, problem
from scdro.optim import GroupDRO

STEPS = 100


def test_group_dro_in_lockstep():
    """q itself, and the loop over groups that everybody writes; a group that is missing keeps its q."""
    model, x, y, by_hand = problem()
    groups = torch.arange(N) % 4
    opt = GroupDRO(model.parameters(), 0.05, groups=groups, dual_lr=0.2, momentum=0.5)
    w, q, v = flat(model), np.full(4, 0.25), 0.0
    rng = np.random.default_rng(2)
    for k in range(STEPS):
        index = rng.choice(N, 12, replace=False)
        if k % 3 == 0:
            index = index[groups.numpy()[index] != 2]
        weight = rng.uniform(0.5, 2.0, len(index)) if k % 2 else None
        losses, gradients = by_hand.batch(index)(w)
        share = np.ones(len(index)) if weight is None else weight
        member, direction, means = groups.numpy()[index], 0.0, {}
        for g in set(member):
            at = member == g
            means[g] = (share[at] @ losses[at]) / share[at].sum()
            q[g] *= math.exp(0.2 * means[g])
        q /= q.sum()
        for g in means:
            at = member == g
            direction = direction + q[g] * (share[at] @ gradients[at]) / share[at].sum()
        v = 0.5 * v + direction if k else direction
        w = w - 0.05 * v
        value = opt.step(
            losses_of(model, x, y, index),
            torch.tensor(index),
            sample_weight=None if weight is None else torch.tensor(weight),
        )
        np.testing.assert_allclose(flat(model), w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(opt.group_weights, q, rtol=0, atol=1e-12)
        assert value.item() == pytest.approx(sum(q[g] * means[g] for g in means), abs=1e-10)


def test_group_dro_takes_the_groups_of_the_batch():
    runs = []
    for kind in (3, torch.arange(N) % 3):
        model, x, y, _ = problem()
        opt = GroupDRO(model.parameters(), groups=kind)
        index = torch.arange(5, 20)
        if isinstance(kind, int):
            opt.step(losses_of(model, x, y, index), groups=index % 3)
        else:
            opt.step(losses_of(model, x, y, index), index)
        runs.append(flat(model))
    np.testing.assert_array_equal(*runs)


def test_group_dro_takes_lists_and_numpy():
    model, _x, _y, _ = problem()
    for groups in ([0, 1] * 30, np.arange(N) % 2, np.int64(2)):
        opt = GroupDRO(model.parameters(), groups=groups)
        assert len(opt.group_weights) == 2


@pytest.mark.parametrize("size", [3, 11, 20])
def test_batches_of_group_dro_hold_all_groups_alike(size):
    """No group more than once more than another; over many batches groups, and samples within each, equally often."""
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    groups = torch.tensor([0] * 50 + [1] * 7 + [4] * 2 + [3] * 30 + [2])[order]
    opt = GroupDRO(problem()[0].parameters(), groups=groups)
    assert len(opt.batch_sampler(size)) == math.ceil(90 / size)
    with torch.device("meta"):  # draws stay on the host, whatever the default device
        positions = list(opt.batch_sampler(size, steps=4000, seed=1))
    batches = [torch.tensor(batch) for batch in positions]
    held = torch.stack([torch.bincount(groups[batch], minlength=5) for batch in batches])
    assert (held.sum(1) == size).all()
    assert (held.amax(1) - held.amin(1) <= 1).all()
    np.testing.assert_allclose(held.double().mean(0), size / 5, atol=0.03)
    drawn = torch.bincount(torch.cat(batches), minlength=90)
    for group in (0, 1, 3, 4):
        assert chisquare(drawn[groups == group].numpy()).pvalue > 1e-4


def test_rare_groups_get_their_due():
    """One sample against 199, which want opposite things: the worst of both is smallest halfway. Where batches only
    shuffle, the many win."""
    groups = (torch.arange(200) == 0).long()
    target = torch.where(groups == 1, 1.0, -1.0)
    w = torch.nn.Parameter(torch.tensor([-1.0]))
    opt = GroupDRO([w], lr=0.02, groups=groups, dual_lr=0.05, momentum=0.0)
    late = []
    for k, index in enumerate(map(torch.tensor, opt.batch_sampler(4, steps=1200))):
        opt.step(lambda index=index: (w - target[index]) ** 2, index)
        if k >= 600:
            late.append(w.item())
    assert sum(late) / len(late) == pytest.approx(0.0, abs=0.05)  # equally far from both
    assert GroupDRO([w], groups=groups).draws(200, 4) is not None
    assert GroupDRO([w], groups=2).draws(200, 4) is None


def test_group_dro_says_what_is_wrong():
    model, x, y, _ = problem()
    index = torch.arange(6)
    closure = losses_of(model, x, y, index)
    with pytest.raises(scdro.errors.ClosureError, match="groups=groups"):
        GroupDRO(model.parameters(), groups=3).step(closure, index)
    with pytest.raises(scdro.errors.ClosureError, match="index"):
        GroupDRO(model.parameters(), groups=index).step(closure)
    with pytest.raises(scdro.errors.ClosureError, match="n = 6"):
        GroupDRO(model.parameters(), groups=index).step(closure, index + 1)
    with pytest.raises(scdro.errors.ClosureError, match="0 to 2"):
        GroupDRO(model.parameters(), groups=3).step(closure, groups=index)
    with pytest.raises(scdro.errors.LossError, match="one group per loss"):
        GroupDRO(model.parameters(), groups=3).step(closure, groups=index[:3])
    for index in (torch.arange(6.0), torch.ones(60, dtype=torch.bool)):
        with pytest.raises(scdro.errors.ClosureError, match="integer"):
            GroupDRO(model.parameters(), groups=torch.arange(N) % 3).step(closure, index)
    for groups in (0, True):
        with pytest.raises(scdro.errors.HyperparameterError, match="groups >= 1"):
            GroupDRO(model.parameters(), groups=groups)
    for groups in (2.5, torch.ones(3), torch.tensor([-1, 0])):
        with pytest.raises(scdro.errors.DataError, match="groups of all samples"):
            GroupDRO(model.parameters(), groups=groups)
    with pytest.raises(scdro.errors.HyperparameterError, match="number"):
        GroupDRO(model.parameters(), groups=3).batch_sampler(4)
    for settings in ({"batch_size": 0}, {"batch_size": 2, "steps": 0}):
        with pytest.raises(scdro.errors.HyperparameterError, match=f"{list(settings)[-1]} >= 1"):
            GroupDRO(model.parameters(), groups=torch.arange(9) % 3).batch_sampler(**settings)
