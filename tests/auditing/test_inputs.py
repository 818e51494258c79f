"""Everything that people have: models, networks, loaders of both kinds, weights; and what is refused."""

import lightgbm as lgb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
import xgboost as xgb
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

import scdro
from scdro.auditing import GateError
from scdro.errors import DataError, HyperparameterError, ScdroWarning

RNG = np.random.default_rng(0)
N = 1200
FRAME = pd.DataFrame({"age": RNG.integers(18, 90, N), "pay": RNG.lognormal(3, 1, N)})
CITY = RNG.choice(["Oslo", "Rome"], N)
Y = (RNG.random(N) < np.where(CITY == "Rome", 0.8, 0.2)).astype(int)
UNKNOWN = "not known whether these rows trained the model"


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        lgb.LGBMClassifier(n_estimators=5, verbose=-1, n_jobs=1),
        xgb.XGBClassifier(n_estimators=5, n_jobs=1),
    ],
    ids=lambda model: type(model).__name__,
)
def test_fitted_models(model):
    model.fit(FRAME[:600], Y[:600])
    frame = {"city": CITY[600:]}
    found = scdro.audit(model, FRAME[600:], Y[600:], frame)
    given = scdro.audit(Y[600:], model.predict_proba(FRAME[600:]), frame)
    assert found.findings[0].slice in ("city = Rome", "city = Oslo")
    assert found.to_json() == given.to_json()


def test_it_says_where_it_cannot_know_who_trained_the_model():
    p = np.full(N, 0.5)
    assert any(UNKNOWN in note for note in scdro.audit(Y, p, FRAME).notes)
    assert not scdro.audit(Y, p, FRAME, out_of_fold=True).notes
    crossed = scdro.audit(LogisticRegression(), FRAME, Y, {"city": CITY}, cv=3)
    assert not any(UNKNOWN in note for note in crossed.notes)


def test_units_stay_in_one_fold():
    """Every unit has labels of its own, so a model that has seen a unit knows it."""
    unit = np.arange(N) % 60
    y = RNG.integers(0, 2, 60)[unit]
    model = lgb.LGBMClassifier(n_estimators=20, min_child_samples=1, verbose=-1, n_jobs=1)
    X = pd.DataFrame({"unit": unit})
    seen = scdro.audit(model, X, y, FRAME, cv=3).scores["accuracy"]
    for cv in (3, GroupKFold(3)):
        held = scdro.audit(model, X, y, FRAME, cv=cv, groups=unit).scores["accuracy"]
        assert held < 0.8 < seen


