"""repair: any head that is found, exact heads, the given model untouched."""

import copy
import importlib.util
import itertools
import time
import warnings
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from scdro import evaluate, out_of_fold
from scdro.data import Indexed, Weighted
from scdro.errors import DataError, HyperparameterError, ScdroWarning
from scdro.second_look import repair
from scdro.second_look._head import copy_network, features_of


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
    net = nn.Sequential(
        first,
        nn.Dropout(0.5),
        nn.BatchNorm1d(2 * d),
        nn.Linear(2 * d, outputs or classes, bias=bias),
    )
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
    return model, before, repair(model, batches(X, y), progress=False, refuse=False)


def test_the_group_is_served(repaired):
    model, _, fixed = repaired
    X, y, few = hidden_group(4000, seed=1)
    (worst, _), (new, mean) = rate(model, X, y, few), rate(fixed.model, X, y, few)
    assert new > worst + 0.2
    assert mean > 0.9
    assert fixed.after.hard > fixed.before.hard


def test_a_confirmed_group_is_served():
    """Two lines: find the slice, and fix it."""
    X, y, few = hidden_group()
    model = trained(X, y)
    first = repair(model, batches(X, y), progress=False)
    place = np.where(X[:, 0] > X[:, 1], "left", "right")  # the shortcut
    slices = first.find_slices({"place": place})
    fixed = repair(model, batches(X, y), groups=slices[0], progress=False, refuse=False)
    assert len(fixed.verdict.confirmed) == 4  # class x place
    assert fixed.verdict.used == "groups"
    X, y, few = hidden_group(4000, seed=1)
    (worst, _), (new, mean) = rate(model, X, y, few), rate(fixed.model, X, y, few)
    assert new > worst + 0.2
    assert mean > 0.9


def test_what_confirming_would_gain_is_told_before():
    """The same verdict as if it was confirmed, and the headline is the group's own score before and after."""
    X, y, _ = hidden_group()
    model = trained(X, y)
    first = repair(model, batches(X, y), progress=False)
    place = np.where(X[:, 0] > X[:, 1], "left", "right")
    slices = first.find_slices({"place": place})
    told = first.would_gain(slices[:1])
    fixed = repair(model, batches(X, y), groups=slices[0], progress=False)
    assert [one.slice for one in told] == [slices[0]]
    assert told[0].verdict == fixed.verdict
    assert str(told).startswith(f"{slices[0].members.text}: its worst group would go from")
    assert fixed.verdict.answer in str(told)
    cells = [(place == p) & (y.numpy() == k) for p in ("left", "right") for k in (0, 1)]
    both = (fixed.right_before, fixed.right_after)
    worst = [min(right[rows].mean() for rows in cells) for right in both]
    assert [fixed.before.hard, fixed.after.hard] == pytest.approx(worst)
    headline = str(fixed.verdict).split(". ")[1]
    assert all(name in headline for name in fixed.verdict.confirmed)


