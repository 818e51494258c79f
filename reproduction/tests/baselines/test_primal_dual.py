"""SPD, PG-SMD2 and AccMDA in lockstep with literal twins, and what they refuse."""

import math

import numpy as np
import pytest
import torch
from primal_dual_twins import RHO, AccmdaTwin, PgsmdTwin, SpdTwin, kl
from scipy.stats import chisquare
from torch.utils.data import DataLoader, TensorDataset

import scdro
from logistic import N, flat, losses_of, problem
from reproduction.baselines import PGSMD2, SPD, AccMDA
from scdro.optim.samplers import DrawnBatches


def lockstep(opt, twin, model, x, y, by_hand, steps, atol, weights_of):
    """Batches drawn from the method's own p where it draws; both must agree on w and p at every step."""
    rng, g = np.random.default_rng(2), torch.Generator().manual_seed(3)
    drawing = isinstance(opt, SPD) and not opt.uniform
    for _ in range(steps):
        index = opt.draw(6, g).numpy() if drawing else rng.integers(0, N, 6)
        twin.step(index, by_hand.batch(index))
        opt.step(losses_of(model, x, y, index), torch.tensor(index))
        np.testing.assert_allclose(flat(model), twin.w, rtol=0, atol=atol)
        np.testing.assert_allclose(opt.weights.numpy(), weights_of(twin), rtol=0, atol=atol)
    assert opt.kl.item() == pytest.approx(kl(weights_of(twin)), abs=1e-6)
    assert opt.ess.item() == pytest.approx(1 / (N * (weights_of(twin) ** 2).sum()), rel=1e-6)


@pytest.mark.parametrize("uniform", [False, True])
def test_spd_in_lockstep(uniform):
    model, x, y, by_hand = problem()
    opt = SPD(model.parameters(), 0.1, RHO, n=N, dual_lr=0.05, uniform=uniform, weight_decay=0.01)
    twin = SpdTwin(flat(model), 0.1, 0.05, RHO, wd=0.01, uniform=uniform)
    lockstep(opt, twin, model, x, y, by_hand, 80, 1e-9, lambda t: t.p)
    assert opt.kl.item() == pytest.approx(RHO)  # the constraint did bind


@pytest.mark.parametrize("uniform", [False, True])
def test_pgsmd2_in_lockstep(uniform):
    model, x, y, by_hand = problem()
    opt = PGSMD2(
        model.parameters(),
        0.1,
        RHO,
        n=N,
        all_losses=losses_of(model, x, y, slice(None)),
        dual_lr=0.05,
        gamma=0.5,
        stage_steps=7,
        uniform=uniform,
        weight_decay=0.05,
    )
    everything = by_hand.batch(np.arange(N))
    twin = PgsmdTwin(
        flat(model),
        0.1,
        0.05,
        RHO,
        uniform=uniform,
        gamma=0.5,
        length=7,
        everything=everything,
        wd=0.05,
    )
    lockstep(opt, twin, model, x, y, by_hand, 50, 1e-6, lambda t: t.p)
    assert opt.stage == twin.k == 4


def test_accmda_in_lockstep():
    model, x, y, by_hand = problem()
    opt = AccMDA(model.parameters(), 0.3, RHO, n=N, dual_lr=0.02)
    twin = AccmdaTwin(flat(model), 0.3, 0.02, RHO)
    lockstep(opt, twin, model, x, y, by_hand, 60, 1e-8, lambda t: t.y)
    assert opt.kl.item() > 0.1


def test_pgsmd2_draws_its_first_batch_from_the_exact_p():
    model, x, y, _ = problem()
    everything = losses_of(model, x, y, slice(None))
    opt = PGSMD2(model.parameters(), n=N, rho=RHO, all_losses=everything)
    opt.draw(1, torch.Generator().manual_seed(0))
    exact = scdro.worst_case(everything().detach(), RHO, 1e-9).weights
    torch.testing.assert_close(opt.weights, exact, rtol=1e-6, atol=1e-9)


def test_pgsmd2_takes_another_parameter_group_in_the_middle_of_a_stage():
    model, x, y, _ = problem()
    opt = PGSMD2(
        model.parameters(), n=N, uniform=True, all_losses=losses_of(model, x, y, slice(None))
    )
    index, extra = torch.arange(6), torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    opt.step(losses_of(model, x, y, index), index)
    opt.add_param_group({"params": [extra]})
    opt.step(lambda: losses_of(model, x, y, index)() + extra, index)
    assert extra.item() < 1.0


def test_pgsmd2_keeps_a_stage_that_could_not_end():
    """all_losses fails at the end of a stage: the model stands at the mean, and the next step tries again."""
    model, x, y, _ = problem()
    healthy = [True]

    def all_losses():
        losses = losses_of(model, x, y, slice(None))()
        return losses if healthy[0] else losses * math.nan

    opt = PGSMD2(
        model.parameters(), 0.1, RHO, n=N, all_losses=all_losses, stage_steps=2, uniform=True
    )
    index = torch.arange(6)
    opt.step(losses_of(model, x, y, index), index)
    healthy[0] = False
    with pytest.raises(scdro.errors.NonFiniteLossError, match="all_losses"):
        opt.step(losses_of(model, x, y, index), index)
    assert opt.stage == 1
    healthy[0] = True
    opt.step(losses_of(model, x, y, index), index)
    assert opt.stage == 2


# -- use
# --------------------------------------------------------------------------------------------------------------


def test_batches_that_were_not_drawn_from_p_are_refused():
    model, x, y, _ = problem()
    index = torch.arange(6)
    opt = SPD(model.parameters(), n=N)
    with pytest.raises(scdro.errors.ClosureError, match="batch_sampler"):
        opt.step(losses_of(model, x, y, index), index)
    with pytest.raises(scdro.errors.HyperparameterError, match="uniform"):
        SPD(model.parameters(), n=N, uniform=True).batch_sampler(4)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (None, "no index"),
        (torch.arange(5), "6 losses"),
        (torch.arange(6.0), "integer"),
        (torch.ones(6, dtype=torch.bool), "integer"),
        (torch.arange(6) - 1, "-1"),
        (torch.arange(6) + N, "n = 60"),
    ],
)
@pytest.mark.parametrize("method", [SPD, AccMDA])
def test_bad_positions(method, index, says):
    model, x, y, _ = problem()
    opt = method(model.parameters(), n=N, **({"uniform": True} if method is SPD else {}))
    before = flat(model), str(opt.state_dict())
    with pytest.raises(scdro.errors.ClosureError, match=says):
        opt.step(losses_of(model, x, y, slice(0, 6)), index)
    with pytest.raises(scdro.errors.LossError, match="sample_weight"):
        opt.step(losses_of(model, x, y, slice(0, 6)), torch.arange(6), sample_weight=torch.ones(6))
    assert (flat(model) == before[0]).all()
    assert str(opt.state_dict()) == before[1]


@pytest.mark.parametrize("method", [SPD, AccMDA])
def test_a_checkpoint_of_another_data_set(method):
    model, *_ = problem()
    with pytest.raises(scdro.errors.CheckpointError, match="n = 60"):
        method(model.parameters(), n=N).load_state_dict(
            method(model.parameters(), n=N + 1).state_dict()
        )


@pytest.mark.parametrize("method", [SPD, AccMDA])
def test_a_checkpoint_of_a_larger_ball_is_brought_into_this_one(method):
    model, x, y, _ = problem()
    wide = method(model.parameters(), n=N, rho=2.0, dual_lr=1.0)
    for k in range(8):
        index = wide.draw(6, torch.Generator().manual_seed(k)) if method is SPD else torch.arange(6)
        wide.step(losses_of(model, x, y, index), index)
    assert wide.kl > 0.2
    narrow = method(model.parameters(), n=N, rho=0.05)
    narrow.load_state_dict(wide.state_dict())
    assert narrow.kl <= 0.05 + 1e-9


@pytest.mark.parametrize("method", [SPD, AccMDA])
def test_an_incomplete_checkpoint_changes_nothing(method):
    model, _x, _y, _ = problem()
    opt = method(model.parameters(), n=N)
    state = method(model.parameters(), n=N).state_dict()
    name = "log_p" if method is SPD else "u"
    for broken in (None, torch.ones(3, dtype=torch.float64)):
        state["state"][0][f"{method.__name__}.{name}"] = broken
        before = str(opt.state_dict())
        with pytest.raises(scdro.errors.CheckpointError, match="n = 60"):
            opt.load_state_dict(state)
        assert str(opt.state_dict()) == before


@pytest.mark.parametrize(
    "build",
    [
        lambda p: SPD(p, n=0),
        lambda p: SPD(p, n=True),
        lambda p: SPD(p, n=2.5),
        lambda p: SPD(p, n=9, rho=-1.0),
        lambda p: SPD(p, n=9, dual_lr=-1.0),
        lambda p: SPD(p, n=9).batch_sampler(0),
        lambda p: SPD(p, n=9).batch_sampler(2, steps=0),
        lambda p: PGSMD2(p, n=9, all_losses=3),
        lambda p: PGSMD2(p, n=9, all_losses=list, gamma=-1.0),
        lambda p: PGSMD2(p, n=9, all_losses=list, stage_steps=0),
        lambda p: AccMDA(p, n=0),
        lambda p: AccMDA(p, n=9, k=3.0),
        lambda p: AccMDA(p, n=9, c=0.0),
    ],
)
def test_bad_settings(build):
    with pytest.raises(scdro.errors.HyperparameterError, match="expected"):
        build([torch.nn.Parameter(torch.ones(1))])


def test_all_losses_must_be_all():
    model, x, y, _ = problem()
    opt = PGSMD2(
        model.parameters(), n=N, all_losses=losses_of(model, x, y, slice(0, 5)), uniform=True
    )
    with pytest.raises(scdro.errors.LossError, match="all 60 samples"):
        opt.step(losses_of(model, x, y, slice(0, 6)), torch.arange(6))


def test_rho_zero_is_erm():
    model, x, y, _ = problem()
    for opt in (
        SPD(model.parameters(), n=N, rho=0.0, dual_lr=1.0, uniform=True),
        AccMDA(model.parameters(), n=N, rho=0.0),
    ):
        opt.step(losses_of(model, x, y, slice(0, 6)), torch.arange(6))
        torch.testing.assert_close(opt.weights, torch.full((N,), 1 / N, dtype=torch.float64))


def test_a_data_loader_draws_from_p():
    model, x, y, _ = problem()
    opt = SPD(model.parameters(), 0.1, RHO, n=N, dual_lr=0.1)
    opt._dual.respond(torch.linspace(0, 3, N, dtype=torch.float64), 1e-3)
    loader = DataLoader(TensorDataset(x, y, torch.arange(N)), batch_sampler=opt.batch_sampler(10))
    assert len(loader) == 6
    for xb, yb, index in loader:
        opt.step(
            lambda m=model, a=xb, b=yb: torch.nn.functional.cross_entropy(
                m(a), b, reduction="none"
            ),
            index,
        )
    p = opt.weights.numpy()
    frozen = DrawnBatches(lambda g: opt.draw(N, g), 200, seed=1)
    found = np.bincount(np.concatenate([np.array(batch) for batch in frozen]), minlength=N)
    assert chisquare(found, found.sum() * p).pvalue > 1e-3
