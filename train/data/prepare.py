"""From a data config to tokenised splits, label names and a tokenizer, with a report of what became of every row."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..errors import UserError
from .hub import read_hub
from .labels import encode_labels, label_names, look_alikes
from .reading import Columns, column_names, read_file
from .splits import stratified_split
from .tokenizer import make_tokenizer

SPLITS = ("train", "validation", "test")
ENDINGS = (".parquet", ".csv", ".tsv", ".tab", ".jsonl", ".ndjson", ".json")
EMBEDDED = Path(__file__).parent


@dataclass
class FileReport:
    """Rows of a file: how many were read, and how many were left out for which reason."""

    read: int
    dropped: dict[str, int]


@dataclass
class SplitReport:
    """Rows of a split.

    Attributes:
        labels: Rows by label name.
        unknown: Rows left out because the train split has not their label.
        longest: Tokens of the longest text before it was cut, special tokens counted.
        cut: Texts cut at `max_length`.
        lengths: Tokens of each text after cutting.
    """

    labels: dict[str, int]
    unknown: int
    longest: int
    cut: int
    lengths: np.ndarray

    @property
    def rows(self) -> int:
        """Rows in all."""
        return sum(self.labels.values())


@dataclass
class TextData:
    """All that a run needs to know of its data.

    Attributes:
        splits: Tokenised rows: `row`, `input_ids`, `length`, `labels`.
        label_names: Class names in the order of their numbers.
        tokenizer: The tokenizer, whose `model_max_length` is the length at which texts are cut.
        columns: Where texts and labels were read.
        files: Report per file, by the split that it was given for.
        reports: Report per split.
        content_hash: Hash of all texts and labels.
        test_hash: Hash of those of the test split; None without one.
        warnings: Sentences about columns and labels that look alike.
    """

    splits: dict[str, Dataset]
    label_names: list[str]
    tokenizer: PreTrainedTokenizerBase
    columns: Columns
    files: dict[str, FileReport]
    reports: dict[str, SplitReport]
    content_hash: str
    test_hash: str | None
    warnings: list[str]


class Texts:
    """The texts of a data set, one after the other, never all in memory."""

    def __init__(self, dataset: Dataset):
        self.dataset = dataset

    def __iter__(self) -> Iterator[str]:
        for (text,) in _cells(self.dataset, "text"):
            yield from filter(None, text)


def prepare(data: Any) -> TextData:
    """Read, split, label and tokenise what a data config (`conf/data/`) names.

    Raises:
        UserError: If the files or their labels do not allow training.
    """
    _check(data)
    columns = Columns(tuple(data.text), data.label, data.encoding, data.separator)
    sources = {} if data.hub else _files(data)
    read = read_hub(data.hub, columns) if data.hub else {split: read_file(sources[split], columns) for split in sources}
    files, splits = {}, {}
    for split, dataset in read.items():
        splits[split], files[split] = drop_unusable(dataset, empty_texts=data.empty_texts)
        refuse_empty(f"The {split} split", splits[split])
    splits = _missing_splits(splits, data)
    names = label_names(splits["train"]["label"][:])
    labelled = {split: _encoded(splits[split], names, split, data) for split in splits}
    tokenizer = make_tokenizer(data.tokenizer, Texts(splits["train"]), data.vocab_size, data.max_length)
    tokenised = {split: tokenize(dataset, tokenizer) for split, (dataset, _) in labelled.items()}
    reports = {split: _report(tokenised[split], names, labelled[split][1], data.max_length) for split in splits}
    test_hash = _content_hash({"test": splits["test"]}) if "test" in splits else None
    warnings = [*warn_of_columns(sources.values(), columns), *warn_of_labels(names)]
    return TextData(tokenised, names, tokenizer, columns, files, reports, _content_hash(splits), test_hash, warnings)


def one_batch(data: TextData, size: int) -> TextData:
    """The same data with the first `size` rows of the train split as every split."""
    rows = data.splits["train"].select(range(min(size, len(data.splits["train"]))))
    counts = np.bincount(rows["labels"], minlength=len(data.label_names)).tolist()
    labels = dict(zip(data.label_names, counts, strict=True))
    report = replace(data.reports["train"], labels=labels, lengths=data.reports["train"].lengths[:size])
    return replace(data, splits=dict.fromkeys(SPLITS, rows), reports=dict.fromkeys(SPLITS, report))


def tokenize(dataset: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Replace `text` by `input_ids`, cut at the tokenizer's length, and `length`, that before."""
    # The mask is made when a batch is padded.
    only_ids: dict[str, Any] = {"return_token_type_ids": False, "return_attention_mask": False}
    separator = f" {tokenizer.sep_token} " if tokenizer.sep_token else " "

    def encode(batch: dict[str, list]) -> dict[str, list]:
        texts = [_join(text, separator) for text in batch["text"]]
        ids = tokenizer(texts, verbose=False, **only_ids)["input_ids"]
        lengths = [len(tokens) for tokens in ids]
        for place, length in enumerate(lengths):
            if length > tokenizer.model_max_length:
                ids[place] = tokenizer(texts[place], truncation=True, **only_ids)["input_ids"]
        return {"input_ids": ids, "length": lengths}

    return dataset.map(encode, batched=True, remove_columns=["text", "label"])


def drop_unusable(dataset: Dataset, empty_texts: str) -> tuple[Dataset, FileReport]:
    """Leave out rows without a label and, unless `empty_texts` is "keep", rows whose text has nothing to read."""
    reasons = [
        "no label" if label is None else "empty text" if empty_texts == "drop" and not _readable(text) else None
        for text, label in _cells(dataset, "text", "label")
    ]
    kept = [place for place, reason in enumerate(reasons) if reason is None]
    dropped = Counter(reason for reason in reasons if reason)
    return (dataset.select(kept) if dropped else dataset), FileReport(len(dataset), dict(dropped))


