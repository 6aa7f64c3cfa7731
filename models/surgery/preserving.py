"""Weights with which a `MultiHeadAttention` of other sizes does what a model's own attention does."""

import math

import torch
from torch import Tensor

from ..adapters import Affine, Heads
from ..functional.low_rank import compress_scores
from ..layers.attention import MultiHeadAttention
from ..recording import HeadRecord


@torch.no_grad()
def preserve(own: Heads, attention: MultiHeadAttention, calibration: HeadRecord | None = None) -> Tensor:
    """Give `attention` weights with which it computes what the heads `own` do.

    It is exact but for keys that are smaller than the model's own. What is new in size starts at random where that is
    not seen in the output yet, so that training can reach it.

    Args:
        own: The heads of the module that is swapped.
        attention: Freshly initialised in float64 on the CPU, of sizes that `check_preservable` lets pass.
        calibration: What the module saw of some texts.

    Returns:
        The error of each head's scores relative to their own root mean square, *(head,)*; 0 is exact.
    """
    error = _preserve_scores(own, attention, calibration)
    _preserve_values(own, attention)
    return error


def check_preservable(own: Heads, new: MultiHeadAttention) -> None:
    """Refuse sizes with which what the heads `own` do cannot be preserved.

    Raises:
        ValueError: It says why, and what to do.
    """
    moved = _moves_output_maps(own, new)
    value_heads, d_value = (own.num_heads, own.d_model) if moved else (own.num_value_heads, own.d_value)
    if new.num_value_heads % value_heads:
        raise ValueError(
            f"With num_value_heads {new.num_value_heads} several heads share one value map, which cannot do what "
            f"{value_heads} different ones did: swap with preserve=False, or for another layer."
        )
    if new.d_value < d_value:
        why = "since heads that are added share one output map" if moved else "as the model's own"
        raise ValueError(
            f"d_value {new.d_value} cannot do exactly what the heads did: it must be {d_value}, {why}; leave d_value "
            "out, or swap with preserve=False."
        )


def _moves_output_maps(own: Heads, new: MultiHeadAttention) -> bool:
    """Whether each head's output map has to go into its value map, since the heads are to share one."""
    return own.merge_heads == "concat" and new.merge_heads != "concat"


def _preserve_scores(own: Heads, new: MultiHeadAttention, calibration: HeadRecord | None) -> Tensor:
    query, key = (_by_head(affine, own.num_heads) for affine in (own.query, own.key))  # (head, d_key, d_model + 1)
    size = own.d_key
    if new.d_key < size:
        moments = calibration and _moments(calibration)
        # A key's bias adds the same to a query's scores for all keys, which the softmax does not see.
        query, key, error = compress_scores(query, key[..., :-1], new.d_key, *(moments or (None, None)))
        key = torch.cat((key, torch.zeros_like(key[..., :1])), -1)
    else:
        error = torch.zeros(own.num_heads)
        fresh = _by_head(Affine.of(new.query), new.num_heads)[:, size:]
        query = torch.cat((query * math.sqrt(new.d_key / size), fresh), 1)
        key = torch.cat((key, torch.zeros_like(fresh)), 1)
    _fill(new.query, query)
    _fill(new.key, key)
    return error


def _moments(record: HeadRecord) -> tuple[Tensor, Tensor]:
    """Second moments of the inputs with a 1 beside them, and the inputs' covariance within texts."""
    hidden = record.hidden.double().cpu()
    keep = torch.ones(hidden.shape[:2], dtype=torch.bool) if record.keep is None else record.keep.cpu()
    hidden = hidden.masked_fill(~keep[..., None], 0.0)
    mean = hidden.sum(1, keepdim=True) / keep.sum(1)[:, None, None].clamp(min=1)
    inputs, centred = hidden[keep], (hidden - mean)[keep]
    inputs = torch.cat((inputs, torch.ones_like(inputs[:, :1])), -1)
    return inputs.mT @ inputs / len(inputs), centred.mT @ centred / len(centred)


def _preserve_values(own: Heads, new: MultiHeadAttention) -> None:
    value, output = _by_head(own.value, own.num_value_heads), _exact(own.output_map)  # (head, d_value, ...) each
    if _moves_output_maps(own, new):
        value = output.mT @ value.repeat_interleave(own.num_heads // own.num_value_heads, 0)
        output = torch.eye(new.d_model, dtype=value.dtype)[None]
    output = output * (_shares(new.merge_heads, own.num_heads) / _shares(own.merge_heads, own.num_heads))
    value = value.repeat_interleave(new.num_value_heads // len(value), 0)
    fresh = _by_head(Affine.of(new.value), new.num_value_heads)[:, value.shape[1] :]
    _fill(new.value, torch.cat((value, fresh), 1))
    maps = new.num_heads if new.merge_heads == "concat" else 1
    unseen = torch.zeros(maps, new.d_value - output.shape[1], new.d_model, dtype=output.dtype)
    output = torch.cat((output.expand(maps, -1, -1), unseen), 1)
    new.output.weight.copy_(output.flatten(0, 1).mT)
    new.output.bias.copy_(torch.zeros(new.d_model) if own.output.bias is None else own.output.bias)


def _shares(merge_heads: str, num_heads: int) -> int:
    """What the heads' sum is divided by."""
    return num_heads if merge_heads == "mean" else 1


def _by_head(affine: Affine, number: int) -> Tensor:
    """Weight and bias side by side, *(head, size, inputs + 1)*, in float64 on the CPU."""
    weight = _exact(affine.weight)
    bias = torch.zeros_like(weight[:, 0]) if affine.bias is None else _exact(affine.bias)
    return torch.cat((weight, bias[:, None]), 1).unflatten(0, (number, -1))


def _fill(linear: torch.nn.Linear, maps: Tensor) -> None:
    linear.weight.copy_(maps[..., :-1].flatten(0, 1))
    linear.bias.copy_(maps[..., -1].flatten())


def _exact(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()