class ByName(torch.nn.Module):
    """As Hugging Face's: called with names, returns an object with logits."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, values, mask=None):
        return {"logits": self.linear(values)}


def test_loaders_of_tuples_and_of_dictionaries():
    x = torch.tensor(FRAME.to_numpy(), dtype=torch.float32) / 50
    named = ByName()
    tuples = [(x[k : k + 500], torch.tensor(Y[k : k + 500]), "more") for k in range(0, N, 500)]
    dictionaries = [{"values": a, "mask": None, "labels": b} for a, b, _ in tuples]
    one = scdro.audit(named, dictionaries, {"city": CITY})
    two = scdro.audit(named.linear, tuples, {"city": CITY})
    proba = named.linear(x).softmax(1).detach().numpy()
    assert str(one) == str(two) == str(scdro.audit(Y, proba, {"city": CITY}))
    with pytest.raises(DataError, match="labels"):
        scdro.audit(named, [{"values": x}], {"city": CITY})
    with pytest.raises(DataError, match="empty loader"):
        scdro.audit(named, [], {"city": CITY})
    with pytest.raises(HyperparameterError, match="network"):
        scdro.audit(named, dictionaries, {"city": CITY}, cv=3)


def test_a_number_is_no_loader():
    with pytest.raises(DataError, match=r"batches of \(inputs, labels\), got a int"):
        scdro.audit(torch.nn.Linear(2, 2), 5)


def test_labels_are_the_numbers_of_a_networks_outputs():
    x = torch.tensor(FRAME.to_numpy(), dtype=torch.float32)
    with pytest.raises(DataError, match=r"labels that the model knows \(0, 1\), got 2 in"):
        scdro.audit(torch.nn.Linear(2, 2), [(x, torch.tensor(Y + 1))], {"city": CITY})


def test_one_logit_and_one_number():
    x = torch.tensor(FRAME.to_numpy(), dtype=torch.float32) / 50
    network = torch.nn.Linear(2, 1)
    logits = network(x).detach().numpy()[:, 0].astype(float)
    found = scdro.audit(network, [(x, torch.tensor(Y))], {"city": CITY})
    assert str(found) == str(scdro.audit(Y, 1 / (1 + np.exp(-logits)), {"city": CITY}))
    target = torch.tensor(FRAME.pay.to_numpy())
    found = scdro.audit(network, [(x, target)], {"city": CITY})
    assert found.unit == "mean"


def test_a_loader_that_shuffles_is_read_in_the_order_of_the_columns():
    x = torch.tensor(FRAME.to_numpy(), dtype=torch.float32) / 50
    data = torch.utils.data.TensorDataset(x, torch.tensor(Y))
    network = torch.nn.Linear(2, 2)
    for part in network.parameters():
        torch.nn.init.zeros_(part)  # one answer for everybody, so that the city matters
    in_order, shuffled = (
        torch.utils.data.DataLoader(data, batch_size=500, shuffle=shuffle)
        for shuffle in (False, True)
    )
    found = scdro.audit(network, shuffled, {"city": CITY})
    assert "city = " in found.findings[0].slice
    assert str(found) == str(scdro.audit(network, in_order, {"city": CITY}))


@pytest.mark.parametrize("last", [torch.nn.Softmax(1), torch.nn.Sigmoid()], ids=["two", "one"])
def test_outputs_that_are_probabilities(last):
    x = torch.tensor(FRAME.to_numpy(), dtype=torch.float32) / 50
    logits = torch.nn.Linear(2, 2 if isinstance(last, torch.nn.Softmax) else 1)
    batches = [(x, torch.tensor(Y))]
    of_logits = scdro.audit(logits, batches, {"city": CITY})
    of_probabilities = scdro.audit(torch.nn.Sequential(logits, last), batches, {"city": CITY})
    assert of_probabilities.scores == pytest.approx(of_logits.scores, rel=1e-4)


P = RNG.random(N)
LETTERS = np.array(list("abc"))[np.arange(N) % 3]


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((Y, P * 3, FRAME), {}, r"between 0 and 1, got 2\.9.*sigmoid"),
        ((Y, -P, FRAME), {}, r"between 0 and 1, got -"),
        ((Y, np.c_[P, P], FRAME), {}, "add up to 1 in every row, got .* in row 1"),
        ((Y, P, FRAME[:9]), {}, "1,200 rows in every column, one for each label, got 9 in 'age'"),
        ((np.where(P > 0.9, 7, Y), np.c_[1 - P, P], FRAME), {"classes": [0, 1]}, r"0, 1\), got 7"),
        ((np.where(P > 0.9, 7, Y), np.c_[1 - P, P], FRAME), {}, "3 classes .* got 2 columns"),
        ((Y, np.where(P > 0.5, np.nan, P), FRAME), {}, r"NaN, got \d+ of 1,200 rows"),
        ((Y, P, {"tags": [["a"]] * N}), {}, "each row of column 'tags', got a list; split"),
        ((Y, P, pd.DataFrame({"tags": [["a"]] * N})), {}, "column 'tags', got a list"),
        ((Y, P, pa.table({"tags": [["a"]] * N})), {}, "column 'tags', got List"),
        ((Y, P, {"tags": [("a",)] * N}), {}, "column 'tags', got a tuple"),
        ((np.ones(N), P, FRAME), {}, r"two classes, got only 1\.0.*classes="),
        ((Y[:10], P[:10], FRAME[:10]), {}, "at least 30 rows.* got 10"),
        ((Y, P, FRAME, Y), {}, "audit.model, X, y, frame.* got four arguments"),
        ((Y, P, FRAME), {"sample_weight": -P}, "weights >= 0"),
        ((Y, P, FRAME), {"groups": Y[:5]}, "1,200 groups.* got 5"),
        ((Y, P * 100, FRAME), {}, "got 9.*divide percentages by 100"),
        ((Y, P.astype(str), FRAME), {}, "convert texts to numbers"),
        ((Y, [f"{p:.3f}".replace(".", ",") for p in P], FRAME), {}, "--decimal ,"),
        ((LETTERS, P, FRAME), {}, "probabilities of 3 classes .*a column for each, got one"),
        ((LETTERS, P, FRAME), {"classes": ["a", "b"]}, r"knows \('a', 'b'\), got 'c'"),
        ((Y, P, pd.DataFrame(np.c_[P, P], columns=["a", "a"])), {}, "different names, got 'a' 2"),
        ((Y, P, {"a": np.zeros((N, 2))}), {}, r"column 'a', got an array of shape \(1200, 2\)"),
        ((FRAME.pay, P, FRAME), {"intervals": (P + 1, P)}, "low <= high, got .* in row 1"),
        ((FRAME.pay, P, FRAME), {"intervals": (P, P[:9])}, "intervals .* two different lengths"),
        ((FRAME.pay, P, FRAME), {"intervals": "ab"}, "intervals .*got texts"),
        ((LogisticRegression, FRAME, Y), {}, "a fitted model, got the class LogisticRegression"),
    ],
)
def test_what_is_refused(arguments, options, words):
    with pytest.raises(DataError, match=words):
        scdro.audit(*arguments, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": "small"},
        {"min_share": None},
        {"max_findings": True},
        {"threshold": "half"},
        {"n_jobs": 0},
        {"n_jobs": "all"},
        {"classes": 2},
        {"classes": "01"},
        {"classes": [0, 0]},
    ],
    ids=str,
)
def test_settings_of_another_type(options):
    (name,) = options
    with pytest.raises(HyperparameterError, match=f"expected .*{name}.* got"):
        scdro.audit(Y, P, FRAME, **options)


def test_columns_that_make_no_slice_are_told():
    ids, same = [f"row {k}" for k in range(N)], ["x"] * N
    found = scdro.audit(Y, P, {"id": ids, "same": same, "city": CITY}, out_of_fold=True)
    assert "No slice can be made of id, same" in " ".join(found.notes)
    assert [row.column for row in found.passed if row.column != "city"] == []
    alone = scdro.audit(Y, P, {"same": same}, out_of_fold=True)
    assert "No columns were given" not in " ".join(alone.notes)


def test_one_probability_for_labels_of_three_numbers():
    """It may be a regressor of counts: it is read as one, and asked about."""
    counts = np.where(P > 0.9, 7, Y)
    found = scdro.audit(counts, P / 2, FRAME)
    assert found.unit == "mean"
    assert "task='classification'" in " ".join(found.notes)
    with pytest.raises(DataError, match=r"probabilities of 3 classes \(0, 1, 7\)"):
        scdro.audit(counts, P / 2, FRAME, task="classification")


def test_labels_that_the_model_never_saw():
    model = LogisticRegression().fit(FRAME[:600], Y[:600])
    labels = Y[600:].copy()
    labels[3] = 5
    with pytest.raises(DataError, match=r"labels that the model knows \(0, 1\), got 5 in 1 rows"):
        scdro.audit(model, FRAME[600:], labels)
    with pytest.raises(DataError, match=r"expected a fitted model, got LogisticRegression.*cv=5"):
        scdro.audit(LogisticRegression(), FRAME, Y)
    with pytest.raises(DataError, match="no labels y"):
        scdro.audit(model, FRAME)


# -- the gate, by the command ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    path = tmp_path_factory.mktemp("gate") / "scored.csv"
    p = np.where(CITY == "Rome", 0.7, 0.3)
    pd.DataFrame({"city": CITY, "y": Y, "p": p, "who": np.arange(N) // 4}).to_csv(path, index=False)
    return ["audit", str(path), "--target", "y", "--prediction", "p"]


def test_a_gate_fails_with_its_own_status(scored, capsys):
    from scdro.cli import main

    accuracy = ((CITY == "Rome") == Y).mean()
    assert main([*scored, "--fail-if", "accuracy < 0.7"]) == 0
    assert "The gate passed." in capsys.readouterr().out
    assert main([*scored, "--fail-if", "accuracy < 0.95", "--fail-if", "gap > 0.9"]) == 3
    said = capsys.readouterr().err
    assert "city = Rome" in said
    assert "gap" not in said
    assert main([*scored, "--fail-if", "acuracy < 0.95"]) == 1
    assert "expected a rule on one of accuracy" in " ".join(capsys.readouterr().err.split())
    rule = f"accuracy < {accuracy + 0.005:.3f}"  # true of what was measured, but not surely
    assert main([*scored, "--fail-if", rule]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "not sure of (too few rows)" in said
    assert "all rows" in said
    assert main([*scored, "--fail-if", rule, "--if-unsure", "fail"]) == 3
    assert "not sure" in " ".join(capsys.readouterr().err.split())


BAD = {
    "high.csv": ({"p": P * 3}, "between 0 and 1, got 2."),
    "two.csv": ({"p": P, "q": P}, "add up to 1 in every row"),
    "nan.csv": ({"p": np.where(P > 0.5, np.nan, P)}, "of 1,200 rows with NaN"),
    "one.csv": ({"y": np.ones(N, int)}, "two classes, got only 1"),
    "unseen.csv": ({"y": LETTERS}, "3 classes ('a', 'b', 'c'), a column for each, got one"),
    "lists.parquet": ({"tags": [["a"]] * N}, "List(String) in column 'tags'"),
    "labels.csv": ({"p": Y, "named": "y"}, "another column than the target 'y'"),
    "ten.csv": ({"rows": 10}, "at least 30 rows, to tell anything from chance, got 10"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_get_one_line(name, tmp_path, monkeypatch, capsys):
    from scdro.cli import main

    monkeypatch.chdir(tmp_path)
    columns, words = BAD[name]
    said = [columns.pop("named", "p")] + ["q"] * ("q" in columns)
    frame = pl.DataFrame(
        {"city": CITY, "y": Y, "p": P} | {k: v for k, v in columns.items() if k != "rows"}
    )
    frame = frame.head(columns.get("rows", N))
    frame.write_parquet(name) if name.endswith("parquet") else frame.write_csv(name)
    flags = [word for column in said for word in ("--prediction", column)]
    assert main(["audit", name, "--target", "y", *flags, "--fail-if", "accuracy < 0.1"]) == 1
    line = capsys.readouterr().err
    assert line.startswith("scdro audit: expected")
    assert words in line
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fail-if", "accuracy < ."], "expected a rule such as"),
        (["--fail-if", "accuracy < 1.2.3"], "expected a rule such as"),
        (["--fail-if", "accuracy < 70%"], "expected a rule such as"),
        (["--fail-if", "gap > 5"], "limit of gap in [0, 1], a share, got 5"),
        (["--if-unsure", "fail"], "--if-unsure with --fail-if"),
    ],
)
def test_rules_that_could_judge_nothing(scored, capsys, options, words):
    from scdro.cli import main

    assert main([*scored, *options]) == 1
    assert words in " ".join(capsys.readouterr().err.split())


def test_rules_are_read_before_anything_is_trained(scored, capsys):
    from scdro.cli import main

    assert main([*scored[:4], "--fail-if", "acuracy < 0.7"]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith("scdro audit: expected a rule on one of accuracy")
    with pytest.raises(HyperparameterError, match="at least one rule"):
        scdro.audit(Y, P, FRAME).check()


def test_a_gate_is_never_sure_of_a_group_of_three():
    """All of its rows are right, which says next to nothing about it."""
    sex = np.array(["f", "m"])[np.arange(N) % 2]
    sex[:3] = "x"
    said = np.where(np.arange(N) % 50 == 10, 1 - Y, Y)
    found = scdro.audit(Y, said, FRAME, sensitive_features={"sex": sex})
    with pytest.warns(ScdroWarning, match="sex = x, 3 rows: too few to judge"):
        assert found.check("accuracy < 0.5").unsure == ("sex = x, 3 rows: too few to judge",)
    with pytest.raises(GateError, match="not sure: sex = x, 3 rows"):
        found.check("accuracy < 0.5", if_unsure="fail")


def test_a_gate_sees_the_class_of_few_rows_that_is_always_missed():
    """`missed` is the largest over classes, however few members the class has in a slice."""
    y = np.r_[np.ones(2), np.zeros(398)].astype(int)
    said = np.r_[np.zeros(2), np.ones(199), np.zeros(199)].astype(int)
    found = scdro.audit(y, said)
    assert found.slices_scored[0].scores["missed"][0] == 1
    with pytest.warns(ScdroWarning, match="missed > 0.9: all rows, 400 rows, missed 1 "):
        found.check("missed > 0.9")


def test_a_gate_names_the_worst_slices_first_and_counts_the_rest():
    frame = {f"column {k}": RNG.random(N) for k in range(3)} | {"city": CITY}
    said = np.where(CITY == "Rome", 1 - Y, Y)
    found = scdro.audit(Y, said, frame)
    with pytest.raises(GateError) as error:
        found.check("accuracy < 0.99", "findings > 0")
    lines = str(error.value).splitlines()
    assert "city = Rome" in lines[1]
    assert lines[16].strip().startswith("and ")
    assert "finding: city = Rome" in lines[17]
    assert len(lines) == 18


def test_a_gate_is_less_sure_of_rows_that_belong_together():
    unit = np.arange(N) // 100  # twelve people, a hundred rows each, all right or all wrong
    wrong = (np.arange(12) % 3 == 0)[unit]
    said = np.where(wrong, 1 - Y, Y)
    frame = {"half": np.arange(N) % 2 == 0}
    alone, together = (
        next(one for one in scdro.audit(Y, said, frame, groups=g).slices_scored)
        for g in (None, unit)
    )
    value, low, high = together.scores["accuracy"]
    assert value == alone.scores["accuracy"][0] == pytest.approx(2 / 3)
    assert high - low > 4 * (alone.scores["accuracy"][2] - alone.scores["accuracy"][1])


def test_columns_that_are_mixed_up_are_asked_about():
    """The other class's probability, and predictions in the place of labels."""
    rng = np.random.default_rng(0)
    p, place = rng.random(600), rng.choice(["a", "b"], 600)
    y = (rng.random(600) < p).astype(int)
    said = " ".join(scdro.audit(y, 1 - p, {"place": place}, out_of_fold=True).notes)
    assert "backwards" in said
    assert "calibrate" not in said
    assert "swapped" in " ".join(scdro.audit(p, y, {"place": place}, out_of_fold=True).notes)
    assert not scdro.audit(y, p, {"place": place}, out_of_fold=True).notes
