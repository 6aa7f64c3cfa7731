"""A trained model put to use: predictions for texts, and scores on a labelled file."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import pandas as pd
import torch
from datasets import Dataset
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from .. import models  # noqa: F401 (registers our architecture)
from .callbacks import IdentifiabilityMonitor, PredictionRecorder
from .calm import calm_libraries
from .classifier import TextClassifier
from .data.batches import batches_of
from .data.labels import encode_labels
from .data.prepare import drop_unusable, refuse_empty, tokenize, warn_of_columns, warn_of_labels
from .data.reading import FEATURES, Columns, read_file, row_of
from .data.tokenizer import vocabulary_hash
from .errors import UserError, first_line
from .processes import together
from .report.console import bars
from .statistics import accuracy_interval

BATCH_SIZE = 32


class Loaded(NamedTuple):
    """A model with all that belongs to it.

    Attributes:
        model: The classifier, in eval mode.
        tokenizer: Its tokenizer, cutting at the length that the model was trained with.
        columns: The columns that it was trained on.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    columns: Columns

    @property
    def label_names(self) -> list[str]:
        """Class names in the order of their numbers."""
        names: Any = self.model.config.id2label
        return [names[number] for number in range(len(names))]


def load_model(name: str, classifier: bool = True) -> Loaded:
    """Load a model by run folder, `model/` or checkpoint folder, or hub name.

    Args:
        name: The folder or hub name.
        classifier: Whether it must have a classifier; if not, an encoder alone is loaded as that.

    Raises:
        UserError: If there is none, it has no classifier, or its tokenizer is not the one that it was trained with.
    """
    folder = Path(name, "model") if os.path.isfile(Path(name, "model", "config.json")) else Path(name)
    source = str(folder) if os.path.exists(folder) else name
    try:
        model, missing = _load(AutoModelForSequenceClassification, source)
        if missing and not classifier:
            model, missing = _load(AutoModel, source)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # libraries say in many ways that a file is not what it should be
        what = "is neither the folder of a finished run or of a saved model, nor a model of the hub that can be had now"
        what = "cannot be loaded" if os.path.isfile(folder / "config.json") else what
        raise UserError(f"{name!r} {what}: {first_line(error)}") from None
    if missing:
        raise UserError(f"{name!r} is not a trained classifier: it has no {min(missing)}; train it first.")
    _check_tokenizer(name, model, tokenizer)
    limit = getattr(model.config, "max_position_embeddings", tokenizer.model_max_length)
    tokenizer.model_max_length = min(tokenizer.model_max_length, limit)
    loaded = Loaded(model.eval(), tokenizer, _trained_columns(name, folder / "identiformer.json"))
    if classifier:
        _check_classifier(name, loaded)
    return loaded


def _load(kind: Any, source: str) -> tuple[PreTrainedModel, set[str]]:
    """The model and the names of the parameters that it was not saved with, but those of an encoder's pooler."""
    model, report = kind.from_pretrained(
        source, output_loading_info=True, ignore_mismatched_sizes=True, use_safetensors=True, trust_remote_code=False
    )
    for key, saved, expected in sorted(report["mismatched_keys"]):
        raise ValueError(f"{key} is {tuple(saved)} in the file and {tuple(expected)} by config.json.")
    if model.config.model_type.startswith("identiformer") and report["unexpected_keys"]:
        raise ValueError(f"the file has {min(report['unexpected_keys'])}, and a model of its config.json has not.")
    return model, {name for name in report["missing_keys"] if not name.startswith("pooler.")}


def _trained_columns(name: str, facts: Path) -> Columns:
    """The columns that a model was trained on, as its folder says; the default's where it says nothing."""
    if not facts.is_file():
        return Columns()
    try:
        read = json.loads(facts.read_text(encoding="utf-8"))
        text, label = read["text"], read["label"]
    except (ValueError, KeyError, TypeError):
        text, label = None, None
    if not (isinstance(text, list) and text and all(isinstance(column, str) for column in [*text, label])):
        raise UserError(f"{name!r}: {facts.name} does not say which columns the model was trained on: text and label.")
    return Columns(tuple(text), label)


