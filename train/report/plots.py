"""Pictures of attention."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axis import Axis, XAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..errors import writing

CELL = 0.17  # inches, enough for a label of 7.5 points
PANEL = (3.0, 22.0)  # inches that a map is wide, at least and at most
LONGEST = 16  # letters of a label
DPI = 110


def draw_attention(path: str, tokens: Sequence[str], maps: dict[str, np.ndarray], title: str) -> None:
    """Draw maps of one head side by side, as PNG or SVG; see `attention_figure`.

    Raises:
        UserError: If the file cannot be written.
    """
    save(attention_figure(tokens, [maps], title), path)


def save(figure: Figure, path: str) -> None:
    """Write a figure as SVG where its name ends so, as PNG otherwise.

    Raises:
        UserError: If the file cannot be written.
    """
    with writing(path):
        figure.savefig(path, format="svg" if path.lower().endswith(".svg") else "png")


def attention_figure(
    tokens: Sequence[str], maps: Sequence[dict[str, np.ndarray]], title: str, widest: float = PANEL[1]
) -> Figure:
    """A figure of maps of one text: in each a row per query, a column per key; tokens at the figure's edges.

    All share one scale, symmetric about 0: white is 0, red above, blue below.

    Args:
        tokens: The n tokens. Where cells are small, only some are written.
        maps: Maps *(n, n)* by their titles, for each row of the figure.
        title: What stands above all.
        widest: Inches that a map is wide at most.
    """
    side = float(np.clip(CELL * len(tokens), PANEL[0], widest))
    size = len(maps[0]) * (side + 0.3) + 2.0, len(maps) * (side + 0.4) + 1.6
    figure = Figure(figsize=size, dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    heading = 8 + side  # points
    figure.suptitle(title, parse_math=False, fontsize=heading)
    named = [item for row in maps for item in row.items()]
    largest = max(float(np.abs(matrix).max(initial=0)) for _, matrix in named) or 1.0
    panels = figure.subplots(len(maps), len(maps[0]), squeeze=False)
    for axes, (name, matrix) in zip(panels.flat, named, strict=True):
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
        axes.set_title(name, fontsize=heading)
        axes.set(xticks=[], yticks=[])
    for axes in panels[:, 0]:
        label_tokens(axes.yaxis, "query", tokens, side)
    for axes in panels[-1]:
        label_tokens(axes.xaxis, "key", tokens, side)
    bar = figure.colorbar(image, ax=panels, label="weight", fraction=0.02, pad=0.01)
    bar.ax.set_ylim(min(0.0, *(float(matrix.min()) for _, matrix in named)), largest)
    return figure


def label_tokens(axis: Axis, name: str, tokens: Sequence[str], side: float) -> None:
    """Write the tokens along an axis, as many as there is room for on `side` inches."""
    places = range(0, len(tokens), max(1, math.ceil(len(tokens) * CELL / side)))
    axis.set_ticks(places, [_short(tokens[place]) for place in places], fontsize=7.5, parse_math=False)
    axis.set_tick_params(length=2, pad=1, rotation=90 if isinstance(axis, XAxis) else 0)
    axis.set_label_text(name)


def _short(token: str) -> str:
    return token if len(token) <= LONGEST else f"{token[: LONGEST - 1]}…"
