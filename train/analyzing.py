"""What a trained model's heads do with texts: how far their attention is determined, and what it could be instead."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..models import HeadRecord, record_heads
from ..models.adapters import attention_modules
from ..models.adapters import heads as heads_of
from .calm import calm_libraries
from .data.prepare import tokenize
from .errors import UserError
from .metrics.head_maps import HeadMaps, head_maps
from .metrics.head_measures import MEASURES, measure_heads
from .predicting import Loaded, load_model, read_rows
from .report.analysis import AnalyzedHead, AnalyzedText, CsvFile, JsonFile
from .report.console import bars

PANELS = {"raw": "raw", "effective": "effective", "max_entropy": "maximum entropy"}


class Choice(NamedTuple):
    """The head, and the token whose row of it, that are shown in detail; token None: no row."""

    layer: int
    head: int
    token: int | None


@dataclass(frozen=True)
class Analysis:
    """What was found in all texts.

    Attributes:
        heads: For every text, layer and head `row` (from 1), `layer`, `head`, `length`, `rank` and the monitor's
            measures without their group, rows' measures over all rows.
        tokens: The chosen row of attention: `position`, `token`, `special`, `raw`, `effective`, `max_entropy`,
            `max_entropy_converged`, and the exact interval, `lower` and `upper`; None unless a token was asked for.
        title: What it is the row of; "" likewise.
    """

    heads: pd.DataFrame
    tokens: pd.DataFrame | None = None
    title: str = ""

    @property
    def table(self) -> pd.DataFrame:
        """For each `layer` and `head` the number of `texts` and the means over them."""
        groups: Any = self.heads.drop(columns="row").groupby(["layer", "head"])
        means = groups.mean()
        means.insert(0, "texts", groups.size())
        return means.reset_index()


@calm_libraries()
@torch.no_grad()
def analyze(
    model: str,
    texts: Sequence[str] = (),
    *,
    data: str | None = None,
    text: Sequence[str] = (),
    encoding: str = "utf-8",
    separator: str | None = None,
    row: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    token: int | None = None,
    json: str | None = None,
    csv: str | None = None,
    png: str | None = None,
    hide_special: bool = False,
    quiet: bool = True,
) -> Analysis:
    """Measure every head of a model on texts, or on a file's rows, one text at a time.

    Args:
        model: Run folder, model folder or hub name.
        texts: Texts; with k text columns, every k of them are one row.
        data: A file, instead of texts.
        text: Its text columns, if not those that the model was trained on.
        encoding: Its encoding.
        separator: Character between its columns, if not by its ending.
        row: Only this row of the file, or of the texts, from 1.
        layer: The layer of `token` and `png`, from 0; 0 unless given.
        head: Their head, likewise.
        token: The token whose row of attention is listed, with exact intervals, from 0.
        json: File to write everything to: all measures and all maps.
        csv: File to write all maps to, a line for each pair of tokens.
        png: File to draw the raw, the effective and the maximum-entropy map of one head to.
        hide_special: Leave special tokens out of the picture; they take part in all computations.
        quiet: No progress bar.

    Raises:
        UserError: If the model or the file cannot be read, there is no such row, layer, head or token, or a number of
            the model is not finite.
    """
    loaded = load_model(model, classifier=False)
    sizes = head_counts(loaded)
    choice = _choice(sizes, layer, head, token, detail=token is not None or png is not None)
    rows = read_rows(loaded, texts, data=data, text=text, encoding=encoding, separator=separator)
    rows = tokenize(picked(rows, row, alone=choice is not None), loaded.tokenizer)
    if token is not None:
        _check_token(rows, token)
    wanted = {choice[:2]: [] if token is None else [token]} if choice else {}
    measured, shown = [], None
    with ExitStack() as stack:
        files = [stack.enter_context(kind(path)) for kind, path in ((JsonFile, json), (CsvFile, csv)) if path]
        advance = stack.enter_context(progress(len(rows) * sum(sizes), quiet))
        for read, found in stream(loaded, rows, wanted, everything=bool(files)):
            measured.append({"row": read.row, "layer": found.layer, "head": found.head, **found.measures})
            for file in files:
                file.add(read, found)
            if (found.layer, found.head) == (choice or ())[:2]:
                shown = read, found
            advance()
    if not measured:
        raise UserError("There is no text with a token to analyze.")
    if shown and png:
        _draw(png, *shown, hide_special)
    if not shown or token is None:
        return Analysis(pd.DataFrame(measured))
    return Analysis(pd.DataFrame(measured), _token_weights(*shown, token), f"{_place(*shown)}, token {token}")


def head_counts(loaded: Loaded) -> list[int]:
    """The number of heads of every layer."""
    try:
        modules = attention_modules(loaded.model)
    except ValueError as error:
        raise UserError(str(error)) from None
    return [found.num_heads for module in modules if (found := heads_of(module))]


def _choice(sizes: list[int], layer: int | None, head: int | None, token: int | None, detail: bool) -> Choice | None:
    """What is shown in detail, if anything is; layer and head are there."""
    if not detail:
        if layer is not None or head is not None:
            raise UserError("--layer and --head choose what --token or --png shows: give one of these, too.")
        return None
    layer, head = layer or 0, head or 0
    if not 0 <= layer < len(sizes):
        raise UserError(f"There is no layer {layer}: the model has layers 0 to {len(sizes) - 1}.")
    if not 0 <= head < sizes[layer]:
        raise UserError(f"There is no head {head}: layer {layer} has heads 0 to {sizes[layer] - 1}.")
    return Choice(layer, head, token)


def _check_token(rows: Any, token: int) -> None:
    for row in rows:
        if not 0 <= token < len(row["input_ids"]):
            last = len(row["input_ids"]) - 1
            raise UserError(f"There is no token {token}: row {row['row']} has tokens 0 to {last}.")


def picked(rows: Dataset, row: int | None, alone: bool) -> Dataset:
    """All rows or the one that was asked for, which it must be where one text is shown alone."""
    if row is not None and not 1 <= row <= len(rows):
        raise UserError(f"There is no row {row}: there are rows 1 to {len(rows)}.")
    if row is not None:
        return rows.select([row - 1])
    if alone and len(rows) > 1:
        raise UserError(f"--token and --png show one text of the {len(rows)}: choose it by --row.")
    return rows


@contextmanager
def progress(number: int, quiet: bool) -> Iterator[Callable[[], None]]:
    """A bar over heads, where somebody looks on; gives what moves it by one."""
    with bars(quiet) as shown:
        task = shown.add_task("Analyzing", total=number)
        yield lambda: shown.advance(task)


def stream(
    loaded: Loaded, rows: Dataset, wanted: Mapping[tuple[int, int], Sequence[int]], everything: bool
) -> Iterator[tuple[AnalyzedText, AnalyzedHead]]:
    """All heads of one text after the other. Texts without tokens are left out.

    Maps are those of `wanted` (layer, head) pairs or of all heads, with exact intervals of the wanted tokens' rows,
    where the text has such tokens.
    """
    for row in rows:
        text = as_read(row, loaded.tokenizer)
        for record in records_of(loaded.model, row) if text.tokens else []:
            for head, measures in enumerate(_measures(record, text)):
                place = record.layer, head
                tokens = [token for token in wanted.get(place, ()) if token < len(text.tokens)]
                maps = _maps(record, head, tokens) if everything or place in wanted else None
                yield text, AnalyzedHead(*place, measures, maps)


def as_read(row: Any, tokenizer: PreTrainedTokenizerBase) -> AnalyzedText:
    """A tokenised row as the model reads it."""
    added = [number for number in tokenizer.all_special_ids if number != tokenizer.unk_token_id]  # that is a word
    ids = row["input_ids"]
    return AnalyzedText(row["row"], [_shown(tokenizer, number) for number in ids], [n in added for n in ids])


def _shown(tokenizer: PreTrainedTokenizerBase, number: int) -> str:
    """A token as text where it is whole letters, else as the vocabulary writes it."""
    token = str(tokenizer.convert_ids_to_tokens(number))
    text = tokenizer.convert_tokens_to_string([token])
    return token if not text.strip() or "\ufffd" in text else text


def records_of(model: PreTrainedModel, row: Any) -> list[HeadRecord]:
    """What each layer's heads do with a tokenised row."""
    ids = torch.tensor([row["input_ids"]], device=model.device)
    with record_heads(model) as records:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return records


