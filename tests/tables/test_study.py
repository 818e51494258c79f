"""Training on tables, from rows to a run: what is chosen, kept, refused, and the same after a kill."""

import json
import re
import shutil

import numpy as np
import polars as pl
import pytest
import scipy.stats

import scdro
from scdro.errors import DataError, HyperparameterError
from scdro.tables import Run, _models, _verdict, audit, load, train
from scdro.tables._folder import Fits
from scdro.tables._models import Learner
from scdro.tables._options import TrainOptions
from scdro.tables._problem import make_problem
from scdro.tables._study import SplitStudy, StudyLog
from scdro.tables._summary import Summary, mismatch
from scdro.tables._verdict import VerdictWords


def spoilt(n=1500, seed=0, share=0.05):
    """A shortcut that says the class but for a few, and a weaker column that says it for all."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    few = rng.random(n) < share
    shortcut = np.where(few, 1 - y, y) + 0.1 * rng.normal(size=n)
    return pl.DataFrame(
        {
            "shortcut": shortcut,
            "rule": y + 0.35 * rng.normal(size=n),
            "noise": rng.normal(size=n),
            "few": np.where(few, "few", "many"),
            "y": np.where(y == 1, "yes", "no"),
        }
    )


QUICK = {"candidates": 2, "seeds": 1}


@pytest.fixture(scope="module")
def linear():
    return train(spoilt(), "y", model="linear", group=["few"], budget=0.05, candidates=3, seeds=2)


def test_the_summary_is_as_the_schema_says(linear):
    summary = json.loads(json.dumps(linear.summary, allow_nan=False))
    assert mismatch(summary, Summary) is None
    assert summary["methods"][0]["name"] == "plain"
    for method in summary["methods"]:
        assert sum(one["chosen"] for one in method["candidates"]) == 1
        assert len(method["candidates"]) <= summary["settings"]["candidates"]


def test_scores_are_those_of_the_predictions(linear):
    """Of the first seed's model on rows that no model saw, by NumPy alone."""
    new = spoilt(4000, seed=9)
    for name in linear.models:
        right = (linear.predict(new, name) == new["y"].to_numpy()).mean()
        row = next(m for m in linear.summary["methods"] if m["name"] == name)
        assert abs(right - row["scores"]["accuracy"]["value"]) < 0.03
    proba = linear.predict_proba(new)
    np.testing.assert_allclose(proba.sum(1), 1.0)
    assert (np.array(linear.classes)[proba.argmax(1)] == linear.predict(new)).all()


def test_robust_training_helps_the_few_where_it_can(linear):
    verdict = linear.summary["verdict"]
    assert verdict["answer"] == "helps"
    assert verdict["kept"] == verdict["robust"] != "plain"
    assert verdict["robust_value"]["high"] < 0
    assert verdict["price"]["difference"] >= -0.05
    new = spoilt(6000, seed=5)
    few = (new["few"] == "few").to_numpy()
    right = {
        name: (linear.predict(new, name) == new["y"].to_numpy())[few].mean()
        for name in ("plain", "robust")
    }
    assert right["robust"] > right["plain"] + 0.01


def test_who_is_failed_is_said_in_the_user_s_columns(linear):
    slices = linear.summary["slices"]
    assert "few = few" in slices[0]["conditions"]
    assert "few = few" in linear.summary["verdict"]["sentences"][0]
    assert slices[0]["before"] < 0.8


def test_a_column_called_label_is_not_mistaken_for_the_target():
    rng = np.random.default_rng(0)
    bird = rng.choice(["land", "water"], 1200)
    place = np.where(rng.random(1200) < 0.92, bird, np.where(bird == "land", "water", "land"))
    table = {"x": (place == "water") + 0.3 * rng.normal(size=1200), "label": place, "bird": bird}
    run = train(table, "bird", model="linear", methods=["plain"], **QUICK)
    conditions = [set(one["conditions"]) for one in run.summary["slices"]]
    assert {"label = water", "bird = land"} in conditions


