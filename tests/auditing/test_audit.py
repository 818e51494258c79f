"""Audits of made tables in which it is known where the model fails, and how; nulls; errors."""

import json
import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.special import expit
from sklearn.linear_model import LinearRegression, LogisticRegression

import scdro
from scdro.auditing import GateError
from scdro.errors import DataError, HyperparameterError, ScdroWarning


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    n = 6000
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, n),
            "city": rng.choice(["Oslo", "Rome", "Lima"], n, p=[0.5, 0.3, 0.2]),
            "income": rng.lognormal(10, 1, n),
            "member": rng.random(n) < 0.5,
        }
    )
    return frame, rng


def planted(people, gap=0.25):
    """Labels from p, and in Rome above 60 from p + gap."""
    frame, _ = people
    rng = np.random.default_rng(1)
    p = rng.uniform(0.05, 0.6, len(frame))
    inside = ((frame.city == "Rome") & (frame.age > 60)).to_numpy()
    return (rng.random(len(p)) < p + gap * inside).astype(int), p, inside


def test_wrong_probabilities_are_found_where_they_are(people):
    y, p, inside = planted(people)
    audit = scdro.audit(y, p, people[0])
    first = audit.findings[0]
    assert first.kind == "wrong probabilities"
    assert (first.members & inside).sum() / (first.members | inside).sum() > 0.8
    assert first.observed == pytest.approx(y[first.members].mean())
    assert first.predicted == pytest.approx(p[first.members].mean())
    assert first.low < first.observed < first.high
    assert not first.low <= first.predicted <= first.high
    assert sum(one.kind == "wrong probabilities" for one in audit.findings) == 1
    assert "income" in [row.column for row in audit.passed]


def test_nothing_is_found_in_labels_drawn_from_the_probabilities(people):
    frame, _ = people
    rng = np.random.default_rng(2)
    for _ in range(10):
        p = expit(rng.normal(-1, 1.5) + rng.normal(size=len(frame)) + (frame.age > 50))
        y = rng.random(len(p)) < p
        kinds = [one.kind for one in scdro.audit(y, p, frame).findings]
        assert "wrong probabilities" not in kinds


def test_nothing_is_found_in_shuffled_columns(people):
    y, p, _ = planted(people)
    for seed in range(10):
        shuffled = people[0].sample(frac=1, random_state=seed).reset_index(drop=True)
        assert not [one for one in scdro.audit(y, p, shuffled).findings if one.conditions]


def test_overconfident_probabilities_are_told_once_not_for_every_slice(people):
    frame, _ = people
    rng = np.random.default_rng(3)
    truth = expit(rng.normal(size=len(frame)))
    sure = expit(4 * np.log(truth / (1 - truth)))
    audit = scdro.audit(rng.random(len(truth)) < truth, sure, frame)
    assert [one.conditions for one in audit.findings if one.kind == "wrong probabilities"] == [()]
    assert any("as a whole" in note for note in audit.notes)


def test_a_hard_slice_names_the_class_that_is_missed(people):
    """Elsewhere nobody is called "yes", so the few missed "no" are what is new in the slice."""
    frame, rng = people
    lima = (frame.city == "Lima").to_numpy()
    p = np.where(lima, np.where(rng.random(len(frame)) < 0.05, 0.52, 0.47), 0.03)
    y = np.where(rng.random(len(frame)) < p, "yes", "no")
    found = scdro.audit(y, p, frame, classes=["no", "yes"]).findings
    hard = next(one for one in found if one.kind == "hard")
    assert "city = Lima" in hard.slice
    assert hard.label == "yes"


def test_hard_and_threshold_are_told_apart(people):
    frame, _ = people
    rng = np.random.default_rng(4)
    hard = (frame.city == "Lima").to_numpy()
    rare = (frame.city == "Rome").to_numpy()
    level = rng.choice([-4, 4], len(frame)) + rng.normal(size=len(frame))
    p = np.where(hard, 0.5 + 0.05 * rng.uniform(-1, 1, len(frame)), expit(level))
    p = np.where(rare, 0.1, p)
    y = rng.random(len(p)) < p
    found = {one.kind: one for one in scdro.audit(y, p, frame).findings}
    assert set(found) == {"hard", "threshold"}
    assert found["hard"].slice == "city = Lima"
    assert found["threshold"].slice == "city = Rome"
    assert found["threshold"].label == "True"
    assert found["threshold"].missed == 1.0


