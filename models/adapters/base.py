"""What an adapter says of an attention module, and what adapters share."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..layers.attention import MultiHeadAttention

# Masks come as numbers to be added, too: from here down a number closes a position, as no bias of a model does.
CLOSED = -1e4


class Affine(NamedTuple):
    """A linear map as `nn.Linear` stores it: weight *(out, in)* and bias *(out,)* or None."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, linear: nn.Module) -> "Affine":
        """The map of an `nn.Linear`."""
        return cls(linear.weight, linear.bias)  # pyright: ignore[reportArgumentType]

    def chunk(self, parts: int) -> tuple["Affine", ...]:
        """The maps to `parts` equal parts of the output."""
        biases = (None,) * parts if self.bias is None else self.bias.chunk(parts)
        return tuple(map(Affine, self.weight.chunk(parts), biases))

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
        rotation: Cosines and sines, each *(batch or 1, token, d_key)*, that turn queries and keys (rotary positions).
        key_hidden: What keys are made of, *(batch, token, ...)*; None: `hidden`.
        value_hidden: What values are made of, likewise.
    """

    hidden: Tensor
    keep: Tensor | None
    bias: Tensor | None
    rotation: tuple[Tensor, Tensor] | None = None
    key_hidden: Tensor | None = None
    value_hidden: Tensor | None = None

    def select(self, texts: Tensor) -> "Call":
        """The call with some of the batch's texts, given by their positions *(texts,)*."""
        size = len(self.hidden)

        def pick(tensor: Tensor | None, shared: bool = False) -> Tensor | None:
            return tensor if tensor is None or shared or len(tensor) != size else tensor[texts]

        bias = pick(self.bias, shared=self.bias is not None and self.bias.ndim < 4)
        rotation = self.rotation and (pick(self.rotation[0]), pick(self.rotation[1]))
        return Call(pick(self.hidden), pick(self.keep), bias, rotation, pick(self.key_hidden), pick(self.value_hidden))  # pyright: ignore[reportArgumentType]


class Heads(NamedTuple):
    """The heads of one attention module.

    Attributes:
        query: Hidden states to the queries of all heads, head by head.
        key: The same for keys.
        value: The same for the values of the distinct value heads.
        output: The merged heads to the module's output.
        num_heads: Number of attention maps.
        read: Takes the arguments of the module's forward and gives the `Call`.
        dropout: Probability of dropping an attention weight while training.
        num_value_heads: Number of value maps.
        merge_heads: "concat", "sum" or "mean".
        rotary: Whether queries and keys are turned by their positions.
    """

    query: Affine
    key: Affine
    value: Affine
    output: Affine
    num_heads: int
    read: Callable[..., Call]
    dropout: float
    num_value_heads: int
    merge_heads: str = "concat"
    rotary: bool = False

    @property
    def d_model(self) -> int:
        """Width of the input."""
        return self.query.weight.shape[1]

    @property
    def d_key(self) -> int:
        """Size of queries and keys, per head."""
        return self.query.weight.shape[0] // self.num_heads

    @property
    def d_value(self) -> int:
        """Size of values, per head."""
        return self.value.weight.shape[0] // self.num_value_heads

    @property
    def output_map(self) -> Tensor:
        """One output map per head, or the one shared map, *(num_heads or 1, d_value, d_model)*."""
        maps = self.num_heads if self.merge_heads == "concat" else 1
        return self.output.weight.mT.unflatten(0, (maps, -1))


def split_mask(mask: Tensor | None, texts: int) -> tuple[Tensor | None, Tensor | None]:
    """Split a mask into `keep` *(texts, key)* and what else there is to add to the scores, each None if there is none.

    A position is padding when no query may attend to it.

    Args:
        mask: Boolean, True for what may be attended to, or numbers to be added; *(texts or 1, head or 1, query or 1,
            key)*, or *(texts, key)* with 1 for a token and 0 for padding.
        texts: The batch size.

    Raises:
        ValueError: If the mask is not a tensor.
    """
    if mask is None:
        return None, None
    if not isinstance(mask, Tensor):
        raise ValueError(f"A {type(mask).__name__} cannot be read: run the model's attention as sdpa or eager.")
    if mask.ndim == 2:
        mask = mask[:, None, None].bool()
    allowed = mask if mask.dtype == torch.bool else mask > CLOSED
    keep = allowed.any(2).any(1)  # (texts or 1, key)
    added = torch.zeros(mask.shape, device=mask.device) if mask.dtype == torch.bool else mask.masked_fill(~allowed, 0.0)
    padding_only = torch.equal(allowed, keep[:, None, None].expand_as(allowed)) and not bool(added.any())
    bias = None if padding_only else added.masked_fill(~allowed, -math.inf)
    return None if bool(keep.all()) else keep.expand(texts, -1), bias


class SwappedAttention(nn.Module):
    """Mixed into a class of transformers' attention, `attention` computes what the class's own parts did.

    The module stays an instance of its class, by which transformers finds the weights that a model returns.
    """

    attention: MultiHeadAttention
    config: Any
    read: Callable[..., Call]

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """The arguments of the class; the module's output, and its weights when they are asked for."""
        call = self.read(*args, **kwargs)
        bias = None if call.bias is None else call.bias.to(call.hidden.dtype)
        need_weights = self._need_weights(kwargs.get("output_attentions"))
        output = self.attention(call.hidden, call.keep, bias, need_weights, call.rotation)
        return output if need_weights else (output, None)

    def _need_weights(self, asked: bool | None) -> bool:
        config = getattr(self, "config", None)
        if getattr(config, "_attn_implementation", None) == "eager":
            return True
        if len(getattr(config, "swapped", None) or ()) < getattr(config, "num_hidden_layers", 0):
            return False  # under this kernel the layers that were not swapped return no weights either
        return bool(getattr(config, "output_attentions", False) if asked is None else asked)


def take_over(module: nn.Module, attention: MultiHeadAttention, mixin: type[nn.Module], parts: Sequence[str]) -> None:
    """Let `attention` do the work of `module`, whose own `parts`, modules and parameters, are given up.

    It remains the same object, with its hooks, of a class that adds `mixin` to the one it had.
    """
    for part in parts:
        delattr(module, part)
    module.attention = attention
    module.__class__ = mixed_class(mixin, type(module))


@cache
def mixed_class(mixin: type, base: type) -> type:
    """`base` with `mixin` before it."""
    return type(f"Swapped{base.__name__}", (mixin, base), {"__module__": __name__})
