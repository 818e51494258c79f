"""Files as they come: right ones are read by the whole column, damaged ones get one line with the row."""

import gzip
import io
import json
import sys
import zipfile
from datetime import date, datetime, timedelta

import numpy as np
import pandas as pd
import polars as pl
import pytest

from scdro.errors import DataError, HyperparameterError, MissingDataError
from scdro.tables import read_table
from scdro.tables._read import FileOptions, as_table, column_of, table_and_ids


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
        ('a,b"\n1,15"\n2,x\n3,y\n', [(1, '15"'), (2, "x"), (3, "y")]),
        ('a,b\r1,"two\nlines"\r3,4\r5,6\r', [(1, "two\nlines"), (3, "4"), (5, "6")]),
        (
            "a,b\n,\n\n1,2\n",
            [(None, None), (1, 2)],
        ),  # the blank line is skipped, the row of missing values is not
        ('a\n""\n\n1\n', [(None,), (1,)]),
        ('"a;b;c",d\n1,2\n', [(1, 2)]),
        ("a;b;c,d\n1,2\n3,4\n", [(1, 2), (3, 4)]),
        (",a\n0,x\n1,y\n", [(0, "x"), (1, "y")]),  # pandas' index has no name
        ("t\n31.1.2024\n01.12.2023\n", [(date(2024, 1, 31),), (date(2023, 12, 1),)]),
        ("t\n31.01.2024 13:05\nNA\n", [(datetime(2024, 1, 31, 13, 5),), (None,)]),
        ("t\n31.1.2024\n12.13.2023\n", [("31.1.2024",), ("12.13.2023",)]),
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


@pytest.mark.parametrize("name", ['screen"', 'screen (")', 'size ""in""'])
@pytest.mark.parametrize("cells", [0, 1, 2])
@pytest.mark.parametrize("quoted", [False, True])
def test_quotes_in_a_name_lose_no_rows(tmp_path, name, cells, quoted):
    first = '"' + name.replace('"', '""') + '"' if quoted else name
    text = f"a,{first}\n" + "".join(
        f"{k},{'15' + chr(34) if k in (298, 700)[:cells] else k}\n" for k in range(1000)
    )
    frame = read_table(written(tmp_path, text))
    assert frame.height == 1000
    assert frame.columns == ["a", name]
    assert frame["a"].to_list() == list(range(1000))


def test_ids_are_as_written_and_the_table_is_not(tmp_path):
    ids = ["00042", "9007199254740993", "18446744073709551615", "NA", " x", ""]
    path = written(tmp_path, "id,a\n" + "".join(f"{one},1\n" for one in ids))
    table, copied = table_and_ids(path, (), ["id", "none such"])
    assert copied.columns == ["id"]
    assert copied["id"].to_list() == ids
    assert table["id"].to_list() == [*ids[:3], None, "x", None]
    assert table["a"].to_list() == [1] * 6


def test_encodings_and_decimals(tmp_path):
    text = "größe;preis;ort\n1,5;2;Köln\n2;;Zürich\n"
    for encoding in ("cp1252", "utf-16", "utf-8", "mac-roman"):
        frame = read_table(written(tmp_path, text.encode(encoding)), encoding=encoding, decimal=",")
        assert frame.columns == ["größe", "preis", "ort"], encoding
        assert frame.rows() == [(1.5, 2, "Köln"), (2.0, None, "Zürich")], encoding
    numbers = "a;b;c;d\n,5;+3,;-1,5e3;1.5\n1;2;3;1,5\n"
    frame = read_table(written(tmp_path, numbers), decimal=",")
    assert frame.rows() == [
        (0.5, 3.0, -1500.0, "1.5"),
        (1.0, 2.0, 3.0, "1,5"),
    ]  # a point is no decimal comma
    thousands = "a;b\n1.234,56;1.000\n-1.000.000;2.500\n7,5;3.000\n"
    assert read_table(written(tmp_path, thousands), decimal=",").rows() == [
        (1234.56, "1.000"),
        (-1e6, "2.500"),
        (7.5, "3.000"),
    ]  # without any comma, nothing says what the points are
    with pytest.raises(DataError, match=r"line 2.*encoding"):
        read_table(written(tmp_path, "a\ngrün\n".encode("cp1252")))
    with pytest.raises(DataError, match=r"cp1252 text.*line 3"):
        read_table(written(tmp_path, b"a\nb\n\x81\n"), encoding="cp1252")
    for wrong in (
        {"encoding": "no-such"},
        {"encoding": "hex"},
        {"decimal": ";"},
        {"sheet": "first"},
    ):
        with pytest.raises(HyperparameterError, match=next(iter(wrong))):
            read_table(written(tmp_path, "a\n1\n"), **wrong)
    with pytest.raises(HyperparameterError, match="decimal"):
        as_table({"a": [1]}, options=FileOptions(decimal=","))


