"""Comparisons that several tests share."""

import torch
from torch import Tensor


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal shapes, and nowhere further apart than `tolerance` times the largest expected entry."""
    assert actual.shape == expected.shape
    difference = (actual.double() - expected.double()).abs().max()
    assert difference <= tolerance * expected.double().abs().max()


def randomise(module: torch.nn.Module, std: float = 0.3) -> torch.nn.Module:
    """Random parameters everywhere, so that no bias or norm is at its neutral start."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=std)
    return module
