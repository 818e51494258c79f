"""Bad arguments of the functions: the documented error, and what its message names."""

from __future__ import annotations

import ast
import copy
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

import scdro
from equality import differences
from refusals import BAD_SETTINGS, BAD_WEIGHTS, INF, NAN, Problem, make
from scdro import KLRobustLoss, SecondLook, evaluate, rho_for_group, worst_case
from scdro._validation import array_weights, check_number, check_whole, log_weights
from scdro.errors import DataError, HyperparameterError, LossError, NonFiniteLossError
from scdro.functional import class_balanced_weights, group_means, objective, rho_for_confidence
from scdro.linear_model import KLDROClassifier
from scdro.metrics import group_table
from scdro.optim import CVaR, FastDRO, decay_stages, factor_stages
from scdro.printed import PrintedTemperature
from scdro.temperature import MovingAverage, WindowTemperature


def test_differences_can_see():
    state = {"a": torch.tensor([1.0, NAN]), "b": [1, (2, NAN)], "c": None}
    assert differences(state, copy.deepcopy(state)) == []
    for changed in (
        {**state, "a": torch.tensor([1.0, 2.0])},
        {**state, "a": torch.tensor([1.0, NAN], dtype=torch.float64)},
        {**state, "b": [1, (3, NAN)]},
        {**state, "c": 0},
        {"a": state["a"], "b": state["b"]},
        {**state, "b": [1, [2, NAN]], "c": {}},
    ):
        assert len(differences(state, changed)) == 1


@pytest.mark.parametrize("kind", BAD_WEIGHTS)
def test_bad_weights_of_functions(kind):
    weight, match = BAD_WEIGHTS[kind]
    if kind in ("negative", "nan", "inf"):
        match = "weights.*negative.*non-finite"
    with pytest.raises(LossError, match=match):
        worst_case([1.0] * 5, 0.1, sample_weight=weight)
    with pytest.raises(LossError, match=match):
        objective(torch.ones(5), 1.0, 0.1, sample_weight=torch.tensor(weight))


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("kind", [torch.tensor, lambda values: values])
def test_losses_of_weight_zero_may_be_anything(kind, bad):
    weight = [1.0, 0.0, 2.0]
    for function in (
        lambda l: worst_case(l, 0.1, sample_weight=weight).value,
        lambda l: objective(l, 1.0, 0.1, sample_weight=weight),
    ):
        assert float(function(kind([1.0, bad, 2.0]))) == float(function(kind([1.0, 0.0, 2.0])))


@pytest.mark.parametrize("kind", [torch.tensor, list])
def test_bad_losses_of_functions(kind):
    for losses, error, match in (
        ([1.0, NAN, INF], NonFiniteLossError, "2 NaN"),
        ([1.0, -INF], NonFiniteLossError, "1 NaN"),
        ([[1.0, 2.0]], LossError, r"\(1, 2\)"),
        ([], LossError, "empty"),
    ):
        for function in (lambda l: worst_case(l, 0.1), lambda l: objective(l, 1.0, 0.1)):
            with pytest.raises(error, match=match) as caught:
                function(kind(losses))
            assert caught.type is error
    for function in (lambda l: worst_case(l, 0.1), lambda l: objective(l, 1.0, 0.1)):
        for reduced in (torch.tensor(3.0), 3.0):
            with pytest.raises(LossError, match='reduction="none"'):
                function(reduced)


@pytest.mark.parametrize(
    ("setting", "value", "match"), [b for b in BAD_SETTINGS if b[0] in ("rho", "lam0", "trim")]
)
def test_bad_settings_of_functions(setting, value, match):
    with pytest.raises(HyperparameterError, match=match):
        worst_case([1.0, 2.0], **{"rho": 0.1, setting: value})
    if setting != "trim":
        with pytest.raises(HyperparameterError, match=match):
            objective([1.0, 2.0], 1.0, **{"rho": 0.1, setting: value})


