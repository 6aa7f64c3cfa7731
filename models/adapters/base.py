"""What an adapter says of an attention module."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Affine(NamedTuple):
    """A linear map as `nn.Linear` stores it: weight *(out, in)* and bias *(out,)* or None."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map *(..., in)* to *(..., out)* in the precision of `hidden`."""
        mapped = hidden @ self.weight.to(hidden).mT
        return mapped if self.bias is None else mapped + self.bias.to(hidden)


class Call(NamedTuple):
    """What one forward call gave an attention module.

    Attributes:
        hidden: Its input, *(batch, token, d_model)*.
        keep: True for tokens, False for padding, *(batch, token)*; None when nothing is padded.
        bias: Whatever is added to the scores but `keep`, broadcastable to *(batch, head, query, key)*.
    """

    hidden: Tensor
    keep: Tensor | None
    bias: Tensor | None


class Heads(NamedTuple):
    """The heads of one attention module.

    Attributes:
        query: Hidden states to the queries of all heads, head by head.
        key: The same for keys.
        value: The same for the values of the distinct value heads.
        output_map: One map per head, or the one shared map, *(num_heads or 1, d_value, d_model)*.
        num_heads: Number of attention maps.
        num_value_heads: Number of value maps.
        merge_heads: "concat", "sum" or "mean".
        read: Takes the arguments of the module's forward and gives the `Call`.
    """

    query: Affine
    key: Affine
    value: Affine
    output_map: Tensor
    num_heads: int
    num_value_heads: int
    merge_heads: str
    read: Callable[..., Call]
