"""How far a trained model's hidden tokens still point to their own inputs, beside what position alone would give."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..models.identifiability import token_identifiability
from ..models.identifiability.tokens import PROBES, check_options
from .calm import calm_libraries
from .data.prepare import tokenize
from .errors import Interrupted, UserError, users_mistakes
from .predicting import load_model, read_rows
from .report.console import bars
from .report.rates import write_rates
from .states import TokenStates, read_states

SAMPLE = 300
COSTS = {"identity": 1, "linear": 80, "mlp": 250}  # of a layer, about
ABSENT = dict.fromkeys(("positions", "permuted"), "the model has no embedding of positions")


@dataclass(frozen=True)
class TokenRates:
    """What was found.

    Attributes:
        table: For every `measure`, `probe` and `layer` (0: the embedding output) the `distance` that the probe learnt
            by, the `lookup`, the `rate` and its 95 % interval, `lower` and `upper`, the level of `chance`, and whether
            the interval reaches down to it, `at_chance`.
        facts: Settings, the numbers of `texts` and `tokens`, why a measure is `absent`, and whether all is `finished`.
    """

    table: pd.DataFrame
    facts: dict[str, Any]


@calm_libraries()
@torch.no_grad()
def identify_tokens(
    model: str,
    texts: Sequence[str] = (),
    *,
    data: str | None = None,
    text: Sequence[str] = (),
    encoding: str = "utf-8",
    separator: str | None = None,
    sample: int = SAMPLE,
    max_length: int | None = None,
    special: bool = False,
    target: int = 0,
    probes: Sequence[str] = PROBES,
    distance: str = "cosine",
    lookup: str | None = None,
    train_share: float = 1.0,
    hidden: int | None = None,
    dropout: float = 0.1,
    seed: int = 0,
    json: str | None = None,
    csv: str | None = None,
    png: str | None = None,
    quiet: bool = True,
) -> TokenRates:
    """Token identifiability of every layer of a model, with controls (1908.04211, section 4).

    Measures: `tokens`, own inputs among those of the text; `words`, word embeddings alone, where an equal word counts
    as found; `positions`, position embeddings alone; `permuted`, tokens when position ids are permuted at random in
    each text before the model runs; `angle`, tokens when states and inputs are scaled to length 1; `length`, when their
    lengths are all there is, by l2. Positions are those that are learnt and embedded, not those that attention adds.

    Args:
        model: Run folder, model folder or hub name.
        texts: Texts; with k text columns, every k of them are one row.
        data: A file, instead of texts.
        text: Its text columns, if not those that the model was trained on.
        encoding: Its encoding.
        separator: Character between its columns, if not by its ending.
        sample: How many rows are drawn at random, if there are more.
        max_length: Tokens at which texts are cut, special ones counted; None: as the model reads them.
        special: Whether tokens that the tokenizer adds, as [CLS], are looked for as well. They always stand in the same
            place, so that position alone would find them.
        target: Number of the layer whose states have to be found; 0: the embedding output, the inputs.
        probes: "identity", "linear", "mlp".
        distance: What probes learn by, "cosine" or "l2".
        lookup: What is near in the search; None: as `distance`.
        train_share: The part of the training texts that is used.
        hidden: Hidden units of the perceptron; None: twice the width, but at least 128.
        dropout: Probability of dropping one while it learns.
        seed: Chooses rows, permutations, the split and whatever is random in learning.
        json: File to write everything to.
        csv: File to write the table to.
        png: File to draw the rates to; SVG if its name ends in .svg.
        quiet: No progress bar.

    Raises:
        UserError: If the model or the file cannot be read, an option makes no sense, there are not three texts of two
            tokens, or a number is not finite.
        Interrupted: On Ctrl-C after the first rate; the files hold the rates until then.
    """
    options = {"distance": distance, "lookup": lookup or distance, "train_share": train_share}
    options |= {"hidden": hidden, "dropout": dropout}
    with users_mistakes():
        for probe in probes:
            check_options(probe, **options)
    loaded = load_model(model, classifier=False)
    rows = read_rows(loaded, texts, data=data, text=text, encoding=encoding, separator=separator)
    rows = _cut(_sampled(rows, sample, seed), loaded.tokenizer, max_length)
    with bars(quiet, speed_estimate_period=3600) as progress, users_mistakes():
        read = read_states(loaded, rows, special=special, seed=seed, progress=progress)
        facts = {"model": model, "texts": len(read.texts.unique()), "tokens": len(read.texts), "special": special}
        facts |= {"target": target, **options, "seed": seed, "absent": ABSENT if read.positions is None else {}}
        measures = _measures(read, target)
        jobs = [(probe, name, layer) for probe in probes for name in measures for layer in range(len(read.states))]
        bar, rates = progress.add_task("Probing", total=sum(COSTS[probe] for probe, _, _ in jobs)), []
        found = TokenRates(pd.DataFrame(), facts)
        try:
            for place, (probe, name, layer) in enumerate(jobs, start=1):
                rates += _rate(probe, name, layer, {**options, "seed": seed, **measures[name]})
                found = TokenRates(pd.DataFrame(rates), facts | {"finished": place == len(jobs)})
                _write(found, json, csv, png if place in (1, len(jobs)) else None)
                progress.advance(bar, COSTS[probe])
        except KeyboardInterrupt:
            if not rates:
                raise
            _write(found, json, csv, png)
            raise Interrupted(found) from None
    return found


def _sampled(rows: Dataset, sample: int, seed: int) -> Dataset:
    if sample < 3:
        raise UserError(f"The sample is {sample}: it takes at least 3 texts.")
    places = range(len(rows))
    return rows.select(sorted(random.Random(seed).sample(places, sample))) if sample < len(rows) else rows


def _cut(rows: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int | None) -> Dataset:
    """Tokenised rows."""
    if max_length is not None and max_length < 2:
        raise UserError(f"The maximal length is {max_length}: it must be at least 2.")
    tokenizer.model_max_length = min(tokenizer.model_max_length, max_length or tokenizer.model_max_length)
    return tokenize(rows, tokenizer)


def _measures(read: TokenStates, target: int) -> dict[str, dict[str, Any]]:
    """The arguments of each measure's `token_identifiability`."""
    if not 0 <= target < len(read.states):
        raise UserError(f"There is no layer {target}: states are those of layers 0 to {len(read.states) - 1}.")
    states, inputs = read.states, read.states[target]
    measures: dict[str, dict[str, Any]] = {
        "tokens": {"states": states, "inputs": inputs},
        "words": {"states": states, "inputs": read.words, "ids": read.ids},
    }
    if read.positions is not None and read.permuted is not None:
        measures["positions"] = {"states": states, "inputs": read.positions}
        measures["permuted"] = {"states": read.permuted, "inputs": read.permuted[target]}
    measures["angle"] = {"states": F.normalize(states, dim=-1), "inputs": F.normalize(inputs, dim=-1)}
    lengths = states.norm(dim=-1, keepdim=True)
    measures["length"] = {"states": lengths, "inputs": lengths[target], "distance": "l2", "lookup": "l2"}
    return {name: {**measure, "texts": read.texts} for name, measure in measures.items()}


def _rate(probe: str, name: str, layer: int, given: dict[str, Any]) -> list[dict[str, Any]]:
    """One line of the table; none for the identity between states and inputs of different widths."""
    states = given["states"][[layer]]
    if probe == "identity" and states.shape[-1] != given["inputs"].shape[-1]:
        return []
    found = token_identifiability(probe=probe, **{**given, "states": states})
    line = {"measure": name, "probe": probe, "layer": layer, "distance": given["distance"], "lookup": given["lookup"]}
    numbers = ("rate", "lower", "upper", "chance", "at_chance")
    return [line | {number: getattr(found, number).item() for number in numbers}]


def _write(found: TokenRates, json: str | None, csv: str | None, png: str | None) -> None:
    write_rates(found.table, found.facts, json, csv)
    if png:
        from .report.rate_plots import draw_rates

        draw_rates(png, found.table)
