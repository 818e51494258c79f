"""scdro.evaluate against the oracles, and that it leaves the model as it was."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections import UserDict, namedtuple
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import oracles
from scdro import evaluate, worst_case
from scdro.errors import DataError, HyperparameterError, LossError, NonFiniteLossError
from scdro.evaluation import Evaluation


def squared(output, target):
    return (output.squeeze(1) - target).square()


def data(n=23, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=generator), torch.randn(n, generator=generator)


def batches(x, y, size=5):
    return list(zip(x.split(size), y.split(size), strict=True))


def linear(seed=0):
    torch.manual_seed(seed)
    return nn.Linear(3, 1)


def losses_of(model, x, y):
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        return squared(model(x), y).double().numpy()


@pytest.mark.parametrize("rho", [0.0, 0.05, 0.7, 9.0])
@pytest.mark.parametrize("lam0", [1e-3, 0.5])
def test_equals_the_oracle(rho, lam0):
    model, (x, y) = linear(), data()
    report = evaluate(model, batches(x, y), squared, rho, lam0=lam0)
    np.testing.assert_allclose(report.losses, losses_of(model, x, y), rtol=1e-5)
    losses = report.losses.numpy()
    expected = oracles.by_root(losses, rho, lam0)
    assert report.value == pytest.approx(expected.value, rel=1e-9)
    assert report.lam == pytest.approx(expected.lam, rel=1e-8)
    assert report.kl == pytest.approx(expected.kl, rel=1e-7, abs=1e-12)
    assert report.mean == pytest.approx(losses.mean(), rel=1e-12)
    assert report.ess == pytest.approx(
        1 / (len(report.losses) * np.sum(expected.weights**2)), rel=1e-7
    )
    np.testing.assert_allclose(report.weights, expected.weights, rtol=1e-7, atol=1e-14)


def test_types_of_the_report():
    model, (x, y) = linear(), data()
    report = evaluate(model, batches(x, y), squared, 0.5)
    assert isinstance(report, Evaluation)
    assert all(type(getattr(report, f)) is float for f in ("value", "mean", "lam", "kl", "ess"))
    assert report.losses.dtype == report.weights.dtype == torch.float64
    assert report.hardest.dtype == torch.int64
    assert not report.losses.requires_grad
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.value = 0.0


@pytest.mark.parametrize("size", [1, 4, 22, 23, 100])
def test_batch_size_does_not_matter(size):
    model, (x, y) = linear(), data()
    one = evaluate(model, [(x, y)], squared, 0.5)
    many = evaluate(model, batches(x, y, size), squared, 0.5)
    assert many.value == pytest.approx(one.value, rel=1e-6)
    assert many.mean == pytest.approx(one.mean, rel=1e-6)
    assert many.hardest.tolist() == one.hardest.tolist()


@pytest.mark.parametrize("count", [0, 1, 7, 23, 100])
def test_hardest_first(count):
    model, (x, y) = linear(), data()
    report = evaluate(model, batches(x, y), squared, 0.5, hardest=count)
    assert (
        report.hardest.tolist()
        == np.argsort(-losses_of(model, x, y), kind="stable")[:count].tolist()
    )


def test_hardest_of_ties_in_the_order_of_the_loader():
    values = torch.tensor([1.0, 3.0, 3.0, 0.0, 3.0])
    report = evaluate(nn.Identity(), [(values, values)], lambda out, _: out, 0.5, hardest=4)
    assert report.hardest.tolist() == [1, 2, 4, 0]


def test_hardest_have_the_largest_weights():
    model, (x, y) = linear(), data()
    report = evaluate(model, batches(x, y), squared, 0.5)
    assert (report.weights[report.hardest].diff() <= 0).all()


@pytest.mark.parametrize(
    "trim", [Fraction(1, 10), Fraction(3, 23) + Fraction(1, 50), Fraction(1, 2)]
)
def test_trim(trim):
    model, (x, y) = linear(), data()
    report = evaluate(model, batches(x, y), squared, 0.5, trim=float(trim))
    losses = report.losses.numpy()
    q = oracles.trimmed(losses, trim)
    expected = oracles.by_root(losses, 0.5, q=q)
    assert report.value == pytest.approx(expected.value, rel=1e-9)
    assert report.lam == pytest.approx(expected.lam, rel=1e-8)
    assert (report.weights.numpy()[q == 0] == 0).all()
    assert report.mean == pytest.approx(losses.mean(), rel=1e-12)
    assert report.value < evaluate(model, batches(x, y), squared, 0.5).value


def test_trim_forgives_wrong_labels():
    model, (x, y) = linear(), data(40)
    y = model(x).detach().squeeze(1)
    y[[3, 17, 30, 31]] += 100.0
    spoiled, forgiven = (
        evaluate(model, batches(x, y), squared, 1.0, trim=t, hardest=4) for t in (0.0, 0.11)
    )
    assert spoiled.value > 1000
    assert forgiven.value < 1e-6
    assert sorted(forgiven.hardest.tolist()) == [3, 17, 30, 31]


def test_shuffled_loader_gives_the_same_value():
    model, (x, y) = linear(), data()
    order = torch.randperm(23, generator=torch.Generator().manual_seed(1))
    plain = evaluate(model, batches(x, y), squared, 0.5)
    shuffled = evaluate(model, batches(x[order], y[order]), squared, 0.5)
    assert shuffled.value == pytest.approx(plain.value, rel=1e-6)
    assert order[shuffled.hardest].tolist() == plain.hardest.tolist()
    torch.testing.assert_close(shuffled.losses, plain.losses[order])


def test_shuffled_targets_give_their_own_losses():
    model, (x, y) = linear(), data()
    wrong = y[torch.randperm(23, generator=torch.Generator().manual_seed(1))]
    report = evaluate(model, batches(x, wrong), squared, 0.5)
    np.testing.assert_allclose(report.losses, losses_of(model, x, wrong), rtol=1e-5)
    assert report.value == pytest.approx(
        oracles.by_root(losses_of(model, x, wrong), 0.5).value, rel=1e-5
    )
    assert report.value != pytest.approx(
        evaluate(model, batches(x, y), squared, 0.5).value, rel=1e-2
    )


def test_generator_data_loader_and_triples():
    model, (x, y) = linear(), data()
    expected = evaluate(model, batches(x, y), squared, 0.5)
    loader = DataLoader(TensorDataset(x, y, torch.arange(23)), batch_size=5)
    for source in (
        (b for b in batches(x, y)),
        iter(batches(x, y)),
        loader,
        ([a, b] for a, b in batches(x, y)),
    ):
        assert evaluate(model, source, squared, 0.5).value == expected.value


def test_generator_is_read_once_and_one_batch_at_a_time():
    model, (x, y) = linear(), data()
    alive, seen = [], []

    def loader():
        for k, batch in enumerate(batches(x, y)):
            alive.append(k)
            yield batch

    def loss(output, target):
        seen.append(len(alive))
        return squared(output, target)

    evaluate(model, loader(), loss, 0.5)
    assert seen == [1, 2, 3, 4, 5]


def test_inputs_that_are_not_tensors():
    class Model(nn.Module):
        def forward(self, inputs):
            return inputs["a"] + inputs["b"]

    values = torch.tensor([1.0, 2.0])
    report = evaluate(Model(), [({"a": values, "b": values}, ["x", "y"])], lambda out, _: out, 0.1)
    assert report.losses.tolist() == [2.0, 4.0]


def test_everything_in_a_batch_moves_to_the_device():
    Pair = namedtuple("Pair", "a b")
    value = torch.ones(2)
    batch = ({"a": value, "list": [value, (value, "text")]}, Pair(value, 3))
    seen = []

    class Model(nn.Module):
        def forward(self, inputs):
            seen.append(inputs)
            return inputs["a"]

    def loss(out, target):
        seen.append(target)
        return torch.ones(2)

    evaluate(Model(), [batch], loss, 0.1, device="meta")
    inputs, target = seen
    assert isinstance(target, Pair)
    assert target.b == 3
    assert inputs["list"][1][1] == "text"
    assert {
        t.device.type for t in (inputs["a"], inputs["list"][0], inputs["list"][1][0], target.a)
    } == {"meta"}


# -- the model is left as it was
# --------------------------------------------------------------------------------------


def mixed():
    """A model in train mode with a frozen part, as in fine-tuning."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
        nn.Dropout(0.5),
        nn.BatchNorm1d(4),
        nn.Linear(4, 1),
    )
    model.train()
    model[0].eval()
    return model


