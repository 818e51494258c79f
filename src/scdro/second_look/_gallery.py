"""Slices of images: clusters of the features with added weight, and their images.

Images have no columns to describe them by. So a column is made: the number of the cluster of their
features (k-means in the first principal directions). `find_slices` then tests the clusters as it
tests any column, and a person looks at the images of those that pass:

    Z        =  principal directions of the standardised features, (n, 50)
    cluster  =  k-means of Z; it does not see the weights, so the tests stay valid
    slices   =  `find_slices` of the column "cluster"
    rows     =  the images of largest weight in each slice, to be looked at, and confirmed
"""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from scdro._frames import as_array
from scdro._validation import as_floats, check_whole
from scdro.errors import DataError
from scdro.second_look._slices import (
    Members,
    Slices,
    SliceSearch,
    WeightedRows,
    as_names,
    describe_rows,
    read_labels,
    right_or_wrong,
)

__all__ = ["Gallery", "gallery"]

Array = npt.NDArray[Any]
DIRECTIONS = 50  # principal directions in which clusters are searched
COLUMN = "cluster"


@dataclass(frozen=True, eq=False)
class Gallery:
    """Clusters with added weight, each with its images of the largest weight.

    Attributes:
        slices: the `Slices` that were found, in the column "cluster".
        clusters: the cluster of each image, (n,).
        rows: for each slice, its images of the largest weight that no row before it has; if there
            is no slice, one row of those of all images.

    Example:
        >>> Gallery.__dataclass_fields__.keys() >= {"slices", "clusters", "rows"}
        True
    """

    slices: Slices
    clusters: Array = field(repr=False)
    rows: list[Array] = field(repr=False)
    _places: Array = field(repr=False)  # (n, directions), where clusters were searched
    _images: list[list[Array]] = field(repr=False)
    _titles: list[list[str]] = field(repr=False)

    @property
    def sentences(self) -> list[str]:
        """One sentence for each row of images."""
        return [str(one) for one in self.slices] or [
            f"{self.slices} The images with the largest weights:"
        ]

    def confirm(self, number: int = 0, leave_out: Any = ()) -> Members:
        """A cluster as a group to confirm: pass it as `groups` to `repair` or `SecondLook`.

        Args:
            number: of the slice, from 0; its images are `rows[number]`.
            leave_out: images of the cluster that do not belong, by the numbers after "#". Those
                that are not shown and lie nearer to one of them than to a shown one that stays go
                too.
        """
        if not 0 <= number < len(self.slices):
            raise DataError(
                f"expected the number of one of {len(self.slices)} slices, from 0, got {number!r}"
            )
        one, shown = self.slices[number], self.rows[number]
        inside: Array = np.array(one.members)  # (n,), the cluster
        out = np.asarray(leave_out, dtype=int).reshape(-1)
        if not np.isin(out, np.flatnonzero(inside)).all() or np.isin(shown, out).all():
            raise DataError(
                f"expected images of cluster {number} to leave out, and a shown one that stays, got"
                f" {out.tolist()}"
            )
        if len(out) == 0:
            return Members(inside, " and ".join(one.conditions))
        # The images that nobody has looked at follow the nearest one that somebody has.
        stay = np.setdiff1d(shown, out)
        others = np.setdiff1d(np.flatnonzero(inside), np.union1d(stay, out))
        away, near = (cdist(self._places[others], self._places[k]).min(1) for k in (out, stay))
        inside[np.union1d(out, others[away < near])] = False
        left = int(one.size - inside.sum())
        return Members(inside, f"{' and '.join(one.conditions)}, {left} left out")

    def figure(self) -> Any:
        """A matplotlib figure, one row of images for each cluster."""
        from matplotlib.figure import Figure

        across = max(len(row) for row in self._images)
        figure: Any = Figure(
            figsize=(1.1 * across, 1.7 * len(self._images) + 0.2), layout="constrained"
        )
        parts = np.atleast_1d(figure.subfigures(len(self._images), 1))
        for part, sentence, images, titles in zip(
            parts, self.sentences, self._images, self._titles, strict=True
        ):
            part.suptitle(_wrap_text(sentence, 14 * across), fontsize=8, x=0.01, ha="left")
            _draw_row(part, images, titles, across)
        return figure

    def to_html(self) -> str:
        """An HTML fragment for your own page, with the images inside."""
        parts = []
        for sentence, images, titles in zip(
            self.sentences, self._images, self._titles, strict=True
        ):
            told = html.escape(sentence)
            parts.append(
                f'<figure class="scdro-gallery"><img alt="{told}" style="max-width:100%" '
                f'src="data:image/png;base64,{_png(images, titles)}"><figcaption>{told}</figcaption></figure>'
            )
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        return self.to_html()

    def save(self, path: Any) -> None:
        """Save the figure, in the format of the file name."""
        self.figure().savefig(path, dpi=120)