@pytest.mark.parametrize("value", ["0.5", None])
@pytest.mark.parametrize("setting", ["rho", "lam0", "trim", "beta"])
def test_settings_that_are_no_numbers(setting, value):
    with pytest.raises(HyperparameterError, match=f"{setting}.*0.5|{setting}.*None"):
        KLRobustLoss(**{"rho": 0.5, setting: value})
    if setting != "beta":
        with pytest.raises(HyperparameterError, match=f"number.*{setting}.*{value!r}"):
            worst_case([1.0, 2.0], **{"rho": 0.5, setting: value})
    if setting in ("rho", "lam0", "beta"):
        with pytest.raises(HyperparameterError, match=setting):
            make("SCDRO", nn.Linear(3, 1).parameters(), **{setting: value})


def test_tensors_and_numpy_numbers_are_numbers():
    for rho in (torch.tensor(0.5), np.float32(0.5), np.int64(1), True):
        assert float(worst_case([1.0, 2.0], rho=rho).value) > 1.5


@pytest.mark.parametrize("kind", [np.float32, torch.tensor])
def test_numbers_in_single_precision_do_not_make_the_answer_so(kind):
    losses = np.random.default_rng(0).exponential(size=100)
    assert worst_case(losses, kind(0.5), kind(0.25)).value == worst_case(losses, 0.5, 0.25).value
    assert objective(losses, 2.0, kind(0.5), kind(0.25)) == objective(losses, 2.0, 0.5, 0.25)


def test_arguments_of_the_wrong_kind():
    params = [nn.Parameter(torch.ones(2))]
    for call, error, match in (
        (lambda: worst_case(["a", "b"], 0.5), LossError, "losses.*list.*a"),
        (lambda: worst_case([[1.0], [1.0, 2.0]], 0.5), LossError, "losses.*list"),
        (lambda: worst_case([1j, 2.0], 0.5), LossError, "losses.*complex"),
        (
            lambda: worst_case([1.0, 2.0], 0.5, sample_weight=["a", "b"]),
            LossError,
            "weights.*list.*a",
        ),
        (
            lambda: KLRobustLoss(0.5)(torch.ones(2, requires_grad=True), ["a", "b"]),
            LossError,
            "weights.*list.*a",
        ),
        (lambda: objective([1.0, 2.0], "1", 0.5), HyperparameterError, "number.*lam.*'1'"),
        (lambda: objective([1.0, 2.0], None, 0.5), HyperparameterError, "number.*lam.*None"),
        (lambda: worst_case([1.0, 2.0], 10**400), HyperparameterError, "number.*rho.*1000"),
        (
            lambda: scdro.SCDRO(params, tracker="auto"),
            HyperparameterError,
            "SCDRO.*MovingAverage.*'auto'",
        ),
        (
            lambda: scdro.SCDRO(params, tracker=MovingAverage),
            HyperparameterError,
            "SCDRO.*MovingAverage.*class",
        ),
        (lambda: scdro.SCDRO(params, module="model"), HyperparameterError, "module.*'m'"),
        (lambda: scdro.SCDRO(params, module=True), HyperparameterError, "module.*True"),
        (lambda: FastDRO(params, geometry=CVaR), HyperparameterError, "KLBall.*class"),
        (lambda: FastDRO(params, geometry="cvar"), HyperparameterError, "KLBall.*'cvar'"),
        (lambda: FastDRO(params, multilevel=(2, 8)), HyperparameterError, r"Multilevel.*\(2, 8\)"),
        (lambda: decay_stages(0.1, 0.5, 600), HyperparameterError, "milestones.*600"),
        (lambda: decay_stages("a", 0.5, [600]), HyperparameterError, "lr.*'a'"),
        (lambda: decay_stages(0.1, 0.5, [600], factor=-1), HyperparameterError, "factor.*-1"),
        (lambda: factor_stages(0.1, 0.5, "a", 3), HyperparameterError, "steps.*'a'"),
        (lambda: factor_stages(-0.1, 0.5, 10, 3), HyperparameterError, "lr.*-0.1"),
    ):
        with pytest.raises(error, match=match):
            call()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"mask": torch.tensor([0.5, 1.0])}, "mask.*sample_weight"),
        ({"mask": [2, 1]}, "mask.*sample_weight"),
        ({"sample_weight": torch.tensor([1j, 1.0])}, "real.*complex64"),
        ({"groups": torch.tensor([0.5, 1.0])}, "groups.*float32"),
        ({"num_items_in_batch": 2}, "RobustTrainerLoss"),
        ({"weight": 2}, "sample_weight.*weight"),
    ],
)
def test_arguments_that_a_batch_cannot_have_leave_the_loss_as_it_was(arguments, match):
    robust = KLRobustLoss(0.5)
    robust(torch.tensor([1.0, 2.0], requires_grad=True))
    before = copy.deepcopy(robust.state_dict())
    with pytest.raises(LossError, match=match):
        robust(torch.tensor([1.0, 3.0], requires_grad=True), **arguments)
    assert differences(robust.state_dict(), before) == []


