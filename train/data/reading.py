"""One reader for every kind of file: rows of text columns and a label, all as strings, exactly as they were typed."""

import codecs
import csv
import hashlib
import json
import reprlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow.parquet as pq
from datasets import Dataset, Features, List, Value
from datasets.exceptions import DatasetGenerationError

from ..errors import UserError, first_line, near_match

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
FEATURES = Features({"row": Value("int64"), "text": List(Value("string")), "label": Value("string")})
NO_TEXT = {  # first bytes of files that are not text, whatever they are called
    b"PK\x03\x04": "is a spreadsheet or an archive: save it as CSV",
    b"\xd0\xcf\x11\xe0": "is a spreadsheet: save it as CSV",
    b"\x1f\x8b": "is compressed: unpack it",
    b"PAR1\x15": "is parquet: let its name end in .parquet",
}
SHOWN = 12  # columns of a header that are named


@dataclass(frozen=True)
class Columns:
    """Which columns of a file are used, and how the file is read.

    Attributes:
        text: Names of the text columns.
        label: Name of the label column; None where there are no labels.
        encoding: Encoding of a text file.
        separator: Character between the columns of a text file; None: by the file's ending.
    """

    text: tuple[str, ...] = ("text",)
    label: str | None = "label"
    encoding: str = "utf-8"
    separator: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read."""
        return self.text if self.label is None else (*self.text, self.label)


def read_file(path: str | Path, columns: Columns) -> Dataset:
    """Read a CSV, TSV, JSONL or parquet file into rows of `row` (from 1), `text` (one string per column) and `label`.

    Rows stay as they are, in their order; an empty cell or a missing value is None. The result is memory-mapped.

    Raises:
        UserError: If the file cannot be read as what its name says; the message says where and what to do.
    """
    if not str(path):
        raise UserError("The name of a file is empty.")
    path = Path(path)
    try:
        if not path.is_file():
            raise UserError(_no_file(path))
        content = _content_hash(path)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}.") from None
    return rows_from(_rows, str(path), {"path": str(path), "columns": columns, "content": content})


def rows_from(rows: Callable[..., Iterator[dict[str, Any]]], name: str, arguments: dict[str, Any]) -> Dataset:
    """Memory-mapped `FEATURES` of what a generator gives for some arguments; `name` is what it reads.

    Raises:
        UserError: If there are no rows, or one cannot be had.
    """
    try:
        return Dataset.from_generator(rows, features=FEATURES, gen_kwargs=arguments)  # pyright: ignore[reportReturnType]
    except ValueError:  # what `datasets` makes of a file without rows
        raise UserError(f"{name} has no rows.") from None
    except DatasetGenerationError as error:
        cause = error.__cause__ or error
        raise cause if isinstance(cause, UserError) else UserError(f"{name}: {first_line(cause)}") from None
    except OSError as error:
        raise UserError(f"The cache of the library `datasets` cannot be used: {error}.") from None


def column_names(path: str | Path, columns: Columns) -> list[str]:
    """All columns of a file that `read_file` can read; of JSONL those of the first row."""
    path = Path(path)
    if _kind(path) is _parquet:
        return pq.read_schema(str(path)).names
    with _text_file(path, columns, newline="") as file:
        if _kind(path) is _jsonl:
            return list(json.loads(next(line for line in file if line.strip())))
        return next(csv.reader(file, delimiter=_separator(path, columns)))


def _no_file(path: Path) -> str:
    if path.is_dir():
        return f"{str(path)!r} is a folder: give a file in it."
    if path.exists():
        return f"{str(path)!r} is no file that can be read twice: save what it gives as one."
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    return f"There is no file {str(path)!r}.{near_match(path.name, siblings)}"


def _rows(path: str, columns: Columns, content: str) -> Iterator[dict[str, Any]]:
    """Rows of a file; `content` only tells the cache of `datasets` one file from another."""
    for row, cells in enumerate(_kind(Path(path))(Path(path), columns), start=1):
        yield row_of(path, row, cells, columns)


def row_of(source: str, row: int, cells: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """One row of `FEATURES` from the cells of a source's row; `row` counts from 1.

    Raises:
        UserError: If a cell cannot be taken for a string.
    """
    try:
        text = [_as_string(cells[name]) for name in columns.text]
        return {"row": row, "text": text, "label": None if columns.label is None else _as_string(cells[columns.label])}
    except ValueError as error:
        raise UserError(f"{source}, row {row}: {error}.") from None


def _as_string(cell: Any) -> str | None:
    if cell is None or cell == "" or cell != cell:  # NaN is what tables of numbers have for nothing
        return None
    if isinstance(cell, list | dict | bytes):
        raise ValueError(f"{reprlib.repr(cell)} stands where a string or a number is needed")
    try:
        str(cell).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{cell[error.start]!a} is half a letter, no text") from None
    return str(cell)


def _separated(path: Path, columns: Columns) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    separator = _separator(path, columns)
    with _text_file(path, columns, newline="") as file:
        yield from _csv_rows(csv.reader(file, delimiter=separator, strict=True), path, columns, separator)


def _csv_rows(reader: Any, path: Path, columns: Columns, separator: str) -> Iterator[dict[str, Any]]:
    """Cells by column; an empty line is none, but in the midst of a single column an empty cell."""
    start, empty = 1, 0
    try:
        header = next(reader, [])
        _check_header(header, path, columns, separator)
        start = reader.line_num + 1
        for cells in reader:
            if cells and len(cells) != len(header):
                raise UserError(
                    f"{path}, line {start}: {len(cells)} fields where the header has {len(header)}; "
                    "quote fields that hold the separator, or give it by --separator."
                )
            if cells:
                yield from ({header[0]: ""} for _ in range(empty))
                yield dict(zip(header, cells, strict=True))
            empty = 0 if cells else empty + (len(header) == 1)
            start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}, line {start}: {error}; mend the quotes there.") from None


def _separator(path: Path, columns: Columns) -> str:
    separator = columns.separator
    if separator is None:
        return SEPARATORS.get(path.suffix.lower(), ",")
    if separator == r"\t":
        return "\t"
    if len(separator) != 1:
        raise UserError(rf"--separator {separator!r}: give one character, or \t for a tab.")
    return separator


@contextmanager
def _text_file(path: Path, columns: Columns, newline: str | None = None) -> Iterator[IO[str]]:
    """A text file, opened; a byte order mark of UTF-8 is left out."""
    with path.open("rb") as file:
        start = file.read(8)
    if found := [what for signature, what in NO_TEXT.items() if start.startswith(signature)]:
        raise UserError(f"{path} {found[0]}.")
    try:
        utf8 = codecs.lookup(columns.encoding).name == "utf-8"
        file = path.open(newline=newline, encoding="utf-8-sig" if utf8 else columns.encoding)
    except (LookupError, ValueError):
        raise UserError(f"There is no encoding {columns.encoding!r}: name one that Python knows, as latin-1.") from None
    with file:
        try:
            yield file
        except UnicodeError:
            raise _encoding_error(path, columns.encoding) from None


def _jsonl(path: Path, columns: Columns) -> Iterator[dict[str, Any]]:
    with _text_file(path, columns) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _json_row(line, f"{path}, line {number}", columns)


def _json_row(line: str, where: str, columns: Columns) -> dict[str, Any]:
    try:
        cells = json.loads(line, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        what = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise UserError(f"{where}: {what}; each line must be a JSON object.") from None
    if not isinstance(cells, dict):
        raise UserError(f"{where}: each line must be a JSON object, as {{{json.dumps(columns.names[0])}: ...}}.")
    if missing := [name for name in columns.names if name not in cells]:
        raise UserError(f"{where}: there is no {missing[0]!r}.{near_match(missing[0], cells)}")
    return cells


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    cells = dict(pairs)
    if len(cells) < len(pairs):
        raise ValueError("a name is there twice")
    return cells


def _parquet(path: Path, columns: Columns) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(str(path)) as file:
        _check_header(file.schema_arrow.names, path, columns, None)
        for batch in file.iter_batches(columns=list(columns.names)):
            yield from batch.to_pylist()


KINDS = {".parquet": _parquet, ".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _jsonl}


def _kind(path: Path) -> Callable[[Path, Columns], Iterator[dict[str, Any]]]:
    return KINDS.get(path.suffix.lower(), _separated)


def _check_header(header: list[str], path: Path, columns: Columns, separator: str | None) -> None:
    if not header:
        raise UserError(f"{path} is empty: its first line must name the columns.")
    if missing := [name for name in columns.names if name not in header]:
        hint = near_match(missing[0], header)
        if missing == [columns.label] and not hint:
            hint = " A file without labels can only be predicted."
        elif separator and len(header) == 1 and not hint:
            hint = f" Is {separator!r} what separates the columns? If not, give the separator by --separator."
        named = ", ".join(map(reprlib.repr, header[:SHOWN])) + (", ..." if len(header) > SHOWN else "")
        raise UserError(f"{path}: there is no column {missing[0]!r} among {named}.{hint}")
    if doubled := [name for name in columns.names if header.count(name) > 1]:
        raise UserError(f"{path}: {header.count(doubled[0])} columns are called {doubled[0]!r}; rename all but one.")


def _encoding_error(path: Path, encoding: str) -> UserError:
    content, where = path.read_bytes(), "some byte"
    try:
        content.decode(encoding)
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1}"
    except UnicodeError:
        where = "byte 1"  # where the mark is that an encoding needs
    likely = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "latin-1"
    return UserError(
        f"{path}: {where} cannot be read as {encoding}; give the file's encoding by --encoding, perhaps {likely}."
    )


def _content_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
