"""Tables from files and from memory, as polars DataFrames of numbers, texts and dates.

    1. RawTable.read    the file, by its ending; texts of CSV and Excel as they are written
                        or a DataFrame of pandas, polars or Arrow, or a dictionary of columns
    2. RawTable.tidy    texts that are all numbers, or all dates, become such     (_read_values)
                        other types become a number, a text or a date             (use_plain_types)

No row is lost and nothing is guessed in silence: a file that does not fit is an error that names
the line. Between the two steps ids can be copied as they are written, 00042 as 00042.

From the top: words for messages; options of files; the steps; each format; CSV; columns of texts.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from scdro.errors import DataError, HyperparameterError, MissingDataError

__all__ = [
    "NUMBER_AS_WRITTEN", "FileOptions", "RawTable", "as_table", "column_of", "has_decimal_commas",
    "list_names", "name_first_row", "quote", "read_csv", "read_table", "read_value_like",
    "read_written_numbers", "replace_decimal_commas", "table_and_ids", "to_seconds",
    "use_plain_types",
]  # fmt: skip

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?")
DELIMITERS = ",\t;|"
LISTED = 8  # names in a message; more are counted
ROWS_LOOKED_AT = 20  # rows that must agree on the delimiter
# A text over several lines, each with as many delimiters as a row has, and this many in all: these
# are rows behind a quote that was never closed.
SWALLOWED = 10
FIELDS_AT_ONCE = 2**22  # fields that are texts of Python at a time


def quote(text: Any, most: int = 60) -> str:
    """A name or value for a message: quoted, control characters escaped, not too long."""
    text = repr(str(text))
    return text if len(text) <= most else f"{text[: most - 4]}...{text[-1]}"


def name_first_row(mask: pl.Series) -> str:
    """The first row of a mask, as a user would find it. (Blank lines, or line breaks in quotes, move it down.)"""
    row = int(mask.arg_max() or 0)
    return f"row {row + 1}, line {row + 2} of a CSV file"


def column_of(frame: pl.DataFrame, name: str, what: str) -> pl.Series:
    """A column by name; the error suggests the one you may have meant, and never lists thousands."""
    try:
        return frame.get_column(name)
    except pl.exceptions.ColumnNotFoundError:
        names = frame.columns
    close = get_close_matches(name, names, 1, cutoff=0.6)
    if not close:
        close = [c for c in names if c.strip().lower() == name.strip().lower()][:1]
    meant = f"did you mean {quote(close[0])}?" if close else f"there are {list_names(names)}"
    raise DataError(
        f"expected a column {quote(name)}, {what}, among the {frame.width} columns; {meant}"
    )


def list_names(names: Sequence[str], most: int = LISTED) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(quote(n, 30) for n in names[:most])}{more}"


class FileOptions(NamedTuple):
    """What a file does not say about itself."""

    encoding: str | None = None  # of a CSV file; None: UTF-8
    decimal: str = "."  # in the numbers of a CSV or Excel file
    sheet: str | None = None  # of an Excel file; None: its only one

    def check(self, data: Any) -> None:
        """Raise for an option that this file would ignore: `sheet` of a CSV file, say."""
        if self.decimal not in (".", ","):
            raise HyperparameterError(
                f"expected decimal to be '.' or ',', got {quote(self.decimal)}"
            )
        for name, kinds in SAID_OF.items():
            if getattr(self, name) == self._field_defaults[name]:
                continue
            is_path = isinstance(data, str | Path)
            kind = _format_of(Path(data)) if is_path else f"a {type(data).__name__}"
            if kind not in (*kinds, "zip"):
                raise HyperparameterError(
                    f"expected {name} only for {' or '.join(kinds)} files, got it for {kind}"
                )

    def for_file(self, data: Any) -> FileOptions:
        """Only those that say something about this file: test rows may be in one of another kind."""
        kind = _format_of(Path(data)) if isinstance(data, str | Path) else None
        others = [name for name, kinds in SAID_OF.items() if kind not in (*kinds, "zip")]
        return self._replace(**{name: self._field_defaults[name] for name in others})


# Which formats each option says something about; what is in a .zip is seen only later.
SAID_OF = {"encoding": ("CSV",), "decimal": ("CSV", "Excel"), "sheet": ("Excel",)}


def read_table(
    path: Any,
    texts: Sequence[str] = (),
    *,
    encoding: str | None = None,
    decimal: str = ".",
    sheet: str | None = None,
) -> pl.DataFrame:
    """A CSV, Excel, Parquet, Feather or JSON lines file as a polars DataFrame.

    CSV files (.csv, .tsv, .txt, .data) may be packed (.gz); any file may be the only one in a .zip.
    In a CSV or Excel file, columns whose values are all numbers become numbers, and those of dates
    (2024-01-31 or 31.1.2024) become dates; "", NA, NaN, null, None and ? are missing; blank lines
    are skipped. Rows that do not fit, quotes that are not closed, bytes that are not of the
    encoding and NULs are errors with the number of the line.

    Args:
        path: path of the file.
        texts: columns of a CSV or Excel file that are texts even if all values are numbers.
        encoding: of a CSV file, such as "cp1252" or "utf-16"; None: UTF-8.
        decimal: "," if numbers of a CSV or Excel file are written as 3,5.
        sheet: name of the sheet of an Excel file that has several.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "people.csv"
        >>> _ = path.write_text("age,city\\n31,Oslo\\n?,Rome\\n")
        >>> read_table(path).rows()
        [(31, 'Oslo'), (None, 'Rome')]
    """
    return as_table(Path(path), texts, FileOptions(encoding, decimal, sheet))


def as_table(
    data: Any,
    texts: Sequence[str] = (),
    options: FileOptions = FileOptions(),  # noqa: B008
) -> pl.DataFrame:
    """A DataFrame of pandas, polars or Arrow, a dictionary of columns, or a path, as a polars DataFrame."""
    return table_and_ids(data, texts, (), options)[0]


def table_and_ids(
    data: Any,
    texts: Sequence[str] = (),
    ids: Sequence[str] = (),
    options: FileOptions = FileOptions(),  # noqa: B008
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The table, and those columns of ids that it has as they are written: 00042 is not 42, NA not missing."""
    raw = RawTable.read(data, options)
    copied = raw.frame.select(name for name in dict.fromkeys(ids) if name in raw.frame.schema)
    return raw.tidy(texts, options), copied


