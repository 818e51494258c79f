"""Networks: parameters, a forward pass against a literal definition, freezing, and what torchvision's absence says."""

from __future__ import annotations

import copy
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reproduction.engine.networks import CifarResNet, ResNet50
from scdro.errors import HyperparameterError, MissingDataError


@pytest.mark.parametrize(("classes", "parameters"), [(10, 269_722), (100, 275_572)])
def test_parameters(classes, parameters):
    assert sum(p.numel() for p in CifarResNet(20, classes).parameters()) == parameters


def literal_resnet(weights, x, per_stage):
    """He et al. (2016), section 4.2, written out: weights in the order of their layers, batch norm by the batch."""
    weights = iter(weights)

    def conv_norm(x, stride):
        kernel, scale, shift = (next(weights) for _ in range(3))
        x = F.conv2d(x, kernel, stride=stride, padding=1)
        mean, variance = (
            x.mean((0, 2, 3), keepdim=True),
            x.var((0, 2, 3), correction=0, keepdim=True),
        )
        return (x - mean) / (variance + 1e-5).sqrt() * scale[:, None, None] + shift[:, None, None]

    x = conv_norm(x, 1).clamp(min=0)
    for stage in range(3):
        for block in range(per_stage):
            down = stage > 0 and block == 0
            y = conv_norm(conv_norm(x, 2 if down else 1).clamp(min=0), 1)
            # option A: every other pixel, and as many zero channels again, half of them on either
            # side
            if down:
                x = x[:, :, ::2, ::2]
                zero = torch.zeros_like(x[:, : x.shape[1] // 2])
                x = torch.cat([zero, x, zero], 1)
            x = (x + y).clamp(min=0)
    matrix, bias = next(weights), next(weights)
    assert next(weights, None) is None
    return x.mean((2, 3)) @ matrix.T + bias


@pytest.mark.parametrize(("depth", "per_stage"), [(20, 3), (32, 5)])
def test_forward_by_a_literal_definition(depth, per_stage):
    torch.manual_seed(0)
    model = CifarResNet(depth, 10).double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.add_(0.3 * torch.randn_like(p))
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    expected = literal_resnet([p.detach() for p in model.parameters()], x, per_stage)
    torch.testing.assert_close(model(x), expected, rtol=1e-9, atol=1e-9)
    assert len(CifarResNet(32, 10).blocks) == 15


def test_kaiming_weights():
    torch.manual_seed(0)
    for module in CifarResNet(20, 100).modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            fan_in = module.weight[0].numel()
            assert module.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.15)


def test_scores_are_the_classifier_on_the_features():
    model = CifarResNet(20, 10).eval()
    x = torch.randn(3, 3, 32, 32)
    assert model.features(x).shape == (3, 64)
    assert torch.equal(model(x), model.classifier(model.features(x)))


@pytest.mark.parametrize("depth", [7, 21, 2])
def test_no_such_depth(depth):
    with pytest.raises(HyperparameterError, match="6 k"):
        CifarResNet(depth, 10)


@pytest.mark.parametrize("width", [0, 1, 3])
def test_no_such_width(width):
    with pytest.raises(HyperparameterError, match="even width"):
        CifarResNet(8, 10, width)


def trained_step(model):
    optimizer = torch.optim.SGD(model.trained(), lr=0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    model(torch.randn(8, 3, 16, 16)).square().sum().backward()
    optimizer.step()
    return {
        name for name, value in model.state_dict().items() if not torch.equal(value, before[name])
    }


@pytest.mark.parametrize(
    "make", [lambda: CifarResNet(8, 5), lambda: copy.deepcopy(CifarResNet(8, 5))]
)
def test_freezing(make):
    model = make()
    everything = set(model.state_dict())
    assert trained_step(model.freeze_to("classifier")) == {"classifier.weight", "classifier.bias"}
    last = {name for name in everything if name.startswith("blocks.2.")}
    assert trained_step(model.freeze_to("last_block")) == last | {
        "classifier.weight",
        "classifier.bias",
    }
    assert trained_step(copy.deepcopy(model)) == last | {"classifier.weight", "classifier.bias"}
    model.eval()
    assert not any(module.training for module in model.modules())
    assert trained_step(model.freeze_to("all")) == everything
    with pytest.raises(HyperparameterError, match="last_block"):
        model.freeze_to("head")


class Body(nn.Module):
    """What torchvision's ResNet50 looks like, with two numbers a pixel for its blocks."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights
        self.conv1 = nn.Conv2d(3, 2, 1)
        self.layer4 = nn.Sequential(
            *(nn.Sequential(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2)) for _ in range(3))
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2, 1000)

    def forward(self, x):
        return self.fc(torch.flatten(self.avgpool(self.layer4(self.conv1(x))), 1))


def test_resnet50_is_torchvisions_with_a_new_classifier(monkeypatch):
    models = types.ModuleType("torchvision.models")
    models.resnet50 = Body
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    model = ResNet50(7)
    assert model.body.weights == "IMAGENET1K_V1"
    assert ResNet50(7, None).body.weights is None
    x = torch.randn(4, 3, 5, 5)
    model.eval()
    expected = model.body.layer4(model.body.conv1(x)).mean((2, 3))
    torch.testing.assert_close(model.features(x), expected)
    torch.testing.assert_close(
        model(x), expected @ model.classifier.weight.T + model.classifier.bias
    )
    head = {"classifier.weight", "classifier.bias"}
    assert trained_step(model.freeze_to("classifier")) == head
    last = {name for name in model.state_dict() if name.startswith("body.layer4.2.")}
    found = trained_step(model.freeze_to("last_block"))
    assert found <= last | head
    assert {"body.layer4.2.1.bias", "body.layer4.2.1.running_mean"} <= found


def test_resnet50_without_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingDataError, match="expected torchvision"):
        ResNet50(10)


def test_resnet50_with_a_torchvision_that_does_not_load(monkeypatch):
    """Beside another build of torch its import raises RuntimeError, not ImportError."""

    class Broken(types.ModuleType):
        def __getattr__(self, name):
            raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", Broken("torchvision.models"))
    with pytest.raises(MissingDataError, match="nms does not exist"):
        ResNet50(10)
