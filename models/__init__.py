"""What is trained and what can be measured. Needs torch and transformers only."""

from .attribution import hidden_token_attribution
from .configuration import IdentiformerConfig
from .layers import (
    EncoderLayer,
    MultiHeadAttention,
    TorchEncoderLayer,
    from_torch,
    identifiable_layer,
    shared_value_layer,
    small_key_layer,
    standard_layer,
    to_torch,
)
from .modeling import IdentiformerForSequenceClassification, IdentiformerModel
from .recording import HeadRecord, record_heads, record_states
from .surgery import SwapReport, swap_encoder_layers

__all__ = [
    "EncoderLayer",
    "HeadRecord",
    "IdentiformerConfig",
    "IdentiformerForSequenceClassification",
    "IdentiformerModel",
    "MultiHeadAttention",
    "SwapReport",
    "TorchEncoderLayer",
    "from_torch",
    "hidden_token_attribution",
    "identifiable_layer",
    "record_heads",
    "record_states",
    "shared_value_layer",
    "small_key_layer",
    "standard_layer",
    "swap_encoder_layers",
    "to_torch",
]