class RawTable(NamedTuple):
    """A table before its values are read."""

    frame: pl.DataFrame  # of CSV and Excel files, all columns are texts as they are written
    kind: str  # of the file, such as "CSV"; "" for data in memory
    path: Path | None  # None for data in memory

    @classmethod
    def read(cls, data: Any, options: FileOptions) -> RawTable:
        """Of a DataFrame of pandas, polars or Arrow, a dictionary of columns, or a path."""
        options.check(data)
        if isinstance(data, str | Path):
            return cls(*_read_file(Path(data), options), Path(data))
        return cls(_frame_of_memory(data), "", None)

    def tidy(self, texts: Sequence[str], options: FileOptions) -> pl.DataFrame:
        """Only numbers, texts and dates; `texts` stay texts. Infinite numbers count as missing."""
        frame = self.frame
        if self.kind in ("CSV", "Excel"):
            frame = _read_values(frame, set(texts), options.decimal)
        if frame.height == 0 or frame.width == 0:
            where = "" if self.path is None else f" in {quote(self.path)}"
            raise DataError(f"expected rows and columns{where}, got {frame.shape}")
        return use_plain_types(frame)

    def type_of(self, name: str) -> Any:
        """The type of a column, which `tidy` may make a text; None in a text file, which has no types."""
        if self.kind in ("CSV", "Excel", "JSON lines"):
            return None
        kind = self.frame.schema[name]
        if kind == pl.Object:
            first = next((one for one in self.frame[name].to_list() if one is not None), None)
            return pl.Boolean if type(first).__name__ in ("bool", "bool_") else pl.String
        return kind


def _frame_of_memory(data: Any) -> pl.DataFrame:
    """A table in memory as one of polars, with the types that it has."""
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    if type(data).__module__.startswith("pyarrow"):
        return pl.from_arrow(data)
    if hasattr(data, "keys"):  # pandas, or a dictionary
        columns = {str(name): _plain_column(data[name]) for name in data.keys()}  # noqa: SIM118
        return pl.DataFrame(
            {
                name: _make_column(name, values) if isinstance(values, list | tuple) else values
                for name, values in columns.items()
            }
        )
    raise DataError(
        f"expected a DataFrame, a dictionary of columns or a path, got {type(data).__name__}"
    )


