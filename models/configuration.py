"""What an Identiformer is: plain numbers and names that live in `config.json`."""

import difflib
from dataclasses import fields
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .layers.presets import head_size

# Taken by PreTrainedConfig from its keyword arguments, though none of its fields.
_INHERITED = {"attn_implementation", "experts_implementation", "torch_dtype", "per_layer_config", "model_type"}


class AttentionsUnderAnyKernel:
    """Mixed into a config: attention weights can be asked for whatever the kernel."""

    _output_attentions: bool | None

    @property
    def output_attentions(self) -> bool | None:
        """Whether attention weights are returned; under any kernel, since the explicit path can always be taken."""
        return self._output_attentions

    @output_attentions.setter
    def output_attentions(self, value: bool | None) -> None:
        self._output_attentions = value

    def validate_output_attentions(self) -> None:
        """Nothing to refuse: see `output_attentions`."""


@strict
class IdentiformerConfig(AttentionsUnderAnyKernel, PreTrainedConfig):
    """Configuration of a Transformer encoder whose key and value sizes are free.

    Args:
        vocab_size: Number of tokens.
        d_model: Width of the hidden states.
        num_heads: Attention maps per layer.
        num_layers: Encoder layers.
        d_key: Size of queries and keys, per head. None: `d_model / num_heads`.
        d_value: Size of values, per head. None: `d_model / num_heads`.
        num_value_heads: Value maps per layer. None: `num_heads`.
        merge_heads: "concat", "sum" or "mean".
        d_feedforward: Width inside the feed-forward part. None: `4 d_model`.
        max_length: Longest text in tokens, special tokens counted.
        pooling: "mean" over the kept tokens, or their "first".
        activation: "gelu", "relu", "silu" or "tanh".
        dropout: Probability inside the layers.
        embedding_dropout: Probability on the embeddings and before the classifier.
        norm_first: Pre-norm layers and a last LayerNorm, or post-norm layers.
        pad_token_id: Token that fills a batch.
        vocabulary_hash: Identifies the vocabulary that the embeddings were trained with.
        **kwargs: Those of `PreTrainedConfig`, and its usual names for ours (`hidden_size` for `d_model`, ...).

    Raises:
        TypeError: If an argument is neither ours nor `PreTrainedConfig`'s; the message names the near match.
        ValueError: If sizes do not fit each other.
    """

    model_type = "identiformer"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "intermediate_size": "d_feedforward",
        "max_position_embeddings": "max_length",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
    }

    vocab_size: int = 8000
    d_model: int = 128
    num_heads: int = 8
    num_layers: int = 1
    d_key: int | None = None
    d_value: int | None = None
    num_value_heads: int | None = None
    merge_heads: Literal["concat", "sum", "mean"] = "concat"
    d_feedforward: int | None = None
    max_length: int = 256
    pooling: Literal["mean", "first"] = "mean"
    activation: str = "gelu"
    dropout: float | int = 0.1
    embedding_dropout: float | int = 0.2
    norm_first: bool = True
    pad_token_id: int | None = 0
    vocabulary_hash: str | None = None

    def __post_init__(self, **kwargs: Any):
        self._refuse_unknown(kwargs)
        super().__post_init__(**kwargs)
        self._check_sizes()
        if self.d_key is None:
            self.d_key = head_size(self.d_model, self.num_heads)
        if self.d_value is None:
            self.d_value = head_size(self.d_model, self.num_heads)
        if self.num_value_heads is None:
            self.num_value_heads = self.num_heads
        if self.d_feedforward is None:
            self.d_feedforward = 4 * self.d_model

    def _check_sizes(self) -> None:
        """Sizes that nothing can be made of; the layers check how the others fit."""
        for name in ("d_model", "num_heads", "num_layers", "d_key", "d_value", "d_feedforward", "max_length"):
            if (size := getattr(self, name)) is not None and size < 1:
                raise ValueError(f"{name} is {size}: it must be at least 1.")
        if self.problem_type not in (None, "single_label_classification"):
            raise ValueError(f"problem_type is {self.problem_type!r}: every text here has one label.")

    def _refuse_unknown(self, kwargs: dict[str, Any]) -> None:
        for name in kwargs:
            names = [field.name for field in fields(self)] + list(self.attribute_map)
            is_property = isinstance(getattr(type(self), name, None), property)
            if name.startswith("_") or name in _INHERITED or name in names or is_property:
                continue
            near = difflib.get_close_matches(name, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"IdentiformerConfig has no argument {name!r}.{hint}")
