"""Table 1, measured: what runs, where it is looked at, what a step costs, and going on after a stop."""

import json
import math
import sys
import threading
import time
import zlib

import numpy as np
import pytest
import torch

import twins
from reproduction import table1
from reproduction.engine.folder import locked
from reproduction.table1.cost import STEPPERS, step_seconds
from reproduction.table1.figure import draw
from reproduction.table1.methods import BATCH, ROWS
from reproduction.table1.problems import PROBLEMS
from reproduction.table1.results import points, step_slope
from reproduction.table1.runs import measure, strata
from reproduction.table1.schedules import Ascdro, Restarts, Scdro
from scdro.errors import CheckpointError, HyperparameterError, MissingDataError
from scdro.printed import PrintedTemperature, Storm
from scdro.temperature import MovingAverage

ROW = {row.key: row for row in ROWS}


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.algorithm.endswith("SCDRO")], ids=lambda row: row.key
)
def test_the_printed_update_runs(row):
    problem = PROBLEMS[row.problem]
    opt = row.plan(problem, problem.start().requires_grad_(), 50).opt
    assert isinstance(opt.temperature, PrintedTemperature)
    assert type(opt).__name__ == row.algorithm
    assert opt._method_state.tracker == (Storm() if "AS" in row.algorithm else MovingAverage())


def test_random_iterates_stand_for_all_of_them():
    generator = torch.Generator().manual_seed(0)
    curve = 100.0 / (1 + torch.arange(1000, dtype=torch.float64)) ** 2 + 0.1
    means = []
    for _ in range(400):
        looks = strata(1000, 24, generator)
        positions = [look.position for look in looks]
        assert positions == sorted(set(positions))
        assert 0 <= positions[0] <= positions[-1] < 1000
        assert sum(look.share for look in looks) == pytest.approx(1)
        means.append(sum(look.share * float(curve[look.position]) for look in looks))
    assert np.mean(means) == pytest.approx(float(curve.mean()), rel=0.01)


def by_hand(problem):
    """Losses and gradients of samples, a row each, for the twins."""
    x, y = problem.x.numpy(), problem.y.numpy()

    def batch(index):
        def evaluate(w):
            r = x[index] @ w[: x.shape[1]] - y[index]
            if not problem.convex:
                return r**2 / (1 + r**2), (2 * r / (1 + r**2) ** 2)[:, None] * x[index]
            losses, gradients = np.sqrt(1 + r**2) - 1, (r / np.sqrt(1 + r**2))[:, None] * x[index]
            if not problem.tail:
                return losses, gradients
            falling = np.full((len(index), 1), -2 / (1 + math.exp(2 * w[-1])))
            return losses + math.log1p(math.exp(-2 * w[-1])), np.hstack([gradients, falling])

        return evaluate

    return batch


@pytest.mark.parametrize(
    "key", ["SCDRO on bounded", "ASCDRO on bounded", "RSCDRO on flat", "RASCDRO on curved"]
)
def test_a_run_is_the_algorithm_as_printed(key):
    """Against the literal twins, which know nothing of scdro, on the same samples."""
    row = ROW[key]
    problem, schedule = PROBLEMS[row.problem], row.settings["schedule"]
    horizon = 400 if isinstance(schedule, Restarts) else 40
    shared = {"lam0": problem.lam0, "bound": problem.loss_bound, "radius": problem.radius}
    kind = twins.Ascdro if "AS" in row.algorithm else twins.Scdro
    eta, beta = schedule.at(horizon) if isinstance(schedule, Scdro) else (0.0, 0.0)
    if isinstance(schedule, Restarts):
        shared.update(stages=schedule.stages(horizon), mu=schedule.target(horizon)[1])
        assert len(shared["stages"]) > 1
    twin = kind(problem.start().numpy(), problem.first_lam, problem.rho, eta, beta, **shared)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{key}/{horizon}/3".encode()))
    first = horizon - schedule.stages(horizon)[-1].steps if isinstance(schedule, Restarts) else 0
    shares = {first + position: share for position, share in strata(horizon - first, 16, generator)}
    total, batch = 0.0, by_hand(problem)
    for t in range(horizon):
        w, lam = torch.from_numpy(np.array(twin.w)), float(twin.lam)
        if t in shares and problem.convex:
            total += shares[t] * (problem.value(w, lam) - problem.optimum().value)
        elif t in shares:
            total += shares[t] * problem.stationarity(w, lam)
        if isinstance(schedule, Ascdro):
            twin.eta, twin.beta = schedule.at(t + 1)
        twin.step(
            batch(torch.randint(problem.n, (BATCH[problem.name],), generator=generator).numpy())
        )
    assert measure(key, horizon, 3, 16)["value"] == pytest.approx(total, rel=1e-8)


def test_a_run_depends_on_its_seed_alone():
    first, again, other = (measure("SPD on curved", 20, seed, 8) for seed in (0, 0, 1))
    assert first == again
    assert first["value"] != other["value"]
    assert first["samples"] == 20 * BATCH["curved"]


@pytest.mark.parametrize("horizon", [11, 29, 31, 200])
def test_passes_of_pgsmd2_are_counted(horizon, monkeypatch):
    row = next(row for row in ROWS if row.algorithm == "PG-SMD2")
    problem, passes = PROBLEMS[row.problem], []
    w = problem.start().requires_grad_()
    plan = row.plan(problem, w, horizon)
    looked, generator = plan.opt._all_losses, torch.Generator().manual_seed(0)
    monkeypatch.setattr(plan.opt, "_all_losses", lambda: passes.append(problem.n) or looked())
    for _ in range(horizon):
        index = plan.opt.draw(plan.batch, generator)
        plan.opt.step(lambda index=index: problem.losses(w, index), index)
    assert len(passes) == plan.passes
    assert measure(row.key, horizon, 0, 4)["samples"] == horizon * plan.batch + sum(passes)