@pytest.mark.parametrize("refuse", [True, False])
def test_a_head_that_serves_the_confirmed_group_is_kept(refuse):
    """Fitted to ten times as many samples of the group: a head fitted to these few loses there."""
    X, y, few = hidden_group(3000, seed=5)
    rows = np.concatenate([np.flatnonzero(few), np.flatnonzero(~few)[: few.sum()]])
    model = trained(X[rows], y[rows])
    X, y, few = hidden_group(160, seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fixed = repair(model, batches(X, y), groups=few, progress=False, refuse=refuse)
    cells = [(y.numpy() == k) & (few == f) for k in (0, 1) for f in (False, True)]
    before, after = (
        min(float(np.mean(right[m])) for m in cells if m.sum() >= 5)
        for right in (fixed.right_before, fixed.right_after)
    )
    assert after >= before or not refuse
    assert fixed.before.accuracy > 0.9


def test_the_given_model_is_untouched(repaired):
    model, before, fixed = repaired
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    changed = [
        key
        for key, value in fixed.model.state_dict().items()
        if not torch.equal(value, before[key])
    ]
    assert set(changed) == {"3.weight", "3.bias"}
    assert fixed.model.training
    assert all(p.grad is None and p.requires_grad for p in fixed.model.parameters())


def test_the_new_head_is_the_exact_minimiser():
    X, y, _ = hidden_group()
    model = trained(X, y)
    fixed = repair(model, batches(X, y), progress=False, refuse=False)
    features = copy.deepcopy(model).eval()[:3](X).detach().double().numpy()
    Z = (features - features.mean(0)) / features.std(0)
    C = fixed.verdict.chosen["C"]
    exact = LogisticRegression(C=C, tol=1e-10, max_iter=10_000).fit(
        Z, y, sample_weight=fixed.weights
    )
    logits = copy.deepcopy(fixed.model).eval()(X).detach()
    assert (logits[:, 1] - logits[:, 0]).numpy() == pytest.approx(
        exact.decision_function(Z), abs=1e-4
    )


def coloured_digits(seed, agree=0.95, wrong=0.1):
    """Digits below five or not, in the class's colour but for a few: images, classes, labels (some wrong), colours."""
    rng = np.random.default_rng(seed)
    source = load_digits()
    order = rng.permutation(len(source.target))
    y = (source.target[order] >= 5).astype(int)
    labels = np.where(rng.random(len(y)) < wrong, 1 - y, y)
    colour = np.where(rng.random(len(y)) < agree, y, 1 - y)
    x = np.zeros((len(y), 2, 64), dtype=np.float32)
    x[np.arange(len(y)), colour] = source.data[order] / 16
    return (
        torch.tensor(x.reshape(len(y), -1)),
        torch.tensor(y),
        torch.tensor(labels),
        torch.tensor(colour),
    )


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_a_head_that_serves_the_group_is_not_replaced_by_one_that_does_not(seed):
    """Held-out data with the shortcut favour a head that uses it: the worst group fell from 53, 67 and 61% to 0, 1 and
    8."""
    x, _, labels, colour = coloured_digits(seed)
    group = 2 * labels[:800] + colour[:800]
    weights = 200 / torch.bincount(group)[group]  # all four groups count the same
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3, weight_decay=1e-4)
    for _ in range(20):
        for i in torch.randperm(800).split(64):
            optimizer.zero_grad()
            (
                weights[i] * nn.functional.cross_entropy(net(x[i]), labels[i], reduction="none")
            ).mean().backward()
            optimizer.step()
    with pytest.warns(
        ScdroWarning, match="the given head is kept: no clear gain on the hard samples"
    ):
        fixed = repair(net, batches(x[800:1300], labels[800:1300]), progress=False)
    assert torch.equal(fixed.model[2].weight, net[2].weight)
    assert fixed.after == fixed.before
    assert "hard samples" in str(fixed.verdict)
    assert str(fixed) == str(fixed.verdict)
    assert f"right for {100 * fixed.before.hard:.1f}%" in str(fixed.verdict)
    x, y, _, colour = coloured_digits(seed, agree=0.5, wrong=0.0)
    x, y, group = x[1300:], y[1300:], (2 * y + colour)[1300:]
    assert min(rate(fixed.model, x, y, (group == g).numpy())[0] for g in range(4)) > 0.5


def test_hard_samples_that_lose_are_told_also_if_it_is_not_refused():
    X, y, _ = hidden_group()
    net = nn.Sequential(nn.Identity(), nn.Linear(4, 2))
    with torch.no_grad():  # the class alone, and not the shortcut
        net[1].weight.copy_(torch.tensor([[0.0, 0, 1, 0], [0, 0, 0, 1]]))
        net[1].bias.zero_()
    taken = repair(net, batches(X, y), progress=False, refuse=False)
    assert not torch.equal(taken.model[1].weight, net[1].weight)
    assert taken.after.hard < taken.before.hard
    assert "replaced because of refuse=False" in str(taken.verdict)


