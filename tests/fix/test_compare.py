"""compare: two models on held-out data, after both had their free moves."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import scdro
from scdro.errors import DataError
from scdro.fix import best_temperature, compare, moved


def hidden(n=2000, seed=0):
    """A shortcut agrees with the class for 95%."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    few = rng.random(n) < 0.05
    shortcut = np.where(few, 1 - y, y)
    X = np.c_[2 * shortcut + 0.3 * rng.normal(size=n), y + 0.35 * rng.normal(size=n)]
    return X, y, few


def two_models():
    X, y, few = hidden()
    weights = np.where(few, 20.0, 1.0)
    return LogisticRegression(C=0.01).fit(X, y), LogisticRegression().fit(X, y, weights)


def test_a_better_model_for_the_group_is_seen():
    plain, again = two_models()
    X, y, few = hidden(seed=1)
    known = compare(plain, again, (X, y), groups=few)
    assert known.answer == "helps"
    assert known.used == "again"
    assert [rung.name for rung in known.rungs] == ["plain", "threshold", "recalibration", "again"]
    cells = [(y == k) & (few == f) for k in (0, 1) for f in (False, True)]
    worst = min((again.predict(X) == y)[m].mean() for m in cells)
    assert known.hard_after == pytest.approx(worst, abs=0.05)


@pytest.mark.parametrize("groups", [True, False])
def test_the_other_way_round_it_is_not(groups):
    plain, again = two_models()
    X, y, few = hidden(seed=1)
    verdict = compare(again, plain, (X, y), groups=few if groups else None)
    assert not verdict.helps
    assert verdict.used == "plain"
    assert not groups or verdict.gain < 0


def test_a_free_move_is_no_gain():
    """The second model is the first one with another temperature and other thresholds."""
    plain, _ = two_models()
    X, y, few = hidden(seed=1)
    proba = plain.predict_proba(X)
    offsets = np.array([0.7, -0.7])
    for groups in (few, None):
        verdict = compare(proba, moved(proba, 2.5, offsets), y, groups=groups)
        assert not verdict.helps
        assert abs(verdict.gain) < 2 * verdict.gain_error + 0.02


def test_kinds_of_models_agree():
    plain, again = two_models()
    X, y, few = hidden(seed=1)
    arrays = compare(plain.predict_proba(X), again.predict_proba(X), y, groups=few)
    assert compare(plain, again, (X, y), groups=few) == arrays
    networks = []
    for model in (plain, again):
        layer = nn.Linear(2, 2, dtype=torch.float64)
        with torch.no_grad():
            W, b = torch.tensor(model.coef_), torch.tensor(model.intercept_)
            layer.weight.copy_(torch.cat([-W, W]) / 2)
            layer.bias.copy_(torch.cat([-b, b]) / 2)
        networks.append(nn.Sequential(nn.Dropout(0.5), layer).train())
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(y)), batch_size=300)
    nets = compare(*networks, loader, groups=few)
    assert nets.gain == pytest.approx(arrays.gain)
    assert nets.answer == arrays.answer
    assert all(net.training for net in networks)
    shuffled = DataLoader(loader.dataset, batch_size=300, shuffle=True)  # groups are in its order
    assert compare(*networks, shuffled, groups=few) == nets
    softened = [nn.Sequential(net, nn.Softmax(1)) for net in networks]
    assert compare(*softened, loader, groups=few).gain == pytest.approx(nets.gain)


def test_columns_say_who_gains_and_who_loses():
    plain, again = two_models()
    X, y, few = hidden(seed=1)
    columns = {"place": np.where(few, "odd", "usual"), "size": X[:, 1]}
    rungs = compare(plain, again, (X, y), columns).rungs
    before, after = rungs[0].cells, rungs[-1].cells
    right = plain.predict(X) == y
    assert before["place = odd"] == pytest.approx(right[few].mean(), abs=0.02)
    assert after["place = odd"] > before["place = odd"] + 0.2
    assert sum("size" in name for name in before) == 4


def answer_of(first, second, y, columns):
    proba = [np.c_[1 - p, p] for p in (first, second)]
    return compare(*proba, y, columns)