def test_masks_of_zeros_and_ones_and_groups_in_a_list():
    losses = torch.tensor([1.0, 2.0, 5.0])
    of_bools = KLRobustLoss(0.5).eval()(losses, mask=torch.tensor([True, True, False]))
    for mask in ([1, 1, 0], torch.tensor([1.0, 1.0, 0.0]), np.array([1, 1, 0])):
        assert KLRobustLoss(0.5).eval()(losses, mask=mask) == of_bools
    in_groups = KLRobustLoss(0.5).eval()(losses, groups=torch.tensor([0, 0, 1]))
    assert KLRobustLoss(0.5).eval()(losses, groups=[0, 0, 1]) == in_groups


def values_of(steps=4, **settings):
    robust, losses = (
        KLRobustLoss(**settings),
        torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64, requires_grad=True),
    )
    return [robust((k + 1) * losses).item() for k in range(steps)], robust.state_dict()


@pytest.mark.parametrize("kind", [np.float32, torch.tensor])
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_settings_in_single_precision_do_not_make_the_state_so(rho, kind):
    assert differences(values_of(rho=rho, beta=kind(0.25)), values_of(rho=rho, beta=0.25)) == []
    for temperature in (
        lambda number: WindowTemperature(ceiling=number(0.25)),
        lambda number: PrintedTemperature(lr=number(0.25)),
    ):
        of_kind, of_floats = (
            values_of(rho=rho, temperature=temperature(number)) for number in (kind, float)
        )
        assert differences(of_kind, of_floats) == []


def test_a_beta_that_is_not_a_float():
    """torch refuses a bool as a factor, in the middle of a step."""
    runs = []
    for beta in (1.0, 1, True, np.float32(1.0)):
        problem = Problem()
        optimizer = problem.optimizer("SCDRO", started=True, beta=beta)
        runs.append((problem.snapshot(), float(optimizer.lam)))
    assert all(differences(runs[0], run) == [] for run in runs[1:])


@pytest.mark.parametrize("lam", [0.0, -1.0, NAN])
def test_bad_lam(lam):
    for temperature in (lam, torch.tensor(lam)):
        with pytest.raises(HyperparameterError, match=f"lam > 0.*{lam}"):
            objective([1.0, 2.0], temperature, 0.1)


def test_per_cent_in_place_of_a_share():
    with pytest.raises(HyperparameterError, match=r"12\.5.*0\.125"):
        rho_for_group(12.5)
    with pytest.raises(HyperparameterError, match=r"1000[^%]*$"):
        rho_for_group(1000)
    with pytest.raises(HyperparameterError, match=r"0\.0[^%]*$"):
        rho_for_group(0.0)
    with pytest.raises(HyperparameterError, match=r"number.*'0\.1'"):
        rho_for_group("0.1")


