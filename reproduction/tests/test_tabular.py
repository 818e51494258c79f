"""Tables: small files in UCI's formats, read back and encoded."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from reproduction.data import adult, census_income, covertype
from scdro.errors import DataError, MissingDataError

SEX, RACE = ("Male", "Female"), ("White", "Black", "Other")


def adult_rows(n, seed, end=""):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        age, hours = rng.integers(20, 60), rng.integers(10, 60)
        country = "Rare" if rng.random() < 0.02 else "Peru"
        yield (
            f"{age}, Private, {rng.integers(1e5)}, HS-grad, 9, Divorced,"
            f" {'Sales' if age > 40 else 'Tech'}, Wife, {RACE[rng.integers(3)]},"
            f" {SEX[rng.integers(2)]}, 0, 0, {hours}, {country},"
            f" {'>50K' if hours > 30 else '<=50K'}{end}\n"
        )


def write_adult(root, packed):
    files = {
        "adult.data": list(adult_rows(300, 0)),
        "adult.test": ["|1x3 Cross validator\n", *adult_rows(90, 1, ".")],
    }
    for name, lines in files.items():
        text = "".join(lines) + "\n"
        if packed:
            (root / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (root / name).write_text(text)
    return files


@pytest.mark.parametrize("packed", [False, True])
def test_adult(tmp_path, packed):
    files = write_adult(tmp_path, packed)
    train, test = adult(tmp_path)
    for table, lines in ((train, files["adult.data"]), (test, files["adult.test"][1:])):
        cells = [line.strip().split(", ") for line in lines]
        assert table.y.tolist() == [int(row[-1].startswith(">50K")) for row in cells]
        assert table.groups.tolist() == [[row[9], row[8]] for row in cells]
        assert table.X.shape[0] == len(cells)
    numbers = train.X[:, :5].toarray()
    ages = np.array([float(line.split(", ")[0]) for line in files["adult.data"]])
    np.testing.assert_allclose(numbers[:, 0], (ages - ages.mean()) / ages.std())
    rest = train.X[:, 5:].toarray()
    assert set(np.unique(rest)) == {0.0, 1.0}
    assert (
        rest.shape[1] == 1 + 1 + 1 + 2 + 1 + 2
    )  # neither sex nor race, and the rare country is one of its own
    assert test.X.shape[1] == train.X.shape[1]
    assert train.names[:5] == (
        "age",
        "education-num",
        "capital-gain",
        "capital-loss",
        "hours-per-week",
    )
    sales = train.names.index("occupation: Sales")
    np.testing.assert_array_equal(train.X[:, sales].toarray()[:, 0], ages > 40)
    assert "native-country: a rare value" in test.names


CENSUS_NUMBERS = (0, 5, 16, 17, 18, 30, 39)  # age, wage, gains, losses, dividends, employers, weeks


def census_rows(n, seed=0):
    """Of every other column, two values as often as another; of the weight, one for each row."""
    rng = np.random.default_rng(seed)
    cells = np.array(
        [[f"c{j}_{rng.integers(2)}" for j in range(42)] for _ in range(n)], dtype="U20"
    )
    for k, j in enumerate(CENSUS_NUMBERS):
        cells[:, j] = rng.integers(100 * (k + 1), size=n)
    cells[:, 10], cells[:, 12] = rng.choice(RACE, n), rng.choice(SEX, n)
    cells[:, 24] = [f"{w:.2f}" for w in rng.uniform(100, 2000, n)]
    cells[:, 41] = rng.choice(("- 50000.", "50000+."), n)
    return cells


@pytest.mark.parametrize("stem", ["census-income-kdd", "census-income"])
def test_census_income(tmp_path, stem):
    cells = {"data": census_rows(200), "test": census_rows(30, seed=1)}
    for part, rows in cells.items():
        (tmp_path / f"{stem}.{part}").write_text("".join(", ".join(row) + "\n" for row in rows))
    numbers = cells["data"][:, CENSUS_NUMBERS].astype(float)
    others = [j for j in range(42) if j not in (*CENSUS_NUMBERS, 10, 12, 24, 41)]
    for table, rows in zip(census_income(tmp_path), cells.values(), strict=True):
        assert table.y.tolist() == [int(row[41] == "50000+.") for row in rows]
        assert table.groups.tolist() == [[row[12], row[10]] for row in rows]
        X = table.X.toarray()
        own = rows[:, CENSUS_NUMBERS].astype(float)
        np.testing.assert_allclose(X[:, :7], (own - numbers.mean(0)) / numbers.std(0))
        expected = np.column_stack(
            [rows[:, j] == f"c{j}_{value}" for j in others for value in (0, 1)]
        )
        assert np.array_equal(X[:, 7:], expected)  # neither sex nor race nor weight


@pytest.mark.parametrize("header", [True, False])
def test_covertype(tmp_path, header):
    rng = np.random.default_rng(0)
    table = np.zeros((20, 55), int)
    table[:, :10] = rng.integers(3000, size=(20, 10))
    area = rng.integers(4, size=20)
    table[np.arange(20), 10 + area] = 1
    table[:, 54] = 1 + np.arange(20) % 7
    named = {"header": ",".join(f"c{j}" for j in range(55)), "comments": ""} if header else {}
    np.savetxt(tmp_path / ("covtype.csv" if header else "covtype.data"), table, "%d", ",", **named)
    X, y, groups, _ = covertype(tmp_path)
    assert y.tolist() == (np.arange(20) % 7).tolist()
    np.testing.assert_allclose(X[:, :10].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(X[:, :10].std(0), 1)
    assert np.array_equal(X[:, 10:], table[:, 10:54])
    assert {name: set(area[groups[:, 0] == name]) for name in ("Rawah", "Cache la Poudre")} == {
        "Rawah": {0},
        "Cache la Poudre": {3},
    }


def test_missing_and_damaged_tables(tmp_path):
    with pytest.raises(MissingDataError, match=r"adult\.data.*archive\.ics\.uci\.edu"):
        adult(tmp_path)
    with pytest.raises(MissingDataError, match=r"covtype\.csv"):
        covertype(tmp_path)
    write_adult(tmp_path, packed=False)
    (tmp_path / "adult.data").write_text("".join(f"{line[:20]}\n" for line in adult_rows(9, 0)))
    with pytest.raises(DataError, match="rows of 15 cells"):
        adult(tmp_path)
    for text, said in (
        ("a,b\n1,2\n3,4\n", "55 columns"),
        ("1,2\n3\n", "whole numbers"),
        ("a,b\n1,x\n", "whole numbers"),
        (",".join(["0"] * 10 + ["1"] + ["0"] * 43 + ["8"]), "class from 1 to 7"),
        (",".join(["0"] * 54 + ["1"]), "one wilderness area"),
    ):
        (tmp_path / "covtype.csv").write_text(text)
        with pytest.raises(DataError, match=said):
            covertype(tmp_path)
    (tmp_path / "covtype.csv").write_text(
        ",".join(["3"] * 10 + ["0", "1", "0", "0"] + ["0"] * 40 + ["7"])
    )
    X, y, groups, _ = covertype(tmp_path)
    assert (X[0, :10].tolist(), y.tolist(), groups.tolist()) == ([0.0] * 10, [6], [["Neota"]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:40]], "line 300"),
        (lambda lines: ["junk\n", *lines], "15 cells, got 1 in line 1 "),
        (
            lambda lines: [line.replace(">50K", ">50k") for line in lines],
            "label of <=50K or >50K, got '>50k'",
        ),
        (lambda lines: ["x" + lines[0], *lines[1:]], "numbers in columns"),
        (lambda lines: ["nan," + lines[0].partition(",")[2], *lines[1:]], "finite numbers"),
        (lambda lines: ["\n"], "got none"),
    ],
)
def test_no_row_is_lost_in_silence(tmp_path, change, said):
    lines = write_adult(tmp_path, packed=False)["adult.data"]
    (tmp_path / "adult.data").write_text("".join(change(lines)))
    with pytest.raises(DataError, match=said):
        adult(tmp_path)
    (tmp_path / "adult.data").write_text("\n| a remark, with a comma\n" + "\n".join(lines) + "\n\n")
    assert len(adult(tmp_path)[0].y) == 300


def test_damaged_archives_and_other_bytes(tmp_path):
    write_adult(tmp_path, packed=True)
    whole = (tmp_path / "adult.data.gz").read_bytes()
    for content in (whole[:-200], b"no gzip", gzip.compress(b"\xff\xfe\x00")):
        (tmp_path / "adult.data.gz").write_bytes(content)
        with pytest.raises(DataError, match=r"adult\.data\.gz"):
            adult(tmp_path)
