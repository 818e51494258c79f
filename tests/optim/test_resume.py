"""A run that is stopped, saved, loaded into fresh objects and continued equals the uninterrupted one, bit for bit."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from equality import assert_identical, leaves, saved_and_loaded
from scdro import ASCDRO, SCDRO, KLRobustLoss
from scdro.errors import CheckpointError
from scdro.optim import RASCDRO, RSCDRO, Stage
from scdro.printed import PrintedTemperature
from scdro.temperature import WindowTemperature

STEPS, STOP, D, K = 30, 13, 6, 4
ALGORITHMS = [SCDRO, ASCDRO, RSCDRO, RASCDRO]
TEMPERATURES = {
    "default": WindowTemperature,
    "default, initial": lambda: WindowTemperature(0.6),
    "rate of s": lambda: WindowTemperature(memory=16),
    "printed": lambda: PrintedTemperature(initial=1.2),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def batch(t, dtype):
    g = torch.Generator().manual_seed(100 + t)
    return torch.randn(10, D, generator=g).to(dtype), torch.randint(K, (10,), generator=g)


def linear(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Linear(D, K).to(dtype)


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(D, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, K)
    ).to(dtype)


class Run:
    """A model, an optimizer and what else has state; `step` trains on batch t, `state` is all there is to save."""

    def __init__(
        self, make_model, make_optimizer, dtype=torch.float32, make_schedule=None, tamper=None
    ):
        self.model, self.dtype, self.tamper = make_model(dtype), dtype, tamper
        self.optimizer = make_optimizer(self.model)
        self.schedule = None if make_schedule is None else make_schedule(self.optimizer)
        self.parts = {"model": self.model, "optimizer": self.optimizer}
        if self.schedule is not None:
            self.parts["schedule"] = self.schedule

    def losses(self, t):
        x, y = batch(t, self.dtype)
        return cross_entropy(self.model(x), y, reduction="none")

    def step(self, t):
        if self.tamper is not None:
            self.tamper(self, t)
        self.optimizer.step(lambda: self.losses(t))
        if self.schedule is not None:
            self.schedule.step()

    def state(self):
        return {
            "rng": torch.get_rng_state(),
            **{name: part.state_dict() for name, part in self.parts.items()},
        }

    def load(self, state):
        torch.set_rng_state(state["rng"])
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


class LossRun(Run):
    def __init__(
        self,
        make_model,
        make_optimizer,
        make_loss,
        dtype=torch.float32,
        *,
        attached=False,
        parts=1,
        **more,
    ):
        super().__init__(make_model, make_optimizer, dtype, **more)
        self.robust = self.parts["robust"] = make_loss()
        self.micro = parts
        if attached:
            self.robust.attach(self.optimizer)

    def step(self, t):
        self.optimizer.zero_grad()
        x, y = batch(t, self.dtype)
        for rows in torch.arange(len(y)).chunk(self.micro):
            losses = cross_entropy(self.model(x[rows]), y[rows], reduction="none")
            (self.robust(losses) / self.micro).backward()
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()


def assert_resumes(make_run, *, steps=STEPS, stop=STOP, before_load=None):
    """Returns the uninterrupted run and the resumed one."""
    torch.manual_seed(7)
    whole = make_run()
    torch.manual_seed(8)
    for t in range(steps):
        whole.step(t)
    torch.manual_seed(7)
    first = make_run()
    torch.manual_seed(8)
    for t in range(stop):
        first.step(t)
    state = saved_and_loaded(first.state())
    del first
    torch.manual_seed(999)
    resumed = make_run()
    if before_load is not None:
        before_load(resumed)
    resumed.load(state)
    assert_identical(resumed.state(), state)
    for t in range(stop, steps):
        resumed.step(t)
    assert_identical(whole.state(), resumed.state())
    torch.manual_seed(7)
    fresh = make_run()
    moved = (
        a != b for a, b in zip(whole.model.parameters(), fresh.model.parameters(), strict=True)
    )
    assert any(change.any() for change in moved)
    return whole, resumed


STAGES = [Stage(0.05, 0.5, 8), Stage(0.03, 0.3, 9), Stage(0.01, 0.2, 5), Stage(0.005, 0.1, 0)]


def optimizer_for(algorithm, temperature="default", **settings):
    """With modules that have buffers, ASCDRO must know them."""

    def make(model, params=None):
        params = list(model.parameters()) if params is None else params
        more = {"module": model} if issubclass(algorithm, ASCDRO) else {}
        more |= {"temperature": TEMPERATURES[temperature](), **settings}
        if algorithm in (RSCDRO, RASCDRO):
            return algorithm(params, STAGES, 0.3, mu=0.01, **more)
        return algorithm(params, 0.02, 0.3, **more)

    return make


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_linear_model(algorithm, temperature, dtype):
    whole, resumed = assert_resumes(
        lambda: Run(linear, optimizer_for(algorithm, temperature), dtype)
    )
    assert whole.optimizer.lam.item() == resumed.optimizer.lam.item()
    assert whole.optimizer.log_s.item() == resumed.optimizer.log_s.item()
    assert resumed.optimizer.lam.dtype == resumed.optimizer.log_s.dtype == torch.float64
    state = leaves(resumed.optimizer.state_dict()["state"])
    own = {path: value for path, value in state.items() if algorithm.__name__ in path}
    assert len(own) >= 5
    assert all(
        v.dtype in (torch.float64, torch.int64) for v in own.values() if isinstance(v, torch.Tensor)
    )
    if algorithm in (RSCDRO, RASCDRO):
        assert whole.optimizer.stage == resumed.optimizer.stage == 3
        assert resumed.optimizer.param_groups[0]["beta"] == 0.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_network_with_dropout_and_batchnorm(algorithm, temperature, dtype):
    whole, _ = assert_resumes(lambda: Run(network, optimizer_for(algorithm, temperature), dtype))
    assert whole.model[1].num_batches_tracked == STEPS


@pytest.mark.parametrize("stop", [0, 1, 29])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_stopped_before_the_first_after_the_first_and_before_the_last_step(
    algorithm, temperature, stop
):
    assert_resumes(lambda: Run(linear, optimizer_for(algorithm, temperature)), stop=stop)


@pytest.mark.parametrize("stop", [7, 8, 17, 22])
@pytest.mark.parametrize("algorithm", [RSCDRO, RASCDRO])
def test_stopped_at_the_end_of_a_stage(algorithm, stop):
    assert_resumes(lambda: Run(linear, optimizer_for(algorithm)), stop=stop)


@pytest.mark.parametrize(
    "settings",
    [
        {"weight_decay": 0.1},
        {"radius": 0.8},
        {"trim": 0.13},
        {"window": 25},
        {"loss_bound": 60.0},
        {"skip_nonfinite": True},
        {"beta": 1.0},
    ],
    ids=lambda settings: next(iter(settings)),
)
@pytest.mark.parametrize("algorithm", [SCDRO, ASCDRO])
def test_settings(algorithm, settings):
    assert_resumes(lambda: Run(linear, optimizer_for(algorithm, **settings)))


@pytest.mark.parametrize("algorithm", [SCDRO, ASCDRO])
def test_a_state_dict_is_loaded_over_a_used_optimizer(algorithm):
    """What the fresh object did before loading leaves no trace."""

    def use(run):
        for t in range(40, 45):
            run.step(t)

    assert_resumes(lambda: Run(linear, optimizer_for(algorithm)), before_load=use)


def test_loading_an_unused_state_into_a_used_optimizer_starts_anew():
    unused = saved_and_loaded(Run(linear, optimizer_for(SCDRO)).state())
    run, fresh = (Run(linear, optimizer_for(SCDRO)) for _ in range(2))
    for t in range(5):
        run.step(t)
    run.load(unused)
    for t in range(5):
        run.step(t)
        fresh.step(t)
    assert_identical(run.state()["model"], fresh.state()["model"])
    assert_identical(run.state()["optimizer"], fresh.state()["optimizer"])


def test_saving_does_not_disturb_a_run():
    a, b = (Run(linear, optimizer_for(ASCDRO)) for _ in range(2))
    for t in range(STEPS):
        a.step(t)
        saved_and_loaded(b.state())
        b.step(t)
    assert_identical(a.state()["optimizer"], b.state()["optimizer"])


def test_a_saved_state_does_not_move_with_the_optimizer():
    """state_dict holds references in torch; saved through a file it is fixed, and loading copies."""
    run = Run(linear, optimizer_for(SCDRO))
    for t in range(STOP):
        run.step(t)
    state = saved_and_loaded(run.state())
    kept = saved_and_loaded(state)
    resumed = Run(linear, optimizer_for(SCDRO))
    resumed.load(state)
    for t in range(STOP, STEPS):
        resumed.step(t)
    own = {"SCDRO.recent", "SCDRO.scalars"}
    assert own < state["optimizer"]["state"][0].keys()
    assert_identical(
        *({key: s["optimizer"]["state"][0][key] for key in own} for s in (state, kept))
    )


@pytest.mark.parametrize(
    "schedule",
    [lambda opt: StepLR(opt, 4, gamma=0.7), lambda opt: CosineAnnealingLR(opt, STEPS)],
    ids=["StepLR", "CosineAnnealingLR"],
)
@pytest.mark.parametrize("temperature", ["default", "printed"])
@pytest.mark.parametrize("algorithm", [SCDRO, ASCDRO])
def test_schedules(algorithm, temperature, schedule):
    whole, _ = assert_resumes(
        lambda: Run(linear, optimizer_for(algorithm, temperature), make_schedule=schedule)
    )
    assert whole.optimizer.param_groups[0]["lr"] < 0.01


@pytest.mark.parametrize("algorithm", [SCDRO, ASCDRO])
def test_a_step_size_that_is_a_tensor(algorithm):
    def make(model, lr):
        opt = optimizer_for(algorithm, "printed")(model)
        opt.param_groups[0]["lr"] = lr
        return opt

    schedule = {"make_schedule": lambda opt: CosineAnnealingLR(opt, STEPS)}
    number = Run(linear, lambda model: make(model, 0.02), torch.float64, **schedule)
    whole, _ = assert_resumes(
        lambda: Run(
            linear,
            lambda model: make(model, torch.tensor(0.02, dtype=torch.float64)),
            torch.float64,
            **schedule,
        )
    )
    for t in range(STEPS):
        number.step(t)
    torch.testing.assert_close(whole.model.weight, number.model.weight, rtol=1e-12, atol=1e-12)
    assert whole.optimizer.lam.item() == pytest.approx(number.optimizer.lam.item(), rel=1e-12)


def test_a_schedule_sets_the_step_of_lam_too():
    """As printed, lam shares the optimizer's step size: with lr 0 from now on, neither moves."""
    run = Run(
        linear, optimizer_for(SCDRO, "printed"), make_schedule=lambda opt: StepLR(opt, 3, gamma=0.0)
    )
    for t in range(3):
        run.step(t)
    lam = run.optimizer.lam.item()
    run.step(3)
    assert run.optimizer.lam.item() == lam


