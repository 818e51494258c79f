"""Lightning's Trainer: loops equal plain ones, a resumed run the uninterrupted one, and the log tells the truth."""

import csv
import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

pytest.importorskip("lightning")
pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"
    ),
]

from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402
from lightning.pytorch.tuner import Tuner  # noqa: E402
from lightning_digits import ASCDROClassifier, RobustClassifier, loader  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import scdro  # noqa: E402
from equality import assert_identical  # noqa: E402
from scdro.integrations.lightning import RobustMonitor  # noqa: E402
from scdro.integrations.loggers import JSONLinesLogger, read_json_lines  # noqa: E402

QUIET = {"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
BOTH = pytest.mark.parametrize("kind", [RobustClassifier, ASCDROClassifier])


def made(kind):
    torch.manual_seed(0)
    return kind()


def fitted(model, root, epochs, *, callbacks=(), resume=None, **settings):
    every = ModelCheckpoint(root, filename="{epoch}", save_top_k=-1)
    trainer = Trainer(
        max_epochs=epochs,
        default_root_dir=root,
        callbacks=[every, *callbacks],
        **{"logger": False, **QUIET, **settings},
    )
    trainer.fit(model, loader(), ckpt_path=resume)
    return trainer


def states(model, trainer):
    return {"model": model.state_dict(), "optimizer": trainer.optimizers[0].state_dict()}


@BOTH
def test_resumed_equals_uninterrupted(kind, tmp_path):
    whole, watching = made(kind), RobustMonitor(every=50)
    through = fitted(whole, tmp_path / "whole", 4, callbacks=[watching])
    fitted(made(kind), tmp_path / "part", 2, callbacks=[RobustMonitor(every=50)])
    torch.manual_seed(99)
    resumed = kind()
    monitor = RobustMonitor(every=50)
    later = fitted(
        resumed,
        tmp_path / "part",
        4,
        callbacks=[monitor],
        resume=tmp_path / "part" / "epoch=1.ckpt",
    )
    assert_identical(states(whole, through), states(resumed, later))
    assert monitor.hardest == watching.hardest


def plain_loop(model, epochs):
    """The same training without Lightning."""
    optimizer = model.configure_optimizers()
    data = loader()
    for epoch in range(epochs):
        data.sampler.set_epoch(epoch)
        for x, y, _ in data:
            if isinstance(model, ASCDROClassifier):
                closure = lambda x=x, y=y: cross_entropy(model.network(x), y, reduction="none")  # noqa: E731
                optimizer.step(closure, max_grad_norm=1.0)
                continue
            optimizer.zero_grad()
            model.robust(cross_entropy(model.network(x), y, reduction="none")).backward()
            optimizer.step()
    return optimizer


@BOTH
def test_equals_a_plain_loop(kind, tmp_path):
    inside, outside = made(kind), made(kind)
    trainer = fitted(inside, tmp_path, 2)
    optimizer = plain_loop(outside, 2)
    assert_identical(
        states(inside, trainer),
        {"model": outside.state_dict(), "optimizer": optimizer.state_dict()},
    )


class Accumulated(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = nn.Linear(6, 3)
        self.robust = scdro.KLRobustLoss(0.5, temperature=scdro.temperature.WindowTemperature(0.7))

    def training_step(self, batch, _):
        x, y = batch
        return self.robust(cross_entropy(self.network(x), y, reduction="none"))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9)
        self.robust.attach(optimizer)
        return optimizer


def test_accumulated_gradients_are_those_of_the_large_batch(tmp_path):
    g = torch.Generator().manual_seed(1)
    x, y = (
        torch.randn(96, 6, generator=g, dtype=torch.float64),
        torch.randint(3, (96,), generator=g),
    )
    found = []
    for parts in (1, 4):
        model = Accumulated()
        trainer = Trainer(
            max_epochs=3,
            accumulate_grad_batches=parts,
            precision="64-true",
            logger=False,
            enable_checkpointing=False,
            default_root_dir=tmp_path,
            **QUIET,
        )
        trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=32 // parts))
        assert trainer.global_step == 9
        found.append(model)
    for key, value in found[0].state_dict().items():
        torch.testing.assert_close(value, found[1].state_dict()[key], rtol=1e-10, atol=1e-10)


def test_a_second_fit_and_the_tuner(tmp_path):
    """Each calls configure_optimizers, and so attaches the loss anew."""
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 6, generator=g), torch.randint(3, (64,), generator=g)
    data = DataLoader(TensorDataset(x, y), batch_size=8)
    model = Tuned()
    quiet = {"logger": False, "enable_checkpointing": False, "default_root_dir": tmp_path, **QUIET}
    trainer = Trainer(max_epochs=1, **quiet)
    Tuner(trainer).lr_find(model, data, num_training=10)
    for _ in range(2):
        before = model.robust.lam.clone()
        Trainer(max_epochs=1, **quiet).fit(model, data)
        assert model.robust.lam != before


