"""A small network for tables: two hidden layers, early stopping, the best epoch kept."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from scdro.errors import CheckpointError
from scdro.functional import worst_case
from scdro.loss import KLRobustLoss
from scdro.tables._columns import Columns
from scdro.tables._models import Array, Part, load_skops, save_skops, without

__all__ = ["Networks"]

EPOCHS, PATIENCE, BATCH = 100, 8, 256


def best_device() -> torch.device:
    """A GPU if there is one."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def layers(features: int, width: int, outputs: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(features, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(width, outputs),
    )


class Networks:
    """Adam, one-cycle learning rates; bfloat16 on GPUs; with rho, `KLRobustLoss`."""

    inputs = Columns

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads

    def candidates(self, rows: int) -> list[dict[str, Any]]:
        return [
            {"width": width, "weight_decay": decay, "dropout": dropout}
            for width, decay, dropout in (
                (64, 1e-4, 0.0), (64, 1e-2, 0.1), (128, 1e-4, 0.2), (32, 1e-3, 0.0), (128, 1e-2, 0.0), (256, 1e-3, 0.3)
            )
        ]  # fmt: skip

    def fit(
        self, columns: Columns, part: Part, held_out: Part | None, settings: dict[str, Any], classes: int, seed: int
    ) -> NetworkModel:
        prepare = columns.features().fit(part.X)
        device = best_device()
        x, y, w = (torch.as_tensor(a) for a in (prepare.transform(part.X), part.y, part.weight))
        x, w, y = x.float().to(device), w.float().to(device), (y.long() if classes else y.float()).to(device)
        threads = torch.get_num_threads()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            torch.set_num_threads(self.threads)
            try:
                return self._trained(prepare, x, y, w, held_out, settings, classes)
            finally:
                torch.set_num_threads(threads)

    def _trained(
        self, prepare: Any, x: Tensor, y: Tensor, w: Tensor, held_out: Part | None, settings: dict[str, Any], k: int
    ) -> NetworkModel:
        shape = {"features": x.shape[1], "outputs": k or 1, **without(settings, "rho", "rounds", "weight_decay")}
        network = layers(**shape).to(x.device)
        rho, epochs = settings.get("rho", 0.0), settings.get("rounds", EPOCHS)
        robust = KLRobustLoss(rho) if rho else None
        optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=settings["weight_decay"])
        found = NetworkModel(network, prepare, shape, k, 0)
        best = np.inf
        mixed = torch.autocast("cuda", torch.bfloat16, enabled=x.device.type == "cuda")
        for epoch in range(1, epochs + 1):
            network.train()
            for rows in torch.split(torch.randperm(len(x)).to(x.device), BATCH):
                with mixed:
                    out = network(x[rows])
                losses = _losses(out.float(), y[rows], k)
                loss = (losses * w[rows]).mean() if robust is None else robust(losses, sample_weight=w[rows])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
            if held_out is None:
                continue
            found.epochs.append(copy.deepcopy(network.state_dict()))
            value = _value(found.scores(held_out.X), held_out, k, rho)
            if value < best:
                best, found.rounds = value, epoch
            elif epoch - found.rounds >= PATIENCE:
                break
        if held_out is None:
            found.rounds = epochs
        else:
            found.stop_at(max(found.rounds, 1))
        return found

    def load(self, folder: Path) -> NetworkModel:
        about = json.loads((folder / "model.json").read_text("utf-8"))
        try:
            state = torch.load(folder / "network.pt", map_location="cpu", weights_only=True)
            network = layers(**about["shape"])
            network.load_state_dict(state)
        except Exception as error:  # a damaged file can raise anything
            raise CheckpointError(f"expected weights in {folder / 'network.pt'}, got: {str(error)[:200]}") from error
        prepare = load_skops(folder / "columns.skops")
        return NetworkModel(network, prepare, about["shape"], about["classes"], about["rounds"])


def _losses(out: Tensor, y: Tensor, classes: int) -> Tensor:
    return cross_entropy(out, y, reduction="none") if classes else (out[:, 0] - y).square() / 2


def _value(out: Tensor, part: Part, classes: int, rho: float) -> float:
    y = torch.as_tensor(part.y)
    losses = _losses(out, y.long() if classes else y.float(), classes).double().numpy()
    if rho:
        return float(worst_case(losses, rho, sample_weight=part.weight).value)
    return float(np.average(losses, weights=part.weight))


class NetworkModel:
    """A network with the preparation of its columns."""

    def __init__(self, network: nn.Module, prepare: Any, shape: dict[str, Any], classes: int, rounds: int) -> None:
        self.network, self.prepare, self.shape, self.classes, self.rounds = network, prepare, shape, classes, rounds
        self.epochs: list[dict[str, Tensor]] = []  # the weights after each, where rows were held out

    def stop_at(self, rounds: int) -> None:
        self.rounds = min(rounds, len(self.epochs))
        self.network.load_state_dict(self.epochs[self.rounds - 1])

    @torch.no_grad()
    def scores(self, X: Array) -> Tensor:
        self.network.eval()
        device = next(self.network.parameters()).device
        parts = torch.split(torch.as_tensor(self.prepare.transform(X)).float(), 8192)
        return torch.cat([self.network(part.to(device)).cpu() for part in parts])

    def predict(self, X: Array) -> Array:
        scores = self.scores(X).double()
        found: Array = scores.softmax(1).numpy() if self.classes else scores[:, 0].numpy()
        return found

    def save(self, folder: Path) -> None:
        torch.save({name: value.cpu() for name, value in self.network.state_dict().items()}, folder / "network.pt")
        save_skops(self.prepare, folder / "columns.skops")
        about = {"shape": self.shape, "classes": self.classes, "rounds": self.rounds}
        (folder / "model.json").write_text(json.dumps(about), "utf-8")
