"""Scaled dot-product attention, written twice with one meaning, and the three ways to merge its heads.

`attend` is the specification: it forms the weights and returns them. `attend_fused` gives the same output by PyTorch's
fused kernels and never forms them. Queries and keys share `d_key`; values have a size of their own, `d_value`.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def attention_weights(
    query: Float[Tensor, "*batch head query d_key"],
    key: Float[Tensor, "*batch head key d_key"],
    keep: Bool[Tensor, "*batch key"] | None = None,
    bias: Float[Tensor, "..."] | None = None,
) -> Float[Tensor, "*batch head query key"]:
    """Attention weights `softmax(Q K^T / sqrt(d_key) + bias)` over the kept keys (1706.03762, section 3.2.1).

    Keys outside `keep`, and those whose bias is -inf, get weight exactly 0; a row without any other key is 0.
    """
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if bias is not None:
        scores = scores + bias
    closed = _closed(keep, bias)
    if closed is None:
        return scores.softmax(-1)
    # The lowest finite number instead of -inf, so that a row without any key is finite, forward and backward.
    return scores.masked_fill(closed, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(closed, 0.0)


def _closed(keep: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Where no weight may go, broadcastable to *(batch, head, query, key)*; None where it may go everywhere."""
    padding = None if keep is None else ~keep[..., None, None, :]
    if bias is None:
        return padding
    return bias.isneginf() if padding is None else bias.isneginf() | padding


def attend(
    query: Float[Tensor, "*batch head query d_key"],
    key: Float[Tensor, "*batch head key d_key"],
    value: Float[Tensor, "*batch head key d_value"],
    keep: Bool[Tensor, "*batch key"] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "*batch head query d_value"], Float[Tensor, "*batch head query key"]]:
    """Outputs of the heads and their weights. The weights are returned before dropout, the outputs use them after."""
    weights = attention_weights(query, key, keep, bias)
    return F.dropout(weights, dropout) @ value, weights


def attend_fused(
    query: Float[Tensor, "*batch head query d_key"],
    key: Float[Tensor, "*batch head key d_key"],
    value: Float[Tensor, "*batch head key d_value"],
    keep: Bool[Tensor, "*batch key"] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "*batch head query d_value"]:
    """The outputs of `attend` by `scaled_dot_product_attention`, without the weights."""
    closed = _closed(keep, bias)
    if closed is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
    # Kernels disagree about rows without any key: let those attend everywhere, then set them to 0.
    empty = closed.all(-1, keepdim=True)
    mask = ~closed | empty if bias is None else bias.masked_fill(closed, -math.inf).masked_fill(empty, 0.0)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    return output.masked_fill(empty, 0.0)


def attend_averaged(
    query: Float[Tensor, "*batch head query d_key"],
    key: Float[Tensor, "*batch head key d_key"],
    value: Float[Tensor, "*batch key d_value"],
    keep: Bool[Tensor, "*batch key"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "*batch query d_value"]:
    """The mean of the outputs of `attend` where all heads have the same values: the mean of their maps times these."""
    scores = (query / math.sqrt(query.shape[-1])) @ key.mT
    if keep is None:
        return F.dropout(scores.softmax(-1), dropout).mean(-3) @ value
    empty = ~keep.any(-1, keepdim=True)  # such a text attends everywhere, and is then set to 0
    closed = scores.new_zeros(keep.shape).masked_fill(~(keep | empty), -math.inf)
    weights = (scores + closed[..., None, None, :]).softmax(-1)
    return (F.dropout(weights, dropout).mean(-3) @ value).masked_fill(empty[..., None], 0.0)


def rotate(
    projected: Float[Tensor, "*batch head token d_key"],
    cosine: Float[Tensor, "*texts token d_key"],
    sine: Float[Tensor, "*texts token d_key"],
) -> Float[Tensor, "*batch head token d_key"]:
    """Queries or keys turned by their positions (rotary positions, 2104.09864; the two halves of `d_key` pair up)."""
    first, second = projected.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return projected * cosine.unsqueeze(-3) + turned * sine.unsqueeze(-3)


def concat_heads(heads: Float[Tensor, "*batch head query d_value"]) -> Float[Tensor, "*batch query merged"]:
    """Heads side by side, `head * d_value` wide: each meets an output map of its own."""
    return heads.transpose(-3, -2).flatten(-2)


def sum_heads(heads: Float[Tensor, "*batch head query d_value"]) -> Float[Tensor, "*batch query d_value"]:
    """Heads truly added, so that all share one output map (2106.01269, section 4)."""
    return heads.sum(-3)


def mean_heads(heads: Float[Tensor, "*batch head query d_value"]) -> Float[Tensor, "*batch query d_value"]:
    """The mean of the heads. With one value head it is the averaged attention map times that head's values."""
    return heads.mean(-3)
