"""Files as they come: right ones are read by the whole column, damaged ones get one line with the row."""

import gzip
from datetime import date

import numpy as np
import polars as pl
import pytest

from scdro.errors import DataError, MissingDataError
from scdro.tables import read_table
from scdro.tables._read import as_table, column_of


def written(folder, text, name="data.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\n1,x\n2,y\n", [(1, "x"), (2, "y")]),
        ("a;b\n1,5;x\n2;y\n", [("1,5", "x"), ("2", "y")]),
        ("a\tb\n1\tx\n2\t\n", [(1, "x"), (2, None)]),
        ("a,b\r\n 1 , x \r\n2.5,?\r\n", [(1.0, "x"), (2.5, None)]),
        ("\ufeffa,b\n1,2\n3,NA\n", [(1, 2), (3, None)]),
        ('a,b\n1,"x, ""y"""\n2,"two\nlines"\n', [(1, 'x, "y"'), (2, "two\nlines")]),
        ("a,b\n1,2\n\n3,4\n", [(1, 2), (3, 4)]),
        ("a,b\n2024-01-05,1\n2023-12-31,2\n", [(date(2024, 1, 5), 1), (date(2023, 12, 31), 2)]),
        ('a,b\n1,5" pipe\n2,6" pipe\n\n3,x\n', [(1, '5" pipe'), (2, '6" pipe'), (3, "x")]),
        ("a,b\r1,2\r3,4\r", [(1, 2), (3, 4)]),
        ("a,b\n1,inf\n2,3\n", [(1, None), (2, 3.0)]),
    ],
)
def test_what_a_file_says(tmp_path, text, rows):
    assert read_table(written(tmp_path, text)).rows() == rows


def test_a_late_text_makes_a_column_of_texts(tmp_path):
    """The whole column decides, not its beginning."""
    text = "a,b\n" + "".join(f"{k},1\n" for k in range(20_000)) + "late,1\n"
    frame = read_table(written(tmp_path, text))
    assert frame["a"].dtype == pl.String
    assert frame["a"][0] == "0"


def test_gzip_parquet_and_tsv(tmp_path):
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", None]})
    frame.write_parquet(tmp_path / "t.parquet")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,b\n1,x\n2,\n"))
    (tmp_path / "t.tsv").write_text("a\tb\n1\tx\n2\t\n")
    for name in ("t.parquet", "t.csv.gz", "t.tsv"):
        assert read_table(tmp_path / name).equals(frame), name


THOUSAND = "".join(f"{k},{k % 7},word\n" for k in range(1000))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("a,b,c\n" + THOUSAND.replace("400,1,word", '400,1,"word'), ("line 402",)),
        ("a,b,c\n" + THOUSAND.replace("400,1,word", '400,"1,word'), ("line 402",)),
        ('a,b\n1,"x"y\n2,z\n', ("line 2",)),
        ("a,b\n1,2\n3\n", ("2 fields", "line 3")),
        ("a,b\n1,2\n3,4,5\n", ("2 fields", "line 3")),
        (b"a,b\n1,2\n3,\xff\xfe\n", ("UTF-8", "line 3")),
        (b"a,b\n1,2\n3,\x00\n", ("NUL", "line 3")),
        ("a,a\n1,2\n", ("'a'", "twice", "line 1")),
        ("1,2\n3,4\n", ("line 1",)),
        ("\na,b\n1,2\n", ("line 1",)),
        ("a,b\n1,2\n3,4\n".encode("utf-16"), ("UTF-16", "line 1")),
        (b"a,b\r1,2\r3,\xff\r", ("UTF-8", "line 3")),
        (b"a,b\r1,2\r3,\x00\r", ("NUL", "line 3")),
        ("a,b\n1,2\n3," + "x" * 200_000 + "\n", ("131,072", "line 3")),
        ("a,b\n", ("1 line",)),
        ("", ("0 line",)),
    ],
)
def test_damaged_files_get_one_line(tmp_path, text, facts):
    with pytest.raises(DataError) as caught:
        read_table(written(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert [fact for fact in facts if fact not in str(caught.value)] == []


@pytest.mark.parametrize("name", ["t.parquet", "t.csv.gz", "t.xlsx", "t.npz"])
def test_other_files(tmp_path, name):
    with pytest.raises(DataError, match=name.split(".")[0]):
        read_table(written(tmp_path, b"no such format", name))


def test_truncated_files(tmp_path):
    whole = tmp_path / "t.parquet"
    pl.DataFrame({"a": np.arange(1000)}).write_parquet(whole)
    packed = gzip.compress(b"a,b\n" + b"1,2\n" * 1000)
    for name, data in (("u.parquet", whole.read_bytes()), ("u.csv.gz", packed)):
        for keep in (0.1, 0.5, 0.9):
            with pytest.raises(DataError):
                read_table(written(tmp_path, data[: int(keep * len(data))], name))


def test_no_file_and_a_folder(tmp_path):
    with pytest.raises(MissingDataError):
        read_table(tmp_path / "none.csv")
    with pytest.raises(DataError):
        read_table(tmp_path)


def test_frames_of_every_kind():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {
            "n": [1, 2, 3],
            "x": [0.5, np.nan, np.inf],
            "s": ["a", None, "b"],
            "c": pd.Categorical(["u", "v", "u"]),
            "b": [True, False, True],
            "i": pd.array([1, None, 3], dtype="Int64"),
            "t": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"]),
        }
    )
    found = as_table(frame)
    assert found["n"].to_list() == [1, 2, 3]
    assert found["x"].to_list() == [0.5, None, None]
    assert found["s"].to_list() == ["a", None, "b"]
    assert found["c"].to_list() == ["u", "v", "u"]
    assert found["b"].to_list() == ["true", "false", "true"]
    assert found["i"].to_list() == [1, None, 3]
    assert found["t"].dtype.is_temporal()
    assert as_table({"n": [1, 2, 3]}).equals(found.select("n"))
    assert as_table(pl.LazyFrame({"n": [1, 2, 3]})).equals(found.select("n"))
    with pytest.raises(DataError, match="int"):
        as_table(3)


def test_columns_that_may_be_meant():
    frame = pl.DataFrame({f"column_{k}": [0] for k in range(10_000)} | {"Income": [1]})
    with pytest.raises(DataError, match="did you mean 'Income'"):
        column_of(frame, "income", "the target")
    with pytest.raises(DataError) as caught:
        column_of(frame, "zzzzzzzz", "the target")
    assert len(str(caught.value)) < 500  # not all of 10,000


def test_names_cannot_steer_a_terminal(tmp_path):
    with pytest.raises(DataError) as caught:
        column_of(read_table(written(tmp_path, "\x1b[31mred,b\n1,2\n")), "nothing like it", "the target")
    assert "\x1b" not in str(caught.value)
