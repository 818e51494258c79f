"""The contrastive loss against oracles that know one anchor at a time."""

import io
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from torch.nn.functional import cosine_similarity

from scdro import worst_case
from scdro.contrastive import (
    AnchorBatch,
    Anchors,
    FixedTemperatures,
    Negatives,
    NewtonTemperatures,
    PrintedTemperatures,
    RobustContrastiveLoss,
)
from scdro.errors import (
    CheckpointError,
    ClosureError,
    HyperparameterError,
    LossError,
    NonFiniteLossError,
)
from scdro.temperature import MovingAverage

N, D, TAU0 = 12, 5, 1e-3
TOWERS = pytest.mark.parametrize("towers", [1, 2])


def embeddings(n=N, seed=0, noise=0.5):
    g = torch.Generator().manual_seed(seed)
    first = torch.randn(n, D, generator=g, dtype=torch.float64)
    return first, first + noise * torch.randn(n, D, generator=g, dtype=torch.float64)


def losses_by_hand(first, second, towers, index=None):
    """Each anchor's list of losses, one pair at a time."""
    index = list(range(len(first))) if index is None else list(index)
    rows = []
    for anchors, others in ([(first, second)], [(first, second), (second, first)])[towers - 1]:
        for i in range(len(first)):
            positive = cosine_similarity(first[i], second[i], dim=0)
            if towers == 1:
                pairs = [
                    (a[i], b[j])
                    for a in (first, second)
                    for b in (first, second)
                    for j in range(len(first))
                ]
            else:
                pairs = [(anchors[i], others[j]) for j in range(len(first))]
            own = [index[j] != index[i] for j in range(len(first))] * (4 if towers == 1 else 1)
            rows.append(
                [
                    cosine_similarity(a, b, dim=0) - positive
                    for (a, b), k in zip(pairs, own, strict=True)
                    if k
                ]
            )
    return torch.stack([torch.stack(row) for row in rows])


def plain(h, tau):
    """The global contrastive loss at one temperature."""
    return (tau * (torch.logsumexp(h / tau, 1) - math.log(h.shape[1]))).mean()