def _measures(record: HeadRecord, text: AnalyzedText) -> list[dict[str, float]]:
    """The measures of each head of a record of one text."""
    _refuse_non_finite(record, text)
    numbers = measure_heads(record, rows=None)[0].tolist()
    names = [name.split("/")[1] for name in MEASURES]
    length, heads = len(text.tokens), [dict(zip(names, line, strict=True)) for line in numbers]
    return [{"length": length, "rank": length - int(head["nullity"]), **head} for head in heads]


def _refuse_non_finite(record: HeadRecord, text: AnalyzedText) -> None:
    parts = {"queries": record.query[0], "keys": record.key[0], "values": record.value[0]}
    for name, tensor in (parts | {"output map": record.output_map}).items():
        bad = (~tensor.isfinite().flatten(1).all(1)).nonzero()
        if len(bad):
            place = f"Row {text.row}, layer {record.layer}, head {bad[0].item()}"
            raise UserError(f"{place}: the {name} hold a number that is not finite, so nothing can be measured there.")


def _maps(record: HeadRecord, head: int, tokens: list[int]) -> HeadMaps:
    try:
        return head_maps(record, head, tokens)
    except RuntimeError as error:
        rows = ", ".join(map(str, tokens))
        raise UserError(
            f"Layer {record.layer}, head {head}: no intervals were found for token {rows}: {error}"
        ) from None


def _place(text: AnalyzedText, head: AnalyzedHead) -> str:
    return f"Row {text.row}, layer {head.layer}, head {head.head}"


def _token_weights(text: AnalyzedText, head: AnalyzedHead, token: int) -> pd.DataFrame:
    maps: Any = head.maps
    columns = {"position": range(len(text.tokens)), "token": text.tokens, "special": text.special}
    columns |= {name: getattr(maps, name)[token].tolist() for name in PANELS}
    columns["max_entropy_converged"] = maps.max_entropy_converged[token].item()
    return pd.DataFrame(columns | maps.intervals[token]._asdict())


def _draw(path: str, text: AnalyzedText, head: AnalyzedHead, hide_special: bool) -> None:
    from .report.plots import draw_attention

    kept = [place for place, special in enumerate(text.special) if not (hide_special and special)]
    if not kept:
        raise UserError(f"Row {text.row} has special tokens only: there is nothing to draw without them.")
    panels = {title: getattr(head.maps, name)[kept][:, kept].numpy() for name, title in PANELS.items()}
    draw_attention(path, [text.tokens[place] for place in kept], panels, _place(text, head))