def modes(model):
    return [module.training for module in model.modules()]


def buffers(model):
    return [b.clone() for b in model.buffers()]


@pytest.mark.parametrize(
    "prepare", [lambda m: m, nn.Module.train, nn.Module.eval], ids=["mixed", "train", "eval"]
)
def test_modes_and_buffers_are_restored(prepare):
    model, (x, y) = mixed(), data()
    prepare(model)
    before, stored, random = modes(model), buffers(model), torch.get_rng_state()
    inside = []
    model[3].register_forward_pre_hook(lambda *_: inside.append(any(modes(model))))
    report = evaluate(model, batches(x, y), squared, 0.5)
    assert not any(inside)
    assert modes(model) == before
    for old, new in zip(stored, model.buffers(), strict=True):
        assert torch.equal(old, new)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())
    np.testing.assert_allclose(report.losses, losses_of(model, x, y), rtol=1e-5)


@pytest.mark.parametrize("where", ["loss", "loader", "model"])
def test_modes_are_restored_after_an_error(where):
    model, (x, y) = mixed(), data()
    before = modes(model)

    def loss(output, target):
        if where == "loss":
            raise KeyError("own")
        return squared(output, target)

    def loader():
        yield x, y
        if where == "loader":
            raise KeyError("own")

    def fail(*_):
        raise KeyError("own")

    if where == "model":
        model[3].register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="own"):
        evaluate(model, loader(), loss, 0.5)
    assert modes(model) == before


