"""A finished run: its summary, its models that predict for new rows, and its folder.

summary.json     what was found, `Summary`       model.json       columns and scale
models/NAME/     LightGBM's text, or skops       labels.feather   values of the classes
manifest.json    the checksum of every file      report.html      the page
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from scdro._files import write_file
from scdro._html import card
from scdro.errors import CheckpointError, DataError, HyperparameterError, MissingDataError
from scdro.tables import _folder
from scdro.tables._models import MODELS, Columns, Model
from scdro.tables._page import render
from scdro.tables._read import FileOptions, RawTable, as_table, column_of, quote, table_and_ids
from scdro.tables._summary import FORMAT, METHODS, Summary, mismatch

__all__ = ["Run", "label_values", "load"]

Array = npt.NDArray[Any]


def label_values(classes: pl.Series, given: Any) -> pl.Series:
    """The values of the classes with the target's own type: predictions can be compared with the column they are of.

    Args:
        classes: the target's different values, as the table has them, in the order of their numbers.
        given: its type before it was read; None in a text file, where true and false are booleans.

    Example:
        >>> label_values(pl.Series(["False", "true"]), None).to_list()
        [False, True]
    """
    texts = classes.cast(pl.String).str.to_lowercase()
    if (
        classes.dtype == pl.String
        and set(texts) <= {"true", "false"}
        and given in (None, pl.Boolean)
    ):
        classes = texts == "true"
    elif given == pl.Float32 and classes.dtype.is_float():
        classes = classes.cast(pl.Float32)  # 0.1 as float32 does not equal 0.1 as float64
    return classes.alias("prediction")


class Run:
    """What `train` returns and `load` opens.

    Attributes:
        summary: plain data: the task, the methods with their scores, where the plain one fails, the verdict.
        models: names of the models that can predict: "plain", and the robust method if it was
            saved.
        kept: the one that predicts by default; "none" if no model learned anything.
        classes: the target's different values, in its own type; [] for regression.
        reopened: whether `train` found the finished run in its folder and trained nothing.

    Example:
        >>> import scdro
        >>> x = np.arange(200) % 17
        >>> run = scdro.tables.train({"x": x, "y": x > 8}, "y", model="linear", candidates=1, seeds=1)
        >>> run.predict_proba({"x": [2, 15]}).argmax(1).tolist(), run.classes
        ([0, 1], [False, True])
    """

    def __init__(
        self, summary: Summary, fitted: dict[str, Model], inputs: Columns, labels: pl.Series | None,
        scale: tuple[float, float] = (0.0, 1.0),
    ) -> None:  # fmt: skip
        """A run from its parts.

        Args:
            summary: what was found.
            fitted: models by the names of their methods; those that were saved.
            inputs: how rows are encoded for them.
            labels: values of the classes, in the order of their numbers; None for regression.
            scale: mean and deviation of a regression's target, which its models standardise.
        """
        self.summary, self._fitted, self._inputs = summary, fitted, inputs
        self._labels, self._scale, self.reopened = labels, scale, False

    @property
    def models(self) -> list[str]:
        return list(self._fitted)

    @property
    def kept(self) -> str:
        return self.summary["verdict"]["kept"]

    @property
    def classes(self) -> list[Any]:
        return [] if self._labels is None else self._labels.to_list()

    def _encode(self, data: Any) -> Array:
        """New rows as a model sees them."""
        return self._inputs.encode(as_table(data, list(self._inputs.categories)))

    def _predict_scores(self, X: Array, model: str | None) -> Array:
        """Probabilities, (rows, classes), or standardised numbers, (rows,)."""
        if not self._fitted:
            why = self.summary["verdict"]["headline"]
            raise HyperparameterError(f"expected a run with a model, got one without: {why}")
        name = self.kept if model is None else model
        if name == "robust":
            name = next((n for n in self._fitted if n != "plain"), name)
        if name not in self._fitted:
            raise HyperparameterError(
                f"expected one of the models {', '.join(self._fitted)}, got {quote(name)}"
            )
        return self._fitted[name].predict(X)

    def _answer(self, scores: Array) -> pl.Series:
        """The most likely class of each row, in the target's own type, or the number in its own unit."""
        if self._labels is not None:
            answers: pl.Series = self._labels.gather(scores.argmax(1))
            return answers
        mean, std = self._scale
        return pl.Series("prediction", mean + std * scores)

    def predict(self, data: Any, model: str | None = None) -> Array:
        """Predictions for rows with the columns of training, (rows,).

        Args:
            data: a DataFrame, a dictionary of columns, or the path of a file.
            model: "plain" or "robust"; None: the one that was kept.

        Classes have the target's own values and type: whole numbers, floats, booleans, dates or
        texts.
        """
        answers: Array = self._answer(self._predict_scores(self._encode(data), model)).to_numpy()
        return answers

    def predict_proba(self, data: Any, model: str | None = None) -> Array:
        """Probabilities, (rows, classes), in the order of `classes`."""
        if self._labels is None:
            raise HyperparameterError(
                "expected a run of classification for probabilities, got regression; use predict"
            )
        return self._predict_scores(self._encode(data), model)

    def predictions(self, data: Any, model: str | None = None, ids: Sequence[str] = ()) -> Any:
        """A polars DataFrame: the row's number, columns of ids, the prediction, and probabilities of the classes.

        Values are the table's own; `write_predictions` makes them safe for a spreadsheet. A name
        that is taken, such as that of an id called "row", gets an underscore.
        """
        return self._list_predictions(data, model, ids, FileOptions())

    def write_predictions(
        self, path: Any, data: Any, model: str | None = None, ids: Sequence[str] = (), *,
        encoding: str | None = None, decimal: str = ".", sheet: str | None = None,
    ) -> None:  # fmt: skip
        """`predictions` as a file: Parquet, with every type, if it ends with .parquet or .pq, and CSV otherwise.

        Ids of a text file are copied as they are written: 00042 stays 00042. In CSV, booleans are
        spelled as the training data spelled them, and texts that a spreadsheet would take for a
        formula begin with an apostrophe. `encoding`, `decimal` and `sheet` are of the file with
        the data, as for `read_table`.
        """
        typed = Path(path).suffix.lower() in (".parquet", ".pq")
        options = FileOptions(encoding, decimal, sheet)
        table = self._list_predictions(data, model, ids, options, spell_booleans=not typed)
        if typed:
            content = io.BytesIO()
            table.write_parquet(content)
            write_file(Path(path), content.getvalue())
            return
        safe = pl.DataFrame([_make_harmless(one) for one in table.get_columns()])
        write_file(Path(path), safe.write_csv())

    def _list_predictions(
        self, data: Any, model: str | None, ids: Sequence[str], options: FileOptions,
        spell_booleans: bool = False,
    ) -> pl.DataFrame:  # fmt: skip
        """`predictions` of data of any kind.

        Args:
            data, model, ids: as for `predictions`; columns that were ids in training are copied too.
            options: how a file is read.
            spell_booleans: whether booleans are written as the training data spelled them.
        """
        own = [c["name"] for c in self.summary["data"]["columns"] if c["kind"] == "id"]
        texts = list(self._inputs.categories)
        frame, copied = table_and_ids(data, texts, [*own, *ids], options)
        scores = self._predict_scores(self._inputs.encode(frame), model)
        frame = frame.with_columns(copied.get_columns())  # ids as they are written
        answers = self._answer(scores)
        if spell_booleans and answers.dtype == pl.Boolean:
            names = pl.Series("prediction", self.summary["task"]["classes"])
            answers = names.gather(scores.argmax(1))
        wanted = dict.fromkeys([*(name for name in own if name in frame.schema), *ids])
        # The row's number, ids, the answer, and probabilities rounded to six digits.
        columns = [pl.int_range(1, frame.height + 1, eager=True).alias("row")]
        columns += [column_of(frame, name, "an id") for name in wanted]
        columns.append(answers)
        for k, name in enumerate(self.summary["task"]["classes"]):
            columns.append(pl.Series(f"p({name})", scores[:, k].round(6)))
        named: dict[str, pl.Series] = {}  # under different names: an id may be called "row"
        for column in columns:
            name = column.name
            while name in named:
                name += "_"
            named[name] = column
        return pl.DataFrame(named)

    def __str__(self) -> str:
        verdict = self.summary["verdict"]
        return _drop_control_characters(" ".join([verdict["headline"], *verdict["sentences"]]))

    def _repr_html_(self) -> str:
        return card(self.summary["verdict"]["answer"], str(self))

    def report(self) -> str:
        """The page, as HTML."""
        return render(self.summary)

    def save(self, folder: Any, lock: bool = True) -> None:
        """Write the run: `summary.json`, `report.html`, and models in formats that hold no code."""
        folder = Path(folder)
        with _folder.lock_folder(folder) if lock else contextlib.nullcontext():
            # `train` saves into its own folder, which it has locked and which holds its fits.
            if lock and any(not entry.name.startswith(".") for entry in folder.iterdir()):
                raise CheckpointError(
                    f"expected an empty folder to save a run, got files in {quote(folder)}"
                )
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
            if self._labels is not None:
                content = io.BytesIO()
                self._labels.to_frame().write_ipc(content)
                write_file(folder / "labels.feather", content.getvalue())
            write_file(folder / "model.json", json.dumps(about, indent=1))
            write_file(folder / "summary.json", json.dumps(self.summary, indent=1, allow_nan=False))
            write_file(folder / "report.html", self.report())
            # Last: a folder with checksums is a finished run.
            _folder.seal(folder)

    @classmethod
    def in_folder(cls, out: Any, about: dict[str, Any], make: Callable[[_folder.Fits], Run]) -> Run:
        """Load the run if it has finished in this folder; otherwise make it, resuming where it stopped, and save it.

        `about` identifies the run. Without a folder it is made and not saved.
        """
        if out is None:
            return make(_folder.Fits(None))
        folder = Path(out)
        with _folder.lock_folder(folder):
            _folder.check_same_run(folder, about)
            fits = _folder.Fits(folder)
            if (folder / _folder.MANIFEST).exists():
                run = cls.load(folder)
                run.reopened = True
            else:
                run = make(fits)
                run.save(folder, lock=False)
            fits.clear()
            return run

    @classmethod
    def load(cls, folder: Any) -> Run:
        """Open a run; every file is checked against its checksum, and nothing in it is executed."""
        folder = Path(folder)
        _folder.check_run(folder)
        summary, about = (
            _folder.read_json(folder / name) for name in ("summary.json", "model.json")
        )
        try:
            # Checksums say that nothing has changed, not who wrote it: the content is checked too.
            _check_summary(summary, folder)
            kind, classes = MODELS[about["model"]], summary["task"]["classes"]
            inputs, (mean, std) = Columns.from_json(about["inputs"]), map(float, about["scale"])
            names = [str(name) for name in about["models"]]
            if any(name not in METHODS for name in names):
                raise CheckpointError(f"expected names of methods, got {quote(names)}")
            if names and summary["verdict"]["kept"] not in names:
                raise CheckpointError(f"expected the model that was kept, got only {quote(names)}")
            models = {name: kind.load(folder / "models" / name) for name in names}
            if any(model.classes != len(classes) for model in models.values()):
                raise CheckpointError(
                    "expected models of the classes in summary.json, got models of others"
                )
            _try_models(models, len(inputs.names))
            return cls(summary, models, inputs, _read_labels(folder, classes), (mean, std))
        except (*_folder.ERRORS, OSError) as error:
            if isinstance(error, CheckpointError | MissingDataError):
                raise
            raise CheckpointError(
                f"expected a run in {quote(folder)}, got damaged files: {error!r}"
            ) from error


