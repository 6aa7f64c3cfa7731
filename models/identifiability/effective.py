"""Effective attention: an attention map less the part that its head's output does not show."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .null_space import ValueDecomposition, refuse_non_finite


class Agreement(NamedTuple):
    """How effective attention compares with the raw map, each field of shape *(...)*; NaN where it is not defined.

    Attributes:
        pearson: Correlation over the flattened n x n map. NaN for a single token or a constant map.
        residual: `|A - A_eff| / |A|`, Frobenius norms.
        negative_mass: Mean over rows of the sum of `max(0, -entry)` of the effective map.
    """

    pearson: Float[Tensor, "*batch"]
    residual: Float[Tensor, "*batch"]
    negative_mass: Float[Tensor, "*batch"]


def effective_attention(
    weights: Float[Tensor, "*batch n n"],
    values: Float[Tensor, "*batch n d_value"],
    output_map: Float[Tensor, "*maps d_value d_model"] | None = None,
    keep: Bool[Tensor, "*texts n"] | None = None,
    preserve_sum: bool = False,
) -> Float[Tensor, "*batch n n"]:
    """The smallest matrix with the head's output: `A U U^T`, U an orthonormal basis of col(T).

    Source: 1908.04211, section 3.2, where it is A less its projection on the left null space of T. Entries may be
    negative and rows need not sum to 1. With `preserve_sum` (ours) rows keep their sums,
    `(row sum) / n 1^T + A U_c U_c^T`, so that the map equals the raw one wherever the head is identifiable.

    Args:
        weights: A head's attention weights.
        values: A head's values, biases included.
        output_map: The head's block of the output map; None stands for the identity.
        keep: True for tokens, False for padding, where the result is 0.
        preserve_sum: Move only along directions that sum to 0.

    Shape:
        weights and result: *(..., n, n)*, result float64; values: *(..., n, d_value)*;
        output_map: *(..., d_value, d_model)*; keep: *(..., n)*.

    Raises:
        ValueError: If a kept value or weight is not finite; the message names its leading index.
    """
    return effective_from(kept_weights(weights, keep), ValueDecomposition(values, output_map, keep), preserve_sum)


def effective_from(
    weights: Float[Tensor, "*batch n n"], decomposition: ValueDecomposition, preserve_sum: bool
) -> Float[Tensor, "*batch n n"]:
    """`effective_attention` of `kept_weights` by a decomposition that is there already."""
    basis = decomposition.basis(centred=preserve_sum)
    effective = weights @ basis @ basis.mT
    if not preserve_sum:
        return effective
    mean = weights.sum(-1, keepdim=True) / decomposition.length.clamp(min=1)[..., None, None]
    return effective + mean * decomposition.keep[..., None, :]


def kept_weights(
    weights: Float[Tensor, "*batch n n"], keep: Bool[Tensor, "*texts n"] | None
) -> Float[Tensor, "*batch n n"]:
    """Weights in float64, 0 in the rows and columns outside `keep`.

    Raises:
        ValueError: If a kept weight is not finite; the message names its leading index.
    """
    weights = weights.double()
    if keep is not None:
        weights = weights.masked_fill(~(keep[..., None] & keep[..., None, :]), 0.0)
    refuse_non_finite("weights", weights)
    return weights


def agreement(
    weights: Float[Tensor, "*batch n n"],
    effective: Float[Tensor, "*batch n n"],
    keep: Bool[Tensor, "*texts n"] | None = None,
) -> Agreement:
    """Compare an effective map with the raw one, over kept rows and columns.

    Shape:
        weights and effective: *(..., n, n)*; keep: *(..., n)*; each result: *(...)*.
    """
    kept = weights.new_ones(weights.shape[-1], dtype=torch.bool) if keep is None else keep
    kept = kept.broadcast_to(weights.shape[:-1])
    raw, effective = kept_weights(weights, kept), kept_weights(effective, kept)
    length = kept.sum(-1)
    cells = (kept[..., None] & kept[..., None, :]).flatten(-2)
    norm = torch.linalg.matrix_norm
    return Agreement(
        pearson=_pearson(raw.flatten(-2), effective.flatten(-2), cells),
        residual=norm(raw - effective) / norm(raw),
        negative_mass=effective.clamp(max=0).neg().sum((-2, -1)) / length,
    )


def _pearson(x: Tensor, y: Tensor, keep: Tensor) -> Tensor:
    """Correlation over the last dimension where `keep`; NaN where either is constant to float64's precision."""
    x, scale_x = _centred(x, keep)
    y, scale_y = _centred(y, keep)
    correlation = (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
    epsilon = torch.finfo(torch.float64).eps
    constant = (x.norm(dim=-1) <= epsilon * scale_x) | (y.norm(dim=-1) <= epsilon * scale_y)
    return correlation.masked_fill(constant, torch.nan)


def _centred(x: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """`x` less its kept mean, and the size of a constant vector's rounding errors: its norm times its length."""
    number = keep.sum(-1, keepdim=True)
    centred = (x - x.sum(-1, keepdim=True) / number).masked_fill(~keep, 0.0)
    return centred, x.norm(dim=-1) * number[..., 0]