def test_bad_meanings_of_rho():
    for alpha in (0.0, -0.1, 1.1, NAN):
        with pytest.raises(HyperparameterError, match=rf"\(0, 1\].*{alpha}"):
            rho_for_group(alpha)
    for level in (0.4, 1.0, 2.0, NAN):
        with pytest.raises(HyperparameterError, match=rf"\[0\.5, 1\).*{level}"):
            rho_for_confidence(10, level)
    with pytest.raises(HyperparameterError, match=r"n >= 1.*0"):
        rho_for_confidence(0)


# -- the checks themselves
# --------------------------------------------------------------------------------------------


RANGES = {
    "> 0": lambda x: x > 0,
    ">= 0": lambda x: x >= 0,
    ">= lam0 = 0.5": lambda x: x >= 0.5,
    "in (0, 1]": lambda x: 0 < x <= 1,
    "in [0, 1)": lambda x: 0 <= x < 1,
    "in (0, 700)": lambda x: 0 < x < 700,
}


@pytest.mark.parametrize("within", RANGES)
@pytest.mark.parametrize("kind", [float, np.float32, torch.tensor])
def test_ranges(within, kind):
    for number in (-INF, -1.0, -0.0, 0.25, 0.5, 1.0, 1.5, 700.0, INF, NAN):
        for infinite in (False, True):
            if RANGES[within](number) and (infinite or abs(number) < INF):
                check_number("x", kind(number), within, infinite=infinite)
            else:
                finite = " and finite" if RANGES[within](number) else ""
                with pytest.raises(
                    HyperparameterError, match=re.escape(f"x {within}{finite}, a thing, got")
                ):
                    check_number("x", kind(number), within, "a thing", infinite=infinite)


@pytest.mark.parametrize("bad", ["1", b"1", None, [1.0, 2.0], np.ones(2), torch.ones(2), object()])
def test_what_is_no_number(bad):
    with pytest.raises(HyperparameterError, match=r"number.*x"):
        check_number("x", bad, "> 0")


def test_whole_numbers():
    for good in (1, np.int64(3), torch.tensor(2)):
        check_whole("k", good, 1, 3)
    for bad in (0, 4, 2.0, True, np.True_, "2", None, NAN):
        with pytest.raises(HyperparameterError, match=r"k from 1 to 3, a whole number"):
            check_whole("k", bad, 1, 3)


@pytest.mark.parametrize("kind", BAD_WEIGHTS)
def test_weights_are_read_the_same_everywhere(kind):
    """By the losses of torch, and by the estimators of NumPy, which also take one number for all rows."""
    bad, match = BAD_WEIGHTS[kind]
    with pytest.raises(LossError, match=match):
        log_weights(torch.ones(5, dtype=torch.float64), bad)
    if kind == "number":
        np.testing.assert_array_equal(array_weights(bad, 5), np.full(5, bad))
    else:
        with pytest.raises(LossError, match=match):
            array_weights(bad, 5)


def test_good_weights():
    weights = [0.1, 0.0, 3.0]
    np.testing.assert_array_equal(array_weights(weights, 3), weights)
    np.testing.assert_array_equal(array_weights(torch.tensor(weights), 3), np.float32(weights))
    np.testing.assert_array_equal(array_weights(None, 3), np.ones(3))
    found = log_weights(torch.ones(3, dtype=torch.float64), weights, [True, True, False])
    np.testing.assert_array_equal(np.exp(found.numpy()), [np.exp(np.log(0.1)), 0.0, 0.0])