def _check_summary(summary: Any, folder: Path) -> None:
    """Raise for another format, or for a field that is missing, unknown or of another type."""
    if summary["format"] != FORMAT:
        raise CheckpointError(
            f"expected a summary of format {FORMAT}, got {quote(summary['format'])}"
        )
    wrong = mismatch(summary, Summary)
    if wrong is not None:
        raise CheckpointError(
            f"expected the summary of a run in {quote(folder)}, got {quote(wrong, 200)}"
        )


def _read_labels(folder: Path, names: list[str]) -> pl.Series | None:
    """The values of the classes; None for regression."""
    if not names:
        return None
    try:
        labels = RawTable.read(folder / "labels.feather", FileOptions()).frame["prediction"]
    except (DataError, pl.exceptions.PolarsError) as error:
        raise CheckpointError(f"expected the labels of a run, got: {error}") from error
    if len(labels) != len(names) or labels.null_count() or labels.dtype.is_nested():
        raise CheckpointError(f"expected {len(names)} labels, got {quote(labels.to_list())}")
    return labels


def _try_models(models: dict[str, Model], columns: int) -> None:
    """Fail here, not at the first prediction, if the models do not fit the columns in model.json."""
    try:
        for model in models.values():
            model.predict(np.zeros((1, columns)))
    except Exception as error:  # each library has errors of its own
        raise CheckpointError(
            f"expected models of the {columns} columns in model.json, got others"
        ) from error


