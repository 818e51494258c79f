"""A folder of images: features of a frozen network, or a small network trained here, with a repaired last layer."""

from __future__ import annotations

import copy
import hashlib
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from scdro._validation import check_budget, check_number, check_whole
from scdro.errors import DataError
from scdro.integrations.loggers import Logger
from scdro.second_look import repair
from scdro.tables import _folder, _pretrained
from scdro.tables._image_models import FeatureModel, ImageModel, small_network
from scdro.tables._logs import Logs
from scdro.tables._network import best_device
from scdro.tables._pictures import Pictures, as_floats, images_below, printable
from scdro.tables._problem import Options, TableProblem, TrainTest
from scdro.tables._read import polars, shown
from scdro.tables._run import Run
from scdro.tables._summary import Found, Method, make_summary
from scdro.tables._verdict import Predictions, judge

__all__ = ["train_images"]

Array = npt.NDArray[Any]
EPOCHS, PATIENCE, BATCH = 40, 6, 64
FOR_IMAGES: tuple[Method, ...] = ("plain", "second-look")
SIDE, SIDE_OF_PRETRAINED = 64, 224  # pixels
PENALTIES = tuple(10.0**k for k in range(-4, 1))  # on standardised features


def train_images(
    folder: Any,
    *,
    features: Any = None,
    size: int | None = None,
    rho: float = 0.5,
    budget: float = 0.02,
    least_group: int = 30,
    seed: int = 0,
    out: Any = None,
    progress: Callable[[int, int, str], None] | None = None,
    loggers: Sequence[Logger] = (),
) -> Run:
    """Train a network on a folder of images, and `repair` its last layer for those it fails.

    The folder has a subfolder for each class. A fifth of the images is for the test. If a pretrained network is
    available it stays frozen: its features of the other images are computed once, a linear layer is fitted to them, and
    again by `scdro.repair`. Otherwise one half of the other images trains a small network, with early stopping, and the
    second half, which it has not seen, repairs its last layer. The repaired model is kept if the test confirms it.

    Args:
        folder: a folder with a subfolder of images for each class.
        features: a torch network that makes features, (n, d) or (n, d, height, width), of images (n, 3, size, size)
            with ImageNet's mean and deviation; or the name of a classifier of torchvision ("resnet18") or timm
            ("timm/resnet18.a1_in1k") whose weights are on this machine. None looks for a few common ones; nothing is
            ever downloaded. "none": a small network.
        size: pixels of a side; None: 224 for a pretrained network, 64 for a small one.
        rho, budget, least_group, seed, out, progress, loggers: as for `train`.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> root = Path(tempfile.mkdtemp())
        >>> for name, value in (("dark", 30), ("light", 220)):
        ...     (root / name).mkdir()
        ...     for k in range(40):
        ...         Image.new("RGB", (16, 16), (value + k % 5,) * 3).save(root / name / f"{k}.png")
        >>> run = train_images(root, features="none", size=16)
        >>> run.predict(root / "light").tolist()[:2]
        ['light', 'light']
    """
    frozen = _pretrained.find(features)
    size = (SIDE if frozen is None else SIDE_OF_PRETRAINED) if size is None else size
    check_whole("size", size, 8, 1024, "the side of the images in pixels")
    check_number("rho", rho, ">= 0", "the radius at which models are compared")
    check_budget(budget)
    check_whole("least_group", least_group, 1)
    check_whole("seed", seed, 0, 2**31 - 1)
    root = Path(folder)
    paths, problem = _labelled(root)
    X = Pictures(size).read(paths)
    options = Options("images", FOR_IMAGES, float(rho), float(budget), 5, 1, seed, 1, least_group, 1, False)
    digest = hashlib.sha256(X.tobytes() + problem.y.tobytes()).hexdigest()
    weights = None if frozen is None else f"{frozen.name} {frozen.digest}"
    return Run.in_folder(
        out,
        {**options.as_json(), "size": size, "data": digest, "features": weights},
        lambda fits: _make_run(problem, X, options, size, fits, root.name, progress, frozen, Logs(loggers)),
        features=features if isinstance(features, nn.Module) else None,
    )


def _labelled(root: Path) -> tuple[list[Path], TableProblem]:
    classes = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(classes) < 2:
        raise DataError(f"expected a subfolder of images for each class in {shown(root)}, got {len(classes)}")
    paths: list[Path] = []
    y: list[int] = []
    for k, own in enumerate(classes):
        members = images_below(own)
        if len(members) < 10:
            raise DataError(f"expected at least 10 images in {shown(printable(own), 200)}, got {len(members)}")
        paths += members
        y += [k] * len(members)
    frame = polars().DataFrame({"path": [printable(p.relative_to(root)) for p in paths]})
    split: Any = {"how": "random", "column": None, "value": None, "text": "A fifth of the images is kept for the test."}
    names = [printable(Path(p.name)) for p in classes]
    return paths, TableProblem(frame, "class", names, np.array(y), [], None, [], None, split, None, [])


def _make_run(
    problem: TableProblem, X: Array, options: Options, size: int, fits: _folder.Fits, title: str,
    progress: Callable[[int, int, str], None] | None, frozen: _pretrained.Frozen | None,
    logs: Logs,
) -> Run:  # fmt: skip
    began, tell = time.monotonic(), progress or (lambda done, total, text: None)
    cut, y = problem.cut(options.seed), problem.y
    if frozen is None:
        fitted = _by_small_network(X, y, cut, len(problem.classes), options, fits, tell)
    else:
        fitted = _by_features(frozen, X, y, cut, len(problem.classes), options, fits, tell)
    predictions = [
        Predictions(name, options.seed, cut.test, predicted, y[cut.test], (0.0, 1.0))
        for name, predicted in fitted.predicted.items()
    ]
    verdict, groups, methods = judge(problem, predictions, options, "second-look", [], fitted.answer)
    for row in methods:
        row["seconds"] = round(time.monotonic() - began, 1)
    tell(3, 3, "done")
    found = Found(methods, [], groups, [], verdict, [fitted.note])
    summary = make_summary(
        problem, options, found, cut, len(cut.test), fitted.trained_on, title, time.monotonic() - began
    )
    logs.end(summary)
    return Run(summary, {name: fitted.models[name] for name in verdict["saved"]}, Pictures(size))


