"""Runs side by side: how well they classify, and how far their attention is identified."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from scipy.stats import binomtest

from ..errors import UserError

NUMBER = "{:.3f}".format
COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "macro F1": ("test/macro_f1", NUMBER),
    "parameters": ("parameters", "{:,}".format),
    "train s": ("train_seconds", "{:.0f}".format),
    "identifiable": ("val/identifiability/identifiable", NUMBER),
    "nullity": ("val/identifiability/nullity", "{:.1f}".format),
    "margin": ("val/identifiability/margin", "{:.2g}".format),
    "Pearson": ("val/effective_attention/pearson", NUMBER),
    "Pearson, sums kept": ("val/effective_attention/pearson_preserve_sum", NUMBER),
    "residual": ("val/effective_attention/residual", NUMBER),
}


def compare(runs: Sequence[str | Path]) -> list[dict[str, Any]]:
    """The summaries of finished runs, with `run`, `test/accuracy_low` and `test/accuracy_high` added.

    The two ends are Wilson's 95 % interval of the accuracy.

    Raises:
        UserError: If a folder is not that of a finished run.
    """
    return [_read(Path(run)) for run in runs]


def comparison_table(summaries: list[dict[str, Any]]) -> Table:
    """One row per run."""
    table = Table("run", "layer", title="Accuracy on test; identifiability on validation", title_justify="left")
    for name in ("accuracy [95 %]", *COLUMNS):
        table.add_column(name, justify="right")
    for summary in summaries:
        cells = [shown(summary[key]) if key in summary else "-" for key, shown in COLUMNS.values()]
        table.add_row(summary["run"], summary["preset"], _accuracy(summary), *cells)
    return table


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    if not path.is_file():
        raise UserError(f"{folder} is not the folder of a finished run: it has no summary.json.")
    summary = json.loads(path.read_text(encoding="utf-8")) | {"run": folder.name}
    if "test/accuracy" in summary:
        rows = summary["test/rows"]
        interval = binomtest(round(summary["test/accuracy"] * rows), rows).proportion_ci(method="wilson")
        summary |= {"test/accuracy_low": interval.low, "test/accuracy_high": interval.high}
    return summary


def _accuracy(summary: dict[str, Any]) -> str:
    if "test/accuracy" not in summary:
        return "-"
    low, high = summary["test/accuracy_low"], summary["test/accuracy_high"]
    return f"{summary['test/accuracy']:.3f} [{low:.3f}, {high:.3f}]"
