"""Runs side by side: how well they classify, and how far their attention is identified."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from ..errors import UserError
from ..statistics import accuracy_interval

NUMBER = "{:.3f}".format
ROWS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "layer": ("preset", str),
    "seed": ("seed", str),
    "test accuracy": ("test/accuracy", NUMBER),
    "  95 % interval": ("test/accuracy_interval", lambda ends: f"[{ends[0]:.3f}, {ends[1]:.3f}]"),
    "test macro F1": ("test/macro_f1", NUMBER),
    "parameters": ("parameters", "{:,}".format),
    "training, s": ("train_seconds", "{:.0f}".format),
    "identifiable": ("val/identifiability/identifiable", NUMBER),
    "nullity": ("val/identifiability/nullity", "{:.2f}".format),
    "margin": ("val/identifiability/margin", "{:.2g}".format),
    "key ambiguity": ("val/identifiability/key_ambiguity", "{:.2f}".format),
    "slack": ("val/identifiability/slack", NUMBER),
    "Pearson": ("val/effective_attention/pearson", NUMBER),
    "  sums kept": ("val/effective_attention/pearson_preserve_sum", NUMBER),
    "residual": ("val/effective_attention/residual", NUMBER),
}
CAPTION = "identifiable to residual: means over (text, head) pairs of validation, the margin's median"


def compare(runs: Sequence[str | Path]) -> list[dict[str, Any]]:
    """The summaries of finished runs, with `run`, the folder's name, and `test/accuracy_interval`, Wilson's at 95 %.

    Raises:
        UserError: If a folder is not that of a finished run.
    """
    return [_read(Path(run)) for run in runs]


def comparison_table(summaries: list[dict[str, Any]]) -> Table:
    """One column per run."""
    table = Table("run", caption=CAPTION, caption_justify="left")
    for summary in summaries:
        table.add_column(summary["run"], justify="right", overflow="fold")
    for name, (key, shown) in ROWS.items():
        table.add_row(name, *(shown(summary[key]) if key in summary else "-" for summary in summaries))
    return table


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    if not path.is_file():
        raise UserError(f"{folder} is not the folder of a finished run: it has no summary.json.")
    summary = json.loads(path.read_text(encoding="utf-8")) | {"run": folder.name}
    if "test/accuracy" in summary:
        summary["test/accuracy_interval"] = accuracy_interval(summary["test/right"], summary["test/rows"])
    return summary
