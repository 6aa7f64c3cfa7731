"""How far attention weights can be recovered from a head's output: pure functions on plain matrices, in float64."""

from .alternatives import Alternative, alternative_attention
from .attribution import Attribution, ContextProfile, context_profile, input_contributions
from .effective import Agreement, agreement, effective_attention
from .intervals import Intervals, attention_intervals
from .key_constrained import KeyAmbiguity, key_ambiguity
from .max_entropy import MaxEntropy, max_entropy_attention
from .null_space import LayerNullSpace, NullSpace, layer_null_space, null_space
from .slack import Slack, attention_slack
from .tokens import TokenIdentifiability, token_identifiability

__all__ = [
    "Agreement",
    "Alternative",
    "Attribution",
    "ContextProfile",
    "Intervals",
    "KeyAmbiguity",
    "LayerNullSpace",
    "MaxEntropy",
    "NullSpace",
    "Slack",
    "TokenIdentifiability",
    "agreement",
    "alternative_attention",
    "attention_intervals",
    "attention_slack",
    "context_profile",
    "effective_attention",
    "input_contributions",
    "key_ambiguity",
    "layer_null_space",
    "max_entropy_attention",
    "null_space",
    "token_identifiability",
]
