"""Features of frozen networks: given as objects, or by name where their weights are on this machine."""

import json
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from own_data import write_images
from scdro.cli import main
from scdro.errors import CheckpointError, HyperparameterError, MissingDataError
from scdro.tables import _pretrained, load, train_images

pytest.importorskip("PIL")


@pytest.fixture
def images(tmp_path):
    return write_images(tmp_path / "images", each=24)


def network(seed=0):
    """Not trained, but of several features, which is enough for colours."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2))


def test_a_network_that_is_given(images, tmp_path):
    given = network()
    before = [p.clone() for p in given.parameters()]
    run = train_images(images, features=given, size=16, out=tmp_path / "run")
    assert run.summary["methods"][0]["scores"]["accuracy"]["value"] == 1.0
    assert "frozen" in " ".join(run.summary["warnings"])
    assert all(torch.equal(a, b) for a, b in zip(before, given.parameters(), strict=True))
    saved = torch.load(tmp_path / "run" / "models" / "plain" / "network.pt", weights_only=True)
    assert saved["weight"].shape == (2, 8)  # places averaged; the network itself is not in the run
    with pytest.raises(MissingDataError, match="features=network"):
        load(tmp_path / "run")
    with pytest.raises(CheckpointError, match="weights"):
        load(tmp_path / "run", features=network(seed=1))
    again = load(tmp_path / "run", features=network())
    np.testing.assert_array_equal(again.predict_proba(images), run.predict_proba(images))
    whole = train_images(images, features=given, size=16, out=tmp_path / "run")  # complete: nothing to do
    assert whole.summary == json.loads(json.dumps(run.summary))
    with pytest.raises(CheckpointError, match="features"):
        train_images(images, features=network(seed=1), size=16, out=tmp_path / "run")


@pytest.mark.parametrize("shape", [(5,), (4, 5), (5, 2, 2)])
def test_features_of_vectors_tokens_and_places(shape):
    class Fixed(nn.Module):
        def forward(self, x):
            return x.mean((1, 2, 3)).view(-1, *[1] * len(shape)).expand(-1, *shape) * torch.arange(shape[-1])

    X = np.random.default_rng(0).integers(0, 256, (70, 3, 8, 8), dtype=np.uint8)
    found = _pretrained.find(Fixed()).features(X)
    assert found.shape == (70, 5)


@pytest.mark.parametrize("bad", [nn.Flatten(0), nn.Identity(), nn.LSTM(16, 2)], ids=["flat", "image", "tuple"])
def test_networks_that_make_no_features(images, bad):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.bad = bad

        def forward(self, x):
            return self.bad(x[:, 0]) if isinstance(bad, nn.LSTM) else self.bad(x[None])

    with pytest.raises(HyperparameterError, match="features"):
        train_images(images, features=Odd(), size=16)
    with pytest.raises(HyperparameterError, match="int"):
        train_images(images, features=3, size=16)


# -- by name: neither library is needed here, stand-ins take the place of the imports ---------------------------------


@pytest.fixture
def torchvision(monkeypatch, tmp_path):
    """A library of one classifier; its weights are in the cache once the file is there."""
    own = types.SimpleNamespace(url="https://example.org/models/resnet18-abc.pth?x=1")

    class Weights(list):
        DEFAULT = own

    def get_model(name, weights):
        assert (name, weights) == ("resnet18", None)
        return nn.Sequential(network(seed=5), nn.Flatten(), nn.Linear(32, 7))

    models = types.ModuleType("torchvision.models")
    models.list_models = lambda module: ["resnet18"] if module is models else ["everything"]
    models.get_model_weights = lambda name: Weights([own])
    models.get_model = get_model
    library = types.ModuleType("torchvision")
    library.models = models
    monkeypatch.setitem(sys.modules, "torchvision", library)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.manual_seed(9)
    return lambda: torch.save(get_model("resnet18", None).state_dict(), cache / "resnet18-abc.pth")


def test_a_name_needs_weights_on_this_machine(torchvision, images, tmp_path, capsys):
    with pytest.raises(MissingDataError, match="resnet18"):
        train_images(images, features="resnet18", size=16)
    assert _pretrained.find(None) is None
    torchvision()
    with pytest.raises(MissingDataError, match="resnet999"):
        train_images(images, features="resnet999", size=16)
    assert _pretrained.find("none") is None
    found = _pretrained.find(None)  # the default: one that is at hand
    assert found.name == "resnet18"
    assert found.features(np.zeros((2, 3, 16, 16), np.uint8)).shape == (2, 32)  # in front of its last layer
    out, predicted = tmp_path / "run", tmp_path / "p.csv"
    assert main(["train", str(images), "--features", "resnet18", "--size", "16", "--out", str(out)]) == 0
    assert "resnet18" in capsys.readouterr().out
    assert main(["predict", str(out), str(images / "a"), "--out", str(predicted)]) == 0
    assert predicted.read_text().count(",a,") >= 20


def test_weights_that_have_gone_or_changed(torchvision, images, tmp_path):
    torchvision()
    train_images(images, features="resnet18", size=16, out=tmp_path / "run")
    path = tmp_path / "hub" / "checkpoints" / "resnet18-abc.pth"
    state = torch.load(path, weights_only=True)
    torch.save({name: value + 1 for name, value in state.items()}, path)
    with pytest.raises(CheckpointError, match="resnet18"):
        load(tmp_path / "run")
    path.unlink()
    with pytest.raises(MissingDataError, match="resnet18"):
        load(tmp_path / "run")


def test_a_network_of_timm_with_its_own_scale(monkeypatch):
    """A mean and deviation of one half: what it sees are the pixels between -1 and 1."""
    about = types.SimpleNamespace(hf_hub_id="timm/tiny", mean=(0.5,) * 3, std=(0.5,) * 3)
    cached = {}

    def create_model(name, pretrained, num_classes, pretrained_cfg_overlay):
        assert (name, pretrained, num_classes) == ("tiny.a", True, 0)
        assert pretrained_cfg_overlay == {"file": "model.safetensors"}  # from the disk, not from the net
        return nn.Flatten()

    timm = types.ModuleType("timm")
    timm.list_pretrained, timm.get_pretrained_cfg, timm.create_model = lambda: ["tiny.a"], lambda _: about, create_model
    hub = types.ModuleType("huggingface_hub")
    hub.try_to_load_from_cache = lambda repo, file: cached.get(repo)
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(MissingDataError, match="timm/NAME"):
        _pretrained.find("timm/tiny.a")
    cached["timm/tiny"] = "model.safetensors"
    X = np.array([0, 255], np.uint8).reshape(2, 1, 1, 1).repeat(3, 1)
    found = _pretrained.find("timm/tiny.a").features(X)
    np.testing.assert_allclose(found, [[-1.0] * 3, [1.0] * 3], atol=1e-5)
