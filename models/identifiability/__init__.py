"""How far attention weights can be recovered from a head's output: pure functions on plain matrices, in float64."""

from .effective import Agreement, agreement, effective_attention
from .key_constrained import KeyAmbiguity, key_ambiguity
from .max_entropy import MaxEntropy, max_entropy_attention
from .null_space import LayerNullSpace, NullSpace, layer_null_space, null_space

__all__ = [
    "Agreement",
    "KeyAmbiguity",
    "LayerNullSpace",
    "MaxEntropy",
    "NullSpace",
    "agreement",
    "effective_attention",
    "key_ambiguity",
    "layer_null_space",
    "max_entropy_attention",
    "null_space",
]
