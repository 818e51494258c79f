"""gallery: clusters that hold weight are found, shown, and described."""

import base64
import re
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from scdro.errors import DataError, HyperparameterError, LossError
from scdro.second_look import SecondLook, gallery, repair

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def digits():
    source = load_digits()
    heavy = source.target == 3
    weights = np.where(heavy, 5.0, 0.5) * np.random.default_rng(0).uniform(0.8, 1.2, len(heavy))
    return source, weights


def test_the_heavy_digit_is_shown(digits):
    source, weights = digits
    found = gallery(
        weights, source.images / 16, source.data, y=source.target % 2, proba=source.target != 3
    )
    assert np.mean(source.target[found.rows[0]] == 3) > 0.9
    assert len(found.rows[0]) == 8
    assert found.slices[0].before < np.mean(source.target != 3) - 0.2
    assert found.slices[0].conditions[0].startswith("cluster = ")
    inside = found.clusters == int(found.slices[0].conditions[0][-1])
    assert set(found.rows[0]) <= set(np.flatnonzero(inside))
    assert weights[found.rows[0]].min() >= np.sort(weights[inside & (source.target == 3)])[-8]
    figure = found.figure()
    assert sum(len(axis.images) for part in figure.subfigs for axis in part.axes) == sum(
        map(len, found.rows)
    )


def test_a_person_says_which_images_of_a_cluster_belong(digits):
    """What is left out takes the images that look like it along; the rest is a group to confirm."""
    source, weights = digits
    y = source.target % 2
    found = gallery(weights, source.images / 16, source.data, y=y, clusters=4, across=40)
    cluster = np.array(found.slices[0].members)
    assert np.array_equal(found.confirm(), cluster)
    shown = found.rows[0]
    others = np.flatnonzero(cluster & (source.target != 3))
    assert len(others) > 20  # four clusters of ten digits
    wrong = np.union1d(shown[source.target[shown] != 3], others[:20])
    group = np.asarray(found.confirm(0, wrong))
    assert not group[wrong].any()
    assert not (group & ~cluster).any()
    assert (source.target[group] == 3).mean() > (source.target[cluster] == 3).mean() + 0.15
    assert (group & (source.target == 3)).sum() > 0.8 * (cluster & (source.target == 3)).sum()
    for number, leave_out in ((9, ()), (0, [int(np.flatnonzero(~cluster)[0])]), (0, shown)):
        with pytest.raises(DataError, match="expected"):
            found.confirm(number, leave_out)
    look = SecondLook(LogisticRegression(), groups=found.confirm(0, wrong), cv=2, repeats=1, grid=None)  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = look.fit(source.data[:, 20:30], y).verdict_.confirmed
    assert any("left out" in name for name in names)


def test_no_image_is_shown_twice():
    """A cluster, and the same cluster with a label, are two slices that share images."""
    rng = np.random.default_rng(0)
    member = np.arange(800) // 200
    label = np.where(member == 0, np.arange(800) < 20, np.arange(800) % 2).astype(int)
    pictures = np.zeros((800, 4, 4))
    pictures[np.arange(800), member, member] = 1.0
    pictures += 0.01 * rng.random((800, 4, 4))
    weights = np.where(member > 0, 0.5, np.where(label == 1, 14.0, 3.0))
    found = gallery(weights * rng.uniform(0.8, 1.2, 800), pictures, y=label, clusters=4, across=500)
    assert len(found.slices) > 1
    shown = np.concatenate(found.rows)
    assert len(np.unique(shown)) == len(shown)
    assert min(map(len, found.rows)) > 0


def test_pages_and_files(digits, tmp_path):
    source, weights = digits
    names = ["<even>", "odd"]
    found = gallery(
        weights, source.images, source.data, y=source.target % 2, names=names, max_slices=1
    )
    page = found.to_html()
    assert page.count("<figure") == len(found.slices) == 1
    png = base64.b64decode(re.search(r"base64,([^\"]+)", page).group(1))
    assert png.startswith(b"\x89PNG")
    assert "times the weight" in re.search(r"<figcaption>(.*)</figcaption>", page).group(1)
    assert found._repr_html_() == page
    assert "array" not in repr(found)
    found.save(tmp_path / "gallery.png")
    assert (tmp_path / "gallery.png").stat().st_size > 3000


