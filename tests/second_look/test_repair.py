"""repair: any head that is found, exact heads, the given model untouched."""

import copy
import importlib.util
import time

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

from scdro.errors import DataError, HyperparameterError, ScdroWarning
from scdro.second_look import repair
from scdro.second_look._repair import _features


def hidden_group(n=800, seed=0, classes=2):
    """Ten features: the first carry a shortcut, the next the class; 5% have the other class's shortcut."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    few = rng.random(n) < 0.05
    shortcut = np.where(few, (y + 1) % classes, y)
    X = np.concatenate(
        [
            np.eye(classes)[shortcut] * 2 + 0.1 * rng.normal(size=(n, classes)),
            np.eye(classes)[y] + 0.25 * rng.normal(size=(n, classes)),
        ],
        1,
    )
    return torch.tensor(X, dtype=torch.float32), torch.tensor(y), few


def trained(X, y, bias=True, outputs=None):
    """A network with features of its own, and a plainly trained head."""
    torch.manual_seed(0)
    classes = int(y.max()) + 1
    d = X.shape[1]
    first = nn.Linear(d, 2 * d)
    with torch.no_grad():
        first.weight.copy_(torch.linalg.qr(torch.randn(2 * d, d))[0])
        first.bias.zero_()
    net = nn.Sequential(first, nn.Dropout(0.5), nn.BatchNorm1d(2 * d), nn.Linear(2 * d, outputs or classes, bias=bias))
    with torch.no_grad():
        net[2](net[0](X))  # running statistics
    net.eval()
    features = net[:3](X).detach().numpy()
    plain = LogisticRegression(C=0.1).fit(features, y)
    with torch.no_grad():
        W, b = torch.tensor(plain.coef_), torch.tensor(plain.intercept_)
        if len(W) == 1 and net[3].out_features == 2:
            W, b = torch.cat([-W, W]) / 2, torch.cat([-b, b]) / 2
        net[3].weight.copy_(W)
        if bias:
            net[3].bias.copy_(b)
    return net.train()


def batches(X, y, **options):
    return DataLoader(TensorDataset(X, y), batch_size=128, **options)


def rate(net, X, y, few):
    net = copy.deepcopy(net).eval()
    with torch.no_grad():
        out = net(X)
    predicted = (out[:, 0] > 0).long() if out.shape[1] == 1 else out.argmax(1)
    right = (predicted == y).numpy()
    return right[few].mean(), right.mean()


@pytest.fixture(scope="module")
def repaired():
    X, y, _ = hidden_group()
    model = trained(X, y)
    before = copy.deepcopy(model.state_dict())
    return model, before, repair(model, batches(X, y), progress=False)


def test_the_group_is_served(repaired):
    model, _, fixed = repaired
    X, y, few = hidden_group(4000, seed=1)
    assert fixed.verdict.helps
    (worst, _), (new, mean) = rate(model, X, y, few), rate(fixed.model, X, y, few)
    assert new > worst + 0.2
    assert mean > 0.9
    assert fixed.after.hard > fixed.before.hard
    assert fixed.before.accuracy > 0.9


def test_the_given_model_is_untouched(repaired):
    model, before, fixed = repaired
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    changed = [key for key, value in fixed.model.state_dict().items() if not torch.equal(value, before[key])]
    assert set(changed) == {"3.weight", "3.bias"}
    assert fixed.model.training
    assert all(p.grad is None and p.requires_grad for p in fixed.model.parameters())


def test_the_new_head_is_the_exact_minimiser(repaired):
    model, _, fixed = repaired
    X, y, _ = hidden_group()
    features = copy.deepcopy(model).eval()[:3](X).detach().double().numpy()
    Z = (features - features.mean(0)) / features.std(0)
    C = fixed.verdict.chosen["C"]
    exact = LogisticRegression(C=C, tol=1e-10, max_iter=10_000).fit(Z, y, sample_weight=fixed.weights)
    logits = copy.deepcopy(fixed.model).eval()(X).detach()
    assert (logits[:, 1] - logits[:, 0]).numpy() == pytest.approx(exact.decision_function(Z), abs=1e-4)


def test_bit_for_bit_again_and_whether_or_not_the_loader_shuffles(repaired):
    model, _, fixed = repaired
    X, y, _ = hidden_group()
    again = repair(model, batches(X, y, shuffle=True), progress=False)
    assert torch.equal(again.model[3].weight, fixed.model[3].weight)
    assert np.array_equal(again.weights, fixed.weights)


def test_some_rows_of_a_shuffling_loader():
    X, y, _ = hidden_group()
    _, _, labels = _features(trained(X, y), batches(X, y, sampler=SubsetRandomSampler([5, 3, 9])), None, None, print)
    assert labels.tolist() == y[[3, 5, 9]].tolist()
    with pytest.warns(ScdroWarning, match="may repeat"):
        _features(trained(X, y), batches(X, y, sampler=WeightedRandomSampler(torch.ones(800), 800)), None, None, print)


def test_interrupted_it_leaves_the_model_as_it_was():
    X, y, _ = hidden_group(200)
    model = trained(X, y)
    before = copy.deepcopy(model.state_dict())

    def broken():
        yield X[:100], y[:100]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair(model, broken(), progress=False)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("case", ["three classes", "one output", "no bias"])
def test_heads_of_other_shapes(case):
    classes = 3 if case == "three classes" else 2
    X, y, _ = hidden_group(1000, classes=classes)
    model = trained(X, y, bias=case != "no bias", outputs=1 if case == "one output" else None)
    fixed = repair(model, batches(X, y), progress=False, refuse=False)
    features = copy.deepcopy(model).eval()[:3](X).detach().double().numpy()
    Z = (features - features.mean(0)) / features.std(0)
    exact = LogisticRegression(C=fixed.verdict.chosen["C"], tol=1e-10, max_iter=10_000)
    expected = exact.fit(Z, y, sample_weight=fixed.weights).predict_proba(Z)
    logits = copy.deepcopy(fixed.model).eval()(X).detach()
    found = torch.cat([-logits, logits], 1).div(2).softmax(1) if case == "one output" else logits.softmax(1)
    assert found.numpy() == pytest.approx(expected, abs=1e-4)
    assert fixed.model[3].weight.shape == model[3].weight.shape


class Named(nn.Module):
    """The head is not the last in the list of modules, nor the last linear layer that is called."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
        self.backbone = nn.Linear(4, 4)
        self.aside = nn.Linear(4, 2)

    def forward(self, x):
        x = self.backbone(x).relu()
        out = self.fc(x)
        self.aside(x)
        return out


