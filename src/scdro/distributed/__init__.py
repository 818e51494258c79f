"""Several processes as one: the only folder that knows torch.distributed.

What crosses between processes in a step are the losses of the batch, with weights and positions where there are any,
and a few sums. Every process receives all of it, in the order of the ranks, and computes the same numbers from it: lam
and log s agree to the bit, and nobody has to broadcast them.
"""

from scdro.distributed.ranks import Group, RankBatches, shard
from scdro.distributed.sharded import gathered
from scdro.distributed.start import finish, initialize

__all__ = ["Group", "RankBatches", "finish", "gathered", "initialize", "shard"]