def test_a_small_group_makes_no_headline():
    frame = spoilt(600).with_columns(
        few=pl.when(pl.int_range(600) < 8).then(pl.lit("tiny")).otherwise(pl.lit("all"))
    )
    run = train(frame, "y", model="linear", group=["few"], **QUICK)
    tiny = [group for group in run.summary["groups"] if group["name"] == "few = tiny"]
    assert all(group["small"] for group in tiny)
    assert run.summary["verdict"]["worst_group"]["name"] != "few = tiny"
    assert "tiny" not in " ".join(
        [run.summary["verdict"]["headline"], *run.summary["verdict"]["sentences"]]
    )
    assert not run.summary["groups"][0]["small"]


def test_groups_and_ids_never_reach_the_model():
    frame = spoilt(400)
    other = frame.with_columns(
        few=pl.Series(np.random.default_rng(1).permutation(frame["few"].to_numpy()))
    )
    first, second = (train(f, "y", model="linear", group=["few"], **QUICK) for f in (frame, other))
    np.testing.assert_array_equal(first.predict_proba(frame), second.predict_proba(frame))
    assert first.summary["groups"] != second.summary["groups"]


def test_where_nobody_is_failed_the_plain_model_is_kept_and_it_says_so():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    frame = pl.DataFrame(
        {"x": x, "y": np.where(rng.random(400) < 1 / (1 + np.exp(-2 * x)), "a", "b")}
    )
    run = train(frame, "y", model="linear", **QUICK)
    assert run.kept == "plain"
    assert run.summary["verdict"]["answer"] in ("no difference", "degenerate", "costs too much")
    assert "plain model is kept" in run.summary["verdict"]["headline"]


def test_a_model_that_says_one_half_to_everybody_is_never_kept():
    """As the old command did on credit default: the robust model is flat, whatever its robust value.

    Two in five labels are flipped. Within rho = .1 there is a worst case in which half of them are:
    no model is better there than one half for everybody.
    """
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], 1500)
    y = np.where(rng.random(1500) < 0.4, x < 0, x > 0)
    run = train({"x": x, "y": y}, "y", model="linear", methods=["worst-case"], budget=1.0,
                candidates=1, seeds=1)  # fmt: skip
    assert run.summary["verdict"]["answer"] == "degenerate"
    assert run.models == ["plain"]
    assert run.kept == "plain"


def test_a_table_of_45_rows_is_learned():
    """LightGBM's own least leaf of 20 rows would split none of them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=45)
    run = train(
        {"x": x, "z": rng.choice(["a", "b"], 45), "y": np.where(x > 0, "yes", "no")}, "y", **QUICK
    )
    assert (run.predict({"x": [-1.0, 1.0], "z": ["a", "b"]}) == ["no", "yes"]).all()


@pytest.mark.parametrize("methods", [["plain"], ["worst-case"]])
@pytest.mark.parametrize("target", ["y", "amount"])
def test_where_nothing_is_learned_no_model_is_saved(tmp_path, methods, target):
    amount = np.arange(120) // 2 * np.where(np.arange(120) % 4 < 2, 1.0, -1.0)
    frame = pl.DataFrame(
        {"x": [0.0, 1.0] * 60, "y": ["no", "no", "yes", "yes"] * 30, "amount": amount}
    )
    other, settings = (
        ({"y", "amount"} - {target}).pop(),
        {"model": "linear", "methods": methods, "test": frame},
    )
    run = train(frame, target, drop=[other], out=tmp_path / "run", **settings, **QUICK)
    verdict = run.summary["verdict"]
    assert (verdict["answer"], verdict["kept"], verdict["saved"]) == ("nothing learned", "none", [])
    assert "the same answer" in verdict["headline"]
    assert mismatch(json.loads(json.dumps(run.summary)), Summary) is None
    assert not (tmp_path / "run" / "models").exists()
    with pytest.raises(HyperparameterError, match="the same answer"):
        load(tmp_path / "run").predict(frame)
    assert "none" in load(tmp_path / "run").report()


def test_one_class_for_every_row_is_said_and_a_rare_class_is_no_flat_model():
    """Probabilities from .001 to .03 are right where a class is rare: they tell the rows apart."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=6000)
    y = np.where(rng.random(6000) < 0.01 * np.exp(x - 0.5), "ill", "well")
    run = train({"x": x, "y": y}, "y", model="linear", methods=["plain"], **QUICK)
    assert run.kept == "plain"
    assert run.predict_proba({"x": x})[:, 0].std() < 0.02
    assert any("well for every one" in sentence for sentence in run.summary["verdict"]["sentences"])


