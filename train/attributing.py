"""How much each input token contributes to a trained model's hidden tokens, over texts or a file's rows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import torch
from datasets import Dataset

from ..models import hidden_token_attribution
from ..models.adapters import encoder_layers
from .analyzing import as_read, picked
from .calm import calm_libraries
from .data.prepare import tokenize
from .errors import Interrupted, UserError
from .predicting import Loaded, load_model, read_rows
from .report.attribution import AttributedText, ContributionsCsv, ContributionsJson
from .report.console import bars

PROBES = 32


@dataclass(frozen=True)
class Attributions:
    """What was found in all texts.

    Attributes:
        texts: For every `row` (from 1) and `layer` the `length`, `not_led_by_own`, and `relative_error`, the mean of
            standard errors by their contributions.
        tokens: For every token `row`, `layer`, `position`, `token`, `special`, and `own_share`.
        distances: For every `layer` and `distance` the mean `contribution` of the input token that many places after
            the hidden one, and the number of `pairs` that it is of.
    """

    texts: pd.DataFrame
    tokens: pd.DataFrame
    distances: pd.DataFrame

    @property
    def table(self) -> pd.DataFrame:
        """For every `layer` the `own_share` and `not_led_by_own`, over all tokens of all texts."""
        own: Any = self.tokens.groupby("layer")["own_share"].mean()
        weighted: Any = self.texts.assign(led=self.texts["not_led_by_own"] * self.texts["length"]).groupby("layer")
        led = weighted["led"].sum() / weighted["length"].sum()
        return pd.DataFrame({"own_share": own, "not_led_by_own": led}).reset_index()

    @property
    def title(self) -> str:
        """What it is of, and how exact."""
        error: Any = self.texts["relative_error"].mean()
        lengths = self.texts.drop_duplicates("row")["length"]
        about = f", standard error of a contribution {error:.1%} of it" if error else ", exact"
        return f"{len(lengths):,} {'text' if len(lengths) == 1 else 'texts'} of {lengths.mean():.1f} tokens{about}"


@calm_libraries()
def attribute(
    model: str,
    texts: Sequence[str] = (),
    *,
    data: str | None = None,
    text: Sequence[str] = (),
    encoding: str = "utf-8",
    separator: str | None = None,
    row: int | None = None,
    probes: int | None = PROBES,
    source: Literal["embedding", "previous"] = "embedding",
    seed: int = 0,
    layer: int | None = None,
    json: str | None = None,
    csv: str | None = None,
    png: str | None = None,
    quiet: bool = True,
) -> Attributions:
    """Hidden token attribution of every layer of a model (1908.04211, section 5), one text at a time.

    Args:
        model: Run folder, model folder or hub name.
        texts: Texts; with k text columns, every k of them are one row.
        data: A file, instead of texts.
        text: Its text columns, if not those that the model was trained on.
        encoding: Its encoding.
        separator: Character between its columns, if not by its ending.
        row: Only this row of the file, or of the texts, from 1.
        probes: Random tangents per token, at least 2; None: exact.
        source: What contributes: the output of the embedding, or the input of the layer itself ("previous").
        seed: Chooses the probes.
        layer: The layer whose map `png` shows of a text, from 0; the last unless given.
        json: File to write everything to.
        csv: File to write all contributions to, a line for each pair of tokens.
        png: File to draw to: own shares and contributions by distance, and the map of a text that is alone.
        quiet: No progress bar.

    Raises:
        UserError: If the model or the file cannot be read, there is no such row or layer, or a number is not finite.
        Interrupted: On Ctrl-C after the first text; files are written and hold the texts until then.
    """
    if probes is not None and probes < 2:
        raise UserError(f"--probes is {probes}: give at least 2, or 0 for exact contributions.")
    loaded = load_model(model, classifier=False)
    rows = read_rows(loaded, texts, data=data, text=text, encoding=encoding, separator=separator)
    rows = tokenize(picked(rows, row, alone=False), loaded.tokenizer)
    shown = _shown_layer(loaded, layer, alone=bool(png) and len(rows) == 1)
    parts: list[tuple[pd.DataFrame, ...]] = []
    last, interrupted = None, False
    with ExitStack() as stack:
        files = [stack.enter_context(file) for file in _files(json, csv, probes, source)]
        try:
            for last in _stream(loaded, rows, {"probes": probes, "source": source, "seed": seed}, quiet):
                frames = _frames(last)
                for file in files:
                    file.add(last)
                parts.append(frames)
        except KeyboardInterrupt:
            if not parts:
                raise
            interrupted = True
    if last is None:
        raise UserError("There is no text with a token to analyze.")
    found = _gathered(parts)
    if png:
        _draw(png, found, last if len(rows) == 1 else None, shown)
    if interrupted:
        raise Interrupted(found)
    return found


def _shown_layer(loaded: Loaded, layer: int | None, alone: bool) -> int:
    """The layer whose map is drawn of a text that is `alone`."""
    try:
        number = len(encoder_layers(loaded.model))
    except ValueError as error:
        raise UserError(str(error)) from None
    if layer is not None and not alone:
        raise UserError(
            "--layer chooses the map that --png draws of one text: give --png, and --row if there are more."
        )
    if layer is not None and not 0 <= layer < number:
        raise UserError(f"There is no layer {layer}: the model has layers 0 to {number - 1}.")
    return number - 1 if layer is None else layer


def _files(json: str | None, csv: str | None, probes: int | None, source: str) -> Iterator[Any]:
    if json:
        yield ContributionsJson(json, probes, source)
    if csv:
        yield ContributionsCsv(csv)


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[float], None]]:
    """A bar with the time that is left, where somebody looks on; gives what moves it to a place."""
    with bars(quiet) as shown:
        task = shown.add_task("Attributing", total=total)
        yield lambda completed: shown.update(task, completed=completed)


def _stream(loaded: Loaded, rows: Dataset, options: dict[str, Any], quiet: bool) -> Iterator[AttributedText]:
    """One text after the other; those without tokens are left out."""
    model: Any = loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")  # pyright: ignore
    costs = [len(ids) ** 2 for ids in rows["input_ids"]]  # so many tangents, each so long
    with _progress(sum(costs), quiet) as move:
        for place, (row, cost) in enumerate(zip(rows, costs, strict=True)):
            text, begun = as_read(row, loaded.tokenizer), sum(costs[:place])
            if not cost:
                continue
            ids = torch.tensor([row["input_ids"]], device=model.device)  # pyright: ignore[reportArgumentType, reportCallIssue]
            batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

            def told(done: int, tangents: int, begun: int = begun, cost: int = cost) -> None:
                move(begun + cost * done / tangents)

            try:
                found = hidden_token_attribution(model, batch, progress=told, **options)
            except ValueError as error:
                raise UserError(f"Row {text.row}: {error}") from None
            yield AttributedText(text, *(torch.stack(part)[:, 0] for part in found))


def _frames(found: AttributedText) -> tuple[pd.DataFrame, ...]:
    """A text's part of the frames of `Attributions`."""
    text, profile = found.text, found.profile
    n, layers = len(text.tokens), range(len(found.contributions))
    relative = (found.standard_error / found.contributions).nanmean((1, 2))
    facts = {"length": n, "not_led_by_own": profile.not_led_by_own.numpy(), "relative_error": relative.numpy()}
    texts = pd.DataFrame({"row": text.row, "layer": layers, **facts})
    words = {"position": range(n), "token": text.tokens, "special": text.special}
    places = {"distance": profile.distance.numpy(), "pairs": n - profile.distance.abs().numpy()}
    own, means = profile.own_share.numpy(), profile.by_distance.numpy()
    tokens = [pd.DataFrame({"row": text.row, "layer": layer, **words, "own_share": own[layer]}) for layer in layers]
    distances = [pd.DataFrame({"layer": layer, **places, "contribution": means[layer]}) for layer in layers]
    return texts, pd.concat(tokens), pd.concat(distances)


def _gathered(parts: list[tuple[pd.DataFrame, ...]]) -> Attributions:
    """The frames of all texts, distances pooled over them."""
    texts, tokens, distances = (pd.concat(frames, ignore_index=True) for frames in zip(*parts, strict=True))
    distances["contribution"] *= distances["pairs"]
    pooled: Any = distances.groupby(["layer", "distance"], as_index=False).sum()
    pooled["contribution"] /= pooled["pairs"]
    return Attributions(texts, tokens, pooled)


def _draw(path: str, found: Attributions, alone: AttributedText | None, layer: int) -> None:
    from .report.contribution_plots import ContributionMap, draw_contributions

    shown = None
    if alone:
        title = f"Row {alone.text.row}, layer {layer}"
        shown = ContributionMap(alone.text.tokens, alone.contributions[layer].numpy(), title)
    draw_contributions(path, found.tokens, found.distances, shown)