class Tuned(Accumulated):
    def __init__(self):
        super().__init__()
        self.lr = 0.1

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        self.robust.attach(optimizer)
        return optimizer


class Recorder(RobustClassifier):
    """Keeps what the monitor should have said."""

    def __init__(self):
        super().__init__()
        self.seen, self.watched = [], {}

    def training_step(self, batch, batch_idx):
        outputs = super().training_step(batch, batch_idx)
        self.seen += zip(outputs["losses"].tolist(), outputs["index"].tolist(), strict=True)
        return outputs

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.global_step % 5 == 0:
            self.watched[self.global_step] = (
                float(self.robust.lam),
                float(self.robust.kl),
                float(self.robust.ess),
            )


def test_log_of_any_logger(tmp_path):
    torch.manual_seed(0)
    model, logger = Recorder(), CSVLogger(tmp_path)
    fitted(model, tmp_path, 1, callbacks=[RobustMonitor(every=5, hardest=2)], logger=logger)
    with open(f"{logger.log_dir}/metrics.csv") as file:
        rows = {int(row["step"]) + 1: row for row in csv.DictReader(file)}  # counted from 0
    assert sorted(rows) == [5, 10, 15, 20, 25] == sorted(model.watched)
    for step, row in rows.items():
        numbers = tuple(float(row[f"robust/{key}"]) for key in ("lam", "kl", "ess"))
        assert numbers == pytest.approx(model.watched[step], rel=1e-6)
        expected = sorted(model.seen[64 * (step - 5) : 64 * step], reverse=True)[:2]
        came = [
            (float(row[f"robust/hardest_{k}_loss"]), float(row[f"robust/hardest_{k}_index"]))
            for k in (1, 2)
        ]
        for (loss, index), (value, position) in zip(expected, came, strict=True):
            assert (value, position) == (pytest.approx(loss, rel=1e-6), index)


class Elsewhere(LightningModule):
    """A loss that is no part of the module."""

    def __init__(self, robust):
        super().__init__()
        self.network = nn.Linear(64, 10)
        self.criterion = [robust]

    def training_step(self, batch, _):
        x, y, _ = batch
        return self.criterion[0](cross_entropy(self.network(x), y, reduction="none"))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_loss_outside_of_the_module_is_kept_by_the_monitor(tmp_path):
    def run(epochs, root, resume=None):
        torch.manual_seed(0)
        robust = scdro.KLRobustLoss(0.5)
        model = Elsewhere(robust)
        fitted(model, root, epochs, callbacks=[RobustMonitor(robust)], resume=resume)
        return {"model": model.state_dict(), "robust": robust.state_dict()}

    whole = run(3, tmp_path / "whole")
    run(1, tmp_path / "part")
    assert_identical(whole, run(3, tmp_path / "part", tmp_path / "part" / "epoch=0.ckpt"))


@pytest.mark.parametrize("saved", [[], [RobustMonitor()]])
def test_a_checkpoint_without_the_loss_that_the_monitor_keeps(saved, tmp_path):
    fitted(RobustClassifier(), tmp_path, 1, callbacks=saved)
    robust = scdro.KLRobustLoss(0.5)
    model = RobustClassifier()
    model.robust = robust
    with pytest.raises(scdro.errors.CheckpointError, match="saved its loss"):
        fitted(
            model, tmp_path, 2, callbacks=[RobustMonitor(robust)], resume=tmp_path / "epoch=0.ckpt"
        )