def test_every_kind_of_table_gives_the_same(people):
    y, p, _ = planted(people)
    frame = people[0]
    texts = {
        str(scdro.audit(y, p, kind))
        for kind in (
            frame,
            pl.from_pandas(frame),
            pl.from_pandas(frame).to_arrow(),
            frame.to_dict("list"),
        )
    }
    assert len(texts) == 1


def test_jobs_do_not_change_the_result(people):
    y, p, _ = planted(people)
    assert (
        scdro.audit(y, p, people[0], n_jobs=2).to_json() == scdro.audit(y, p, people[0]).to_json()
    )


def test_weights_are_repetitions(people):
    y, p, _ = planted(people)
    frame = people[0]
    times = np.random.default_rng(5).integers(1, 3, len(y))
    rows = np.repeat(np.arange(len(y)), times)
    whole = scdro.audit(y[rows], p[rows], frame.iloc[rows]).findings[0]
    weighted = scdro.audit(y, p, frame, sample_weight=times).findings[0]
    assert weighted.slice == whole.slice
    assert weighted.observed == pytest.approx(whole.observed)
    assert weighted.p_value > whole.p_value  # as many people, not twice as many


def test_rows_of_one_patient_count_once():
    rng = np.random.default_rng(6)
    ill, ward = rng.random(40) < 0.5, rng.choice(["a", "b"], 40)
    ill[ward == "a"] = np.arange((ward == "a").sum()) < 14
    patient = np.repeat(np.arange(40), 50)
    audits = [
        scdro.audit(ill[patient], np.full(2000, ill.mean()), {"ward": ward[patient]}, groups=groups)
        for groups in (None, patient)
    ]
    assert audits[0].findings
    assert not [one for one in audits[1].findings if one.kind == "wrong probabilities"]


def test_several_classes(people):
    frame, _ = people
    rng = np.random.default_rng(7)
    p = rng.dirichlet([2, 2, 2], len(frame))
    inside = (frame.city == "Lima").to_numpy()
    truth = np.where(inside[:, None], p[:, [1, 0, 2]] * 0.2 + np.array([0, 0, 0.8]), p)
    y = np.array(["x", "y", "z"])[(rng.random(len(p))[:, None] > truth.cumsum(1)).sum(1)]
    first = scdro.audit(y, p, frame).findings[0]
    assert (first.slice, first.label) == ("city = Lima", "z")


def test_classes_only_says_what_cannot_be_told(people):
    y, _, inside = planted(people)
    said = np.where(inside, 1 - y, y)
    audit = scdro.audit(y, said, people[0])
    assert audit.findings[0].kind == "errors"
    assert any("cannot be told" in note for note in audit.notes)
    assert math.isnan(audit.findings[0].loss)


def test_regression_bias_spread_and_coverage(people):
    frame, _ = people
    rng = np.random.default_rng(8)
    n = len(frame)
    lima, rome = (frame.city == "Lima").to_numpy(), (frame.city == "Rome").to_numpy()
    predicted = rng.normal(size=n) * 10
    y = predicted + 2 * lima + rng.standard_t(3, n) * np.where(rome, 4, 1)
    found = scdro.audit(y, predicted, frame, intervals=(predicted - 3, predicted + 3)).findings
    told = {(one.kind, one.slice) for one in found}
    assert {("bias", "city = Lima"), ("spread", "city = Rome"), ("coverage", "city = Rome")} <= told
    shuffled = frame.sample(frac=1, random_state=0).reset_index(drop=True)
    assert not scdro.audit(y, predicted, shuffled).findings


def test_models(people):
    frame, _ = people
    y, _, _ = planted(people)
    X = frame[["age", "income"]].to_numpy()
    model = LogisticRegression(max_iter=2000).fit(X, y)
    direct = scdro.audit(y, model.predict_proba(X), frame)
    assert str(scdro.audit(model, X, y, frame)) == str(direct)
    assert scdro.audit(LogisticRegression(max_iter=2000), X, y, frame, cv=3).findings
    assert scdro.audit(LinearRegression(), X, frame["income"] ** 2, frame, cv=3).unit == "mean"
    with pytest.raises(DataError, match="fitted model"):
        scdro.audit(LogisticRegression(), X, y, frame)