def rare(n=3000, seed=0):
    """A class of 6%, and two columns that hardly tell it."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(n, 5))
    odds = 0.7 * columns[:, 0] + 0.4 * columns[:, 1] - 3.05
    yes = rng.random(n) < 1 / (1 + np.exp(-odds))
    assert 0.05 < yes.mean() < 0.07
    return {**{f"x{k}": columns[:, k] for k in range(5)}, "y": np.where(yes, "Yes", "No")}


@pytest.mark.parametrize("model", ["linear", "trees"])
def test_a_model_that_says_no_to_everybody_is_no_help(model):
    """Training on the worst case is less sure of everybody, which lowers the worst losses and changes no answer."""
    run = train(rare(), "y", model=model, methods=["worst-case"], budget=0.01, **QUICK)
    verdict, methods = run.summary["verdict"], run.summary["methods"]
    assert verdict["robust_value"]["high"] < 0  # the gain that it has
    assert methods[0]["scores"]["accuracy"]["value"] == methods[1]["scores"]["accuracy"]["value"]
    assert (verdict["answer"], run.kept, run.models) == ("degenerate", "plain", ["plain"])
    assert "helped" not in verdict["headline"]
    assert "temperature chosen out of fold" in " ".join(verdict["sentences"])


def confident(n=2500, seed=0):
    """Two classes that overlap: the hard rows are hard for every model, so nobody is overlooked."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    y = rng.random(n) < 1 / (1 + np.exp(-2.5 * x[:, 0] - x[:, 1] ** 2 + 1))
    return {**{f"x{k}": x[:, k] for k in range(4)}, "y": np.where(y, "yes", "no")}


def test_a_gain_that_a_temperature_has_too_is_no_help():
    run = train(confident(), "y", methods=["worst-case"], budget=0.05, **QUICK)
    verdict = run.summary["verdict"]
    assert verdict["robust"] == "worst-case"
    assert verdict["robust_value"]["high"] < 0
    assert verdict["answer"] == "no difference"
    assert verdict["kept"] == "plain"
    assert "nothing that the plain model cannot have" in verdict["headline"]
    assert "temperature" in " ".join(verdict["sentences"])


def test_a_gain_that_other_thresholds_have_too_is_no_help():
    """Class weights answer the rare class more often; so does the plain model, if it is asked to."""
    run = train(rare(6000), "y", model="linear", methods=["class-weighted"], budget=0.5, **QUICK)
    verdict = run.summary["verdict"]
    assert verdict["worst_group"]["name"] == "y = Yes"
    assert verdict["worst_group"]["low"] > 0.2  # the gain that they have
    assert verdict["answer"] != "helps"
    assert "other thresholds" in " ".join(verdict["sentences"])


def test_a_fold_does_not_say_when_its_own_model_stops():
    """The others do: a model that is judged where it was best is judged too well."""
    problem, options = make_problem(spoilt(300), "y"), TrainOptions()
    learner = Learner(problem, options, np.arange(300), seed=0)
    best = iter([10, 20, 60])

    class Stopped:
        """Predicts the round at which it is told to stop."""

        @classmethod
        def fit(cls, learner, part, settings, held_out):
            made = cls()
            made.rounds = next(best)
            return made

        def stop_at(self, rounds):
            self.rounds = rounds

        def predict(self, X):
            return np.full((len(X), 2), self.rounds)

        scales = False

    learner.kind = Stopped
    found = learner.cross_fit({}, np.ones(300))
    assert found["rounds"].tolist() == [10, 20, 60]
    for (_, unseen), rounds in zip(learner.folds, [40, 35, 15], strict=True):
        assert (found["predicted"][unseen] == rounds).all()


def test_a_model_stops_where_it_is_told_and_at_its_last_round_at_most():
    learner = Learner(make_problem(spoilt(300), "y"), TrainOptions(), np.arange(300), seed=0)
    model = learner.fit_rows(learner.sample, np.ones(300), learner.candidates(1)[0], 30)
    model.stop_at(1)
    first = model.predict(np.zeros((1, 4)))
    model.stop_at(10**6)
    assert model.rounds == 30
    assert (model.predict(np.zeros((1, 4))) != first).any()