def test_feather_json_lines_and_zip(tmp_path):
    frame = pl.DataFrame(
        {"a": [1, 2], "b": ["x", None], "t": [date(2024, 1, 5), date(2023, 12, 31)]}
    )
    frame.write_ipc(tmp_path / "t.feather")
    lines = '{"a": 1, "b": "x", "t": "2024-01-05"}\n\n{"t": "2023-12-31", "a": 2}\n'
    written(tmp_path, lines, "t.jsonl")
    written(tmp_path, gzip.compress(lines.encode()), "t.ndjson.gz")
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as packed:
        packed.writestr("folder/t.csv", "a,b,t\n1,x,2024-01-05\n2,,2023-12-31\n")
        packed.writestr("__MACOSX/._t.csv", "junk")
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as packed:
        packed.write(tmp_path / "t.feather", "t.feather")
    for name in ("t.feather", "t.jsonl", "t.ndjson.gz", "t.zip", "p.zip"):
        assert read_table(tmp_path / name).equals(frame), name


def test_json_lines_keep_what_they_say(tmp_path):
    rows = [
        {"n": 9007199254740993, "x": 1, "s": "a", "b": True, "m": 1},
        {"n": -1, "x": 0.5, "s": None, "b": False, "m": "one"},
    ]
    frame = read_table(written(tmp_path, "\n".join(map(json.dumps, rows)), "t.jsonl"))
    assert frame["n"].to_list() == [9007199254740993, -1]
    assert frame["x"].to_list() == [1.0, 0.5]
    assert frame["s"].to_list() == ["a", None]
    assert frame["b"].to_list() == ["true", "false"]
    assert frame["m"].to_list() == ["1", "one"]
    wrong = (
        '{"a": 1}\n{"a": 2\n',
        '{"a": 1}\n[2]\n',
        '{"a": 1}\n{"a": {"b": 1}}\n',
        '{"a": 1}\n{"a": "\xff\n',
    )
    for text in wrong:
        with pytest.raises(DataError, match="line 2"):
            read_table(written(tmp_path, text.encode("latin-1"), "t.jsonl"))


def test_json_lines_of_odd_numbers_names_and_texts(tmp_path):
    def read(*lines):
        return read_table(written(tmp_path, "\n".join(lines), "t.jsonl"))

    hashes = [2**63, 2**64 - 1, 2**53 + 1]
    assert read(*(f'{{"id": {one}}}' for one in hashes))["id"].to_list() == hashes
    assert read('{"x": 1.5, "z": 1}', f'{{"x": {10**400}, "z": 2}}').rows() == [(1.5, 1), (None, 2)]
    with pytest.raises(DataError, match=r"line 2.*'a'"):
        read('{"a": 1}', '{"a": 1, "b": 2, "a": 3}')
    for line in (r'{"a": "\ud800"}', r'{"\udfff": 1}'):
        with pytest.raises(DataError, match="Unicode"):
            read(line, line)


@pytest.mark.parametrize("first", [0, 30])
def test_a_quote_that_is_closed_by_a_later_row_swallows_none(tmp_path, first):
    """To every reader it is one long text: 11 rows would be gone without a word."""
    lines = ["a,b,size"] + [f"{k},{k / 2},{k}" for k in range(50)]
    lines[first] = lines[first].rpartition(",")[0] + ',"size'
    lines[first + 11] = '41,20.5,15"'
    with pytest.raises(DataError, match=f"line {first + 1};"):
        read_table(written(tmp_path, "\n".join(lines)))


def test_a_text_of_many_lines_is_a_text(tmp_path):
    letter = "Dear Ann,\n" + "one line, with a comma\nanother\n" * 20 + "Yours, Bob"
    path = written(tmp_path, f'a,b\n1,"{letter}"\n2,x\n')
    assert read_table(path).rows() == [(1, letter), (2, "x")]


def test_durations_and_columns_of_several_kinds():
    days = [timedelta(1), None, timedelta(0, 0.25)]
    assert as_table({"d": days})["d"].to_list() == [86400.0, None, 0.25]
    assert as_table(pd.DataFrame({"d": days}))["d"].to_list() == [86400.0, None, 0.25]
    mixed = {"m": [1, "a", None], "n": [1, 2.5, None], "s": ["x", "y", "z"]}
    for frame in (mixed, pd.DataFrame(mixed), pd.DataFrame(mixed, dtype=object)):
        found = as_table(frame)
        assert found["m"].to_list() == ["1", "a", None]
        assert found["n"].to_list() == [1.0, 2.5, None]
        assert found["s"].to_list() == ["x", "y", "z"]


