"""A finished run: its summary, its models, its folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scdro._files import write_file
from scdro.errors import CheckpointError, HyperparameterError
from scdro.tables import _folder
from scdro.tables._columns import Columns
from scdro.tables._families import FAMILIES
from scdro.tables._models import Model
from scdro.tables._page import render
from scdro.tables._read import column_of, polars, shown
from scdro.tables._summary import FORMAT, METHODS, Summary, mismatch

__all__ = ["Run", "load"]

Array = npt.NDArray[Any]


class Run:
    """What `train` and `audit` return, and `load` opens.

    Attributes:
        summary: plain data: the task, the methods with their scores, who is failed, the verdict.
        models: names of the models that can predict: "plain", and the robust method if it was saved.
        kept: the one that predicts by default; "none" if no model learned anything.

    Example:
        >>> import scdro
        >>> x = np.arange(200) % 17
        >>> run = scdro.tables.train({"x": x, "y": x > 8}, "y", model="linear", candidates=1, seeds=1)
        >>> run.predict_proba({"x": [2, 15]}).argmax(1).tolist(), run.classes
        ([0, 1], ['false', 'true'])
    """

    def __init__(
        self, summary: Summary, fitted: dict[str, Model], inputs: Any, scale: tuple[float, float] = (0.0, 1.0)
    ) -> None:
        self.summary, self._fitted, self._inputs, self._scale = summary, fitted, inputs, scale

    @property
    def models(self) -> list[str]:
        return list(self._fitted)

    @property
    def kept(self) -> str:
        return self.summary["verdict"]["kept"]

    @property
    def classes(self) -> list[str]:
        return self.summary["task"]["classes"]

    def _scores(self, X: Array, model: str | None) -> Array:
        if not self._fitted:
            why = "an audit keeps none" if self.summary["kind"] == "audit" else self.summary["verdict"]["headline"]
            raise HyperparameterError(f"expected a run with a model, got one without: {why}")
        name = self.kept if model is None else model
        if name == "robust":
            name = next((n for n in self._fitted if n != "plain"), name)
        if name not in self._fitted:
            raise HyperparameterError(f"expected one of the models {', '.join(self._fitted)}, got {shown(name)}")
        return self._fitted[name].predict(X)

    def predict(self, data: Any, model: str | None = None) -> Array:
        """Classes by name, or numbers, for rows with the columns of training; `model`: "plain" or "robust"."""
        return self._answers(self._scores(self._inputs.open(data)[1], model))

    def _answers(self, scores: Array) -> Array:
        if self.classes:
            names: Array = np.array(self.classes, dtype=object)[scores.argmax(1)]
            return names
        mean, std = self._scale
        numbers: Array = mean + std * scores
        return numbers

    def predict_proba(self, data: Any, model: str | None = None) -> Array:
        """(rows, classes), in the order of `classes`."""
        if not self.classes:
            raise HyperparameterError("expected a run of classification for probabilities, got regression; use predict")
        return self._scores(self._inputs.open(data)[1], model)

    def predictions(self, data: Any, model: str | None = None, ids: Sequence[str] = ()) -> Any:
        """A polars DataFrame: the row's number, columns of ids, the prediction, and probabilities of the classes.

        Texts that a spreadsheet would take for a formula begin with an apostrophe. A name that is taken, such as that
        of an id called "row", gets an underscore.
        """
        pl = polars()
        frame, X = self._inputs.open(data)
        scores = self._scores(X, model)
        known = [c["name"] for c in self.summary["data"]["columns"] if c["kind"] == "id" and c["name"] in frame.columns]
        columns = [pl.int_range(1, frame.height + 1, eager=True).alias("row")]
        columns += [_harmless(column_of(frame, name, "an id")) for name in dict.fromkeys([*known, *ids])]
        columns.append(_harmless(pl.Series("prediction", list(self._answers(scores)))))
        if self.classes:
            columns += [pl.Series(f"p({name})", scores[:, k].round(6)) for k, name in enumerate(self.classes)]
        names: list[str] = []
        for column in columns:
            name = _quoted(column.name)
            while name in names:
                name += "_"
            names.append(name)
        return pl.DataFrame([column.alias(name) for column, name in zip(columns, names, strict=True)])

    def __str__(self) -> str:
        verdict = self.summary["verdict"]
        return _printable(" ".join([verdict["headline"], *verdict["sentences"]]))

    def report(self) -> str:
        """The page, as HTML."""
        return render(self.summary)

    def save(self, folder: Any, lock: bool = True) -> None:
        """Write the run: `summary.json`, `report.html`, and models in formats that hold no code."""
        folder = Path(folder)
        with _folder.locked(folder) if lock else contextlib.nullcontext():
            if lock and any(not entry.name.startswith(".") for entry in folder.iterdir()):
                raise CheckpointError(f"expected an empty folder to save a run, got files in {shown(folder)}")
            about = {
                "model": self.summary["settings"]["model"],
                "inputs": self._inputs.as_json(),
                "scale": list(self._scale),
                "models": self.models,
            }
            for name, model in self._fitted.items():
                own = folder / "models" / name
                own.mkdir(parents=True, exist_ok=True)
                model.save(own)
            write_file(folder / "model.json", json.dumps(about, indent=1))
            write_file(folder / "summary.json", json.dumps(self.summary, indent=1, allow_nan=False))
            write_file(folder / "report.html", self.report())
            _folder.seal(folder)

    @classmethod
    def in_folder(
        cls, out: Any, about: dict[str, Any], make: Callable[[_folder.Fits], Run], features: Any = None
    ) -> Run:
        """Load the run if it has finished in this folder; otherwise make it, resuming where it stopped, and save it.

        `about` identifies the run. Without a folder it is made and not saved.
        """
        if out is None:
            return make(_folder.Fits(None))
        folder = Path(out)
        with _folder.locked(folder):
            _folder.same_run(folder, about)
            fits = _folder.Fits(folder)
            if (folder / _folder.MANIFEST).exists():
                run = cls.load(folder, features)
            else:
                run = make(fits)
                run.save(folder, lock=False)
            fits.clear()
            return run

    @classmethod
    def load(cls, folder: Any, features: Any = None) -> Run:
        """Open a run; every file is checked against its checksum, and nothing in it is executed."""
        folder = Path(folder)
        _folder.open_run(folder)
        summary, about = _folder.read_json(folder / "summary.json"), _folder.read_json(folder / "model.json")
        try:
            if summary["format"] != FORMAT:
                raise CheckpointError(f"expected a summary of format {FORMAT}, got {shown(summary['format'])}")
            wrong = mismatch(summary, Summary)
            if wrong is not None:
                raise CheckpointError(f"expected the summary of a run in {shown(folder)}, got {shown(wrong, 200)}")
            family = FAMILIES[about["model"]](1)
            if features is not None:
                family.features = features
            inputs = family.inputs.from_json(about["inputs"])
            mean, std = (float(value) for value in about["scale"])
            names = [str(name) for name in about["models"]]
            if any(name not in METHODS for name in names):
                raise CheckpointError(f"expected names of methods, got {shown(names)}")
            if names and summary["verdict"]["kept"] not in names:
                raise CheckpointError(f"expected the model that was kept, got only {shown(names)}")
            models = {name: family.load(folder / "models" / name) for name in names}
            if any(model.classes != len(summary["task"]["classes"]) for model in models.values()):
                raise CheckpointError("expected models of the classes in summary.json, got models of others")
            if isinstance(inputs, Columns):
                _try(models, len(inputs.names))
            return cls(summary, models, inputs, (mean, std))
        except _folder.ERRORS as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"expected a run in {shown(folder)}, got damaged files: {error!r}") from error


def _try(models: dict[str, Model], columns: int) -> None:
    """Fail here, not at the first prediction, if the models do not fit the columns in model.json."""
    try:
        for model in models.values():
            model.predict(np.zeros((1, columns)))
    except Exception as error:  # each library has errors of its own
        raise CheckpointError(f"expected models of the {columns} columns in model.json, got others") from error


def _printable(text: str) -> str:
    """Without control characters."""
    return "".join(c if c.isprintable() else " " for c in text)


def _quoted(text: str) -> str:
    """Harmless in a spreadsheet and on a terminal."""
    text = _printable(text)
    risky = text[:1] in ("=", "+", "@") or (text[:1] == "-" and not text[1:].replace(".", "", 1).isdigit())
    return f"'{text}" if risky else text


def _harmless(column: Any) -> Any:
    if column.dtype != polars().String:
        return column
    return polars().Series(column.name, [None if v is None else _quoted(v) for v in column.to_list()])


def load(folder: Any, features: Any = None) -> Run:
    """Open the run that `scdro train` or `Run.save` left in a folder.

    Every file is checked against its checksum; opening a run executes nothing from it.

    Args:
        folder: the folder of the run.
        features: the network, if the run is on images and its features came from a network given as an object.

    Example:
        >>> import scdro, tempfile
        >>> x = np.arange(200) % 17
        >>> folder = tempfile.mkdtemp() + "/run"
        >>> _ = scdro.tables.train({"x": x, "y": x > 8}, "y", model="linear", candidates=1, seeds=1, out=folder)
        >>> scdro.load(folder).predict({"x": [2, 15]}).tolist()
        ['false', 'true']
    """
    return Run.load(folder, features)
