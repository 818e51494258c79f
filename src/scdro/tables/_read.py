"""Tables from files: a damaged file is an error that names the line."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scdro.errors import DataError, MissingDataError

if TYPE_CHECKING:
    import polars as pl

__all__ = ["as_table", "column_of", "listed", "polars", "read_table", "shown", "where"]

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "?")
DELIMITERS = ",\t;|"
LISTED = 8  # names in a message


def polars() -> Any:
    """The package, or an error that says how to install it."""
    try:
        import polars
    except ModuleNotFoundError as error:
        raise MissingDataError("expected polars, which reads tables; pip install 'scdro[tables]'") from error
    return polars


def shown(text: Any, most: int = 60) -> str:
    """A name or value for a message: quoted, control characters escaped, not too long."""
    text = repr(str(text))
    return text if len(text) <= most else f"{text[: most - 4]}...{text[-1]}"


def where(mask: pl.Series) -> str:
    """The first row of a mask, as a user would find it. (Blank lines, or line breaks in quotes, move it down.)"""
    row = int(mask.arg_max() or 0)
    return f"row {row + 1}, line {row + 2} of a CSV file"


def column_of(frame: pl.DataFrame, name: str, what: str) -> pl.Series:
    """A column by name; the error suggests the one you may have meant, and never lists thousands."""
    if name in frame.columns:
        return frame[name]
    close = get_close_matches(name, frame.columns, 1, cutoff=0.6)
    if not close:
        close = [c for c in frame.columns if c.strip().lower() == name.strip().lower()][:1]
    meant = f"did you mean {shown(close[0])}?" if close else f"there are {listed(frame.columns)}"
    raise DataError(f"expected a column {shown(name)}, {what}, among the {frame.width} columns; {meant}")


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return f"{', '.join(shown(n, 30) for n in names[:LISTED])}{more}"


def read_table(path: Any, texts: Sequence[str] = ()) -> pl.DataFrame:
    """A CSV (.csv, .tsv, .txt, also with .gz) or Parquet file as a polars DataFrame.

    In a CSV file, columns whose values are all numbers become numbers, and those of dates become dates;
    "", NA, NaN, null, None and ? are missing. Rows that do not fit, quotes that are not closed, bytes that are not
    UTF-8 and NULs are errors with the number of the line.

    Args:
        path: path of the file.
        texts: columns of a CSV file whose values stay as they are written, even numbers.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "people.csv"
        >>> _ = path.write_text("age,city\\n31,Oslo\\n?,Rome\\n")
        >>> read_table(path).rows()
        [(31, 'Oslo'), (None, 'Rome')]
    """
    path = Path(path)
    if not path.exists():
        raise MissingDataError(f"expected a file {shown(path)}, found none")
    if not path.is_file():
        raise DataError(f"expected a CSV or Parquet file, got {shown(path)}, which is not a file")
    if path.suffix.lower() in (".parquet", ".pq"):
        return _tidy(_parquet(path), path)
    ending = path.suffixes[-2:-1] if path.suffix.lower() == ".gz" else path.suffixes[-1:]
    if not ending or ending[0].lower() not in (".csv", ".tsv", ".txt", ".data"):
        raise DataError(
            f"expected a file that ends with .csv, .tsv, .txt (each also with .gz) or .parquet, got {shown(path)}; "
            "from Python, give a DataFrame"
        )
    return _csv(path, texts)


def as_table(data: Any, texts: Sequence[str] = ()) -> pl.DataFrame:
    """A DataFrame of pandas, polars or Arrow, a dictionary of columns, or a path, as a polars DataFrame."""
    pl = polars()
    if isinstance(data, str | Path):
        return read_table(data, texts)
    if isinstance(data, pl.DataFrame):
        return _tidy(data)
    if isinstance(data, pl.LazyFrame):
        return _tidy(data.collect())
    if type(data).__module__.startswith("pyarrow"):
        return _tidy(pl.from_arrow(data))
    if hasattr(data, "keys"):  # pandas, or a dictionary
        columns = {str(name): _plain_column(data[name]) for name in data.keys()}  # noqa: SIM118
        return _tidy(pl.DataFrame(columns))
    raise DataError(f"expected a DataFrame, a dictionary of columns or a path, got {type(data).__name__}")


def _plain_column(values: Any) -> Any:
    """pandas' categories, objects and nullable types as lists: polars cannot read these without pyarrow."""
    if not hasattr(values, "dtype") or not hasattr(values, "isna"):
        return values
    if getattr(values.dtype, "kind", "O") in "iufbM" and not hasattr(values.dtype, "na_value"):
        return values.to_numpy()
    return [None if gone else value for value, gone in zip(values.tolist(), values.isna().tolist(), strict=True)]


# -- files ------------------------------------------------------------------------------------------------------------


def _parquet(path: Path) -> Any:
    pl = polars()
    try:
        return pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError, pl.exceptions.PanicException) as error:
        raise DataError(f"expected a Parquet file, got {shown(path)}: {_first_line(error)}") from error