def test_zips_that_cannot_be_read(tmp_path):
    for files, fact in (
        (["a.csv", "b.csv"], "b.csv"),
        ([], "got none"),
        (["a.zip"], "a.zip"),
        (["a.doc"], "a.doc"),
    ):
        with zipfile.ZipFile(tmp_path / "t.zip", "w") as packed:
            for file in files:
                packed.writestr(file, "a\n1\n")
        with pytest.raises(DataError, match=fact):
            read_table(tmp_path / "t.zip")
    with pytest.raises(DataError, match="damaged"):
        read_table(written(tmp_path, b"no zip", "t.zip"))


def workbook(path, **sheets):
    """A minimal .xlsx: rows of numbers, texts and gaps for each sheet."""

    def cell(value):
        if value is None:
            return "<c/>"
        if isinstance(value, str):
            return f'<c t="inlineStr"><is><t xml:space="preserve">{value}</t></is></c>'
        return f"<c><v>{value}</v></c>"

    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    relations = "http://schemas.openxmlformats.org/package/2006/relationships"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    content = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    names = list(enumerate(sheets, 1))
    parts = {
        "[Content_Types].xml": (
            '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default'
            ' Extension="rels"'
            ' ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Override'
            f' PartName="/xl/workbook.xml" ContentType="{content}.sheet.main+xml"/>'
            + "".join(
                f'<Override PartName="/xl/sheet{k}.xml" ContentType="{content}.worksheet+xml"/>'
                for k, _ in names
            )
            + "</Types>"
        ),
        "_rels/.rels": (
            f'<Relationships xmlns="{relations}"><Relationship Id="rId1"'
            f' Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>'
        ),
        "xl/workbook.xml": (
            f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>'
            + "".join(f'<sheet name="{name}" sheetId="{k}" r:id="rId{k}"/>' for k, name in names)
            + "</sheets></workbook>"
        ),
        "xl/_rels/workbook.xml.rels": (
            f'<Relationships xmlns="{relations}">'
            + "".join(
                f'<Relationship Id="rId{k}" Type="{office}/worksheet" Target="sheet{k}.xml"/>'
                for k, _ in names
            )
            + "</Relationships>"
        ),
    }
    for k, name in names:
        rows = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in sheets[name])
        parts[f"xl/sheet{k}.xml"] = (
            f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>'
        )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, text in parts.items():
            file.writestr(name, '<?xml version="1.0" encoding="UTF-8"?>' + text)
    path.write_bytes(packed.getvalue())
    return path


def test_excel(tmp_path):
    pytest.importorskip("fastexcel")
    rows = [
        ["n", "late", "id", "price"],
        *([k, k, f"{k:05d}", f"{k},5"] for k in range(2000)),
        [None, "x", "NA", "?"],
    ]
    path = workbook(tmp_path / "t.xlsx", data=rows, empty=[])
    table, copied = table_and_ids(path, (), ["id"], FileOptions(decimal=","))
    assert table["n"].to_list() == [*range(2000), None]
    assert table["late"].to_list() == [
        *map(str, range(2000)),
        "x",
    ]  # the last row makes it a column of texts
    assert table["price"].to_list() == [*(k + 0.5 for k in range(2000)), None]
    assert copied["id"].to_list() == [*(f"{k:05d}" for k in range(2000)), "NA"]
    path = workbook(tmp_path / "t.xlsx", first=[["a"], [1]], second=[["b"], [2]])
    assert read_table(path, sheet="second").rows() == [(2,)]
    for given in ({}, {"sheet": "third"}):
        with pytest.raises(DataError, match=r"first.*second"):
            read_table(path, **given)
    with pytest.raises(DataError, match="Excel"):
        read_table(written(tmp_path, b"no such format", "t.xlsx"))


def test_without_fastexcel_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastexcel", None)
    with pytest.raises(MissingDataError, match=r"scdro\[excel\]"):
        read_table(workbook(tmp_path / "t.xlsx", data=[["a"], [1]]))


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


@pytest.mark.parametrize(
    "name", ["t.parquet", "t.feather", "t.csv.gz", "t.npz", "t.parquet.gz", "t"]
)
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
        column_of(
            read_table(written(tmp_path, "\x1b[31mred,b\n1,2\n")), "nothing like it", "the target"
        )
    assert "\x1b" not in str(caught.value)
