"""What a run says on the screen."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console, Group
from rich.progress import Progress
from rich.table import Table

from ...models.adapters import attention_modules, heads
from ..data.prepare import TextData
from ..errors import writing
from ..sweep_folder import Sweep
from .literal import headed, literal


def bars(quiet: bool, **options: Any) -> Progress:
    """Bars of progress where somebody looks on, with the time that is left; in the end they vanish."""
    off = quiet or not sys.stderr.isatty()
    return Progress(console=Console(stderr=True), transient=True, disable=off, **options)


def describe_data(data: TextData) -> Group:
    """Rows read and left out; for every split its rows, lengths and cut texts; rows of every label."""
    lines = [
        f"{split}: {report.read:,} rows read" + "".join(f", {n:,} dropped ({why})" for why, n in report.dropped.items())
        for split, report in data.files.items()
    ]
    reports = data.reports.items()
    lines += [
        f"{split}: {report.unknown:,} rows of unknown labels dropped" for split, report in reports if report.unknown
    ]
    limit = data.tokenizer.model_max_length
    table = Table("split", title=f"{len(data.tokenizer):,} tokens in the vocabulary", title_justify="left")
    for name in ("rows", "majority", "median length", "longest", f"cut at {limit}"):
        table.add_column(name, justify="right")
    for split, report in reports:
        table.add_row(split, *_split_cells(report))
    return Group(*lines, *map(literal, data.warnings), table, _label_table(data))


def _label_table(data: TextData) -> Table:
    table = Table("label", *data.reports)
    for name in data.label_names:
        table.add_row(literal(name), *(f"{report.labels[name]:,}" for report in data.reports.values()))
    return table


def describe_scores(scores: dict[str, Any]) -> Group:
    """What `evaluate` found: scores beside the majority baseline, classes, measures."""
    low, high = scores["accuracy_interval"]
    dropped = "".join(f", {n:,} dropped ({why})" for why, n in scores["dropped"].items())
    lines = [
        f"{scores['read']:,} rows read{dropped}",
        *map(literal, scores["warnings"]),
        f"accuracy {scores['accuracy']:.4f} [{low:.4f}, {high:.4f}], {scores['right']:,} of {scores['rows']:,} right",
        f"macro F1 {scores['macro_f1']:.4f}; always the most frequent class: accuracy {scores['majority']:.4f}",
    ]
    classes = Table("label", "rows", "right")
    for name, counts in scores["classes"].items():
        classes.add_row(literal(name), f"{counts['rows']:,}", f"{counts['right']:,}")
    measures = Table("measure", "all layers")
    for name, value in scores.items():
        if name.startswith(("identifiability/", "effective_attention/")):
            measures.add_row(name, f"{value:.4g}")
    return Group(*lines, classes, measures)


def describe_sweep(sweep: Sweep) -> Table:
    """What became of each point: what it differs in, and its run's folder or that it failed."""
    points = {
        number: dict(text.partition("=")[::2] for text in point["overrides"]) for number, point in sweep.points.items()
    }
    keys = [key for point in points.values() for key in point]
    varying = [key for key in dict.fromkeys(keys) if len({point.get(key) for point in points.values()}) > 1]
    table = Table("point", *map(headed, varying), "run")
    for number, point in points.items():
        run = literal(sweep.points[number].get("run", "failed"))
        table.add_row(str(number), *(literal(point.get(key, "")) for key in varying), run)
    return table


def show_predictions(table: pd.DataFrame, texts: Sequence[str] | None) -> None:
    """Print predictions, beside the texts where there are any."""
    shown = Table(*(["text"] if texts else ["row"]), *map(headed, table.columns[1:]))
    for place, cells in enumerate(table.itertuples(index=False)):
        numbers = [f"{cell:.4f}" for cell in cells[2:]]
        shown.add_row(literal(texts[place]) if texts else str(cells[0]), literal(cells[1]), *numbers)
    Console().print(shown)


def write_predictions(table: pd.DataFrame, output: str) -> None:
    """Write predictions as CSV or JSONL, by the ending of `output`.

    Raises:
        UserError: If the file cannot be written.
    """
    with writing(output):
        if output.lower().endswith(".csv"):
            table.to_csv(output, index=False)
        else:
            table.to_json(output, orient="records", lines=True, force_ascii=False, double_precision=15)


def describe_layers(preset: str, model: Any, lengths: np.ndarray) -> str:
    """How long a text each head can be identified on, and how many validation texts are that short."""
    first = heads(attention_modules(model)[0])
    assert first is not None  # attention_modules found it
    length = min(first.d_value + 1, first.d_model)
    share = (lengths <= length).mean() if len(lengths) else float("nan")
    return (
        f"Layer {preset}: each head's weights can be identified up to {length} tokens; "
        f"{share:.1%} of the validation texts are within that."
    )


def _split_cells(report: Any) -> list[str]:
    majority = max(report.labels.values(), default=0) / max(report.rows, 1)
    median = np.median(report.lengths) if len(report.lengths) else 0
    return [f"{report.rows:,}", f"{majority:.3f}", f"{median:.0f}", f"{report.longest:,}", f"{report.cut:,}"]
