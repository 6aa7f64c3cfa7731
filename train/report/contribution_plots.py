"""Pictures of contributions of input tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .plots import CELL, DPI, PANEL, label_tokens, save

HEIGHT, WIDTH = 4.0, 5.0  # inches of a panel
ENOUGH = 0.1  # of the pairs of no distance that a distance needs to be drawn


class ContributionMap(NamedTuple):
    """One layer's contributions for one text: a row per hidden token, a column per input token."""

    tokens: Sequence[str]
    matrix: np.ndarray
    title: str


def draw_contributions(
    path: str, tokens: pd.DataFrame, distances: pd.DataFrame, shown: ContributionMap | None = None
) -> None:
    """Draw own shares by layer as boxes, mean contributions by distance for each layer, and perhaps a map.

    Boxes are quartiles with the median, whiskers reach the 5th and the 95th of a hundred.

    Args:
        path: The file; SVG if it ends in .svg, else PNG.
        tokens: `layer` and `own_share` of every token.
        distances: `layer`, `distance`, `contribution` and `pairs`.
        shown: A text's map, beside the others.

    Raises:
        UserError: If the file cannot be written.
    """
    side = float(np.clip(CELL * len(shown.tokens), *PANEL)) if shown else 0.0
    widths = [WIDTH, WIDTH, *([side + 1.4] if shown else [])]
    figure = Figure(figsize=(sum(widths), max(HEIGHT, side + 1.4)), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    boxes, lines, *rest = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    _draw_boxes(boxes, tokens)
    _draw_lines(lines, distances)
    if shown:
        _draw_map(figure, rest[0], shown, side)
    save(figure, path)


def _draw_boxes(axes: Axes, tokens: pd.DataFrame) -> None:
    shares = {layer: part["own_share"].dropna() for layer, part in tokens.groupby("layer")}
    axes.boxplot(list(shares.values()), tick_labels=[str(layer) for layer in shares], whis=(5, 95), showfliers=False)
    axes.set(xlabel="layer", ylabel="contribution of a token's own input", ylim=(0, 1))


def _draw_lines(axes: Axes, distances: pd.DataFrame) -> None:
    layers = distances["layer"].unique()
    for layer, colour in zip(layers, colormaps["viridis"](np.linspace(0, 0.9, len(layers))), strict=True):
        part = distances[distances["layer"] == layer]
        part = part[part["pairs"] >= ENOUGH * part["pairs"].max()]
        axes.plot(part["distance"], part["contribution"], color=colour, label=f"layer {layer}", linewidth=1)
    axes.set(xlabel="places of the input token after the hidden token", ylabel="mean contribution", yscale="log")
    axes.legend(fontsize=7.5)


def _draw_map(figure: Figure, axes: Axes, shown: ContributionMap, side: float) -> None:
    image = axes.imshow(shown.matrix, cmap="Reds", vmin=0, interpolation="nearest")
    axes.set_title(shown.title, parse_math=False)
    label_tokens(axes.yaxis, "hidden token", shown.tokens, side)
    label_tokens(axes.xaxis, "input token", shown.tokens, side)
    figure.colorbar(image, ax=axes, label="contribution", fraction=0.05, pad=0.02)
