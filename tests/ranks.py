"""Runs of several processes: each case is a function of a `World`, the same for one process and for many.

python ranks.py RANK FOLDER [compiled]      is one of four; it writes what its cases gave into the folder
"""

import math
import os
import sys
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, TensorDataset

import scdro
from convex import DISTINCT, METHODS
from reproduction.baselines import SPD
from scdro.distributed import RankBatches, finish, gathered, shard
from scdro.optim import ERM, FastDRO
from scdro.optim.baselines.fastdro import Multilevel

N, D, K, RHO, STEPS = 60, 4, 3, 0.05, 6
SIZES = (
    16,
    16,
    11,
    16,
    5,
    8,
)  # of the joined batches; the fourth leaves a process without a sample


class World:
    """One process, or those of a group: how they wrap a model and cut a batch."""

    def __init__(self, group=False, wrapper="none", layers=True):
        self.group, self.wrapper, self.layers = group, wrapper, layers
        self.size = 1 if group is False else dist.get_world_size(group)
        self.rank = 0 if group is False else dist.get_rank(group)

    def wrap(self, model, **settings):
        if self.wrapper == "ddp":
            return DistributedDataParallel(model, process_group=self.group, **settings)
        if self.wrapper == "fsdp":
            mesh = DeviceMesh.from_group(self.group or dist.group.WORLD, "cpu")
            for layer in model if self.layers else ():
                if list(layer.parameters()):
                    fully_shard(layer, mesh=mesh)
            return fully_shard(model, mesh=mesh)
        return model

    def part(self, index, step):
        """Of unequal sizes, and at one step empty for the first process."""
        if self.size == 1:
            return index
        shares = torch.tensor([1.0 + (rank + step) % self.size for rank in range(self.size)])
        if step == 3:
            shares[0] = 0.0
        ends = (shares.cumsum(0) / shares.sum() * len(index)).round().int().tolist()
        return index[([0, *ends])[self.rank] : ends[self.rank]]


def data():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(N, D, generator=generator, dtype=torch.float64)
    y = torch.randint(K, (N,), generator=generator)
    return x + 0.8 * F.one_hot(y, D), y


def new_model():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, K)).double()


def batches(sizes=SIZES):
    generator = torch.Generator().manual_seed(8)
    return [torch.randint(N, (size,), generator=generator) for size in sizes]


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in gathered(list(model.parameters()))])


def own_settings(name):
    """Usual values, but dual steps with which p meets the wall of its ball."""
    averaged = {"beta": 0.3} if "SCDRO" in name or name == "RECOVER" else {}
    printed = {"lam": 10.0} if name.endswith("-printed") else {}
    others = {
        "FastDRO-MLMC": {"smallest": 4, "largest": 16},
        "FastDRO-CVaR": {"alpha": 0.5},
        "FastDRO-chi2-penalty": {"reg": 10.0},
        "DualSGM": {"lam": 10.0, "dual_lr": 1.0},
        "SPD": {"dual_lr": 0.05},
        "PGSMD2": {"dual_lr": 0.05, "stage_steps": 2},
        "AccMDA": {"dual_lr": 0.05},
        "RECOVER": {"lam": 100.0},
        "ABSGD": {"lam": 10.0, "gamma": 0.9},
        "TERM": {"lam": 10.0, "gamma": 1.0},
        "GroupDRO": {"dual_lr": 0.1},
        "Focal": {"gamma": 2.0},
        "ClassBalanced": {"balance": 0.9999},
    }
    return {"lr": 0.1} | averaged | printed | others.get(name, {})


class AllLosses:
    """Of PG-SMD2; a class, so that it is copied and pickled with the model."""

    def __init__(self, model, x, y):
        self.model, self.x, self.y = model, x, y

    def __call__(self):
        return F.cross_entropy(self.model(self.x), self.y, reduction="none")


