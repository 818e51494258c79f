"""SecondLook: scikit-learn to the letter, and what it does to hidden groups and to wrong labels."""

import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
import torch
from sklearn.base import clone, is_regressor
from sklearn.datasets import load_breast_cancer, make_classification, make_regression
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    LeaveOneGroupOut,
    RepeatedStratifiedKFold,
    ShuffleSplit,
    StratifiedGroupKFold,
    StratifiedKFold,
    TimeSeriesSplit,
    cross_val_score,
)
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

import scdro
from scdro.errors import DataError, HyperparameterError, ScdroWarning
from scdro.second_look import SecondLook

COUNTS_SAMPLES = (
    "folds and effective sizes count samples, so two copies are more than a weight of two"
)


def expected_failures(estimator):
    """The check's classes are too small for a second look, so that classifiers pass it."""
    checks = [
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
    ]
    return dict.fromkeys(checks, COUNTS_SAMPLES) if is_regressor(estimator) else {}


@pytest.mark.filterwarnings("ignore::scdro.errors.ScdroWarning")
@parametrize_with_checks(
    [
        SecondLook(LogisticRegression(), cv=2, repeats=1, grid=None, random_state=0),
        SecondLook(Ridge(), cv=2, repeats=1, random_state=0),
    ],
    expected_failed_checks=expected_failures,
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def hidden_group(n=600, seed=0, noise=0.25):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    shortcut = np.where(rng.random(n) < 0.95, y, 1 - y)
    X = np.c_[shortcut + 0.1 * rng.normal(size=n), y + noise * rng.normal(size=n)]
    return X, y, shortcut != y


@pytest.fixture(scope="module")
def looked():
    X, y, _ = hidden_group()
    return SecondLook(LogisticRegression(), random_state=0).fit(X, y)


def test_the_group_that_was_overlooked_is_served(looked):
    X, y, few = hidden_group(seed=1, n=3000)
    assert looked.verdict_.helps
    assert looked.score(X[few], y[few]) > looked.plain_.score(X[few], y[few]) + 0.2
    assert looked.score(X, y) > 0.9


def test_what_is_fitted(looked):
    X, y, few = hidden_group()
    assert looked.weights_.mean() == pytest.approx(1)
    assert looked.weights_[few].mean() > 4 * looked.weights_[~few].mean()
    assert ((looked.reference_proba_ >= 0) & (looked.reference_proba_ <= 1)).all()
    again = LogisticRegression(C=looked.verdict_.chosen["C"]).fit(
        X, y, sample_weight=looked.weights_
    )
    assert looked.estimator_.coef_ == pytest.approx(again.coef_)
    assert looked.n_features_in_ == 2
    assert looked.predict_proba(X).shape == (600, 2)
    assert "A second look helps." in str(looked.verdict_)
    assert looked.verdict_.gain == pytest.approx(
        looked.verdict_.hard_after - looked.verdict_.hard_before
    )


def test_the_same_seed_gives_the_same_bits(looked):
    X, y, _ = hidden_group()
    again = SecondLook(LogisticRegression(), random_state=0).fit(X, y)
    assert np.array_equal(again.weights_, looked.weights_)
    assert np.array_equal(again.estimator_.coef_, looked.estimator_.coef_)


def breast_cancer(flipped, seed=0):
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(seed)
    y = np.where(rng.random(len(y)) < flipped, 1 - y, y)
    return StandardScaler().fit_transform(X), y


def test_labels_that_look_wrong_are_listed():
    X, y = breast_cancer(0.1)
    wrong = y != load_breast_cancer(return_X_y=True)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verdict = SecondLook(LogisticRegression(), grid=None, random_state=0).fit(X, y).verdict_
    assert verdict.answer == "looks like wrong labels"
    assert 10 <= len(verdict.suspects) <= 20
    assert wrong[list(verdict.suspects)].mean() > 0.8  # of 10% in all
    assert f"samples {verdict.suspects[0]}, {verdict.suspects[1]}" in str(verdict)


@pytest.mark.parametrize("flipped", [0.0, 0.1, 0.2])
def test_wrong_labels_and_easy_data_get_no(flipped):
    X, y = breast_cancer(flipped)
    look = SecondLook(LogisticRegression(), random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        look.fit(X, y)
    assert not look.verdict_.helps
    if look.verdict_.used in ("class weights", "threshold"):
        assert look.estimator_ is not look.plain_
    else:
        assert look.estimator_ is look.plain_
        assert any(
            "plain model is kept" in str(w.message) for w in caught if w.category is ScdroWarning
        )


def test_not_refused():
    X, y = breast_cancer(0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScdroWarning)
        look = SecondLook(LogisticRegression(), random_state=0, refuse=False).fit(X, y)
    assert look.estimator_ is not look.plain_
    assert not look.verdict_.helps


def test_whatever_is_not_the_plain_model_is_announced_with_its_price():
    """Class weights took twelve points of accuracy without a word."""
    X, y = unequal()
    with pytest.warns(ScdroWarning, match="other thresholds are used") as caught:
        look = SecondLook(LogisticRegression(), random_state=0).fit(X, y)
    verdict = look.verdict_
    assert verdict.used == "threshold"
    assert f"from {100 * verdict.before:.1f}% to {100 * verdict.after:.1f}%" in str(
        caught[0].message
    )
    assert caught[0].filename == __file__
    X, y, _ = hidden_group()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        free = SecondLook(LogisticRegression(), random_state=0).fit(X, y)
        dear = SecondLook(LogisticRegression(), random_state=0, grid={"C": [1e-4]}).fit(X, y)
    assert free.verdict_.used == dear.verdict_.used == "second fit"
    said = [str(w.message) for w in caught]
    for look in (free, dear):
        price = f"from {100 * look.verdict_.before:.1f}% to {100 * look.verdict_.after:.1f}%"
        assert any("second fit is used" in one and price in one for one in said) == (
            look.verdict_.costs > 0
        )


def test_no_second_fit_within_the_budget_is_the_answer_too():
    X, y, _ = hidden_group()
    with pytest.warns(ScdroWarning, match="kept: over budget"):
        look = SecondLook(LogisticRegression(), random_state=0, budget=0.0, grid={"C": [1e-9]}).fit(
            X, y
        )
    assert look.verdict_.answer == "over budget"
    assert str(look.verdict_).startswith("No second fit stays within the budget")


def test_one_label_per_sample_is_all_it_claims():
    tags = get_tags(SecondLook(DecisionTreeClassifier()))
    assert get_tags(DecisionTreeClassifier()).classifier_tags.multi_label
    assert not tags.classifier_tags.multi_label
    assert not tags.target_tags.multi_output


def test_another_threshold_suffices():
    """What class weights gain here, a moved threshold gains too."""
    X, y = unequal()
    look = SecondLook(LogisticRegression(), random_state=0).fit(X, y)
    assert look.verdict_.answer == "another threshold suffices"
    assert look.verdict_.after == pytest.approx(look.score(X, y), abs=0.02)  # of the model in use
    low = np.where(X.sum(1) < 1.7, "yes", "no")
    one = next(
        one
        for one in look.find_slices({"low": low})
        if one.conditions == ("low = yes", "label = 1")
    )
    rows = (low == "yes") & (y == 1)
    assert one.after == pytest.approx(look._scores_of["threshold"][rows].mean(), abs=0.02)
    # the same model, but for one number
    shift = look.decision_function(X) - look.plain_.decision_function(X)
    assert np.ptp(shift) < 1e-6
    assert shift[0] > 0.5
    balanced = LogisticRegression(class_weight="balanced").fit(X, y)
    worst = [min((m.predict(X) == y)[y == k].mean() for k in (0, 1)) for m in (look, balanced)]
    assert worst[0] > worst[1] - 0.02


def three_colours(seed, n=1500):
    """A colour agrees with the class in 97%; without it, the class is seen less well."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n)
    colour = np.where(rng.random(n) < 0.96, y, rng.integers(0, 3, n))
    shortcut = 2.5 * np.eye(3)[colour] + 0.2 * rng.normal(size=(n, 3))
    return np.c_[shortcut, 1.5 * np.eye(3)[y] + 0.6 * rng.normal(size=(n, 3))], y


def test_a_gain_at_too_high_a_price_is_undecided():
    for seed in range(3):
        X, y = three_colours(seed)
        look = SecondLook(LogisticRegression(), random_state=0, repeats=1, grid=None, refuse=False)
        verdict = look.fit(X, y).verdict_
        dear = verdict.answer == "helped at too high a price"
        assert not dear or verdict.gain > verdict.gain_error
        assert ("cannot tell" in str(verdict)) == ("refuse=False" in str(verdict)) == dear


def unequal(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < 0.1).astype(int)
    return rng.normal(size=(n, 3)) + 1.2 * y[:, None], y


def test_thresholds_stay_within_the_budget_too():
    X, y = unequal()
    free = SecondLook(LogisticRegression(), random_state=0).fit(X, y)
    assert free.verdict_.used == "threshold"
    price = free.verdict_.before - free.verdict_.after
    with pytest.warns(ScdroWarning, match="plain model is kept"):
        look = SecondLook(LogisticRegression(), random_state=0, budget=price / 2).fit(X, y)
    assert (look.verdict_.answer, look.verdict_.used) == ("over budget", "plain")
    assert "within the budget" in str(look.verdict_)
    assert look.estimator_ is look.plain_
    assert look.score(X, y) == look.plain_.score(X, y)


def test_thresholds_within_the_budget_where_no_second_fit_is():
    X, y = unequal()
    look = SecondLook(LogisticRegression(), random_state=0, budget=0.2, grid={"C": [1e-9]}).fit(
        X, y
    )
    assert look.verdict_.over_budget
    assert look.verdict_.used == "threshold"
    assert "Another threshold suffices" in str(look.verdict_)
    assert "plain model is kept" not in str(look.verdict_)
    assert look.verdict_.after == pytest.approx(look.score(X, y), abs=0.02)


def test_the_numbers_are_those_of_the_model_in_use_also_if_it_is_not_refused():
    X, y = unequal()
    look = SecondLook(LogisticRegression(), random_state=0, refuse=False).fit(X, y)
    assert (look.verdict_.answer, look.verdict_.used) == (
        "another threshold suffices",
        "second fit",
    )
    assert look.verdict_.after == pytest.approx(look.score(X, y), abs=0.03)
    assert "With class weights" not in str(look.verdict_)


def test_an_unstable_model_gains_nothing_by_chance():
    """A tree is wrong on other samples in other folds: scored in those that made the weights, it looks too bad."""
    helps = 0
    for seed in range(4):
        X, y = make_classification(900, 10, n_informative=4, flip_y=0.15, random_state=seed)
        tree = DecisionTreeClassifier(random_state=0)
        look = SecondLook(tree, random_state=seed, refuse=False).fit(X, y)
        assert abs(look.verdict_.gain) < 2 * look.verdict_.gain_error
        helps += look.verdict_.helps
    assert helps <= 1


def test_a_splitter_with_one_partition_makes_weights_and_scores():
    X, y, _ = hidden_group()
    look = SecondLook(LogisticRegression(), cv=StratifiedKFold(4), grid=None).fit(X, y)
    assert look.verdict_.helps
    several = SecondLook(
        LogisticRegression(), cv=RepeatedStratifiedKFold(n_splits=4, n_repeats=3, random_state=0)
    )
    assert several.fit(X, y).verdict_.helps


def test_class_weights_are_those_of_the_estimator_not_of_a_better_reference():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)  # no linear model knows anything of it
    reference = RandomForestClassifier(20, min_samples_leaf=3, random_state=0)
    look = SecondLook(
        LogisticRegression(), reference=reference, cv=3, repeats=1, grid=None, random_state=0
    )
    with pytest.warns(ScdroWarning, match="plain model is kept"):
        look.fit(X, y)
    assert look.estimator_ is look.plain_


def test_balanced_classes_need_no_weights():
    answers = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 2, 600)
        X = rng.normal(size=(600, 5)) + 2 * np.eye(5)[0] * y[:, None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScdroWarning)
            answers.append(
                SecondLook(LogisticRegression(), grid=None, random_state=seed)
                .fit(X, y)
                .verdict_.answer
            )
    assert "class weights suffice" not in answers
    assert "another threshold suffices" not in answers


def test_a_budget_bounds_the_price():
    X, y, _ = hidden_group(noise=0.3)
    free = SecondLook(LogisticRegression(C=0.1), random_state=0, refuse=False).fit(X, y)
    price = free.verdict_.before - free.verdict_.after
    assert price > 0.01
    with pytest.warns(ScdroWarning, match="plain model"):
        none = SecondLook(
            LogisticRegression(C=0.1), random_state=0, budget=0.0, grid={"C": [1.0]}
        ).fit(X, y)
    assert "budget" in str(none.verdict_)
    assert "stands out" not in str(none.verdict_)
    bound = SecondLook(
        LogisticRegression(C=0.1), random_state=0, budget=0.0, grid={"C": [1.0]}, refuse=False
    )
    with pytest.warns(ScdroWarning, match="plain model"):
        assert bound.fit(X, y).estimator_ is bound.plain_
    some = SecondLook(LogisticRegression(C=0.1), random_state=0, budget=1.0).fit(X, y)
    assert some.verdict_.chosen == free.verdict_.chosen
    with pytest.raises(HyperparameterError, match=r"budget.*5% is 0\.05"):
        SecondLook(LogisticRegression(), budget=5).fit(X, y)


def test_a_network_is_no_estimator():
    with pytest.raises(HyperparameterError, match=r"Linear.*repair"):
        SecondLook(torch.nn.Linear(2, 2)).fit(np.zeros((4, 2)), [0, 1, 0, 1])


def test_known_groups_choose():
    X, y, few = hidden_group()
    names = np.full(600, None, dtype=object)
    names[:300] = np.where(few[:300], "few", "many")
    look = SecondLook(LogisticRegression(), groups=names, random_state=0, refuse=False).fit(X, y)
    assert look.verdict_.gain > 0
    assert look.score(X[few], y[few]) > look.plain_.score(X[few], y[few]) + 0.1
    assert "worst of the groups" in str(look.verdict_)
    assert look.verdict_.used == "groups"
    frame = pd.DataFrame(X, index=[f"row {i}" for i in range(600)])
    series = pd.Series(names[:300], index=frame.index[:300])
    same = SecondLook(LogisticRegression(), groups=series, random_state=0, refuse=False).fit(
        frame.set_axis(["a", "b"], axis=1), y
    )
    assert same.verdict_.gain == pytest.approx(look.verdict_.gain)
    with pytest.raises(ValueError, match="known groups"):
        SecondLook(LogisticRegression(), groups=[None] * 600).fit(X, y)
    with pytest.raises(ValueError, match="one group"):
        SecondLook(LogisticRegression(), groups=["a"]).fit(X, y)


def test_pipelines_searches_and_cross_validation():
    X, y, few = hidden_group()
    inside = SecondLook(
        make_pipeline(StandardScaler(), LogisticRegression()), repeats=1, random_state=0
    ).fit(X, y)
    assert "logisticregression__C" in inside.verdict_.chosen
    outside = make_pipeline(
        StandardScaler(),
        SecondLook(LogisticRegression(), repeats=1, random_state=0, refuse=False),
    ).fit(X, y)
    assert outside.score(X[few], y[few]) > 0.9
    search = GridSearchCV(
        SecondLook(LogisticRegression(), cv=2, repeats=1, random_state=0),
        {"estimator__C": [0.1, 1.0]},
        cv=2,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScdroWarning)
        assert search.fit(X, y).best_score_ > 0.8
        assert (
            cross_val_score(SecondLook(LogisticRegression(), cv=2, repeats=1), X, y, cv=2).min()
            > 0.8
        )
        inner = GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2)
        for searched in (inner, make_pipeline(StandardScaler(), inner)):
            over = SecondLook(searched, repeats=1, cv=2, random_state=0)
            assert over.fit(X, y).score(X, y) > 0.8
            assert over.verdict_.chosen == {}  # the search sets C: there is nothing left to try
    assert clone(inside).get_params()["estimator__logisticregression__C"] == 1.0


def test_metadata_routing():
    X, y, _ = hidden_group(200)
    weights = np.r_[np.ones(100), np.zeros(100)]
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", ScdroWarning)
        look = SecondLook(LogisticRegression(), repeats=1, random_state=0).set_fit_request(
            sample_weight=True
        )
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        routed = make_pipeline(scaler, look).fit(X, y, sample_weight=weights)
    assert (routed[-1].weights_[100:] == 0).all()


def test_frames_keep_their_names():
    X, y, _ = hidden_group(200)
    frame = pd.DataFrame(X, columns=["shortcut", "rule"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScdroWarning)
        look = SecondLook(LogisticRegression(), repeats=1, random_state=0).fit(
            frame, pd.Series(y).map({0: "no", 1: "yes"})
        )
    assert look.feature_names_in_.tolist() == ["shortcut", "rule"]
    assert set(look.predict(frame)) <= {"no", "yes"}
    with pytest.raises(ValueError, match="feature names"):
        look.predict(frame[["rule", "shortcut"]])


def test_groups_go_to_the_splitter():
    X, y, _ = hidden_group()
    seen = []

    class Spy(GroupKFold):
        def split(self, X, y=None, groups=None):
            seen.append(np.asarray(groups))
            return super().split(X, y, groups)

    SecondLook(LogisticRegression(), cv=Spy(3), random_state=0, refuse=False).fit(
        X, y, groups=np.arange(600) // 3
    )
    assert np.array_equal(seen[0], np.arange(600) // 3)


@pytest.mark.parametrize("cv", [ShuffleSplit(8, test_size=0.4, random_state=0), TimeSeriesSplit(3)])
def test_splitters_that_make_no_partition(cv):
    """Samples are tested several times, or never: those keep the weight that is usual in their class."""
    X, y, _ = hidden_group(300)
    look = SecondLook(LogisticRegression(), cv=cv, random_state=0, refuse=False).fit(X, y)
    never = np.isnan(look.reference_proba_)
    tested = np.unique(np.concatenate([unseen for _, unseen in cv.split(X)]))
    assert set(np.flatnonzero(~never)) == set(tested)
    for k in (0, 1):
        assert look.weights_[y == k].sum() == pytest.approx(150)
        if never.any():
            assert look.weights_[never & (y == k)] == pytest.approx(look.weights_[y == k].mean())
    if not never.any():  # the mean over the splits that tested a sample
        expected = np.zeros(300)
        for seen, unseen in cv.split(X):
            balance = len(seen) / 2 / np.bincount(y[seen])[y[seen]]
            proba = (
                LogisticRegression()
                .fit(X[seen], y[seen], sample_weight=balance)
                .predict_proba(X[unseen])
            )
            expected[unseen] += proba[np.arange(len(unseen)), y[unseen]]
        times = np.bincount(np.concatenate([unseen for _, unseen in cv.split(X)]), minlength=300)
        assert look.reference_proba_ == pytest.approx(expected / times, abs=1e-4)


def test_who_it_is(looked):
    _, _, few = hidden_group()
    found = looked.find_slices(pl.DataFrame({"shortcut": np.where(few, "other", "usual")}))
    assert found[0].conditions[0] == "shortcut = other"
    assert found[0].after > found[0].before + 0.1
    assert isinstance(found.to_frame(), pl.DataFrame)


def test_other_estimators():
    X, y, few = hidden_group()
    forest = SecondLook(
        RandomForestClassifier(20, max_depth=3, random_state=0),
        repeats=1,
        random_state=0,
        refuse=False,
    )
    assert forest.fit(X, y).verdict_.chosen == {}
    voting = VotingClassifier(
        [("a", LogisticRegression()), ("b", LogisticRegression(C=0.1))], voting="soft"
    )
    assert (
        SecondLook(voting, cv=2, repeats=1, random_state=0, refuse=False).fit(X, y).score(X, y)
        > 0.8
    )
    svm = SecondLook(
        LinearSVC(), reference=LogisticRegression(), repeats=1, random_state=0, refuse=False
    ).fit(X, y)
    assert not hasattr(svm, "predict_proba")
    assert svm.score(X[few], y[few]) > 0.5


@pytest.mark.parametrize("typos", [3, 5])
def test_typing_errors_in_the_labels_are_not_a_class(typos):
    """A handful of samples with a label of their own must not cost the others what they gain, or more."""
    X, y, _ = hidden_group()
    y[np.random.default_rng(0).choice(600, typos, replace=False)] = 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScdroWarning)
        look = SecondLook(LogisticRegression(), random_state=0).fit(X, y)
    share = typos / 10
    assert look.weights_[y == 2].sum() / 600 == pytest.approx(share / (2 + share))
    X, y, few = hidden_group(seed=1, n=3000)
    assert look.score(X, y) > 0.9
    assert look.score(X[few], y[few]) >= look.plain_.score(X[few], y[few]) - 0.02


def test_the_worst_class_may_not_pay_for_hard_samples_between_the_classes():
    """No group is overlooked here: what a model gains between the classes it loses inside of them."""
    X, y = make_classification(4000, 20, n_informative=8, class_sep=1.5, flip_y=0, random_state=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScdroWarning)
        look = SecondLook(LogisticRegression(), random_state=0).fit(X[:2000], y[:2000])
    verdict = look.verdict_
    assert verdict.worst_class_before - verdict.worst_class_after > 0.05
    assert not verdict.helps


def test_many_classes_some_of_them_tiny():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2, 3], [200, 200, 3, 1])
    X = rng.normal(size=(404, 4)) + np.eye(4)[y] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScdroWarning)
        look = SecondLook(LogisticRegression(), repeats=1, random_state=0).fit(X, y)
    assert {2, 3} <= set(look.verdict_.left_alone)
    assert np.isnan(look.reference_proba_[-1])  # seen by every model
    assert np.isfinite(look.weights_).all()
    assert look.weights_.sum() == pytest.approx(404)
    assert look.predict(X).shape == (404,)


def test_regressors():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 1))
    few = rng.random(400) < 0.1
    X = np.c_[
        x, np.where(few, x[:, 0], 0.0)
    ]  # a group with a slope of its own, which a penalty does not fit
    y = np.where(few, -2.0, 2.0) * x[:, 0] + 0.1 * rng.normal(size=400)
    look = SecondLook(Ridge(alpha=30.0), random_state=0, refuse=False).fit(X, y)
    ignorant = np.abs(y - np.median(y)).mean()
    assert look.weights_ @ look.reference_proba_ / 400 == pytest.approx(ignorant, rel=0.05)
    assert look.weights_[few].mean() > 3 * look.weights_[~few].mean()
    error, before = (np.abs(m.predict(X) - y)[few].mean() for m in (look, look.plain_))
    assert error < 0.7 * before
    assert 1 <= look.verdict_.smallest_group < few.sum()
    slices = look.find_slices({"kind": np.where(few, "few", "many")})
    assert slices[0].conditions[0] == "kind = few"
    assert slices[0].after < slices[0].before
    assert "mean error" in str(slices)
    X, y = make_regression(100, 5, noise=1.0, random_state=0)
    with pytest.warns(ScdroWarning, match="plain model"):
        assert not SecondLook(LinearRegression(), random_state=0).fit(X, y).verdict_.helps


def test_weights_of_a_regressor_reach_the_error_of_the_weighted_median():
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    y = np.where(x > 1, 10.0, 2.0) * x + 0.1 * rng.normal(size=400)
    given = np.where(y > 5, 20.0, 1.0)
    look = SecondLook(Ridge(), random_state=0, refuse=False).fit(x[:, None], y, sample_weight=given)
    of_constants = [np.average(np.abs(y - constant), weights=given) for constant in y]
    assert look.weights_ @ look.reference_proba_ / 400 == pytest.approx(min(of_constants), rel=0.05)
    assert np.average(np.abs(y - np.median(y)), weights=given) > 1.5 * min(
        of_constants
    )  # the plain median is far away


@pytest.mark.parametrize(
    ("look", "error", "match"),
    [
        (SecondLook(LinearSVC()), HyperparameterError, "predict_proba"),
        (SecondLook(StandardScaler()), HyperparameterError, "classifier or regressor"),
        (
            SecondLook(LogisticRegression(), reference=LinearSVC()),
            HyperparameterError,
            "predict_proba",
        ),
        (SecondLook(LogisticRegression(), rho="quarter"), HyperparameterError, "rho"),
        (SecondLook(LogisticRegression(), grid="none"), HyperparameterError, "grid"),
        (SecondLook(LogisticRegression(), cv=1), HyperparameterError, "cv"),
        (SecondLook(LogisticRegression(), repeats=0), HyperparameterError, "repeats"),
        (SecondLook(LogisticRegression(), budget=-0.1), HyperparameterError, "budget"),
        (SecondLook(LogisticRegression(), budget="little"), HyperparameterError, "budget"),
        (SecondLook(LogisticRegression(), reference=Ridge()), HyperparameterError, "reference"),
        (SecondLook(Ridge(), reference=LogisticRegression()), HyperparameterError, "reference"),
    ],
)
def test_bad_settings(look, error, match):
    X, y, _ = hidden_group(60)
    with pytest.raises(error, match=match):
        look.fit(X, y)


def test_one_class():
    X, _, _ = hidden_group(60)
    for estimator in (RandomForestClassifier(3), HistGradientBoostingClassifier(max_iter=2)):
        with pytest.raises(DataError, match="one class"):
            SecondLook(estimator).fit(X, np.zeros(60))


def test_a_grid_without_settings():
    X, y, _ = hidden_group(60)
    with pytest.raises(HyperparameterError, match="grid"):
        SecondLook(LogisticRegression(), grid=[]).fit(X, y)


def test_known_groups_of_a_regressor_are_told_as_errors():
    X, y, few = hidden_group(200)
    look = SecondLook(Ridge(), groups=np.where(few, "few", "many"), cv=3, repeats=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScdroWarning)
        look.fit(X, y + 2.0 * few)
    assert "In the worst of the groups, the error" in str(look.verdict_)
    assert "%" not in str(look.verdict_)


def test_bad_weights():
    X, y, _ = hidden_group(60)
    for bad in (np.full(60, np.nan), -np.ones(60), np.zeros(60)):
        with pytest.raises(ValueError, match=r"weight|NaN"):
            SecondLook(LogisticRegression()).fit(X, y, sample_weight=bad)


def test_saved_without_pickle(looked, tmp_path):
    skops = pytest.importorskip("skops.io")
    skops.dump(looked, tmp_path / "look.skops")
    unknown = skops.get_untrusted_types(file=tmp_path / "look.skops")
    assert all(name.startswith(("scdro.second_look.", "scdro.fix.")) for name in unknown)
    again = skops.load(tmp_path / "look.skops", trusted=unknown)
    X, _, _ = hidden_group()
    assert np.array_equal(again.predict_proba(X), looked.predict_proba(X))
    assert str(again.verdict_) == str(looked.verdict_)


def test_groups_of_fit_need_a_splitter():
    X, y, few = hidden_group(200)
    with pytest.raises(HyperparameterError, match=r"GroupKFold\(5\).*SecondLook\(groups=...\)"):
        SecondLook(LogisticRegression()).fit(X, y, groups=few)
    with pytest.raises(HyperparameterError, match=r"GroupKFold\(3\)"):
        SecondLook(LogisticRegression(), cv=3).fit(X, y, groups=np.arange(200) // 2)


@pytest.mark.parametrize("cv", [StratifiedGroupKFold(3), LeaveOneGroupOut()])
def test_other_splitters_that_use_groups(cv):
    X, y, _ = hidden_group(200)
    groups = np.arange(200) % 4
    look = SecondLook(LogisticRegression(), cv=cv, grid=None, random_state=0, refuse=False).fit(
        X, y, groups=groups
    )
    assert not np.isnan(look.reference_proba_).any()


def test_unknown_groups_of_any_kind():
    X, y, few = hidden_group(200)
    names = np.where(few, "few", "many").astype(object)
    looks = []
    for unknown in (None, np.nan, pd.NA, pd.NaT):
        names[::2] = unknown
        look = SecondLook(
            LogisticRegression(), groups=names, cv=3, repeats=1, random_state=0, refuse=False
        )
        looks.append(look.fit(X, y))
    assert len({look.verdict_.gain for look in looks}) == 1
    with pytest.raises(DataError, match="known groups"):
        SecondLook(LogisticRegression(), groups=np.full(200, pd.NA)).fit(X, y)


@pytest.mark.parametrize("bad", [None, "logistic", 3, LogisticRegression])
def test_what_is_no_estimator(bad):
    X, y, _ = hidden_group(60)
    with pytest.raises(HyperparameterError, match=r"estimator, got.*LogisticRegression\(\)"):
        SecondLook(bad).fit(X, y)
    if bad is not None:
        with pytest.raises(HyperparameterError, match=r"reference, got.*LogisticRegression\(\)"):
            SecondLook(LogisticRegression(), reference=bad).fit(X, y)


def test_a_radius_that_is_no_number():
    X, y, _ = hidden_group(60)
    with pytest.raises(HyperparameterError, match="rho"):
        SecondLook(LogisticRegression(), rho=np.array([0.1, 0.2])).fit(X, y)


def test_missing_labels():
    X, y, _ = hidden_group(60)
    for bad in (np.where(y, 1.0, np.nan), np.where(y, "a", None)):
        with pytest.raises(DataError, match="missing"):
            SecondLook(LogisticRegression()).fit(X, bad)


def test_a_splitter_that_tests_no_weight():
    X, y, _ = hidden_group(60)
    weight = (np.arange(60) >= 20).astype(float)
    cv = [(np.arange(20, 60), np.arange(20))]
    with pytest.raises(DataError, match="cv"):
        SecondLook(LogisticRegression(), cv=cv).fit(X, y, sample_weight=weight)


def test_options_of_slices_are_spelled_out(looked):
    with pytest.raises(TypeError, match=r"SecondLook\.find_slices\(\).*foo"):
        looked.find_slices({"a": np.zeros(600)}, foo=1)
    _, _, few = hidden_group()
    found = looked.find_slices(
        {"kind": np.where(few, "few", "many")}, max_slices=1, min_size=5, label="bird"
    )
    assert len(found) == 1
    assert "kind = few" in found[0].conditions


def test_a_refused_fit_leaves_the_model_as_it_was():
    X, y, _ = hidden_group(200)
    look = SecondLook(LogisticRegression(), cv=2, repeats=1, random_state=0, refuse=False).fit(X, y)
    known = {
        name: getattr(look, name)
        for name in ("classes_", "plain_", "n_features_in_", "estimator_", "verdict_")
    }
    with pytest.raises(HyperparameterError, match="cv"):
        look.set_params(cv=1000).fit(X[:, :1], np.arange(200) % 3)
    assert {name: getattr(look, name) for name in known} == known
    look.set_params(estimator=Ridge(), cv=2).fit(X, y)
    assert not hasattr(look, "classes_")
    for settings, said in (
        ({"repeats": 1.5}, "got 1.5"),
        ({"repeats": True}, "got True"),
        ({"cv": 1}, "got 1"),
    ):
        with pytest.raises(HyperparameterError, match=said):
            SecondLook(LogisticRegression(), **settings).fit(X, y)


def test_groups_confirmed_by_a_finding_of_the_audit_or_by_a_mask():
    X, y, few = hidden_group()
    place = np.where(few == (y == 1), "land", "water")
    plain = LogisticRegression().fit(X, y)
    finding = next(
        one
        for one in scdro.audit(y, plain.predict_proba(X), {"place": place, "few": few}).findings
        if "few" in one.slice
    )
    looks = [
        SecondLook(LogisticRegression(), groups=groups, random_state=0, repeats=1).fit(X, y)
        for groups in (finding, np.asarray(finding.members), few)
    ]
    gains = {round(look.verdict_.gain, 12) for look in looks}
    assert len(gains) == 1
    assert looks[0].verdict_.helps
    assert any(finding.slice in name for name in looks[0].verdict_.confirmed)
    # every class x group has the same total weight
    totals = [looks[0].weights_[(y == k) & (few == f)].sum() for k in (0, 1) for f in (False, True)]
    np.testing.assert_allclose(totals, 150.0, rtol=0.1)  # a cell of nine rows gets nine tenths
    with pytest.raises(DataError, match="without members"):
        SecondLook(LogisticRegression(), groups=finding_without_rows(finding.conditions)).fit(X, y)


def finding_without_rows(conditions):
    return SimpleNamespace(slice=" and ".join(conditions), conditions=conditions)


def test_what_confirming_would_gain_is_told_before_anybody_confirms():
    X, y, few = hidden_group()
    frame = {"place": np.where(few == (y == 1), "land", "water"), "few": few}
    settings = {"grid": None, "random_state": 0, "repeats": 1}
    look = SecondLook(LogisticRegression(), **settings).fit(X, y)
    slices = look.find_slices(frame)
    told = look.would_gain(slices, X, y)
    assert len(told) == len(slices) > 0
    fixed = SecondLook(LogisticRegression(), groups=slices[0], **settings).fit(X, y)
    assert told[0].verdict == fixed.verdict_
    assert look.would_gain(slices[0], X, y) == told[:1]
    assert told[0].verdict.helps
    assert f"{slices[0].members.text}: its worst group would go from" in str(told)
    assert str(look.would_gain([], X, y)) == "No slices: nobody to confirm."


def test_progress_of_a_verdict_is_shown(capsys):
    X, y, _ = hidden_group(200)
    for progress in (True, False, None):  # None: there is no terminal
        look = SecondLook(LogisticRegression(), cv=3, repeats=1, grid=None, progress=progress)
        look.fit(X, y)
        shown = capsys.readouterr().err
        assert (
            ("fit 1 of about" in shown) == (f"{look.verdict_.fits} fits" in shown) == bool(progress)
        )


def test_a_meaningless_group_is_not_helped():
    """Confirmed or not: where the group has nothing to do with the errors, nothing gains."""
    helped = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        y = rng.integers(0, 2, 400)
        X = rng.normal(size=(400, 4)) + 1.5 * np.eye(4)[0] * y[:, None]
        look = SecondLook(
            LogisticRegression(), groups=rng.random(400) < 0.2, random_state=seed, repeats=1
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScdroWarning)
            helped += look.fit(X, y).verdict_.helps
    assert helped <= 1


def test_any_number_of_processes_gives_the_same_bits():
    X, y, _ = hidden_group(200)
    forest = RandomForestClassifier(5, max_depth=3)  # without a seed of its own
    looks = []
    for n_jobs in (None, 2):
        look = SecondLook(forest, cv=3, repeats=1, random_state=0, n_jobs=n_jobs, refuse=False)
        looks.append(look.fit(X, y))
    assert np.array_equal(looks[0].weights_, looks[1].weights_)
    assert looks[0].verdict_ == looks[1].verdict_


def test_models_without_weights_are_resampled():
    X, y, few = hidden_group()
    near = make_pipeline(StandardScaler(), KNeighborsClassifier(25))
    look = SecondLook(near, cv=3, repeats=1, random_state=0, refuse=False, groups=few).fit(X, y)
    assert look.verdict_.used == "groups"
    assert len(look.estimator_.models_) > 1
    assert look.score(X[few], y[few]) > look.plain_.score(X[few], y[few]) + 0.1
    np.testing.assert_allclose(look.predict_proba(X).sum(1), 1.0)


def test_the_verdict_counts_its_fits():
    """Through the public API: the estimator counts its own."""
    X, y, _ = hidden_group(200)
    CountingLogistic.fits = 0
    look = SecondLook(CountingLogistic(), cv=3, repeats=1, random_state=0).fit(X, y)
    kept = look.estimator_ is look.plain_
    assert look.verdict_.fits == CountingLogistic.fits - (1 if kept else 2)


class CountingLogistic(LogisticRegression):
    fits = 0

    def fit(self, X, y, sample_weight=None):
        CountingLogistic.fits += 1
        return super().fit(X, y, sample_weight)


def test_a_group_that_ruins_everybody_else_is_too_dear():
    """Rows chosen by the model's own score: equal weights leave no model that is any good."""
    rng = np.random.default_rng(0)
    signal = rng.normal(size=2000)
    y = (rng.random(2000) < 1 / (1 + np.exp(-3 * signal))).astype(int)
    look = SecondLook(LogisticRegression(), groups=signal > 0.5, random_state=0, repeats=1)
    with pytest.warns(ScdroWarning, match="plain model is kept"):
        look.fit(signal[:, None], y)
    assert look.verdict_.answer == "helped at too high a price"
    assert "The groups would gain" in str(look.verdict_)


def test_a_finding_about_probabilities_is_no_group():
    finding = SimpleNamespace(
        slice="predicted probability > 0.6", conditions=(), members=np.ones(9)
    )
    X, y, _ = hidden_group()
    with pytest.raises(DataError, match="recalibrate"):
        SecondLook(LogisticRegression(), groups=finding).fit(X, y)