def test_gradient_mode_is_restored():
    model, (x, y) = linear(), data()
    inside = []

    def loss(output, target):
        inside.append(torch.is_grad_enabled() or output.requires_grad)
        return squared(output, target)

    evaluate(model, [(x, y)], loss, 0.5)
    assert inside == [False]
    assert torch.is_grad_enabled()


def test_model_in_half_precision():
    model, (x, y) = linear().bfloat16(), data()
    report = evaluate(model, batches(x.bfloat16(), y.bfloat16()), squared, 0.5)
    assert report.losses.dtype == torch.float64
    assert report.value == pytest.approx(
        oracles.by_root(report.losses.numpy(), 0.5).value, rel=1e-9
    )


def test_device_by_name_and_model_without_parameters():
    values = torch.tensor([1.0, 2.0, 4.0])
    for device in (None, "cpu", torch.device("cpu")):
        report = evaluate(nn.Identity(), [(values, values)], lambda out, _: out, 0.2, device=device)
        assert report.value == pytest.approx(worst_case([1.0, 2.0, 4.0], 0.2).value)


# -- errors
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (lambda out, y: squared(out, y).mean(), r'\(\).*reduction="none"'),
        (lambda out, y: (out - y[:, None]).square(), r"\(5, 1\).*average"),
    ],
    ids=["reduced", "2-D"],
)
def test_not_one_loss_per_sample(loss, match):
    model, (x, y) = mixed(), data(10)
    before = modes(model)
    with pytest.raises(LossError, match=match):
        evaluate(model, batches(x, y), loss, 0.5)
    assert modes(model) == before


@pytest.mark.parametrize("loader", [[], iter(())])
def test_empty_loader(loader):
    with pytest.raises(LossError, match="empty"):
        evaluate(linear(), loader, squared, 0.5)


