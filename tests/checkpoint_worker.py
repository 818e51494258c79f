"""One of two processes that load what one process has saved by torch.distributed.checkpoint, go on, and save again.

python checkpoint_worker.py RANK FOLDER METHOD ...      "loss" stands for a model with KLRobustLoss
"""

import copy
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

from equality import differences
from ranks import Training, World, batches, data, flat, new_model
from scdro import KLRobustLoss
from scdro.distributed import finish, gathered

WHOLE = StateDictOptions(full_state_dict=True)
FROM_FIRST = StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def sizes_for(name):
    return (16, 8, 16, 16, 8, 16) if name == "FastDRO-MLMC" else (16, 16, 11, 16, 12, 8)


def continued(world, name, folder):
    """From the state of one process: a step, all ways to save and load in two processes, and the rest of the run."""
    t, drawn = Training(world, name, dtype=torch.float32), batches(sizes_for(name))
    model, optimizer = get_state_dict(t.model, t.opt)
    state = {"model": model, "optimizer": optimizer}
    dcp.load(state, checkpoint_id=folder / f"one {name}")
    set_state_dict(
        t.model, t.opt, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    found = {"loaded": copy.deepcopy(gathered(get_optimizer_state_dict(t.model, t.opt)))}
    t.step(drawn[3], 3)
    model, optimizer = get_state_dict(t.model, t.opt)
    dcp.save(
        {"model": model, "optimizer": optimizer}, checkpoint_id=folder / f"{world.wrapper} {name}"
    )
    found["saved"] = copy.deepcopy(gathered(get_optimizer_state_dict(t.model, t.opt)))
    weights = [p.detach().clone() for p in t.model.parameters()]
    for options in (WHOLE, FROM_FIRST, FLAT):
        other = Training(world, name, dtype=torch.float32)
        state = get_optimizer_state_dict(t.model, t.opt, options=options)
        assert bool(state) == (world.rank == 0 or options is not FROM_FIRST)
        set_optimizer_state_dict(other.model, other.opt, state, options=options)
        assert (
            differences(found["saved"], gathered(get_optimizer_state_dict(other.model, other.opt)))
            == []
        )
        with torch.no_grad():
            for p, value in zip(other.model.parameters(), weights, strict=True):
                p.copy_(value)
    for number in (4, 5):
        for each in (t, other):
            each.step(drawn[number], number)
    assert torch.equal(flat(t.model), flat(other.model))
    found["end"] = flat(t.model)
    return found


class WithLoss(nn.Module):
    """A model that holds its loss, whose state is saved and loaded with it."""

    def __init__(self, world):
        super().__init__()
        self.world, self.net = world, world.wrap(new_model())
        self.robust = KLRobustLoss(0.3, process_group=world.group)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def train_on(self, numbers):
        x, y = data()
        for number in numbers:
            index = self.world.part(batches()[number], number)
            self.opt.zero_grad()
            self.robust(F.cross_entropy(self.net(x[index]), y[index], reduction="none")).backward()
            self.opt.step()
        return self

    def save(self, place):
        dcp.save(get_model_state_dict(self), checkpoint_id=place)
        return copy.deepcopy(gathered(get_model_state_dict(self)))

    def load(self, place):
        state = get_model_state_dict(self)
        dcp.load(state, checkpoint_id=place)
        set_model_state_dict(self, state)
        return copy.deepcopy(gathered(get_model_state_dict(self)))


def continued_loss(world, folder):
    t = WithLoss(world)
    found = {"loaded": t.load(folder / "one loss")}
    found["saved"] = t.train_on([3]).save(folder / f"{world.wrapper} loss")
    return {**found, "end": gathered(get_model_state_dict(t.train_on([4, 5])))}


def main(rank, folder, names):
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
    for wrapper in ("ddp", "fsdp"):
        for name in names:
            world = World(None, wrapper)
            found = (
                continued_loss(world, folder) if name == "loss" else continued(world, name, folder)
            )
            if rank == 0:
                torch.save(found, folder / f"{wrapper} {name}.pt")
    finish()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
