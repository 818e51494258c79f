"""Random CSV files against Python's strict reader, and against the rows that its writer was given."""

import csv
import io
import random

import pytest

from scdro.errors import DataError
from scdro.tables._read import read_csv, table_and_ids

PIECES = ["a", "b", "1", "15", '"', '""', " ", "é", "NA", "?", "x y", "", "-", ".5"]
BREAKS = ["\n", "\r\n", "\r"]


def soup(rng):
    """Rows of tab-separated fields, some quoted, some with quotes inside, some damaged; the text of a .tsv file."""
    width, common = rng.randint(1, 4), rng.choice(BREAKS)

    def field(most):
        text = "".join(rng.choices(PIECES, k=rng.randint(1, most)))
        if rng.random() < 0.3:
            inside = text.replace('"', '""') + rng.choice(["", "", "\t", *BREAKS])
            return f'"{inside}"'
        return text if rng.random() < 0.2 else text.lstrip('"')

    lines = [[f"{name}{field(2)}" if rng.random() < 0.5 else field(3) for name in "pqrs"[:width]]]
    lines += [[field(3) for _ in range(width)] for _ in range(rng.randint(0, 4))]
    text = ""
    for line in lines:
        text += "\t".join(line) + (common if rng.random() < 0.9 else rng.choice(BREAKS))
        text += common * (rng.random() < 0.1)
    if rng.random() < 0.2:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(['"', "\t", "\n", "\r"]) + text[at + rng.randint(0, 1) :]
    text = text if rng.random() < 0.8 else text.rstrip("\r\n")
    return "\ufeff" * (rng.random() < 0.1) + text


def by_python(text):
    """The names and the rows, or None for a file that should be refused."""
    try:
        names, *rows = csv.reader(
            io.StringIO(text.removeprefix("\ufeff"), newline=""), "excel-tab", strict=True
        )
    except (csv.Error, ValueError):
        return None
    rows = [row for row in rows if row]
    if (
        not names
        or len(set(names)) < len(names)
        or not rows
        or any(len(row) != len(names) for row in rows)
    ):
        return None
    return None if all(is_number(name) for name in names) else (names, rows)


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def written(rng):
    """A file by Python's writer, the ending of its name, its names and its rows."""
    delimiter, quoting = rng.choice(",;|\t"), rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    everything = (
        quoting == csv.QUOTE_ALL
    )  # other delimiters and line ends need quotes to be told apart
    pieces = PIECES + ([*",;|\t", *BREAKS] if everything else [delimiter, "\r\n"])

    def field():
        return "".join(rng.choices(pieces, k=rng.randint(0, 3)))

    names = [f"{name}{field()}" for name in "pqrs"[: rng.randint(1, 4)]]
    rows = [[field() for _ in names] for _ in range(rng.randint(1, 4))]
    file = io.StringIO(newline="")
    end = rng.choice(BREAKS) if everything else "\r\n"
    writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end)
    for row in [names, *rows]:
        writer.writerow(row)
        file.write(end * (row is not names and rng.random() < 0.1))  # a blank line
    return file.getvalue(), ".tsv" if delimiter == "\t" else ".csv", names, rows


def check(name, text, expected):
    """The rows of a file as written."""
    try:
        found = read_csv(text.encode(), None, name.suffix == ".tsv", name)
    except DataError:
        assert expected is None, text
        return
    assert expected is not None, text
    assert found.columns == expected[0], text
    assert found.rows() == [tuple(row) for row in expected[1]], text


def check_table(path, text, names, rows):
    """The same from the file to the table."""
    path.write_bytes(text.encode())
    table, copied = table_and_ids(path, names, names)
    assert copied.columns == table.columns == names, text
    assert copied.rows() == [tuple(row) for row in rows], text
    missing = ("", "NA", "?")
    assert table.rows() == [
        tuple(None if v.strip() in missing else v.strip() for v in row) for row in rows
    ], text


def fuzz(folder, seed, files):
    rng, read = random.Random(seed), 0
    for k in range(files // 2):
        text = soup(rng)
        expected = by_python(text)
        read += expected is not None
        check(folder / "soup.tsv", text, expected)
        text, ending, names, rows = written(rng)
        check(folder / f"written{ending}", text, (names, rows))
        if k % 20 == 0:
            check_table(folder / f"written{ending}", text, names, rows)
    assert 0.2 < read / (files // 2) < 0.9  # both kinds of soup


def test_ten_thousand_files_are_read_as_python_reads_them(tmp_path):
    fuzz(tmp_path, 0, 10_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_a_million_files_are_read_as_python_reads_them(tmp_path, seed):
    fuzz(tmp_path, seed, 50_000)
