"""On the CPU the vectors of a step are NumPy views of torch memory: no numbers, settings or errors leak through."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from scdro import SCDRO, KLRobustLoss
from scdro.errors import LossError
from scdro.printed import PrintedTemperature
from scdro.temperature import WindowTemperature

LOSSES = torch.linspace(0.0, 3.0, 12, dtype=torch.float64)


def trained(robust, steps=3, **call):
    w = nn.Parameter(torch.zeros(12, dtype=torch.float64))
    for _ in range(steps):
        robust(LOSSES + w, **call).backward()
    return robust


@pytest.mark.parametrize(
    "make",
    [
        lambda: KLRobustLoss(0.5),
        lambda: KLRobustLoss(0.5, temperature=WindowTemperature(1e-3, ceiling=None, lag=None)),
        lambda: KLRobustLoss(0.5, temperature=PrintedTemperature(0.01, lr=0.1)),
        lambda: KLRobustLoss(0.0),
        lambda: KLRobustLoss(0.5, trim=0.2),
    ],
)
def test_numpys_error_state_is_the_users_own(make):
    weight = torch.tensor([1e-300, 1.0] * 6, dtype=torch.float64)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        robust = trained(make())
        trained(robust, sample_weight=weight)
        assert math.isfinite(robust.kl)
        w = nn.Parameter(torch.zeros(12, dtype=torch.float64))
        optimizer = SCDRO([w], 0.1, 0.5)
        for _ in range(5):
            optimizer.step(lambda: 300 * LOSSES + w)
        with pytest.raises(FloatingPointError):
            np.exp(np.array([-1e6]))  # the state is the user's again


def test_a_default_device_elsewhere():
    w = nn.Parameter(torch.zeros(12, dtype=torch.float64))
    robust, optimizer = KLRobustLoss(0.5), SCDRO([w], 0.1, 0.5)
    with torch.device("meta"):
        for _ in range(3):
            value = robust(LOSSES + w)
            step = optimizer.step(lambda: LOSSES + w)
    assert math.isfinite(value.item())
    assert {value.device.type, step.device.type, robust.kl.device.type, robust.lam.device.type} == {
        "cpu"
    }


def test_losses_written_to_after_the_call():
    """An attached loss keeps its parts until the step."""
    lams = []
    for spoiled in (False, True):
        w = nn.Parameter(torch.zeros(12, dtype=torch.float64))
        optimizer = torch.optim.SGD([w], 0.1)
        robust = KLRobustLoss(0.5).attach(optimizer)
        for _ in range(2):
            losses = LOSSES + w
            robust(losses).backward()
            if spoiled:
                losses.detach().zero_()
            optimizer.step()
        lams.append(robust.lam.item())
    assert lams[0] == lams[1]


def test_losses_with_a_negative_bit():
    view = torch.complex(torch.zeros_like(LOSSES), -LOSSES).conj().imag
    assert view.is_neg()
    robust, reference = KLRobustLoss(0.5), KLRobustLoss(0.5)
    w = nn.Parameter(torch.zeros((), dtype=torch.float64))
    assert torch.equal(robust(view + 0 * w), reference(LOSSES + 0 * w))
    optimizer = SCDRO([w], 0.1, 0.5)
    assert math.isfinite(
        optimizer.step(lambda: torch.complex(0 * LOSSES + w, w - LOSSES).conj().imag)
    )


@pytest.mark.parametrize("number", [np.float32, np.float64, int])
def test_settings_of_other_kinds_of_numbers(number):
    robust = KLRobustLoss(number(1), window=np.int64(64))
    assert math.isfinite(trained(robust).lam)
    assert type(robust.state.equation.rho) is float


def test_values_beyond_the_dtype_of_the_losses():
    w = nn.Parameter(torch.zeros(4))
    value = KLRobustLoss(0.5)(torch.tensor([1.0, 2.0, 3.0, 3e38]) * 1.0 + w)
    assert value > 1e38  # the largest loss that float32 has, or infinity
    value = KLRobustLoss(1e300, temperature=WindowTemperature(1.0))(torch.arange(4.0) + w)
    assert value == math.inf
    value.backward()
    assert torch.isfinite(w.grad).all()


def test_skipping_keeps_the_value_in_double_precision():
    values = [
        KLRobustLoss(0.5, skip_nonfinite=skip)((LOSSES + 1 / 3).requires_grad_())
        for skip in (False, True)
    ]
    assert torch.equal(*values)


def test_a_state_loaded_by_assignment_is_a_copy():
    robust = trained(KLRobustLoss(0.5))
    state = {k: v.float() if v.is_floating_point() else v for k, v in robust.state_dict().items()}
    kept = {k: v.clone() for k, v in state.items()}
    other = KLRobustLoss(0.5)
    other.load_state_dict(state, assign=True)
    trained(other)
    assert all(torch.equal(torch.nan_to_num(state[k]), torch.nan_to_num(kept[k])) for k in state)
    assert {b.dtype for b in other.buffers()} == {torch.float64, torch.int64}


@pytest.mark.parametrize(
    ("mask", "says"), [(torch.ones(3) > 0, "mask entry.*12.*3"), (torch.zeros(12) > 0, "mask")]
)
def test_a_bad_mask_is_called_a_mask(mask, says):
    with pytest.raises(LossError, match=says):
        KLRobustLoss(0.5)(LOSSES.clone().requires_grad_(), mask=mask)
