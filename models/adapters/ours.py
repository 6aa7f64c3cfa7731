"""The adapter for our own `MultiHeadAttention`."""

from torch import Tensor, nn

from ..layers.attention import MultiHeadAttention
from .base import Affine, Call, Heads

KNOWS = "identiformer's MultiHeadAttention"


def heads(module: nn.Module) -> Heads | None:
    """The heads of `module`, or None if it is not ours."""
    if not isinstance(module, MultiHeadAttention):
        return None
    return Heads(
        query=Affine.of(module.query),
        key=Affine.of(module.key),
        value=Affine.of(module.value),
        output=Affine.of(module.output),
        num_heads=module.num_heads,
        read=_read,
        dropout=module.dropout,
        num_value_heads=module.num_value_heads,
        merge_heads=module.merge_heads,
    )


def _read(
    hidden: Tensor,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    need_weights: bool = False,
    rotation: tuple[Tensor, Tensor] | None = None,
) -> Call:
    return Call(hidden, keep, bias, rotation)


def replace(module: nn.Module, attention: MultiHeadAttention, model: nn.Module) -> None:
    """Turn `module` of `model` into `attention`; its hooks stay."""
    assert isinstance(module, MultiHeadAttention)
    for name in ("query", "key", "value", "output", "d_key", "d_value", "num_value_heads", "merge_heads"):
        setattr(module, name, getattr(attention, name))
