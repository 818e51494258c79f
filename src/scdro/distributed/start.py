"""The processes that torchrun started: how they find each other, and what they do when one of them fails."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

import torch
from torch import distributed as dist

__all__ = ["finish", "first_to_fail", "initialize", "is_first"]

_store: Any = None  # where they find each other, and who failed first
_starts = 0


def initialize(backend: str | None = None, *, device: str | None = None, **settings: Any) -> torch.device:
    """`init_process_group` where torchrun started this process; gives the device to work on.

    Args:
        backend: as for `init_process_group`; with none, gloo for tensors on CPUs and NCCL for those on GPUs.
        device: "cpu", or "cuda" for this process's own GPU; None for a GPU where there is one.
        settings: more for `init_process_group`.

    Example:
        >>> device = initialize()  # without torchrun there is nothing to initialise
    """
    global _store, _starts
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if name == "cuda" else name)
    if chosen.type == "cuda" and torch.cuda.is_available():
        torch.cuda.set_device(chosen)
    if "RANK" in os.environ and not dist.is_initialized():
        store, rank, size = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        # The store still holds the addresses of what was before: processes that are gone, or a group that was left.
        _starts += 1
        _store = dist.PrefixStore(f"restart {_restart(rank, size)} start {_starts}", store)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=_store, rank=rank, world_size=size, **settings)
    return chosen


def _restart(rank: int, size: int) -> str:
    """Which start of all processes this is. Of several agents each counts the failures of its own workers alone."""
    if int(os.environ.get("LOCAL_WORLD_SIZE", size)) == size:
        return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        warnings.warn(
            "several torchrun agents share one store: after a restart their processes may not find each other. Set "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for all agents, and each start gets a store of its own",
            stacklevel=3,
        )
    return "of several agents"


def is_first() -> bool:
    """Whether this process is alone, or the first of those that torchrun started."""
    return int(os.environ.get("RANK", 0)) == 0


def first_to_fail() -> bool:
    """Whether no process of `initialize` has asked this before: one of them is to say what went wrong."""
    return _store is None or int(_store.add("failed", 1)) == 1


def finish() -> None:
    """End what `initialize` began, when all processes are done.

    Example:
        >>> finish()  # without torchrun there is nothing to end
    """
    global _store
    if dist.is_available() and dist.is_initialized():
        # gloo's threads drop the last collective's tensors after it has ended, and need the GIL for that. Whoever frees
        # the group holding the GIL, as DDP does with its own reference, waits for those threads for ever.
        dist.barrier()
        time.sleep(0.1)
        dist.destroy_process_group()
    _store = None
