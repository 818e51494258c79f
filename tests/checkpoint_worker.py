"""One of two processes that load what one process has saved by torch.distributed.checkpoint, go on, and save again.

python checkpoint_worker.py RANK FOLDER METHOD ...
"""

import copy
import sys
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    get_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)

from equality import differences
from ranks import Training, World, batches, flat
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
    set_state_dict(t.model, t.opt, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    found = {"loaded": copy.deepcopy(gathered(get_optimizer_state_dict(t.model, t.opt)))}
    t.step(drawn[3], 3)
    model, optimizer = get_state_dict(t.model, t.opt)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder / f"{world.wrapper} {name}")
    found["saved"] = copy.deepcopy(gathered(get_optimizer_state_dict(t.model, t.opt)))
    weights = [p.detach().clone() for p in t.model.parameters()]
    for options in (WHOLE, FROM_FIRST, FLAT):
        other = Training(world, name, dtype=torch.float32)
        state = get_optimizer_state_dict(t.model, t.opt, options=options)
        assert bool(state) == (world.rank == 0 or options is not FROM_FIRST)
        set_optimizer_state_dict(other.model, other.opt, state, options=options)
        assert differences(found["saved"], gathered(get_optimizer_state_dict(other.model, other.opt))) == []
        with torch.no_grad():
            for p, value in zip(other.model.parameters(), weights, strict=True):
                p.copy_(value)
    for number in (4, 5):
        for each in (t, other):
            each.step(drawn[number], number)
    assert torch.equal(flat(t.model), flat(other.model))
    found["end"] = flat(t.model)
    return found


def main(rank, folder, names):
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=120))
    for wrapper in ("ddp", "fsdp"):
        for name in names:
            found = continued(World(None, wrapper), name, folder)
            if rank == 0:
                torch.save(found, folder / f"{wrapper} {name}.pt")
    finish()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
