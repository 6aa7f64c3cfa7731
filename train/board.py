"""Attention and measures on TensorBoard."""

from collections.abc import Collection
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure

from ..models import HeadRecord
from ..models.identifiability import effective_attention
from .analyzing import as_read, records_of
from .callbacks import IdentifiabilityMonitor
from .report.analysis import AnalyzedText
from .report.plots import PANEL, attention_figure


class AttentionBoard(L.Callback):
    """Shows attention and the monitor's measures on TensorBoard, after the validations of some epochs of a run.

    For each layer and each of the first validation texts there is a picture of all heads' attention, raw above and
    effective below; for each layer and measure a histogram over the (text, head) pairs that the monitor measured.

    Args:
        epochs: The epochs, from 0; None: all.
        texts: How many texts are drawn.
    """

    def __init__(self, epochs: Collection[int] | None = None, texts: int = 2):
        self.epochs, self.texts = epochs, texts

    @torch.no_grad()
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Add pictures and histograms, if it is the turn of this epoch."""
        chosen = self.epochs is None or trainer.current_epoch in self.epochs
        if trainer.sanity_checking or trainer.state.fn != "fit" or not chosen:
            return
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
                self._add_histograms(logger.experiment, trainer)
                self._add_pictures(logger.experiment, trainer, pl_module.model)

    def _add_histograms(self, board: Any, trainer: L.Trainer) -> None:
        for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(callback, IdentifiabilityMonitor):
                for name, numbers in callback.measures.values().items():
                    board.add_histogram(name, numbers, trainer.global_step)

    def _add_pictures(self, board: Any, trainer: L.Trainer, model: Any) -> None:
        loader: Any = trainer.val_dataloaders
        for row in loader.dataset.select(range(min(self.texts, len(loader.dataset)))):
            text = as_read(row, loader.collate_fn.tokenizer)
            for record in records_of(model, row):
                if record.weights.isfinite().all() and record.value.isfinite().all():  # else the monitor has warned
                    tag = f"attention/row_{text.row}/layer_{record.layer}"
                    board.add_figure(tag, draw_heads(record, text), trainer.global_step)


def draw_heads(record: HeadRecord, text: AnalyzedText) -> Figure:
    """All heads of a record of one text: raw attention above, effective below."""
    raw = record.weights
    effective = effective_attention(raw, record.value, record.output_map)
    rows = [
        {f"head {head}, {name}": matrix.cpu().numpy() for head, matrix in enumerate(maps[0])}
        for name, maps in (("raw", raw), ("effective", effective))
    ]
    return attention_figure(text.tokens, rows, f"Row {text.row}, layer {record.layer}", widest=PANEL[0])
