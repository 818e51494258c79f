"""Tables: small files in UCI's formats, read back and encoded."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from scdro import DataError, MissingDataError
from scdro.data import adult, census_income, covertype

SEX, RACE = ("Male", "Female"), ("White", "Black", "Other")


def adult_rows(n, seed, end=""):
    rng = np.random.default_rng(seed)
    for _ in range(n):
        age, hours = rng.integers(20, 60), rng.integers(10, 60)
        country = "Rare" if rng.random() < 0.02 else "Peru"
        yield (
            f"{age}, Private, {rng.integers(1e5)}, HS-grad, 9, Divorced, {'Sales' if age > 40 else 'Tech'}, Wife, "
            f"{RACE[rng.integers(3)]}, {SEX[rng.integers(2)]}, 0, 0, {hours}, {country}, "
            f"{'>50K' if hours > 30 else '<=50K'}{end}\n"
        )


def write_adult(root, packed):
    files = {"adult.data": list(adult_rows(300, 0)), "adult.test": ["|1x3 Cross validator\n", *adult_rows(90, 1, ".")]}
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
    assert rest.shape[1] == 1 + 1 + 1 + 2 + 1 + 2  # neither sex nor race, and the rare country is one of its own
    assert test.X.shape[1] == train.X.shape[1]
    assert train.names[:5] == ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
    sales = train.names.index("occupation: Sales")
    np.testing.assert_array_equal(train.X[:, sales].toarray()[:, 0], ages > 40)
    assert "native-country: a rare value" in test.names


def test_census_income(tmp_path):
    row = ["7"] * 42
    row[10], row[12] = "White", "Female"
    rows = [", ".join([*row[:-1], label]) for label in ("- 50000.", "50000+.", "- 50000.")]
    for part in ("data", "test"):
        (tmp_path / f"census-income-kdd.{part}").write_text("\n".join(rows) + "\n")
    train, test = census_income(tmp_path)
    assert train.y.tolist() == test.y.tolist() == [0, 1, 0]
    assert train.groups[0].tolist() == ["Female", "White"]


def test_covertype(tmp_path):
    rng = np.random.default_rng(0)
    table = np.zeros((20, 55), int)
    table[:, :10] = rng.integers(3000, size=(20, 10))
    area = rng.integers(4, size=20)
    table[np.arange(20), 10 + area] = 1
    table[:, 54] = 1 + np.arange(20) % 7
    header = ",".join(f"c{j}" for j in range(55))
    np.savetxt(tmp_path / "covtype.csv", table, "%d", ",", header=header, comments="")
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
    (tmp_path / "covtype.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(DataError, match="55 columns"):
        covertype(tmp_path)
