"""The adapter for our own `MultiHeadAttention`."""

from torch import Tensor, nn

from ..layers.attention import MultiHeadAttention
from .base import Affine, Call, Heads

KNOWS = "identiformer's MultiHeadAttention"


def heads(module: nn.Module) -> Heads | None:
    """The heads of `module`, or None if it is not ours."""
    if not isinstance(module, MultiHeadAttention):
        return None
    maps = module.num_heads if module.merge_heads == "concat" else 1
    return Heads(
        query=Affine(module.query.weight, module.query.bias),
        key=Affine(module.key.weight, module.key.bias),
        value=Affine(module.value.weight, module.value.bias),
        output_map=module.output.weight.mT.unflatten(0, (maps, module.d_value)),
        num_heads=module.num_heads,
        num_value_heads=module.num_value_heads,
        merge_heads=module.merge_heads,
        read=_read,
    )


def _read(hidden: Tensor, keep: Tensor | None = None, bias: Tensor | None = None, need_weights: bool = False) -> Call:
    return Call(hidden, keep, bias)