def test_a_plain_refit_where_only_the_given_head_is_wrong():
    rng = np.random.default_rng(0)
    y = torch.tensor(rng.integers(0, 2, 600))
    X = torch.tensor(rng.normal(size=(600, 4)), dtype=torch.float32)
    X[:, 0] += 4 * y
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[0.0, 1, 0, 0], [0, -1, 0, 0]]))  # knows nothing
    fixed = repair(model, batches(X, y), progress=False)
    assert fixed.verdict.answer == "a plain refit suffices"
    assert fixed.before.accuracy < 0.6
    assert fixed.after.accuracy > 0.95
    right = (fixed.model(X).argmax(1) == y).double().mean().item()
    assert right == pytest.approx(fixed.after.accuracy, abs=0.02)
    assert f"the given head is right for {100 * fixed.before.accuracy:.1f}%" in str(fixed.verdict)


def test_easy_samples_that_the_given_head_gets_wrong_are_not_memorised():
    torch.manual_seed(0)
    y = (torch.rand(1000) < 0.1).long()
    X = torch.randn(1000, 3) * 0.05
    X[:, 0] += y
    fixed = repair(nn.Sequential(nn.Identity(), nn.Linear(3, 2)), batches(X, y), progress=False)
    assert "memorised" not in str(fixed.verdict)
    assert fixed.after.accuracy > 0.99 > fixed.before.accuracy


def test_bit_for_bit_again_and_whether_or_not_the_loader_shuffles(repaired):
    model, _, fixed = repaired
    X, y, _ = hidden_group()
    drawn = torch.get_rng_state()
    again = repair(model, batches(X, y, shuffle=True), progress=False, refuse=False)
    assert torch.equal(again.model[3].weight, fixed.model[3].weight)
    assert np.array_equal(again.weights, fixed.weights)
    assert torch.equal(
        torch.get_rng_state(), drawn
    )  # your own random numbers go on as if nothing had happened


def test_some_rows_of_a_shuffling_loader():
    X, y, _ = hidden_group()
    _, _, labels = features_of(trained(X, y), batches(X, y, sampler=SubsetRandomSampler([5, 3, 9])))
    assert labels.tolist() == y[[3, 5, 9]].tolist()
    whole = BatchSampler(RandomSampler(range(800)), 100, drop_last=False)
    loader = DataLoader(TensorDataset(X, y), batch_sampler=whole)
    assert features_of(trained(X, y), loader).y.tolist() == y.tolist()

    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(X[k], y[k]) for k in (4, 2, 7)])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = features_of(trained(X, y), DataLoader(Stream(), batch_size=2))
    assert found.y.tolist() == y[[4, 2, 7]].tolist()
    with pytest.warns(ScdroWarning, match="may repeat"):
        features_of(
            trained(X, y),
            batches(X, y, sampler=WeightedRandomSampler(torch.ones(800), 800)),
        )


