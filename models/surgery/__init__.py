"""Swapping the attention of a model's encoder layers for another, with what the model has learnt or without."""

from .swapping import SwapReport, swap_encoder_layers

__all__ = ["SwapReport", "swap_encoder_layers"]
