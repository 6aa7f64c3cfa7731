"""Encoder layers: one multi-head attention, one encoder layer, four presets."""

from .attention import MultiHeadAttention
from .encoder_layer import EncoderLayer, build_encoder_layer
from .feedforward import FeedForward
from .presets import PRESETS, identifiable_layer, shared_value_layer, small_key_layer, standard_layer
from .torch_conversion import from_torch, to_torch
from .torch_layer import TorchEncoderLayer

__all__ = [
    "PRESETS",
    "EncoderLayer",
    "FeedForward",
    "MultiHeadAttention",
    "TorchEncoderLayer",
    "build_encoder_layer",
    "from_torch",
    "identifiable_layer",
    "shared_value_layer",
    "small_key_layer",
    "standard_layer",
    "to_torch",
]