def _make_column(name: str, values: Any) -> pl.Series:
    """A list of Python's values as a column: floats of different numbers, texts of other mixtures."""
    try:
        column = pl.Series(name, values)
        if column.dtype != pl.Int128:  # which few functions know
            return column
    except (TypeError, OverflowError):
        pass
    known = [value for value in values if value is not None]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in known)
    kind: Any = _as_float if numbers else str
    return pl.Series(name, [None if value is None else kind(value) for value in values])


def _as_float(value: float) -> float:
    """A number of Python as a float; whole numbers beyond 1e308 are infinite."""
    try:
        return float(value)
    except OverflowError:  # a whole number beyond 1e308
        return float("inf")


def _plain_column(values: Any) -> Any:
    """pandas' categories, objects and nullable types as lists: polars cannot read these without pyarrow."""
    if not hasattr(values, "dtype") or not hasattr(values, "isna"):
        return values
    if getattr(values.dtype, "kind", "O") in "iufbM" and not hasattr(values.dtype, "na_value"):
        return values.to_numpy()
    return [
        None if gone else value
        for value, gone in zip(values.tolist(), values.isna().tolist(), strict=True)
    ]


# -- files

FORMATS = {
    ".csv": "CSV", ".tsv": "CSV", ".txt": "CSV", ".data": "CSV",
    ".xlsx": "Excel", ".xlsm": "Excel", ".xlsb": "Excel", ".xls": "Excel", ".ods": "Excel",
    ".parquet": "Parquet", ".pq": "Parquet", ".feather": "Feather", ".arrow": "Feather",
    ".jsonl": "JSON lines", ".ndjson": "JSON lines", ".zip": "zip",
}  # fmt: skip


def _format_of(path: Path) -> str:
    """By the ending; .gz says nothing about what is in it."""
    ending = path.suffixes[-2:-1] if path.suffix.lower() == ".gz" else path.suffixes[-1:]
    kind = FORMATS.get(ending[0].lower()) if ending else None
    if kind is None or (path.suffix.lower() == ".gz" and kind not in ("CSV", "JSON lines")):
        raise DataError(
            "expected a file that ends with .csv, .tsv, .txt (each also with .gz), .xlsx,"
            f" .parquet, .feather, .jsonl or .zip, got {quote(path)}; from Python, give a DataFrame"
        )
    return kind


def _read_file(path: Path, options: FileOptions) -> tuple[pl.DataFrame, str]:
    """The table of a file and its format; of CSV and Excel, texts are as they are written."""
    if not path.exists():
        raise MissingDataError(f"expected a file {quote(path)}, found none")
    if not path.is_file():
        raise DataError(f"expected a file of a table, got {quote(path)}, which is not a file")
    name, kind, content = path, _format_of(path), None
    if kind == "zip":
        name, content = _unzip(path)
        kind = _format_of(name)
        options.check(name)
    if kind == "Parquet":
        return _read_binary(kind, path if content is None else content, path), kind
    raw = path.read_bytes() if content is None else content
    if kind == "Feather":
        return _read_binary(kind, raw, path), kind
    if kind == "Excel":
        return _read_excel(raw, options.sheet, path), kind
    if name.suffix.lower() == ".gz":
        with _expecting("a gzip file", path, EOFError, zlib.error, gzip.BadGzipFile):
            raw = gzip.decompress(raw)
    if kind == "JSON lines":
        return _read_json_lines(raw, path), kind
    tabs = ".tsv" in (suffix.lower() for suffix in name.suffixes)
    return read_csv(raw, options.encoding, tabs, path), kind


@contextmanager
def _expecting(what: str, path: Path, *errors: type[BaseException]) -> Iterator[None]:
    """Turn errors of the library that reads a file into one of ours, which says what file it is.

    Args:
        what: what the file should be, for "expected ..., got a damaged one".
        path: the file.
        errors: what that library raises for a damaged file.
    """
    try:
        yield
    except errors as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise DataError(f"expected {what}, got a damaged one, {quote(path)}: {said}") from error


def _unzip(path: Path) -> tuple[Path, bytes]:
    """The name and the content of the only file in a zip."""
    encrypted = (RuntimeError, NotImplementedError)
    with (
        _expecting("a zip file that is not encrypted", path, zipfile.BadZipFile, zlib.error, EOFError, *encrypted),
        zipfile.ZipFile(path) as packed,
    ):  # fmt: skip
        hidden = ("__MACOSX/", ".")
        files = [
            one for one in packed.namelist() if not one.endswith("/") and not one.startswith(hidden)
        ]
        if len(files) != 1:
            came = f"{len(files)}: {list_names(files)}" if files else "none"
            raise DataError(f"expected one file in {quote(path)}, got {came}; unpack it")
        if files[0].lower().endswith(".zip"):
            raise DataError(
                f"expected a table in {quote(path)}, got another zip, {quote(files[0])}"
            )
        return Path(files[0]), packed.read(files[0])