def test_network(people):
    torch = pytest.importorskip("torch")
    frame, _ = people
    y, _, _ = planted(people)
    x = torch.tensor(frame[["age"]].to_numpy(), dtype=torch.float32)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x / 50, torch.tensor(y)), batch_size=500
    )
    network = torch.nn.Linear(1, 2)
    audit = scdro.audit(network, loader, frame)
    proba = network(x / 50).softmax(1).detach().numpy()
    assert str(audit) == str(scdro.audit(y, proba, frame))
    assert network.training


def test_groups_are_reported_within_each_class(people):
    y, p, _ = planted(people)
    audit = scdro.audit(y, p, people[0][["age"]], sensitive_features=people[0]["city"])
    rows = {(row.group, row.label): row for row in audit.groups}
    assert len(rows) == 9
    here = (people[0].city == "Rome").to_numpy() & (y == 1)
    assert rows["city = Rome", "1"].error == pytest.approx((p[here] <= 0.5).mean())


@pytest.mark.parametrize("values", [[0, 1], ["no", "yes"], [True, False]])
@pytest.mark.parametrize("asked", [False, True])
def test_a_copy_of_the_labels_is_no_description(people, values, asked):
    """Whoever knows that y is 1 knows that no probability is right: it would hide every other finding."""
    y, p, _ = planted(people, gap=0.4)
    copy = {"truth": np.array(values)[y]}
    frame = {name: people[0][name] for name in people[0]}
    audit = scdro.audit(y, p, frame | copy, sensitive_features=copy if asked else None)
    assert [one.slice for one in audit.findings] == [
        one.slice for one in scdro.audit(y, p, frame).findings
    ]
    assert [row.label for row in audit.groups] == ["", ""] * asked
    assert {row.rows for row in audit.groups} == (set(np.bincount(y)) if asked else set())
    assert any("'truth'" in note for note in audit.notes) is not asked
    assert "truth" not in " ".join(one.slice for one in audit.slices_scored)


def test_a_copy_of_the_target_is_no_description(people):
    """Large numbers are predicted too low, and small ones too high: every good model is "biased" there."""
    frame, _ = people
    rng = np.random.default_rng(1)
    y = frame["age"] + 20 * rng.normal(size=len(frame))
    audit = scdro.audit(y, frame["age"], {"city": frame["city"], "truth": y})
    assert not audit.findings
    assert any("'truth'" in note for note in audit.notes)


def test_shown_and_saved(people, tmp_path):
    y, p, _ = planted(people)
    frame = people[0].rename(columns={"city": "<b>city"})
    audit = scdro.audit(y, p, frame)
    assert "<b>city" in str(audit)
    assert "<b>city" not in audit._repr_html_()
    audit.save(tmp_path / "audit.html")
    audit.save(tmp_path / "audit.json")
    plain = json.loads((tmp_path / "audit.json").read_text())
    assert plain["findings"][0]["rows"] == audit.findings[0].rows
    assert list(audit.to_frame("polars")["slice"]) == [one.slice for one in audit.findings]
    assert list(audit.to_frame().columns)[:2] == ["kind", "slice"]
    with pytest.raises(HyperparameterError, match="html"):
        audit.save(tmp_path / "audit.pdf")


def test_gate(people):
    y, p, _ = planted(people, gap=0.4)
    audit = scdro.audit(y, p, people[0])
    with pytest.raises(GateError, match="city = Rome") as caught:
        audit.check("gap > 0.05")
    assert isinstance(caught.value, AssertionError)
    assert audit.check("gap > 0.6").passed
    with pytest.raises(GateError, match=r"wrong > 0: \d finding"):
        audit.check("wrong > 0")
    for rule in ("accuracy", "acuracy < 1", "accuracy < x"):
        with pytest.raises(HyperparameterError, match="rule"):
            audit.check(rule)


def test_a_gate_says_when_it_is_not_sure(people):
    y, p, _ = planted(people)
    few = scdro.audit(y[:60], p[:60], {"half": np.arange(60) < 30})
    accuracy = few.scores["accuracy"]
    with pytest.raises(GateError, match="not sure"):
        few.check(f"accuracy < {accuracy + 0.01}", if_unsure="fail")
    with pytest.warns(ScdroWarning, match="not sure"):
        assert few.check(f"accuracy < {accuracy + 0.01}").unsure


