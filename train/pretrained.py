"""A pretrained encoder as a run's model: loaded, layers swapped, parts frozen, with learning rates by layer."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, PreTrainedModel

from ..models import MultiHeadAttention, SwapReport, swap_encoder_layers
from ..models.adapters import attention_modules, encoder_layers
from ..models.layers.presets import AttentionSizes
from .data.prepare import TextData
from .errors import UserError, first_line


@dataclass
class FineTuning:
    """A pretrained model and how it is trained.

    Attributes:
        model: The classifier.
        settings: `conf/model/pretrained.yaml`.
        new: Names of the parameters that start at random.
        swap: What was swapped, if anything was.
    """

    model: PreTrainedModel
    settings: Any
    new: set[str]
    swap: SwapReport | None

    def __str__(self) -> str:
        parameters = dict(self.model.named_parameters())
        new = sum(parameters[name].numel() for name in self.new)
        frozen = sum(parameter.numel() for parameter in parameters.values() if not parameter.requires_grad)
        swapped = self.swap or "its own layers"
        return f"{self.settings.name}: {swapped}; {new:,} parameters start at random, {frozen:,} are frozen"

    def groups(self, lr: float) -> list[dict[str, Any]]:
        """The trainable parameters by learning rate: falling from layer to layer, another one for what is new."""
        layers, embeddings = encoder_layers(self.model), _embeddings(self.model)
        depth = {parameter: len(layers) for parameter in embeddings.parameters()}
        for number, layer in enumerate(layers):
            depth |= {parameter: len(layers) - 1 - number for parameter in layer.parameters()}
        shares: dict[Tensor, float] = {}
        for module in self.model.modules():
            if isinstance(module, MultiHeadAttention):
                shares |= _shares(module)
        groups = defaultdict(list)
        for name, parameter in self.model.named_parameters():
            new_lr = self.settings.new_lr if name in self.new else None
            rate = lr * self.settings.layer_decay ** depth.get(parameter, 0) if new_lr is None else new_lr
            if parameter.requires_grad:
                groups[rate * shares.get(parameter, 1)].append(parameter)
        return [{"params": parameters, "lr": rate} for rate, parameters in groups.items()]


def _shares(attention: MultiHeadAttention) -> dict[Tensor, float]:
    """What to multiply a learning rate by, parameter by parameter, that suits heads of `d_model / num_heads` values.

    Adam's steps are of one size: they add up in the value maps of added heads, which see nearly the same gradient, and
    in an output map that sums over more values.
    """
    if attention.merge_heads == "sum":
        return dict.fromkeys(list[Tensor](attention.value.parameters()), 1 / attention.num_value_heads)
    if attention.merge_heads == "concat":
        return {attention.output.weight: min(1, attention.d_model / attention.output.in_features)}
    return {}


def load_pretrained(settings: DictConfig, preset: str, data: TextData) -> FineTuning:
    """Load what `conf/model/pretrained.yaml` names as a classifier of the data's classes, and swap its layers.

    Raises:
        UserError: If there is no such model, or it does not fit the data or the sizes.
    """
    model, new = _load(settings.name, data)
    sizes = {name: settings[name] for name in AttentionSizes._fields}
    swap = None
    if preset != "standard" or any(size is not None for size in sizes.values()):
        swap = _swap(model, settings, preset, sizes, data)
    if swap and not swap.preserved:
        modules = attention_modules(model)
        fresh = {parameter for layer in swap.layers for parameter in modules[layer].parameters()}
        new |= {name for name, parameter in model.named_parameters() if parameter in fresh}
    _freeze(model, settings.freeze, new)
    model.train()  # a loaded model is in evaluation, and Lightning leaves it as it is
    return FineTuning(model, settings, new, swap)


def _load(name: str, data: TextData) -> tuple[PreTrainedModel, set[str]]:
    """The model and the names of the parameters that it was not saved with."""
    names = dict(enumerate(data.label_names))
    options: dict[str, Any] = {"num_labels": len(names), "id2label": names}
    options |= {"label2id": {label: number for number, label in names.items()}, "problem_type": None}
    try:
        model, report = AutoModelForSequenceClassification.from_pretrained(
            name,
            **options,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
        attention_modules(model)
    except Exception as error:  # libraries say in many ways that a file is not what it should be
        raise UserError(f"model.name {name!r} is no model that can be fine-tuned here: {first_line(error)}") from None
    if not data.tokenizer.name_or_path:
        raise UserError(f"A vocabulary of the data's own means nothing to {name!r}: leave data.tokenizer out.")
    if len(data.tokenizer) > model.config.vocab_size or data.tokenizer.pad_token_id != model.config.pad_token_id:
        raise UserError(
            f"The tokenizer has {len(data.tokenizer)} tokens and pads with {data.tokenizer.pad_token_id}, {name!r} has "
            f"{model.config.vocab_size} and pads with {model.config.pad_token_id}: leave data.tokenizer out."
        )
    mismatched = {key[0] if isinstance(key, tuple) else key for key in report["mismatched_keys"]}
    return model, set(report["missing_keys"]) | mismatched


def _swap(model: PreTrainedModel, settings: DictConfig, preset: str, sizes: dict, data: TextData) -> SwapReport:
    layers = None if settings.layers is None else list(settings.layers)
    try:
        return swap_encoder_layers(
            model,
            preset,
            **sizes,
            layers=layers,
            preserve=settings.preserve,
            calibration=_batch(data, settings.calibration) if settings.preserve and settings.calibration else None,
        )
    except ValueError as error:
        raise UserError(f"layer={preset}: {error}") from None


def _batch(data: TextData, texts: int) -> dict[str, torch.Tensor]:
    """The first `texts` texts of the train split."""
    ids = data.splits["train"]["input_ids"][:texts]
    batch = DataCollatorWithPadding(data.tokenizer)([{"input_ids": text} for text in ids])
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def _freeze(model: PreTrainedModel, what: str | int | None, new: set[str]) -> None:
    """Freeze the embeddings, so many layers from below with them, or all that was pretrained."""
    layers = encoder_layers(model)
    if what is None:
        return
    if what == "encoder":
        frozen = {parameter for name, parameter in model.named_parameters() if name not in new}
    elif what == "embeddings" or (isinstance(what, int) and 0 <= what <= len(layers)):
        lower = layers[: what if isinstance(what, int) else 0]
        frozen = {parameter for module in (_embeddings(model), *lower) for parameter in module.parameters()}
    else:
        raise UserError(f"model.freeze is {what!r}: give embeddings, encoder, or a number up to {len(layers)}.")
    for parameter in frozen:
        parameter.requires_grad = False


def _embeddings(model: PreTrainedModel) -> nn.Module:
    """The module that holds the word embeddings with whatever is added to them."""
    words = model.get_input_embeddings()
    (name,) = [name for name, module in model.named_modules() if module is words]
    return model.get_submodule(name.rpartition(".")[0])
