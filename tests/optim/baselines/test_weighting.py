"""The weighting baselines against literal twins in the linear domain, and what the common interface asks of them."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import chisquare
from torch import nn
from torch.nn.functional import cross_entropy

import scdro
import twins
from logistic import N, flat, losses_of, problem
from scdro.functional import class_balanced_weights, focal_loss, group_means, worst_case
from scdro.optim import (
    ABSGD,
    ASCDRO,
    ERM,
    RECOVER,
    REGISTRY,
    Chi2,
    Chi2Penalty,
    CVaR,
    DualSGM,
    FastDRO,
    GroupDRO,
    KLBall,
    Multilevel,
)

STEPS = 100


class Twin:
    """w - lr v with v = momentum v + gradient, as printed in any textbook."""

    def __init__(self, w, lr, momentum=0.9, wd=0.0):
        self.w, self.lr, self.momentum, self.wd, self.v = w, lr, momentum, wd, None

    def step(self, evaluate, weight=None):
        losses, gradients = evaluate(self.w)
        q = np.full(len(losses), 1 / len(losses)) if weight is None else weight / weight.sum()
        g = self.weights(losses, q) @ gradients + self.wd * self.w
        self.v = g if self.v is None else self.momentum * self.v + g
        self.w = self.w - self.lr * self.v


class ErmTwin(Twin):
    def weights(self, l, q):
        return q


class AbsgdTwin(Twin):
    def __init__(self, *args, lam, gamma, **more):
        super().__init__(*args, **more)
        self.lam, self.gamma, self.u = lam, gamma, 0.0

    def weights(self, l, q):
        self.u = (1 - self.gamma) * self.u + self.gamma * (q * np.exp(l / self.lam)).sum()
        return q * np.exp(l / self.lam) / self.u


class DualTwin(Twin):
    def __init__(self, *args, rho, lam, lam0, dual_lr, **more):
        super().__init__(*args, **more)
        self.rho, self.lam, self.lam0, self.dual_lr, self.eta = rho, lam, lam0, dual_lr, None

    def weights(self, l, q):
        if self.eta is None:
            self.eta = self.lam * math.log((q * np.exp(l / self.lam)).sum())
        a = (l - self.eta) / self.lam
        e = q * np.exp(a)
        d_eta, d_lam = 1 - e.sum(), (e * (1 - a)).sum() - 1 + self.rho
        self.eta -= self.dual_lr * d_eta
        self.lam = max(self.lam - self.dual_lr * d_lam, self.lam0)
        return e


class FastTwin(Twin):
    def __init__(self, *args, response, **more):
        super().__init__(*args, **more)
        self.weights = response


def kl_response(l, q, rho=0.4):
    def p(lam):
        e = q * np.exp((l - l.max()) / lam)
        return e / e.sum()

    return p(brentq(lambda lam: (p(lam) * np.log(p(lam) / q)).sum() - rho, 0.05, 1e3, xtol=1e-14))


def cvar_response(l, q, alpha=0.3):
    p, left = np.zeros(len(l)), 1.0
    for i in np.argsort(-l):
        p[i] = min(q[i] / alpha, left)
        left -= p[i]
    return p


def chi2_response(l, q, rho=0.4):
    def p(eta):
        e = q * np.maximum(l - eta, 0)
        return e / e.sum()

    top = np.sort(l)[-2]
    return p(brentq(lambda eta: (q * (p(eta) / q - 1) ** 2).sum() / 2 - rho, l.min() - 1e4, top, xtol=1e-14))


def penalty_response(l, q, reg=0.7):
    eta = brentq(lambda eta: (q * np.maximum(l - eta, 0)).sum() - reg, l.min() - 10, l.max(), xtol=1e-15)
    return q * np.maximum(l - eta, 0) / reg


def multilevel_response(l, q, small=3, largest=12):
    """The sum as printed: base level, and the difference between a batch and its halves over the size's chance."""
    size = len(l)
    chance = {6: 1 / 2, 12: 1 / 2}[size]
    half = size // 2

    def padded(a, b):
        p = np.zeros(size)
        p[a:b] = cvar_response(l[a:b], q[a:b] / q[a:b].sum())
        return p

    return padded(0, small) + (padded(0, size) - (padded(0, half) + padded(half, size)) / 2) / chance