def _drop_control_characters(text: str) -> str:
    """A text for a terminal or a spreadsheet: control characters become spaces."""
    return "".join(c if c.isprintable() else " " for c in text)


def _escape(text: str) -> str:
    """A text that no spreadsheet takes for a formula: with an apostrophe before = + @ and most -.

    A negative number stays as it is.
    """
    text = _drop_control_characters(text)
    risky = text[:1] in ("=", "+", "@") or (
        text[:1] == "-" and not text[1:].replace(".", "", 1).isdigit()
    )
    return f"'{text}" if risky else text


def _make_harmless(column: pl.Series) -> pl.Series:
    """A column whose name and texts no spreadsheet takes for a formula (`_escape`)."""
    if column.dtype == pl.String:
        texts = [None if text is None else _escape(text) for text in column.to_list()]
        column = pl.Series(column.name, texts, dtype=pl.String)
    return column.alias(_escape(column.name))


def load(folder: Any) -> Run:
    """Open the run that `scdro train` or `Run.save` left in a folder.

    Every file is checked against its checksum; opening a run executes nothing from it.

    Args:
        folder: the folder of the run.

    Example:
        >>> import scdro, tempfile
        >>> x = np.arange(200) % 17
        >>> folder = tempfile.mkdtemp() + "/run"
        >>> _ = scdro.tables.train({"x": x, "y": x > 8}, "y", model="linear", candidates=1, seeds=1, out=folder)
        >>> scdro.load(folder).predict({"x": [2, 15]}).tolist()
        [False, True]
    """
    return Run.load(folder)