@pytest.mark.parametrize("model", ["trees", "linear"])
def test_every_model_is_saved_and_opened_as_it_was(tmp_path, model):
    frame = spoilt(300).with_columns(
        colour=pl.Series(np.random.default_rng(2).choice(["r", "g", None], 300))
    )
    run = train(frame, "y", model=model, candidates=1, seeds=1, out=tmp_path / "run")
    again = scdro.load(tmp_path / "run")
    assert again.summary == json.loads(json.dumps(run.summary))
    assert again.models == run.models
    for name in run.models:
        np.testing.assert_array_equal(
            again.predict_proba(frame, name), run.predict_proba(frame, name)
        )
    assert not list((tmp_path / "run").rglob("*.pkl"))


@pytest.mark.parametrize("model", ["trees", "linear"])
def test_regression(tmp_path, model):
    rng = np.random.default_rng(0)
    x, kind = rng.normal(size=500), rng.choice(["u", "v"], 500)
    wage = 1000 + 300 * x + 100 * (kind == "v") + 20 * rng.normal(size=500)
    frame = pl.DataFrame({"x": x, "kind": kind, "wage": wage})
    run = train(frame, "wage", model=model, candidates=1, seeds=1, out=tmp_path / "run")
    assert run.summary["task"]["type"] == "regression"
    assert mismatch(json.loads(json.dumps(run.summary)), Summary) is None
    assert run.summary["methods"][0]["scores"]["R2"]["value"] > 0.8
    error = np.abs(load(tmp_path / "run").predict(frame, "plain") - wage).mean()
    assert error < 150
    with pytest.raises(HyperparameterError):
        run.predict_proba(frame)


def test_many_classes_and_an_uneven_one():
    rng = np.random.default_rng(0)
    y = rng.choice(4, 600, p=[0.6, 0.2, 0.17, 0.03])
    frame = pl.DataFrame({"a": y + 0.3 * rng.normal(size=600), "b": rng.normal(size=600), "y": y})
    run = train(frame, "y", candidates=1, seeds=1)
    assert run.classes == [0, 1, 2, 3]
    assert (run.predict(frame) == y).mean() > 0.85


def test_an_audit_judges_every_row_out_of_fold():
    frame = spoilt(800)
    found = audit(frame, "y", model="linear", group=["few"], candidates=2)
    assert found.rows == 800
    assert {row.group.split(" = ")[0] for row in found.groups} == {"few"}
    assert (
        found.to_json() == audit(frame, "y", model="linear", group=["few"], candidates=2).to_json()
    )


def shortcut_birds(n=3000, seed=0):
    """Birds whose place is mostly that of their kind: the model goes by the place."""
    rng = np.random.default_rng(seed)
    bird = (rng.random(n) < 0.25).astype(int)
    place = np.where(rng.random(n) < 0.95, bird, 1 - bird)
    return {
        "bird": bird + rng.normal(size=n),
        "background": 3 * place + rng.normal(size=n) / 2,
        "place": np.array(["land", "water"])[place],
        "y": np.array(["landbird", "waterbird"])[bird],
    }


def test_an_audit_reports_groups_within_each_class_and_the_classes():
    """Over all of its birds, no place is far from the average: within the classes, the rare ones are."""
    found = audit(shortcut_birds(), "y", group=["place", "y"], model="linear", candidates=1)
    text = str(found)
    wrong = {
        name: float(share)
        for name, share in re.findall(r"(\S+ = .*): [\d,]+ rows, ([\d.]+)% wrong", text)
    }
    assert wrong["place = water within 'landbird'"] > 40
    assert wrong["place = land within 'waterbird'"] > 40
    assert wrong["place = water within 'waterbird'"] < 10
    assert wrong["place = land"] < 10
    assert wrong["y = waterbird"] > wrong["y = landbird"]
    assert "y = waterbird within" not in text
    assert not any("y = " in one.slice for one in found.findings)  # no model knows the answer


