"""The worst case in Lightning, two ways: a loss with any optimizer, and the paper's ASCDRO.

`RobustMonitor` logs lam, KL, the effective sample size and the hardest samples. An interrupted run
continues from its checkpoint with the same result, because the state of the loss or of the
optimizer is in it.

    python examples/lightning_digits.py
    python examples/lightning_digits.py --ascdro --resume PATH
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import scdro
from scdro.data import Indexed
from scdro.integrations.lightning import RobustMonitor


def digits() -> tuple[Tensor, Tensor]:
    table = load_digits()
    return torch.tensor(table.data / 16, dtype=torch.float32), torch.tensor(table.target)


def loader(seed: int = 0, batch: int = 64) -> DataLoader[Any]:
    """Digits with their positions. The sampler shuffles by seed and epoch, so a resumed run sees the same order."""
    data = Indexed(TensorDataset(*digits()))
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=1, rank=0, seed=seed)
    return DataLoader(data, batch_size=batch, sampler=sampler)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


class RobustClassifier(LightningModule):
    """Automatic optimization: one line of `training_step` changes.

    With `attach` the state is updated at the optimizer's steps, so that Lightning can accumulate
    gradients.
    """

    def __init__(self, rho: float = 0.5) -> None:
        super().__init__()
        self.network = network()
        self.robust = scdro.KLRobustLoss(rho)

    def training_step(
        self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int
    ) -> dict[str, Tensor]:
        x, y, index = batch
        losses = F.cross_entropy(self.network(x), y, reduction="none")
        return {"loss": self.robust(losses), "losses": losses.detach(), "index": index}

    def configure_optimizers(self) -> Optimizer:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        self.robust.attach(optimizer)
        return optimizer


class ASCDROClassifier(LightningModule):
    """Manual optimization: the closure returns per-sample losses, and `step` calls it twice."""

    def __init__(self, rho: float = 0.5) -> None:
        super().__init__()
        self.network = network()
        self.automatic_optimization = False

    def training_step(
        self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int
    ) -> dict[str, Tensor]:
        x, y, index = batch
        kept: list[Tensor] = []

        def closure() -> Tensor:
            losses = F.cross_entropy(self.network(x), y, reduction="none")
            kept.append(losses.detach())
            self.trainer.strategy.pre_backward(
                losses
            )  # with several processes, makes DDP average the gradients
            return losses

        self.optimizers().step(closure, max_grad_norm=1.0)
        return {"losses": kept[-1], "index": index}

    def configure_optimizers(self) -> Optimizer:
        return scdro.ASCDRO(self.parameters(), lr=0.3, rho=0.5, module=self.network)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ascdro", action="store_true", help="the paper's algorithm instead of the loss"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning"))
    parser.add_argument("--resume", type=Path, help="a checkpoint to continue from")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    seed_everything(0)
    model = ASCDROClassifier() if args.ascdro else RobustClassifier()
    logger = CSVLogger(args.out)
    trainer = Trainer(
        max_epochs=args.epochs,
        gradient_clip_val=None if args.ascdro else 1.0,  # ASCDRO clips in its step instead
        accelerator="cpu",
        logger=logger,
        callbacks=[RobustMonitor(every=20)],
        default_root_dir=args.out,
        enable_model_summary=False,
    )
    trainer.fit(model, loader(), ckpt_path=args.resume)
    model.eval()
    report = scdro.evaluate(model.network, loader(), nn.CrossEntropyLoss(reduction="none"), rho=0.5)
    print(
        f"training loss: mean {report.mean:.3f}, worst case {report.value:.3f}; log:"
        f" {logger.log_dir}/metrics.csv"
    )


if __name__ == "__main__":
    main()
