"""Training on tables, from rows to a run: what is chosen, kept, refused, and the same after a kill."""

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import scdro
from scdro.errors import DataError, HyperparameterError
from scdro.tables import Run, _folder, _split_study, _verdict, audit, load, train
from scdro.tables._summary import Summary, mismatch


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
    for curve in summary["curves"]:
        assert sum(point["chosen"] for point in curve["points"]) == 1
        assert len(curve["points"]) <= summary["settings"]["candidates"]
    assert 0.0 in [point["rho"] for curve in summary["curves"] for point in curve["points"]]


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
    right = {name: (linear.predict(new, name) == new["y"].to_numpy())[few].mean() for name in ("plain", "robust")}
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
    frame = spoilt(600).with_columns(few=pl.when(pl.int_range(600) < 8).then(pl.lit("tiny")).otherwise(pl.lit("all")))
    run = train(frame, "y", model="linear", group=["few"], **QUICK)
    tiny = [group for group in run.summary["groups"] if group["name"] == "few = tiny"]
    assert all(group["small"] for group in tiny)
    assert run.summary["verdict"]["worst_group"]["name"] != "few = tiny"
    assert "tiny" not in " ".join([run.summary["verdict"]["headline"], *run.summary["verdict"]["sentences"]])
    assert not run.summary["groups"][0]["small"]


def test_groups_and_ids_never_reach_the_model():
    frame = spoilt(400)
    other = frame.with_columns(few=pl.Series(np.random.default_rng(1).permutation(frame["few"].to_numpy())))
    first, second = (train(f, "y", model="linear", group=["few"], **QUICK) for f in (frame, other))
    np.testing.assert_array_equal(first.predict_proba(frame), second.predict_proba(frame))
    assert first.summary["groups"] != second.summary["groups"]


def test_where_nobody_is_failed_the_plain_model_is_kept_and_it_says_so():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    frame = pl.DataFrame({"x": x, "y": np.where(rng.random(400) < 1 / (1 + np.exp(-2 * x)), "a", "b")})
    run = train(frame, "y", model="linear", **QUICK)
    assert run.kept == "plain"
    assert run.summary["verdict"]["answer"] in ("no difference", "degenerate", "costs too much")
    assert "plain model is kept" in run.summary["verdict"]["headline"]


def test_a_model_that_says_one_half_to_everybody_is_never_kept(monkeypatch):
    """As the old command did on credit default: the robust model is flat, whatever its robust value."""
    from scdro.tables import _models

    fit = _models.Linear.fit

    class Flat(_models.LinearModel):
        def predict(self, X):
            return np.full((len(X), 2), 0.5) + 1e-4 * np.arange(len(X))[:, None] * [[1, -1]] / len(X)

    def flat(self, columns, part, held_out, settings, classes, seed):
        found = fit(self, columns, part, held_out, settings, classes, seed)
        return Flat(found.pipeline, classes) if settings.get("rho") else found

    monkeypatch.setattr(_models.Linear, "fit", flat)
    run = train(spoilt(600, share=0.3), "y", model="linear", methods=["worst-case"], budget=1.0, **QUICK)
    assert run.summary["verdict"]["answer"] == "degenerate"
    assert run.models == ["plain"]
    assert run.kept == "plain"


