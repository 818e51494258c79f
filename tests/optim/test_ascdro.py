"""ASCDRO and RASCDRO: Algorithm 2 against its twin, and the two evaluations of each batch."""

from __future__ import annotations

import copy
import sys
from contextlib import nullcontext
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import scdro
import twins
from equality import differences
from lockstep import LAM1, SETTINGS, distance, run_in_lockstep
from refusals import (
    BAD_LOSSES,
    NAN,
    OPTIMIZERS,
    TWO_POINT,
    Beside,
    Problem,
    make,
    normalised,
    only_skipped_moved,
    problem_with,
    refuses,
    with_value,
)
from reproduction.baselines import RECOVER, AccMDA
from scdro import ASCDRO
from scdro.errors import ClosureError, NonFiniteLossError
from scdro.printed import PrintedTemperature

LIBRARY = str(Path(scdro.__file__).parent)


@pytest.mark.parametrize("setting", SETTINGS)
def test_ascdro_is_algorithm_2_without_resets(setting):
    ours, theirs, weighted = SETTINGS[setting]
    lr, rho, beta = 0.01, 0.3, 0.3
    opt, _, history = run_in_lockstep(
        lambda model: ASCDRO(
            model.parameters(),
            lr,
            rho,
            beta=beta,
            temperature=PrintedTemperature(initial=LAM1),
            **ours,
        ),
        lambda w: twins.Ascdro(w, LAM1, rho, lr, beta, **theirs),
        weighted=weighted,
    )
    assert opt.resets.item() == 0
    assert np.ptp(history[:, 0]) > 0.01


@pytest.mark.parametrize(
    ("lr", "beta", "rho", "lam1", "bound"), [(0.1, 0.6, 1.0, 1.5, 4.0), (0.5, 0.6, 0.3, 0.3, None)]
)
def test_ascdro_is_algorithm_2_with_resets(lr, beta, rho, lam1, bound):
    settings = {"radius": 0.9, "lam0": 0.1}
    opt, twin, _ = run_in_lockstep(
        lambda model: ASCDRO(
            model.parameters(),
            lr,
            rho,
            beta=beta,
            temperature=PrintedTemperature(initial=lam1),
            loss_bound=bound,
            **settings,
        ),
        lambda w: twins.Ascdro(w, lam1, rho, lr, beta, bound=bound, **settings),
    )
    assert opt.resets.item() == twin.resets >= 2


@pytest.mark.parametrize("fall", [0.01, 0.03, 5.0])
def test_reset_where_s_is_lost_to_cancellation(fall):
    """The same batch again, its losses lower by `fall`: s - ghat' = 0 leaves exp(-fall/lam) of the largest term."""
    lam, lr, beta = 1e-3, 0.02, 0.1
    w = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = ASCDRO([w], lr, 0.5, beta=beta, temperature=PrintedTemperature(initial=lam, lr=0.0))
    exact = twins.Ascdro(
        twins.precise(np.zeros(2)), twins.mpmath.mpf(lam), 0.5, lr, beta, lam_eta=0.0
    )
    rows, high = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([20.0, 19.999])
    for tables in ([high], [high, high - fall]):
        calls = iter(tables)
        opt.step(
            lambda calls=calls: torch.tensor(next(calls)) + torch.tensor(rows) @ (w - w.detach())
        )
        exact.step(
            lambda at, tables=tables: (
                twins.precise(tables[-1 if at is exact.w else 0]),
                twins.precise(rows),
            )
        )
    assert opt.resets.item() == exact.resets == (fall > 0.02)
    assert distance(w.detach(), exact.w) <= 1e-9
    assert distance(opt.log_s.item(), exact.log_s) <= 1e-9


# -- the two evaluations
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_ascdro_with_gradients_whose_square_is_out_of_range(scale):
    w = nn.Parameter(torch.tensor([1.0, -2.0]))
    opt = ASCDRO([w], 1e-3 / scale, 0.5)
    g = torch.Generator().manual_seed(0)
    for _ in range(5):
        x = torch.randn(8, 2, generator=g)
        opt.step(lambda x=x: scale * (x @ w - 1.0).abs())
    assert w.isfinite().all()


