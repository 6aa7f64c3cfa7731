"""A run from its config to its folder."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch
from huggingface_hub.errors import StrictDataclassError
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.pytorch.callbacks import ModelCheckpoint
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from torch import Tensor
from transformers import PreTrainedModel

from ..models import IdentiformerConfig, IdentiformerForSequenceClassification
from .callbacks import PredictionRecorder
from .calm import calm_libraries
from .checkpoints import WholeCheckpointIO
from .classifier import TextClassifier
from .data.batches import PositionedLoader, batches_of
from .data.prepare import TextData, one_batch, prepare
from .data.tokenizer import vocabulary_hash
from .disk import whole_file
from .errors import UserError, first_line
from .pretrained import FineTuning, load_pretrained
from .processes import check_same, first_decides, together
from .report.console import describe_data, describe_layers
from .resuming import RunKeeper, StoppedRun, check_facts, claiming, facts_of, rewind, telling
from .run_folder import new_folder, prediction_table, save_inputs, save_model, summarise, write_json


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


def run(cfg: DictConfig, stopped: StoppedRun | None = None) -> RunResult:
    """Train, validate and test what a config describes; write the run folder.

    Args:
        cfg: From `compose_config`, or a stopped run's.
        stopped: The run to go on with.

    Raises:
        UserError: If the data or the sizes do not allow training, or are not a stopped run's.
        TrainingError: If it diverges, or the disk is full.
        KeyboardInterrupt: When it is interrupted.
    """
    if "layer" in cfg:
        raise UserError("The config has a `layer` at its top: a file in conf/layer must begin with `# @package model`.")
    L.seed_everything(cfg.seed, workers=True, verbose=False)
    with calm_libraries(cfg.quiet):
        data = prepare(cfg.data)
        data = one_batch(data, cfg.data.batch_size) if cfg.one_batch else data
        model, tuning = build_model(cfg, data)
        with together(build(cfg.trainer, logger=False, enable_checkpointing=False)) as processes:
            check_same(processes, data=data.content_hash, vocabulary=vocabulary_hash(data.tokenizer))
            folder = stopped.folder if stopped else first_decides(processes, lambda: start_folder(cfg, data))
            announce(cfg, data, model, tuning, stopped or f"Run folder: {folder}")
            with telling(folder), claiming(folder), interruptible():
                return _run(cfg, data, model, tuning, folder, stopped)


def _run(
    cfg: DictConfig,
    data: TextData,
    model: PreTrainedModel,
    tuning: FineTuning | None,
    folder: Path,
    stopped: StoppedRun | None,
) -> RunResult:
    facts = facts_of(cfg, data)
    if stopped:
        check_facts(stopped, facts)
        rewind(stopped)
    module = TextClassifier(
        model,
        optimizer=build(cfg.optimizer),
        scheduler=build(cfg.scheduler),
        class_weight=class_weight(cfg.class_weight, data),
        groups=tuning.groups(cfg.optimizer.lr) if tuning else None,
    )
    recorder, keeper = PredictionRecorder(), RunKeeper(folder, facts, stopped)
    trainer = build_trainer(cfg, folder, [keeper, recorder])
    loaders = {split: loader(data, split, cfg, trainer) for split in data.splits}
    with keeper.listening():
        goes_on: Any = {"ckpt_path": stopped and stopped.checkpoint, "weights_only": True}
        trainer.fit(module, loaders["train"], loaders["validation"], **goes_on)
    seconds = keeper.seconds
    scores = score_best(trainer, module, loaders)
    summary = summarise(cfg, data, model, scores) | {"train_seconds": seconds}
    predictions = prediction_table(recorder, data) if "test" in data.splits else None
    if trainer.is_global_zero:
        save_model(folder / "model", cfg, data, model, summary)
        if predictions is not None:
            with whole_file(folder / "predictions.parquet") as part:
                predictions.to_parquet(part, index=False)
        write_json(folder / "summary.json", summary)
    return RunResult(folder, model, summary)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let an interruption reach the caller: Lightning would end the program, deaf to another one."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as end:
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None


def build_model(cfg: DictConfig, data: TextData) -> tuple[PreTrainedModel, FineTuning | None]:
    """The classifier that the config describes, for the data's classes and vocabulary; how it is fine-tuned, if it is.

    Raises:
        UserError: If sizes do not fit each other, or a pretrained model cannot be had.
    """
    if "name" in cfg.model:
        tuning = load_pretrained(cfg.model, cfg.preset, data)
        return tuning.model, tuning
    return _new_model(cfg, data), None


def _new_model(cfg: DictConfig, data: TextData) -> IdentiformerForSequenceClassification:
    names = dict(enumerate(data.label_names))
    sizes: Any = OmegaConf.to_container(cfg.model)
    try:
        config = IdentiformerConfig(
            **sizes,
            vocab_size=len(data.tokenizer),
            max_length=cfg.data.max_length,
            pad_token_id=data.tokenizer.pad_token_id,  # pyright: ignore[reportArgumentType]
            vocabulary_hash=vocabulary_hash(data.tokenizer),
            id2label=names,
            label2id={name: number for number, name in names.items()},
        )
        return IdentiformerForSequenceClassification(config)
    except (TypeError, ValueError, RuntimeError, StrictDataclassError) as error:
        raise UserError(f"model: {error.__cause__ or error}") from None


def build(section: DictConfig | None, **arguments: Any) -> Any:
    """What a section's `_target_` makes of its other entries; None of no section.

    Raises:
        UserError: If the target refuses them.
    """
    try:
        return section and instantiate(section, **arguments)
    except InstantiationException as error:
        reason = first_line(error.__cause__ or error)
        raise UserError(f"{section.get('_target_')}: {reason}") from None  # pyright: ignore


def class_weight(kind: str | None, data: TextData) -> Tensor | None:
    """Weight of each class in the loss *(classes,)*: for "balanced", rows / (classes * rows of the class).

    Raises:
        UserError: If the kind is unknown.
    """
    if kind is None:
        return None
    if kind != "balanced":
        raise UserError(f"class_weight is {kind!r}: choose balanced or null.")
    counts = torch.tensor(list(data.reports["train"].labels.values()))
    return counts.sum() / (len(counts) * counts)


def start_folder(cfg: DictConfig, data: TextData) -> Path:
    """Make the run's folder, with what the run is made of."""
    folder = new_folder(Path(cfg.runs) / cfg.name, f"{cfg.preset}-seed{cfg.seed}")
    with telling(folder):
        save_inputs(folder, cfg, data)
    return folder


