"""What each logger was given, the library's and those of examples, the package's own reader reads again."""

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from training_loggers import MLflowLogger, StandardLogger, TensorBoardLogger, WandbLogger

from scdro import SCDRO, KLRobustLoss
from scdro.errors import DataError
from scdro.integrations.loggers import JSONLinesLogger, read_json_lines, recent_losses

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings(
        "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
    ),
]
LOSSES = torch.linspace(0.1, 2.0, 40)
ROWS = [{"index": 7, "loss": 2.5, "text": "a | b\nc"}, {"index": 3, "loss": 1.5, "text": ""}]


def written(logger):
    for step in (1, 2):
        logger.scalars({"robust/lam": 0.5 * step, "robust/kl": torch.tensor(0.25)}, step)
    logger.histogram("robust/losses", LOSSES, 2)
    logger.table("robust/hardest", ROWS, 2)
    logger.flush()
    return logger


def test_json_lines(tmp_path):
    path = tmp_path / "new" / "log.jsonl"
    written(JSONLinesLogger(path))
    records = read_json_lines(path)
    assert [record["step"] for record in records] == [1, 2, 2, 2]
    assert records[0]["scalars"] == {"robust/lam": 0.5, "robust/kl": 0.25}
    assert sum(records[2]["counts"]) == len(LOSSES)
    assert len(records[2]["edges"]) == len(records[2]["counts"]) + 1
    assert records[3]["rows"] == ROWS


def test_json_lines_of_a_killed_and_resumed_run(tmp_path):
    path = tmp_path / "log.jsonl"
    for step in (1, 2, 3):
        JSONLinesLogger(path).scalars({"lam": step}, step)
    path.write_bytes(path.read_bytes()[:-9])  # killed in the middle of a line
    for step in (2, 3):
        JSONLinesLogger(path).scalars({"lam": 10 * step}, step)
    assert [record["scalars"]["lam"] for record in read_json_lines(path)] == [1, 20, 30]
    assert all(json.loads(line) for line in path.read_text().splitlines() if line.endswith("}"))


def test_json_lines_are_json_also_of_numbers_that_are_none(tmp_path):
    logger = JSONLinesLogger(tmp_path / "log.jsonl")
    logger.scalars({"lam": math.inf, "kl": math.nan}, 1)
    logger.table("t", [{"array": np.arange(2), "path": tmp_path}], 1)
    logger.histogram("h", [math.nan, 1.0, math.inf], 1)
    numbers, table, histogram = read_json_lines(tmp_path / "log.jsonl")[0:3]
    assert numbers["scalars"] == {"lam": None, "kl": None}
    assert table["rows"] == [{"array": [0, 1], "path": str(tmp_path)}]
    assert sum(histogram["counts"]) == 1
    (tmp_path / "other").write_text('{"a": 1}\n')
    with pytest.raises(DataError, match="step"):
        read_json_lines(tmp_path / "other")


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written(TensorBoardLogger(tmp_path))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("robust/lam")] == [(1, 0.5), (2, 1.0)]
    assert events.Histograms("robust/losses")[0].histogram_value.num == len(LOSSES)
    text = events.Tensors("robust/hardest/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text.splitlines()[0] == "|index|loss|text|"
    assert "a \\| b c" in text


def test_wandb_offline(tmp_path):
    wandb = pytest.importorskip("wandb")
    with pytest.raises(ValueError, match="run"):
        WandbLogger()
    settings = wandb.Settings(silent=True, x_disable_stats=True, console="off", disable_git=True)
    run = wandb.init(mode="offline", dir=tmp_path, project="scdro", settings=settings)
    try:
        run.log({"other": 1.0}, step=50)  # another callback is further on
        written(WandbLogger())
        summary = dict(run.summary)
    finally:
        run.finish()
        wandb.teardown()  # it keeps the working folder of its first run for all later ones
    assert summary["scdro/step"] == 2
    assert summary["scdro/robust/lam"] == 1.0
    assert sum(summary["scdro/robust/losses"]["values"]) == len(LOSSES)
    assert summary["scdro/robust/hardest"]["nrows"] == 2
    assert list(tmp_path.rglob("*.wandb"))


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    try:
        with pytest.raises(ValueError, match="run"):
            MLflowLogger()
        with mlflow.start_run() as run:
            written(MLflowLogger())
        client = mlflow.MlflowClient()
        history = client.get_metric_history(run.info.run_id, "robust/lam")
        assert [(m.step, m.value) for m in history] == [(1, 0.5), (2, 1.0)]
        path = client.download_artifacts(
            run.info.run_id, "robust/hardest/00000002.json", str(tmp_path)
        )
        assert json.loads(Path(path).read_text())["rows"] == ROWS
    finally:
        mlflow.set_tracking_uri(before)


def test_standard_logging(caplog):
    with caplog.at_level(logging.INFO, "scdro"):
        written(StandardLogger())
    assert "step 2: robust/lam=1 robust/kl=0.25" in caplog.messages
    assert any("median=1.05" in message for message in caplog.messages)
    assert any("index=7" in message for message in caplog.messages)


def test_the_library_says_nothing_unless_asked(capfd):
    logging.getLogger("scdro").warning("to nobody")
    assert capfd.readouterr() == ("", "")


def test_recent_losses_of_a_loss_and_an_optimizer():
    layer = torch.nn.Linear(2, 2)
    optimizer, robust = SCDRO(layer.parameters(), lr=0.1, rho=0.5), KLRobustLoss(rho=0.5)
    x, y = torch.randn(6, 2), torch.tensor([0, 1] * 3)
    losses = cross_entropy(layer(x), y, reduction="none")
    robust(losses, mask=torch.arange(6) < 4)
    optimizer.step(lambda: cross_entropy(layer(x), y, reduction="none"))
    assert recent_losses(robust) == pytest.approx(losses[:4].tolist(), abs=1e-6)
    assert recent_losses(optimizer) == pytest.approx(losses.tolist(), abs=1e-6)
