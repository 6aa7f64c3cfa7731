"""What a run says on the screen."""

from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table

from ..data.prepare import TextData


def describe_data(data: TextData) -> Group:
    """Rows read and left out, and for every split its rows, labels, lengths and cut texts."""
    lines = [
        f"{split}: {report.read:,} rows read" + "".join(f", {n:,} dropped ({why})" for why, n in report.dropped.items())
        for split, report in data.files.items()
    ]
    limit = data.tokenizer.model_max_length
    table = Table("split", title="Data", title_justify="left")
    for name in ("rows", "majority", "median length", "longest", f"cut at {limit}"):
        table.add_column(name, justify="right")
    for split, report in data.reports.items():
        table.add_row(split, *_split_cells(report))
    unknown = [
        f"{split}: {r.unknown:,} rows of unknown labels dropped" for split, r in data.reports.items() if r.unknown
    ]
    labels = ", ".join(f"{name} {count:,}" for name, count in data.reports["train"].labels.items())
    return Group(*lines, *unknown, table, f"Train labels: {labels}")


def describe_layers(preset: str, model: Any, lengths: np.ndarray) -> str:
    """How long a text each head can be identified on, and how many validation texts are that short."""
    layer = model.encoder.layers[0]
    length = layer.identifiable_length
    share = (lengths <= length).mean() if len(lengths) else float("nan")
    return (
        f"Layer {preset}: each head's weights can be identified up to {length} tokens; "
        f"{share:.1%} of the validation texts are within that."
    )


def _split_cells(report: Any) -> list[str]:
    majority = max(report.labels.values(), default=0) / max(report.rows, 1)
    median = np.median(report.lengths) if len(report.lengths) else 0
    return [f"{report.rows:,}", f"{majority:.3f}", f"{median:.0f}", f"{report.longest:,}", f"{report.cut:,}"]