class Training:
    """A registered method on a world."""

    def __init__(self, world, name, ddp=None, dtype=torch.float64, named=False, **settings):
        self.world, self.name, self.inner = world, name, new_model().to(dtype)
        self.model = world.wrap(self.inner, **(ddp or {}))
        method, own = METHODS[name], own_settings(name)
        x, y = data()
        x = x.to(dtype)
        self.per_sample = method.per_sample(torch.bincount(y), **own)
        part = list(shard(N, world.group))
        task = {"rho": RHO, "n": N, "groups": y, "module": self.model, "milestones": [2, 4]}
        task["all_losses"] = AllLosses(self.inner, x[part], y[part])
        settings = {"weight_decay": 0.01, "radius": 1.9, "process_group": world.group} | settings
        params = self.model.named_parameters() if named else self.model.parameters()
        self.opt = method.build(params, task, **(own | settings))
        self.draw()
        self.losses = lambda index: self.per_sample(self.model(x[index]), y[index])

    def draw(self):
        """SPD wants to see that batches are drawn from p."""
        if isinstance(self.opt, SPD):
            self.opt.draw(1, torch.Generator().manual_seed(0))

    def step(self, joined, number, **settings):
        index = self.world.part(joined, number)
        return self.opt.step(lambda: self.losses(index), index, **settings)

    def outcome(self, values):
        found = {
            "w": flat(self.model),
            "values": torch.stack([torch.as_tensor(v).double() for v in values]),
        }
        for name in ("lam", "log_s", "kl", "weights", "group_weights"):
            if hasattr(self.opt, name):
                found[name] = torch.as_tensor(getattr(self.opt, name)).clone()
        return found


def train(world, name, ddp=None, looks=False, **settings):
    """Six steps on batches of unequal parts; `looks` evaluates the model in between.

    FSDP2 keeps the parameters that the root gathered for that, though the optimizer may change them
    since.
    """
    world.layers = not looks
    t, values = Training(world, name, ddp, **settings), []
    sizes = (16, 8, 16, 16, 8, 16) if name == "FastDRO-MLMC" else SIZES
    for number, joined in enumerate(batches(sizes)):
        values.append(t.step(joined, number))
        if looks:
            with torch.no_grad():
                t.model(data()[0])
    return t.outcome(values)


def clipped(world, name):
    t = Training(world, name)
    return t.outcome([t.step(joined, i, max_grad_norm=0.1) for i, joined in enumerate(batches())])


def skipping(world, name):
    """The last process has a NaN in the second batch: all leave it out, and no other."""
    t, values = Training(world, name, skip_nonfinite=True), []
    for number, joined in enumerate(batches()):
        index = world.part(joined, number)
        bad = number == 1 and world.rank == world.size - 1
        values.append(
            t.opt.step(lambda i=index, bad=bad: t.losses(i) * (math.nan if bad else 1.0), index)
        )
    assert t.opt.skipped == 1
    return t.outcome(values)


def resumed(world, name):
    """Half of the steps, a state saved whole, and the rest by another object."""
    first, all_batches = Training(world, name), batches()
    values = [first.step(joined, i) for i, joined in enumerate(all_batches[:3])]
    state = gathered(first.opt.state_dict())
    second = Training(world, name)
    with torch.no_grad():
        for p, q in zip(second.model.parameters(), first.model.parameters(), strict=True):
            p.copy_(q)
    second.opt.load_state_dict(state)
    values += [second.step(joined, i) for i, joined in enumerate(all_batches[3:], 3)]
    return second.outcome(values)


def robust_loss(
    world,
    weighted=False,
    grouped=False,
    parts=1,
    sync=True,
    compiled=False,
    sizes=SIZES,
    **settings,
):
    """KLRobustLoss with SGD; `parts` micro-batches to a step."""
    model = world.wrap(new_model())
    robust = scdro.KLRobustLoss(rho=0.3, beta=0.3, process_group=world.group, **settings)
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.7)
    call = torch.compile(robust, backend="aot_eager") if compiled else robust
    if parts > 1:
        robust.attach(opt)
    (x, y), values = data(), []
    for number, joined in enumerate(batches(sizes)):
        opt.zero_grad()
        for k, micro in enumerate(joined.tensor_split(parts)):
            index = world.part(micro, number)
            extra = {"groups": y[index]} if grouped else {}
            if weighted and number not in (0, 2):  # the first batch and one in between have none
                extra |= {"sample_weight": 0.5 + (index % 3), "mask": index % 7 != 0}
            last = sync or k == parts - 1
            with nullcontext() if last or world.wrapper != "ddp" else model.no_sync():
                loss = call(F.cross_entropy(model(x[index]), y[index], reduction="none"), **extra)
                (loss / parts).backward()
        values.append(loss.detach())
        opt.step()
    return {
        "w": flat(model),
        "values": torch.stack(values),
        "lam": robust.lam,
        "recent": robust.state.recent.clone(),
    }


