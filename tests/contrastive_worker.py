"""One of four processes of contrastive runs on shared batches; run by `test_contrastive_distributed.py`.

python contrastive_worker.py RANK FOLDER      writes what its cases gave into the folder
"""

import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ranks import message
from reproduction.baselines import SPD
from scdro.contrastive import RobustContrastiveLoss
from scdro.distributed import finish

N, D, STEPS, HALF = 23, 6, 12, 7
SHARES = {2: (5, 3), 4: (3, 1, 2, 2)}  # Uneven parts of each joined batch of eight,
EMPTY = {2: (0, 8), 4: (0, 4, 3, 1)}  # and of every fifth one.


def batch(t):
    g = torch.Generator().manual_seed(t)
    x = torch.randn(2, N, D, generator=g, dtype=torch.float64)
    return x, torch.randperm(N, generator=g)[:8]


def network():
    torch.manual_seed(0)
    return nn.Linear(D, 4).double()


def new_loss(towers, group=None, **settings):
    return RobustContrastiveLoss(N, 0.5, towers=towers, process_group=group, **settings)


class Both(nn.Module):
    """The loss as a part of the model."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, first, second, index):
        return self.loss(self.model(first), self.model(second), index)


def train(whole, params, take, first=0, last=STEPS):
    """`take` cuts this process's part out of a joined batch; `whole` is the network and its loss."""
    optimizer = torch.optim.SGD(params, lr=0.5)
    values = []
    for t in range(first, last):
        x, index = batch(t)
        index = take(index, t)
        optimizer.zero_grad()
        value = whole(x[0, index], x[1, index], index)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    return values


class Party:
    """The processes of a group: how they cut a batch."""

    def __init__(self, group):
        self.group, self.size, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.last = self.rank == self.size - 1

    def take(self, index, t):
        shares = (EMPTY if t % 5 == 3 else SHARES)[self.size]
        start = sum(shares[: self.rank])
        return index[start : start + shares[self.rank]]

    def ddp(self, model):
        return DistributedDataParallel(model, process_group=self.group)


def moved(pair, four, towers, folder):
    """Seven steps of two processes, and five of four that load what those have saved, once in DDP with the loss in
    the wrapped module."""
    path = folder / f"half-{towers}.pt"
    values, kept = [], []
    if pair is not None:
        model, loss = network(), new_loss(towers, pair.group)
        values = train(Both(pair.ddp(model), loss), model.parameters(), pair.take, 0, HALF)
        kept.append(len(loss.state.anchors))
        state = {"model": model.state_dict(), "loss": loss.full_state_dict(), "values": values}
        if pair.rank == 0:
            torch.save(state, path)
    dist.barrier()
    saved = torch.load(path, weights_only=True)
    model, loss = network(), new_loss(towers)
    whole = four.ddp(Both(model, loss))
    model.load_state_dict(saved["model"])
    loss.load_state_dict(saved["loss"])
    values = saved["values"] + train(whole, model.parameters(), four.take, HALF)
    kept.append(len(loss.state.anchors))
    return {
        "values": values,
        "model": model.state_dict(),
        "loss": loss.full_state_dict(),
        "kept": kept,
    }


def early(four, loss):
    model = network()
    values = train(Both(four.ddp(model), loss), model.parameters(), four.take)
    return {"values": values, "kept": len(loss.state.anchors)}


def errors(four, early_spd):
    """What goes wrong on the last process is an error on all, and they can go on."""
    x, index = batch(0)
    mine, bad = four.take(index, 0), four.last
    model, loss = network(), new_loss(1)

    def call(loss=loss, index=mine, samples=mine, width=4, detach=False, scale=1.0):
        embeddings = [model(view[samples])[:, :width] * scale for view in x]
        return loss(*(e.detach() if detach else e for e in embeddings), index)

    other = new_loss(1)
    call(other)
    states = [other.state_dict()]
    dist.broadcast_object_list(states, src=0)
    seen = {
        "position": message(lambda: call(index=mine + (N if bad else 0))),
        "width": message(lambda: call(width=3 if bad else 4)),
        "detached": message(lambda: call(detach=bad)),
        "NaN": message(lambda: call(scale=math.nan if bad else 1.0)),
        "same": message(lambda: call(index=torch.zeros_like(mine))),
        "part": message(lambda: loss.load_state_dict(states[0])),  # of the first process
        "early SPD": message(
            lambda: early_spd.step(lambda: model(x[0, mine]).square().sum(1), mine)
        ),
    }
    untouched = loss.tau.isnan().all().item() if four.rank else True
    skipping = new_loss(1, skip_nonfinite=True)
    part = four.take(index, 3)  # The first has none, and sees no NaN.
    call(skipping, part, part, scale=math.nan if bad else 1.0)
    fresh = new_loss(1)
    value = float(call(fresh))
    if bad:
        fresh.state.last *= 2.0  # as if it alone had loaded a checkpoint
    seen["state"] = message(lambda: call(fresh))
    return {"seen": seen, "untouched": untouched, "skipped": int(skipping.skipped), "value": value}


def alone(four):
    """In eval mode each process has a batch of its own, and need not wait for the others."""
    if four.rank:
        return None
    x, index = batch(0)
    return float(new_loss(1).eval()(x[0, index], x[1, index], index))


def main(rank, folder):
    torch.set_num_threads(1)
    before, early_spd = new_loss(1), SPD(network().parameters(), n=N, uniform=True)
    store = dist.FileStore(str(folder / "store"), 4)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
    group = dist.new_group([0, 1])
    pair, four = Party(group) if rank < 2 else None, Party(None)
    found = {f"moved {towers}": moved(pair, four, towers, folder) for towers in (1, 2)}
    found |= {"early": early(four, before), "errors": errors(four, early_spd), "alone": alone(four)}
    torch.save(found, folder / f"{rank}.pt")
    finish()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