def _check_classifier(name: str, loaded: Loaded) -> None:
    names: Any = loaded.model.config.id2label
    if sorted(names) != list(range(len(names))) or len(set(names.values())) < len(names):
        raise UserError(f"{name!r}: the classes {names} of its config.json are not numbered from 0, each by its name.")
    for parameter, tensor in loaded.model.named_parameters():
        if not tensor.isfinite().all():
            raise UserError(f"{name!r}: {parameter} holds a number that is not finite: train it anew.")


def read_rows(
    loaded: Loaded,
    texts: Sequence[str],
    *,
    data: str | None,
    text: Sequence[str],
    encoding: str,
    separator: str | None,
) -> Dataset:
    """Rows of texts given literally or in a file, without labels; none is left out.

    Raises:
        UserError: If the file cannot be read, or there are neither texts nor a file, or both.
    """
    columns = Columns(tuple(text) or loaded.columns.text, None, encoding, separator)
    if (data is None) == (not texts):
        raise UserError("Give either texts or a file by --data.")
    return _rows_of(texts, len(columns.text)) if data is None else read_file(data, columns)


@calm_libraries()
def predict(
    model: str,
    texts: Sequence[str] = (),
    *,
    data: str | None = None,
    text: Sequence[str] = (),
    encoding: str = "utf-8",
    separator: str | None = None,
    quiet: bool = True,
) -> pd.DataFrame:
    """Predict the classes of texts, or of a file's rows; no row is ever left out.

    Args:
        model: Run folder, model folder or hub name.
        texts: Texts; with k text columns, every k of them are one row.
        data: A file, instead of texts.
        text: Its text columns, if not those that the model was trained on.
        encoding: Its encoding.
        separator: Character between its columns, if not by its ending.
        quiet: No progress bar.

    Returns:
        In file order `row` (from 1), `predicted`, `probability` and `probability_<class>`.

    Raises:
        UserError: If the model or the file cannot be read, or there is nothing to predict.
    """
    loaded = load_model(model)
    rows = read_rows(loaded, texts, data=data, text=text, encoding=encoding, separator=separator)
    return class_table(*probabilities(loaded, tokenize(rows, loaded.tokenizer), quiet), loaded.label_names)


@calm_libraries()
def evaluate(
    model: str,
    data: str,
    *,
    text: Sequence[str] = (),
    label: str | None = None,
    encoding: str = "utf-8",
    separator: str | None = None,
    unknown_labels: str = "error",
    texts_measured: int | None = 256,
    devices: int = 1,
) -> dict[str, Any]:
    """Score a model on a labelled file, and measure its identifiability there.

    Args:
        model: Run folder, model folder or hub name.
        data: A labelled file.
        text: Its text columns, if not those that the model was trained on.
        label: Its label column, likewise.
        encoding: Its encoding.
        separator: Character between its columns, if not by its ending.
        unknown_labels: "error", or "drop" to leave out rows of labels that the model does not know.
        texts_measured: How many texts the monitor measures; None: all.
        devices: How many devices share the work, each with a process of its own, which runs this program again.

    Returns:
        `accuracy`, `accuracy_interval` (Wilson, 95 %), `macro_f1`, `majority` (the accuracy of always saying the most
        frequent class), `rows`, `right`, `read`, `dropped` by reason, `classes` (rows and right by name), `warnings`
        about columns and labels that look alike, and the monitor's measures by their names.

    Raises:
        UserError: If the model or the file cannot be read, or the file has no labels that the model knows.
    """
    loaded = load_model(model)
    label = loaded.columns.label if label is None else label
    columns = Columns(tuple(text) or loaded.columns.text, label, encoding, separator)
    rows, report = drop_unusable(read_file(data, columns), empty_texts="drop")
    refuse_empty(data, rows)
    warnings = [*warn_of_columns([data], columns), *warn_of_labels(rows["label"])]
    rows, strangers = encode_labels(rows, loaded.label_names, data, unknown_labels)
    if not len(rows):
        raise UserError(f"{data} has no row whose label the model knows: it knows {', '.join(loaded.label_names)}.")
    scores, probabilities = _test(loaded, tokenize(rows, loaded.tokenizer), texts_measured, devices)
    labels = np.asarray(rows["labels"])
    right = probabilities.argmax(1).numpy() == labels
    counts = np.bincount(labels, minlength=len(loaded.label_names))
    classes = {
        name: {"rows": int(counts[number]), "right": int(right[labels == number].sum())}
        for number, name in enumerate(loaded.label_names)
    }
    return {
        **scores,
        "accuracy_interval": accuracy_interval(int(right.sum()), len(rows)),
        "majority": counts.max() / len(rows),
        "rows": len(rows),
        "right": int(right.sum()),
        "read": report.read,
        "dropped": report.dropped | ({"unknown label": strangers} if strangers else {}),
        "warnings": warnings,
        "classes": classes,
    }