def _read_binary(kind: str, source: Any, path: Path) -> pl.DataFrame:
    """A Parquet or Feather file, from its path or its bytes."""
    errors = pl.exceptions.PolarsError, OSError, pl.exceptions.PanicException
    with _expecting(f"a {kind} file", path, *errors):
        return pl.read_parquet(source) if kind == "Parquet" else pl.read_ipc(source)


def _read_excel(raw: bytes, sheet: str | None, path: Path) -> Any:
    """A sheet; each column's whole length decides about its type."""
    try:
        import fastexcel  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDataError(
            f"expected fastexcel, which reads Excel files such as {quote(path)}; pip install"
            " 'scdro[excel]', or save the table as CSV"
        ) from error
    with _expecting("an Excel file", path, Exception):  # fastexcel has errors of its own
        sheets = pl.read_excel(
            io.BytesIO(raw), sheet_id=0, infer_schema_length=None, raise_if_empty=False
        )
    if sheet is not None:
        if sheet not in sheets:
            raise DataError(
                f"expected a sheet {quote(sheet)} in {quote(path)}, there are"
                f" {list_names(list(sheets))}"
            )
        return sheets[sheet]
    filled = [name for name, frame in sheets.items() if frame.width]
    if len(filled) > 1:
        raise DataError(
            f"expected one sheet in {quote(path)}, got {list_names(filled)}; say which with --sheet"
            " NAME (sheet= in Python)"
        )
    return sheets[filled[0]] if filled else pl.DataFrame()


def _read_json_lines(raw: bytes, path: Path) -> pl.DataFrame:
    """An object in every line; a name that a line lacks is missing there."""
    rows = []
    for number, line in enumerate(io.BytesIO(raw), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_make_json_object)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"expected JSON in every line of {quote(path)}, got other text in line {number}:"
                f" {error}"
            ) from None
        wrong = "none"
        if isinstance(row, dict):
            nested = [name for name, value in row.items() if isinstance(value, dict | list)]
            wrong = f"a nested one in {quote(nested[0])}" if nested else ""
        if wrong:
            raise DataError(
                f"expected an object of numbers and texts in every line of {quote(path)}, got"
                f" {wrong} in line {number}"
            )
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        columns = [_make_column(name, [row.get(name) for row in rows]) for name in names]
        return _make_frame(_as_dates(one) if one.dtype == pl.String else one for one in columns)
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON may have
        raise DataError(
            f"expected texts of Unicode in {quote(path)}, got {quote(error.object)}"
        ) from None


def _make_json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a line of JSON. Python's reader would keep only the last of two equal names."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise ValueError(f"the name {quote(twice)} twice")
    return values


# -- CSV: Python's reader decides what a row is, and no other one reads the file


