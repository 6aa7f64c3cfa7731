"""The folder of a run: what is in it, and how it is written."""

import importlib.metadata
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf
from transformers import PreTrainedModel

from .callbacks import PredictionRecorder
from .data.prepare import TextData
from .disk import whole_file
from .errors import UserError
from .predicting import class_table
from .report.card import write_card

FORMAT_VERSION = 1
PACKAGES = ("identiformer", "torch", "lightning", "transformers", "datasets", "tokenizers", "torchmetrics")


def new_folder(parent: Path, name: str) -> Path:
    """Make a folder of this name and the time in `parent` that nobody else has, not even in the same second.

    Raises:
        UserError: If it cannot be made.
    """
    try:
        return _new_folder(parent, name)
    except OSError as error:
        raise UserError(f"No folder can be made in {str(parent)!r}: {error.strerror}.") from None


def _new_folder(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    stem, number = f"{name}-{datetime.now():%Y%m%d-%H%M%S}", 1
    while True:
        folder = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def save_inputs(folder: Path, cfg: DictConfig, data: TextData) -> None:
    """Write what the run is made of: which row of its file is in which split, and, last, the config."""
    parts = [pd.DataFrame({"split": split, "row": rows["row"][:]}) for split, rows in data.splits.items()]
    with whole_file(folder / "split.parquet") as part:
        pd.concat(parts).to_parquet(part, index=False)
    with whole_file(folder / "config.yaml") as part:
        OmegaConf.save(cfg, part)


def save_model(folder: Path, cfg: DictConfig, data: TextData, model: PreTrainedModel, summary: dict[str, Any]) -> None:
    """Write a `save_pretrained` folder with all that a prediction needs, and a card."""
    model.save_pretrained(folder)
    data.tokenizer.save_pretrained(folder)
    facts = {
        "format_version": FORMAT_VERSION,
        "preset": cfg.preset,
        "text": list(data.columns.text),
        "label": data.columns.label,
        "max_length": cfg.data.max_length,
    }
    write_json(folder / "identiformer.json", facts)
    write_card(folder / "README.md", cfg.preset, cfg.command, summary)


def prediction_table(recorder: PredictionRecorder, data: TextData) -> pd.DataFrame:
    """Test rows in file order: `row`, `label`, `predicted`, `probability` and `probability_<class>`."""
    table = class_table(*recorder.gather(), data.label_names)
    test = data.splits["test"]
    labels = pd.Series(test["labels"][:], index=test["row"][:])
    table.insert(1, "label", [data.label_names[number] for number in labels[table["row"]]])
    return table


def summarise(cfg: DictConfig, data: TextData, model: PreTrainedModel, scores: dict[str, float]) -> dict[str, Any]:
    """All figures of a run, flat."""
    rows: dict[str, Any] = {f"{split}/rows": report.rows for split, report in data.reports.items()}
    if "test" in data.reports:
        rows["test/right"] = round(scores["test/accuracy"] * rows["test/rows"])
        rows["test/data_hash"] = data.test_hash
    facts = {
        "format_version": FORMAT_VERSION,
        "preset": cfg.preset,
        "seed": cfg.seed,
        "parameters": model.num_parameters(),
        "data_hash": data.content_hash,
    }
    return scores | rows | facts | {f"versions/{name}": importlib.metadata.version(name) for name in PACKAGES}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write one JSON object, for people to read; it is whole or not there."""
    with whole_file(path) as part:
        part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
