"""Predictions have the target's own values and type: from a frame or a file, in Python, CSV and Parquet."""

import datetime
import json

import numpy as np
import pandas as pd
import polars as pl
import pytest

import scdro
from scdro.cli import main
from scdro.errors import CheckpointError
from scdro.tables import train
from scdro.tables._folder import seal

QUICK = {"model": "linear", "methods": ["plain"], "candidates": 1, "seeds": 1}
X = np.random.default_rng(0).normal(size=200)
ABOVE = X > 0


def labelled(low, high, dtype=None):
    return np.where(ABOVE, high, low) if dtype is None else np.where(ABOVE, high, low).astype(dtype)


DAYS = np.where(ABOVE, np.datetime64("2021-03-04"), np.datetime64("1969-12-31"))
TARGETS = {
    "int64": labelled(0, 1),
    "int8": labelled(-3, 7, np.int8),
    "uint64": labelled(2**64 - 2, 2**64 - 1, np.uint64),
    "float64": labelled(0.0, 1.0),
    "float32": labelled(0.1, 0.7, np.float32),
    "bool": ABOVE,
    "str": labelled("-no", "=yes").astype(object),
    "texts like booleans": labelled("False", "True").astype(object),
    "day": DAYS,
    "microsecond": DAYS.astype("datetime64[us]") + np.timedelta64(1, "us"),
    "nanosecond": DAYS.astype("datetime64[ns]") + np.timedelta64(1, "ns"),
}


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("frame", [pl.DataFrame, pd.DataFrame, dict])
def test_from_a_frame(tmp_path, kind, frame):
    y = TARGETS[kind]
    if frame is pd.DataFrame and kind == "day":
        pytest.skip("pandas has no days")
    data = frame({"x": X, "y": y})
    run = train(data, "y", out=tmp_path / "run", **QUICK)
    for one in (run, scdro.load(tmp_path / "run")):
        found = one.predict(data)
        assert (found == y).mean() > 0.9
        assert found.dtype == y.dtype
        assert {type(value) for value in found.tolist()} == {type(value) for value in y.tolist()}
        assert list(one.classes) == sorted(set(pl.Series(y).to_list()))
        assert one.predictions(data)["prediction"].to_list() == pl.Series(found).to_list()
    json.loads((tmp_path / "run" / "model.json").read_text())


@pytest.mark.parametrize("column", ["category", "boolean", "Int64", "object"])
def test_pandas_own_types(column):
    y = pd.Series(ABOVE if column != "Int64" else ABOVE.astype(int)).astype(column)
    data = pd.DataFrame({"x": X, "y": y})
    found = train(data, "y", **QUICK).predict(data)
    assert (found == y.to_numpy()).mean() > 0.9
    assert found.dtype == (np.int64 if column == "Int64" else bool)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        ("0", "1", np.int64), ("0.0", "1.0", np.float64), ("False", "True", bool), ("FALSE", "TRUE", bool),
        ("no", "=yes", object), ("2020-01-01", "2021-01-01", "datetime64[D]"),
    ],
)  # fmt: skip
def test_from_a_csv_file(tmp_path, low, high, expected):
    path, out = tmp_path / "data.csv", tmp_path / "out.csv"
    y = labelled(low, high)
    path.write_text("x,y\n" + "".join(f"{a},{b}\n" for a, b in zip(X, y, strict=True)))
    run = train(path, "y", out=tmp_path / "run", **QUICK)
    found = scdro.load(tmp_path / "run").predict(path)
    assert found.dtype == expected
    if expected is not object:
        own = pd.read_csv(path, parse_dates=["y"] if "-" in low else None)["y"].to_numpy()
        assert (found == own).mean() > 0.9
    assert main(["predict", str(tmp_path / "run"), str(path), "--out", str(out)]) == 0
    written = [line.split(",")[1].removeprefix("'") for line in out.read_text().splitlines()[1:]]
    assert np.mean(written == y) > 0.9
    assert set(written) == {low, high}
    assert run.summary["task"]["classes"] == sorted(run.summary["task"]["classes"])


@pytest.mark.parametrize("kind", TARGETS)
def test_parquet_in_and_out(tmp_path, kind):
    data = pl.DataFrame({"x": X, "y": TARGETS[kind]})
    data.write_parquet(tmp_path / "data.parquet")
    train(tmp_path / "data.parquet", "y", out=tmp_path / "run", **QUICK)
    command = [
        "predict",
        str(tmp_path / "run"),
        str(tmp_path / "data.parquet"),
        "--out",
        str(tmp_path / "p.parquet"),
    ]
    assert main(command) == 0
    found = pl.read_parquet(tmp_path / "p.parquet")["prediction"]
    assert found.dtype == data["y"].dtype
    assert (found == data["y"]).mean() > 0.9


@pytest.mark.parametrize(
    "wrong",
    [
        b"", b"no feather", pl.DataFrame({"prediction": [False]}), pl.DataFrame({"other": [False, True]}),
        pl.DataFrame({"prediction": [None, True]}), pl.DataFrame({"prediction": [[1], [2]]}),
    ],
)  # fmt: skip
def test_labels_of_a_run_are_those_that_scdro_writes(tmp_path, wrong):
    train({"x": X, "y": ABOVE}, "y", out=tmp_path / "run", **QUICK)
    path = tmp_path / "run" / "labels.feather"
    assert pl.read_ipc(path)["prediction"].to_list() == [False, True]
    if isinstance(wrong, bytes):
        path.write_bytes(wrong)
    else:
        wrong.write_ipc(path)
    seal(tmp_path / "run")
    with pytest.raises(CheckpointError):
        scdro.load(tmp_path / "run")


def test_times_keep_their_zone(tmp_path):
    start = pl.Series([datetime.datetime(2020, 1, 1), datetime.datetime(2021, 1, 1)])
    y = start.dt.replace_time_zone("UTC").gather(ABOVE.astype(int))
    train({"x": X, "y": y}, "y", out=tmp_path / "run", **QUICK)
    found = scdro.load(tmp_path / "run").predictions({"x": X})["prediction"]
    assert found.dtype == y.dtype
    assert (found == y).mean() > 0.9
