"""One reader for every kind of file: rows of text columns and a label, all as strings, exactly as they were typed."""

import csv
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from datasets import Dataset, Features, List, Value
from datasets.exceptions import DatasetGenerationError

from ..errors import UserError, near_match

SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
FEATURES = Features({"row": Value("int64"), "text": List(Value("string")), "label": Value("string")})


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
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no file {str(path)!r}.")
    source = {"path": str(path), "columns": columns, "content": _content_hash(path)}
    try:
        return Dataset.from_generator(_rows, features=FEATURES, gen_kwargs=source)  # pyright: ignore[reportReturnType]
    except ValueError:  # what `datasets` makes of a file without rows
        raise UserError(f"{path} has no rows.") from None
    except DatasetGenerationError as error:
        cause = error.__cause__ or error
        raise cause if isinstance(cause, UserError) else UserError(f"{path}: {cause}") from None


def _rows(path: str, columns: Columns, content: str) -> Iterator[dict[str, Any]]:
    """Rows of a file; `content` only tells the cache of `datasets` one file from another."""
    read = {".parquet": _parquet, ".jsonl": _jsonl, ".ndjson": _jsonl}.get(Path(path).suffix.lower(), _separated)
    for row, cells in enumerate(read(Path(path), columns), start=1):
        yield row_of(row, cells, columns)


def row_of(row: int, cells: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """One row of `FEATURES` from the cells of a file's row; `row` counts from 1."""
    text = [_as_string(cells[name]) for name in columns.text]
    return {"row": row, "text": text, "label": _as_string(cells[columns.label]) if columns.label else None}


def _separated(path: Path, columns: Columns) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    separator = columns.separator or SEPARATORS.get(path.suffix.lower(), ",")
    encoding = "utf-8-sig" if columns.encoding.lower() in ("utf-8", "utf8") else columns.encoding
    try:
        with path.open(newline="", encoding=encoding) as file:
            yield from _csv_rows(csv.reader(file, delimiter=separator, strict=True), path, columns, separator)
    except UnicodeDecodeError:
        raise _encoding_error(path, encoding) from None
    except LookupError:
        raise UserError(f"There is no encoding {columns.encoding!r}: name one that Python knows, as latin-1.") from None


def _csv_rows(reader: Any, path: Path, columns: Columns, separator: str) -> Iterator[dict[str, Any]]:
    try:
        header = next(reader, [])
        _check_header(header, path, columns, separator)
        for cells in reader:
            if cells and len(cells) != len(header):
                raise UserError(
                    f"{path}, line {reader.line_num}: {len(cells)} fields where the header has {len(header)}; "
                    "quote fields that hold the separator, or give it by --separator."
                )
            if cells:
                yield dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}; mend the quotes there.") from None


def _jsonl(path: Path, columns: Columns) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding=columns.encoding) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _json_row(line, f"{path}, line {number}", columns)
    except UnicodeDecodeError:
        raise _encoding_error(path, columns.encoding) from None


def _json_row(line: str, where: str, columns: Columns) -> dict[str, Any]:
    try:
        cells = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where}: {error.msg} at character {error.pos + 1}; each line must be a JSON object."
        ) from None
    if not isinstance(cells, dict):
        raise UserError(f"{where}: each line must be a JSON object, as {{{json.dumps(columns.text[0])}: ...}}.")
    if missing := [name for name in columns.names if name not in cells]:
        raise UserError(f"{where}: there is no {missing[0]!r}.{near_match(missing[0], cells)}")
    return cells


def _parquet(path: Path, columns: Columns) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(str(path)) as file:
        _check_header(file.schema_arrow.names, path, columns, None)
        for batch in file.iter_batches(columns=list(columns.names)):
            yield from batch.to_pylist()


def _check_header(header: list[str], path: Path, columns: Columns, separator: str | None) -> None:
    if missing := [name for name in columns.names if name not in header]:
        hint = near_match(missing[0], header)
        if separator and len(header) == 1 and not hint:
            hint = f" Is {separator!r} what separates the columns? If not, give the separator by --separator."
        raise UserError(f"{path}: there is no column {missing[0]!r} among {', '.join(map(repr, header))}.{hint}")
    if doubled := [name for name in columns.names if header.count(name) > 1]:
        raise UserError(f"{path}: {header.count(doubled[0])} columns are called {doubled[0]!r}; rename all but one.")


def _as_string(cell: Any) -> str | None:
    return None if cell is None or cell == "" else str(cell)


def _encoding_error(path: Path, encoding: str) -> UserError:
    try:
        path.read_bytes().decode(encoding)
    except UnicodeDecodeError as error:
        where = f"byte {error.start + 1}"
    else:
        where = "some byte"
    return UserError(f"{path}: {where} cannot be read as {encoding}; give the file's encoding by --encoding.")


def _content_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
