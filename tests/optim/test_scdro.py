"""SCDRO and the restarted forms with the printed temperature, against their linear-domain twins, step by step."""

import numpy as np
import pytest

import scdro
import twins
from lockstep import LAM1, SETTINGS, STEPS, run_in_lockstep
from logistic import D, K, N
from scdro import ASCDRO, SCDRO
from scdro.optim import RASCDRO, RSCDRO, Stage
from scdro.printed import PrintedTemperature


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("setting", SETTINGS)
def test_scdro_is_algorithm_1(setting, beta):
    ours, theirs, weighted = SETTINGS[setting]
    lr, rho = 0.05, 0.3
    _, _, history = run_in_lockstep(
        lambda model: SCDRO(
            model.parameters(),
            lr,
            rho,
            beta=beta,
            temperature=PrintedTemperature(initial=LAM1),
            **ours,
        ),
        lambda w: twins.Scdro(w, LAM1, rho, lr, beta, **theirs),
        weighted=weighted,
    )
    assert np.ptp(history[:, 0]) > 0.05
    if "radius" in ours:
        assert np.isclose(history[:, 1], ours["radius"], rtol=1e-12).sum() >= 10


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_scdro_projects_lam_onto_both_ends(beta):
    """loss_bound gives lam_max = lam0 + C/rho, and changes nothing else in Algorithm 1."""
    lr, lam_lr, rho, lam0, bound = 0.05, 10.0, 1.0, 0.1, 4.0
    temperature = PrintedTemperature(initial=0.5, lr=lam_lr)
    settings = {"lam0": lam0, "radius": 0.9}
    _, _, history = run_in_lockstep(
        lambda model: SCDRO(
            model.parameters(),
            lr,
            rho,
            beta=beta,
            temperature=temperature,
            loss_bound=bound,
            **settings,
        ),
        lambda w: twins.Scdro(w, 0.5, rho, lr, beta, bound=bound, lam_eta=lam_lr, **settings),
    )
    assert (history[:, 0] == lam0).sum() >= 3
    assert (history[:, 0] == lam0 + bound / rho).sum() >= 3


def test_scdro_with_a_loss_bound_that_never_binds():
    lr, rho, beta, bound = 0.05, 0.3, 0.3, 50.0
    run_in_lockstep(
        lambda model: SCDRO(
            model.parameters(),
            lr,
            rho,
            beta=beta,
            temperature=PrintedTemperature(initial=LAM1),
            loss_bound=bound,
        ),
        lambda w: twins.Scdro(w, LAM1, rho, lr, beta, bound=bound),
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "twin", "lr_factor"), [(RSCDRO, twins.Scdro, 0.5), (RASCDRO, twins.Ascdro, 0.7)]
)
def test_restarted_forms_are_algorithm_3(algorithm, twin, lr_factor, weighted):
    stages = scdro.optim.factor_stages(0.05, 0.8, 14, 4, lr_factor=lr_factor, steps_factor=1.5)
    rho, mu, wd = 0.3, 0.1, 0.02
    opt, reference, _ = run_in_lockstep(
        lambda model: algorithm(
            model.parameters(),
            stages,
            rho,
            mu=mu,
            weight_decay=wd,
            temperature=PrintedTemperature(initial=LAM1),
        ),
        lambda w: twin(
            w, LAM1, rho, None, None, mu=mu, wd=wd, stages=[tuple(stage) for stage in stages]
        ),
        weighted=weighted,
    )
    assert opt.stage == reference.k == 3


def test_restarted_stages_may_change_in_any_way():
    stages = [
        Stage(0.02, 0.3, 10),
        Stage(0.05, 0.9, 5),
        Stage(0.01, 0.1, 40),
        Stage(0.03, 1.0, 20),
        Stage(0.02, 0.2, 0),
    ]
    for algorithm, twin in ((RSCDRO, twins.Scdro), (RASCDRO, twins.Ascdro)):
        opt, _, _ = run_in_lockstep(
            lambda model, algorithm=algorithm: algorithm(
                model.parameters(),
                stages,
                0.2,
                mu=0.2,
                temperature=PrintedTemperature(initial=LAM1),
            ),
            lambda w, twin=twin: twin(
                w, LAM1, 0.2, None, None, mu=0.2, stages=[tuple(stage) for stage in stages]
            ),
        )
        assert opt.stage == 4


@pytest.mark.parametrize(("algorithm", "twin"), [(SCDRO, twins.Scdro), (ASCDRO, twins.Ascdro)])
def test_parameter_groups_have_their_own_lr_and_weight_decay(algorithm, twin):
    lr, rho, beta = 0.02, 0.3, 0.4
    scale, wd = np.ones(K * D + K), np.full(K * D + K, 0.05)
    scale[K * D :], wd[K * D :] = 3.0, 0.0
    run_in_lockstep(
        lambda model: algorithm(
            [
                {"params": [model.weight], "weight_decay": 0.05},
                {"params": [model.bias], "lr": 3 * lr},
            ],
            lr,
            rho,
            beta=beta,
            temperature=PrintedTemperature(initial=LAM1),
        ),
        lambda w: twin(w, LAM1, rho, lr, beta, wd=wd, scale=scale),
    )


def test_varying_batch_sizes_and_single_samples():
    rng = np.random.default_rng(5)
    indices = [rng.choice(N, rng.integers(1, 12), replace=False) for _ in range(STEPS)]
    run_in_lockstep(
        lambda model: SCDRO(
            model.parameters(), 0.05, 0.3, beta=0.3, temperature=PrintedTemperature(initial=LAM1)
        ),
        lambda w: twins.Scdro(w, LAM1, 0.3, 0.05, 0.3),
        indices=indices,
    )
    run_in_lockstep(
        lambda model: ASCDRO(
            model.parameters(), 0.01, 0.3, beta=0.5, temperature=PrintedTemperature(initial=LAM1)
        ),
        lambda w: twins.Ascdro(w, LAM1, 0.3, 0.01, 0.5),
        indices=indices,
    )