@TOWERS
@pytest.mark.parametrize("tau", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_fixed_temperature_and_full_batch_are_the_global_contrastive_loss(towers, tau, beta):
    """For every beta: u starts exact, and stays so."""
    loss = RobustContrastiveLoss(
        N, 0.0, towers=towers, beta=beta, temperature=FixedTemperatures(tau)
    )
    first, second = (x.requires_grad_() for x in embeddings())
    expected = plain(losses_by_hand(first, second, towers), tau)
    gradients = torch.autograd.grad(expected, (first, second))
    for _ in range(3):
        value = loss(first, second, torch.arange(N))
        torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
        came = torch.autograd.grad(value, (first, second))
        torch.testing.assert_close(came, gradients, rtol=1e-9, atol=1e-11)


@TOWERS
@pytest.mark.parametrize("tau", [0.05, 0.5])
def test_gradcheck(towers, tau):
    index = torch.arange(6)
    pair = tuple(x[:6].requires_grad_() for x in embeddings())
    fixed = RobustContrastiveLoss(
        6, 0.0, towers=towers, beta=1.0, temperature=FixedTemperatures(tau)
    )
    assert torch.autograd.gradcheck(lambda a, b: fixed(a, b, index), pair)
    learned = RobustContrastiveLoss(6, 0.7, towers=towers).eval()
    assert torch.autograd.gradcheck(lambda a, b: learned(a, b, index), pair)


@TOWERS
@pytest.mark.parametrize("rho", [0.05, 0.5, 1.5, 5.0])
def test_alone_each_anchor_is_the_exact_worst_case(towers, rho):
    first, second = embeddings()
    loss = RobustContrastiveLoss(N, rho, towers=towers, tau0=TAU0).eval()
    rows = losses_by_hand(first, second, towers)
    expected = np.mean([float(worst_case(row, rho, TAU0).value) for row in rows])
    assert float(loss(first, second, torch.arange(N))) == pytest.approx(
        expected, rel=1e-8, abs=1e-10
    )
    assert loss.tau.isnan().all()


def best_temperature(h, rho, tau0):
    """By a search that knows the objective alone."""

    def objective(log_tau):
        tau = math.exp(log_tau)
        return tau * (logsumexp(h / tau) - math.log(len(h))) + (tau - tau0) * rho

    return math.exp(
        minimize_scalar(
            objective, bounds=(math.log(tau0), 5.0), method="bounded", options={"xatol": 1e-10}
        ).x
    )


@TOWERS
@pytest.mark.parametrize("rho", [0.1, 0.6])
@pytest.mark.parametrize("beta", [0.2, 0.9])
def test_temperatures_converge_to_the_minimisers(towers, rho, beta):
    first, second = (x.requires_grad_() for x in embeddings())
    loss = RobustContrastiveLoss(N, rho, towers=towers, beta=beta, tau0=TAU0)
    for _ in range(60):
        value = loss(first, second, torch.arange(N))
    rows = losses_by_hand(first, second, towers).detach().numpy()
    expected = [best_temperature(row, rho, TAU0) for row in rows]
    np.testing.assert_allclose(loss.tau.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(loss.anchors.kl.numpy(), rho, rtol=1e-8)
    exact = np.mean([float(worst_case(torch.tensor(row), rho, TAU0).value) for row in rows])
    assert float(value.detach()) == pytest.approx(exact, rel=1e-8)


def visits(loss, passes, n=128, batch=16):
    first, second = (x.requires_grad_() for x in embeddings(n))
    rng = torch.Generator().manual_seed(0)
    for _ in range(passes):
        for index in torch.randperm(n, generator=rng).split(batch):
            loss(first[index], second[index], index)


def test_temperatures_found_from_small_batches_have_no_bias():
    """128 anchors that see 15 other samples at a time, against their exact temperatures on all 127."""
    found, exact = (RobustContrastiveLoss(128, 0.4, beta=beta, tau0=TAU0) for beta in (0.1, 1.0))
    visits(found, 80)
    visits(exact, 15, batch=128)
    off = torch.log(found.tau / exact.tau)
    assert abs(float(off.mean())) < 0.03
    assert float(off.std()) < 0.15


@pytest.mark.parametrize(("rho", "beta"), [(4.5, 0.05), (6.0, 0.5)])
def test_a_radius_that_no_batch_can_show_does_not_freeze_temperatures(rho, beta):
    """The worst of 15 x 4 negatives spends log 60 = 4.1 at most, that of all visits pooled little more."""
    loss = RobustContrastiveLoss(128, rho, beta=beta, tau0=1e-6)
    visits(loss, 25)
    assert float(loss.tau.min()) > 1e-3
    assert torch.isfinite(loss.state.anchors).all()


@pytest.mark.parametrize("beta", [0.1, 0.2, 0.5])
def test_temperatures_follow_a_change_of_scale_and_do_not_swing(beta):
    """Similarities three times as large want temperatures three times as large. The averages know only the old ones."""
    loss = RobustContrastiveLoss(N, 0.5, beta=beta, tau0=TAU0, normalize=False)
    first, second = (torch.nn.functional.normalize(x, dim=1) for x in embeddings())
    for _ in range(3):
        loss(first.requires_grad_(), second, torch.arange(N))
    target, path = 3 * loss.tau, []
    for _ in range(30):
        loss(math.sqrt(3) * first, math.sqrt(3) * second, torch.arange(N))
        path.append(torch.log(loss.tau / target).mean())
    assert path[0] < -0.3
    assert max(path) < 0.05
    assert abs(path[-1]) < 0.03


class Twin:
    """One anchor of iSogCLR's Algorithm 1, literally: numbers, not logarithms."""

    def __init__(self, tau, lr, beta, rho, tau0):
        self.tau, self.lr, self.beta, self.rho, self.tau0 = tau, lr, beta, rho, tau0
        self.u = self.v = None

    def step(self, h):
        g, tau = np.exp(h / self.tau), self.tau
        self.u = g.mean() if self.u is None else (1 - self.beta) * self.u + self.beta * g.mean()
        value, weights = tau * math.log(self.u) + (tau - self.tau0) * self.rho, g / len(h) / self.u
        gradient = math.log(self.u) + self.rho - (g * h).mean() / (self.u * tau)
        self.v = gradient if self.v is None else (1 - self.beta) * self.v + self.beta * gradient
        self.tau = max(self.tau0, tau - self.lr * self.v)
        return value, weights


@TOWERS
def test_printed_update_in_lockstep_with_its_twin(towers):
    rule = PrintedTemperatures(initial=0.3, lr=0.02)
    loss = RobustContrastiveLoss(N, 0.5, towers=towers, beta=0.4, tau0=0.05, temperature=rule)
    twins = [Twin(0.3, 0.02, 0.4, 0.5, 0.05) for _ in range(towers * N)]
    rng = torch.Generator().manual_seed(1)
    for t in range(25):
        index = torch.randperm(N, generator=rng)[:7]
        first, second = (x[index].requires_grad_() for x in embeddings(seed=t))
        h = losses_by_hand(first, second, towers, index)
        steps = [
            twins[i + k * N].step(row)
            for (k, i), row in zip(
                [(k, int(i)) for k in range(towers) for i in index], h.detach().numpy(), strict=True
            )
        ]
        value = loss(first, second, index)
        assert float(value) == pytest.approx(np.mean([v for v, _ in steps]), rel=1e-9)
        expected = torch.autograd.grad(
            h, first, torch.tensor(np.stack([w for _, w in steps]) / len(steps))
        )
        torch.testing.assert_close(
            torch.autograd.grad(value, first), expected, rtol=1e-8, atol=1e-10
        )
    seen = ~loss.tau.isnan()
    np.testing.assert_allclose(
        loss.tau[seen].numpy(), np.array([twin.tau for twin in twins])[seen.numpy()], rtol=1e-9
    )


@pytest.mark.parametrize("beta", [0.05, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("gap", [-0.2, 0.0, 0.1, 1.0])
def test_pooled_numbers_are_those_of_the_mixture(beta, gap):
    """Two visits at one temperature, the second harder by a gap: KL and Var of all their negatives, those of the first
    with weight 1 - w and those of the second with w, which is beta, or as much as `cap` makes a
    visit count."""
    tau, cap = 0.05, 2.0
    rng = np.random.default_rng(0)
    visits = [rng.normal(size=(3, 20)) * 0.1 + shift for shift in (-gap, 0.0)]
    kept = Anchors(
        *(
            torch.full((3,), value, dtype=torch.float64)
            for value in (tau, math.nan, math.nan, math.nan, 1.0)
        )
    )
    log_past = None
    for h in visits:
        negatives = Negatives.of(torch.tensor(h), torch.ones(3, 20, dtype=torch.bool))
        at = negatives.at(kept.tau)
        log_u = at.log_mean
        if log_past is not None:
            log_u = torch.as_tensor(MovingAverage(cap).log_s(log_past, at.log_mean, beta))
        seen = AnchorBatch(kept, kept.tau, at, log_u, negatives.number, beta, 0.5, TAU0)
        kept, log_past = FixedTemperatures(tau).advance(seen), log_u
    for i in range(3):
        g, past = (np.exp(h[i] / tau).mean() for h in reversed(visits))
        w = max(beta, (g / cap - past) / (g - past)) if g > past else beta
        q = np.repeat([(1 - w) / 20, w / 20], 20)
        x = np.concatenate([h[i] for h in visits]) / tau
        p = q * np.exp(x) / (q * np.exp(x)).sum()
        known = p > 0
        assert float(kept.kl[i]) == pytest.approx(
            (p * np.log(p / np.where(known, q, 1), where=known, out=0 * p)).sum(), rel=1e-9
        )
        assert float(kept.var[i]) == pytest.approx((p * (x - (p * x).sum()) ** 2).sum(), rel=1e-9)


@TOWERS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "temperature", [None, FixedTemperatures(1e-3), PrintedTemperatures(1e-3, lr=1e-4)]
)
@pytest.mark.parametrize("beta", [0.05, 0.5])
def test_stable_at_the_smallest_temperatures(towers, dtype, temperature, beta):
    """rho beyond what any batch can show drives tau to 1e-3; similarities of 1 are then 1,000 apart."""
    loss = RobustContrastiveLoss(
        64, 30.0, towers=towers, beta=beta, tau0=1e-3, temperature=temperature
    )
    for t in range(25):
        first, second = (
            x.to(dtype).requires_grad_() for x in embeddings(64, seed=t, noise=0.01 * t)
        )
        value = loss(first, second, torch.arange(64))
        gradients = torch.autograd.grad(value, (first, second))
        assert value.dtype == dtype
        assert all(torch.isfinite(x).all() for x in (value, *gradients))
        assert sum(float(x.norm()) for x in gradients) < 100
    assert torch.isfinite(loss.state.anchors).all()


def test_small_temperature_in_float32_is_that_of_float64():
    values = []
    for dtype in (torch.float32, torch.float64):
        loss = RobustContrastiveLoss(N, 0.0, temperature=FixedTemperatures(1e-3))
        first, second = (x.to(torch.float32).to(dtype).requires_grad_() for x in embeddings())
        value = loss(first, second, torch.arange(N))
        values.append((value.double(), torch.autograd.grad(value, first)[0].double()))
    torch.testing.assert_close(*(v for v, _ in values), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*(g for _, g in values), rtol=1e-2, atol=1e-3)


def test_autocast_does_not_reach_the_similarities():
    first, second = (x.float().requires_grad_() for x in embeddings())
    values = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            values.append(RobustContrastiveLoss(N, 0.5)(first, second, torch.arange(N)))
    assert values[0] == values[1]


def test_a_sample_is_no_negative_of_itself():
    """A batch that holds sample 3 twice: the copies do not push each other away."""
    index = torch.tensor([3, 5, 3, 7])
    first, second = (x[:4].requires_grad_() for x in embeddings())
    loss = RobustContrastiveLoss(N, 0.0, towers=2, temperature=FixedTemperatures(0.2))
    rows = losses_by_hand(first, second, 2)
    keep = (index[:, None] != index)[~torch.eye(4, dtype=torch.bool)].view(4, 3).repeat(2, 1)
    expected = torch.stack(
        [plain(row[k][None], 0.2) for row, k in zip(rows, keep, strict=True)]
    ).mean()
    torch.testing.assert_close(loss(first, second, index), expected, rtol=1e-10, atol=0)


def test_anchors_keep_their_own_numbers():
    loss = RobustContrastiveLoss(N, 0.5)
    first, second = (x.requires_grad_() for x in embeddings())
    index = torch.tensor([1, 4, 6, 9])
    loss(first[index], second[index], index)
    before = loss.anchors
    assert (~before.tau.isnan()).nonzero().flatten().tolist() == index.tolist()
    other = torch.tensor([0, 4, 2])
    loss(first[other], second[other], other)
    untouched = torch.tensor([1, 6, 9])
    for old, new in zip(before, loss.anchors, strict=True):
        assert torch.equal(old[untouched], new[untouched])
    assert loss.tau[4] != before.tau[4]


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_evaluation_leaves_no_trace(mode):
    loss = RobustContrastiveLoss(N, 0.5)
    first, second = (x.requires_grad_() for x in embeddings())
    loss(first, second, torch.arange(N))
    before = loss.state.anchors.clone()
    loss.train(mode != "eval")
    with torch.set_grad_enabled(mode == "eval"):
        loss(first, second, torch.arange(N))
    assert torch.equal(before, loss.state.anchors)


def run(loss, weight, start, stop):
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for t in range(start, stop):
        index = torch.randperm(N, generator=torch.Generator().manual_seed(t))[:6]
        first, second = embeddings(seed=t)
        optimizer.zero_grad()
        loss(first[index] @ weight, second[index] @ weight, index).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "temperature", [NewtonTemperatures(), PrintedTemperatures(0.2), FixedTemperatures(0.2)]
)
def test_resumed_equals_uninterrupted(temperature):
    def fresh():
        return RobustContrastiveLoss(N, 0.5, temperature=temperature)

    whole, w = fresh(), torch.eye(D, dtype=torch.float64, requires_grad=True)
    run(whole, w, 0, 20)
    part, v = fresh(), torch.eye(D, dtype=torch.float64, requires_grad=True)
    run(part, v, 0, 9)
    buffer = io.BytesIO()
    torch.save(part.state_dict(), buffer)
    buffer.seek(0)
    resumed = fresh().to(torch.float32)  # State follows a model to its device, never to its dtype.
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    run(resumed, v, 9, 20)
    assert torch.equal(w, v)
    assert torch.equal(whole.state.anchors.nan_to_num(-7), resumed.state.anchors.nan_to_num(-7))


@pytest.mark.parametrize("other", [(N + 1, 1), (N // 2, 2)])  # the second has as many anchors
def test_state_of_another_make_is_refused(other):
    n, towers = other
    with pytest.raises(CheckpointError, match=r"12.*1 tower"):
        RobustContrastiveLoss(N, 0.5).load_state_dict(
            RobustContrastiveLoss(n, 0.5, towers=towers).state_dict()
        )


def test_a_state_without_its_anchors_is_refused():
    state = RobustContrastiveLoss(N, 0.5).state_dict()
    del state["state.part"]
    with pytest.raises(CheckpointError, match="12 samples"):
        RobustContrastiveLoss(N, 0.5).load_state_dict(state)


def bad(**changes):
    pair = [x.requires_grad_() for x in embeddings()]
    settings = {"first": pair[0], "second": pair[1], "index": torch.arange(N), **changes}
    return settings.values()


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"first": torch.randn(N)}, LossError, "embeddings"),
        ({"first": torch.ones(N, D, dtype=torch.int64)}, LossError, "floating-point"),
        ({"second": torch.randn(N, D + 1)}, LossError, "same shape"),
        ({"index": torch.arange(N - 1)}, LossError, "one position"),
        ({"index": torch.arange(N) + 1}, ClosureError, "positions in"),
        ({"index": torch.zeros(N, dtype=torch.int64)}, LossError, "no negatives"),
        ({"first": torch.randn(N, D), "second": torch.randn(N, D)}, LossError, "require grad"),
        (
            {"first": torch.full((N, D), math.nan, dtype=torch.float64)},
            NonFiniteLossError,
            "finite",
        ),
    ],
)
def test_bad_batches_are_refused_and_leave_no_trace(changes, error, match):
    loss = RobustContrastiveLoss(N, 0.5)
    with pytest.raises(error, match=match):
        loss(*bad(**changes))
    assert loss.tau.isnan().all()


def test_skip_nonfinite():
    loss = RobustContrastiveLoss(N, 0.5, skip_nonfinite=True)
    first, second = embeddings()
    first[2, 1] = math.inf
    value = loss(first.requires_grad_(), second, torch.arange(N))
    assert value == 0.0
    assert loss.skipped == 1
    assert loss.tau.isnan().all()
    assert loss.eval()(
        first, second, torch.arange(N)
    ).isnan()  # a zero would be taken for the best model
    assert loss.skipped == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"n": 0},
        {"rho": -1.0},
        {"rho": 0.0},
        {"beta": 0.0},
        {"tau0": 0.0},
        {"towers": 3},
        {"temperature": 0.1},
    ],
)
def test_bad_settings(settings):
    with pytest.raises(HyperparameterError, match="expected"):
        RobustContrastiveLoss(**{"n": N, "rho": 0.5, **settings})


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedTemperatures(0.0),
        lambda: PrintedTemperatures(-1.0),
        lambda: PrintedTemperatures(0.1, lr=-1.0),
        lambda: PrintedTemperatures(0.1, tau_max=0.05),
    ],
)
def test_bad_temperatures(make):
    with pytest.raises(HyperparameterError, match="expected"):
        make()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: RobustContrastiveLoss(N, 0.5, tau0=0.0), "tau0 >= 1e-15"),
        (lambda: FixedTemperatures(1e-46), "1e-15"),
        (
            lambda: RobustContrastiveLoss(
                N, 0.5, temperature=PrintedTemperatures(initial=0.005, tau_max=0.006)
            ),
            "tau_max >= tau0",
        ),
    ],
)
def test_temperatures_that_cannot_be(make, match):
    with pytest.raises(HyperparameterError, match=match):
        make()


def test_the_smallest_temperature_is_finite_in_float32():
    loss = RobustContrastiveLoss(N, 0.0, tau0=1e-15, temperature=FixedTemperatures(1e-15))
    first, second = (x.float().requires_grad_() for x in embeddings())
    for _ in range(3):
        loss(first, second, torch.arange(N)).backward()
    assert all(torch.isfinite(x).all() for x in (first.grad, second.grad, loss.state.anchors))


def test_tau_max_is_the_largest():
    printed = PrintedTemperatures(initial=0.1, lr=100.0, tau_max=0.25)
    loss = RobustContrastiveLoss(N, 0.01, temperature=printed)
    for seed in range(3):
        loss(*(x.requires_grad_() for x in embeddings(seed=seed)), torch.arange(N))
    assert float(loss.tau.max()) == 0.25