def announce(
    cfg: DictConfig, data: TextData, model: PreTrainedModel, tuning: FineTuning | None, place: StoppedRun | str
) -> None:
    """Say what is trained on what, and where it goes."""
    console = Console(quiet=cfg.quiet)
    console.print(describe_data(data))
    if tuning:
        console.print(escape(str(tuning)))
    console.print(describe_layers(cfg.preset, model, data.reports["validation"].lengths))
    console.print(str(place), markup=False, highlight=False, soft_wrap=True)


def loader(data: TextData, split: str, cfg: DictConfig, trainer: L.Trainer) -> PositionedLoader:
    """A process's batches of a split: the train split shuffled, others by length."""
    return batches_of(
        data.splits[split],
        data.tokenizer,
        cfg.data.batch_size,
        shuffle=split == "train",
        seed=cfg.seed,
        workers=cfg.data.workers,
        process=trainer.global_rank,
        processes=trainer.world_size,
    )


def build_trainer(cfg: DictConfig, folder: Path, own: list[L.Callback]) -> L.Trainer:
    """The trainer with its callbacks and loggers, all writing into `folder`."""
    callbacks = [build(callback) for callback in cfg.callbacks.values() if callback]
    for callback in callbacks:
        if isinstance(callback, ModelCheckpoint):
            callback.dirpath = str(folder / "checkpoints")
    return build(
        cfg.trainer,
        callbacks=[*own, *callbacks],
        logger=[build(logger, save_dir=str(folder)) for logger in cfg.logger.values() if logger],
        plugins=[WholeCheckpointIO()],
        default_root_dir=str(folder),
        enable_progress_bar=not cfg.quiet,
    )


def score_best(trainer: L.Trainer, module: TextClassifier, loaders: dict[str, PositionedLoader]) -> dict[str, float]:
    """Load the best checkpoint; validate and test it with the monitor."""
    best = getattr(trainer.checkpoint_callback, "best_model_path", None)
    arguments: Any = {"ckpt_path": best or None, "verbose": False, "weights_only": True}
    scores = dict(trainer.validate(module, loaders["validation"], **arguments)[0])
    if "test" in loaders:
        scores |= trainer.test(module, loaders["test"], **arguments)[0]
    return scores
