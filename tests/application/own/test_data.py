"""One's own data: how tables are read and prepared, how parts are made, and what a user can get wrong."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from own_data import rows, write_csv, write_images
from scdro import ScdroError
from scdro.application.own.labels import set_aside
from scdro.application.own.opening import Wanted, open_own
from scdro.application.own.plan import Plan
from scdro.application.own.preparation import Matrix, MatrixPreparation, TablePreparation
from scdro.application.own.saved import load_model
from scdro.application.own.tables import read_table
from scdro.cli import main
from scdro.errors import CheckpointError, DataError, HyperparameterError, MissingDataError
from scdro.optim import REGISTRY


def test_a_table_is_read_whatever_its_form(tmp_path):
    content = '\ufeff,name, x ,y\n0,"a, b",1,u\n\n1, c , 2 ,v\n'
    (tmp_path / "t.csv").write_text(content)
    (tmp_path / "s.csv").write_text(content.replace(",", ";").replace("a; b", "a, b"))
    (tmp_path / "t.tsv").write_text(content.replace(",", "\t").replace("a\t b", "a, b"))
    with gzip.open(tmp_path / "z.csv.gz", "wt") as file:
        file.write(content)
    for name in ("t.csv", "s.csv", "t.tsv", "z.csv.gz"):
        table = read_table(tmp_path / name)
        assert list(table.columns) == ["name", "x", "y"]
        assert [table.columns["name"].values[j] for j in table.columns["name"].codes] == ["a, b", "c"]
        assert table.columns["x"].numbers().tolist() == [1.0, 2.0]
        assert table.columns["y"].numbers() is None
        assert table.lines.tolist() == [2, 4]


def test_features_are_scikit_learns(tmp_path):
    """Means and standard deviations, gaps, frequent and other texts, all from training rows, checked on new ones."""
    train, new = (read_table(write_csv(tmp_path / f"{n}.csv", rows(n, seed=n))) for n in (2500, 400))
    prepared = TablePreparation.fit(train.without(["label"]))
    found = prepared.features(new)

    def numbers(table, name):
        return np.array([float(v) if v != "NA" else np.nan for v in texts(table, name)])

    def texts(table, name):
        return [table.columns[name].values[j] for j in table.columns[name].codes]

    x, z = (np.stack([numbers(t, "a"), numbers(t, "b")], 1) for t in (train, new))
    scale = StandardScaler().fit(x)
    expected = [
        SimpleImputer(strategy="constant", fill_value=0.0).fit_transform(scale.transform(z)),
        np.isnan(z)[:, :1],
    ]
    for name in ("colour", "site"):
        encode = OneHotEncoder(min_frequency=3, handle_unknown="infrequent_if_exist", sparse_output=False)
        encode.fit(np.array(texts(train, name), object)[:, None])
        hot = encode.transform(np.array(texts(new, name), object)[:, None])
        expected.append(hot if name == "colour" else np.hstack([hot, np.zeros((len(hot), 1))]))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.hstack(expected), atol=1e-5)
    assert found.shape[1] == prepared.width == 2 + 1 + 4 + 3
    again = TablePreparation.from_dict(json.loads(json.dumps(prepared.as_dict())))
    assert again == prepared


def test_nothing_is_learnt_from_validation_or_test_rows(tmp_path):
    content, far = rows(), rows(60, seed=4)
    for row in far:
        row |= {"b": "1000", "colour": "violet"}
    one = open_own(Wanted(write_csv(tmp_path / "a.csv", content), target="label"))
    two = open_own(Wanted(tmp_path / "a.csv", target="label", test=write_csv(tmp_path / "b.csv", far), validation=0.2))
    assert one.preparation == two.preparation
    kept = one.task.train.inputs
    np.testing.assert_allclose(kept[:, :2].mean(0), 0, atol=1e-5)
    assert torch.equal(kept, two.task.train.inputs)
    violet = two.task.test.inputs[:, 3:7]
    assert violet[:, 3].eq(1).all()
    assert violet[:, :3].eq(0).all()


@pytest.mark.parametrize("share", [0.5, 0.25, 0.2, 0.1])
def test_a_share_of_each_class_is_set_aside(share):
    labels = np.repeat([0, 1, 2], [1000, 200, 3])
    stays, aside = set_aside(labels, share)
    assert sorted([*stays, *aside]) == list(range(1203))
    counts = np.bincount(labels[aside], minlength=3)
    assert counts[:2].tolist() == [1000 * share, 200 * share]
    assert np.bincount(labels[stays], minlength=3).min() >= 2
    assert np.array_equal(aside, set_aside(labels, share)[1])
    assert np.std(np.diff(aside)) > 0.5  # drawn, not every so-many-th


def test_numbers_that_are_names_and_texts_among_numbers(tmp_path):
    content = [row | {"zip": str(i % 4), "b": "unknown" if i == 7 else row["b"]} for i, row in enumerate(rows())]
    path = write_csv(tmp_path / "a.csv", content)
    data = open_own(Wanted(path, target="label", categorical=("zip",)))
    assert [c.values for c in data.preparation.categories if c.name == "zip"] == [("0", "1", "2", "3")]
    assert any("b is read as texts" in note and "'unknown'" in note for note in data.notes)
    numbered = [row | {"id": str(i), "same": "1", "who": f"name{i}"} for i, row in enumerate(rows())]
    data = open_own(Wanted(write_csv(tmp_path / "b.csv", numbered), target="label"))
    assert any("id" in note and "--drop" in note for note in data.notes)
    assert any("same, who" in note for note in data.notes)
    assert not {"same", "who"} & set(data.preparation.names)


def test_decimal_commas_are_named(tmp_path):
    content = [row | {key: row[key].replace(".", ",") for key in "ab"} for row in rows()]
    data = open_own(Wanted(write_csv(tmp_path / "t.csv", content, ";"), target="label"))
    assert "numbers with a decimal comma are read as texts; write them with a point: a, b" in data.notes
    assert not any("rows do not differ" in note for note in data.notes)
    content = [{key: row[key] for key in ("b", "label")} for row in content]
    with pytest.raises(DataError, match="comma"):
        open_own(Wanted(write_csv(tmp_path / "u.csv", content, ";"), target="label"))
    plain = open_own(Wanted(write_csv(tmp_path / "v.csv", rows()), target="label"))
    assert not any("comma" in note for note in plain.notes)


@pytest.mark.filterwarnings("error")
def test_a_number_too_large_is_named_with_its_column_and_line(tmp_path):
    train = read_table(write_csv(tmp_path / "train.csv", rows())).without(["label"])
    new = rows(20)
    new[7]["b"] = "1e300"
    with pytest.raises(DataError, match=r"'b'.*1e\+300.*line 9.*new\.csv"):
        TablePreparation.fit(train).features(read_table(write_csv(tmp_path / "new.csv", new)))
    x = np.random.default_rng(0).normal(size=(20, 3))
    prepared = MatrixPreparation.fit(Matrix(tmp_path / "a.npz", x))
    x[4, 2] = -1e200
    with pytest.raises(DataError, match=r"'2'.*-1e\+200.*row 4.*b\.npz"):
        prepared.samples(Matrix(tmp_path / "b.npz", x), torch.zeros(20, dtype=torch.int64), names=("u",))


def test_classes_are_numbers_in_order_or_texts(tmp_path):
    content = [row | {"label": str([10, 9.0, 2][i % 3])} for i, row in enumerate(rows(60))]
    assert open_own(Wanted(write_csv(tmp_path / "a.csv", content), target="label")).classes == ("2", "9", "10")
    other = [row | {"label": ["10", "9", "2.0"][i % 3]} for i, row in enumerate(rows(60))]
    test = write_csv(tmp_path / "b.csv", other)
    data = open_own(Wanted(tmp_path / "a.csv", target="label", test=test))
    assert data.task.test.labels[:3].tolist() == [2, 1, 0]
    none = [row | {"label": "none" if row["label"] == "no" else "some"} for row in rows(60)]
    assert open_own(Wanted(write_csv(tmp_path / "c.csv", none), target="label")).classes == ("none", "some")


@pytest.mark.parametrize(
    ("n", "images", "epochs", "batch_size"),
    [(200, False, 200, 32), (5000, False, 154, 128), (26_000, False, 30, 128), (400_000, False, 5, 128)],
)
def test_defaults_follow_the_number_of_samples(tmp_path, n, images, epochs, batch_size):
    data = open_own(Wanted(write_csv(tmp_path / "a.csv", rows(60)), target="label"))
    data.task.train.inputs, data.task.train.labels = torch.zeros(n, 3), torch.zeros(n, dtype=torch.int64)
    study = Plan().study(data, "x")
    assert (study.epochs, study.batch_size, study.model) == (epochs, batch_size, "mlp")
    assert dict(study.grid)["SCDRO.lr"] == dict(Plan(rho=2.3026).study(data, "x").grid)["SCDRO.lr"] == (0.5,)
    unbounded = [Plan(rho=rho, max_grad_norm=0.0).study(data, "x") for rho in (0.5, 2.3026)]
    assert [dict(study.grid)["SCDRO.lr"] for study in unbounded] == [(0.3,), (0.05,)]


def test_class_balanced_training_balances_classes(tmp_path):
    """Adult's counts: with the paper's beta = .999 the two weights would differ by .2%."""
    data = open_own(Wanted(write_csv(tmp_path / "a.csv", rows(60)), target="label"))
    grid = dict(Plan(method="ClassBalanced").study(data, "x").grid)
    settings = {key.split(".")[1]: values[0] for key, values in grid.items() if key.startswith("ClassBalanced")}
    counts = torch.tensor([6273, 19776])
    for own in (settings, {}):
        losses = REGISTRY["ClassBalanced"].per_sample(counts, **own)(torch.zeros(2, 2), torch.tensor([0, 1]))
        torch.testing.assert_close(6273 * losses[0], 19776 * losses[1])
    chosen = dict(Plan(method="ClassBalanced", settings={"balance": 0.999}).study(data, "x").grid)
    assert chosen["ClassBalanced.balance"] == (0.999,)


# -- what a user can get wrong ----------------------------------------------------------------------------------------


def changed(change):
    return lambda tmp_path: write_csv(tmp_path / "a.csv", [row | change(i) for i, row in enumerate(rows(60))])


def text_file(name, content):
    def write(tmp_path):
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    return write


def arrays(**made):
    def write(tmp_path):
        np.savez(tmp_path / "a.npz", **made)
        return tmp_path / "a.npz"

    return write


def folder(change=lambda path: None, **kwargs):
    def write(tmp_path):
        path = write_images(tmp_path / "pictures", **kwargs)
        change(path)
        return path

    return write


def image_list(content):
    def write(tmp_path):
        write_images(tmp_path / "pictures")
        (tmp_path / "list.txt").write_text(content)
        return tmp_path / "list.txt"

    return write


X, Y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
IMAGES = np.zeros((40, 8, 8, 3), np.uint8)
WRONG = {
    "no target": (changed(lambda i: {}), {"target": None}, r"--target.*'a', 'b'"),
    "another target": (changed(lambda i: {}), {"target": "income"}, "'income'.*'label'"),
    "one class": (changed(lambda i: {"label": "yes"}), {}, "two classes.*'yes'"),
    "a class of one": (changed(lambda i: {"label": "odd"} if i == 3 else {}), {}, "two samples.*'odd'"),
    "no class": (changed(lambda i: {"label": "" if i in (5, 9) else "yes"}), {}, "none for 2 .*in line 7"),
    "NaN class": (changed(lambda i: {"label": "nan" if i == 5 else "1"}), {}, "none for 1"),
    "a number to predict": (changed(lambda i: {"label": f"{i / 7:.3f}"}), {}, "KLDRORegressor"),
    "few rows": (lambda p: write_csv(p / "a.csv", rows(12)), {}, "20 samples"),
    "nothing to learn from": (
        lambda p: write_csv(p / "a.csv", [{"label": r["label"], "b": "1"} for r in rows(60)]),
        {},
        "rows differ",
    ),
    "group is target": (changed(lambda i: {}), {"groups": ("label",)}, "as both"),
    "another group": (changed(lambda i: {}), {"groups": ("sex",)}, "'sex'"),
    "another drop": (changed(lambda i: {}), {"drop": ("id",)}, "drop 'id'"),
    "another categorical": (changed(lambda i: {}), {"categorical": ("zip",)}, "'zip'"),
    "large numbers": (changed(lambda i: {"b": f"1e{300 + i % 8}"}), {}, "rescale"),
    "a share too large": (changed(lambda i: {}), {"validation": 0.9}, r"\(0, 0.5\]"),
    "another ending": (text_file("a.xlsx", b"x"), {}, r"\.csv, \.tsv or \.npz"),
    "an empty file": (text_file("a.csv", b""), {}, "empty file"),
    "no rows": (text_file("a.csv", b"a,label\n"), {}, "rows below"),
    "a row too short": (text_file("a.csv", b"a,label\n1,x\n2\n"), {}, "2 cells in line 3.*got 1"),
    "two columns of a name": (text_file("a.csv", b"a,a,label\n1,2,x\n"), {}, "'a'"),
    "not UTF-8": (text_file("a.csv", "a,label\n\xe4,x\n".encode("latin-1")), {}, "UTF-8"),
    "damaged gzip": (text_file("a.csv.gz", b"no"), {}, "damaged"),
    "not there": (lambda p: p / "b.csv", {}, "found none"),
    "damaged arrays": (text_file("a.npz", b"PK no"), {"target": None}, "np.savez"),
    "no y": (arrays(X=X), {"target": None}, "an array y"),
    "y too short": (arrays(X=X, y=Y[:9]), {"target": None}, "each of 40"),
    "y in halves": (arrays(X=X, y=Y / 2), {"target": None}, "whole numbers.*0.5"),
    "y with NaN": (arrays(X=X, y=np.where(Y == 1, np.nan, 0.0)), {"target": None}, "none for 20"),
    "X of one axis": (arrays(X=X[:, 0], y=Y), {"target": None}, r"\(n, d\)"),
    "float images": (arrays(X=IMAGES.astype(float), y=Y), {"target": None}, "uint8 images"),
    "images of four colours": (arrays(X=np.zeros((40, 8, 8, 4), np.uint8), y=Y), {"target": None}, "three colours"),
    "Python objects": (arrays(X=np.array([[1], [2, 3]], object), y=Y), {"target": None}, "numbers and texts"),
    "target of arrays": (arrays(X=X, y=Y), {}, "CSV file alone"),
    "groups of a folder": (folder(), {"target": None, "groups": ("a",)}, "--group"),
    "an empty folder": (lambda p: (p / "e").mkdir() or p / "e", {"target": None}, "subfolder"),
    "an empty class": (folder(lambda p: (p / "c").mkdir()), {"target": None}, "pictures/c"),
    "a file that is no image": (folder(lambda p: (p / "a" / "x.png").write_text("no")), {"target": None}, "x.png"),
    "half an image": (
        folder(lambda p: (p / "a" / "01.png").write_bytes((p / "a" / "01.png").read_bytes()[:200])),
        {"target": None},
        "01.png",
    ),
    "size 1": (folder(), {"target": None, "size": 1}, "at least 4 pixels"),
    "a label that is no number": (image_list("pictures/a/01.png cat\n"), {"target": None}, "line 1"),
    "a list of nothing": (image_list("\n"), {"target": None}, "empty file"),
    "an image that is not there": (image_list("a/99.png 1\n"), {"target": None}, "99.png"),
}


@pytest.mark.parametrize(("write", "options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_data(write, options, message, tmp_path):
    with pytest.raises((DataError, HyperparameterError, MissingDataError), match=message):
        open_own(Wanted(write(tmp_path), **{"target": "label", **options}))


def test_wrong_parts(tmp_path):
    path = write_csv(tmp_path / "a.csv", rows())
    other = write_csv(tmp_path / "b.csv", [row | {"label": "perhaps"} for row in rows(30)])
    with pytest.raises(DataError, match=r"'no', 'yes'.*'perhaps'.*b\.csv"):
        open_own(Wanted(path, target="label", test=other))
    with pytest.raises(DataError, match="same kind"):
        open_own(Wanted(path, target="label", validation=write_images(tmp_path / "pictures")))
    short = write_csv(tmp_path / "c.csv", [{k: v for k, v in row.items() if k != "b"} for row in rows(30)])
    with pytest.raises(DataError, match="'b'"):
        open_own(Wanted(path, target="label", test=short))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "SGD"], "SCDRO, ASCDRO.*SGD"),
        (["--method", "GroupDRO"], "--group"),
        (["--model", "resnet8"], "resnet8"),
        (["--model", "forest"], "linear.*forest"),
        (["--protect", "0"], r"\(0, 1\]"),
        (["--rho", "-1"], "rho >= 0"),
        (["--rho", "1", "--protect", "0.5"], "--rho.*--protect"),
        (["--set", "beta"], "NAME=NUMBER"),
        (["--set", "gamma=1"], "lr, beta.*gamma"),
        (["--search", "-1"], "search >= 1"),
        (["--seed", "0"], "seed >= 1"),
        (["--epochs", "-1"], "epochs >= 1"),
    ],
)
def test_wrong_options(options, message, tmp_path, capsys):
    path = write_csv(tmp_path / "a.csv", rows(60))
    assert main(["train", str(path), "--target", "label", "--out", str(tmp_path / "run"), *options]) == 1

    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "run" / "model.pt").exists()


def test_wrong_things_to_predict(tmp_path, capsys):
    path, out = write_csv(tmp_path / "a.csv", rows(60)), tmp_path / "run"
    assert main(["predict", str(out), str(path)]) == 1
    assert "scdro train" in capsys.readouterr().err
    assert main(["train", str(path), "--target", "label", "--out", str(out), "--epochs", "1"]) == 0
    capsys.readouterr()

    def predicted(content, name="b.csv"):
        status = main(["predict", str(out), str(write_csv(tmp_path / name, content))])
        return status, capsys.readouterr()

    status, said = predicted([{**{k: v for k, v in r.items() if k != "colour"}, "color": "red"} for r in rows(5)])
    assert status == 1
    assert re.search("'colour'.*'label', 'color'", said.err)
    status, said = predicted([row | {"b": "much" if i == 3 else row["b"]} for i, row in enumerate(rows(5))])
    assert status == 1
    assert "'much' in line 5" in said.err
    status, said = predicted([row | {"extra": "1"} for row in rows(5)])
    assert status == 0
    assert "left out: extra" in said.err
    status, said = predicted([row | {"a": "", "b": "", "colour": "", "site": "?"} for row in rows(5)])
    assert status == 0  # nothing known of them
    assert len({line.partition(",")[2] for line in said.out.splitlines()[1:]}) == 1  # but for the line
    np.savez(tmp_path / "c.npz", X=X)
    assert main(["predict", str(out), str(tmp_path / "c.npz")]) == 1
    assert "kind" in capsys.readouterr().err
    torch.save({"state_dict": {}}, out / "model.pt")
    with pytest.raises(CheckpointError, match="format"):
        load_model(out)
    (out / "model.pt").write_bytes(b"no")
    with pytest.raises(ScdroError, match="scdro train"):
        load_model(out)