def read_csv(raw: bytes, encoding: str | None, tabs: bool, path: Path) -> Any:
    """The columns of a CSV file, all of them texts as written. Blank lines are skipped.

    Python's reader knows the line of every row, and the errors here name it. Texts become columns
    of polars a chunk at a time: as Python's objects they take much more memory.

    Args:
        raw: the bytes of the file, unpacked.
        encoding: as the user said; None: UTF-8, with or without a byte order mark.
        tabs: whether the ending says that tabs divide fields; otherwise the delimiter is found.
        path: of the file, for errors.
    """
    if encoding is None and raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(
            f"expected UTF-8 text in {quote(path)}, got UTF-16 from line 1 on; say so with"
            " --encoding utf-16 (encoding= in Python), or save it as UTF-8"
        )
    known = _check_encoding(encoding)
    parts: list[list[Any]] = []  # of each chunk of rows its columns
    rows: list[list[str]] = []
    names: list[str] = []
    line = 0  # the last of the rows so far

    def finish_chunk() -> None:
        parts.append([pl.Series(values, dtype=pl.String) for values in zip(*rows, strict=True)])
        rows.clear()

    try:
        delimiter = "\t" if tabs else _find_delimiter(raw, known)
        reader = csv.reader(_iterate_lines(raw, known, path), delimiter=delimiter, strict=True)
        for row in reader:
            if reader.line_num > line + 2:
                _check_swallowed(row, delimiter, path, line + 1)
            if not line:
                names = _check_names(row, path)
            elif len(row) == len(names):
                rows.append(row)
                if len(rows) * len(names) >= FIELDS_AT_ONCE:
                    finish_chunk()
            elif row:
                raise DataError(
                    f"expected {len(names)} fields in every row of {quote(path)}, as in its first"
                    f" line, got {len(row)} in line {line + 1}"
                )
            line = reader.line_num
    except UnicodeError:
        raise DataError(
            f"expected {encoding or 'UTF-8'} text in {quote(path)}, got other bytes in line"
            f" {_find_bad_line(raw, known)}; if it has another encoding, say which: --encoding cp1252"
            " (encoding= in Python)"
        ) from None
    except csv.Error as error:
        most = f"fields of at most {csv.field_size_limit():,} characters and " * (
            "limit" in str(error)
        )
        raise DataError(
            f"expected {most}quotes that are closed in {quote(path)}, got {error} in the row that"
            f" starts in line {line + 1}"
        ) from None
    if rows:
        finish_chunk()
    if not parts:
        raise DataError(
            f"expected a line of column names and rows below it in {quote(path)}, got"
            f" {int(bool(names))} line(s)"
        )
    columns = [pl.concat(own) if len(parts) > 1 else own[0] for own in zip(*parts, strict=True)]
    return _make_frame(column.alias(name) for column, name in zip(columns, names, strict=True))


def _check_swallowed(row: list[str], delimiter: str, path: Path, line: int) -> None:
    """Raise if a field has swallowed rows: a quote was opened, and closed only much later.

    A text may have many lines. But if each of them has as many delimiters as a row, they are rows.
    """
    for text in row:
        inside = re.split(r"\r\n|\r|\n", text)[1:-1]
        counts = {one.count(delimiter) for one in inside}
        if counts == {len(row) - 1} and len(inside) * (len(row) - 1) >= SWALLOWED:
            raise DataError(
                f"expected quotes that are closed in {quote(path)}, got a text over {len(inside) + 2:,}"
                f" lines, each like a row, in the row that starts in line {line}; close the quote, or"
                " write it twice within quotes"
            )


def _check_encoding(name: str | None) -> str:
    """Python's name of an encoding; of UTF-8 the one that also reads a byte order mark."""
    try:
        known = codecs.lookup(name or "utf-8").name
        "".encode(known)  # fails for codecs of Python that are not of texts
    except (LookupError, UnicodeError):
        raise HyperparameterError(
            "expected an encoding that Python knows, such as utf-8, cp1252, latin-1 or utf-16, got"
            f" {quote(name)}"
        ) from None
    return "utf-8-sig" if known == "utf-8" else known


def _iterate_lines(raw: bytes, encoding: str, path: Path) -> Iterator[str]:
    """The lines of a file, decoded one by one.

    Line ends stay as they are: inside quotes they belong to the value.
    """
    for number, line in enumerate(io.TextIOWrapper(io.BytesIO(raw), encoding, newline=""), 1):
        if "\0" in line:
            raise DataError(f"expected text in {quote(path)}, got a NUL in line {number}")
        yield line


def _find_delimiter(raw: bytes, encoding: str) -> str:
    """The delimiter that divides the first rows into the same number of fields, and the most of them.

    A comma inside texts of a file with semicolons gives rows of different lengths.
    """

    def rate(delimiter: str) -> tuple[bool, int]:
        """Whether all of the first rows have as many fields, and how many; larger is better."""
        text = io.TextIOWrapper(io.BytesIO(raw), encoding, newline="")
        try:
            names, *rows = islice(
                csv.reader(text, delimiter=delimiter, strict=True), ROWS_LOOKED_AT
            )
        except (csv.Error, ValueError):  # no line, or another encoding: refused later
            return False, first.count(delimiter)
        return all(len(row) in (0, len(names)) for row in rows) and len(names) > 1, len(names) - 1

    first = io.TextIOWrapper(io.BytesIO(raw), encoding, "replace").readline()
    return max(DELIMITERS, key=rate)