def _csv(path: Path, texts: Sequence[str]) -> Any:
    pl = polars()
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix.lower() == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"expected a gzip file, got a damaged one, {shown(path)}: {error}") from error
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"expected UTF-8 text in {shown(path)}, got UTF-16 from line 1 on; save it as UTF-8")
    if b"\r" in raw and b"\n" not in raw:  # line ends of old spreadsheets
        raw = raw.replace(b"\r", b"\n")
    delimiter = _delimiter(raw, path)
    blank = _check(raw, delimiter, path)
    try:
        frame = pl.read_csv(raw, separator=delimiter, infer_schema_length=0, raise_if_empty=False)
    except pl.exceptions.PolarsError:  # quotes inside of a field, as in 5" pipe: slower, but they are read
        names, *rows = (row for row in _rows(raw, delimiter) if row)
        frame = pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row")
    del raw
    if blank:
        frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
    return _tidy(pl.DataFrame([_typed(frame[name], name in texts) for name in frame.columns]), path)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _delimiter(raw: bytes, path: Path) -> str:
    """A tab for .tsv, else the most frequent one in the first line."""
    if ".tsv" in (suffix.lower() for suffix in path.suffixes):
        return "\t"
    first = raw.split(b"\n", 1)[0].decode("utf-8", "replace")
    return max(DELIMITERS, key=first.count)


def _check(raw: bytes, delimiter: str, path: Path) -> bool:
    """Check the fields of every line, the quotes and the encoding; return whether there are blank lines."""
    at = raw.find(b"\0")
    if at >= 0:
        line = raw.count(b"\n", 0, at) + 1
        raise DataError(f"expected text in {shown(path)}, got a NUL in line {line}")
    reader = _rows(raw, delimiter)
    rows, width, blank, line = 0, 0, False, 0
    try:
        for row in reader:
            rows += 1
            if rows == 1:
                width = _check_names(row, path)
            elif not row:
                blank = True
            elif len(row) != width:
                raise DataError(
                    f"expected {width} fields in every row of {shown(path)}, as in its first line, got {len(row)} in "
                    f"line {line + 1}"
                )
            line = reader.line_num
    except UnicodeDecodeError:
        raise DataError(f"expected UTF-8 text in {shown(path)}, got other bytes in line {_bad_line(raw)}") from None
    except csv.Error as error:
        most = f"fields of at most {csv.field_size_limit():,} characters and " * ("limit" in str(error))
        raise DataError(
            f"expected {most}quotes that are closed in {shown(path)}, got {error} in the row that starts in line "
            f"{line + 1}"
        ) from None
    if rows < 2:
        raise DataError(f"expected a line of column names and rows below it in {shown(path)}, got {rows} line(s)")
    return blank


def _rows(raw: bytes, delimiter: str) -> Any:
    text = io.TextIOWrapper(io.BufferedReader(_Chunks(raw)), "utf-8-sig", newline="")
    return csv.reader(text, delimiter=delimiter, strict=True)


class _Chunks(io.RawIOBase):
    """Bytes without a copy of them all."""

    def __init__(self, raw: bytes) -> None:
        self.view, self.at = memoryview(raw), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.view[self.at : self.at + len(buffer)]
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)


def _check_names(names: list[str], path: Path) -> int:
    if not names:
        raise DataError(f"expected names of columns in line 1 of {shown(path)}, got an empty line")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"expected different names of columns in line 1 of {shown(path)}, got {shown(name)} twice")
        seen.add(name)
    if all(_is_number(name) for name in names):
        raise DataError(f"expected names of columns in line 1 of {shown(path)}, got numbers: add a first line")
    return len(names)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _bad_line(raw: bytes) -> int:
    """The first line that is not UTF-8."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return raw.count(b"\n", 0, error.start) + 1
    return 1


def _typed(texts: Any, as_written: bool) -> Any:
    """Numbers or dates if all values are; spaces around texts are dropped."""
    pl = polars()
    texts = texts.str.strip_chars()
    texts = texts.set(texts.is_in(MISSING), None)
    if as_written:
        return texts
    known = texts.null_count()
    for kind in (pl.Int64, pl.Float64):
        found = texts.cast(kind, strict=False)
        if found.null_count() == known:
            return found
    sample = texts.drop_nulls().head(100)
    if len(sample) and sample.str.contains(r"^\d{4}-\d\d-\d\d").all():
        for convert in (texts.str.to_date, texts.str.to_datetime):
            found = convert(strict=False)
            if found.null_count() == known:
                return found
    return texts


def _tidy(frame: Any, path: Path | None = None) -> Any:
    """Only numbers, texts and dates; infinite numbers count as missing."""
    pl = polars()
    if frame.height == 0 or frame.width == 0:
        raise DataError(f"expected rows and columns{f' in {shown(path)}' if path else ''}, got {frame.shape}")
    return pl.DataFrame(list(_plain(frame[name] for name in frame.columns)))


def _plain(columns: Iterable[Any]) -> Iterator[Any]:
    pl = polars()
    for column in columns:
        if column.dtype.is_float() or column.dtype.is_decimal():
            column = column.cast(pl.Float64)
            yield column.set(~column.is_finite().fill_null(True), None)
        elif column.dtype in (pl.Categorical, pl.Enum, pl.Boolean, pl.Object, pl.Null):
            yield column.cast(pl.String) if column.dtype != pl.Object else _texts(column)
        elif column.dtype.is_nested() or column.dtype == pl.Binary:
            raise DataError(f"expected numbers, texts or dates, got {column.dtype} in column {shown(column.name)}")
        else:
            yield column


def _texts(column: Any) -> Any:
    values = [None if value is None or value != value else str(value) for value in column.to_list()]
    return polars().Series(column.name, values, dtype=polars().String)