def _encoded(dataset: Dataset, names: list[str], split: str, data: Any) -> tuple[Dataset, int]:
    encoded, unknown = encode_labels(dataset, names, f"The {split} split", data.unknown_labels)
    refuse_empty(f"The {split} split", encoded, "whose label the train split has")
    return encoded, unknown


def refuse_empty(what: str, dataset: Dataset, which: str = "with a text and a label") -> None:
    """Refuse a data set of which no row is left.

    Raises:
        UserError: If so.
    """
    if not len(dataset):
        raise UserError(f"{what} has no row {which}; a file without labels can only be predicted.")


def warn_of_labels(names: Iterable[str]) -> list[str]:
    """Sentences about labels that look alike and are classes of their own."""
    return [
        f"Labels {_listed(group)} differ in case, outer spaces or spelling only, and are {len(group)} classes."
        for group in look_alikes(names)
    ]


def warn_of_columns(files: Iterable[str | Path], columns: Columns) -> list[str]:
    """Sentences about columns of files that look like one that is read."""
    groups = [(file, group) for file in files for group in look_alikes(column_names(file, columns))]
    return [
        f"{file}: columns {_listed(group)} differ in case, outer spaces or spelling only; {_listed(read)} is read."
        for file, group in groups
        if (read := [name for name in group if name in columns.names])
    ]


def _listed(names: list[str]) -> str:
    return " and ".join(map(repr, names))


def _check(data: Any) -> None:
    if not data.text:
        raise UserError("data.text names no column: give one by --text.")
    given = [f"data.{name}" for name in ("embedded", "folder", "hub", "train") if data[name] is not None]
    others = [f"data.{split}" for split in SPLITS[1:] if data[split] is not None]
    if len(given) > 1 or (others and given != ["data.train"]):
        raise UserError(f"{' and '.join([*given, *others])} do not go together: a file of one's own needs --data.")
    for name, least in (("batch_size", 1), ("max_length", 2), ("vocab_size", 5), ("workers", 0), ("split_seed", 0)):
        if data[name] < least:
            raise UserError(f"data.{name} is {data[name]}: it must be at least {least}.")
    for name, options in (("empty_texts", ("drop", "keep")), ("unknown_labels", ("error", "drop"))):
        if data[name] not in options:
            raise UserError(f"data.{name} is {data[name]!r}: choose {options[0]} or {options[1]}.")


def _files(data: Any) -> dict[str, str]:
    """The file of each split that has one."""
    folder = EMBEDDED / data.embedded if data.embedded else data.folder and Path(data.folder)
    if not folder:
        files = {split: data[split] for split in SPLITS if data[split] is not None}
    elif folder.is_dir():
        files = _files_in(folder)
    else:
        raise UserError(f"There is no folder {str(folder)!r}.")
    files = {split: files[split] for split in SPLITS if split in files}
    if "train" not in files:
        where = f"in {str(folder)!r}" if folder else "yet"
        raise UserError(
            f"There is nothing to train on {where}: give a file by --data, or data.folder with train in it."
        )
    return files


def _files_in(folder: Path) -> dict[str, str]:
    files: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if path.stem in SPLITS and path.suffix.lower() in ENDINGS:
            if path.stem in files:
                raise UserError(f"{files[path.stem]} and {path} are both a {path.stem} split: move one away.")
            files[path.stem] = str(path)
    return files


def _missing_splits(splits: dict[str, Dataset], data: Any) -> dict[str, Dataset]:
    """Take from the train split what has no file of its own: 10 % for validation, 10 % for test of a single file."""
    missing = {"validation"} - splits.keys() | ({"test"} if splits.keys() == {"train"} else set())
    if not missing:
        return splits
    train, names = splits["train"], [split for split in SPLITS if split == "train" or split in missing]
    shares = [1 - 0.1 * len(missing)] + [0.1] * len(missing)
    parts = stratified_split(train["label"][:], shares, data.split_seed)
    taken = {name: train.select(part) for name, part in zip(names, parts, strict=True)}
    if empty := [name for name, part in taken.items() if not len(part)]:
        usable = "1 usable row" if len(train) == 1 else f"{len(train)} usable rows"
        raise UserError(f"The file has {usable}, too few for a {empty[0]} split; give one of its own.")
    merged = {**splits, **taken}
    return {split: merged[split] for split in SPLITS if split in merged}


def _report(dataset: Dataset, names: list[str], unknown: int, max_length: int) -> SplitReport:
    whole = np.asarray(dataset["length"], dtype=int)
    counts = np.bincount(dataset["labels"], minlength=len(names)).tolist()
    return SplitReport(
        labels=dict(zip(names, counts, strict=True)),
        unknown=unknown,
        longest=int(whole.max(initial=0)),
        cut=int((whole > max_length).sum()),
        lengths=whole.clip(max=max_length),
    )


def _content_hash(splits: dict[str, Dataset]) -> str:
    digest = hashlib.sha256()
    for split, dataset in splits.items():
        for row, text, label in _cells(dataset, "row", "text", "label"):
            digest.update(repr((split, row, text, label)).encode())
    return digest.hexdigest()[:16]


def _cells(dataset: Dataset, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Cells of every row, read in batches, which is some twenty times faster than row by row."""
    for batch in dataset.select_columns(list(columns)).iter(1000):
        yield from zip(*(batch[column] for column in columns), strict=True)  # pyright: ignore


def _join(text: list[str | None], separator: str) -> str:
    return separator.join(column or "" for column in text)


def _readable(text: list[str | None]) -> bool:
    return any(character.isprintable() and not character.isspace() for column in text for character in column or "")