@pytest.mark.parametrize("name", TWO_POINT)
def test_closure_that_draws_its_own_batch(name):
    problem = Problem()
    optimizer = problem.optimizer(name, started=True)
    sizes = iter([5, 3])
    refuses(
        problem,
        lambda: optimizer.step(lambda: problem.losses()[: next(sizes)]),
        ClosureError,
        "batch.*5.*3",
        optimizer,
    )


@pytest.mark.parametrize("bad_call", [1, 2])
@pytest.mark.parametrize("kind", BAD_LOSSES)
@pytest.mark.parametrize("name", TWO_POINT)
def test_bad_losses_at_one_of_two_points(name, kind, bad_call):
    problem = Problem()
    optimizer = problem.optimizer(name, started=True)
    spoil, error, match = BAD_LOSSES[kind]
    calls = []

    def closure():
        calls.append(None)
        return spoil(problem.losses()) if len(calls) == bad_call else problem.losses()

    refuses(problem, lambda: optimizer.step(closure), error, match, optimizer)


@pytest.mark.parametrize("bad_call", [1, 2])
@pytest.mark.parametrize("name", TWO_POINT)
def test_skipped_where_one_of_two_points_is_bad(name, bad_call):
    problem = Problem()
    optimizer = problem.optimizer(name, started=True, skip_nonfinite=True)
    calls = []

    def closure():
        calls.append(None)
        return with_value(NAN)(problem.losses()) if len(calls) == bad_call else problem.losses()

    before = problem.snapshot(optimizer)
    optimizer.step(closure)
    only_skipped_moved(before, problem.snapshot(optimizer), optimizer)


@pytest.mark.parametrize("when", ["first evaluation", "second evaluation", "both"])
@pytest.mark.parametrize("layers", [(), (nn.Dropout(0.5),)], ids=["plain", "dropout"])
@pytest.mark.parametrize("name", TWO_POINT)
def test_another_thread_draws_nothing_twice(name, layers, when):
    """After a step it gets numbers that nobody has had; during one, the closure's own where that draws some."""
    torch.manual_seed(0)
    problem, calls = problem_with(normalised(*layers)), 0
    optimizer = problem.optimizer(name)
    with Beside(lambda: torch.randint(2**62, (3,)).tolist()) as beside:

        def closure(k):
            nonlocal calls
            calls += 1
            losses = problem.losses(k)
            if calls > 1 and (calls % 2 == 0 or when == "both") != (when == "second evaluation"):
                beside()
            return losses

        for k in range(5):
            optimizer.step(lambda k=k: closure(k))
            before = len(beside.results)
            beside()
            fresh = set(beside.results[-1])
            assert len(fresh) == 3
            assert all(fresh.isdisjoint(drawn) for drawn in beside.results[:before])
        if when != "both":
            drawn = [number for numbers in beside.results for number in numbers]
            assert len(set(drawn)) == len(drawn)
    assert calls == 9


def test_a_closure_that_draws_nothing_leaves_the_generator_alone(monkeypatch):
    problem = Problem()
    optimizer = problem.optimizer("ASCDRO", started=True)
    monkeypatch.setattr(torch, "set_rng_state", lambda _: pytest.fail("nothing was drawn"))
    optimizer.step(problem.losses)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("name", TWO_POINT)
def test_statistics_move_once_as_by_one_forward(name, momentum):
    problem = problem_with(normalised(nn.BatchNorm1d(4, momentum=momentum), nn.Dropout(0.3)))
    optimizer = problem.optimizer(name, module=problem.model)
    for k in range(5):
        single = copy.deepcopy(problem.model)
        state = torch.get_rng_state()
        single(problem.x[k])
        torch.set_rng_state(state)
        optimizer.step(lambda k=k: problem.losses(k))
        assert differences(dict(single.named_buffers()), dict(problem.model.named_buffers())) == []
        assert problem.model[1].num_batches_tracked == k + 1


