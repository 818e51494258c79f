"""Tables that are not in memory: the same audit as of those that are."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import scdro
from scdro import tables
from scdro.auditing import _codes  # chunks are made small, so that there are several
from scdro.cli import main
from scdro.errors import DataError
from scdro.tables import _audit_table  # to see what is read into memory


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    rng = np.random.default_rng(0)
    n = 5000
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.05, np.nan, rng.integers(18, 90, n)),
            "city": rng.choice(["Oslo", "Rome", "Lima", None], n),
            "member": rng.random(n) < 0.5,
            "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 300, n), "D"),
            "p": rng.uniform(0.05, 0.6, n),
        }
    )
    bad = (frame.age > 60) & (frame.city == "Rome")
    frame["y"] = (rng.random(n) < frame.p + 0.3 * bad).astype(int)
    path = tmp_path_factory.mktemp("scored") / "scored.parquet"
    frame.to_parquet(path)
    return frame, path


def test_a_lazy_frame_gives_the_same(scored, monkeypatch):
    frame, path = scored
    columns = ["age", "city", "member", "day"]
    monkeypatch.setattr(_codes, "ROWS_CODED_AT_ONCE", 700)
    lazy = scdro.audit(frame.y, frame.p, pl.scan_parquet(path).select(columns))
    whole = scdro.audit(frame.y, frame.p, frame[columns])
    assert lazy.findings
    assert lazy.to_json() == whole.to_json()
    assert lazy.findings[0].rows_of(frame).tolist() == whole.findings[0].members.tolist()
    assert lazy.worst_subgroup(0.1).low > frame.y.mean() - 0.1
    with pytest.raises(DataError, match="4,999 rows"):
        scdro.audit(frame.y[1:], frame.p[1:], pl.scan_parquet(path).select(columns))


def test_the_command_reads_parquet_column_by_column(scored, monkeypatch, tmp_path, capsys):
    frame, path = scored
    frame.to_csv(tmp_path / "scored.csv", index=False)
    read = []
    original = _audit_table.as_table

    def watched(data, *others):
        table = original(data, *others)
        read.append(table.columns)
        return table

    monkeypatch.setattr(_audit_table, "as_table", watched)
    found = tables.audit(path, "y", prediction=["p"], group=["city"])
    assert read == [["city", "p", "y"]]
    assert found.findings[0].slice == "age > 60 and city = Rome"
    whole = tables.audit(pl.read_parquet(path), "y", prediction=["p"], group=["city"])
    assert found.to_json() == whole.to_json()
    assert main(["audit", str(path), "--target", "y", "--prediction", "p"]) == 0
    assert "age > 60 and city = Rome" in capsys.readouterr().out
    assert main(["audit", str(path), "--target", "yy", "--prediction", "p"]) == 1
    assert "'yy'" in capsys.readouterr().err


def test_a_damaged_file_is_refused(tmp_path, capsys):
    path = tmp_path / "scored.parquet"
    path.write_bytes(b"PAR1 this is no table")
    assert main(["audit", str(path), "--target", "y", "--prediction", "p"]) == 1
    assert "expected a Parquet file" in capsys.readouterr().err
