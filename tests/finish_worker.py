"""Groups begun and ended, one after the other, with a model that outlives each (`test_elastic.py`)."""

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from scdro.distributed import finish, initialize


def begin_and_end():
    initialize()
    model = DistributedDataParallel(nn.Linear(8, 2))
    for _ in range(5):
        model(torch.randn(4, 8)).sum().backward()
    dist.all_gather([torch.empty(3) for _ in range(2)], torch.ones(3))
    finish()


if __name__ == "__main__":
    for _ in range(30):
        begin_and_end()