@pytest.mark.parametrize(
    ("case", "answer", "used"),
    [
        ("helped", "helps", "again"),
        ("not helped", "a group is seen, but not helped", "plain"),
        ("too dear", "helped at too high a price", "plain"),
        ("nobody", "no group seen", "plain"),
    ],
)
def test_columns_find_the_group_that_nobody_gave(case, answer, used):
    """An audit of one half finds the group on which the other half judges: three answers instead of none."""
    rng = np.random.default_rng(0)
    n = 6000
    y, odd = rng.integers(0, 2, n), rng.random(n) < 0.2
    columns = {"place": np.where(odd, "odd", "usual"), "noise": rng.normal(size=n)}

    def model(right_in_odd, right_elsewhere):
        """Right for these shares; sure for nine tenths."""
        right = rng.random(n) < np.where(odd, right_in_odd, right_elsewhere)
        return np.where(right == (y == 1), 0.9, 0.1)

    shares = {
        "helped": [(0.55, 0.95), (0.9, 0.94)],
        "not helped": [(0.55, 0.95), (0.55, 0.95)],
        "too dear": [(0.3, 0.95), (0.6, 0.6)],
        "nobody": [(0.9, 0.9), (0.9, 0.9)],
    }
    verdict = answer_of(*(model(*one) for one in shares[case]), y, columns)
    assert (verdict.answer, verdict.used) == (answer, used)
    assert ("place = odd" in str(verdict)) == (case != "nobody")


def test_who_gains_and_who_loses_is_told_with_how_sure():
    plain, again = two_models()
    X, y, few = hidden(seed=1)
    verdict = compare(plain, again, (X, y), groups=np.where(few, "odd", "usual"))
    rung = verdict.rungs[-1]
    before = verdict.rungs[0].cells
    for name, (change, error) in rung.changes.items():
        assert change == pytest.approx(rung.cells[name] - before[name])
        assert 0 <= error < 0.2
    most = max(rung.changes, key=lambda name: rung.changes[name][0])
    assert f"{most} gains" in str(rung)
    assert "Recommended: the second model" in verdict.ladder()


def test_a_temperature_is_recommended_for_probabilities():
    """It changes no answer: the decision stays, and the log loss is told."""
    plain, _ = two_models()
    X, y, few = hidden(seed=1)
    sure = moved(plain.predict_proba(X), 0.2)
    verdict = compare(sure, sure, y, groups=few)
    plain, recalibrated = (
        next(rung for rung in verdict.rungs if rung.name == name)
        for name in ("plain", "recalibration")
    )
    assert recalibrated.accuracy == plain.accuracy
    assert recalibrated.log_loss < plain.log_loss - 5 * recalibrated.log_loss_error
    assert "recalibrate" in verdict.recommend()
    calibrated = moved(sure, best_temperature(sure, y, np.mean))
    assert "recalibrate" not in compare(calibrated, calibrated, y, groups=few).recommend()


def test_only_hard_people_need_more_columns():
    rng = np.random.default_rng(0)
    n = 4000
    odd = rng.random(n) < 0.3
    sure = np.where(odd, 0.6, 0.95)
    p = np.where(rng.random(n) < 0.5, sure, 1 - sure)
    y = (rng.random(n) < p).astype(int)  # the probabilities are right
    audit = scdro.audit(y, p, {"place": np.where(odd, "odd", "usual")})
    assert {one.kind for one in audit.findings} == {"hard"}
    proba = np.c_[1 - p, p]
    told = compare(proba, proba, y).recommend(audit)
    assert "more columns" in told
    assert "place = odd" in told


def test_regressors():
    rng = np.random.default_rng(0)
    few = rng.random(800) < 0.1
    x = rng.normal(size=800)
    X, y = np.c_[x, few * x], x + 3 * few * x + 0.1 * rng.normal(size=800)
    plain, again = LinearRegression().fit(X[:, :1], y), LinearRegression().fit(X, y)
    verdict = compare(plain.predict(X[:, :1]), again.predict(X), y, groups=few)
    assert verdict.helps
    assert verdict.loss
    errors = [np.abs(m - y)[few].mean() for m in (plain.predict(X[:, :1]), again.predict(X))]
    assert (verdict.hard_before, verdict.hard_after) == pytest.approx(
        (errors[0], np.abs(again.predict(X) - y)[~few].mean()), rel=0.2
    )


def test_what_cannot_be_compared_is_refused():
    plain, again = two_models()
    X, y, _ = hidden(seed=1)
    with pytest.raises(DataError, match=r"\(X, y\)"):
        compare(plain, again, X)
    with pytest.raises(DataError, match="same 2000 rows"):
        compare(np.full((2000, 2), 0.5), np.full((1999, 2), 0.5), y)
    with pytest.raises(DataError, match="2 classes"):
        compare(np.full((2000, 3), 1 / 3), np.full((2000, 3), 1 / 3), y)
    with pytest.raises(DataError, match="2000 values"):
        compare(plain, again, (X, y), {"a": [1, 2]})