def _check_names(names: list[str], path: Path) -> list[str]:
    """The first line: raise if it is empty, has a name twice, or has numbers, as a row of data has."""
    if not names:
        raise DataError(f"expected names of columns in line 1 of {quote(path)}, got an empty line")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(
                f"expected different names of columns in line 1 of {quote(path)}, got {quote(name)}"
                " twice"
            )
        seen.add(name)
    if all(_is_number(name) for name in names):
        raise DataError(
            f"expected names of columns in line 1 of {quote(path)}, got numbers: add a first line"
        )
    return names


def _is_number(text: str) -> bool:
    """Whether Python reads the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _find_bad_line(raw: bytes, encoding: str) -> int:
    """The first line that is not of the encoding."""
    try:
        raw.decode(encoding)
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode(encoding, "replace")
        return len(re.findall(r"\r\n|\r|\n", before)) + 1
    except UnicodeError:
        pass
    return 1


# -- columns of texts


def _read_values(frame: Any, texts: Set[str], decimal: str) -> Any:
    """Texts as numbers or dates in columns where all values are; spaces around texts are dropped.

    For each column, the first that fits all of its values: whole numbers, numbers, numbers with a
    decimal comma if the user said so, dates; otherwise texts. All columns are converted by one
    call: one call of polars takes longer than the work on a small column, and there may be 100,000.
    """
    own = [c.name for c in frame.get_columns() if c.dtype == pl.String]  # Excel knows the others
    stripped = frame.select(pl.col(own).str.strip_chars())
    stripped = stripped.select(pl.when(~pl.all().is_in(MISSING)).then(pl.all()))
    # Missing values of each column: a conversion fits if it makes no more of them.
    gaps = dict(zip(own, stripped.null_count().row(0), strict=True)) if own else {}
    typed: dict[str, Any] = {}  # columns that were converted, by name
    for kind in (pl.Int64, pl.Float64):
        left = [name for name in own if name not in typed and name not in texts]
        if not left:
            break
        numbers = stripped.select(
            replace_decimal_commas(pl.col(left)) if decimal == "," else pl.col(left)
        )
        numbers = numbers.select(pl.all().cast(kind, strict=False))
        typed |= {
            column.name: column
            for column in numbers.get_columns()
            if column.null_count() == gaps[column.name]
        }
    for column in stripped.get_columns():
        if decimal == "," and column.name not in {*typed, *texts} and has_decimal_commas(column):
            plain = column.str.replace_all(".", "", literal=True)  # 1.234,56
            typed[column.name] = plain.str.replace(",", ".", literal=True).cast(pl.Float64)
        if column.name not in typed:
            typed[column.name] = column if column.name in texts else _as_dates(column)
    return _make_frame(typed.get(column.name, column) for column in frame.get_columns())


def replace_decimal_commas(texts: pl.Expr) -> pl.Expr:
    """Numbers with a decimal comma as the same with a point; missing where a text is none."""
    number = texts.str.contains(r"^[+-]?(\d+,?\d*|,\d+)([eE][+-]?\d+)?$")
    return pl.when(number).then(texts.str.replace(",", ".", literal=True))


# 37,000.00 or $5.0 or -5 € or 35%: a sign, a currency, digits with or without separators of
# thousands (a group of thousands does not begin with 0), decimals, a currency or percent.
NUMBER_AS_WRITTEN = (
    r"^[+-]?\s?[$€£¥]?\s?[+-]?([1-9]\d{0,2}([,\s\u{a0}\u{202f}']\d{3})+|\d+)?(\.\d+)?"
    r"\s?[%$€£¥]?$"
)
NO_DIGIT = r"[^\d.+-]"  # signs and separators of numbers that match it


def read_written_numbers(texts: pl.Series) -> pl.Series | None:
    """Texts as numbers if all are: with separators of thousands, and one sign of currency or percent.

    35% becomes 35. None for anything else, such as percents among plain numbers, two currencies,
    a decimal comma, or plain numbers only: who has those as texts wants texts.

    Example:
        >>> import polars as pl
        >>> read_written_numbers(pl.Series(["$5.0", None, "-37,000.25"])).to_list()
        [5.0, None, -37000.25]
        >>> read_written_numbers(pl.Series(["3,5", "12"])) is None
        True
    """
    known = texts.drop_nulls()
    if not len(known) or not known.head(100).str.contains(NUMBER_AS_WRITTEN).all():
        return None
    if not (known.str.contains(NUMBER_AS_WRITTEN) & known.str.contains(r"\d")).all():
        return None
    if not known.cast(pl.Float64, strict=False).null_count():
        return None
    signs = known.str.extract(r"([%$€£¥])").unique()
    percents = "%" in signs.to_list()
    if len(signs if percents else signs.drop_nulls()) > 1 or known.str.count_matches(
        r"[%$€£¥]"
    ).max() not in (0, 1):
        return None
    numbers: Any = texts.str.replace_all(NO_DIGIT, "").cast(pl.Float64, strict=False)
    return numbers if numbers.null_count() == texts.null_count() else None


def has_decimal_commas(texts: pl.Series) -> bool:
    """Whether all are numbers, and some have a decimal comma: 3,5 or 1.234,56."""
    known = texts.drop_nulls()
    form = r"^[+-]?(\d{1,3}(\.\d{3})+|\d+)(,\d+)?$"
    return (
        len(known) > 0
        and bool(known.head(100).str.contains(form).all())
        and bool(known.str.contains(form).all() and known.str.contains(",", literal=True).any())
    )


def read_dates(texts: Any) -> Any:
    """Texts as dates, or dates with times, if all of them are: 2024-01-31 or 31.1.2024. Else None."""
    sample, gaps = texts.drop_nulls().head(100), texts.null_count()
    if not len(sample):
        return None
    tried: list[tuple[Any, str | None]]
    if sample.str.contains(r"^\d{4}-\d\d-\d\d").all():
        tried = [(texts.str.to_date, None), (texts.str.to_datetime, None)]
    elif sample.str.contains(r"^\d{1,2}\.\d{1,2}\.\d{4}").all():
        times = [(texts.str.to_datetime, f"%d.%m.%Y %H:%M{seconds}") for seconds in (":%S", "")]
        tried = [(texts.str.to_date, "%d.%m.%Y"), *times]
    else:
        return None
    for convert, form in tried:
        converted = convert(form, strict=False)
        if converted.null_count() == gaps:
            return converted
    return None


def read_value_like(column: pl.Series, text: str) -> Any:
    """A text as a value of a column's type, to compare the column with; None if it is none.

    Numbers may have separators of thousands, as the audit writes them ("age > 10,000").
    """
    given = pl.Series([text])
    try:
        if column.dtype.is_numeric():
            return float(text.replace(",", ""))
        value = read_dates(given) if column.dtype in (pl.Date, pl.Datetime) else given
        return None if value is None else value.cast(column.dtype)[0]
    except (ValueError, pl.exceptions.PolarsError):
        return None


def _as_dates(texts: pl.Series) -> pl.Series:
    """Texts as dates if all of them are, else as they are."""
    converted: pl.Series | None = read_dates(texts)
    return texts if converted is None else converted


def _make_frame(columns: Iterable[Any]) -> Any:
    """A DataFrame of these columns.

    From a dictionary, since a name may be empty, as that of pandas' index is: in a list of columns
    polars would replace it.
    """
    return pl.DataFrame({column.name: column for column in columns})


def use_plain_types(frame: Any) -> Any:
    """The same DataFrame or LazyFrame with numbers, texts and dates alone.

    Floats and decimals become float64, infinite ones missing; durations become seconds; categories,
    booleans and Python's objects become texts. Nested and binary columns are an error.
    """
    floats, texts = [], []  # names of columns to convert, all at once
    for name, kind in frame.collect_schema().items():
        if kind.is_float() or kind.is_decimal():
            floats.append(name)
        elif kind in (pl.Categorical, pl.Enum, pl.Boolean, pl.Null):
            texts.append(name)
        elif kind == pl.Duration:
            frame = frame.with_columns(to_seconds(pl.col(name)))
        elif kind == pl.Object:
            frame = frame.with_columns(_write_as_texts(frame[name]))
        elif kind.is_nested() or kind == pl.Binary:
            raise DataError(f"expected numbers, texts or dates, got {kind} in column {quote(name)}")
    numbers = pl.col(floats).cast(pl.Float64)
    if floats:
        frame = frame.with_columns(pl.when(numbers.is_finite()).then(numbers))
    return frame.with_columns(pl.col(texts).cast(pl.String)) if texts else frame


def to_seconds(durations: pl.Expr) -> pl.Expr:
    """Durations as numbers of seconds."""
    return durations.dt.total_microseconds() / 1e6


def _write_as_texts(column: Any) -> Any:
    """A column of Python's objects as texts; None and NaN are missing."""
    values = [None if value is None or value != value else str(value) for value in column.to_list()]
    return pl.Series(column.name, values, dtype=pl.String)
