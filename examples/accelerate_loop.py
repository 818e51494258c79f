"""The worst case in your own loop with Accelerate: gradient accumulation, mixed precision, checkpoints.

python examples/accelerate_loop.py
accelerate launch --mixed_precision bf16 examples/accelerate_loop.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import scdro


def digits() -> tuple[Tensor, Tensor]:
    table = load_digits()
    return torch.tensor(table.data / 16, dtype=torch.get_default_dtype()), torch.tensor(
        table.target
    )


def train(
    epochs: int, *, batch: int = 64, parts: int = 1, out: Path | None = None, resume: bool = False
) -> tuple[nn.Module, scdro.KLRobustLoss]:
    """Train. With `out`, save a checkpoint there after each epoch; with `resume`, continue from it."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=parts)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    robust = scdro.KLRobustLoss(
        rho=0.5, temperature=scdro.temperature.WindowTemperature(initial=1.0)
    ).attach(optimizer)
    rng = torch.Generator()
    data = DataLoader(
        TensorDataset(*digits()), batch_size=batch, shuffle=True, drop_last=True, generator=rng
    )
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    progress = Progress()
    accelerator.register_for_checkpointing(robust, progress)
    if resume:
        accelerator.load_state(str(out))
    for epoch in range(progress.epochs, epochs):
        rng.manual_seed(epoch)
        for x, y in data:
            with accelerator.accumulate(model):
                losses = F.cross_entropy(model(x), y, reduction="none")
                accelerator.backward(robust(losses))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        progress.epochs = epoch + 1
        if out is not None:
            accelerator.save_state(str(out))
    return accelerator.unwrap_model(model), robust


class Progress:
    """The number of epochs done."""

    epochs = 0

    def state_dict(self) -> dict[str, int]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epochs = state["epochs"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate"))
    parser.add_argument(
        "--resume", action="store_true", help="continue from the checkpoint in --out"
    )
    args = parser.parse_args()
    model, robust = train(args.epochs, batch=32, parts=2, out=args.out, resume=args.resume)
    data = [digits()]
    report = scdro.evaluate(model, data, nn.CrossEntropyLoss(reduction="none"), rho=0.5)
    print(
        f"training loss: mean {report.mean:.3f}, worst case {report.value:.3f}; lam"
        f" {float(robust.lam):.3f}"
    )


if __name__ == "__main__":
    main()
