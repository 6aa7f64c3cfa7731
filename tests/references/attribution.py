"""Hidden token attribution as its definition reads: one text, one gradient per coordinate, loops in float64."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


def contributions(states: Callable[[Tensor], Sequence[Tensor]], inputs: Tensor) -> list[np.ndarray]:
    """Contributions (n, n) to every layer's states, from inputs (n, d)."""
    inputs = inputs.detach().requires_grad_()
    return [_of_layer(state, inputs) for state in states(inputs)]


def _of_layer(state: Tensor, inputs: Tensor) -> np.ndarray:
    n = len(inputs)
    squares = np.zeros((n, n))
    for hidden in range(n):
        for coordinate in range(state.shape[1]):
            (gradient,) = torch.autograd.grad(state[hidden, coordinate], inputs, retain_graph=True, allow_unused=True)
            if gradient is not None:
                squares[hidden] += (gradient.numpy() ** 2).sum(1)
    norms = np.sqrt(squares)
    return norms / norms.sum(1, keepdims=True)


def profile(contributions, keep) -> tuple[list[float], float, dict[int, float]]:
    """Own shares of the kept tokens, the share of those not led by their own, and means by distance."""
    kept = [token for token in range(len(keep)) if keep[token]]
    own = [float(contributions[i][i]) for i in kept]
    led = [max(float(contributions[i][j]) for j in kept) > float(contributions[i][i]) for i in kept]
    by_distance: dict[int, list[float]] = {}
    for hidden, i in enumerate(kept):
        for token, j in enumerate(kept):
            by_distance.setdefault(token - hidden, []).append(float(contributions[i][j]))
    means = {distance: sum(parts) / len(parts) for distance, parts in by_distance.items()}
    return own, sum(led) / len(kept) if kept else math.nan, means
