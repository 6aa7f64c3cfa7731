"""An analysis on the screen and in files: a table of heads, one of tokens, and everything as JSON or CSV."""

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pandas as pd
from rich import box
from rich.console import Group
from rich.table import Table

from ..errors import refuse_unwritable, writing
from ..metrics.head_maps import HeadMaps
from .literal import literal

COLUMNS = {
    "rank": ("rank", "{:.1f}"),
    "nullity": ("nullity", "{:.1f}"),
    "simplex_nullity": ("simplex\nnullity", "{:.1f}"),
    "key_ambiguity": ("key\nambig.", "{:.2f}"),
    "pearson": ("Pearson", "{:.3f}"),
    "pearson_preserve_sum": ("sums\nkept", "{:.3f}"),
    "residual": ("residual", "{:.3f}"),
    "slack": ("slack", "{:.3f}"),
}
LOOK: dict[str, Any] = {"title_justify": "left", "box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
MATRICES = ("raw", "effective", "effective_preserve_sum", "max_entropy", "slack_lower", "slack_upper")
VECTORS = ("max_entropy_converged", "key_ambiguity_by_row")
INTERVAL = ("interval_lower", "interval_upper")


@dataclass(frozen=True)
class AnalyzedText:
    """A text as the model read it.

    Attributes:
        row: Its row in the file, or its place among the texts, from 1.
        tokens: Its tokens.
        special: Which of them the tokenizer added, as [CLS].
    """

    row: int
    tokens: list[str]
    special: list[bool]


@dataclass(frozen=True)
class AnalyzedHead:
    """A head for one text.

    Attributes:
        layer: Number of the layer, from 0.
        head: Number of the head, from 0.
        measures: `length`, `rank` and the monitor's measures without their group, rows' measures over all rows.
        maps: Its maps, where they were asked for.
    """

    layer: int
    head: int
    measures: dict[str, float]
    maps: HeadMaps | None


def head_table(table: pd.DataFrame) -> Table:
    """Means over the texts, a line per layer and head."""
    texts, length = max(table["texts"]), table["length"].mean()
    title = f"{texts:,} texts of {length:.1f} tokens on average" if texts > 1 else f"1 text of {length:.0f} tokens"
    shown = Table("layer", "head", title=title, **LOOK)
    for heading, _ in COLUMNS.values():
        shown.add_column(heading, justify="right")
    for line in table.to_dict("records"):
        cells = [_number(line[name], form) for name, (_, form) in COLUMNS.items()]
        shown.add_row(str(line["layer"]), str(line["head"]), *cells)
    return shown


def token_table(tokens: pd.DataFrame, title: str, hide_special: bool) -> Group:
    """The weights of one row, by position."""
    shown = Table(
        "position",
        "token",
        title=f"{title}: weights on each token",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for heading in ("raw", "effective", "max entropy", "interval"):
        shown.add_column(heading, justify="right")
    for line in tokens.to_dict("records"):
        if hide_special and line["special"]:
            continue
        weights = [f"{line[name]:.4f}" for name in ("raw", "effective", "max_entropy")]
        ends = f"[{line['lower']:.4f}, {line['upper']:.4f}]"
        shown.add_row(str(line["position"]), literal(line["token"]), *weights, literal(ends))
    failed = not all(tokens["max_entropy_converged"])
    return Group(shown, *(["The max-entropy weights were not found to their tolerance."] if failed else []))


class WholeFile:
    """A file that is written as the analysis goes on, and is there under its name only when it is whole."""

    def __init__(self, path: str):
        self.path, self.part = Path(path), Path(f"{path}.part")
        refuse_unwritable(path)
        with writing(path):
            self.file: IO[str] = self.part.open("w", encoding="utf-8", newline="")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.finish()
        self.file.close()
        if kind is None:
            self.part.replace(self.path)
        else:
            self.part.unlink()

    def finish(self) -> None:
        """Write what comes last."""


class JsonFile(WholeFile):
    """`{"texts": [{"row", "tokens", "special", "heads": [...]}]}`, a head with its measures, maps and rows.

    A map is a list of rows; what is no number is null. `interval` is there for the chosen row: its `token`, `lower` and
    `upper`.
    """

    def __init__(self, path: str):
        super().__init__(path)
        self.text: AnalyzedText | None = None
        self.file.write('{"texts": [')

    def add(self, text: AnalyzedText, head: AnalyzedHead) -> None:
        """Write a head; those of one text follow each other."""
        self.file.write(",\n" if text is self.text else self._begin(text))
        assert head.maps is not None
        maps = {name: getattr(head.maps, name).tolist() for name in (*MATRICES, *VECTORS)}
        measures = {name: None if math.isnan(value) else value for name, value in head.measures.items()}
        line: dict[str, Any] = {"layer": head.layer, "head": head.head, **measures, **maps}
        for token, (lower, upper) in head.maps.intervals.items():
            line["interval"] = {"token": token, "lower": lower.tolist(), "upper": upper.tolist()}
        json.dump(line, self.file, ensure_ascii=False, allow_nan=False)

    def finish(self) -> None:
        """Close the last text and the list."""
        self.file.write("]}\n" if self.text else "")
        self.file.write("]}\n")

    def _begin(self, text: AnalyzedText) -> str:
        facts = json.dumps({"row": text.row, "tokens": text.tokens, "special": text.special}, ensure_ascii=False)
        start = ("]},\n" if self.text else "\n") + facts[:-1] + ', "heads": [\n'
        self.text = text
        return start


class CsvFile(WholeFile):
    """A line for each text, layer, head, query and key; the interval's ends only in the chosen row."""

    def __init__(self, path: str):
        super().__init__(path)
        self.writer = csv.writer(self.file)
        places = ("row", "layer", "head", "query", "query_token", "key", "key_token")
        self.writer.writerow([*places, *MATRICES, *INTERVAL])

    def add(self, text: AnalyzedText, head: AnalyzedHead) -> None:
        """Write the lines of a head."""
        assert head.maps is not None
        matrices = [getattr(head.maps, name).tolist() for name in MATRICES]
        for query, query_token in enumerate(text.tokens):
            ends = [end.tolist() for end in head.maps.intervals.get(query, ())]
            for key, key_token in enumerate(text.tokens):
                place = (text.row, head.layer, head.head, query, query_token, key, key_token)
                interval = [end[key] for end in ends] or ["", ""]
                self.writer.writerow([*place, *(matrix[query][key] for matrix in matrices), *interval])


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else form.format(value)
