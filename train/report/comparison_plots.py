"""Pictures of a comparison: accuracy against a measure, both over training, and the measure by text length."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..errors import UserError, near_match
from ..metrics.head_measures import MEASURES
from ..statistics import pareto_front
from .compare import Comparison
from .runs import Group, Run

NAMES = {measure.split("/")[1]: measure for measure in MEASURES}
GREATER_IS_BETTER = ("identifiable", "margin", "pearson", "pearson_preserve_sum")
MARKERS = "osD^vPX*<>"
DPI = 150


def draw_comparison(comparison: Comparison, folder: str, measure: str = "identifiable") -> list[Path]:
    """Draw `accuracy_<measure>`, `training_<measure>` and `length_<measure>`, each as PNG and SVG.

    Args:
        comparison: What is drawn; groups without what a picture needs are left out of it.
        folder: Where to.
        measure: One of the monitor's measures, without its group, as `slack`.

    Raises:
        UserError: If there is no such measure, or the folder cannot be written.
    """
    if measure not in NAMES:
        raise UserError(
            f"There is no measure {measure!r}; choose among {', '.join(NAMES)}.{near_match(measure, NAMES)}"
        )
    pictures = {"accuracy": draw_scatter, "training": draw_training, "length": draw_lengths}
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return [
            path for name, draw in pictures.items() for path in _save(draw(comparison, measure), folder, name, measure)
        ]
    except OSError as error:
        raise UserError(f"{error.filename} cannot be written: {error.strerror}.") from None


def draw_scatter(comparison: Comparison, measure: str) -> Figure:
    """Test accuracy against a measure of validation: runs, groups' means with deviations, and the Pareto front."""
    figure, (axes,) = _figure(1)
    key, sign = f"val/{NAMES[measure]}", 1 if measure in GREATER_IS_BETTER else -1
    means = []
    for group, look in _looks(comparison):
        figures = group.figures
        if not {key, "test/accuracy"} <= set(figures.index):
            continue
        runs = [(run.summary[key], run.summary["test/accuracy"]) for run in group.runs]
        axes.plot(
            *zip(*runs, strict=True), **look | {"linestyle": "none", "alpha": 0.4, "markersize": 3, "label": None}
        )
        (x, dx), (y, dy) = figures.loc[key], figures.loc["test/accuracy"]
        axes.errorbar(x, y, np.nan_to_num(dy), np.nan_to_num(dx), linestyle="none", capsize=3, **look)
        means.append((x, y))
    if means:
        front = np.array(means)[pareto_front(*(np.array(means) * [sign, 1]).T)]
        axes.plot(*front[front[:, 0].argsort()].T, "--", color="0.5", linewidth=1, label="Pareto front", zorder=0)
    axes.set_xlabel(f"{measure} ({'greater' if sign > 0 else 'less'} is better)")
    axes.set_ylabel("test accuracy")
    return _finish(figure, axes)


def draw_training(comparison: Comparison, measure: str) -> Figure:
    """Validation accuracy and a measure after each epoch: means over seeds, and a band of one deviation."""
    figure, panels = _figure(2)
    for group, look in _looks(comparison):
        histories = [history for run in group.runs if (history := _history(run)) is not None]
        for axes, key in zip(panels, ("val/accuracy", f"val/{NAMES[measure]}"), strict=True):
            _band(axes, [history[key].dropna() for history in histories if key in history], look)
    for axes, label in zip(panels, ("validation accuracy", measure), strict=True):
        axes.set_xlabel("epoch")
        axes.set_ylabel(label)
        axes.xaxis.get_major_locator().set_params(integer=True)
    return _finish(figure, panels[0])


def draw_lengths(comparison: Comparison, measure: str) -> Figure:
    """A measure by text length in the saved model's epoch: means over seeds, and a band of one deviation."""
    figure, (axes,) = _figure(1)
    for group, look in _looks(comparison):
        found = [_by_length(run, NAMES[measure]) for run in group.runs]
        _band(axes, [lengths for lengths in found if lengths is not None], look)
    axes.set_xlabel("tokens of a text")
    axes.set_ylabel(measure)
    return _finish(figure, axes)


def _history(run: Run) -> pd.DataFrame | None:
    """Validations while fitting, by epochs trained. The last one in the log is the best checkpoint's, once more."""
    path = run.folder / "metrics.csv"
    if not path.exists():
        return None
    log = pd.read_csv(path)
    log = log[log["val/accuracy"].notna()].iloc[:-1]
    return log.set_index(log["epoch"] + 1)


def _by_length(run: Run, measure: str) -> Any:
    """A measure's mean over layers and heads, by the middle of each length bucket, in the best epoch; None without."""
    path, history = run.folder / "identifiability.jsonl", _history(run)
    if not path.exists() or history is None:
        return None
    lines = pd.DataFrame([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])
    lines = lines[lines["epoch"] + 1 == history["val/accuracy"].idxmax()]
    middle = (lines["length_from"] + lines["length_to"]) / 2
    return lines.groupby(middle)[measure].mean() if measure in lines else None


def _band(axes: Axes, curves: list[Any], look: dict[str, Any]) -> None:
    """The mean of curves, and one deviation on either side."""
    if not curves:
        return
    table = pd.concat(curves, axis=1)
    mean, deviation = table.mean(axis=1), table.std(axis=1).fillna(0)
    axes.plot(mean.index, mean, **look)
    axes.fill_between(mean.index, mean - deviation, mean + deviation, color=look["color"], alpha=0.15, linewidth=0)


def _looks(comparison: Comparison) -> Iterator[tuple[Group, dict[str, Any]]]:
    """Each group with a colour and a marker of its own."""
    for place, group in enumerate(comparison.groups):
        look = {"color": f"C{place % 10}", "marker": MARKERS[place % len(MARKERS)], "markersize": 5}
        yield group, look | {"label": group.name}


def _figure(panels: int) -> tuple[Figure, Any]:
    figure = Figure(figsize=(1 + 4.5 * panels, 4), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def _finish(figure: Figure, axes: Axes) -> Figure:
    """Add a legend whose names are what they are, no formulas."""
    if axes.get_legend_handles_labels()[0]:
        for text in figure.legend(
            *axes.get_legend_handles_labels(), loc="outside right upper", frameon=False
        ).get_texts():
            text.set_parse_math(False)
    return figure


def _save(figure: Figure, folder: str, name: str, measure: str) -> list[Path]:
    paths = [Path(folder) / f"{name}_{measure}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        figure.savefig(path)
    return paths