def test_an_audit_of_a_column_of_predictions_trains_nothing():
    rng = np.random.default_rng(0)
    p, place = rng.uniform(0.1, 0.6, 3000), rng.choice(["land", "water"], 3000, p=[0.9, 0.1])
    y = np.where(rng.random(3000) < p + 0.3 * (place == "water"), "yes", "no")
    frame = pl.DataFrame({"place": place, "y": y, "p": p, "q": 1 - p, "w": np.ones(3000)})
    one = audit(frame.drop("q"), "y", prediction=["p"], weight="w")
    both = audit(frame.drop("w"), "y", prediction=["q", "p"])
    for found in (one, both):
        first = found.findings[0]
        assert (first.kind, first.slice, first.label) == (
            "wrong probabilities",
            "place = water",
            "yes",
        )
    regression = audit(
        {"y": p * 10, "said": p * 10 + (place == "water"), "place": place}, "y", prediction=["said"]
    )
    assert next((found.kind, found.slice) for found in regression.findings) == (
        "bias",
        "place = water",
    )
    with pytest.raises(DataError, match="predictions"):
        audit(frame, "y", prediction=["pp"])


@pytest.mark.parametrize("in_a_file", [False, True])
def test_roles_of_an_audit_of_predictions(tmp_path, in_a_file):
    rng = np.random.default_rng(0)
    p, zone = rng.uniform(0.2, 0.8, 3000), rng.integers(0, 9, 3000)
    y = (rng.random(3000) < p + 0.2 * (zone == 4)).astype(int)
    frame = pl.DataFrame({"zone": zone, "y": y, "p": p, "name": ["x"] * 3000})
    data = frame
    if in_a_file:
        data = tmp_path / "scored.parquet"
        frame.write_parquet(data)
    found = audit(data, "y", prediction=["p"], categorical=["zone"])
    assert found.findings[0].slice == "zone = 4"
    typo = {"drop": ["zon"]}, {"categorical": ["zon"]}, {"group": ["zon"]}, {"weight": "zon"}
    for role in typo:
        with pytest.raises(DataError, match="'zone'"):
            audit(data, "y", prediction=["p"], **role)
    with pytest.raises(DataError, match="'x'"):
        audit(data, "y", prediction=["p"], weight="name")


# -- killed, and gone on
# ----------------------------------------------------------------------------------------------


class Stop(BaseException):
    pass


def without_times(summary):
    plain = {key: value for key, value in summary.items() if key not in ("seconds", "created")}
    return plain | {"methods": [{**method, "seconds": 0} for method in summary["methods"]]}


@pytest.mark.parametrize("after", [1, 4, 7])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch, after):
    frame, settings = spoilt(300), {"candidates": 2, "seeds": 1, "group": ["few"]}
    whole = train(frame, "y", **settings)

    def stop(done, total, text):
        if done > after:
            raise Stop

    with pytest.raises(Stop):
        train(frame, "y", out=tmp_path / "run", progress=stop, **settings)
    fitted, save = [], np.savez
    monkeypatch.setattr(np, "savez", lambda *a, **b: fitted.append(a) or save(*a, **b))
    run = train(frame, "y", out=tmp_path / "run", **settings)
    assert without_times(run.summary) == without_times(whole.summary)
    np.testing.assert_array_equal(run.predict_proba(frame), whole.predict_proba(frame))
    assert len(fitted) == 8 - after  # four methods with two candidates each
    assert not (tmp_path / "run" / "fits").exists()
    again = train(frame, "y", out=tmp_path / "run", **settings)  # complete: nothing to do
    assert len(fitted) == 8 - after
    assert again.summary == json.loads(json.dumps(run.summary))


def test_a_damaged_fit_is_computed_again(tmp_path):
    frame = spoilt(300)

    def stop(done, total, text):
        if done > 3:
            raise Stop

    with pytest.raises(Stop):
        train(frame, "y", model="linear", out=tmp_path / "run", progress=stop, **QUICK)
    stored = list((tmp_path / "run" / "fits").glob("*.npz"))
    assert stored
    for path in stored:
        path.write_bytes(path.read_bytes()[:100])
    run = train(frame, "y", model="linear", out=tmp_path / "run", **QUICK)
    assert without_times(run.summary) == without_times(
        train(frame, "y", model="linear", **QUICK).summary
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "random"}, {"methods": ["magic"]}, {"rho": -1.0}, {"rho": float("nan")}, {"budget": 2.0},
        {"candidates": 0}, {"folds": 1}, {"seeds": 10**9}, {"seed": -1}, {"seed": 2**70}, {"threads": 10**9},
        {"candidates": True}, {"target": "noise", "methods": ["class-weighted"]},
    ],
)  # fmt: skip
def test_bad_settings_are_refused_before_any_fit(settings):
    with pytest.raises((HyperparameterError, TypeError)):
        train(spoilt(100), progress=lambda *_: pytest.fail("a fit"), **{"target": "y", **settings})