def test_empty_batches():
    model, (x, y) = linear(), data(4)
    some = [(x[:0], y[:0]), (x, y), (x[:0], y[:0])]
    assert (
        evaluate(model, some, squared, 0.5).value == evaluate(model, [(x, y)], squared, 0.5).value
    )
    with pytest.raises(LossError, match="empty"):
        evaluate(model, [(x[:0], y[:0])], squared, 0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_losses(bad):
    model, (x, y) = linear(), data()
    y[7] = bad
    with pytest.raises(NonFiniteLossError, match=r"1 NaN.* 23"):
        evaluate(model, batches(x, y), squared, 0.5)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"rho": -1.0}, "rho >= 0"),
        ({"lam0": 0.0}, "lam0 >= 1e-50"),
        ({"trim": 1.0}, r"trim.*\[0, 1\)"),
    ],
)
def test_bad_settings(settings, match):
    def never():
        pytest.fail("the data were read before the settings")
        yield

    with pytest.raises(HyperparameterError, match=match):
        evaluate(linear(), never(), squared, **{"rho": 0.5, **settings})


@pytest.mark.parametrize("kind", [tuple, list])
def test_one_batch_is_not_a_list_of_batches(kind):
    model, x, y = torch.nn.Linear(3, 2), torch.randn(2, 3), torch.tensor([0, 1])
    loss_fn = torch.nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(DataError, match=rf"\[\(x, y\)\].*DataLoader.*{kind.__name__}"):
        evaluate(model, kind((x, y)), loss_fn, rho=0.5)
    assert len(evaluate(model, [(x, y)], loss_fn, rho=0.5).losses) == 2
    assert len(evaluate(model, ([x, y],), loss_fn, rho=0.5).losses) == 2


def test_a_data_set_is_not_a_loader():
    """A model that takes single samples gave one loss per output, or failed far from the cause."""
    x, y = data()
    with pytest.raises(DataError, match=r"TensorDataset.*DataLoader"):
        evaluate(linear(), torch.utils.data.TensorDataset(x, y), squared, 0.5)


def test_a_report_prints_as_one_line_of_numbers():
    x, y = data()
    shown = repr(evaluate(linear(), batches(x, y), squared, 0.5))
    assert "value=" in shown
    assert "tensor" not in shown


class Tagger(nn.Module):
    """Takes its input and gives its output as Hugging Face's models do."""

    def __init__(self):
        super().__init__()
        self.head = linear()

    def forward(self, input_ids, attention_mask=None):
        return {
            "logits": self.head(input_ids if attention_mask is None else input_ids * attention_mask)
        }


@pytest.mark.parametrize("mapping", [dict, UserDict])
def test_batches_of_named_arguments(mapping):
    (x, y), model, mask = data(), Tagger(), torch.tensor([1.0, 0.0, 1.0])
    masks = mask.expand(len(x), 3)
    loader = [
        mapping(input_ids=a, labels=b, attention_mask=c)
        for a, b, c in zip(x.split(5), y.split(5), masks.split(5), strict=True)
    ]
    found = evaluate(model, loader, lambda output, labels: squared(output["logits"], labels), 0.5)
    assert (
        found.losses.tolist()
        == evaluate(model.head, batches(x * mask, y), squared, 0.5).losses.tolist()
    )
    assert "labels" in loader[0]  # as it was
    for bad in ({"input_ids": x, "target": y}, {"input_ids": x}):
        with pytest.raises(DataError, match=r"\(inputs, labels, ...\).*\"labels\".*input_ids"):
            evaluate(model, [mapping(bad)], squared, 0.5)


@pytest.mark.parametrize(
    "data", [torch.zeros(64, 3), torch.utils.data.TensorDataset(torch.zeros(64, 3))]
)
def test_batches_without_targets_are_an_error(data):
    """Bare tensors gave a report of their first two rows."""
    loader = torch.utils.data.DataLoader(data, batch_size=16)
    with pytest.raises(DataError, match="batches"):
        evaluate(torch.nn.Linear(3, 1), loader, lambda out, y: (out - y).square().mean(1), rho=0.5)
