"""The adapter for `nn.MultiheadAttention`, alone or in an `nn.TransformerEncoderLayer`.

The layer is known as a whole, because in evaluation it may run a kernel of its own that never calls its attention.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.attention import MultiHeadAttention
from .base import Affine, Call, Heads, split_mask, take_over

KNOWS = "nn.MultiheadAttention without bias_kv and zero_attn, nn.TransformerEncoderLayer"


def heads(module: nn.Module) -> Heads | None:
    """The heads of `module`, or None if it is neither."""
    if isinstance(module, nn.TransformerEncoderLayer) and type(module).forward is nn.TransformerEncoderLayer.forward:
        found = heads(module.self_attn)
        return found and found._replace(read=partial(_read_layer, module))
    if type(module) is not nn.MultiheadAttention or module.bias_k is not None or module.add_zero_attn:
        return None
    query, key, value = _projections(module)
    output, number = Affine.of(module.out_proj), module.num_heads
    return Heads(query, key, value, output, number, partial(_read, module), module.dropout, num_value_heads=number)


def replace(module: nn.Module, attention: MultiHeadAttention, model: nn.Module) -> None:
    """Let `attention` do the work of `module`, or of the attention in it, in `model`.

    Raises:
        ValueError: If keys or values are made of inputs of another width.
    """
    own = module.self_attn if isinstance(module, nn.TransformerEncoderLayer) else module
    assert isinstance(own, nn.MultiheadAttention)
    if own.in_proj_weight is None:
        raise ValueError("Keys and values are made of inputs of their own: only self-attention can be swapped.")
    take_over(own, attention, _Swapped, ["out_proj"])
    # Without these the kernel that PyTorch's layer runs in evaluation is not chosen, nor that of its encoder.
    own.in_proj_weight = own.in_proj_bias = None  # pyright: ignore[reportAttributeAccessIssue]
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and module in list(encoder.layers):
            encoder.use_nested_tensor = False


def _projections(module: Any) -> tuple[Affine, ...]:
    if module.in_proj_weight is not None:
        return Affine(module.in_proj_weight, module.in_proj_bias).chunk(3)
    weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    return tuple(map(Affine, weights, biases))


def _read_layer(
    layer: nn.TransformerEncoderLayer,
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Call:
    keep = None
    if src.is_nested:  # the encoder cut the padding away
        lengths = torch.tensor([len(text) for text in src.unbind()], device=src.device)
        src = src.to_padded_tensor(0.0)
        keep = torch.arange(src.shape[1], device=src.device) < lengths[:, None]
    with torch.no_grad():
        hidden = layer.norm1(src) if layer.norm_first else src
    call = _read(layer.self_attn, hidden, hidden, hidden, src_key_padding_mask, attn_mask=src_mask)
    return call if keep is None else call._replace(keep=keep)


def _read(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,  # a hint beside attn_mask
) -> Call:
    hidden, *others = (_texts_first(module, tensor) for tensor in (query, key, value))
    if key.shape[:-1] != query.shape[:-1]:
        raise ValueError("Keys and queries are of different lengths: only self-attention can be recorded.")
    mask = _mask(key_padding_mask, attn_mask, texts=len(hidden), dtype=query.dtype)
    sources = [None if tensor is query else other for tensor, other in zip((key, value), others, strict=True)]
    return Call(hidden, *split_mask(mask, len(hidden)), None, *sources)


def _texts_first(module: nn.MultiheadAttention, tensor: Tensor) -> Tensor:
    if tensor.ndim == 2:
        return tensor[None]
    return tensor if module.batch_first else tensor.transpose(0, 1)


def _mask(padding: Tensor | None, attention: Tensor | None, *, texts: int, dtype: torch.dtype) -> Tensor | None:
    """Both masks in one, to be added to the scores, *(text or 1, head or 1, query or 1, key)*."""
    mask = None
    if attention is not None:
        shape = (1, 1, *attention.shape) if attention.ndim == 2 else (texts, -1, *attention.shape[1:])
        mask = _added(attention, dtype).view(shape)
    if padding is not None:
        padding = _added(padding, dtype).view(texts, 1, 1, -1)
        mask = padding if mask is None else mask + padding
    return mask


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask


class _Swapped(nn.Module):
    """Mixed into `nn.MultiheadAttention`, whose arguments it takes."""

    attention: MultiHeadAttention

    def forward(
        self: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,  # a hint beside attn_mask
    ) -> tuple[Tensor, Tensor | None]:
        """Output and weights in the order that `nn.MultiheadAttention` gives them."""
        call = _read(self, query, key, value, key_padding_mask, attn_mask=attn_mask)
        if call.key_hidden is not None or call.value_hidden is not None:
            raise ValueError("The attention was swapped: it takes the same tensor as query, key and value.")
        output = self.attention(call.hidden, call.keep, call.bias, need_weights)
        output, weights = output if need_weights else (output, None)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if query.ndim == 2:
            return output[0], weights if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights
