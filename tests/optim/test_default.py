"""The default: lam from the recent losses, s carried and capped, STORM normalised. In lockstep with its twin."""

import numpy as np
import pytest
import torch

import scdro
import twins
from hard_group import ALGORITHMS, batches, flat, losses_of, problem, scaled
from scdro import ASCDRO, SCDRO
from scdro.optim import RASCDRO, RSCDRO
from scdro.printed import PrintedTemperature
from scdro.temperature import WindowTemperature


def distance(a, b):
    a, b = np.atleast_1d(np.asarray(a, dtype=float)), np.atleast_1d(np.asarray(b, dtype=float))
    return float(np.max(np.abs(a - b) / np.maximum(1.0, np.abs(b))))


def run_in_lockstep(
    algorithm,
    indices,
    *,
    lr=0.2,
    rho=0.5,
    beta=0.2,
    ours=None,
    theirs=None,
    weighted=False,
    scales=None,
):
    model, x, y, by_hand = problem()
    ours, theirs = {"window": 2048, **(ours or {})}, {"window": 2048, **(theirs or {})}
    twin = twins.Default(flat(model), rho, lr, beta, storm=algorithm in (ASCDRO, RASCDRO), **theirs)
    if twin.stages is None:
        opt = algorithm(model.parameters(), lr, rho, beta=beta, **ours)
    else:
        opt = algorithm(model.parameters(), twin.stages, rho, **ours)
    rng, history = np.random.default_rng(2), []
    for t, index in enumerate(indices, 1):
        weight = (
            rng.uniform(0.0, 2.0, len(index)) * (rng.random(len(index)) < 0.8) + 1e-3
            if weighted
            else None
        )
        scale = 1.0 if scales is None else scales[t - 1]
        opt.step(
            losses_of(model, x, y, index, scale),
            sample_weight=None if weight is None else torch.tensor(weight),
        )
        twin.step(scaled(by_hand.batch(index), scale), weight)
        for name, a, b in (
            ("w", flat(model), twin.w),
            ("lam", opt.lam.item(), twin.lam),
            ("log s", opt.log_s.item(), twin.log_s),
        ):
            assert distance(a, b) <= 1e-9, f"{name} differs by {distance(a, b):.1e} after step {t}"
        history.append((twin.lam, twin.capped, twin.clipped))
    return opt, twin, np.array(history)


