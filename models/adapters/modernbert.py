"""The adapter for ModernBERT: one packed linear map, rotary positions, some layers with a sliding window."""

from typing import Any

from torch import Tensor, nn

from ..layers.attention import MultiHeadAttention
from .base import Affine, Call, Heads, SwappedAttention, split_mask, take_over

KNOWS = "ModernBERT's attention"


def heads(module: nn.Module) -> Heads | None:
    """The heads of `module`, or None if it is not ModernBERT's attention."""
    if type(module).__name__ != "ModernBertAttention" or not type(module).__module__.startswith("transformers.models."):
        return None
    attention: Any = module
    query, key, value = Affine.of(attention.Wqkv).chunk(3)
    output, number = Affine.of(attention.Wo), attention.config.num_attention_heads
    dropout = attention.attention_dropout
    return Heads(query, key, value, output, number, _read, dropout, num_value_heads=number, rotary=True)


def replace(module: nn.Module, attention: MultiHeadAttention, model: nn.Module) -> None:
    """Let `attention` do the work of `module` in `model`."""
    take_over(module, attention, _Swapped, ["Wqkv", "Wo"])


def _read(
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None = None,
    **_: Any,
) -> Call:
    return Call(hidden_states, *split_mask(attention_mask, len(hidden_states)), rotation=position_embeddings)


class _Swapped(SwappedAttention):
    read = staticmethod(_read)
    out_drop: nn.Module

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        output, weights = super().forward(*args, **kwargs)
        return self.out_drop(output), weights
