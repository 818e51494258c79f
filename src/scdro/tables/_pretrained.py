"""Pretrained networks for images, frozen. Their weights must be on this machine: nothing is downloaded."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from scdro.errors import DataError, HyperparameterError, MissingDataError
from scdro.tables._network import best_device
from scdro.tables._pictures import MEAN, STD, as_floats
from scdro.tables._read import shown

__all__ = ["Frozen", "find"]

Array = npt.NDArray[Any]
GIVEN = "given"  # the name of a network that was given as an object
LOOKED_FOR = (
    "resnet50", "resnet18", "efficientnet_b0", "mobilenet_v3_large",
    "timm/resnet50.a1_in1k", "timm/resnet18.a1_in1k", "timm/efficientnet_b0.ra_in1k",
)  # fmt: skip
BATCH = 32


class Frozen(NamedTuple):
    """A network that makes features of images, its name, and a digest of its weights."""

    name: str
    network: nn.Module
    digest: str

    @torch.no_grad()
    def features(self, X: Array) -> Array:
        """(n, d) of uint8 images, (n, 3, size, size). Places or tokens are averaged."""
        device = best_device()
        network = self.network.to(device).eval()
        found = []
        for k in range(0, len(X), BATCH):
            out = network(as_floats(X[k : k + BATCH]).to(device))
            if not isinstance(out, Tensor) or out.ndim not in (2, 3, 4):
                what = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
                raise HyperparameterError(f"expected features of shape (images, size) from the network, got {what}")
            out = out.flatten(2).mean(2) if out.ndim == 4 else out.mean(1) if out.ndim == 3 else out
            found.append(out.float().cpu())
        features: Array = torch.cat(found).numpy()
        if len(features) != len(X) or not np.isfinite(features).all():
            raise DataError("expected one row of finite features for each image, got others from the network")
        return features


def find(features: Any) -> Frozen | None:
    """A network by name, or as given; None: the first that is available, "none": none."""
    if features == "none":
        return None
    if isinstance(features, nn.Module):
        return _frozen(GIVEN, features)
    if features is None:
        return next((found for name in LOOKED_FOR if (found := _named(name)) is not None), None)
    if not isinstance(features, str):
        raise HyperparameterError(f"expected features to be a torch network or a name, got {type(features).__name__}")
    found = _named(features)
    if found is None:
        raise MissingDataError(
            f"expected a classifier of torchvision, such as resnet18, or timm/NAME, whose weights are on this machine, "
            f"got {shown(features)}; load it once with pretrained weights, which downloads them"
        )
    return found


def _named(name: str) -> Frozen | None:
    try:
        network = _timm(name[5:]) if name.startswith("timm/") else _torchvision(name)
    except (ImportError, RuntimeError, OSError, AttributeError):  # not installed, or made for another torch
        return None
    return None if network is None else _frozen(name, network)


def _frozen(name: str, network: nn.Module) -> Frozen:
    network.requires_grad_(False)
    digest = hashlib.sha256()
    for key, value in sorted(network.state_dict().items()):
        digest.update(key.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return Frozen(name, network, digest.hexdigest())


# -- libraries --------------------------------------------------------------------------------------------------------


def _torchvision(name: str) -> nn.Module | None:
    from torchvision import models

    if name not in models.list_models(module=models):  # only classifiers
        return None
    weights = models.get_model_weights(name)
    for own in [weights.DEFAULT, *weights]:
        path = Path(torch.hub.get_dir(), "checkpoints", Path(urlparse(own.url).path).name)
        if path.is_file():
            network: nn.Module = models.get_model(name, weights=None)
            network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
            return _headless(network)
    return None


def _timm(name: str) -> nn.Module | None:
    import timm
    from huggingface_hub import try_to_load_from_cache

    if name not in timm.list_pretrained():
        return None
    about = timm.get_pretrained_cfg(name)
    path = try_to_load_from_cache(about.hf_hub_id, "model.safetensors")
    if not isinstance(path, str):
        return None
    network = timm.create_model(name, pretrained=True, num_classes=0, pretrained_cfg_overlay={"file": path})
    return nn.Sequential(_Scaled(about.mean, about.std), network)


def _headless(network: nn.Module) -> nn.Module:
    """Without the last linear layer, which is the classifier."""
    *_, name = ["", *(name for name, module in network.named_modules() if isinstance(module, nn.Linear))]
    if name:
        parent, _, own = name.rpartition(".")
        setattr(network.get_submodule(parent), own, nn.Identity())
    return network


class _Scaled(nn.Module):
    """From ImageNet's mean and deviation to a network's own."""

    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__()
        self.scale = [ours / own for ours, own in zip(STD, std, strict=True)]
        self.shift = [(ours - own) / by for ours, own, by in zip(MEAN, mean, std, strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = (x.new_tensor(values).view(3, 1, 1) for values in (self.scale, self.shift))
        return x * scale + shift
