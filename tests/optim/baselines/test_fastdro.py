"""FastDRO: multi-level Monte Carlo, its bias, and the identity on the full batch."""

import numpy as np
import pytest
import torch
from torch import nn

import scdro
from scdro.functional import worst_case
from scdro.optim import Chi2, Chi2Penalty, CVaR, FastDRO, KLBall, Multilevel

# -- multi-level Monte Carlo
# ------------------------------------------------------------------------------------------


def test_multilevel_telescopes_to_the_largest_batch():
    """Over all sizes, with their chances, and all places where the smaller batches can lie: exact, no sampling."""
    rng = np.random.default_rng(0)
    levels, losses = Multilevel(2, 16), rng.exponential(size=16)
    assert levels.sizes == [4, 8, 16]
    assert [levels.chance(size) for size in levels.sizes] == [0.5, 0.25, 0.25]
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = FastDRO([w], 0.0, KLBall(0.3), multilevel=levels)
    expected = 0.0
    for size in levels.sizes:
        blocks = losses.reshape(-1, size)
        values = [opt.step(lambda b=b: w + torch.tensor(b)).item() for b in blocks]
        expected += levels.chance(size) * np.mean(values)
    # Averaged over blocks, the differences cancel level by level; what is left of the base level is
    # their mean.
    firsts = [
        worst_case(b[:2], 0.3).value for size in levels.sizes for b in losses.reshape(-1, size)
    ]
    weights = [levels.chance(size) * size / 16 for size in levels.sizes for _ in range(16 // size)]
    base = np.dot(firsts, weights)
    pairs = np.mean([worst_case(b, 0.3).value for b in losses.reshape(-1, 2)])
    assert expected - base + pairs == pytest.approx(worst_case(losses, 0.3).value, abs=1e-10)


def test_multilevel_draws_sizes_by_their_chance():
    opt = FastDRO([nn.Parameter(torch.zeros(1))], multilevel=Multilevel(2, 16))
    sizes = np.array([len(batch) for batch in opt.batch_sampler(n=50, steps=4000, seed=1)])
    for size in (4, 8, 16):
        assert np.mean(sizes == size) == pytest.approx(opt.multilevel.chance(size), abs=0.03)
    assert len(opt.batch_sampler(n=80)) == 10  # 8 samples a batch on average
    flatly = np.concatenate([np.array(batch) for batch in opt.batch_sampler(n=50, steps=2000)])
    assert np.bincount(flatly, minlength=50).min() > 200


def test_the_bias_of_fastdro_is_measured():
    """Its objective is the expected worst case of a batch: below that of the data, less so for larger batches."""
    rng = np.random.default_rng(0)
    losses = rng.exponential(size=4000)
    exact = worst_case(losses, 0.5).value
    bias = {}
    for size in (8, 32, 128, 512):
        draws = [worst_case(rng.choice(losses, size), 0.5).value for _ in range(1200)]
        bias[size] = exact - np.mean(draws)
    assert bias[8] > bias[32] > bias[128] > bias[512] > -0.02
    assert bias[8] > 4 * bias[128]


@pytest.mark.parametrize("levels", [(0, 8), (4, 4), (4, 12), (4.0, 8), (8, 4)])
def test_bad_levels(levels):
    with pytest.raises(scdro.errors.HyperparameterError, match=r"smallest|largest"):
        FastDRO([nn.Parameter(torch.ones(1))], multilevel=Multilevel(*levels))


def test_multilevel_refuses_other_batches():
    w = nn.Parameter(torch.zeros(5))
    opt = FastDRO([w], multilevel=Multilevel(2, 8))
    with pytest.raises(scdro.errors.LossError, match=r"\[4, 8\]"):
        opt.step(lambda: w * 1.0)
    with pytest.raises(scdro.errors.HyperparameterError, match="multilevel"):
        FastDRO([w]).batch_sampler(n=100)


# -- identities 10 to 12 of a correct implementation
# ------------------------------------------------------------------


def gradient_of(make, losses):
    """What one step with lr = 1 and no momentum moves the losses' own parameters by."""
    w = nn.Parameter(torch.tensor(losses, dtype=torch.float64))
    opt = make([w])
    value = opt.step(lambda: w * 1.0)
    return value.item(), (torch.tensor(losses, dtype=torch.float64) - w.detach()).numpy()


L4 = [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("geometry", "value", "weights"),
    [
        (CVaR(0.5), 2.5, [0.0, 0.0, 0.5, 0.5]),
        (CVaR(0.3), 17 / 6, [0.0, 0.0, 1 / 6, 5 / 6]),
        (Chi2(0.1), 2.0, [0.1, 0.2, 0.3, 0.4]),
        (Chi2Penalty(2.5), 1.75, None),
        (KLBall(0.1), 1.994174122, None),
        (KLBall(1.0), 2.876718489, None),
    ],
)
def test_identity_11_fastdro_on_the_full_batch(geometry, value, weights):
    found, moved = gradient_of(lambda p: FastDRO(p, 1.0, geometry, momentum=0.0), L4)
    assert found == pytest.approx(value, rel=1e-8)
    assert moved.sum() == pytest.approx(1.0)
    if weights is not None:
        np.testing.assert_allclose(moved, weights, atol=1e-10)