class _Fitted(NamedTuple):
    """The plain and the repaired model, and what they say about the test images."""

    models: dict[str, Any]
    predicted: dict[str, Array]
    answer: str
    trained_on: int
    note: str


def _by_small_network(
    X: Array, y: Array, cut: TrainTest, classes: int, options: Options, fits: _folder.Fits, tell: Any
) -> _Fitted:
    first, second = train_test_split(cut.train, test_size=0.5, random_state=options.seed, stratify=y[cut.train])
    tell(1, 3, "network")
    state = fits.get({"network": options.seed}, lambda: _trained(X[first], y[first], classes, options.seed))
    network = small_network(classes)
    network.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()})
    tell(2, 3, "repair")
    fixed = _repaired(copy.deepcopy(network), as_floats(X[second]), y[second], options)
    models = {"plain": ImageModel(network), "second-look": ImageModel(fixed.model)}
    note = f"The network was trained on {len(first):,} images, its last layer repaired on {len(second):,} others."
    predicted = {name: model.predict(X[cut.test]) for name, model in models.items()}
    return _Fitted(models, predicted, fixed.verdict.answer, len(first), note)


def _by_features(
    frozen: _pretrained.Frozen, X: Array, y: Array, cut: TrainTest, classes: int, options: Options, fits: _folder.Fits,
    tell: Any,
) -> _Fitted:  # fmt: skip
    """The frozen network has seen none of the images, so both layers use all that are not for the test."""
    tell(1, 3, f"features of {frozen.name}")
    features = fits.get({"features": frozen.digest}, lambda: {"features": frozen.features(X)})["features"]
    tell(2, 3, "linear layers")
    plain = _linear(features[cut.train], y[cut.train], classes, options.seed)
    inputs = torch.from_numpy(features[cut.train]).double()
    fixed = _repaired(nn.Sequential(nn.Identity(), copy.deepcopy(plain)), inputs, y[cut.train], options)
    models = {"plain": FeatureModel(frozen, plain), "second-look": FeatureModel(frozen, fixed.model[1])}
    what = "the network given" if frozen.name == _pretrained.GIVEN else frozen.name
    note = f"The features are those of {what}, frozen; linear layers were fitted on {len(cut.train):,} images."
    predicted = {name: model.predict_features(features[cut.test]) for name, model in models.items()}
    return _Fitted(models, predicted, fixed.verdict.answer, len(cut.train), note)


def _repaired(network: nn.Module, inputs: torch.Tensor, y: Array, options: Options) -> Any:
    loader = DataLoader(TensorDataset(inputs, torch.from_numpy(y)), 256)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict says so
        return repair(network, loader, progress=False, budget=options.budget, seed=options.seed)


def _linear(features: Array, y: Array, classes: int, seed: int) -> nn.Linear:
    """Logistic regression, the penalty by cross-validation, as a layer."""
    scaler, model = StandardScaler(), LogisticRegression(max_iter=1000)
    search = GridSearchCV(
        make_pipeline(scaler, model), {"logisticregression__C": PENALTIES}, scoring="neg_log_loss",
        cv=StratifiedKFold(3, shuffle=True, random_state=seed),
    ).fit(features.astype(np.float64), y)  # fmt: skip
    scaler, model = (step for _, step in search.best_estimator_.steps)
    coef = model.coef_ / scaler.scale_
    bias = model.intercept_ - coef @ scaler.mean_
    if classes == 2:  # scikit-learn has one row for both
        coef, bias = np.concatenate([-coef, coef]) / 2, np.concatenate([-bias, bias]) / 2
    head = nn.Linear(features.shape[1], classes, dtype=torch.float64)
    head.load_state_dict({"weight": torch.from_numpy(coef), "bias": torch.from_numpy(bias)})
    return head


def _trained(X: Array, y: Array, classes: int, seed: int) -> dict[str, Any]:
    """Weights of a small network, from the epoch with the lowest loss on a held-out sixth."""
    device = best_device()
    seen, held = train_test_split(np.arange(len(y)), test_size=1 / 6, random_state=seed, stratify=y)
    labels = torch.from_numpy(y)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = small_network(classes).to(device)
        optimizer = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=1e-3)
        best, state, since = np.inf, copy.deepcopy(network.state_dict()), 0
        mixed = torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda")
        for _ in range(EPOCHS):
            network.train()
            for rows in torch.split(torch.from_numpy(seen)[torch.randperm(len(seen))], BATCH):
                if len(rows) < 2:
                    continue
                images = as_floats(X[rows.numpy()])
                flip = torch.rand(len(rows)) < 0.5
                images[flip] = images[flip].flip(3)
                with mixed:
                    out = network(images.to(device))
                loss = cross_entropy(out.float(), labels[rows].to(device))
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            p = ImageModel(network).predict(X[held])
            value = float(-np.log(np.maximum(p[np.arange(len(held)), y[held]], 1e-12)).mean())
            since += 1
            if value < best:
                best, state, since = value, copy.deepcopy(network.state_dict()), 0
            elif since >= PATIENCE:
                break
    return {name: value.cpu().numpy() for name, value in state.items()}
