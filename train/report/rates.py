"""Rates of token identifiability on the screen and in files."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from ..errors import writing
from .analysis import LOOK

TITLES = {
    "tokens": "tokens: own input among the inputs of its text",
    "words": "word embeddings alone, an equal word counts as found",
    "positions": "position embeddings alone",
    "permuted": "tokens, position ids permuted before the model runs",
    "angle": "tokens, states and inputs scaled to length 1",
    "length": "tokens, by their lengths alone (l2)",
}


def rate_tables(table: pd.DataFrame, facts: dict[str, Any]) -> Group:
    """A table for each measure: a line per layer, a column per probe."""
    target = "embeddings" if facts["target"] == 0 else f"states of layer {facts['target']}"
    lines = [
        f"{facts['texts']:,} texts, {facts['tokens']:,} tokens{'' if facts['special'] else ' without special ones'}; "
        f"inputs: {target}; layer 0: embeddings",
        f"probes learn by {facts['distance']} on 70 % of the texts, rates by {facts['lookup']} on 15 %, 95 % intervals",
    ]
    lines += [f"{measure}: absent, {why}" for measure, why in facts["absent"].items()]
    measures: Any = table.groupby("measure", sort=False)
    return Group(*lines, "", *(_measure_table(measure, part) for measure, part in measures))


def write_rates(table: pd.DataFrame, facts: dict[str, Any], json_path: str | None, csv_path: str | None) -> None:
    """Write the facts with the table as `rates`, as JSON, and the table alone, as CSV.

    Raises:
        UserError: If a file cannot be written.
    """
    texts = {json_path: json.dumps(facts | {"rates": table.to_dict("records")}, indent=1, ensure_ascii=False) + "\n"}
    texts |= {csv_path: table.to_csv(index=False)}
    for path, text in texts.items():
        if path:
            with writing(path):
                Path(path).write_text(text, encoding="utf-8")


def _measure_table(measure: str, rates: pd.DataFrame) -> Table:
    shown = Table("layer", title=f"{TITLES[measure]}; chance {rates['chance'].iloc[0]:.3f}", **LOOK)
    cells = {(line["layer"], line["probe"]): _cell(line) for line in rates.to_dict("records")}
    probes = rates["probe"].unique()
    for probe in probes:
        shown.add_column(probe, justify="right")
    for layer in sorted(rates["layer"].unique()):
        shown.add_row(str(layer), *(cells.get((layer, probe), "-") for probe in probes))
    return shown


def _cell(line: dict) -> str:
    interval = "at chance" if line["at_chance"] else f"[{line['lower']:.3f}, {line['upper']:.3f}]"
    return escape(f"{line['rate']:.3f} {interval}")