def test_the_head_is_found_by_what_it_computes_or_named():
    X, y = torch.randn(64, 4), torch.arange(64) % 2
    name, features, _ = _features(Named(), batches(X, y), None, None, print)
    assert name == "fc"
    assert features.shape == (64, 4)
    assert _features(Named(), batches(X, y), "aside", None, print)[0] == "aside"
    with pytest.raises(HyperparameterError, match="fc"):
        _features(Named(), batches(X, y), "head", None, print)


def test_networks_without_a_linear_head():
    X, y = torch.randn(64, 4), torch.arange(64) % 2
    for net in (
        nn.Sequential(nn.Linear(4, 2), nn.Tanh()),
        nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 2, 1), nn.Flatten()),
    ):
        with pytest.raises(HyperparameterError, match="head="):
            repair(net, batches(X, y), progress=False)


@pytest.mark.parametrize(
    ("X", "y", "match"),
    [
        (torch.randn(0, 4), torch.zeros(0, dtype=torch.long), "samples"),
        (torch.randn(20, 4), torch.zeros(20, dtype=torch.long), "every class"),
        (torch.randn(20, 4), torch.arange(20) % 3, "labels 0 to 1"),
        (torch.full((20, 4), torch.nan), torch.arange(20) % 2, "finite"),
        (torch.randn(20, 4), torch.rand(20), "class numbers"),
    ],
)
def test_bad_data(X, y, match):
    with pytest.raises(DataError, match=match):
        repair(nn.Sequential(nn.Linear(4, 2)), batches(X, y), progress=False)


def test_bad_batches():
    with pytest.raises(DataError, match="labels"):
        repair(nn.Sequential(nn.Linear(4, 2)), [torch.randn(4, 4)], progress=False)
    with pytest.raises(DataError, match="labels"):
        repair(nn.Sequential(nn.Linear(4, 2)), [{"x": torch.randn(4, 4)}], progress=False)


def test_known_by_heart():
    rng = np.random.default_rng(0)
    y = torch.arange(400) % 2
    X = torch.tensor(np.c_[5.0 * y, rng.normal(size=(400, 3))], dtype=torch.float32)
    model = trained(X, y)
    with pytest.warns(ScdroWarning, match="kept"):
        fixed = repair(model, batches(X, y), progress=False)
    assert "by heart" in str(fixed.verdict)
    assert torch.equal(fixed.model[3].weight, model[3].weight)


def test_progress_is_shown(capsys):
    X, y, _ = hidden_group(200)
    repair(trained(X, y), batches(X, y), refuse=False)
    shown = capsys.readouterr().err
    assert "features: batch 1 of 2" in shown
    assert "second look" in shown


@pytest.mark.slow
def test_a_large_head_takes_less_than_a_minute():
    """1,280 features, 5,000 samples."""
    rng = np.random.default_rng(0)
    y = torch.tensor(rng.integers(0, 2, 5000))
    X = torch.tensor(rng.normal(size=(5000, 1280)), dtype=torch.float32) + 0.1 * y[:, None]
    start = time.process_time()
    repair(nn.Sequential(nn.Linear(1280, 2)), batches(X, y), progress=False, refuse=False)
    assert time.process_time() - start < 120  # seconds of two cores


@pytest.mark.integration
def test_hugging_faces_classifiers():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(vocab_size=30, dim=16, n_layers=1, n_heads=2, hidden_dim=16, num_labels=2)
    model = transformers.DistilBertForSequenceClassification(config)
    y = torch.arange(120) % 2
    ids = torch.randint(2, 30, (120, 6))
    ids[:, 0] = y
    data = [
        {"input_ids": ids[k : k + 40], "attention_mask": torch.ones(40, 6), "labels": y[k : k + 40]}
        for k in (0, 40, 80)
    ]
    fixed = repair(model, data, progress=False, refuse=False)
    assert not torch.equal(fixed.model.classifier.weight, model.classifier.weight)
    assert torch.equal(fixed.model.pre_classifier.weight, model.pre_classifier.weight)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
def test_torchvision():
    import torchvision

    model = torchvision.models.resnet18(num_classes=2)
    X, y = torch.randn(60, 3, 32, 32), torch.arange(60) % 2
    fixed = repair(model, batches(X, y), progress=False, refuse=False)
    assert not torch.equal(fixed.model.fc.weight, model.fc.weight)


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_timm():
    import timm

    model = timm.create_model("resnet10t", num_classes=2)
    X, y = torch.randn(60, 3, 64, 64), torch.arange(60) % 2
    fixed = repair(model, batches(X, y), progress=False, refuse=False)
    assert not torch.equal(fixed.model.fc.weight, model.fc.weight)