RNG = np.random.default_rng(9)
Y, P = RNG.integers(0, 2, 100), RNG.random(100)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((Y, P + 0.5, {"a": P}), r"between 0 and 1, got 1\..*logits"),
        ((Y, np.c_[P, P], {"a": P}), "add up to 1"),
        ((Y, P, {"a": P[:50]}), "100 rows .* got 50 in 'a'"),
        ((Y, P[:50], {"a": P}), "100 predictions"),
        ((np.where(P > 0.9, 7, Y), np.c_[1 - P, P], {"a": P}), "3 classes"),
        ((Y, np.where(P > 0.5, np.nan, P), {"a": P}), "without NaN"),
        ((Y, P, {"a": [[1]] * 100}), "one number, text or date .* 'a'"),
        ((np.zeros(100), P, {"a": P}), "two classes"),
        ((Y[:10], P[:10], {"a": P[:10]}), "at least 30 rows"),
        ((np.where(P > 0.9, np.nan, Y), P, {"a": P}), "labels without missing"),
        ((Y, np.full(100, "maybe"), {"a": P}), "among the labels"),
    ],
)
def test_bad_input(arguments, words):
    with pytest.raises(DataError, match=words):
        scdro.audit(*arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 0},
        {"depth": 3},
        {"min_share": 0.9},
        {"max_findings": 0},
        {"threshold": 2},
        {"cv": 5},
    ],
)
def test_bad_settings(options):
    with pytest.raises(HyperparameterError, match="expected"):
        scdro.audit(Y, P, {"a": P}, **options)


def test_the_clearest_finding_comes_first():
    """Four people whom the model ruled out have a z of 1,000; hundreds who are off by .2 are clearer."""
    rows = np.arange(6000)
    ruled_out = rows < 100
    often = np.select([rows < 1100, rows < 2600], [6, 1], 3)  # of ten
    y = np.where(ruled_out, rows < 4, rows % 10 < often).astype(int)
    group = np.select([ruled_out, rows < 1100, rows < 2600], ["ruled out", "more", "less"], "fine")
    found = scdro.audit(y, np.where(ruled_out, 1e-7, 0.3), {"group": group}).findings
    assert [one.slice for one in found[:2]] == ["group = more", "group = less"]
    assert 1e-25 < found[2].p_value < 1e-15


def test_a_class_that_is_never_predicted_and_too_rarely_expected():
    rng = np.random.default_rng(0)
    y = (rng.random(3000) < 0.4).astype(int)
    (one,) = (f for f in scdro.audit(y, np.full(3000, 0.3)).findings if f.kind == "threshold")
    assert "probabilities are wrong too" in str(one)
    (one,) = (f for f in scdro.audit(y, np.full(3000, 0.4)).findings if f.kind == "threshold")
    assert "but the probabilities are right" in str(one)


def test_probabilities_that_are_right_on_average_and_wrong_for_everybody():
    """For a few the score means the opposite: the mean is right, and no row's probability is."""
    rng = np.random.default_rng(0)
    n = 6000
    age, city = rng.integers(20, 80, n), rng.choice(["Oslo", "Rome"], n)
    few = (city == "Rome") & (age > 65)
    score = rng.normal(size=n)
    p = 1 / (1 + np.exp(-2 * score))
    y = rng.random(n) < np.where(few, 1 - p, p)
    found = scdro.audit(y, p, {"age": age, "city": city}).findings
    assert abs(p[few].mean() - y[few].mean()) < 0.05
    first = found[0]
    assert (first.kind, first.label) == ("wrong probabilities", "")
    assert (first.members & few).sum() > 0.9 * few.sum()
    right = (p > 0.5) == y
    assert first.observed == pytest.approx(right[first.members].mean())
    assert first.predicted == pytest.approx(np.maximum(p, 1 - p)[first.members].mean())
    assert "sure of its answers" in str(first)
    assert not any(one.kind == "hard" for one in found)


def test_an_interval_that_includes_what_the_model_gives_is_explained():
    """Probabilities near 0 and 1 vary little: a gap is sure that the interval of all slices includes."""
    city, p = np.repeat(["Oslo", "Rome"], 2000), np.tile([0.02, 0.98], 2000)
    y = p > 0.5
    y[1:81:2], y[2000:2080:2] = False, True  # 40 fewer in Oslo than they say, and 40 more in Rome
    audit = scdro.audit(y, p, {"city": city})
    rome = next(one for one in audit.findings if one.slice == "city = Rome")
    assert rome.low < rome.predicted < rome.high
    assert "interval holds for all slices" in str(audit)
    clear = scdro.audit(city == "Rome", np.full(4000, 0.5), {"city": city})
    assert clear.findings
    assert "interval holds for all slices" not in str(clear)
