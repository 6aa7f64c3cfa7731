"""How far attention weights can be recovered from a head's output: pure functions on plain matrices, in float64."""

from .effective import Agreement, agreement, effective_attention
from .null_space import LayerNullSpace, NullSpace, layer_null_space, null_space

__all__ = [
    "Agreement",
    "LayerNullSpace",
    "NullSpace",
    "agreement",
    "effective_attention",
    "layer_null_space",
    "null_space",
]
