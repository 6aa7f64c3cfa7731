"""Ambiguity under given keys: how far a row of attention can move unseen when only its query is free.

Logits are `q . k_j`, so a row a moves only along `(diag(a) - a a^T) K u`, d_key directions at most (2106.01269,
section 3). Which of them leave the output as it is shows in the canonical correlations between keys and values under
the distribution a.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .effective import kept_weights
from .null_space import ValueDecomposition, orthonormal_basis, refuse_non_finite

RTOL = 1e-10  # of a rank under a distribution, and of a canonical correlation


class KeyAmbiguity(NamedTuple):
    """What a query can change unseen, for each row, each field of shape *(..., rows)*.

    Attributes:
        ambiguity: Dimension of the directions that keep the output; -1 for a row outside `keep`.
        margin: Smallest canonical correlation between keys and values, 0 where the row is ambiguous; 1 for a row that
            no query moves, NaN outside `keep`.
        reach: `1 - max a`, how much weight the row has to move at all; NaN outside `keep`.
    """

    ambiguity: Int[Tensor, "*batch rows"]
    margin: Float[Tensor, "*batch rows"]
    reach: Float[Tensor, "*batch rows"]


def key_ambiguity(
    weights: Float[Tensor, "*batch n n"],
    keys: Float[Tensor, "*batch n d_key"],
    values: Float[Tensor, "*batch n d_value"],
    output_map: Float[Tensor, "*maps d_value d_model"] | None = None,
    keep: Bool[Tensor, "*texts n"] | None = None,
    rows: Int[Tensor, " rows"] | None = None,
) -> KeyAmbiguity:
    """Dimension of the changes of a query that change the row but not the output, to first order.

    Source: the constraint is 2106.01269's, section 3; the measure is ours. With `D = diag(sqrt a)`,
    `K_a = K - 1 a^T K` and `T_a` likewise, c are the canonical correlations of `D K_a` and `D T_a`, padded with zeros
    to `r_K = rank(D K_a)`: ambiguity is `r_K - #{c > 1e-10}`, the margin `c[r_K]`. A weight of 0 stays 0.

    Args:
        weights: A head's attention weights.
        keys: A head's keys, biases included.
        values: A head's values, biases included.
        output_map: The head's block of the output map; None stands for the identity.
        keep: True for tokens, False for padding.
        rows: Positions of the rows to measure; None stands for all.

    Shape:
        weights: *(..., n, n)*; keys: *(..., n, d_key)*; values: *(..., n, d_value)*; output_map:
        *(..., d_value, d_model)*; keep: *(..., n)*; rows: *(rows,)*; each result: *(..., rows)*. The work takes
        *(..., rows, n, d_key + d_value)* numbers of memory.

    Raises:
        ValueError: If a kept key, value or weight is not finite; the message names its leading index.
    """
    decomposition = ValueDecomposition(values, output_map, keep)
    keys = keys.double().masked_fill(~decomposition.keep[..., None], 0.0)
    refuse_non_finite("keys", keys)
    chosen, kept = chosen_rows(kept_weights(weights, decomposition.keep), decomposition.keep, rows)
    found = ambiguity_of_rows(chosen, keys, decomposition.matrix)
    return KeyAmbiguity(
        ambiguity=found.ambiguity.masked_fill(~kept, -1),
        margin=found.margin.masked_fill(~kept, torch.nan),
        reach=found.reach.masked_fill(~kept, torch.nan),
    )


def ambiguity_of_rows(
    rows: Float[Tensor, "*batch rows n"], keys: Float[Tensor, "*batch n d_key"], matrix: Float[Tensor, "*batch n d"]
) -> KeyAmbiguity:
    """`key_ambiguity` of kept rows; keys are float64 and 0 outside `keep`, `matrix` is any with T's `T T^T`."""
    of_keys = _directions(rows, keys)
    correlations = torch.linalg.svdvals(_directions(rows, matrix).mT @ of_keys)
    rank = of_keys.any(-2).sum(-1)
    return KeyAmbiguity(
        ambiguity=rank - (correlations > RTOL).sum(-1),
        margin=_smallest(correlations, rank),
        reach=1 - rows.amax(-1),
    )


def chosen_rows(
    weights: Float[Tensor, "*batch n n"], keep: Bool[Tensor, "*batch n"], rows: Int[Tensor, " rows"] | None
) -> tuple[Float[Tensor, "*batch rows n"], Bool[Tensor, "*batch rows"]]:
    """The rows of an attention map at some positions, and which of them are kept tokens."""
    return (weights, keep) if rows is None else (weights[..., rows, :], keep[..., rows])


def _directions(rows: Tensor, matrix: Tensor) -> Tensor:
    """Orthonormal bases of the columns of `diag(sqrt a) (M - 1 a^T M)`, *(..., rows, n, k)*; 0 past the rank.

    Rows are taken to sum to 1: what rounding adds to the sum would otherwise pass for a direction.
    """
    root, matrix = rows.sqrt()[..., None], matrix[..., None, :, :]
    mean = (rows / rows.sum(-1, keepdim=True).clamp(min=RTOL))[..., None, :] @ matrix  # (..., rows, 1, d)
    return orthonormal_basis(root * (matrix - mean), RTOL * torch.linalg.matrix_norm(root * matrix))


def _smallest(correlations: Tensor, rank: Tensor) -> Tensor:
    """The last of `rank` falling correlations, which go on with zeros; 1 where there is none."""
    place, number = (rank - 1).clamp(min=0)[..., None], correlations.shape[-1]
    smallest = correlations.gather(-1, place.clamp(max=number - 1)).masked_fill(place >= number, 0.0)
    return smallest[..., 0].clamp(max=1.0).masked_fill(rank == 0, 1.0)
