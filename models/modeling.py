"""The encoder and the classifier, as Hugging Face models."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from .configuration import IdentiformerConfig
from .functional.masks import keep_mask, zero_padding
from .functional.pooling import POOLING
from .layers import FeedForward, MultiHeadAttention, build_encoder_layer


class Embeddings(nn.Module):
    """Word plus learned position embeddings. Positions count kept tokens, so padding may stand on either side."""

    def __init__(self, config: IdentiformerConfig):
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.d_model)
        self.position = nn.Embedding(config.max_length, config.d_model)
        self.dropout = nn.Dropout(config.embedding_dropout)

    def reset_parameters(self) -> None:
        """Words with variance `1 / d_model`, positions with standard deviation .02."""
        nn.init.normal_(self.word.weight, std=self.word.embedding_dim**-0.5)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, words: Tensor, keep: Tensor | None) -> Tensor:
        """Embed *(batch, token, d_model)* word vectors."""
        if keep is None:
            positions = torch.arange(words.shape[1], device=words.device)
        else:
            positions = (keep.cumsum(1) - 1).clamp(min=0)
        self._check_length(words.shape[1] if keep is None else int(keep.sum(1).max()))
        return self.dropout(zero_padding(words + self.position(positions), keep))

    def _check_length(self, length: int) -> None:
        if length > self.position.num_embeddings:
            limit = self.position.num_embeddings
            raise ValueError(f"A text has {length} tokens, but max_length is {limit}: cut texts to {limit} tokens.")


class IdentiformerPreTrainedModel(PreTrainedModel):
    """What the encoder and the classifier share: the config class and the initialisation."""

    config_class = IdentiformerConfig
    base_model_prefix = "encoder"
    _supports_sdpa = True
    _no_split_modules = ["EncoderLayer"]  # noqa: RUF012

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # Ours initialise through torch.nn.init, which spares loaded weights; as "custom code" they would be skipped.
        super()._initialize_weights(module, is_custom_code=False)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, MultiHeadAttention | FeedForward | Embeddings | nn.LayerNorm):
            module.reset_parameters()
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)


class IdentiformerModel(IdentiformerPreTrainedModel):
    """Embeddings, encoder layers and pooling.

    `attention_mask` is 1 for tokens and 0 for padding; without one, every token but `pad_token_id` takes part.
    With `output_attentions`, by call or config, attention takes the explicit path, whatever the kernel.
    """

    def __init__(self, config: IdentiformerConfig):
        super().__init__(config)
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(self._build_layer(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.d_model) if config.norm_first else nn.Identity()
        self.pool = POOLING[config.pooling]
        self.post_init()

    @staticmethod
    def _build_layer(config: IdentiformerConfig) -> nn.Module:
        names = (
            "d_model num_heads d_key d_value num_value_heads merge_heads d_feedforward dropout activation norm_first"
        )
        return build_encoder_layer(**{name: getattr(config, name) for name in names.split()})

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings."""
        return self.embeddings.word

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word embeddings."""
        self.embeddings.word = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Encode texts.

        Shape:
            input_ids and attention_mask: *(batch, token)*; inputs_embeds, instead of input_ids, last_hidden_state and
            each of hidden_states: *(batch, token, d_model)*; pooler_output: *(batch, d_model)*; each of
            attentions: *(batch, head, query, key)*.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds.")
        words = self.embeddings.word(input_ids) if inputs_embeds is None else inputs_embeds
        if attention_mask is None and input_ids is not None and self.config.pad_token_id is not None:
            attention_mask = input_ids != self.config.pad_token_id
        keep = None if attention_mask is None else keep_mask(attention_mask)
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        states, attentions = self._encode(self.embeddings(words, keep), keep, bool(output_attentions))
        last = self.norm(states[-1])
        return BaseModelOutputWithPooling(
            last_hidden_state=last,
            pooler_output=self.pool(last, keep),
            hidden_states=(*states[:-1], last) if output_hidden_states else None,
            attentions=tuple(attentions) if output_attentions else None,
        )

    def _encode(
        self, hidden: Tensor, keep: Tensor | None, output_attentions: bool
    ) -> tuple[list[Tensor], list[Tensor]]:
        need_weights = output_attentions or self.config._attn_implementation == "eager"
        states, attentions = [hidden], []
        for layer in self.layers:
            hidden, *weights = layer(hidden, keep, need_weights=True) if need_weights else (layer(hidden, keep),)
            states.append(hidden)
            attentions += weights
        return states, attentions


class IdentiformerForSequenceClassification(IdentiformerPreTrainedModel):
    """The encoder with a linear classifier on the pooled text."""

    def __init__(self, config: IdentiformerConfig):
        super().__init__(config)
        self.encoder = IdentiformerModel(config)
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.classifier = nn.Linear(config.d_model, config.num_labels or 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> SequenceClassifierOutput:
        """Classify texts; with `labels` *(batch,)* also give the cross-entropy, in nats.

        Shape:
            logits: *(batch, num_labels)*; the rest as `IdentiformerModel.forward`, whose options it takes.
        """
        outputs = self.encoder(input_ids, attention_mask, inputs_embeds, return_dict=True, **options)
        logits = self.classifier(self.dropout(outputs.pooler_output))
        return SequenceClassifierOutput(
            loss=None if labels is None else F.cross_entropy(logits, labels),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


AutoConfig.register("identiformer", IdentiformerConfig)
AutoModel.register(IdentiformerConfig, IdentiformerModel)
AutoModelForSequenceClassification.register(IdentiformerConfig, IdentiformerForSequenceClassification)
