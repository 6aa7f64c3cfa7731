"""A run from its config to its folder."""

import importlib.metadata
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import lightning as L
import pandas as pd
import torch
import transformers
from hydra.utils import instantiate
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from transformers import PreTrainedModel

from ..models import IdentiformerConfig, IdentiformerForSequenceClassification
from .callbacks import PredictionRecorder
from .checkpoints import WholeCheckpointIO
from .classifier import TextClassifier
from .data.batches import LengthBatchSampler, PositionedLoader
from .data.prepare import TextData, prepare
from .data.tokenizer import vocabulary_hash
from .errors import UserError
from .report.card import write_card
from .report.console import describe_data, describe_layers

FORMAT_VERSION = 1
PACKAGES = ("identiformer", "torch", "lightning", "transformers", "datasets", "tokenizers", "torchmetrics")


class RunResult(NamedTuple):
    """A finished run.

    Attributes:
        folder: Where everything is.
        model: The model with the best checkpoint's weights.
        summary: What `summary.json` holds.
    """

    folder: Path
    model: PreTrainedModel
    summary: dict[str, Any]


def run(cfg: DictConfig) -> RunResult:
    """Train, validate and test what a config describes; write the run folder.

    Raises:
        UserError: If the data or the sizes do not allow training.
    """
    if "layer" in cfg:
        raise UserError("The config has a `layer` at its top: a file in conf/layer must begin with `# @package model`.")
    console = Console(quiet=cfg.quiet)
    L.seed_everything(cfg.seed, workers=True, verbose=False)
    with _calm_libraries(cfg.quiet):
        data = prepare(cfg.data)
        model = build_model(cfg, data)
        console.print(describe_data(data), describe_layers(cfg.preset, model, data.reports["validation"].lengths))
        folder = new_folder(Path(cfg.runs) / cfg.name, f"{cfg.preset}-seed{cfg.seed}")
        console.print(f"Run folder: {folder}")
        save_inputs(folder, cfg, data)
        trainer = build_trainer(cfg, folder)
        module = TextClassifier(
            model, optimizer=instantiate(cfg.optimizer), scheduler=instantiate(cfg.scheduler) if cfg.scheduler else None
        )
        started = time.perf_counter()
        trainer.fit(module, loader(data, "train", cfg), loader(data, "validation", cfg))
        seconds = time.perf_counter() - started
        scores, predictions = score_best(trainer, module, data, cfg)
    summary = summarise(cfg, data, model, scores) | {"train_seconds": seconds}
    save_outputs(folder, cfg, data, model, summary, predictions)
    return RunResult(folder, model, summary)


def build_model(cfg: DictConfig, data: TextData) -> IdentiformerForSequenceClassification:
    """The classifier with the config's sizes, for the data's classes and vocabulary.

    Raises:
        UserError: If sizes do not fit each other.
    """
    names = dict(enumerate(data.label_names))
    try:
        config = IdentiformerConfig(
            **OmegaConf.to_container(cfg.model),  # pyright: ignore[reportCallIssue]
            vocab_size=len(data.tokenizer),
            max_length=cfg.data.max_length,
            pad_token_id=data.tokenizer.pad_token_id,
            vocabulary_hash=vocabulary_hash(data.tokenizer),
            id2label=names,
            label2id={name: number for number, name in names.items()},
        )
        return IdentiformerForSequenceClassification(config)
    except (TypeError, ValueError) as error:
        raise UserError(f"model: {error}") from None


def loader(data: TextData, split: str, cfg: DictConfig) -> PositionedLoader:
    """Batches of a split: the train split shuffled, others by length."""
    lengths = data.reports[split].lengths
    sampler = LengthBatchSampler(lengths, cfg.data.batch_size, shuffle=split == "train", seed=cfg.seed)
    rows = data.splits[split].remove_columns("length")
    return PositionedLoader(rows, sampler, data.tokenizer, cfg.data.workers)


