"""What is trained and what can be measured. Needs torch and transformers only."""

from .configuration import IdentiformerConfig
from .layers import (
    EncoderLayer,
    MultiHeadAttention,
    identifiable_layer,
    shared_value_layer,
    small_key_layer,
    standard_layer,
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
    "identifiable_layer",
    "record_heads",
    "record_states",
    "shared_value_layer",
    "small_key_layer",
    "standard_layer",
    "swap_encoder_layers",
]
