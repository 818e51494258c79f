"""The metrics equal the functions of scdro.metrics, however the data are cut; in Lightning, `self.log` is enough."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("torchmetrics")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
]

from torchmetrics import MetricCollection  # noqa: E402

from scdro import worst_case  # noqa: E402
from scdro.errors import DataError, HyperparameterError  # noqa: E402
from scdro.integrations.torchmetrics import (  # noqa: E402
    GroupTable,
    RobustValue,
    WorstGroupAccuracy,
)
from scdro.metrics import group_table, worst_group_accuracy  # noqa: E402


def samples(n=101):
    rng = torch.Generator().manual_seed(0)
    scores, y = torch.randn(n, 3, generator=rng), torch.randint(3, (n,), generator=rng)
    groups, weight = torch.randint(4, (n,), generator=rng), torch.rand(n, generator=rng)
    return scores, y, groups, weight


@pytest.mark.parametrize("size", [1, 10, 101])
@pytest.mark.parametrize("weighted", [False, True])
def test_equal_the_functions_however_cut(size, weighted):
    scores, y, groups, weight = samples()
    worst, table, value = (
        WorstGroupAccuracy(5),
        GroupTable(["a", "b", "c", "d", "empty"]),
        RobustValue(0.3),
    )
    losses = torch.nn.functional.cross_entropy(scores, y, reduction="none")
    for rows in torch.arange(len(y)).split(size):
        own = weight[rows] if weighted else None
        worst.update(scores[rows], y[rows], groups[rows], own)
        table.update(scores[rows].argmax(1), y[rows], groups[rows], own)
        value.update(losses[rows], own)
    weights = weight if weighted else None
    expected = group_table(y, scores.argmax(1), groups, weights)
    assert float(worst.compute()) == pytest.approx(
        worst_group_accuracy(y, scores.argmax(1), groups, weights), abs=1e-6
    )
    assert [row.group for row in table.rows()] == ["abcd"[row.group] for row in expected]
    for row, other in zip(table.rows(), expected, strict=True):
        assert row[1:] == pytest.approx(other[1:], abs=1e-6)
    exact = worst_case(losses, 0.3, sample_weight=weights).value
    assert float(value.compute()) == pytest.approx(float(exact), rel=1e-5)
    assert torch.isnan(table.compute()["accuracy/empty"])


def test_an_epoch_starts_from_nothing_and_states_survive_a_checkpoint():
    scores, y, groups, _ = samples()
    worst, value = WorstGroupAccuracy(4), RobustValue(0.3)
    for metric in (worst, value):
        metric.persistent(True)
    worst.update(scores, y, groups)
    value.update(scores[:, 0].abs())
    copy, other = WorstGroupAccuracy(4), RobustValue(0.3)
    copy.load_state_dict(worst.state_dict())
    other.load_state_dict(value.state_dict())
    copy._update_count = other._update_count = 1
    assert copy.compute() == worst.compute()
    assert other.compute() == value.compute()
    worst.reset()
    assert torch.isnan(worst.compute())


def test_self_log_works(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Logging(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)
            self.worst, self.value, self.table = (
                WorstGroupAccuracy(4),
                RobustValue(0.3),
                GroupTable("abcd"),
            )

        def validation_step(self, batch, _):
            x, y, groups = batch
            scores = self.layer(x)
            self.worst.update(scores, y, groups)
            self.value.update(torch.nn.functional.cross_entropy(scores, y, reduction="none"))
            self.table.update(scores, y, groups)
            self.log("worst", self.worst)
            self.log("value", self.value)

        def on_validation_epoch_end(self):
            self.log_dict(self.table.compute())
            self.table.reset()

    torch.manual_seed(0)
    model = Logging()
    x, y, groups, _ = samples()
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
    )
    (found,) = trainer.validate(
        model, DataLoader(TensorDataset(x, y, groups), batch_size=7), verbose=False
    )
    with torch.no_grad():
        scores = model.layer(x)
    losses = torch.nn.functional.cross_entropy(scores, y, reduction="none")
    assert found["worst"] == pytest.approx(
        worst_group_accuracy(y, scores.argmax(1), groups), abs=1e-6
    )
    assert found["value"] == pytest.approx(float(worst_case(losses, 0.3).value), rel=1e-5)
    assert min(found[f"accuracy/{name}"] for name in "abcd") == pytest.approx(found["worst"])


def test_in_a_collection():
    scores, y, groups, _ = samples()
    both = MetricCollection({"worst": WorstGroupAccuracy(4), "table": GroupTable(4)})
    both.update(scores, y, groups)
    found = both.compute()
    assert found["worst"] == min(found[f"accuracy/{g}"] for g in range(4))


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (
            lambda: WorstGroupAccuracy(2).update(torch.zeros(2), torch.zeros(2), torch.zeros(2)),
            "class numbers",
        ),
        (
            lambda: WorstGroupAccuracy(2).update(torch.zeros(3, 2), *torch.zeros(2, 3).long() + 2),
            "groups 0 to 1",
        ),
        (
            lambda: WorstGroupAccuracy(2).update(
                torch.zeros(3, 2), torch.zeros(3).long(), torch.zeros(2).long()
            ),
            "shapes",
        ),
        (
            lambda: WorstGroupAccuracy(2).update(
                torch.zeros(3, 2), torch.zeros(3).long(), torch.zeros(3)
            ),
            "float32",
        ),
        (lambda: RobustValue(0.5).update(torch.tensor(1.0)), "one loss per sample"),
    ],
)
def test_wrong_input_leaves_the_state(call, fact):
    with pytest.raises(DataError, match=fact):
        call()


def test_wrong_settings():
    with pytest.raises(HyperparameterError):
        RobustValue(-1.0)
    for groups in (["a", "a"], [], 0, True, 2.0):
        with pytest.raises(HyperparameterError, match="groups"):
            GroupTable(groups)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int16])
def test_groups_of_any_whole_type(dtype):
    table = GroupTable(np.int64(2))
    table.update(
        torch.tensor([1, 1, 0]), torch.tensor([1, 0, 0]), torch.tensor([1, 0, 1]).to(dtype)
    )
    assert table.size.tolist() == [1, 2]
    assert table._accuracy().tolist() == [0, 1]


def test_no_samples_are_nan_and_half_precision_is_not_lost():
    value = RobustValue(0.3)
    assert torch.isnan(value.compute())
    value.update(torch.zeros(0))
    assert torch.isnan(value.compute())
    losses = torch.linspace(0, 3, 500).bfloat16()
    value.update(losses)
    assert float(value.compute()) == pytest.approx(
        float(worst_case(losses.double(), 0.3).value), rel=1e-6
    )