# -- many rows
# --------------------------------------------------------------------------------------------------------


@pytest.fixture
def few_are_many(monkeypatch):
    """A table of 300 rows has many."""
    monkeypatch.setattr(_models, "MANY_ROWS", 300)
    monkeypatch.setattr(_models, "ROWS_FOR_SETTINGS", 240)


@pytest.mark.parametrize("target", ["y", "rule"])
def test_settings_of_many_rows_are_chosen_on_a_sample(few_are_many, target):
    """Chosen on a sample with one seed, trained on all rows, and said so."""
    run = train(spoilt(1000), target, model="linear", candidates=2, seeds=3)
    assert run.summary["settings"]["seeds"] == 1
    assert run.summary["data"]["chosen_on"] == 240
    notes = " ".join(run.summary["warnings"])
    assert "240 of 800" in notes
    assert "one seed" in notes


def split_of(data, target, **options):
    """One split, with its methods tried."""
    asked = TrainOptions(**{"model": "linear", "budget": 0.01, **options})
    split = SplitStudy(
        make_problem(data, target, asked), asked, None, Fits(None), StudyLog(None, (), 9), 0
    )
    split.run()
    return split


def test_final_models_of_many_rows_are_trained_on_all(few_are_many):
    split = split_of(spoilt(1000), "y", methods=["plain"], candidates=1)
    best, learner = split.methods["plain"].best, split.learner
    whole = learner.fit_rows(split.train, np.ones(800), best.settings, best.rounds)
    part = learner.fit_rows(split.sample, np.ones(240), best.settings, best.rounds)
    assert (len(split.train), len(split.sample)) == (800, 240)
    np.testing.assert_array_equal(split.on_test("plain"), whole.predict(learner.X[split.test]))
    assert (split.on_test("plain") != part.predict(learner.X[split.test])).any()


def test_what_is_said_about_rows_outside_the_sample_is_unseen(few_are_many):
    """A second look at many rows: the weights of all come from models that saw none of them."""
    split = split_of(spoilt(1000), "y", methods=["plain", "second-look"], candidates=1)
    best, learner = split.methods["plain"].best, split.learner
    reference = split.reference(split.train)
    inside = np.searchsorted(split.train, split.sample)
    np.testing.assert_array_equal(reference[inside], best.predicted)
    of_sample = learner.fit_rows(split.sample, np.ones(240), best.settings, best.rounds)
    others = np.setdiff1d(np.arange(800), inside)
    np.testing.assert_array_equal(
        reference[others], of_sample.predict(learner.X[split.train[others]])
    )


def test_an_id_may_have_any_name():
    data = spoilt(200).with_columns(pl.int_range(pl.len()).alias("row"), pl.lit("a").alias("p(no)"))
    run = train(data, "y", model="linear", ids=["row", "p(no)"], candidates=1, seeds=1)
    found = run.predictions(data)
    assert found.columns == ["row", "row_", "p(no)", "prediction", "p(no)_", "p(yes)"]
    assert found["row_"].to_list() == data["row"].to_list()


def test_a_test_target_that_never_varies_has_a_score():
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    run = train(
        {"x": x, "y": x + rng.normal(size=300)},
        "y",
        test={"x": x[:50], "y": [1.0] * 50},
        model="linear",
        **QUICK,
    )
    assert abs(run.summary["methods"][0]["scores"]["R2"]["value"]) < 10


def test_numbers_that_cannot_be_scaled_are_named():
    data = spoilt(200).with_columns(pl.col("noise") * 1e300)
    with pytest.raises(DataError, match="'noise'"):
        train(data, "y", model="linear", **QUICK)