def test_interrupted_it_leaves_the_model_as_it_was(monkeypatch):
    X, y, _ = hidden_group(200)
    model = trained(X, y)
    before = copy.deepcopy(model.state_dict())

    def broken():
        yield X[:100], y[:100]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair(model, broken(), progress=False)
    fits = itertools.count()
    fit = LogisticRegression.fit
    for stop_at in (0, 60):  # the first fit of a reference, and while heads are tried

        def interrupted(self, *args, stop_at=stop_at, **kwargs):
            if next(fits) == stop_at:
                raise KeyboardInterrupt
            return fit(self, *args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(LogisticRegression, "fit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                repair(model, batches(X, y), progress=False, refuse=False)
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
    Z = (features - (0 if case == "no bias" else features.mean(0))) / features.std(0)
    exact = LogisticRegression(
        C=fixed.verdict.chosen["C"], tol=1e-10, max_iter=10_000, fit_intercept=case != "no bias"
    )
    expected = exact.fit(Z, y, sample_weight=fixed.weights).predict_proba(Z)
    logits = copy.deepcopy(fixed.model).eval()(X).detach()
    found = (
        torch.cat([-logits, logits], 1).div(2).softmax(1)
        if case == "one output"
        else logits.softmax(1)
    )
    assert found.numpy() == pytest.approx(expected, abs=1e-4)
    assert fixed.model[3].weight.shape == model[3].weight.shape
    assert (fixed.model[3].bias is None) == (case == "no bias")


def test_gradients_hooks_and_modes_of_the_given_model_stay():
    X, y, _ = hidden_group(300)
    model = trained(X, y)
    model[1].eval()
    model[0].weight.requires_grad_(False)
    nn.functional.cross_entropy(model(X), y).backward()
    gradient = model[3].weight.grad.clone()
    model[3].weight.requires_grad_(False)
    calls = []
    model[2].register_forward_hook(lambda *_: calls.append(1))
    fixed = repair(model, batches(X, y), progress=False, refuse=False, device="cpu")
    assert torch.equal(model[3].weight.grad, gradient)
    for net in (model, fixed.model):
        assert [module.training for module in net.modules()] == [True, True, False, True, True]
        assert [p.requires_grad for p in net.parameters()] == [False, True, True, True, False, True]
        assert [len(module._forward_hooks) for module in net] == [0, 0, 1, 0]
    assert fixed.model[3].weight.grad is None


def test_a_head_that_shares_its_weight_gets_its_own():
    X, y, _ = hidden_group(300)
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    fixed = repair(model, batches(X, y), progress=False, refuse=False)
    assert torch.equal(fixed.model[0].weight, model[0].weight)
    assert not torch.equal(fixed.model[2].weight, model[2].weight)


def test_who_it_is():
    X, y, few = hidden_group()
    fixed = repair(trained(X, y), batches(X, y), progress=False, refuse=False)
    assert fixed.features.shape == (800, 8)
    found = fixed.find_slices({"place": np.where(few, "unusual", "usual")})
    assert found[0].conditions[0] == "place = unusual"
    rows = (
        few
        if len(found[0].conditions) == 1
        else few & (y.numpy() == int(found[0].conditions[1][-1]))
    )
    assert found[0].before == pytest.approx(fixed.right_before[rows].mean(), abs=0.1)
    assert found[0].after > found[0].before


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
    name, features, _ = features_of(Named(), batches(X, y))
    assert name == "fc"
    assert features.shape == (64, 4)
    assert features_of(Named(), batches(X, y), "aside")[0] == "aside"
    with pytest.raises(HyperparameterError, match="fc"):
        features_of(Named(), batches(X, y), "head")


class Dressed(nn.Module):
    """What networks return, besides a tensor of logits."""

    def __init__(self, dress):
        super().__init__()
        self.features, self.fc, self.dress = nn.Linear(4, 6), nn.Linear(6, 2), dress

    def forward(self, x):
        return self.dress(self.fc(self.features(x).relu()))


DRESSES = {
    "probabilities": lambda z: z.softmax(-1),
    "log probabilities": lambda z: z.log_softmax(-1),
    "dictionary": lambda z: {"loss": None, "logits": z},
    "tuple": lambda z: (z, z.relu()),
    "output": lambda z: SimpleNamespace(loss=z.sum(), logits=z),
    "double": lambda z: z.double(),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_whatever_the_network_returns(dress):
    X, y = torch.randn(64, 4), torch.arange(64) % 2
    net = Dressed(DRESSES[dress])
    found = features_of(net, batches(X, y))
    assert found.name == "fc"
    assert np.allclose(found.X, net.features(X).relu().detach().numpy())


class Tokens(nn.Module):
    """Scores of every token, then those of the last one that is no padding, or their mean: as language models do."""

    def __init__(self, pooled):
        super().__init__()
        self.embed, self.score, self.pooled = (
            nn.Embedding(9, 5),
            nn.Linear(5, 2, bias=False),
            pooled,
        )

    def forward(self, input_ids, length):
        scores = self.score(self.embed(input_ids))
        logits = scores.mean(1) if self.pooled else scores[torch.arange(len(scores)), length - 1]
        return SimpleNamespace(logits=logits)


@pytest.mark.parametrize("pooled", [False, True])
def test_heads_that_see_tokens(pooled):
    torch.manual_seed(0)
    net, ids, length = Tokens(pooled), torch.randint(9, (40, 7)), torch.randint(1, 8, (40,))
    data = [{"input_ids": ids[k : k + 20], "length": length[k : k + 20], "labels": torch.arange(20) % 2}
            for k in (0, 20)]  # fmt: skip
    name, X, _ = features_of(net, data)
    assert name == "score"
    embedded = net.embed(ids).detach()
    expected = embedded.mean(1) if pooled else embedded[torch.arange(40), length - 1]
    shown = net(ids, length).logits.detach().numpy()
    assert np.allclose(X @ net.score.weight.detach().numpy().T, shown, atol=1e-5)
    if pooled:
        assert np.allclose(X, expected.numpy(), atol=1e-6)


def test_several_inputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, a, b):
            return self.head(a + b)

    a, b, y = torch.randn(60, 4), torch.randn(60, 4), torch.arange(60) % 2
    rows = [{"a": a[k], "b": b[k], "labels": y[k]} for k in range(60)]
    found = features_of(Two(), DataLoader(rows, batch_size=32))
    assert np.allclose(found.X, (a + b).numpy())
    for second in (b, y):  # the second item is the labels, and one argument is missing
        with pytest.raises(DataError, match=r"second item"):
            features_of(Two(), DataLoader(TensorDataset(a, second, y), batch_size=32))


class Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


def test_named_tuples_reach_the_model_as_they_are():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, pair):
            return self.head(pair.a + pair.b)

    a, b, y = torch.randn(60, 4), torch.randn(60, 4), torch.arange(60) % 2
    found = features_of(Named(), [(Pair(a, b), y)])
    assert np.allclose(found.X, (a + b).numpy())


def test_networks_without_a_linear_head():
    X, y = torch.randn(64, 4), torch.arange(64) % 2
    conv = nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 2, 1), nn.Flatten())
    for net, fact in (
        (nn.Sequential(nn.Linear(4, 2), nn.Tanh()), "'0'"),
        (conv, "Conv1d '1'"),
        (nn.Sequential(nn.Flatten()), "no layers"),
    ):
        with pytest.raises(HyperparameterError, match=fact):
            repair(net, batches(X, y), progress=False)
    with pytest.raises(HyperparameterError, match="Conv1d"):
        repair(conv, batches(X, y), head="1", progress=False)
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))
    with pytest.raises(HyperparameterError, match="parametrization"):
        repair(normed, batches(X, y), progress=False)


