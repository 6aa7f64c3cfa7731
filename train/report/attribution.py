"""Contributions of input tokens on the screen and in files."""

import csv
import json
import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Group
from rich.table import Table
from torch import Tensor

from ...models.identifiability import ContextProfile, context_profile
from .analysis import LOOK, AnalyzedText, WholeFile

APART = {"1": (1, 1), "2": (2, 2), "3-5": (3, 5), "6-10": (6, 10), "11+": (11, math.inf)}  # tokens, either way


class AttributedText(NamedTuple):
    """A text with the contributions of its tokens.

    Attributes:
        text: The text as the model read it.
        contributions: By layer, row i the hidden token, *(layers, n, n)*.
        standard_error: Of each, likewise; 0 where they are exact.
    """

    text: AnalyzedText
    contributions: Tensor
    standard_error: Tensor

    @property
    def profile(self) -> ContextProfile:
        """What the contributions say of every layer."""
        return context_profile(self.contributions)


def layer_table(table: pd.DataFrame, distances: pd.DataFrame, title: str) -> Group:
    """A line per layer: own shares, tokens not led by their own, and the mean contribution of a token so far away."""
    shown = Table("layer", **LOOK)
    for heading in ("own\nshare", "not led\nby own", *(f"{name}\napart" for name in APART)):
        shown.add_column(heading, justify="right")
    for line in table.to_dict("records"):
        of_layer: Any = distances[distances["layer"] == line["layer"]]
        cells = [f"{line['own_share']:.3f}", f"{line['not_led_by_own']:.3f}"]
        shown.add_row(str(line["layer"]), *cells, *(_between(of_layer, *ends) for ends in APART.values()))
    return Group(title, shown, "apart: mean contribution of one token that many places before or after")


def _between(distances: pd.DataFrame, first: float, last: float) -> str:
    part: Any = distances[distances["distance"].abs().between(first, last)]
    return f"{np.average(part['contribution'], weights=part['pairs']):.4f}" if len(part) else "-"


class ContributionsJson(WholeFile):
    """`{"probes", "source", "texts": [{"row", "tokens", "special", "distance", "layers": [...]}]}`.

    A layer has its number, `own_share` of each token, `not_led_by_own`, `by_distance`, and the matrices `contributions`
    and `standard_error`, as lists of rows; what is no number is null.
    """

    def __init__(self, path: str, probes: int | None, source: str):
        super().__init__(path)
        self.between = ""
        self.file.write(f'{{"probes": {json.dumps(probes)}, "source": "{source}", "texts": [\n')

    def add(self, found: AttributedText) -> None:
        """Write a text."""
        profile = found.profile
        parts = {name: getattr(profile, name) for name in ("own_share", "not_led_by_own", "by_distance")}
        parts |= {"contributions": found.contributions, "standard_error": found.standard_error}
        layers = [
            {"layer": layer, **{name: _plain(part[layer]) for name, part in parts.items()}}
            for layer in range(len(found.contributions))
        ]
        text = {"row": found.text.row, "tokens": found.text.tokens, "special": found.text.special}
        line = text | {"distance": profile.distance.tolist(), "layers": layers}
        self.file.write(self.between + json.dumps(line, ensure_ascii=False, allow_nan=False))
        self.between = ",\n"

    def finish(self) -> None:
        """Close the list."""
        self.file.write("]}\n")


class ContributionsCsv(WholeFile):
    """A line for each text, layer, hidden token and input token."""

    def __init__(self, path: str):
        super().__init__(path)
        self.writer = csv.writer(self.file)
        places = ("row", "layer", "hidden", "hidden_token", "input", "input_token")
        self.writer.writerow([*places, "contribution", "standard_error"])

    def add(self, found: AttributedText) -> None:
        """Write the lines of a text."""
        tokens = list(enumerate(found.text.tokens))
        numbers = zip(found.contributions.tolist(), found.standard_error.tolist(), strict=True)
        self.writer.writerows(  # at once, so that an interruption leaves no part of a text
            [
                (found.text.row, layer, *tokens[hidden], *tokens[token], contribution, error)
                for layer, matrices in enumerate(numbers)
                for hidden, rows in enumerate(zip(*matrices, strict=True))
                for token, (contribution, error) in enumerate(zip(*rows, strict=True))
            ]
        )


def _plain(part: Tensor) -> Any:
    """Numbers for JSON, which has no NaN."""
    if part.isnan().any():
        return [_plain(each) for each in part] if part.ndim else None
    return part.tolist()
