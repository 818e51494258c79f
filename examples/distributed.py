"""Robust training on several processes that survives if any of them dies: a script to copy.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/distributed.py
    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/distributed.py --fsdp
    python examples/distributed.py                              # one process

`--out` is the folder of a run: two runs need different ones.

Kill a worker (`kill -9`): torchrun restarts all of them, they continue from the last checkpoint,
and the result is the same as without the interruption. The same file runs in one process and on
GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import scdro
from scdro.distributed import finish, gathered, initialize, shard

SAMPLES, BATCH = 2000, 50  # the batch of all processes together


def data() -> tuple[Tensor, Tensor]:
    """Two classes; for one sample in twenty the rule is reversed."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 8, generator=generator, dtype=torch.float64)
    rare = torch.rand(SAMPLES, generator=generator) < 0.05
    x[:, 7] = torch.where(rare, 2.0, -0.1)
    return x, ((x[:, 0] > 0) ^ rare).long()


def order(epoch: int) -> Tensor:
    """The samples in the order of an epoch. It depends on nothing else, so it is the same after a restart."""
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))


def build(device: torch.device, sharded: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)).double().to(device)
    if not dist.is_initialized():
        return model
    if not sharded:
        return DistributedDataParallel(model)
    fully_shard(model)
    return model


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def whole_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, step: int, log_size: int
) -> dict[str, Any]:
    """A checkpoint that does not depend on the number of processes or the model's wrapper. All must call it."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    state: dict[str, Any] = gathered(
        {"model": inner.state_dict(), "optimizer": optimizer.state_dict()}
    )
    return {**state, "step": step, "log_size": log_size}


def save(path: Path, state: dict[str, Any]) -> None:
    """All or nothing: a process that is killed while it writes leaves the checkpoint before."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/distributed"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument(
        "--fsdp", action="store_true", help="shard the model (FSDP2) instead of copying it (DDP)"
    )
    args = parser.parse_args()

    device = initialize()  # sets up torch.distributed if torchrun started this process
    first = not dist.is_initialized() or dist.get_rank() == 0
    x, y = (part.to(device) for part in data())
    model = build(device, args.fsdp)
    optimizer = scdro.SCDRO(model.parameters(), lr=0.5, rho=scdro.rho_for_group(0.05), beta=0.2)

    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, log, start, log_size = args.out / "checkpoint.pt", args.out / "log.jsonl", 0, 0
    if checkpoint.exists():  # read by every process, so that lam and log s are the same on all
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        set_model_state_dict(inner, saved["model"], options=StateDictOptions(full_state_dict=True))
        optimizer.load_state_dict(saved["optimizer"])
        start, log_size = saved["step"], saved["log_size"]
    if first:  # steps after the checkpoint are made again, so their lines are cut off
        log.touch()
        os.truncate(log, log_size)

    batches = SAMPLES // BATCH
    for step in range(start, args.steps):
        batch = order(step // batches)[step % batches * BATCH :][:BATCH]
        mine = batch[shard(len(batch))]  # this process's part
        value = optimizer.step(partial(losses, model, x[mine], y[mine]))
        if first:
            restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
            record = {"step": step, "value": float(value), "lam": float(optimizer.lam)}
            with log.open("a") as file:
                file.write(json.dumps({**record, "restarts": restarts}) + "\n")
        if (step + 1) % args.checkpoint_every == 0 or step + 1 == args.steps:
            state = whole_state(model, optimizer, step + 1, log.stat().st_size if first else 0)
            if first:
                save(checkpoint, state)

    part = shard(SAMPLES)
    report = scdro.evaluate(
        model,
        [(x[part], y[part])],
        nn.CrossEntropyLoss(reduction="none"),
        rho=1.0,
        process_group=None,
    )
    if first:
        print(
            f"steps {start} to {args.steps}: mean loss {report.mean:.4f}, robust value"
            f" {report.value:.4f}"
        )
    finish()


if __name__ == "__main__":
    main()
