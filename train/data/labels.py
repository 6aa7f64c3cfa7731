"""The names of the classes: one map, made from the train split, for every split and for good."""

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable

from datasets import Dataset

from ..errors import UserError, near_match


def label_names(labels: list[str]) -> list[str]:
    """The classes in order: numbers by size if all are numbers, else by name.

    Raises:
        UserError: If there are fewer than two.
    """
    names = set(labels)
    if len(names) < 2:
        only = f"one label, {names.pop()!r}" if names else "no label"
        raise UserError(f"The train split has {only}: a classifier needs at least two classes.")
    return sorted(names, key=lambda name: (float(name), name)) if all(map(_is_number, names)) else sorted(names)


def encode_labels(dataset: Dataset, names: list[str], what: str, unknown: str = "error") -> tuple[Dataset, int]:
    """Add `labels`, each row's class number. With `unknown="drop"`, rows of a label not in `names` are left out.

    `what` is what the rows are called in a message.

    Returns:
        The rows, and how many were left out.

    Raises:
        UserError: If `unknown` is "error" and there are such rows; the message names the label and its count.
    """
    numbers = {name: number for number, name in enumerate(names)}
    labels = dataset["label"][:]
    strangers = Counter(label for label in labels if label not in numbers)
    if strangers and unknown != "drop":
        label, count = strangers.most_common(1)[0]
        rows = "1 row" if count == 1 else f"{count:,} rows"
        raise UserError(
            f"{what} has the label {label!r} in {rows}, and the train split has not.{near_match(label, names)} "
            "Mend it, or leave such rows out by data.unknown_labels=drop, in evaluate by --drop-unknown."
        )
    if strangers:
        dataset = dataset.select([place for place, label in enumerate(labels) if label in numbers])
    known = [numbers[label] for label in labels if label in numbers]
    return dataset.add_column("labels", known), strangers.total()


def look_alikes(names: Iterable[str]) -> list[list[str]]:
    """Names that differ only in case, outer spaces, encoding of letters or spelling of a number, in groups."""
    groups: dict[str | float, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        plain = unicodedata.normalize("NFKC", name).strip().casefold()
        groups[float(plain) if _is_number(plain) else plain].append(name)
    return [group for group in groups.values() if len(group) > 1]


def _is_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False