def test_a_table_of_45_rows_is_learned():
    """LightGBM's own least leaf of 20 rows would split none of them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=45)
    run = train({"x": x, "z": rng.choice(["a", "b"], 45), "y": np.where(x > 0, "yes", "no")}, "y", **QUICK)
    assert (run.predict({"x": [-1.0, 1.0], "z": ["a", "b"]}) == ["no", "yes"]).all()


@pytest.mark.parametrize("methods", [["plain"], ["worst-case"]])
@pytest.mark.parametrize("target", ["y", "amount"])
def test_where_nothing_is_learned_no_model_is_saved(tmp_path, methods, target):
    amount = np.arange(120) // 2 * np.where(np.arange(120) % 4 < 2, 1.0, -1.0)
    frame = pl.DataFrame({"x": [0.0, 1.0] * 60, "y": ["no", "no", "yes", "yes"] * 30, "amount": amount})
    other, settings = ({"y", "amount"} - {target}).pop(), {"model": "linear", "methods": methods, "test": frame}
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


@pytest.mark.parametrize("model", ["trees", "network"])
def test_a_fold_does_not_say_when_its_own_model_stops(monkeypatch, model):
    """The others do: a model that is judged where it was best is judged too well."""
    from scdro.tables import _models, _network

    frame, stopped = spoilt(300), []
    kind = {"trees": _models.TreesModel, "network": _network.NetworkModel}[model]
    stop_at = kind.stop_at
    monkeypatch.setattr(kind, "stop_at", lambda self, rounds: (stopped.append((self, rounds)), stop_at(self, rounds)))
    found = []
    cross_fit = _split_study.SplitStudy._cross_fit
    monkeypatch.setattr(_split_study.SplitStudy, "_cross_fit", lambda *a: found.append(cross_fit(*a)) or found[-1])
    train(frame, "y", model=model, methods=["plain"], candidates=1, seeds=1)
    (one,) = found
    assert len(set(one["rounds"])) > 1
    for (_, rounds), fold in zip(stopped[-3:], range(3), strict=True):
        assert rounds == np.ceil(np.delete(one["rounds"], fold).mean())
    model = stopped[-1][0]
    model.stop_at(1)
    first = model.predict(np.zeros((1, 4)))
    model.stop_at(10**6)
    assert model.rounds < 10**6
    assert (model.predict(np.zeros((1, 4))) != first).any()


@pytest.mark.parametrize("model", ["trees", "linear", "network"])
def test_every_model_is_saved_and_opened_as_it_was(tmp_path, model):
    frame = spoilt(300).with_columns(colour=pl.Series(np.random.default_rng(2).choice(["r", "g", None], 300)))
    run = train(frame, "y", model=model, candidates=1, seeds=1, out=tmp_path / "run")
    again = scdro.load(tmp_path / "run")
    assert again.summary == json.loads(json.dumps(run.summary))
    assert again.models == run.models
    for name in run.models:
        np.testing.assert_array_equal(again.predict_proba(frame, name), run.predict_proba(frame, name))
    assert not list((tmp_path / "run").rglob("*.pkl"))


@pytest.mark.parametrize("model", ["trees", "linear", "network"])
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
    assert run.classes == ["0", "1", "2", "3"]
    assert (run.predict(frame) == np.array(run.classes)[y]).mean() > 0.85


def test_an_audit_judges_every_row_and_keeps_no_model():
    run = audit(spoilt(800), "y", model="linear", group=["few"], candidates=3)
    summary = json.loads(json.dumps(run.summary))
    assert mismatch(summary, Summary) is None
    assert summary["data"]["test"] == 800
    assert run.models == []
    radii = [p["rho"] for curve in summary["curves"] if curve["method"] == "second-look" for p in curve["points"]]
    assert radii == ["half", "half", 0.2]
    with pytest.raises(HyperparameterError):
        run.predict(spoilt(10))


# -- killed, and gone on ----------------------------------------------------------------------------------------------


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
    fitted = []
    get = _folder.Fits.get

    def counted(self, what, compute):
        return get(self, what, lambda: fitted.append(what) or compute())

    monkeypatch.setattr(_folder.Fits, "get", counted)
    run = train(frame, "y", out=tmp_path / "run", **settings)
    assert without_times(run.summary) == without_times(whole.summary)
    np.testing.assert_array_equal(run.predict_proba(frame), whole.predict_proba(frame))
    assert len(fitted) == 9 - after  # four methods with two candidates each, and the verdict
    assert not (tmp_path / "run" / "fits").exists()
    again = train(frame, "y", out=tmp_path / "run", **settings)  # complete: nothing to do
    assert len(fitted) == 9 - after
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
    assert without_times(run.summary) == without_times(train(frame, "y", model="linear", **QUICK).summary)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "random"}, {"methods": ["magic"]}, {"rho": -1.0}, {"rho": float("nan")}, {"budget": 2.0},
        {"candidates": 0}, {"folds": 1}, {"seeds": 10**9}, {"seed": -1}, {"seed": 2**70}, {"threads": 10**9},
        {"least_group": 0}, {"candidates": True}, {"target": "noise", "methods": ["class-weighted"]},
    ],
)  # fmt: skip
def test_bad_settings_are_refused_before_any_fit(settings, monkeypatch):
    monkeypatch.setattr(_folder.Fits, "get", lambda *_: pytest.fail("a fit"))
    with pytest.raises((HyperparameterError, TypeError)):
        train(spoilt(100), **{"target": "y", **settings})


# -- many rows --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["y", "rule"])
def test_settings_of_many_rows_are_chosen_on_a_sample(monkeypatch, target):
    """Chosen on a sample with one seed, trained on all rows, and said so."""
    from scdro.tables import _models

    monkeypatch.setattr(_split_study, "MANY_ROWS", 300)
    monkeypatch.setattr(_split_study, "SAMPLE", 200)
    sizes, fit = [], _models.Linear.fit

    def counted(self, columns, part, *others):
        sizes.append(len(part.y))
        assert np.isfinite(part.weight).all()
        assert part.weight.sum() == pytest.approx(len(part.y), rel=0.3)
        return fit(self, columns, part, *others)

    monkeypatch.setattr(_models.Linear, "fit", counted)
    run = train(spoilt(1000), target, model="linear", candidates=2, seeds=3)
    assert run.summary["settings"]["seeds"] == 1
    assert run.summary["data"]["chosen_on"] == 200
    notes = " ".join(run.summary["warnings"])
    assert "200 of 800" in notes
    assert "one seed" in notes
    methods = len(run.summary["methods"])
    assert sizes.count(800) == methods  # the final ones
    assert max(size for size in sizes if size != 800) == 200


def test_what_is_said_about_rows_outside_the_sample_is_unseen(monkeypatch):
    """A second look at many rows: the weights of all come from models that saw none of them."""
    monkeypatch.setattr(_split_study, "MANY_ROWS", 300)
    monkeypatch.setattr(_split_study, "SAMPLE", 240)
    seen = []
    weights = _split_study.SplitStudy._second_look_weights

    def noted(self, reference, y, settings):
        found = weights(self, reference, y, settings)
        seen.append((self, reference, found))
        return found

    monkeypatch.setattr(_split_study.SplitStudy, "_second_look_weights", noted)
    train(spoilt(1000), "y", model="linear", methods=["second-look"], candidates=1, seeds=1)
    study, reference, found = next(one for one in seen if len(one[1]) == 800)
    inside = np.searchsorted(study.cut.train, study.sample)
    np.testing.assert_array_equal(reference[inside], study.methods["plain"].best.predicted)
    few = (spoilt(1000)["few"] == "few").to_numpy()[study.cut.train]
    assert found[few].mean() > 2 * found[~few].mean()


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
        {"x": x, "y": x + rng.normal(size=300)}, "y", test={"x": x[:50], "y": [1.0] * 50}, model="linear", **QUICK
    )
    assert abs(run.summary["methods"][0]["scores"]["R2"]["value"]) < 10


def test_numbers_that_cannot_be_scaled_are_named():
    data = spoilt(200).with_columns(pl.col("noise") * 1e300)
    with pytest.raises(DataError, match="'noise'"):
        train(data, "y", model="linear", **QUICK)


@pytest.mark.parametrize("model", ["trees", "linear"])
def test_a_class_of_one_patient_cannot_be_learnt(model):
    data = spoilt(300).with_columns((pl.int_range(pl.len()) // 50).alias("patient"))
    data = data.with_columns(pl.when(pl.col("patient") == 0).then(pl.lit("yes")).otherwise(pl.lit("no")).alias("y"))
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
    frame = spoilt(200).with_columns(y=pl.col("y").replace_strict({"yes": "\x1b[31mred", "no": "\u202eback"}))
    assert str(train(frame, "y", model="linear", **QUICK)).isprintable()


def test_where_every_radius_costs_too_much_the_verdict_says_so(tmp_path, monkeypatch):
    """The best of the radii is then 0, plain training itself: there is nothing to compare it with."""
    monkeypatch.setattr(
        _split_study.SplitStudy, "_within_budget", lambda self, m: m == self.methods["plain"].best.measures
    )
    run = train(spoilt(400), "y", model="linear", methods=["worst-case"], out=tmp_path / "run", **QUICK)
    verdict = run.summary["verdict"]
    assert (verdict["answer"], verdict["kept"], verdict["robust"]) == ("costs too much", "plain", None)
    assert run.models == ["plain"]  # not twice the same one
    rho, given_up = run.summary["curves"][1]["points"]
    assert rho["chosen"]
    said = " ".join(verdict["sentences"])
    assert f"{rho['robust_value']:.3f} to {given_up['robust_value']:.3f}" in said
    assert "costs too much" in load(tmp_path / "run").report()


@pytest.mark.parametrize(
    ("classes", "there", "of_group", "overall", "first"),
    [
        (["no", "yes"], 0.8, 0.02, 0.6, "rare"),  # stands out within its class, but a whole class is served worse
        (["no", "yes"], 0.4, 0.5, 0.6, "odd"),
        (["no", "yes"], 0.8, 0.7, 0.75, "rare"),
        ([], 30_000.0, 20_000.0, 10_000.0, "odd"),
        ([], 15_000.0, 20_000.0, 10_000.0, "rare"),
    ],
)
def test_who_is_failed_is_who_is_served_worst(classes, there, of_group, overall, first):
    words = _verdict._Words(SimpleNamespace(classes=classes), SimpleNamespace(audit=False))
    group = {"name": "y = rare", "size": 60, "small": False, "scores": {"plain": {"value": of_group}}}
    tiny = {"name": "tiny", "size": 2, "small": True, "scores": {"plain": {"value": 0.0 if classes else 1e9}}}
    one = {"conditions": ["sign = odd"], "share": 0.1, "lift": 3.0, "before": there}
    said = words.failed([one], [group, tiny], overall)
    assert said.index(first) == min(said.find(name) for name in ("rare", "odd") if name in said)
    assert "tiny" not in said
    assert "e+" not in said  # 20,000 and not 2e+04
    assert "odd" not in words.failed([], [group], overall)
    assert "rare" in words.failed([], [group], overall)


def test_one_answer_for_everybody_is_not_the_same_probability():
    words = _verdict._Words(SimpleNamespace(classes=["alive", "dead"]), SimpleNamespace(audit=False))
    assert "alive" in words.same_answer(SimpleNamespace(flat=False, one_answer=0))
    assert "the same" in words.same_answer(SimpleNamespace(flat=True, one_answer=0))


def test_intervals_of_accuracies_are_shares():
    """Rows that several seeds tested have a mean of right answers; nearly none right is still no negative share."""
    found = _verdict._estimate(np.array([1 / 3, *[0.0] * 50]), share=True)
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
        patch.setattr(_folder.Fits, "clear", killed)
        with pytest.raises(Stop):
            train(spoilt(200), "y", out=folder, **settings)
    assert not any("fits" in name for name in json.loads((folder / "manifest.json").read_text())["files"])
    assert train(spoilt(200), "y", out=folder, **settings).models == ["plain"]
    assert not (folder / "fits").exists()
