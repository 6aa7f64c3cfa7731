"""Multi-head attention as its formula reads: float64 loops over batch, head, query and key."""

import math

import torch
from torch import Tensor


def attention_weights(query: Tensor, key: Tensor, keep: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """softmax(q k / sqrt(d_key) + bias) over the kept keys, one number at a time.

    Shape:
        query and key: *(batch, head, token, d_key)*; keep: *(batch, token)*; bias and result:
        *(batch, head, query, key)*.
    """
    batch, heads, queries, d_key = query.shape
    keys = key.shape[2]
    weights = torch.zeros(batch, heads, queries, keys, dtype=torch.float64)
    for b in range(batch):
        kept = [k for k in range(keys) if keep is None or keep[b, k]]
        for h in range(heads):
            for q in range(queries):
                powers = {}
                for k in kept:
                    product = sum(float(query[b, h, q, i]) * float(key[b, h, k, i]) for i in range(d_key))
                    added = 0.0 if bias is None else float(bias[b, h, q, k])
                    powers[k] = math.exp(product / math.sqrt(d_key) + added)
                for k, power in powers.items():
                    weights[b, h, q, k] = power / sum(powers.values())
    return weights


def multi_head_attention(
    hidden: Tensor,
    queries: list[tuple[Tensor, Tensor]],
    keys: list[tuple[Tensor, Tensor]],
    values: list[tuple[Tensor, Tensor]],
    output_maps: list[Tensor],
    output_bias: Tensor,
    keep: Tensor | None = None,
) -> Tensor:
    """sum_h A_h V_h W_h + b, where each head has its own (weight, bias) pairs and its own W_h *(d_value, d_model)*."""
    hidden = hidden.double()
    output = output_bias.double().expand_as(hidden).clone()
    for query, key, value, output_map in zip(queries, keys, values, output_maps, strict=True):
        q, k, v = (hidden @ weight.double().T + bias.double() for weight, bias in (query, key, value))
        weights = attention_weights(q[:, None], k[:, None], keep)[:, 0]
        for b in range(len(hidden)):
            output[b] += weights[b] @ v[b] @ output_map.double()
    return output