def grouped(algorithm, temperature):
    def make(model):
        groups = [
            {"params": [model[0].weight, model[0].bias], "lr": 0.01, "weight_decay": 0.1},
            {"params": list(model[1].parameters())},
            {"params": list(model[4].parameters()), "weight_decay": 0.02},
        ]
        return optimizer_for(algorithm, temperature)(model, groups)

    return make


@pytest.mark.parametrize("temperature", ["default", "printed"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parameter_groups(algorithm, temperature):
    whole, _ = assert_resumes(lambda: Run(network, grouped(algorithm, temperature)))
    rates = [group["lr"] for group in whole.optimizer.param_groups]
    assert rates[0] != rates[1] == rates[2]
    assert [group["weight_decay"] for group in whole.optimizer.param_groups] == [0.1, 0.0, 0.02]


@pytest.mark.parametrize("algorithm", [SCDRO, ASCDRO])
def test_parameter_groups_are_scheduled_one_by_one(algorithm):
    assert_resumes(
        lambda: Run(
            network,
            grouped(algorithm, "default"),
            make_schedule=lambda opt: StepLR(opt, 5, gamma=0.5),
        )
    )


@pytest.mark.parametrize("added_at", [5, 20])
@pytest.mark.parametrize("temperature", ["default", "printed"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_group_added_later(algorithm, temperature, added_at):
    """The bias joins after some steps; where that was before the stop, the fresh optimizer is given both groups."""

    def make(model):
        return optimizer_for(algorithm, temperature)(model, [model.weight])

    def add(run, t):
        if t == added_at:
            run.optimizer.add_param_group({"params": [run.model.bias], "lr": 0.004})

    def before_load(run):
        if added_at < STOP:
            run.optimizer.add_param_group({"params": [run.model.bias], "lr": 0.004})

    whole, _ = assert_resumes(lambda: Run(linear, make, tamper=add), before_load=before_load)
    assert len(whole.optimizer.param_groups) == 2
    assert (whole.model.bias != linear().bias).any()


class TwoHeads(nn.Module):
    """The second head is never used, and the embedding's first layer is frozen."""

    def __init__(self):
        super().__init__()
        self.frozen, self.body = nn.Linear(D, D), nn.Linear(D, 8)
        self.used, self.unused = nn.Linear(8, K), nn.Linear(8, K)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.used(torch.relu(self.body(self.frozen(x))))


def two_heads(dtype):
    torch.manual_seed(0)
    return TwoHeads().to(dtype)


@pytest.mark.parametrize("temperature", ["default", "printed"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parameters_without_gradient(algorithm, temperature):
    whole, _ = assert_resumes(lambda: Run(two_heads, optimizer_for(algorithm, temperature)))
    untouched = two_heads(torch.float32)
    for ours, theirs in (
        (whole.model.frozen, untouched.frozen),
        (whole.model.unused, untouched.unused),
    ):
        assert torch.equal(ours.weight, theirs.weight)
        assert torch.equal(ours.bias, theirs.bias)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parameters_frozen_and_thawed_on_the_way(algorithm):
    def tamper(run, t):
        run.model[0].requires_grad_(not 5 <= t < 16)

    frozen = {"before_load": lambda run: tamper(run, STOP - 1)}
    assert_resumes(lambda: Run(network, optimizer_for(algorithm), tamper=tamper), **frozen)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_frozen_parameters_stand_still(algorithm):
    run = Run(network, optimizer_for(algorithm))
    for t in range(20):
        run.model[0].requires_grad_(not 5 <= t < 15)
        before = run.model[0].weight.detach().clone()
        run.step(t)
        assert torch.equal(run.model[0].weight, before) == (5 <= t < 15)


def test_the_previous_point_of_a_parameter_that_stood_still_is_where_it_stood():
    """ASCDRO: x_{t-1} is the point of the last step for every parameter, whether it moved then or not."""
    seen = []
    a, b = (nn.Parameter(torch.tensor([1.0], dtype=torch.float64)) for _ in range(2))
    opt = ASCDRO([a, b], 0.1, 0.3, temperature=PrintedTemperature(initial=1.0))
    history = []
    for t in range(4):
        use_b = t != 1

        def closure(use_b=use_b):
            seen.append((a.item(), b.item()))
            return torch.cat([(a - 3) ** 2, (a + 1) ** 2]) + (b**2 if use_b else 0.0)

        history.append((a.item(), b.item()))
        seen.clear()
        opt.step(closure)
        if t:
            assert seen[0] == history[t - 1], t
        assert seen[-1] == history[t]


# -- KLRobustLoss ---

TORCH_OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(
        model.parameters(), 0.02, momentum=0.9, dampening=0.9, weight_decay=0.01
    ),
    "adam": lambda model: torch.optim.Adam(model.parameters(), 0.01),
}
LOSSES = {
    "default": lambda: KLRobustLoss(0.3),
    "default, initial": lambda: KLRobustLoss(0.3, temperature=WindowTemperature(0.6)),
    "rate of s": lambda: KLRobustLoss(0.3, temperature=WindowTemperature(memory=16)),
    "printed": lambda: KLRobustLoss(0.3, temperature=PrintedTemperature(initial=1.2, lr=0.02)),
    "trim": lambda: KLRobustLoss(0.3, trim=0.13, window=25, skip_nonfinite=True),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("optimizer", TORCH_OPTIMIZERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_with_torch_optimizers(loss, optimizer, dtype):
    whole, resumed = assert_resumes(
        lambda: LossRun(network, TORCH_OPTIMIZERS[optimizer], LOSSES[loss], dtype)
    )
    assert whole.robust.lam.item() == resumed.robust.lam.item()
    assert all(b.dtype in (torch.float64, torch.int64) for b in resumed.robust.buffers())


@pytest.mark.parametrize("stop", [0, 1, STOP])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
def test_attached_loss(loss, parts, stop):
    assert_resumes(
        lambda: LossRun(linear, TORCH_OPTIMIZERS["adam"], LOSSES[loss], attached=True, parts=parts),
        stop=stop,
    )


def test_loss_with_a_schedule():
    assert_resumes(
        lambda: LossRun(
            linear,
            TORCH_OPTIMIZERS["sgd"],
            LOSSES["default"],
            make_schedule=lambda opt: CosineAnnealingLR(opt, STEPS),
        )
    )


def test_loss_as_a_part_of_the_model():
    """Saved and loaded with the model's own state_dict."""

    def make(dtype):
        torch.manual_seed(0)
        return nn.ModuleDict({"net": nn.Linear(D, K), "robust": KLRobustLoss(0.3)}).to(dtype)

    class Nested(Run):
        def step(self, t):
            self.optimizer.zero_grad()
            x, y = batch(t, self.dtype)
            self.model["robust"](
                cross_entropy(self.model["net"](x), y, reduction="none")
            ).backward()
            self.optimizer.step()

    _, resumed = assert_resumes(lambda: Nested(make, TORCH_OPTIMIZERS["adam"], torch.bfloat16))
    assert resumed.model["robust"].lam.dtype == torch.float64


# -- what must not be loaded ---


@pytest.mark.parametrize(
    ("saved", "target"),
    [
        (optimizer_for(SCDRO), optimizer_for(ASCDRO)),
        (optimizer_for(SCDRO), optimizer_for(RSCDRO)),
        (optimizer_for(SCDRO), optimizer_for(SCDRO, "printed")),
        (optimizer_for(SCDRO), optimizer_for(SCDRO, window=100)),
        (TORCH_OPTIMIZERS["sgd"], optimizer_for(SCDRO)),
    ],
)
def test_foreign_states_are_refused_and_change_nothing(saved, target):
    source, run = Run(linear, optimizer_for(SCDRO)), Run(linear, target)
    for t in range(3):
        run.step(t)
    source.optimizer = saved(source.model)
    before = saved_and_loaded(run.optimizer.state_dict())
    with pytest.raises(CheckpointError):
        run.optimizer.load_state_dict(saved_and_loaded(source.optimizer.state_dict()))
    assert_identical(run.optimizer.state_dict(), before)