@pytest.mark.parametrize("model", ["trees", "linear"])
def test_a_class_of_one_patient_cannot_be_learnt(model):
    data = spoilt(300).with_columns((pl.int_range(pl.len()) // 50).alias("patient"))
    data = data.with_columns(
        pl.when(pl.col("patient") == 0).then(pl.lit("yes")).otherwise(pl.lit("no")).alias("y")
    )
    with pytest.raises(DataError, match="'patient'"):
        train(data, "y", model=model, split_by="patient", **QUICK)


def test_plain_training_alone_says_each_thing_once():
    verdict = train(spoilt(200), "y", model="linear", methods=["plain"], **QUICK).summary["verdict"]
    assert verdict["headline"] not in verdict["sentences"]


def test_slices_of_a_regression_have_errors_in_its_own_unit():
    rng = np.random.default_rng(0)
    place, x = rng.choice(["near", "far"], 600, p=[0.85, 0.15]), rng.normal(size=600)
    wage = 1000 + 100 * x + np.where(place == "far", 400, 20) * rng.choice([-1, 1], 600)
    table = {"x": x, "place": place, "wage": wage}
    run = train(table, "wage", model="linear", methods=["second-look"], group=["place"], **QUICK)
    one = run.summary["slices"][0]
    assert one["conditions"] == ["place = far"]
    assert 300 < one["before"] < 500
    assert 300 < one["after"] < 500
    assert "mean error" in one["sentence"]
    failed = run.summary["verdict"]["sentences"][0]
    assert f"{one['before']:.4g} there" in failed
    assert "class" not in run.summary["data"]["split"]["text"]


def test_a_printed_run_cannot_steer_a_terminal():
    frame = spoilt(200).with_columns(
        y=pl.col("y").replace_strict({"yes": "\x1b[31mred", "no": "\u202eback"})
    )
    assert str(train(frame, "y", model="linear", **QUICK)).isprintable()


@pytest.mark.parametrize(
    ("classes", "there", "of_group", "overall", "first"),
    [
        (
            ["no", "yes"],
            0.8,
            0.02,
            0.6,
            "rare",
        ),  # stands out within its class, but a whole class is served worse
        (["no", "yes"], 0.4, 0.5, 0.6, "odd"),
        (["no", "yes"], 0.8, 0.7, 0.75, "rare"),
        ([], 30_000.0, 20_000.0, 10_000.0, "odd"),
        ([], 15_000.0, 20_000.0, 10_000.0, "rare"),
    ],
)
def test_who_is_failed_is_who_is_served_worst(classes, there, of_group, overall, first):
    words = VerdictWords(classes, 0.5, None)
    group = {
        "name": "y = rare",
        "kind": "class",
        "size": 60,
        "small": False,
        "scores": {"plain": {"value": of_group}},
    }
    tiny = {
        "name": "tiny",
        "kind": "group",
        "size": 2,
        "small": True,
        "scores": {"plain": {"value": 0.0 if classes else 1e9}},
    }
    one = {"conditions": ["sign = odd"], "share": 0.1, "lift": 3.0, "before": there}
    said = words.write_worst_place([one], [group, tiny], overall)
    assert said.index(first) == min(said.find(name) for name in ("rare", "odd") if name in said)
    assert "tiny" not in said
    assert "e+" not in said  # 20,000 and not 2e+04
    assert "odd" not in words.write_worst_place([], [group], overall)
    assert "rare" in words.write_worst_place([], [group], overall)


def test_rows_of_a_class_are_compared_with_their_class():
    """40% right where 78.1% are overall: their class has 60%."""
    words = VerdictWords(["no", "yes"], 0.5, None)
    groups = [
        {"name": f"y = {name}", "kind": "class", "size": 60, "small": False, "scores": {"plain": {"value": value}}}
        for name, value in (("yes", 0.6), ("no", 0.956))
    ]  # fmt: skip
    one = {"conditions": ["sign = odd", "y = yes"], "share": 0.1, "lift": 3.0, "before": 0.4}
    said = words.write_worst_place(
        [one], [{**groups[0], "name": "g = 1", "kind": "group"}, *groups], 0.781
    )
    assert "40.0% right there, 78.1% right overall, 60.0% right for y = yes" in said
    assert "odd" not in words.write_worst_place([{**one, "before": 0.911}], groups, 0.781)


def test_what_gained_is_told_and_a_rising_loss_is_not():
    """Class weights take the rare class from a third to most of it, and the worst 5% of losses rise."""
    rng = np.random.default_rng(0)
    y = rng.random(6000) < 0.1
    shown = (
        rng.random(6000) < 0.5
    )  # half of the rare rows are told apart by one column, for all by another
    table = {"a": np.where(y & shown, 3.0, 0.0) + 0.5 * rng.normal(size=6000),
             "b": 0.9 * y + rng.normal(size=6000), "y": np.where(y, "yes", "no")}  # fmt: skip
    run = train(table, "y", model="linear", methods=["class-weighted"], budget=0.5, **QUICK)
    verdict = run.summary["verdict"]
    group = verdict["worst_group"]
    assert group["name"] == "y = yes"
    assert group["low"] > 0.1
    assert f"from {100 * group['before']:.1f}% right to {100 * group['after']:.1f}%" in " ".join(
        verdict["sentences"]
    )
    assert f"to {verdict['tail']['after']:.3g}" not in verdict["headline"]
    assert len(verdict["sentences"]) <= 5


def test_a_collapsed_candidate_is_not_chosen():
    """One answer for everybody has the lowest worst-case loss of all candidates, and is passed over."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 3))
    y = rng.random(1500) < 1 / (1 + np.exp(-1.2 * x[:, 0] + 1.0))
    table = {**{f"x{k}": x[:, k] for k in range(3)}, "y": np.where(y, "yes", "no")}
    run = train(
        table, "y", model="linear", methods=["worst-case"], candidates=6, seeds=1, budget=1.0
    )
    method = run.summary["methods"][1]
    values = [one["out_of_fold"]["robust_value"] for one in method["candidates"]]
    scores = [one["out_of_fold"]["score"] for one in method["candidates"]]
    chosen = next(k for k, one in enumerate(method["candidates"]) if one["chosen"])
    largest = max(method["candidates"], key=lambda one: one["settings"]["rho"])
    assert largest["out_of_fold"]["robust_value"] == min(values)
    assert not largest["chosen"]
    assert scores[chosen] > max(y.mean(), 1 - y.mean())


# -- intervals


@pytest.mark.parametrize("of", ["worst case", "tail"])
def test_intervals_without_a_bootstrap_are_those_of_one(of):
    rng = np.random.default_rng(0)
    before = rng.exponential(size=4000)
    after = 0.9 * before + 0.3 * rng.exponential(size=4000)
    if of == "tail":
        found = _verdict.change_of_tail(before, after)

        def statistic(losses):
            return np.sort(losses)[-len(losses) // 20 :].mean()
    else:
        found = _verdict.change_of_worst_case(before, after, 0.5)

        def statistic(losses):
            return float(scdro.worst_case(losses, 0.5).value)

    assert found["difference"] == pytest.approx(statistic(after) - statistic(before))
    drawn = scipy.stats.bootstrap(
        (before, after), lambda a, b: statistic(b) - statistic(a), paired=True, vectorized=False,
        n_resamples=300, method="percentile", rng=rng,
    ).confidence_interval  # fmt: skip
    width = drawn.high - drawn.low
    assert abs(found["low"] - drawn.low) < 0.15 * width
    assert abs(found["high"] - drawn.high) < 0.15 * width


def test_intervals_of_accuracies_are_shares():
    """Rows that several seeds tested have a mean of right answers; nearly none right is still no negative share."""
    found = _verdict.estimate(np.array([1 / 3, *[0.0] * 50]), share=True)
    assert 0 <= found["low"] <= found["value"] <= found["high"] <= 1


def test_a_run_killed_while_it_is_saved_keeps_its_fits(tmp_path, monkeypatch):
    def killed(*args, **kwargs):
        raise Stop

    folder, settings = tmp_path / "run", {"model": "linear", "methods": ["plain"], **QUICK}
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", killed)
        with pytest.raises(Stop):
            train(spoilt(200), "y", out=folder, **settings)
    assert list((folder / "fits").glob("*.npz"))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(Stop):
            train(spoilt(200), "y", out=folder, **settings)
    assert not any(
        "fits" in name for name in json.loads((folder / "manifest.json").read_text())["files"]
    )
    assert train(spoilt(200), "y", out=folder, **settings).models == ["plain"]
    assert not (folder / "fits").exists()


def test_a_run_shows_itself_in_a_notebook():
    frame = spoilt(200)
    frame = frame.rename({name: f"<b>{name}" for name in frame.columns})
    run = train(frame, "<b>y", model="linear", methods=["plain"], candidates=1, seeds=1)
    html = run._repr_html_()
    assert run.summary["verdict"]["answer"] in html
    assert "&lt;b&gt;" in html
    assert not any(name in html for name in frame.columns)