@pytest.mark.parametrize("name", TWO_POINT)
def test_the_two_points_are_the_previous_and_the_present(name):
    problem, seen = Problem(), []
    optimizer = problem.optimizer(name)

    def closure(k):
        seen.append(problem.model.weight.detach().clone())
        return problem.losses(k)

    trajectory = []
    for k in range(4):
        trajectory.append(problem.model.weight.detach().clone())
        optimizer.step(lambda k=k: closure(k))
    expected = [trajectory[0]]
    for previous, present in pairwise(trajectory):
        expected += [previous, present]
    assert differences(seen, expected) == []
    assert not torch.equal(trajectory[0], trajectory[1])


@pytest.mark.parametrize("name", TWO_POINT)
def test_both_points_see_the_same_masks(name):
    torch.manual_seed(0)
    problem = problem_with(normalised(nn.Dropout(0.5)))
    optimizer, masks, draws = problem.optimizer(name), [], []
    problem.model[1].register_forward_hook(
        lambda _, inputs, output: masks.append((output == 0).clone())
    )

    def closure(k):
        draws.append(torch.rand(7))
        return problem.losses(k)

    for k in range(4):
        optimizer.step(lambda k=k: closure(k))
    assert len(masks) == len(draws) == 7
    for recorded in (masks, draws):
        for i in (1, 3, 5):
            assert torch.equal(recorded[i], recorded[i + 1])
            assert not torch.equal(recorded[i - 1], recorded[i])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_random_state_moves_as_by_one_evaluation(name):
    problem = problem_with(normalised(nn.Dropout(0.5)))
    optimizer = problem.optimizer(name)
    for k in range(3):
        torch.manual_seed(k)
        problem.losses(k)
        once = torch.get_rng_state()
        torch.manual_seed(k)
        optimizer.step(lambda k=k: problem.losses(k))
        assert torch.equal(torch.get_rng_state(), once)


@pytest.mark.parametrize("name", TWO_POINT)
def test_buffers_and_random_state_after_a_failed_rehearsal(name):
    problem = problem_with(normalised(nn.BatchNorm1d(4), nn.Dropout(0.5)))
    optimizer = problem.optimizer(name, started=True, module=problem.model)
    before, state = problem.snapshot(optimizer), torch.get_rng_state()
    with pytest.raises(NonFiniteLossError):
        optimizer.step(lambda: with_value(NAN)(problem.losses()))
    assert differences(before, problem.snapshot(optimizer)) == []
    assert torch.equal(torch.get_rng_state(), state)


class CtrlC:
    """Interrupts at the k-th line that runs in the library's files, as Ctrl-C does at any moment."""

    def __init__(self, k):
        self.left = k

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _trace(self, frame, event, _):
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


@pytest.mark.parametrize("name", ["ASCDRO", "RASCDRO", "RECOVER", "AccMDA"])
def test_ctrl_c_leaves_one_point(name):
    """At every line of a step: each parameter is that of w_t, or of w_{t+1}, never that of w_{t-1}."""
    makers = {
        "RECOVER": lambda params: RECOVER(params, 0.1, beta=0.5),
        "AccMDA": lambda params: AccMDA(params, 0.1, 0.5, n=30),
    }

    def third_step(interrupted):
        problem = Problem()
        opt = makers.get(name, lambda params: make(name, params))(problem.model.parameters())
        index = torch.arange(5)
        for k in range(2):
            opt.step(lambda k=k: problem.losses(k), index)
        before = copy.deepcopy(list(problem.model.parameters()))
        try:
            with interrupted:
                opt.step(lambda: problem.losses(2), index)
            done = True
        except KeyboardInterrupt:
            done = False
        return done, before, list(problem.model.parameters())

    _, _, after = third_step(nullcontext())
    for k in count(1):
        done, before, left = third_step(CtrlC(k))
        assert all(
            torch.equal(p, a) or torch.equal(p, b)
            for p, a, b in zip(left, before, after, strict=True)
        ), k
        if done:
            break
    assert k > 100
