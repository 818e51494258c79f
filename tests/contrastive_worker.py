"""One process of a contrastive run on shared batches; run by `test_contrastive_distributed.py`."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scdro.contrastive import RobustContrastiveLoss
from scdro.distributed import finish

N, D, STEPS = 23, 6, 12
SHARES = (5, 3)  # Uneven parts of each joined batch of eight.


def batch(t):
    g = torch.Generator().manual_seed(t)
    x = torch.randn(2, N, D, generator=g, dtype=torch.float64)
    return x, torch.randperm(N, generator=g)[: sum(SHARES)]


def train(loss, network, take, first=0, last=STEPS):
    """`take` cuts this process's part out of a joined batch."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    values = []
    for t in range(first, last):
        x, index = batch(t)
        index = take(index)
        optimizer.zero_grad()
        value = loss(network(x[0, index]), network(x[1, index]), index)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    return values


def network():
    torch.manual_seed(0)
    return nn.Linear(D, 4).double()


def main(rank, rendezvous, out, towers):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=len(SHARES))
    start = sum(SHARES[:rank])

    def take(index):
        return index[start : start + SHARES[rank]]

    def fresh():
        return RobustContrastiveLoss(N, 0.5, towers=towers)

    model = DistributedDataParallel(network())
    loss = fresh()
    values = train(loss, model, take, 0, 7)
    resumed = fresh()  # From the state of all processes.
    resumed.load_state_dict(loss.full_state_dict())
    values += train(resumed, model, take, 7)
    kept = len(resumed.state.anchors)
    full = resumed.full_state_dict()
    if rank == 0:
        torch.save({"values": values, "model": model.module.state_dict(), "loss": full, "kept": kept}, out)
    finish()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