def class_table(rows: Tensor, probabilities: Tensor, names: Sequence[str]) -> pd.DataFrame:
    """`row`, `predicted`, `probability` and `probability_<class>` from row numbers *(n,)* and *(n, classes)*."""
    best, predicted = probabilities.max(1)
    table = {"row": rows, "predicted": [names[number] for number in predicted.tolist()], "probability": best}
    table |= {f"probability_{name}": probabilities[:, number] for number, name in enumerate(names)}
    return pd.DataFrame({name: np.asarray(column) for name, column in table.items()})


def _check_tokenizer(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    config = model.config
    expected = getattr(config, "vocabulary_hash", None)
    if len(tokenizer) > config.vocab_size or (expected and expected != vocabulary_hash(tokenizer)):
        raise UserError(
            f"{name!r}: the tokenizer's {len(tokenizer)} tokens are not the {config.vocab_size} that the model was "
            "trained with; put the model's own tokenizer beside it."
        )
    if config.pad_token_id != tokenizer.pad_token_id:
        raise UserError(
            f"{name!r}: the tokenizer pads with token {tokenizer.pad_token_id}, the model with {config.pad_token_id}."
        )


def _rows_of(texts: Sequence[str], columns: int) -> Dataset:
    if len(texts) % columns:
        raise UserError(
            f"{len(texts)} texts were given; the model reads {columns} columns: give a multiple of {columns}."
        )
    names = [str(number) for number in range(columns)]
    rows = [dict(zip(names, texts[start:], strict=False)) for start in range(0, len(texts), columns)]
    wanted = Columns(tuple(names), None)
    return Dataset.from_list(
        [row_of("The texts", number, cells, wanted) for number, cells in enumerate(rows, start=1)], features=FEATURES
    )


@torch.inference_mode()
def probabilities(loaded: Loaded, rows: Dataset, quiet: bool) -> tuple[Tensor, Tensor]:
    """Row numbers *(rows,)*, rising, and class probabilities *(rows, classes)*."""
    if not len(rows):
        return torch.zeros(0, dtype=torch.long), torch.zeros(0, len(loaded.label_names))
    model: Any = loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")  # pyright: ignore
    recorder = PredictionRecorder()
    with bars(quiet) as shown:
        for batch in shown.track(batches_of(rows, loaded.tokenizer, BATCH_SIZE), description="Predicting"):
            inputs = {name: batch[name].to(model.device) for name in ("input_ids", "attention_mask")}
            recorder.record(batch["row"], model(**inputs).logits.float().softmax(-1))
    return recorder.gather()


def _test(loaded: Loaded, rows: Dataset, texts: int | None, devices: int) -> tuple[dict[str, float], Tensor]:
    """Scores and measures by name, and the probabilities of classes *(rows, classes)*."""
    recorder = PredictionRecorder()
    trainer = L.Trainer(
        accelerator="auto",
        devices=devices,
        strategy=DDPStrategy(broadcast_buffers=False) if devices > 1 else "auto",
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[IdentifiabilityMonitor(texts=texts), recorder],
    )
    module = TextClassifier(loaded.model, optimizer=torch.optim.AdamW)
    with together(trainer):
        place: dict[str, Any] = {"process": trainer.global_rank, "processes": trainer.world_size}
        scores = trainer.test(module, batches_of(rows, loaded.tokenizer, BATCH_SIZE, **place), verbose=False)[0]
        _, probabilities = recorder.gather()
    return {name.removeprefix("test/"): value for name, value in scores.items()}, probabilities