SETTINGS = {
    "plain": ({}, {}),
    "initial": ({"temperature": WindowTemperature(0.3)}, {"lam": 0.3}),
    "weight_decay": ({"weight_decay": 0.05}, {"wd": 0.05}),
    "mu": ({"mu": 0.1}, {"mu": 0.1}),
    "radius": ({"radius": 0.8}, {"radius": 0.8}),
    "loss_bound": ({"loss_bound": 20.0}, {"bound": 20.0}),
    "window": ({"window": 64}, {"window": 64}),
    "tiny window": ({"window": 7}, {"window": 7}),
    "trim": ({"trim": 0.033}, {"trim": 0.033}),
    "trim, window": ({"trim": 0.127, "window": 50}, {"trim": 0.127, "window": 50}),
    "cap, clip": (
        {"temperature": WindowTemperature(cap=1.1, clip=0.05)},
        {"cap": 1.1, "clip": 0.05},
    ),
    "lam0": ({"lam0": 0.6}, {"lam0": 0.6}),
    "no ceiling": ({"temperature": WindowTemperature(ceiling=None)}, {"ceiling_lams": None}),
    "no lag": ({"temperature": WindowTemperature(lag=None)}, {"lag": None}),
    "little lag": ({"temperature": WindowTemperature(lag=1.0)}, {"lag": 1.0}),
    "a rate of its own": ({"temperature": WindowTemperature(memory=16)}, {"memory": 16.0}),
    "no memory": ({"temperature": WindowTemperature(memory=0)}, {"memory": 0.0}),
    "long memory": ({"temperature": WindowTemperature(memory=100)}, {"memory": 100.0}),
    "high ceiling": ({"temperature": WindowTemperature(ceiling=0.5)}, {"ceiling_lams": 0.5}),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lockstep_with_the_twin(algorithm, setting, weighted):
    ours, theirs = SETTINGS[setting]
    _, twin, history = run_in_lockstep(
        algorithm, batches(), ours=ours, theirs=theirs, weighted=weighted
    )
    if setting in ("plain", "window", "no ceiling", "trim"):
        assert (twin.topped > 0) == (setting in ("plain", "window"))
    if setting in ("no lag", "little lag"):
        assert (twin.late > 0) == (setting == "little lag")
    if setting == "lam0":
        assert (history[:, 0] == 0.6).any()
    elif setting != "mu":
        assert history[:, 0].std() > 0.01
    if setting == "cap, clip":
        assert history[:, 1].any()
        assert algorithm is SCDRO or history[:, 2].any()


@pytest.mark.parametrize("beta", [0.05, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lockstep_over_betas_and_batch_sizes(algorithm, beta):
    run_in_lockstep(algorithm, batches(low=1, high=30), beta=beta)


@pytest.mark.parametrize("rho", [0.01, 0.1, 1.0, 2.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lockstep_over_radii(algorithm, rho):
    run_in_lockstep(algorithm, batches(), rho=rho)


@pytest.mark.parametrize("algorithm", [RSCDRO, RASCDRO])
def test_lockstep_of_the_restarted_forms(algorithm):
    stages = [(0.2, 0.5, 20), (0.1, 0.3, 30), (0.05, 0.2, 20), (0.02, 0.1, 0)]
    opt, twin, _ = run_in_lockstep(
        algorithm,
        batches(),
        ours={"mu": 0.1, "weight_decay": 0.01},
        theirs={"mu": 0.1, "wd": 0.01, "stages": stages},
    )
    assert opt.stage == twin.k == 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_batches_larger_than_the_window(algorithm):
    run_in_lockstep(algorithm, batches(low=5, high=40), ours={"window": 16}, theirs={"window": 16})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_single_samples(algorithm):
    """The first batch has one loss, KL 0: lam starts at lam0, and rises once the window has something to compare."""
    indices = batches(low=1, high=1)
    ours, theirs = {"lam0": 0.02}, {"lam0": 0.02}
    _, _, history = run_in_lockstep(algorithm, indices, lr=0.02, ours=ours, theirs=theirs)
    assert history[0, 0] == 0.02
    assert history[-1, 0] > 0.2


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("trim", [0.0, 0.127])
@pytest.mark.parametrize("beta", [0.01, 0.1, 0.9])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lockstep_while_losses_rise_and_fall(algorithm, beta, trim, weighted):
    """A hundredfold for thirty batches, and back: s is held near the recent losses."""
    ours = theirs = {"window": 64, "trim": trim, "lam0": 0.02}
    scales = [1.0] * 20 + [100.0] * 30 + [1.0] * 50
    _, twin, _ = run_in_lockstep(
        algorithm,
        batches(),
        lr=0.002,
        beta=beta,
        ours=ours,
        theirs=theirs,
        scales=scales,
        weighted=weighted,
    )
    assert twin.late > 0 or beta == 0.9


@pytest.mark.parametrize("window", [2048, 8])
@pytest.mark.parametrize("beta", [0.2, 1.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_batches_that_are_trimmed_away(algorithm, beta, window):
    """A single sample above the ceiling is a batch of weight zero: s decays (with beta = 1 it stays), the model coasts,
    nothing is NaN, even if the newest quarter of the window is trimmed away too."""
    ours = theirs = {"trim": 0.253, "lam0": 0.02, "window": window}
    _, twin, _ = run_in_lockstep(
        algorithm, batches(low=1, high=2), lr=0.02, beta=beta, ours=ours, theirs=theirs
    )
    assert twin.empty >= 5
    assert (twin.unbounded > 0) == (window == 8)


@pytest.mark.parametrize("beta", [0.1, 1.0])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_printed_temperature_with_batches_that_are_trimmed_away(algorithm, beta):
    model, x, y, _ = problem()
    opt = algorithm(
        model.parameters(),
        0.02,
        0.5,
        beta=beta,
        trim=0.253,
        temperature=PrintedTemperature(initial=1.0),
    )
    for index in batches(low=1, high=1):
        opt.step(losses_of(model, x, y, index))
        assert torch.isfinite(opt.lam)
        assert np.isfinite(flat(model)).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_lam_is_near_the_root_of_the_recent_losses(algorithm):
    opt, twin, _ = run_in_lockstep(
        algorithm, batches(400, 32, 32), lr=0.05, theirs={"window": 256}, ours={"window": 256}
    )
    recent = np.array([loss for loss, _ in twin.recent])
    assert opt.lam.item() == pytest.approx(scdro.worst_case(recent, 0.5).lam, rel=0.05)
    assert opt.kl.item() == pytest.approx(0.5, abs=0.05)