def test_hardest_samples_in_any_form():
    """One that comes again counts with the largest of its losses."""
    monitor = RobustMonitor(hardest=2)
    monitor._note({"losses": torch.tensor([3.0, 1.0]), "index": [7, 8]})
    monitor._note({"losses": torch.tensor([2.0]), "index": 7})
    monitor._note({"losses": [0.5, 2.5], "index": torch.tensor([7, 9])})
    assert monitor.hardest == [(3.0, 7), (2.5, 9)]


def test_nothing_to_watch(tmp_path):
    with pytest.raises(scdro.errors.HyperparameterError, match="KLRobustLoss"):
        fitted(Elsewhere(scdro.KLRobustLoss(0.5)), tmp_path, 1, callbacks=[RobustMonitor()])


@pytest.mark.parametrize("settings", [{"hardest": -1}, {"every": 0}])
def test_bad_settings(settings):
    with pytest.raises(scdro.errors.HyperparameterError, match="expected"):
        RobustMonitor(**settings)


class GivenUp(RobustClassifier):
    """Equal chances for all classes, for ever."""

    def __init__(self):
        super().__init__()
        last = [part for part in self.network.modules() if isinstance(part, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.0)


@pytest.mark.parametrize("on_host", [True, False], ids=["by the loss", "by the monitor"])
def test_a_model_that_has_given_up_is_told_once(tmp_path, monkeypatch, on_host):
    if not on_host:  # as on an accelerator, where the state itself does not look
        monkeypatch.setattr("scdro._state.CHECK_EVERY", 10**9)
        monkeypatch.setattr("scdro.integrations.lightning.host_reads", lambda tensor: False)
    for kind, times in ((GivenUp, 1), (RobustClassifier, 0)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = made(kind)
            fitted(
                model,
                tmp_path / kind.__name__,
                -1,
                callbacks=[RobustMonitor(every=50)],
                max_steps=750,
            )
        assert sum(issubclass(w.category, scdro.ScdroWarning) for w in caught) == times


def test_loggers_get_numbers_histogram_and_hardest_samples(tmp_path):
    path = tmp_path / "log.jsonl"
    monitor = RobustMonitor(every=10, loggers=[JSONLinesLogger(path)])
    fitted(made(RobustClassifier), tmp_path, 1, callbacks=[monitor])
    records = read_json_lines(path)
    steps = [record["step"] for record in records if "scalars" in record]
    assert steps == [9, 19]  # Lightning counts from 0
    assert set(records[0]["scalars"]) == {"robust/lam", "robust/kl", "robust/ess", "robust/value"}
    tables = [record["rows"] for record in records if record.get("table") == "robust/hardest"]
    assert len(tables) == 2
    assert [row["loss"] for row in tables[0]] == sorted(
        (row["loss"] for row in tables[0]), reverse=True
    )
    assert all(record["counts"] for record in records if "histogram" in record)


class Logged(Accumulated):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


@pytest.mark.parametrize("parts", [1, 4])
def test_records_have_lightning_s_own_steps_and_the_robust_value(tmp_path, parts):
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(96, 6, generator=g), torch.randint(3, (96,), generator=g)
    model = Logged()
    trainer = Trainer(
        max_epochs=4,
        accumulate_grad_batches=parts,
        log_every_n_steps=2,
        logger=CSVLogger(tmp_path),
        callbacks=[RobustMonitor()],
        enable_checkpointing=False,
        default_root_dir=tmp_path,
        **QUIET,
    )
    trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=32 // parts))
    with open(f"{trainer.logger.log_dir}/metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    steps = [[row["step"] for row in rows if row[name]] for name in ("loss", "robust/lam")]
    assert steps[0] == steps[1] == ["1", "3", "5", "7", "9", "11"]
    losses, log_weight = model.robust.state.recent.double()
    known = log_weight > -torch.inf
    expected = scdro.worst_case(losses[known], 0.5, sample_weight=log_weight[known].exp()).value
    found = [row["robust/value"] for row in rows if row["robust/value"]]
    assert float(found[-1]) == pytest.approx(float(expected), rel=1e-6)