def test_where_nothing_stands_out(digits):
    source, _ = digits
    weights = np.random.default_rng(1).uniform(0.5, 1.5, len(source.target))
    found = gallery(weights, source.images, source.data, y=source.target % 2)
    assert len(found.slices) == 0
    assert found.rows[0].tolist() == np.argsort(-weights, kind="stable")[:8].tolist()
    assert "No subgroup found" in found.to_html()


@pytest.mark.parametrize(
    "form", ["gray", "channels last", "channels first", "normalised", "bytes", "pairs", "pillow"]
)
def test_forms_of_images(form):
    rng = np.random.default_rng(0)
    images = rng.random((40, 6, 5))
    given = {
        "gray": images,
        "channels last": rng.random((40, 6, 5, 3)),
        "channels first": torch.rand(40, 3, 6, 5),
        "normalised": rng.normal(size=(40, 3, 6, 5)),
        "bytes": (255 * images).astype(np.uint8),
        "pairs": TensorDataset(torch.rand(40, 1, 6, 5), torch.zeros(40)),
    }
    if form == "pillow":
        Image = pytest.importorskip("PIL.Image")
        given["pillow"] = [Image.fromarray(image) for image in given["bytes"]]
    found = gallery(np.ones(40), given[form], clusters=2)
    for picture in found._images[0]:
        assert picture.shape[:2] == (6, 5)
        assert 0 <= picture.min() <= picture.max() <= 1


def test_of_a_repaired_network(digits):
    source, _ = digits
    rows = np.flatnonzero(np.isin(source.target, (1, 4)))[:200]
    X, y = (
        torch.tensor(source.data[rows] / 16, dtype=torch.float32),
        torch.tensor(source.target[rows] % 2),
    )
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(X, y), batch_size=100)
    fixed = repair(nn.Sequential(nn.Linear(64, 2)), loader, progress=False, refuse=False)
    found = fixed.gallery(source.images[rows], clusters=3)
    assert len(found.clusters) == 200


def test_bad_input(digits):
    source, weights = digits
    with pytest.raises(DataError, match="one image"):
        gallery(weights, source.images[:5])
    with pytest.raises(DataError, match="features"):
        gallery(weights, source.images, source.data[:5])
    with pytest.raises(DataError, match="got NaN"):
        gallery(weights, source.images, source.data * np.nan)
    with pytest.raises(HyperparameterError, match="clusters"):
        gallery(weights, source.images, source.data, clusters=1)
    with pytest.raises(DataError, match="height"):
        gallery(weights, source.data)
    with pytest.raises(DataError, match="features as real numbers"):
        gallery(weights, source.images, [["a"]] * len(weights))
    with pytest.raises(LossError, match="weights as real numbers"):
        gallery(["a"] * len(weights), source.images)


@pytest.mark.parametrize("labels", ["numbers", "many classes"])
def test_labels_that_are_no_few_classes(labels):
    """Conditions such as "label <= 40" have no "=": the members are those of the slice, not read from its text."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=600) if labels == "numbers" else np.arange(600) % 120
    images = rng.random((600, 4, 4))
    heavy = y <= np.quantile(y, 0.25)
    weights = np.where(heavy, 5.0, 0.5) * rng.uniform(0.8, 1.2, 600)
    found = gallery(weights, images, y=y, clusters=3)
    assert found.slices[0].conditions[0].startswith("label <= ")
    assert heavy[found.rows[0]].all()


def test_a_label_with_an_equals_sign(digits):
    source, weights = digits
    y = np.where(source.target % 2 == 0, "kind = even", "kind = odd")
    found = gallery(weights, source.images, source.data, y=y)
    assert np.mean(source.target[found.rows[0]] == 3) > 0.9