def drawn(world):
    """What the method's own samplers draw, joined again, and how often each sample comes."""
    t = Training(world, "SPD")
    for number, joined in enumerate(batches()):
        t.step(joined, number)
    seen = list(t.opt.batch_sampler(8000 // world.size, steps=2, seed=1))
    levels = FastDRO(t.model.parameters(), multilevel=Multilevel(2, 8), process_group=world.group)
    small = list(levels.batch_sampler(n=N, steps=20, seed=1))
    plain = METHODS["ERM"].batches(
        ERM(t.model.parameters(), process_group=world.group), N, 5, seed=2
    )
    return {
        "weights": t.opt.weights,
        "seen": torch.tensor(seen),
        "small": small,
        "plain": [list(index) for index in plain],
    }


def evaluated(world):
    """Shards of unequal sizes, one after the other."""
    x, y = data()
    cuts = {1: [0, N], 2: [0, 13, N], 4: [0, 13, 30, 31, N]}[world.size]
    mine = slice(cuts[world.rank], cuts[world.rank + 1])
    loader = list(zip(x[mine].split(7), y[mine].split(7), strict=True))
    loss = nn.CrossEntropyLoss(reduction="none")
    report = scdro.evaluate(
        new_model(), loader, loss, rho=0.5, hardest=9, process_group=world.group
    )
    names = ("value", "mean", "lam", "kl", "ess", "hardest", "losses", "weights")
    return {name: torch.as_tensor(getattr(report, name)) for name in names}


def scaled(world, name):
    """A GradScaler that must skip one step, in the second of which one process alone overflows."""
    t, values = Training(world, name), []
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for number, joined in enumerate(batches()):
        index = world.part(joined, number)
        before = (flat(t.model), str(t.opt.state_dict()["state"][0]))
        blown = number == 2 and world.rank == world.size - 1

        def closure(index=index, blown=blown):
            losses = t.losses(index)
            if blown:
                losses.register_hook(lambda g: g * math.inf)
            return losses

        values.append(t.opt.step(closure, index, grad_scaler=scaler))
        scaler.update()
        if number == 2:
            assert torch.equal(flat(t.model), before[0])
            assert str(t.opt.state_dict()["state"][0]) == before[1]
            assert scaler.get_scale() == 128.0
    return t.outcome([v for i, v in enumerate(values) if i != 2])


def message(function):
    try:
        function()
    except scdro.ScdroError as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def errors(world):
    """What goes wrong on one process is an error on all of them, and they can go on."""
    t = Training(world, "SCDRO")
    x, y = data()
    robust = scdro.KLRobustLoss(rho=0.3, process_group=world.group)
    bad = world.rank == world.size - 1
    four = torch.arange(4)
    labels = {"groups": four % 2} if bad else {}
    seen = {
        "NaN": message(lambda: t.opt.step(lambda: t.losses(four) * (math.nan if bad else 1.0))),
        "shape": message(
            lambda: t.opt.step(lambda: t.losses(four).reshape((2, 2) if bad else (4,)))
        ),
        "detached": message(
            lambda: t.opt.step(lambda: t.losses(four).detach() if bad else t.losses(four))
        ),
        "weights": message(
            lambda: robust(t.losses(four), sample_weight=torch.full((4,), -1.0 if bad else 1.0))
        ),
        "groups": message(
            lambda: robust(t.losses(four), groups=torch.zeros(3 if bad else 4, dtype=torch.int64))
        ),
        "detached loss": message(
            lambda: robust(t.losses(four).detach() if bad else t.losses(four))
        ),
        "labels": message(lambda: robust(t.losses(four), **labels)),
        "empty": message(lambda: robust(t.losses(torch.arange(0)))),
    }
    loader = DataLoader(
        TensorDataset(x), batch_sampler=RankBatches(BatchSampler(range(9), 8, False), world.group)
    )
    seen["small batch"] = message(lambda: list(loader))
    lists = RankBatches([[0, 1, 2, 3], [4]], world.group)
    seen["small list"] = message(lambda: list(lists))
    untouched = not robust.state.started
    plain = nn.Linear(D, K).double()  # not wrapped: nobody averages its gradients
    opt = scdro.SCDRO(plain.parameters(), process_group=world.group)
    mine = four + world.rank
    seen["plain"] = message(
        lambda: opt.step(lambda: F.cross_entropy(plain(x[mine]), y[mine], reduction="none"))
    )
    value = t.step(torch.arange(8), 0)
    for name, buffer, place in (
        ("log s", "scalars", 2),
        ("window", "recent", (0, -3)),
        ("lam", "scalars", 0),
    ):
        numbers = getattr(t.opt._method_state, buffer)
        before = numbers[place].clone()
        numbers[place] *= 2.0 if bad else 1.0  # as if it alone had loaded a checkpoint
        seen[name] = message(lambda: t.step(torch.arange(8), 1))
        numbers[place] = before
    t.step(torch.arange(8), 1)
    return {"seen": seen, "value": value, "untouched": untouched}


HALVES = {
    "sizes": (16, 12, 10, 16, 6, 8),
    "temperature": scdro.temperature.WindowTemperature(initial=0.5),
}
OWN_RATE = scdro.temperature.WindowTemperature(memory=16)
TWO_POINTS = ("ASCDRO", "ASCDRO-printed", "AccMDA", "RECOVER")
FEW = ("SCDRO", "ASCDRO", "SPD", "AccMDA")
EVERYWHERE = {
    **{f"train {name}": partial(train, name=name) for name in DISTINCT},
    **{f"clipped {name}": partial(clipped, name=name) for name in ("SCDRO", "ASCDRO", "AccMDA")},
    **{f"resumed {name}": partial(resumed, name=name) for name in (*FEW, "PGSMD2")},
    **{f"scaled {name}": partial(scaled, name=name) for name in FEW},
    **{
        f"looks {name}": partial(train, name=name, looks=True)
        for name in ("ASCDRO", "AccMDA", "PGSMD2")
    },
    **{f"skipping {name}": partial(skipping, name=name) for name in FEW},
    "loss": robust_loss,
    "loss, weights": partial(robust_loss, weighted=True),
    "loss, trim": partial(robust_loss, trim=0.2),
    "loss, rate of s": partial(robust_loss, temperature=OWN_RATE),
    "loss, rate of s, weights": partial(robust_loss, weighted=True, temperature=OWN_RATE),
    "loss, rate of s, parts": partial(robust_loss, parts=2, temperature=OWN_RATE),
    "loss, printed": partial(
        robust_loss, temperature=scdro.printed.PrintedTemperature(1.0, lr=0.1)
    ),
    "loss, groups": partial(robust_loss, grouped=True),
    "loss, weights and groups": partial(robust_loss, weighted=True, grouped=True),
    "loss, parts": partial(robust_loss, parts=2),
    "loss, halves": partial(robust_loss, parts=2, **HALVES),
    "errors": errors,
}
WITH_DDP = {
    "loss, parts, no_sync": partial(robust_loss, parts=2, sync=False),
    **{
        f"views {name}": partial(train, name=name, ddp={"gradient_as_bucket_view": True})
        for name in TWO_POINTS
    },
    "drawn": drawn,
    "evaluated": evaluated,
}
# Only its batches differ from FastDRO's: how parameters are sharded makes no difference to it.
WITH_FSDP = {name: case for name, case in EVERYWHERE.items() if name != "train FastDRO-MLMC"}
CASES = {"ddp": EVERYWHERE | WITH_DDP, "fsdp": WITH_FSDP}
COMPILED = {"ddp": {"loss, compiled": partial(robust_loss, compiled=True), "loss": robust_loss}}


def main(rank, folder, all_cases):
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 4)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=4, timeout=timedelta(seconds=120)
    )
    pair = dist.new_group([0, 1])
    for group, size in ((None, 4), (pair, 2)):
        if rank >= size:
            continue
        for wrapper, cases in all_cases.items():
            found = {name: case(World(group, wrapper)) for name, case in cases.items()}
            torch.save(found, folder / f"{wrapper}-{size}-{rank}.pt")
    finish()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(int(sys.argv[1]), Path(sys.argv[2]), COMPILED if "compiled" in sys.argv else CASES)