METHODS = {
    "FastDRO, multi-level": (
        lambda p: FastDRO(p, 0.01, CVaR(0.3), multilevel=Multilevel(3, 12)),
        lambda w: FastTwin(w, 0.01, response=multilevel_response),
    ),
    "ERM": (lambda p: ERM(p, 0.1), lambda w: ErmTwin(w, 0.1)),
    "ERM, decay": (
        lambda p: ERM(p, 0.1, momentum=0.5, weight_decay=0.05),
        lambda w: ErmTwin(w, 0.1, momentum=0.5, wd=0.05),
    ),
    "ABSGD": (lambda p: ABSGD(p, 0.02, 0.8, gamma=0.3), lambda w: AbsgdTwin(w, 0.02, lam=0.8, gamma=0.3)),
    "TERM": (lambda p: ABSGD(p, 0.02, 0.8, gamma=1.0), lambda w: AbsgdTwin(w, 0.02, lam=0.8, gamma=1.0)),
    "DualSGM": (
        lambda p: DualSGM(p, 0.01, 0.3, lam=1.0, dual_lr=0.05),
        lambda w: DualTwin(w, 0.01, rho=0.3, lam=1.0, lam0=1e-3, dual_lr=0.05),
    ),
    "FastDRO, KL": (
        lambda p: FastDRO(p, 0.02, KLBall(0.4, 1e-9)),
        lambda w: FastTwin(w, 0.02, response=kl_response),
    ),
    "FastDRO, CVaR": (lambda p: FastDRO(p, 0.02, CVaR(0.3)), lambda w: FastTwin(w, 0.02, response=cvar_response)),
    "FastDRO, chi2": (lambda p: FastDRO(p, 0.02, Chi2(0.4)), lambda w: FastTwin(w, 0.02, response=chi2_response)),
    "FastDRO, penalty": (
        lambda p: FastDRO(p, 0.02, Chi2Penalty(0.7)),
        lambda w: FastTwin(w, 0.02, response=penalty_response),
    ),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_lockstep_with_the_twin(name, weighted):
    model, x, y, by_hand = problem()
    make, make_twin = METHODS[name]
    opt, twin = make(model.parameters()), make_twin(flat(model))
    rng = np.random.default_rng(2)
    for _ in range(STEPS):
        index = rng.choice(N, 12, replace=False)
        weight = rng.uniform(0.5, 2.0, 12) if weighted else None
        opt.step(
            losses_of(model, x, y, index),
            torch.as_tensor(index),
            sample_weight=None if weight is None else torch.tensor(weight),
        )
        twin.step(by_hand.batch(index), weight)
        np.testing.assert_allclose(flat(model), twin.w, rtol=0, atol=1e-8 if "FastDRO" in name else 1e-10)
    if name == "DualSGM":
        assert opt.lam.item() == pytest.approx(twin.lam, abs=1e-10)
        assert opt.eta.item() == pytest.approx(twin.eta, abs=1e-10)
        assert opt.capped == 0


def test_erm_is_torch_sgd():
    runs = []
    for make in (lambda p: ERM(p, 0.1, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)):
        model, x, y, _ = problem()
        opt = make(model.parameters())
        for k in range(20):
            index = torch.arange(k, k + 10)
            if isinstance(opt, ERM):
                opt.step(losses_of(model, x, y, index))
            else:
                opt.zero_grad()
                cross_entropy(model(x[index]), y[index]).backward()
                opt.step()
        runs.append(flat(model))
    np.testing.assert_allclose(*runs, rtol=0, atol=1e-14)


def test_dual_sgm_keeps_lam_above_its_floor():
    w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = DualSGM([w], 0.0, 5.0, lam=0.1, lam0=0.05, dual_lr=1.0)
    opt.step(lambda: w + torch.tensor([0.0, 0.01], dtype=torch.float64))
    assert opt.lam == 0.05


def test_dual_sgm_with_a_tensor_as_lr_is_as_exact():
    etas = []
    for lr in (0.1, torch.tensor(0.1)):
        w = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        opt = DualSGM([w], lr, 0.5, lam=1.0)
        for _ in range(3):
            opt.step(lambda w=w: w + torch.tensor([1e6, 1e6 + 1.0], dtype=torch.float64))
        etas.append(opt.eta.item())
    assert etas[0] == pytest.approx(etas[1], abs=1e-6)


@pytest.mark.parametrize("method", [ABSGD, RECOVER])
def test_a_checkpoint_of_another_temperature(method):
    model, *_ = problem()
    with pytest.raises(scdro.CheckpointError, match=r"lam = 5\.0.*lam = 1\.0"):
        method(model.parameters(), lam=5.0).load_state_dict(method(model.parameters(), lam=1.0).state_dict())


def test_dual_sgm_counts_what_it_caps():
    w = nn.Parameter(torch.zeros(1))
    opt = DualSGM([w], 0.0, 0.5, lam=1e-3, dual_lr=0.0)
    opt.step(lambda: w + torch.tensor([0.0, 0.0]))
    opt.step(lambda: w + torch.tensor([1.0, 0.0]))
    assert opt.capped == 1
    assert w.isfinite().all()


@pytest.mark.parametrize(
    "build",
    [
        lambda p: ERM(p, momentum=1.0),
        lambda p: ERM(p, -0.1),
        lambda p: ABSGD(p, lam=0.0),
        lambda p: ABSGD(p, gamma=0.0),
        lambda p: DualSGM(p, rho=-1.0),
        lambda p: DualSGM(p, lam=1e-9),
        lambda p: DualSGM(p, cap=0.0),
        lambda p: DualSGM(p, dual_lr=-1.0),
        lambda p: FastDRO(p, geometry=CVaR(0.0)),
        lambda p: FastDRO(p, geometry=Chi2Penalty(0.0)),
        lambda p: FastDRO(p, geometry=Chi2(-1.0)),
    ],
)
def test_bad_settings(build):
    with pytest.raises(scdro.HyperparameterError):
        build([nn.Parameter(torch.ones(1))])


# -- multi-level Monte Carlo ------------------------------------------------------------------------------------------


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
    # Averaged over blocks, the differences cancel level by level; what is left of the base level is their mean.
    firsts = [worst_case(b[:2], 0.3).value for size in levels.sizes for b in losses.reshape(-1, size)]
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
    with pytest.raises(scdro.HyperparameterError, match="largest"):
        FastDRO([nn.Parameter(torch.ones(1))], multilevel=Multilevel(*levels))


def test_multilevel_refuses_other_batches():
    w = nn.Parameter(torch.zeros(5))
    opt = FastDRO([w], multilevel=Multilevel(2, 8))
    with pytest.raises(scdro.LossError, match=r"\[4, 8\]"):
        opt.step(lambda: w * 1.0)
    with pytest.raises(scdro.HyperparameterError, match="multilevel"):
        FastDRO([w]).batch_sampler(n=100)


# -- RECOVER ----------------------------------------------------------------------------------------------------------


def test_recover_in_lockstep_and_as_ascdro_with_lam_frozen():
    model, x, y, by_hand = problem()
    opt, twin = RECOVER(model.parameters(), 0.05, 0.8, beta=0.4), twins.Recover(flat(model), 0.8, 0.05, 0.4)
    other = problem()[0]
    frozen = scdro.PrintedTemperature(0.8, lr=0.0)
    ascdro = ASCDRO(other.parameters(), 0.05, 0.7, beta=0.4, temperature=frozen)  # rho only moves lam
    rng = np.random.default_rng(2)
    for _ in range(STEPS):
        index = rng.choice(N, 12, replace=False)
        value = opt.step(losses_of(model, x, y, index))
        ascdro.step(losses_of(other, x, y, index))
        twin.step(by_hand.batch(index))
        np.testing.assert_allclose(flat(model), twin.w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(model), flat(other), rtol=0, atol=1e-12)
        assert value.item() == pytest.approx(0.8 * math.log(twin.s), abs=1e-10)
    assert opt.lam.item() == 0.8
    assert opt.resets == 0


# -- groups -----------------------------------------------------------------------------------------------------------


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
    assert REGISTRY["GroupDRO"].build([w], {"groups": groups}).draws(200, 4) is not None
    assert GroupDRO([w], groups=2).draws(200, 4) is None


def test_group_dro_says_what_is_wrong():
    model, x, y, _ = problem()
    index = torch.arange(6)
    closure = losses_of(model, x, y, index)
    with pytest.raises(scdro.ClosureError, match="groups=groups"):
        GroupDRO(model.parameters(), groups=3).step(closure, index)
    with pytest.raises(scdro.ClosureError, match="index"):
        GroupDRO(model.parameters(), groups=index).step(closure)
    with pytest.raises(scdro.ClosureError, match="n = 6"):
        GroupDRO(model.parameters(), groups=index).step(closure, index + 1)
    with pytest.raises(scdro.ClosureError, match="0 to 2"):
        GroupDRO(model.parameters(), groups=3).step(closure, groups=index)
    with pytest.raises(scdro.LossError, match="one group per loss"):
        GroupDRO(model.parameters(), groups=3).step(closure, groups=index[:3])
    for index in (torch.arange(6.0), torch.ones(60, dtype=torch.bool)):
        with pytest.raises(scdro.ClosureError, match="integer"):
            GroupDRO(model.parameters(), groups=torch.arange(N) % 3).step(closure, index)
    for groups in (0, True, 2.5, torch.ones(3), torch.tensor([-1, 0])):
        with pytest.raises(scdro.HyperparameterError):
            GroupDRO(model.parameters(), groups=groups)
    with pytest.raises(scdro.HyperparameterError, match="number"):
        GroupDRO(model.parameters(), groups=3).batch_sampler(4)
    for settings in ({"batch_size": 0}, {"batch_size": 2, "steps": 0}):
        with pytest.raises(scdro.HyperparameterError, match="at least one"):
            GroupDRO(model.parameters(), groups=torch.arange(9) % 3).batch_sampler(**settings)


def test_group_means():
    losses = torch.tensor([1.0, 2.0, 6.0, math.nan, 5.0], dtype=torch.float64, requires_grad=True)
    groups, weight = torch.tensor([7, 7, -3, 7, -3]), torch.tensor([1.0, 3.0, 1.0, 0.0, 1.0])
    means = group_means(losses, groups, weight)
    torch.testing.assert_close(means, torch.tensor([1.75, 1.75, 5.5, 1.75, 5.5], dtype=torch.float64))
    means[0].backward()
    torch.testing.assert_close(losses.grad, torch.tensor([0.25, 0.75, 0.0, 0.0, 0.0], dtype=torch.float64))
    with pytest.raises(scdro.LossError, match="integers"):
        group_means(losses, groups.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_group_means_of_many_halves(dtype):
    losses = torch.full((2000,), 100.0, dtype=dtype)
    losses[1000:] = 1.0
    means = group_means(losses, (torch.arange(2000) >= 1000).long())
    torch.testing.assert_close(means, losses.float())


def test_the_robust_loss_over_groups_takes_weights_and_masks_as_without():
    losses, groups = torch.tensor([1.0, 2.0, 4.0, 9.0], requires_grad=True), torch.tensor([0, 0, 1, 1])
    robust = scdro.KLRobustLoss(rho=0.2).eval()
    weight, mask = [1.0, 3.0, 1.0, 1.0], [1, 1, 1, 0]
    value = robust(losses, weight, torch.tensor(mask), groups=groups)
    by_hand = worst_case(torch.tensor([1.75, 1.75, 4.0]), 0.2, sample_weight=torch.tensor([1.0, 3.0, 1.0])).value
    torch.testing.assert_close(value, by_hand)
    for bad in ({"sample_weight": torch.ones(3)}, {"mask": torch.ones(3)}):
        with pytest.raises(scdro.LossError, match="shape"):
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
    means = np.array([losses.detach().numpy()[kept & (groups.numpy() == g)].mean() for g in range(3)])
    share = np.array([(kept & (groups.numpy() == g)).sum() for g in range(3)]) / kept.sum()
    p = cp.Variable(3)
    cp.Problem(cp.Maximize(p @ means), [cp.sum(p) == 1, cp.sum(cp.rel_entr(p, share)) <= 0.2]).solve(cp.CLARABEL)
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


# -- focal loss and class weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_loss_is_its_formula(gamma):
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 4, generator=g, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(4, (20,), generator=g)
    p = torch.softmax(logits, 1)[torch.arange(20), labels]
    torch.testing.assert_close(focal_loss(logits, labels, gamma), -((1 - p) ** gamma) * torch.log(p))
    assert torch.autograd.gradcheck(lambda z: focal_loss(z, labels, gamma), logits)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    torch.testing.assert_close(
        focal_loss(logits, labels, gamma, weight=weight), weight[labels] * focal_loss(logits, labels, gamma)
    )


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_loss_of_certain_predictions(gamma):
    logits = torch.tensor([[1000.0, 0.0], [0.0, 1000.0], [40.0, 0.0]], requires_grad=True)
    losses = focal_loss(logits, torch.tensor([0, 0, 0]), gamma)
    losses.sum().backward()
    assert losses.isfinite().all()
    assert logits.grad.isfinite().all()
    with pytest.raises(scdro.HyperparameterError):
        focal_loss(logits, torch.tensor([0, 0, 0]), -1.0)


def test_class_balanced_weights():
    counts = [5000, 100, 7]
    for beta in (0.9, 0.999, 0.9999):
        expected = np.array([(1 - beta) / (1 - beta**n) for n in counts])
        np.testing.assert_allclose(class_balanced_weights(counts, beta), expected / expected.mean(), rtol=1e-6)
    torch.testing.assert_close(class_balanced_weights(counts, 0.0), torch.ones(3))
    inverse = 1 / np.array(counts)
    np.testing.assert_allclose(class_balanced_weights(counts, 1.0), inverse / inverse.mean(), rtol=1e-6)
    torch.testing.assert_close(class_balanced_weights([5, 0, 15], 1.0), torch.tensor([1.5, 0.0, 0.5]))
    torch.testing.assert_close(class_balanced_weights(counts), class_balanced_weights(counts, 1.0))
    for bad in ([0, 0], [], [-1, 3], [[1, 2]]):
        with pytest.raises(scdro.LossError, match="count of each class"):
            class_balanced_weights(bad)
    with pytest.raises(scdro.HyperparameterError):
        class_balanced_weights(counts, 1.5)


# -- identities 10 to 12 of a correct implementation ------------------------------------------------------------------


def gradient_of(make, losses):
    """What one step with lr = 1 and no momentum moves the losses' own parameters by."""
    w = nn.Parameter(torch.tensor(losses, dtype=torch.float64))
    opt = make([w])
    value = opt.step(lambda: w * 1.0)
    return value.item(), (torch.tensor(losses, dtype=torch.float64) - w.detach()).numpy()


L4 = [0.0, 1.0, 2.0, 3.0]


def test_identity_10_dual_sgm_at_its_start_has_the_value_and_gradient_of_f():
    """eta starts at lam log g: there lam E[e^a - 1] + eta + (lam - lam0) rho is F."""
    losses = torch.tensor(L4, dtype=torch.float64, requires_grad=True)
    f = scdro.objective(losses, 0.7, rho=0.3)
    f.backward()
    value, moved = gradient_of(lambda p: DualSGM(p, 1.0, 0.3, lam=0.7, dual_lr=0.0, momentum=0.0), L4)
    assert value == pytest.approx(f.item(), rel=1e-12)
    np.testing.assert_allclose(moved, losses.grad, rtol=1e-12)


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


def test_identity_12_absgd():
    _, term = gradient_of(lambda p: ABSGD(p, 1.0, 0.8, gamma=1.0, momentum=0.0), L4)
    np.testing.assert_allclose(term, torch.softmax(torch.tensor(L4, dtype=torch.float64) / 0.8, 0), rtol=1e-12)
    _, plain = gradient_of(lambda p: ABSGD(p, 1.0, 1e6, gamma=1.0, momentum=0.0), L4)
    np.testing.assert_allclose(plain, np.full(4, 0.25), atol=1e-5)
