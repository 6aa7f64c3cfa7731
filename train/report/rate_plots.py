"""Pictures of token identifiability."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .plots import DPI, save
from .rates import TITLES

WIDTH, HEIGHT = 4.2, 4.0  # inches of a panel


def draw_rates(path: str, table: pd.DataFrame) -> None:
    """Draw the rate by layer with its interval, a panel per probe, a colour per measure; chance is dotted.

    Args:
        path: The file; SVG if it ends in .svg, else PNG.
        table: `measure`, `probe`, `layer`, `rate`, `lower`, `upper` and `chance`.

    Raises:
        UserError: If the file cannot be written.
    """
    probes = table["probe"].unique()
    figure = Figure(figsize=(WIDTH * len(probes) + 1.6, HEIGHT), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(probes), sharey=True, squeeze=False)[0]
    for axes, probe in zip(panels, probes, strict=True):
        _draw_probe(axes, table.query("probe == @probe"))
        axes.set_title(probe)
    panels[0].set(ylabel="tokens identified", ylim=(-0.02, 1.02))
    handles = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=8)
    save(figure, path)


def _draw_probe(axes: Axes, rates: pd.DataFrame) -> None:
    for place, measure in enumerate(TITLES):
        part, colour = rates.query("measure == @measure").sort_values("layer"), f"C{place}"
        if len(part):
            look = {"color": colour, "linewidth": 2 if measure == "tokens" else 1}
            axes.plot(part["layer"], part["rate"], marker="o", markersize=3, label=measure, **look)
            axes.fill_between(part["layer"], part["lower"], part["upper"], color=colour, alpha=0.2, linewidth=0)
            axes.plot(part["layer"], part["chance"], color=colour, linewidth=0.8, linestyle=":")
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