def test_networks_that_cannot_be_copied():
    class Locked(nn.Linear):
        def __deepcopy__(self, memo):
            raise RuntimeError("only once")

    with pytest.raises(HyperparameterError, match="only once"):
        repair(Locked(4, 2), batches(torch.randn(64, 4), torch.arange(64) % 2), progress=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_networks():
    X, y, _ = hidden_group(100)
    model = trained(X, y)
    compiled = torch.compile(model, backend="eager")
    compiled(X)
    assert features_of(copy_network(compiled), batches(X, y)).name == "3"


@pytest.mark.parametrize(
    ("X", "y", "match"),
    [
        (torch.randn(0, 4), torch.zeros(0, dtype=torch.long), "samples"),
        (torch.randn(20, 4), torch.zeros(20, dtype=torch.long), "every class"),
        (torch.randn(20, 4), torch.arange(20) % 3, "labels 0 to 1"),
        (torch.full((20, 4), torch.nan), torch.arange(20) % 2, "finite"),
        (torch.randn(20, 4), torch.rand(20), "class numbers"),
        (torch.randn(20, 4), torch.eye(2)[torch.arange(20) % 2], "one class number"),
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


@pytest.mark.parametrize("kind", ["pairs", "indexed", "weighted", "dictionaries"])
def test_one_convention_of_batches(kind):
    """`evaluate`, `repair` and `out_of_fold` read the same items in the same way."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(x)

    torch.manual_seed(0)
    X, y = torch.randn(40, 4), torch.arange(40) % 2
    pairs, net = TensorDataset(X, y), Net()
    items = {
        "pairs": pairs,
        "indexed": Indexed(pairs),
        "weighted": Weighted(pairs, np.arange(1.0, 41)),
        "dictionaries": [{"x": a, "labels": b} for a, b in pairs],
    }[kind]
    loader = DataLoader(items, batch_size=15)
    found = features_of(net, loader)
    assert np.allclose(found.X, X.numpy())
    assert found.y.tolist() == y.tolist()
    losses = nn.functional.cross_entropy(net(X), y, reduction="none").detach().double()
    loss_fn = nn.CrossEntropyLoss(reduction="none")
    assert torch.allclose(evaluate(net, loader, loss_fn, 0.5).losses, losses, atol=1e-6)
    proba = out_of_fold(lambda subset: net, items)
    assert torch.allclose(proba, net(X).softmax(1), atol=1e-6)


def test_what_is_no_network_and_no_loader():
    data = torch.utils.data.TensorDataset(torch.zeros(10, 2), torch.arange(10) % 2)
    with pytest.raises(HyperparameterError, match="SecondLook"):
        repair(LogisticRegression(), DataLoader(data), progress=False)
    for bad in (data, None, 3):
        with pytest.raises(DataError, match="DataLoader"):
            repair(nn.Linear(2, 2), bad, progress=False)
    with pytest.raises(HyperparameterError, match="budget"):
        repair(nn.Linear(2, 2), DataLoader(data), budget=-1.0, progress=False)


@pytest.mark.parametrize("labels", [("a", "b"), ["a", "b"], [None, None], np.array(["a", "b"])])
def test_labels_that_are_no_numbers(labels):
    with pytest.raises(DataError, match=r"class numbers 0, 1"):
        repair(nn.Linear(2, 2), [(torch.zeros(2, 2), labels)], progress=False)


def test_known_by_heart():
    rng = np.random.default_rng(0)
    y = torch.arange(400) % 2
    X = torch.tensor(np.c_[5.0 * y, rng.normal(size=(400, 3))], dtype=torch.float32)
    model = trained(X, y)
    with pytest.warns(ScdroWarning, match="kept"):
        fixed = repair(model, batches(X, y), progress=False)
    assert "memorised" in str(fixed.verdict)
    assert "memorised" in repr(fixed)
    assert "array" not in repr(fixed)
    assert torch.equal(fixed.model[3].weight, model[3].weight)


def test_progress_is_shown(capsys, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(ticks)))
    X, y, _ = hidden_group(200)
    repair(trained(X, y), batches(X, y), refuse=False, progress=True)
    shown = capsys.readouterr().err
    assert "repair: fit 30 of about" in shown  # where there is no terminal, a line in 30 s
    assert ", second fit  0:" in shown
    assert "left" in shown
    repair(trained(X, y), batches(X, y), refuse=False)  # no terminal
    assert not capsys.readouterr().err


@pytest.mark.integration
def test_hugging_faces_classifiers():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=30, dim=16, n_layers=1, n_heads=2, hidden_dim=16, num_labels=2
    )
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


@pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed"
)
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