def build_trainer(cfg: DictConfig, folder: Path) -> L.Trainer:
    """The trainer with its callbacks and loggers, all writing into `folder`."""
    callbacks = {name: instantiate(callback) for name, callback in cfg.callbacks.items() if callback}
    for callback in callbacks.values():
        if isinstance(callback, ModelCheckpoint):
            callback.dirpath = str(folder / "checkpoints")
    loggers = [instantiate(logger, save_dir=str(folder)) for logger in cfg.logger.values() if logger]
    return instantiate(
        cfg.trainer,
        callbacks=[*callbacks.values(), PredictionRecorder()],
        logger=loggers,
        plugins=[WholeCheckpointIO()],
        default_root_dir=str(folder),
        enable_progress_bar=not cfg.quiet,
    )


def score_best(
    trainer: L.Trainer, module: TextClassifier, data: TextData, cfg: DictConfig
) -> tuple[dict[str, float], pd.DataFrame | None]:
    """Load the best checkpoint; validate and test it with the monitor. Scores by name, and the test predictions."""
    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    arguments: Any = {"ckpt_path": best or None, "verbose": False, "weights_only": True}
    scores = dict(trainer.validate(module, loader(data, "validation", cfg), **arguments)[0])
    if "test" not in data.splits:
        return scores, None
    scores |= trainer.test(module, loader(data, "test", cfg), **arguments)[0]
    recorder = next(callback for callback in trainer.callbacks if isinstance(callback, PredictionRecorder))
    return scores, _predictions(recorder, data)


def _predictions(recorder: PredictionRecorder, data: TextData) -> pd.DataFrame:
    """Test rows in file order with true label, predicted label and probabilities."""
    rows, probabilities = torch.cat(recorder.rows), torch.cat(recorder.probabilities)
    best, predicted = probabilities.max(1)
    test = data.splits["test"]
    labels = dict(zip(test["row"][:], test["labels"][:], strict=True))
    table = {
        "row": rows.numpy(),
        "label": [data.label_names[labels[row]] for row in rows.tolist()],
        "predicted": [data.label_names[number] for number in predicted.tolist()],
        "probability": best.numpy(),
    }
    classes = {f"probability_{name}": probabilities[:, number] for number, name in enumerate(data.label_names)}
    return pd.DataFrame(table | {name: column.numpy() for name, column in classes.items()}).sort_values("row")


def summarise(cfg: DictConfig, data: TextData, model: PreTrainedModel, scores: dict[str, float]) -> dict[str, Any]:
    """All figures of a run, flat."""
    rows = {f"{split}/rows": report.rows for split, report in data.reports.items()}
    facts = {
        "format_version": FORMAT_VERSION,
        "preset": cfg.preset,
        "seed": cfg.seed,
        "parameters": model.num_parameters(),
        "data_hash": data.content_hash,
    }
    return scores | rows | facts | {f"versions/{name}": importlib.metadata.version(name) for name in PACKAGES}


def new_folder(parent: Path, name: str) -> Path:
    """Make a folder of this name and the time in `parent` that nobody else has, not even in the same second."""
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
    """Write what the run is made of: the config, and which row of its file is in which split."""
    OmegaConf.save(cfg, folder / "config.yaml")
    parts = [pd.DataFrame({"split": split, "row": rows["row"][:]}) for split, rows in data.splits.items()]
    pd.concat(parts).to_parquet(folder / "split.parquet", index=False)


def save_outputs(
    folder: Path,
    cfg: DictConfig,
    data: TextData,
    model: PreTrainedModel,
    summary: dict[str, Any],
    predictions: pd.DataFrame | None,
) -> None:
    """Write the model folder, the predictions and, last, the summary."""
    model.save_pretrained(folder / "model")
    data.tokenizer.save_pretrained(folder / "model")
    facts = {
        "format_version": FORMAT_VERSION,
        "preset": cfg.preset,
        "text": list(data.columns.text),
        "label": data.columns.label,
        "max_length": cfg.data.max_length,
    }
    (folder / "model" / "identiformer.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    write_card(folder / "model" / "README.md", cfg.preset, cfg.command, summary)
    if predictions is not None:
        predictions.to_parquet(folder / "predictions.parquet", index=False)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _calm_libraries(quiet: bool) -> Iterator[None]:
    """Leave out what libraries say of their own insides; with `quiet`, also their progress bars."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    transformers.logging.disable_progress_bar()
    if quiet or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    with warnings.catch_warnings():
        for message in ("does not have many workers", "logs directory .* not empty", "Checkpoint directory"):
            warnings.filterwarnings("ignore", f".*{message}")
        yield