def gallery(
    weights: Any,
    images: Any,
    features: Any = None,
    *,
    y: Any = None,
    proba: Any = None,
    after: Any = None,
    clusters: int = 10,
    across: int = 8,
    max_slices: int = 3,
    names: Any = None,
    seed: int = 0,
) -> Gallery:
    """Find clusters of the features with added weight, as `find_slices` does, and show their images of largest weight.

    The clusters do not depend on the weights (k-means in the 50 largest principal directions of the
    standardised features), so the tests stay valid. Showing them needs matplotlib.

    Args:
        weights: the weights of a second look, (n,).
        images: one for each weight: arrays or tensors (n, height, width), (n, height, width, 3) or
            (n, 3, height, width), in [0, 1] or 0 to 255; or a data set whose `images[i]` is one of
            these, a PIL image, or a pair (image, label).
        features: (n, d), such as those of `repair`; None for the pixels.
        y: labels.
        proba: as in `find_slices`.
        after: as in `find_slices`.
        clusters: number of clusters.
        across: number of images to show of a cluster.
        max_slices: largest number of slices to show.
        names: names of the classes, for titles.
        seed: seed of the clusters and of the tests.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> digits = load_digits()
        >>> weights = np.where(digits.target == 3, 5.0, 0.5) * np.random.default_rng(0).uniform(0.8, 1.2, 1797)
        >>> found = gallery(weights, digits.images / 16, digits.data, y=digits.target % 2)
        >>> bool(np.mean(digits.target[found.rows[0]] == 3) > 0.9)
        True
        >>> figure = found.figure()
    """
    labels = read_labels(y)
    w = as_floats(weights, "weights", as_array)
    first, second = (right_or_wrong(p, labels, len(w)) for p in (proba, after))
    X = None if features is None else as_floats(features, "features", as_array, DataError)
    shown = GallerySettings(clusters, across, max_slices, names, seed)
    return cluster_images(WeightedRows(w, labels, first, second), images, X, shown)


class GallerySettings(NamedTuple):
    """The options of `gallery`."""

    clusters: int  # how many clusters
    across: int  # images shown of each
    max_slices: int  # slices shown
    names: Any  # of the classes, by label; None for the labels themselves
    seed: int  # of the clusters and of the halves


def cluster_images(
    known: WeightedRows, images: Any, X: Array | None, settings: GallerySettings
) -> Gallery:
    """`gallery` of images whose scores are known.

    Args:
        known: weights, labels and scores of the images.
        images: as in `gallery`.
        X: features, (n, d); None for the pixels.
        settings: the options of `gallery`.
    """
    w, labels = known.weights, known.labels
    clusters, across, max_slices, names, seed = settings
    if len(images) != len(w):
        raise DataError(f"expected one image for each of the {len(w)} weights, got {len(images)}")
    check_whole("clusters", clusters, 2, len(w), "as many as images at most")
    check_whole("across", across, meaning="images of a cluster")
    if X is None:
        X = np.stack([_picture(images[i]).ravel() for i in range(len(w))])
    if X.ndim != 2 or len(X) != len(w):
        raise DataError(f"expected features of shape ({len(w)}, d), got shape {X.shape}")
    if not np.isfinite(X).all():
        raise DataError(
            "expected finite features (without them, the pixels), got NaN or infinite ones"
        )
    Z = StandardScaler().fit_transform(X)
    Z = PCA(min(DIRECTIONS, *Z.shape), random_state=seed).fit_transform(Z)
    member = KMeans(clusters, n_init=4, random_state=seed).fit_predict(Z)
    search = SliceSearch(max_slices=max_slices, seed=seed)
    found = describe_rows(known, {COLUMN: as_names(member)}, search)
    slices = Slices(one for one, _ in found)
    members = [np.flatnonzero(inside) for _, inside in found] or [np.arange(len(w))]
    rows: list[Array] = []
    for inside in members:  # slices may overlap: an image is shown in the first of them
        own = np.setdiff1d(inside, np.concatenate(rows)) if rows else inside
        rows.append(own[np.argsort(-w[own], kind="stable")[:across]])
    titles = [
        [f"{'' if labels is None else _name(labels[i], names)} #{i}".strip() for i in row]
        for row in rows
    ]
    pictures = [[_picture(images[int(i)]) for i in row] for row in rows]
    return Gallery(slices, member, rows, Z, pictures, titles)


def _name(label: Any, names: Any) -> str:
    """The name of a class, for the title of an image."""
    if names is None:
        return str(label)
    try:
        return str(names[label])
    except (IndexError, KeyError, TypeError) as error:
        raise DataError(
            f"expected names of all classes, by label, got none for {label!r}"
        ) from error


def _picture(image: Any) -> Array:
    """An image as matplotlib shows it: (height, width) or (height, width, 3), in [0, 1]."""
    if isinstance(image, tuple | list):
        image = image[0]
    array = (
        as_array(image).astype(float)
        if not hasattr(image, "convert")
        else np.asarray(image, dtype=float)
    )
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))):
        raise DataError(
            "expected images (height, width), with 1 or 3 channels first or last, got shape"
            f" {array.shape}"
        )
    low, high = float(np.nanmin(array)), float(np.nanmax(array))
    if low >= 0 and high <= 255:
        return array / (255.0 if high > 1 else 1.0)
    return (array - low) / (
        (high - low) or 1.0
    )  # normalised for a network: stretch to the visible range


def _draw_row(figure: Any, images: list[Array], titles: list[str], across: int) -> None:
    """Draw images and their titles side by side."""
    axes = np.atleast_1d(figure.subplots(1, across))
    for k, axis in enumerate(axes):
        axis.set_axis_off()
        if k < len(images):
            axis.imshow(images[k], cmap="gray", vmin=0, vmax=1)
            axis.set_title(titles[k], fontsize=7)


def _png(images: list[Array], titles: list[str]) -> str:
    """A row of images as a PNG file, in base64."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.1 * len(images), 1.3), layout="constrained")
    _draw_row(figure, images, titles, len(images))
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return base64.b64encode(file.getvalue()).decode()


def _wrap_text(text: str, width: int) -> str:
    """The text in lines of this width."""
    import textwrap

    return "\n".join(textwrap.wrap(text, width))
