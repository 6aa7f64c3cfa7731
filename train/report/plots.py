"""Pictures of attention."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..errors import UserError

CELL = 0.17  # inches, enough for a label of 7.5 points
PANEL = (3.0, 22.0)  # inches that a map is wide, at least and at most
LONGEST = 16  # letters of a label
DPI = 110


def draw_attention(path: str, tokens: Sequence[str], maps: dict[str, np.ndarray], title: str) -> None:
    """Draw maps of one head side by side, as PNG or SVG: a row per query, a column per key.

    All share one scale, symmetric about 0: white is 0, red above, blue below.

    Args:
        path: The file.
        tokens: The n tokens, which label rows and columns. Where cells are small, only some labels are written.
        maps: Maps *(n, n)* by their titles.
        title: What stands above all.

    Raises:
        UserError: If the file cannot be written.
    """
    side = float(np.clip(CELL * len(tokens), *PANEL))
    figure = Figure(figsize=(len(maps) * (side + 1.4) + 0.8, side + 2.0), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    heading = 8 + side  # points
    figure.suptitle(title, parse_math=False, fontsize=heading)
    largest = max(float(np.abs(matrix).max(initial=0)) for matrix in maps.values()) or 1.0
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    for axes, (name, matrix) in zip(panels, maps.items(), strict=True):
        image = axes.imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
        axes.set_title(name, fontsize=heading)
        label_tokens(axes, tokens, side)
    bar = figure.colorbar(image, ax=panels, label="weight", fraction=0.02, pad=0.01)
    bar.ax.set_ylim(min(0.0, *(float(matrix.min()) for matrix in maps.values())), largest)
    save(figure, path)


def save(figure: Figure, path: str) -> None:
    """Write a figure as SVG where its name ends so, as PNG otherwise.

    Raises:
        UserError: If the file cannot be written.
    """
    try:
        figure.savefig(path, format="svg" if path.lower().endswith(".svg") else "png")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from None


def label_tokens(axes: Axes, tokens: Sequence[str], side: float, rows: str = "query", columns: str = "key") -> None:
    """Write the tokens beside rows and under columns, as many as there is room for on `side` inches."""
    places = range(0, len(tokens), max(1, math.ceil(len(tokens) * CELL / side)))
    labels = [_short(tokens[place]) for place in places]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(places, labels, fontsize=7.5, parse_math=False)
    axes.tick_params(axis="x", rotation=90)
    axes.tick_params(length=2, pad=1)
    axes.set_xlabel(columns)
    axes.set_ylabel(rows)


def _short(token: str) -> str:
    return token if len(token) <= LONGEST else f"{token[: LONGEST - 1]}…"