def compares_a_setting(node):
    """An `if` that asks whether something is above or below a number, and raises HyperparameterError."""
    if not isinstance(node, ast.If) or not isinstance(node.body[0], ast.Raise):
        return False
    if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
        return False  # what several settings mean together
    raised = {name.id for name in ast.walk(node.body[0]) if isinstance(name, ast.Name)}
    return "HyperparameterError" in raised and any(
        isinstance(side, ast.Constant)
        and isinstance(compared.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        for compared in ast.walk(node.test)
        if isinstance(compared, ast.Compare)
        for side in (compared.left, *compared.comparators)
    )


def test_ranges_are_checked_in_one_place():
    """The range of a setting is checked in `_validation`; an audit, which must not load torch, checks its own."""
    root = Path(scdro.__file__).parent
    found = [
        f"{path.relative_to(root)}:{node.lineno}"
        for path in sorted(root.rglob("*.py"))
        if path.relative_to(root).parts[0] not in ("_validation.py", "cli", "auditing")
        for node in ast.walk(ast.parse(path.read_text()))
        if compares_a_setting(node)
    ]
    assert found == []


def test_messages_name_what_to_pass_instead():
    with pytest.raises(HyperparameterError, match=r"rho.*>= 0.*radius.*'half'"):
        KLRobustLoss("half")
    for bad in (
        [1.0, 2.0],
        np.ones(3),
        nn.CrossEntropyLoss(),
        torch.randn(8, 3, requires_grad=True),
    ):
        with pytest.raises(LossError, match='reduction="none"'):
            KLRobustLoss(0.5)(bad)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: worst_case(None, 0.5), LossError, "losses.*NoneType"),
        (lambda: worst_case([], 0.5), LossError, "at least one loss, got none"),
        (
            lambda: KLRobustLoss(0.5)(torch.ones(3, requires_grad=True), torch.tensor([0, 1, 1])),
            LossError,
            "labels",
        ),
        (
            lambda: KLRobustLoss(0.5)(torch.ones(3, requires_grad=True), np.array([0, 1, 1])),
            LossError,
            "labels",
        ),
        (
            lambda: KLRobustLoss(0.5)(torch.ones(3, requires_grad=True), [0, 1, 1]),
            LossError,
            "labels",
        ),
        (
            lambda: KLRobustLoss(0.5, skip_nonfinite="no"),
            HyperparameterError,
            "skip_nonfinite.*'no'",
        ),
        (
            lambda: KLDROClassifier(fit_intercept="no").fit([[0.0], [1.0]], [0, 1]),
            HyperparameterError,
            "fit_intercept",
        ),
        (
            lambda: SecondLook(Ridge(), budget=-1).fit([[0.0], [1.0]], [0.0, 1.0]),
            HyperparameterError,
            "error.*-1",
        ),
        (
            lambda: SecondLook(Ridge(), refuse="no").fit([[0.0], [1.0]], [0.0, 1.0]),
            HyperparameterError,
            "refuse.*'no'",
        ),
        (lambda: evaluate(nn.Linear(1, 1), [], "ce", 0.5), HyperparameterError, "loss_fn.*'ce'"),
        (
            lambda: evaluate("model", [], torch.nn.functional.mse_loss, 0.5),
            HyperparameterError,
            "network.*'model'",
        ),
        (lambda: group_means([1.0, 2.0], [0, 1]), HyperparameterError, "losses as a tensor"),
        (lambda: class_balanced_weights("abc"), LossError, "counts.*str"),
        (
            lambda: group_table([0, pd.NA], [0, 1], ["a", "b"], metrics="accuracy"),
            DataError,
            "y_true.*missing",
        ),
        (
            lambda: scdro.tables.audit({"y": [0, 1], "x": [0, 1]}, "y", drop="x"),
            HyperparameterError,
            r"drop.*\['x'\]",
        ),
        (
            lambda: scdro.tables.audit({"y": [0, 1], "x": [0, 1]}, "y", group=3),
            HyperparameterError,
            "group.*3",
        ),
    ],
)
def test_what_people_pass_by_mistake(call, error, match):
    with pytest.raises(error, match=match):
        call()
