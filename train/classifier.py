"""The LightningModule that trains any Hugging Face sequence classifier."""

from collections.abc import Callable
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
from transformers import PreTrainedModel

from .data.batches import NO_LABEL
from .errors import users_mistakes


class TextClassifier(L.LightningModule):
    """Trains `model` by cross-entropy; logs accuracy, macro F1 and loss of validation and test.

    Args:
        model: Takes `input_ids` and `attention_mask`, gives `logits` *(batch, classes)*.
        optimizer: From parameters to an optimizer.
        scheduler: From an optimizer and `total_steps` to a learning rate scheduler that steps with every batch.
        class_weight: Weight of each class in the training loss *(classes,)*.
        groups: Parameters in groups with options of their own, as optimizers take them. None: all that are trainable.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        optimizer: Callable[..., torch.optim.Optimizer],
        scheduler: Callable[..., torch.optim.lr_scheduler.LRScheduler] | None = None,
        class_weight: Tensor | None = None,
        groups: list[dict[str, Any]] | None = None,
    ):
        super().__init__()
        self.model, self.make_optimizer, self.make_scheduler, self.groups = model, optimizer, scheduler, groups
        self.class_weight: Tensor | None
        self.register_buffer("class_weight", class_weight, persistent=False)
        classes: Any = model.config.num_labels
        scores = MetricCollection(
            {
                "accuracy": MulticlassAccuracy(classes, average="micro", ignore_index=NO_LABEL),
                "macro_f1": MulticlassF1Score(classes, average="macro", ignore_index=NO_LABEL),
            }
        )
        self.scores = nn.ModuleDict({stage: scores.clone(prefix=f"{stage}/") for stage in ("val", "test")})
        self.losses = nn.ModuleDict({stage: MeanMetric() for stage in ("val", "test")})

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Logits *(batch, classes)* of a batch, whatever else it holds."""
        return self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """The weighted cross-entropy of a batch; its mean over several processes is that of their rows together."""
        labels, weight = batch["labels"], self.class_weight
        loss = F.cross_entropy(self(batch), labels, weight, reduction="sum")
        counted = labels[labels != NO_LABEL]
        total = loss.new_tensor(len(counted)) if weight is None else weight[counted].sum()
        loss = loss / self.trainer.strategy.reduce(total, reduce_op="mean")
        self.log("train/loss", loss, prog_bar=True, batch_size=len(labels), sync_dist=True)
        return loss

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Score a batch; the probabilities of its classes *(batch, classes)*."""
        return self._evaluate(batch, "val")

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Score a batch; the probabilities of its classes *(batch, classes)*."""
        return self._evaluate(batch, "test")

    def configure_optimizers(self) -> Any:
        """The optimizer over all trainable parameters, and the scheduler by step."""
        trainable = [parameter for parameter in self.parameters() if parameter.requires_grad]
        with users_mistakes((TypeError, ValueError)):
            optimizer = self.make_optimizer(self.groups or trainable)
            if self.make_scheduler is None:
                return optimizer
            scheduler = self.make_scheduler(optimizer, total_steps=int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _evaluate(self, batch: dict[str, Tensor], stage: str) -> Tensor:
        logits = self(batch).float()
        scores: Any = self.scores[stage]
        loss: Any = self.losses[stage]
        scores.update(logits, batch["labels"])
        loss.update(F.cross_entropy(logits, batch["labels"], reduction="none"), batch["labels"] != NO_LABEL)
        shown = {"prog_bar": stage == "val", "batch_size": len(logits)}
        self.log_dict(scores, **shown)
        self.log(f"{stage}/loss", loss, batch_size=len(logits))
        return logits.softmax(-1)
