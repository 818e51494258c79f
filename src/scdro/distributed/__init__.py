"""Several processes as one: the only folder that knows torch.distributed.

What crosses between processes in a step are the losses of the batch, with weights and positions where there are any,
and a few sums. Every process receives all of it, in the order of the ranks, and computes the same numbers from it: lam
and log s agree to the bit, and nobody has to broadcast them.
"""

from scdro.distributed.ranks import ALONE, Group, Joined, RankBatches, Ranks, Share, shard
from scdro.distributed.rows import Cut
from scdro.distributed.sharded import full, gathered, is_sharded, like, reshard
from scdro.distributed.start import finish, first_to_fail, initialize, is_first

__all__ = [
    "ALONE",
    "Cut",
    "Group",
    "Joined",
    "RankBatches",
    "Ranks",
    "Share",
    "finish",
    "first_to_fail",
    "full",
    "gathered",
    "initialize",
    "is_first",
    "is_sharded",
    "like",
    "reshard",
    "shard",
]
