"""Data sets of the Hugging Face hub, or local folders of the same shape, as the rows that files give."""

from collections.abc import Iterator
from typing import Any

from datasets import ClassLabel, Dataset, load_dataset

from ..errors import UserError, first_line, near_match
from .reading import Columns, row_of, rows_from


def read_hub(hub: Any, columns: Columns) -> dict[str, Dataset]:
    """Read the splits of a data set that a config names (`conf/data/`): `path`, `name`, `revision` and `splits`.

    Raises:
        UserError: If the data set cannot be had; the message says how to get it.
    """
    return {split: _read(hub, columns, name) for split, name in hub.splits.items()}


def _read(hub: Any, columns: Columns, split: str) -> Dataset:
    try:
        dataset: Any = load_dataset(hub.path, hub.name, revision=hub.revision, split=split)
    except (OSError, ValueError) as error:
        raise UserError(
            f"The data set {hub.path!r} is neither in the cache nor to be had now ({first_line(error)}): run "
            "this once with a connection, or give a folder with a copy of its repository by data.hub.path=FOLDER."
        ) from None
    if missing := [name for name in columns.names if name not in dataset.column_names]:
        hint = near_match(missing[0], dataset.column_names)
        raise UserError(f"{hub.path}: there is no column {missing[0]!r} among {', '.join(dataset.column_names)}.{hint}")
    return rows_from(_rows, hub.path, {"dataset": dataset, "columns": columns, "name": hub.path})


def _rows(dataset: Any, columns: Columns, name: str) -> Iterator[dict[str, Any]]:
    feature = dataset.features[columns.label] if columns.label else None
    for number, cells in enumerate(dataset, start=1):
        if columns.label and cells[columns.label] in (-1, "-1"):
            cells[columns.label] = None  # what hidden or undecided labels are given as
        elif isinstance(feature, ClassLabel):
            cells[columns.label] = feature.int2str(cells[columns.label])
        yield row_of(name, number, cells, columns)