def test_fastdro_sees_as_many_samples_in_batches_of_their_cube_root():
    row, problem = ROW["FastDRO on curved"], PROBLEMS["curved"]
    plan = row.plan(problem, problem.start().requires_grad_(), 8000)
    assert plan.batch == 40
    assert plan.steps * plan.batch == pytest.approx(8000 * BATCH["curved"], rel=0.01)


def test_cost_of_a_step_grows_only_where_a_number_is_kept_for_each_sample():
    timings = [
        {"method": name, "n": n, "seconds": step_seconds(name, n, 0.02)}
        for name in ("SCDRO", "AccMDA")
        for n in (10**4, 10**6)
    ]
    assert set(STEPPERS) >= {row.algorithm for row in ROWS}
    assert step_slope("AccMDA", timings)[0] > step_slope("SCDRO", timings)[0] + 0.3


# -- a killed run goes on
# ---------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


def kill_after(calls):
    def progress(done, total, text):
        nonlocal calls
        calls -= 1
        if calls <= 0:
            raise Killed

    return progress


def deterministic(folder):
    """All that is written but times."""
    csv = (folder / "table.csv").read_text().splitlines()
    text = (folder / "table.md").read_text().split("CPU milliseconds")[0].splitlines()
    return [line.rsplit(",", 2)[0] for line in csv], [line.rsplit("|", 2)[0] for line in text]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_gives_the_same_table(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    table1.run(whole, "smoke", workers=2)
    for calls in (1, 7, 20):
        with pytest.raises(Killed):
            table1.run(parts, "smoke", progress=kill_after(calls))
        with open(parts / "runs.jsonl", "ab") as file:
            file.write(b'{"row": "SCDRO on bou')  # cut short
    before = (parts / "runs.jsonl").read_bytes()
    table1.run(parts, "smoke")
    assert (
        (parts / "runs.jsonl").read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    )  # append-only
    assert deterministic(whole) == deterministic(parts)
    records = [json.loads(line) for line in (parts / "runs.jsonl").read_text().splitlines()[1:]]
    size = table1.SCALES["smoke"]
    assert len(records) == len(ROWS) * len(size.horizons) * size.seeds
    assert all((whole / f"figure.{kind}").stat().st_size > 10_000 for kind in ("png", "svg"))


@pytest.fixture
def tiny(monkeypatch):
    size = table1.Scale((16, 32), 2, 4, (100, 1000), 0.001)
    monkeypatch.setitem(table1.SCALES, "tiny", size)
    return size


def test_records_that_are_there_twice_count_once(tmp_path, tiny):
    """As two processes at once left them before there was a lock, each with its own line of settings."""
    table1.run(tmp_path, "tiny")
    table = (tmp_path / "table.md").read_text()
    for name in ("runs.jsonl", "cost.jsonl"):
        path = tmp_path / name
        path.write_text("".join(2 * line for line in path.read_text().splitlines(keepends=True)))
    table1.run(tmp_path, "tiny")
    assert (tmp_path / "table.md").read_text() == table


def test_a_second_process_waits(tmp_path, tiny):
    """And then finds every record there."""
    said, ended = [], []

    def second():
        table1.run(tmp_path, "tiny", notice=said.append)
        ended.append(True)

    thread = threading.Thread(target=second)
    settings = table1._settings("tiny", tiny)
    with locked(tmp_path):
        thread.start()
        until = time.monotonic() + 60
        while not said and time.monotonic() < until:
            time.sleep(0.01)
        assert said == [f"waiting for another process in {tmp_path}"]
        table1._kept(
            tmp_path / "runs.jsonl",
            settings,
            table1._jobs(tiny),
            table1._job_of,
            1,
            lambda *a: None,
        )
        before = (tmp_path / "runs.jsonl").read_bytes()
        assert not ended
    thread.join()
    assert ended
    assert (tmp_path / "runs.jsonl").read_bytes() == before


def test_other_settings_do_not_mix(tmp_path):
    (tmp_path / "runs.jsonl").write_text('{"scale": "other"}\n')
    with pytest.raises(CheckpointError, match=r"scale.*other.*smoke"):
        table1.run(tmp_path, "smoke")
    with pytest.raises(HyperparameterError, match="smoke, small, paper"):
        table1.run(tmp_path, "large")
    with pytest.raises(HyperparameterError, match="at least one worker"):
        table1.run(tmp_path, "smoke", workers=0)


def test_without_matplotlib_the_error_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDataError, match="pip install matplotlib"):
        draw(tmp_path, [], [])


def test_a_diverged_run_is_counted_and_left_out():
    record = {"row": "SCDRO on bounded", "samples": 10, "late": 0.5}
    records = [
        {
            **record,
            "horizon": horizon,
            "seed": seed,
            "value": None if (horizon, seed) == (2, 0) else 1.0 / horizon,
        }
        for horizon in (1, 2)
        for seed in range(3)
    ]
    found = points(ROW["SCDRO on bounded"], records)
    assert found.diverged == 1
    assert [len(values) for values in found.values] == [3, 2]
